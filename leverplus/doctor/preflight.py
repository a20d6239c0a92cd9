"""Checks that can speak before the first step: two passes that agree, whole checkpoints, equal pools, settings with an
effect."""

from __future__ import annotations

from leverplus.doctor.findings import Finding, read_texts
from leverplus.doctor.optimisation import chance_level
from leverplus.doctor.records import Record

TEXTS = read_texts("preflight")
SHARP = 1e-3
"""Two passes over the same weights differ by rounding alone: about 1e-4 in float32, a little more on a GPU."""

FAR = 0.1
"""A mean ratio further from 1 than this at the first step is no rounding."""


def ratio_not_one(record: Record) -> list[Finding]:
    """Identical weights give another log-probability."""
    text = TEXTS["ratio_not_one"]
    measured = []
    for series in record.stages("grpo"):
        measured += [value for _, value in series.values("ratio/first_mb_dev")]
    if record.probe and record.probe.log_ratio is not None:
        measured.append(record.probe.log_ratio)
    for series in record.stages("grpo"):
        ratio = series.first("ratio/mean")
        if ratio is not None and abs(ratio - 1.0) > FAR:
            title = text.say("seen_in_log", ratio=ratio, unit=series.unit)
            return text.found(title, {"ratio": ratio}, about=[series.label])
    if not measured or max(measured) <= SHARP:
        return []
    title = text.say("seen", largest=max(measured))
    return text.found(title, {"log_ratio": max(measured)})


def dropout_in_ratio(record: Record) -> list[Finding]:
    """Dropout acts on one side of the ratio."""
    text = TEXTS["dropout_in_ratio"]
    rates = [record.setting("select.dropout") or 0.0, record.setting("select.attention_dropout") or 0.0]
    if not record.setting("grpo.dropout_in_ratio") or max(rates) <= 0.0:
        return []
    title = text.say("seen", rate=max(rates))
    return text.found(title, {"dropout": max(rates)}, fix={"grpo.dropout_in_ratio": False})


def reference_not_start(record: Record) -> list[Finding]:
    """The KL term pulls towards a policy from before the stage."""
    text, stages = TEXTS["reference_not_start"], list(record.setting("train.stages") or [])
    if record.setting("grpo.reference") == "sft" and _between(stages):
        title = text.say("seen_in_recipe", between=", ".join(_between(stages)))
        return text.found(title, {"stages_between": len(_between(stages))}, fix={"grpo.reference": "stage_start"})
    kl = None if record.probe is None else record.probe.kl
    if kl is None or kl <= 1e-5 or record.setting("grpo.reference") == "sft":
        return []
    return text.found(text.say("seen", kl=kl), {"kl": kl})


def _between(stages: list[str]) -> list[str]:
    if "sft" not in stages or "grpo" not in stages:
        return []
    return stages[stages.index("sft") + 1 : stages.index("grpo")]


def stale_behaviour(record: Record) -> list[Finding]:
    """The ratio refers to the sft policy."""
    text = TEXTS["stale_behaviour"]
    if record.setting("grpo.behaviour") != "sft":
        return []
    between = _between(list(record.setting("train.stages") or []))
    when = text.say("and_before", between=", ".join(between)) if between else text.say("and_always")
    title = text.say("seen") + when
    evidence = {"stages_between": len(between), "epochs": record.setting("grpo.epochs") or 0}
    return text.found(title, evidence, fix={"grpo.behaviour": "proximal"})


def missing_density(record: Record) -> list[Finding]:
    """An importance ratio without a density."""
    text = TEXTS["missing_density"]
    groups = record.groups
    if groups is None or not groups.without_density or record.setting("grpo.behaviour") != "stored":
        return []
    title = text.say("seen", without_density=groups.without_density, members=groups.members)
    evidence = {"without_density": groups.without_density, "members": groups.members}
    return text.found(title, evidence, fix={"grpo.behaviour": "proximal"})


def checkpoint_not_whole(record: Record) -> list[Finding]:
    """A loaded checkpoint is not the one that was saved."""
    text = TEXTS["checkpoint_not_whole"]
    probe = record.probe
    if probe is None:
        return []
    lost, gap = (probe.missing or 0) + (probe.unexpected or 0), probe.logit_gap or 0.0
    if lost == 0 and gap <= 1e-5:  # the same weights on the same machine give the same logits but for rounding
        return []
    title = text.say("seen", lost=lost, gap=gap)
    fix = record.undo("conversion")
    return text.found(title, {"tensors": lost, "logit_gap": gap}, fix=fix)


def pool_builder_differs(record: Record) -> list[Finding]:
    """Pools of training and test come from different builders."""
    text = TEXTS["pool_builder_differs"]
    builders = record.probe.builders if record.probe else None
    if not builders or len(set(builders.values())) == 1:
        return []
    title = text.say("seen", ways=len(set(builders.values())), names=", ".join(sorted(builders)))
    fix = record.undo("test_pool")
    return text.found(title, {"builders": len(set(builders.values()))}, fix=fix)


