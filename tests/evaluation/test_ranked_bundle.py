"""Bundles that rank by labels, effects and similarity: packed from a run, carried away, added to, damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leverplus.errors import DataError, LeverError
from leverplus.evaluation import arms
from leverplus.evaluation.evaluate import choose_ranking
from leverplus.experiment.evaluate import evaluation_context
from leverplus.experiment.ranking import rankings_of
from leverplus.experiment.run import Run
from leverplus.rundir import read_json
from leverplus.selector.pack import pack_run
from leverplus.selector.ranked import LABELS
from leverplus.selector.selector import Selector

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["label_rank", "effects"])
def packed(request: pytest.FixtureRequest, world_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_run(world_run, tmp_path_factory.mktemp("packed") / request.param, arm=request.param, shots=2)


def shown(selector: Selector, queries: Sequence[object], run: Run) -> list[list[str]]:
    found = []
    for query in queries:
        picks = selector.select(question=query.question, image=run.task.image(query), shots=2)  # type: ignore[attr-defined, arg-type]
        found.append([demo.id for demo in picks])
    return found


def test_a_bundle_chooses_what_the_evaluation_of_the_whole_corpus_chose(packed: Path, world_run: Run) -> None:
    queries = world_run.chosen_items("test", 6)
    context = evaluation_context(world_run, queries)
    share = float(read_json(world_run.folder / "eval.json")["nearest_both_text_share"])
    rankings = rankings_of(world_run, share)
    ranking = choose_ranking(rankings, packed.name, share, len(context.demonstrations))
    assert ranking is not None
    wanted = arms.ranked_arm(replace(context, whole_corpus=True), ranking, rankings.labels, [2])[2]
    assert shown(Selector.load(packed), queries, world_run) == [list(own) for own in wanted]


def test_a_copy_elsewhere_chooses_the_same_and_says_why(packed: Path, world_run: Run, tmp_path: Path) -> None:
    queries = world_run.chosen_items("test", 3)
    copy = Path(shutil.copytree(packed, tmp_path / "elsewhere"))
    assert shown(Selector.load(copy), queries, world_run) == shown(Selector.load(packed), queries, world_run)
    picks = Selector.load(copy).select(
        question=queries[0].question, image=world_run.task.image(queries[0]), shots=2, explain=True
    )
    assert picks.explanation is not None
    rows = picks.explanation["candidates"]
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    assert {row["id"] for row in rows if row["place"]} == {demo.id for demo in picks}
    assert all(row["label"] is not None for row in rows)


def test_what_is_added_counts_by_its_answer_and_what_is_deleted_is_gone(
    packed: Path, world_run: Run, tmp_path: Path
) -> None:
    query = world_run.chosen_items("test", 1)[0]
    selector = Selector.load(Path(shutil.copytree(packed, tmp_path / "changed")))
    image = world_run.task.image(query)
    best = selector.select(question=query.question, image=image, shots=1)[0]
    selector.add([{"id": "twin", "question": query.question, "answer": best.answer, "image": image}])
    again = selector.select(question=query.question, image=image, shots=2)
    if packed.name == "label_rank":  # the same words and pixels, and the answer that labels expect
        assert "twin" in {demo.id for demo in again}
    selector.delete([best.id, "twin"])
    left = selector.select(question=query.question, image=image, shots=4)
    assert not {best.id, "twin"} & {demo.id for demo in left}


@pytest.mark.parametrize("damage", ["missing", "cut", "foreign", "pickled"])
def test_damaged_labels_are_refused(packed: Path, tmp_path: Path, damage: str) -> None:
    folder = Path(shutil.copytree(packed, tmp_path / "damaged"))
    path = folder / LABELS
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif damage == "foreign":
        np.savez(path, rows=np.array([0, 10**9]), weights=np.zeros((2, 3), np.float32))
    else:
        np.savez(path, rows=np.array([{}], dtype=object), weights=np.zeros((1, 1), np.float32))
    with pytest.raises(DataError, match="pack it again"):
        Selector.load(folder)


def test_a_ranking_that_is_no_ranking_is_refused(packed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(packed, tmp_path / "damaged"))
    facts = read_json(folder / "bundle.json")
    for said in (None, {}, {"similarity": {"text": "x"}, "label": 1, "labels": None}):
        (folder / "bundle.json").write_text(json.dumps({**facts, "ranking": said}), encoding="utf-8")
        with pytest.raises(DataError, match="is not understood"):
            Selector.load(folder)


def test_effects_of_a_run_that_measured_too_little_are_not_packed(
    world_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leverplus.experiment.ranking.measured_scores", lambda _run: [])
    with pytest.raises(LeverError, match="effects need 20"):
        pack_run(world_run, tmp_path / "none", arm="effects")
