"""Probes measure what the preflight judges."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leverplus.doctor.live import preflight, refuse
from leverplus.doctor.probes import (
    merged,
    probe_checkpoint,
    probe_order,
    probe_policy,
    probe_pools,
    probe_rewards,
    probe_scorer,
)
from leverplus.doctor.quality import stats_of
from leverplus.doctor.records import Probe
from leverplus.errors import TrainingError
from leverplus.training.checkpoint import save_checkpoint
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
    findings = preflight(made.recipe.values(), probe, stats_of(made.groups))
    assert [finding.code for finding in findings] == ["single_length_data"]
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


def test_a_checkpoint_is_compared_with_the_policy_that_was_saved(plant, tmp_path):
    made = plant()
    policy = made.policy()
    save_checkpoint(tmp_path / "c", policy, "hash")
    assert probe_checkpoint(policy, tmp_path / "c", made.rows(), made.table).logit_gap == 0.0
    with torch.no_grad():
        next(policy.parameters()).add_(0.1)
    probe = probe_checkpoint(policy, tmp_path / "c", made.rows(), made.table)
    assert probe.logit_gap > 1e-3
    assert [finding.code for finding in preflight({}, probe)] == ["checkpoint_not_whole"]


def test_picks_of_a_selector_that_ignores_positions_do_not_depend_on_the_order_of_the_pool(plant):
    made = plant()
    assert probe_order(made.policy(), made.pools, made.table, shots=2).order_agreement == 1.0


def test_scores_that_change_when_asked_again_are_counted(tmp_path):
    from leverplus.backends.world import WorldBackend
    from leverplus.engine.local import LocalEngine
    from leverplus.scoring.scorer import Scorer
    from leverplus.store.db import ScoreStore
    from leverplus.tasks.world import WorldTask

    task = WorldTask(world_seed=0)
    backend = WorldBackend(task)
    items = task.items("train")
    prompts = [(query.id, (items[-1 - n].id,)) for n, query in enumerate(items[:12])]
    with ScoreStore(tmp_path / "s.db") as store:
        scorer = Scorer(task, backend, store, LocalEngine(backend))
        scores = scorer.score(prompts)
        honest = probe_scorer(scorer, prompts)
        assert (honest.rescored, honest.flipped) == (12, 0)
        flaky = Scorer(task, _FlakyBackend(backend), store, LocalEngine(backend))
        right = sum(score.correct for score in scores)
        assert right > 0
        assert probe_scorer(flaky, prompts).flipped == right
    assert scorer.meter.calls("training") == 12


class _FlakyBackend:
    """The real model, but every answer is lost on the way."""

    def __init__(self, backend):
        self.backend = backend

    def fingerprint(self):
        return self.backend.fingerprint()

    def answer(self, requests):
        return [replace(reply, raw="nonsense") for reply in self.backend.answer(requests)]


def test_groups_are_flat_by_the_reward_that_is_trained_on(plant):
    """Labels whose probabilities are tiny differ by choice_prob and not by accuracy or gt_prob."""
    made = plant()
    stats = replace(stats_of(made.groups), flat=1.0, all_zero=1.0)
    spread = probe_rewards(made.rows())
    assert spread.reward_flat < 0.5
    assert "flat_groups" not in {finding.code for finding in preflight(made.recipe.values(), spread, stats)}
    even = probe_rewards([replace(row, rewards=torch.zeros_like(row.rewards)) for row in made.rows()])
    assert even.reward_flat == 1.0
    assert "flat_groups" in {finding.code for finding in preflight(made.recipe.values(), even, stats)}


def test_a_handful_of_flat_groups_stops_no_run(plant):
    """A run with rounds of asking begins with one group, which is all wrong or all right as often as not."""
    made = plant()
    dull = [replace(g, scores=tuple(replace(g.scores[0], demos=s.demos) for s in g.scores)) for g in made.groups[:3]]
    found = {finding.code: finding for finding in preflight(made.recipe.values(), None, stats_of(dull))}
    assert found["flat_groups"].severity == "warning"
    refuse(list(found.values()))


def test_groups_without_any_spread_are_refused_before_training(plant):
    made = plant()
    dull = [replace(g, scores=tuple(replace(g.scores[0], demos=s.demos) for s in g.scores)) for g in made.groups]
    stats = stats_of(dull)
    assert (stats.queries, stats.pool, stats.flat) == (len(made.groups), 10, 1.0)
    assert stats.sources["random"].members == stats.members == stats.without_density
    found = {finding.code: finding for finding in preflight(made.recipe.values(), None, stats)}
    assert found["flat_groups"].severity == "error"
    with pytest.raises(TrainingError, match=r"no_headroom|flat_groups"):
        refuse(list(found.values()))
