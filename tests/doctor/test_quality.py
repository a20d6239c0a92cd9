"""The statistics of groups and the spread of rewards agree with a plain computation; a store is read query by query."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_world import TinyRun

from leverplus.cli.main import main
from leverplus.data.types import Item, ItemId, Reference, Score
from leverplus.errors import DataError, RecipeError
from leverplus.scores.keys import Context, item_digest, score_key
from leverplus.scores.store import ScoreStore
from leverplus_doctor.check import examine
from leverplus_doctor.quality import GroupMeter, Sample, quartiles, tier_or_flat
from leverplus_doctor.read import read_target
from leverplus_doctor.spread import measure_spread, reward_of

sys.path.insert(0, str(Path(__file__).parent.parent / "legacy"))
from legacy_files import rl_global


def group_stats(*groups):
    meter = GroupMeter()
    for samples in groups:
        meter.add(samples)
    return meter.finish()


def sample(demos, accuracy, gt_prob=None, **parts):
    return Sample(tuple(demos), accuracy, gt_prob, **parts)


def test_a_hand_worked_file_of_three_queries():
    stats = group_stats(
        [
            sample("ab", 1.0, 0.8, rank=0),
            sample("ac", 0.0, 0.1),
            sample("ad", 0.6, 0.5),
            sample("ad", 0.6, 0.5),
        ],
        [sample("ab", 0.0, 0.2, rank=0), sample("cd", 0.0, 0.2)],
        [sample("ab", 1.0, 0.9), sample("cd", None), sample((), 0.3)],
    )
    within = np.corrcoef([1, 0, 0.6, 0.6], [0.8, 0.1, 0.5, 0.5])[0, 1]
    for name, value in {
        "queries": 3,
        "members": 8,
        "unmeasured": 1,
        "positive": 4 / 7,
        "accuracy": (1 + 0.6 + 0.6 + 1) / 7,
        "oracle": (1 + 0 + 1) / 3,
        "flat": 2 / 3,
        "all_zero": 1 / 3,
        "all_one": 1 / 3,
        "pick": 0.5,
        "picked": 2,
        "median_size": 2.0,
        "within": within,
        "gt_prob": (0.8 + 0.1 + 0.5 + 0.5 + 0.2 + 0.2 + 0.9) / 7,
        "gt_prob_largest": 0.9,
    }.items():
        assert getattr(stats, name) == pytest.approx(value), name
    assert stats.lengths == {2: 7}
    for name, value in {
        "repeated members": 1,
        "best in the group, same queries": 0.5,
        "queries whose pick is 0.2 behind the best": 0.0,
        "members with accuracy [0.5, 1)": 2,
        "members with accuracy 1": 2,
        "queries of tier flat": 2,
        "accuracy where gt_prob is 0.5 to 0.6": 0.6,
        "positives of a query, upper quartile": 3,
        "different accuracy values in a query, mean": (3 + 1 + 1) / 3,
    }.items():
        assert stats.measures[name] == pytest.approx(value), name


def test_a_group_with_equal_accuracies_but_different_gt_prob_is_not_flat():
    assert group_stats([sample("ab", 0.0, 0.1), sample("cd", 0.0, 0.2)]).flat == 0.0
    assert group_stats([sample("ab", 0.0), sample("cd", 0.0)]).flat == 1.0
    assert group_stats([sample("ab", 0.0, 1e-7), sample("cd", 0.0, 2e-7)]).flat == 1.0


def test_quartiles_and_tiers_follow_their_rules():
    assert quartiles([1, 2, 3, 10]) == (1.0, 2.0, 3.0)
    assert tier_or_flat([0.3, 0.3]) == "flat"
    assert tier_or_flat([1.0, 1, 1, 0, 0, 0]) == "high"
    assert tier_or_flat([0.6, 0.6, 0, 0]) == "medium"
    assert tier_or_flat([1.0, 0, 0, 0]) == "low"


def test_origins_are_counted_apart_and_what_was_not_measured_has_no_row():
    stats = group_stats(
        [
            sample("ab", 1.0, source="beam"),
            sample("cd", 0.0, source="random"),
            sample("ef", 0.6, source="beam"),
        ]
    )
    assert stats.sources["beam"].members == 2
    assert stats.sources["beam"].accuracy == pytest.approx(0.8)
    assert stats.sources["random"].positive == 0.0
    assert not any("gt_prob" in name or "pick" in name for name in stats.measures)
    with pytest.raises(DataError, match="no scored sequences"):
        group_stats([])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rl.json"
    path.write_text(json.dumps(rl_global()))
    return path


def test_rewards_of_rl_data_are_those_by_hand(file: Path) -> None:
    """Accuracies 1, 0.6, 0 and 0, 1; twice correctness and once accuracy: 3, 2.6, 0 and 0, 3."""
    spread = measure_spread(file, reward_of("hard_plus_soft", ["hard_weight=2"]))
    found = spread.rows()
    assert (found["groups"], found["sequences"], found["distinct values"]) == (2, 5, 3)
    assert found["mean"] == pytest.approx(8.6 / 5)
    assert found["gap: least right - best wrong"] == pytest.approx(2.6)
    three = (((3 - 5.6 / 3) ** 2 + (2.6 - 5.6 / 3) ** 2 + (5.6 / 3) ** 2) / 2) ** 0.5
    inside = found["mean deviation inside a group (n - 1)"]
    assert inside == pytest.approx((three + 4.5**0.5) / 2)
    assert found["groups without spread"] == 0
    bins = spread.histogram()
    assert (sum(own[2] for own in bins), sum(own[3] for own in bins)) == (3, 2)
    flat = measure_spread(file, reward_of("hard_only", ["hard_weight=0"])).rows()
    assert flat["share of groups without spread"] == 1.0


def test_a_store_is_read_and_its_measures_are_written(
    tiny_run: TinyRun, tmp_path: Path, capsys: Any
) -> None:
    table = tmp_path / "reward.csv"
    words = ["--reward", "gt_prob", "--csv", str(table)]
    assert main(["doctor", str(tiny_run.store), *words]) == 0
    assert "mean deviation inside a group" in capsys.readouterr().out
    assert table.read_text().startswith("measure,value\ngroups,")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--reward", "hard_plus_sof"], 1, "did you mean 'hard_plus_soft'?"),
        (["--weights", "hard_weight=2"], 2, "add --reward MODE"),
        (
            ["--reward", "hard_only", "--weights", "hard_weigth=2"],
            1,
            "did you mean 'reward.hard_weight'?",
        ),
        (["--reward", "choice_prob"], 1, "labels were not weighed"),
    ],
)
def test_what_cannot_be_is_a_sentence(
    file: Path, capsys: Any, words: list[str], code: int, said: str
) -> None:
    assert main(["doctor", str(file), *words]) == code
    assert said in capsys.readouterr().err
    with pytest.raises(RecipeError, match="must be a number"):
        reward_of("hard_plus_soft", ["hard_weight=many"])


CONTEXT = Context.of({"model": "m"}, task="t", task_version="1", metric="vqa", cut="p")


def digest(name, role):
    return item_digest(Item(ItemId(name), "q?", ("a",), "train"), "", role=role)


def put(store, query, demos, accuracy, p):
    answer = "a" if accuracy else "b"
    references = (Reference("a", 3, math.log(p)),)
    told = (answer, answer, accuracy, accuracy > 0, references, accuracy, accuracy)
    score = Score(ItemId(query), tuple(map(ItemId, demos)), *told, 1, 0.0)
    demos = [digest(demo, "demo") for demo in demos]
    key = score_key(CONTEXT.digest, digest(query, "query"), demos)
    store.put(CONTEXT, [(key, score)])


def test_groups_of_a_store_are_its_queries(tmp_path):
    path = tmp_path / "scores.db"
    ScoreStore(path).close()
    with pytest.raises(DataError, match="no scores with demonstrations"):
        read_target(path)
    with ScoreStore(path) as store:
        for n in range(30):
            put(store, f"q{n}", (), 0.0, 0.2)
            for place in range(6):
                put(store, f"q{n}", [f"d{place}"], float(place < n % 7), 0.1 + 0.1 * place)  # fmt: skip
    groups = read_target(path).groups
    assert (groups.queries, groups.members, groups.lengths) == (30, 180, {1: 180})
    expected = sum(min(n % 7, 6) for n in range(30)) / 180
    assert groups.accuracy == pytest.approx(expected)
    assert groups.gt_prob == pytest.approx(0.35)
    assert groups.flat == 0.0


def test_a_store_of_equal_scores_is_called_flat_and_without_headroom(tmp_path):
    path = tmp_path / "scores.db"
    with ScoreStore(path) as store:
        for n in range(25):
            for place in range(4):
                put(store, f"q{n}", [f"d{place}"], 0.0, 0.3)
    codes = {finding.code for finding in examine(read_target(path))}
    assert {"flat_groups", "no_headroom", "never_right"} <= codes
