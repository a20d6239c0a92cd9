"""`lever demos audit`: the most useful and the most harmful demonstrations of a corpus, from recorded answers."""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

from leverplus.errors import DataError, MissingFile, plain

SHIPPED_ITEMS = "tables:okvqa-items.jsonl.gz"
LONGEST = 100
"""Characters shown of a question."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "table",
        metavar="SOURCE",
        help="a bundle of `lever fit`, a run folder, or recorded answers (a Parquet file, tables:NAME)",
    )
    parser.add_argument(
        "--items", metavar="FILE", help="the items as JSON lines, so that texts are shown and not only ids"
    )
    parser.add_argument(
        "--show", type=int, default=8, metavar="N", help="how many of either end to show (default 8; a run keeps 6)"
    )


def audit_demos(args: argparse.Namespace) -> dict[str, Any]:
    """Effects of the demonstrations of a run or a table; prints both ends unless JSON is asked for."""
    folder = Path(args.table).expanduser()
    found = audit_run(folder, args) if folder.is_dir() else audit_table(args)
    if args.json:
        return found
    print(
        f"{found['rows']:,} answers with one demonstration, {found['queries']:,} queries, {found['demonstrations']:,} "
        f"demonstrations shown three times or more; effects have a standard deviation of "
        f"{100 * found['effect_sd']:.1f} points, {100 * found['reliability']:.0f} % of what is estimated is real"
    )
    if found["is_noise"]:
        print("these effects are noise: show demonstrations to more queries before anything is done with them")
    for name in ("useful", "harmful"):
        print(f"\nmost {name}: effect in points (standard error), queries shown to, what it says")
        for row in found[name]:
            print(f"  {100 * row['effect']:+.1f} ({100 * row['error']:.1f})  {row['shown']}  {row['text']}")
    return found


def audit_run(given: Path, args: argparse.Namespace) -> dict[str, Any]:
    """What training measured of the demonstrations of a run, or of the run beside a bundle; nothing is asked."""
    from leverplus.cli.compare import run_of_bundle
    from leverplus.report.data import read_run_files, require_manifest
    from leverplus.report.examples import measured_effects

    folder = run_of_bundle(given)
    require_manifest(folder)
    own = measured_effects(read_run_files(folder, with_predictions=False).groups)
    if own is None:
        raise DataError(
            f"the training of {folder} showed too few demonstrations to several queries, one in a prompt, to say what "
            "each is worth; give `lever fit` more --calls"
        )
    texts = read_texts(Path(args.items).expanduser()) if args.items else own_texts(given, folder)
    about = {"rows": own["answers"], **{key: own[key] for key in ("queries", "demonstrations", "is_noise")}}
    ends = {}
    for name in ("useful", "harmful"):
        ends[name] = [{**line, "text": said(line["demo"], texts)} for line in own[name][: args.show]]
    return {**about, "effect_sd": own["effect_sd"], "reliability": own["reliability"], **ends}


def own_texts(given: Path, run: Path) -> dict[str, str]:
    """Question and answer of every demonstration: those in the bundle, or those of the run's data."""
    if given != run:
        from leverplus.selector.selector import Selector

        return {demo.id: shown_text(demo.question, demo.answer) for _, demo in Selector.load(given).source.all()}
    from leverplus.experiment.opening import load_run

    return {str(item.id): shown_text(item.question, item.answer) for item in load_run(run).task.items("train")}


def audit_table(args: argparse.Namespace) -> dict[str, Any]:
    """Effects of all demonstrations of a recorded table."""
    import numpy as np

    from leverplus.backends.table.table import read_table
    from leverplus.effects.audit import audit
    from leverplus.effects.estimate import Measured
    from leverplus.rundir import SHIPPED, shipped

    names = [name.strip() for name in args.table.split(",")]
    whole = [f"{name}.parquet" if name.startswith(SHIPPED) and not Path(name).suffix else name for name in names]
    for name in whole:
        if not shipped(name).is_file():
            raise MissingFile(f"there is no {name}; name a bundle, a run folder, or a recorded table (FILE.parquet)")
    table = read_table([shipped(name) for name in whole])
    alone = np.flatnonzero(np.diff(table.starts) == 1)
    if not len(alone):
        raise DataError(
            f"{args.table} holds no answer with one demonstration; effects are measured with one "
            "demonstration in the prompt"
        )
    demos = table.demos[table.starts[alone]]
    data = Measured.of(table.queries[alone], demos, table.accuracy[alone], len(table.ids.texts))
    found = audit(data, table.ids.texts)
    items = args.items or (SHIPPED_ITEMS if args.table.startswith("tables:okvqa") else None)
    texts = read_texts(shipped(items)) if items else {}
    lines = found.ranked()
    ends = {"useful": lines[: args.show], "harmful": lines[::-1][: args.show]}
    own = found.effects
    rows = {}
    for name, end in ends.items():
        rows[name] = [{**vars(line), "text": said(line.demo, texts)} for line in end]
    about = {"rows": found.rows, "queries": found.queries, "demonstrations": len(lines), "is_noise": found.is_noise}
    return {**about, "effect_sd": own.spread**0.5, "reliability": own.reliability, **rows}


def said(demo: str, texts: dict[str, str]) -> str:
    return f"{plain(demo)}: {plain(texts[demo])}" if demo in texts else plain(demo)


def shown_text(question: str, answer: Any) -> str:
    return f"{question[:LONGEST]} -> {answer}"


def read_texts(path: Path) -> dict[str, str]:
    """Question and answer of every item of a JSON lines file (plain or gzipped), by id."""
    if not path.is_file():
        raise MissingFile(f"--items {path}: there is no such file")
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found = {}
    for number, line in enumerate(content.decode("utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            question = str(row.get("question", row.get("text")))
            answer = row["label"] if "label" in row else _most_common(row.get("answers", [row.get("answer")]))
            found[str(row["id"])] = shown_text(question, answer)
        except (ValueError, KeyError, AttributeError, IndexError) as error:
            raise DataError(f"{path}, line {number}: no item with an id, a question and an answer") from error
    return found


def _most_common(answers: list[Any]) -> str:
    """The answer given most often, the first of equals: what a demonstration shows."""
    return str(max(answers, key=answers.count))
