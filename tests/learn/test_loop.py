"""The loop: it learns a planted rule in every stage, resumes exactly, freezes, stops early and keeps the best."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from leverplus import catalog
from leverplus.data.settings import known_mistakes_in
from leverplus.errors import TrainingError
from leverplus.learn.checkpoint import load_checkpoint, load_state, tensors_of
from leverplus.learn.data.batch import collate
from leverplus.learn.data.from_search import rows_from_groups
from leverplus.learn.data.rows import FixedRows, Row, rows_of_epoch
from leverplus.learn.loop import StageInputs, run_stage, tensors_under
from leverplus.learn.policies.base import Policy
from leverplus.learn.settings import (
    SECTIONS,
    GrpoConfig,
    RewardConfig,
    SftConfig,
    StageConfig,
)
from leverplus.learn.stages import Progress, Rce, frozen_copy

STAGES = sorted(catalog.STAGES)
SHORT: dict[str, dict[str, Any]] = {
    "sft": {"labels": "weighted", "lr": 3e-3},
    "rce": {"lr": 3e-3},
    "grpo": {"lr": 5e-3, "trust_kl": 0.0, "kl_beta": 0.001},
    "listwise": {"lr": 3e-3},
    "pairwise": {"lr": 3e-3},
    "label_pretraining": {"lr": 3e-3},
    "contrastive": {"lr": 3e-3},
}
ONE_SHOT = ("listwise", "label_pretraining", "contrastive")


def config_of(name: str, **changes: object) -> StageConfig:
    return SECTIONS[name](**{"epochs": 3, "batch_size": 10, **SHORT[name], **changes})


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in policy.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
def test_every_stage_learns_the_planted_rule_for_queries_it_never_saw(
    name: str, planted: Any
) -> None:
    sees = {"query_fields": ("image",), "demo_fields": ("image",)}
    policy = planted.policy(
        head="bilinear", temperature=0.5, learn_temperature=True, **sees
    )
    groups = (
        planted.groups(8, (2,)) if name not in ONE_SHOT else one_shot_tables(planted)
    )
    rows = rows_from_groups(groups, planted.table, RewardConfig())
    start = planted.evaluate(policy)["reward"]
    run = StageInputs(
        name, config_of(name, epochs=15), planted.table, judge=planted.evaluate
    )
    result = run_stage(policy, FixedRows(rows), run)
    assert planted.evaluate(policy)["reward"] == result.best_value
    assert result.best_value is not None
    assert start < 0.6
    assert result.best_value > 0.68  # random 0.5, the best two of ten 0.85


def one_shot_tables(planted: Any) -> list[Any]:
    made = []
    for query in planted.queries():
        made.append(
            planted.group(query, [(item,) for item in planted.pool(query).candidates])
        )
    return made


@pytest.mark.slow
def test_other_settings_do_not_continue_a_state(planted: Any, tmp_path: Path) -> None:
    rows = rows_from_groups(planted.groups(4), planted.table, RewardConfig())
    run_stage(
        planted.policy(),
        FixedRows(rows),
        StageInputs("sft", config_of("sft", epochs=1), planted.table, 0, tmp_path),
    )
    with pytest.raises(TrainingError, match="other settings"):
        run_stage(
            planted.policy(),
            FixedRows(rows),
            StageInputs("sft", config_of("sft", lr=0.1), planted.table, 0, tmp_path),
        )


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [("projections",), ("attention", "head")])
def test_training_changes_exactly_the_unfrozen_groups(
    frozen: tuple[str, ...], planted: Any
) -> None:
    policy = planted.policy(
        state="gru", step_embedding=True, mmr="max", learn_temperature=True
    )
    before, groups = weights(policy), policy.named_groups()
    rows = rows_from_groups(planted.groups(4, (3,)), planted.table, RewardConfig())
    run_stage(
        policy,
        FixedRows(rows),
        StageInputs("grpo", config_of("grpo", epochs=2, freeze=frozen), planted.table),
    )
    after = policy.state_dict()
    for group, names in groups.items():
        changed = any(not torch.equal(before[name], after[name]) for name in names)
        assert changed == (group not in frozen), group
    assert all(parameter.requires_grad for parameter in policy.parameters())


def test_freezing_an_unknown_part_or_everything_is_refused(planted: Any) -> None:
    with pytest.raises(TrainingError, match="projections"):
        run_stage(
            planted.policy(),
            FixedRows([]),
            StageInputs("sft", config_of("sft", freeze=("backbone",)), planted.table),
        )
    with pytest.raises(TrainingError, match="nothing to train"):
        run_stage(
            planted.policy(),
            [],
            StageInputs(
                "sft",
                config_of("sft", freeze=("projections", "attention")),
                planted.table,
            ),
        )


@pytest.mark.slow
def test_early_stopping_keeps_the_best_epoch_and_the_start_counts(
    planted: Any, tmp_path: Path
) -> None:
    rows = rows_from_groups(planted.groups(4), planted.table, RewardConfig())
    values = iter([0.5, 0.4, 0.7, 0.6, 0.65, 0.9])
    seen: list[dict[str, torch.Tensor]] = []

    def evaluate(policy: Policy) -> dict[str, float]:
        seen.append(weights(policy))
        return {"reward": next(values)}

    policy = planted.policy()
    run = StageInputs(
        "sft",
        config_of("sft", epochs=9, patience=2),
        planted.table,
        0,
        tmp_path,
        judge=evaluate,
    )
    result = run_stage(policy, FixedRows(rows), run)
    assert (result.epochs, result.best_epoch, result.best_value) == (4, 2, 0.7)
    assert all(torch.equal(policy.state_dict()[key], seen[2][key]) for key in seen[2])
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [
        "sft",
        "sft-epoch001",
        "sft-epoch002",
        "sft-epoch003",
        "sft-epoch004",
    ]
    kept, description = load_checkpoint(tmp_path / "checkpoints" / "sft")
    assert description["extra"] == {"stage": "sft", "epoch": 2}
    assert all(torch.equal(kept.state_dict()[key], seen[2][key]) for key in seen[2])


def test_a_stage_that_only_harms_hands_back_what_it_was_given(planted: Any) -> None:
    rows = rows_from_groups(planted.groups(4), planted.table, RewardConfig())
    policy = planted.policy()
    before, values = weights(policy), iter([0.5, 0.4, 0.3, 0.2])
    run = StageInputs(
        "sft", config_of("sft"), planted.table, judge=lambda _: {"reward": next(values)}
    )
    assert run_stage(policy, FixedRows(rows), run).best_epoch == 0
    assert all(torch.equal(policy.state_dict()[key], before[key]) for key in before)


def test_curriculum_and_filters_choose_the_rows_and_an_empty_choice_says_so(
    planted: Any,
) -> None:
    rows = rows_from_groups(planted.groups(8), planted.table, RewardConfig())
    config = config_of(
        "sft",
        epochs=2,
        easy_epochs=1,
        easy_gap=0.5,
        positive_threshold=0.5,
        easy_count=2,
    )
    history = run_stage(
        planted.policy(), FixedRows(rows), StageInputs("sft", config, planted.table)
    ).history
    assert 0 < history[0]["rows"] < history[1]["rows"] == len(rows)
    filtered = config_of(
        "sft", epochs=1, min_positive_ratio=0.5, positive_threshold=0.5
    )
    kept = run_stage(
        planted.policy(), FixedRows(rows), StageInputs("sft", filtered, planted.table)
    ).history[0]["rows"]
    assert 0 < kept < len(rows)
    with pytest.raises(TrainingError, match="easy_gap"):
        run_stage(
            planted.policy(),
            FixedRows(rows),
            StageInputs(
                "sft", config_of("sft", easy_epochs=1, easy_gap=9.0), planted.table
            ),
        )


def test_the_temperature_of_rce_falls_from_its_start_to_its_end(planted: Any) -> None:
    rows = rows_from_groups(planted.groups(8), planted.table, RewardConfig())
    batch, policy = collate(rows, planted.table), planted.policy()
    stage = Rce(
        config_of("rce", temperature_start=2.0, temperature_end=0.5), policy, {}
    )
    found = [
        stage.loss(policy, batch, Progress(0, step, 5)).diagnostics["temperature"]
        for step in range(5)
    ]
    assert found == pytest.approx([2.0, 1.625, 1.25, 0.875, 0.5])


def test_an_easy_query_needs_enough_right_and_enough_wrong_members(
    planted: Any,
) -> None:
    row = rows_from_groups(planted.groups(1), planted.table, RewardConfig())[0]

    def with_accuracies(*values: float) -> Row:
        count = len(values)
        accuracy = torch.tensor(values)
        # a dense reward: above 0 everywhere, so that only accuracy can say who is right
        return replace(
            row, sequences=row.sequences[:1].expand(count, -1), rewards=accuracy + 0.1,
            log_mu=row.log_mu[:1].expand(count), accuracy=accuracy,
        )  # fmt: skip

    rows = [
        with_accuracies(1, 1, 0, 0),
        with_accuracies(1, 1, 1, 0),
        with_accuracies(1, 0, 0, 0),
        with_accuracies(0, 0),
    ]
    easy = config_of("sft", easy_epochs=1, easy_gap=0.5, easy_count=2)

    def kept(config: StageConfig, epoch: int) -> list[int]:
        chosen = rows_of_epoch(rows, config, epoch)
        return [
            place
            for place, own in enumerate(rows)
            if any(own is other for other in chosen)
        ]

    assert kept(easy, 0) == [0]
    assert kept(easy, 1) == [0, 1, 2, 3]
    assert kept(config_of("sft", min_positive_ratio=0.01), 0) == [0, 1, 2], (
        "the last has no right member"
    )


class FreshRows:
    """Other rows for every epoch that is asked about, and which epochs those were."""

    def __init__(self, groups: Any, table: Any) -> None:
        self.groups, self.table = groups, table
        self.asked: list[int] = []

    def rows(self, policy: Policy, epoch: int) -> list[Row]:
        self.asked.append(epoch)
        return rows_from_groups(
            self.groups[epoch : epoch + 4], self.table, RewardConfig()
        )


def test_a_source_is_asked_for_rows_at_the_start_of_every_round(planted: Any) -> None:
    source = FreshRows(planted.groups(4), planted.table)
    config = config_of("grpo", epochs=4, inner_epochs=2)
    run_stage(planted.policy(), source, StageInputs("grpo", config, planted.table))
    assert source.asked == [0, 2]


@pytest.mark.slow
def test_a_stage_stopped_inside_a_round_goes_on_with_the_rows_of_that_round(
    planted: Any, tmp_path: Path
) -> None:
    config = config_of(
        "grpo", epochs=3, inner_epochs=2, schedule="constant", warmup=0.0
    )
    groups = planted.groups(4)
    for folder, pieces in (("whole", [3]), ("broken", [1, 3])):
        for epochs in pieces:
            source = FreshRows(groups, planted.table)
            run = StageInputs(
                "grpo",
                replace(config, epochs=epochs),
                planted.table,
                0,
                tmp_path / folder,
            )
            run_stage(planted.policy(), source, run)
    assert source.asked == [0, 2], (
        "epoch 1 belongs to the round that began with epoch 0"
    )
    logs = [
        (tmp_path / folder / "log.jsonl").read_text() for folder in ("whole", "broken")
    ]
    assert logs[0] == logs[1]


@pytest.mark.slow
def test_every_line_of_the_log_names_its_place_and_the_same_seed_gives_the_same_log(
    planted: Any, tmp_path: Path
) -> None:
    rows = rows_from_groups(planted.groups(4), planted.table, RewardConfig())
    for name in ("a", "b"):
        run = StageInputs(
            "grpo",
            config_of("grpo", epochs=2),
            planted.table,
            3,
            tmp_path / name,
            calls=lambda: 320,
        )
        run_stage(planted.policy(), FixedRows(rows), run)
    text = (tmp_path / "a" / "log.jsonl").read_text()
    assert text == (tmp_path / "b" / "log.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["stage"], line["epoch"], line["lvlm_calls"]) for line in lines] == [
        ("grpo", 1, 320),
        ("grpo", 2, 320),
    ]
    assert lines[0]["train/ratio/first_mb_dev"] == 0.0


ALTERED: dict[str, Any] = {
    "positives": 1,
    "lr": 1e-3,
    "weight_decay": 0.5,
    "batch_size": 7,
    "schedule": "linear",
    "warmup": 0.5,
    "grad_clip": 1e-3,
    "freeze": ("attention",),
    "min_positive_ratio": 0.5,
    "positive_threshold": 0.8,
    "easy_epochs": 2,
    "easy_gap": 0.6,
    "easy_count": 3,
    "held_out": 0.3,
    "drop_wrong": 0.5,
    "labels": "top",
    "temperature": 0.9,
    "temperature_start": 2.0,
    "temperature_end": 0.5,
    "weights": "rank",
    "centred": False,
    "skip_flat": False,
    "among": "pool",
    "margin": 0.3,
    "beta": 2.0,
    "reference": None,
    "nll_best": 0.0,
    "inner_epochs": 2,
    "advantage": "rank",
    "std_floor": 5.0,
    "batch_scale": False,
    "advantage_clip": 0.1,
    "top_k": (3,),
    "topk_before_advantage": True,
    "clip_low": 0.001,
    "clip_high": 0.001,
    "easy_best": True,
    "clip_level": "sequence",
    "clip_only": True,
    "behaviour": "sft",
    "importance_cap": 0.5,
    "kl": "k3_inverted",
    "kl_beta": 3.0,
    "beta_rule": "batch",
    "kl_low": 50.0,
    "kl_high": 1e-6,
    "beta_factor": 9.0,
    "beta_min": 0.4,
    "beta_max": 0.02,
    "entropy_bonus": 1.0,
    "flat_groups": "keep",
    "trust_kl": 1e-7,
    "dropout_in_ratio": True,
}
# settings whose effect shows only beside another one
BESIDE: dict[str, dict[str, Any]] = {
    "min_positive_ratio": {"positive_threshold": 0.5},
    "held_out": {"monitor": "group_reward"},
    "positive_threshold": {"min_positive_ratio": 0.1},
    "easy_epochs": {"easy_gap": 0.3, "easy_count": 1, "positive_threshold": 0.5},
    "easy_gap": {"easy_epochs": 3, "easy_count": 0, "easy_gap": 0.1},
    "easy_count": {
        "easy_epochs": 3,
        "easy_count": 1,
        "easy_gap": 0.0,
        "positive_threshold": 0.5,
    },
    "easy_best": {"easy_epochs": 1, "easy_count": 0, "easy_gap": 0.0},
    "warmup": {"epochs": 4},
    "std_floor": {"advantage": "zscore", "batch_scale": False},
    "topk_before_advantage": {"top_k": (3,)},
    "importance_cap": {"behaviour": "stored"},
    "inner_epochs": {"epochs": 4},
    "kl_low": {"beta_rule": "epoch"},
    "kl_high": {"beta_rule": "epoch"},
    "beta_factor": {"beta_rule": "epoch", "kl_low": 50.0, "kl_high": 60.0},
    "beta_min": {"beta_rule": "epoch"},
    "beta_max": {"beta_rule": "epoch", "kl_beta": 0.1, "kl_high": 1e-6, "kl_low": 0.0},
    "temperature": {"labels": "weighted"},
    "clip_only": {"kl_beta": 0.5},
    "kl": {"kl_beta": 0.5},
    "flat_groups": {"kl_beta": 0.5},
    "centred": {"skip_flat": True},
    "skip_flat": {"centred": False},
}
NO_EFFECT_ON_WEIGHTS = {"epochs", "patience", "monitor", "keep"}
NEEDS_ADAPTERS = {
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
}  # tests/learn/test_live_embedder.py
# tests/learn/test_from_labels.py and test_contrastive.py
SHAPE_ROWS = {"queries", "candidates", "agreeing", "near", "others"}
FROM_OUTSIDE = {"loss"}  # tests/test_outside_parts.py


def test_a_stage_ends_with_its_best_epoch_or_with_its_last(planted: Any) -> None:
    rows = rows_from_groups(planted.groups(6, (1,)), planted.table, RewardConfig())

    def ended(keep: str) -> int:
        falling = iter((3.0, 2.0, 1.0, 0.0))
        stage = StageInputs(
            "sft",
            SftConfig(epochs=2, keep=keep),
            planted.table,
            judge=lambda _: {"reward": next(falling)},
        )
        return run_stage(planted.policy(seed=3), FixedRows(rows), stage).best_epoch

    assert (ended("best"), ended("last")) == (0, 2)


def training_of(
    name: str, config: StageConfig, planted: Any, rows: list[Any]
) -> torch.Tensor:
    policy = planted.policy(seed=3, state="gru", dropout=0.3)
    anchors = {"sft": frozen_copy(planted.policy(seed=4, state="gru"))}
    run_stage(
        policy,
        FixedRows(rows),
        StageInputs(name, config, planted.table, anchors=anchors),
    )
    return torch.cat([value.flatten() for value in policy.state_dict().values()])


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
def test_every_setting_of_a_stage_changes_the_weights_it_ends_with(
    name: str, planted: Any
) -> None:
    groups = planted.groups(6, (1, 2))
    flat = [
        planted.group(
            q, [planted.pool(q).candidates[:2], planted.pool(q).candidates[:2]]
        )
        for q in planted.ids[:9]
    ]
    log_mu = [
        replace(group, members=tuple(replace(m, log_mu=-3.0) for m in group.members))
        for group in groups + flat
    ]
    rows = rows_from_groups(log_mu, planted.table, RewardConfig())[-32:]
    # every other query is only half right at best, so that a threshold between can tell
    rows = [
        replace(row, accuracy=row.accuracy * (0.6 if place % 2 else 1.0))
        for place, row in enumerate(rows)
    ]
    shared = (
        set(vars(StageConfig())) if name != "sft" else NO_EFFECT_ON_WEIGHTS
    )  # one loop: shared ones are tried once
    ends: dict[StageConfig, torch.Tensor] = {}
    for key in sorted(
        set(vars(SECTIONS[name]()))
        - shared
        - NEEDS_ADAPTERS
        - SHAPE_ROWS
        - FROM_OUTSIDE
    ):
        value = ALTERED[key]
        if key == "reference":
            value = {"grpo": "sft", "pairwise": "none"}[name]
        if key == "temperature" and name in ONE_SHOT:
            value = 2.0
        base = (
            config_of(name, epochs=2, trust_kl=0.0)
            if name == "grpo"
            else config_of(name, epochs=2)
        )
        beside = {k: v for k, v in BESIDE.get(key, {}).items() if hasattr(base, k)}
        base = replace(base, **beside)
        other = replace(base, **{key: value})
        assert other != base, key
        if base not in ends:
            ends[base] = training_of(name, base, planted, rows)
        assert not torch.equal(ends[base], training_of(name, other, planted, rows)), (
            f"{name}.{key} has no effect"
        )


def test_no_default_is_sick_and_sick_ones_are_named() -> None:
    for name, section in SECTIONS.items():
        assert known_mistakes_in(section(), f"{name}.") == []
    legacy = GrpoConfig(
        behaviour="sft",
        topk_before_advantage=True,
        kl="k3_inverted",
        dropout_in_ratio=True,
    )
    assert len(known_mistakes_in(replace(legacy, beta_rule="batch"), "grpo.")) == 5
    assert set(SECTIONS) == set(catalog.STAGES)
    assert isinstance(SftConfig(), StageConfig)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_after_the_easy_epochs_a_stage_begins_anew_from_the_best_of_them(
    planted: Any, tmp_path: Path, stopped: bool
) -> None:
    """Held-out values are planted: the second of three easy epochs is the best, whatever is kept at the end."""
    values = iter([0.1, 0.2, 0.9, 0.3, 0.4, 0.5])
    judged: list[dict[str, torch.Tensor]] = []

    def evaluate(policy: Policy) -> dict[str, float]:
        judged.append(tensors_of(policy))
        return {"reward": next(values)}

    config = GrpoConfig(
        epochs=5, easy_epochs=3, easy_gap=0.0, easy_count=0, easy_best=True, keep="last", behaviour="sft",
        reference="sft", lr=1e-3,
    )  # fmt: skip
    rows = rows_from_groups(planted.groups(8), planted.table, RewardConfig())
    run = StageInputs(
        "grpo", config, planted.table, 0, tmp_path, {"sft": planted.policy()}, evaluate
    )
    if stopped:
        run_stage(
            planted.policy(),
            FixedRows(rows),
            replace(run, config=replace(config, epochs=4)),
        )
        (tmp_path / "checkpoints" / "grpo").rename(tmp_path / "checkpoints" / "shorter")
    result = run_stage(planted.policy(), FixedRows(rows), run)
    assert result.best_epoch == 5
    tensors, _ = load_state(tmp_path / "state" / "grpo")
    second = tensors_under(tensors, "easy.")
    assert all(torch.equal(second[name], judged[2][name]) for name in second), (
        "start, first, second"
    )
    assert all(
        torch.equal(tensors_under(tensors, "copy.reference.")[name], second[name])
        for name in second
    )
    assert result.history[3]["ratio/mean"] == pytest.approx(1.0, abs=0.05), (
        "the ratio refers to the new start"
    )
