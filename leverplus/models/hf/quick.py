"""Makes a loaded model of transformers faster without changing what it computes.

- Vision attention reads all windows or pictures of one length in one call; transformers loops over them.
- Attention behind kept keys and values needs no mask where every kept place is seen, so the fast kernels take it.
- The cut of a picture into patches is one matrix product; as a convolution in three dimensions it is slow in bfloat16.
- On a GPU: widths that tensor cores cannot take are filled up with zeros; norms, and on the vision side rotary
  positions and gates, are one kernel each; cuDNN's attention, which plans anew for every size of batch, is left out.

Each part is compared with the model's own on a few numbers before it takes its place; one that differs is left out.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ATTENTION = "leverplus"
"""The name under which `attend` is registered with transformers."""

KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Without cuDNN's, which takes 60 ms to plan for a size it has not seen: every step of writing is one."""

MORE_THAN_PRODUCTS = ("position_bias", "softcap", "s_aux")
"""What some models add to the products of queries and keys, or do to them; torch's attention function takes a mask."""

FEW_PLACES = 8
"""New places up to which query heads that share keys are read as further places instead of copying the keys."""

WIDTH = 64
"""Widths on a GPU that are no multiple of 8, as tensor cores want it in bfloat16, are filled up to one of this."""

WINDOWED = (
    "Qwen2_5_VLVisionAttention",
    "Qwen3VLVisionAttention",
    "Qwen3VLMoeVisionAttention",
)
"""Vision attention modules that are given packed pictures or windows and where each one begins."""

PATCHES = (
    "Qwen2_5_VisionPatchEmbed",
    "Qwen3VLVisionPatchEmbed",
    "Qwen3VLMoeVisionPatchEmbed",
)
"""Modules that apply a convolution to patches that are cut out already."""

GATES = ("Qwen2_5_VLMLP",)
"""Gated networks of vision sides."""

NORMS = (
    "Qwen2RMSNorm",
    "Qwen2_5_VLRMSNorm",
    "Qwen3RMSNorm",
    "Qwen3VLTextRMSNorm",
    "LlamaRMSNorm",
    "MistralRMSNorm",
)


def quicken(model: Any) -> list[str]:
    """Put the faster parts into a model that is on its device; returns the names of the parts that were replaced."""
    done = _replace(model, WINDOWED, see, _packed_probes)
    done += _replace(
        model, PATCHES, cut, lambda own: _probe(own.proj.weight.flatten(1))
    )
    if next(model.parameters()).device.type == "cuda":
        done += _replace(model, NORMS, norm, lambda own: _probe(own.weight[None]))
        done += _replace(model, GATES, gate, lambda own: _probe(own.gate_proj.weight))
        if widen(model, WIDTH):
            done.append("widths")
    return done


Probes = Iterator[tuple[Tensor, dict[str, Any]]]
"""What a part is tried with: numbers for its first argument, and the others by name."""


@torch.inference_mode()
def _replace(
    model: nn.Module,
    names: tuple[str, ...],
    forward: Callable[..., Any],
    probes: Callable[[Any], Probes],
) -> list[str]:
    """Give modules of these classes another forward, if the first of its class computes the same with it."""
    verdicts: dict[str, bool] = {}
    for module in model.modules():
        kind = type(module).__name__
        if kind not in names:
            continue
        quick = types.MethodType(forward, module)
        if kind not in verdicts:
            try:
                verdicts[kind] = all(
                    _close(module.forward(states, **more), quick(states, **more))
                    for states, more in probes(module)
                )
            # another version of torch or transformers
            except (TypeError, RuntimeError, AttributeError, ImportError):
                verdicts[kind] = False
        if verdicts[kind]:
            module.forward = quick
    return [kind for kind, good in verdicts.items() if good]


def _random(like: Tensor, *shape: int) -> Tensor:
    seeded = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=seeded).to(like)


def _probe(weight: Tensor) -> Probes:
    """Three rows of numbers for a part whose weight is (outputs, inputs)."""
    yield _random(weight, 3, weight.shape[1]), {}


