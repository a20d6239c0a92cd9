"""The faster parts compute what the model's own parts compute."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_hf import VISION, gemma2, qwen2_5_vl, qwen3_vl
from torch.nn import functional as F

from leverplus.backends.hf import quick
from leverplus.backends.hf.load import load_model
from leverplus.backends.hf.pictures import PictureTable, Unfolded, vision_encoder
from leverplus.backends.hf.reader import tokens_that_fit
from leverplus.recipe.model import ModelSection

GRIDS = [(8, 8), (8, 8), (12, 6), (4, 10), (8, 8)]
"""In patches: windows of 4 x 4 fit the first, the others have rests."""


@pytest.fixture(scope="module", params=[qwen2_5_vl, qwen3_vl])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoModelForImageTextToText

    folder: Path = request.param(tmp_path_factory.mktemp("vision"))
    return AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="sdpa").eval()


def pictures(model: Any) -> list[dict[str, torch.Tensor]]:
    width = model.model.visual.patch_embed.proj.weight[0].numel()
    generator = torch.Generator().manual_seed(0)
    found = []
    for height, length in GRIDS:
        pixels = torch.randn(height * length, width, generator=generator)
        found.append({"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, height, length]])})
    return found


@torch.inference_mode()
def test_features_are_the_models_own(model: Any) -> None:
    """Packed together, windows of several sizes, against transformers' loop over one picture at a time."""
    shown = pictures(model)
    own = [vision_encoder(model)(one)[0] for one in shown]
    assert quick.quicken(model), "something is replaced"
    encode = vision_encoder(model)
    packed = encode({key: torch.cat([one[key] for one in shown]) for key in shown[0]})
    for theirs, ours in zip(own, packed, strict=True):
        torch.testing.assert_close(ours.first, theirs.first, atol=1e-5, rtol=1e-5)
        for one, other in zip(ours.deeper, theirs.deeper, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_widths_are_filled_up_without_changing_the_features(model: Any) -> None:
    shown = pictures(model)[0]
    before = vision_encoder(model)(shown)[0].first
    visual = model.model.visual
    gates = [module for module in visual.modules() if hasattr(module, "gate_proj")]
    for gate in gates:  # 47 is no multiple of 8
        gate.gate_proj, gate.up_proj, gate.down_proj = narrowed(gate, 47)
    narrow = vision_encoder(model)(shown)[0].first
    assert quick.widen(visual, 64) == len(gates)
    assert all(gate.down_proj.in_features == 64 for gate in gates)
    torch.testing.assert_close(vision_encoder(model)(shown)[0].first, narrow, atol=1e-5, rtol=1e-5)
    assert not gates or not torch.equal(narrow, before)
    assert quick.widen(visual, 64) == 0


def narrowed(gate: Any, width: int) -> list[torch.nn.Linear]:
    """A gated network's three layers, of another inner width."""
    made = []
    for name in ("gate_proj", "up_proj", "down_proj"):
        old = getattr(gate, name)
        shape = (old.in_features, width) if name != "down_proj" else (width, old.out_features)
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
    found = quick.attend_in_parts(query, key, value, torch.tensor(ends, dtype=torch.int32), 0.3)
    part = torch.bucketize(torch.arange(12), torch.tensor(ends), right=True)
    mask = part[:, None] == part[None, :]
    whole = [one.transpose(0, 1)[None] for one in (query, key, value)]  # (1, heads, S, D)
    expected = F.scaled_dot_product_attention(*whole, mask, scale=0.3)[0].transpose(0, 1)
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
        mask = (seen | torch.eye(new, kept + new, dtype=torch.bool).roll(kept, 1)) & before
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
    found, _ = quick.attend(torch.nn.Module(), query, key, value, None, scaling=0.5, position_bias=added)
    products = query @ key.transpose(2, 3) * 0.5 + added
    before = torch.ones(3, 9, dtype=torch.bool).tril(6)
    expected = (products.masked_fill(~before, -torch.inf).softmax(-1) @ value).transpose(1, 2)
    torch.testing.assert_close(found, expected)


def test_layers_that_hold_their_numbers_in_another_way_are_not_filled_up() -> None:
    class Packed(torch.nn.Linear):
        """As layers of 4 bits: a kind of linear layer whose weight is no matrix of numbers."""

    gate = torch.nn.Module()
    gate.gate_proj, gate.up_proj, gate.down_proj = Packed(6, 47), Packed(6, 47), Packed(47, 6)
    assert quick.widen(gate, 64) == 0
    assert gate.gate_proj.out_features == 47


def test_a_part_that_this_version_of_torch_lacks_is_left_out(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(self: Any, *_: Any, **__: Any) -> Any:
        raise ImportError("No module named 'torch.nn.attention.varlen'")

    for module in model.modules():
        module.__dict__.pop("forward", None)
    monkeypatch.setattr(quick, "see", lacking)
    assert not set(quick.quicken(model)) & set(quick.WINDOWED)


def test_a_part_that_computes_something_else_is_left_as_it_is(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    visual = model.model.visual
    for module in visual.modules():
        module.__dict__.pop("forward", None)
    monkeypatch.setattr(quick, "cut", lambda self, states: states[:, : self.embed_dim] * 0)
    done = quick.quicken(model)
    assert not set(done) & set(quick.PATCHES)
    assert set(done) & set(quick.WINDOWED)
    assert "forward" not in vars(visual.patch_embed)


def test_pictures_that_do_not_fit_are_encoded_in_smaller_passes() -> None:
    passes: list[int] = []

    def encode(inputs: dict[str, torch.Tensor]) -> list[Any]:
        count = len(inputs["pixel_values"])
        passes.append(count)
        if count > 3:
            raise torch.OutOfMemoryError("too small")
        return [object() for _ in range(count)]

    table = PictureTable(9, encode, capacity=50, device=torch.device("cpu"), turning=False)
    table.per_pass = 8
    slots = []
    for number in range(10):
        shown = Unfolded((9,), None, {"pixel_values": torch.zeros(1, 3)})
        slots.append(table.slot(f"picture {number}", lambda shown=shown: shown))
    assert len(table.features(slots)) == 10
    assert [count for count in passes if count <= 3] == [2] * 5
    assert table.encoded == 10


def test_pictures_that_fit_nowhere_wait_for_whoever_reads_them() -> None:
    def encode(inputs: dict[str, torch.Tensor]) -> list[Any]:
        raise torch.OutOfMemoryError("too small")

    table = PictureTable(9, encode, capacity=50, device=torch.device("cpu"), turning=False)
    table.per_pass = 1
    shown = Unfolded((9,), None, {"pixel_values": torch.zeros(1, 3)})
    slot = table.slot("picture", lambda: shown)
    table.encode_full_stacks()
    with pytest.raises(torch.OutOfMemoryError):
        table.features([slot])


def test_full_stacks_are_encoded_before_anybody_asks(tmp_path: Path) -> None:
    from tiny_hf import ColourTask

    from leverplus.backends.hf.backend import HfBackend
    from leverplus.recipe.model import ModelSection

    task = ColourTask()
    folder = next(iter(VISION.values()))(tmp_path / "model")
    backend = HfBackend(task, ModelSection(name=str(folder), prompt="chat", device="cpu", max_new_tokens=1))
    assert backend.sight is not None
    before, backend.sight.pictures.per_pass = backend.sight.pictures.encoded, 2
    backend.sight.prepare(task.items("train")[:5])
    assert backend.sight.pictures.encoded - before in {4, 5}


@pytest.mark.parametrize(("free", "tokens"), [(120e9, 1 << 17), (10e9, 1 << 13), (1e6, 1024)])
def test_batches_are_as_large_as_the_free_memory_allows(
    monkeypatch: pytest.MonkeyPatch, free: float, tokens: int
) -> None:
    """By hand, for Qwen2.5-VL-3B: 4 * 2 * 36 * 2 * 128 + 3 * 11008 + 12 * 2048 numbers of 2 bytes are 262,656 bytes.

    0.4 of 10 GB hold 15,229 of them, and 8,192 is the power of two below.
    """
    shape = {"num_attention_heads": 16, "num_key_value_heads": 2, "hidden_size": 2048, "num_hidden_layers": 36}
    config = SimpleNamespace(**shape, intermediate_size=11008)
    weight = torch.zeros(1, dtype=torch.bfloat16)
    language: Any = SimpleNamespace(device=torch.device("cuda"), config=config, output=SimpleNamespace(weight=weight))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(free), int(140e9)))
    assert tokens_that_fit(language) == tokens


def test_pictures_that_are_expected_stay_and_others_make_room() -> None:
    def encode(inputs: dict[str, torch.Tensor]) -> list[Any]:
        return [object() for _ in range(len(inputs["pixel_values"]))]

    table = PictureTable(9, encode, capacity=3, device=torch.device("cpu"), turning=False)
    table.per_pass = 2
    shown = Unfolded((9,), None, {"pixel_values": torch.zeros(1, 3)})
    old = [table.slot(name, lambda: shown) for name in ("a", "b", "c")]
    table.features(old)
    table.expect("a")
    for name in ("d", "e"):
        table.slot(name, lambda: shown)
    table.encode_full_stacks()
    assert table.encoded == 5
    assert set(table._features) == {old[0], 3, 4}, "a was expected; b and c made room"


def test_capped_attention_is_read_as_the_model_has_it(tmp_path: Path) -> None:
    model = load_model(gemma2(tmp_path / "capped"), ModelSection(device="cpu")).model
    assert model.get_decoder().config._attn_implementation == "eager"
