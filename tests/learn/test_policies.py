"""Policies: invariants that hold for every named selector, and the numbers the old ones are known by."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from policy_contract import DIMS, features
from torch import nn

from leverplus import catalog
from leverplus.errors import RecipeError, TrainingError
from leverplus.learn.policies.base import PAD, Features, Policy, sequence_logprobs
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.settings import PolicyConfig, read_selection
from leverplus.learn.policies.trunks import PoolAttention

NAMES = sorted(catalog.POLICIES)


def preset(name: str, **changes: object) -> PolicyConfig:
    config: PolicyConfig = catalog.load(catalog.POLICIES, name, "preset")
    heads = 2 if config.heads > 1 else 1
    small = replace(config, hidden=16, heads=heads, topics=min(config.topics, 4))
    return replace(small, **changes)  # type: ignore[arg-type]


def make(name: str, **changes: object) -> Policy:
    return build_policy(preset(name, **changes), DIMS, items=10, seed=1).eval()


@pytest.mark.parametrize("name", NAMES)
def test_a_fresh_policy_is_near_uniform_so_its_first_loss_is_the_log_of_the_choices(
    name: str,
) -> None:
    config: PolicyConfig = catalog.load(catalog.POLICIES, name, "preset")
    dims = {"image": 256, "text": 256, "answer": 256}
    policy = build_policy(config, dims, items=64, seed=0).eval()
    generator = torch.Generator().manual_seed(0)
    items = {field: torch.randn(64, 256, generator=generator) for field in dims}
    query = {
        field: torch.randn(16, 256, generator=generator) for field in ("image", "text")
    }
    pool = torch.stack([torch.randperm(64, generator=generator) for _ in range(16)])
    sequences = torch.stack(
        [torch.randperm(64, generator=generator)[:2] for _ in range(64)]
    ).reshape(16, 4, 2)
    with torch.no_grad():
        encoded = policy.prepare(Features(query, items, pool, torch.arange(64)))
        loss = -float(sequence_logprobs(policy, encoded, sequences).total.mean())
    if config.refine_others == "drop":
        assert loss > 50  # the old limit: what its shortlist misses is lost
        return
    expected = math.log(64) + math.log(63)
    assert abs(loss - expected) < 0.1 * expected


def test_the_old_pointer_has_525824_parameters_and_half_of_them_outside_the_projections() -> (
    None
):
    config = catalog.load(catalog.POLICIES, "cross_attention_faithful", "preset")
    policy = build_policy(config, {"image": 512, "text": 512})
    counts = {name: p.numel() for name, p in policy.named_parameters()}
    assert sum(counts.values()) == 525_824
    frozen = sum(counts[name] for name in policy.named_groups()["projections"])
    assert round(1 - frozen / 525_824, 4) == 0.5015


def test_folded_attention_equals_the_attention_of_torch() -> None:
    torch.manual_seed(0)
    own = PoolAttention(12, 3, 0.0).double().eval()
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double().eval()
    with torch.no_grad():
        own.in_proj_bias.normal_()
        theirs.load_state_dict(own.state_dict())
    query, pool = torch.randn(2, 4, 12).double(), torch.randn(2, 5, 12).double()
    mask = torch.tensor([[True] * 5, [True, True, False, True, False]])
    expected = theirs(query, pool, pool, key_padding_mask=~mask)[0]
    assert torch.allclose(own(query, pool, mask), expected)


def test_one_model_scores_one_to_eight_shots() -> None:
    policy = make("diverse")
    encoded = policy.prepare(features(2, 9))
    long = torch.stack(
        [
            torch.randperm(9, generator=torch.Generator().manual_seed(s))[:8]
            for s in range(4)
        ]
    )
    padded = long.clone()
    padded[1, 1:], padded[2, 4:] = PAD, PAD
    result = sequence_logprobs(policy, encoded, padded.expand(2, -1, -1))
    whole = sequence_logprobs(policy, encoded, long.expand(2, -1, -1))
    assert torch.allclose(result.steps[:, 1, 0], whole.steps[:, 1, 0])
    assert torch.allclose(result.total[:, 2], whole.steps[:, 2, :4].sum(-1))
    assert result.valid.sum().item() == 2 * (8 + 1 + 4 + 8)


def test_old_limits_are_kept_and_say_what_to_set() -> None:
    policy = make("recurrent_faithful", max_shots=2)
    with pytest.raises(TrainingError, match="max_shots = 3"):
        sequence_logprobs(
            policy, policy.prepare(features()), torch.zeros(3, 1, 3, dtype=torch.long)
        )


@pytest.mark.parametrize("bad", [[[2, 2]], [[7, 0]]])
def test_an_impossible_sequence_raises_instead_of_giving_minus_infinity(
    bad: list[list[int]],
) -> None:
    policy = make("cross_attention")
    plain = features(3, 6)
    padded = Features(
        plain.query, plain.items, torch.cat([plain.pool, torch.full((3, 2), -1)], 1)
    )
    with pytest.raises(TrainingError):
        sequence_logprobs(
            policy, policy.prepare(padded), torch.tensor([bad]).expand(3, -1, -1)
        )


@pytest.mark.parametrize(
    ("stop", "allowed"), [("none_only", [True, False]), ("after_first", [False, True])]
)
def test_stop_is_allowed_exactly_where_the_config_says(
    stop: str, allowed: list[bool]
) -> None:
    policy = make("stopping", stop=stop)
    encoded = policy.prepare(features())
    logits = policy.logits(encoded, torch.tensor([[[0, 1]]]).expand(3, -1, -1))
    assert [
        bool((logits[0, 0, step, -1] > -torch.inf).item()) for step in range(2)
    ] == allowed
    forced = policy.logits(
        encoded, torch.tensor([[[0, 1]]]).expand(3, -1, -1), allow_stop=False
    )
    assert (forced[..., -1] == -torch.inf).all()


@pytest.mark.slow
def test_gradients_of_the_whole_policy_agree_with_finite_differences() -> None:
    policy = make(
        "diverse", dropout=0.0, attention_dropout=0.0, topics=2, dpp="bound", dpp_rank=3
    ).double()
    data = features(1, 4, torch.float64)
    sequences = torch.tensor([[[0, 3, 1], [2, 1, 0]]])
    weight = torch.tensor([[1.0, -0.5]], dtype=torch.float64)

    def value() -> torch.Tensor:
        return (
            sequence_logprobs(policy, policy.prepare(data), sequences).total * weight
        ).sum()

    value().backward()
    for name, parameter in policy.named_parameters():
        flat, gradient = parameter.data.view(-1), parameter.grad.view(-1)
        index = int(gradient.abs().argmax())
        kept, size = flat[index].item(), 1e-6
        flat[index] = kept + size
        up = value().item()
        flat[index] = kept - size
        down = value().item()
        flat[index] = kept
        assert (up - down) / (2 * size) == pytest.approx(
            gradient[index].item(), rel=1e-4, abs=1e-7
        ), name


def test_shared_items_give_the_same_logits_as_dense_pools() -> None:
    policy = make("diverse")
    shared = features()
    dense = Features.dense(
        shared.query,
        {n: shared.gather(b) for n, b in shared.items.items()},
        shared.mask,
    )
    sequences = torch.tensor([[[0, 3], [5, 1]]]).expand(3, -1, -1)
    left = sequence_logprobs(policy, policy.prepare(shared), sequences).steps
    assert torch.allclose(
        left,
        sequence_logprobs(policy, policy.prepare(dense), sequences).steps,
        atol=1e-6,
    )


def test_a_preset_is_a_start_and_keys_given_win() -> None:
    problems: list[str] = []
    config = read_selection({"preset": "diverse", "mmr": "none"}, problems)
    assert problems == []
    assert config is not None
    assert (config.state, config.mmr, config.preset) == ("gru", "none", "diverse")


def test_problems_of_a_selection_are_reported_together() -> None:
    problems: list[str] = []
    assert (
        read_selection({"preset": "diverze", "hedas": 1, "stop": "maybe"}, problems)
        is None
    )
    assert len(problems) == 3
    problems = []
    assert (
        read_selection({"heads": 3, "decoder": "slots", "state": "gru"}, problems)
        is None
    )
    assert len(problems) == 2
    with pytest.raises(RecipeError, match="query_fields"):
        build_policy(PolicyConfig(), {"text": 4, "answer": 4})


ALTERED: dict[str, object] = {
    "model": "lstm",
    "query_fields": ("text",),
    "demo_fields": ("image", "text"),
    "fuse": "mean",
    "trunk": "bi_encoder",
    "hidden": 8,
    "layers": 2,
    "heads": 2,
    "pool_layers": 2,
    "dropout": 0.7,
    "attention_dropout": 0.7,
    "state": "vector_gate",
    "step_embedding": True,
    "head": "bilinear",
    "temperature": 0.7,
    "learn_temperature": True,
    "mmr": "max",
    "mmr_strength": 4.0,
    "topics": 3,
    "dpp": "bound",
    "dpp_rank": 3,
    "pairs": True,
    "decoder": "slots",
    "slot_layers": 1,
    "slot_attends": False,
    "id_form": "added",
    "refine": "mlp",
    "refine_top": 2,
    "refine_others": "drop",
    "stop": "anywhere",
    "max_shots": 3,
}
BESIDE: dict[str, dict[str, object]] = {
    "pool_layers": {"trunk": "set_encoder"},
    "mmr_strength": {"mmr": "max"},
    "dpp_rank": {"dpp": "bound"},
    "id_form": {"model": "gpt2", "hidden": 12},
    "slot_layers": {"decoder": "slots"},
    "slot_attends": {"decoder": "slots"},
    "refine": {"decoder": "refine", "refine_top": 3},
    "refine_top": {"decoder": "refine", "refine_top": 4},
    "refine_others": {"decoder": "refine", "refine_top": 3},
}


def fingerprint(config: PolicyConfig) -> tuple[object, ...]:
    """What a config leads to: trained parts, longest list, and the log-probabilities of some sequences in training."""
    policy = build_policy(config, DIMS, items=10, seed=1).train()
    torch.manual_seed(0)
    sequences = torch.tensor([[[0, 3], [5, 1]]]).expand(3, -1, -1)
    steps = sequence_logprobs(policy, policy.prepare(features()), sequences).steps
    trained = sum(parameter.numel() for parameter in policy.parameters())
    return trained, policy.config.max_shots, tuple(steps.detach().flatten().tolist())


@pytest.mark.parametrize("key", sorted(ALTERED))
def test_every_key_of_the_section_has_an_effect(key: str) -> None:
    base = replace(PolicyConfig(hidden=16, dropout=0.2), **BESIDE.get(key, {}))  # type: ignore[arg-type]
    assert fingerprint(base) != fingerprint(replace(base, **{key: ALTERED[key]}))  # type: ignore[arg-type]


def test_every_key_of_the_section_is_tried() -> None:
    assert set(ALTERED) == set(vars(PolicyConfig())) - {"preset"}


def test_the_bi_encoder_keeps_more_of_the_query_than_it_takes_of_a_pick_at_first() -> (
    None
):
    """v1 began with sigmoid(0.6) = 0.65 of the query."""
    policy = build_policy(preset("bi_encoder_gate_faithful"), DIMS, items=10, seed=1)
    assert policy.state.weight.item() == pytest.approx(0.6)
    h, v = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
    moved = policy.state(h, v)[0, 0].detach()
    share = 1 / (1 + math.exp(-0.6))
    assert float(moved[0] / moved[1]) == pytest.approx(share / (1 - share))


def test_the_refining_decoder_looks_again_at_the_best_candidates() -> None:
    policy = build_policy(
        PolicyConfig(decoder="refine", refine_top=2, refine_others="keep"),
        DIMS,
        items=10,
        seed=1,
    )
    v = torch.nn.functional.normalize(
        torch.randn(1, 4, 256, generator=torch.Generator().manual_seed(0)), dim=-1
    )
    cheap = torch.tensor([[[0.1, 0.9, 0.5, 0.7]]])
    used = torch.tensor([[[False, False, False, True]]])
    best, _ = policy.refine(v[:, :1], v, cheap, used)
    assert best.tolist() == [[[1, 2]]], "the best that are not used yet"
