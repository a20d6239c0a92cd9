"""The web page over a folder of runs: one function per address."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from fastapi import FastAPI, File, Form, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from leverplus import rundir
from leverplus.errors import EvaluationError, LeverError, MissingFile
from leverplus.evaluation.conditions import require_same
from leverplus.evaluation.names import arm_name
from leverplus.evaluation.runs import EvaluatedRun, compare_runs, methods_of, read_evaluated
from leverplus.report import curves, figures
from leverplus.report.data import RunFiles, newer_version_note
from leverplus.report.verdict import advice, headline, verdict
from leverplus.types import ItemId
from leverplus.view.attempt import attempt
from leverplus.view.choice import ExplainedChoice, explain_pooled, step_figures
from leverplus.view.guard import UPLOAD_BYTES, Busy, Guard, UploadTurns, read_upload
from leverplus.view.loaded import Labels, LoadedRuns, ShownItem, webp
from leverplus.view.pages import asset, render_page
from leverplus.view.queries import FATES, Indexes, QueryFilter, QueryIndex
from leverplus.view.runs import RunsFolder, read_files

STATES = ("finished", "training", "stopped", "damaged")
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)
"""A report is a file of the run folder: it may draw its charts and nothing else."""
SUGGESTED = 50  # queries of the task that "Try it" offers


class View:
    """State that the pages share: the folder of runs, the indexes of predictions, the runs that were loaded."""

    def __init__(self, root: Path) -> None:
        self.runs = RunsFolder(root)
        self.indexes = Indexes()
        self.loaded = LoadedRuns()
        self.turns = UploadTurns()
        self._labels: WeakKeyDictionary[QueryIndex, Labels] = WeakKeyDictionary()

    def index(self, name: str) -> QueryIndex:
        with self.loaded.lock:
            return self.indexes.of(self.runs.folder(name) / rundir.PREDICTIONS)

    def labels(self, index: QueryIndex, run: Any) -> Labels:
        """Questions and traits of an index's items; made again once the task can be reached."""
        if run is None:
            return Labels(index, None)
        with self.loaded.lock:
            if index not in self._labels:
                self._labels[index] = Labels(index, run)
            return self._labels[index]


def create_view(root: Path, host: str = "127.0.0.1") -> FastAPI:
    """The page over a folder of runs, for a server that is bound to `host`."""
    # They take seconds to import: better before the page is open than while its first visitor waits.
    for name in ("torch", "pyarrow.dataset", "scipy.stats"):
        import_module(name)
    view = View(root)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, host=host)
    _add_errors(app)
    _add_runs(app, view)
    _add_comparison(app, view)
    _add_queries(app, view)
    _add_try(app, view)

    @app.get("/assets/{name}")
    def assets(name: str) -> Response:
        found = asset(name)
        if found is None:
            raise MissingFile("there is no such file")
        return Response(found[0], media_type=found[1], headers={"cache-control": "max-age=3600"})

    return app


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(render_page(template, **values), status_code=status)


def _add_errors(app: FastAPI) -> None:
    """Show every error as one sentence on a page; a stack trace goes to the terminal only."""

    @app.exception_handler(LeverError)
    def mendable(_: Request, error: LeverError) -> HTMLResponse:
        return page("message", 404 if isinstance(error, MissingFile) else 422, title="Not shown", message=str(error))

    @app.exception_handler(HTTPException)
    def unknown(_: Request, error: HTTPException) -> HTMLResponse:
        said = "There is no such page." if error.status_code == 404 else str(error.detail)
        return page("message", error.status_code, title="Not shown", message=said)

    @app.exception_handler(RequestValidationError)
    def unreadable(_: Request, error: RequestValidationError) -> HTMLResponse:
        names = ", ".join(str(problem["loc"][-1]) for problem in error.errors())
        return page("message", 422, title="Not shown", message=f"This address cannot be read: check {names}.")

    @app.exception_handler(Exception)
    def unexpected(_: Request, error: Exception) -> HTMLResponse:
        said = f"Something went wrong here ({type(error).__name__}); the terminal that runs `lever view` says more."
        return page("message", 500, title="Not shown", message=said)


