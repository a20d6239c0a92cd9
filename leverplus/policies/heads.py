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
    """Divides scores by a temperature, fixed or learned; subclasses define the score itself, (B, G, A).

    `read` may add blocks to the encoded pool; `begin` and `remember` may keep a memory of earlier picks.
    """

    compares = False
    """Whether a candidate's score depends on the other candidates of its pool."""

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int]) -> None:  # noqa: ARG002 one signature
        super().__init__()
        # learned as log(1 / temperature), so that the scale stays positive whatever training does (as in CLIP)
        scale = torch.tensor(-math.log(config.temperature))
        if config.learn_temperature:
            self.log_scale = nn.Parameter(scale)
        else:
            self.register_buffer("log_scale", scale)

    def scaled(self, scores: Tensor) -> Tensor:
        """The scores divided by the temperature, which is held at 0.01 or more as in CLIP."""
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
            self.vector.weight.mul_(0.1)  # nearly equal scores at first: training starts from a nearly uniform choice

    def forward(self, h: Tensor, encoded: Encoded, memory: Memory) -> Tensor:  # noqa: ARG002
        query = self.query(h).unsqueeze(2)  # (B, G, 1, H)
        items = self.item(encoded["v"]).unsqueeze(1)  # (B, 1, A, H)
        joined = torch.tanh(query + items)  # (B, G, A, H)
        return self.scaled(self.vector(joined).squeeze(-1))


class Bilinear(Head):
    """h^T B v / temperature, B the identity at first."""

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int]) -> None:
        super().__init__(config, dims)
        noise = 0.01 * torch.randn(config.hidden, config.hidden)
        self.weight = nn.Parameter(torch.eye(config.hidden) + noise)  # (H, H)

    def forward(self, h: Tensor, encoded: Encoded, memory: Memory) -> Tensor:  # noqa: ARG002
        return self.scaled((h @ self.weight) @ encoded["v"].mT)  # (B, G, A)


class Neighbour(Cosine):
    """<h, v> / temperature plus the cosines between raw blocks of query and candidate, each with a learned weight.

    The cosines are standardised inside the pool. At first those of equal blocks (picture to picture, question to
    question) have weight 1 and the others 0: an untrained selector is close to nearest neighbours, and learns from
    there.
    """

    compares = True

    def __init__(self, config: PolicyConfig, dims: Mapping[str, int]) -> None:
        super().__init__(config, dims)
        self.pairs = comparable(config, dims)
        self.weight = nn.Parameter(torch.tensor([float(left == right) for left, right in self.pairs]))

    def read(self, features: Features, v: Tensor) -> dict[str, Tensor]:
        standardised = raw_likeness(features, self.pairs)[..., 1::2]  # (B, K, pairs)
        nearness = standardised @ self.weight  # (B, K)
        extra = v.shape[1] - nearness.shape[1]  # 1 where STOP is the last row of v
        return {"nearness": F.pad(nearness, (0, extra))}  # (B, A), 0 for STOP

    def forward(self, h: Tensor, encoded: Encoded, memory: Memory) -> Tensor:
        return super().forward(h, encoded, memory) + encoded["nearness"].unsqueeze(1)


class Interaction(Head):
    """A small network over what query and candidate have in common.

    Its inputs: a low-rank elementwise product of h and v, both vectors, the cosines between the raw blocks of query and
    candidate (image-image, text-answer, ...; plain and standardised inside the pool), and in each raw block the largest
    cosine between the candidate and a pick so far. The cosines make nearest-neighbour rules learnable from few queries.

    W is the width of the network, F the number of fields of a candidate.
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
            self.out.weight.mul_(0.1)  # nearly equal scores at first, as in `Additive`

    def read(self, features: Features, v: Tensor) -> dict[str, Tensor]:
        likeness = raw_likeness(features, self.pairs)  # (B, K, 2 pairs)
        gram = self._gram(features)  # (B, K, K, F)
        extra = v.shape[1] - likeness.shape[1]  # 1 where STOP is the last row of v; it has no raw blocks
        likeness = F.pad(likeness, (0, 0, 0, extra))  # (B, A, 2 pairs)
        gram = F.pad(gram, (0, 0, 0, extra, 0, extra))  # (B, A, A, F)
        base = self.item(v) + self.likeness(likeness)  # (B, A, W)
        # entries of a unit vector of H numbers are about 1 / sqrt(H); this brings their products back to about 1
        right = self.right(v) * math.sqrt(v.shape[-1])  # (B, A, W)
        return {"base": base, "right": right, "gram": gram}

    def _gram(self, features: Features) -> Tensor:
        """Cosines between all candidates of a pool in each raw block, (B, K, K, F)."""
        cosines = []
        for name in self.fields:
            block = features.gather(F.normalize(features.items[name], dim=-1))  # (B, K, D)
            cosines.append(block @ block.mT)
        return torch.stack(cosines, dim=-1)

    def begin(self, encoded: Encoded, members: int) -> Memory:
        batch, actions, _, fields = encoded["gram"].shape
        return {"likest": encoded["gram"].new_zeros(batch, members, actions, fields)}

    def remember(self, encoded: Encoded, memory: Memory, action: Tensor, step: int) -> Memory:
        gram = encoded["gram"]  # (B, A, A, F)
        index = action[..., None, None].expand(-1, -1, *gram.shape[2:])
        row = torch.gather(gram, 1, index)  # (B, G, A, F), cosines of every candidate to the pick
        if step == 0:  # no maximum with the zeros of `begin`: cosines may be negative
            return {"likest": row}
        return {"likest": torch.maximum(memory["likest"], row)}

    def forward(self, h: Tensor, encoded: Encoded, memory: Memory) -> Tensor:
        # reading and writing (B, G, A, W) arrays is most of the work, so sums are fused and ReLUs written over; the
        # arrays are flat because writing over a view makes autograd copy it
        likest = memory["likest"]  # (B, G, A, F)
        plain = encoded["base"].unsqueeze(1) + self.query(h).unsqueeze(2)  # (B, G, A, W)
        fixed = torch.addcmul(plain, self.left(h).unsqueeze(2), encoded["right"].unsqueeze(1))  # (B, G, A, W)
        mixed = torch.addmm(fixed.flatten(0, 2), likest.flatten(0, 2), self.redundancy.weight.T).relu_()  # (B G A, W)
        scores = self.out(self.middle(self.dropout(mixed)).relu_())  # (B G A, 1)
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
        all_cosines = query[left] @ items[right].T  # (B, U), every item once, however many pools hold it
        cosine = torch.gather(all_cosines, 1, rows).masked_fill(~mask, 0.0)  # (B, K)
        mean = cosine.sum(-1, keepdim=True) / count
        centred = (cosine - mean).masked_fill(~mask, 0.0)
        spread = (centred.square().sum(-1, keepdim=True) / count).sqrt()
        # 1e-3: a pool of equal cosines must give 0 and not rounding noise blown up to 1
        columns += [cosine, centred / (spread + 1e-3)]
    if not columns:  # no block of the query can be compared with one of a candidate
        any_block = next(iter(features.query.values()))
        return any_block.new_zeros(*features.pool.shape, 0)
    return torch.stack(columns, dim=-1)
