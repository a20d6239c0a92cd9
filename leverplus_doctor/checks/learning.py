"""Checks on what a training learns: its steps, how a checkpoint is chosen, and whether it still explores."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from leverplus_doctor.check import (
    ERROR,
    WARNING,
    Said,
    Seen,
    check,
    check_grpo,
    check_stages,
    check_training,
)
from leverplus_doctor.curves import (
    Curve,
    chance_level,
    curve,
    held_out_error,
    metric_in_words,
    rises,
    unmoved,
)
from leverplus_doctor.records import ChosenEpoch, Record, Series


@check_training
def dead_updates(series: Series) -> Said:
    """{stage} moves the weights by {moved:.1g} of their size and changes {changed:.0%} of the picks

    Error: The weights hardly move: the learning rate is that of a much larger network, or there is no signal.
    Looks at: relative change of the weights (under 0.001) and changed picks (under 1 %) in every epoch
    Try: Raise the learning rate until 2 to 20 % of the picks change in an epoch, once the groups carry signal.
    Explains: identical_picks entropy_stuck difference_inside_noise
    """
    moves = series.numbers("update/param_rel")
    changes = series.numbers("picks/changed_frac")
    if len(moves) < 2 or not changes:
        return _no_update(series)
    moved = max(moves)
    changed = max(changes)
    # of the weights' size, and of the picks, in the best epoch
    if moved >= 1e-3 or changed >= 0.01:
        return None
    rate = series.recipe.get(f"{series.stage}.lr")
    fix = rate is not None and {f"{series.stage}.lr": 10.0 * rate}
    return Seen(moved=moved, changed=changed, stage=series.stage, fix=fix)


def _no_update(series: Series) -> Said:
    """Another library's log in which the policy stays where it is, without a learning rate that would say why."""
    if series.exact or series.numbers("lr") or series.stage not in ("grpo", "ppo"):
        return None
    still = unmoved(series)
    kl = curve(series, "kl", 8) or curve(series, "kl_prox", 8)
    if not still or kl is None:
        return None
    measured = ", ".join(still)
    sentence = "Nothing moves: {measured}"
    return Seen(sentence, measured=measured, kl=kl.late, measures=len(still))


@check
def identical_picks(record: Record) -> Said:
    """Not one pick changed in {epochs} epochs of {stage}

    Error: Checkpoints that should differ choose the same demonstrations: weights moved too little to change an
    argmax, the trained part was lost on loading, or the setting that differs has no effect.
    Looks at: picks that never change in a stage, or a printed share of identical picks (over 99 %)
    Try: Compare logits and their margins between the checkpoints; check strict loading and dead settings first.
    Explains: difference_inside_noise
    """
    identical = max(record.published.identical_picks, default=0.0)
    if identical >= 0.99:
        return Seen(
            "{identical:.0%} of the picks are identical between runs with different settings",
            identical=identical,
            about=["runs with identical picks"],
        )
    for series in record.series:
        changes = series.numbers("picks/changed_frac")
        if len(changes) >= 3 and max(changes) == 0.0:
            return Seen(changed=0.0, epochs=len(changes), stage=series.stage)
    return None


@check
def learning_rate_tiny(record: Record) -> Said:
    """{stage}.lr = {lr:g} is too small for a selector of this size

    Warning: The learning rate suits a model of billions of weights, not a selector of a million.
    Looks at: learning rate of a stage under 0.00002; in other logs a rate under 1e-7 where neither loss, KL nor
    reward moves
    Try: Use 0.0002 to 0.002.
    Explains: dead_updates identical_picks entropy_stuck reward_falls overfits
    """
    for stage in record.setting("train.stages") or ():
        rate = record.setting(f"{stage}.lr")
        # rates of models of billions of weights are copied from there
        if rate is not None and rate < 2e-5:
            better = 1e-3
            if stage == "grpo":
                better = 2e-4
            return Seen(stage=stage, lr=rate, fix={f"{stage}.lr": better})
    for series in record.series:
        rate = max(series.numbers("lr"), default=1.0)
        # under this no network of any size that is trained in practice is moved
        if rate >= 1e-7:
            continue
        still = unmoved(series)
        if still:
            return Seen(
                "With a learning rate of {lr:g} nothing moves: {measures}",
                lr=rate,
                unmoved=len(still),
                measures=", ".join(still),
                severity=ERROR,
                cause="Steps are so small that nothing is learnt: a rate of the wrong power of ten, or a schedule that "
                "has ended.",
                cure="Raise it tenfold until loss or KL moves: about 1e-6 for all weights of a model of billions, 1e-5 "
                "to 1e-4 with LoRA, 1e-3 for a small network.",
                about=[series.label],
            )
    return None