def _add_runs(app: FastAPI, view: View) -> None:
    @app.get("/")
    def list_runs(q: str = "", state: str = "") -> HTMLResponse:
        every = view.runs.summaries()
        shown = [summary for summary in every if summary.matches(q, state)]
        return page("list", runs=shown, total=len(every), q=q, state=state, states=STATES, root=str(view.runs.root))

    @app.get("/run/{name}")
    def show_run(name: str) -> HTMLResponse:
        folder = view.runs.folder(name)
        files = read_files(folder)
        results = files.results
        drawn = _curves(files)
        forests: list[figures.Figure] = []
        shots: set[str] = set()
        if results:
            forests = figures.forest_figures(results["comparisons"])
            for arm in results["arms"].values():
                shots.update(arm["shots"])
        return page(
            "run",
            title=name,
            name=name,
            summary=view.runs.summary(name),
            verdict=verdict(results) if results else "",
            advice=advice(results) if results else "",
            notes=[note for note in (newer_version_note(files.manifest), *files.missing.values()) if note],
            results=results,
            shots=sorted(shots, key=int),
            forests=forests,
            curves=drawn,
            figures=[*drawn, *forests],
            findings=files.findings,
            fired=[curves.fired_at(finding, files.log) for finding in files.findings or ()],
            epochs=len(files.log),
            latest=_latest(files),
            report=(folder / rundir.REPORT).is_file(),
        )

    @app.get("/run/{name}/live.json")
    def live(name: str) -> JSONResponse:
        files = read_files(view.runs.folder(name))
        drawn = _curves(files)
        return JSONResponse(
            {
                "state": view.runs.summary(name).state,
                "epochs": len(files.log),
                "latest": _latest(files),
                "findings": len(files.findings or ()),
                "figures": figures.figure_values(drawn),
                "tables": {figure.id: figure.table.rows for figure in drawn if figure.table},
            }
        )

    @app.get("/run/{name}/report")
    def report(name: str) -> Response:
        path = view.runs.folder(name) / rundir.REPORT
        if not path.is_file():
            raise MissingFile(f"{name} has no report yet; `lever report` makes it")
        return Response(path.read_bytes(), media_type="text/html", headers={"content-security-policy": REPORT_POLICY})


def _add_comparison(app: FastAPI, view: View) -> None:
    @app.get("/compare")
    def compare(run: Annotated[Sequence[str], Query()] = (), baseline: str = "") -> HTMLResponse:
        names = list(dict.fromkeys(run))
        arms = _rivals(view, names)
        shared: dict[str, Any] = {
            "title": "Compare", "names": names, "every": view.runs.names(), "baseline": baseline, "arms": arms
        }  # fmt: skip
        if len(names) < 2 and not (names and baseline):
            said = "Choose two runs or more, or one run and a way of choosing as the baseline."
            return page("compare", **shared, message=said, found=None)
        try:
            needed = _needed_arms(view, names, baseline, arms)
            read = []
            for name in names:
                folder = view.runs.folder(name)
                read.append(read_evaluated(folder, _known_items(view, folder), arms=needed))
            found = compare_runs(read, baseline or _default_baseline(read))
        except LeverError as error:
            return page("compare", 422, **shared, message=str(error), found=None)
        rows = found["comparisons"]
        title = f"Difference from {found['baseline']}, points with 95 % intervals (method · shots)"
        forest = figures.forest_figure(rows, [row["arm"] for row in rows], title)
        forest = replace(forest, table=None)  # the page has a table of its own
        shown = {"found": found, "rows": rows, "forest": forest, "figures": [forest]}
        return page("compare", **shared, message="", **shown)


def _rivals(view: View, names: Sequence[str]) -> list[str]:
    """The arms that may be a baseline: those of the first run, none where it has no predictions."""
    if not names:
        return []
    try:
        return [arm for arm in view.index(names[0]).arms if arm != "learned"]
    except LeverError:
        return []


def _needed_arms(view: View, names: Sequence[str], baseline: str, arms: Sequence[str]) -> set[str] | None:
    """The arms that a comparison reads; None (all of them) for an unknown baseline, so that the error can list them."""
    if baseline in names:
        return {"learned"}
    if baseline:
        return {"learned", baseline} if baseline in arms else None
    results = read_files(view.runs.folder(names[0])).results
    row = headline(results) if results else None
    return {"learned", str(row["baseline"])} if row else {"learned"}


def _default_baseline(read: Sequence[EvaluatedRun]) -> str | None:
    """The baseline where none was chosen: None, which means the first run; for seeds of one recipe their verdict's."""
    require_same([run.name for run in read], [run.report["conditions"] for run in read])
    row = headline(read[0].report)
    one_recipe = len(methods_of(read)) == 1
    return str(row["baseline"]) if row and one_recipe else None


