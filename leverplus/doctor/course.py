"""Checks on the course of a training, from its log alone: whichever library wrote it, and without any settings."""

from __future__ import annotations

from statistics import median

from leverplus.doctor.curves import Curve, curve, first_curve, rises
from leverplus.doctor.findings import ERROR, INFO, WARNING, Finding, read_texts
from leverplus.doctor.records import Record, Series
from leverplus.doctor.words import metric_in_words, phrase

TEXTS = read_texts("course")

JUDGED = ("val/accuracy", "val/reward", "val/group_reward", "accuracy", "reward", "val/loss", "loss/total")
"""What a run is judged by, the best measure first."""


def reward_constant(record: Record) -> list[Finding]:
    """Nothing to prefer. In our own logs groups are measured once: their mean stays, and only their spread tells."""
    text = TEXTS["reward_constant"]
    for series in record.stages("grpo"):
        reward = curve(series, "reward", 5)
        if reward is None or reward.moves:
            continue
        spread = _spread(series, reward)
        # our own log prints the spread inside groups; others that of a step, in which a few may differ
        most = 0.0 if series.exact else 0.05 * abs(reward.middle)
        if spread is None or spread > most + 1e-6:
            continue
        if not series.exact and reward.noise > spread + 1e-6:
            continue  # means differ more than the rewards they are of: that spread is inside groups, which differ
        title = text.say("seen", reward=reward.middle, unit=series.unit, spread=spread)
        evidence = {"reward": reward.middle, "spread": spread, f"{series.unit}s": len(reward.values)}
        return text.found(title, evidence, about=[series.label])
    return []


def _spread(series: Series, reward: Curve) -> float | None:
    """The usual spread of rewards in a step; of a log that prints none, only a mean that never changes says it."""
    spread = curve(series, "reward_std", 3)
    if spread is not None or series.exact:
        return None if spread is None else spread.middle
    low, high = curve(series, "reward/min", 3), curve(series, "reward/max", 3)
    if low is not None and high is not None:
        return high.middle - low.middle
    return 0.0 if max(reward.values) - min(reward.values) < 1e-9 else None


def reward_hacked(record: Record) -> list[Finding]:
    """More reward, no more right answers."""
    text = TEXTS["reward_hacked"]
    for series in record.stages("grpo"):
        reward = curve(series, "reward", 5)
        found = first_curve(series, ("val/accuracy", "accuracy", "rewards/acc/mean"))
        if reward is None or found is None or not reward.rises:
            continue
        metric, right = found
        if right.early > 0.95 or right.change > max(0.01, 0.5 * right.error) or right.rises:
            continue  # accuracy had no room to rise, or did rise a little
        held = curve(series, "val/reward")
        if (held is not None and not held.rises) or right.rose_for_a_while:
            continue  # what is held out does not follow the reward either, or followed it for a while: over-fitting
        how = text.say("fell") if right.falls else text.say("stayed")
        title = text.say(
            "seen",
            reward_first=reward.early,
            reward_last=reward.late,
            where=metric_in_words(metric),
            how=how,
            accuracy_first=right.early,
            accuracy_last=right.late,
        )
        evidence = {"reward_first": reward.early, "reward_last": reward.late, "accuracy_first": right.early,
                    "accuracy_last": right.late}  # fmt: skip
        severity = ERROR if right.falls else WARNING
        return text.found(title, evidence, severity=severity, about=[series.label])
    return []


def learning_rate_too_large(record: Record) -> list[Finding]:
    """The training breaks its own work."""
    text = TEXTS["learning_rate_too_large"]
    for series in record.series:
        if len(series.epochs) < 5 or (series.exact and not _worse(series)):
            continue  # of our own runs the outcome is known, so that large steps alone are no reason to speak
        found = _jumps(series) if series.stage in ("grpo", "ppo") else _diverges(series)
        if found is None:
            continue
        title, evidence = found
        rate = _largest(series, "lr")
        if rate is not None:
            title = text.say("with_rate", what=title, rate=rate)
            evidence = {**evidence, "lr": rate}
        return text.found(title, evidence, about=[series.label])
    return []


def _worse(series: Series) -> bool:
    """Whether a training of our own loses what it is there for; while it does not, its large steps are fine."""
    if series.stage == "sft":
        loss = curve(series, "loss/total", 5)
        return loss is not None and loss.rises
    found = first_curve(series, ("val/reward", "val/accuracy", "reward"))
    return series.stage == "grpo" and found is not None and found[1].falls


