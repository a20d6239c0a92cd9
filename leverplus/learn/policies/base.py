"""What a policy is: features in, step logits out; and the one function that gives log-probabilities of sequences.

Letters: B queries, G members (sequences) of a query, K candidates, S steps, A actions (K, or K + 1 with STOP last).
A sequence holds positions of the pool in prompt order, then optionally STOP, then PAD. Choosing nothing is STOP first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leverplus.errors import TrainingError
from leverplus.learn.maths.divergences import masked_log_softmax
from leverplus.learn.policies.settings import PolicyConfig

# both negative, so that neither can be taken for a position of a pool
PAD = -1
"""Fills up sequences that are shorter than others."""
STOP = -2
"""In a sequence: the selector shows no more. As an action it is number K, behind all candidates."""

Memory = dict[str, Tensor]
"""What a policy remembers of earlier picks, by name; every tensor begins with the axes (B, G)."""


class LiveEncoding(Protocol):
    """An embedder that can be called during training: embeds items of a table with a selector's adapters."""

    def encode(
        self,
        rows: Tensor,
        fields: Sequence[str],
        adapters: Any,
    ) -> dict[str, Tensor]:
        """One block (N, D) per field for the table's rows (N,)."""


@dataclass(frozen=True)
class Features:
    """What a policy sees of B queries and their pools, in named blocks (image, text, answer).

    `query[field]` is (B, D), `items[field]` (U, D) holds each item once, `pool` (B, K) points into its rows, -1 pads.
    `rows` (U,) numbers the items in the whole table; only policies over ids need it. A policy that embeds items itself
    asks `live` for them, and for the queries by `query_rows` (B,). `encoded` (U, H) is what `Policy.item_vectors` gave
    for the items, where somebody kept it; `items` may then be empty. `pairs` (B, K, F) are features of a query and a
    candidate together, for policies that weigh them.
    """

    query: Mapping[str, Tensor]
    items: Mapping[str, Tensor]
    pool: Tensor
    rows: Tensor | None = None
    query_rows: Tensor | None = None
    live: LiveEncoding | None = None
    encoded: Tensor | None = None
    pairs: Tensor | None = None

    @property
    def mask(self) -> Tensor:
        """Which places of the pools hold a candidate, (B, K)."""
        return self.pool >= 0

    @property
    def members(self) -> Tensor:
        """Which items are in which pool, (B, U)."""
        count = len(next(iter(self.items.values())))  # U
        # one column more than there are items takes what the padding writes, and is cut off again
        inside = torch.zeros(
            len(self.pool),
            count + 1,
            dtype=torch.bool,
            device=self.pool.device,
        )
        rows = torch.where(self.pool >= 0, self.pool, count)  # (B, K)
        return inside.scatter(1, rows, True)[:, :-1]

    def gather(self, block: Tensor) -> Tensor:
        """Rows of (U, ...) laid out as the pools, (B, K, ...); padding repeats row 0 and is masked later."""
        rows = self.pool.clamp(min=0)  # (B, K)
        # embedding adds up gradients of repeated rows several times faster than indexing does
        return F.embedding(rows, block) if block.dim() == 2 else block[rows]

    @classmethod
    def dense(
        cls,
        query: Mapping[str, Tensor],
        pool: Mapping[str, Tensor],
        mask: Tensor,
    ) -> Features:
        """From candidate blocks (B, K, D) and a mask (B, K), where no item is shared between pools."""
        rows = torch.arange(mask.numel(), device=mask.device).reshape(
            mask.shape
        )  # (B, K)
        items = {
            name: block.reshape(-1, block.shape[-1]) for name, block in pool.items()
        }  # (B K, D) each
        return cls(query, items, rows.masked_fill(~mask, -1))


@dataclass(frozen=True)
class Encoded:
    """Queries and pools after a policy has encoded them, before any choice; `mask` (B, K)."""

    mask: Tensor
    blocks: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.blocks[name]


@dataclass(frozen=True)
class State:
    """Where B x G sequences stand: actions used (B, G, A), members that stopped (B, G), the policy's own memory."""

    step: int
    used: Tensor
    stopped: Tensor
    memory: Memory

    def pick(self, parents: Tensor) -> State:
        """The state of the members `parents` (B, G'), indices into this state's G members, in any order and number."""

        def take(value: Tensor) -> Tensor:
            trailing = value.dim() - 2
            index = parents.reshape(
                *parents.shape, *([1] * trailing)
            )  # (B, G', 1, ..., 1)
            index = index.expand(*parents.shape, *value.shape[2:])  # (B, G', ...)
            return torch.gather(value, 1, index)

        memory = {name: take(value) for name, value in self.memory.items()}
        return State(self.step, take(self.used), take(self.stopped), memory)