@check
def learning_rate_without_signal(record: Record) -> Said:
    """A larger learning rate ({rates} instead of {lr_from:g}) cannot mend missing signal: the advantages
    {still}spread by {adv_std:.2g}

    Warning: The learning rate is raised although the advantages are next to 0: it scales the noise and the KL
    term, and cannot make a preference that the groups do not hold.
    Looks at: a larger learning rate proposed or tried while the spread of the advantages is under 0.05
    Try: Mend the signal first (see advantage_std_tiny); then choose the learning rate.
    Explains: difference_inside_noise
    """
    published = record.published
    labels: list[str] = []
    largest = 0.0
    # of a text that speaks of one training only
    used = {published.settings.get("", {}).get("lr")}
    for series in record.stages("grpo"):
        spread = series.last("adv/std")
        if spread is not None and spread < 0.05:
            labels.append(series.label)
            largest = max(largest, spread)
            used.add(series.settings.get("lr"))
    rates = set(map(float, filter(None, used)))
    if not labels or not rates:
        return None
    least = min(rates)
    still = ""
    if max(rates) >= 2.0 * least:
        still = "still "
    for key, value in published.advice:
        if key == "lr":
            rates.add(value)
    larger = sorted(rate for rate in rates if rate >= 2.0 * least)
    if not larger:
        return None
    return Seen(
        lr_from=least,
        lr_to=larger[-1],
        adv_std=largest,
        rates=" or ".join(map("{:g}".format, larger)),
        still=still,
        about=labels,
    )


@check
def batch_of_one(record: Record) -> Said:
    """{stage} takes a step for every query

    Warning: Every query is an optimiser step of its own, so that the gradient is mostly noise.
    Looks at: batch_size = 1
    Try: Use at least 32 queries in a step.
    """
    for stage in record.setting("train.stages") or ():
        if record.setting(f"{stage}.batch_size") == 1:
            return Seen(batch=1, stage=stage, fix={f"{stage}.batch_size": 32})
    for settings in record.published.settings.values():
        if settings.get("batch_size") == 1:
            return Seen("A step is taken for every query (batch size 1)", batch=1)
    return None


@check_stages("sft")
def nothing_learnt(series: Series) -> Said:
    """After {epochs} epochs of sft the loss is {last:.3f}, a uniform choice has {chance:.3f}

    Error: After supervised training the loss is that of a uniform choice: labels are noise for this pool, or
    the features do not separate the candidates.
    Looks at: loss of sft after 3 epochs or more: less than 2 % below its start and below a uniform choice
    Try: Check labels, pools and features; do not start reinforcement learning from here.
    Explains: entropy_stuck worse_than_random difference_inside_noise
    """
    losses = series.numbers("loss/nll")
    chance = chance_level(series)
    if len(losses) < 3 or chance is None:
        return None
    first = losses[0]
    last = losses[-1]
    if last <= 0.98 * first:
        return None
    # clearly below chance something was learnt; far above it the loss is of another kind
    if not 0.98 * chance < last <= 1.2 * chance:
        return None
    return Seen(first=first, last=last, chance=chance, epochs=len(losses))


