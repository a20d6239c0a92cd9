"""The preflight measures what it judges and stops on errors; epochs are judged as they come; a run folder is read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from tiny_world import TinyRun

from leverplus.data.types import Item, ItemId, Pool
from leverplus.errors import DataError, MissingFile, TrainingError
from leverplus.learn.checkpoint import save_checkpoint
from leverplus.learn.runlog import RunLog
from leverplus_doctor.check import examine
from leverplus_doctor.monitor import epoch_findings, preflight, refuse
from leverplus_doctor.probes import (
    merged,
    probe_checkpoint,
    probe_policy,
    probe_pools,
    probe_rewards,
    probe_scorer,
    probe_splits,
)
from leverplus_doctor.quality import stats_of
from leverplus_doctor.read import picks_of, read_picks, read_run
from leverplus_doctor.records import Probe


def codes(findings):
    return [finding.code for finding in findings]


def dull(groups):
    """The same groups, all of whose members have one score."""
    found = []
    for group in groups:
        first = group.scores[0]
        scores = tuple(replace(first, demos=own.demos) for own in group.scores)
        found.append(replace(group, scores=scores))
    return found


def test_a_healthy_start_passes(plant):
    made = plant()
    probe = probe_policy(made.policy(), made.rows(), made.table)
    assert probe.log_ratio == 0.0
    assert probe.kl == pytest.approx(0.0, abs=1e-7)
    # 10 * 9 ordered pairs
    assert probe.chance == pytest.approx(torch.tensor(90.0).log().item(), abs=1e-4)
    assert probe.unreachable == 0
    findings = preflight(made.recipe.values(), probe, stats_of(made.groups))
    assert codes(findings) == ["single_length_data"]
    refuse(findings)


def test_a_label_outside_its_pool_is_counted(plant):
    made = plant()
    rows = made.rows()
    broken = replace(rows[0], pool_rows=rows[0].pool_rows[:4])
    expected = int((rows[0].sequences >= 4).any(-1).sum())
    assert expected > 0
    probe = probe_policy(made.policy(), [broken, *rows[1:]], made.table)
    assert probe.unreachable == expected


ITEMS = {}
for _name, _image in (("q", "1"), ("t", "2"), ("a", "3"), ("b", "1"), ("c", "4")):
    ITEMS[_name] = Item(ItemId(_name), "q?", ("a",), "train", image_id=_image)


def pool(query, candidates, builder="x"):
    return Pool(ItemId(query), tuple(map(ItemId, candidates)), builder)


def test_leaks_builders_and_shared_images_are_measured():
    clean = {"train": [pool("q", "ac")], "test": [pool("t", "ab")]}
    probe = probe_pools(clean, ITEMS)
    assert (probe.leaked, len(set(probe.builders.values()))) == (0, 1)
    assert probe_splits([ITEMS["q"]], [ITEMS["t"]]).overlap == 0
    leaky = {"train": [pool("q", "bc")], "test": [pool("b", "ba", "y")]}
    probe = merged(probe_pools(leaky, ITEMS), probe_splits([ITEMS["q"]], [ITEMS["b"]]))
    assert (probe.leaked, probe.overlap, len(set(probe.builders.values()))) == (2, 1, 2)
    named = {"query_leaks", "split_overlap", "pool_builder_differs"}
    assert set(codes(preflight({}, probe))) == named


def test_probes_are_joined_and_the_first_measurement_stays():
    joined = merged(Probe(leaked=0, kl=0.5), Probe(kl=0.1, nll=2.0))
    assert (joined.leaked, joined.kl, joined.nll, joined.overlap) == (0, 0.5, 2.0, None)


def test_a_checkpoint_is_compared_with_the_policy_that_was_saved(plant, tmp_path):
    made = plant()
    policy = made.policy()
    save_checkpoint(tmp_path / "c", policy, "hash")
    probe = probe_checkpoint(policy, tmp_path / "c", made.rows(), made.table)
    assert probe.logit_gap == 0.0
    with torch.no_grad():
        next(policy.parameters()).add_(0.1)
    probe = probe_checkpoint(policy, tmp_path / "c", made.rows(), made.table)
    assert probe.logit_gap > 1e-3
    assert codes(preflight({}, probe)) == ["checkpoint_not_whole"]


class _FlakyBackend:
    """The real model, but every answer is lost on the way."""

    def __init__(self, backend):
        self.backend = backend

    def fingerprint(self):
        return self.backend.fingerprint()

    def answer(self, requests):
        replies = self.backend.answer(requests)
        return [replace(reply, raw="nonsense") for reply in replies]


def test_scores_that_change_when_asked_again_are_counted(tmp_path):
    from leverplus.models.base import LocalEngine
    from leverplus.scores.scorer import Scorer
    from leverplus.scores.store import ScoreStore
    from leverplus_lab.world.backend import WorldBackend
    from leverplus_lab.world.task import WorldTask

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


def test_groups_are_flat_by_the_reward_that_is_trained_on(plant):
    """Labels whose probabilities are tiny differ by choice_prob and not by accuracy or gt_prob."""
    made = plant()
    stats = replace(stats_of(made.groups), flat=1.0, all_zero=1.0)
    spread = probe_rewards(made.rows())
    assert spread.reward_flat < 0.5
    values = made.recipe.values()
    assert "flat_groups" not in codes(preflight(values, spread, stats))
    even = []
    for row in made.rows():
        even.append(replace(row, rewards=torch.zeros_like(row.rewards)))
    flat = probe_rewards(even)
    assert flat.reward_flat == 1.0
    assert "flat_groups" in codes(preflight(values, flat, stats))


def test_groups_without_any_spread_are_refused_before_training_but_not_a_handful(plant):
    made = plant()
    stats = stats_of(dull(made.groups))
    assert (stats.queries, stats.pool, stats.flat) == (len(made.groups), 10, 1.0)
    assert stats.sources["random"].members == stats.members == stats.without_density
    found = preflight(made.recipe.values(), groups=stats)
    assert ("flat_groups", "error") in [(own.code, own.severity) for own in found]
    with pytest.raises(TrainingError, match=r"no_headroom|flat_groups"):
        refuse(found)
    # a run with rounds of asking begins with one group, which is all wrong or all right as often as not
    few = preflight(made.recipe.values(), groups=stats_of(dull(made.groups[:3])))
    assert ("flat_groups", "warning") in [(own.code, own.severity) for own in few]
    refuse(few)


def test_a_sick_recipe_is_refused_with_what_to_do(plant):
    findings = preflight(plant(grpo={"behaviour": "sft"}).recipe.values())
    with pytest.raises(
        TrainingError, match=r"stale_behaviour.*Refresh the proximal policy"
    ):
        refuse(findings)


@pytest.mark.slow
def test_epochs_are_judged_as_they_come(plant, tmp_path):
    made = plant(grpo={"lr": 1e-6})
    lines = RunLog(made.train(tmp_path) / "log.jsonl").lines()
    values = made.recipe.values()
    grpo = [line for line in lines if line["stage"] == "grpo"]
    assert "dead_updates" not in codes(epoch_findings(lines[:1], values))
    late = set(codes(epoch_findings(grpo, values)))
    assert {"learning_rate_tiny", "dead_updates", "identical_picks"} <= late


@pytest.mark.slow
def test_applying_the_fix_of_the_first_error_again_and_again_mends_a_recipe_with_every_old_mistake(
    plant, tmp_path
):
    legacy = {
        "behaviour": "sft",
        "reference": "sft",
        "kl": "k3_inverted",
        "beta_rule": "batch",
        "dropout_in_ratio": True,
        "lr": 5e-6,
        "top_k": [3, 5],
        "topk_before_advantage": True,
        "batch_size": 16,
        "epochs": 3,
    }
    changes: dict[str, dict[str, object]] = {"grpo": legacy}
    mended = []
    for attempt in range(12):
        made = plant(**changes)
        values = made.recipe.values()
        errors = [own for own in preflight(values) if own.severity == "error"]
        if not errors:
            log = made.train(tmp_path / str(attempt)) / "log.jsonl"
            found = epoch_findings(RunLog(log).lines(), values)
            errors = [own for own in found if own.severity == "error"]
        if not errors:
            break
        assert errors[0].fix is not None, errors[0].code
        for key, value in errors[0].fix["set"].items():
            section, name = key.split(".")
            changes.setdefault(section, {})[name] = value
        mended.append(errors[0].code)
    assert errors == []
    assert len(mended) == len(set(mended)) >= 6
    assert changes["grpo"]["lr"] != 5e-6


def trained(plant, folder, values):
    return read_run(plant(**values).train(folder))


HEALTHY = {
    "default": {},
    "zscore": {
        "grpo": {"batch_size": 16, "lr": 1e-3, "advantage": "zscore", "kl_beta": 0.02}
    },
    "pairwise": {
        "train": {"stages": ["sft", "pairwise"]},
        "pairwise": {"epochs": 4, "batch_size": 16},
    },
}
SICK = {
    "stale_behaviour": {"grpo": {"behaviour": "sft"}, "rce": {"lr": 2e-2}},
    "dropout_in_ratio": {"grpo": {"dropout_in_ratio": True}},
    "reference_not_start": {"grpo": {"reference": "sft"}},
    "top_k_before_baseline": {
        "grpo": {
            "top_k": [3, 5],
            "topk_before_advantage": True,
            "advantage": "zscore",
            "batch_scale": False,
        },
        "reward": {"mode": "hard_plus_soft"},
    },
    "dead_updates": {"grpo": {"lr": 1e-6}},
    "inverted_kl": {"grpo": {"kl": "k3_inverted", "reference": "sft"}},
    "kl_weight_on_rails": {
        "grpo": {"beta_rule": "batch", "kl_low": 0.5, "batch_size": 2, "kl_beta": 0.4}
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_has_no_findings(plant, tmp_path, name):
    assert codes(examine(trained(plant, tmp_path, HEALTHY[name]))) == []


@pytest.mark.slow
@pytest.mark.parametrize("code", SICK)
def test_a_sick_training_shows_its_mistake(plant, tmp_path, code):
    found = examine(trained(plant, tmp_path, SICK[code]))
    assert code in codes(found)
    if code == "stale_behaviour":
        assert found[0].code == code
        assert {"ratio_not_one", "clip_saturated"} <= set(found[0].consequences)
        assert found[0].fix == {"set": {"grpo.behaviour": "proximal"}}


def own_log(tmp_path, stage="grpo", **curves):
    """What is found in a log.jsonl of this package, an epoch a line."""
    lines = []
    for epoch, values in enumerate(zip(*curves.values(), strict=True), start=1):
        line = {"stage": stage, "epoch": epoch}
        for name, value in zip(curves, values, strict=True):
            line[name.replace("__", "/")] = value
        lines.append(json.dumps(line))
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    return [f.code for f in examine(read_run(tmp_path)) if f.severity != "info"]


RISES = [0.40, 0.50, 0.60, 0.68, 0.75, 0.81, 0.86, 0.90]
PEAKS = [0.40, 0.47, 0.52, 0.50, 0.46, 0.42, 0.39, 0.36]


@pytest.mark.parametrize("stage", ["sft", "rce", "grpo"])
def test_a_stage_that_gets_worse_on_held_out_groups_overfits(tmp_path, stage):
    fitted = {"train__fit__group_reward": RISES}
    assert own_log(tmp_path, stage, **fitted, val__group_reward=PEAKS)[0] == "overfits"
    assert own_log(tmp_path, stage, **fitted, val__group_reward=RISES) == []


def test_a_rising_held_out_loss_is_overfitting_only_where_what_is_learnt_gets_unlikely(
    tmp_path,
):
    rises = [5, 5.5, 6, 7, 8]
    held = {"val__loss": rises, "val__reward": [0.5] * 5}
    found = own_log(tmp_path, train__fit__loss=[5, 4, 3, 2, 1], **held)
    assert "overfits" not in found  # of a policy gradient
    losses = {"train__loss__total": [0.0, -0.2, -0.5, -0.9, -1.4], "val__loss": rises}
    for skill, found in (
        ([0.1, 0.0, -0.2, -0.4, -0.7], ["overfits"]),
        ([0.1, 0.1, 0.2, 0.2, 0.3], []),
    ):
        assert own_log(tmp_path, "rce", **losses, train__nll_skill=skill) == found


def test_causes_are_found_in_our_own_log_without_settings(tmp_path):
    for curves, found in (
        ({"train__kl": [0.04, 0.3, 1.1, 4.0, 9.0, 18.0, 29.0]}, ["kl_explodes"]),
        (
            {"train__entropy__norm": [0.6, 0.55, 0.5, 0.5, 0.45, 0.4, 0.03, 0.01]},
            ["entropy_collapsed"],
        ),
        ({"train__picks__unique_demos": [40, 12, 2, 2]}, ["query_ignored"]),
        ({"train__picks__unique_demos": [40, 38, 35, 36]}, []),
        ({"train__kl": [0.1, None]}, ["not_finite"]),
        (
            {
                "train__adv__std": [0.031] * 6,
                "train__frac_reward_zero_std": [0.05] * 6,
                "val__reward": [0.3, 0.36, 0.41, 0.45, 0.5, 0.54],
            },
            [],  # only centred, in a training that learns
        ),
        (
            {"train__adv__std": [0.031] * 6, "val__reward": [0.3] * 6},
            ["advantage_std_tiny"],
        ),
    ):
        assert own_log(tmp_path, **curves) == found, curves


def test_a_log_under_way_is_read_without_its_last_half_line(tmp_path):
    own_log(tmp_path, train__kl=[0.1, 0.2])
    log = tmp_path / "log.jsonl"
    whole = log.read_text()
    log.write_text(whole + '{"stage": "grpo", "epo')
    assert len(read_run(tmp_path).stages("grpo")[0].epochs) == 2
    log.write_text('{"stage": \n' + whole)
    with pytest.raises(DataError, match="line 1 is not JSON"):
        read_run(tmp_path)
    with pytest.raises(MissingFile, match="not a run folder"):
        read_run(tmp_path / "nowhere")


def test_picks_are_counted_by_arm_and_shots(tiny_run: TinyRun):
    picks = read_picks(tiny_run.folder / "predictions.parquet")
    assert all(own.items > 0 and own.shots > 0 for own in picks)
    own = picks_of("learned", 2, [["a", "b"], ["a", "c"]])
    assert (own.items, own.distinct, own.top1, own.top10) == (2, 3, 0.5, 1.0)
    assert (own.length, own.same) == (2.0, 1.0)
    assert picks_of("learned_auto", 4, [[], []]).length == 0.0
