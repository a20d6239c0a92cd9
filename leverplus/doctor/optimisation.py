"""Checks on optimisation and on how a checkpoint is chosen."""

from __future__ import annotations

from leverplus.doctor.findings import ERROR, INFO, WARNING, Finding, Text, table
from leverplus.doctor.ratio import held_out_error
from leverplus.doctor.records import Record, Series

TEXTS = table(
    Text(
        "dead_updates",
        ERROR,
        "The weights hardly move: the learning rate is that of a much larger network, or there is no signal.",
        "relative change of the weights (under 0.001) and changed picks (under 1 %) in every epoch",
        "Raise the learning rate until 2 to 20 % of the picks change in an epoch, once the groups carry signal.",
        ("identical_picks", "entropy_stuck", "difference_inside_noise", "clip_unused"),
    ),
    Text(
        "identical_picks",
        ERROR,
        "Checkpoints that should differ choose the same demonstrations: weights moved too little to change an argmax, "
        "the trained part was lost on loading, or the setting that differs has no effect.",
        "picks that never change in a stage, or a printed share of identical picks (over 99 %)",
        "Compare logits and their margins between the checkpoints; check strict loading and dead settings first.",
        ("difference_inside_noise",),
    ),
    Text(
        "learning_rate_tiny",
        WARNING,
        "The learning rate suits a model of billions of weights, not a selector of a million.",
        "learning rate of a stage under 0.00002; an error where the stage moved nothing: the weights by under 0.2 % in "
        "every epoch, the held-out reward by under a quarter of its standard error",
        "Use 0.0002 to 0.002.",
        ("dead_updates", "identical_picks", "clip_unused", "entropy_stuck"),
    ),
    Text(
        "learning_rate_without_signal",
        WARNING,
        "The learning rate is raised although the advantages are next to 0: it scales the noise and the KL term, and "
        "cannot make a preference that the groups do not hold.",
        "a larger learning rate proposed or tried while the spread of the advantages is under 0.05",
        "Mend the signal first (see advantage_std_tiny); then choose the learning rate.",
        ("difference_inside_noise",),
    ),
    Text(
        "batch_of_one",
        WARNING,
        "Every query is an optimiser step of its own, so that the gradient is mostly noise.",
        "batch_size * accumulate = 1",
        "Use at least 32 queries in a step.",
        ("gradient_always_clipped",),
    ),
    Text(
        "gradient_always_clipped",
        INFO,
        "Every step is clipped by far: the learning rate no longer means what it says.",
        "share of clipped steps over 90 % and gradients over 20 times the limit",
        "Raise grad_clip, or lower the learning rate.",
    ),
    Text(
        "nothing_learnt",
        ERROR,
        "After supervised training the loss is that of a uniform choice: labels are noise for this pool, or the "
        "features do not separate the candidates.",
        "loss of sft after 3 epochs or more: less than 2 % below its start and below a uniform choice",
        "Check labels, pools and features; do not start reinforcement learning from here.",
        ("entropy_stuck", "worse_than_random", "difference_inside_noise"),
    ),
    Text(
        "selected_by_loss",
        ERROR,
        "The held-out loss is a cross-entropy of fixed sequences, which must rise when a policy concentrates on the "
        "better ones; it is not over-fitting, and its lowest point is the least trained policy.",
        "a held-out loss, and no held-out reward, watched or used to choose an epoch of a policy-gradient stage",
        "Choose by the held-out reward of greedy picks.",
        ("claimed_best_is_not",),
    ),
    Text(
        "claimed_best_is_not",
        WARNING,
        "The epoch that is called the best is not the best by the number it is judged by; it was chosen by something "
        "else, probably by the test.",
        "a printed epoch against the printed series of its metric",
        "State the rule of choice before, apply it on dev, and report the test once.",
        ("winners_curse",),
    ),
    Text(
        "reward_falls",
        ERROR,
        "Training makes the policy worse.",
        "held-out reward of the last two epochs against the first (two standard errors below)",
        "Go back to the start of this stage; look at the findings above.",
        ("worse_than_random", "more_shots_hurt"),
    ),
    Text(
        "overfits",
        WARNING,
        "The training likelihood keeps improving while the held-out reward falls: few queries, many epochs.",
        "held-out reward of the last two epochs against the best (two standard errors below) while nll falls",
        "Stop early (patience), use more queries or a smaller selector.",
        ("reward_falls",),
    ),
    Text(
        "loss_falls_by_kl_only",
        WARNING,
        "The training loss falls because the KL term shrinks, not because the policy earns more.",
        "share of the KL term in the fall of the loss (over 90 %)",
        "Do not read the loss; look at reward, KL and picks, each on its own.",
    ),
    Text(
        "gradient_drowned",
        WARNING,
        "Another term of the loss has nearly all of the gradient, so that what the rewards say hardly moves the "
        "weights. The loss values do not show it: the policy-gradient term is near 0 by construction.",
        "norm of the gradient of the term that learns from rewards, against the sum over all terms (under 10 % in half "
        "of the epochs, and in 2 or more)",
        "Lower the weight of the other term; mend flat groups and advantages first.",
        ("kl_collapsed", "dead_updates", "loss_falls_by_kl_only", "identical_picks"),
    ),
)  # fmt: skip
RATES = {"grpo": 2e-4}
LEARNS = {"grpo": "grad/policy", "pairwise": "grad/pair"}
"""The gradient of the term that learns from rewards, by stage."""
WEIGHTS = {"grad/kl": ("grpo.kl_beta", 0.01), "grad/entropy": ("grpo.entropy_bonus", 0.0),
           "grad/nll": ("pairwise.nll_best", 0.1)}  # fmt: skip
