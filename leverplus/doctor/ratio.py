"""Checks on ratios, divergences and the weight of the KL term."""

from __future__ import annotations

import math

from leverplus.doctor.curves import curve
from leverplus.doctor.findings import ERROR, WARNING, Finding, read_texts
from leverplus.doctor.records import Record, Series

TEXTS = read_texts("ratio")


def kl_at_start(record: Record) -> list[Finding]:
    """The KL was there before anything was learnt."""
    text = TEXTS["kl_at_start"]
    far = [series for series in record.stages("grpo") if _starts_far(series)]
    if not far:
        return []
    series = max(far, key=lambda s: s.first("kl") or 0.0)
    kl = series.first("kl") or 0.0
    evidence: dict[str, float | int | str] = {
        "kl_first": kl,
        "kl_last": series.last("kl") or kl,
        "trainings": len(far),
    }
    title = text.say("seen", kl=kl)
    if not series.exact:
        # what was printed may be k3 the wrong way round: then these are the nats that the policies lie apart
        evidence["nats_if_exp_new_minus_old"] = _inverse_k3(kl)
    rates = [series.settings["lr"] for series in far if series.settings.get("lr")]
    if rates:
        evidence["lr"] = max(rates)
        title += text.say("and_rate", rate=max(rates))
    before, after = _handover(record, series)
    if before is not None and after is not None and after > before:
        evidence.update(val_loss_before=before, val_loss_after=after)
        title += text.say("and_back", before=before, after=after)
    return text.found(title, evidence, about=[s.label for s in far])


def _starts_far(series: Series) -> bool:
    """Whether the KL is large in the first epoch although the weights cannot have moved that far by then."""
    at_first = [value for epoch, value in series.values("kl") if epoch in (None, 1)]
    if not at_first or at_first[0] <= 1.0:  # nats per sequence
        return False
    if series.exact:
        return (series.first("update/param_rel") or 0.0) < 1e-2  # weights that moved by 1 % do not make 1 nat
    # other logs do not say how far the weights moved: a KL that falls again, or a tiny learning rate, tells
    falls = (series.last("kl") or 0.0) < 0.5 * at_first[0]
    return falls or (series.settings.get("lr") or 1.0) <= 1e-4


def _inverse_k3(value: float) -> float:
    """The x > 0 with exp(x) - 1 - x = value, by Newton's method."""
    x = math.log1p(value)  # below the root, and the function is convex: the steps cannot run away
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
    text = TEXTS["inverted_kl"]
    if record.setting("grpo.kl") != "k3_inverted":
        return []
    title = text.say("seen")
    evidence = {"reads_at_3_nats": math.exp(3.0) - 4.0}  # exp(x) - 1 - x at x = 3, about 16
    return text.found(title, evidence, fix={"grpo.kl": "exact"})


def kl_estimate_disagrees(record: Record) -> list[Finding]:
    """The estimate in the loss is far from the exact KL."""
    text = TEXTS["kl_estimate_disagrees"]
    if record.setting("grpo.kl") in (None, "exact"):
        return []
    for series in record.stages("grpo"):
        exact, estimate = series.last("kl"), series.last("kl_k3")
        if exact is None or estimate is None or exact < 0.01:  # next to 0 a relative error says nothing
            continue
        if abs(estimate - exact) / exact > 0.5:
            title = text.say("seen", exact=exact, estimate=estimate)
            evidence = {"exact": exact, "estimate": estimate}
            return text.found(title, evidence, fix={"grpo.kl": "exact"})
    return []


def beta_every_batch(record: Record) -> list[Finding]:
    """The KL weight follows every batch."""
    text = TEXTS["beta_every_batch"]
    if record.setting("grpo.beta_rule") != "batch":
        return []
    factor = record.setting("grpo.beta_factor") or 1.5
    steps = math.ceil(math.log(100.0) / math.log(factor))
    title = text.say("seen", factor=factor, steps=steps)
    evidence = {"factor": factor, "batches_to_100": steps}
    return text.found(title, evidence, fix={"grpo.beta_rule": "fixed"})


