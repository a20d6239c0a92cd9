"""`lever select`: choose demonstrations for one query, or for many."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from leverplus.errors import DataError, LeverError, WrongUsage, plain
from leverplus.evaluation.names import arm_name
from leverplus.parsing import parse_json

if TYPE_CHECKING:
    from leverplus.selector.demo import Picks

RANKS_BY = {
    "learned": "the trained selector; score: how much it wants an example as its first pick",
    "learned_auto": "the trained selector, which may show fewer; score: how much it wants an example as its first pick",
    "nearest_text": "the most similar questions; score: similarity",
    "nearest_image": "the most similar pictures; score: similarity",
    "nearest_both": "the most similar questions and pictures; score: similarity",
    "two_stage": "the most similar questions among the most similar pictures; score: similarity",
    "mmr": "similar examples that are unlike each other; score: similarity",
    "label_rank": "similarity and how likely labels find the answer that an example shows; score: their weighted sum",
    "effects": "similarity, labels and measured effects of examples; score: their weighted sum",
    "fixed": "the same list for every question",
    "random": "chance, so every score is 0",
    "zero_shot": "no example is shown",
}
"""What each way of choosing goes by, and what its score is."""

VOTES = "share of the most similar examples' votes for its answer"
LABELS_MEAN = dict.fromkeys(("label_rank", "effects"), "what labels add to the score")
"""What `label` is in ways of choosing that rank by it; in all others it is VOTES."""

LEGEND = (
    "label: {label}; effect: what it adds to any question, as measured; interaction: what the trained selector sees in "
    "it beyond the average; -: not known"
)
LONGEST = 48
"""Characters shown of a candidate's question."""

EXPLAINED = 12
"""Candidates that are printed; --json holds all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="BUNDLE_or_RUN", help="a bundle, a run folder, or hf://ORG/NAME")
    parser.add_argument("--image", metavar="FILE", help="the query's picture")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--question", metavar="Q", help="the query's question")
    asked.add_argument("--jsonl", type=Path, metavar="FILE", help="many queries: one {question, image} record per line")
    parser.add_argument(
        "-k", "--shots", type=int, metavar="N", help="how many demonstrations (default: as recommended)"
    )
    parser.add_argument(
        "--allow", type=Path, metavar="FILE", help="choose only among these ids: one per line, or a JSON list"
    )
    parser.add_argument(
        "--explain", action="store_true", help="also say why: the score of every candidate, and what it is made of"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="PATH",
        help="use this selector instead: a folder, RUN, RUN:NAME, or a .pt or .ckpt file",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from leverplus.selector.selector import Selector

    if args.jsonl is not None and args.image is not None:
        raise WrongUsage("--image belongs to --question; the lines of --jsonl name their own pictures")
    allowed = None if args.allow is None else read_ids(args.allow)
    selector = Selector.load(args.folder, args.checkpoint)
    options: dict[str, Any] = {"shots": args.shots, "allowed": allowed, "explain": args.explain}
    if args.jsonl is None:
        chosen = selector.select(question=args.question, image=args.image, **options)
        found = {"question": args.question, **_as_json(chosen)}
        print(json.dumps(found) if args.json else _text(chosen))
        return 0
    queries = read_queries(args.jsonl)
    many = selector.select_many(queries, **options)
    rows = [{"question": own["question"], **_as_json(picks)} for own, picks in zip(queries, many, strict=True)]
    if args.json:
        print(json.dumps({"fingerprint": selector.fingerprint, "queries": rows}))
        return 0
    for query, picks in zip(queries, many, strict=True):
        print(f"{plain(query['question'])}\n{_text(picks, '  ')}")
    return 0


def _as_json(picks: Picks) -> dict[str, Any]:
    found: dict[str, Any] = {"demos": [demo.as_json() for demo in picks]}
    return found if picks.explanation is None else {**found, "explanation": picks.explanation}


def _text(picks: Picks, indent: str = "") -> str:
    lines = [f"{indent}{plain(demo.id)}  {plain(demo.question)}  ->  {plain(demo.answer)}" for demo in picks]
    if picks.explanation is not None:
        lines += [indent + line for line in _table(picks.explanation)]
    return "\n".join(lines) or f"{indent}(no demonstration is shown)"


def _table(found: dict[str, Any]) -> list[str]:
    """Who chose, the best candidates with their terms, and what nearest neighbours would have shown."""
    ranks_by = RANKS_BY.get(found["arm"], "a way of choosing of your own")
    terms = ("score", "label", "effect", "similarity", "interaction")
    rows: list[tuple[str, ...]] = [("place", "id", *terms, "answer", "question")]
    for own in found["candidates"][:EXPLAINED]:
        numbers = ("-" if own[term] is None else f"{own[term]:.3f}" for term in terms)
        question = shorten(plain(own["question"]), LONGEST, placeholder="...")
        rows.append((str(own["place"] or ""), plain(own["id"]), *numbers, plain(own["answer"]), question))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    more = len(found["candidates"]) - EXPLAINED
    similar = ", ".join(plain(name) for name in found["nearest_would_show"]) or "none"
    return [
        f"chosen by {arm_name(found['arm'])}: {ranks_by}",
        *lines,
        *([f"... and {more} more candidates; --json lists all"] if more > 0 else []),
        LEGEND.format(label=LABELS_MEAN.get(found["arm"], VOTES)),
        f"the most similar examples would be: {similar}",
    ]


def read_ids(path: Path) -> list[str]:
    """Ids of demonstrations: a JSON list, or one a line."""
    text = _read(path)
    if text.lstrip().startswith("["):
        try:
            found = parse_json(text)
        except json.JSONDecodeError as error:
            raise DataError(f"{path} is not a JSON list ({error.msg})") from error
        if not all(isinstance(name, str) for name in found):
            raise DataError(f"{path}: the ids must be texts")
        return list(found)
    return [line.strip() for line in text.splitlines() if line.strip()]


def read_lines(path: Path) -> list[tuple[int, Any]]:
    """The values of a JSONL file with the numbers of their lines; empty lines are passed over."""
    found = []
    for number, line in enumerate(_read(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append((number, parse_json(line)))
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: is not JSON ({error.msg}, column {error.colno})") from error
    return found


def read_queries(path: Path) -> list[dict[str, Any]]:
    """Queries of a JSONL file; what else stands in a line (answers, ids) is not looked at."""
    queries = []
    for number, row in read_lines(path):
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: must be an object with a question")
        question, image = row.get("question", row.get("text")), row.get("image")
        if not isinstance(question, str) or not question.strip() or not isinstance(image, (str, type(None))):
            raise DataError(
                f"{path}, line {number}: needs a question, a text that is not empty; image may be a path or null"
            )
        beside = path.parent / image if image and "://" not in image and image[:5] != "data:" else image
        queries.append({"question": question, "image": beside or None})
    if not queries:
        raise DataError(f"{path} holds no query; write one JSON object a line, such as " + '{"question": "..."}')
    return queries


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise LeverError(f"{path} cannot be read ({reason})") from error
