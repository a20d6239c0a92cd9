"""Checks that can speak before the first step: two passes that agree, whole checkpoints, equal pools, settings with an
effect."""

from __future__ import annotations

from leverplus.doctor.findings import ERROR, WARNING, Finding, Text, table
from leverplus.doctor.optimisation import chance_level
from leverplus.doctor.records import Record

TEXTS = table(
    Text(
        "ratio_not_one",
        ERROR,
        "The new and the old pass over the same weights differ: dropout in one of them, another mask, temperature or "
        "pool order.",
        "largest |log ratio| of the first batch after the old policy was refreshed (over 0.001)",
        "Compute both log-probabilities with one function and without dropout.",
        ("clip_saturated", "kl_at_start", "kl_estimate_disagrees"),
    ),
    Text(
        "dropout_in_ratio",
        ERROR,
        "Dropout acts in the new pass of the ratio and not in the old one, so that most ratios are noise.",
        "grpo.dropout_in_ratio with select.dropout above 0",
        "Leave dropout to supervised stages.",
        ("ratio_not_one", "clip_saturated", "kl_estimate_disagrees"),
    ),
    Text(
        "reference_not_start",
        ERROR,
        "The reference of the KL term is not the policy the stage starts from, so that the KL measures what earlier "
        "stages learnt and the penalty undoes it.",
        "exact KL to the reference before the first step (over 0.00001), or grpo.reference = sft after another stage",
        "Take the reference when the stage starts.",
        ("kl_at_start", "kl_weight_on_rails", "kl_collapsed", "loss_falls_by_kl_only"),
    ),
    Text(
        "stale_behaviour",
        ERROR,
        "The ratio refers to a policy from before the warm-up stage instead of the start of the round.",
        "grpo.behaviour = sft with a stage between sft and grpo, or any epoch beyond the first",
        "Refresh the proximal policy at the start of every round.",
        ("ratio_not_one", "clip_saturated", "dead_updates", "reward_falls"),
    ),
    Text(
        "missing_density",
        ERROR,
        "Sequences that no policy sampled (beam, retrieval, random) are weighted by an importance ratio.",
        "members without the log-probability of their source, with grpo.behaviour = stored",
        "Use a loss that needs no density (pairwise, listwise), or grpo.behaviour = proximal.",
        ("weights_degenerate",),
    ),
    Text(
        "checkpoint_not_whole",
        ERROR,
        "A checkpoint was loaded although tensors were missing or left over, or it answers differently than when it "
        "was saved.",
        "missing and unexpected tensors, difference of stored and recomputed logits (over 0.00001)",
        "Load strictly; keep probe logits in the checkpoint and compare them after every load or conversion.",
        ("identical_picks", "dead_updates", "nothing_learnt"),
    ),
    Text(
        "pool_builder_differs",
        ERROR,
        "The candidates of training, dev and test are not built in the same way, so that training teaches a choice "
        "that is never offered.",
        "different builder hashes",
        "Build every pool with the same code and parameters.",
        ("worse_than_random", "more_shots_hurt"),
    ),
    Text(
        "pool_too_small",
        ERROR,
        "The pool has hardly more candidates than shots, so that nothing is left to select.",
        "candidates in a pool against the number of shots (fewer than twice)",
        "Give every query its own pool of many candidates (64).",
        ("no_headroom", "hub_demonstrations", "shots_identical"),
    ),
    Text(
        "dead_setting",
        WARNING,
        "A setting is given that cannot change the loss, so that runs which differ in it are one experiment.",
        "settings that another setting switches off",
        "Remove it, or the setting that switches it off.",
        ("same_run_twice", "identical_picks"),
    ),
    Text(
        "query_leaks",
        ERROR,
        "A query, or another question on its picture, is among its own candidates and gives the answer away.",
        "queries whose pool holds them or their image",
        "Exclude the query's image from its pool.",
    ),
    Text(
        "split_overlap",
        ERROR,
        "Training and test share images.",
        "images in both",
        "Split by image.",
    ),
    Text(
        "scores_not_reproducible",
        ERROR,
        "Scoring the same prompt again gives another answer: sampling, batch-dependent kernels or a key that misses "
        "something.",
        "scores measured again that flipped (over 1 %, and more than one)",
        "Decode greedily; put everything that changes an answer into the key.",
        ("reward_fights_metric",),
    ),
    Text(
        "worse_than_chance",
        ERROR,
        "The loss is above that of a uniform choice: labels that are masked or outside the pool, or taken from another "
        "index.",
        "loss of the start (over 5 times), or after 3 epochs of sft (over 1.2 times), against a uniform policy",
        "Check that every label is a position of its own pool and not masked.",
        ("nothing_learnt",),
    ),
    Text(
        "labels_unreachable",
        ERROR,
        "Some labels can never be chosen: outside the pool, masked, or cut off by a pre-filter.",
        "labels outside the pool or dropped candidates (select.refine_others = drop)",
        "Let every candidate keep a score; drop sequences that are not in the pool.",
        ("worse_than_chance", "not_finite"),
    ),
    Text(
        "order_leaks",
        WARNING,
        "The order of the pool tells something (sorted by similarity, positives first).",
        "share of picks that stay when pools are shuffled (under 99 %)",
        "Shuffle pools, or use a selector that does not see positions.",
    ),
    Text(
        "seed_missing",
        WARNING,
        "The run does not say its seed, so that it cannot be repeated and its noise cannot be told from an effect.",
        "no seed in run.json",
        "Seed the run and keep the seed beside the results.",
    ),
)
SHARP = 1e-3
FAR = 0.1
"""A mean ratio further from 1 than this at the first step is no rounding."""


