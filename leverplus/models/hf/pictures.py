"""Encodes pictures for a vision-language model, each once, and keeps their features on the device while there is room.

A picture has a slot, its number in the table. In a prompt its places are codes of that slot (see tree.py), so prompts
share a beginning only if they show the same pictures there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leverplus.errors import ScoringError
from leverplus.models.hf.quick import packed_parts
from leverplus.models.hf.tree import Codes, picture_codes, picture_places

Inputs = Mapping[str, Tensor]
"""What a processor makes of one picture: pixel_values and whatever else the model's vision side takes."""

PictureFeatures = tuple[Tensor, ...]
"""A picture after the vision side: (places, D), and the same for each deeper layer with features of its own."""

PACKED_TOWERS = (
    "Qwen2_5_VisionTransformerPretrainedModel",
    "Qwen3VLVisionModel",
    "Qwen3VLMoeVisionModel",
)
"""Vision towers for which `PackedTower` knows the layout."""

PICTURES_PER_PASS = {"cuda": 64, "cpu": 16}
"""Pictures encoded in one pass: enough to fill the device. Halved where its memory is too small."""


@dataclass(frozen=True)
class Unfolded:
    """A picture as it stands in a prompt: the tokens that replace its marker, its grid (height, width) in tokens, and
    what the vision side is given."""

    ids: tuple[int, ...]
    grid: tuple[int, int] | None
    inputs: Inputs