"""The setting that weighs a term, and its usual value."""


def dead_updates(record: Record) -> list[Finding]:
    """Weights and picks stay as they are."""
    for series in record.series:
        moves, changes = series.values("update/param_rel"), series.values("picks/changed_frac")
        if len(moves) < 2 or not changes:
            continue
        move, change = max(v for _, v in moves), max(v for _, v in changes)
        if move < 1e-3 and change < 0.01:
            rate = record.setting(f"{series.stage}.lr")
            title = (
                f"{series.stage} moves the weights by {move:.1g} of their size and changes {change:.0%} of the picks"
            )
            fix = None if rate is None else {f"{series.stage}.lr": 10.0 * rate}
            return TEXTS["dead_updates"].found(title, {"moved": move, "changed": change}, fix=fix)
    return []


def identical_picks(record: Record) -> list[Finding]:
    """Nothing that was changed changes a pick."""
    text = TEXTS["identical_picks"]
    if record.published is not None and any(share >= 0.99 for share in record.published.identical_picks):
        share = max(record.published.identical_picks)
        title = f"{share:.0%} of the picks are identical between runs with different settings"
        evidence = {"identical": share, "mentions": len(record.published.identical_picks)}
        return text.found(title, evidence, about=["runs with identical picks"])
    for series in record.series:
        changes = [value for _, value in series.values("picks/changed_frac")]
        if len(changes) >= 3 and max(changes) == 0.0:
            title = f"Not one pick changed in {len(changes)} epochs of {series.stage}"
            return text.found(title, {"epochs": len(changes), "changed": 0.0})
    return []


def learning_rate_tiny(record: Record) -> list[Finding]:
    """A learning rate of another scale."""
    for stage in record.setting("train.stages") or ():
        rate = record.setting(f"{stage}.lr")
        if rate is not None and rate < 2e-5:
            title, evidence = f"{stage}.lr = {rate:g} is too small for a selector of this size", {"lr": rate}
            idle = _moved_nothing(record, stage)
            if idle is not None:
                title += f": the weights moved by {idle:.1g} of their size at most, and the held-out reward not at all"
                evidence["moved"] = idle
            fix = {f"{stage}.lr": RATES.get(stage, 1e-3)}
            severity = WARNING if idle is None else ERROR
            return TEXTS["learning_rate_tiny"].found(title, evidence, fix=fix, severity=severity)
    return []


def _moved_nothing(record: Record, stage: str) -> float | None:
    """The largest relative change of the weights in an epoch, if neither they nor the held-out reward moved."""
    error = held_out_error(record)
    for series in record.stages(stage):
        moves = [value for _, value in series.values("update/param_rel")]
        rewards = [value for _, value in series.values("val/reward")]
        if error is None or len(moves) < 2 or len(rewards) < 2 or max(moves) >= 2e-3:
            continue
        if max(rewards) - min(rewards) < 0.25 * error:
            return max(moves)
    return None


