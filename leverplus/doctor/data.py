"""Checks on groups and rewards: is there anything to learn from, and does it point the right way?"""

from __future__ import annotations

from statistics import mean

from leverplus.doctor.curves import rises
from leverplus.doctor.findings import ERROR, INFO, WARNING, Finding, Text, table
from leverplus.doctor.records import GroupStats, Record, Series

TEXTS = table(
    Text(
        "flat_groups",
        WARNING,
        "All members of most groups earn the same, so that no member can be preferred: a two-level reward, queries "
        "that are always right or always wrong, or members that are nearly the same.",
        "share of groups without any spread in reward (warning over 50 %, error over 80 % of 20 groups or more), split "
        "into all wrong, all right and tied",
        "Use a dense reward (gt_prob), measure more varied members for these queries, and leave flat groups out of the "
        "policy gradient and the KL.",
        ("advantage_std_tiny", "dead_updates", "entropy_stuck", "kl_from_flat_groups", "kl_collapsed",
         "gradient_drowned", "learning_rate_without_signal", "identical_picks", "loss_falls_by_kl_only"),
    ),
    Text(
        "top_k_before_baseline",
        ERROR,
        "Members are chosen by reward before the baseline is taken; the best of a group are tied, so their advantages "
        "are 0.",
        "grpo.topk_before_advantage, or an advantage spread far below the share of groups whose rewards differ",
        "Take the baseline over the whole group; select queries, never members by reward.",
        ("advantage_std_tiny", "dead_updates", "entropy_stuck", "learning_rate_without_signal", "identical_picks",
         "gradient_drowned", "kl_collapsed", "loss_falls_by_kl_only"),
    ),
    Text(
        "advantage_std_tiny",
        ERROR,
        "Hardly any group carries a signal: the mean spread of normalised advantages is the share of groups that have "
        "one.",
        "mean standard deviation of the advantages (under 0.05, and not that of rewards that are only centred), "
        "or their "
        "largest and smallest (within 0.01 of 0)",
        "Measure the share of groups with equal rewards on the full groups, before any selection.",
        ("dead_updates", "entropy_stuck", "learning_rate_without_signal", "identical_picks", "kl_collapsed",
         "loss_falls_by_kl_only"),
    ),
    Text(
        "never_right",
        WARNING,
        "For most queries no member is right: the pool, the number of shots or the model cannot answer them.",
        "share of groups without a correct member (over 60 %)",
        "Search wider pools for these queries; look at the zero-shot and oracle accuracy first.",
        ("flat_groups",),
    ),
    Text(
        "no_headroom",
        ERROR,
        "The best measured sequence is hardly better than the average one: demonstrations do not change the answer.",
        "best minus mean accuracy of a group (under 0.03)",
        "Change retrieval, pool size, shots or the model before any training.",
        ("flat_groups", "difference_inside_noise", "nothing_learnt"),
    ),
    Text(
        "two_level_reward",
        INFO,
        "The reward takes two values in a group, so that every affine change of it (weights, gaps) gives the same "
        "advantages.",
        "mean number of different accuracies in a group (at most 2), with no gt_prob",
        "Add levels, not gaps: gt_prob.",
        ("flat_groups",),
    ),
    Text(
        "components_duplicate",
        INFO,
        "Two parts of the reward say the same, since correctness is accuracy above 0.",
        "components of one family in reward.components",
        "Drop one of them.",
    ),
    Text(
        "reward_fights_metric",
        WARNING,
        "Inside a query, members with more reward, or more gt_prob, are not the more accurate ones.",
        "mean correlation of the reward, or of gt_prob, with accuracy inside queries (under 0.1)",
        "Leave out the part of the reward that fights; check how gt_prob locates the answer tokens; else reward "
        "accuracy.",
        ("reward_falls",),
    ),
    Text(
        "gt_prob_empty",
        ERROR,
        "gt_prob is next to 0 everywhere: it is not the probability of the answer, so that rewards made of it are "
        "correctness alone.",
        "largest gt_prob (under 0.001)",
        "Score the answer tokens by their offsets, in the turn of the assistant; test P(right) > P(wrong).",
        ("flat_groups", "two_level_reward", "reward_fights_metric"),
    ),
    Text(
        "repeated_members",
        WARNING,
        "Groups hold the same sequence several times: low temperature or overlapping beams.",
        "share of distinct members (under 90 %)",
        "Sample without replacement; drop repeats.",
        ("flat_groups",),
    ),
    Text(
        "advantage_explodes",
        WARNING,
        "An advantage was divided by a spread that is almost 0, or rewards of a large scale were only centred.",
        "spread of the advantages (over 2) or the largest one (over 10)",
        "Raise the floor of the deviation, or centre only and scale over the batch.",
        ("not_finite",),
    ),
    Text(
        "missing_rewards",
        ERROR,
        "Some members have no reward; counted as 0 they look like wrong answers.",
        "members without a measured accuracy",
        "Leave them out of the baseline, or measure them.",
        ("never_right",),
    ),
    Text(
        "unmeasured_labels",
        ERROR,
        "Some labels were not measured for their query: estimated by string matching, carried over from another query, "
        "or moved to another place of the pool (an id taken modulo the pool).",
        "members scored by a fallback or taken over from other queries, and labels without the accuracy measured for "
        "them",
        "Measure every label with the official metric on its own query.",
        ("reward_fights_metric", "worse_than_random", "nothing_learnt"),
    ),
    Text(
        "filtered_by_outcome",
        WARNING,
        "Queries were kept because of their outcome, so that training sees another distribution than the test.",
        "no query that is all right or all wrong among 50 or more",
        "Keep all queries and weight them; never filter the held-out ones.",
    ),
    Text(
        "source_tells_label",
        WARNING,
        "Where a member comes from tells whether it is right: positives were searched in one way and negatives in "
        "another.",
        "difference of the share of positives between origins of 5 % of the members or more (over 60 points)",
        "Search both in the same way.",
    ),
    Text(
        "small_groups",
        WARNING,
        "Groups are too small for a baseline.",
        "median number of members (under 4)",
        "Measure at least 8 members a query.",
        ("flat_groups",),
    ),
    Text(
        "pick_no_better_than_group",
        WARNING,
        "The selector that made the data picks no better than its other candidates.",
        "accuracy of its first pick against the mean of the group (at most one standard error above)",
        "Train the selector first, or check that its weights were loaded.",
    ),
    Text(
        "normalised_twice",
        WARNING,
        "Rewards are normalised in the data and again in the loss.",
        "reward.normalise with a normalising advantage",
        "Normalise once, in the loss.",
    ),
)  # fmt: skip

