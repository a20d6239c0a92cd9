"""`leverplus.fit`: from a user's data and a model to a bundle, a report and one recommendation.

Built on the same recipes, runs and evaluation as everything else: a fit writes a recipe by rules, runs it in a folder
beside the bundle, and packs the way of choosing that dev shows best. Typing the same command again goes on where it
was stopped; a recipe that somebody edited in between is taken as it is, and a command that says otherwise is refused.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import tomli_w

from leverplus.arms.base import ArmUnavailable
from leverplus.arms.forecast import SHOTS, forecast_shapes
from leverplus.arms.spec import arm_class, arms_of, known_arms
from leverplus.arms.training import Training
from leverplus.catalog import is_outside
from leverplus.data import rundir
from leverplus.data.reader import parse_columns
from leverplus.data.rundir import (
    disk_sentence,
    lock_folder,
    make_private_folder,
    read_json,
    write_json,
    write_text,
)
from leverplus.encode.pretrained import section_of
from leverplus.errors import LeverError, WrongUsage
from leverplus.evaluate.record import Advice, EvaluationRecord
from leverplus.models.callable import name_function
from leverplus.models.open import model_values
from leverplus.run.arms import ARMS
from leverplus.run.evaluate import run_all
from leverplus.run.forecast import (
    ForecastPart,
    as_json,
    forecast_calls,
    line,
    rough_price,
)
from leverplus.run.look import GRADED, Say, describe_task, find_data, read_task
from leverplus.run.pack import advised_arm, pack_run
from leverplus.run.plan import CALLS, SELF_TEST, decide
from leverplus.run.prompt import (
    SeenExample,
    examples_seen,
    first_prompt,
    fitting_shots,
    probe_model,
    try_prompts,
)
from leverplus.run.recipe import Recipe, apply_override, load_recipe
from leverplus.run.run import Run, open_run
from leverplus.scores.store import default_store_path

if TYPE_CHECKING:
    from leverplus.bundle.selector import Selector

FIT = "fit.json"
REPORT = rundir.REPORT
DATA_ENDINGS = (".gz", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
HEADER = "# made by lever fit, digest {digest}; edit anything below, and the same command takes it as it is\n"
MOST_SHOTS = 16
NO_MODEL_SHOTS = 4
LOOKED_AT = 200
"""Dev questions for which it is forecast what ways of choosing show."""

NOBODY = {"name": "leverplus.run.fit:ask_nobody", "prompt": "chat"}
"""Stands for the model in a fit without one."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Fit:
    """What a fit came to. `report` is fit.json; a dry run has a forecast and no bundle."""

    folder: Path
    recipe: Path
    forecast: dict[str, Any]
    report: dict[str, Any] = field(default_factory=dict)
    tried: Sequence[SeenExample] = ()
    """The prompts of `tries`, with what the model answered."""

    @property
    def selector(self) -> Selector:
        from leverplus.bundle.selector import Selector

        return Selector.load(self.folder)


