"""scikit-learn: an estimator that keeps labelled examples and gives, for new ones, those to show."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.adapters.opening import as_picture, folder_of, open_selector, require_framework
from leverplus.errors import LeverError
from leverplus.selector.bundle import draft_demo
from leverplus.selector.demo import Demo
from leverplus.selector.pack import BundlePlan, write_bundle
from leverplus.selector.query import HeldPictures
from leverplus.selector.selector import Selector
from leverplus.selector.store import Entry, KeptPicture
from leverplus.types import Item, ItemId

require_framework("sklearn.base", "sklearn")
from sklearn.base import BaseEstimator, TransformerMixin  # noqa: E402 after the sentence about what is missing

Draft = tuple[Entry, KeptPicture | None]
OUTPUTS = ("pairs", "demos", "positions")
"""What `transform` gives per query: lists of (x, y), lists of `Demo`, or an array of row numbers."""


class WrongInput(LeverError, ValueError):
    """Input that an estimator refuses; scikit-learn expects a ValueError."""


class DemoSelector(TransformerMixin, BaseEstimator):
    """Chooses, for every x, the labelled examples to put into its prompt, nearest to it last.

    X holds texts, mappings with `question` and perhaps `image`, or rows of numbers that are vectors already; y holds
    the answers. Without `bundle` the examples given to `fit` are what is chosen from, by `arm` (nearest_text,
    nearest_image, nearest_both, mmr, random); texts and pictures are embedded by `embedder` and its `model`. With
    `bundle`, a trained selector brings its own demonstrations, and `fit` only opens it.

    `folder` keeps the bundle that `fit` makes; without it a temporary folder lasts as long as the estimator.
    `transform` gives `output`: "pairs" lists of (x, y), "demos" lists of `leverplus.selector.demo.Demo`, "positions" an
    array (n, shots) of row numbers of the examples, -1 where fewer were chosen.
    """

    def __init__(
        self,
        *,
        bundle: str | Path | Selector | None = None,
        shots: int = 4,
        arm: str = "nearest_text",
        embedder: str = "sentence",
        model: str = "",
        output: str = "pairs",
        folder: str | Path | None = None,
    ) -> None:
        self.bundle, self.shots, self.arm = bundle, shots, arm
        self.embedder, self.model, self.output, self.folder = embedder, model, output, folder

    def fit(self, X: Any, y: Any = None) -> DemoSelector:
        """Keep examples X with answers y, or open the bundle."""
        if self.output not in OUTPUTS:
            raise WrongInput(f'output = "{self.output}": must be one of {", ".join(OUTPUTS)}')
        if self.bundle is not None:
            self.selector_ = open_selector(self.bundle)
            self.selector_.check_shots(self.shots)
            self._row_of = None
            return self
        if y is None:
            raise WrongInput("requires y to be passed, but the target y is None: y holds the answers of the examples X")
        examples: list[Any]
        if _is_numeric(X):
            rows = self._vectors(X, reset=True)
            examples, answers = list(rows), _answers(y, len(rows))
            drafts: list[Draft] = [
                (_entry(number, f"row {number}", answer), None) for number, answer in enumerate(answers)
            ]
            plan, vectors = self._plan({}), {"text": _unit(rows)}
        else:
            examples = _listed(X)
            drafts, plan, vectors = self._embedded(_queries(X), _answers(y, len(examples)))
        self.selector_ = Selector.load(write_bundle(self._new_folder(), plan, drafts, vectors))
        self._row_of = {str(entry.id): number for number, (entry, _) in enumerate(drafts)}
        self._given = list(zip(examples, _listed(y), strict=True))
        return self

    def _new_folder(self) -> Path:
        """Where the bundle goes: the folder that was named, or one that is removed with this estimator."""
        self._temporary = self.folder is None
        if self.folder is not None:
            return Path(self.folder)
        made = Path(tempfile.mkdtemp(prefix="lever-fitted-"))
        weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        return made

    def transform(self, X: Any) -> Any:
        """What to show for every x, in prompt order, nearest last."""
        chosen = self._chosen(X)
        if self.output == "demos":
            return chosen
        if self.output == "pairs":
            return [[self._pair(demo) for demo in demos] for demos in chosen]
        if self._row_of is None:
            raise WrongInput('a bundle\'s demonstrations are no rows of X; use output="pairs" or "demos"')
        positions = np.full((len(chosen), self.shots), -1, np.int64)  # (n, shots)
        for row, demos in enumerate(chosen):
            positions[row, : len(demos)] = [self._row_of[str(demo.id)] for demo in demos]
        return positions

    def kneighbors(self, X: Any) -> list[list[str]]:
        """The ids of what is shown for every x; without a bundle they are row numbers written as texts."""
        return [[str(demo.id) for demo in demos] for demos in self._chosen(X)]

    def _chosen(self, X: Any) -> list[Sequence[Demo]]:
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "selector_")
        selector, shots = self.selector_, min(self.shots, self.selector_.chooser.most)
        if _is_numeric(X) and self._row_of is not None:
            rows = self._vectors(X, reset=False)
            return [
                selector.select(question=f"row {number}", shots=shots, vectors={"text": row})
                for number, row in enumerate(_unit(rows))
            ]
        return list(selector.select_many(_queries(X), shots=shots))

    def _vectors(self, X: Any, *, reset: bool) -> NDArray[np.float32]:
        """A table of numbers (n, d), checked; a sparse one is made dense, as bundles keep dense vectors."""
        from sklearn.utils.validation import validate_data

        rows = validate_data(self, X, dtype=np.float32, accept_sparse="csr", reset=reset)
        dense: NDArray[np.float32] = rows.toarray() if hasattr(rows, "toarray") else rows
        return dense

    def _pair(self, demo: Demo) -> tuple[Any, Any]:
        if self._row_of is not None:
            return self._given[self._row_of[str(demo.id)]]
        x: Any = demo.question if demo.picture is None else {"question": demo.question, "image": demo.pil()}
        return x, demo.answer

    def _plan(self, embedder: Mapping[str, Any]) -> BundlePlan:
        if self.arm not in ("nearest_text", "nearest_image", "nearest_both", "mmr", "random"):
            raise WrongInput(f'arm = "{self.arm}" needs a training; use `lever fit` and give its bundle')
        weight = {"nearest_image": 0.0, "nearest_both": 0.5}.get(self.arm, 1.0)
        return BundlePlan(arm=self.arm, shots=int(self.shots), text_weight=weight, embedder=embedder)

    def _embedded(
        self, queries: Sequence[Mapping[str, Any]], answers: Sequence[str]
    ) -> tuple[list[Draft], BundlePlan, dict[str, NDArray[Any]]]:
        """Examples as entries of a bundle, how it chooses, and the examples' vectors."""
        from leverplus.embedders.cached import open_embedder
        from leverplus.recipe.sections import EmbedSection

        drafts: list[Draft] = []
        items, pictures = [], {}
        for number, (query, answer) in enumerate(zip(queries, answers, strict=True)):
            entry, picture, content = draft_demo(number, {**query, "answer": answer, "id": str(number)})
            if entry.picture and picture is not None:
                pictures[entry.picture] = picture
            kept = KeptPicture(entry.picture, content) if entry.picture else None
            drafts.append((entry, kept))
            items.append(Item(entry.id, entry.question, entry.answers, "train", entry.picture, entry.picture))
        section = EmbedSection(name=self.embedder, model=self.model)
        with tempfile.TemporaryDirectory() as unused:
            embedder: Any = open_embedder(section, Path(unused))
            alone = embedder.uncached() if hasattr(embedder, "uncached") else embedder
            found = vars(alone.embed(items, HeldPictures(pictures)))
        about = {"section": {"name": self.embedder, "model": self.model}, "fingerprint": dict(embedder.fingerprint())}
        return drafts, self._plan(about), {name: block for name, block in found.items() if block is not None}

    def __getstate__(self) -> dict[str, Any]:
        """Pickling takes a temporary folder along, so that another process can open it."""
        state: dict[str, Any] = dict(super().__getstate__())
        if getattr(self, "_temporary", False):
            place = Path(folder_of(self.selector_))
            del state["selector_"]
            files = [path for path in place.rglob("*") if path.is_file()]
            state["_files"] = {str(path.relative_to(place)): path.read_bytes() for path in files}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_files", None)
        super().__setstate__(state)
        if files is None:
            return
        place = self._new_folder()
        for name, content in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
        self.selector_ = Selector.load(place)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = []  # positions are whole numbers, whatever X holds
        tags.target_tags.required = self.bundle is None
        return tags


