"""A selector in the hand: `Selector.load(folder).select(question=..., image=..., shots=2)`.

`folder` is a bundle, or a run folder. Several threads may use one selector; a deep copy is the selector itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from leverplus import catalog
from leverplus.arms.base import Arm, Explanation, Rows
from leverplus.arms.corpus import Corpus, Queries, words_digest
from leverplus.arms.similarity import Positions
from leverplus.bundle.answering import Answered, Ask, heard
from leverplus.bundle.bundle import Added, Bundle, Source, search_weight
from leverplus.bundle.demo import (
    Demo,
    HeldPictures,
    Picks,
    Picture,
    Query,
)
from leverplus.bundle.hub import CARD, MANIFEST, download_bundle, push_bundle
from leverplus.data.rundir import RESOLVED
from leverplus.data.types import Item, ItemId, Score
from leverplus.encode.base import Vectors
from leverplus.errors import LeverError, MissingFile
from leverplus.models.base import Request
from leverplus.models.prompts import ServerPrompts

Allowed = Iterable[str] | Callable[[Demo], bool]
"""Which demonstrations may be shown: their ids, or a function that says it of each."""

FILTERS_KEPT = 64
"""Filters whose demonstrations are remembered for one state of the bundle."""


class Asked(TypedDict, total=False):
    """What is asked: as `Selector.select` takes it."""

    question: str | None
    image: Picture
    shots: int | None
    allowed: Allowed | None
    fields: Mapping[str, Any] | None


QUERY_KEYS = {*Asked.__annotations__, "explain", "vectors"}


@dataclass(frozen=True)
class Chosen:
    """What is shown for one query, the query as an arm sees it, and the demonstrations at that moment."""

    picks: Picks
    asked: Queries
    corpus: Corpus


class Selector:
    """Chooses demonstrations for any query out of the nearest of all there are.

    >>> # selector = Selector.load("bundles/mine")
    >>> # selector.select(question="What is the dog doing?", image="photo.jpg", shots=2)
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.way = source.arm
        self.shots = source.shots
        self._urls: dict[str, str] = {}

    @classmethod
    def load(
        cls,
        folder: str | Path,
        checkpoint: str | None = None,
        *,
        trust: Sequence[str] = (),
    ) -> Selector:
        """From a bundle or a run folder; `checkpoint` names a selector from elsewhere for a run, or RUN:NAME.

        `trust` names modules of your own that a bundle's way of choosing, or its embedder, may be imported from.
        """
        if isinstance(folder, str) and folder.startswith("hf://"):
            folder = download_bundle(folder)
        folder = Path(folder)
        try:
            is_bundle = (folder / MANIFEST).is_file()
        except PermissionError as error:
            raise LeverError(
                f"{folder} cannot be read by this user; a bundle belongs to its maker alone, so run this as that user "
                "(in a container: `--user`), or let others read it with `chmod`"
            ) from error
        if is_bundle:
            if checkpoint is not None:
                raise LeverError(
                    f"{folder} is a bundle, which holds its own selector; leave --checkpoint out"
                )
            return cls(Bundle(folder, trust))
        if not (folder / RESOLVED).is_file():
            raise MissingFile(
                f"{folder} is neither a bundle nor a run folder; `lever fit DATA --model MODEL --out {folder}` makes a "
                f"bundle, `lever run RECIPE --out {folder}` a run"
            )
        open_source = catalog.load(catalog.ABOVE, "run_source", "selector")
        return cls(open_source(folder, checkpoint))

    def save(self, folder: str | Path) -> Path:
        """A bundle: a folder that needs nothing else on another machine; the same as `lever pack`."""
        return self.source.save(Path(folder))

    @property
    def run(self) -> Any:
        """The run that this selector was loaded from."""
        return self.source.run  # type: ignore[attr-defined]

    @property
    def arm(self) -> str:
        """The name of the way of choosing."""
        return self.way.spec

    def __repr__(self) -> str:
        return f"Selector({str(self.source.folder)!r}, arm={self.arm!r})"

    def __deepcopy__(self, _memo: object) -> Selector:
        return self  # frameworks copy their parts; vectors and files are shared

    def __copy__(self) -> Selector:
        return self

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """Another process opens the same folder."""
        return Selector.load, (str(self.source.folder),)

    def __len__(self) -> int:
        """How many demonstrations there are."""
        self.source.refresh()
        return self.source.corpus.count

    def select(
        self,
        *,
        question: str | None = None,
        shots: int | None = None,
        image: Picture = None,
        fields: Mapping[str, Any] | None = None,
        allowed: Allowed | None = None,
        explain: bool = False,
        vectors: Mapping[str, Any] | None = None,
    ) -> Picks:
        """The chosen demonstrations, ordered, nearest to the query last.

        `image` is a path, a PIL image, the bytes of a picture file, a data URL, a numpy array or None. The same words
        and pixels give the same demonstrations. `shots` is how many (where nobody says: what the bundle recommends);
        there may be fewer where fewer are allowed, and a selector that may show none may choose so. `allowed` limits
        what may be shown, exactly. With `explain` the list has an `.explanation`. `vectors` gives the unit vectors of
        the query by field instead of having it embedded. `fields` are several named inputs in place of a question, or
        beside it, such as `fields={"context": ..., "question": ...}`.
        """
        if shots is None:
            shots = self.shots
        count = self.check_shots(shots)
        query = Query.of(question, image, fields)
        way = self.way
        self.source.refresh()
        if count == 0 and way.calls == 1 and not explain:
            return Picks()
        return self._chosen(query, count, allowed, vectors, explain=explain).picks

    def answer(self, ask: Ask, **asked: Unpack[Asked]) -> Answered:
        """The answer of this way of choosing, with as many calls of the model as it takes.

        `ask` gets a chat, as `messages` gives it, and returns the model's words, or the log-probabilities of all labels
        by their names. It is called once for each list, `.way.calls` times; a way that answers by itself never calls it.

        >>> # answered = selector.answer(lambda chat: client(chat), question="What is the dog doing?")
        >>> # answered.answer, answered.given, answered.lists
        """
        shots = asked.get("shots")
        count = self.check_shots(self.shots if shots is None else shots)
        query = Query.of(asked.get("question"), asked.get("image"), asked.get("fields"))
        self.source.refresh()
        way, rules = self.way, self.source.answer_rules()
        found = self._chosen(query, count, asked.get("allowed"), None, explain=False)
        if found.picks.answer is not None:
            return Answered(found.picks.answer, [], [])
        asked_with = found.picks.lists or [found.picks]

        def heard_from(demos: Picks) -> Score:
            reply = ask(self._messages(query, demos))
            return heard(query.item.id, demos, reply, rules)

        scores = [heard_from(demos) for demos in asked_with]
        given = [score.answer for score in scores]
        if way.asks_first:
            rows = way.choose_given(found.asked, found.corpus, count, given)[0]
            demos = self.source.demos(rows)
            asked_with = [Picks(demos[row] for row in rows if row in demos)]
            given = [heard_from(asked_with[0]).answer]
        elif way.combines:
            lists = way.choose_lists(found.asked, found.corpus, count)
            answers = way.answer(found.asked, found.corpus, lists, [scores])
            if answers is not None:
                return Answered(answers[0], asked_with, given)
        return Answered(given[-1], asked_with, given)

    def _chosen(
        self,
        query: Query,
        count: int,
        allowed: Allowed | None,
        vectors: Mapping[str, Any] | None,
        *,
        explain: bool,
    ) -> Chosen:
        """What is shown for a query, and what it was chosen for and from."""
        source, way = self.source, self.way
        if vectors is not None:
            embedded = _given_vectors(source.corpus, vectors)
        elif explain or way.vector_fields or way.limit:
            embedded = source.embed([query.item], HeldPictures(query.pictures))
        else:  # nobody looks at them, so no embedder has to be there
            nothing = np.empty((1, 0), np.float32)
            embedded = Vectors(None, nothing, nothing)
        item = source.item(query)

        def digest_of(other: Item) -> str:
            if other is item:
                return query.digest
            return words_digest(other.question, source.demo(other).pil())

        picks = None
        while picks is None:  # what was chosen may be deleted meanwhile
            corpus = source.corpus
            only = None
            if allowed is not None:
                only = self._allowed_rows(allowed, corpus)
            asked = Queries([item], embedded, (None,), (only,), digest_of)
            if way.limit is not None:
                asked = replace(asked, only=(way.limit.rows(asked, corpus),))
            picks = self._picks(asked, corpus, count, explain=explain)
        return Chosen(picks, asked, corpus)

    def select_many(
        self,
        queries: Sequence[Mapping[str, Any]],
        shots: int | None = None,
        *,
        allowed: Allowed | None = None,
        explain: bool = False,
    ) -> list[Picks]:
        """The same for many queries: mappings with `question` or `fields`, and perhaps `image`, `shots`, `allowed`.

        Each is chosen as if it had been asked alone.
        """
        if allowed is not None and not callable(allowed):
            allowed = list(allowed)
        shared = {"shots": shots, "allowed": allowed, "explain": explain}
        chosen = []
        for number, query in enumerate(queries):
            if not isinstance(query, Mapping) or not set(query) <= QUERY_KEYS:
                raise LeverError(
                    f"query {number}: must be a mapping with {', '.join(sorted(QUERY_KEYS))}"
                )
            chosen.append(self.select(**{**shared, **query}))
        return chosen

    def _picks(
        self, asked: Queries, corpus: Corpus, shots: int, *, explain: bool
    ) -> Picks | None:
        """What the arm shows; None where some of it was deleted meanwhile."""
        way = self.way
        shown = way.choose(asked, corpus, shots)[0]
        lists: list[Rows] = []
        if way.combines or way.calls != 1:
            lists = way.choose_lists(asked, corpus, shots)[0]
        needed = {*shown, *chain(*lists)}
        if not asked.open_mask(0, corpus)[list(needed)].all():
            raise LeverError(
                f"arm {way.spec} chose an example that this query may not be shown; its `choose` must keep to "
                "`queries.open_mask(place, corpus)`"
            )
        judged = None
        near = []
        looked_at = []
        if explain:
            judged = way.explain(asked, corpus, shots)
            near = corpus.nearest(asked, search_weight(way), shots)[0].rows.tolist()
            looked_at = judged.rows.tolist()
        demos = self.source.demos({*needed, *looked_at, *near})
        if not demos.keys() >= needed:
            return None
        picks = Picks(map(demos.__getitem__, shown))
        if way.calls == 0:
            answers = way.answer(asked, corpus, [lists], [[]])
            if answers is not None:
                picks.answer = answers[0]
        else:
            picks.lists = [Picks(map(demos.__getitem__, rows)) for rows in lists]
        if judged is not None:
            similar = [demos[row].id for row in near[::-1] if row in demos]
            told = explanation(way, asked, corpus, judged, demos)
            told |= {"shots": len(near), "nearest_would_show": similar}
            told["calls"] = way.calls
            told["lists"] = [[demo.id for demo in own] for own in picks.lists]
            picks.explanation = told
        return picks

    def _allowed_rows(self, allowed: Allowed, corpus: Corpus) -> Positions:
        """The rows that a caller allows; a function is asked about every demonstration.

        One that names what it asks (`cache_key`) is asked once for a state of the bundle.
        """
        key = getattr(allowed, "cache_key", None)
        known: dict[str, list[int]] = corpus.derive("allowed", lambda _: {})
        fit = known.get(str(key))
        if not callable(allowed):
            if isinstance(allowed, str):
                allowed = [allowed]
            fit = [*self.source.rows_of(list(map(ItemId, allowed))).values()]
        elif fit is None:
            fit = [row for row, demo in self.source.all() if allowed(demo)]
            if len(known) >= FILTERS_KEPT:
                known.clear()
            if key is not None:
                known[key] = fit
        # what another process has just added is not among these rows yet
        return np.array(sorted(row for row in fit if row < len(corpus)), np.int64)

    def check_shots(self, shots: Any) -> int:
        """A whole number from 0 to what this selector can show."""
        most = self.way.most_shots
        if isinstance(shots, bool) or not isinstance(shots, (int, np.integer)):
            raise LeverError(
                f"shots must be a whole number from 0 to {most}, not {shots!r}"
            )
        if not 0 <= shots <= most:
            raise LeverError(
                f"this selector chooses 0 to {most} demonstrations, not {shots}; ask for {most} (--shots {most})"
            )
        return int(shots)

    def messages(self, **asked: Unpack[Asked]) -> list[dict[str, Any]]:
        """An OpenAI chat: each demonstration a question and its answer, then the query; pictures as data URLs."""
        query = Query.of(asked.get("question"), asked.get("image"), asked.get("fields"))
        asked["image"] = query.picture
        return self._messages(query, self.select(**asked))

    def _messages(self, query: Query, picks: Picks) -> list[dict[str, Any]]:
        demos = tuple(picks)
        writer = self._writer(demos, query.pictures)
        written = writer.turns(Request(query.item, demos, ()))
        self._urls.pop(str(query.item.image), None)  # a query hardly comes again
        return written

    def prompt(self, **asked: Unpack[Asked]) -> str:
        """One text in the form that was trained with, up to where the answer begins; for models without pictures."""
        demos = tuple(self.select(**asked))
        query = Query.of(asked.get("question"), None, asked.get("fields"))
        writer = ServerPrompts(self.source.model, HeldPictures({}))
        return writer.text(Request(query.item, demos, ()))

    def turns(self, demos: Sequence[Demo]) -> list[dict[str, Any]]:
        """Demonstrations as the turns of an OpenAI chat: each a user turn with its picture, and its answer."""
        return self._writer(demos, {}).demo_turns(demos)

    def _writer(
        self, demos: Sequence[Any], pictures: Mapping[str, Callable[[], Any]]
    ) -> ServerPrompts:
        """Writes chats; encoded pictures of demonstrations are kept from one to the next."""
        shown = {**pictures, **{str(demo.image): demo.pil for demo in demos}}
        section = replace(self.source.model, prompt="chat")
        return ServerPrompts(section, HeldPictures(shown), urls=self._urls)

    def add(self, demos: Sequence[Mapping[str, Any]]) -> Added:
        """Add demonstrations, all or none, usable at once, and return their ids.

        Each is a mapping with `question` or `fields`, `answer` or `answers`, and perhaps `image`, `id` and `meta`. One
        that is there already, the same in everything, is not added again: `known` of the list returned names it.
        """
        return self.source.add(demos)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete demonstrations for good, all of these or, where one is not there, none; how many."""
        if isinstance(ids, str):
            ids = [ids]
        return self.source.delete(ids)

    def push_to_hub(self, address: str, *, private: bool = True) -> str:
        """Upload the bundle to a hub, `hf://ORG/NAME`, and return where it lies there."""
        return push_bundle(self.source.folder, address, private=private)

    @property
    def fingerprint(self) -> str:
        """Names how this selector chooses and what it chooses from; another one where either differs."""
        self.source.refresh()
        return hashlib.sha256(self.source.fingerprint.encode()).hexdigest()[:16]

    @property
    def card(self) -> str:
        """What the bundle says of itself: task, figures, calls, licence."""
        path = self.source.folder / CARD
        if not path.is_file():
            return ""
        return path.read_text(encoding="utf-8")


def _given_vectors(corpus: Corpus, vectors: Mapping[str, Any]) -> Vectors:
    """Vectors that a caller gives instead of having the query embedded, as unit vectors of the right width."""
    found: dict[str, Any] = {}
    for name, values in vectors.items():
        array = np.asarray(values, np.float32).reshape(1, -1)
        norm = float(np.linalg.norm(array))
        width = 0
        if name in corpus.blocks:
            width = corpus.blocks[name].width
        if array.shape[1] != width or not 0 < norm < np.inf:
            raise LeverError(
                f"vectors['{name}'] must be {width} numbers, finite and not all zero, not {array.shape[1]}"
            )
        found[name] = array / norm
    if "text" not in found:
        raise LeverError("vectors must hold 'text': the vector of the question")
    text = found["text"]
    return Vectors(found.get("image"), text, np.zeros_like(text))


def explanation(
    arm: Arm,
    asked: Queries,
    corpus: Corpus,
    judged: Explanation,
    demos: Mapping[int, Demo],
) -> dict[str, Any]:
    """Why these: every candidate of one choice that is still there, with its terms; one that an arm lacks is null.

    `score` is what the arm ranks by at its first pick, `similarity` the weighted cosine by which candidates are found,
    `label` what labels add to the score, `effect` how much the demonstration was measured to raise accuracy by itself,
    `interaction` what a learned selector sees in the pair beyond the average candidate.
    """
    rows = judged.rows
    near = np.zeros(0)
    if len(rows):
        near = corpus.similarity(asked, rows, search_weight(arm))[0]
    measured = dict(enumerate(getattr(arm, "effect", ())))
    effect = [measured.get(row) or np.nan for row in rows.tolist()]
    values = {**judged.terms, "score": judged.score, "similarity": near}
    values["effect"] = np.array(effect)
    places = {row: place for place, row in enumerate(judged.shown, start=1)}
    table = []
    for number, row in enumerate(rows.tolist()):
        if row not in demos:
            continue
        entry: dict[str, Any] = {"place": places.get(row)}
        for name in ("id", "question", "answer"):
            entry[name] = getattr(demos[row], name)
        for name in ("score", "label", "effect", "similarity", "interaction"):
            entry[name] = None  # nobody measured it
            if name in values and np.isfinite(values[name][number]):
                # six digits say all there is to say
                entry[name] = round(float(values[name][number]), 6)
        table.append(entry)
    return {"arm": arm.spec, "goes_by": arm.goes_by, "candidates": table}
