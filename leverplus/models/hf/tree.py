"""Arranges prompts that begin alike as a tree: what a branch holds is computed once for all prompts below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]
"""What stands at each place of a prompt: a token id, or below 0 a place of a picture (see `picture_codes`)."""

GRAIN = 16
"""Tokens that prompts must share before a branch of its own pays for the forward pass it costs."""

PICTURE_PLACES = 1 << 20  # codes per slot, more than any picture has places


@dataclass(frozen=True)
class Prompt:
    """A prompt in tokens, and the answers to be weighed after it, each with its end marker.

    `positions` (P, L) are the rotary positions: P = 1, or 3 (time, height, width) where a model counts pictures so.
    """

    codes: Codes
    positions: Codes
    answers: tuple[tuple[int, ...], ...]


@dataclass
class Node:
    """Places start..stop, which all prompts below share; a leaf ends exactly one prompt (`prompt` is its number).

    `example` is the number of one prompt below, from which the codes of these places are read.
    """

    start: int
    stop: int
    example: int
    prompt: int | None = None
    children: list[Node] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.stop - self.start


def picture_codes(slot: int, length: int) -> Codes:
    """The codes of the places of the picture in a slot of the picture table: different pictures never look alike."""
    places = np.arange(length, dtype=np.int64)
    return -1 - (slot * PICTURE_PLACES + places)


def picture_places(codes: Codes) -> tuple[Codes, Codes]:
    """Slot and place in the picture of negative codes."""
    numbers = -1 - codes
    return numbers // PICTURE_PLACES, numbers % PICTURE_PLACES


def grow(
    prompts: Sequence[Prompt], *, share: bool = True, grain: int = GRAIN
) -> list[Node]:
    """The roots of the tree of some prompts; without `share` every prompt is a root of its own.

    A branch is made where at least two prompts have `grain` more codes in common. Every leaf keeps at least the last
    code of its prompt, after which the answer comes.
    """
    everyone = list(range(len(prompts)))
    if not share:
        return [
            Node(0, len(prompts[number].codes), number, number) for number in everyone
        ]
    return _branches(prompts, everyone, 0, grain)


def _branches(
    prompts: Sequence[Prompt], numbers: Sequence[int], start: int, grain: int
) -> list[Node]:
    """The nodes that begin at `start`, for prompts that are equal before it."""
    groups: dict[bytes, list[int]] = {}
    for number in numbers:
        codes = prompts[number].codes
        last = max(
            start, min(start + grain, len(codes) - 1)
        )  # the last code stays in the leaf
        head = codes[start:last]
        # A prompt that is too short to share `grain` codes is a group of its own: its number is no head's bytes,
        # which are 8 per code.
        key = head.tobytes() if len(head) == grain else b"%d" % number
        groups.setdefault(key, []).append(number)
    nodes = []
    for members in groups.values():
        first = members[0]
        if len(members) == 1:
            nodes.append(Node(start, len(prompts[first].codes), first, first))
            continue
        stop = start + _common_length(
            [prompts[number].codes[start:-1] for number in members]
        )
        children = _branches(prompts, members, stop, grain)
        nodes.append(Node(start, stop, first, None, children))
    return nodes


def _common_length(rows: Sequence[Codes]) -> int:
    """How many leading codes all rows have in common."""
    length = min(len(row) for row in rows)
    first = rows[0][:length]
    for row in rows[1:]:
        differs = np.flatnonzero(first[:length] != row[:length])
        if len(differs):
            length = int(differs[0])
    return length
