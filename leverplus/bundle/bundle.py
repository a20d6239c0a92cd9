"""A bundle: a folder that chooses demonstrations and needs nothing else on another machine.

`bundle.json` says how it chooses, `demos.sqlite` holds the demonstrations with their vectors and pictures and is the
truth about them, `arm/` what the way of choosing was fitted to, `encoder/` the embedder where it came from a folder,
`README.md` is its card. It is data: it names no code but by permission (`trust`), and nothing outside itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import compress, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from leverplus.arms.base import MOST_SHOTS, Arm
from leverplus.arms.corpus import Corpus
from leverplus.arms.index import FLAT_ABOVE
from leverplus.arms.spec import open_arm
from leverplus.bundle.demo import (
    Demo,
    HeldPictures,
    Query,
    clean_picture,
    picture_content,
    pixel_digest,
    png_of,
)
from leverplus.bundle.hub import ARM, CARD, DEMOS, ENCODER, MANIFEST, write_card
from leverplus.bundle.store import (
    DemoStore,
    Kept,
    digest_of,
    record_of,
)
from leverplus.catalog import is_outside
from leverplus.data.rundir import (
    read_json,
    staged_folder,
    write_json,
    write_text,
)
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId
from leverplus.encode.base import Embedder, Vectors
from leverplus.encode.cached import open_embedder
from leverplus.encode.settings import EmbedSection
from leverplus.errors import DataError, LeverError
from leverplus.evaluate.record import EvaluationRecord
from leverplus.learn.arm import Learned
from leverplus.models.settings import ModelSection
from leverplus.version import __version__

SHOTS = 4
"""Demonstrations shown where nobody says how many."""
READ_AT_ONCE = 500
WRITTEN_AT_ONCE = 256
"""Demonstrations that are in memory together, with their pictures while a bundle is written."""
TRUST = "LEVER_TRUST"
"""The environment variable that names modules from which bundles may import parts, commas between them."""
ADD_KEYS = {"id", "question", "fields", "answer", "answers", "image", "meta"}


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class ModelFacts(_Facts):
    """The model that a bundle was measured with, and the form of its prompts."""

    name: str = ""
    prompt: Literal["plain", "chat"] = "plain"
    template: str = ModelSection.template
    instruction: str = ""
    image_pixels: NonNegativeInt = 0


class EmbedderFacts(_Facts):
    """What made the vectors; `model` is no path."""

    name: str = ""
    model: str = Field(default="", pattern=r"^([^/.~].*)?$")
    batch: PositiveInt = 64
    fingerprint: dict[str, str] = {}


class TaskFacts(_Facts):
    name: str = ""
    metric: str = "exact"
    cut: str = "plain"


class BundlePlan(_Facts):
    """What `bundle.json` says beside the arm and the demonstrations."""

    format: Literal[3] = 3
    shots: int = Field(SHOTS, ge=0, le=MOST_SHOTS)
    model: ModelFacts = ModelFacts()
    embedder: EmbedderFacts = EmbedderFacts()
    task: TaskFacts = TaskFacts()
    licence: str = ""


class Widths(_Facts):
    """How many numbers the vectors of each field have, in the order in which they are kept."""

    text: PositiveInt
    answer: PositiveInt | None = None
    image: PositiveInt | None = None


class DemoFacts(_Facts):
    count: NonNegativeInt = 0
    fingerprint: str = ""


class Manifest(BundlePlan):
    """`bundle.json`. `digest` is that of all it says but of the demonstrations, and of what the arm keeps."""

    made_by: str = f"leverplus {__version__}"
    arm: str
    fields: Widths
    vectors: Literal["<f4", "<f2"]
    digest: str = ""
    demonstrations: DemoFacts = DemoFacts()


def read_manifest(folder: Path) -> Manifest:
    """What a bundle says of itself; refused where it is of another format, or not what was written."""
    path = folder / MANIFEST
    values = read_json(folder / MANIFEST)
    again = "make the bundle anew with `lever pack RUN --out DIR` or `lever fit`"
    try:
        found = Manifest.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(
            f"{path}: {where} = {str(first['input'])[:80]}: {first['msg']}; {again}"
        ) from error
    if found.digest != _digest(values, folder):
        raise DataError(
            f"{path} or what lies in {folder / ARM} was changed; copy the whole bundle, or {again}"
        )
    return found


def _digest(values: Mapping[str, Any], folder: Path) -> str:
    """Names how a bundle chooses, whatever it chooses from."""
    how = {**values, "digest": "", "demonstrations": ""}
    content = hashlib.sha256(json.dumps(how, sort_keys=True).encode())
    for part in sorted((folder / ARM).rglob("*")):
        if part.is_file():
            content.update(part.read_bytes())
    return content.hexdigest()[:16]


class Source:
    """What a selector chooses from, and how: a bundle, or the training split of a run."""

    folder: Path
    arm: Arm
    shots: int
    model: ModelSection
    """How a prompt is written."""
    corpus: Corpus
    """What a choice that starts now sees."""
    writable = False
    """Whether demonstrations can be added and deleted."""
    _encoding = threading.Lock()
    """Tokenizers are not made for several threads."""

    @cached_property
    def embedder(self) -> Embedder:
        """What makes vectors; it keeps none."""
        raise NotImplementedError

    def answer_rules(self) -> AnswerRules:
        """The rules by which a model's words become an answer."""
        return self.corpus.rules

    def embed(self, items: Sequence[Item], pictures: HeldPictures) -> Vectors:
        with self._encoding:
            return self.embedder.embed(items, pictures)

    @property
    def fingerprint(self) -> str:
        """Names what is chosen from and how."""
        raise NotImplementedError

    def refresh(self) -> None:
        """See what others have added and deleted."""

    def item(self, query: Query) -> Item:
        """The query as an item whose picture an arm can find."""
        return query.item

    def demo(self, item: Item) -> Demo:
        raise NotImplementedError

    def demos(self, rows: Iterable[int]) -> dict[int, Demo]:
        """The demonstrations of rows; those deleted meanwhile are left out."""
        found = self.corpus.items(list(rows))
        return {row: self.demo(item) for row, item in found.items()}

    def all(self) -> Iterator[tuple[int, Demo]]:
        """Every demonstration with its row, read as they are asked for."""
        count = len(self.corpus)
        for start in range(0, count, READ_AT_ONCE):
            rows = range(start, min(start + READ_AT_ONCE, count))
            yield from self.demos(rows).items()

    def rows_of(self, ids: Sequence[ItemId]) -> dict[ItemId, int]:
        """The rows of those ids that are there."""
        wanted = set(ids)
        return {demo.id: row for row, demo in self.all() if demo.id in wanted}

    def save(self, folder: Path) -> Path:  # noqa: ARG002 a run needs it
        """Write a bundle."""
        raise LeverError("this selector lies in a bundle already; copy its folder")

    def add(self, demos: Sequence[Mapping[str, Any]]) -> Added:  # noqa: ARG002
        raise self._is_fixed()

    def delete(self, ids: Sequence[str]) -> int:  # noqa: ARG002
        raise self._is_fixed()

    def _is_fixed(self) -> LeverError:
        return LeverError(
            f"this needs a bundle; type `lever pack {self.folder} --out DIR` and load DIR"
        )


