"""Heads: how a candidate is scored at a step, from the state h (B, G, H) and the candidates v (B, A, H)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leverplus.policies.base import Encoded, Features, Memory
from leverplus.recipe.selection import PolicyConfig


class Head(nn.Module):
    """Divides scores by a temperature, fixed or learned; subclasses say what a score is.

    `read` may put blocks into the encoded pool once; `begin` and `remember` may keep a memory of earlier picks.
    """

    compares = False
    """Whether a candidate's score depends on the other candidates of its pool."""

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int]) -> None:  # noqa: ARG002 one signature
        super().__init__()
        scale = torch.tensor(-math.log(config.temperature))
        if config.learn_temperature:
            self.log_scale = nn.Parameter(scale)
        else:
            self.register_buffer("log_scale", scale)

    def scaled(self, scores: Tensor) -> Tensor:
        # at most times 100, as in CLIP: a learned temperature must not make every choice certain
        return scores * self.log_scale.clamp(max=math.log(100.0)).exp()

    def read(self, features: Features, v: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        return {}

    def begin(self, encoded: Encoded, members: int) -> Memory:  # noqa: ARG002
        return {}

    def remember(self, encoded: Encoded, memory: Memory, action: Tensor, step: int) -> Memory:  # noqa: ARG002
        return {}

    def forward(self, h: Tensor, encoded: Encoded, memory: Memory) -> Tensor:
        raise NotImplementedError


class Cosine(Head):
    """<h, v> / temperature of unit vectors."""

    def forward(self, h: Tensor, encoded: Encoded, memory: Memory) -> Tensor:  # noqa: ARG002
        return self.scaled(h @ encoded["v"].mT)  # (B, G, H) @ (B, H, A) -> (B, G, A)


class Additive(Head):
    """a . tanh(W_q h + b + W_c v) / temperature."""

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int]) -> None:
        super().__init__(config, dims)
        self.query = nn.Linear(config.hidden, config.hidden)
        self.item = nn.Linear(config.hidden, config.hidden, bias=False)
        self.vector = nn.Linear(config.hidden, 1, bias=False)
        with torch.no_grad():
            self.vector.weight.mul_(0.1)

    def forward(self, h: Tensor, encoded: Encoded, memory: Memory) -> Tensor:  # noqa: ARG002
        joined = torch.tanh(self.query(h).unsqueeze(2) + self.item(encoded["v"]).unsqueeze(1))  # (B, G, A, H)
        return self.scaled(self.vector(joined).squeeze(-1))


class Bilinear(Head):
    """h^T B v / temperature, B the identity at first."""

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int]) -> None:
        super().__init__(config, dims)
        self.weight = nn.Parameter(torch.eye(config.hidden) + 0.01 * torch.randn(config.hidden, config.hidden))

    def forward(self, h: Tensor, encoded: Encoded, memory: Memory) -> Tensor:  # noqa: ARG002
        return self.scaled((h @ self.weight) @ encoded["v"].mT)


class Neighbour(Cosine):
    """<h, v> / temperature, and the likeness of query and candidate in their raw blocks, each with a learned weight.

    The likenesses are standardised inside the pool. At first those of equal blocks (picture to picture, question to
    question) count 1 and the others 0: an untrained selector is near to nearest neighbours, and learns from there.
    """

    compares = True

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int]) -> None:
        super().__init__(config, dims)
        self.pairs = comparable(config, dims)
        self.weight = nn.Parameter(torch.tensor([float(left == right) for left, right in self.pairs]))

    def read(self, features: Features, v: Tensor) -> dict[str, Tensor]:
        standardised = raw_likeness(features, self.pairs)[..., 1::2]  # (B, K, pairs): every second column
        return {"nearness": F.pad(standardised @ self.weight, (0, v.shape[1] - standardised.shape[1]))}

    def forward(self, h: Tensor, encoded: Encoded, memory: Memory) -> Tensor:
        return super().forward(h, encoded, memory) + encoded["nearness"].unsqueeze(1)


