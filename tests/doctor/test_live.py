"""The preflight measures what it judges, stops on errors, and epochs are judged as they come."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leverplus.doctor.live import epoch_findings, merged, preflight, probe_policy, probe_pools, refuse
from leverplus.doctor.records import Probe
from leverplus.errors import TrainingError
from leverplus.training.runlog import RunLog
from leverplus.types import Item, ItemId, Pool


def item(name, image=None, split="train"):
    return Item(ItemId(name), "q?", ("a",), split, image_id=image)


ITEMS = {
    ItemId(name): item(name, image) for name, image in (("q", "1"), ("t", "2"), ("a", "3"), ("b", "1"), ("c", "4"))
}


def pool(query, candidates, builder="x"):
    return Pool(ItemId(query), tuple(map(ItemId, candidates)), builder)


def test_a_healthy_start_passes(plant):
    made = plant()
    probe = probe_policy(made.policy(), made.rows(), made.table)
    assert probe.log_ratio == 0.0
    assert probe.kl == pytest.approx(0.0, abs=1e-7)
    assert probe.chance == pytest.approx(torch.tensor(90.0).log().item(), abs=1e-4)  # 10 * 9 ordered pairs
    assert probe.unreachable == 0
    findings = preflight(made.recipe.values(), probe)
    assert findings == []
    refuse(findings)


def test_a_label_outside_its_pool_is_counted(plant):
    made = plant()
    rows = made.rows()
    broken = replace(rows[0], pool_rows=rows[0].pool_rows[:4])
    expected = int((rows[0].sequences >= 4).any(-1).sum())
    assert expected > 0
    assert probe_policy(made.policy(), [broken, *rows[1:]], made.table).unreachable == expected


def test_leaks_builders_and_shared_images_are_measured():
    clean = probe_pools({"train": [pool("q", ["a", "c"])], "test": [pool("t", ["a", "b"])]}, ITEMS)
    assert (clean.leaked, clean.overlap, len(set(clean.builders.values()))) == (0, 0, 1)
    leaky = probe_pools({"train": [pool("q", ["b", "c"])], "test": [pool("b", ["b", "a"], "y")]}, ITEMS)
    assert (leaky.leaked, leaky.overlap, len(set(leaky.builders.values()))) == (2, 1, 2)
    codes = {finding.code for finding in preflight({}, leaky)}
    assert codes == {"query_leaks", "split_overlap", "pool_builder_differs"}


def test_probes_are_joined_and_the_first_measurement_stays():
    joined = merged(Probe(leaked=0, kl=0.5), Probe(kl=0.1, nll=2.0))
    assert (joined.leaked, joined.kl, joined.nll, joined.overlap) == (0, 0.5, 2.0, None)


def test_a_sick_recipe_is_refused_with_what_to_do(plant):
    findings = preflight(plant(grpo={"behaviour": "sft"}).recipe.values())
    with pytest.raises(TrainingError, match=r"stale_behaviour.*Refresh the proximal policy"):
        refuse(findings)


def test_epochs_are_judged_as_they_come(plant, tmp_path):
    made = plant(grpo={"lr": 1e-6})
    lines = RunLog(made.train(tmp_path) / "log.jsonl").lines()
    values = made.recipe.values()
    grpo = [line for line in lines if line["stage"] == "grpo"]
    early = {finding.code for finding in epoch_findings(lines[:1], values)}
    late = {finding.code for finding in epoch_findings(grpo, values)}
    assert "dead_updates" not in early
    assert {"learning_rate_tiny", "dead_updates", "identical_picks"} <= late
