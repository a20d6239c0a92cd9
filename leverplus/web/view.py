"""The web page over a folder of runs: one function per address."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import FastAPI, File, Form, Query, Request, UploadFile
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field

from leverplus.bundle.demo import Query as Asked
from leverplus.bundle.selector import Selector
from leverplus.data import rundir
from leverplus.data.types import Item, ItemId
from leverplus.errors import (
    DataError,
    EvaluationError,
    LeverError,
    MissingFile,
    is_installed,
)
from leverplus.evaluate.names import arm_name
from leverplus.evaluate.predictions import Results, read_predictions
from leverplus.evaluate.record import ComparisonRow
from leverplus.evaluate.runs import compare_runs, read_evaluated
from leverplus.evaluate.verdict import headline
from leverplus.models.base import Request as Prompt
from leverplus.run.run import load_run
from leverplus.web.figures import figure_values, forest_figure
from leverplus.web.guard import UPLOAD_BYTES, Guard, add_errors, read_upload
from leverplus.web.pages import ASSETS, render, webp
from leverplus.web.report import FATES, Cards, arm_rows, fate_names, run_values
from leverplus.web.runs import DAMAGE, RunsFolder, read_run, stamp

if TYPE_CHECKING:
    from leverplus.bundle.demo import Picks
    from leverplus.run.run import Run

Made = TypeVar("Made")
STATES = ("finished", "at work", "stopped", "damaged")
PAGE = 25  # queries
SIDE = 512  # pixels of a picture
LONGEST = 2_000  # characters of a question


class QueryFilter(BaseModel):
    """Which queries to show: the `fate` of `arm` against `baseline` at `shots`, with a text in them."""

    arm: str = ""
    baseline: str = ""
    shots: int = -1
    fate: str = ""
    q: Annotated[str, Field(max_length=500)] = ""
    page: Annotated[int, Field(ge=1, le=1_000_000)] = 1


@lru_cache(maxsize=4)
def _results(folder: Path, _stamp: Any) -> Results:
    return read_predictions(folder / rundir.PREDICTIONS)


@lru_cache(maxsize=3)
def _run(folder: Path, _stamp: Any) -> Run:
    run = load_run(folder)
    run.task.items("test")  # fails here where the task's data cannot be reached
    return run


@lru_cache(maxsize=3)
def _selector(folder: Path, _stamp: Any) -> Selector:
    return Selector.load(folder)


class View:
    """The folder of runs, and what was loaded of those last looked at."""

    def __init__(self, root: Path) -> None:
        self.runs = RunsFolder(root)
        self.lock = RLock()
        """One request at a time works with a selector, a task or an upload: a decoded picture takes a thousand times
        the memory of its file."""

    def load(self, make: Callable[[Path, Any], Made], name: str) -> Made:
        """Something of a run, kept until its files change; a sentence where it is damaged."""
        folder = self.runs.folder(name)
        try:
            with self.lock:
                return make(folder, stamp(folder))
        except LeverError:
            raise
        except DAMAGE as error:
            raise DataError(
                f"{name} cannot be loaded: it is not whole ({type(error).__name__}: {error})"
            ) from error

    def cards(self, name: str) -> tuple[Cards, str]:
        """The items of a run's task, and why they are known by their ids alone."""
        try:
            return Cards(self.load(_run, name).task), ""
        except LeverError as error:
            return (
                Cards(None),
                f"The task's items cannot be reached, so they are shown by id without pictures: {error}",
            )

    def choice(self, name: str, query: Item, image: Any, shots: int) -> Picks:
        """What the run's selector shows a query, with the reasons."""
        selector = self.load(_selector, name)
        with self.lock:
            return selector.select(
                question=query.question,
                image=image,
                shots=shots,
                fields=query.fields or None,
                explain=True,
            )


def page(template: str, status: int = 200, **values: Any) -> Response:
    return Response(render(template, **values), status, media_type="text/html")


def create_view(root: Path, host: str = "127.0.0.1") -> FastAPI:
    """The page over a folder of runs, for a server that is bound to `host`."""
    # They take seconds to import: better before the page is open than while its first visitor waits.
    for name in ("torch", "pyarrow.parquet"):
        if is_installed(name.partition(".")[0]):
            import_module(name)
    view = View(root)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, host=host, most_bytes=UPLOAD_BYTES + 64_000)
    app.mount("/assets", StaticFiles(packages=[ASSETS]))
    app.add_exception_handler(Exception, unexpected)
    add_errors(app, told)
    _add_runs(app, view.runs)
    _add_comparison(app, view)
    _add_queries(app, view)
    _add_try(app, view)
    return app


