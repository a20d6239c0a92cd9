"""A selector in the hand: `Selector.load(folder).select(question=..., image=..., shots=2)`.

`folder` is a bundle, or a run folder. Several threads may use one selector; a deep copy is the selector itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leverplus.embedders.base import Vectors
from leverplus.errors import LeverError, MissingFile
from leverplus.rundir import RESOLVED
from leverplus.selector.choose import AskedQuery, Chooser, LearnedChooser, allowed_mask, candidates_of, weight_of
from leverplus.selector.corpus import CorpusRows
from leverplus.selector.demo import Demo, Picks
from leverplus.selector.index import Mask
from leverplus.selector.query import Picture, Query, query_item
from leverplus.selector.sources import RunSource, Source, require_vectors
from leverplus.types import Item, ItemId

if TYPE_CHECKING:
    from leverplus.experiment.run import Run
    from leverplus.policies.base import Encoded, Policy
    from leverplus.recipe.model import ModelSection
    from leverplus.selector.bundle import Bundle

Allowed = Iterable[str] | Callable[[Demo], bool]
"""Which demonstrations may be shown: their ids, or a function that says it of each."""

SHOTS = 4
"""Demonstrations shown where nobody says how many."""


class Selector:
    """Chooses demonstrations for any query out of the nearest of all there are."""

    def __init__(
        self,
        source: Source,
        chooser: Chooser,
        *,
        arm: str = "learned",
        shots: int = SHOTS,
        run: Run | None = None,
        bundle: Bundle | None = None,
    ) -> None:
        self.source, self.chooser, self.arm, self.shots = source, chooser, arm, shots
        self._run, self.bundle = run, bundle
        self._urls: dict[str, str] = {}

    @classmethod
    def load(cls, folder: str | Path, checkpoint: str | None = None) -> Selector:
        """From a bundle or a run folder; `checkpoint` names a selector from elsewhere for a run, or RUN:NAME."""
        from leverplus.selector.bundle import MANIFEST, open_bundle

        if isinstance(folder, str) and folder.startswith("hf://"):
            from leverplus.selector.hub import download_bundle

            folder = download_bundle(folder)
        try:
            packed = (Path(folder) / MANIFEST).is_file()
        except PermissionError as error:
            raise LeverError(
                f"{folder} cannot be read by this user; a bundle belongs to its maker alone, so run this as that user "
                "(in a container: `--user`), or let others read it with `chmod`"
            ) from error
        if packed:
            if checkpoint is not None:
                raise LeverError(f"{folder} is a bundle, which holds its own selector; leave --checkpoint out")
            bundle, chooser = open_bundle(Path(folder))
            facts = bundle.facts
            shots = min(facts["shots"], chooser.most)  # a fixed list may be shorter than the shots asked for
            return cls(bundle.source, chooser, arm=facts["arm"], shots=shots, bundle=bundle)
        if not (Path(folder) / RESOLVED).is_file():
            raise MissingFile(
                f"{folder} is neither a bundle nor a run folder; `lever fit DATA --model MODEL --out {folder}` makes a "
                f"bundle, `lever run RECIPE --out {folder}` a run"
            )
        return cls._of_run(Path(folder), checkpoint)

    @classmethod
    def _of_run(cls, folder: Path, checkpoint: str | None) -> Selector:
        from leverplus.experiment.opening import load_run
        from leverplus.experiment.start import given_policy
        from leverplus.experiment.train import trained_policy

        run = load_run(folder, at_work=False)
        policy = trained_policy(run) if checkpoint is None else given_policy(run, checkpoint)
        source = RunSource(run, weight_of("learned", 1.0, run.recipe.pool))
        chooser = LearnedChooser(policy.eval(), candidates_of(run.recipe.pool))
        return cls(source, chooser, shots=min(SHOTS, chooser.most), run=run)

    def save(self, folder: str | Path) -> Path:
        """A bundle: a folder that needs nothing else on another machine; the same as `lever pack`."""
        from leverplus.selector.pack import pack_run

        if self._run is None:
            raise LeverError("this selector lies in a bundle already; copy its folder")
        given = self.chooser.policy if isinstance(self.chooser, LearnedChooser) else None
        return pack_run(self._run, Path(folder), arm="learned", policy=given)

    @property
    def run(self) -> Run:
        """The run that this selector was loaded from."""
        if self._run is None:
            raise LeverError("this selector was loaded from a bundle, which has no run")
        return self._run

    @property
    def policy(self) -> Policy:
        """The trained network."""
        if not isinstance(self.chooser, LearnedChooser):
            raise LeverError(f'this selector chooses by "{self.arm}", which has no trained network')
        return self.chooser.policy

    def __deepcopy__(self, _memo: object) -> Selector:
        return self  # frameworks copy their parts; vectors and files are shared

    def __copy__(self) -> Selector:
        return self

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """Another process opens the same folder."""
        folder = self.bundle.folder if self.bundle is not None else self.run.folder
        return Selector.load, (str(folder),)

    def __len__(self) -> int:
        """How many demonstrations there are."""
        self.source.refresh()
        return self.source.rows.count

    def select(
        self,
        *,
        question: str,
        shots: int | None = None,
        image: Picture = None,
        allowed: Allowed | None = None,
        explain: bool = False,
        vectors: Mapping[str, Any] | None = None,
    ) -> Picks:
        """The chosen demonstrations, ordered, nearest to the query last.

        `image` is a path, a PIL image, the bytes of a picture file, a data URL, a numpy array or None. The same words
        and pixels give the same demonstrations. `shots` is how many (where nobody says: what the bundle recommends);
        there may be fewer where fewer are allowed, and a selector that may show none may choose so. `allowed` limits
        what may be shown, exactly. With `explain` the list has an `.explanation`. `vectors` gives the unit vectors of
        the query by field instead of having it embedded.
        """
        count = self.check_shots(self.shots if shots is None else shots)
        query = Query.of(question, image)
        self.source.refresh()
        if count == 0 and not explain:
            return Picks()
        return self._chosen(query, count, allowed, vectors, explain=explain)

    def select_many(
        self,
        queries: Sequence[Mapping[str, Any]],
        shots: int | None = None,
        *,
        allowed: Allowed | None = None,
        explain: bool = False,
    ) -> list[Picks]:
        """The same for many queries, each a mapping with `question` and perhaps `image`, `shots`, `allowed`.

        Each is chosen as if it had been asked alone.
        """
        if allowed is not None and not callable(allowed):
            allowed = list(allowed)
        chosen = []
        for number, query in enumerate(queries):
            if not isinstance(query, Mapping):
                raise LeverError(f"query {number}: must be a mapping with a question, not {type(query).__name__}")
            options = {"shots": shots, "allowed": allowed, "explain": explain, **query}
            if unknown := set(options) - {"question", "image", "shots", "allowed", "explain", "vectors"}:
                raise LeverError(
                    f"query {number}: there is no key '{sorted(unknown)[0]}'; known: question, image, shots"
                )
            chosen.append(self.select(**{"question": None, **options}))
        return chosen

    def _chosen(
        self, query: Query, shots: int, allowed: Allowed | None, vectors: Mapping[str, Any] | None, *, explain: bool
    ) -> Picks:
        """Choose, and look at the end whether all of it is still there: others may delete at the same time."""
        embedded = self._embedded(query, vectors, needed=explain or callable(allowed))
        while True:
            rows = self.source.rows
            mask = None if allowed is None else self._mask(allowed, embedded, rows, shots)
            asked = AskedQuery(embedded, rows, mask, query.digest)
            picks = self._explained(asked, shots) if explain else self._shown(self._places(query, asked, shots))
            if picks is not None:
                return picks

    def _embedded(self, query: Query, vectors: Mapping[str, Any] | None, *, needed: bool) -> Vectors:
        """The query's vectors; empty ones where nobody looks at them, so that no embedder has to be there."""
        if vectors is not None:
            return require_vectors(self.source.rows, vectors)
        if not (needed or self.chooser.searches):
            nothing = np.empty((1, 0), np.float32)
            return Vectors(None, nothing, nothing)
        return self.source.embed(query)

    def _places(self, query: Query, asked: AskedQuery, shots: int) -> list[int]:
        if self._run is not None and self._run.live is not None:
            return self._through_adapters(query, shots)
        return self.chooser.choose(asked, shots)

    def _shown(self, places: Sequence[int]) -> Picks | None:
        """The demonstrations of rows; None where one was deleted meanwhile."""
        found = self.source.demos(places)
        return Picks(found[row] for row in places) if len(found) == len(set(places)) else None

    def _explained(self, asked: AskedQuery, shots: int) -> Picks | None:
        from leverplus.selector.explain import explain

        judged = self.chooser.judge(asked, shots)
        near = asked.nearest(shots)[0].tolist()
        found = self.source.demos([*dict.fromkeys([*judged.candidates.tolist(), *judged.shown, *near])])
        if not set(judged.shown) <= set(found):
            return None
        picks = Picks(found[row] for row in judged.shown)
        picks.explanation = explain(self.arm, asked, judged, shots, found)
        return picks

    def _mask(self, allowed: Allowed, query: Any, rows: CorpusRows, shots: int) -> Mask:
        """Which rows a caller allows.

        A function is asked about the nearest first, and about no more than it takes: what it has not seen lies farther
        away than everything that could be chosen.
        """
        if not callable(allowed):
            given = [allowed] if isinstance(allowed, str) else allowed
            found = self.source.rows_of([ItemId(name) for name in given])
            # what another process has just added is not among these rows yet
            return allowed_mask(rows, [row for row in found.values() if row < len(rows)])
        need = max(getattr(self.chooser, "candidates", 0), getattr(self.chooser, "first", 0), shots, 64)
        count = rows.count if self.arm in ("random", "fixed") else 4 * need
        while True:
            near = rows.nearest(query, count)[0].tolist()
            fit = [row for row, demo in self.source.demos(near).items() if allowed(demo)]
            if len(fit) >= need or count >= rows.count:
                return allowed_mask(rows, fit)
            count *= 4

    def check_shots(self, shots: Any) -> int:
        """A whole number from 0 to what this selector can show."""
        most = self.chooser.most
        if isinstance(shots, bool) or not isinstance(shots, (int, np.integer)):
            raise LeverError(f"shots must be a whole number from 0 to {most}, not {shots!r}")
        if not 0 <= shots <= most:
            raise LeverError(
                f"this selector chooses 0 to {most} demonstrations, not {shots}; ask for {most} (--shots {most})"
            )
        return int(shots)

    def messages(
        self, *, question: str, image: Picture = None, shots: int | None = None, allowed: Allowed | None = None
    ) -> list[dict[str, Any]]:
        """An OpenAI chat: each demonstration a question and its answer, then the query; pictures as data URLs."""
        from leverplus.selector.prompt import chat_turns

        query = Query.of(question, image)
        demos = self.select(question=question, image=query.picture, shots=shots, allowed=allowed)
        return chat_turns(self._model_section(), query, demos, self._urls)

    def turns(self, demos: Sequence[Demo]) -> list[dict[str, Any]]:
        """Demonstrations as the turns of an OpenAI chat: each a user turn with its picture, and its answer."""
        from leverplus.selector.prompt import demo_turns

        return demo_turns(self._model_section(), demos, self._urls)

    def prompt(
        self, *, question: str, image: Picture = None, shots: int | None = None, allowed: Allowed | None = None
    ) -> str:
        """One text in the form that was trained with, up to where the answer begins; for models without pictures."""
        from leverplus.selector.prompt import plain_text

        demos = self.select(question=question, image=image, shots=shots, allowed=allowed)
        return plain_text(self._model_section(), Query.of(question), demos)

    def _model_section(self) -> ModelSection:
        return self.run.recipe.model if self.bundle is None else self.bundle.model_section()

    def add(self, demos: Sequence[Mapping[str, Any]]) -> list[str]:
        """Add demonstrations, usable at once, and return their ids.

        Each is a mapping with `question`, `answer` or `answers`, and perhaps `image`, `id` and `meta`.
        """
        return self._bundle_for("adding").add(demos)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete demonstrations for good, all of these or, where one is not there, none; how many."""
        return self._bundle_for("deleting").delete([ids] if isinstance(ids, str) else ids)

    def _bundle_for(self, doing: str) -> Bundle:
        if self.bundle is None:
            raise LeverError(f"{doing} needs a bundle; type `lever pack {self.run.folder} --out DIR` and load DIR")
        return self.bundle

    def push_to_hub(self, address: str, *, private: bool = True) -> str:
        """Upload the bundle to a hub, `hf://ORG/NAME`, and return where it lies there."""
        from leverplus.selector.hub import push_bundle

        return push_bundle(self._bundle_for("uploading").folder, address, private=private)

    @property
    def fingerprint(self) -> str:
        """Names how this selector chooses and what it chooses from; another one where either differs."""
        import hashlib

        self.source.refresh()
        how = self.run.recipe.hash if self.bundle is None else self.bundle.digest
        return hashlib.sha256(f"{self.arm} {how} {self.source.fingerprint}".encode()).hexdigest()[:16]

    @property
    def card(self) -> str:
        """What the bundle says of itself: task, figures, calls, licence."""
        return self._bundle_for("a card").card()

    @staticmethod
    def _asked_item(run: Run, query: Item) -> Any:
        embedder: Any = run.embedder
        alone = embedder.uncached() if hasattr(embedder, "uncached") else embedder
        return alone.embed([query], run.task)

    def read(self, query: Item) -> tuple[Encoded, list[int]]:
        """An item as the policy reads it, and its candidates' rows: never the item itself nor one on its picture."""
        from leverplus.pools.build import forbidden_positions

        run, rows, learned = self.run, self.source.rows, self.chooser
        assert isinstance(learned, LearnedChooser)
        vectors = self._asked_item(run, query)
        if vectors.image is None and "image" in rows.blocks:
            raise LeverError("this selector sees pictures, and the query has none; pass an image")
        closed = forbidden_positions([query], run.demonstrations)[0]
        mask = np.ones(len(rows), np.bool_)
        mask[closed] = False
        found, _ = rows.nearest(vectors, learned.candidates, mask if len(closed) else None)
        if not len(found):
            raise LeverError(f"there is no demonstration that query {query.id} may be shown")
        live = None if run.live is None else run.live.items([*run.demonstrations, query])
        return learned.encode(vectors, rows, found, live), found.tolist()

    def _through_adapters(self, query: Query, shots: int) -> list[int]:
        """A selector with adapters in the embedder embeds its candidates anew for every query."""
        from leverplus.policies.decode import greedy

        with tempfile.TemporaryDirectory() as folder:
            encoded, rows = self.read(query_item(query.words, query.picture, Path(folder)))
            places = greedy(self.policy, encoded, min(shots, len(rows))).positions[0, 0].tolist()
        return [rows[place] for place in places if place >= 0]
