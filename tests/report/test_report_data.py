from __future__ import annotations

import json

import pytest

from leverplus.report.build import build_report
from leverplus.report.data import logged_number, read_run_files


def test_a_whole_run_is_read_without_a_complaint(made) -> None:
    files = read_run_files(made.folder)
    assert files.missing == {}
    assert files.results["n"] == len(files.predictions.items) == 36
    assert len(files.log) == 7
    assert files.findings[1] == {"code": "bare", "severity": "info", "title": "", "cause": "", "try": ""}


@pytest.mark.parametrize("name", ["eval.json", "predictions.parquet", "log.jsonl", "findings.json", "run.json"])
def test_a_file_that_is_not_there_is_a_sentence_with_what_to_type(made, name) -> None:
    (made.folder / name).unlink()
    sentence = read_run_files(made.folder).missing[name]
    assert sentence.startswith(f"There is no {name}")
    assert "`lever " in sentence


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"arms": 3, "findings": 3}'])
@pytest.mark.parametrize("name", ["eval.json", "predictions.parquet", "findings.json"])
def test_a_damaged_file_is_a_sentence(made, name, content) -> None:
    (made.folder / name).write_bytes(content)
    assert name in read_run_files(made.folder).missing


def test_a_cut_last_line_of_the_log_is_left_out(made) -> None:
    path = made.folder / "log.jsonl"
    path.write_text(path.read_text() + '{"stage": "sft", "epo')
    files = read_run_files(made.folder)
    assert len(files.log) == 7
    assert files.missing["log.jsonl"] == "1 damaged line(s) of log.jsonl were left out."


def test_predictions_of_another_evaluation_are_not_mixed_in(made) -> None:
    path = made.folder / "eval.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "n": 99}))
    files = read_run_files(made.folder)
    assert files.predictions is None
    assert "36 items and eval.json 99" in files.missing["predictions.parquet"]


CHANGED = {
    "an interval that is none": lambda found: found["comparisons"][0].update(ci95=None),
    "a p that is a word": lambda found: found["comparisons"][0].update(p_adjusted="tiny"),
    "a difference that is no number": lambda found: found["comparisons"][0].update(diff=float("nan")),
    "a baseline without accuracy": lambda found: [found["arms"].pop(arm) for arm in list(found["arms"])],
    "calls that are words": lambda found: found.update(model_calls="many"),
    "a regret of another shape": lambda found: found.update(regret=[1]),
    "a regret at no number of shots": lambda found: found.update(regret={"learned": {"one": {"pool": 0.5}}}),
    "a gap that was not measured": lambda found: found.update(gap_closed={"learned": {"1": None}}),
    "accuracies by word": lambda found: found["arms"]["learned"].update(shots={"one": 0.5}),
}


@pytest.mark.parametrize("change", CHANGED)
def test_results_of_another_form_are_a_sentence_and_the_rest_is_shown(made, change) -> None:
    path = made.folder / "eval.json"
    found = json.loads(path.read_text())
    CHANGED[change](found)
    path.write_text(json.dumps(found))
    page = build_report(made).read_text()
    assert "eval.json is not of a form this version knows" in page
    assert 'data-figure="accuracy"' in page


def test_a_loss_that_was_not_finite_is_a_gap_in_its_curve(made) -> None:
    path = made.folder / "log.jsonl"
    path.write_text(path.read_text() + '{"stage": "sft", "epoch": 9, "train/loss/total": NaN, "train/nll": Infinity}\n')
    assert 'data-figure="curve-loss"' in build_report(made).read_text()
    assert logged_number({"x": float("nan")}, "x") is None
    assert logged_number({"x": True}, "x") is None
    assert logged_number({"x": 2}, "x") == 2.0
