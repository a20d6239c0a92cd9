"""Checks on groups, their rewards and advantages: is there anything to learn from, and does it point the right way?"""

from __future__ import annotations

from statistics import mean

from leverplus.doctor.curves import rises
from leverplus.doctor.findings import ERROR, Finding, read_texts
from leverplus.doctor.records import GroupStats, Record, Series

TEXTS = read_texts("groups")

FEW_GROUPS = 20
"""Fewer groups than this may all be flat by chance, and a run with rounds of asking begins with a handful."""

# rewards of one family are the same ranking of members: correctness and accuracy, or the probability of the answer
_HARD = {"hard_only", "soft_only", "hard_plus_soft", "hard_plus_soft_v2", "separated"}
_PROB = {"gt_prob", "hard_plus_gtprob", "hard01_plus_gtprob", "hard01_plus_gtprob_separated"}


def flat_groups(record: Record) -> list[Finding]:
    """Most groups carry no signal."""
    text = TEXTS["flat_groups"]
    shares = _flat_shares(record)
    if shares is None or shares[0] <= 0.5:
        return []
    flat, zero, one = shares
    title = text.say("seen", flat=flat)
    title += text.say("and_why", zero=zero, one=one) if zero or one else ""
    evidence = {"flat": flat, "all_wrong": zero, "all_right": one, "tied": max(flat - zero - one, 0.0)}
    dense = record.setting("reward.mode") in {"gt_prob", "choice_prob", None}
    fix = None if dense or _unweighed(record) else {"reward.mode": "gt_prob"}
    enough = record.groups is None or record.groups.queries >= FEW_GROUPS
    severity = ERROR if flat > 0.8 and enough else None
    return text.found(title, evidence, fix=fix, severity=severity, cure=_cure_unweighed(record))


def _unweighed(record: Record) -> bool:
    """A server answered and offered no log-probabilities: what needs them must not be advised."""
    groups = record.groups
    return record.setting("score.backend") == "openai" and groups is not None and groups.gt_prob is None


def _cure_unweighed(record: Record) -> str | None:
    if not _unweighed(record):
        return None
    return TEXTS["flat_groups"].say("cure_without_logprobs")


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
    text = TEXTS["top_k_before_baseline"]
    if record.setting("grpo.topk_before_advantage") and record.setting("grpo.top_k"):
        kept = min(record.setting("grpo.top_k"))
        title = text.say("seen_in_recipe", kept=kept)
        fix = {"grpo.topk_before_advantage": False}
        return text.found(title, {"kept": kept}, fix=fix)
    if _whole_groups(record):
        return []
    for series in record.stages("grpo"):
        live = _live(record, series)
        spread = series.last("adv/std")
        # z-scores over whole groups would spread by the share of live groups; half of it leaves room for floors
        if live is not None and live > 0.1 and spread is not None and spread < 0.5 * live and not _centred(series):
            named = text.say("of_training", label=series.label) if series.label else ""
            title = text.say("seen", named=named, spread=spread, live=live)
            cause = text.say("cause_in_log")
            evidence = {"adv_std": spread, "live_groups": live}
            return text.found(title, evidence, cause=cause, about=[series.label])
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
    text = TEXTS["advantage_std_tiny"]
    tiny = []
    for series in record.stages("grpo"):
        spread = series.last("adv/std")
        # z-scores of a group that carries signal spread by 1, so that the mean over groups is the share of such groups
        if spread is not None and spread < 0.05 and not _centred(series):
            tiny.append(series)
    if _whole_groups(record):
        tiny = [series for series in tiny if (_live(record, series) or 0.0) <= 0.1]
    if not tiny:
        return _advantages_zero(record)
    series = min(tiny, key=lambda own: own.last("adv/std") or 0.0)
    spread = series.last("adv/std") or 0.0
    evidence: dict[str, float | int | str] = {"adv_std": spread, "trainings": len(tiny)}
    share = text.say("share_small") if spread < 0.01 else text.say("share_about", share=spread)
    title = text.say("seen", spread=spread, share=share)
    cause = None
    if series.last("frac_reward_zero_std") is None:
        cause = text.say("cause_unknown") + _fingerprint(tiny, evidence)
    cure = text.say("cure_of_spread")
    return text.found(title, evidence, cause=cause, cure=cure, about=[s.label for s in tiny])


def _centred(series: Series) -> bool:
    """Whether advantages are small because they are only centred, as small as rewards that the policy learns from."""
    spread, rewards = series.last("adv/std"), series.last("reward_std") or series.last("reward/group_std")
    if spread is None or spread < 1e-4:
        return False
    if rewards is not None:
        # centring keeps the spread of the rewards; a z-score would make it 1
        return 0.3 * rewards < spread < 1.5 * rewards and (series.last("frac_reward_zero_std") or 0.0) < 0.5
    return rises(series, "reward", "val/reward", "val/group_reward", "val/accuracy", "accuracy")


