"""Checks on optimisation and on how a checkpoint is chosen."""

from __future__ import annotations

from collections.abc import Sequence

from leverplus.doctor.course import unmoved
from leverplus.doctor.curves import Curve, curve, rises
from leverplus.doctor.findings import ERROR, WARNING, Finding, read_texts
from leverplus.doctor.ratio import held_out_error
from leverplus.doctor.records import Record, Series
from leverplus.doctor.words import metric_in_words

TEXTS = read_texts("optimisation")
RATES = {"grpo": 2e-4}  # learning rates that suit a selector, where another than 0.001 is usual
LEARNS = {"grpo": "grad/policy", "pairwise": "grad/pair"}
"""The gradient of the term that learns from rewards, by stage."""
WEIGHTS = {"grad/kl": ("grpo.kl_beta", 0.01), "grad/entropy": ("grpo.entropy_bonus", 0.0),
           "grad/nll": ("pairwise.nll_best", 0.1)}  # fmt: skip
"""The setting that weighs a term, and its usual value."""


def dead_updates(record: Record) -> list[Finding]:
    """Weights and picks stay as they are."""
    text = TEXTS["dead_updates"]
    for series in record.series:
        moves, changes = series.values("update/param_rel"), series.values("picks/changed_frac")
        if len(moves) < 2 or not changes:
            stuck = _no_update(series)
            if stuck is not None:
                return stuck
            continue
        move = max(value for _, value in moves)
        change = max(value for _, value in changes)
        if move < 1e-3 and change < 0.01:  # of the weights' size, and of the picks, in the best epoch
            rate = record.setting(f"{series.stage}.lr")
            title = text.say("seen", stage=series.stage, move=move, change=change)
            fix = None if rate is None else {f"{series.stage}.lr": 10.0 * rate}
            return text.found(title, {"moved": move, "changed": change}, fix=fix)
    return []


def _no_update(series: Series) -> list[Finding] | None:
    """Another library's log in which the policy stays where it is, without a learning rate that would say why."""
    text = TEXTS["dead_updates"]
    still = unmoved(series) if not series.exact and not series.values("lr") else []
    measured = curve(series, "kl", 8) or curve(series, "kl_prox", 8)
    if not still or measured is None or series.stage not in ("grpo", "ppo"):
        return None
    evidence = {"kl": measured.late, "measures": len(still)}
    return text.found(text.say("seen_unlogged", measures=", ".join(still)), evidence, about=[series.label])


def identical_picks(record: Record) -> list[Finding]:
    """Nothing that was changed changes a pick."""
    text = TEXTS["identical_picks"]
    if record.published is not None and any(share >= 0.99 for share in record.published.identical_picks):
        share = max(record.published.identical_picks)
        title = text.say("seen_in_print", share=share)
        evidence = {"identical": share, "mentions": len(record.published.identical_picks)}
        return text.found(title, evidence, about=["runs with identical picks"])
    for series in record.series:
        changes = [value for _, value in series.values("picks/changed_frac")]
        if len(changes) >= 3 and max(changes) == 0.0:
            title = text.say("seen", epochs=len(changes), stage=series.stage)
            return text.found(title, {"epochs": len(changes), "changed": 0.0})
    return []


IDLE_RATE = 1e-7
"""Logged learning rates under this move no network of any size that is trained in practice."""


def learning_rate_tiny(record: Record) -> list[Finding]:
    """A learning rate of another scale."""
    text = TEXTS["learning_rate_tiny"]
    for stage in record.setting("train.stages") or ():
        rate = record.setting(f"{stage}.lr")
        if rate is not None and rate < 2e-5:  # rates of models of billions of weights are copied from there
            title = text.say("seen", stage=stage, rate=rate)
            evidence = {"lr": rate}
            idle = _moved_nothing(record, stage)
            if idle is not None:
                title += text.say("and_idle", moved=idle)
                evidence["moved"] = idle
            fix = {f"{stage}.lr": RATES.get(stage, 1e-3)}
            severity = WARNING if idle is None else ERROR
            return text.found(title, evidence, fix=fix, severity=severity)
    for series in record.series:
        rate = max((value for _, value in series.values("lr")), default=None)
        if rate is None or rate >= IDLE_RATE:
            continue
        still = unmoved(series)
        if still:
            title = text.say("seen_in_log", rate=rate, measures=", ".join(still))
            evidence = {"lr": rate, "unmoved": len(still)}
            why, what = text.say("cause_in_log"), text.say("cure_in_log")
            return text.found(title, evidence, severity=ERROR, cause=why, cure=what, about=[series.label])
    return []