def told(
    status: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """What cannot be shown, as one sentence on a page."""
    made = page("message", status, title="Not shown", message=message)
    made.headers.update(headers or {})
    return made


def unexpected(_: Request, error: Exception) -> Response:
    """A stack trace goes to the terminal only."""
    kind = type(error).__name__
    return told(
        500,
        f"Something went wrong here ({kind}); the terminal that runs `lever view` says more.",
    )


def _add_runs(app: FastAPI, runs: RunsFolder) -> None:
    @app.get("/")
    def list_runs(q: str = "", state: str = "") -> Response:
        rows = []
        names = runs.names()
        for name in names:
            summary = runs.summary(name)
            own = runs.state(name)
            if summary.matches(q, own, state):
                rows.append((summary, own))
        return page(
            "list",
            title="",
            rows=rows,
            total=len(names),
            root=str(runs.root),
            q=q,
            state=state,
            states=STATES,
        )

    @app.get("/run/{name}")
    def show_run(name: str) -> Response:
        files = read_run(runs.folder(name), with_predictions=False)
        return page(
            "run",
            title=name,
            name=name,
            summary=runs.summary(name),
            state=runs.state(name),
            latest=_latest(files.log),
            epochs=len(files.log),
            **run_values(files),
        )

    @app.get("/run/{name}/live.json")
    def live(name: str) -> Response:
        files = read_run(runs.folder(name), with_predictions=False)
        curves = run_values(files)["curves"]
        return JSONResponse(
            {
                "state": runs.state(name),
                "epochs": len(files.log),
                "latest": _latest(files.log),
                "findings": len(files.findings or ()),
                "figures": figure_values(curves),
                "tables": {figure.id: figure.table.rows for figure in curves},
            }
        )


def _latest(log: Sequence[Mapping[str, Any]]) -> str:
    """How far a training has come, in one line."""
    if not log:
        return "no epoch yet"
    return f"{len(log)} epochs, last: {log[-1].get('stage', '')} {log[-1].get('epoch', '')}"


def _add_comparison(app: FastAPI, view: View) -> None:
    @app.get("/compare")
    def compare(
        run: Annotated[Sequence[str], Query()] = (), baseline: str = ""
    ) -> Response:
        names = list(dict.fromkeys(run))
        shared: dict[str, Any] = {
            "title": "Compare",
            "names": names,
            "every": view.runs.names(),
            "baseline": baseline,
            "message": "Choose two runs or more, or one run and a way of choosing as the baseline.",
        }
        try:
            if names:
                shared["arms"] = list(view.load(_results, names[0]).draws)
            if len(names) < 2 and not (names and baseline):
                return page("compare", **shared)
            needed = {"learned", baseline}
            folders = [view.runs.folder(name) for name in names]
            read = [read_evaluated(folder, arms=needed) for folder in folders]
            found = compare_runs(read, baseline or None)
        except LeverError as error:
            return page("compare", 422, **{**shared, "message": str(error)})
        title = f"Difference from {found.baseline}, points with 95 % intervals (method · shots)"
        methods = [row.arm for row in found.comparisons]
        forest = forest_figure("forest", found.comparisons, methods, title)
        shown = {**shared, "message": "", "found": found, "forest": forest}
        return page("compare", figures=[forest], **shown)


def _add_queries(app: FastAPI, view: View) -> None:
    @app.get("/run/{name}/queries")
    def browse(name: str, asked: Annotated[QueryFilter, Query()]) -> Response:
        results = view.load(_results, name)
        (cards, note) = view.cards(name)
        record = read_run(view.runs.folder(name), with_predictions=False).record
        asked, shots = _completed(results, asked, headline(record))
        columns = []
        for arm in (asked.arm, asked.baseline):
            at = results.against(arm, asked.shots) or 0
            accuracy = results.accuracy(arm, at)
            columns.append((accuracy, results.first(arm, at)))
        (own, answers), (other, rivals) = columns
        fates = fate_names(own - other)
        rows = []
        for place, item in enumerate(results.items):
            card = cards.card(item)
            fate = fates[place]
            words = f"{item}\n{card.question}\n{answers[place].answer}".lower()
            if asked.fate in ("", fate) and asked.q.strip().lower() in words:
                mine = (answers[place].answer, own[place])
                theirs = (rivals[place].answer, other[place])
                rows.append((card, mine, theirs, fate))
        pages = max(1, -(-len(rows) // PAGE))  # rounded up
        number = min(asked.page, pages)
        return page(
            "queries",
            title=f"Queries of {name}",
            name=name,
            arms=list(results.draws),
            asked=asked,
            shots=shots,
            fates=FATES,
            counts={fate: fates.count(fate) for fate in FATES},
            rows=rows[(number - 1) * PAGE : number * PAGE],
            total=len(rows),
            pages=pages,
            number=number,
            note=note,
        )

    @app.get("/run/{name}/query")
    def show_query(name: str, item: str, shots: int = -1) -> Response:
        results = view.load(_results, name)
        (cards, note) = view.cards(name)
        if item not in results.items:
            raise MissingFile(f"there is no query '{item[:80]}' in {name}")
        known = results.shown_shots()
        chosen = shots if shots in known else known[0]
        why = None
        refused = note
        try:
            if cards.task is not None:
                query = cards.task.item(ItemId(item))
                image = cards.task.image(query)
                why = view.choice(name, query, image, chosen).explanation
        except LeverError as error:
            refused = f"The selector's choice cannot be shown: {error}"
        return page(
            "query",
            title=f"Query {item}",
            name=name,
            card=cards.card(item),
            rows=arm_rows(results, ItemId(item), chosen, cards),
            note=note,
            shots=known,
            chosen=chosen,
            why=why,
            refused=refused,
        )

    @app.get("/run/{name}/picture")
    def picture(name: str, item: str) -> Response:
        task = view.load(_run, name).task
        with view.lock:
            image = task.image(task.item(ItemId(item)))
        if image is None:
            raise MissingFile(f"item {item[:80]} has no picture")
        headers = {"cache-control": "private, max-age=600"}
        return Response(webp(image, SIDE), media_type="image/webp", headers=headers)


def _completed(
    results: Results, asked: QueryFilter, row: ComparisonRow | None
) -> tuple[QueryFilter, list[int]]:
    """What an address asks for, with what it leaves open filled in, and the numbers of shots that both arms have."""
    arms = list(results.draws)
    arm = asked.arm or arms[-1]
    baseline = asked.baseline or arms[0]
    if row is not None:
        arm = asked.arm or row.arm
        baseline = asked.baseline or row.baseline
    shared = []
    for n in results.every_shots():
        own = results.against(arm, n)
        if own is not None and results.against(baseline, n) is not None:
            shared.append(n)
    if not shared:
        raise EvaluationError(
            f"{arm_name(arm[:80])} and {arm_name(baseline[:80])} have no number of shots in common"
        )
    shown = [n for n in shared if n > 0] or shared
    shots = asked.shots if asked.shots in shared else shown[0]
    whole = {"arm": arm, "baseline": baseline, "shots": shots}
    return asked.model_copy(update=whole), shown


def _add_try(app: FastAPI, view: View) -> None:
    def form(name: str, status: int = 200, **values: Any) -> Response:
        most = view.load(_run, name).recipe.select.max_shots
        return page("try", status, title="Try it", name=name, most=most, **values)

    @app.get("/run/{name}/try")
    def ask(name: str, item: str = "") -> Response:
        return form(name, item=item, question="", shots=2)

    @app.post("/run/{name}/try")
    def answer(
        name: str,
        item: Annotated[str, Form()] = "",
        question: Annotated[str, Form()] = "",
        shots: Annotated[int, Form()] = 2,
        image: Annotated[UploadFile | None, File()] = None,
    ) -> Response:
        shared: dict[str, Any] = {"item": item, "question": question, "shots": shots}
        # One byte more than allowed, by which `read_upload` knows that a picture is too large.
        content = b""
        if image is not None:
            content = image.file.read(UPLOAD_BYTES + 1)
        try:
            with view.lock, tempfile.TemporaryDirectory() as folder:
                query, seen = _query(view, name, item, question, content, Path(folder))
                made = _attempt(view, name, query, seen, shots)
        except LeverError as error:
            return form(name, 422, **shared, message=str(error))
        return form(name, **shared, made=made)


def _query(  # noqa: PLR0917 what the form holds
    view: View, name: str, item: str, question: str, content: bytes, folder: Path
) -> tuple[Item, Any]:
    """An item as it is, an item's picture with another question, or a picture of one's own; with its picture."""
    words = " ".join(question.split())
    image = None
    if len(words) > LONGEST:
        raise LeverError(
            f"the question has {len(words):,} characters; at most {LONGEST:,} are taken"
        )
    if content:
        image = read_upload(content)
        return _unlabelled(words, content, folder), image
    if not item.strip():
        raise LeverError("choose a query of the task or a picture of your own")
    task = view.load(_run, name).task
    query = task.item(ItemId(item.strip()))
    image = task.image(query)
    if words in ("", query.question):
        return query, image
    return _unlabelled(words, image, folder), image


def _unlabelled(words: str, image: Any, folder: Path) -> Item:
    """A query of nobody's data, whose picture lies in the folder, where a model finds it."""
    asked = Asked.of(words, image)
    query = asked.item
    if asked.picture is None:
        return query
    path = folder / "query.png"
    asked.picture.save(path, compress_level=1)  # lossless; small would be slow
    return replace(query, image=str(path))


def _attempt(
    view: View, name: str, query: Item, seen: Any, shots: int
) -> dict[str, Any]:
    """What is picked for a query, and the model's answers with the picks and with none."""
    run = view.load(_run, name)
    picks = view.choice(name, query, seen, shots)
    demos = tuple(run.task.item(demo.id) for demo in picks)
    # A backend weighs references with every prompt; a query without any borrows the answers of its demonstrations.
    known = query.answers or tuple(demo.answer for demo in demos)
    references = tuple(dict.fromkeys(known))
    prompts = [Prompt(query, shown, references) for shown in (demos, ())]
    answers = []
    rules = run.task.answers
    for reply in run.backend.answer(prompts):
        text = rules.cut_answer(reply.raw)
        score = None
        if query.answers:
            score = rules.score(text, query)
        answers.append((text, score))
    cards = Cards(run.task)
    return {
        "question": query.question,
        "seen": base64.b64encode(webp(seen, SIDE)).decode() if seen else "",
        "demos": [cards.card(demo.id) for demo in demos],
        "answers": answers,
        "why": picks.explanation,
    }
