"""Checks on ratios, divergences and the weight of the KL term."""

from __future__ import annotations

import math

from leverplus.doctor.curves import curve
from leverplus.doctor.findings import ERROR, INFO, WARNING, Finding, Text, table
from leverplus.doctor.records import Record, Series

TEXTS = table(
    Text(
        "kl_at_start",
        ERROR,
        "A large KL in the first epoch is not drift: the reference, and with it the old policy that the clip refers "
        "to, dates from before the warm-up stage; or the estimate is written as exp(new - old), which grows "
        "exponentially when good sequences become likelier; or dropout is in the ratio.",
        "KL of the first epoch (over 1 nat) although the weights hardly moved, or although it falls later",
        "Take reference and old policy when the stage starts, so that KL is 0 and the ratio 1 at the first step; "
        "compute the KL exactly over the pool.",
        ("kl_weight_on_rails", "kl_collapsed", "clip_saturated", "loss_falls_by_kl_only", "over_optimised"),
    ),
    Text(
        "inverted_kl",
        ERROR,
        "The KL estimate is written as exp(new - ref) - 1 - (new - ref): it explodes exactly when a good sequence "
        "becomes likelier.",
        "grpo.kl = k3_inverted",
        "Compute the KL exactly over the pool.",
        ("kl_at_start", "kl_estimate_disagrees", "kl_weight_on_rails", "kl_collapsed"),
    ),
    Text(
        "kl_estimate_disagrees",
        WARNING,
        "The estimate of the KL is taken on sequences that the policy did not sample, or with the ratio upside down.",
        "estimated against exact KL (over 50 % apart) while an estimate is in the loss",
        "Compute the KL exactly over the pool.",
        ("kl_weight_on_rails",),
    ),
    Text(
        "beta_every_batch",
        ERROR,
        "The weight of the KL term follows every batch, so that noise drives it to its limits within an epoch.",
        "grpo.beta_rule = batch",
        "Adapt it once an epoch, or fix it.",
        ("kl_weight_on_rails",),
    ),
    Text(
        "kl_weight_on_rails",
        ERROR,
        "The weight of the KL term was driven to its limits: it is adapted too often, on too noisy a KL, or towards a "
        "target that forbids learning.",
        "weight at a limit, or changed by more than a factor of 100 between epochs",
        "Fix it (0.005 to 0.02), or adapt it once an epoch by a fifth at most; aim at 0.3 to 2 nats a sequence.",
        ("gradient_drowned", "kl_collapsed", "loss_falls_by_kl_only"),
    ),
    Text(
        "kl_collapsed",
        WARNING,
        "The policy ends where the reference is: the KL term decides, and what was learnt before is undone.",
        "KL near 0 at the end after a large one; or in every epoch, under a weight of 0.1 or more, while advantages "
        "are alive and picks do not change or the KL term has more of the gradient",
        "Lower the weight of the KL term after the reference is right.",
        ("dead_updates", "identical_picks"),
    ),
    Text(
        "kl_from_flat_groups",
        WARNING,
        "Groups without any spread in reward stay in the KL term, so that most of the gradient only pulls back.",
        "grpo.flat_groups = keep with more than half of the groups flat",
        "Leave flat groups out of both terms.",
        ("gradient_drowned", "kl_collapsed", "dead_updates"),
    ),
    Text(
        "over_optimised",
        WARNING,
        "The policy went far from its reference and held-out reward fell: noise of the reward is exploited.",
        "exact KL over 3 nats and a held-out reward two standard errors below its best",
        "Raise the weight of the KL term, lower the learning rate, or stop at the best epoch.",
        ("reward_falls", "overfits"),
    ),
    Text(
        "clip_saturated",
        ERROR,
        "Most ratios are outside the clip range already in the first epoch: a stale old policy, dropout, or too large "
        "a step.",
        "share of ratios outside the clip range in the first epoch, or the median of all steps (over 30 %, error "
        "over 60 %)",
        "Refresh the old policy, take dropout out of the ratio, then halve the learning rate.",
        ("reward_falls", "dead_updates"),
    ),
    Text(
        "clip_unused",
        INFO,
        "No ratio ever reaches the clip although several passes are made over the same groups: steps are too small.",
        "share of ratios outside the clip range 0 and KL to the proximal policy under 0.0001 in every epoch",
        "Raise the learning rate.",
        ("dead_updates",),
    ),
    Text(
        "weights_degenerate",
        WARNING,
        "A few sequences have almost all of the importance weight: the data are too far from the policy.",
        "effective share of the sequences under prox / mu (under 30 %) with grpo.behaviour = stored",
        "Use a loss without importance weights (pairwise, listwise), or sample again.",
        ("reward_falls",),
    ),
    Text(
        "likelihood_displaced",
        INFO,
        "A contrastive loss lowers the likelihood of good and bad sequences alike.",
        "negative log-likelihood up by more than 2 nats while the margin grows",
        "Add the likelihood of the best member (pairwise.nll_best).",
    ),
    Text(
        "not_finite",
        ERROR,
        "A loss, KL or gradient is infinite or not a number: a masked label, exp of a large number, log of 0.",
        "values that are not finite in the log",
        "Find the first such step; mask with -inf and drop sequences that are not in the pool.",
    ),
)  # fmt: skip


