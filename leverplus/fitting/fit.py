"""`leverplus.fit`: from a user's data and a model to a bundle, a report and one recommendation.

Built on the same recipes, runs and evaluation as everything else: a fit writes a recipe by rules, runs it in a folder
beside the bundle, and packs the way of choosing that dev shows best. Typing the same command again goes on where it
was stopped.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus import rundir
from leverplus.errors import DataError, LeverError, MissingFile, WrongUsage
from leverplus.fitting.encoder import choose_encoder
from leverplus.fitting.look import FoundData, describe_task, find_data
from leverplus.fitting.money import check_money, require_paid
from leverplus.fitting.plan import (
    CALLS,
    SELF_TEST,
    SeenData,
    SplitShares,
    divide,
    model_values,
    recipe_values,
    smallest_plan,
)
from leverplus.rundir import (
    disk_sentence,
    lock_folder,
    make_private_folder,
    read_json,
    shipped,
    write_json,
    write_text,
)

if TYPE_CHECKING:
    from leverplus.experiment.run import Run
    from leverplus.selector.selector import Selector
    from leverplus.tasks.base import Task

SHOTS = (1, 2, 4)
FIT = "fit.json"
REPORT = "report.html"
HEADER = "# made by lever fit, digest {digest}; edit anything below, and the same command takes it as it is\n"
TABLE_CALLS = 300_000
"""A recorded table costs nothing; this is what training may look up."""

Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class FitRequest:
    """What the user asked for."""

    data: str
    model: str
    images: str | None = None
    embed: str | None = None
    calls: int | None = None
    shots: tuple[int, ...] | None = None
    seed: int = 0
    model_settings: Mapping[str, Any] = field(default_factory=dict)
    """Further values of [model], such as key_env, price_in, price_out and max_cost."""


@dataclass(frozen=True)
class Fit:
    """What a fit came to. `report` is fit.json; a dry run has a forecast and no bundle."""

    folder: Path
    recipe: Path
    forecast: dict[str, Any]
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def selector(self) -> Selector:
        from leverplus.selector.selector import Selector

        return Selector.load(self.folder)


def fit(
    data: str | Path,
    *,
    model: str,
    images: str | Path | None = None,
    embed: str | None = None,
    calls: int | None = None,
    shots: Sequence[int] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    store: Path | None = None,
    dry_run: bool = False,
    say: Say = lambda _: None,
    progress: Progress = lambda _what, _done, _total: None,
    **model_settings: Any,
) -> Fit:
    """A bundle for these data and this model, with `fit.json` and `report.html`, in the folder `out`.

    `model` is a folder, GGUF file or hub's name, a server as URL#NAME, or table:FILE. `calls` bounds everything that
    is asked of it. With `dry_run` the plan and its cost are worked out and nothing is asked but what the model offers.
    """
    named = tuple(shots) if shots is not None else None
    wanted = FitRequest(
        str(data), model, str(images) if images else None, embed, calls, named, seed, dict(model_settings)
    )
    folder = bundle_folder(data, out)
    _check(wanted, folder)
    with disk_sentence(folder):
        make_private_folder(folder.parent)
    run, smallest = _open(wanted, folder, store, say, progress)
    planned = _forecast(run, wanted, smallest)
    say(f"forecast: {planned['line']}")
    recipe = folder.with_name(f"{folder.name}.toml")
    if dry_run:
        return Fit(folder, recipe, planned)
    if (done := _done_before(run, folder)) is not None:
        say(f"{folder} is finished; nothing was asked")
        return Fit(folder, recipe, planned, _with_report(run, folder, done))
    with lock_folder(run.folder):
        report = _carry_out(run, folder)
    return Fit(folder, recipe, planned, report)


def bundle_folder(data: str | Path, out: str | Path | None) -> Path:
    """Where the bundle goes: `out`, else bundles/DATA."""
    return Path(out) if out is not None else Path("bundles") / _plain_name(str(data))


def _plain_name(data: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(data).name.removesuffix(".jsonl")).strip("._")
    return name or "fit"


def _check(wanted: FitRequest, folder: Path) -> None:
    """What can be refused without looking at anything."""
    for shots in wanted.shots or ():
        if isinstance(shots, bool) or not isinstance(shots, int) or not 1 <= shots <= 8:
            raise WrongUsage(f"--shots {shots}: must be whole numbers from 1 to 8, such as 1,2,4")
    if wanted.shots is not None and not wanted.shots:
        raise WrongUsage("--shots is empty; give whole numbers from 1 to 8, such as 1,2,4")
    if wanted.calls is not None and wanted.calls < 1:
        raise WrongUsage(f"--calls {wanted.calls}: must be a whole number of at least 1")
    check_money(wanted.model_settings, wanted.model)
    if folder.exists() and not (folder / FIT).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise LeverError(f"{folder} exists and holds no fit; choose another folder with --out DIR")


def _open(wanted: FitRequest, folder: Path, store: Path | None, say: Say, progress: Progress) -> tuple[Run, int]:
    """Look, decide, write the recipe, and open its run beside the bundle; also the calls of the smallest plan."""
    from leverplus.engine.open import build_task
    from leverplus.experiment.opening import open_run
    from leverplus.recipe.recipe import load_recipe
    from leverplus.recipe.schema import read_section
    from leverplus.recipe.sections import TaskSection
    from leverplus.store.location import default_store_path

    data = find_data(wanted.data, wanted.images, folder.with_name(f"{folder.name}.items.jsonl"))
    for line in data.said:
        say(f"data: {line}")
    problems: list[str] = []
    section = read_section(TaskSection, dict(data.values), "task.", problems)
    if section is None or problems:
        raise LeverError(f"the data cannot be used: {'; '.join(problems)}")
    try:
        task = build_task(section)
    except DataError as error:
        raise DataError(_one_sentence(str(error), data)) from error
    for line in describe_task(task):
        say(f"data: {line}")
    values, smallest = _decide(wanted, data, task, say)
    path = folder.with_name(f"{folder.name}.toml")
    _write_recipe(path, values, say)
    run = open_run(
        load_recipe(str(path)),
        path,
        folder.with_name(f"{folder.name}.run"),
        seed=wanted.seed,
        store_path=store or default_store_path(),
        say=say,
        progress=progress,
    )
    return run, smallest


def _one_sentence(problems: str, data: FoundData) -> str:
    """The first of a task's problems, and where the others are listed."""
    found = [line.strip().removeprefix("- ") for line in problems.splitlines() if line.startswith("  - ")]
    more = [line.strip() for line in problems.splitlines() if line.startswith("  ... and")]
    if not found:
        return problems
    unlisted = [int("".join(filter(str.isdecimal, line)) or 0) for line in more]  # "... and 12 more"
    others = len(found) - 1 + sum(unlisted)
    where = " ".join(f"{key}={value}" for key, value in data.values.items() if key != "name")
    count = "1 more problem" if others == 1 else f"{others} more problems"
    listed = f"; {count}: `lever task check {data.name} --set {where}` lists them" if others else ""
    file = Path(str(data.values.get("file", data.name)))
    if not found[0].startswith(file.name):
        return f"{data.source or file}: {found[0]}{listed}"
    named = found[0].removeprefix(file.name)  # records have the same lines in both files
    return f"{data.source or file}{named}{listed}"


