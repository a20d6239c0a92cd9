"""Does the self-test let SmolLM2-135M through on every task, and by how far?

    python benchmarks/selftest.py --data DATA                  every task; a minute or two each on a CPU
    python benchmarks/selftest.py --data DATA --only sst2,trec
    python benchmarks/selftest.py --data DATA --queries 16     fewer prompts (a run asks 32)

DATA holds `text` (SST2.*, TREC.*, agnews.jsonl), `okvqa` and `coco_small`. Label sets of one's own come out of them:
2 labels are SST-2's, 6 TREC's, 60 the commonest answers of OK-VQA, `made_up` has TREC's with words of no language, and
`short` 90 texts that no model has read. None may be refused: the wiring is the same in all of them, and right.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from leverplus.engine.open import build_backend, build_task
from leverplus.errors import ScoringError
from leverplus.recipe.recipe import load_recipe
from leverplus.recipe.sections import TaskSection
from leverplus.scoring.selftest import SelfTest, self_test
from leverplus.types import Item

MADE_UP = ("zorp", "blim", "quix", "krel", "ospa", "vund")
ROWS = 400
"""Texts a file of one's own is given: as many as somebody types."""

Row = tuple[str, str]


def own_rows(data: Path, kind: str) -> list[Row]:
    """Texts and labels of a set that could be somebody's own."""
    if kind == "short":
        return list(short_texts())
    if kind == "labels60":
        items = build_task(okvqa_section(data)).items("train")
        common = {answer for answer, _ in Counter(item.answer for item in items).most_common(60)}
        return [(item.question.split("\n")[0], item.answer) for item in items if item.answer in common][:ROWS]
    items = text_items(data, "sst2" if kind == "labels2" else "trec")
    labels = sorted({item.answer for item in items})
    words = dict(zip(labels, MADE_UP, strict=True)) if kind == "made_up" else {label: label for label in labels}
    return [(item.question, words[item.answer]) for item in items[:ROWS]]


def short_texts() -> Iterator[Row]:
    things, praise, blame = ("staff", "food", "trip", "room"), ("fine", "superb", "tasty"), ("rude", "broken", "late")
    for day in range(90):
        word = blame[day // 2 % 3] if day % 2 else praise[day // 2 % 3]
        yield f"the {things[day % 7 % 4]} was {word} on day {day}", "complaint" if day % 2 else "praise"


def text_items(data: Path, name: str) -> Sequence[Item]:
    return build_task(TaskSection(name=name, folder=str(data / "text"))).items("train")


def okvqa_section(data: Path) -> TaskSection:
    captions = data / "coco_small" / "vinvl_captions_val2014.tsv.gz"
    return TaskSection(name="okvqa_captions", folder=str(data / "okvqa"), captions=str(captions), skip_empty=True)


def settings(data: Path, folder: Path, name: str) -> tuple[str, list[str]]:
    """The recipe and the changes with which a user would run this task."""
    if name in ("sst2", "trec"):
        return {"sst2": "sst2_smollm", "trec": "trec_few"}[name], [f"task.folder={data / 'text'}"]
    if name == "okvqa_captions":
        section = okvqa_section(data)
        return "okvqa_captions_smollm", [f"task.folder={section.folder}", f"task.captions={section.captions}"]
    if name == "agnews":
        return "own_labels", [f"task.file={data / 'text' / 'agnews.jsonl'}"]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in own_rows(data, name)))
    return "own_labels", [f"task.file={path}"]


NAMES = ("sst2", "trec", "agnews", "labels2", "labels6", "labels60", "made_up", "short", "okvqa_captions")


def test(data: Path, folder: Path, name: str, queries: int) -> SelfTest:
    recipe = load_recipe(*settings(data, folder, name))
    task = build_task(recipe.task)
    return self_test(task, build_backend(recipe.score.backend, task, recipe.model), queries=queries)


def row(name: str, found: SelfTest, seconds: float) -> str:
    """A line of the table in docs/results.md."""
    copying = found.copying
    assert copying is not None
    assert copying.moved is not None
    ends = "" if copying.ends is None else f"{copying.ends:.2f}"
    agreement = "" if copying.agreement is None else f"{copying.agreement:.2f}"
    return (
        f"| {name} | {copying.effect:.2f} +- {copying.error:.2f} | {copying.moved:.2f} | {copying.copied:.2f} | "
        f"{agreement} | {ends} | {found.right_over_wrong:.2f} +- {found.right_error:.2f} | "
        f"{'passes, with a note' if found.note else 'passes'} | {seconds:.0f} s |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", default=",".join(NAMES), help="tasks, separated by commas")
    parser.add_argument("--queries", type=int, default=32)
    given = parser.parse_args()
    print("| task | shown answer gains (nats) | moved | written | agrees | ends | right over wrong | | time |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only.split(","):
            began = time.monotonic()
            try:
                print(
                    row(name, test(given.data, Path(folder), name, given.queries), time.monotonic() - began), flush=True
                )
            except ScoringError as error:
                print(f"| {name} | REFUSED: {error}")


if __name__ == "__main__":
    main()