@check
def selected_by_loss(record: Record) -> Said:
    """Held-out loss, a cross-entropy, is the wrong thing to watch{more}

    Error: The held-out loss is a cross-entropy of fixed sequences, which must rise when a policy concentrates
    on the better ones; it is not over-fitting, and its lowest point is the least trained policy.
    Looks at: a held-out loss, and no held-out reward, watched or used to choose an epoch of a policy-gradient
    stage
    Try: Choose by the held-out reward of greedy picks.
    Explains: claimed_best_is_not
    """
    for stage in record.setting("train.stages") or ():
        monitor = str(record.setting(f"{stage}.monitor") or "")
        if "loss" in monitor or "nll" in monitor:
            return Seen(
                "{stage} is judged by {monitor}",
                stages=1,
                stage=stage,
                monitor=monitor,
                fix={f"{stage}.monitor": "reward"},
            )
    watched = []
    for series in record.stages("grpo"):
        losses = series.numbers("val/loss")
        if losses and not series.numbers("val/reward"):
            first = losses[0]
            last = losses[-1]
            watched.append((last - first, first, last))
    chosen = sum(own.metric == "val/loss" for own in record.published.choices)
    if not watched and not chosen:
        return None
    numbers: dict[str, Any] = {}
    more = ""
    if watched:
        _, first, last = max(watched)
        numbers = {"val_loss_first": first, "val_loss_last": last}
        more = f": {first:g} to {last:g} says nothing about the picks"
    if chosen:
        epochs = "an epoch was" if chosen == 1 else f"{chosen} epochs were"
        more += f"; {epochs} chosen by it"
    return Seen(
        trainings=len(watched),
        chosen_by_it=chosen,
        more=more,
        severity=not chosen and WARNING,
        **numbers,
    )


@check
def claimed_best_is_not(record: Record) -> Said:
    """Epoch {claimed_epoch}{named} is called the best (held-out loss {claimed:g}), but {other}

    Warning: The epoch that is called the best is not the best by the number it is judged by; it was chosen by
    something else, probably by the test.
    Looks at: a printed epoch against the printed series of its metric
    Try: State the rule of choice before, apply it on dev, and report the test once.
    Explains: winners_curse
    """
    for choice in record.published.choices:
        for series in record.stages("grpo"):
            if choice.metric in (None, "val/loss") and choice.label == series.label:
                seen = _better_epoch(choice, series)
                if seen is not None:
                    return seen
    return None


def _better_epoch(choice: ChosenEpoch, series: Series) -> Seen | None:
    """What a training says against an epoch that a text calls its best."""
    known = {}
    for epoch, value in series.values("val/loss"):
        if epoch is not None:
            known[epoch] = value
    claimed = known.get(choice.epoch, choice.value)
    best = min(known, key=known.__getitem__, default=choice.epoch)
    if claimed is None or best == choice.epoch:
        return None
    lowest = known[best]
    if lowest < claimed:
        other = f"epoch {best} has {lowest:g}"
    elif choice.epoch not in known and lowest == claimed:
        other = f"that is printed for epoch {best}"
    else:
        return None
    return Seen(
        claimed_epoch=choice.epoch,
        claimed=claimed,
        best_epoch=best,
        best=lowest,
        named=f" of {series.label}" if series.label else "",
        other=other,
        about=[series.label],
    )


@check_training
def reward_falls(series: Series) -> Said:
    """The {what} of {stage} fell from {first:.3f} to {last:.3f}

    Error: Training makes the policy worse.
    Looks at: held-out reward of the last two epochs against the first (two standard errors below)
    Try: Go back to the start of this stage; look at the findings above.
    Explains: worse_than_random more_shots_hurt
    """
    for metric in ("val/reward", "val/accuracy", "reward"):
        values = series.numbers(metric)
        error = held_out_error(series, metric)
        if error is None or len(values) < 3:
            continue
        first = values[0]
        last = max(values[-2:])
        if len(values) >= 20:
            course = Curve(tuple(values))
            first = course.early
            last = course.late
        least = 2.0 * error
        if metric == "reward":
            if series.exact or len(values) < 8:
                continue
            # rewards of other queries every step: only a large fall is one
            least = max(least, 0.25 * abs(first))
        if first - last > least:
            return Seen(
                first=first,
                last=last,
                standard_error=error,
                what=metric_in_words(metric),
                stage=series.stage,
            )
    return None


FITTED = {
    "val/group_reward": ("fit/group_reward",),
    "val/reward": ("reward", "fit/group_reward"),
    "val/accuracy": ("accuracy",),
}
"""Held-out measures that should rise, and those of the same kind on what is learnt from."""