def _decide(wanted: FitRequest, data: FoundData, task: Task, say: Say) -> tuple[dict[str, Any], int]:
    """The values of the recipe, every rule said, and the calls of the smallest plan (0: calls cost nothing)."""
    shown = any(item.image is not None for split in ("train", "dev") for item in task.items(split))
    model = _named_model(model_values(wanted.model), wanted, say)
    if unknown := set(wanted.model_settings) - _model_keys():
        raise WrongUsage(f"there is no setting model.{sorted(unknown)[0]}; docs/backends.md lists them")
    model["model"] |= wanted.model_settings
    _require_weights(model)
    embed, sees = choose_encoder(wanted.embed, task, say, shown=shown)
    labels = tuple(getattr(task, "labels", ()))
    weighs = _weighs(model, task, shown, say)
    counts = {split: len(task.items(split)) for split in ("train", "dev", "test")}
    seen = SeenData(task.name, **counts, labels=labels, pictures=sees, shown=shown, weighs=weighs, texts=data.texts)
    smallest = 0
    if model["backend"] == "table":
        _check_table(model["model"]["name"])
        shots = wanted.shots or (1,)
        shares = SplitShares(TABLE_CALLS, 200, 0, min(64, seen.dev))
        say(
            "rule: a recorded table costs nothing, so calls are not divided; it is asked with one demonstration, "
            "because longer lists are recorded for few choices (--shots)"
        )
    else:
        shots = wanted.shots or SHOTS
        calls = wanted.calls or CALLS
        shares, smallest = divide(calls, seen, shots), smallest_plan(seen, shots)
        say(f"rule: {shares.rule(calls)}")
        say(f"rule: {shares.pilot_rule()}")
    values, rules = recipe_values({"task": data.values, "embed": embed, "model": model}, seen, shares, shots)
    for rule in rules:
        say(f"rule: {rule}")
    if model["backend"] == "openai":
        _require_room(values["model"], task, shots, weighs=weighs)
    return values, smallest