def _moved_nothing(record: Record, stage: str) -> float | None:
    """The largest relative change of the weights in an epoch, if neither they nor the held-out reward moved."""
    for series in record.stages(stage):
        error = held_out_error(record, series)
        moves = [value for _, value in series.values("update/param_rel")]
        rewards = [value for _, value in series.values("val/reward")]
        if error is None or len(moves) < 2 or len(rewards) < 2 or max(moves) >= 2e-3:
            continue
        if max(rewards) - min(rewards) < 0.25 * error:  # a reward that only jumped by its noise would spread by more
            return max(moves)
    return None


def learning_rate_without_signal(record: Record) -> list[Finding]:
    """More of nothing."""
    text = TEXTS["learning_rate_without_signal"]
    spreads = [(series, series.last("adv/std")) for series in record.stages("grpo")]
    tiny = [series for series, spread in spreads if spread is not None and spread < 0.05]
    if not tiny or record.published is None:
        return []
    used = [float(series.settings["lr"]) for series in tiny if series.settings.get("lr") is not None]
    present = record.published.settings.get("", {}).get("lr")  # of a text that speaks of one training only
    used += [] if present is None else [float(present)]
    wanted = used + [value for key, value in record.published.advice if key == "lr"]
    larger = sorted({rate for rate in wanted if used and rate >= 2.0 * min(used)})
    if not larger:
        return []
    spread = max(s.last("adv/std") or 0.0 for s in tiny)
    tried = max(used) >= 2.0 * min(used)
    title = text.say(
        "seen",
        rates=" or ".join(f"{rate:g}" for rate in larger),
        used=min(used),
        still=text.say("still") if tried else "",
        spread=spread,
    )
    evidence = {"lr_from": min(used), "lr_to": max(larger), "adv_std": spread}
    return text.found(title, evidence, about=[s.label for s in tiny])


def batch_of_one(record: Record) -> list[Finding]:
    """One query an optimiser step."""
    text = TEXTS["batch_of_one"]
    for stage in record.setting("train.stages") or ():
        if record.setting(f"{stage}.batch_size") == 1 and record.setting(f"{stage}.accumulate") == 1:
            fix = {f"{stage}.batch_size": 32}
            return text.found(text.say("seen", stage=stage), {"batch": 1}, fix=fix)
    printed = record.published.settings if record.published is not None else {}
    if any(settings.get("batch_size") == 1 for settings in printed.values()):
        return text.found(text.say("seen_in_print"), {"batch": 1})
    return []


def gradient_always_clipped(record: Record) -> list[Finding]:
    """Clipping is the rule."""
    text = TEXTS["gradient_always_clipped"]
    for series in record.series:
        share, norm = series.last("frac_clipped_steps"), series.last("grad_norm")
        limit = record.setting(f"{series.stage}.grad_clip")
        if share is not None and norm is not None and limit and share > 0.9 and norm > 20.0 * limit:
            title = text.say("seen", share=share, stage=series.stage, norm=norm, limit=limit)
            return text.found(title, {"clipped": share, "norm": norm, "limit": limit})
    return []


def nothing_learnt(record: Record) -> list[Finding]:
    """As good as a uniform choice."""
    text = TEXTS["nothing_learnt"]
    for series in record.stages("sft"):
        losses = [value for _, value in series.values("loss/nll")]
        chance = chance_level(series)
        if len(losses) < 3 or chance is None or not 0.98 * chance < losses[-1] <= 1.2 * chance:
            continue  # clearly below chance something was learnt; far above it the loss is of another kind
        if losses[-1] > 0.98 * losses[0]:
            title = text.say("seen", epochs=len(losses), loss=losses[-1], chance=chance)
            return text.found(title, {"first": losses[0], "last": losses[-1], "chance": chance})
    return []


def chance_level(series: Series) -> float | None:
    """The negative log-likelihood of a uniform policy on the sequences of a stage, from nll_skill = 1 - nll / it."""
    nll, skill = series.last("nll"), series.last("nll_skill")
    if nll is None or skill is None or skill >= 1.0:
        return None
    return nll / (1.0 - skill)