class Policy(nn.Module, ABC):
    """A selector. Subclasses encode (`prepare`), score one step (`scores`) and remember a choice (`remember`)."""

    GROUPS: Mapping[str, tuple[str, ...]] = {}
    """Parts that a recipe can freeze, each with the beginnings of the names of its parameters."""

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int]) -> None:
        super().__init__()
        self.config = config
        self.dims = dict(dims)
        # what `catalog.ADAPTERS` names, for a selector that is trained with its embedder
        self.adapters: Any = None

    @property
    def stops(self) -> bool:
        """Whether STOP is one of its actions, so that A = K + 1."""
        return self.config.stop != "never"

    @property
    def candidates_apart(self) -> bool:
        """Whether the score of a candidate depends on the query and earlier picks only, not on the rest of its pool."""
        return False

    @abstractmethod
    def prepare(self, features: Features) -> Encoded:
        """Encodes queries and their pools, once before the first step."""

    def item_vectors(self, items: Mapping[str, Tensor]) -> Tensor | None:  # noqa: ARG002
        """What the policy makes of items (U, D) whatever the query is, (U, H); None where it has no such thing."""
        return None

    def embedded(self, features: Features) -> Features:
        """The features unchanged, or embedded again by the embedder with this policy's adapters if it has any."""
        if self.adapters is None:
            return features
        if (
            features.live is None
            or features.rows is None
            or features.query_rows is None
        ):
            raise TrainingError(
                "this selector embeds items through its adapters; give it a table of live items"
            )
        asked = [
            name for name in self.dims if name != "answer"
        ]  # the answer of a query is what must stay unknown
        query = features.live.encode(features.query_rows, asked, self.adapters)
        items = features.live.encode(features.rows, list(self.dims), self.adapters)
        return replace(
            features,
            query=_move_to(query, features.pool),
            items=_move_to(items, features.pool),
        )

    @abstractmethod
    def begin(
        self,
        encoded: Encoded,
        members: int,
        steps: int,
    ) -> Memory:
        """The memory before the first of `steps` choices."""

    @abstractmethod
    def scores(self, encoded: Encoded, state: State) -> Tensor:
        """Scores of every action of the next step before masking, (B, G, A)."""

    @abstractmethod
    def remember(
        self,
        encoded: Encoded,
        state: State,
        action: Tensor,
    ) -> Memory:
        """The memory after actions (B, G), indices 0..A-1."""

    def start(
        self,
        encoded: Encoded,
        members: int,
        steps: int | None = None,
    ) -> State:
        """The state before the first choice of G members of each query.

        `steps` is how many choices will follow, by default the most that this policy can make; only a policy whose
        first choice depends on it (`select.slot_form = "asked"`) reads it.
        """
        if steps is None:
            steps = self.config.max_shots
        batch, size = encoded.mask.shape  # B, K
        # padding counts as used, so that no step can choose it
        used = ~encoded.mask.unsqueeze(1).expand(batch, members, size)  # (B, G, K)
        if self.stops:
            used = F.pad(
                used, (0, 1), value=False
            )  # (B, G, K + 1): STOP is the last action
        stopped = torch.zeros(
            batch,
            members,
            dtype=torch.bool,
            device=encoded.mask.device,
        )
        return State(0, used, stopped, self.begin(encoded, members, steps))

    def step(
        self,
        encoded: Encoded,
        state: State,
        allow_stop: bool = True,
    ) -> Tensor:
        """Logits of the next step, -inf for what may not be chosen, (B, G, A); a stopped member can only stop."""
        illegal = state.used  # (B, G, A)
        if self.stops:
            allowed = allow_stop and may_stop(self.config.stop, state.step)
            stop_illegal = torch.full_like(illegal[..., :1], not allowed)  # (B, G, 1)
            illegal = torch.cat([illegal[..., :-1], stop_illegal], dim=-1)
            all_but_stop = torch.ones_like(illegal)
            all_but_stop[..., -1] = False
            illegal = torch.where(state.stopped.unsqueeze(-1), all_but_stop, illegal)
        return self.scores(encoded, state).masked_fill(illegal, -torch.inf)

    def advance(
        self,
        encoded: Encoded,
        state: State,
        action: Tensor,
    ) -> State:
        """The state after actions (B, G), indices 0..A-1; PAD leaves a member as it is."""
        absent = action < 0  # (B, G)
        index = action.masked_fill(absent, 0)
        fresh = F.one_hot(index, state.used.shape[-1]).to(
            torch.bool
        ) & ~absent.unsqueeze(-1)  # (B, G, A)
        used = state.used | fresh
        stopped = state.stopped
        if self.stops:
            stopped = stopped | fresh[..., -1]
        memory = self.remember(encoded, state, index)
        return replace(
            state,
            step=state.step + 1,
            used=used,
            stopped=stopped,
            memory=memory,
        )

    def logits(
        self,
        encoded: Encoded,
        sequences: Tensor,
        allow_stop: bool = True,
    ) -> Tensor:
        """Teacher-forced logits of every step of sequences (B, G, S) with used candidates at -inf, (B, G, S, A)."""
        longest = int(sequences.shape[-1])
        if longest > self.config.max_shots + int(self.stops):
            raise TrainingError(
                f"a sequence of {longest} steps, but select.max_shots = {self.config.max_shots}; "
                f"set select.max_shots = {longest} or use fewer shots"
            )
        actions = as_actions(sequences, encoded)  # (B, G, S)
        # before the first choice all members are the same, so one member is computed and repeated G times
        state = self.start(encoded, 1, longest)
        first = self.step(encoded, state, allow_stop).expand(
            -1, sequences.shape[1], -1
        )  # (B, G, A)
        state = state.pick(torch.zeros_like(actions[..., 0]))
        tables = [first]
        for index in range(1, longest):
            state = self.advance(encoded, state, actions[..., index - 1])
            tables.append(self.step(encoded, state, allow_stop))
        return torch.stack(tables, dim=2)

    def named_groups(self) -> dict[str, list[str]]:
        """Names of parameters by part, the parts that `freeze` can name."""
        groups: dict[str, list[str]] = {}
        for name, _ in self.named_parameters():
            if name.startswith("adapters."):
                groups.setdefault("adapters", []).append(name)
                continue
            owner = next(
                group
                for group, starts in self.GROUPS.items()
                if name.startswith(starts)
            )
            groups.setdefault(owner, []).append(name)
        return groups