def fit(
    data: Any,
    *,
    model: str | Callable[[Any], Any] | None = None,
    columns: Mapping[str, str] | str | None = None,
    images: str | Path | None = None,
    embed: str | None = None,
    calls: int | None = None,
    shots: Sequence[int] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    store: str | Path | None = None,
    metric: str | Callable[..., float] | None = None,
    cut: str | None = None,
    max_tokens: int | None = None,
    settings: Sequence[str] = (),
    arms: Sequence[str] = (),
    no_model: bool = False,
    tries: int = 0,
    dry_run: bool = False,
    say: Say = lambda _: None,
    progress: Progress = lambda _what, _done, _total: None,
    **model_settings: Any,
) -> Fit:
    """A bundle for these data and this model, with `fit.json` and `report.html`, in the folder `out`.

    `data` is a file (JSONL, JSON, CSV, TSV, Parquet), a folder of a data set, a task as NAME:FOLDER, a list of dicts, a
    pandas DataFrame or a `datasets.Dataset`; `columns` says which of their columns hold what, as
    `{"question": "Frage", "answer": "Antwort"}`. `model` is a folder, GGUF file or hub's name, a server as URL#NAME,
    table:FILE, or a Python function from a prompt (or from `messages`, a chat) to an answer. `calls` bounds everything
    that is asked of it. With `dry_run` the plan and its cost are worked out,
    and nothing is asked but what the model offers; `tries` asks so many prompts, shows prompt, raw answer, cut answer
    and score, and stops. `metric` and `cut` say how answers are judged (a metric may be a Python function), `max_tokens`
    how much the model may write, `settings` any other value of the recipe as "section.key=value", `arms` which ways of
    choosing are compared. `no_model` makes a bundle without asking anything. Whatever is not given follows from the data.
    """
    if (model is None) != no_model:
        raise WrongUsage(
            "no model is given, or one beside --no-model; name a server (--model URL#NAME), weights or a function, or "
            "make a bundle that asks nothing with --no-model (no_model=True)"
        )
    for count in shots or ():
        if not 1 <= count <= MOST_SHOTS:
            raise WrongUsage(
                f"--shots {count}: must be whole numbers from 1 to {MOST_SHOTS}, such as 1,2,4"
            )
    for option, number in (("--calls", calls), ("--max-tokens", max_tokens)):
        if number is not None and number < 1:
            raise WrongUsage(f"{option} {number}: must be a whole number of at least 1")
    folder = bundle_folder(data, out)
    held = folder.exists() and not (folder / FIT).is_file()
    if held and (not folder.is_dir() or any(folder.iterdir())):
        raise LeverError(
            f"{folder} exists and holds no fit; choose another folder with --out DIR"
        )
    named: dict[str, Any] = {"backend": "callable", "model": dict(NOBODY)}
    if not no_model:
        named = model_values(str(function_name(model)))
    given: dict[str, dict[str, Any]] = {
        "task": {"metric": function_name(metric), "cut": cut},
        "model": {"max_new_tokens": max_tokens, **model_settings},
        "eval": {"shots": list(shots or ()) or None, "arms": list(arms) or None},
    }
    for table in given.values():
        for key in [*table]:
            if table[key] is None:
                del table[key]
    problems: list[str] = []
    for override in settings:
        apply_override(given, override, problems)
    if problems:
        raise WrongUsage("; ".join(problems))

    with disk_sentence(folder):
        make_private_folder(folder.parent)
    items = folder.with_name(f"{folder.name}.items.jsonl")
    pairs = parse_columns(columns) or {}
    wanted = ",".join(f"{name}={column}" for name, column in pairs.items())
    reading = {}
    for key, kind in (("split_key", str), ("skip_empty", bool)):
        if isinstance(given["task"].get(key), kind):
            reading[key] = given["task"][key]
    found = find_data(
        data, str(images) if images else None, items, wanted or None, reading
    )
    for told in found.said:
        say(f"data: {told}")
    path = folder.with_name(f"{folder.name}.toml")
    smallest = 0
    if is_edited(path):
        recipe = load_recipe(str(path))
        require_agreement(path, recipe, given)
        typed = {"task": {**found.values, "name": ""}, "embed": _embed_values(embed)}
        if not no_model:
            typed["model"] = named["model"]
        require_agreement(path, recipe, typed)
        say(
            f"rule: {path} was edited and is taken as it is; delete it to have it made anew"
        )
        task = read_task(recipe.values()["task"], found)
        for told in describe_task(task):
            say(f"data: {told}")
        values = recipe.values()["model"]
        probe = probe_model(recipe.score.backend, values, task, say)
        fitting_shots(probe, recipe.model, task, recipe.eval.shots, say, named=True)
    else:
        decided = decide(
            found, named, given, calls, say, embed=embed, no_model=no_model
        )
        smallest = decided.smallest
        write_recipe(path, decided.values)
        recipe = load_recipe(str(path))
        say(f"recipe: {path}")
    run = open_run(
        recipe,
        path,
        folder.with_name(f"{folder.name}.run"),
        seed=seed,
        store_path=Path(store or default_store_path()),
        say=say,
        progress=progress,
    )
    planned = _forecast(run, calls, smallest, no_model=no_model)
    for told in [planned["line"], *_shape_lines(run)]:
        say(f"forecast: {told}")
    if dry_run:
        for told in first_prompt(run).splitlines():
            say(f"prompt: {told}")
        return Fit(folder, path, planned)
    with lock_folder(run.folder):
        if tries:
            return Fit(folder, path, planned, tried=try_prompts(run, tries))
        report = _done_before(run, folder)
        if report is None:
            report = no_model_report(run) if no_model else _carry_out(run)
            _pack(run, folder, report)
        else:
            say(f"{folder} is finished; nothing was asked")
    return Fit(folder, path, planned, report)