def selected_by_loss(record: Record) -> list[Finding]:
    """Watched or chosen by a loss that must rise."""
    text = TEXTS["selected_by_loss"]
    for stage in record.setting("train.stages") or ():
        monitor = str(record.setting(f"{stage}.monitor") or "")
        if "loss" in monitor or "nll" in monitor:
            fix = {f"{stage}.monitor": "reward"}
            return text.found(text.say("seen", stage=stage, monitor=monitor), {"stages": 1}, fix=fix)
    watched = [s for s in record.stages("grpo") if s.values("val/loss") and not s.values("val/reward")]
    chosen = [c for c in record.published.choices if c.metric == "val/loss"] if record.published else []
    if not watched and not chosen:
        return []
    evidence: dict[str, float | int | str] = {"trainings": len(watched), "chosen_by_it": len(chosen)}
    title = text.say("seen_watched")
    if watched:
        series = max(watched, key=lambda s: (s.last("val/loss") or 0.0) - (s.first("val/loss") or 0.0))
        first, last = series.first("val/loss") or 0.0, series.last("val/loss") or 0.0
        evidence.update(val_loss_first=first, val_loss_last=last)
        title += text.say("and_course", first=first, last=last)
    if chosen:
        epochs = text.say("one_epoch") if len(chosen) == 1 else text.say("many_epochs", count=len(chosen))
        title += text.say("and_chosen", epochs=epochs)
    return text.found(title, evidence, severity=ERROR if chosen else WARNING)


def claimed_best_is_not(record: Record) -> list[Finding]:
    """The best epoch is another one."""
    for choice in record.published.choices if record.published else ():
        own = [s for s in record.stages("grpo") if s.label == choice.label and s.values("val/loss")]
        for series in own if choice.metric in (None, "val/loss") else ():
            known = {epoch: value for epoch, value in series.values("val/loss") if epoch is not None}
            claimed = known.get(choice.epoch, choice.value)
            best = min(known, key=lambda epoch: known[epoch], default=None)
            if best is None or best == choice.epoch or claimed is None:
                continue
            said_elsewhere = choice.epoch not in known and known[best] == claimed
            if known[best] < claimed or said_elsewhere:
                return _claim(choice.epoch, best, claimed, known[best], series)
    return []


def _claim(epoch: int, best: int, claimed: float, lowest: float, series: Series) -> list[Finding]:
    text = TEXTS["claimed_best_is_not"]
    named = text.say("of_training", label=series.label) if series.label else ""
    other = text.say("other_printed", best=best)
    if lowest < claimed:
        other = text.say("other_lower", best=best, lowest=lowest)
    title = text.say("seen", epoch=epoch, named=named, claimed=claimed, other=other)
    evidence = {"claimed_epoch": epoch, "claimed": claimed, "best_epoch": best, "best": lowest}
    return text.found(title, evidence, about=[series.label])


