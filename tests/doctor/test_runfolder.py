"""Real small trainings: each documented mistake is found in the log it leaves, and healthy ones stay silent."""

from __future__ import annotations

import json

import pytest

from leverplus.doctor.examine import examine
from leverplus.doctor.runfolder import picks_of, read_picks, read_run
from leverplus.errors import DataError, MissingFile

HEALTHY = [
    {},
    {"grpo": {"epochs": 4, "batch_size": 16, "lr": 1e-3, "advantage": "zscore", "kl_beta": 0.02}},
    {"train": {"stages": ["sft", "pairwise"]}, "pairwise": {"epochs": 4, "batch_size": 16}},
]


def trained(plant, folder, values):
    return read_run(plant(**values).train(folder))


@pytest.mark.parametrize("values", HEALTHY, ids=["default", "zscore", "pairwise"])
def test_a_healthy_training_has_no_findings(plant, tmp_path, values):
    assert [finding.code for finding in examine(trained(plant, tmp_path, values))] == []


SICK = {
    "stale_behaviour": {"grpo": {"behaviour": "sft"}},
    "dropout_in_ratio": {"grpo": {"dropout_in_ratio": True}},
    "reference_not_start": {"grpo": {"reference": "sft"}},
    "top_k_before_baseline": {
        "grpo": {"top_k": [3, 5], "topk_before_advantage": True, "advantage": "zscore", "batch_scale": False},
        "reward": {"mode": "hard_plus_soft"},
    },
    "dead_updates": {"grpo": {"lr": 1e-6}},
    "inverted_kl": {"grpo": {"kl": "k3_inverted", "reference": "sft"}},
    "kl_weight_on_rails": {"grpo": {"beta_rule": "batch", "kl_low": 0.5, "batch_size": 2, "kl_beta": 0.4}},
}


@pytest.mark.slow
@pytest.mark.parametrize("code", SICK)
def test_a_sick_training_shows_its_mistake(plant, tmp_path, code):
    found = {finding.code: finding for finding in examine(trained(plant, tmp_path, SICK[code]))}
    assert code in found


def test_the_symptoms_of_a_stale_policy_are_its_consequences(plant, tmp_path):
    found = examine(trained(plant, tmp_path, {**SICK["stale_behaviour"], "rce": {"lr": 2e-2}}))
    assert found[0].code == "stale_behaviour"
    assert {"ratio_not_one", "clip_saturated"} <= set(found[0].consequences)
    assert found[0].fix == {"set": {"grpo.behaviour": "proximal"}}


def test_a_log_under_way_is_read_without_its_last_half_line(plant, tmp_path):
    plant(sft={"epochs": 2, "batch_size": 16}).train(tmp_path)
    log = tmp_path / "log.jsonl"
    whole = log.read_text()
    log.write_text(whole + '{"stage": "grpo", "epo')
    assert len(read_run(tmp_path).stages("grpo")[0].epochs) == 4
    log.write_text('{"stage": \n' + whole)
    with pytest.raises(DataError, match="line 1 is not JSON"):
        read_run(tmp_path)


def test_a_value_that_was_not_finite_is_found(tmp_path):
    (tmp_path / "log.jsonl").write_text(json.dumps({"stage": "grpo", "epoch": 1, "step": 3, "train/kl": None}) + "\n")
    assert [finding.code for finding in examine(read_run(tmp_path))] == ["not_finite"]


def test_picks_are_counted_by_arm_and_shots(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "predictions.parquet"
    rows = {"arm": ["learned", "learned", "zero_shot"], "shots": [2, 2, 0], "demos": [["a", "b"], ["a", "c"], []]}
    pq.write_table(pa.table(rows), path)
    (picks,) = read_picks(path)
    assert (picks.arm, picks.shots, picks.items, picks.distinct) == ("learned", 2, 2, 3)
    assert (picks.top1, picks.top10, picks.length) == (0.5, 1.0, 2.0)
    assert picks_of("learned_auto", 4, [[], []]).length == 0.0


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(MissingFile, match="not a run folder"):
        read_run(tmp_path)
