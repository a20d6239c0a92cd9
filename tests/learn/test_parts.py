"""Parts of a selector against their formulas, worked out one candidate at a time without the code under test."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from leverplus import catalog
from leverplus.learn.policies.base import Encoded, Features, Policy
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.heads import Head
from leverplus.learn.policies.pointer import fuse_blocks, fused_size
from leverplus.learn.policies.setterms import build_terms, chosen_rows
from leverplus.learn.policies.settings import PolicyConfig
from leverplus.learn.policies.states import build_state
from leverplus.learn.policies.trunks import SHARED, CrossAttention, build_trunk
from leverplus_lab.selectors.decoders import LOST, Refine, Slots

HIDDEN, SIZE = 4, 5
DIMS = {"image": 6, "text": 6, "answer": 3}


def head_named(name: str) -> type[Head]:
    head: type[Head] = catalog.load(catalog.HEADS, name, "head")
    return head


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def softmax(x: np.ndarray) -> np.ndarray:
    shifted = np.exp(x - x.max())
    return shifted / shifted.sum()


def small(**changes: object) -> PolicyConfig:
    values = {
        "hidden": HIDDEN,
        "heads": 2,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "max_shots": 3,
    }
    return PolicyConfig(**{**values, **changes})  # type: ignore[arg-type]


def features(batch: int = 2, size: int = SIZE, items: int = 7) -> Features:
    pool = torch.stack(
        [
            torch.randperm(items, generator=torch.Generator().manual_seed(b))[:size]
            for b in range(batch)
        ]
    )
    pool[0, -1] = -1
    blocks = {
        name: numbers(items, width, seed=n)
        for n, (name, width) in enumerate(DIMS.items())
    }
    query = {"image": numbers(batch, 6, seed=11), "text": numbers(batch, 6, seed=12)}
    return Features(query, blocks, pool, torch.arange(items))


# states


@pytest.mark.parametrize("name", ["none", "scalar_gate", "vector_gate", "gru"])
def test_a_state_moves_by_its_formula(name: str) -> None:
    torch.manual_seed(0)
    state = build_state(name, HIDDEN).double()
    h, v = numbers(2, 3, HIDDEN), numbers(2, 3, HIDDEN, seed=1)
    moved = state(h, v).detach().numpy()
    for place in itertools.product(range(2), range(3)):
        own, chosen = h[place].numpy(), v[place].numpy()
        if name == "none":
            expected = own
        elif name == "scalar_gate":
            gate = 1 / (1 + math.exp(-0.6))
            expected = unit(gate * own + (1 - gate) * chosen)
        elif name == "vector_gate":
            with torch.no_grad():
                state.gate.bias.copy_(torch.arange(HIDDEN))
            moved = state(h, v).detach().numpy()
            weight = state.gate.weight.detach().numpy()
            gate = 1 / (
                1
                + np.exp(-(weight @ np.concatenate([own, chosen]) + np.arange(HIDDEN)))
            )
            expected = unit(gate * own + (1 - gate) * chosen)
        else:
            expected = unit(
                state.cell(v[place][None], h[place][None])[0].detach().numpy()
            )
        assert moved[place] == pytest.approx(expected)


# heads


@pytest.mark.parametrize("name", sorted(catalog.HEADS))
@pytest.mark.parametrize("stop", [False, True])
def test_a_head_scores_by_its_formula(name: str, stop: bool) -> None:
    torch.manual_seed(3)
    head = head_named(name)(small(temperature=0.5), DIMS).double()
    h, v = numbers(2, 3, HIDDEN, seed=6), numbers(2, SIZE + int(stop), HIDDEN, seed=5)
    found = head(h, Encoded(features().mask, {"v": v})).detach().numpy()
    w = {key: value.detach().numpy() for key, value in head.named_parameters()}
    for row, member, action in itertools.product(
        range(2), range(3), range(SIZE + int(stop))
    ):
        state, candidate = h[row, member].numpy(), v[row, action].numpy()
        if name == "cosine":
            expected = state @ candidate
        elif name == "bilinear":
            expected = state @ w["weight"] @ candidate
        else:
            joined = np.tanh(
                w["query.weight"] @ state
                + w["query.bias"]
                + w["item.weight"] @ candidate
            )
            expected = float((w["vector.weight"] @ joined).item())
        assert found[row, member, action] == pytest.approx(expected / 0.5), (
            row,
            member,
            action,
        )


def test_a_learned_temperature_never_sharpens_more_than_a_hundredfold() -> None:
    head = head_named("cosine")(small(temperature=0.001, learn_temperature=True), DIMS)
    assert head.scaled(torch.tensor(2.0)).item() == pytest.approx(200.0)
    assert head.log_scale.requires_grad
    fixed = head_named("cosine")(small(temperature=0.25), DIMS)
    assert fixed.scaled(torch.tensor(2.0)).item() == pytest.approx(8.0)
    assert not list(fixed.parameters())


def test_the_additive_head_starts_a_tenth_as_wide_as_torch_makes_it_so_that_it_is_near_uniform() -> (
    None
):
    torch.manual_seed(0)
    weight = head_named("additive")(small(hidden=64), DIMS).vector.weight
    assert 0.09 / 8 < weight.abs().max().item() <= 0.1 / 8, (
        "torch draws within 1 / sqrt(64)"
    )


# set terms


def walk_terms(
    picks: tuple[int, ...], **changes: object
) -> tuple[nn.Module, Encoded, list[np.ndarray]]:
    """A term, the pool as it reads it, and what it adds after each of the picks."""
    torch.manual_seed(1)
    (term,) = build_terms(small(**changes)).double().values()
    u, v = (
        torch.nn.functional.normalize(numbers(1, HIDDEN), dim=-1),
        numbers(1, SIZE, HIDDEN, seed=1),
    )
    v = torch.nn.functional.normalize(v, dim=-1)
    encoded = Encoded(
        torch.ones(1, SIZE, dtype=torch.bool), {"u": u, "v": v, **term.read(u, v)}
    )
    memory, added = term.begin(encoded, 2), []
    for step, pick in enumerate(picks):
        memory = term.remember(encoded, memory, torch.full((1, 2), pick), step)
        added.append(term(encoded, memory, step + 1)[0, 1].detach().numpy())
    return term, encoded, added


def test_redundancy_costs_the_largest_likeness_to_the_picks() -> None:
    picks = (3, 0, 2)
    term, encoded, added = walk_terms(picks, mmr="max", mmr_strength=0.7)
    assert term.strength.tolist() == pytest.approx([0.7] * 3)
    with torch.no_grad():
        term.strength.copy_(torch.tensor([5.0, 0.7, 0.2]))
    _, _, added = walk_terms(picks, mmr="max", mmr_strength=0.7)
    v = encoded["v"][0].numpy()
    for step in range(3):
        likeness = np.max([v @ v[pick] for pick in picks[: step + 1]], axis=0)
        assert added[step] == pytest.approx(-softplus(0.7) * likeness)
    memory = {"mmr": torch.ones(1, 2, SIZE, dtype=torch.float64)}
    by_step = [term(encoded, memory, step)[0, 0, 0].item() for step in range(5)]
    assert by_step == pytest.approx(
        [-softplus(x) for x in (5.0, 0.7, 0.2, 0.2, 0.2)]
    ), "one strength for each step"


def test_coverage_pays_for_topics_that_the_query_needs_and_no_pick_has() -> None:
    picks = (3, 0, 2)
    term, encoded, added = walk_terms(picks, topics=3)
    v, u = encoded["v"][0].numpy(), encoded["u"][0].numpy()
    prototypes = unit(term.prototypes.detach().numpy())
    topics = np.stack([softmax(prototypes @ row) for row in v])
    need = softmax(
        term.need.weight.detach().numpy() @ u + term.need.bias.detach().numpy()
    )
    for step in range(3):
        covered = np.minimum(sum(topics[pick] for pick in picks[: step + 1]), 1.0)
        assert added[step] == pytest.approx(
            softplus(-2.0) * topics @ (need * (1.0 - covered))
        )
    _, _, twice = walk_terms((1, 1, 1, 1, 1, 1, 1), topics=3)
    assert (twice[-1] >= -1e-12).all(), "a topic is covered once at most"


def test_volume_is_the_bound_of_what_a_candidate_adds() -> None:
    picks = (3, 0)
    term, encoded, added = walk_terms(picks, dpp="bound", dpp_rank=4)
    items = unit(encoded["v"][0].numpy() @ term.project.weight.detach().numpy().T)
    kernel = items @ items.T
    for step in range(2):
        own = list(picks[: step + 1])
        for candidate in set(range(SIZE)) - set(own):
            likest = max(kernel[candidate, pick] for pick in own)
            expected = math.log(1e-6 + 1.0 - min(likest**2, 0.999))
            assert added[step][candidate] == pytest.approx(softplus(-2.0) * expected)


def test_a_stop_takes_the_last_row_and_other_actions_their_own() -> None:
    table = numbers(2, 3, HIDDEN)
    rows = chosen_rows(table, torch.tensor([[0, 3], [2, 1]]))
    assert torch.equal(rows[0], table[0][[0, 2]])
    assert torch.equal(rows[1], table[1][[2, 1]])


def test_terms_are_built_where_the_config_asks() -> None:
    assert list(build_terms(small())) == []
    assert list(build_terms(small(mmr="max", topics=2, dpp="bound"))) == [
        "mmr",
        "coverage",
        "dpp",
    ]


# trunks


def attended(attention: nn.Module, query: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """Multi-head attention of one query to the rows of a pool, by torch's own module with the same parameters."""
    theirs = (
        nn.MultiheadAttention(HIDDEN, attention.heads, batch_first=True).double().eval()
    )
    theirs.load_state_dict(attention.state_dict())
    seen = theirs(
        torch.tensor(query)[None, None],
        torch.tensor(pool)[None],
        torch.tensor(pool)[None],
    )[0]
    return seen[0, 0].detach().numpy()