def ask_nobody(messages: object) -> str:  # noqa: ARG001 its name asks for a chat
    """Refuse to answer: this fit was made without a model."""
    raise LeverError(
        "this fit was made without a model; type `lever fit` again with --model NAME to ask one"
    )


def bundle_folder(data: Any, out: str | Path | None) -> Path:
    """Where the bundle goes: `out`, else bundles/DATA; the data of an object have no name, so `out` is needed."""
    if out is not None:
        return Path(out)
    if not isinstance(data, (str, Path)):
        raise WrongUsage(
            f'a {type(data).__name__} has no name for its bundle; give a folder, such as out="bundles/mine"'
        )
    name = Path(data).name
    for ending in DATA_ENDINGS:
        name = name.removesuffix(ending)
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")
    return Path("bundles") / (name or "fit")


def function_name(given: Any) -> str | None:
    """A metric or a model by its name; a Python function as `module:attribute`."""
    name: str | None = given
    if callable(given):
        name = name_function(given)
    return name


def _embed_values(embed: str | None) -> dict[str, Any]:
    if embed is None:
        return {}
    if is_outside(embed):
        return {"name": embed}
    return section_of(embed)


def is_edited(path: Path) -> bool:
    """Whether a recipe is there and is not as a fit wrote it."""
    if not path.is_file():
        return False
    head, _, body = path.read_text(encoding="utf-8").partition("\n")
    return HEADER.format(digest=_digest(body)).rstrip("\n") != head


def write_recipe(path: Path, values: Mapping[str, Any]) -> None:
    """Write the recipe of a fit, marked as unedited."""
    body = tomli_w.dumps(dict(values))
    write_text(path, HEADER.format(digest=_digest(body)) + body)


def _digest(body: str) -> str:
    return sha256(body.encode()).hexdigest()[:12]


