"""The figures of docs/several-answers-figures.md are those of the records, and the scripts fuse by the arm's own code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from leverplus.evaluate.stats import compare

pq = pytest.importorskip("pyarrow.parquet")
ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "real"
PAGE = (ROOT / "docs" / "several-answers-figures.md").read_text(encoding="utf-8")
MODELS = {
    "SmolLM2-135M": "smollm2-135m",
    "Qwen2.5-Coder-0.5B": "qwen2.5-coder-0.5b",
    "Qwen2.5-Coder-1.5B": "qwen2.5-coder-1.5b",
}
TASKS = {"SST-2": "sst2", "AG News": "agnews"}


def rows_of(head: str) -> list[list[str]]:
    """The cells of the table under a heading, without bold."""
    section = PAGE.split(f"## {head}")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]


def percent(values: object) -> float:
    return 100 * float(np.mean(np.asarray(values)))


def test_okvqa_stands_as_it_was_measured() -> None:
    table = pq.read_table(RECORDS / "fused-okvqa.parquet")
    assert table.num_rows == 5045
    known = {name: table.column(name).to_numpy() for name in table.column_names}
    groups = known["group"].tolist()
    by_calls = {}
    for calls, accuracy, *_ in rows_of("OK-VQA")[1:]:
        by_calls[calls] = float(accuracy)
    for count in (2, 3, 5, 6):
        fused = known[f"fused, {count} lists"]
        assert by_calls[f"{count}: fused"] == pytest.approx(percent(fused), abs=0.051)
        vote = percent(known[f"vote of {count}"])
        assert by_calls[f"{count}: vote"] == pytest.approx(vote, abs=0.051)
    gain = compare(known["fused, 5 lists"], known["nearest by question 8"], clusters=groups)  # fmt: skip
    assert round(100 * gain.diff, 1) == 3.7
    assert [round(100 * end, 1) for end in gain.ci95] == [2.7, 4.6]
    draws = [percent(known[name]) for name in known if "draw" in name]
    draws.append(percent(known["fused, 5 lists"]))
    told = re.search(r"ten draws, ([\d.]+) to ([\d.]+), mean ([\d.]+)", PAGE)
    assert told is not None
    found = [min(draws), max(draws), float(np.mean(draws))]
    assert [round(own, 2) for own in found] == [float(own) for own in told.groups()]


def test_labels_stand_as_they_were_measured() -> None:
    seen = 0
    for name, *cells in [*rows_of("Labels: TREC")[1:], *rows_of("Labels: SST-2")[1:]]:
        *task, model, title = name.split(", ")
        path = RECORDS / f"fused-{TASKS[task[0]] if task else 'trec'}.parquet"
        table = pq.read_table(path)
        own = f"{MODELS[model]}, {title}, MiniLM"
        fused = table.column(f"fused, {own}").to_numpy()
        alone = table.column(own).to_numpy()
        labels = table.column("label regression, MiniLM").to_numpy()
        assert float(cells[0]) == pytest.approx(percent(alone), abs=0.051)
        assert float(cells[2 if task else 1]) == pytest.approx(percent(fused), abs=0.051)  # fmt: skip
        less = cells[4 if task else 2].split(" ")[0]
        assert float(less) == pytest.approx(percent(fused - labels), abs=0.051)
        seen += 1
    assert seen == 21


def test_a_recorded_fold_is_fused_by_the_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight questions with two labels: the weight comes from what was recorded of training questions."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    sys.modules.pop("fused", None)
    import fused as script

    from leverplus.arms.corpus import Queries
    from leverplus.bundle.answering import heard
    from leverplus.data.tasks.answers import AnswerRules
    from leverplus.data.types import Item, ItemId

    rules = AnswerRules("label_accuracy")
    rng = np.random.default_rng(0)
    items, vectors = [], []
    for row in range(200):
        label = ("left", "right")[row % 2]
        items.append(Item(ItemId(f"i{row}"), f"text {row}", (label,), "train"))
        vector = rng.normal(size=8)
        vector[0] += 3 * (row % 2)
        vectors.append(vector / np.linalg.norm(vector))
    text = np.array(vectors, np.float32)
    told = {"knows": {}, "wrong": {}}
    for item in items:
        other = "left" if item.answer == "right" else "right"
        told["knows"][item.id] = heard(item.id, (), item.answer, rules)
        told["wrong"][item.id] = heard(item.id, (), other, rules)
    examples = script.Examples(items[:160], script.as_vectors(text[:160]), rules)
    examples.told = told
    queries = Queries(items[160:], script.as_vectors(text[160:]))
    knows, trusting = examples.fused(queries, ["knows"])
    _, wary = examples.fused(queries, ["wrong"])
    assert knows == [item.answer for item in items[160:]]
    assert trusting < 1 < wary == script.fused.MOST_WEIGHT
    assert examples.vote(queries, ["wrong", "knows"]) == knows
    alone = script.without_model(examples, queries)["label regression"]
    assert examples.fused(queries, ["wrong"], 16)[0] == alone
