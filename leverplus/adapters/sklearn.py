"""scikit-learn: an estimator that keeps labelled examples and gives, for new ones, those to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from leverplus.adapters.opening import open_selector
from leverplus.arms.spec import open_arm
from leverplus.arms.training import Training
from leverplus.bundle.bundle import Source, draft_demo, embedded
from leverplus.bundle.demo import Demo
from leverplus.bundle.selector import Selector
from leverplus.bundle.store import Kept
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item
from leverplus.encode.base import Embedder, Vectors
from leverplus.encode.cached import open_embedder
from leverplus.encode.settings import EmbedSection
from leverplus.errors import LeverError, needs_extra

with needs_extra("the adapter for scikit-learn"):
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.utils.validation import check_is_fitted, validate_data

OUTPUTS = ("pairs", "demos", "positions")
"""What `transform` gives per query: lists of (x, y), lists of `Demo`, or an array of row numbers."""
RULES = AnswerRules("exact")
"""Answers are the same where their texts are."""


class WrongInput(LeverError, ValueError):
    """Input that an estimator refuses; scikit-learn expects a ValueError."""


class Examples(Source):
    """Labelled examples in memory."""

    def __init__(self, demos: Sequence[Kept], section: EmbedSection) -> None:
        self.section = section
        self.items = [item for item, _ in demos]
        self.pictures: dict[str, Any] = {}
        for item, content in demos:
            self.pictures[str(item.image)] = content

    @cached_property
    def embedder(self) -> Embedder:
        return open_embedder(self.section, None, learn_from=lambda: self.items)

    def demo(self, item: Item) -> Demo:
        return Demo.of(item, lambda: bytes(self.pictures[str(item.image)]))


class DemoSelector(TransformerMixin, BaseEstimator):
    """Chooses, for every x, the labelled examples to put into its prompt, nearest to it last.

    X holds texts, mappings with `question` and perhaps `image`, or rows of numbers that are vectors already; y holds
    the answers. Without `bundle` the examples given to `fit` are what is chosen from, by `arm`: any way that needs no
    answers of a model, such as nearest_text, mmr, by_answer or `module:Class`. Texts and pictures are embedded by
    `embedder` and its `model`. With `bundle`, a selector brings its own demonstrations, and `fit` only opens it.

    `transform` gives `output`: "pairs" lists of (x, y), "demos" lists of `leverplus.bundle.demo.Demo`, "positions" an
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
    ) -> None:
        self.bundle = bundle
        self.shots = shots
        self.arm = arm
        self.embedder = embedder
        self.model = model
        self.output = output

    def fit(self, X: Any, y: Any = None) -> DemoSelector:
        """Keep examples X with answers y, or open the bundle."""
        if self.output not in OUTPUTS:
            raise WrongInput(
                f'output = "{self.output}": must be one of {", ".join(OUTPUTS)}'
            )
        self._given: list[Any] = []
        if self.bundle is not None:
            self.selector_ = open_selector(self.bundle)
            self.selector_.check_shots(self.shots)
            return self
        if y is None:
            raise WrongInput(
                "requires y to be passed, but the target y is None: y holds the answers of the examples X"
            )
        if open_arm(self.arm).needs.training:
            raise WrongInput(
                f'arm = "{self.arm}" needs a training; use `lever fit` and give its bundle'
            )
        examples = self._examples(X, reset=True)
        answers = _listed(y)
        if len(examples) != len(answers):
            raise WrongInput(
                f"X has {len(examples)} examples and y has {len(answers)} answers"
            )
        self._given = list(zip(examples, answers, strict=True))
        self._demos = []
        rows = []
        for number, (example, answer) in enumerate(self._given):
            query = _query(number, example)
            rows.extend(query.pop("vectors", {}).values())
            own = {**query, "answer": str(answer), "id": str(number)}
            self._demos.append(draft_demo(number, own))
        source = self._source()
        found: dict[str, Any] = {"text": rows}
        if not rows:
            found = embedded(self._demos, source.embed)
        text = np.asarray(found["text"], np.float32)
        answered = found.get("answer", np.zeros_like(text))
        self._vectors = Vectors(found.get("image"), text, answered)
        self._choose_from(source)
        return self

    def _source(self) -> Examples:
        section = EmbedSection(name=self.embedder, model=self.model)
        return Examples(self._demos, section)

    def _choose_from(self, source: Examples) -> None:
        training = Training(source.items, self._vectors, RULES)
        source.arm = open_arm(self.arm).fit(training)
        source.corpus = training.corpus
        source.shots = self.shots
        self.selector_ = Selector(source)

    def _examples(self, X: Any, *, reset: bool) -> list[Any]:
        """The texts, mappings or rows of numbers in X."""
        if isinstance(X, str):
            raise WrongInput("X must be a list of texts, not one text")
        if not _is_numeric(X):
            return _listed(X)
        rows = validate_data(
            self, X, dtype=np.float32, accept_sparse="csr", reset=reset
        )
        if hasattr(rows, "toarray"):
            rows = rows.toarray()
        return list(rows)

    def transform(self, X: Any) -> Any:
        """What to show for every x, in prompt order, nearest last."""
        check_is_fitted(self, "selector_")
        shots = min(self.shots, self.selector_.way.most_shots)
        examples = self._examples(X, reset=False)
        queries = [_query(number, own) for number, own in enumerate(examples)]
        chosen = self.selector_.select_many(queries, shots)
        if self.output == "demos":
            return chosen
        if self.output == "pairs":
            return [[self._pair(demo) for demo in demos] for demos in chosen]
        if self.bundle is not None:
            raise WrongInput(
                'a bundle\'s demonstrations are no rows of X; use output="pairs" or "demos"'
            )
        shape = (len(chosen), self.shots)
        positions = np.full(shape, -1, np.int64)
        for row, demos in enumerate(chosen):
            numbers = [int(demo.id) for demo in demos]
            positions[row, : len(demos)] = numbers
        return positions

    def _pair(self, demo: Demo) -> Any:
        if self._given:
            return self._given[int(demo.id)]
        if demo.image is None:
            return demo.question, demo.answer
        return {"question": demo.question, "image": demo.pil()}, demo.answer

    def __getstate__(self) -> dict[str, Any]:
        """Pickling takes examples and vectors along; what was learnt of them is learnt again."""
        state: dict[str, Any] = dict(super().__getstate__())
        if self.bundle is None:
            state.pop("selector_", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.bundle is None and "_vectors" in state:
            self._choose_from(self._source())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = []  # positions are whole numbers, whatever X holds
        tags.target_tags.required = self.bundle is None
        return tags


def _query(number: int, x: Any) -> dict[str, Any]:
    """An example as the query of a selector."""
    if isinstance(x, Mapping):
        return dict(x)
    if isinstance(x, str):
        return {"question": str(x)}
    if not isinstance(x, np.ndarray):
        raise WrongInput(
            f"x number {number} is a {type(x).__name__}, neither a text nor a mapping with `question`"
        )
    unit = np.eye(1, len(x))[0]
    if x.any():
        unit = x / np.linalg.norm(x)
    return {"question": f"row {number}", "vectors": {"text": unit}}


def _is_numeric(X: Any) -> bool:
    """Whether X holds vectors: a table of numbers (dense or sparse), not texts nor mappings."""
    if hasattr(X, "tocsr"):
        return True
    first = X[0] if isinstance(X, (list, tuple)) and X else None
    if isinstance(first, (str, Mapping)):
        return False
    kind = np.asarray(X).dtype.kind
    return kind in "biufc" or (kind == "O" and np.asarray(X).ndim != 1)


def _listed(values: Any) -> list[Any]:
    if hasattr(values, "__array__"):
        values = np.asarray(values).tolist()
    return list(values)
