"""The `[embed]` section of a recipe: what turns items into vectors."""

from __future__ import annotations

from dataclasses import dataclass

from leverplus import catalog
from leverplus.data.settings import setting


@dataclass(frozen=True)
class EmbedSection:
    """`[embed]`: what turns items into vectors."""

    name: str = setting(
        "world", "the embedder", choices=catalog.EMBEDDERS, part="embedder"
    )
    model: str = setting(
        "",
        'its weights: a folder, an installed package, a name on a hub; "": the usual ones',
    )
    device: str = setting("auto", "where it runs: auto, cpu, cuda, cuda:1, ...")
    batch: int = setting(64, "texts or pictures embedded together", low=1)
    url: str = setting(
        "",
        "address of the server that embeds, such as http://127.0.0.1:8000/v1",
        when=("name", "endpoint"),
    )
    key_env: str = setting(
        "",
        'environment variable that holds the key; "": none is sent',
        when=("name", "endpoint"),
    )