class Bundle(Source):
    """A bundle, opened; its embedder is opened at the first query.

    `trust` names modules from which its way of choosing and its embedder may be imported.
    """

    writable = True

    def __init__(self, folder: Path, trust: Sequence[str] = ()) -> None:
        self.folder, self.facts = folder, read_manifest(folder)
        self.trust = (*trust, *os.environ.get(TRUST, "").split(","))
        self.model = ModelSection(**dict(self.facts.model))
        self.widths = {name: width for name, width in self.facts.fields if width}
        self.store = DemoStore(folder / DEMOS)
        self._version = self.store.version()
        self._seen = -1
        fresh, closed = self._look(0)
        rules = AnswerRules(self.facts.task.metric, self.facts.task.cut)
        self.corpus = Corpus.of(fresh, self.store.items, rules).closed(closed)
        self.arm = open_arm(self.facts.arm, trusted=self.trust).load(folder / ARM)
        self._check_arm()
        # a fixed list may be shorter than the shots asked for
        self.shots = min(self.facts.shots, self.arm.most_shots)

    def _check_arm(self) -> None:
        """Refuse an arm that was fitted to other demonstrations or vectors."""
        read = {name: self.widths.get(name) for name in self.arm.vector_fields}
        wanted: Mapping[str, int] = {}
        if isinstance(self.arm, Learned):
            wanted = self.arm.policy.dims
        problem = f"it reads other vectors than {self.widths}"
        try:
            self.arm.check(len(self.corpus))
            if None not in read.values() and {**read, **wanted} == read:
                return
        except ValueError as error:
            problem = str(error)
        raise DataError(f"{self.folder}: arm {self.arm.spec}: {problem}; pack it again")

    def _look(self, known: int) -> tuple[dict[str, NDArray[Any]], Sequence[int]]:
        """The vectors of rows that came since the last look, by field, and the rows that were deleted."""
        ends = np.cumsum([*self.widths.values()]).tolist()
        found = self.store.changes(self._seen, known, ends[-1], self.facts.vectors)
        self._seen = found.last
        parts = np.split(found.fresh, ends[:-1], axis=1)
        return dict(zip(self.widths, parts, strict=True)), found.closed

    def refresh(self) -> None:
        version = self.store.version()
        if version != self._version:
            with self.store.lock:
                self._version = version
                self._catch_up()

    def _catch_up(self) -> None:
        """Take over every change since the last look; the caller holds the lock."""
        fresh, closed = self._look(len(self.corpus))
        is_open = np.ones(len(fresh["text"]), np.bool_)
        self.corpus = self.corpus.grown(fresh, is_open).closed(closed)

    def answer_rules(self) -> AnswerRules:
        """The rules of answers, refused where they are code that nobody allowed."""
        self._require_trust("metric", self.facts.task.metric)
        self._require_trust("cut", self.facts.task.cut)
        return self.corpus.rules

    def _require_trust(self, what: str, name: str) -> None:
        module = name.partition(":")[0]
        if is_outside(name) and module not in self.trust:
            raise LeverError(
                f'{what} "{name}" is code from outside; if you trust it, say so: {TRUST}={module} in front of '
                f'the command, or in Python Selector.load(path, trust=["{module}"])'
            )

    @cached_property
    def embedder(self) -> Embedder:
        """The embedder, refused where it is not the one that made the vectors."""
        made = self.facts.embedder
        self._require_trust("embedder", made.name)
        section = EmbedSection(**made.model_dump(exclude={"fingerprint"}))
        if (self.folder / ENCODER).is_dir():
            place = self.folder / ENCODER
            inside = list(place.iterdir())
            if len(inside) == 1:
                place = inside[0]
            section = replace(section, model=str(place))
        embedder = open_embedder(section, None)
        here = dict(embedder.fingerprint())
        if here != made.fingerprint:
            raise DataError(
                f"the embedder here ({here}) is not the one that made the vectors of {self.folder} "
                f"({made.fingerprint}); install the same weights, or pack the bundle again"
            )
        return embedder

    def demo(self, item: Item) -> Demo:
        return Demo.of(item, lambda: self._picture(item))

    def _picture(self, item: Item) -> bytes:
        content = self.store.picture(str(item.image))
        if content is None:
            raise DataError(
                f"{self.store.path} has no picture {item.image}; its demonstration may just have been deleted"
            )
        return content

    def rows_of(self, ids: Sequence[ItemId]) -> dict[ItemId, int]:
        return self.store.rows_of(ids)

    @property
    def fingerprint(self) -> str:
        held = self.corpus.derive("fingerprint", lambda _: self.store.fingerprint())
        return f"{self.facts.digest} {held}"

    def add(self, demos: Sequence[Mapping[str, Any]]) -> Added:
        """Keep demonstrations; they are in the file, and in every choice that starts now, when this returns.

        All or none. One that is there already, the same in everything, stays as it is.
        """
        if isinstance(self.arm, Learned) and self.arm.reads_ids:
            raise LeverError(
                "this selector chooses by the numbers of its demonstrations, so none can be added; train a new one"
            )
        drafts: dict[ItemId, Kept] = {}
        if isinstance(demos, Mapping):
            demos = [demos]
        for number, demo in enumerate(demos):
            draft = draft_demo(number, demo)
            if drafts.setdefault(draft[0].id, draft)[0] != draft[0]:
                raise LeverError(
                    f"demonstration {number}: another one has the id {draft[0].id}; give each its own"
                )
        if not drafts:
            return Added()
        vectors = self._embed(list(drafts.values()))
        with self.store.lock:
            with self.store.change():
                rows = self.rows_of(list(drafts)).values()
                known = {
                    item.id: item for item in self.store.items(list(rows)).values()
                }
                for name, item in known.items():
                    if item != drafts[name][0]:
                        raise LeverError(
                            f"there is a demonstration {name} already; delete it first, or give another id"
                        )
                fresh = [name not in known for name in drafts]
                self.store.add([*compress(drafts.values(), fresh)], vectors[fresh])
            self._catch_up()
        self._note()
        return Added(drafts, known)

    def delete(self, ids: Sequence[str]) -> int:
        """Forget demonstrations; no choice that ends after this returned shows them."""
        names = [ItemId(name) for name in dict.fromkeys(ids)]
        with self.store.lock:
            with self.store.change():
                self.store.delete(names)
            self._catch_up()
        self._note()
        return len(names)

    def _note(self) -> None:
        """What bundle.json says of the demonstrations; demos.sqlite is what counts, so this may fail."""
        with self.store.lock, suppress(LeverError):
            _write_manifest(self.folder, self.facts, self.corpus.count, self.store)

    def _embed(self, drafts: Sequence[Kept]) -> NDArray[Any]:
        """What is kept of the vectors of new demonstrations (N, all fields)."""
        found = embedded(drafts, self.embed)
        if "image" in self.widths and found["image"] is None:
            raise LeverError(
                "this selector sees pictures, and the new demonstrations have none; give each an image"
            )
        blocks = [found[name] for name in self.widths]
        return np.concatenate(blocks, axis=1).astype(self.facts.vectors)