def require_agreement(
    path: Path, recipe: Recipe, typed: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse a command that contradicts an edited recipe; both values are named."""
    values = recipe.values()
    for section, table in typed.items():
        for key, value in table.items():
            there = values.get(section, {}).get(key)
            if value not in (None, "") and there != value:
                raise WrongUsage(
                    f"this command says {section}.{key} = {_shown(value)}, and {path}, which was edited, has "
                    f"{_shown(there)}; change it there, or delete the file to have it made anew"
                )


def _shown(value: Any) -> str:
    return shorten(repr(value), 80, placeholder="...")


def _forecast(
    run: Run, calls: int | None, smallest: int, *, no_model: bool
) -> dict[str, Any]:
    """All calls before the first one, and a refusal where they pass what was allowed; `smallest` is the least plan."""
    if no_model:
        nothing: dict[str, Any] = {
            "calls": 0,
            "self_test": 0,
            "price": None,
            "parts": [],
        }
        return {"line": "nothing is asked", **nothing}
    parts = forecast_calls(run)
    section = run.recipe.model
    table = run.recipe.score.backend == "table"
    test = 0 if table or run.recipe.score.backend == "world" else SELF_TEST
    known = as_json(parts)
    total = known["calls"] + test
    if calls is not None and not table and total > calls:
        raise LeverError(
            f"this recipe may take {total:,} calls with its self-test, more than --calls {calls:,}; lower "
            "score.budget, eval.items or eval.dev_items in it, or delete it"
        )
    price = rough_price(run, [*parts, ForecastPart("self-test", test, 1)])
    if price is not None and section.max_cost and price > section.max_cost:
        raise LeverError(
            f"this plan of {total:,} calls costs roughly {price:,.2g}, more than --max-cost {section.max_cost:g}, which "
            f"pays for {int(total * section.max_cost / price):,}; give fewer --calls (the smallest plan for these data "
            f"takes {smallest:,}), or a larger --max-cost"
        )
    said = ""
    if test:
        said = f"self-test at most {test:,}, then "
    said += line(parts, table)
    if run.recipe.task.metric == "judge":
        said += f"; {run.recipe.judge.model} judges at most as many answers"
    allowed = calls or CALLS
    if not table and total < allowed:
        said += f"; this needs only {total:,} of {allowed:,} calls"
    if price is not None:
        judge = run.recipe.task.metric == "judge"
        left_out = "pictures"
        if judge:
            left_out = "pictures and the judge"
        said += f"; roughly {price:,.2f} at the prices given, {left_out} not counted"
    return {**known, "line": said, "calls": total, "self_test": test, "price": price}


def _shape_lines(run: Run) -> list[str]:
    """What every way of choosing without training shows for dev questions; nothing where there are pictures to embed."""
    rules = run.task.answers
    questions = run.chosen_items("dev", LOOKED_AT)
    pictured = any(item.image is not None for item in run.demonstrations)
    if not questions or (rules.kind != "long" and pictured):
        return []
    asked = run.asked(questions)
    corpus = run.corpus
    training = Training(run.demonstrations, run.demonstration_vectors, rules, corpus)
    lists = {}
    for arm in arms_of(run.recipe.eval.arms, trains=False, kind=rules.kind):
        if arm.calls != 1 or arm.needs.training or not arm.shows:
            continue
        try:
            arm.fit(training)
        except ArmUnavailable:
            continue
        lists[arm.spec] = arm.choose_each(asked, corpus, SHOTS)
    examples = corpus.items(range(len(corpus)))
    return forecast_shapes(questions, examples, rules, lists).lines()


def _done_before(run: Run, folder: Path) -> dict[str, Any] | None:
    """fit.json of the same recipe, seed and data, where the bundle is there already."""
    if not (folder / FIT).is_file():
        return None
    found = read_json(folder / FIT)
    if _is_free(found) and found.get("recipe_hash") != run.recipe.hash:
        return None  # nothing was paid for it, so it is made anew
    same = found.get("recipe_hash"), found.get("data_version")
    if same != (run.recipe.hash, run.task.version):
        raise LeverError(
            f"{folder} is the fit of other data or settings; choose another folder with --out DIR, or delete it"
        )
    return found


def _is_free(report: Mapping[str, Any]) -> bool:
    """Whether nothing was asked for a bundle."""
    return not any((report.get("calls") or {"training": 1}).values())


def _carry_out(run: Run) -> dict[str, Any]:
    """Train, choose on dev, look at test once; fit.json of it."""
    found = run_all(run, must_train=False)
    report = fit_report(run, found, advised_arm(found))
    judge: Any = run.task.answers.options.judge
    if judge is not None:
        report["calls"]["judge"] = judge.calls
    packed = report["packed"]
    seen = examples_seen(run, packed["arm"], packed["shots"])
    report["examples_seen"] = [example.as_json() for example in seen]
    return report


def _pack(run: Run, folder: Path, report: dict[str, Any]) -> None:
    """The bundle with fit.json and the page, whole or not at all."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    pack_run(run, part, **report["packed"], called=folder.name)
    with disk_sentence(folder):
        page = run.folder / REPORT
        if page.is_file():  # one that failed was noted, and costs nothing else
            shutil.copyfile(page, part / REPORT)
        write_json(part / FIT, report)
        if (folder / FIT).is_file():  # `_done_before` found that nothing is lost
            shutil.rmtree(folder)
        elif folder.is_dir():
            folder.rmdir()
        part.replace(folder)


def fit_report(run: Run, found: EvaluationRecord, arm: str) -> dict[str, Any]:
    """`fit.json` from an evaluation: what is recommended and why, every arm on dev and test, the calls."""
    advice = found.advice or Advice()
    table: dict[str, Any] = {}
    for name, by_shots in advice.dev_accuracy.items():
        best = advice.best_shots(name)
        row: dict[str, Any] = {"dev": by_shots[best], "test": None, "shots": best}
        if corrected := advice.dev_corrected.get(name):
            row["dev_corrected"] = corrected[best].as_json()
        own = found.arms.get(name)
        if own is not None:
            row["test"] = own.shots.get(best)
            row["calls_per_question"] = own.calls_per_question
            row["training_calls"] = own.training_calls
        table[name] = row
    shots = table.get(arm, {}).get("shots", NO_MODEL_SHOTS)
    if advice.arm == arm and advice.shots is not None:
        shots = advice.shots
    named = advice.arm or arm
    why = advice.why or "There are no dev items, so nothing could be compared."
    if named != arm:
        why += (
            f" The bundle holds {arm}, the best way on dev that asks the model; `lever pack {run.folder} --arm "
            f'"{named}" --out DIR` makes one of the other.'
        )
    against = None
    if advice.rival is not None:
        figures = advice.test or advice.rival
        against = {
            "arm": advice.rival.arm,
            "shots": advice.rival.shots,
            "split": "dev" if advice.test is None else "test",
            "diff": figures.diff,
            "ci95": list(figures.ci95),
            "n": figures.n,
            "p_adjusted": figures.p_value,  # one comparison: nothing to correct for
        }
    calls = {
        "training": found.model_calls,
        "dev": found.dev_calls,
        "test": found.eval_calls,
    }
    return {
        "recommended": {"arm": named, "shots": advice.shots, "why": why},
        "packed": {"arm": arm, "shots": shots},
        "arms": table,
        "against": against,
        "pilot": found.pilot,
        "calls": calls,
        "n": {"dev": advice.n, "test": found.n},
        "warnings": [*found.notes, *_warnings(run, advice)],
        **_identity(run),
    }


def _identity(run: Run) -> dict[str, Any]:
    return {
        "recipe_hash": run.recipe.hash,
        "seed": run.seed,
        "data_version": run.task.version,
    }


def _warnings(run: Run, advice: Advice) -> list[str]:
    """What the figures are to be taken with: nothing right, few items, other candidates than in use, the doctor's."""
    found = []
    dev = advice.n
    right = any(any(own.values()) for own in advice.dev_accuracy.values())
    if dev and not right:
        metric = run.task.answers.metric
        said = (
            f"no way of choosing led to one right answer on dev, judged by {metric}; the same command with --try 5 "
            "shows what the model writes"
        )
        if metric not in GRADED:
            said += (
                ", and with --metric edit_similarity --out DIR near answers count too"
            )
        found.append(said)
    there = len(run.task.items("dev"))
    if 0 < dev < 50:
        # how far two ways, right half the time, differ by luck
        by_luck = 100 * 1.96 * (0.5 / dev) ** 0.5
        if advice.rival is not None and run.task.answers.metric in GRADED:
            # a part of a point is the rule there, so both differ by less
            low, high = advice.rival.ci95
            by_luck = 50 * (high - low)
        surer = "more records make it surer"
        if there > dev:
            surer = f"more --calls make it surer ({there:,} dev items are there)"
        found.append(
            f"the choice was made on {dev} dev items, where {by_luck:.0f} points may be luck; {surer}"
        )
    if run.limits_arms and not (run.folder / ARMS).is_dir():
        found.append(
            "the ways of choosing were compared among the examples that the table holds for each question; the bundle "
            f"chooses among all {len(run.demonstrations):,}, so it carries no figures"
        )
    path = run.folder / rundir.FINDINGS
    for finding in read_json(path)["findings"] if path.is_file() else []:
        if finding["severity"] in ("warning", "error"):
            found.append(str(finding["title"]))
    return found


def no_model_report(run: Run) -> dict[str, Any]:
    """`fit.json` of a bundle for which nothing was asked: by labels where there are some, else by the answer's shape."""
    kind = run.task.answers.kind
    arm = next(name for name in known_arms() if arm_class(name).unasked_for == kind)
    how = f"{arm_class(arm).title} ({arm_class(arm).says})"
    packed = {"arm": arm, "shots": min(NO_MODEL_SHOTS, max(run.recipe.eval.shots))}
    why = (
        f"The bundle chooses demonstrations: {how}. Nothing was asked, so nothing is known of how much that helps; "
        "the same command with --model NAME measures it."
    )
    return {
        "recommended": {**packed, "why": why},
        "packed": packed,
        "arms": {},
        "against": None,
        "pilot": None,
        "calls": {"training": 0, "dev": 0, "test": 0},
        "n": {"dev": 0, "test": 0},
        "warnings": [],
        "examples_seen": [],
        **_identity(run),
    }
