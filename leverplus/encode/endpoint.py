"""An encoder behind an address: a server that takes texts at `/embeddings`, as OpenAI, vLLM and llama.cpp do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from leverplus.encode.base import Array, unit_rows
from leverplus.encode.settings import EmbedSection
from leverplus.errors import LeverError, ScoringError
from leverplus.models.api.client import Client
from leverplus.models.settings import ModelSection


class EndpointEncoder:
    """Unit vectors of texts (N, D) from a server.

    `embed.url` ends in /v1, `embed.model` is the model's name there.
    """

    sees = False

    def __init__(self, section: EmbedSection) -> None:
        if not section.url or not section.model:
            raise LeverError(
                'embed.name = "endpoint" needs the address (embed.url) and the model there (embed.model); '
                "`lever fit --embed URL#MODEL` sets both"
            )
        self.model = section.model
        self.client = Client(
            ModelSection(name=self.model, url=section.url, key_env=section.key_env)
        )

    def fingerprint(self) -> Mapping[str, str]:
        return {"embedder": "endpoint", "model": self.model}

    def texts(self, texts: Sequence[str]) -> Array:
        def vectors_of(reply: Mapping[str, Any]) -> Any:
            try:
                rows = {}
                for row in reply["data"]:
                    rows[row["index"]] = row["embedding"]
                ordered = [rows[place] for place in range(len(texts))]
                found = np.array(ordered, float)
                if found.ndim == 2 and np.isfinite(found).all():
                    return found
            except (KeyError, TypeError, ValueError):
                pass
            raise ScoringError(
                f"the server sent no list of {len(texts)} vectors; is embed.url the address of an /v1 API that embeds?"
            )

        body = {"model": self.model, "input": list(texts)}
        return unit_rows(self.client.post("/embeddings", body, vectors_of).value)
