"""Divergences: exact values against brute force, estimators against their expectation."""

from __future__ import annotations

import pytest
import torch

from leverplus.learn.maths import divergences as d


def tables(seed: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    logits[..., 1] = -torch.inf
    return d.masked_log_softmax(logits[0]), d.masked_log_softmax(logits[1])


def test_exact_kl_equals_the_sum_over_allowed_actions() -> None:
    p, q = tables(0, 3, 5)
    brute = [
        sum(float(p[i, a].exp() * (p[i, a] - q[i, a])) for a in (0, 2, 3, 4))
        for i in range(3)
    ]
    assert d.categorical_kl(p, q).tolist() == pytest.approx(brute)


def test_kl_of_a_policy_with_itself_is_exactly_zero_and_masked_entries_pass_no_nan() -> (
    None
):
    p, _ = tables(1, 4, 6)
    logits = p.clone().requires_grad_()
    kl = d.categorical_kl(d.masked_log_softmax(logits), p.detach())
    kl.sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert d.categorical_kl(p, p).tolist() == [0.0] * 4


def test_a_row_with_nothing_allowed_stays_masked_without_nan() -> None:
    logits = torch.full((2, 3), -torch.inf)
    logits[0] = torch.tensor([1.0, 2.0, 3.0])
    logits.requires_grad_()
    result = d.masked_log_softmax(logits)
    assert (result[1] == -torch.inf).all()
    result[0].sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_estimators_average_to_the_exact_kl_except_the_inverted_one() -> None:
    p, q = tables(2, 5)
    weight = p.exp()
    legal = p > -torch.inf
    exact = float(d.categorical_kl(p, q))
    mean = {
        name: float((weight * getattr(d, name)(p, q))[legal].sum())
        for name in ("k1", "k3", "k3_inverted")
    }
    assert mean["k1"] == pytest.approx(exact)
    assert mean["k3"] == pytest.approx(exact)
    assert mean["k3_inverted"] != pytest.approx(exact, rel=0.05)


def test_as_a_loss_k2_has_the_gradient_of_the_kl_k1_has_none_and_k3_another() -> None:
    logits = torch.randn(
        2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )
    weight, q = torch.softmax(logits[0], -1), torch.log_softmax(logits[1], -1)

    def gradient(name: str) -> torch.Tensor:
        free = logits[0].clone().requires_grad_()
        p = torch.log_softmax(free, -1)
        value = (
            d.categorical_kl(p, q)
            if name == "exact"
            else (weight * getattr(d, name)(p, q)).sum()
        )
        return torch.autograd.grad(value, free)[0]

    torch.testing.assert_close(gradient("k2"), gradient("exact"))
    torch.testing.assert_close(gradient("k1"), torch.zeros(5, dtype=torch.float64))
    assert not torch.allclose(gradient("k3"), gradient("exact"), rtol=0.05)


def test_three_nats_read_seventeen_when_k3_is_inverted() -> None:
    new, reference = torch.tensor(3.06), torch.tensor(0.0)
    assert float(d.k3_inverted(new, reference)) == pytest.approx(17.3, abs=0.1)
    assert float(d.k3(new, reference)) == pytest.approx(2.1, abs=0.05)


def test_entropy_of_a_uniform_row_is_the_log_of_its_size() -> None:
    logits = torch.zeros(4)
    logits[0] = -torch.inf
    log_p = d.masked_log_softmax(logits)
    assert float(d.entropy(log_p)) == pytest.approx(torch.tensor(3.0).log().item())
    assert float(d.total_variation(log_p, log_p)) == 0.0


def test_entropy_total_variation_and_estimators_by_hand() -> None:
    p, q = (
        torch.tensor([0.5, 0.25, 0.25, 0.0]).log(),
        torch.tensor([0.25, 0.25, 0.5, 0.0]).log(),
    )
    assert float(d.entropy(p)) == pytest.approx(1.5 * torch.tensor(2.0).log().item())
    assert float(d.total_variation(p, q)) == pytest.approx(0.25)
    assert float(d.categorical_kl(p, q)) == pytest.approx(
        0.25 * torch.tensor(2.0).log().item()
    )
    left, right = torch.tensor(-1.0), torch.tensor(-3.0)
    assert float(d.k1(left, right)) == 2.0
    assert float(d.k2(left, right)) == 2.0
    assert float(d.k3(left, right)) == pytest.approx(
        torch.tensor(-2.0).exp().item() + 1.0
    )
    assert float(d.k3_inverted(left, right)) == pytest.approx(
        torch.tensor(2.0).exp().item() - 3.0
    )


def test_masked_log_softmax_is_that_of_the_allowed_actions() -> None:
    found = d.masked_log_softmax(torch.tensor([[1.0, -torch.inf, 2.0]]))
    expected = torch.log_softmax(torch.tensor([1.0, 2.0]), -1)
    assert found[0, [0, 2]].tolist() == pytest.approx(expected.tolist())
    assert found[0, 1] == -torch.inf