class Interaction(Head):
    """A small network over what query and candidate have in common.

    It sees a low-rank elementwise product of h and v, both vectors, the cosines between the raw blocks of query and
    candidate (image-image, text-answer, ...; as they are and standardised inside the pool), and how like the candidate
    is to the picks so far in each raw block. The cosines make nearest-neighbour rules learnable from few queries.
    """

    compares = True

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int]) -> None:
        super().__init__(config, dims)
        self.pairs = comparable(config, dims)
        self.fields = config.demo_fields
        width = config.head_hidden
        self.query = nn.Linear(config.hidden, width)
        self.item = nn.Linear(config.hidden, width, bias=False)
        self.left = nn.Linear(config.hidden, width, bias=False)
        self.right = nn.Linear(config.hidden, width, bias=False)
        self.likeness = nn.Linear(2 * len(self.pairs), width, bias=False)
        self.redundancy = nn.Linear(len(self.fields), width, bias=False)
        self.middle = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)
        self.dropout = nn.Dropout(config.dropout)
        with torch.no_grad():
            self.out.weight.mul_(0.1)

    def read(self, features: Features, v: Tensor) -> dict[str, Tensor]:
        likeness = raw_likeness(features, self.pairs)  # (B, K, 2 pairs)
        gram = self._gram(features)  # (B, K, K, fields)
        extra = v.shape[1] - likeness.shape[1]  # 1 where the last of A actions is STOP, which is like nothing
        padded = F.pad(likeness, (0, 0, 0, extra))
        base = self.item(v) + self.likeness(padded)  # (B, A, W)
        # unit vectors of width H have numbers of size 1 / sqrt(H); times sqrt(H) their product is of size 1
        right = self.right(v) * math.sqrt(v.shape[-1])  # (B, A, W)
        return {"base": base, "right": right, "gram": F.pad(gram, (0, 0, 0, extra, 0, extra))}

    def _gram(self, features: Features) -> Tensor:
        """Cosines of all candidates of a pool with each other in every raw block, (B, K, K, fields)."""
        blocks = [features.gather(F.normalize(features.items[name], dim=-1)) for name in self.fields]
        return torch.stack([block @ block.mT for block in blocks], dim=-1)

    def begin(self, encoded: Encoded, members: int) -> Memory:
        batch, actions, _, fields = encoded["gram"].shape
        return {"likest": encoded["gram"].new_zeros(batch, members, actions, fields)}

    def remember(self, encoded: Encoded, memory: Memory, action: Tensor, step: int) -> Memory:
        gram = encoded["gram"]
        index = action[..., None, None].expand(-1, -1, *gram.shape[2:])  # (B, G, A, fields)
        row = torch.gather(gram, 1, index)  # how like the pick every candidate is
        return {"likest": row if step == 0 else torch.maximum(memory["likest"], row)}

    def forward(self, h: Tensor, encoded: Encoded, memory: Memory) -> Tensor:
        # reading and writing (B, G, A, W) arrays is most of the work, so sums are fused and ReLUs written over; the
        # arrays are flat because writing over a view makes autograd copy it
        likest = memory["likest"]
        plain = encoded["base"].unsqueeze(1) + self.query(h).unsqueeze(2)
        fixed = torch.addcmul(plain, self.left(h).unsqueeze(2), encoded["right"].unsqueeze(1))
        mixed = torch.addmm(fixed.flatten(0, 2), likest.flatten(0, 2), self.redundancy.weight.T).relu_()
        scores = self.out(self.middle(self.dropout(mixed)).relu_())
        return self.scaled(scores.view(likest.shape[:-1]))


def comparable(config: PolicyConfig, dims: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    """Blocks of query and candidate that have equal width, so that a cosine between them can mean something."""
    pairs = product(config.query_fields, config.demo_fields)
    return tuple((left, right) for left, right in pairs if dims[left] == dims[right])


def raw_likeness(features: Features, pairs: tuple[tuple[str, str], ...]) -> Tensor:
    """Cosines of raw blocks, each as it is and standardised inside the pool, (B, K, 2 pairs)."""
    query = {name: F.normalize(block, dim=-1) for name, block in features.query.items()}
    items = {name: F.normalize(block, dim=-1) for name, block in features.items.items()}
    rows = features.pool.clamp(min=0)  # (B, K)
    mask = features.mask
    count = mask.sum(-1, keepdim=True).clamp(min=1)  # (B, 1)
    columns = []
    for left, right in pairs:
        every = query[left] @ items[right].T  # (B, U)
        cosine = torch.gather(every, 1, rows).masked_fill(~mask, 0.0)  # (B, K)
        mean = cosine.sum(-1, keepdim=True) / count
        centred = (cosine - mean).masked_fill(~mask, 0.0)
        spread = (centred.square().sum(-1, keepdim=True) / count).sqrt()
        # 0.001 keeps a pool whose candidates are all alike from blowing up rounding errors
        columns += [cosine, centred / (spread + 1e-3)]
    return torch.stack(columns, dim=-1) if columns else query_free(features)


def query_free(features: Features) -> Tensor:
    """No comparable blocks at all: (B, K, 0)."""
    return next(iter(features.query.values())).new_zeros(*features.pool.shape, 0)


HEADS: dict[str, type[Head]] = {
    "cosine": Cosine,
    "neighbour": Neighbour,
    "additive": Additive,
    "bilinear": Bilinear,
    "interaction_mlp": Interaction,
}
