"""Checks on the course of a training, from its log alone: whichever library wrote it, and without any settings."""

from __future__ import annotations

from statistics import median

from leverplus_doctor.check import (
    INFO,
    WARNING,
    Said,
    Seen,
    check,
    check_grpo,
    check_training,
)
from leverplus_doctor.curves import (
    Curve,
    curve,
    first_curve,
    metric_in_words,
    rises,
)
from leverplus_doctor.records import Record, Series

JUDGED = (
    "val/accuracy",
    "val/reward",
    "val/group_reward",
    "accuracy",
    "reward",
    "val/loss",
    "loss/total",
)
"""What a run is judged by, the best measure first."""
EARNED = ("val/reward", "val/accuracy", "reward")


@check_grpo
def reward_constant(series: Series) -> Said:
    """The reward is {reward:.3g} from the first to the last {unit} and spreads by {spread:.2g}

    Error: All answers earn the same: the reward is always 0 (nothing is right, or the parser of answers fails),
    saturated at its most, or does not depend on the answer. Equal rewards give advantages of 0.
    Looks at: spread of the rewards in a step (under 5 % of their size, or no difference between smallest and
    largest) in a training whose reward does not move
    Try: Print ten answers with their rewards. Always 0: make the task easier or the parser laxer. Always the
    most: harder queries, or a reward with more levels.
    Explains: flat_groups advantage_std_tiny dead_updates learning_rate_tiny never_right entropy_stuck overfits
    reward_falls
    """
    reward = curve(series, "reward", 5)
    if reward is None or reward.moves:
        return None
    spread = _spread(series, reward)
    if spread is None:
        return None
    # our own log prints the spread inside groups (and groups are measured once, so that their mean stays);
    # others print that of a step, in which a few may differ
    most = 0.0
    if not series.exact:
        most = 0.05 * abs(reward.middle)
        # means that differ more than the rewards they are of: that spread is inside groups, which differ
        if reward.noise > spread + 1e-6:
            return None
    if spread > most + 1e-6:
        return None
    return Seen(
        reward=reward.middle,
        spread=spread,
        unit=series.unit,
        lines=len(reward.values),
    )


def _spread(series: Series, reward: Curve) -> float | None:
    """The usual spread of rewards in a step; of a log that prints none, only a mean that never changes says it."""
    spread = curve(series, "reward_std", 3)
    if spread is not None:
        return spread.middle
    low = curve(series, "reward/min")
    high = curve(series, "reward/max")
    if series.exact:
        return None
    if low is not None and high is not None:
        return high.middle - low.middle
    if max(reward.values) - min(reward.values) < 1e-9:
        return 0.0
    return None


@check_grpo
def reward_hacked(series: Series) -> Said:
    """The reward rose from {reward.early:.3g} to {reward.late:.3g}, {where} {how}: {accuracy.early:.1%} to
    {accuracy.late:.1%}

    Error: The reward rises and accuracy does not: the policy found what the reward pays for and nobody wants.
    Looks at: change of reward and of accuracy (held out where logged) from the first to the last fifth of the
    log
    Try: Read the answers with the highest reward; take out or bound the part of the reward that pays for them;
    raise the weight of the KL term; choose the checkpoint by held-out accuracy.
    Explains: kl_explodes length_drifts entropy_collapsed overfits reward_falls
    """
    reward = curve(series, "reward", 5)
    found = first_curve(series, ("val/accuracy", "accuracy", "rewards/acc/mean"))
    if reward is None or found is None or not reward.rises:
        return None
    metric, right = found
    no_room = right.early > 0.95
    least = max(0.01, 0.5 * right.error)
    if no_room or right.rises or right.change > least:
        return None
    held = curve(series, "val/reward")
    # what is held out does not follow the reward either, or accuracy followed it for a while: over-fitting
    if right.rose_for_a_while or (held is not None and not held.rises):
        return None
    return Seen(
        reward=reward,
        accuracy=right,
        where=metric_in_words(metric),
        how="fell" if right.falls else "stayed",
        severity=not right.falls and WARNING,
    )


@check_training
def learning_rate_too_large(series: Series) -> Said:
    """The training breaks what it has learnt

    Error: Steps are too large: the loss or the gradient jumps or grows, and what was learnt is destroyed.
    Looks at: loss or gradient norm at the end against the beginning, spikes over ten times the median, or a KL
    between old and new policy over 0.2 in half of the steps
    Try: Divide the learning rate by ten, warm it up, clip the gradient norm at 1.
    Explains: kl_explodes clip_saturated entropy_collapsed reward_falls not_finite overfits length_drifts
    dead_updates reward_constant flat_groups
    """
    # of our own runs the outcome is known, so that large steps alone are no reason to speak
    if len(series.epochs) < 5 or (series.exact and not _worse(series)):
        return None
    look = _diverges
    if series.stage in ("grpo", "ppo"):
        look = _jumps
    seen = look(series)
    rates = series.numbers("lr")
    if seen is not None and rates:
        seen.sentence += " (learning rate {lr:g})"
        seen.values["lr"] = max(rates)
    return seen


