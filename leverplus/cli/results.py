"""Results, and whether they are real: reports and pages, comparisons, plans for data and for items, differences."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from leverplus import catalog
from leverplus.bundle.hub import MANIFEST
from leverplus.cli.command import Outcome, Table, show
from leverplus.data import rundir
from leverplus.data.rundir import EVAL, read_json
from leverplus.errors import (
    CheckpointError,
    EvaluationError,
    MissingFile,
    UnknownName,
    WrongUsage,
)
from leverplus.evaluate.names import arm_name, shots_name
from leverplus.run.recipe import Recipe, load_recipe
from leverplus.run.run import load_run

if TYPE_CHECKING:
    from leverplus.evaluate.record import (
        MethodResult,
        RunComparison,
        RunsCompared,
    )
    from leverplus.learn.policies.base import Policy

LEARNED = "learned"


def report(run: Path) -> Outcome:
    """Writes one self-contained HTML file that shows a run.

    RUN: a run folder
    """
    from leverplus.web.report import build_report

    path = build_report(load_run(run))
    size = path.stat().st_size
    return Outcome(
        {"report": str(path), "bytes": size}, [f"{path} ({size / 1e6:.1f} MB)"]
    )


def view(
    folder: Path = Path("runs"),
    *,
    port: int = 8765,
    host: str = "127.0.0.1",
    json: bool = False,
) -> None:
    """Opens a local web page over a folder of runs.

    DIR: a folder of runs (default runs)
    --port N: the port (default 8765; 0: any free one)
    --host H: the address to listen on (default 127.0.0.1: this machine)
    """
    import uvicorn

    from leverplus.web.guard import LOOPBACK, PatientProtocol, listen
    from leverplus.web.view import create_view

    config = uvicorn.Config(
        create_view(folder, host),
        host=host,
        port=port,
        http=PatientProtocol,
        log_level="warning",
        ws="none",
        server_header=False,
    )
    listening = listen(host, port)
    url = address(host, listening.getsockname()[1])
    told = Outcome(
        {"url": url, "folder": str(folder), "pid": os.getpid()},
        [f"{url}/ shows the runs in {folder}; stop with Ctrl-C"],
    )
    show(told, as_json=json)
    if host not in LOOPBACK:
        print(
            "Everyone who can reach this address can see them and ask the model.",
            file=sys.stderr,
            flush=True,
        )
    uvicorn.Server(config).run(sockets=[listening])


def address(host: str, port: int) -> str:
    """Where a page or service is found."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}"


def compare(
    runs: Sequence[Path] = (),
    *,
    baseline: str | None = None,
    arm: str | None = None,
    split: Literal["train", "dev", "test"] = "test",
    from_summary: Path | None = None,
) -> Outcome:
    """Runs side by side on the same items, or what a published table can show.

    RUN: run folders, or bundles of lever fit; seeds of one recipe are combined
    --baseline NAME: a run, a recipe, or a way of choosing such as nearest_both (default: first)
    --arm ARM: which way of choosing of the runs (default: that of the bundle, learned where runs are named)
    --split: which evaluation (default test)
    --from-summary FILE: a published table (JSON) instead of runs
    """
    from leverplus.evaluate.runs import compare_runs, read_evaluated

    if bool(runs) == (from_summary is not None):
        raise WrongUsage(
            "name run folders, or one published table with --from-summary FILE (not both)"
        )
    if from_summary is not None:
        return _compare_published(from_summary, baseline)
    for folder in runs:
        if not folder.is_dir():
            raise MissingFile(
                f"there is no folder {folder}; name a run folder, or a bundle that `lever fit` wrote"
            )
    notes: list[str] = []
    if arm is None:
        arm, notes = _compared_arm(runs, baseline)
    read = []
    for folder in runs:
        read.append(read_evaluated(run_of_bundle(folder), split, arm))
    found = compare_runs(read, baseline, arm)
    value = {**found.as_json(), "notes": [*found.notes, *notes]}
    return Outcome(value, _comparison_shown(found, notes))


