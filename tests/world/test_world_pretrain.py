"""The pretraining program runs, and what it writes is what the package reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from benchmarking import load_benchmark

from leverplus.world.weights import load_encoder, load_lvlm, read_card
from leverplus.world.words import ANSWER_END, ANSWER_START, BACKGROUNDS, COLOURS, END, SHAPES

world_pretrain = load_benchmark("world_pretrain")
EpisodeSource, Pretraining = world_pretrain.EpisodeSource, world_pretrain.Pretraining
draw_bank, learning_rate, main = world_pretrain.draw_bank, world_pretrain.learning_rate, world_pretrain.main

TINY = "--steps 2 --batch 4 --warm-up 1 --layers 1 --encoder-steps 2 --encoder-batch 8 --pictures-per-look 1 --probe 2"


@pytest.fixture
def precision() -> Iterator[None]:
    """The program sets the precision of products for the whole process; other tests want their own back."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.slow
@pytest.mark.usefixtures("precision")
def test_two_steps_on_a_cpu_leave_weights_that_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path), "--device", "cpu", *TINY.split()]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["n"] == 2
    assert 0.0 <= figures["zero_shot"] <= 1.0
    model, encoder = load_lvlm(tmp_path), load_encoder(tmp_path)
    assert len(model.blocks) == 1
    assert all(torch.isfinite(parameter).all() for parameter in (*model.parameters(), *encoder.parameters()))
    assert read_card(tmp_path / "model.safetensors")["settings"]["steps"] == 2


def test_the_learning_rate_rises_and_falls() -> None:
    settings = Pretraining(steps=100, warm_up=10)
    rates = [learning_rate(settings, step) for step in range(100)]
    assert rates[0] < rates[5] < rates[10]
    assert max(rates) == pytest.approx(settings.learning_rate)
    assert rates[-1] < 0.05 * settings.learning_rate
    assert all(left >= right for left, right in pairwise(rates[10:]))


def test_episodes_follow_the_seed_and_hold_nine_answered_items() -> None:
    one, same, other = (EpisodeSource(Pretraining(seed=seed, pictures_per_look=1), "cpu").draw(8) for seed in (0, 0, 1))
    assert torch.equal(one.question, same.question)
    assert torch.equal(one.answer, same.answer)
    assert not torch.equal(one.answer, other.answer)
    assert one.question.shape == (8, 9, 4)
    first, second = one.answer.unbind(-1)
    assert bool(((first >= ANSWER_START) & (first < ANSWER_END)).all())
    assert bool(((second == END) | (second >= ANSWER_START) & (second < ANSWER_END)).all())
    looks = len(SHAPES) * len(COLOURS) * len(BACKGROUNDS)
    assert int(one.picture.min()) >= 0
    assert int(one.picture.max()) < looks


def test_the_bank_holds_every_look() -> None:
    bank = draw_bank(Pretraining(pictures_per_look=1), "cpu")
    assert bank.shape == (len(SHAPES) * len(COLOURS) * len(BACKGROUNDS), 3, 32, 32)
    assert bank.dtype == torch.uint8