@check_training
def overfits(series: Series) -> Said:
    """{stage}: best {what} {best:.3f} in evaluation {best_epoch} of {evaluations}, now {last:.3f}

    Warning: What is learnt from keeps improving while what is held out gets worse: few queries, many epochs.
    Looks at: held-out reward, reward of groups or accuracy of the last two evaluations against the best (two
    standard errors below) while that of training (or, where it is not logged, the reward) rises or its
    likelihood falls; a held-out loss above its lowest while the training loss falls (not with a policy
    gradient), or, with rce and pairwise, while what is learnt from becomes less likely than by a uniform choice
    Try: Stop early (patience), use more queries or a smaller selector.
    Explains: reward_falls
    """
    fix = bool(series.recipe) and {f"{series.stage}.patience": 3}
    supervised = not series.exact and series.stage in ("sft", "dpo")
    # there the held-out loss says more than an accuracy of few items
    if not supervised or curve(series, "val/loss", 4) is None:
        for metric, fitted in FITTED.items():
            best = _best_evaluation(series, metric, fitted)
            if best is None:
                continue
            held = series.numbers(metric)
            return Seen(
                best=held[best],
                last=held[-1],
                best_epoch=best + 1,
                evaluations=len(held),
                what=metric_in_words(metric),
                stage=series.stage,
                fix=fix,
            )
    seen = _loss_rises(series)
    if seen is not None:
        seen.fix = fix
    return seen


def _best_evaluation(series: Series, metric: str, fitted: Sequence[str]) -> int | None:
    """Where a held-out measure was best, if it is well below that now while the training measure went on improving."""
    held = series.numbers(metric)
    error = held_out_error(series, metric)
    if error is None or len(held) < 4:
        return None
    course = Curve(tuple(held))
    alone = metric == "val/accuracy" and not series.numbers("accuracy")
    if alone and course.rose_for_a_while:
        # it followed the reward at first: what is learnt from is all that was paid for
        fitted = ("reward",)
    best = held.index(max(held))
    # best at the start is a training that harms from the first step, which reward_falls names
    lost = held[best] - max(held[-2:])
    if best == 0 or lost <= 2.0 * error:
        return None
    if not _goes_on(series, fitted, best / len(held)):
        return None
    # without a known number of queries the noise is a guess, so that more must be seen
    clearly = held[best] - held[-1] > 4.0 * error and course.fell_from_its_best
    if series.exact or (clearly and rises(series, *fitted)):
        return best
    return None


def _goes_on(series: Series, fitted: Sequence[str], share: float) -> bool:
    """Whether a training measure improved after this share of the log, or the loss of fixed sequences fell."""
    for metric in (*fitted, "nll", "fit/loss"):
        values = series.numbers(metric)
        if len(values) < 4:
            continue
        place = int(share * len(values))
        gain = values[-1] - values[place]
        if metric not in fitted:
            gain = -gain
        if gain > 1e-9:
            return True
    return False


def _loss_rises(series: Series) -> Seen | None:
    """A held-out loss well above its lowest while the training loss fell, or while what is learnt gets unlikely."""
    losses = curve(series, "loss/total", 4)
    held = curve(series, "val/loss", 4)
    if losses is None or held is None or series.stage in ("grpo", "ppo"):
        return None
    lowest = min(held.values)
    last = held.late
    place = held.values.index(lowest) + 1
    least = max(4.0 * held.noise, 0.05 * abs(lowest))
    rose = last - lowest > least
    if place == len(held.values) or not rose:
        return None
    seen = Seen(lowest=lowest, last=last, best_place=place, stage=series.stage)
    end = "while the held-out loss rose from {lowest:.3g} to {last:.3g}"
    if series.stage in ("rce", "pairwise"):
        # a loss that compares members falls while their likelihood falls, so the held-out loss alone says nothing
        skill = series.last("nll_skill")
        if skill is None or skill >= 0.0:
            return None
        seen.values["skill"] = skill
        seen.sentence = (
            "{stage}: its sequences became less likely than by a uniform choice " + end
        )
        return seen
    seen.values["train_last"] = losses.late
    seen.sentence = "{stage}: the training loss fell to {train_last:.3g} " + end
    if losses.falls:
        return seen
    return None