def learning_rate_without_signal(record: Record) -> list[Finding]:
    """More of nothing."""
    tiny = [s for s in record.stages("grpo") if (v := s.last("adv/std")) is not None and v < 0.05]
    if not tiny or record.published is None:
        return []
    used = [float(rate) for s in tiny if (rate := s.settings.get("lr")) is not None]
    present = record.published.settings.get("", {}).get("lr")
    used += [] if present is None else [float(present)]
    wanted = used + [value for key, value in record.published.advice if key == "lr"]
    larger = sorted({rate for rate in wanted if used and rate >= 2.0 * min(used)})
    if not larger:
        return []
    spread = max(s.last("adv/std") or 0.0 for s in tiny)
    tried = max(used) >= 2.0 * min(used)
    title = (
        f"A larger learning rate ({' or '.join(f'{rate:g}' for rate in larger)} instead of {min(used):g}) cannot mend "
        f"missing signal: the advantages {'still ' if tried else ''}spread by {spread:.2g}"
    )
    evidence = {"lr_from": min(used), "lr_to": max(larger), "adv_std": spread}
    return TEXTS["learning_rate_without_signal"].found(title, evidence, about=[s.label for s in tiny])


def batch_of_one(record: Record) -> list[Finding]:
    """One query an optimiser step."""
    for stage in record.setting("train.stages") or ():
        if record.setting(f"{stage}.batch_size") == 1 and record.setting(f"{stage}.accumulate") == 1:
            fix = {f"{stage}.batch_size": 32}
            return TEXTS["batch_of_one"].found(f"{stage} takes a step for every query", {"batch": 1}, fix=fix)
    printed = record.published.settings if record.published is not None else {}
    if any(settings.get("batch_size") == 1 for settings in printed.values()):
        return TEXTS["batch_of_one"].found("A step is taken for every query (batch size 1)", {"batch": 1})
    return []


def gradient_always_clipped(record: Record) -> list[Finding]:
    """Clipping is the rule."""
    for series in record.series:
        share, norm = series.last("frac_clipped_steps"), series.last("grad_norm")
        limit = record.setting(f"{series.stage}.grad_clip")
        if share is not None and norm is not None and limit and share > 0.9 and norm > 20.0 * limit:
            title = f"{share:.0%} of the steps of {series.stage} are clipped, from {norm:.3g} to {limit:g}"
            return TEXTS["gradient_always_clipped"].found(title, {"clipped": share, "norm": norm, "limit": limit})
    return []


def nothing_learnt(record: Record) -> list[Finding]:
    """As good as a uniform choice."""
    for series in record.stages("sft"):
        losses, chance = [value for _, value in series.values("loss/nll")], chance_level(series)
        if len(losses) < 3 or chance is None or not 0.98 * chance < losses[-1] <= 1.2 * chance:
            continue
        if losses[-1] > 0.98 * losses[0]:
            title = f"After {len(losses)} epochs of sft the loss is {losses[-1]:.3f}, a uniform choice has {chance:.3f}"
            return TEXTS["nothing_learnt"].found(title, {"first": losses[0], "last": losses[-1], "chance": chance})
    return []


def chance_level(series: Series) -> float | None:
    """The negative log-likelihood of a uniform policy on the sequences of a stage, from nll_skill = 1 - nll / it."""
    nll, skill = series.last("nll"), series.last("nll_skill")
    return None if nll is None or skill is None or skill >= 1.0 else nll / (1.0 - skill)