def _diverges(series: Series) -> tuple[str, dict[str, float | int | str]] | None:
    """A loss that must fall rises, or jumps again and again."""
    text = TEXTS["learning_rate_too_large"]
    loss = curve(series, "loss/total", 5)
    if loss is None:
        return None
    worst = max(loss.values)
    if loss.rises and loss.late > 1.1 * loss.early:  # beyond the noise, and by enough to matter
        title = text.say("loss_rose", first=loss.early, last=loss.late)
        return title, {"first": loss.early, "last": loss.late}
    spikes = sum(value > 3.0 * max(loss.middle, loss.values[0]) for value in loss.values)
    if spikes >= 2 or (worst > 3.0 * loss.values[0] > 0.0 and loss.late > loss.values[0]):
        title = text.say("loss_jumps", largest=worst, times=worst / max(loss.middle, 1e-09))
        return title, {"largest": worst, "median": loss.middle, "spikes": spikes}
    if worst > 2.0 * max(loss.values[0], 1e-9):
        title = text.say("loss_went", first=loss.values[0], largest=worst)
        return title, {"first": loss.values[0], "largest": worst}
    return None


def _jumps(series: Series) -> tuple[str, dict[str, float | int | str]] | None:
    """Gradients grow or spike while the reward does not rise; or the policy moves too far in a single update."""
    text = TEXTS["learning_rate_too_large"]
    moved = curve(series, "kl_prox", 5)
    if moved is not None and moved.middle > 0.2:  # nats per update; trust regions stop at about 0.1
        title = text.say("update_far_often", nats=moved.middle)
        return title, {"kl_prox": moved.middle}
    reward = curve(series, "reward", 5)
    if moved is not None and max(moved.values) > 0.1 and reward is not None and reward.falls:
        title = text.say("update_far", nats=max(moved.values))
        return title, {"kl_prox": max(moved.values), "reward_first": reward.early, "reward_last": reward.late}
    kl = curve(series, "kl", 10)
    far = 0.0 if kl is None else max(kl.values[: len(kl.values) // 5])
    if kl is not None and kl.values[0] < 0.05 and far > 0.5:
        title = text.say("kl_far_at_once", first=kl.values[0], far=far)
        return title, {"kl": far}
    norms = curve(series, "grad_norm", 5)
    if norms is None or rises(series, "reward", "val/reward", "val/accuracy"):
        return None
    spikes = sum(value > 10.0 * max(norms.middle, 1e-9) for value in norms.values)
    if norms.rises and norms.late > 5.0 * norms.early:
        title = text.say("gradient_grew", first=norms.early, last=norms.late)
        return title, {"first": norms.early, "last": norms.late}
    if spikes >= max(2, len(norms.values) // 20):
        title = text.say("gradient_jumps", largest=max(norms.values), spikes=spikes, median=norms.middle)
        return title, {"largest": max(norms.values), "median": norms.middle, "spikes": spikes}
    return None


def _largest(series: Series, metric: str) -> float | None:
    return max((value for _, value in series.values(metric)), default=None)


def kl_explodes(record: Record) -> list[Finding]:
    """Away from the reference, without end."""
    text = TEXTS["kl_explodes"]
    for series in record.stages("grpo"):
        kl = curve(series, "kl")
        limit = 6.0 if series.exact else 1.0  # ours is nats per sequence; libraries print nats per token
        if kl is None or kl.late <= limit or kl.late <= 8.0 * max(kl.early, 0.01) or not kl.rises:
            continue
        reward = first_curve(series, ("val/reward", "val/accuracy", "reward"))
        title = text.say("seen", first=kl.early, last=kl.late)
        evidence = {"kl_first": kl.early, "kl_last": kl.late}
        severity = ERROR
        if reward is not None:
            metric, earned = reward
            title += text.say("and_reward", what=metric_in_words(metric), first=earned.early, last=earned.late)
            evidence |= {"reward_first": earned.early, "reward_last": earned.late}
            severity = INFO if earned.rises else ERROR
        return text.found(title, evidence, severity=severity, about=[series.label])
    return []


def length_drifts(record: Record) -> list[Finding]:
    """Longer or shorter, not better."""
    text = TEXTS["length_drifts"]
    for series in record.stages("grpo"):
        length, cut = curve(series, "length", 5), curve(series, "truncated", 5)
        judged = [name for name in ("val/accuracy", "accuracy") if curve(series, name) is not None]
        better = rises(series, *(judged or ["reward"]))  # where nothing else is measured the reward is believed
        other = length is not None and length.moves and not 0.5 < length.late / max(length.early, 1e-9) < 2.0
        if length is not None and other and not better:
            title = text.say("seen", first=length.early, last=length.late)
            evidence = {"length_first": length.early, "length_last": length.late}
        elif cut is not None and cut.late > max(0.3, 3.0 * cut.early):  # no room left, even where it still gets better
            title = text.say("cut_off", last=cut.late, first=cut.early)
            evidence = {"truncated_first": cut.early, "truncated_last": cut.late}
        else:
            continue
        return text.found(title, evidence, about=[series.label])
    return []


def resumed_without_optimiser(record: Record) -> list[Finding]:
    """A jump where the training was taken up again."""
    text = TEXTS["resumed_without_optimiser"]
    for series in record.series:
        for mark in series.marks:
            for metric, worse in (("loss/total", 1.0), ("grad_norm", 1.0), ("reward", -1.0), ("val/reward", -1.0)):
                found = _jump(series, mark, metric, worse)
                if found is None:
                    continue
                before, after = found
                place = series.epochs[mark].epoch
                what = metric_in_words(metric)
                title = text.say("seen", unit=series.unit, place=place, what=what, before=before, after=after)
                evidence = {"place": place or mark, "before": before, "after": after}
                return text.found(title, evidence, about=[series.label])
    return []


def _jump(series: Series, mark: int, metric: str, worse: float) -> tuple[float, float] | None:
    """The level of a metric just before and just after a mark, if it became worse by far more than its noise."""
    measured = [line.values.get(metric) for line in series.epochs]
    before = [value for value in measured[:mark] if value is not None][-5:]
    after = [value for value in measured[mark:] if value is not None][:3]
    whole = curve(series, metric, 6)
    if len(before) < 2 or not after or whole is None:
        return None
    low, high = median(before), max(after, key=lambda value: worse * value)
    jump = worse * (high - low)  # above 0: it became worse, whichever way that is for this metric
    enough = jump > 6.0 * whole.noise and jump > 0.25 * max(abs(low), 0.1 * max(map(abs, whole.values)))
    return (low, high) if enough else None


def seeds_outweigh_gain(record: Record) -> list[Finding]:
    """Luck is larger than the gain."""
    text = TEXTS["seeds_outweigh_gain"]
    found = _compared(record) or _printed(record)
    if found is None:
        return []
    what, results, gain = found
    spread = max(results) - min(results)
    if spread <= abs(gain):
        return []
    title = text.say("seen", runs=len(results), lowest=min(results), highest=max(results), what=what, gain=gain)
    evidence = {"runs": len(results), "lowest": min(results), "highest": max(results), "gain": gain}
    return text.found(title, evidence)


def _compared(record: Record) -> tuple[str, list[float], float] | None:
    """Several runs of one stage, judged by the best measure that all of them have."""
    runs = [series for series in record.series if series.stage == record.series[-1].stage and not series.exact]
    if len({series.label for series in runs}) < 2 or len(runs) < 2:
        return None
    for metric in JUDGED:
        measured = [curve(series, metric) for series in runs]
        curves = [found for found in measured if found is not None]
        if len(curves) == len(runs):
            gain = sum(own.change for own in curves) / len(curves)
            return metric_in_words(metric), [own.late for own in curves], gain
    return None


def _printed(record: Record) -> tuple[str, list[float], float] | None:
    """Printed results of several seeds beside the gain that is claimed."""
    published = record.published
    if published is None or len(published.seeds) < 2 or not published.gains:
        return None
    return TEXTS["seeds_outweigh_gain"].say("as_printed"), list(published.seeds), max(published.gains, key=abs)


def unmoved(series: Series) -> list[str]:
    """What was measured and did not move at all; empty where anything moved, or too little was measured to say."""
    still = []
    kl = curve(series, "kl", 8)
    if kl is not None:
        if abs(kl.late) > 1e-4:
            return []
        still.append(phrase("kl_stays", nats=kl.late))
    step = curve(series, "kl_prox", 8)
    if step is not None:
        if abs(step.middle) > 1e-6:
            return []
        still.append(phrase("update_kl_stays", nats=step.middle))
    if still:
        return still  # what the policy earns by chance says nothing where the policy itself stands still
    judged = ("reward", "val/reward", "val/loss", "val/accuracy", "update/param_rel")
    by_reward = series.stage in ("grpo", "ppo")
    for metric in judged if by_reward else ("loss/total", *judged):
        found = curve(series, metric, 3 if metric.startswith("val/") else 8)
        if found is None:
            continue
        if found.moves:
            return []
        named = metric_in_words(metric)
        still.append(phrase("metric_stays", metric=named, first=found.early, last=found.late))
    return still