FEW_GROUPS = 20
"""Fewer groups than this may all be flat by chance, and a run with rounds of asking begins with a handful."""

_HARD = {"hard_only", "soft_only", "hard_plus_soft", "hard_plus_soft_v2", "separated"}
_PROB = {"gt_prob", "hard_plus_gtprob", "hard01_plus_gtprob", "hard01_plus_gtprob_separated"}


def flat_groups(record: Record) -> list[Finding]:
    """Most groups carry no signal."""
    shares = _flat_shares(record)
    if shares is None or shares[0] <= 0.5:
        return []
    flat, zero, one = shares
    title = f"{flat:.0%} of the groups carry no signal"
    title += f" (no member right in {zero:.0%}, all right in {one:.0%})" if zero or one else ""
    evidence = {"flat": flat, "all_wrong": zero, "all_right": one, "tied": max(flat - zero - one, 0.0)}
    dense = record.setting("reward.mode") in {"gt_prob", "choice_prob", None}
    fix = None if dense or _unweighed(record) else {"reward.mode": "gt_prob"}
    enough = record.groups is None or record.groups.queries >= FEW_GROUPS
    severity = ERROR if flat > 0.8 and enough else None
    return TEXTS["flat_groups"].found(title, evidence, fix=fix, severity=severity, cure=_cure_unweighed(record))


def _unweighed(record: Record) -> bool:
    """A server answered and offered no log-probabilities: what needs them must not be advised."""
    groups = record.groups
    return record.setting("score.backend") == "openai" and groups is not None and groups.gt_prob is None


def _cure_unweighed(record: Record) -> str | None:
    if not _unweighed(record):
        return None
    return (
        "This server gives no log-probabilities, so gt_prob cannot be the reward: measure more varied members for "
        "these queries (score.mine, larger pools), or use a server that echoes prompts with log-probabilities, such "
        "as vLLM."
    )


def _flat_shares(record: Record) -> tuple[float, float, float] | None:
    for series in record.stages("grpo", "pairwise", "rce"):
        flat = _usual(series, "frac_reward_zero_std")
        if flat is not None:
            return flat, series.last("frac_reward_all_zero") or 0.0, series.last("frac_reward_all_one") or 0.0
        inside = series.last("reward/group_std")
        if inside is not None and inside < 1e-6:
            return 1.0, 0.0, 0.0
    groups, probe = record.groups, record.probe
    if groups is None:
        return None
    # by the reward that is trained on, where known: choice_prob differs where accuracy and gt_prob do not
    flat = groups.flat if probe is None or probe.reward_flat is None else probe.reward_flat
    return flat, groups.all_zero, groups.all_one