def _compared_arm(runs: Sequence[Path], baseline: str | None) -> tuple[str, list[str]]:
    """The way of choosing that is compared, and what to say of it: a bundle's own, where nobody named one."""
    packed = set()
    for folder in runs:
        if (folder / MANIFEST).is_file():
            packed.add(str(read_json(folder / MANIFEST).get("arm") or LEARNED))
    if len(packed) != 1 or LEARNED in packed:
        return LEARNED, []
    arm = packed.pop()
    trained = any(_has_learned(run_of_bundle(folder)) for folder in runs)
    if arm == baseline and not trained:
        raise WrongUsage(
            f"the bundle itself chooses by {arm_name(arm)}, and no selector was trained; name another --baseline, such "
            "as random"
        )
    if arm == baseline:
        return LEARNED, [
            f"the bundle itself chooses by {arm_name(arm)}, the baseline, so the learned selector, which the bundle "
            "does not use, is compared with it; name another --baseline to compare the bundle"
        ]
    said = f"the bundle chooses by {arm_name(arm)}"
    more = ""
    if trained:
        more = "; --arm learned compares the learned selector"
    return arm, [said + more]


def _has_learned(run: Path) -> bool:
    """Whether a run evaluated a trained selector."""
    from leverplus.evaluate.record import read_record

    record = read_record(run / EVAL)
    return record is not None and LEARNED in record.arms


def run_of_bundle(folder: Path) -> Path:
    """The run beside a bundle that `lever fit` made; any other folder is itself."""
    beside = folder.with_name(f"{folder.name}.run")
    if (folder / MANIFEST).is_file() and beside.is_dir():
        return beside
    return folder


def _comparison_shown(
    found: RunsCompared, notes: Sequence[str]
) -> Iterator[str | Table]:
    yield from notes
    names = _method_names(found.methods)
    rows = found.comparisons
    title = (
        f"difference from {names[found.baseline]} on {found.n:,} {found.split} items"
    )
    if len(rows) > 1:
        title += ", p corrected for all rows"
    cells = []
    for row in rows:
        low, high = row.ci95
        cells.append(
            [
                names[row.arm],
                row.shots,
                f"{100 * row.diff:+.2f}",
                f"{100 * low:+.1f} to {100 * high:+.1f}",
                f"{row.p_adjusted:.2g}",
                f"{row.helped}/{row.harmed}",
                row.verdict,
            ]
        )
    header = ("method", "shots", "points", "95 % interval", "p", "help/harm", "verdict")
    yield Table(title, header, cells)
    yield from _power_notes(rows, names)
    most = 0
    for pair in found.picks:
        most = max(most, pair.shots)
    for pair in found.picks:
        if pair.shots == most:
            yield (
                f"picks of {pair.second} and {pair.first} at {shots_name(most)}: "
                f"{100 * pair.identical:.0f} % identical lists, Jaccard {pair.jaccard:.2f}"
            )
    for note in found.notes:
        yield f"note: {note}"


def _method_names(methods: Sequence[MethodResult]) -> dict[str, str]:
    """What every method is called: by its way of choosing; learned ones by their runs where several are."""
    several = len({method.arm for method in methods}) < len(methods)
    names = {}
    for method in methods:
        name = method.name
        way = arm_name(method.arm)
        if several and name != method.arm:
            way = name if method.arm == LEARNED else f"{name} ({way})"
        names[name] = way
    return names


def _power_notes(
    rows: Sequence[RunComparison], names: Mapping[str, str]
) -> Iterator[str]:
    """Where a row is within noise: how large a difference these items show; where all are, how many items to take."""

    def row_name(row: RunComparison) -> str:
        if row.shots == "mean":
            return f"{names[row.arm]} in the mean over shots"
        return f"{names[row.arm]} at {shots_name(int(row.shots))}"

    noisy = [row for row in rows if row.within_noise]
    if not noisy:
        return
    row = max(noisy, key=lambda row: row.mde80_adjusted or 0.0)
    alone = ""
    if len(rows) > 1:
        alone = f" ({100 * row.mde80:.1f} if it were the only one compared)"
    yield (
        f"{row_name(row)}: a true difference of {100 * (row.mde80_adjusted or 0.0):.1f} points would be found here "
        f"four times in five{alone}"
    )
    row = max(noisy, key=lambda row: abs(row.diff))
    effect = round(abs(row.diff), 3)
    if len(noisy) == len(rows) and effect > 0.0:
        differ = max(round((row.helped + row.harmed) / row.n, 3), effect)
        yield (
            f"how many items would settle {100 * row.diff:+.1f} points ({row_name(row)}): "
            f"lever plan-n --effect {effect:g} --discordance {differ:g} --comparisons {len(rows)}"
        )