def embedded(demos: Sequence[Kept], embed: Callable[..., Vectors]) -> dict[str, Any]:
    """The vectors of demonstrations by field, None where the embedder sees none; their pictures are decoded for it."""
    pictures = {}
    for item, content in demos:
        pictures[str(item.image)] = partial(clean_picture, content)
    return vars(embed([item for item, _ in demos], HeldPictures(pictures)))


class Added(list[str]):
    """The ids of demonstrations that were to be added; those in `known` were there already, the same in everything."""

    def __init__(self, ids: Iterable[str] = (), known: Iterable[str] = ()) -> None:
        super().__init__(ids)
        self.known = sorted(known)


def draft_demo(number: int, demo: Any) -> Kept:
    """A demonstration to add; LeverError with its number where it is none. Without an id it is named by its content."""
    where = f"demonstration {number}"
    if not isinstance(demo, Mapping) or not set(demo) <= ADD_KEYS:
        raise LeverError(
            f"{where}: must be a mapping with {', '.join(sorted(ADD_KEYS))}"
        )
    content = picture_content(demo.get("image"))
    query = Query.of(demo.get("question"), content, demo.get("fields"))
    answers = demo.get("answers", [demo.get("answer")])
    if not isinstance(answers, (list, tuple)) or not answers:
        raise LeverError(f"{where}: answers must be a list of texts")
    for answer in answers:
        if not isinstance(answer, str) or not answer.strip():
            raise LeverError(f"{where}: needs an answer, a text that is not empty")
    name = demo.get("id")
    meta = demo.get("meta") or {}
    if not isinstance(meta, Mapping) or (name is not None and not str(name).strip()):
        raise LeverError(
            f"{where}: meta must be a mapping, and an id must not be empty"
        )
    image = None
    if query.picture is not None:
        image = pixel_digest(query.picture)
    item = replace(
        query.item,
        id=ItemId("" if name is None else str(name)),
        answers=tuple(answers),
        split="train",
        image=image,
        image_id=image,
        meta={str(key): str(value) for key, value in meta.items()},
    )
    try:
        digest = digest_of(record_of(item)).hex()
    except ValueError as error:
        raise LeverError(f"{where}: {error}") from error
    if isinstance(content, Image.Image):
        content = png_of(content)
    return replace(item, id=item.id or ItemId(f"demo-{digest}")), content


