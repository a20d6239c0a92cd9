"""Stages against their formulas, worked out one group at a time in plain Python on groups of different sizes."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from leverplus.learn.data.batch import GroupBatch, collate
from leverplus.learn.data.from_search import rows_from_groups
from leverplus.learn.data.rows import Row
from leverplus.learn.grpo import (
    Grpo,
    advantage_diagnostics,
    importance_diagnostics,
    step_mean,
)
from leverplus.learn.policies.base import (
    PAD,
    STOP,
    Policy,
    StepLogprobs,
    sequence_logprobs,
)
from leverplus.learn.settings import (
    GrpoConfig,
    ListwiseConfig,
    PairwiseConfig,
    RceConfig,
    RewardConfig,
    SftConfig,
)
from leverplus.learn.stages import (
    Listwise,
    Progress,
    Rce,
    Sft,
    best_member,
    frozen_copy,
    prefix_tables,
    sequence_nll,
)
from leverplus_lab.pairwise import Pairwise

START = Progress(0, 0, 10)
REWARDS = ([0.9, 0.1, 0.4, 0.4], [0.5, 0.5], [0.2, 0.8, 0.3])
"""Of three groups; the second is flat."""
ACCURACY = ([1.0, 0.0, 0.3, 0.0], [1.0, 0.6], [0.0, 0.0, 0.0])
LOG_MU = ([-4.0, -4.5, -3.0, -5.0], [-4.0, -4.0], [-2.0, -6.0, -4.2])


def batch_of(planted: Any, log_mu: bool = True) -> GroupBatch:
    rows = rows_from_groups(planted.groups(6)[:3], planted.table, RewardConfig())
    made = []
    for row, rewards, accuracy, mu in zip(rows, REWARDS, ACCURACY, LOG_MU, strict=True):
        size = len(rewards)
        own = torch.tensor(mu) if log_mu else torch.full((size,), math.nan)
        sequences = row.sequences[:size].clone()
        sequences[-1, 1] = PAD  # the last member is a step shorter
        made.append(
            Row(
                row.query,
                row.query_row,
                row.pool_rows,
                sequences,
                torch.tensor(rewards),
                own,
                torch.tensor(accuracy),
            )
        )
    return collate(made, planted.table)


def perturbed(policy: Policy, size: float, seed: int = 0) -> Policy:
    clone = frozen_copy(policy)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in clone.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return clone


def logprobs(policy: Policy, batch: GroupBatch) -> StepLogprobs:
    with torch.no_grad():
        return sequence_logprobs(
            policy, policy.prepare(batch.features), batch.sequences
        )


def members(batch: GroupBatch) -> list[list[int]]:
    """The places of the members that exist, group by group."""
    return [
        [place for place, there in enumerate(row) if there]
        for row in batch.mask.tolist()
    ]


def soft(values: list[float]) -> np.ndarray:
    raised = np.exp(np.array(values) - max(values))
    return raised / raised.sum()


def nll_figures(found: StepLogprobs, batch: GroupBatch) -> tuple[float, float]:
    own, even = [], []
    for row, places in enumerate(members(batch)):
        for place in places:
            own.append(-float(found.total[row, place]))
            steps = int(found.valid[row, place].sum())
            even.append(
                sum(math.log(10 - step) for step in range(steps))
            )  # a pool of ten, one fewer at each step
    return float(np.mean(own)), 1.0 - float(np.mean(own)) / float(np.mean(even))


# supervised stages


@pytest.mark.parametrize("labels", ["top", "all", "weighted"])
def test_sft_weighs_the_likelihood_by_its_labels(labels: str, planted: Any) -> None:
    policy, batch = planted.policy(), batch_of(planted)
    result = Sft(SftConfig(labels=labels, temperature=0.3), policy, {}).loss(
        policy, batch, START
    )
    found, expected = logprobs(policy, batch), []
    for row, places in enumerate(members(batch)):
        rewards = REWARDS[row]
        if labels == "top":
            weights = np.eye(len(places))[int(np.argmax(rewards))]
        elif labels == "all":
            weights = np.full(len(places), 1 / len(places))
        else:
            weights = soft([reward / 0.3 for reward in rewards])
        expected.append(
            -sum(
                w * float(found.total[row, p])
                for w, p in zip(weights, places, strict=True)
            )
        )
    assert result.total.item() == pytest.approx(np.mean(expected), rel=1e-5)
    assert result.rows == 3
    nll, skill = nll_figures(found, batch)
    assert result.diagnostics["nll"] == pytest.approx(nll, rel=1e-5)
    assert result.diagnostics["nll_skill"] == pytest.approx(skill, rel=1e-4)
    assert sequence_nll(found, batch.mask)["nll"] == pytest.approx(nll, rel=1e-5)


def test_the_best_member_is_the_first_of_equals_and_never_padding(planted: Any) -> None:
    batch = batch_of(planted)
    assert best_member(batch).int().tolist() == [
        [1, 0, 0, 0],
        [1, 0, 0, 0],
        [0, 1, 0, 0],
    ]
    lowered = replace(batch, rewards=batch.rewards - 5.0)
    assert torch.equal(best_member(lowered), best_member(batch)), (
        "padding holds 0, more than any reward here"
    )


@pytest.mark.parametrize("skip_flat", [True, False])
@pytest.mark.parametrize("centred", [True, False])
def test_rce_weighs_by_reward_at_the_temperature_of_the_step(
    centred: bool, skip_flat: bool, planted: Any
) -> None:
    policy, batch = planted.policy(), batch_of(planted)
    config = RceConfig(
        temperature_start=0.5, temperature_end=0.1, centred=centred, skip_flat=skip_flat
    )
    stage = Rce(config, policy, {})
    found = logprobs(policy, batch)
    for step, temperature in ((0, 0.5), (2, 0.3), (4, 0.1), (9, 0.1)):
        expected = []
        for row, places in enumerate(members(batch)):
            if row == 1 and (skip_flat or centred):
                continue  # flat: left out, or centred weights that are all 0
            weights = soft([reward / temperature for reward in REWARDS[row]]) - (
                1 / len(places) if centred else 0.0
            )
            expected.append(
                -sum(
                    w * float(found.total[row, p])
                    for w, p in zip(weights, places, strict=True)
                )
            )
        result = stage.loss(policy, batch, Progress(0, step, 5))
        assert result.total.item() == pytest.approx(np.mean(expected), rel=1e-4)
        assert result.rows == len(expected)
        assert result.diagnostics["temperature"] == pytest.approx(temperature)


@pytest.mark.parametrize("reference", ["stage_start", "none"])
def test_pairwise_wants_the_better_of_two_to_gain_more_over_the_reference(
    reference: str, planted: Any
) -> None:
    start, batch = planted.policy(), batch_of(planted)
    config = PairwiseConfig(margin=0.15, beta=0.7, reference=reference, nll_best=0.3)
    stage = Pairwise(config, start, {})
    policy = perturbed(start, 0.3)
    result = stage.loss(policy, batch, START)
    now, before = logprobs(policy, batch), logprobs(start, batch)
    scores = now.total - before.total if reference == "stage_start" else now.total
    losses, best = [], []
    for row, places in enumerate(members(batch)):
        above = below = 0.0
        for i, j in itertools.permutations(places, 2):
            gap = REWARDS[row][i] - REWARDS[row][j]
            if gap > 0.15:
                above += gap * math.log1p(
                    math.exp(-0.7 * float(scores[row, i] - scores[row, j]))
                )
                below += gap
        if below:
            losses.append(above / below)
            best.append(-float(now.total[row, int(np.argmax(REWARDS[row]))]))
    expected = float(np.mean(losses)) + 0.3 * float(np.mean(best))
    assert result.total.item() == pytest.approx(expected, rel=1e-4)
    assert result.parts["nll"].item() == pytest.approx(
        0.3 * float(np.mean(best)), rel=1e-4
    )
    assert result.rows == 2


def one_group(
    planted: Any, sequences: list[list[int]], rewards: list[float], stop: bool = False
) -> GroupBatch:
    row = rows_from_groups(planted.groups(6)[:1], planted.table, RewardConfig())[0]
    nothing = torch.full((len(rewards),), math.nan)
    own = Row(
        row.query,
        row.query_row,
        row.pool_rows,
        torch.tensor(sequences),
        torch.tensor(rewards),
        nothing,
        torch.tensor(rewards),
    )
    return collate([own], planted.table)


def test_prefixes_hold_the_rewards_of_their_measured_next_picks(planted: Any) -> None:
    lists = [[3, PAD], [5, PAD], [5, 1], [5, 2], [7, 1]]
    batch = one_group(planted, lists, [0.1, 0.2, 0.3, 0.4, 0.5])
    paths, steps, targets = prefix_tables(batch, stops=False)
    assert paths.tolist() == [[[PAD, PAD], [5, PAD]]]
    assert steps.tolist() == [[0, 1]]
    known = [
        {place: value for place, value in enumerate(row) if not math.isnan(value)}
        for row in targets[0].tolist()
    ]
    assert [set(row) for row in known] == [{3, 5}, {1, 2}]
    assert known[0] == pytest.approx({3: 0.1, 5: 0.2})
    assert known[1] == pytest.approx({1: 0.3, 2: 0.4})
    assert targets.shape == (1, 2, 10)


def test_stopping_competes_with_every_measured_next_pick(planted: Any) -> None:
    lists = [[STOP, PAD, PAD], [5, STOP, PAD], [5, 1, STOP], [5, 2, STOP]]
    batch = one_group(planted, lists, [0.1, 0.2, 0.3, 0.4])
    paths, steps, targets = prefix_tables(batch, stops=True)
    assert targets.shape[-1] == 11
    known = [
        {place: value for place, value in enumerate(row) if not math.isnan(value)}
        for row in targets[0].tolist()
    ]
    assert known[0] == pytest.approx({10: 0.1, 5: 0.2})
    assert known[1] == pytest.approx({10: 0.2, 1: 0.3, 2: 0.4})
    assert (paths[0, :, 0].tolist(), steps.tolist()) == ([PAD, 5], [[0, 1]])


@pytest.mark.parametrize("among", ["tried", "pool"])
def test_listwise_compares_measured_next_picks_and_says_how_often_the_best_is_likeliest(
    among: str, planted: Any
) -> None:
    policy = planted.policy(state="gru")
    batch = one_group(
        planted, [[3, PAD], [5, PAD], [5, 1], [5, 2], [7, 1]], [0.1, 0.2, 0.3, 0.4, 0.5]
    )
    result = Listwise(ListwiseConfig(among=among, temperature=0.2), policy, {}).loss(
        policy, batch, START
    )
    table = logprobs(policy, batch).table[0]
    nodes = [(table[0, 0], {3: 0.1, 5: 0.2}), (table[2, 1], {1: 0.3, 2: 0.4})]
    losses, hits = [], []
    for row, rewards in nodes:
        target = soft([reward / 0.2 for reward in rewards.values()])
        own = np.array([float(row[place]) for place in rewards])
        shifted = own - math.log(np.exp(own).sum()) if among == "tried" else own
        losses.append(-float((target * shifted).sum()))
        hits.append(int(own.argmax()) == 1)
    assert result.total.item() == pytest.approx(np.mean(losses), rel=1e-4)
    assert result.diagnostics["listwise/accuracy"] == pytest.approx(np.mean(hits))
    assert result.diagnostics["listwise/rows"] == 2


@pytest.mark.parametrize(
    ("among", "trunk", "left_out"),
    [
        ("tried", "bi_encoder", True),
        ("pool", "bi_encoder", False),
        ("tried", "", False),
    ],
)
def test_untried_candidates_are_left_out_only_where_nothing_depends_on_them(
    among: str, trunk: str, left_out: bool, planted: Any
) -> None:
    policy = planted.policy(**({"trunk": trunk} if trunk else {}))
    assert (
        Listwise(ListwiseConfig(among=among), policy, {}).tried_only(policy) is left_out
    )
    assert Sft(SftConfig(), policy, {}).tried_only(policy) is False


# GRPO


def grpo(
    planted: Any, **changes: object
) -> tuple[Grpo, Policy, GroupBatch, dict[str, StepLogprobs]]:
    """A stage in the middle of a round: policy, proximal policy and reference all differ."""
    start = planted.policy()
    config = replace(
        GrpoConfig(kl_beta=0.3, entropy_bonus=0.02, batch_scale=False), **changes
    )  # type: ignore[arg-type]
    stage = Grpo(config, start, {"sft": perturbed(start, 0.1, seed=2)})
    stage.copies["proximal"] = perturbed(start, 0.05, seed=1)
    policy, batch = perturbed(start, 0.1), batch_of(planted)
    known = {
        name: logprobs(copy, batch)
        for name, copy in {**stage.copies, "policy": policy}.items()
    }
    return stage, policy, batch, {**known, "sft": logprobs(stage.anchors["sft"], batch)}


def entropy_of(table: torch.Tensor) -> float:
    return -sum(math.exp(x) * x for x in table.tolist() if x > -math.inf)


def kl_of(table: torch.Tensor, other: torch.Tensor) -> float:
    pairs = zip(table.tolist(), other.tolist(), strict=True)
    return sum(math.exp(x) * (x - y) for x, y in pairs if x > -math.inf)


@pytest.mark.parametrize("behaviour", ["proximal", "sft", "stored"])
@pytest.mark.parametrize("level", ["step", "sequence"])
def test_the_loss_is_the_clipped_surrogate_and_the_kl_and_the_entropy(
    level: str, behaviour: str, planted: Any
) -> None:
    stage, policy, batch, known = grpo(
        planted,
        clip_level=level,
        behaviour=behaviour,
        clip_low=0.05,
        clip_high=0.1,
        importance_cap=2.0,
    )
    result = stage.loss(policy, batch, START)
    new, prox, reference = known["policy"], known["proximal"], known["reference"]
    old = known["sft"] if behaviour == "sft" else prox
    gains, kls, entropies = [], [], []
    for row, places in enumerate(members(batch)):
        if row == 1:
            continue  # flat
        mean = {
            place: np.mean([REWARDS[row][other] for other in places if other != place])
            for place in places
        }
        own_gain, own_kl, own_entropy = [], [], []
        for place in places:
            advantage = REWARDS[row][place] - float(mean[place])
            if behaviour == "stored":
                advantage *= min(
                    math.exp(float(prox.total[row, place]) - LOG_MU[row][place]), 2.0
                )
            steps = range(int(new.valid[row, place].sum()))
            change = [
                float(new.steps[row, place, t] - old.steps[row, place, t])
                for t in steps
            ]
            ratios = (
                [math.exp(sum(change))]
                if level == "sequence"
                else [math.exp(x) for x in change]
            )
            worth = [
                min(r * advantage, min(max(r, 0.95), 1.1) * advantage) for r in ratios
            ]
            own_gain.append(np.mean(worth))
            own_kl.append(
                sum(
                    kl_of(new.table[row, place, t], reference.table[row, place, t])
                    for t in steps
                )
            )
            own_entropy.append(
                np.mean([entropy_of(new.table[row, place, t]) for t in steps])
            )
        gains.append(np.mean(own_gain))
        kls.append(np.mean(own_kl))
        entropies.append(np.mean(own_entropy))
    assert result.parts["pg"].item() == pytest.approx(
        -np.mean(gains), rel=1e-3, abs=1e-6
    )
    assert result.parts["kl"].item() == pytest.approx(0.3 * np.mean(kls), rel=1e-3)
    assert result.parts["entropy"].item() == pytest.approx(
        -0.02 * np.mean(entropies), rel=1e-4
    )
    assert result.total.item() == pytest.approx(
        sum(float(part) for part in result.parts.values()), rel=1e-5
    )
    assert result.rows == 2
    assert result.diagnostics["kl_coef"] == 0.3


def test_what_is_said_of_a_batch_is_what_its_groups_show(planted: Any) -> None:
    stage, policy, batch, known = grpo(planted)
    said = stage.loss(policy, batch, START).diagnostics
    new, prox, reference = known["policy"], known["proximal"], known["reference"]
    flat = [reward for group in REWARDS for reward in group]
    assert said["reward"] == pytest.approx(np.mean(flat))
    assert said["reward_std"] == pytest.approx(
        np.mean([np.std(group) for group in REWARDS])
    )
    assert said["reward_std_batch"] == pytest.approx(np.std(flat))
    assert said["frac_reward_zero_std"] == pytest.approx(1 / 3)
    assert said["frac_reward_all_zero"] == pytest.approx(1 / 3)
    assert said["frac_reward_all_one"] == pytest.approx(1 / 3)
    assert said["rewards/acc/mean"] == pytest.approx(
        np.mean([a for group in ACCURACY for a in group])
    )
    assert said["reward/oracle_in_group"] == pytest.approx(
        np.mean([max(group) for group in REWARDS])
    )
    assert said["reward/headroom"] == pytest.approx(
        np.mean([max(group) - np.mean(group) for group in REWARDS])
    )
    assert said["group/size"] == pytest.approx(3.0)
    advantage = [[r - (sum(g) - r) / (len(g) - 1) for r in g] for g in REWARDS]
    assert said["adv/std"] == pytest.approx(
        np.mean([np.std(own) for own in advantage]), rel=1e-5
    )
    assert said["adv/max"] == pytest.approx(
        max(abs(a) for own in advantage for a in own)
    )
    assert said["adv/frac_active"] == pytest.approx(7 / 9)
    places = [(row, place) for row, own in enumerate(members(batch)) for place in own]
    steps = {key: range(int(new.valid[key].sum())) for key in places}

    def over_steps(value: Any, reduce: Any) -> float:
        return float(
            np.mean([reduce([value(key, t) for t in steps[key]]) for key in places])
        )

    assert said["kl"] == pytest.approx(
        over_steps(lambda k, t: kl_of(new.table[k][t], reference.table[k][t]), sum),
        rel=1e-3,
    )
    assert said["kl_prox"] == pytest.approx(
        over_steps(lambda k, t: kl_of(new.table[k][t], prox.table[k][t]), sum), rel=1e-3
    )
    assert said["entropy"] == pytest.approx(
        over_steps(lambda k, t: entropy_of(new.table[k][t]), np.mean), rel=1e-5
    )
    norm = over_steps(
        lambda k, t: entropy_of(new.table[k][t]) / math.log(10 - t), np.mean
    )
    assert said["entropy/norm"] == pytest.approx(norm, rel=1e-5)
    apart = over_steps(
        lambda k, t: (
            0.5 * float((new.table[k][t].exp() - prox.table[k][t].exp()).abs().sum())
        ),
        np.mean,
    )
    assert said["tv_prox"] == pytest.approx(apart, rel=1e-4)
    inverse = [float(reference.total[key] - new.total[key]) for key in places]
    assert said["kl_k3"] == pytest.approx(
        np.mean([math.exp(x) - 1 - x for x in inverse]), rel=1e-3
    )
    moved = max(
        abs(float(new.steps[key][t] - prox.steps[key][t]))
        for key in places
        for t in steps[key]
    )
    assert said["ratio/first_mb_dev"] == pytest.approx(moved, rel=1e-4)
    assert "ratio/first_mb_dev" not in stage.loss(policy, batch, START).diagnostics, (
        "of the first batch of a round only"
    )
    weights = [
        math.exp(float(prox.total[key]) - LOG_MU[key[0]][key[1]]) for key in places
    ]
    assert said["sampling/is_mean"] == pytest.approx(np.mean(weights), rel=1e-4)
    assert said["sampling/is_max"] == pytest.approx(max(weights), rel=1e-4)
    share = sum(weights) ** 2 / sum(w * w for w in weights) / len(weights)
    assert said["sampling/ess"] == pytest.approx(share, rel=1e-4)
    for step in (1, 2):
        taken = [key for key in places if len(steps[key]) >= step]
        own = np.mean([entropy_of(new.table[key][step - 1]) for key in taken])
        assert said[f"entropy/step{step}"] == pytest.approx(own, rel=1e-5)


def test_weights_of_the_behaviour_are_bounded_and_need_a_density(planted: Any) -> None:
    _, _, batch, known = grpo(planted)
    far = replace(batch, log_mu=batch.log_mu - 100.0)
    assert importance_diagnostics(known["proximal"], far)[
        "sampling/is_max"
    ] == pytest.approx(math.exp(20.0))
    near = replace(batch, log_mu=batch.log_mu + 100.0)
    assert importance_diagnostics(known["proximal"], near)[
        "sampling/is_max"
    ] == pytest.approx(math.exp(-20.0))
    assert (
        importance_diagnostics(known["proximal"], batch_of(planted, log_mu=False)) == {}
    )


@pytest.mark.slow
def test_advantages_are_taken_over_the_whole_group_then_the_best_are_kept_and_bounded(
    planted: Any,
) -> None:
    batch = batch_of(planted)

    def made(
        epoch: int = 0, **changes: object
    ) -> tuple[list[list[float]], list[list[int]]]:
        stage = grpo(
            planted, **{"advantage": "centred", "advantage_clip": 5.0, **changes}
        )[0]
        value, kept = stage.advantage(batch, epoch)
        return value.tolist(), kept.int().tolist()

    first = np.array(REWARDS[0]) - np.mean(REWARDS[0])
    value, kept = made()
    assert value[0] == pytest.approx(first)
    assert kept == [[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0]]
    value, kept = made(top_k=(2, 1))
    assert (value[0], kept[0]) == (pytest.approx(first), [1, 0, 1, 0])
    assert made(1, top_k=(2, 1))[1][0] == made(7, top_k=(2, 1))[1][0] == [1, 0, 0, 0]
    value, _ = made(top_k=(2,), topk_before_advantage=True)
    assert value[0] == pytest.approx([0.25, 0.0, -0.25, 0.0])
    assert made(flat_groups="keep")[1][1] == [1, 1, 0, 0]
    value, _ = made(advantage_clip=0.2)
    assert value[0] == pytest.approx(np.clip(first, -0.2, 0.2))
    value, _ = made(batch_scale=True)
    alive = np.concatenate([first, np.array(REWARDS[2]) - np.mean(REWARDS[2])])
    assert value[0] == pytest.approx(first / alive.std(), rel=1e-5), (
        "one scale, of groups that differ"
    )


def test_a_round_begins_with_a_fresh_copy_and_the_weight_of_the_kl_follows_its_rule(
    planted: Any,
) -> None:
    stage, policy, batch, _ = grpo(
        planted,
        inner_epochs=2,
        reference="round_start",
        beta_rule="epoch",
        kl_low=0.1,
        kl_high=0.5,
    )
    stage.begin_epoch(policy, 1)
    kept = stage.copies["proximal"]
    stage.numbers["fresh"] = 0.0
    stage.begin_epoch(policy, 3)
    assert stage.copies["proximal"] is kept
    assert stage.numbers["fresh"] == 0.0
    stage.begin_epoch(policy, 2)
    assert stage.copies["proximal"] is not kept
    assert stage.copies["reference"] is stage.copies["proximal"]
    assert stage.numbers["fresh"] == 1.0
    factor = stage.config.beta_factor
    stage.end_epoch({"kl": 0.3})
    assert stage.numbers["kl_beta"] == 0.3
    stage.end_epoch({"kl": 0.6})
    assert stage.numbers["kl_beta"] == pytest.approx(0.3 * factor)
    stage.end_epoch({})
    assert stage.numbers["kl_beta"] == pytest.approx(0.3 * factor)
    after_batches = grpo(planted, beta_rule="batch", kl_low=0.0, kl_high=1e-9)[0]
    after_batches.end_epoch({"kl": 0.6})
    assert after_batches.numbers["kl_beta"] == 0.3
    after_batches.loss(policy, batch, START)
    assert after_batches.numbers["kl_beta"] == pytest.approx(
        0.3 * after_batches.config.beta_factor
    )


@pytest.mark.slow
def test_a_round_ends_early_when_a_step_has_moved_further_than_trusted(
    planted: Any,
) -> None:
    stage, policy, batch, _ = grpo(planted, trust_kl=0.0)
    moved = (
        stage.loss(policy, batch, START).diagnostics["kl_prox"] / 2
    )  # nats a step: the longest list has two
    assert not stage.enough, "0 trusts everything"
    for limit, enough in ((moved * 1.01, False), (moved * 0.99, True)):
        stage = grpo(planted, trust_kl=limit)[0]
        stage.loss(policy, batch, START)
        assert stage.enough is enough


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_an_estimate_of_the_kl_reads_whole_sequences(
    estimator: str, planted: Any
) -> None:
    stage, _, _, known = grpo(planted, kl=estimator)
    found = stage.kl(known["policy"], known["reference"])
    x = known["policy"].total - known["reference"].total
    expected = {"k1": x, "k2": x * x / 2, "k3": (-x).exp() - 1 + x}[estimator]
    assert torch.allclose(found, expected, atol=1e-6)


def test_no_kl_counts_where_the_clip_alone_is_asked_for(planted: Any) -> None:
    stage, policy, batch, _ = grpo(planted, clip_only=True)
    result = stage.loss(policy, batch, START)
    assert (result.parts["kl"].item(), result.diagnostics["kl_coef"]) == (0.0, 0.0)


def test_means_over_steps_leave_out_what_is_no_step() -> None:
    values = torch.tensor([[[1.0, 2.0, 9.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]]])
    valid = torch.tensor(
        [[[True, True, False], [True, False, False], [False, False, False]]]
    )
    assert step_mean(values, valid).tolist() == [[1.5, 4.0, 0.0]]
    said = advantage_diagnostics(
        torch.tensor([[-3.0, 1.0]]),
        torch.ones(1, 2).bool(),
        torch.tensor([[True, False]]),
    )
    assert said == {"adv/std": 2.0, "adv/max": 3.0, "adv/frac_active": 0.5}