def _compare_published(path: Path, baseline: str | None) -> Outcome:
    from leverplus.evaluate.published import ENDS, compare_published, read_published

    found = compare_published(read_published(path), baseline)
    low, high = ENDS
    n = found.table.n
    lines = [
        f"Accuracies were read as {found.table.unit}; n = {n:,} items, one run per row.",
        f"A table does not say on how many items two rows differ. Assumed here: {100 * low:.0f} % to {100 * high:.0f} % of them, "
        "each by a full point. `Settle` means: found 80 % of the time at p < 0.05.\n",
    ]
    noise = 0
    for row in found.rows:
        lines.append(row.in_words(n))
        noise += row.within_noise
    lines.append(
        f"\n{noise} of {len(found.rows)} differences are within noise over the whole range."
    )
    return Outcome(found.as_json(), lines)


NOTHING_ASKED = "forecast: nothing is asked"


def plan(data: str, *, embed: str | None = None, columns: str | None = None) -> Outcome:
    """How often each way of choosing shows an example whose answer has the right answer's shape; nothing is asked.

    DATA: your data, as `lever fit` takes them
    --embed NAME: the encoder, as `lever fit` takes it
    --columns KEY=COL,...: which column holds what, as `lever fit` takes it
    """
    from leverplus.run.fit import fit

    said: list[str] = []
    with TemporaryDirectory() as folder:
        fit(
            data,
            columns=columns,
            embed=embed,
            no_model=True,
            dry_run=True,
            out=Path(folder) / "plan",
            say=said.append,
        )
    told = []
    for line in said:
        if not line.startswith(("recipe: ", "prompt: ", NOTHING_ASKED)):
            told.append(line)
    shown = list(told)
    if "forecast: " not in "\n".join(told):
        shown.append(
            "forecast: none for labels and short phrases about pictures, nor without dev questions"
        )
    shown.append(
        f"next: lever fit {data} --model NAME --dry-run says what measuring would take"
    )
    return Outcome({"plan": told}, shown)


def plan_n(
    *,
    effect: float,
    discordance: float | None = None,
    power: float = 0.8,
    comparisons: int = 10,
) -> Outcome:
    """Says how many items a claim needs.

    --effect X: the difference of accuracies to find, such as 0.01
    --discordance D: share of items on which the two compared differ (default 0.2)
    --power P: chance of finding it (default 0.8)
    --comparisons M: how many comparisons the verdict is corrected for (default 10: two rivals at five numbers of shots)
    """
    from leverplus.evaluate.stats import Changes
    from leverplus.evaluate.stats import plan_n as items_for
    from leverplus.evaluate.stats.power import USUAL

    size = abs(effect)
    if not 0.0 < power < 1.0:
        raise EvaluationError(
            f"--power {power:g}: must lie between 0 and 1, the usual value is 0.8"
        )
    if not 0.0 < size <= 1.0:
        raise EvaluationError(
            f"--effect {effect:g}: a difference of accuracies above 0 and at most 1, such as 0.01"
        )
    differ = max(USUAL.discordance, size) if discordance is None else discordance
    if not size <= differ <= 1.0:
        raise EvaluationError(
            f"--discordance {differ:g}: two that differ by {size:g} on average differ on at least that share of the "
            "items, and at most on all of them (1)"
        )
    if comparisons < 1:
        raise EvaluationError(
            f"--comparisons {comparisons}: at least 1, the comparison itself"
        )
    needed = items_for(effect, Changes(differ), power=power)
    alpha = 0.05 / comparisons
    corrected = items_for(effect, Changes(differ), power=power, alpha=alpha)
    points = "1 point"
    if size != 0.01:
        points = f"{100 * effect:g} points"
    lines = [
        f"{needed:,} items: a true difference of {points} is then found {100 * power:g} % of the time at p < 0.05, "
        f"if the two differ on {100 * differ:g} % of the items (paired)."
    ]
    if comparisons > 1:
        lines.append(
            f"{corrected:,} items where it is one of {comparisons} comparisons and p is corrected for all of them "
            "(Holm), as every verdict here is."
        )
    others = []
    for share in (0.05, 0.1, 0.2, 0.3):
        if share != differ and share >= size:
            items = items_for(effect, Changes(share), power=power)
            others.append(f"{items:,} if they differ on {100 * share:g} %")
    if others:
        lines.append(f"{'; '.join(others)}.")
    value = {
        "effect": effect,
        "discordance": differ,
        "power": power,
        "alpha": 0.05,
        "n": needed,
        "comparisons": comparisons,
        "n_corrected": corrected,
    }
    return Outcome(value, lines)