def write_bundle(
    folder: Path,
    plan: BundlePlan,
    arm: Arm,
    demos: Iterable[Kept],
    vectors: Mapping[str, NDArray[Any]],
    *,
    encoder: Any = None,
    evaluation: EvaluationRecord | None = None,
    called: str = "",
) -> Path:
    """A bundle in a new folder, which appears whole or not at all.

    `demos` are examples with their picture files. `arm` is fitted to them: its row r is example r, and row r of every
    array of `vectors`. `encoder` is the folder or file that the embedder was read from, or an embedder that saves
    itself. The card tells what `evaluation` says of the arm, under the name `called` where the folder is moved.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LeverError(
            f"{folder} exists already; choose another folder with --out DIR"
        )
    if arm.unsavable:
        raise LeverError(f"arm {arm.spec} cannot be packed: {arm.unsavable}")
    blocks = {}
    widths = {}
    for name in Widths.model_fields:
        if name in vectors:
            blocks[name] = vectors[name]
            widths[name] = vectors[name].shape[1]
    with staged_folder(folder) as place:
        place.chmod(0o700)
        facts = Manifest(
            **dict(plan),
            arm=arm.spec,
            fields=Widths(**widths),
            vectors="<f2" if len(blocks["text"]) > FLAT_ABOVE else "<f4",
        )
        arm.save(place / ARM)
        if encoder is not None:
            _keep_encoder(encoder, place / ENCODER)
        digest = _digest(facts.model_dump(mode="json"), place)
        store = DemoStore(place / DEMOS, create=True)
        with store.change():
            _write_demos(store, demos, blocks, facts.vectors)
        facts = facts.model_copy(update={"digest": digest})
        facts = _write_manifest(place, facts, len(blocks["text"]), store)
        card = write_card(facts, called or folder.name, evaluation)
        write_text(place / CARD, card)
    return folder


def _write_manifest(
    folder: Path, facts: Manifest, count: int, store: DemoStore
) -> Manifest:
    about = DemoFacts(count=count, fingerprint=store.fingerprint())
    facts = facts.model_copy(update={"demonstrations": about})
    write_json(folder / MANIFEST, facts.model_dump(mode="json"))
    return facts


def _write_demos(
    store: DemoStore,
    demos: Iterable[Kept],
    blocks: Mapping[str, NDArray[Any]],
    kind: str,
) -> None:
    rest = iter(demos)
    start = 0
    count = len(blocks["text"])
    while part := list(islice(rest, WRITTEN_AT_ONCE)):
        rows = slice(start, start + len(part))
        vectors = [block[rows] for block in blocks.values()]
        store.add(part, np.concatenate(vectors, axis=1).astype(kind))
        start = rows.stop
    if start != count:
        raise LeverError(
            f"{start} demonstrations, but vectors of {count}; embed them again"
        )


def _keep_encoder(source: Any, target: Path) -> None:
    """An embedder that saves itself; else the folder, or the one file, that it was read from."""
    if hasattr(source, "save"):
        source.save(target)
    elif source.is_dir():
        shutil.copytree(source, target)
    else:
        target.mkdir()
        shutil.copyfile(source, target / source.name)


def search_weight(arm: Arm) -> float:
    """The share of the question in the similarity by which an arm searches; 1 for one that does not say."""
    return float(getattr(arm, "text_weight", 1.0))