def normed(norm: nn.LayerNorm, x: np.ndarray) -> np.ndarray:
    scaled = (x - x.mean()) / math.sqrt(x.var() + 1e-5)
    return scaled * norm.weight.detach().numpy() + norm.bias.detach().numpy()


@pytest.mark.parametrize("spread", [1, SHARED + 1], ids=["one table", "pools apart"])
@pytest.mark.parametrize(
    ("query_size", "fuse"), [(6, "mean"), (8, "mean"), (6, "concat")]
)
def test_the_query_attends_to_its_pool_layer_by_layer(
    spread: int, query_size: int, fuse: str
) -> None:
    torch.manual_seed(0)
    trunk = CrossAttention(small(layers=2, fuse=fuse), query_size, 6).double().eval()
    with torch.no_grad():
        for norm in trunk.norms:
            norm.weight.normal_()
            norm.bias.normal_()
    assert (trunk.input_query is None) is (query_size == 6 and fuse == "mean"), (
        "one matrix for equal means"
    )
    seen = features(items=SIZE * spread + 2)
    query, items = (
        numbers(2, query_size, seed=21),
        numbers(SIZE * spread + 2, 6, seed=22),
    )
    u, v = (x.detach().numpy() for x in trunk(query, items, seen))
    w = {key: value.detach().numpy() for key, value in trunk.named_parameters()}
    read = items.numpy() @ w["input_item.weight"].T
    for row in range(2):
        inside = [place for place in seen.pool[row].tolist() if place >= 0]
        own = (
            w["input_item.weight"]
            if trunk.input_query is None
            else w["input_query.weight"]
        )
        q = own @ query[row].numpy()
        for attention, norm in zip(trunk.attention, trunk.norms, strict=True):
            q = normed(norm, q + attended(attention, q, read[inside]))
        assert u[row] == pytest.approx(unit(w["project_query.weight"] @ q))
        assert v[row, : len(inside)] == pytest.approx(
            unit(read[inside] @ w["project_item.weight"].T)
        )


