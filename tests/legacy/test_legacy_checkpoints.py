"""Checkpoints of the earlier code give the same logits here, and what a converter lost is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from legacy_files import (
    OldBiEncoder,
    OldSelector,
    convert_like_the_earlier_script,
    identical,
)

from leverplus.errors import CheckpointError, EvaluationError
from leverplus.learn.checkpoint import load_checkpoint
from leverplus.learn.policies.base import Features, Policy
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.decode import greedy
from leverplus.learn.policies.presets import CROSS_ATTENTION
from leverplus_lab.legacy.checkpoints import PREFIX, read_legacy, write_legacy
from leverplus_lab.legacy.imports import import_file
from leverplus_lab.legacy.presets import CROSS_ATTENTION_FAITHFUL


def old(layers: int = 1, variant: str = "", **sizes: int) -> OldSelector | OldBiEncoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = (
            OldBiEncoder()
            if variant == "v1"
            else OldSelector(layers=layers, variant=variant, **sizes)
        )
        return model.eval()


def save(value: object, path: Path) -> Path:
    torch.save(value, path)
    return path


def pt(model: torch.nn.Module) -> dict:
    facts = {
        "epoch": 2,
        "phase": "grpo",
        "kl_beta": 0.12,
        "metrics": {"val_loss": [5.1, 5.0]},
    }
    return {**facts, "model_state_dict": model.state_dict()}


def logits(
    policy: Policy, query: torch.Tensor, pool: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Image and text alike: the mean of both is the unit vector the earlier code was given."""
    features = Features.dense(
        {"image": query, "text": query},
        {"image": pool, "text": pool},
        torch.ones(pool.shape[:2], dtype=torch.bool),
    )
    with torch.no_grad():
        found = policy.logits(policy.prepare(features), labels.unsqueeze(1))[:, 0]
    return found.masked_fill(found == -torch.inf, -100.0)


PRESETS = {
    "": "cross_attention_faithful",
    "gate": "vector_gate_faithful",
    "gru": "recurrent_faithful",
    "mmr": "diverse_faithful",
    "additive": "additive_head_faithful",
    "bilinear": "bilinear_head_faithful",
    "pool": "pool_aware_faithful",
    "topics": "topic_coverage_faithful",
    "volume": "volume_faithful",
    "slots": "parallel_slots_faithful",
    "refine": "two_stage_faithful",
    "refine_mlp": "two_stage_faithful",
    "stop": "stopping_faithful",
    "v1": "bi_encoder_gate_faithful",
}


@pytest.mark.parametrize(
    ("layers", "variant"), [(3, ""), (2, "gru"), *((1, variant) for variant in PRESETS)]
)
def test_an_imported_selector_gives_the_logits_of_the_earlier_network(
    tmp_path, layers, variant
) -> None:
    model = old(layers, variant)
    legacy = read_legacy(save(pt(model), tmp_path / "grpo_epoch3.pt"))
    assert legacy.preset == PRESETS[variant]
    torch.manual_seed(0)
    query = torch.nn.functional.normalize(torch.randn(5, 24), dim=-1)
    pool = torch.nn.functional.normalize(torch.randn(5, 9, 24), dim=-1)
    labels = torch.stack([torch.randperm(9)[:2] for _ in range(5)])
    with torch.no_grad():
        wanted = model(query, pool, labels)
    torch.testing.assert_close(
        logits(legacy.policy, query, pool, labels), wanted, atol=5.7e-6, rtol=0.0
    )


@pytest.mark.parametrize(
    "variant", ["", "gate", "additive", "slots", "stop", "topics", "v1"]
)
def test_an_imported_selector_is_evaluated_at_as_many_shots_as_its_network_has_steps(
    tmp_path, variant
) -> None:
    model = old(1, variant)
    policy = read_legacy(save(pt(model), tmp_path / "grpo_epoch3.pt")).policy
    torch.manual_seed(0)
    query = torch.nn.functional.normalize(torch.randn(2, 24), dim=-1)
    pool = torch.nn.functional.normalize(torch.randn(2, 9, 24), dim=-1)
    features = Features.dense(
        {"image": query, "text": query},
        {"image": pool, "text": pool},
        torch.ones(2, 9, dtype=torch.bool),
    )
    steps = len(model.step_emb.weight) if hasattr(model, "step_emb") else 8
    assert policy.config.max_shots == steps
    for shots in (3, 4):
        if shots > steps:
            with pytest.raises(EvaluationError, match=f"chooses 1 to {steps}"):
                greedy(policy, policy.prepare(features), shots)
            continue
        with torch.no_grad():
            picks = greedy(policy, policy.prepare(features), shots).positions[
                :, 0
            ]  # (2, shots)
            scores = model(query, pool, picks)  # (2, shots, 9), used candidates at -100
        assert picks.tolist() == scores.argmax(-1).tolist()


def test_both_key_styles_and_all_prefixes_are_read_alike(tmp_path) -> None:
    state = old().state_dict()
    values = [
        state,
        {"model_state_dict": state},
        {"state_dict": {PREFIX + name: tensor for name, tensor in state.items()}},
        {
            "state_dict": {
                "pointer_selector." + name: tensor for name, tensor in state.items()
            }
        },
        convert_like_the_earlier_script(state),
    ]
    loaded = [
        read_legacy(save(value, tmp_path / f"{n}.ckpt")).policy.state_dict()
        for n, value in enumerate(values)
    ]
    for other in loaded[1:]:
        assert other.keys() == loaded[0].keys()
        assert all(torch.equal(other[name], loaded[0][name]) for name in other)


