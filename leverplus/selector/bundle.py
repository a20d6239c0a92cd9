"""A bundle: a folder that chooses demonstrations and needs nothing else on another machine.

`bundle.json` says how it chooses, `demos.sqlite` holds the demonstrations and is the truth about them, `vectors.*.npy`
hold the vectors of its first rows, `selector/` the trained network where there is one, `encoder/` the embedder where it
came from a folder, `README.md` is its card. Nothing in it is ever unpickled, and sizes are checked before they are
believed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from leverplus import rundir
from leverplus.catalog import is_outside
from leverplus.errors import DataError, LeverError
from leverplus.ranking.ranking import RANKED
from leverplus.recipe.model import ModelSection
from leverplus.recipe.sections import EmbedSection
from leverplus.rundir import read_json, write_json
from leverplus.selector.choose import ARMS, Chooser, make_chooser
from leverplus.selector.corpus import FIELDS, CorpusRows
from leverplus.selector.index import FLAT_ABOVE, CellTable
from leverplus.selector.query import HeldPictures, clean_picture, clean_question, pixel_digest
from leverplus.selector.ranked import LABELS, read_ranked
from leverplus.selector.sources import BundleSource, QueryEncoder, packed
from leverplus.selector.store import DemoStore, Entry, KeptPicture
from leverplus.types import Item, ItemId

if TYPE_CHECKING:
    from PIL import Image

    from leverplus.policies.base import Policy

MANIFEST = "bundle.json"
DEMOS = "demos.sqlite"
CARD = "README.md"
SELECTOR = "selector"
ENCODER = "encoder"
CELLS = "vectors.cells.npz"
FORMAT = 1

CODE = (".py", ".pyc", ".so")
"""Endings of what Python imports."""

ADD_KEYS = ("id", "question", "answer", "answers", "image", "meta")


def vector_file(field: str) -> str:
    return f"vectors.{field}.npy"


@dataclass
class Bundle:
    """The folder of a bundle, what its `bundle.json` says, and its demonstrations."""

    folder: Path
    facts: dict[str, Any]
    source: BundleSource

    @property
    def store(self) -> DemoStore:
        return self.source.store

    @cached_property
    def digest(self) -> str:
        """Names how this bundle chooses: what bundle.json says but for the demonstrations, and the weights."""
        how = {key: value for key, value in self.facts.items() if key not in ("demonstrations", "figures", "licence")}
        content = hashlib.sha256(json.dumps(how, sort_keys=True).encode())
        weights = self.folder / SELECTOR / rundir.WEIGHTS
        for part in (weights, self.folder / LABELS):
            if part.is_file():
                content.update(part.read_bytes())
        return content.hexdigest()[:16]

    def model_section(self) -> ModelSection:
        """The prompt form that the bundle was made with."""
        prompt = self.facts.get("prompt", {})
        keys = ("template", "instruction", "image_pixels")
        return ModelSection(
            prompt=str(prompt.get("form", "plain")), **{key: prompt[key] for key in keys if key in prompt}
        )

    def card(self) -> str:
        path = self.folder / CARD
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def add(self, demos: Sequence[Mapping[str, Any]]) -> list[str]:
        """Keep demonstrations; they are in the file, and in every choice that starts now, when this returns."""
        if (self.folder / SELECTOR / rundir.CONFIG).is_file() and _over_ids(self.folder):
            raise LeverError(
                "this selector chooses by the numbers of its demonstrations, so none can be added; train a new one"
            )
        if isinstance(demos, Mapping):
            demos = [demos]
        drafts = [draft_demo(number, demo) for number, demo in enumerate(demos)]
        drafts = list({entry.id: (entry, picture, content) for entry, picture, content in drafts}.values())
        if not drafts:
            return []
        vectors = self._embed([(entry, picture) for entry, picture, _ in drafts])
        blobs = packed(vectors, [name for name in FIELDS if name in self.source.rows.blocks])
        kept = [KeptPicture(entry.picture, content) for entry, _, content in drafts if entry.picture]
        with self.store.lock:
            known = self.store.rows_of([entry.id for entry, _, _ in drafts])
            same = {name for name, row in known.items() if name.startswith("demo-")}  # named by content: there already
            new = [place for place, (entry, _, _) in enumerate(drafts) if entry.id not in same]
            if new:
                with self.store.change():
                    self.store.add([drafts[place][0] for place in new], kept, [blobs[place] for place in new])
                self.source._catch_up()
        self._note()
        return [entry.id for entry, _, _ in drafts]

    def delete(self, ids: Sequence[str]) -> int:
        """Forget demonstrations; no choice that ends after this returned shows them."""
        names = [ItemId(name) for name in dict.fromkeys(ids)]
        with self.store.lock:
            with self.store.change():
                self.store.delete(names)
            self.source._catch_up()
        self._note()
        return len(names)

    def _note(self) -> None:
        """What bundle.json says of the demonstrations; demos.sqlite is what counts."""
        with self.store.lock:
            about = {"count": self.store.count, "fingerprint": self.store.fingerprint}
            if self.facts.get("demonstrations") != about:
                self.facts["demonstrations"] = about
                write_json(self.folder / MANIFEST, self.facts)

    def _embed(self, drafts: Sequence[tuple[Entry, Image.Image | None]]) -> dict[str, NDArray[np.float32]]:
        pictures = {entry.picture: picture for entry, picture in drafts if entry.picture and picture is not None}
        items = [
            Item(entry.id, entry.question, entry.answers, "train", entry.picture, entry.picture) for entry, _ in drafts
        ]
        blocks = self.source.rows.blocks
        if "image" in blocks and (blind := [item.id for item in items if item.image is None]):
            raise LeverError(f"this selector sees pictures, and demonstration {blind[0]} has none; give it an image")
        found = vars(self.source.encoder.items(items, HeldPictures(pictures)))
        for name, block in blocks.items():
            if found.get(name) is None or found[name].shape[1] != block.width:
                raise LeverError(f"the embedder gives no vectors of the field '{name}' that fit the bundle")
        return {name: found[name] for name in blocks}


def draft_demo(number: int, demo: Mapping[str, Any]) -> tuple[Entry, Image.Image | None, bytes | None]:
    """One demonstration to add, its picture decoded, and the picture file to keep."""
    from leverplus.selector.demo import png_of

    if not isinstance(demo, Mapping):
        raise LeverError(f"demonstration {number}: must be a mapping with a question and an answer")
    if unknown := [key for key in demo if key not in ADD_KEYS]:
        raise LeverError(
            f"demonstration {number}: there is no key '{str(unknown[0])[:40]}'; known: {', '.join(ADD_KEYS)}"
        )
    words = clean_question(demo.get("question"))
    answers = demo.get("answers", [demo["answer"]] if "answer" in demo else [])
    if (
        not isinstance(answers, (list, tuple))
        or not answers
        or not all(isinstance(a, str) and a.strip() for a in answers)
    ):
        raise LeverError(f"demonstration {number}: needs an answer, a text that is not empty")
    meta = demo.get("meta") or {}
    if not isinstance(meta, Mapping):
        raise LeverError(f"demonstration {number}: meta must be a mapping")
    picture = clean_picture(demo.get("image"))
    content = None if picture is None else _file_bytes(demo["image"]) or png_of(picture)
    named = None if picture is None else pixel_digest(picture)
    plain = {str(key): str(value) for key, value in meta.items()}
    entry = Entry(ItemId(""), words, tuple(answers), plain, named)
    name = demo.get("id")
    if name is not None and not (isinstance(name, str) and name.strip()) and not isinstance(name, int):
        raise LeverError(f"demonstration {number}: id must be a text that is not empty")
    chosen = ItemId(str(name) if name is not None else f"demo-{entry.digest.hex()}")
    return Entry(chosen, words, tuple(answers), plain, named), picture, content


def _file_bytes(image: Any) -> bytes | None:
    """The bytes of the picture file that was given, where it was one."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image)
    if isinstance(image, Path) or (isinstance(image, str) and image[:5].lower() != "data:"):
        return Path(image).expanduser().read_bytes()
    return None