def test_the_set_encoder_reads_candidates_beside_each_other_and_not_beside_padding() -> (
    None
):
    torch.manual_seed(0)
    trunk = (
        CrossAttention(small(trunk="set_encoder", pool_layers=2), 6, 6).double().eval()
    )
    assert [layer.linear1.out_features for layer in trunk.pool_encoder] == [
        4 * HIDDEN
    ] * 2
    seen, query, items = features(), numbers(2, 6, seed=21), numbers(7, 6, seed=22)
    u, v = trunk(query, items, seen)
    for row in range(2):
        inside = [place for place in seen.pool[row].tolist() if place >= 0]
        pool = trunk.input_item(items[inside])[None]
        for layer in trunk.pool_encoder:
            pool = layer(pool)
        expected = torch.nn.functional.normalize(trunk.project_item(pool[0]), dim=-1)
        assert torch.allclose(v[row, : len(inside)], expected)
        q = (
            (trunk.input_item if trunk.input_query is None else trunk.input_query)(
                query[row]
            )
            .detach()
            .numpy()
        )
        for attention, norm in zip(trunk.attention, trunk.norms, strict=True):
            q = normed(norm, q + attended(attention, q, pool[0].detach().numpy()))
        assert u[row].detach().numpy() == pytest.approx(
            unit(trunk.project_query.weight.detach().numpy() @ q)
        )