def _known_items(view: View, folder: Path) -> Callable[[str], Collection[ItemId]]:
    """A function from a split to the ids of its items; the task is loaded only when it is called."""
    return lambda split: {item.id for item in view.loaded.run(folder).task.items(split)}


def _curves(files: RunFiles) -> list[figures.Figure]:
    found = files.findings or []
    return curves.curve_figures({**curves.TRAINING, **curves.REWARDS}, files.log, found)


def _latest(files: RunFiles) -> str:
    """How far a training has come, in one line."""
    if not files.log:
        return "no epoch yet"
    line = files.log[-1]
    reward = line.get("val/reward")
    said = f", reward on dev {reward:.3f}" if isinstance(reward, (int, float)) else ""
    return f"{len(files.log)} epochs, last: {line.get('stage', '')} {line.get('epoch', '')}{said}"


def _add_queries(app: FastAPI, view: View) -> None:
    @app.get("/run/{name}/queries")
    def browse(
        name: str, *, arm: str = "", baseline: str = "", shots: int = -1, fate: str = "", q: str = "", trait: str = "",
        number: Annotated[int, Query(alias="page", ge=1, le=1_000_000)] = 1,
    ) -> HTMLResponse:  # fmt: skip
        folder = view.runs.folder(name)
        index = view.index(name)
        wanted = _wanted(index, read_files(folder), QueryFilter(arm, baseline, shots, fate, q[:500], trait, number))
        run, note = view.loaded.reachable(folder)
        labels = view.labels(index, run)
        found = index.find(wanted, lambda: labels.texts, lambda: labels.traits)
        fates = index.fate(wanted)
        ids = index.ids(found.rows)
        answers: dict[tuple[str, str], str] = {}
        if ids:
            for prediction in index.predictions(ids, [wanted.arm, wanted.baseline], wanted.shots):
                answers.setdefault((prediction["item"], prediction["arm"]), prediction["answer"])
        own, other = index.scores(wanted.arm, wanted.shots), index.scores(wanted.baseline, wanted.shots)  # (items,)
        rows = []
        for item_id, row in zip(ids, found.rows, strict=True):
            kind = "same"
            if fates["helped"][row] or fates["harmed"][row]:
                kind = "helped" if fates["helped"][row] else "harmed"
            rows.append(
                {
                    "card": labels.card(row),
                    "own": (answers[item_id, wanted.arm], float(own[row])),
                    "other": (answers[item_id, wanted.baseline], float(other[row])),
                    "fate": kind,
                }
            )
        return page(
            "queries", title=f"Queries of {name}", name=name, index=index, wanted=wanted, found=found, rows=rows,
            note=note, counts={kind: int(mask.sum()) for kind, mask in fates.items()}, choices=labels.choices(),
            fates=FATES, shots=[n for n in index.shared_shots(wanted.arm, wanted.baseline) if n > 0] or [0],
        )  # fmt: skip

    @app.get("/run/{name}/query")
    def show_query(name: str, item: str, shots: int = -1) -> HTMLResponse:
        folder = view.runs.folder(name)
        index = view.index(name)
        run, note = view.loaded.reachable(folder)
        measured: set[int] = set()
        for arm in index.arms:
            measured.update(index.shots(arm))
        known = sorted(measured - {0}) or [0]
        chosen = shots if shots in known else known[0]
        arms = [arm for arm in index.arms if chosen in index.shots(arm) or index.shots(arm) == [0]]
        rows = index.predictions([item], arms, chosen)
        if not rows:
            raise MissingFile(f"there is no query '{item[:80]}' in {name}")
        shown = []
        for row in rows:
            demos = [view.loaded.card(run, demo) for demo in row["demos"]]
            shown.append({**row, "demos": demos})
        choice, refused = _choice(view, folder, item, chosen)
        return page(
            "query", title=f"Query {item}", name=name, card=view.loaded.card(run, item), rows=shown, note=note,
            shots=known, chosen=chosen, choice=_cards(view, run, choice), refused=refused,
            figures=step_figures(choice) if choice else [],
        )  # fmt: skip

    @app.get("/run/{name}/picture")
    def picture(name: str, item: str) -> Response:
        content = view.loaded.picture(view.runs.folder(name), item)
        return Response(content, media_type="image/webp", headers={"cache-control": "private, max-age=600"})