def ratio_not_one(record: Record) -> list[Finding]:
    """Identical weights give another log-probability."""
    measured = [v for s in record.stages("grpo") for _, v in s.values("ratio/first_mb_dev")]
    if record.probe and record.probe.log_ratio is not None:
        measured.append(record.probe.log_ratio)
    for series in record.stages("grpo"):
        ratio = series.first("ratio/mean")
        if ratio is not None and abs(ratio - 1.0) > FAR:
            title = (
                f"The mean ratio of the new to the old policy is {ratio:.3g} at the first {series.unit}, where it "
                f"must be 1"
            )
            return TEXTS["ratio_not_one"].found(title, {"ratio": ratio}, about=[series.label])
    if not measured or max(measured) <= SHARP:
        return []
    title = f"The ratio is not 1 when it must be: log ratios reach {max(measured):.2g} on the first batch of a round"
    return TEXTS["ratio_not_one"].found(title, {"log_ratio": max(measured)})


def dropout_in_ratio(record: Record) -> list[Finding]:
    """Dropout acts on one side of the ratio."""
    rates = [record.setting("select.dropout") or 0.0, record.setting("select.attention_dropout") or 0.0]
    if not record.setting("grpo.dropout_in_ratio") or max(rates) <= 0.0:
        return []
    title = f"Dropout of {max(rates):g} is active in the new pass of the ratio only"
    return TEXTS["dropout_in_ratio"].found(title, {"dropout": max(rates)}, fix={"grpo.dropout_in_ratio": False})


def reference_not_start(record: Record) -> list[Finding]:
    """The KL term pulls towards a policy from before the stage."""
    text, stages = TEXTS["reference_not_start"], list(record.setting("train.stages") or [])
    if record.setting("grpo.reference") == "sft" and _between(stages):
        title = f"The KL reference is the sft policy although {', '.join(_between(stages))} ran after it"
        return text.found(title, {"stages_between": len(_between(stages))}, fix={"grpo.reference": "stage_start"})
    kl = None if record.probe is None else record.probe.kl
    if kl is None or kl <= 1e-5 or record.setting("grpo.reference") == "sft":
        return []
    return text.found(f"The KL to the reference is {kl:.3g} before the first step, expected 0", {"kl": kl})