def reward_falls(record: Record) -> list[Finding]:
    """Worse than where it began."""
    text = TEXTS["reward_falls"]
    for series in record.series:
        for metric in ("val/reward", "val/accuracy", "reward"):
            values = [value for _, value in series.values(metric)]
            error = held_out_error(record, series, metric)
            if error is None or len(values) < 3 or (metric == "reward" and (series.exact or len(values) < 8)):
                continue
            first, last = _ends(values)
            if metric == "reward" and first - last <= 0.25 * abs(first):
                continue  # rewards of other queries every step: only a large fall is one
            if first - last > 2.0 * error:
                what = metric_in_words(metric)
                title = text.say("seen", what=what, stage=series.stage, first=first, last=last)
                evidence = {"first": first, "last": last, "standard_error": error}
                return text.found(title, evidence, about=[series.label])
    return []


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Where a measure began and the better of its last two values; of long logs the means of the outer fifths."""
    if len(values) < 20:
        return values[0], max(values[-2:])
    found = Curve(tuple(values))
    return found.early, found.late


FITTED = {
    "val/group_reward": ("fit/group_reward",),
    "val/reward": ("reward", "fit/group_reward"),
    "val/accuracy": ("accuracy",),
}
"""Held-out measures that should rise, and those of the same kind on what is learnt from."""


def overfits(record: Record) -> list[Finding]:
    """Better on training, worse held out."""
    for series in record.series:
        found = _better_and_worse(record, series) or _loss_rises(series)
        if found is None:
            continue
        title, evidence = found
        fix = {f"{series.stage}.patience": 3} if record.settings else None
        return TEXTS["overfits"].found(title, evidence, fix=fix, about=[series.label])
    return []


def _better_and_worse(record: Record, series: Series) -> tuple[str, dict[str, float | int | str]] | None:
    """A held-out reward well below its best while the training measure, or its likelihood, went on improving."""
    if not series.exact and series.stage in ("sft", "dpo") and curve(series, "val/loss", 4) is not None:
        return None  # there the held-out loss says more than an accuracy of few items
    for metric, fits in FITTED.items():
        held = [value for _, value in series.values(metric)]
        fitted = fits
        if metric == "val/accuracy" and not series.values("accuracy") and held and Curve(tuple(held)).rose_for_a_while:
            fitted = ("reward",)  # it followed the reward at first: what is learnt from is all that was paid for
        error = held_out_error(record, series, metric)
        if error is None or len(held) < 4:
            continue
        best = held.index(max(held))
        # best at the start is a training that harms from the first step, which reward_falls names
        if best == 0 or max(held) - max(held[-2:]) <= 2.0 * error or not _goes_on(series, fitted, best / len(held)):
            continue
        if not series.exact and (
            max(held) - held[-1] <= 4.0 * error
            or not rises(series, *fitted)
            or not Curve(tuple(held)).fell_from_its_best
        ):
            continue  # without a known number of queries the noise is a guess, so that more must be seen
        what = metric_in_words(metric)
        title = TEXTS["overfits"].say(
            "seen_reward", stage=series.stage, what=what, best=max(held), place=best + 1, count=len(held), last=held[-1]
        )
        return title, {"best": max(held), "last": held[-1], "best_epoch": best + 1}
    return None


def _goes_on(series: Series, fitted: Sequence[str], share: float) -> bool:
    """Whether a training measure improved after this share of the log, or the loss of fixed sequences fell."""
    for metric, sign in (*((name, 1.0) for name in fitted), ("nll", -1.0), ("fit/loss", -1.0)):
        values = [sign * value for _, value in series.values(metric)]
        if len(values) >= 4 and values[-1] > values[int(share * len(values))] + 1e-9:
            return True
    return False


def _loss_rises(series: Series) -> tuple[str, dict[str, float | int | str]] | None:
    """A held-out loss well above its lowest while the training loss fell; not of a policy gradient, where it must."""
    losses, held = curve(series, "loss/total", 4), curve(series, "val/loss", 4)
    if losses is None or held is None or series.stage in ("grpo", "ppo", "rce", "pairwise") or not losses.falls:
        return None
    lowest, last = min(held.values), held.late
    if held.values.index(lowest) == len(held.values) - 1 or last - lowest <= max(4.0 * held.noise, 0.05 * abs(lowest)):
        return None
    title = TEXTS["overfits"].say("seen_loss", stage=series.stage, train_loss=losses.late, lowest=lowest, last=last)
    return title, {
        "lowest": lowest,
        "last": last,
        "train_last": losses.late,
        "best_place": held.values.index(lowest) + 1,
    }


def loss_falls_by_kl_only(record: Record) -> list[Finding]:
    """The KL term is the loss."""
    text = TEXTS["loss_falls_by_kl_only"]
    for series in record.stages("grpo"):
        totals = [value for _, value in series.values("loss/total")]
        terms = [value for _, value in series.values("loss/kl")]
        if not terms:
            terms = [
                (line.values.get("kl") or 0.0) * (line.values.get("kl_coef") or 0.0)
                for line in series.epochs
                if line.values.get("kl") is not None and line.values.get("kl_coef") is not None
            ]
        if len(totals) < 2 or len(terms) != len(totals) or totals[0] - totals[-1] <= 0.05:
            continue
        share = (terms[0] - terms[-1]) / (totals[0] - totals[-1])
        if 0.9 < share < 1.5:  # above 1 another term rose meanwhile; far above, the loss is not the sum of these terms
            falls = text.say("course", loss_first=totals[0], loss_last=totals[-1], kl_first=terms[0], kl_last=terms[-1])
            title = text.say("seen", course=falls)
            return text.found(title, {"share": share, "kl_term_first": terms[0]}, about=[series.label])
    return []


def gradient_drowned(record: Record) -> list[Finding]:
    """Another term has the gradient."""
    text = TEXTS["gradient_drowned"]
    for series in record.stages(*LEARNS):
        own = LEARNS.get(series.stage, "grad/policy")
        shares = []  # of the term that learns from rewards, and the largest term, for every epoch
        for line in series.epochs:
            norms = {name: value for name, value in line.values.items() if name.startswith("grad/") and value}
            if len(norms) > 1 and own in line.values:
                largest = max(norms, key=lambda name: norms[name])
                shares.append((norms.get(own, 0.0) / sum(norms.values()), largest))
        drowned = sum(share < 0.1 for share, _ in shares)
        if drowned < max(2, len(shares) / 2):
            continue
        share, other = sorted(shares)[(len(shares) - 1) // 2]  # the epoch in the middle stands for all
        term = other.removeprefix("grad/")
        key, usual = WEIGHTS.get(other, ("", 0.0))
        fix = {key: usual} if (record.setting(key) or 0.0) > usual else None
        title = text.say("seen", stage=series.stage, share=share, term=term)
        return text.found(title, {"share": share, "term": term}, fix=fix, about=[series.label])
    return []