def _require_room(section: Mapping[str, Any], task: Task, shots: Sequence[int], *, weighs: bool) -> None:
    """Refuse prompts that a server says it has no room for, before a recipe is written; the self-test shows two."""
    from leverplus.engine.open import build_backend
    from leverplus.recipe.model import ModelSection

    known = {**section, "logprobs": "always" if weighs else "never", "retries": 1}  # not asked for again
    backend: Any = build_backend("openai", task, ModelSection(**known))
    backend.require_room(max(2, *shots))


def _named_model(model: dict[str, Any], wanted: FitRequest, say: Say) -> dict[str, Any]:
    """The model with its name: a server that was given without one is asked what it serves."""
    section = model["model"]
    if model["backend"] != "openai" or section["name"]:
        return model
    from leverplus.backends.api.client import Client
    from leverplus.recipe.model import ModelSection

    given = {key: wanted.model_settings[key] for key in ("key_env",) if key in wanted.model_settings}
    url = section["url"]
    served = [str(own["id"]) for own in Client(ModelSection(url=url, name="any", retries=1, **given)).models()]
    if not served:
        raise LeverError(f"{url} lists no models; most addresses end in /v1, else name the model: --model {url}#NAME")
    if len(served) != 1:
        shown = ", ".join(f"{url}#{name}" for name in served[:10])
        raise LeverError(f"{url} serves {len(served)} models; name one with --model: {shown}")
    say(f"model: {url} serves {served[0]}")
    return {**model, "model": {**section, "name": served[0]}}


def _model_keys() -> set[str]:
    from dataclasses import fields

    from leverplus.recipe.model import ModelSection

    return {own.name for own in fields(ModelSection)}


def _weighs(model: dict[str, Any], task: Task, shown: bool, say: Say) -> bool:
    """Whether the model gives log-probabilities of given answers; a server is asked, plain texts first."""
    if model["backend"] != "openai":
        return True
    from leverplus.engine.open import build_backend
    from leverplus.recipe.model import ModelSection

    forms = ("chat",) if shown else ("plain", "chat")
    for form in forms:
        backend: Any = build_backend("openai", task, ModelSection(**{**model["model"], "prompt": form, "retries": 1}))
        if backend.weighs:
            model["model"]["prompt"] = form
            return True
    model["model"] |= {"prompt": "chat", "logprobs": "never"}  # known now: not asked again, and not priced
    say("model: the server gives no log-probabilities of given answers; answers are written and judged")
    return False


