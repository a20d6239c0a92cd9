"""Checks that can speak before the first step: passes that agree, whole checkpoints, equal pools, live settings."""

from __future__ import annotations

from leverplus_doctor.check import Said, Seen, check, check_probe
from leverplus_doctor.curves import chance_level
from leverplus_doctor.records import Probe, Record

ROUNDING = 1e-3
"""Two passes over the same weights differ by rounding alone: about 1e-4 in float32, a little more on a GPU."""


@check
def ratio_not_one(record: Record) -> Said:
    """The ratio is not 1 when it must be: log ratios reach {log_ratio:.2g} on the first batch of a round

    Error: The new and the old pass over the same weights differ: dropout in one of them, another mask,
    temperature or pool order.
    Looks at: largest |log ratio| of the first batch after the old policy was refreshed (over 0.001)
    Try: Compute both log-probabilities with one function and without dropout.
    Explains: clip_saturated kl_at_start kl_estimate_disagrees
    """
    largest = record.probe.log_ratio or 0.0
    for series in record.stages("grpo"):
        ratio = series.first("ratio/mean")
        # a mean further from 1 than this at the first step is no rounding
        if ratio is not None and abs(ratio - 1.0) > 0.1:
            return Seen(
                "The mean ratio of the new to the old policy is {ratio:.3g} at the first {unit}, where it must be 1",
                ratio=ratio,
                unit=series.unit,
                about=[series.label],
            )
        largest = max([largest, *series.numbers("ratio/first_mb_dev")])
    return largest > ROUNDING and Seen(log_ratio=largest)


@check
def dropout_in_ratio(record: Record) -> Said:
    """Dropout of {dropout:g} is active in the new pass of the ratio only

    Error: Dropout acts in the new pass of the ratio and not in the old one, so that most ratios are noise.
    Looks at: grpo.dropout_in_ratio with select.dropout above 0
    Try: Leave dropout to supervised stages.
    Explains: ratio_not_one clip_saturated kl_estimate_disagrees
    """
    rate = record.setting("select.dropout") or 0.0
    rate = max(rate, record.setting("select.attention_dropout") or 0.0)
    if not record.setting("grpo.dropout_in_ratio") or rate <= 0.0:
        return None
    return Seen(dropout=rate, fix={"grpo.dropout_in_ratio": False})


@check
def reference_not_start(record: Record) -> Said:
    """The KL to the reference is {kl:.3g} before the first step, expected 0

    Error: The reference of the KL term is not the policy the stage starts from, so that the KL measures what
    earlier stages learnt and the penalty undoes it.
    Looks at: exact KL to the reference before the first step (over 0.00001), or grpo.reference = sft after
    another stage
    Try: Take the reference when the stage starts.
    Explains: kl_at_start kl_weight_on_rails kl_collapsed loss_falls_by_kl_only
    """
    if record.setting("grpo.reference") == "sft":
        between = _stages_between(record)
        return bool(between) and Seen(
            "The KL reference is the sft policy although {between} ran after it",
            between=", ".join(between),
            stages_between=len(between),
            fix={"grpo.reference": "stage_start"},
        )
    kl = record.probe.kl or 0.0
    return kl > 1e-5 and Seen(kl=kl)


def _stages_between(record: Record) -> list[str]:
    """The stages that ran after sft and before grpo."""
    stages = list(record.setting("train.stages") or [])
    if "sft" not in stages or "grpo" not in stages:
        return []
    return stages[stages.index("sft") + 1 : stages.index("grpo")]


@check
def stale_behaviour(record: Record) -> Said:
    """Ratios refer to the sft policy{when}

    Error: The ratio refers to a policy from before the warm-up stage instead of the start of the round.
    Looks at: grpo.behaviour = sft with a stage between sft and grpo, or any epoch beyond the first
    Try: Refresh the proximal policy at the start of every round.
    Explains: ratio_not_one clip_saturated dead_updates reward_falls
    """
    if record.setting("grpo.behaviour") != "sft":
        return None
    between = _stages_between(record)
    when = f", from before {', '.join(between)}" if between else " in every epoch"
    return Seen(
        when=when,
        stages_between=len(between),
        epochs=record.setting("grpo.epochs") or 0,
        fix={"grpo.behaviour": "proximal"},
    )


@check
def missing_density(record: Record) -> Said:
    """{it.groups.without_density} of {it.groups.members} sequences have no density, but the loss divides by it

    Error: Sequences that no policy sampled (beam, retrieval, random) are weighted by an importance ratio.
    Looks at: members without the log-probability of their source, with grpo.behaviour = stored
    Try: Use a loss that needs no density (pairwise, listwise), or grpo.behaviour = proximal.
    Explains: weights_degenerate
    """
    stored = record.setting("grpo.behaviour") == "stored"
    if not stored or record.groups is None or not record.groups.without_density:
        return None
    return Seen(fix={"grpo.behaviour": "proximal"})


@check_probe
def checkpoint_not_whole(probe: Probe) -> Said:
    """A checkpoint is not whole: {tensors} tensors missing or left over, logits differ by {logit_gap:.2g}

    Error: A checkpoint was loaded although tensors were missing or left over, or it answers differently than
    when it was saved.
    Looks at: missing and unexpected tensors, difference of stored and recomputed logits (over 0.00001)
    Try: Load strictly; keep probe logits in the checkpoint and compare them after every load or conversion.
    Explains: identical_picks dead_updates nothing_learnt
    """
    tensors = (probe.missing or 0) + (probe.unexpected or 0)
    gap = probe.logit_gap or 0.0
    # the same weights on the same machine give the same logits but for rounding
    return (tensors > 0 or gap > 1e-5) and Seen(tensors=tensors, logit_gap=gap)