def kl_at_start(record: Record) -> list[Finding]:
    """The KL was there before anything was learnt."""
    far = [s for s in record.stages("grpo") if _starts_far(s)]
    if not far:
        return []
    series = max(far, key=lambda s: s.first("kl") or 0.0)
    kl = series.first("kl") or 0.0
    evidence: dict[str, float | int | str] = {
        "kl_first": kl,
        "kl_last": series.last("kl") or kl,
        "trainings": len(far),
    }
    title = (
        f"KL is {kl:.4g} in the first epoch: it refers to a policy from before this stage, not to where GRPO started"
    )
    if not series.exact:
        evidence["nats_if_exp_new_minus_old"] = _inverse_k3(kl)
    rates = [rate for s in far if (rate := s.settings.get("lr"))]
    if rates:
        evidence["lr"] = max(rates)
        title += f" (learning rate {max(rates):g})"
    before, after = _handover(record, series)
    if before is not None and after is not None and after > before:
        evidence.update(val_loss_before=before, val_loss_after=after)
        title += f"; the held-out loss went back from {before:g} to {after:g}"
    return TEXTS["kl_at_start"].found(title, evidence, about=[s.label for s in far])


def _starts_far(series: Series) -> bool:
    values = [(epoch, value) for epoch, value in series.values("kl") if epoch in (None, 1)]
    if not values or values[0][1] <= 1.0:
        return False
    if series.exact:
        return (series.first("update/param_rel") or 0.0) < 1e-2
    falls = (series.last("kl") or 0.0) < 0.5 * values[0][1]
    return falls or (series.settings.get("lr") or 1.0) <= 1e-4


def _inverse_k3(value: float) -> float:
    """The x > 0 with exp(x) - 1 - x = value, by Newton's method."""
    x = math.log1p(value)
    for _ in range(20):
        x -= (math.exp(x) - 1.0 - x - value) / max(math.exp(x) - 1.0, 1e-9)
    return x


def _handover(record: Record, series: Series) -> tuple[float | None, float | None]:
    """Held-out loss at the end of the stage before, and after the first epoch of this one."""
    place = record.series.index(series)
    earlier = [s for s in record.series[:place] if s.label == series.label and s.stage != series.stage]
    return (earlier[-1].last("val/loss") if earlier else None), series.first("val/loss")


def inverted_kl(record: Record) -> list[Finding]:
    """The estimate is upside down."""
    if record.setting("grpo.kl") != "k3_inverted":
        return []
    title = "The KL term is written as exp(new - ref) - 1 - (new - ref)"
    evidence = {"reads_at_3_nats": math.exp(3.0) - 4.0}
    return TEXTS["inverted_kl"].found(title, evidence, fix={"grpo.kl": "exact"})


