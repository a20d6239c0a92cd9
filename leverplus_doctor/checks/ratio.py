"""Checks on ratios, divergences and the weight of the KL term."""

from __future__ import annotations

import math
from typing import Any

from leverplus_doctor.check import (
    WARNING,
    Said,
    Seen,
    check,
    check_grpo,
    check_stages,
    check_training,
)
from leverplus_doctor.curves import curve
from leverplus_doctor.records import Record, Series


@check
def kl_at_start(record: Record) -> Said:
    """KL is {kl_first:.4g} in the first epoch: it refers to a policy from before this stage, not to where GRPO
    started{more}

    Error: A large KL in the first epoch is not drift: the reference, and with it the old policy that the clip
    refers to, dates from before the warm-up stage; or the estimate is written as exp(new - old), which grows
    exponentially when good sequences become likelier; or dropout is in the ratio.
    Looks at: KL of the first epoch (over 1 nat) although the weights hardly moved, or although it falls later
    Try: Take reference and old policy when the stage starts, so that KL is 0 and the ratio 1 at the first step;
    compute the KL exactly over the pool.
    Explains: kl_weight_on_rails kl_collapsed clip_saturated loss_falls_by_kl_only
    """
    far = [series for series in record.stages("grpo") if _starts_far(series)]
    if not far:
        return None
    worst = max(far, key=lambda series: series.first("kl") or 0.0)
    kl = worst.first("kl") or 0.0
    numbers: dict[str, Any] = {"kl_first": kl, "kl_last": worst.last("kl") or kl}
    more = ""
    if not worst.exact:
        # what was printed may be k3 the wrong way round: then these are the nats that the policies lie apart
        numbers["nats_if_exp_new_minus_old"] = nats_behind(kl)
    rate = max(series.settings.get("lr") or 0.0 for series in far)
    if rate:
        numbers["lr"] = rate
        more = f" (learning rate {rate:g})"
    before = _loss_before(record, worst)
    after = worst.first("val/loss")
    if before is not None and after is not None and after > before:
        numbers["val_loss_before"] = before
        numbers["val_loss_after"] = after
        more += f"; the held-out loss went back from {before:g} to {after:g}"
    about = [series.label for series in far]
    return Seen(trainings=len(far), more=more, about=about, **numbers)


def _starts_far(series: Series) -> bool:
    """Whether the KL is large in the first epoch although the weights cannot have moved that far by then."""
    first = 0.0
    for epoch, value in reversed(series.values("kl")):
        if epoch in (None, 1):
            first = value
    # nats per sequence
    if first <= 1.0:
        return False
    if series.exact:
        # weights that moved by 1 % do not make 1 nat
        return (series.first("update/param_rel") or 0.0) < 1e-2
    # other logs do not say how far the weights moved: a KL that falls again, or a tiny learning rate, tells
    falls = (series.last("kl") or 0.0) < 0.5 * first
    return falls or (series.settings.get("lr") or 1.0) <= 1e-4


def nats_behind(value: float) -> float:
    """The x > 0 with exp(x) - 1 - x = value, by Newton's method.

    >>> round(nats_behind(17.27), 2)
    3.06
    """
    # below the root, and the function is convex: the steps cannot run away
    x = math.log1p(value)
    for _ in range(20):
        slope = math.expm1(x)
        x -= (slope - x - value) / max(slope, 1e-9)
    return x


def _loss_before(record: Record, series: Series) -> float | None:
    """Held-out loss at the end of the stage before."""
    loss = None
    trained = record.stages()
    for earlier in trained[: trained.index(series)]:
        if earlier.label == series.label and earlier.stage != series.stage:
            loss = earlier.last("val/loss")
    return loss


@check
def inverted_kl(record: Record) -> Said:
    """The KL term is written as exp(new - ref) - 1 - (new - ref)

    Error: The KL estimate is written as exp(new - ref) - 1 - (new - ref): it explodes exactly when a good
    sequence becomes likelier.
    Looks at: grpo.kl = k3_inverted
    Try: Compute the KL exactly over the pool.
    Explains: kl_at_start kl_estimate_disagrees kl_weight_on_rails kl_collapsed
    """
    if record.setting("grpo.kl") != "k3_inverted":
        return None
    # exp(x) - 1 - x at x = 3, about 16
    return Seen(reads_at_3_nats=math.exp(3.0) - 4.0, fix={"grpo.kl": "exact"})


