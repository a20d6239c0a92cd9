"""The index of predictions against the same questions asked of the whole file in Python."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from leverplus.errors import DataError, EvaluationError, MissingFile
from leverplus.evaluation.predictions import Prediction, Results, write_predictions
from leverplus.types import ItemId
from leverplus.view.queries import PAGE, Indexes, QueryFilter, QueryIndex

N = 60
TEXTS = [f"question {row} {'about cats' if row % 3 == 0 else 'about dogs'}" for row in range(N)]
TRAITS = {"relation": [("likes", "fears")[row % 2] for row in range(N)]}


@pytest.fixture
def results() -> Results:
    rng = np.random.default_rng(5)
    found = Results([ItemId(f"item-{row}") for row in range(N)], [f"image-{row // 2}" for row in range(N)])
    for arm, shots, draws in (("zero_shot", 0, 1), ("random", 1, 3), ("learned", 1, 1), ("learned", 2, 1)):
        for draw in range(draws):
            scores = rng.choice([0.0, 0.3, 1.0], N)
            rows = [
                Prediction(item, (ItemId(f"demo-{draw}"),) * shots, f"answer {row % 7}", float(score))
                for row, (item, score) in enumerate(zip(found.items, scores, strict=True))
            ]
            found.add(arm, shots, rows)
    return found


@pytest.fixture
def index(results: Results, tmp_path: Path) -> QueryIndex:
    write_predictions(results, tmp_path / "predictions.parquet")
    return QueryIndex(tmp_path / "predictions.parquet")


def every_row(index: QueryIndex, wanted: QueryFilter) -> list[int]:
    rows, page = [], 1
    while True:
        turned = QueryFilter(**{**vars(wanted), "page": page})
        found = index.find(turned, lambda: TEXTS, lambda: TRAITS)
        rows += found.rows
        if page == found.pages:
            assert found.total == len(rows)
            return rows
        assert len(found.rows) == PAGE
        page += 1


def test_scores_are_the_means_of_the_draws(index: QueryIndex, results: Results) -> None:
    for arm, shots in (("random", 1), ("learned", 2)):
        np.testing.assert_allclose(index.scores(arm, shots), results.accuracy(arm, shots))
    np.testing.assert_array_equal(index.scores("zero_shot", 2), results.accuracy("zero_shot", 0))


@pytest.mark.parametrize("fate", ["", "helped", "harmed", "flipped"])
@pytest.mark.parametrize("text", ["", "CATS", "answer 3", "item-5"])
@pytest.mark.parametrize("trait", ["", "relation=likes", "relation=nothing", "colour=red"])
def test_filters_agree_with_the_whole_file(index: QueryIndex, results: Results, fate, text, trait) -> None:
    own, other = results.accuracy("learned", 1), results.accuracy("random", 1)
    expected = []
    for row, item in enumerate(results.items):
        kinds = {"helped": own[row] > other[row], "harmed": own[row] < other[row]}
        kinds |= {"flipped": (own[row] > 0) != (other[row] > 0), "": True}
        words = f"{item}|{TEXTS[row]}|{results.draws['learned'][1][0][row].answer}".lower()
        alike = not trait or trait == f"relation={TRAITS['relation'][row]}"
        if kinds[fate] and text.lower() in words and alike:
            expected.append(row)
    assert every_row(index, QueryFilter("learned", "random", 1, fate, text, trait)) == expected


def test_a_page_reads_the_first_draw_of_its_own_rows(index: QueryIndex, results: Results) -> None:
    rows = index.predictions(["item-3", "item-9"], ["random", "zero_shot"], 1)
    assert {(row["item"], row["arm"], tuple(row["demos"])) for row in rows} == {
        (item, arm, demos)
        for item in ("item-3", "item-9")
        for arm, demos in (("random", ("demo-0",)), ("zero_shot", ()))
    }
    assert all(
        row["score"] == results.draws["random"][1][0][int(row["item"][5:])].accuracy for row in rows if row["demos"]
    )


def test_a_page_beyond_the_last_is_the_last(index: QueryIndex) -> None:
    found = index.find(QueryFilter("learned", "random", 1, page=999), lambda: TEXTS, lambda: TRAITS)
    assert (found.page, found.pages, found.rows[-1]) == (3, 3, N - 1)


def test_what_was_not_measured_is_refused(index: QueryIndex) -> None:
    with pytest.raises(EvaluationError, match="no arm 'nobody'"):
        index.scores("nobody", 1)
    with pytest.raises(EvaluationError, match="not run at 4 shots; known: 1, 2"):
        index.scores("learned", 4)
    with pytest.raises(EvaluationError, match="not 'lost'"):
        index.find(QueryFilter("learned", "random", 1, fate="lost"), lambda: TEXTS, lambda: TRAITS)


def test_an_index_is_made_again_only_when_its_file_changes(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "predictions.parquet"
    write_predictions(results, path)
    indexes = Indexes()
    first = indexes.of(path)
    assert indexes.of(path) is first
    os.utime(path, ns=(1, 1))
    assert indexes.of(path) is not first
    for name in "abcde":
        write_predictions(results, tmp_path / f"{name}.parquet")
        indexes.of(tmp_path / f"{name}.parquet")
    assert len(indexes._kept) == Indexes.KEPT


def test_files_that_are_no_predictions_are_sentences(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "predictions.parquet"
    with pytest.raises(MissingFile, match="no predictions yet"):
        Indexes().of(path)
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot be read"):
        QueryIndex(path)
    pq.write_table(pa.table({"item": ["a"], "arm": ["learned"]}), path)
    with pytest.raises(DataError, match="not of a form this version knows"):
        QueryIndex(path)
    empty = {name: pa.array([], pa.string()) for name in ("item", "arm", "answer")}
    empty |= {name: pa.array([], pa.int8()) for name in ("shots", "draw", "score")}
    pq.write_table(pa.table({**empty, "demos": pa.array([], pa.list_(pa.string()))}), path)
    with pytest.raises(DataError, match="holds no predictions"):
        QueryIndex(path)
