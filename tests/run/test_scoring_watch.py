"""What is said while answers come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from leverplus.data.tasks.answers import AnswerRules
from leverplus.run.scoring import ScoringWatch
from leverplus.scores.scorer import CallMeter


def test_empty_answers_where_a_label_was_asked_for_are_counted_and_said_once() -> None:
    said: list[str] = []
    meter = CallMeter()
    task = SimpleNamespace(answers=AnswerRules("exact", "plain"))
    run: Any = SimpleNamespace(
        backend=object(), task=task, show_progress=lambda *_: None, say=said.append
    )
    watch = ScoringWatch(run, meter)
    meter.fresh, meter.unlabelled = 40, 27
    watch.scored("questions", 20, 40)
    assert said == []
    watch.scored("questions", 40, 40)
    watch.scored("other questions", 10, 10)
    assert len(said) == 1
    assert said[0].startswith(
        "note: 27 of 40 answers were empty where a label was asked for"
    )
    assert "model.instruction" in said[0]
