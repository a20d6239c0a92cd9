"""The JSON API: what a request must look like, and the work that a thread does for it."""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from leverplus.errors import LeverError
from leverplus.parsing import parse_json
from leverplus.selector.store import DamagedStore
from leverplus.serve.limits import HttpRefusal, check_time
from leverplus.types import ItemId
from leverplus.view.guard import read_upload

if TYPE_CHECKING:
    from leverplus.selector.demo import Demo, Picks
    from leverplus.selector.selector import Selector
    from leverplus.serve.metrics import Metrics
    from leverplus.serve.served import ServedSelector
    from leverplus.serve.settings import ServeSettings

MOST_QUERIES = 256
"""Queries of one request to /select_many, and demonstrations of one to /demos."""

_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SelectQuery(_Strict):
    """One query. `image` is a data URL or base64 of a picture file; `vectors` are its own instead of the embedder's."""

    question: StrictStr
    image: StrictStr | None = None
    shots: StrictInt | None = None
    allowed: list[StrictStr] | None = None
    explain: StrictBool = False
    vectors: dict[StrictStr, list[float]] | None = None
    images: StrictBool = True
    """Whether the answer holds the demonstrations' pictures."""


class SelectManyBody(_Strict):
    """Many queries; what is said here holds for those that do not say it themselves."""

    queries: Annotated[list[SelectQuery], Field(max_length=MOST_QUERIES)]
    shots: StrictInt | None = None
    allowed: list[StrictStr] | None = None
    explain: StrictBool = False
    images: StrictBool = True


class NewDemo(_Strict):
    """A demonstration to add."""

    question: StrictStr
    answer: StrictStr | None = None
    answers: list[StrictStr] | None = None
    image: StrictStr | None = None
    id: StrictStr | None = None
    meta: dict[StrictStr, StrictStr] | None = None


class AddBody(_Strict):
    demos: Annotated[list[NewDemo], Field(min_length=1, max_length=MOST_QUERIES)]


def parse_body(content: bytes | bytearray, kind: type[BaseModel]) -> Any:
    """The body as the record that a route takes; 400 where it is no JSON, 422 where it is another JSON."""
    try:
        value = parse_json(bytes(content))
    except json.JSONDecodeError as error:
        raise HttpRefusal(400, f"the body is not JSON ({error.msg}, character {error.pos})") from None
    if kind is AddBody and isinstance(value, dict) and "demos" not in value:
        value = {"demos": [value]}
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:80] or "the body"
        raise HttpRefusal(422, f"{where}: {first['msg'][:200]}") from None


def picture_content(image: str) -> bytes:
    """The picture file inside a data URL or base64. A path is not base64 of a picture, and no address is fetched."""
    body = image
    if image[:5].lower() == "data:":
        head = _DATA_URL.match(image)
        if head is None:
            raise HttpRefusal(422, "a data URL of a picture begins with data:image/png;base64, or the like")
        body = image[head.end() :]
    try:
        return base64.b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError):
        raise HttpRefusal(
            422, "image must be a data URL or base64 of a picture file; addresses are not fetched"
        ) from None