def test_the_bi_encoder_reads_query_and_candidates_by_two_networks_into_unit_vectors() -> (
    None
):
    torch.manual_seed(0)
    trunk = build_trunk(small(trunk="bi_encoder", dropout=0.3), 6, 3).double().eval()
    kinds = [type(layer).__name__ for layer in trunk.query_mlp]
    assert kinds == ["Linear", "LayerNorm", "ReLU", "Dropout", "Linear", "LayerNorm"]
    assert trunk.query_mlp[3].p == 0.3
    seen, query, items = features(), numbers(2, 6, seed=1), numbers(7, 3, seed=2)
    u, v = trunk(query, items, seen)
    assert u.detach().numpy() == pytest.approx(
        unit(trunk.query_mlp(query).detach().numpy())
    )
    rows = trunk.item_mlp(items[seen.pool[1]])
    assert v[1].detach().numpy() == pytest.approx(unit(rows.detach().numpy()))


def test_the_bilinear_head_starts_near_the_identity() -> None:
    torch.manual_seed(0)
    head = head_named("bilinear")(
        PolicyConfig(hidden=64, head="bilinear"), {"image": 8, "text": 8, "answer": 8}
    )
    off = head.weight - torch.eye(64)
    assert 0.009 < off.std().item() < 0.011
    assert abs(off.mean().item()) < 0.001


def test_projections_start_near_the_identity_and_attention_as_torch_starts_it() -> None:
    torch.manual_seed(0)
    trunk = CrossAttention(PolicyConfig(hidden=64), 128, 128)
    off = trunk.project_item.weight - torch.eye(64)
    assert 0.009 < off.std().item() < 0.011
    assert abs(off.diagonal().mean().item()) < 0.01
    attention = trunk.attention[0]
    assert attention.in_proj_weight.abs().max().item() <= math.sqrt(
        6 / (64 + 3 * 64)
    ), "xavier over the stacked matrix"
    assert not attention.in_proj_bias.any()
    assert not attention.out_proj.bias.any()


# the policy put together


def test_blocks_are_fused_as_a_unit_mean_or_side_by_side() -> None:
    blocks = {"image": numbers(3, 6), "text": numbers(3, 6, seed=1)}
    a, b = (unit(block.numpy()) for block in blocks.values())
    assert fuse_blocks(blocks, ("image", "text"), "mean").numpy() == pytest.approx(
        unit((a + b) / 2)
    )
    assert fuse_blocks(blocks, ("image", "text"), "concat").numpy() == pytest.approx(
        np.concatenate([a, b], axis=-1)
    )
    assert fused_size(DIMS, ("text", "answer"), "concat") == 9
    assert fused_size(DIMS, ("answer", "text"), "mean") == 3


def built(**changes: object) -> tuple[Policy, Encoded, Features]:
    dims = {"image": 6, "text": 6, "answer": 6}
    policy = build_policy(small(**changes), dims, items=7, seed=1).double().eval()
    plain = features()
    seen = Features(
        plain.query,
        {**plain.items, "answer": numbers(7, 6, seed=31)},
        plain.pool,
        plain.rows,
    )
    return policy, policy.prepare(seen), seen


def stepped(
    policy: Policy, encoded: Encoded, picks: tuple[int, ...]
) -> list[torch.Tensor]:
    """Scores before the first pick and after each."""
    state, found = policy.start(encoded, 2, len(picks) + 1), []
    for pick in picks:
        found.append(policy.scores(encoded, state).detach())
        state = policy.advance(encoded, state, torch.full((2, 2), pick))
    return [*found, policy.scores(encoded, state).detach()]