def kl_weight_on_rails(record: Record) -> list[Finding]:
    """The KL weight ran into its limits."""
    text = TEXTS["kl_weight_on_rails"]
    low, high = record.setting("grpo.beta_min"), record.setting("grpo.beta_max")
    adapts = record.setting("grpo.beta_rule") in ("epoch", "batch")
    for series in record.stages("grpo"):
        weights = [value for _, value in series.values("kl_coef") if value > 0.0]
        if not weights:
            continue
        jump = max(weights) / min(weights)
        # within 5 % of a limit: the last step towards it need not have been a whole factor
        at_limit = adapts and low and high and (weights[-1] <= 1.05 * low or weights[-1] >= 0.95 * high)
        if jump > 100.0 or at_limit:
            title = text.say("seen", first=weights[0], last=weights[-1])
            fix = {"grpo.beta_rule": "fixed", "grpo.kl_beta": 0.01} if record.settings else None
            return text.found(title, {"first": weights[0], "last": weights[-1]}, fix=fix, about=[series.label])
    return []


def kl_collapsed(record: Record) -> list[Finding]:
    """The policy ends at the reference."""
    text = TEXTS["kl_collapsed"]
    for series in record.stages("grpo"):
        values = [value for _, value in series.values("kl")]
        if len(values) < 2:
            continue
        back = values[0] > 1.0 and values[-1] < 0.1  # it was away from its reference and has come back
        # 0.02 nats: from a near-uniform start a policy that learns anything passes this within an epoch
        if back or (series.exact and max(values) < 0.02 and _held(series)):
            title = text.say("seen", first=values[0], last=values[-1])
            if not back:
                title = text.say("seen_stuck", kl=values[-1])
            fix = {"grpo.kl_beta": 0.01} if (record.setting("grpo.kl_beta") or 0.0) > 0.01 else None
            evidence = {"first": values[0], "last": values[-1]}
            return text.found(title, evidence, fix=fix, about=[series.label])
    return []


def _held(series: Series) -> bool:
    """Whether the KL term holds the policy where it is, although the advantages would move it."""
    if (series.last("adv/frac_active") or 0.0) <= 0.2 or (series.last("kl_coef") or 0.0) < 0.1:
        return False  # too little signal to move it, or too light a term to hold it
    changed = [value for _, value in series.values("picks/changed_frac")]
    pulls = [line.values for line in series.epochs if line.values.get("grad/kl") and line.values.get("grad/policy")]
    stronger = sum((line["grad/kl"] or 0.0) > (line["grad/policy"] or 0.0) for line in pulls)
    return (bool(changed) and max(changed) < 0.05) or (bool(pulls) and stronger > len(pulls) / 2)


def kl_from_flat_groups(record: Record) -> list[Finding]:
    """Flat groups only pull back."""
    text = TEXTS["kl_from_flat_groups"]
    for series in record.stages("grpo"):
        flat = series.last("frac_reward_zero_std")
        if record.setting("grpo.flat_groups") == "keep" and flat is not None and flat > 0.5:
            title = text.say("seen", flat=flat)
            return text.found(title, {"flat": flat}, fix={"grpo.flat_groups": "leave_out"})
    return []


def over_optimised(record: Record) -> list[Finding]:
    """Far from the reference and worse."""
    text = TEXTS["over_optimised"]
    for series in record.series:
        kl, rewards = series.last("kl"), [value for _, value in series.values("val/reward")]
        error = held_out_error(record, series)
        # 3 nats per sequence of two demonstrations: less is what learning needs anyway
        if not series.exact or kl is None or kl <= 3.0 or error is None or len(rewards) < 3:
            continue
        if max(rewards) - max(rewards[-2:]) > 2.0 * error:
            falls = text.say("course", best=max(rewards), last=rewards[-1])
            title = text.say("seen", kl=kl, course=falls)
            evidence = {"kl": kl, "best": max(rewards), "last": rewards[-1]}
            return text.found(title, evidence)
    return []