def _worse(series: Series) -> bool:
    """Whether a training of our own loses what it is there for; while it does not, its large steps are fine."""
    if series.stage == "sft":
        loss = curve(series, "loss/total", 5)
        return loss is not None and loss.rises
    found = first_curve(series, EARNED)
    return series.stage == "grpo" and found is not None and found[1].falls


def _diverges(series: Series) -> Seen | None:
    """A loss that must fall rises, or jumps again and again."""
    loss = curve(series, "loss/total", 5)
    if loss is None:
        return None
    first = loss.values[0]
    worst = max(loss.values)
    # beyond the noise, and by enough to matter
    if loss.rises and loss.late > 1.1 * loss.early:
        return Seen("The loss rose from {loss.early:.3g} to {loss.late:.3g}", loss=loss)
    usual = max(loss.middle, first)
    spikes = sum(value > 3.0 * usual for value in loss.values)
    if spikes >= 2 or (worst > 3.0 * first > 0.0 and loss.late > first):
        return Seen(
            "The loss jumps to {largest:.3g}, {times:.1f} times its median",
            largest=worst,
            times=worst / max(loss.middle, 1e-9),
        )
    if worst <= 2.0 * max(first, 1e-9):
        return None
    sentence = "The loss went from {first:.3g} to {largest:.3g}"
    return Seen(sentence, first=first, largest=worst)