def _packed_probes(module: Any) -> Probes:
    weight = module.qkv.weight
    half = _random(weight, 14, module.head_dim // 2)
    turn = half.float().repeat(1, 2)
    for ends in ([0, 7, 14], [0, 4, 9, 14]):
        bounds = torch.tensor(ends, dtype=torch.int32, device=weight.device)
        more = {"cu_seqlens": bounds, "position_embeddings": (turn.cos(), turn.sin())}
        yield _random(weight, 14, weight.shape[1]), more


def _close(own: Tensor, ours: Tensor) -> bool:
    """Whether two results differ by rounding alone."""
    size = own.float().abs().max().clamp_min(1e-6)
    exact = {torch.float32: 1e-5, torch.float16: 5e-3}
    allowed = exact.get(own.dtype, 3e-2)
    gap = (own.float() - ours.float()).abs()
    return bool(gap.max() <= allowed * size)


# -- attention of the text side


@contextmanager
def quick_attention(decoder: Any) -> Iterator[None]:
    """Let a decoder attend by `attend` for a while, if its attention is torch's own and can be exchanged by name.

    Only for a while: the model's own pass makes its own masks (for padding, for windows), which `attend` would not get.
    The name stands in the model's config, so only one thread may read with a model at a time.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config = decoder.config
    before = config._attn_implementation
    # A decoder that does not ask transformers for its attention by name (Falcon) takes an unknown name for "eager".
    if before != "sdpa" or not getattr(decoder, "_supports_attention_backend", False):
        yield
        return
    # It has no entry among transformers' makers of masks, so the mask of four dimensions that the decoder is given
    # arrives as it is, and so does none.
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend)
    config._attn_implementation_internal = ATTENTION
    try:
        with sdpa_kernel(KERNELS):
            yield
    finally:
        config._attn_implementation_internal = before


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention of new places (B, heads, L, D) to kept and new ones (B, key heads, T + L, D); returns (B, L, heads, D).

    Without a mask a place attends to everything before it.
    """
    from torch.nn.attention.bias import causal_lower_right
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    batch, heads, new, width = query.shape
    groups = heads // key.shape[1]  # query heads for one head of keys
    scale = more.get("scaling")
    if any(more.get(name) is not None for name in MORE_THAN_PRODUCTS):
        if attention_mask is None and 1 < new < key.shape[2]:
            seen = torch.ones(
                new, key.shape[2], dtype=torch.bool, device=query.device
            )  # (L, T + L)
            attention_mask = seen.tril(key.shape[2] - new)[None, None]
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    if attention_mask is None and 1 < new < key.shape[2]:
        # Causal from the lower right corner of the (L, T + L) square; `is_causal` alone would begin at the upper left.
        bias: Any = causal_lower_right(new, key.shape[2])
        out = F.scaled_dot_product_attention(
            query, key, value, bias, scale=scale, enable_gqa=groups > 1
        )
        return out.transpose(1, 2).contiguous(), None
    if attention_mask is not None and groups > 1 and new <= FEW_PLACES:
        # The kernels that take a mask want as many heads of keys as of queries. Few places: heads become places.
        folded = query.reshape(batch, key.shape[1], groups * new, width)
        mask = attention_mask.repeat(1, 1, groups, 1)  # (B, 1, groups * L, T + L)
        out = F.scaled_dot_product_attention(folded, key, value, mask, scale=scale)
        return out.reshape(batch, heads, new, width).transpose(1, 2).contiguous(), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, **more)


# -- the vision side


def see(
    self: Any,
    hidden_states: Tensor,
    cu_seqlens: Tensor,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **_: Any,
) -> Tensor:
    """Attention inside the parts of packed places (S, D): part n is cu_seqlens[n] .. cu_seqlens[n + 1]."""
    assert position_embeddings is not None
    states = self.qkv(hidden_states).reshape(
        len(hidden_states), 3, self.num_heads, -1
    )  # (S, 3, heads, D)
    cos, sin = position_embeddings  # (S, D) each
    turn = fused(rotate, states.device.type)
    turned = turn(
        states[:, :2], cos[:, None, None], sin[:, None, None]
    )  # (S, 2, heads, D)
    out = attend_in_parts(
        turned[:, 0], turned[:, 1], states[:, 2], cu_seqlens, self.scaling
    )
    mixed: Tensor = self.proj(out.reshape(len(hidden_states), -1))
    return mixed


def attend_in_parts(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, scale: float
) -> Tensor:
    """Attention (S, heads, D) where each place sees its own part only; all parts at once, or all of one length."""
    parts = packed_parts(bounds)
    if len(parts.by_length) > 1 and query.is_cuda and query.dtype != torch.float32:
        from torch.nn.attention.varlen import varlen_attn

        longest = max(length for length, _ in parts.by_length)
        packed: Tensor = varlen_attn(  # type: ignore[assignment]  # no further results were asked for
            query, key, value, bounds, bounds, longest, longest, scale=scale
        )
        return packed
    out = torch.empty_like(value)
    for length, places in parts.by_length:
        shape = (-1, length, *value.shape[1:])
        # (parts, heads, length, D) each
        queries, keys, values = (
            one[places].reshape(shape).transpose(1, 2) for one in (query, key, value)
        )
        seen = F.scaled_dot_product_attention(queries, keys, values, scale=scale)
        out[places] = seen.transpose(1, 2).flatten(0, 1)
    return out