def test_step_vectors_move_what_looks_for_the_next_pick_and_terms_count_from_the_second_on() -> (
    None
):
    policy, encoded, _ = built(
        step_embedding=True,
        state="scalar_gate",
        mmr="max",
        mmr_strength=0.5,
        temperature=0.5,
    )
    assert policy.step_vectors.shape == (3, HIDDEN)
    found = stepped(policy, encoded, (1, 0))
    steps = policy.step_vectors.detach().numpy()
    gate = 1 / (1 + math.exp(-0.6))
    for row in range(2):
        u, v = encoded["u"][row].detach().numpy(), encoded["v"][row].detach().numpy()
        expected = [v @ unit(u + steps[0]) / 0.5]
        h = unit(gate * u + (1 - gate) * v[1])
        expected.append(v @ unit(h + steps[1]) / 0.5 - softplus(0.5) * (v @ v[1]))
        h = unit(gate * h + (1 - gate) * v[0])
        expected.append(
            v @ unit(h + steps[2]) / 0.5
            - softplus(0.5) * np.maximum(v @ v[1], v @ v[0])
        )
        for step in range(3):
            assert found[step][row, 1].numpy() == pytest.approx(expected[step])


def test_a_selector_without_memory_scores_once_and_terms_still_count() -> None:
    policy, encoded, _ = built(mmr="max", mmr_strength=0.5, temperature=0.5)
    assert policy.constant
    found = stepped(policy, encoded, (1,))
    for row in range(2):
        u, v = encoded["u"][row].detach().numpy(), encoded["v"][row].detach().numpy()
        assert found[0][row, 0].numpy() == pytest.approx(v @ u / 0.5)
        assert found[1][row, 0].numpy() == pytest.approx(
            v @ u / 0.5 - softplus(0.5) * (v @ v[1])
        )


@pytest.mark.parametrize(
    ("changes", "constant"),
    [
        ({}, True),
        ({"state": "gru"}, False),
        ({"step_embedding": True}, False),
        ({"decoder": "slots"}, False),
    ],
)
def test_scores_are_kept_only_where_no_step_differs(
    changes: dict[str, object], constant: bool
) -> None:
    assert built(**changes)[0].constant is constant


@pytest.mark.parametrize(
    ("changes", "apart"),
    [
        ({"trunk": "bi_encoder"}, True),
        ({}, False),
        ({"trunk": "bi_encoder", "decoder": "refine"}, False),
    ],
)
def test_candidates_are_apart_only_where_no_rival_is_looked_at(
    changes: dict[str, object], apart: bool
) -> None:
    assert built(**changes)[0].candidates_apart is apart


def test_stop_is_one_more_unit_vector_and_has_no_set_term() -> None:
    policy, encoded, _ = built(
        stop="anywhere", mmr="max", state="none", temperature=0.5, step_embedding=True
    )
    assert policy.step_vectors.shape == (4, HIDDEN), "stopping is a step of its own"
    stop = unit(policy.stop_vector.detach().numpy())
    assert encoded["v"][:, -1].detach().numpy() == pytest.approx(np.stack([stop, stop]))
    found = stepped(policy, encoded, (1,))
    steps = policy.step_vectors.detach().numpy()
    for row in range(2):
        u = encoded["u"][row].detach().numpy()
        assert found[1][row, 0, -1].item() == pytest.approx(
            stop @ unit(u + steps[1]) / 0.5
        )


def test_a_stopped_member_keeps_what_it_remembers() -> None:
    policy, encoded, _ = built(stop="anywhere", state="gru")
    state = policy.advance(encoded, policy.start(encoded, 2), torch.full((2, 2), SIZE))
    before = state.memory["h"]
    moved = policy.advance(encoded, state, torch.tensor([[0, SIZE], [0, SIZE]])).memory[
        "h"
    ]
    assert torch.equal(moved, before)


# decoders


@pytest.mark.parametrize("attends", [True, False])
def test_slots_attend_to_each_other_and_to_the_pool_where_asked(attends: bool) -> None:
    torch.manual_seed(0)
    config = small(decoder="slots", slot_layers=2, slot_attends=attends)
    module = Slots(config).double().eval()
    mask = torch.tensor([[True, True, True, False]])
    u, v = numbers(1, HIDDEN), numbers(1, 4, HIDDEN, seed=1)
    found = module(u, v, mask, 2)
    z = u.numpy() + module.vectors.detach().numpy()[:2]
    assert found.shape == (1, 2, HIDDEN)
    for own, norm in zip(module.attention, module.norms, strict=True):
        table = torch.tensor(z)[None]
        z = z + own(table, table, table)[0][0].detach().numpy()
        z = np.stack([normed(norm, x) for x in z])
    if attends:
        looked = [attended(module.pool_attention, x, v[0, :3].numpy()) for x in z]
        z = np.stack([normed(module.pool_norm, x) for x in z + np.stack(looked)])
    assert found[0].detach().numpy() == pytest.approx(unit(z))