def _require_weights(model: Mapping[str, Any]) -> None:
    """Refuse weights that are nowhere, before anything is decided by them."""
    if model["backend"] == "hf":
        from leverplus.backends.hf.files import require_model
        from leverplus.recipe.model import ModelSection

        require_model(ModelSection(**model["model"]))


def _check_table(names: str) -> None:
    """Refuse a table that is not there before anything is decided by it."""
    for name in names.split(","):
        if not shipped(name).is_file():
            raise MissingFile(f"there is no recorded table {name}; `lever record` makes one")


def _write_recipe(path: Path, values: Mapping[str, Any], say: Say) -> None:
    """The recipe beside the bundle; one that somebody edited is left as it is, and used."""
    import tomli_w

    body = tomli_w.dumps(dict(values))
    if path.is_file():
        head, _, rest = path.read_text(encoding="utf-8").partition("\n")
        if HEADER.format(digest=_digest(rest)).rstrip("\n") != head:
            say(f"rule: {path} was edited and is taken as it is; delete it to have it made anew")
            return
    write_text(path, HEADER.format(digest=_digest(body)) + body)
    say(f"recipe: {path}")


def _digest(body: str) -> str:
    return sha256(body.encode()).hexdigest()[:12]


def _forecast(run: Run, wanted: FitRequest, smallest: int) -> dict[str, Any]:
    """All calls before the first one, and a refusal where they pass what was allowed; `smallest` is the least plan."""
    from leverplus.experiment.forecast import forecast_calls, rough_price
    from leverplus.recipe.forecast import ForecastPart, as_json, line

    parts = forecast_calls(run)
    table = run.recipe.score.backend == "table"
    test = 0 if table or run.recipe.score.backend == "world" else SELF_TEST
    total = sum(part.calls or 0 for part in parts) + test
    if wanted.calls is not None and not table and total > wanted.calls:
        raise LeverError(
            f"this recipe may take {total:,} calls with its self-test, more than --calls {wanted.calls:,}; lower "
            "score.budget, eval.items or eval.dev_items in it, or delete it"
        )
    price = rough_price(run, [*parts, ForecastPart("self-test", test, exact=False, demos=1)])
    require_paid(run.recipe.model.max_cost, price, total, smallest)
    money = "" if price is None else f"; roughly {price:,.2f} at the prices given, pictures not counted"
    tested = f"self-test at most {test:,}, then " if test else ""
    given = wanted.calls or CALLS
    less = f"; this needs only {total:,} of {given:,} calls" if not table and total < given else ""
    said = f"{tested}{line(parts, table)}{less}{money}"
    return {"line": said, "calls": total, "self_test": test, "price": price, "parts": as_json(parts)["parts"]}


def _done_before(run: Run, folder: Path) -> dict[str, Any] | None:
    """fit.json of the same recipe, seed and data, where the bundle is there already."""
    if not (folder / FIT).is_file():
        return None
    found = read_json(folder / FIT)
    if found.get("recipe_hash") == run.recipe.hash and found.get("data_version") == run.task.version:
        return found
    raise LeverError(
        f"{folder} is the fit of other data or settings; choose another folder with --out DIR, or delete it"
    )


def _with_report(run: Run, folder: Path, done: dict[str, Any]) -> dict[str, Any]:
    """What a finished fit says, after the page that failed in it was made up."""
    from leverplus.report.build import build_report

    if (folder / REPORT).is_file():
        return done
    page = build_report(run)
    with disk_sentence(folder):
        shutil.copyfile(page, folder / REPORT)
        missing = f"{REPORT} is missing"
        done = {**done, "warnings": [own for own in done["warnings"] if not own.startswith(missing)]}
        write_json(folder / FIT, done)
    return done


