"""The faster parts compute what the model's own parts compute."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_hf import gemma2, qwen2_5_vl, qwen3_vl
from torch.nn import functional as F

from leverplus.models.hf import quick
from leverplus.models.hf.load import load_model
from leverplus.models.hf.pictures import PictureTable, Unfolded, vision_encoder
from leverplus.models.hf.reader import tokens_that_fit
from leverplus.models.settings import ModelSection

GRIDS = [(8, 8), (8, 8), (12, 6), (4, 10), (8, 8)]
"""In patches: windows of 4 x 4 fit the first, the others have rests."""


@pytest.fixture(scope="module", params=[qwen2_5_vl, qwen3_vl])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    from transformers import AutoModelForImageTextToText

    folder: Path = request.param(tmp_path_factory.mktemp("vision"))
    return AutoModelForImageTextToText.from_pretrained(
        folder, attn_implementation="sdpa"
    ).eval()


def pictures(model: Any) -> list[dict[str, torch.Tensor]]:
    width = model.model.visual.patch_embed.proj.weight[0].numel()
    generator = torch.Generator().manual_seed(0)
    found = []
    for height, length in GRIDS:
        pixels = torch.randn(height * length, width, generator=generator)
        found.append(
            {
                "pixel_values": pixels,
                "image_grid_thw": torch.tensor([[1, height, length]]),
            }
        )
    return found


@pytest.mark.slow
@torch.inference_mode()
def test_features_are_the_models_own(model: Any) -> None:
    """Packed together, windows of several sizes, against transformers' loop over one picture at a time."""
    shown = pictures(model)
    own = [vision_encoder(model)(one)[0] for one in shown]
    assert quick.quicken(model), "something is replaced"
    encode = vision_encoder(model)
    packed = encode({key: torch.cat([one[key] for one in shown]) for key in shown[0]})
    for theirs, ours in zip(own, packed, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_widths_are_filled_up_without_changing_the_features(model: Any) -> None:
    shown = pictures(model)[0]
    before = vision_encoder(model)(shown)[0][0]
    visual = model.model.visual
    gates = [module for module in visual.modules() if hasattr(module, "gate_proj")]
    for gate in gates:  # 47 is no multiple of 8
        gate.gate_proj, gate.up_proj, gate.down_proj = narrowed(gate, 47)
    narrow = vision_encoder(model)(shown)[0][0]
    assert quick.widen(visual, 64) == len(gates)
    assert all(gate.down_proj.in_features == 64 for gate in gates)
    torch.testing.assert_close(
        vision_encoder(model)(shown)[0][0], narrow, atol=1e-5, rtol=1e-5
    )
    assert not gates or not torch.equal(narrow, before)
    assert quick.widen(visual, 64) == 0


def narrowed(gate: Any, width: int) -> list[torch.nn.Linear]:
    """A gated network's three layers, of another inner width."""
    made = []
    for name in ("gate_proj", "up_proj", "down_proj"):
        old = getattr(gate, name)
        shape = (
            (old.in_features, width)
            if name != "down_proj"
            else (width, old.out_features)
        )
        new = torch.nn.Linear(*shape, bias=old.bias is not None).requires_grad_(False)
        new.weight.copy_(old.weight[: new.out_features, : new.in_features])
        if old.bias is not None:
            new.bias.copy_(old.bias[: new.out_features])
        made.append(new)
    return made


@pytest.mark.parametrize("ends", [[0, 6, 12], [0, 5, 5, 12], [0, 3, 4, 12]])
def test_attention_in_parts_by_a_mask_over_everything(ends: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    query, key, value = torch.randn(3, 12, 2, 8, generator=generator)
    found = quick.attend_in_parts(
        query, key, value, torch.tensor(ends, dtype=torch.int32), 0.3
    )
    part = torch.bucketize(torch.arange(12), torch.tensor(ends), right=True)
    mask = part[:, None] == part[None, :]
    whole = [
        one.transpose(0, 1)[None] for one in (query, key, value)
    ]  # (1, heads, S, D)
    expected = F.scaled_dot_product_attention(*whole, mask, scale=0.3)[0].transpose(
        0, 1
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("new", "kept"), [(1, 6), (3, 6), (5, 0), (12, 6)])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_to_kept_places_by_hand(new: int, kept: int, masked: bool) -> None:
    """Four query heads, two heads of keys: softmax of the products, a place sees what stands before it."""
    generator = torch.Generator().manual_seed(2)
    query = torch.randn(2, 4, new, 8, generator=generator)
    key, value = torch.randn(2, 2, 2, kept + new, 8, generator=generator)
    before = torch.ones(new, kept + new, dtype=torch.bool).tril(kept)
    mask = None
    if masked:
        seen = torch.rand(2, 1, new, kept + new, generator=generator) < 0.7
        mask = (
            seen | torch.eye(new, kept + new, dtype=torch.bool).roll(kept, 1)
        ) & before
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 2, True
    found, _ = quick.attend(module, query, key, value, mask, scaling=0.5)
    products = query @ key.repeat_interleave(2, 1).transpose(2, 3) * 0.5
    allowed = before if mask is None else mask
    weights = products.masked_fill(~allowed, -torch.inf).softmax(-1)
    expected = (weights @ value.repeat_interleave(2, 1)).transpose(1, 2)
    torch.testing.assert_close(found, expected)


def test_what_a_model_adds_to_the_products_of_attention_is_not_lost() -> None:
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(2, 4, 3, 8, generator=generator)
    key, value = torch.randn(2, 2, 4, 9, 8, generator=generator)
    added = torch.randn(1, 4, 3, 9, generator=generator)
    found, _ = quick.attend(
        torch.nn.Module(), query, key, value, None, scaling=0.5, position_bias=added
    )
    products = query @ key.transpose(2, 3) * 0.5 + added
    before = torch.ones(3, 9, dtype=torch.bool).tril(6)
    expected = (
        products.masked_fill(~before, -torch.inf).softmax(-1) @ value
    ).transpose(1, 2)
    torch.testing.assert_close(found, expected)


def test_a_part_that_is_lacking_or_computes_something_else_is_left_as_it_is(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(self: Any, *_: Any, **__: Any) -> Any:
        raise ImportError("No module named 'torch.nn.attention.varlen'")

    for module in model.modules():
        module.__dict__.pop("forward", None)
    monkeypatch.setattr(quick, "see", lacking)
    other = lambda self, states: states[:, : self.embed_dim] * 0  # noqa: E731
    monkeypatch.setattr(quick, "cut", other)
    assert not set(quick.quicken(model)) & {*quick.WINDOWED, *quick.PATCHES}
    assert "forward" not in vars(model.model.visual.patch_embed)


def table_of(most: int, capacity: int = 50) -> tuple[PictureTable, list[int]]:
    """A table whose device encodes `most` pictures in a pass; the passes that were tried."""
    passes: list[int] = []

    def encode(inputs: dict[str, torch.Tensor]) -> list[Any]:
        passes.append(len(inputs["pixel_values"]))
        if passes[-1] > most:
            raise torch.OutOfMemoryError("too small")
        return [object() for _ in range(passes[-1])]

    device = torch.device("cpu")
    return PictureTable(
        9, encode, capacity=capacity, device=device, turning=False
    ), passes


def slots_of(table: PictureTable, names: str) -> list[int]:
    shown = Unfolded((9,), None, {"pixel_values": torch.zeros(1, 3)})
    return [table.slot(name, lambda: shown) for name in names]


def test_pictures_that_do_not_fit_are_encoded_in_smaller_passes_or_wait() -> None:
    table, passes = table_of(3)
    table.per_pass = 8
    assert len(table.features(slots_of(table, "abcdefghij"))) == 10
    assert [count for count in passes if count <= 3] == [2] * 5
    assert table.encoded == 10
    nowhere, _ = table_of(0)
    nowhere.per_pass = 1
    slots = slots_of(nowhere, "a")
    nowhere.encode_full_stacks()
    with pytest.raises(torch.OutOfMemoryError):
        nowhere.features(slots)


def test_pictures_that_are_expected_stay_and_others_make_room() -> None:
    table, _ = table_of(50, capacity=3)
    table.per_pass = 2
    old = slots_of(table, "abc")
    table.features(old)
    table.expect("a")
    slots_of(table, "de")
    table.encode_full_stacks()
    assert table.encoded == 5
    assert set(table._features) == {old[0], 3, 4}, "a was expected; b and c made room"


@pytest.mark.parametrize(
    ("free", "tokens"), [(120e9, 1 << 17), (10e9, 1 << 13), (1e6, 1024)]
)
def test_batches_are_as_large_as_the_free_memory_allows(
    monkeypatch: pytest.MonkeyPatch, free: float, tokens: int
) -> None:
    """By hand, for Qwen2.5-VL-3B: 4 * 2 * 36 * 2 * 128 + 3 * 11008 + 12 * 2048 numbers of 2 bytes are 262,656 bytes.

    0.4 of 10 GB hold 15,229 of them, and 8,192 is the power of two below.
    """
    shape = {
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "hidden_size": 2048,
        "num_hidden_layers": 36,
    }
    config = SimpleNamespace(**shape, intermediate_size=11008)
    weight = torch.zeros(1, dtype=torch.bfloat16)
    language: Any = SimpleNamespace(
        device=torch.device("cuda"),
        config=config,
        output=SimpleNamespace(weight=weight),
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(free), int(140e9)))
    assert tokens_that_fit(language) == tokens


def test_capped_attention_is_read_as_the_model_has_it(tmp_path: Path) -> None:
    model = load_model(gemma2(tmp_path / "capped"), ModelSection(device="cpu")).model
    assert model.get_decoder().config._attn_implementation == "eager"