@check_probe
def pool_builder_differs(probe: Probe) -> Said:
    """Pools are built in {builders} ways: {names} differ

    Error: The candidates of training, dev and test are not built in the same way, so that training teaches a
    choice that is never offered.
    Looks at: different builder hashes
    Try: Build every pool with the same code and parameters.
    Explains: worse_than_random more_shots_hurt
    """
    builders = probe.builders or {}
    ways = len(set(builders.values()))
    names = ", ".join(sorted(builders))
    return ways > 1 and Seen(builders=ways, names=names)


@check
def pool_too_small(record: Record) -> Said:
    """A pool holds {pool} candidates for {shots} shots: there is next to nothing to select

    Error: The pool has hardly more candidates than shots, so that nothing is left to select.
    Looks at: candidates in a pool against the number of shots (fewer than twice)
    Try: Give every query its own pool of many candidates (64).
    Explains: no_headroom hub_demonstrations shots_identical
    """
    groups = record.groups
    wanted = record.setting("pool.size")
    size = wanted or (groups and groups.pool)
    lengths = record.setting("eval.shots") or (groups and groups.lengths)
    # with fewer than twice as many, half of every pool is shown
    if not size or not lengths or size >= 2 * max(lengths):
        return None
    return Seen(pool=size, shots=max(lengths), fix=wanted and {"pool.size": 64})


@check
def dead_setting(record: Record) -> Said:
    """The KL weight ({weights}) has no effect: with clip only the KL term is left out

    Warning: A setting is given that cannot change the loss, so that runs which differ in it are one experiment.
    Looks at: a KL weight beside clip only, of a recipe or of printed settings
    Try: Remove it, or the setting that switches it off.
    Explains: same_run_twice identical_picks
    """
    weight = record.setting("grpo.kl_beta") or 0.0
    if record.setting("grpo.clip_only") and weight > 0.0:
        return Seen(weights=f"{weight:g}", settings=1, fix={"grpo.clip_only": False})
    unused = {}
    for label, settings in record.published.settings.items():
        weight = settings.get("kl_beta") or 0
        if settings.get("clip_only") is True and weight > 0:
            unused[label] = f"{weight:g} of {label}"
    weights = ", ".join(unused.values())
    return bool(unused) and Seen(weights=weights, settings=len(unused), about=unused)


@check_probe
def query_leaks(probe: Probe) -> Said:
    """{it.leaked} queries find themselves or their picture among their candidates

    Error: A query, or another question on its picture, is among its own candidates and gives the answer away.
    Looks at: queries whose pool holds them or their image
    Try: Exclude the query's image from its pool.
    """
    return bool(probe.leaked)


@check_probe
def split_overlap(probe: Probe) -> Said:
    """{it.overlap} images are in training and in test

    Error: Training and test share images.
    Looks at: images in both
    Try: Split by image.
    """
    return bool(probe.overlap)


@check_probe
def scores_not_reproducible(probe: Probe) -> Said:
    """{it.flipped} of {it.rescored} scores changed when they were measured again

    Error: Scoring the same prompt again gives another answer: sampling, batch-dependent kernels or a key that
    misses something.
    Looks at: scores measured again that flipped (over 1 %, and more than one)
    Try: Decode greedily; put everything that changes an answer into the key.
    Explains: reward_fights_metric
    """
    # 1 %: batches of other sizes round differently, and now and then that tips an answer
    most = 0.01 * (probe.rescored or 0)
    return (probe.flipped or 0) > max(1.0, most)


@check
def worse_than_chance(record: Record) -> Said:
    """The loss starts at {nll:.2f}; a uniform choice has {chance:.2f}

    Error: The loss is above that of a uniform choice: labels that are masked or outside the pool, or taken from
    another index.
    Looks at: loss of the start (over 5 times), or after 3 epochs of sft (over 1.2 times), against a uniform
    policy
    Try: Check that every label is a position of its own pool and not masked.
    Explains: nothing_learnt
    """
    nll = record.probe.nll
    chance = record.probe.chance
    # fresh weights are a little worse than chance; five times as bad is a label that can hardly be chosen
    if nll and chance and nll > 5.0 * chance:
        return Seen(nll=nll, chance=chance)
    for series in record.stages("sft"):
        nll = series.last("loss/nll")
        chance = chance_level(series)
        if nll and chance and len(series.epochs) >= 3 and nll > 1.2 * chance:
            return Seen(
                "After sft the loss is {nll:.2f}; a uniform choice has {chance:.2f}",
                nll=nll,
                chance=chance,
            )
    return None


@check
def labels_unreachable(record: Record) -> Said:
    """{labels} labels are not in their pool

    Error: Some labels can never be chosen: outside the pool, masked, or cut off by a pre-filter.
    Looks at: labels outside the pool or dropped candidates (select.refine_others = drop)
    Try: Let every candidate keep a score; drop sequences that are not in the pool.
    Explains: worse_than_chance not_finite
    """
    refines = record.setting("select.decoder") == "refine"
    if refines and record.setting("select.refine_others") == "drop":
        return Seen(
            "Only the best {refine_top} candidates of the cheap pass can be chosen; labels outside them cost everything",
            refine_top=record.setting("select.refine_top"),
            fix={"select.refine_others": "keep"},
        )
    labels = record.probe.unreachable or 0
    return labels > 0 and Seen(labels=labels)


@check
def seed_missing(record: Record) -> Said:
    """The run does not say its seed

    Warning: The run does not say its seed, so that it cannot be repeated and its noise cannot be told from an
    effect.
    Looks at: no seed in run.json
    Try: Seed the run and keep the seed beside the results.
    """
    return record.manifest and record.seed is None and Seen(seeds=0)