def _wanted(index: QueryIndex, files: RunFiles, asked: QueryFilter) -> QueryFilter:
    """What an address asks for, with what it leaves open filled in: the learned arm against the verdict's baseline."""
    usual_arm = "learned" if "learned" in index.arms else index.arms[-1]
    arm = asked.arm or usual_arm
    rivals = [other for other in index.arms if other != arm and index.shared_shots(arm, other)]
    row = headline(files.results) if files.results else None
    usual_baseline = rivals[-1] if rivals else arm
    if row and str(row["baseline"]) in rivals:
        usual_baseline = str(row["baseline"])
    baseline = asked.baseline or usual_baseline
    shared = index.shared_shots(arm, baseline)
    if not shared:
        raise EvaluationError(f"{arm_name(arm)} and {arm_name(baseline)} have no number of shots in common")
    shots = asked.shots
    if shots not in shared:
        shots = next((n for n in shared if n > 0), shared[0])  # the fewest that show something
    return QueryFilter(arm, baseline, shots, asked.fate, asked.text, asked.trait, asked.page)


def _choice(view: View, folder: Path, item: str, shots: int) -> tuple[ExplainedChoice | None, str]:
    """The selector's choice for a query, or why it cannot be shown."""
    if shots < 1:
        return None, "No demonstrations are shown at 0 shots."
    try:
        selector = view.loaded.selector(folder)
        with view.loaded.lock:
            return explain_pooled(selector, selector.run.task.item(ItemId(item)), shots), ""
    except LeverError as error:
        return None, f"The selector's choice cannot be shown: {error}"


def _cards(view: View, run: Any, choice: ExplainedChoice | None) -> dict[str, Any] | None:
    """A choice as its template takes it: items to show in place of ids."""
    if choice is None:
        return None
    steps = []
    for step in choice.steps:
        best = []
        for place in step.best():
            card = view.loaded.card(run, choice.pool[place])
            best.append((card, step.probabilities[place], place == step.taken))
        steps.append({"entropy": step.entropy, "best": best})
    beams = []
    for beam in choice.beams:
        cards = [view.loaded.card(run, demo) for demo in beam.demos]
        beams.append((cards, beam.probability, beam.demos == choice.demos))
    return {"steps": steps, "beams": beams, "size": len(choice.pool)}


def _add_try(app: FastAPI, view: View) -> None:
    def form(name: str, status: int = 200, **values: Any) -> HTMLResponse:
        run = view.loaded.run(view.runs.folder(name))
        items = [ShownItem.of(item) for item in run.task.items("test")[:SUGGESTED]]
        most = min(run.recipe.select.max_shots, run.recipe.pool.size)
        shared = {"title": "Try it", "name": name, "items": items, "most": most, "message": "", "made": None}
        return page("try", status, **{**shared, **values})

    @app.get("/run/{name}/try")
    def ask(name: str, item: str = "") -> HTMLResponse:
        question = ""
        if item:
            run = view.loaded.run(view.runs.folder(name))
            question = run.task.item(ItemId(item)).question
        return form(name, item=item, question=question, shots=2)

    @app.post("/run/{name}/try")
    def answer(
        name: str,
        item: Annotated[str, Form()] = "",
        question: Annotated[str, Form()] = "",
        shots: Annotated[int, Form()] = 2,
        image: Annotated[UploadFile | None, File()] = None,
    ) -> HTMLResponse:
        shared: dict[str, Any] = {"item": item, "question": question, "shots": shots}
        try:
            # One byte more than allowed, by which `read_upload` knows that a picture is too large.
            content = image.file.read(UPLOAD_BYTES + 1) if image is not None else b""
            with view.turns.turn():
                selector = view.loaded.selector(view.runs.folder(name))
                own, seen = None, None
                if content:
                    seen = read_upload(content)  # decoded here and nowhere kept
                elif item.strip():
                    own = selector.run.task.item(ItemId(item.strip()))
                with view.loaded.lock:
                    made = attempt(selector, question=question, shots=shots, item=own, picture=content or None)
                    if own is not None:
                        seen = selector.run.task.image(own)
                shown = b"" if seen is None else webp(seen)
        except Busy as error:
            return form(name, 503, **shared, message=str(error))
        except LeverError as error:
            return form(name, 422, **shared, message=str(error))
        return form(
            name,
            **shared,
            made=made,
            seen=base64.b64encode(shown).decode(),
            demos=[view.loaded.card(selector.run, demo) for demo in made.choice.demos],
            choice=_cards(view, selector.run, made.choice),
            figures=step_figures(made.choice),
        )
