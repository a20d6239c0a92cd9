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
    parser.add_argument("table", metavar="TABLE", help="recorded answers (Parquet); `lever record` writes them")
    parser.add_argument(
        "--items", metavar="FILE", help="the items as JSON lines, so that texts are shown and not only ids"
    )
    parser.add_argument("--show", type=int, default=8, metavar="N", help="how many of either end to show (default 8)")


def audit_table(args: argparse.Namespace) -> dict[str, Any]:
    """Effects of all demonstrations of a table; prints both ends unless JSON is asked for."""
    import numpy as np

    from leverplus.backends.table.table import read_table
    from leverplus.effects.audit import audit
    from leverplus.effects.estimate import Measured
    from leverplus.rundir import shipped

    table = read_table([shipped(name.strip()) for name in args.table.split(",")])
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
    if not args.json:
        print(
            f"{found.rows:,} answers with one demonstration, {found.queries:,} queries, {len(lines):,} demonstrations "
            f"shown three times or more; effects have a standard deviation of {100 * own.spread**0.5:.1f} points, "
            f"{100 * own.reliability:.0f} % of what is estimated is real"
        )
        if found.is_noise:
            print("these effects are noise: show demonstrations to more queries before anything is done with them")
        for name, end in ends.items():
            print(f"\nmost {name}: effect in points (standard error), queries shown to, what it says")
            for line in end:
                print(f"  {100 * line.effect:+.1f} ({100 * line.error:.1f})  {line.shown}  {said(line.demo, texts)}")
    rows = {}
    for name, end in ends.items():
        rows[name] = [{**vars(line), "text": said(line.demo, texts)} for line in end]
    about = {"rows": found.rows, "queries": found.queries, "demonstrations": len(lines), "is_noise": found.is_noise}
    return {**about, "effect_sd": own.spread**0.5, "reliability": own.reliability, **rows}


def said(demo: str, texts: dict[str, str]) -> str:
    return f"{plain(demo)}: {plain(texts[demo])}" if demo in texts else plain(demo)


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
            found[str(row["id"])] = f"{question[:LONGEST]} -> {answer}"
        except (ValueError, KeyError, AttributeError, IndexError) as error:
            raise DataError(f"{path}, line {number}: no item with an id, a question and an answer") from error
    return found


def _most_common(answers: list[Any]) -> str:
    """The answer given most often, the first of equals: what a demonstration shows."""
    return str(max(answers, key=answers.count))