def _between(stages: list[str]) -> list[str]:
    if "sft" not in stages or "grpo" not in stages:
        return []
    return stages[stages.index("sft") + 1 : stages.index("grpo")]


def stale_behaviour(record: Record) -> list[Finding]:
    """The ratio refers to the sft policy."""
    if record.setting("grpo.behaviour") != "sft":
        return []
    between = _between(list(record.setting("train.stages") or []))
    title = "Ratios refer to the sft policy" + (f", from before {', '.join(between)}" if between else " in every epoch")
    evidence = {"stages_between": len(between), "epochs": record.setting("grpo.epochs") or 0}
    return TEXTS["stale_behaviour"].found(title, evidence, fix={"grpo.behaviour": "proximal"})


def missing_density(record: Record) -> list[Finding]:
    """An importance ratio without a density."""
    groups = record.groups
    if groups is None or not groups.without_density or record.setting("grpo.behaviour") != "stored":
        return []
    title = f"{groups.without_density} of {groups.members} sequences have no density, but the loss divides by it"
    evidence = {"without_density": groups.without_density, "members": groups.members}
    return TEXTS["missing_density"].found(title, evidence, fix={"grpo.behaviour": "proximal"})


def checkpoint_not_whole(record: Record) -> list[Finding]:
    """A loaded checkpoint is not the one that was saved."""
    probe = record.probe
    if probe is None:
        return []
    lost, gap = (probe.missing or 0) + (probe.unexpected or 0), probe.logit_gap or 0.0
    if lost == 0 and gap <= 1e-5:
        return []
    title = f"A checkpoint is not whole: {lost} tensors missing or left over, logits differ by {gap:.2g}"
    fix = record.undo("conversion")
    return TEXTS["checkpoint_not_whole"].found(title, {"tensors": lost, "logit_gap": gap}, fix=fix)


def pool_builder_differs(record: Record) -> list[Finding]:
    """Pools of training and test come from different builders."""
    builders = record.probe.builders if record.probe else None
    if not builders or len(set(builders.values())) == 1:
        return []
    title = f"Pools are built in {len(set(builders.values()))} ways: {', '.join(sorted(builders))} differ"
    fix = record.undo("test_pool")
    return TEXTS["pool_builder_differs"].found(title, {"builders": len(set(builders.values()))}, fix=fix)


def pool_too_small(record: Record) -> list[Finding]:
    """Hardly more candidates than shots."""
    size = record.setting("pool.size") or (record.groups.pool if record.groups else None)
    lengths = list(record.setting("eval.shots") or []) or list(record.groups.lengths if record.groups else [])
    if size is None or not lengths or size >= 2 * max(lengths):
        return []
    title = f"A pool holds {size} candidates for {max(lengths)} shots: there is next to nothing to select"
    fix = {"pool.size": 64} if record.setting("pool.size") else None
    return TEXTS["pool_too_small"].found(title, {"pool": size, "shots": max(lengths)}, fix=fix)


def dead_setting(record: Record) -> list[Finding]:
    """A setting that another one switches off."""
    dead: list[tuple[str, str, str]] = []
    if record.setting("grpo.clip_only") and (record.setting("grpo.kl_beta") or 0.0) > 0.0:
        dead.append(("grpo.kl_beta", "grpo.clip_only", "the KL term is left out"))
    if record.setting("grpo.topk_before_advantage") and not record.setting("grpo.top_k"):
        dead.append(("grpo.topk_before_advantage", "grpo.top_k", "all members are kept"))
    for stage in record.setting("train.stages") or ():
        if record.setting(f"{stage}.epochs") == 0:
            dead.append((stage, f"{stage}.epochs", "it runs for no epoch"))
    title = "; ".join(f"{key} has no effect, because {switch} says that {why}" for key, switch, why in dead)
    if dead:
        fix = {"grpo.clip_only": False} if any(key == "grpo.kl_beta" for key, _, _ in dead) else None
        return TEXTS["dead_setting"].found(title, {"settings": len(dead)}, fix=fix)
    printed = record.published.settings.items() if record.published is not None else ()
    unused = {label: s["kl_beta"] for label, s in printed if s.get("clip_only") is True and (s.get("kl_beta") or 0) > 0}
    if not unused:
        return []
    named = ", ".join(f"{beta:g} of {label}" for label, beta in unused.items())
    title = f"The KL weight ({named}) has no effect: with clip only the KL term is left out"
    return TEXTS["dead_setting"].found(title, {"settings": len(unused)}, about=unused)