@dataclass(frozen=True)
class PackedParts:
    """How packed places are cut: (length, places) for every length of part; a slice where it is all of them."""

    bounds: Tensor
    by_length: list[tuple[int, Any]]


_LAST_PARTS: list[PackedParts] = []
"""What `packed_parts` found last: all layers of a pass get the same tensors, and asking a GPU for one takes time."""


def packed_parts(bounds: Tensor, ends: list[int] | None = None) -> PackedParts:
    """The parts whose beginnings and last end are `bounds` (parts + 1,); `ends` are the same numbers on the host."""
    for known in _LAST_PARTS:
        if known.bounds is bounds:
            return known
    starts: dict[int, list[int]] = {}
    for start, stop in pairwise(bounds.tolist() if ends is None else ends):
        if stop > start:
            starts.setdefault(stop - start, []).append(start)
    by_length: list[tuple[int, Any]] = []
    for length, begins in starts.items():
        if len(starts) == 1:
            by_length.append((length, slice(None)))
        else:
            places = torch.tensor(begins)[:, None] + torch.arange(
                length
            )  # (parts, length)
            by_length.append((length, places.flatten().to(bounds.device)))
    found = PackedParts(bounds, by_length)
    _LAST_PARTS.append(found)
    del _LAST_PARTS[:-4]  # whole pictures and windows, of this pass and the one before
    return found


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, computed in float32: (x, y) -> (x cos - y sin, y cos + x sin) for the two halves of D."""
    x, y = states.float().chunk(2, -1)
    cos_x, cos_y = cos.float().chunk(2, -1)
    sin_x, sin_y = sin.float().chunk(2, -1)
    return torch.cat([x * cos_x - y * sin_x, y * cos_y + x * sin_y], -1).to(
        states.dtype
    )


def open_gate(gate: Tensor, states: Tensor) -> Tensor:
    """What goes through a gate: silu(gate) * states."""
    return F.silu(gate) * states


Elementwise = Callable[..., Tensor]


@lru_cache(maxsize=8)
def fused(function: Elementwise, device: str) -> Elementwise:
    """A function as one kernel where it can be compiled for a GPU: such a one moves much memory and computes little."""
    if device != "cuda":
        return function
    quick: Elementwise = torch.compile(function, dynamic=True)
    try:
        quick(*[torch.ones(4, 2, 2, 16, device="cuda")] * function.__code__.co_argcount)
    except Exception:  # no compiler on this machine, whatever it calls that; the plain way gives the same numbers
        return function
    return quick


def gate(self: Any, hidden_state: Tensor) -> Tensor:
    """A gated network whose gate is one kernel."""
    opened = fused(open_gate, hidden_state.device.type)(
        self.gate_proj(hidden_state), self.up_proj(hidden_state)
    )
    closed: Tensor = self.down_proj(opened)
    return closed


def cut(self: Any, hidden_states: Tensor) -> Tensor:
    """Patches (S, pixels of one) to vectors (S, D)."""
    weight = self.proj.weight.flatten(1)  # (D, pixels of one)
    return F.linear(
        hidden_states.to(weight.dtype).reshape(-1, weight.shape[1]),
        weight,
        self.proj.bias,
    )


def norm(self: Any, hidden_states: Tensor) -> Tensor:
    """Root mean square norm as one kernel."""
    return F.rms_norm(
        hidden_states, self.weight.shape, self.weight, self.variance_epsilon
    )


def widen(model: nn.Module, multiple: int) -> int:
    """Fill the inner width of gated networks up to a multiple with zeros, which stay zeros; returns how many."""
    changed = 0
    for module in model.modules():
        names = ("gate_proj", "up_proj", "down_proj")
        gate, up, down = (getattr(module, name, None) for name in names)
        # No class below it: one that holds its numbers in another way (4 bits, 8 bits) cannot be filled up like this.
        if not (type(gate) is type(up) is type(down) is nn.Linear):
            continue
        assert gate is not None
        lacking = -gate.out_features % multiple
        if gate.out_features % 8 == 0:
            continue
        for layer in (gate, up):
            layer.weight = _filled(layer.weight, (0, 0, 0, lacking))
            if layer.bias is not None:
                layer.bias = _filled(layer.bias, (0, lacking))
            layer.out_features += lacking
        down.weight = _filled(down.weight, (0, lacking))
        down.in_features += lacking
        changed += 1
    return changed


def _filled(weight: Tensor, zeros: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(F.pad(weight, zeros), requires_grad=False)