def kl_estimate_disagrees(record: Record) -> list[Finding]:
    """The estimate in the loss is far from the exact KL."""
    if record.setting("grpo.kl") in (None, "exact"):
        return []
    for series in record.stages("grpo"):
        exact, estimate = series.last("kl"), series.last("kl_k3")
        if exact is None or estimate is None or exact < 0.01:
            continue
        if abs(estimate - exact) / exact > 0.5:
            title = f"The KL is {exact:.3g} nats, its estimate {estimate:.3g}"
            evidence = {"exact": exact, "estimate": estimate}
            return TEXTS["kl_estimate_disagrees"].found(title, evidence, fix={"grpo.kl": "exact"})
    return []


def beta_every_batch(record: Record) -> list[Finding]:
    """The KL weight follows every batch."""
    if record.setting("grpo.beta_rule") != "batch":
        return []
    factor = record.setting("grpo.beta_factor") or 1.5
    steps = math.ceil(math.log(100.0) / math.log(factor))
    title = f"The weight of the KL term changes by a factor of {factor:g} every batch: 100-fold in {steps} batches"
    evidence = {"factor": factor, "batches_to_100": steps}
    return TEXTS["beta_every_batch"].found(title, evidence, fix={"grpo.beta_rule": "fixed"})


def kl_weight_on_rails(record: Record) -> list[Finding]:
    """The KL weight ran into its limits."""
    low, high = record.setting("grpo.beta_min"), record.setting("grpo.beta_max")
    adapts = record.setting("grpo.beta_rule") in ("epoch", "batch")
    for series in record.stages("grpo"):
        weights = [value for _, value in series.values("kl_coef") if value > 0.0]
        if not weights:
            continue
        jump = max(weights) / min(weights)
        at_limit = adapts and low and high and (weights[-1] <= 1.05 * low or weights[-1] >= 0.95 * high)
        if jump > 100.0 or at_limit:
            title = f"The weight of the KL term went from {weights[0]:g} to {weights[-1]:g}"
            fix = {"grpo.beta_rule": "fixed", "grpo.kl_beta": 0.01} if record.settings else None
            return TEXTS["kl_weight_on_rails"].found(
                title, {"first": weights[0], "last": weights[-1]}, fix=fix, about=[series.label]
            )
    return []


def kl_collapsed(record: Record) -> list[Finding]:
    """The policy ends at the reference."""
    for series in record.stages("grpo"):
        values = [value for _, value in series.values("kl")]
        if len(values) < 2:
            continue
        back = values[0] > 1.0 and values[-1] < 0.1
        if back or (series.exact and max(values) < 0.02 and _held(series)):
            title = f"The KL fell from {values[0]:.3g} to {values[-1]:.3g}: the policy is back at its reference"
            if not back:
                title = f"The KL stays at {values[-1]:.2g} although the advantages are alive: the policy cannot move"
            fix = {"grpo.kl_beta": 0.01} if (record.setting("grpo.kl_beta") or 0.0) > 0.01 else None
            evidence = {"first": values[0], "last": values[-1]}
            return TEXTS["kl_collapsed"].found(title, evidence, fix=fix, about=[series.label])
    return []


def _held(series: Series) -> bool:
    """Whether the KL term holds the policy where it is, although the advantages would move it."""
    if (series.last("adv/frac_active") or 0.0) <= 0.2 or (series.last("kl_coef") or 0.0) < 0.1:
        return False
    changed = [value for _, value in series.values("picks/changed_frac")]
    pulls = [line.values for line in series.epochs if line.values.get("grad/kl") and line.values.get("grad/policy")]
    stronger = sum((line["grad/kl"] or 0.0) > (line["grad/policy"] or 0.0) for line in pulls)
    return (bool(changed) and max(changed) < 0.05) or (bool(pulls) and stronger > len(pulls) / 2)


def kl_from_flat_groups(record: Record) -> list[Finding]:
    """Flat groups only pull back."""
    for series in record.stages("grpo"):
        flat = series.last("frac_reward_zero_std")
        if record.setting("grpo.flat_groups") == "keep" and flat is not None and flat > 0.5:
            title = f"{flat:.0%} of the groups have no spread in reward but stay in the KL term"
            return TEXTS["kl_from_flat_groups"].found(title, {"flat": flat}, fix={"grpo.flat_groups": "leave_out"})
    return []