@check_grpo
def loss_falls_by_kl_only(series: Series) -> Said:
    """The loss fell from {loss_first:g} to {loss_last:g}, the KL term from {kl_term_first:.4g} to
    {kl_term_last:.2g}

    Warning: The training loss falls because the KL term shrinks, not because the policy earns more.
    Looks at: share of the KL term in the fall of the loss (over 90 %)
    Try: Do not read the loss; look at reward, KL and picks, each on its own.
    """
    totals = series.numbers("loss/total")
    terms = series.numbers("loss/kl")
    if not terms:
        for line in series.epochs:
            kl = line.values.get("kl")
            weight = line.values.get("kl_coef")
            if kl is not None and weight is not None:
                terms.append(kl * weight)
    if len(totals) < 2 or len(terms) != len(totals):
        return None
    fall = totals[0] - totals[-1]
    of_term = terms[0] - terms[-1]
    # above 1 another term rose meanwhile; far above, the loss is not the sum of these terms
    if fall <= 0.05 or not 0.9 * fall < of_term < 1.5 * fall:
        return None
    return Seen(
        share=of_term / fall,
        loss_first=totals[0],
        loss_last=totals[-1],
        kl_term_first=terms[0],
        kl_term_last=terms[-1],
    )


@check_grpo
def entropy_collapsed(series: Series) -> Said:
    """The entropy falls from {first:.2g} to {entropy:.2g}, most of it in the {half} half of the stage

    Warning: The policy became certain and no longer tries anything else.
    Looks at: normalised entropy under 0.05, or another under a tenth of that of the start, at the end of the
    log
    Try: Raise clip_high or the entropy bonus, halve the learning rate.
    Explains: overfits flat_groups advantage_std_tiny reward_constant
    """
    values = series.numbers("entropy/norm")
    low = 0.05  # of the entropy of a uniform choice
    if len(values) < 2:
        # in nats: compared with its own beginning
        values = series.numbers("entropy")
        fifth = max(1, len(values) // 5)
        low = 0.1 * max(values[:fifth], default=0.0)
    if len(values) < 2 or values[0] <= 0.0:
        return None
    fifth = max(1, len(values) // 5)
    if median(values[-fifth:]) >= low:
        return None
    when = 0
    while values[when] >= low:
        when += 1
    half = "second"
    if when < max(1, len(values) // 2):
        half = "first"
    wanted = bool(series.recipe) and not series.recipe.get("grpo.entropy_bonus")
    return Seen(
        first=values[0],
        entropy=values[-1],
        collapsed_at=when + 1,
        of=len(values),
        half=half,
        fix=wanted and {"grpo.entropy_bonus": 0.01},
    )


@check_grpo
def entropy_stuck(series: Series) -> Said:
    """The normalised entropy never leaves {entropy:.2f}

    Warning: The policy is as undecided as at the start: no signal reached it.
    Looks at: normalised entropy over 0.97 in every one of 3 epochs or more
    Try: Mend the signal first: flat groups, selection before the baseline, tiny learning rate, heavy KL term.
    Explains: difference_inside_noise
    """
    values = series.numbers("entropy/norm")
    # 1 is a uniform choice; any learnt preference is below this
    if len(values) < 3 or min(values) <= 0.97:
        return None
    return Seen(entropy=min(values), epochs=len(values))


@check
def query_ignored(record: Record) -> Said:
    """Greedy picks show {unique_demos:g} different demonstrations over all probe queries of {stage}

    Warning: The training chooses a few demonstrations for all queries: the query is not used, or the pool is fixed.
    Looks at: different demonstrations among the greedy picks of the probe queries (at most 4)
    Try: Check that every query has its own pool and that the query reaches the score.
    Explains: hub_demonstrations difference_inside_noise
    """
    for series in record.series:
        different = series.numbers("picks/unique_demos")
        if len(different) < 2:
            continue
        usual = median(different[-3:])
        # so few demonstrations for all probe queries (64 in our runs) are a fixed list, not a choice
        if usual <= 4:
            return Seen(unique_demos=usual, stage=series.stage, about=[series.label])
    return None
