"""Checks on groups, their rewards and advantages: is there anything to learn from, and does it point the right way?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import mean
from typing import Any

from leverplus_doctor.check import ERROR, Said, Seen, check, check_groups, check_grpo
from leverplus_doctor.curves import rises
from leverplus_doctor.records import GroupStats, Record, Series


@dataclass(frozen=True)
class FlatShares:
    """Shares of groups whose members all earn the same, and of those where all are wrong or all right."""

    flat: float
    all_wrong: float
    all_right: float


def _flat_shares(record: Record) -> FlatShares | None:
    for series in record.stages("grpo", "pairwise", "rce"):
        flat = series.numbers("frac_reward_zero_std")
        if flat:
            usual = flat[-1]
            if series.unit == "step":
                # of single steps, each of a few groups, the mean of the second half
                usual = mean(flat[len(flat) // 2 :])
            wrong = series.last("frac_reward_all_zero") or 0.0
            right = series.last("frac_reward_all_one") or 0.0
            return FlatShares(usual, wrong, right)
        inside = series.last("reward/group_std")
        if inside is not None and inside < 1e-6:
            return FlatShares(1.0, 0.0, 0.0)
    groups = record.groups
    if groups is None:
        return None
    # by the reward that is trained on: choice_prob differs where accuracy and gt_prob do not
    share = record.probe.reward_flat
    if share is None:
        share = groups.flat
    return FlatShares(share, groups.all_zero, groups.all_one)


@check
def flat_groups(record: Record) -> Said:
    """{flat:.0%} of the groups carry no signal{why}

    Warning: All members of most groups earn the same, so that no member can be preferred: a two-level reward,
    queries that are always right or always wrong, or members that are nearly the same.
    Looks at: share of groups without any spread in reward (warning over 50 %, error over 80 % of 20 groups or
    more), split into all wrong, all right and tied
    Try: Use a dense reward (gt_prob), measure more varied members for these queries, and leave flat groups out
    of the policy gradient and the KL.
    Explains: advantage_std_tiny dead_updates entropy_stuck kl_from_flat_groups kl_collapsed
    learning_rate_without_signal identical_picks loss_falls_by_kl_only
    """
    shares = _flat_shares(record)
    if shares is None or shares.flat <= 0.5:
        return None
    why = ""
    if shares.all_wrong or shares.all_right:
        why = f" (no member right in {shares.all_wrong:.0%}, all right in {shares.all_right:.0%})"
    groups = record.groups
    cure = ""
    without_gt_prob = groups is not None and groups.gt_prob is None
    if record.setting("score.backend") == "openai" and without_gt_prob:
        # what needs log-probabilities must not be advised
        cure = (
            "This server gives no log-probabilities, so gt_prob cannot be the reward: measure more varied members for "
            "these queries (score.mine, larger pools), or use a server that echoes prompts with log-probabilities, "
            "such as vLLM."
        )
    dense = record.setting("reward.mode") in {"gt_prob", "choice_prob", None}
    # fewer groups may all be flat by chance, and a run with rounds of asking begins with a handful
    enough = groups is None or groups.queries >= 20
    return Seen(
        flat=shares.flat,
        all_wrong=shares.all_wrong,
        all_right=shares.all_right,
        tied=max(shares.flat - shares.all_wrong - shares.all_right, 0.0),
        why=why,
        severity=shares.flat > 0.8 and enough and ERROR,
        fix=not dense and not cure and {"reward.mode": "gt_prob"},
        cure=cure,
    )


@check
def top_k_before_baseline(record: Record) -> Said:
    """Advantages{named} spread by {adv_std:.2g} although rewards differ in {live_groups:.1%} of the groups

    Error: Members are chosen by reward before the baseline is taken; the best of a group are tied, so their
    advantages are 0.
    Looks at: grpo.topk_before_advantage, or an advantage spread far below the share of groups whose rewards
    differ
    Try: Take the baseline over the whole group; select queries, never members by reward.
    Explains: advantage_std_tiny dead_updates entropy_stuck learning_rate_without_signal identical_picks
    kl_collapsed loss_falls_by_kl_only
    """
    before = record.setting("grpo.topk_before_advantage")
    if before and record.setting("grpo.top_k"):
        return Seen(
            "Only the {kept} members with the highest reward enter the baseline",
            kept=min(record.setting("grpo.top_k")),
            fix={"grpo.topk_before_advantage": False},
        )
    for series in record.stages("grpo"):
        live = _live(record, series)
        spread = series.last("adv/std")
        if live is None or spread is None or before is False or _centred(series):
            continue
        # z-scores over whole groups would spread by the share of live groups; half of it leaves room for floors
        if live > 0.1 and spread < 0.5 * live:
            return Seen(
                adv_std=spread,
                live_groups=live,
                named=f" of {series.label}" if series.label else "",
                cause="Members are chosen by reward before the baseline is taken, and the best of a group are tied; or "
                "the advantages are not normalised, or divided by a floor. Z-scores over whole groups would spread by "
                "the share of such groups.",
                about=[series.label],
            )
    return None


def _live(record: Record, series: Series) -> float | None:
    """The share of groups whose rewards differ, as logged or printed."""
    flat = series.last("frac_reward_zero_std")
    if flat is None:
        return record.published.live.get(series.label)
    return 1.0 - flat


def _centred(series: Series) -> bool:
    """Whether advantages are small because they are only centred, as small as rewards that the policy learns from."""
    spread = series.last("adv/std")
    rewards = series.last("reward_std") or series.last("reward/group_std")
    if spread is None or spread < 1e-4:
        return False
    if rewards is not None:
        # centring keeps the spread of the rewards; a z-score would make it 1
        flat = series.last("frac_reward_zero_std") or 0.0
        return flat < 0.5 and 0.3 * rewards < spread < 1.5 * rewards
    held_out = ("val/reward", "val/group_reward", "val/accuracy")
    return rises(series, "reward", "accuracy", *held_out)


@check
def advantage_std_tiny(record: Record) -> Said:
    """Advantage spread {adv_std:.2g}: {share} of the groups carry signal

    Error: Hardly any group carries a signal: the mean spread of normalised advantages is the share of groups
    that have one.
    Looks at: mean standard deviation of the advantages (under 0.05, and not that of rewards that are only
    centred), or their largest and smallest (within 0.01 of 0)
    Try: Measure the share of groups with equal rewards on the full groups, before any selection.
    Explains: dead_updates entropy_stuck learning_rate_without_signal identical_picks kl_collapsed
    loss_falls_by_kl_only
    """
    whole_groups = record.setting("grpo.topk_before_advantage") is False
    tiny: list[tuple[float, Series]] = []
    for series in record.stages("grpo"):
        spread = series.last("adv/std")
        high = series.last("adv/max")
        low = series.last("adv/min")
        if spread is None and high is not None and low is not None:
            if max(abs(high), abs(low)) <= 0.01:
                return Seen(
                    "All advantages lie between {adv_min:.2g} and {adv_max:.2g}: nothing is learnt from the rewards",
                    adv_min=low,
                    adv_max=high,
                    about=[series.label],
                )
            continue
        # z-scores of a group that carries signal spread by 1, so that the mean over groups is the share of such groups
        if spread is None or spread >= 0.05 or _centred(series):
            continue
        # where no member is left out of the baseline a small spread is that of the rewards
        if not whole_groups or (_live(record, series) or 0.0) <= 0.1:
            tiny.append((spread, series))
    if not tiny:
        return None
    least, series = min(tiny, key=lambda own: own[0])
    trained = [own for _, own in tiny]
    printed: dict[str, Any] = {}
    cause = ""
    if series.last("frac_reward_zero_std") is None:
        printed = _largest_over_spread(trained)
        cause = (
            "Two causes fit. Either the data are flat: in nearly every group all members earn the same. Or members are "
            "selected by reward (top k) before the baseline is taken, and the best are tied. Rank normalisation is not "
            "one: it would print a spread near 1. " + _fingerprint(printed)
        )
    return Seen(
        adv_std=least,
        trainings=len(tiny),
        share="under 1 %" if least < 0.01 else f"about {least:.0%}",
        cause=cause,
        cure="Measure the share of groups whose rewards are all equal on the full groups, before any selection (`lever "
        "doctor` on the RL data file prints it). Near 99 %: the data are flat, so measure other members or use a "
        "denser reward. Far below: the selection destroys the signal, so take the baseline over the whole group. A "
        "larger learning rate or a smaller KL weight mends neither.",
        about=[own.label for own in trained],
        **printed,
    )


def _largest_over_spread(trained: list[Series]) -> dict[str, float]:
    """Largest advantage / spread in the first and the last epoch of the first training that prints both."""
    for series in trained:
        ratios = []
        for line in series.epochs:
            top = line.values.get("adv/max")
            spread = line.values.get("adv/std")
            if top is not None and spread:
                ratios.append(top / spread)
        if len(ratios) >= 2:
            return {"max_over_std_first": ratios[0], "max_over_std_last": ratios[-1]}
    return {}


def _fingerprint(ratios: dict[str, float]) -> str:
    """What max / std says: two-level members, 3 kept, give 1.155; 5 kept give 1.10 to 1.79, about 1.45 when mixed."""
    if not ratios:
        return "The largest advantage beside the spread would show it: 3 kept members print a ratio of 1.15, 5 about 1.45."
    first, last = ratios.values()
    fits = "does not fit"
    if abs(first - 1.155) < 0.04 and abs(last - 1.45) < 0.1:
        fits = "fits"
    return (
        f"Largest / spread is {first:.2f} in the first epoch and {last:.2f} in the last, which {fits} the print of 3 "
        "kept members (1.15) and then 5 (about 1.45)."
    )


@check
def never_right(record: Record) -> Said:
    """In {all_wrong:.0%} of the groups no member is right

    Warning: For most queries no member is right: the pool, the number of shots or the model cannot answer them.
    Looks at: share of groups without a correct member (over 60 %)
    Try: Search wider pools for these queries; look at the zero-shot and oracle accuracy first.
    Explains: flat_groups
    """
    shares = _flat_shares(record)
    if shares is None or shares.all_wrong <= 0.6:
        return None
    return Seen(all_wrong=shares.all_wrong)


@check_groups
def no_headroom(groups: GroupStats) -> Said:
    """The best member of a group is right {it.oracle:.1%} of the time, an average one {it.accuracy:.1%}

    Error: The best measured sequence is hardly better than the average one: demonstrations do not change the
    answer.
    Looks at: best minus mean accuracy of a group (under 0.03)
    Try: Change retrieval, pool size, shots or the model before any training.
    Explains: flat_groups difference_inside_noise nothing_learnt
    """
    enough = groups.scale == "accuracy" and groups.queries >= 20
    return enough and groups.oracle - groups.accuracy < 0.03


@check
def reward_fights_metric(record: Record) -> Said:
    """Among sequences of a query the reward and accuracy correlate by {reward_agreement:+.2f}

    Warning: Inside a query, members with more reward, or more gt_prob, are not the more accurate ones.
    Looks at: mean correlation of the reward, or of gt_prob, with accuracy inside queries (under 0.1)
    Try: Leave out the part of the reward that fights; check how gt_prob locates the answer tokens; else reward
    accuracy.
    Explains: reward_falls
    """
    agreement = record.probe.reward_agreement
    if agreement is not None and agreement < 0.1:
        return Seen(reward_agreement=agreement)
    groups = record.groups
    if groups is None or groups.within is None or groups.within >= 0.1:
        return None
    return Seen(
        "Inside a query gt_prob and accuracy correlate by {within_query:+.2f}",
        within_query=groups.within,
    )


@check
def gt_prob_empty(record: Record) -> Said:
    """The largest gt_prob is {it.groups.gt_prob_largest:.1g} although {it.groups.positive:.0%} of the members are right

    Error: gt_prob is next to 0 everywhere: it is not the probability of the answer, so that rewards made of it
    are correctness alone.
    Looks at: largest gt_prob (under 0.001)
    Try: Score the answer tokens by their offsets, in the turn of the assistant; test P(right) > P(wrong).
    Explains: flat_groups reward_fights_metric
    """
    groups = record.groups
    # the probability among labels does not need it
    labels_only = record.setting("reward.mode") == "choice_prob"
    if groups is None or (labels_only and not record.setting("reward.components")):
        return None
    largest = groups.gt_prob_largest
    return largest is not None and largest < 1e-3 and groups.positive > 0.0


@check_grpo
def advantage_explodes(series: Series) -> Said:
    """Advantages spread by {adv_std:.3g} and reach {adv_max:.3g}

    Warning: An advantage was divided by a spread that is almost 0, or rewards of a large scale were only
    centred.
    Looks at: spread of the advantages (over 2) or the largest one (over 10)
    Try: Raise the floor of the deviation, or centre only and scale over the batch.
    Explains: not_finite
    """
    spread = series.last("adv/std") or 0.0
    top = series.last("adv/max") or 0.0
    return (spread > 2.0 or top > 10.0) and Seen(adv_std=spread, adv_max=top)


@check
def unmeasured_labels(record: Record) -> Said:
    """{mislabelled} of {labels} labels do not have the accuracy that was measured for them

    Error: Some labels were not measured for their query: left out (counted as 0 they look like wrong answers),
    estimated by string matching, carried over from another query, or moved to another place of the pool (an id
    taken modulo the pool).
    Looks at: members without a measured accuracy, scored by a fallback or taken over from other queries, and
    labels without the accuracy measured for them
    Try: Measure every label with the official metric on its own query.
    Explains: reward_fights_metric worse_than_random nothing_learnt never_right
    """
    groups = record.groups
    probe = record.probe
    if probe.mislabelled and probe.labels:
        return Seen(mislabelled=probe.mislabelled, labels=probe.labels)
    if groups is None or groups.estimated + groups.borrowed + groups.unmeasured == 0:
        return None
    return Seen(
        "Of {members} members {unmeasured} have no measured accuracy, {estimated} were scored by a fallback and "
        "{borrowed} were taken over from other queries",
        unmeasured=groups.unmeasured,
        estimated=groups.estimated,
        borrowed=groups.borrowed,
        members=groups.members,
    )


@check_groups
def filtered_by_outcome(groups: GroupStats) -> Said:
    """Not one of {it.queries} queries is all right or all wrong: they were kept by their outcome

    Warning: Queries were kept because of their outcome, so that training sees another distribution than the
    test.
    Looks at: no query that is all right or all wrong among 50 or more
    Try: Keep all queries and weight them; never filter the held-out ones.
    """
    # only of small groups some must be all right or all wrong by chance
    small = groups.median_size <= 40
    enough = groups.scale == "accuracy" and groups.queries >= 50
    return small and enough and groups.tiers.get("flat", 0) == 0


@check_groups
def source_tells_label(groups: GroupStats) -> Said:
    """{highest:.0%} of the members from {high} are right, {lowest:.0%} of those from {low}

    Warning: Where a member comes from tells whether it is right: positives were searched in one way and
    negatives in another.
    Looks at: difference of the share of positives between origins of 5 % of the members or more (over 60
    points)
    Try: Search both in the same way.
    """
    # a rate of fewer members says little
    enough = max(20, 0.05 * groups.members)
    rates = []
    for name, source in groups.sources.items():
        if source.members >= enough:
            rates.append((source.positive, name))
    lowest, low = min(rates, default=(0.0, ""))
    highest, high = max(rates, default=(0.0, ""))
    if highest - lowest <= 0.6:
        return None
    return Seen(highest=highest, lowest=lowest, high=high, low=low)


@check_groups
def small_groups(groups: GroupStats) -> Said:
    """Half of the groups have {median:g} members or fewer

    Warning: Groups are too small for a baseline.
    Looks at: median number of members (under 4)
    Try: Measure at least 8 members a query.
    Explains: flat_groups
    """
    return groups.median_size < 4 and Seen(median=groups.median_size)


@check_groups
def pick_no_better_than_group(groups: GroupStats) -> Said:
    """The selector's first pick is right {it.pick:.1%} of the time, an average candidate {it.accuracy:.1%}

    Warning: The selector that made the data picks no better than its other candidates.
    Looks at: accuracy of its first pick against the mean of the group (at most one standard error above)
    Try: Train the selector first, or check that its weights were loaded.
    """
    pick = groups.pick
    if groups.scale != "accuracy" or pick is None or groups.picked < 50:
        return None
    # of a share of `picked` queries
    variance = max(pick * (1.0 - pick), 1e-9)
    error = math.sqrt(variance / groups.picked)
    return pick - groups.accuracy <= error


@check_groups
def single_length_data(groups: GroupStats) -> Said:
    """All sequences have {length} demonstrations

    Info: All sequences have one length, so that nothing is known about other numbers of shots.
    Looks at: lengths of the members
    Try: Measure prefixes too: every list of two holds a list of one.
    Explains: beyond_trained_length more_shots_hurt
    """
    lengths = set(groups.lengths) - {0}
    return len(lengths) == 1 and lengths != {1} and Seen(length=min(lengths))


@check
def normalised_twice(record: Record) -> Said:
    """Rewards are normalised by {mode} and again by the {advantage} advantage

    Warning: Rewards are normalised in the data and again in the loss.
    Looks at: reward.normalise with a normalising advantage
    Try: Normalise once, in the loss.
    """
    mode: str = record.setting("reward.normalise") or "none"
    advantage = record.setting("grpo.advantage")
    if mode == "none" or advantage not in ("zscore", "rank"):
        return None
    fix = {"reward.normalise": "none"}
    return Seen(normalisations=2, mode=mode, advantage=advantage, fix=fix)
