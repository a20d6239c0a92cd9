"""One sick record for every check, and healthy records on which every check stays silent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from leverplus.evaluate.record import record_of
from leverplus.run.recipe import load_recipe
from leverplus_doctor.read import flat_settings
from leverplus_doctor.records import (
    Arm,
    ChosenEpoch,
    Epoch,
    GroupStats,
    PickCounts,
    Probe,
    Published,
    Record,
    Series,
    SourceStats,
)


def lines(
    stage: str,
    *rows: Mapping[str, float | None],
    label: str = "",
    exact: bool = True,
    **settings: Any,
) -> Series:
    epochs = tuple(Epoch(place, dict(row)) for place, row in enumerate(rows, start=1))
    return Series(stage, epochs, label, settings, exact)


def same(stage: str, count: int, **values: float) -> Series:
    return lines(
        stage,
        *[{name.replace("__", "/"): value for name, value in values.items()}] * count,
    )


GROUPS = GroupStats(
    queries=400,
    members=8000,
    positive=0.45,
    accuracy=0.42,
    oracle=0.71,
    median_size=20.0,
    flat=0.12,
    all_zero=0.1,
    all_one=0.05,
    lengths={1: 4000, 2: 4000},
    gt_prob=0.4,
    gt_prob_largest=0.97,
    within=0.5,
    pick=0.58,
    picked=400,
    pool=64,
    tiers={"flat": 60, "high": 200, "low": 60, "medium": 80},
    sources={
        "beam": SourceStats(4000, 0.5, 0.45, 0.4),
        "random": SourceStats(4000, 0.4, 0.38, 0.35),
    },
)

WORLD = flat_settings(
    load_recipe("world", ['train.stages=["sft", "rce", "grpo"]']).values()
)

PROBE = Probe(
    log_ratio=0.0,
    kl=0.0,
    missing=0,
    unexpected=0,
    logit_gap=0.0,
    builders={"train": "a1", "test": "a1"},
    leaked=0,
    overlap=0,
    rescored=200,
    flipped=0,
    nll=8.4,
    chance=8.3,
    unreachable=0,
)

GRPO = {
    "adv/std": 0.62,
    "adv/max": 5.0,
    "adv/frac_active": 1.0,
    "clip_ratio/region_mean": 0.05,
    "entropy/norm": 0.5,
    "frac_reward_zero_std": 0.05,
    "frac_reward_all_zero": 0.43,
    "frac_reward_all_one": 0.3,
    "grad/policy": 0.9,
    "grad/kl": 0.2,
    "kl": 0.2,
    "kl_k3": 0.4,
    "kl_coef": 0.01,
    "kl_prox": 0.01,
    "loss/total": 0.012,
    "loss/kl": 0.002,
    "loss/pg": 0.01,
    "picks/changed_frac": 0.1,
    "ratio/first_mb_dev": 0.0,
    "update/param_rel": 0.02,
    "val/reward": 0.5,
}
SFT = {
    "nll": 4.0,
    "nll_skill": 0.2,
    "loss/nll": 3.9,
    "update/param_rel": 0.05,
    "picks/changed_frac": 0.5,
    "val/reward": 0.45,
}

SHOTS = {
    "zero_shot": {0: 0.3},
    "random": {1: 0.35, 2: 0.38, 3: 0.4, 4: 0.41},
    "nearest_both": {1: 0.42, 2: 0.44, 3: 0.46, 4: 0.47},
    "learned": {1: 0.48, 2: 0.51, 3: 0.52, 4: 0.53},
}


def compared(
    diff: float,
    low: float,
    high: float,
    shots: int = 1,
    *,
    baseline: str = "random",
    p_adjusted: float = 0.5,
) -> dict[str, Any]:
    row = {"arm": "learned", "baseline": baseline, "shots": shots, "n": 300}
    row |= {"diff": diff, "ci95": [low, high], "p_adjusted": p_adjusted}
    return {**row, "mde80": 0.07, "helped": 0, "harmed": 0}


def near(
    diff: float, low: float, high: float, p_adjusted: float, shots: int = 1
) -> dict[str, Any]:
    """The selector against the nearest demonstrations."""
    return compared(
        diff, low, high, shots, baseline="nearest_both", p_adjusted=p_adjusted
    )


GAINS = [compared(0.12, 0.07, 0.17, shots) for shots in (1, 2, 3, 4)]


def report(
    *comparisons: dict[str, Any],
    n: int = 300,
    settings: Mapping[str, Any] = WORLD,
    **arms: dict[int, float],
) -> Record:
    """An evaluation: a healthy one but for the arms and comparisons that are given."""
    shots = {name: {"shots": own} for name, own in (arms or SHOTS).items()}
    rows = list(comparisons or GAINS)
    values = {"n": n, "arms": shots, "comparisons": rows}
    return Record(settings=settings, report=record_of(values))


TABLE = (
    Arm("baseline", {1: 0.4855, 2: 0.4775}, 3000, 1, True),
    Arm("random", {1: 0.45, 2: 0.44}, 3000, 1),
    Arm("plan 2", {1: 0.5615, 2: 0.5633}, 3000, 1),
)


def steps(
    stage: str = "grpo", marks: tuple[int, ...] = (), **curves: list[float]
) -> Record:
    """A log of another library: one line a step."""
    rows = [
        dict(zip(curves, values, strict=True))
        for values in zip(*curves.values(), strict=True)
    ]
    epochs = tuple(
        Epoch(n, {name.replace("__", "/"): value for name, value in row.items()})
        for n, row in enumerate(rows, 1)
    )
    return Record(series=(Series(stage, epochs, unit="step", marks=marks),))


def seeds(*finals: float) -> Record:
    """Several runs that begin at 0.5 and end here."""
    runs = [
        replace(steps(reward=[0.5] * 5 + [final] * 5).series[0], label=f"run {n}")
        for n, final in enumerate(finals)
    ]
    return Record(series=tuple(runs))


HEALTHY: dict[str, Record] = {
    "a healthy run": Record(
        settings=WORLD,
        series=(
            lines("sft", SFT, SFT, SFT, SFT),
            lines("grpo", GRPO, GRPO, GRPO, GRPO),
        ),
        report=report().report,
        picks=(
            PickCounts("learned", 1, 300, 180, 0.03, 0.14, 1.0),
            PickCounts("learned_auto", 4, 300, 200, 0.02, 0.1, 2.2, 0.5),
        ),
        probe=PROBE,
        seed=0,
        manifest=True,
    ),
    "healthy groups": Record(groups=GROUPS),
    "labels, rewarded by their share among labels": Record(
        settings={**WORLD, "reward.mode": "choice_prob"},
        groups=replace(GROUPS, gt_prob_largest=1e-6),
    ),
    "a selector that may show none and hardly ever should": Record(
        settings={**WORLD, "select.stop": "none_only"},
        picks=(PickCounts("learned_auto", 4, 300, 200, 0.02, 0.1, 3.99, 0.998),),
    ),
    "a healthy table": Record(published=Published(arms=TABLE)),
    "advantages that are only centred, in a training that learns": Record(
        series=(
            lines(
                "grpo",
                *({"adv/std": 0.031, "reward": 0.3 + 0.02 * n} for n in range(6)),
                exact=False,
            ),
        )
    ),
    "the log of another library": steps(
        reward=[0.2 + 0.05 * n for n in range(10)],
        kl=[0.01 * n for n in range(10)],
        accuracy=[0.2 + 0.04 * n for n in range(10)],
        length=[100.0 + 8 * n for n in range(10)],
        entropy=[2.0 - 0.1 * n for n in range(10)],
        grad_norm=[1.1, 0.9, 1.0, 1.2, 0.8, 1.0, 1.1, 0.9, 1.0, 1.0],
        frac_reward_zero_std=[0.1, 0.2, 0.0, 0.6, 0.1, 0.2, 0.7, 0.1, 0.0, 0.2],
    ),
    "a supervised log with a held-out loss": steps(
        "sft",
        loss__total=[3.0, 2.6, 2.3, 2.1, 1.9, 1.8],
        val__loss=[3.1, 2.7, 2.4, 2.2, 2.0, 2.0],
    ),
    "three seeds that agree": seeds(0.8, 0.82, 0.79),
    "a training that was taken up again with all its state": steps(
        "sft",
        marks=(5,),
        loss__total=[2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.42, 1.34, 1.25, 1.2],
    ),
    "nothing at all": Record(),
}


def sets(**changes: Any) -> Record:
    return Record(
        settings={
            **WORLD,
            **{key.replace("__", "."): value for key, value in changes.items()},
        }
    )


def probe(**changes: Any) -> Record:
    return Record(probe=replace(PROBE, **changes))


def groups(**changes: Any) -> Record:
    return Record(groups=replace(GROUPS, **changes))


def grpo(*changes: Mapping[str, Any], **settings: Any) -> Record:
    rows = [{**GRPO, **change} for change in changes]
    base = sets(**settings) if settings else Record(settings=WORLD)
    return replace(base, series=(lines("grpo", *rows),))


def printed(**parts: Any) -> Record:
    return Record(published=Published(**parts))


DEAD = {"update/param_rel": 1e-5, "picks/changed_frac": 0.0}

SICK: dict[str, Record] = {
    "ratio_not_one": grpo({"ratio/first_mb_dev": 2.3}),
    "dropout_in_ratio": sets(grpo__dropout_in_ratio=True),
    "reference_not_start": sets(grpo__reference="sft"),
    "stale_behaviour": sets(grpo__behaviour="sft"),
    "missing_density": replace(
        sets(grpo__behaviour="stored"), groups=replace(GROUPS, without_density=4000)
    ),
    "checkpoint_not_whole": probe(missing=6),
    "pool_builder_differs": probe(builders={"train": "a1", "test": "b2"}),
    "pool_too_small": sets(pool__size=4),
    "dead_setting": sets(grpo__clip_only=True),
    "query_leaks": probe(leaked=3),
    "split_overlap": probe(overlap=12),
    "scores_not_reproducible": probe(flipped=9),
    "worse_than_chance": probe(nll=158.0, chance=8.3),
    "labels_unreachable": probe(unreachable=40),
    "seed_missing": Record(manifest=True),
    "resumed_without_optimiser": steps(
        "sft",
        marks=(10,),
        loss__total=[
            2.0,
            1.9,
            1.8,
            1.7,
            1.6,
            1.5,
            1.4,
            1.3,
            1.2,
            1.1,
            2.9,
            1.6,
            1.2,
            1.1,
            1.0,
        ],
    ),
    "reward_hacked": steps(reward=[0.1 * n for n in range(10)], accuracy=[0.4] * 10),
    "learning_rate_too_large": steps(
        "sft", loss__total=[2.0, 2.4, 3.1, 4.8, 7.7, 9.1, 9.5, 9.9, 10.2, 10.4]
    ),
    "reward_constant": steps(reward=[1.0] * 8, reward_std=[0.0] * 8),
    "kl_explodes": steps(
        kl=[0.04, 0.1, 0.4, 1.5, 6.0, 14.0, 29.0],
        reward=[0.5, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1],
    ),
    "length_drifts": steps(
        length=[100.0, 110, 140, 180, 240, 300, 380, 450], reward=[0.4] * 8
    ),
    "seeds_outweigh_gain": seeds(0.55, 0.41, 0.62),
    "flat_groups": grpo({"frac_reward_zero_std": 0.85}),
    "top_k_before_baseline": sets(grpo__topk_before_advantage=True, grpo__top_k=[3, 5]),
    "advantage_std_tiny": grpo({"adv/std": 0.0062, "frac_reward_zero_std": 0.994}),
    "never_right": groups(all_zero=0.9),
    "no_headroom": groups(oracle=0.43),
    "reward_fights_metric": groups(within=-0.2),
    "gt_prob_empty": groups(gt_prob_largest=1e-6, within=None),
    "advantage_explodes": grpo({"adv/std": 3.5}),
    "unmeasured_labels": groups(borrowed=300),
    "filtered_by_outcome": groups(tiers={"high": 400}),
    "source_tells_label": groups(
        sources={
            "aug_pos_top": SourceStats(4000, 0.95, 0.9, None),
            "aug_neg_bottom": SourceStats(4000, 0.1, 0.1, None),
        }
    ),
    "small_groups": groups(median_size=2.0),
    "pick_no_better_than_group": groups(pick=0.41),
    "normalised_twice": sets(reward__normalise="z_score", grpo__advantage="zscore"),
    "kl_at_start": grpo({"kl": 4.8, "update/param_rel": 1e-4}),
    "inverted_kl": sets(grpo__kl="k3_inverted"),
    "kl_estimate_disagrees": grpo({"kl": 0.2, "kl_k3": 0.9}, grpo__kl="k3"),
    "beta_every_batch": sets(grpo__beta_rule="batch"),
    "kl_weight_on_rails": grpo({"kl_coef": 10.0}, {"kl_coef": 0.001}),
    "kl_collapsed": grpo(
        *[{"kl": 0.006, "picks/changed_frac": 0.01, "kl_coef": 0.5}] * 2
    ),
    "kl_from_flat_groups": grpo(
        {"frac_reward_zero_std": 0.7}, grpo__flat_groups="keep"
    ),
    "clip_saturated": grpo({"clip_ratio/region_mean": 0.85}),
    "weights_degenerate": grpo({"sampling/ess": 0.1}, grpo__behaviour="stored"),
    "likelihood_displaced": Record(
        series=(
            lines(
                "pairwise",
                {"nll": 6.0, "pair/margin": 0.5},
                {"nll": 9.0, "pair/margin": 2.0},
            ),
        )
    ),
    "not_finite": grpo({"loss/total": None}),
    "dead_updates": grpo(DEAD, DEAD),
    "identical_picks": printed(identical_picks=(1.0,)),
    "learning_rate_tiny": sets(grpo__lr=5e-6),
    "learning_rate_without_signal": replace(
        printed(advice=(("lr", 5e-5),)),
        series=(lines("grpo", {"adv/std": 0.0062}, exact=False, lr=5e-6),),
    ),
    "batch_of_one": sets(grpo__batch_size=1),
    "nothing_learnt": Record(
        series=(same("sft", 4, nll=8.27, nll_skill=0.004, loss__nll=8.27),)
    ),
    "selected_by_loss": sets(grpo__monitor="loss"),
    "claimed_best_is_not": replace(
        printed(choices=(ChosenEpoch("plan 5", 2, "val/loss", 5.14132),)),
        series=(
            lines(
                "grpo",
                {"val/loss": 5.13576},
                {"val/loss": 5.14132},
                label="plan 5",
                exact=False,
            ),
        ),
    ),
    "reward_falls": grpo(*({"val/reward": value} for value in (0.8, 0.6, 0.5))),
    "overfits": Record(
        settings=WORLD,
        series=(
            lines(
                "sft",
                *(
                    {"nll": n, "val/reward": v}
                    for n, v in ((5, 0.5), (4, 0.8), (3, 0.5), (2, 0.5))
                ),
            ),
        ),
    ),
    "loss_falls_by_kl_only": grpo(
        {"loss/total": 199.63, "loss/kl": 198.0},
        {"loss/total": -0.001, "loss/kl": 0.0001},
    ),
    "entropy_collapsed": grpo({"entropy/norm": 0.01}, {"entropy/norm": 0.01}),
    "entropy_stuck": grpo(*[{"entropy/norm": 0.985}] * 3),
    "hub_demonstrations": Record(
        picks=(PickCounts("learned", 1, 300, 25, 0.2, 0.8, 1.0),)
    ),
    "query_ignored": grpo(*[{"picks/unique_demos": 2}] * 2),
    "stop_collapse": Record(
        picks=(PickCounts("learned_auto", 4, 300, 0, 0.0, 0.0, 0.0, 1.0),)
    ),
    "more_shots_hurt": report(
        learned={1: 0.57, 4: 0.4}, random={1: 0.45, 4: 0.46}, zero_shot={0: 0.4}
    ),
    "beyond_trained_length": report(
        compared(0.1, 0.05, 0.15, 2),
        compared(0.01, -0.04, 0.06, 4),
        settings={**WORLD, "score.search": "beam", "score.shots": 2},
    ),
    "shots_identical": printed(
        arms=(Arm("plan 3", {1: 0.7, 2: 0.7203, 3: 0.7203, 4: 0.7203}, 500, 1),)
    ),
    "single_length_data": groups(lengths={2: 8000}),
    "comparison_without_n": printed(gains=(0.02, -0.01), unsized=2),
    "accuracy_falls_with_n": printed(
        arms=(
            Arm("v3", {1: 0.642, 2: 0.60}, 100),
            Arm("v3", {1: 0.572, 2: 0.55}, 200),
            Arm("v3", {1: 0.526, 2: 0.51}, 400),
            Arm("v3", {1: 0.486, 2: 0.47}, 800),
        )
    ),
    "difference_inside_noise": printed(
        arms=(
            Arm("baseline", {1: 0.4855, 2: 0.4775}, 800, 1, True),
            Arm("plan 2", {1: 0.5015, 2: 0.4833}, 800, 1),
        ),
    ),
    "same_run_twice": printed(
        settings={
            "plan 7.1": {"clip_only": True, "kl_beta": 0.01},
            "plan 7.2": {"clip_only": True, "kl_beta": 0.05},
        }
    ),
    "identical_rows": printed(
        arms=(
            Arm("plan 5 epoch 50", {1: 0.5002, 2: 0.481, 3: 0.4733}, 800, 1),
            Arm("plan 5+8 epoch 50", {1: 0.5002, 2: 0.481, 3: 0.4733}, 800, 2),
        )
    ),
    "winners_curse": printed(
        arms=(
            Arm("baseline", {1: 0.4, 2: 0.4}, 800, 1, True),
            *(Arm(f"plan {p}", {1: 0.4 + 0.01 * p, 2: 0.41}, 800, 1) for p in range(6)),
        )
    ),
    "missing_anchors": printed(arms=TABLE[:1] + TABLE[2:]),
    "conditions_differ": printed(
        arms=(Arm("a", {1: 0.4, 2: 0.5}, 200, 1), Arm("b", {1: 0.4, 2: 0.5}, 800, 1))
    ),
    "worse_than_random": report(compared(-0.08, -0.12, -0.04)),
    "below_training_free": report(*GAINS, near(-0.076, -0.138, -0.014, 0.016)),
    "few_items": report(n=40),
}