def held_out_error(record: Record, series: Series, metric: str = "val/reward") -> float | None:
    """Standard error of a held-out measure: at most 0.5 / sqrt(queries), else from how it jumps between evaluations."""
    queries = record.setting("score.dev_queries")
    if queries:
        return float(0.5 / math.sqrt(queries))  # no value in [0, 1] has a deviation above 0.5
    found = curve(series, metric, 4)
    if found is None:
        return None
    return max(found.noise, 0.01 * max(map(abs, found.values)))  # rounded values may show no noise at all


def clip_saturated(record: Record) -> list[Finding]:
    """Most ratios are clipped from the first epoch on."""
    text = TEXTS["clip_saturated"]
    for series in record.stages("grpo"):
        share, when = series.first("clip_ratio/region_mean"), text.say("when_first")
        if series.unit == "step":
            shares = curve(series, "clip_ratio/region_mean")
            share = None if shares is None else shares.middle
            when = text.say("when_often")
        if share is not None and share > 0.3:
            title = text.say("seen", share=share, when=when)
            severity = ERROR if share > 0.6 else WARNING
            rate = record.setting("grpo.lr")
            fix = None if rate is None else {"grpo.lr": rate / 2.0}
            return text.found(title, {"clipped": share}, severity=severity, fix=fix)
    return []


def clip_unused(record: Record) -> list[Finding]:
    """The clip is never reached."""
    text = TEXTS["clip_unused"]
    for series in record.stages("grpo"):
        shares, moves = series.values("clip_ratio/region_mean"), series.values("kl_prox")
        if (record.setting("grpo.inner_epochs") or 1) < 2 or not shares or not moves:
            continue  # with one pass per refresh the ratio is 1 by construction
        if max(v for _, v in shares) == 0.0 and max(v for _, v in moves) < 1e-4:
            title = text.say("seen")
            return text.found(title, {"kl_prox": max(v for _, v in moves)})
    return []


def weights_degenerate(record: Record) -> list[Finding]:
    """Importance weights rest on a few sequences."""
    text = TEXTS["weights_degenerate"]
    for series in record.stages("grpo"):
        share = series.last("sampling/ess")
        if record.setting("grpo.behaviour") == "stored" and share is not None and share < 0.3:
            title = text.say("seen", share=share)
            return text.found(title, {"ess": share}, fix={"grpo.behaviour": "proximal"})
    return []


def likelihood_displaced(record: Record) -> list[Finding]:
    """Good and bad sequences lose probability alike."""
    text = TEXTS["likelihood_displaced"]
    for series in record.stages("pairwise"):
        first, last = series.first("nll"), series.last("nll")
        margins = [value for _, value in series.values("pair/margin")]
        if first is None or last is None or len(margins) < 2 or last - first <= 2.0 or margins[-1] <= margins[0]:
            continue  # displaced only where the better of each pair gains on the worse while both become unlikelier
        title = text.say("seen", first=first, last=last)
        low = (record.setting("pairwise.nll_best") or 0.0) < 0.1
        fix = {"pairwise.nll_best": 0.1} if record.settings and low else None
        return text.found(title, {"first": first, "last": last}, fix=fix)
    return []


def not_finite(record: Record) -> list[Finding]:
    """Infinite, or not a number."""
    text = TEXTS["not_finite"]
    for series in record.series:
        for line in series.epochs:
            bad = sorted(name for name, value in line.values.items() if value is None or not math.isfinite(value))
            if bad:
                title = text.say("seen", names=", ".join(bad), epoch=line.epoch, stage=series.stage)
                return text.found(title, {"metrics": len(bad), "epoch": line.epoch or 0})
    return []