@check_grpo
def kl_estimate_disagrees(series: Series) -> Said:
    """The KL is {exact:.3g} nats, its estimate {estimate:.3g}

    Warning: The estimate of the KL is taken on sequences that the policy did not sample, or with the ratio
    upside down.
    Looks at: estimated against exact KL (over 50 % apart) while an estimate is in the loss
    Try: Compute the KL exactly over the pool.
    Explains: kl_weight_on_rails
    """
    exact = series.last("kl") or 0.0
    estimate = series.last("kl_k3")
    if series.recipe.get("grpo.kl") in (None, "exact") or estimate is None:
        return None
    # next to 0 a relative error says nothing
    if exact < 0.01 or abs(estimate - exact) <= 0.5 * exact:
        return None
    return Seen(exact=exact, estimate=estimate, fix={"grpo.kl": "exact"})


@check
def beta_every_batch(record: Record) -> Said:
    """The weight of the KL term changes by a factor of {factor:g} every batch: 100-fold in {batches_to_100}
    batches

    Error: The weight of the KL term follows every batch, so that noise drives it to its limits within an epoch.
    Looks at: grpo.beta_rule = batch
    Try: Adapt it once an epoch, or fix it.
    Explains: kl_weight_on_rails
    """
    if record.setting("grpo.beta_rule") != "batch":
        return None
    factor = record.setting("grpo.beta_factor") or 1.5
    steps = math.ceil(math.log(100.0) / math.log(factor))
    fix = {"grpo.beta_rule": "fixed"}
    return Seen(factor=factor, batches_to_100=steps, fix=fix)


@check_grpo
def kl_weight_on_rails(series: Series) -> Said:
    """The weight of the KL term went from {first:g} to {last:g}

    Error: The weight of the KL term was driven to its limits: it is adapted too often, on too noisy a KL, or
    towards a target that forbids learning.
    Looks at: weight at a limit, or changed by more than a factor of 100 between epochs
    Try: Fix it (0.005 to 0.02), or adapt it once an epoch by a fifth at most; aim at 0.3 to 2 nats a sequence.
    Explains: kl_collapsed loss_falls_by_kl_only
    """
    weights = [value for value in series.numbers("kl_coef") if value > 0.0]
    if not weights:
        return None
    first = weights[0]
    last = weights[-1]
    at_limit = False
    low = series.recipe.get("grpo.beta_min")
    high = series.recipe.get("grpo.beta_max")
    if series.recipe.get("grpo.beta_rule") in ("epoch", "batch") and low and high:
        # within 5 % of a limit: the last step towards it need not have been a whole factor
        at_limit = last <= 1.05 * low or last >= 0.95 * high
    if not at_limit and max(weights) <= 100.0 * min(weights):
        return None
    fix = {"grpo.beta_rule": "fixed", "grpo.kl_beta": 0.01}
    return Seen(first=first, last=last, fix=bool(series.recipe) and fix)


@check_grpo
def kl_collapsed(series: Series) -> Said:
    """The KL fell from {first:.3g} to {last:.3g}: the policy is back at its reference

    Warning: The policy ends where the reference is: the KL term decides, and what was learnt before is undone.
    Looks at: KL near 0 at the end after a large one; or in every epoch, under a weight of 0.1 or more, while
    advantages are alive and picks do not change or the KL term has more of the gradient
    Try: Lower the weight of the KL term after the reference is right.
    Explains: dead_updates identical_picks
    """
    values = series.numbers("kl")
    if len(values) < 2:
        return None
    first = values[0]
    last = values[-1]
    sentence = ""
    if first <= 1.0 or last >= 0.1:
        # 0.02 nats: from a near-uniform start a policy that learns anything passes this within an epoch
        if not series.exact or max(values) >= 0.02 or not _held_in_place(series):
            return None
        sentence = "The KL stays at {last:.2g} although the advantages are alive: the policy cannot move"
    heavy = (series.recipe.get("grpo.kl_beta") or 0.0) > 0.01
    fix = heavy and {"grpo.kl_beta": 0.01}
    return Seen(sentence, first=first, last=last, fix=fix)