def over_optimised(record: Record) -> list[Finding]:
    """Far from the reference and worse."""
    for series in record.series:
        kl, rewards = series.last("kl"), [value for _, value in series.values("val/reward")]
        error = held_out_error(record, series)
        if not series.exact or kl is None or kl <= 3.0 or error is None or len(rewards) < 3:
            continue
        if max(rewards) - max(rewards[-2:]) > 2.0 * error:
            falls = f"{max(rewards):.3f} to {rewards[-1]:.3f}"
            title = f"At {kl:.1f} nats from its reference the held-out reward fell from {falls}"
            evidence = {"kl": kl, "best": max(rewards), "last": rewards[-1]}
            return TEXTS["over_optimised"].found(title, evidence)
    return []


def held_out_error(record: Record, series: Series, metric: str = "val/reward") -> float | None:
    """Standard error of a held-out measure: at most 0.5 / sqrt(queries), else from how it jumps between evaluations."""
    queries = record.setting("score.dev_queries")
    if queries:
        return float(0.5 / math.sqrt(queries))
    found = curve(series, metric, 4)
    return None if found is None else max(found.noise, 0.01 * max(map(abs, found.values)))


def clip_saturated(record: Record) -> list[Finding]:
    """Most ratios are clipped from the first epoch on."""
    for series in record.stages("grpo"):
        share, when = series.first("clip_ratio/region_mean"), "in the first epoch"
        if series.unit == "step":
            shares = curve(series, "clip_ratio/region_mean")
            share, when = (None if shares is None else shares.middle), "in half of the steps or more"
        if share is not None and share > 0.3:
            title = f"{share:.0%} of the ratios are outside the clip range {when}"
            severity = ERROR if share > 0.6 else WARNING
            rate = record.setting("grpo.lr")
            fix = None if rate is None else {"grpo.lr": rate / 2.0}
            return TEXTS["clip_saturated"].found(title, {"clipped": share}, severity=severity, fix=fix)
    return []


def clip_unused(record: Record) -> list[Finding]:
    """The clip is never reached."""
    for series in record.stages("grpo"):
        shares, moves = series.values("clip_ratio/region_mean"), series.values("kl_prox")
        if (record.setting("grpo.inner_epochs") or 1) < 2 or not shares or not moves:
            continue
        if max(v for _, v in shares) == 0.0 and max(v for _, v in moves) < 1e-4:
            title = "No ratio ever reaches the clip range"
            return TEXTS["clip_unused"].found(title, {"kl_prox": max(v for _, v in moves)})
    return []


def weights_degenerate(record: Record) -> list[Finding]:
    """Importance weights rest on a few sequences."""
    for series in record.stages("grpo"):
        share = series.last("sampling/ess")
        if record.setting("grpo.behaviour") == "stored" and share is not None and share < 0.3:
            title = f"{share:.0%} of the sequences carry the importance weights"
            return TEXTS["weights_degenerate"].found(title, {"ess": share}, fix={"grpo.behaviour": "proximal"})
    return []


def likelihood_displaced(record: Record) -> list[Finding]:
    """Good and bad sequences lose probability alike."""
    for series in record.stages("pairwise"):
        first, last = series.first("nll"), series.last("nll")
        margins = [value for _, value in series.values("pair/margin")]
        if first is None or last is None or len(margins) < 2 or last - first <= 2.0 or margins[-1] <= margins[0]:
            continue
        title = f"The negative log-likelihood of the members rose from {first:.2f} to {last:.2f} nats"
        low = (record.setting("pairwise.nll_best") or 0.0) < 0.1
        fix = {"pairwise.nll_best": 0.1} if record.settings and low else None
        return TEXTS["likelihood_displaced"].found(title, {"first": first, "last": last}, fix=fix)
    return []


def not_finite(record: Record) -> list[Finding]:
    """Infinite, or not a number."""
    for series in record.series:
        for line in series.epochs:
            bad = sorted(name for name, value in line.values.items() if value is None or not math.isfinite(value))
            if bad:
                title = f"{', '.join(bad)} not finite in epoch {line.epoch} of {series.stage}"
                return TEXTS["not_finite"].found(title, {"metrics": len(bad), "epoch": line.epoch or 0})
    return []
