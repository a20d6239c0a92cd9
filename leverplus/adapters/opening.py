"""What every adapter begins with: its framework, its selector, and which fields of the framework hold what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from leverplus.bundle.demo import Demo, Query, clean_question, pixel_digest
from leverplus.bundle.selector import Allowed, Selector
from leverplus.data.fields import as_text
from leverplus.errors import LeverError

BUNDLE = "LEVER_BUNDLE"
"""The environment variable that names the bundle where a framework passes no settings; it goes before those it passes."""

ORDERS = ("nearest_last", "nearest_first")
"""Orders of chosen demonstrations; selectors choose for the first, LangChain and DSPy KNN give the second."""


def open_selector(source: Selector | str | Path | None) -> Selector:
    """A selector as it is, or the one of a folder or of `hf://ORG/NAME`; each folder is opened once per process."""
    if isinstance(source, Selector):
        return source
    if not isinstance(source, (str, Path)) or not str(source):
        raise LeverError(
            f"name the folder of a bundle or run, or set the environment variable {BUNDLE} to it"
        )
    name = str(source)
    if not name.startswith("hf://"):
        name = str(Path(source).expanduser().resolve())
    return _opened(name)


_opened = cache(Selector.load)


def matching_fields(
    names: Iterable[str], variables: Mapping[str, Any]
) -> dict[str, str]:
    """The variables that have one of some names, whatever their case; a value that is no text as JSON."""
    known = {name.lower(): name for name in names}
    found = {}
    for name, value in variables.items():
        own = known.get(str(name).lower())
        text = as_text(value)
        if own is not None and text is not None:
            found[own] = text
    return found


@dataclass(frozen=True)
class Columns:
    """The fields of a framework that hold question, picture and answer.

    Where a bundle's demonstrations have several named inputs, fields of these names are the query.
    """

    selector: Selector
    question: str = "question"
    image: str = "image"
    answer: str = "answer"
    order: str = ORDERS[0]

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise LeverError(
                f'order = "{self.order}": must be one of {", ".join(ORDERS)}'
            )

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The named inputs of the bundle's demonstrations; none where they have one question."""
        for _, demo in self.selector.source.all():
            return tuple(demo.fields)
        return ()

    def asked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The query that some values hold, as `Selector.select` takes it."""
        image = values.get(self.image)
        if named := matching_fields(self.inputs, values):
            return {"fields": named, "image": image}
        question = as_text(values.get(self.question))
        if question is None:
            raise LeverError(
                f"there is no '{self.question}' (there are: {', '.join(map(str, values)) or 'none'}); name the one that "
                "holds the question"
            )
        return {"question": question, "image": image}

    def choose(
        self,
        values: Mapping[str, Any],
        shots: int | None,
        *,
        allowed: Allowed | None = None,
        apart: bool = False,
    ) -> list[Demo]:
        """The demonstrations for some values; with `apart` never the query itself."""
        asked = self.asked(values)
        if apart:
            allowed = apart_from(**asked)
        demos = self.selector.select(**asked, shots=shots, allowed=allowed)
        if self.order == ORDERS[0]:
            return demos
        return demos[::-1]

    def example(self, demo: Demo) -> dict[str, Any]:
        """The texts of a demonstration under the names of the fields."""
        own = {self.question: demo.question, self.answer: demo.answer}
        return {**demo.fields, **own}


def apart_from(
    question: str | None = None,
    image: Any = None,
    fields: Mapping[str, str] | None = None,
) -> Callable[[Demo], bool]:
    """Says of a demonstration whether it may be shown for a query of an evaluation: not the query itself.

    A demonstration on the query's picture is never shown; where neither has a picture, one with the same words is not.
    """
    query = Query.of(question, image, fields)
    words = clean_question(query.item.question)
    own = None
    if query.picture is not None:
        own = pixel_digest(query.picture)

    def fits(demo: Demo) -> bool:
        if own is None and demo.image is None:
            return clean_question(demo.question) != words
        if own is None or demo.image is None:
            return True
        named = demo.image
        if not named.startswith("sha256:") and (picture := demo.pil()):
            named = pixel_digest(picture)  # a run names its pictures otherwise
        return named != own

    return fits