def _move_to(blocks: Mapping[str, Tensor], like: Tensor) -> dict[str, Tensor]:
    """The blocks on the device of `like`."""
    return {name: block.to(like.device) for name, block in blocks.items()}


def may_stop(stop: str, step: int) -> bool:
    """Whether a selector with this `select.stop` may stop after `step` demonstrations."""
    allowed = {
        "never": False,
        "none_only": step == 0,
        "after_first": step > 0,
        "anywhere": True,
    }
    return allowed[stop]


def as_actions(sequences: Tensor, encoded: Encoded) -> Tensor:
    """Positions and STOP as action indices; PAD stays negative."""
    return torch.where(sequences == STOP, encoded.mask.shape[-1], sequences)


@dataclass(frozen=True)
class StepLogprobs:
    """Log-probabilities of sequences under one policy."""

    steps: Tensor  # (B, G, S) of the actions taken, 0 where PAD
    table: Tensor  # (B, G, S, A) of every action, -inf where it may not be taken
    valid: Tensor  # (B, G, S) False where PAD

    @property
    def total(self) -> Tensor:
        """log pi(sequence), (B, G)."""
        return self.steps.sum(-1)


def sequence_logprobs(
    policy: Policy,
    encoded: Encoded,
    sequences: Tensor,
    allow_stop: bool = True,
    temperature: float = 1.0,
) -> StepLogprobs:
    """The log-probabilities of sequences (B, G, S): the one function that training, sampling and diagnosis share.

    A sequence that takes an action twice, or one outside its pool, raises: it would have probability 0.
    """
    logits = policy.logits(encoded, sequences, allow_stop)  # (B, G, S, A)
    table = masked_log_softmax(logits / temperature)
    actions = as_actions(sequences, encoded)  # (B, G, S)
    valid = actions >= 0
    if bool(valid.any()) and int(actions.max()) >= table.shape[-1]:
        raise TrainingError(
            "a sequence stops, or leaves its pool, but this policy cannot; see select.stop"
        )
    index = actions.clamp(min=0).unsqueeze(
        -1
    )  # (B, G, S, 1), PAD reads action 0 and is set to 0 below
    steps = table.gather(-1, index).squeeze(-1)  # (B, G, S)
    if bool((valid & (steps == -torch.inf)).any()):
        raise TrainingError(
            "a sequence uses a candidate twice or one outside its pool; `lever doctor` names the group"
        )
    return StepLogprobs(steps.masked_fill(~valid, 0.0), table, valid)