def _jumps(series: Series) -> Seen | None:
    """The policy moves too far at once, or gradients grow or spike while the reward does not rise."""
    moved = curve(series, "kl_prox", 5)
    reward = curve(series, "reward", 5)
    # nats per update; trust regions stop at about 0.1
    if moved is not None:
        if moved.middle > 0.2:
            return Seen(
                "An update moves the policy by {kl_prox.middle:.3g} nats, half of the time or more often",
                kl_prox=moved,
            )
        far = max(moved.values)
        if far > 0.1 and reward is not None and reward.falls:
            return Seen(
                "An update moves the policy by up to {kl_prox:.3g} nats, and the reward falls",
                kl_prox=far,
            )
    kl = curve(series, "kl", 10)
    if kl is not None and kl.values[0] < 0.05:
        far = max(kl.values[: len(kl.values) // 5])
        if far > 0.5:
            return Seen(
                "The KL goes from {first:.2g} to {kl:.2g} within the first fifth of the training",
                first=kl.values[0],
                kl=far,
            )
    norms = curve(series, "grad_norm", 5)
    if norms is None or rises(series, *EARNED):
        return None
    if norms.rises and norms.late > 5.0 * norms.early:
        return Seen(
            "The gradient norm grew from {norm.early:.3g} to {norm.late:.3g}, and the reward did not",
            norm=norms,
        )
    usual = max(norms.middle, 1e-9)
    spikes = sum(value > 10.0 * usual for value in norms.values)
    if spikes < max(2, len(norms.values) // 20):
        return None
    return Seen(
        "The gradient norm jumps to {largest:.3g} ({spikes} times), its median is {norm.middle:.3g}",
        largest=max(norms.values),
        norm=norms,
        spikes=spikes,
    )


@check_grpo
def kl_explodes(series: Series) -> Said:
    """The KL grew from {kl.early:.2g} to {kl.late:.3g}

    Error: The policy runs away from its reference: the weight of the KL term is too small, or the learning rate
    too large for what the rewards say.
    Looks at: KL at the end (over 1, exact over 6) against the beginning (over 8 times); only told where the
    reward rises
    Try: Raise the weight of the KL term, halve the learning rate, stop where the KL passes the limit.
    Explains: reward_falls entropy_collapsed length_drifts overfits clip_saturated
    """
    kl = curve(series, "kl")
    # ours is nats per sequence; libraries print nats per token
    limit = 1.0
    if series.exact:
        limit = 6.0
    if kl is None or not kl.rises:
        return None
    if kl.late <= max(limit, 8.0 * kl.early):
        return None
    found = first_curve(series, EARNED)
    if found is None:
        return Seen(kl=kl)
    metric, earned = found
    return Seen(
        "The KL grew from {kl.early:.2g} to {kl.late:.3g}, the {what} went from {reward.early:.3g} to {reward.late:.3g}",
        severity=earned.rises and INFO,
        kl=kl,
        reward=earned,
        what=metric_in_words(metric),
    )


@check_grpo
def length_drifts(series: Series) -> Said:
    """The mean length of an answer went from {length.early:.3g} to {length.late:.3g}, the reward did not rise

    Warning: Answers become longer or shorter and the reward does not rise with them: length is paid for by
    accident, or the end of an answer was unlearnt.
    Looks at: mean length at the end against the beginning (twice, or half) while accuracy does not rise, or
    answers cut off (over 30 %, and three times as many as at the start)
    Try: Average the loss over tokens of all answers, not of each; bound or punish length; check that the
    end-of-text token is trained.
    """
    # where nothing else is measured the reward is believed
    judged = [own for own in ("val/accuracy", "accuracy") if curve(series, own)]
    better = rises(series, *(judged or ["reward"]))
    length = curve(series, "length", 5)
    if length is not None and length.moves and not better:
        ratio = length.late / max(length.early, 1e-9)
        if ratio <= 0.5 or ratio >= 2.0:
            return Seen(length=length)
    cut = curve(series, "truncated", 5)
    # no room left, even where it still gets better
    if cut is None or cut.late <= max(0.3, 3.0 * cut.early):
        return None
    return Seen(
        "{truncated.late:.0%} of the answers are cut off, {truncated.early:.0%} at the start",
        truncated=cut,
    )


WORSE = {
    "loss/total": 1.0,
    "grad_norm": 1.0,
    "reward": -1.0,
    "val/reward": -1.0,
}
"""Which way a metric becomes worse."""


@check_training
def resumed_without_optimiser(series: Series) -> Said:
    """Taken up again at {unit} {place}, the {what} jumps from {before:.3g} to {after:.3g}

    Error: The training went on from a checkpoint without the state of its optimiser (or of the learning rate's
    schedule): the first steps after it are too large.
    Looks at: jump of loss, gradient norm or reward (over six times the noise) where the number of the step
    falls, the clock begins again, the log says so, or a checkpoint holds no optimiser
    Try: Save and load the optimiser and the schedule with the weights; else warm the learning rate up again.
    Explains: learning_rate_too_large reward_falls kl_explodes
    """
    for mark in series.marks:
        for metric, worse in WORSE.items():
            before = Series("", series.epochs[:mark]).numbers(metric)
            after = Series("", series.epochs[mark:]).numbers(metric)
            whole = curve(series, metric, 6)
            if len(before) < 2 or not after or whole is None:
                continue
            low = median(before[-5:])
            high = max(after[:3], key=lambda value: worse * value)
            largest = max(map(abs, whole.values))
            size = max(abs(low), 0.1 * largest)
            least = max(6.0 * whole.noise, 0.25 * size)
            if worse * (high - low) > least:
                return Seen(
                    before=low,
                    after=high,
                    place=series.epochs[mark].epoch or mark,
                    unit=series.unit,
                    what=metric_in_words(metric),
                )
    return None


@check
def seeds_outweigh_gain(record: Record) -> Said:
    """{runs} runs end between {lowest:.3g} and {highest:.3g} ({what}); the gain is {gain:.3g}

    Warning: Runs that differ in their seed differ by more than what the training is said to gain.
    Looks at: range of the results of several runs against the mean gain, of logs or printed rows
    Try: Report the mean and the interval over at least five seeds; claim only what is larger.
    Explains: difference_inside_noise reward_falls reward_hacked overfits
    """
    published = record.published
    found = _compared(record)
    if found is not None:
        what, results, gain = found
    elif len(published.seeds) > 1 and published.gains:
        what = "as printed"
        results = list(published.seeds)
        gain = max(published.gains, key=abs)
    else:
        return None
    lowest = min(results)
    highest = max(results)
    if highest - lowest <= abs(gain):
        return None
    return Seen(runs=len(results), lowest=lowest, highest=highest, gain=gain, what=what)


def _compared(record: Record) -> tuple[str, list[float], float] | None:
    """Several runs of one stage, judged by the best measure that all of them have."""
    runs = []
    for series in record.series:
        if series.stage == record.series[-1].stage and not series.exact:
            runs.append(series)
    if len({series.label for series in runs}) < 2:
        return None
    for metric in JUDGED:
        results = []
        gain = 0.0
        for series in runs:
            found = curve(series, metric)
            if found is not None:
                results.append(found.late)
                gain += found.change
        if len(results) == len(runs):
            return metric_in_words(metric), results, gain / len(runs)
    return None