def diff(first: str, second: str) -> Outcome:
    """The settings in which two runs differ, and how far the weights of two checkpoints lie apart.

    A: a run folder, a recipe, a checkpoint folder, or a .pt or .ckpt file of the earlier code
    B: what to compare it with, of the same kind
    """
    value: dict[str, Any] = {}
    shown: list[str | Table] = []
    mine = _recipe_of(first)
    other = _recipe_of(second)
    if mine is not None and other is not None:
        rows = differing_settings(mine, other)
        value["settings"] = rows
        shown.append(f"{len(rows)} settings differ between {first} and {second}.")
        for row in rows:
            shown.append(f"  {row['key']:<32} {row['first']}  ->  {row['second']}")
    weights = _policy_of(Path(first))
    others = _policy_of(Path(second))
    if weights is not None and others is not None:
        from leverplus.learn.distance import weight_distances

        found = {}
        try:
            found = weight_distances(weights, others)
        except CheckpointError as error:
            if not value:
                raise
            shown.append(str(error))
        value["weights"] = {part: own.as_json() for part, own in found.items()}
        cells = []
        for part, own in found.items():
            cells.append([part, f"{own.weights:,}"])
            for number in (own.relative, own.mean, own.largest):
                cells[-1].append(f"{number:.5g}")
        header = ("part", "weights", "|b - a| / |a|", "mean |change|", "largest")
        shown.append(Table(f"{second} less {first}", header, cells))
    if not value:
        raise WrongUsage(
            f"{first} and {second}: name two runs or recipes, or two checkpoints, such as "
            "`lever diff runs/a/checkpoints/rce runs/a/checkpoints/grpo`"
        )
    return Outcome(value, shown)


def differing_settings(first: Recipe, second: Recipe) -> list[dict[str, Any]]:
    """Every setting that differs, with both values; None where a recipe runs no such stage."""
    left = first.values()
    right = second.values()
    rows = []
    for section in dict.fromkeys((*left, *right)):
        mine = left.get(section, {})
        other = right.get(section, {})
        for name in mine or other:
            values = mine.get(name), other.get(name)
            if values[0] != values[1]:
                key = f"{section}.{name}"
                rows.append({"key": key, "first": values[0], "second": values[1]})
    return rows


def _recipe_of(text: str) -> Recipe | None:
    """The recipe of a run folder, or the recipe of that name or file; None for anything else."""
    folder = Path(text)
    if (folder / rundir.RESOLVED).is_file():
        return load_run(folder).recipe
    if folder.exists() and folder.suffix != ".toml":
        return None
    try:
        return load_recipe(text)
    except (UnknownName, MissingFile) as error:
        raise MissingFile(
            f"there is no run, recipe or checkpoint called {text}; `lever recipes` lists recipes"
        ) from error


def _policy_of(path: Path) -> Policy | None:
    """The selector of a checkpoint, or the last one of a run; None where there is none."""
    from leverplus.learn.checkpoint import load_checkpoint

    if path.is_file() and path.suffix in (".pt", ".ckpt"):
        read = catalog.load(catalog.LEGACY, "checkpoint", "reader")
        policy: Policy = read(path).policy
        return policy
    if (path / rundir.RESOLVED).is_file():
        path = path / rundir.CHECKPOINTS / list(load_run(path).recipe.stages)[-1]
    if not (path / rundir.WEIGHTS).is_file():
        return None
    return load_checkpoint(path)[0]