def _advantages_zero(record: Record) -> list[Finding]:
    """Largest and smallest advantage are both 0, where no spread is logged."""
    text = TEXTS["advantage_std_tiny"]
    for series in record.stages("grpo"):
        high, low = series.last("adv/max"), series.last("adv/min")
        if high is None or low is None or max(abs(high), abs(low)) > 0.01:
            continue
        title = text.say("seen_all_zero", low=low, high=high)
        evidence = {"adv_max": high, "adv_min": low}
        return text.found(title, evidence, about=[series.label])
    return []


def _fingerprint(series: list[Series], evidence: dict[str, float | int | str]) -> str:
    """What max / std says: two-level members, 3 kept, give 1.155; 5 kept give 1.10 to 1.79, about 1.45 when mixed."""
    text = TEXTS["advantage_std_tiny"]
    for own in series:
        pairs = zip(own.values("adv/max"), own.values("adv/std"), strict=False)
        ratios = []
        for (at, top), (also_at, spread) in pairs:
            if at == also_at and spread > 0:  # both were printed for the same epoch
                ratios.append(top / spread)
        if len(ratios) >= 2:
            evidence.update(max_over_std_first=ratios[0], max_over_std_last=ratios[-1])
            fits = abs(ratios[0] - 1.155) < 0.04 and abs(ratios[-1] - 1.45) < 0.1
            said = text.say("fits") if fits else text.say("fits_not")
            return text.say("fingerprint", first=ratios[0], last=ratios[-1], said=said)
    return text.say("fingerprint_missing")


def never_right(record: Record) -> list[Finding]:
    """Most queries have no correct member."""
    text = TEXTS["never_right"]
    shares = _flat_shares(record)
    zero = None if shares is None else shares[1]
    if zero is None or zero <= 0.6:
        return []
    return text.found(text.say("seen", zero=zero), {"all_wrong": zero})


def no_headroom(record: Record) -> list[Finding]:
    """The best member is hardly better than the mean."""
    text = TEXTS["no_headroom"]
    groups = record.groups
    if groups is None or groups.scale != "accuracy" or groups.queries < 20 or groups.oracle - groups.accuracy >= 0.03:
        return []
    title = text.say("seen", oracle=groups.oracle, accuracy=groups.accuracy)
    return text.found(title, {"oracle": groups.oracle, "mean": groups.accuracy})


def two_level_reward(record: Record) -> list[Finding]:
    """Accuracy alone, two levels."""
    text = TEXTS["two_level_reward"]
    groups = record.groups
    if (
        groups is None
        or groups.scale != "accuracy"
        or groups.gt_prob is not None
        or groups.levels > 2.0
        or groups.flat > 0.99
    ):
        return []
    title = text.say("seen", levels=groups.levels)
    return text.found(title, {"levels": groups.levels}, cure=_cure_unweighed(record))


def components_duplicate(record: Record) -> list[Finding]:
    """Two components of one family."""
    text = TEXTS["components_duplicate"]
    parts = set(record.setting("reward.components") or ())
    twins = next((family for family in (_HARD, _PROB) if len(parts & family) > 1), None)
    if twins is None:
        return []
    same = sorted(parts & twins)
    return text.found(text.say("seen", names=" and ".join(same)), {"components": len(same)})


def reward_fights_metric(record: Record) -> list[Finding]:
    """The reward, or gt_prob, does not rank members as accuracy does."""
    text = TEXTS["reward_fights_metric"]
    agreement = None if record.probe is None else record.probe.reward_agreement
    if agreement is not None and agreement < 0.1:
        title = text.say("seen", correlation=agreement)
        return text.found(title, {"reward_agreement": agreement})
    groups = record.groups
    if groups is None or groups.within is None or groups.within >= 0.1:
        return []
    title = text.say("seen_gt_prob", correlation=groups.within)
    return text.found(title, {"within_query": groups.within})


def gt_prob_empty(record: Record) -> list[Finding]:
    """gt_prob is 0 everywhere, and the reward is not the probability among labels, which does not need it."""
    text = TEXTS["gt_prob_empty"]
    groups = record.groups
    if record.setting("reward.mode") == "choice_prob" and not record.setting("reward.components"):
        return []
    largest = None if groups is None else groups.gt_prob_largest
    if groups is None or largest is None or largest >= 1e-3 or groups.positive == 0.0:
        return []
    title = text.say("seen", largest=largest, positive=groups.positive)
    return text.found(title, {"largest": largest, "positive": groups.positive})


