"""What commands share at the keyboard: progress bars on stderr, opening a run from arguments, result tables."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from leverplus.errors import plain
from leverplus.evaluation.names import arm_name
from leverplus.recipe.idle import idle_given
from leverplus.recipe.recipe import Recipe, find_recipe, load_recipe
from leverplus.recipe.sections import LOG_SINKS
from leverplus.store.location import default_store_path

if TYPE_CHECKING:
    from leverplus.experiment.run import Run


class Bars:
    """Progress bars on stderr, one a piece of work; plain lines where stderr is no terminal."""

    def __init__(self, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = Console(stderr=True)
        self.quiet = quiet
        self.live = self.console.is_terminal and not quiet
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=self.console, transient=True)
        self.tasks: dict[str, Any] = {}
        self.said = time.monotonic()

    def __enter__(self) -> Bars:
        if self.live:
            self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.progress.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """Called as work goes on."""
        if self.live:
            if what not in self.tasks:
                self.tasks[what] = self.progress.add_task(what, total=total)
            self.progress.update(self.tasks[what], completed=done, total=total)
            if done >= total:
                self.progress.remove_task(self.tasks.pop(what))
        elif not self.quiet and (time.monotonic() - self.said > 15):
            self.said = time.monotonic()
            print(f"{what}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        if self.live:
            self.progress.console.print(plain(line), highlight=False, markup=False)
        elif not self.quiet:
            print(plain(line), file=sys.stderr, flush=True)


def whole_number(text: str) -> int:
    """An argument that is 0, 1, 2, ..., such as a seed; anything else is wrong usage."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 0")
    return int(text)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Options of every command that makes or takes up a run from a recipe."""
    parser.add_argument("--out", type=Path, metavar="DIR", help="the run folder (default runs/RECIPE)")
    parser.add_argument("--seed", type=whole_number, default=0, metavar="N", help="seed of the run (default 0)")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="override a value of the recipe"
    )
    add_ignore_option(parser)
    add_log_option(parser)
    add_store_option(parser)


def add_log_option(parser: argparse.ArgumentParser) -> None:
    help_text = "also send the training log to these, besides log.jsonl"
    parser.add_argument("--log-to", nargs="+", default=[], choices=LOG_SINKS, metavar="NAME", help=help_text)


def add_ignore_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ignore-findings", action="store_true", help="train although the preflight found errors")


def add_store_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", type=Path, metavar="FILE", help=f"the score store (default {default_store_path()})")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def add_task_values(parser: argparse.ArgumentParser) -> None:
    """`--set KEY=VALUE` for commands that open a task without a recipe."""
    help_text = "a value of [task], such as folder=data/okvqa"
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=help_text)


def safe_name(name: str) -> str:
    """A recipe's name as the name of one folder: a file called `...toml` must not lead out of runs/."""
    kept = "".join(letter if letter.isalnum() or letter in "._+-" else "_" for letter in name).lstrip(".")
    return kept or "recipe"


def run_folder(args: argparse.Namespace, recipe: Recipe) -> Path:
    """--out, else runs/RECIPE, with seed and hash where they are not the usual ones."""
    if args.out is not None:
        return Path(args.out)
    name = (
        safe_name(recipe.name)
        + (f"-{recipe.hash[:6]}" if args.set else "")
        + (f"-seed{args.seed}" if args.seed else "")
    )
    return Path("runs") / name


def open_from_recipe(args: argparse.Namespace, bars: Bars) -> Run:
    """A run from a recipe name and options."""
    from leverplus.experiment.opening import open_run

    recipe = load_recipe(args.recipe, args.set)
    for note in recipe.old_names:
        bars.say(f"note: {note}")
    for line in recipe.known_mistakes():
        bars.say(f"note: {line} reproduces a known mistake on purpose")
    if idle := [entry["key"] for entry in idle_given(recipe)]:
        bars.say(f"note: without effect in this recipe: {', '.join(idle)}; `lever check {args.recipe}` says why")
    return open_run(
        recipe,
        find_recipe(args.recipe),
        run_folder(args, recipe),
        seed=args.seed,
        store_path=args.store or default_store_path(),
        say=bars.say,
        progress=bars.show,
        strict=not args.ignore_findings,
        log_to=args.log_to,
    )