def _over_ids(folder: Path) -> bool:
    config: Mapping[str, Any] = read_json(folder / SELECTOR / rundir.CONFIG).get("config", {})
    return bool(config.get("model", "pointer") != "pointer")


def open_bundle(folder: Path) -> tuple[Bundle, Chooser]:
    """A bundle and what chooses in it; its embedder is opened at the first query."""
    facts = read_json(folder / MANIFEST)
    _check_facts(folder, facts)
    store = DemoStore(folder / DEMOS)
    rows = _read_rows(folder, facts, store)
    source = BundleSource(folder, store, rows, lambda: _open_encoder(folder, facts))
    fixed = list(store.rows_of([ItemId(name) for name in facts.get("fixed", [])]).values())
    chooser: Chooser
    if facts["arm"] in RANKED:
        chooser = read_ranked(folder, facts, int(store.facts().get("packed_rows", "0")), partial(_answers, store))
    else:
        chooser = make_chooser(facts["arm"], facts, _read_policy(folder, facts), fixed)
    return Bundle(folder, facts, source), chooser


def _answers(store: DemoStore, rows: Sequence[int]) -> dict[int, str]:
    """The answer that each of some rows shows; deleted ones are missing."""
    found = store.entries(rows)
    return {row: Item(own.id, own.question, own.answers, "train").answer for row, own in found.items() if own.answers}