def _carry_out(run: Run, folder: Path) -> dict[str, Any]:
    """Train, choose on dev, look at test once, pack."""
    from leverplus.experiment.whole import run_all
    from leverplus.selector.pack import advised_arm, pack_run

    found = run_all(run)
    report = fit_report(run, found, advised_arm(found))
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    pack_run(run, part, arm=report["packed"]["arm"], shots=report["packed"]["shots"], called=folder.name)
    with disk_sentence(folder):
        if (run.folder / REPORT).is_file():  # a report that failed was noted, and costs nothing else
            shutil.copyfile(run.folder / REPORT, part / REPORT)
        write_json(part / FIT, report)
        if folder.is_dir():
            folder.rmdir()
        part.replace(folder)
    return report


def fit_report(run: Run, found: Mapping[str, Any], arm: str) -> dict[str, Any]:
    """`fit.json` from an evaluation: what is recommended and why, every arm on dev and test, the calls."""
    advice = found.get("advice") or {}
    on_dev = advice.get("dev_accuracy") or {}
    table: dict[str, Any] = {}
    for name, by_shots in on_dev.items():
        best = max(by_shots, key=lambda count: (by_shots[count], -int(count)))
        tested = found["arms"].get(name, {}).get("shots", {})
        table[name] = {"dev": by_shots[best], "test": tested.get(best), "shots": int(best)}
    named = str(advice.get("arm") or arm)
    shots = advice.get("shots")
    packed = {"arm": arm, "shots": _packed_shots(arm, named, shots, table)}
    why = str(advice.get("why") or "There are no dev items, so nothing could be compared.")
    if named.removesuffix("_calibrated") != arm:
        why += f" The bundle holds {arm}, the best way on dev that shows demonstrations."
    rival, tested = advice.get("rival") or {}, advice.get("test") or {}
    figures = tested or rival
    against = None
    if figures:
        against = {"arm": rival.get("arm"), "shots": rival.get("shots"), "split": "test" if tested else "dev"}
        against |= {key: figures.get(key) for key in ("diff", "ci95", "n")}
        against["p_adjusted"] = figures.get("p_value")  # one comparison: nothing to correct for
    return {
        "recommended": {"arm": named, "shots": shots, "why": why},
        "packed": packed,
        "arms": table,
        "against": against,
        "pilot": found.get("pilot"),
        "calls": {
            "training": found.get("model_calls"),
            "dev": found.get("dev_calls", 0),
            "test": found.get("eval_calls"),
        },
        "n": {"dev": advice.get("n"), "test": found.get("n")},
        "warnings": [
            *found.get("notes", ()),
            *_few_items(advice.get("n"), len(run.task.items("dev"))),
            *_warnings(run),
        ],
        "recipe_hash": run.recipe.hash,
        "seed": run.seed,
        "data_version": run.task.version,
    }


def _packed_shots(arm: str, named: str, shots: Any, table: Mapping[str, Any]) -> int:
    if named.removesuffix("_calibrated") == arm and shots is not None:
        return int(shots)
    own = table.get(arm) or table.get(f"{arm}_calibrated") or {}
    return int(own.get("shots", 0 if arm == "zero_shot" else 4))


def _few_items(dev: Any, there: int) -> list[str]:
    """What a choice on few of `there` items is worth: how far two ways, right half the time, differ by luck."""
    if not isinstance(dev, int) or not 0 < dev < 50:
        return []
    by_luck = 100 * 1.96 * (0.5 / dev) ** 0.5  # standard error of a difference of two independent shares of one half
    surer = (
        f"more --calls make it surer ({there:,} dev items are there)" if there > dev else "more records make it surer"
    )
    return [f"the choice was made on {dev} dev items, where {by_luck:.0f} points may be luck; {surer}"]


def _warnings(run: Run) -> list[str]:
    path = run.folder / rundir.FINDINGS
    found = read_json(path).get("findings", []) if path.is_file() else []
    return [str(own["title"]) for own in found if own.get("severity") in ("warning", "error")]