def _is_numeric(X: Any) -> bool:
    """Whether X holds vectors: a table of numbers (dense or sparse), not texts nor mappings."""
    if hasattr(X, "tocsr"):
        return True
    first = X[0] if isinstance(X, (list, tuple)) and X else None
    if isinstance(first, (str, Mapping)):
        return False
    kind = np.asarray(X).dtype.kind
    return kind in "biufc" or (kind == "O" and np.asarray(X).ndim != 1)


def _queries(X: Any) -> list[dict[str, Any]]:
    """Texts or mappings as queries of a selector."""
    if isinstance(X, str):
        raise WrongInput("X must be a list of texts, not one text")
    queries = []
    for number, x in enumerate(X):
        if isinstance(x, Mapping):
            queries.append({"question": x.get("question"), "image": as_picture(x.get("image"))})
        elif isinstance(x, str):
            queries.append({"question": str(x)})
        else:
            raise WrongInput(f"x number {number} is a {type(x).__name__}, neither a text nor a mapping with `question`")
    return queries


def _listed(values: Any) -> list[Any]:
    if hasattr(values, "__array__"):
        values = np.asarray(values)
    return list(values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else values)


def _answers(y: Any, count: int) -> list[str]:
    answers = [str(answer) for answer in _listed(y)]
    if len(answers) != count:
        raise WrongInput(f"X has {count} examples and y has {len(answers)} answers")
    return answers


def _entry(number: int, question: str, answer: str) -> Entry:
    return Entry(ItemId(str(number)), question, (answer,))


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows (n, d) of length 1; a row of zeros points the first way, as it has no direction of its own."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    first = np.zeros_like(rows)
    first[:, 0] = 1.0
    unit: NDArray[np.float32] = np.where(lengths > 0, rows / np.maximum(lengths, 1e-30), first).astype(np.float32)
    return unit