def query_leaks(record: Record) -> list[Finding]:
    """A pool holds its own query."""
    if record.probe is None or not record.probe.leaked:
        return []
    title = f"{record.probe.leaked} queries find themselves or their picture among their candidates"
    return TEXTS["query_leaks"].found(title, {"queries": record.probe.leaked}, fix=record.undo("own_picture"))


def split_overlap(record: Record) -> list[Finding]:
    """Training and test share images."""
    if record.probe is None or not record.probe.overlap:
        return []
    title = f"{record.probe.overlap} images are in training and in test"
    return TEXTS["split_overlap"].found(title, {"images": record.probe.overlap}, fix=record.undo("queries"))


def scores_not_reproducible(record: Record) -> list[Finding]:
    """The frozen model changes its mind."""
    probe = record.probe
    if probe is None or not probe.rescored or not probe.flipped or probe.flipped <= max(1.0, 0.01 * probe.rescored):
        return []
    title = f"{probe.flipped} of {probe.rescored} scores changed when they were measured again"
    return TEXTS["scores_not_reproducible"].found(title, {"rescored": probe.rescored, "flipped": probe.flipped})


def worse_than_chance(record: Record) -> list[Finding]:
    """The first loss is above a uniform choice."""
    probe = record.probe
    if probe is not None and probe.nll is not None and probe.chance is not None and probe.nll > 5.0 * probe.chance:
        title = f"The loss starts at {probe.nll:.2f}; a uniform choice has {probe.chance:.2f}"
        return TEXTS["worse_than_chance"].found(title, {"nll": probe.nll, "chance": probe.chance})
    for series in record.stages("sft"):
        loss, chance = series.last("loss/nll"), chance_level(series)
        if len(series.epochs) >= 3 and loss is not None and chance is not None and loss > 1.2 * chance:
            title = f"After sft the loss is {loss:.2f}; a uniform choice has {chance:.2f}"
            return TEXTS["worse_than_chance"].found(title, {"nll": loss, "chance": chance})
    return []


def labels_unreachable(record: Record) -> list[Finding]:
    """Labels that can never be chosen."""
    count = record.probe.unreachable if record.probe else None
    if record.setting("select.refine_others") == "drop" and record.setting("select.decoder") == "refine":
        top = record.setting("select.refine_top")
        title = f"Only the best {top} candidates of the cheap pass can be chosen; labels outside them cost everything"
        return TEXTS["labels_unreachable"].found(title, {"refine_top": top}, fix={"select.refine_others": "keep"})
    if not count:
        return []
    return TEXTS["labels_unreachable"].found(f"{count} labels are not in their pool", {"labels": count})


def order_leaks(record: Record) -> list[Finding]:
    """Shuffled pools give other picks."""
    agreement = record.probe.order_agreement if record.probe else None
    if agreement is None or agreement >= 0.99:
        return []
    title = f"Shuffling the pools changes {1 - agreement:.0%} of the picks"
    return TEXTS["order_leaks"].found(title, {"agreement": agreement})


def seed_missing(record: Record) -> list[Finding]:
    """A run that does not say its seed."""
    if not record.manifest or record.seed is not None:
        return []
    return TEXTS["seed_missing"].found("The run does not say its seed", {"seeds": 0})