def _check_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Refuse what this version does not read, with the reason."""
    if facts.get("format") != FORMAT:
        raise DataError(f"{folder / MANIFEST} has format {facts.get('format')!r}; this version reads format {FORMAT}")
    kinds = {"arm": str, "shots": int, "text_weight": (int, float), "candidates": int, "mmr_lambda": (int, float)}
    kinds |= {"fields": dict, "embedder": dict, "demonstrations": dict}
    wrong = [key for key, kind in kinds.items() if not isinstance(facts.get(key), kind)]  # type: ignore[arg-type]
    if wrong or facts["arm"] not in ARMS or not 0 <= facts["text_weight"] <= 1 or not 0 <= facts["shots"] <= 64:
        raise DataError(
            f"{folder / MANIFEST} is not understood ({', '.join(wrong) or 'values out of range'}); pack it again"
        )
    if not set(facts["fields"]) <= set(FIELDS) or "text" not in facts["fields"]:
        raise DataError(f"{folder / MANIFEST}: fields must be some of {', '.join(FIELDS)}, text among them")


def _read_rows(folder: Path, facts: Mapping[str, Any], store: DemoStore) -> CorpusRows:
    """The vectors of the first rows, looked at in the file where there are many."""
    held = int(store.facts().get("packed_rows", "0"))
    blocks: dict[str, NDArray[Any]] = {}
    for name in FIELDS:
        if name not in facts["fields"]:
            continue
        path, width = folder / vector_file(name), facts["fields"][name]
        try:
            block = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path} cannot be read ({error}); copy the whole folder, or pack it again") from error
        if block.shape != (held, width) or block.dtype not in (np.float32, np.float16) or held > store.rows:
            raise DataError(
                f"{path} has shape {block.shape} of {block.dtype}, not ({held}, {width}); copy the whole folder"
            )
        blocks[name] = np.array(block) if held <= FLAT_ABOVE else block
    numbers = {name: _numbers(store, name, held) for name in store.number_names()}
    return CorpusRows.of(blocks, float(facts["text_weight"]), cells=_read_cells(folder, held, blocks), numbers=numbers)


def _numbers(store: DemoStore, name: str, held: int) -> NDArray[np.float64]:
    values = np.full(held, np.nan)
    for row, value in store.numbers(name).items():
        if row < held:
            values[row] = value
    return values


def _read_cells(folder: Path, held: int, blocks: Mapping[str, NDArray[Any]]) -> CellTable | None:
    path = folder / CELLS
    if not path.is_file():
        return None
    try:
        with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
            centres, assigned = file["centres"], file["assigned"]
            opened, recall = int(file["opened"]), float(file["recall"])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise DataError(f"{path} cannot be read ({error}); delete it to search without cells") from error
    width = sum(block.shape[1] for block in blocks.values())
    if assigned.shape != (held,) or centres.ndim != 2 or centres.shape[1] > width or not len(centres):
        raise DataError(f"{path} belongs to other vectors; delete it to search without cells")
    if not 0 < opened <= len(centres) or assigned.min() < 0 or assigned.max() >= len(centres):
        raise DataError(f"{path} names cells that are not there; delete it to search without cells")
    return CellTable(centres.astype(np.float32), assigned.astype(np.int32), opened, recall)


def _read_policy(folder: Path, facts: Mapping[str, Any]) -> Policy | None:
    if not facts["arm"].startswith("learned"):
        return None
    from leverplus.training.checkpoint import load_checkpoint

    policy = load_checkpoint(folder / SELECTOR)[0]
    short = {name: width for name, width in policy.dims.items() if facts["fields"].get(name) != width}
    if short:
        raise DataError(f"{folder}: the selector reads {short}, and the bundle's vectors are {facts['fields']}")
    return policy


def _open_encoder(folder: Path, facts: Mapping[str, Any]) -> QueryEncoder:
    """The embedder of a bundle, refused where it is not the one that made the vectors."""
    from leverplus.embedders.cached import open_embedder

    section = dict(facts["embedder"].get("section", {}))
    if (folder / ENCODER).is_dir():
        inside = sorted((folder / ENCODER).iterdir())
        section["model"] = str(inside[0] if section.get("name") == "stored" else folder / ENCODER)
    known = {key: section[key] for key in ("name", "model", "batch", "mean") if key in section}
    if is_outside(str(known.get("name", ""))) and (code := _code_in(folder)) is not None:
        raise DataError(
            f"{code} is code, and a bundle holds none: its embedder {known['name']} must be installed, or lie in "
            "another folder, from which you type the command; delete the file if you do not trust who made the bundle"
        )
    embedder = open_embedder(EmbedSection(**known), folder / "unused")
    made, here = dict(facts["embedder"].get("fingerprint", {})), dict(embedder.fingerprint())
    if made != here:
        raise DataError(
            f"the embedder here ({_named(here)}) is not the one that made the vectors of {folder} ({_named(made)}); "
            "install the same weights, or pack the bundle again"
        )
    return QueryEncoder(embedder)


def _code_in(folder: Path) -> Path | None:
    """A file in a bundle that Python would import, were the command typed in that folder or beside it."""
    return next((path for path in sorted(folder.rglob("*")) if path.suffix in CODE), None)


def _named(fingerprint: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(fingerprint.items()))