@pytest.mark.parametrize("variant", PRESETS)
@pytest.mark.parametrize("layout", ["pt", "v2", "bare"])
def test_a_checkpoint_survives_import_and_export(tmp_path, layout, variant) -> None:
    model = old(2, variant)
    state = model.state_dict()
    value = {
        "pt": pt(model),
        "v2": {
            "epoch": 1,
            "global_step": 0,
            "pytorch-lightning_version": "2.0.0",
            "hyper_parameters": {"d_model": 24},
            "model_type": "v3",
            "state_dict": {PREFIX + name: tensor for name, tensor in state.items()},
        },
        "bare": dict(state),
    }[layout]
    import_file(save(value, tmp_path / "a.ckpt"), tmp_path / "in")
    policy, description = load_checkpoint(tmp_path / "in" / "checkpoints" / "a")
    write_legacy(policy, tmp_path / "b.ckpt", layout, description["extra"]["legacy"])
    again = torch.load(tmp_path / "b.ckpt", weights_only=True)
    weights = value.get("model_state_dict", value.get("state_dict", value))
    for name in [name for name in weights if "refine_score" in name]:
        del weights[name]  # made by the earlier code, and never used
    assert identical(again, value)


def test_a_file_of_the_faulty_converter_is_diagnosed_and_comes_back_as_it_was(
    tmp_path,
) -> None:
    value = convert_like_the_earlier_script(old(width=512, hidden=256).state_dict())
    legacy = read_legacy(save(value, tmp_path / "grpo_epoch3_v2format.ckpt"))
    assert "263,680 of 525,824 weights (50.15%) random" in legacy.notes[0]
    assert "6 attention and norm tensors" in legacy.notes[0]
    write_legacy(legacy.policy, tmp_path / "b.ckpt", "v2", legacy.facts)
    assert identical(torch.load(tmp_path / "b.ckpt", weights_only=True), value)


def test_tensors_that_a_converter_lost_are_named_with_their_share(tmp_path) -> None:
    state = {
        n: t
        for n, t in old(width=512, hidden=256).state_dict().items()
        if "attn" not in n
    }
    with pytest.raises(CheckpointError) as caught:
        read_legacy(
            save(
                {"state_dict": {PREFIX + n: t for n, t in state.items()}},
                tmp_path / "a.ckpt",
            )
        )
    for name in (
        "cross_attn_layers.0.in_proj_weight",
        "cross_attn_layers.0.out_proj.bias",
        "attn_norms.0.weight",
    ):
        assert name in str(caught.value)
    assert "263,680 of 525,824 weights (50.15%)" in str(caught.value)


def test_layers_that_a_converter_dropped_are_named_where_the_file_says_how_many_there_were(
    tmp_path,
) -> None:
    value = convert_like_the_earlier_script(old(layers=3).state_dict())
    value["hyper_parameters"] = {"num_layers": 3}
    with pytest.raises(
        CheckpointError,
        match=r"missing: attn_norms\.1\.bias.*cross_attn_layers\.2\.out_proj\.weight",
    ):
        read_legacy(save(value, tmp_path / "a.ckpt"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mystery.weight": torch.zeros(2, 2)}, r"not understood: mystery\.weight"),
        ({"cand_proj.weight": None}, r"missing: cand_proj\.weight"),
        ({"input_proj.weight": None}, r"missing: input_proj\.weight"),
        ({"query_proj.weight": None}, "holds no pointer selector"),
        (
            {"cand_proj.weight": torch.zeros(3, 3)},
            r"trunk\.project_item\.weight is \(3, 3\), not \(16, 16\)",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name(tmp_path, change, words) -> None:
    state = {**old().state_dict(), **change}
    path = save(
        {name: tensor for name, tensor in state.items() if tensor is not None},
        tmp_path / "a.pt",
    )
    with pytest.raises(CheckpointError, match=words):
        read_legacy(path)


class Foreign:
    """An object that is no tensor, as hyper-parameters of old checkpoints are."""


def test_objects_in_a_checkpoint_are_never_loaded(tmp_path) -> None:
    path = save(
        {"state_dict": old().state_dict(), "hyper_parameters": Foreign()},
        tmp_path / "a.ckpt",
    )
    with pytest.raises(CheckpointError, match="can run code"):
        read_legacy(path)
    (tmp_path / "b.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError):
        read_legacy(tmp_path / "b.pt")


def test_a_selector_the_earlier_code_cannot_hold_is_refused(tmp_path) -> None:
    dims = {"image": 8, "text": 8, "answer": 8}
    with pytest.raises(CheckpointError, match="cannot be written for the earlier code"):
        write_legacy(build_policy(CROSS_ATTENTION, dims), tmp_path / "a.pt", "pt")
    policy = build_policy(CROSS_ATTENTION_FAITHFUL, {"image": 512, "text": 512})
    write_legacy(policy, tmp_path / "b.ckpt", "v2")
    own = read_legacy(tmp_path / "b.ckpt").policy.state_dict()
    assert all(
        torch.equal(tensor, own[name]) for name, tensor in policy.state_dict().items()
    )