def _usual(series: Series, metric: str) -> float | None:
    """The last value; of single steps, each of a few groups, the mean of the second half."""
    values = [value for _, value in series.values(metric)]
    return mean(values[len(values) // 2 :]) if values and series.unit == "step" else series.last(metric)


def top_k_before_baseline(record: Record) -> list[Finding]:
    """Advantages are flat although rewards are not."""
    if record.setting("grpo.topk_before_advantage") and record.setting("grpo.top_k"):
        kept = min(record.setting("grpo.top_k"))
        title = f"Only the {kept} members with the highest reward enter the baseline"
        fix = {"grpo.topk_before_advantage": False}
        return TEXTS["top_k_before_baseline"].found(title, {"kept": kept}, fix=fix)
    if _whole_groups(record):
        return []
    for series in record.stages("grpo"):
        live = _live(record, series)
        spread = series.last("adv/std")
        if live is not None and live > 0.1 and spread is not None and spread < 0.5 * live and not _centred(series):
            named = f" of {series.label}" if series.label else ""
            title = f"Advantages{named} spread by {spread:.2g} although rewards differ in {live:.1%} of the groups"
            cause = (
                "Members are chosen by reward before the baseline is taken, and the best of a group are tied; or the "
                "advantages are not normalised, or divided by a floor. Z-scores over whole groups would spread by the "
                "share of such groups."
            )
            evidence = {"adv_std": spread, "live_groups": live}
            return TEXTS["top_k_before_baseline"].found(title, evidence, cause=cause, about=[series.label])
    return []


def _whole_groups(record: Record) -> bool:
    """Whether no member is left out of the baseline, by the recipe: a small spread is then that of the rewards."""
    return record.setting("grpo.topk_before_advantage") is False


def _live(record: Record, series: Series) -> float | None:
    flat = series.last("frac_reward_zero_std")
    if flat is not None:
        return 1.0 - flat
    return None if record.published is None else record.published.live.get(series.label)


def advantage_std_tiny(record: Record) -> list[Finding]:
    """Under a few percent of the groups carry signal."""
    tiny = [s for s in record.stages("grpo") if (v := s.last("adv/std")) is not None and v < 0.05 and not _centred(s)]
    if _whole_groups(record):
        tiny = [s for s in tiny if (_live(record, s) or 0.0) <= 0.1]
    if not tiny:
        return _advantages_zero(record)
    series = min(tiny, key=lambda s: s.last("adv/std") or 0.0)
    spread = series.last("adv/std") or 0.0
    evidence: dict[str, float | int | str] = {"adv_std": spread, "trainings": len(tiny)}
    share = "under 1 %" if spread < 0.01 else f"about {spread:.0%}"
    title = f"Advantage spread {spread:.2g}: {share} of the groups carry signal"
    cause = None
    if series.last("frac_reward_zero_std") is None:
        cause = (
            "Two causes fit. Either the data are flat: in nearly every group all members earn the same. Or members are "
            "selected by reward (top k) before the baseline is taken, and the best are tied. Rank normalisation is not "
            "one: it would print a spread near 1. "
        ) + _fingerprint(tiny, evidence)
    cure = (
        "Measure the share of groups whose rewards are all equal on the full groups, before any selection "
        "(`lever doctor` on the RL data file prints it). Near 99 %: the data are flat, so measure other members or use "
        "a denser reward. Far below: the selection destroys the signal, so take the baseline over the whole group. "
        "A larger learning rate or a smaller KL weight mends neither."
    )
    return TEXTS["advantage_std_tiny"].found(title, evidence, cause=cause, cure=cure, about=[s.label for s in tiny])


def _centred(series: Series) -> bool:
    """Whether advantages are small because they are only centred, as small as rewards that the policy learns from."""
    spread, rewards = series.last("adv/std"), series.last("reward_std") or series.last("reward/group_std")
    if spread is None or spread < 1e-4:
        return False
    if rewards is not None:
        return 0.3 * rewards < spread < 1.5 * rewards and (series.last("frac_reward_zero_std") or 0.0) < 0.5
    return rises(series, "reward", "val/reward", "val/group_reward", "val/accuracy", "accuracy")


def _advantages_zero(record: Record) -> list[Finding]:
    """Largest and smallest advantage are both 0, where no spread is logged."""
    for series in record.stages("grpo"):
        high, low = series.last("adv/max"), series.last("adv/min")
        if high is None or low is None or max(abs(high), abs(low)) > 0.01:
            continue
        title = f"All advantages lie between {low:.2g} and {high:.2g}: nothing is learnt from the rewards"
        evidence = {"adv_max": high, "adv_min": low}
        return TEXTS["advantage_std_tiny"].found(title, evidence, about=[series.label])
    return []


def _fingerprint(series: list[Series], evidence: dict[str, float | int | str]) -> str:
    """What max / std says: two-level members, 3 kept, give 1.155; 5 kept give 1.10 to 1.79, about 1.45 when mixed."""
    for own in series:
        pairs = zip(own.values("adv/max"), own.values("adv/std"), strict=False)
        ratios = [top / spread for (e1, top), (e2, spread) in pairs if e1 == e2 and spread > 0]
        if len(ratios) >= 2:
            evidence.update(max_over_std_first=ratios[0], max_over_std_last=ratios[-1])
            fits = abs(ratios[0] - 1.155) < 0.04 and abs(ratios[-1] - 1.45) < 0.1
            said = "fits" if fits else "does not fit"
            return (
                f"Largest / spread is {ratios[0]:.2f} in the first epoch and {ratios[-1]:.2f} in the last, which "
                f"{said} the print of 3 kept members (1.15) and then 5 (about 1.45)."
            )
    return "The largest advantage beside the spread would show it: 3 kept members print a ratio of 1.15, 5 about 1.45."


def never_right(record: Record) -> list[Finding]:
    """Most queries have no correct member."""
    shares = _flat_shares(record)
    zero = None if shares is None else shares[1]
    if zero is None or zero <= 0.6:
        return []
    return TEXTS["never_right"].found(f"In {zero:.0%} of the groups no member is right", {"all_wrong": zero})


def no_headroom(record: Record) -> list[Finding]:
    """The best member is hardly better than the mean."""
    groups = record.groups
    if groups is None or groups.scale != "accuracy" or groups.queries < 20 or groups.oracle - groups.accuracy >= 0.03:
        return []
    title = f"The best member of a group is right {groups.oracle:.1%} of the time, an average one {groups.accuracy:.1%}"
    return TEXTS["no_headroom"].found(title, {"oracle": groups.oracle, "mean": groups.accuracy})


def two_level_reward(record: Record) -> list[Finding]:
    """Accuracy alone, two levels."""
    groups = record.groups
    if (
        groups is None
        or groups.scale != "accuracy"
        or groups.gt_prob is not None
        or groups.levels > 2.0
        or groups.flat > 0.99
    ):
        return []
    title = f"Rewards take {groups.levels:.1f} different values in a group on average, and gt_prob was not measured"
    return TEXTS["two_level_reward"].found(title, {"levels": groups.levels}, cure=_cure_unweighed(record))


def components_duplicate(record: Record) -> list[Finding]:
    """Two components of one family."""
    parts = set(record.setting("reward.components") or ())
    twins = next((family for family in (_HARD, _PROB) if len(parts & family) > 1), None)
    if twins is None:
        return []
    same = sorted(parts & twins)
    return TEXTS["components_duplicate"].found(f"{' and '.join(same)} say the same", {"components": len(same)})


def reward_fights_metric(record: Record) -> list[Finding]:
    """The reward, or gt_prob, does not rank members as accuracy does."""
    agreement = None if record.probe is None else record.probe.reward_agreement
    if agreement is not None and agreement < 0.1:
        title = f"Among sequences of a query the reward and accuracy correlate by {agreement:+.2f}"
        return TEXTS["reward_fights_metric"].found(title, {"reward_agreement": agreement})
    groups = record.groups
    if groups is None or groups.within is None or groups.within >= 0.1:
        return []
    title = f"Inside a query gt_prob and accuracy correlate by {groups.within:+.2f}"
    return TEXTS["reward_fights_metric"].found(title, {"within_query": groups.within})


def gt_prob_empty(record: Record) -> list[Finding]:
    """gt_prob is 0 everywhere, and the reward is not the probability among labels, which does not need it."""
    groups = record.groups
    if record.setting("reward.mode") == "choice_prob" and not record.setting("reward.components"):
        return []
    largest = None if groups is None else groups.gt_prob_largest
    if groups is None or largest is None or largest >= 1e-3 or groups.positive == 0.0:
        return []
    title = f"The largest gt_prob is {largest:.1g} although {groups.positive:.0%} of the members are right"
    return TEXTS["gt_prob_empty"].found(title, {"largest": largest, "positive": groups.positive})


def repeated_members(record: Record) -> list[Finding]:
    """The same sequence several times."""
    groups = record.groups
    if groups is None or groups.unique >= 0.9:
        return []
    title = f"{groups.members - groups.distinct} of {groups.members} members repeat another of their group"
    evidence = {"distinct": groups.distinct, "members": groups.members}
    return TEXTS["repeated_members"].found(title, evidence, fix=record.undo("members"))


def advantage_explodes(record: Record) -> list[Finding]:
    """An advantage reached its bound."""
    for series in record.stages("grpo"):
        spread, top = series.last("adv/std"), series.last("adv/max")
        if (spread is not None and spread > 2.0) or (top is not None and top > 10.0):
            title = f"Advantages spread by {spread or 0.0:.3g} and reach {top or 0.0:.3g}"
            return TEXTS["advantage_explodes"].found(title, {"adv_std": spread or 0.0, "adv_max": top or 0.0})
    return []


def missing_rewards(record: Record) -> list[Finding]:
    """Members without a reward."""
    groups = record.groups
    if groups is None or not groups.unmeasured:
        return []
    title = f"{groups.unmeasured} members have no measured accuracy"
    return TEXTS["missing_rewards"].found(title, {"unmeasured": groups.unmeasured, "members": groups.members})


def unmeasured_labels(record: Record) -> list[Finding]:
    """Labels that nobody measured on their query."""
    groups, probe = record.groups, record.probe
    if probe is not None and probe.mislabelled and probe.labels:
        title = f"{probe.mislabelled} of {probe.labels} labels do not have the accuracy that was measured for them"
        evidence = {"mislabelled": probe.mislabelled, "labels": probe.labels}
        return TEXTS["unmeasured_labels"].found(title, evidence, fix=record.undo("labels"))
    if groups is None or groups.estimated + groups.borrowed == 0:
        return []
    title = f"{groups.estimated} members were scored by a fallback and {groups.borrowed} were taken over from others"
    evidence = {"estimated": groups.estimated, "borrowed": groups.borrowed, "members": groups.members}
    return TEXTS["unmeasured_labels"].found(title, evidence)


def filtered_by_outcome(record: Record) -> list[Finding]:
    """No query is all right or all wrong."""
    groups = record.groups
    if groups is None or groups.scale != "accuracy" or groups.queries < 50:
        return []
    if groups.tiers.get("flat", 0) > 0 or not _small(groups):
        return []
    title = f"Not one of {groups.queries} queries is all right or all wrong: they were kept by their outcome"
    return TEXTS["filtered_by_outcome"].found(title, {"queries": groups.queries, "positive": groups.positive})


def _small(groups: GroupStats) -> bool:
    """Groups so small that some must be all right or all wrong by chance."""
    return groups.size_quartiles[1] <= 40


def source_tells_label(record: Record) -> list[Finding]:
    """Origins differ in how often they are right."""
    groups = record.groups
    if groups is None:
        return []
    rates = {name: s.positive for name, s in groups.sources.items() if s.members >= max(20, 0.05 * groups.members)}
    if len(rates) < 2 or max(rates.values()) - min(rates.values()) <= 0.6:
        return []
    high, low = max(rates, key=lambda name: rates[name]), min(rates, key=lambda name: rates[name])
    title = f"{rates[high]:.0%} of the members from {high} are right, {rates[low]:.0%} of those from {low}"
    return TEXTS["source_tells_label"].found(title, {"highest": rates[high], "lowest": rates[low]})


def small_groups(record: Record) -> list[Finding]:
    """Too few members for a baseline."""
    size = record.groups.size_quartiles[1] if record.groups and record.groups.size_quartiles else None
    if size is None or size >= 4:
        return []
    return TEXTS["small_groups"].found(f"Half of the groups have {size:g} members or fewer", {"median": size})


def pick_no_better_than_group(record: Record) -> list[Finding]:
    """The selector's own first choice is no better than its group."""
    groups = record.groups
    if groups is None or groups.scale != "accuracy" or groups.pick is None or groups.picked < 50:
        return []
    error = (max(groups.pick * (1.0 - groups.pick), 1e-9) / groups.picked) ** 0.5
    if groups.pick - groups.accuracy > error:
        return []
    pick, mean = groups.pick, groups.accuracy
    title = f"The selector's first pick is right {pick:.1%} of the time, an average candidate {mean:.1%}"
    return TEXTS["pick_no_better_than_group"].found(title, {"pick": pick, "mean": mean, "n": groups.picked})


def normalised_twice(record: Record) -> list[Finding]:
    """Normalised in the data and in the loss."""
    mode, advantage = record.setting("reward.normalise"), record.setting("grpo.advantage")
    if mode in (None, "none") or advantage not in ("zscore", "rank"):
        return []
    title = f"Rewards are normalised by {mode} and again by the {advantage} advantage"
    return TEXTS["normalised_twice"].found(title, {"normalisations": 2}, fix={"reward.normalise": "none"})