def selected_by_loss(record: Record) -> list[Finding]:
    """Watched or chosen by a loss that must rise."""
    for stage in record.setting("train.stages") or ():
        monitor = str(record.setting(f"{stage}.monitor") or "")
        if "loss" in monitor or "nll" in monitor:
            fix = {f"{stage}.monitor": "reward"}
            return TEXTS["selected_by_loss"].found(f"{stage} is judged by {monitor}", {"stages": 1}, fix=fix)
    watched = [s for s in record.stages("grpo") if s.values("val/loss") and not s.values("val/reward")]
    chosen = [c for c in record.published.choices if c.metric == "val/loss"] if record.published else []
    if not watched and not chosen:
        return []
    evidence: dict[str, float | int | str] = {"trainings": len(watched), "chosen_by_it": len(chosen)}
    title = "Held-out loss, a cross-entropy, is the wrong thing to watch"
    if watched:
        series = max(watched, key=lambda s: (s.last("val/loss") or 0.0) - (s.first("val/loss") or 0.0))
        first, last = series.first("val/loss") or 0.0, series.last("val/loss") or 0.0
        evidence.update(val_loss_first=first, val_loss_last=last)
        title += f": {first:g} to {last:g} says nothing about the picks"
    if chosen:
        title += f"; {'an epoch was' if len(chosen) == 1 else f'{len(chosen)} epochs were'} chosen by it"
    return TEXTS["selected_by_loss"].found(title, evidence, severity=ERROR if chosen else WARNING)


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
    named = f" of {series.label}" if series.label else ""
    other = f"epoch {best} has {lowest:g}" if lowest < claimed else f"that is printed for epoch {best}"
    title = f"Epoch {epoch}{named} is called the best (held-out loss {claimed:g}), but {other}"
    evidence = {"claimed_epoch": epoch, "claimed": claimed, "best_epoch": best, "best": lowest}
    return TEXTS["claimed_best_is_not"].found(title, evidence, about=[series.label])


def reward_falls(record: Record) -> list[Finding]:
    """Worse than where it began."""
    error = held_out_error(record)
    for series in record.series:
        rewards = [value for _, value in series.values("val/reward")]
        if error is not None and len(rewards) >= 3 and rewards[0] - max(rewards[-2:]) > 2.0 * error:
            title = f"The held-out reward of {series.stage} fell from {rewards[0]:.3f} to {rewards[-1]:.3f}"
            evidence = {"first": rewards[0], "last": rewards[-1], "standard_error": error}
            return TEXTS["reward_falls"].found(title, evidence)
    return []


def overfits(record: Record) -> list[Finding]:
    """Better on training, worse held out."""
    error = held_out_error(record)
    for series in record.series:
        rewards = [value for _, value in series.values("val/reward")]
        losses = [value for _, value in series.values("nll")]
        if error is None or len(rewards) < 4 or len(losses) < 4:
            continue
        best = rewards.index(max(rewards))
        if max(rewards) - max(rewards[-2:]) > 2.0 * error and losses[-1] < losses[best]:
            title = (
                f"{series.stage}: best held-out reward {max(rewards):.3f} in epoch {best + 1}, now {rewards[-1]:.3f}"
            )
            evidence = {"best": max(rewards), "last": rewards[-1], "best_epoch": best + 1}
            fix = {f"{series.stage}.patience": 3} if record.settings else None
            return TEXTS["overfits"].found(title, evidence, fix=fix)
    return []


def loss_falls_by_kl_only(record: Record) -> list[Finding]:
    """The KL term is the loss."""
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
        if 0.9 < share < 1.5:
            falls = f"{totals[0]:g} to {totals[-1]:g}, the KL term from {terms[0]:.4g} to {terms[-1]:.2g}"
            title = f"The loss fell from {falls}"
            return TEXTS["loss_falls_by_kl_only"].found(
                title, {"share": share, "kl_term_first": terms[0]}, about=[series.label]
            )
    return []


def gradient_drowned(record: Record) -> list[Finding]:
    """Another term has the gradient."""
    for series in record.stages(*LEARNS):
        own, drowned = LEARNS[series.stage], []
        for line in series.epochs:
            norms = {name: value for name, value in line.values.items() if name.startswith("grad/") and value}
            if len(norms) > 1 and own in line.values:
                drowned.append((norms.get(own, 0.0) / sum(norms.values()), max(norms, key=lambda name: norms[name])))
        if sum(share < 0.1 for share, _ in drowned) < max(2, len(drowned) / 2):
            continue
        share, other = sorted(drowned)[(len(drowned) - 1) // 2]
        term = other.removeprefix("grad/")
        key, usual = WEIGHTS.get(other, ("", 0.0))
        fix = {key: usual} if (record.setting(key) or 0.0) > usual else None
        title = f"{series.stage}: {share:.1%} of the gradient comes from the rewards, most from the {term} term"
        return TEXTS["gradient_drowned"].found(title, {"share": share, "term": term}, fix=fix, about=[series.label])
    return []
