"""What every selector must hold, whoever wrote it: `check_policy` goes over all of it in one pass."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch

from leverplus.arms.pairs import NAMES
from leverplus.learn.checkpoint import load_checkpoint, save_checkpoint
from leverplus.learn.policies.base import PAD, STOP, Features, Policy, sequence_logprobs
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.decode import beam, greedy
from leverplus.learn.policies.settings import PolicyConfig

DIMS = {"image": 12, "text": 12, "answer": 12}
ITEMS = 10


def features(
    batch: int = 3, size: int = 6, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Features:
    """Random queries with pools of random items."""
    generator = torch.Generator().manual_seed(seed)

    def block(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    items = {name: block(ITEMS, width) for name, width in DIMS.items()}
    pools = [torch.randperm(ITEMS, generator=generator)[:size] for _ in range(batch)]
    query = {"image": block(batch, 12), "text": block(batch, 12)}
    pairs = block(batch, size, len(NAMES))
    return Features(query, items, torch.stack(pools), torch.arange(ITEMS), pairs=pairs)


def check_policy(config: PolicyConfig, folder: Path) -> None:
    """Raises AssertionError where a selector of this form breaks a promise."""
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    policy = build_policy(config, DIMS, items=ITEMS, seed=1).eval()
    again = build_policy(config, DIMS, items=ITEMS, seed=1)
    assert torch.equal(torch.rand(1), expected), "the caller's generator is left alone"
    for left, right in zip(policy.parameters(), again.parameters(), strict=True):
        assert torch.equal(left, right), "the same seed builds the same selector"
    check_probabilities(policy)
    check_order_and_padding(policy)
    check_choices(policy)
    check_groups(policy)
    check_saving(policy, folder)


def check_probabilities(policy: Policy) -> None:
    """All ordered lists of two have probabilities that sum to one."""
    own = build_policy(policy.config, DIMS, items=ITEMS, seed=1).eval().double()
    pairs = [list(pair) for pair in itertools.permutations(range(5), 2)]
    if policy.stops:
        pairs += [[first, STOP] for first in range(5)] + [[STOP, PAD]]
    sequences = torch.tensor(pairs).expand(2, -1, -1)
    encoded = own.prepare(features(2, 5, torch.float64))
    total = sequence_logprobs(own, encoded, sequences).total.exp().sum(-1)
    assert torch.allclose(total, torch.ones_like(total)), "probabilities sum to one"


def check_order_and_padding(policy: Policy) -> None:
    """Neither the order of a pool nor its padding changes a score, nor do other queries of the batch."""
    plain = features(3, 6)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(4))
    shuffled = torch.cat([plain.pool[:, order], torch.full((3, 2), -1)], dim=1)
    moved = Features(plain.query, plain.items, shuffled, plain.rows)
    sequences = torch.tensor([[[0, 3], [5, 1]]]).expand(3, -1, -1)
    places = torch.argsort(order)[sequences]
    before = sequence_logprobs(policy, policy.prepare(plain), sequences).steps
    after = sequence_logprobs(policy, policy.prepare(moved), places).steps
    assert torch.allclose(before, after, atol=1e-5), "order and padding change nothing"
    query = {name: block[:1] for name, block in plain.query.items()}
    alone = Features(query, plain.items, plain.pool[:1], plain.rows)
    single = sequence_logprobs(policy, policy.prepare(alone), sequences[:1]).steps
    assert torch.allclose(before[:1], single, atol=1e-5), "one query is a batch of one"


def check_choices(policy: Policy) -> None:
    """What is chosen is the likeliest, and nothing is chosen twice."""
    encoded = policy.prepare(features())
    picks = greedy(policy, encoded, 2).positions  # (B, 1, 2)
    assert bool((picks[..., 0] != picks[..., 1]).all()), "no candidate twice"
    table = sequence_logprobs(policy, encoded, picks, allow_stop=False).table
    assert torch.equal(table.argmax(-1), picks), "greedy takes the likeliest"


def check_groups(policy: Policy) -> None:
    """Every parameter is in one group that `freeze` can name, and learns."""
    policy = build_policy(policy.config, DIMS, items=ITEMS, seed=1).eval()
    sequences = torch.tensor([[[0, 3], [5, 1], [2, 4]]]).expand(3, -1, -1)
    weight = torch.randn(3, 3, generator=torch.Generator().manual_seed(2))
    logprobs = sequence_logprobs(policy, policy.prepare(features()), sequences)
    torch.autograd.backward((logprobs.total * weight).sum())
    grouped: list[str] = []
    for names in policy.named_groups().values():
        grouped += names
    named = dict(policy.named_parameters())
    assert sorted(grouped) == sorted(named), "every parameter is in one group"
    silent = [name for name, parameter in named.items() if parameter.grad is None]
    assert silent == [], "every parameter has a gradient"


def check_saving(policy: Policy, folder: Path) -> None:
    """What is saved and loaded scores and chooses the same, to the last bit."""
    save_checkpoint(folder / "best", policy, "abc", {"epoch": 2})
    loaded, description = load_checkpoint(folder / "best")
    sequences = torch.tensor([[[0, 3], [4, 1]]]).expand(3, -1, -1)
    with torch.no_grad():
        before, after = policy.prepare(features()), loaded.prepare(features())
        own, other = policy.logits(before, sequences), loaded.logits(after, sequences)
        assert torch.equal(own, other), "a loaded selector scores the same"
        chosen = beam(policy, before, 2, 3).positions
        assert torch.equal(chosen, beam(loaded, after, 2, 3).positions)
    assert loaded.config == policy.config
    assert description["class"] == type(policy).__name__
    assert (description["recipe_hash"], description["extra"]) == ("abc", {"epoch": 2})