def pool_too_small(record: Record) -> list[Finding]:
    """Hardly more candidates than shots."""
    text = TEXTS["pool_too_small"]
    size = record.setting("pool.size") or (record.groups.pool if record.groups else None)
    lengths = list(record.setting("eval.shots") or []) or list(record.groups.lengths if record.groups else [])
    if size is None or not lengths or size >= 2 * max(lengths):  # with fewer, half of every pool is shown
        return []
    title = text.say("seen", size=size, shots=max(lengths))
    fix = {"pool.size": 64} if record.setting("pool.size") else None
    return text.found(title, {"pool": size, "shots": max(lengths)}, fix=fix)


def dead_setting(record: Record) -> list[Finding]:
    """A setting that another one switches off."""
    text = TEXTS["dead_setting"]
    dead: list[tuple[str, str, str]] = []
    if record.setting("grpo.clip_only") and (record.setting("grpo.kl_beta") or 0.0) > 0.0:
        dead.append(("grpo.kl_beta", "grpo.clip_only", text.say("why_clip_only")))
    if record.setting("grpo.topk_before_advantage") and not record.setting("grpo.top_k"):
        dead.append(("grpo.topk_before_advantage", "grpo.top_k", text.say("why_all_kept")))
    for stage in record.setting("train.stages") or ():
        if record.setting(f"{stage}.epochs") == 0:
            dead.append((stage, f"{stage}.epochs", text.say("why_no_epoch")))
    title = "; ".join(text.say("seen", key=key, switch=switch, why=why) for key, switch, why in dead)
    if dead:
        fix = {"grpo.clip_only": False} if any(key == "grpo.kl_beta" for key, _, _ in dead) else None
        return text.found(title, {"settings": len(dead)}, fix=fix)
    printed = record.published.settings.items() if record.published is not None else ()
    unused = {}  # KL weights that a text prints beside "clip only", by training
    for label, settings in printed:
        if settings.get("clip_only") is True and (settings.get("kl_beta") or 0) > 0:
            unused[label] = settings["kl_beta"]
    if not unused:
        return []
    named = ", ".join(text.say("each_weight", beta=beta, label=label) for label, beta in unused.items())
    title = text.say("seen_in_print", weights=named)
    return text.found(title, {"settings": len(unused)}, about=unused)


def query_leaks(record: Record) -> list[Finding]:
    """A pool holds its own query."""
    text = TEXTS["query_leaks"]
    if record.probe is None or not record.probe.leaked:
        return []
    title = text.say("seen", leaked=record.probe.leaked)
    return text.found(title, {"queries": record.probe.leaked}, fix=record.undo("own_picture"))


def split_overlap(record: Record) -> list[Finding]:
    """Training and test share images."""
    text = TEXTS["split_overlap"]
    if record.probe is None or not record.probe.overlap:
        return []
    title = text.say("seen", overlap=record.probe.overlap)
    return text.found(title, {"images": record.probe.overlap}, fix=record.undo("queries"))


def scores_not_reproducible(record: Record) -> list[Finding]:
    """The frozen model changes its mind."""
    text = TEXTS["scores_not_reproducible"]
    probe = record.probe
    if probe is None or not probe.rescored or not probe.flipped or probe.flipped <= max(1.0, 0.01 * probe.rescored):
        return []  # 1 %: batches of other sizes round differently, and now and then that tips an answer
    title = text.say("seen", flipped=probe.flipped, rescored=probe.rescored)
    return text.found(title, {"rescored": probe.rescored, "flipped": probe.flipped})


def worse_than_chance(record: Record) -> list[Finding]:
    """The first loss is above a uniform choice."""
    text = TEXTS["worse_than_chance"]
    probe = record.probe
    if probe is not None and probe.nll is not None and probe.chance is not None and probe.nll > 5.0 * probe.chance:
        # fresh weights are a little worse than chance; five times as bad is a label that can hardly be chosen
        title = text.say("seen", nll=probe.nll, chance=probe.chance)
        return text.found(title, {"nll": probe.nll, "chance": probe.chance})
    for series in record.stages("sft"):
        loss, chance = series.last("loss/nll"), chance_level(series)
        if len(series.epochs) >= 3 and loss is not None and chance is not None and loss > 1.2 * chance:
            title = text.say("seen_after_sft", loss=loss, chance=chance)
            return text.found(title, {"nll": loss, "chance": chance})
    return []


def labels_unreachable(record: Record) -> list[Finding]:
    """Labels that can never be chosen."""
    text = TEXTS["labels_unreachable"]
    count = record.probe.unreachable if record.probe else None
    if record.setting("select.refine_others") == "drop" and record.setting("select.decoder") == "refine":
        top = record.setting("select.refine_top")
        title = text.say("seen_top", top=top)
        return text.found(title, {"refine_top": top}, fix={"select.refine_others": "keep"})
    if not count:
        return []
    return text.found(text.say("seen", count=count), {"labels": count})


def order_leaks(record: Record) -> list[Finding]:
    """Shuffled pools give other picks."""
    text = TEXTS["order_leaks"]
    agreement = record.probe.order_agreement if record.probe else None
    if agreement is None or agreement >= 0.99:
        return []
    title = text.say("seen", share=1 - agreement)
    return text.found(title, {"agreement": agreement})


def seed_missing(record: Record) -> list[Finding]:
    """A run that does not say its seed."""
    text = TEXTS["seed_missing"]
    if not record.manifest or record.seed is not None:
        return []
    return text.found(text.say("seen"), {"seeds": 0})