def repeated_members(record: Record) -> list[Finding]:
    """The same sequence several times."""
    text = TEXTS["repeated_members"]
    groups = record.groups
    if groups is None or groups.unique >= 0.9:
        return []
    title = text.say("seen", repeats=groups.members - groups.distinct, members=groups.members)
    evidence = {"distinct": groups.distinct, "members": groups.members}
    return text.found(title, evidence, fix=record.undo("members"))


def advantage_explodes(record: Record) -> list[Finding]:
    """Advantages spread by more than 2, or one of them is over 10."""
    text = TEXTS["advantage_explodes"]
    for series in record.stages("grpo"):
        spread, top = series.last("adv/std"), series.last("adv/max")
        if (spread is not None and spread > 2.0) or (top is not None and top > 10.0):
            title = text.say("seen", spread=spread or 0.0, largest=top or 0.0)
            return text.found(title, {"adv_std": spread or 0.0, "adv_max": top or 0.0})
    return []


def missing_rewards(record: Record) -> list[Finding]:
    """Members without a reward."""
    text = TEXTS["missing_rewards"]
    groups = record.groups
    if groups is None or not groups.unmeasured:
        return []
    title = text.say("seen", unmeasured=groups.unmeasured)
    return text.found(title, {"unmeasured": groups.unmeasured, "members": groups.members})


def unmeasured_labels(record: Record) -> list[Finding]:
    """Labels that nobody measured on their query."""
    text = TEXTS["unmeasured_labels"]
    groups, probe = record.groups, record.probe
    if probe is not None and probe.mislabelled and probe.labels:
        title = text.say("seen", mislabelled=probe.mislabelled, labels=probe.labels)
        evidence = {"mislabelled": probe.mislabelled, "labels": probe.labels}
        return text.found(title, evidence, fix=record.undo("labels"))
    if groups is None or groups.estimated + groups.borrowed == 0:
        return []
    title = text.say("seen_fallback", estimated=groups.estimated, borrowed=groups.borrowed)
    evidence = {"estimated": groups.estimated, "borrowed": groups.borrowed, "members": groups.members}
    return text.found(title, evidence)


def filtered_by_outcome(record: Record) -> list[Finding]:
    """No query is all right or all wrong."""
    text = TEXTS["filtered_by_outcome"]
    groups = record.groups
    if groups is None or groups.scale != "accuracy" or groups.queries < 50:
        return []
    if groups.tiers.get("flat", 0) > 0 or not _small(groups):  # of large groups none need be flat
        return []
    title = text.say("seen", queries=groups.queries)
    return text.found(title, {"queries": groups.queries, "positive": groups.positive})


def _small(groups: GroupStats) -> bool:
    """Groups so small that some must be all right or all wrong by chance."""
    return groups.size_quartiles[1] <= 40


def source_tells_label(record: Record) -> list[Finding]:
    """Origins differ in how often they are right."""
    text = TEXTS["source_tells_label"]
    groups = record.groups
    if groups is None:
        return []
    enough = max(20, 0.05 * groups.members)  # a rate of fewer members says little
    rates = {name: source.positive for name, source in groups.sources.items() if source.members >= enough}
    if len(rates) < 2 or max(rates.values()) - min(rates.values()) <= 0.6:
        return []
    high, low = max(rates, key=lambda name: rates[name]), min(rates, key=lambda name: rates[name])
    title = text.say("seen", highest=rates[high], high=high, lowest=rates[low], low=low)
    return text.found(title, {"highest": rates[high], "lowest": rates[low]})


def small_groups(record: Record) -> list[Finding]:
    """Too few members for a baseline."""
    text = TEXTS["small_groups"]
    size = record.groups.size_quartiles[1] if record.groups and record.groups.size_quartiles else None
    if size is None or size >= 4:
        return []
    return text.found(text.say("seen", median=size), {"median": size})


def pick_no_better_than_group(record: Record) -> list[Finding]:
    """The selector's own first choice is no better than its group."""
    text = TEXTS["pick_no_better_than_group"]
    groups = record.groups
    if groups is None or groups.scale != "accuracy" or groups.pick is None or groups.picked < 50:
        return []
    error = (max(groups.pick * (1.0 - groups.pick), 1e-9) / groups.picked) ** 0.5  # of a share of `picked` queries
    if groups.pick - groups.accuracy > error:
        return []
    pick, mean = groups.pick, groups.accuracy
    title = text.say("seen", pick=pick, mean=mean)
    return text.found(title, {"pick": pick, "mean": mean, "n": groups.picked})


def normalised_twice(record: Record) -> list[Finding]:
    """Normalised in the data and in the loss."""
    text = TEXTS["normalised_twice"]
    mode, advantage = record.setting("reward.normalise"), record.setting("grpo.advantage")
    if mode in (None, "none") or advantage not in ("zscore", "rank"):
        return []
    title = text.say("seen", mode=mode, advantage=advantage)
    return text.found(title, {"normalisations": 2}, fix={"reward.normalise": "none"})
