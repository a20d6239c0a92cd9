"""Predictions survive the file; what cannot be compared is refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from handmade import results_from

from leverplus import errors
from leverplus.data.types import ItemId
from leverplus.errors import (
    DataError,
    EvaluationError,
    MissingExtra,
    MissingFile,
    NotMeasured,
)
from leverplus.evaluate.predictions import (
    Prediction,
    Results,
    collect,
    read_predictions,
    write_predictions,
)

Q, R = ItemId("q"), ItemId("r")


def row(
    item: str, arm: str = "learned", shots: int = 1, draw: int = 0, score: float = 1.0
) -> tuple[object, ...]:
    return (item, "image", arm, shots, draw, ["d"] * shots, "x", score)


def test_what_is_written_is_read_back_exactly(tmp_path: Path) -> None:
    results = Results([Q, R], ["i", "j"])
    results.add(
        "random",
        2,
        [
            Prediction(Q, (ItemId("a"), ItemId("b")), "x", 1 / 3),
            Prediction(R, (), "", 0.9),
        ],
    )
    results.add("random", 2, [Prediction(Q, (), "y", 1.0), Prediction(R, (), "z", 0.0)])
    results.add(
        "zero_shot", 0, [Prediction(Q, (), "y", 1.0), Prediction(R, (), "z", 0.0)]
    )
    write_predictions(results, tmp_path / "p.parquet")
    assert read_predictions(tmp_path / "p.parquet") == results
    assert list(tmp_path.iterdir()) == [tmp_path / "p.parquet"]


def test_accuracy_is_the_mean_over_draws_and_never_invented() -> None:
    results = results_from({"random": {1: [1.0, 0.0]}})
    results.add("random", 1, [Prediction(item, (), "x", 0.5) for item in results.items])
    assert results.accuracy("random", 1).tolist() == [0.75, 0.25]
    with pytest.raises(NotMeasured, match="'random' was not run at 2 shots"):
        results.accuracy("random", 2)


def test_an_arm_must_answer_every_item_in_order() -> None:
    results = Results([Q, R], ["i", "j"])
    with pytest.raises(EvaluationError, match="same items"):
        results.add(
            "learned", 1, [Prediction(R, (), "x", 1.0), Prediction(Q, (), "x", 1.0)]
        )


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([row("q"), row("q")], "answers item q more than once"),
        (
            [row("q"), row("r"), row("q", "random")],
            "arm 'random' at 1 shots .* has 1 items, but there are 2",
        ),
        (
            [row("q", score=1.2)],
            r"accuracy of item q.* is 1.2; it must lie in \[0, 1\]",
        ),
        ([row("q", score=float("nan"))], "is nan"),
        ([], "holds no predictions"),
    ],
)
def test_bad_predictions_are_refused_with_a_sentence(
    rows: list[tuple[object, ...]], sentence: str
) -> None:
    with pytest.raises(EvaluationError, match=sentence):
        collect(rows, "file")


def test_a_missing_or_broken_file_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="lever eval"):
        read_predictions(tmp_path / "p.parquet")
    (tmp_path / "p.parquet").write_text("no")
    with pytest.raises(DataError, match="cannot be read as predictions"):
        read_predictions(tmp_path / "p.parquet")


@pytest.fixture
def no_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda name: None)


def test_lines_hold_what_parquet_holds_and_one_takes_the_place_of_the_other(
    tmp_path: Path, monkeypatch
) -> None:
    path = tmp_path / "predictions.parquet"
    results = results_from(
        {"learned": {1: [1.0, 0.5, 0.0]}, "random": {1: [0.0, 0.25, 1.0]}}
    )
    write_predictions(results, path)
    parquet, alone = read_predictions(path), read_predictions(path, ["random"])
    with monkeypatch.context() as without:
        without.setattr(errors, "find_spec", lambda name: None)
        write_predictions(results, path)
    assert [file.name for file in tmp_path.iterdir()] == ["predictions.jsonl"]
    assert read_predictions(path) == parquet
    assert read_predictions(path, ["random"]) == alone
    write_predictions(results, path)
    assert [file.name for file in tmp_path.iterdir()] == ["predictions.parquet"]


def test_a_damaged_line_is_named(tmp_path: Path, no_pyarrow: None) -> None:
    path = tmp_path / "predictions.parquet"
    write_predictions(results_from({"learned": {1: [1.0, 0.5, 0.0]}}), path)
    lines = path.with_suffix(".jsonl")
    lines.write_text(lines.read_text()[:-20])
    with pytest.raises(
        DataError, match=r"predictions\.jsonl holds lines .*`lever eval"
    ):
        read_predictions(path)


def test_parquet_is_refused_with_the_extra_that_reads_it(
    tmp_path: Path, no_pyarrow: None
) -> None:
    path = tmp_path / "predictions.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(MissingExtra, match=r'pip install -e "\.\[tables\]"'):
        read_predictions(path)