def say_forecast(made: Run, bars: Bars, only: str | None = None) -> None:
    """What is going to be asked of the model, said before anything is: of the whole run, or of one part of it."""
    from leverplus.experiment.forecast import forecast_calls, rough_price
    from leverplus.recipe.forecast import line

    parts = [part for part in forecast_calls(made) if only is None or part.what == only]
    cost = rough_price(made, parts)
    money = "" if cost is None else f"; roughly {cost:,.2f} at the prices of the recipe, pictures not counted"
    replayed = made.recipe.score.backend == "table"
    bars.say(f"forecast: {line(parts, replayed)}{money}")


def open_from_folder(
    folder: Path,
    store: Path | None,
    bars: Bars,
    *,
    strict: bool = False,
    at_work: bool = True,
    log_to: Sequence[str] = (),
) -> Run:
    """The run in a folder that `lever run` made."""
    from leverplus.experiment.opening import load_run

    return load_run(folder, store, bars.say, bars.show, strict=strict, at_work=at_work, log_to=log_to)


def results_table(report: Mapping[str, Any]) -> Any:
    """The table of arms by shots, as rich shows it."""
    from rich.table import Table

    from leverplus.evaluation.names import MODEL_FREE

    arms, closed = report["arms"], report.get("gap_closed", {})
    shots = sorted({int(n) for arm in arms.values() for n in arm["shots"]})
    table = Table(
        title=f"accuracy on {report['n']:,} {report.get('split', 'test')} items, % by number of shots",
        title_justify="left",
        caption=_table_caption(arms, closed, shots),
        caption_justify="left",
    )
    table.add_column("who chooses")
    for n in shots:
        table.add_column(str(n), justify="right")
    table.add_column("mean", justify="right")
    table.add_column("gap closed", justify="right")
    for arm, values in arms.items():
        cells = [f"{100 * values['shots'][str(n)]:.1f}" if str(n) in values["shots"] else "" for n in shots]
        averaged = "mean" in values and set(values["shots"]) != {"0"}  # without demonstrations nothing is averaged
        cells.append(f"{100 * values['mean']:.1f}" if averaged else "")
        share = closed.get(arm, {}).get("mean")
        name = f"{arm_name(arm)} (no model)" if arm in MODEL_FREE else arm_name(arm)
        table.add_row(name, *cells, "" if share is None else f"{100 * share:.0f} %")
    return table


def _table_caption(arms: Collection[str], closed: Mapping[str, Any], shots: Collection[int]) -> str:
    """What the columns of `results_table` mean that do not say it themselves."""
    from leverplus.evaluation.names import MEAN_SHOTS, MODEL_FREE

    averaged = [str(n) for n in shots if n in MEAN_SHOTS]
    means = f"; mean: over {', '.join(averaged)}" if len(averaged) > 1 else ""
    lines = [f"shots: how many demonstrations are shown{means}"]
    if any(arm in MODEL_FREE for arm in arms):
        lines.append("(no model): the answer is taken from labels, the model is not asked")
    if closed:
        lines.append("gap closed: 0 % is random, 100 % is the greedy oracle, which knows the answers")
    return "\n".join(lines)


def calls_line(report: Mapping[str, Any], fresh: int) -> str:
    """How many distinct prompts each part asked for, and how many of them the store did not hold yet."""
    parts = [f"{report['model_calls']:,} for training", f"{report['eval_calls']:,} for evaluation"]
    if "dev_calls" in report:
        parts.append(f"{report['dev_calls']:,} on dev for the advice")
    return f"distinct prompts: {', '.join(parts)}; {fresh:,} of them were asked now, the others were stored already"


def print_conclusions(report: Mapping[str, Any]) -> None:
    """What the figures say: what is missing, the verdict, and last what to use."""
    from leverplus.report.verdict import advice, notes, verdict

    for note in notes(report):
        print(f"note: {note}")
    print(verdict(report))
    if text := advice(report):
        print(f"Advice: {text}")


def print_markdown(table: Any) -> None:
    """A rich table as Markdown."""
    header = [str(column.header) for column in table.columns]
    rows = zip(*(list(column.cells) for column in table.columns), strict=True)
    print(f"{table.title}\n")
    for line in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(str(cell) for cell in line)} |")
    print()


def print_table(table: Any) -> None:
    from rich.console import Console

    Console().print(table)