def test_a_slot_decoder_looks_with_the_slot_of_the_step() -> None:
    policy, encoded, seen = built(decoder="slots", temperature=0.5)
    found = stepped(policy, encoded, (1, 0))
    slots = policy.slots(encoded["u"], encoded["v"], seen.mask, 3).detach()
    for step in range(3):
        assert torch.allclose(
            found[step][:, 0],
            (encoded["v"] @ slots[:, step].unsqueeze(-1)).squeeze(-1) / 0.5,
        )


def test_slots_past_the_vectors_they_have_take_the_last() -> None:
    torch.manual_seed(0)
    module = Slots(small(slot_layers=0, slot_attends=False))
    found = module(
        torch.zeros(1, HIDDEN),
        torch.zeros(1, 1, HIDDEN),
        torch.ones(1, 1, dtype=torch.bool),
        10,
    )
    assert torch.equal(found[0, 7], found[0, 9])
    assert not torch.equal(found[0, 6], found[0, 7])
    wide = small(hidden=256)
    assert 0.018 < Slots(wide).vectors.std().item() < 0.022


@pytest.mark.parametrize("kind", ["attention", "mlp"])
@pytest.mark.parametrize("others", ["keep", "drop"])
def test_refining_scores_the_best_again_and_keeps_or_loses_the_others(
    kind: str, others: str
) -> None:
    torch.manual_seed(0)
    refine = (
        Refine(small(decoder="refine", refine=kind, refine_top=2, refine_others=others))
        .double()
        .eval()
    )
    h, v = numbers(1, 2, HIDDEN), numbers(1, 4, HIDDEN, seed=1)
    cheap = torch.tensor(
        [[[0.1, 0.9, 0.5, 0.7], [0.4, 0.3, 0.2, 0.1]]], dtype=torch.float64
    )
    used = torch.tensor([[[False, False, False, True], [False, True, True, True]]])
    best, second = refine(h, v, cheap, used)
    assert best[0, 0].tolist() == [1, 2]
    assert best[0, 1, 0].item() == 0
    for member, places in enumerate(([1, 2], [0])):
        for column, place in enumerate(places):
            state, candidate = h[0, member].numpy(), v[0, place].numpy()
            if kind == "attention":
                looked = unit(
                    normed(
                        refine.norm,
                        state + attended(refine.attention, state, v[0, places].numpy()),
                    )
                )
                expected = candidate @ looked
            else:
                expected = float(
                    refine.mlp(torch.tensor(np.concatenate([state, candidate]))).item()
                )
            assert second[0, member, column].item() == pytest.approx(expected)
    merged = refine.merge(cheap, best, second)[0, 0]
    rest = [0.1, 0.7] if others == "keep" else [LOST, LOST]
    assert merged[[0, 3]].tolist() == pytest.approx(rest)
    assert merged[[1, 2]].tolist() == pytest.approx(second[0, 0].tolist())
    assert LOST == -100.0


def test_a_refining_policy_puts_both_looks_on_one_scale() -> None:
    policy, encoded, _ = built(
        decoder="refine",
        refine="attention",
        refine_top=2,
        state="none",
        temperature=0.5,
    )
    (scores,) = stepped(policy, encoded, ())
    h = encoded["u"].unsqueeze(1).expand(-1, 2, -1)
    cheap = policy.head(h, encoded)
    best, second = policy.refine(h, encoded["v"], cheap, policy.start(encoded, 2).used)
    assert torch.allclose(scores.gather(-1, best), second / 0.5)
    assert policy.refine.top == 2


@pytest.mark.slow
def test_every_parameter_of_every_preset_lies_in_a_group_by_its_part() -> None:
    parts = {
        "head.": "head",
        "state.": "state",
        "terms.": "set_terms",
        "stop_vector": "stop",
        "slots.": "decoder",
    }
    for name in sorted(catalog.POLICIES):
        config = catalog.load(catalog.POLICIES, name, "preset")
        groups = build_policy(
            config, {"image": 8, "text": 8, "answer": 8}, items=4, seed=0
        ).named_groups()
        for group, names in groups.items():
            for own in names:
                expected = next(
                    (part for start, part in parts.items() if own.startswith(start)),
                    group,
                )
                assert group == expected, own