class PictureTable:
    """The pictures of one model. `image_token` is the token whose embeddings are replaced by features.

    `encode` takes the inputs of several pictures, stacked, and returns their features. `capacity` is the
    number of pictures whose features are kept; with `turning` rotary positions have three dimensions.
    """

    def __init__(
        self,
        image_token: int,
        encode: Callable[[Inputs], list[PictureFeatures]],
        *,
        capacity: int,
        device: torch.device,
        turning: bool,
    ) -> None:
        self.image_token = image_token
        self.encode = encode
        self.capacity = capacity
        self.device = device
        self.turning = turning
        self.per_pass = PICTURES_PER_PASS.get(device.type, 16)
        self.encoded = 0  # how many were encoded so far; one that was dropped and came back counts twice
        self._slots: dict[str, int] = {}  # by content digest
        # By slot:
        self._unfold: list[Callable[[], Unfolded]] = []
        self._ids: list[Codes] = []
        self._grids: list[tuple[int, int] | None] = []
        # inputs of pictures that are not encoded yet
        self._waiting: dict[int, Inputs] = {}
        # least recently used first
        self._features: OrderedDict[int, PictureFeatures] = OrderedDict()

    def slot(self, name: str, unfold: Callable[[], Unfolded]) -> int:
        """The slot of the picture of that name (a content digest); `unfold` is called when it has to be encoded."""
        if name not in self._slots:
            self.add(name, unfold(), unfold)
        return self._slots[name]

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def add(self, name: str, picture: Unfolded, unfold: Callable[[], Unfolded]) -> None:
        """Give a new picture a slot; `unfold` makes it again when its features had to go."""
        slot = len(self._slots)
        self._slots[name] = slot
        ids = np.array(picture.ids, dtype=np.int64)
        seen = ids == self.image_token  # the others frame the picture
        ids[seen] = picture_codes(slot, int(seen.sum()))
        self._unfold.append(unfold)
        self._ids.append(ids)
        self._grids.append(picture.grid)
        self._waiting[slot] = picture.inputs

    def codes(self, ids: Codes, slots: Iterable[int]) -> Codes:
        """A prompt's codes: every image token of `ids` replaced by the picture of the next slot."""
        marks = np.flatnonzero(ids == self.image_token)
        chosen = list(slots)
        if len(marks) != len(chosen):
            raise ScoringError(
                f"a prompt has {len(marks)} places for pictures but {len(chosen)} pictures; does a question or an "
                "answer contain the model's own marker for pictures?"
            )
        parts = []
        start = 0
        for mark, slot in zip(marks, chosen, strict=True):
            parts += [ids[start:mark], self._ids[slot]]
            start = int(mark) + 1
        return np.concatenate([*parts, ids[start:]])

    def positions(self, codes: Codes) -> Codes:
        """Rotary positions: (1, L), or (3, L) in time, height and width where the model counts pictures so.

        In three dimensions (M-RoPE of Qwen2-VL, arXiv:2409.12191, section 2.1) text counts alike in all of them; a
        picture stands at one time, by row and column of its grid, and what follows goes on after its longer side.
        """
        if not self.turning:
            return np.arange(len(codes), dtype=np.int64)[None]
        out = np.empty((3, len(codes)), dtype=np.int64)
        following = 0
        for start, stop, slot in runs(codes):
            steps = np.arange(stop - start)
            if slot is None:
                out[:, start:stop] = following + steps
                following += stop - start
            else:
                height, width = self._grids[slot] or (1, stop - start)
                out[:, start:stop] = following
                out[1, start:stop] += steps // width  # the row
                out[2, start:stop] += steps % width  # the column
                following += max(height, width)
        return out

    def insert(self, codes: Codes, embedded: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Embeddings (B, L, D) with features where codes (B, L) are pictures, and what deeper layers are given."""
        mask = codes < 0  # (B, L)
        # (M,) each, in the order of the places of pictures
        slots, places = picture_places(codes[mask])
        needed = np.unique(slots).tolist()
        features = self.features(needed)
        # The features of all pictures are joined into one table; `starts` says where each slot begins in it.
        lengths = [len(first) for first, *_ in features]
        starts = np.zeros(needed[-1] + 1, dtype=np.int64)
        starts[needed] = np.cumsum([0, *lengths[:-1]])
        index = torch.from_numpy(starts[slots] + places).to(self.device)  # (M,)
        where = torch.from_numpy(mask).to(self.device)  # (B, L)
        # (M, D) each
        first, *deeper = (
            torch.cat(layer)[index] for layer in zip(*features, strict=True)
        )
        embedded = embedded.masked_scatter(where[..., None], first.to(embedded.dtype))
        if not deeper:
            return embedded, {}
        # Qwen3-VL adds these to the hidden states after its first layers.
        return embedded, {"visual_pos_masks": where, "deepstack_visual_embeds": deeper}

    def features(self, slots: list[int]) -> list[PictureFeatures]:
        """The features of some slots; those not kept are computed, many in a pass."""
        missing = []
        for slot in slots:
            if slot in self._features:
                continue
            missing.append(slot)
            if slot not in self._waiting:
                self._waiting[slot] = self._unfold[slot]().inputs
        for members in self._stacks(missing):
            start = 0
            while start < len(members):
                start += self._encode_some(members[start : start + self.per_pass])
        found = [self._features[slot] for slot in slots]
        for slot in slots:
            self._features.move_to_end(slot)  # used last, dropped last
        self._drop_oldest(max(self.capacity, len(slots)))
        return found

    def _drop_oldest(self, most: int) -> None:
        while len(self._features) > most:
            self._features.popitem(last=False)

    def expect(self, name: str) -> None:
        """Say that a picture will be asked for soon: its features, if there are any, are dropped last."""
        slot = self._slots.get(name)
        if slot is not None and slot in self._features:
            self._features.move_to_end(slot)

    def encode_full_stacks(self) -> None:
        """Encode the waiting pictures that fill a pass; features of pictures that nobody expects make room for them.

        A GPU works at them while further pictures are read from their files.
        """
        try:
            for members in self._stacks(list(self._waiting)):
                start = 0
                while len(members) - start >= self.per_pass:
                    start += self._encode_some(members[start : start + self.per_pass])
        except RuntimeError as error:
            # They stay waiting: whoever reads prompts with them frees what he can, or says what is lacking.
            if not out_of_memory(error):
                raise
        self._drop_oldest(self.capacity)

    def _stacks(self, slots: list[int]) -> list[list[int]]:
        """Waiting slots that can be encoded together: of one shape, or of any where patches are packed."""
        stacks: dict[tuple[Any, ...], list[int]] = {}
        for slot in slots:
            inputs = self._waiting[slot]
            # Packed: patches of all pictures stand in one row of them, and the grid says where each one ends.
            first = 0
            if "image_grid_thw" in inputs:
                first = 1
            shapes = [(key, inputs[key].shape[first:]) for key in sorted(inputs)]
            stacks.setdefault(tuple(shapes), []).append(slot)
        return list(stacks.values())

    def _encode_some(self, slots: list[int]) -> int:
        """Encode the first of some slots of one stack, all of them if the memory allows; returns how many."""
        while True:
            try:
                self._encode_slots(slots)
            except RuntimeError as error:  # OutOfMemoryError is one
                if len(slots) == 1 or not out_of_memory(error):
                    raise
            else:
                return len(slots)
            # Only here, after the `except` block: the error holds the tensors of the pass until it ends.
            self.per_pass = len(slots) // 2
            slots = slots[: self.per_pass]
            torch.cuda.empty_cache()

    def _encode_slots(self, slots: list[int]) -> None:
        stacked = {}
        for key in self._waiting[slots[0]]:
            parts = [self._waiting[slot][key] for slot in slots]
            # Grids and the like stay on the host: vision_encoder moves them where a model wants them there.
            pixels = parts[0].is_floating_point()
            stacked[key] = to_device(parts, self.device) if pixels else torch.cat(parts)
        seen = self.encode(stacked)
        if len(seen) != len(slots):
            raise ScoringError(
                f"the model saw {len(seen)} pictures where {len(slots)} were shown; it is not supported"
            )
        self._features.update(zip(slots, seen, strict=True))
        for slot in slots:
            del self._waiting[slot]
        self.encoded += len(slots)


def to_device(parts: list[Tensor], device: torch.device) -> Tensor:
    """Tensors joined along their first dimension, on a device; a GPU fetches them while the program goes on."""
    if device.type != "cuda":
        return torch.cat(parts)
    shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
    pinned = torch.empty(shape, dtype=parts[0].dtype, pin_memory=True)
    torch.cat(parts, out=pinned)
    return pinned.to(device, non_blocking=True)


def out_of_memory(error: RuntimeError) -> bool:
    """Whether the device's memory is too small: PyTorch says so itself, or cuBLAS finds no room for its workspace."""
    return isinstance(
        error, torch.OutOfMemoryError
    ) or "CUBLAS_STATUS_ALLOC_FAILED" in str(error)


def runs(codes: Codes) -> list[tuple[int, int, int | None]]:
    """(start, stop, slot) of every run of text (slot None) and of every picture, in order."""
    slots, places = picture_places(codes)
    slots = np.where(codes < 0, slots, -1)  # (L,), -1 for text
    other_slot = slots[1:] != slots[:-1]
    # the same picture twice in a row
    jumps = places[1:] != places[:-1] + 1
    shown_again = (slots[1:] >= 0) & jumps
    breaks = np.flatnonzero(other_slot | shown_again) + 1
    found = []
    for start, stop in pairwise([0, *breaks.tolist(), len(codes)]):
        slot = int(slots[start]) if codes[start] < 0 else None
        found.append((start, stop, slot))
    return found


def vision_encoder(model: Any) -> Callable[[Inputs], list[PictureFeatures]]:
    """The vision side of a transformers model: inputs of several pictures -> their features."""
    first = next(model.parameters())
    dtype = first.dtype
    device = first.device
    tower = PackedTower.of(model)

    @torch.inference_mode()
    def encode(inputs: Inputs) -> list[PictureFeatures]:
        if tower is not None:
            return tower.see(
                inputs["pixel_values"].to(device, dtype), inputs["image_grid_thw"]
            )
        moved = {}
        for key, value in inputs.items():
            moved[key] = value.to(device, dtype if value.is_floating_point() else None)
        out = model.model.get_image_features(**moved, return_dict=True)
        # (places, D) of every picture
        first = [part.reshape(-1, part.shape[-1]) for part in out.pooler_output]
        deeper = getattr(out, "deepstack_features", None) or ()
        return list(zip(first, *deeper, strict=True))

    return encode


class PackedTower:
    """A vision tower that takes the patches of all pictures in one row, its layout worked out on the host.

    transformers works it out from grids on the device and reads results back in between, so that the program waits for
    the device in every pass; from the host it can go on to the next one.
    """

    def __init__(self, tower: Any) -> None:
        self.tower = tower
        self.device: torch.device = next(tower.parameters()).device
        # of the last passes
        self._layouts: OrderedDict[tuple[Any, ...], dict[str, Tensor]] = OrderedDict()

    @classmethod
    def of(cls, model: Any) -> PackedTower | None:
        """The tower of a model, None where it is of another kind."""
        tower = getattr(model.model, "visual", None)
        if type(tower).__name__ in PACKED_TOWERS:
            return cls(tower)
        return None

    def see(self, pixels: Tensor, grid: Tensor) -> list[PictureFeatures]:
        """Features of pictures: `pixels` (patches of all, pixels of one), `grid` (pictures, 3) on the host."""
        grids = tuple(tuple(row) for row in grid.tolist())
        out = self.tower(pixels, grid_thw=grid, **self._layout(grids), return_dict=True)
        merged = self.tower.spatial_merge_size**2  # patches that become one place
        places = [time * height * width // merged for time, height, width in grids]
        deeper = getattr(out, "deepstack_features", None) or ()
        layers = [layer.split(places) for layer in (out.pooler_output, *deeper)]
        return list(zip(*layers, strict=True))

    def _layout(self, grids: tuple[tuple[int, ...], ...]) -> dict[str, Tensor]:
        """What the tower works out from grids (time, height, width): positions, windows, where pictures end."""
        if grids in self._layouts:
            return self._layouts[grids]
        on_host = self._layout_on_host(torch.tensor(grids))
        found = {}
        for name, value in on_host.items():
            found[name] = value.to(self.device, non_blocking=True)
            if name.endswith("seqlens"):  # so that nobody has to ask the device
                packed_parts(found[name], value.tolist())
        self._layouts[grids] = found
        if len(self._layouts) > 2:
            self._layouts.popitem(last=False)
        return found

    def _layout_on_host(self, grid: Tensor) -> dict[str, Tensor]:
        from transformers import vision_utils

        tower = self.tower
        merge = self.tower.spatial_merge_size
        found = {
            "position_ids": vision_utils.get_vision_position_ids(grid, merge),
            "cu_seqlens": vision_utils.get_vision_cu_seqlens(grid),
        }
        if hasattr(tower, "window_size"):  # Qwen2.5-VL
            index, bounds = vision_utils.get_vision_window_index(
                grid, merge, tower.window_size, tower.patch_size
            )
            found |= {"window_index": index, "cu_window_seqlens": bounds}
        if hasattr(tower, "num_grid_per_side"):  # Qwen3-VL
            taps, weights = vision_utils.get_vision_interpolation_indices_and_weights(
                grid,
                num_grid_per_side=tower.num_grid_per_side,
                mode=tower.interpolation_mode,
                align_corners=tower.interpolation_align_corners,
                spatial_merge_size=merge,
            )
            found |= {"interp_indices": taps, "interp_weights": weights}
        return found


def counts_in_three(config: Any) -> bool:
    """Whether a text config's rotary positions have time, height and width."""
    parameters = getattr(config, "rope_parameters", None)
    return "mrope_section" in (
        parameters or getattr(config, "rope_scaling", None) or {}
    )