def _held_in_place(series: Series) -> bool:
    """Whether the KL term holds the policy where it is, although the advantages would move it."""
    active = series.last("adv/frac_active") or 0.0
    if active <= 0.2 or (series.last("kl_coef") or 0.0) < 0.1:
        return False
    changed = series.numbers("picks/changed_frac")
    if changed and max(changed) < 0.05:
        return True
    stronger = epochs = 0
    for line in series.epochs:
        pull = line.values.get("grad/kl")
        push = line.values.get("grad/policy")
        if pull and push:
            epochs += 1
            stronger += pull > push
    return stronger > epochs / 2


@check_grpo
def kl_from_flat_groups(series: Series) -> Said:
    """{flat:.0%} of the groups have no spread in reward but stay in the KL term

    Warning: Groups without any spread in reward stay in the KL term, so that most of the gradient only pulls
    back.
    Looks at: grpo.flat_groups = keep with more than half of the groups flat
    Try: Leave flat groups out of both terms.
    Explains: kl_collapsed dead_updates
    """
    flat = series.last("frac_reward_zero_std") or 0.0
    if series.recipe.get("grpo.flat_groups") != "keep" or flat <= 0.5:
        return None
    return Seen(flat=flat, fix={"grpo.flat_groups": "leave_out"})


@check_grpo
def clip_saturated(series: Series) -> Said:
    """{clipped:.0%} of the ratios are outside the clip range {when}

    Error: Most ratios are outside the clip range already in the first epoch: a stale old policy, dropout, or
    too large a step.
    Looks at: share of ratios outside the clip range in the first epoch, or the median of all steps (over 30 %,
    error over 60 %)
    Try: Refresh the old policy, take dropout out of the ratio, then halve the learning rate.
    Explains: reward_falls dead_updates
    """
    share = series.first("clip_ratio/region_mean")
    when = "in the first epoch"
    if series.unit == "step":
        shares = curve(series, "clip_ratio/region_mean")
        if shares is None:
            return None
        share = shares.middle
        when = "in half of the steps or more"
    if share is None or share <= 0.3:
        return None
    severity = share <= 0.6 and WARNING
    rate = series.recipe.get("grpo.lr")
    fix = rate is not None and {"grpo.lr": rate / 2.0}
    return Seen(clipped=share, when=when, severity=severity, fix=fix)


@check_grpo
def weights_degenerate(series: Series) -> Said:
    """{ess:.0%} of the sequences carry the importance weights

    Warning: A few sequences have almost all of the importance weight: the data are too far from the policy.
    Looks at: effective share of the sequences under prox / mu (under 30 %) with grpo.behaviour = stored
    Try: Use a loss without importance weights (pairwise, listwise), or sample again.
    Explains: reward_falls
    """
    share = series.last("sampling/ess")
    if series.recipe.get("grpo.behaviour") != "stored" or share is None or share >= 0.3:
        return None
    return Seen(ess=share, fix={"grpo.behaviour": "proximal"})


@check_stages("pairwise")
def likelihood_displaced(series: Series) -> Said:
    """The negative log-likelihood of the members rose from {first:.2f} to {last:.2f} nats

    Info: A contrastive loss lowers the likelihood of good and bad sequences alike.
    Looks at: negative log-likelihood up by more than 2 nats while the margin grows
    Try: Add the likelihood of the best member (pairwise.nll_best).
    """
    nll = series.numbers("nll")
    margins = series.numbers("pair/margin")
    # displaced only where the better of each pair gains on the worse while both become unlikelier
    if len(margins) < 2 or margins[-1] <= margins[0] or not nll:
        return None
    if nll[-1] - nll[0] <= 2.0:
        return None
    low = (series.recipe.get("pairwise.nll_best") or 0.0) < 0.1
    fix = bool(series.recipe) and low and {"pairwise.nll_best": 0.1}
    return Seen(first=nll[0], last=nll[-1], fix=fix)


@check_training
def not_finite(series: Series) -> Said:
    """{names} not finite in epoch {when} of {stage}

    Error: A loss, KL or gradient is infinite or not a number: a masked label, exp of a large number, log of 0.
    Looks at: values that are not finite in the log
    Try: Find the first such step; mask with -inf and drop sequences that are not in the pool.
    """
    for line in series.epochs:
        bad = [name for name, value in line.values.items() if value is None]
        if bad:
            return Seen(
                metrics=len(bad),
                epoch=line.epoch or 0,
                names=", ".join(sorted(bad)),
                when=str(line.epoch),
                stage=series.stage,
            )
    return None