class JsonApi:
    """Does the work of the JSON API; every method runs in a thread, and `until` is when nobody waits any more."""

    def __init__(self, settings: ServeSettings, served: ServedSelector, metrics: Metrics) -> None:
        self.settings, self.served, self.metrics = settings, served, metrics

    def picture(self, image: str | None) -> Any:
        """A picture of a client, decoded within the limits."""
        if image is None:
            return None
        return read_upload(picture_content(image), self.settings.body_bytes, self.settings.pixels)

    def select(self, content: bytes | bytearray, until: float) -> bytes:
        query: SelectQuery = parse_body(content, SelectQuery)
        started, selector = time.perf_counter(), self.served.current()
        fingerprint = selector.fingerprint
        check_time(until)
        picks = self._choose(selector, query)
        found = _picks_json(picks, images=query.images)
        return _dump({**found, "fingerprint": fingerprint, "ms": _ms(started)})

    def select_many(self, content: bytes | bytearray, until: float) -> bytes:
        body: SelectManyBody = parse_body(content, SelectManyBody)
        started, selector = time.perf_counter(), self.served.current()
        fingerprint, results = selector.fingerprint, []
        shared = {name: getattr(body, name) for name in body.model_fields_set - {"queries"}}
        for number, query in enumerate(body.queries):
            check_time(until)
            whole = query.model_copy(update={k: v for k, v in shared.items() if k not in query.model_fields_set})
            try:
                results.append(_picks_json(self._choose(selector, whole), images=whole.images))
            except HttpRefusal as error:
                raise HttpRefusal(error.status, f"query {number}: {error}") from None
            except DamagedStore:
                raise  # no fault of this query
            except LeverError as error:
                raise HttpRefusal(422, f"query {number}: {error}") from None
        return _dump({"results": results, "fingerprint": fingerprint, "ms": _ms(started)})

    def _choose(self, selector: Selector, query: SelectQuery) -> Picks:
        picks = selector.select(
            question=query.question,
            image=self.picture(query.image),
            shots=query.shots,
            allowed=query.allowed,
            explain=query.explain,
            vectors=query.vectors,
        )
        self.metrics.add("lever_demonstrations_shown_total", by=len(picks))
        return picks

    def add(self, content: bytes | bytearray, until: float) -> bytes:
        body: AddBody = parse_body(content, AddBody)
        self._require_writable()
        selector = self.served.current()
        names = [ItemId(demo.id) for demo in body.demos if demo.id is not None]
        if taken := selector.source.rows_of(names):
            raise HttpRefusal(409, f"there is a demonstration {next(iter(taken))[:80]} already; delete it first")
        rows = []
        for demo in body.demos:
            check_time(until)
            row: dict[str, Any] = {key: value for key, value in demo.model_dump().items() if value is not None}
            if demo.image is not None:
                self.picture(demo.image)  # refused here where it is too large or no picture
                row["image"] = picture_content(demo.image)
            rows.append(row)
        ids = selector.add(rows)
        return _dump({"ids": ids, "count": len(selector), "fingerprint": selector.fingerprint})

    def delete(self, name: str) -> bytes:
        self._require_writable()
        selector = self.served.current()
        if not selector.source.rows_of([ItemId(name)]):
            raise HttpRefusal(404, "there is no such demonstration")
        selector.delete([name])
        return _dump({"deleted": [name], "count": len(selector), "fingerprint": selector.fingerprint})

    def _require_writable(self) -> None:
        if self.settings.read_only:
            raise HttpRefusal(403, "this service was started with --read-only; use `lever demos` on its machine")

    def info(self) -> bytes:
        from leverplus import __version__

        selector, settings = self.served.current(), self.settings
        limits = {"body_bytes": settings.body_bytes, "pixels": settings.pixels, "seconds": settings.seconds}
        return _dump(
            {
                "name": settings.bundle.rstrip("/").rpartition("/")[2],
                "version": __version__,
                "arm": selector.arm,
                "shots": selector.shots,
                "most_shots": selector.chooser.most,
                "count": len(selector),
                "fingerprint": selector.fingerprint,
                "pictures": "image" in selector.source.rows.blocks,
                "writable": selector.bundle is not None and not settings.read_only,
                "upstream": bool(settings.upstream),
                "limits": {**limits, "queries": MOST_QUERIES, "queue": settings.queue},
            }
        )

    def gauges(self) -> Mapping[str, tuple[str, float]]:
        """What the metrics page says of the bundle; nothing where it cannot be read any more."""
        try:
            count = float(len(self.served.current()))
        except DamagedStore:
            return {}
        return {"lever_demonstrations": ("Demonstrations in the bundle.", count)}


def _picks_json(picks: Picks, *, images: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"demos": [_demo_json(demo, images=images) for demo in picks]}
    return found if picks.explanation is None else {**found, "explanation": picks.explanation}


def _demo_json(demo: Demo, *, images: bool) -> dict[str, Any]:
    found = {"id": demo.id, "question": demo.question, "answer": demo.answer}
    return {**found, "image": demo.data_url()} if images and demo.picture is not None else found


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _ms(started: float) -> float:
    return round(1000 * (time.perf_counter() - started), 3)
