"""Active acquisition: the selector in training says which prompts are worth a call next.

For a fresh query only one random candidate in fifty is of any use, so a dense table mostly measures what is plainly
useless. Here the selector proposes its best candidates, a few are added by chance, and the truth about them is
measured: where it is right it becomes sharper, where it is wrong it meets its own mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from leverplus.policies.base import Policy
from leverplus.policies.items import ItemTable
from leverplus.scoring.sources import source_seed
from leverplus.types import ItemId, Pool

BATCH = 256


def propose(
    policy: Policy, table: ItemTable, pools: Sequence[Pool], *, best: int, chance: int, seed: int
) -> dict[ItemId, list[ItemId]]:
    """For every query the candidates worth measuring: the selector's best as a first pick, and some by chance."""
    policy.eval()
    chosen: dict[ItemId, list[ItemId]] = {}
    for start in range(0, len(pools), BATCH):
        part = pools[start : start + BATCH]
        features = table.features([pool.query for pool in part], [pool.candidates for pool in part])
        with torch.no_grad():
            encoded = policy.prepare(features)
            logits = policy.step(encoded, policy.start(encoded, 1), allow_stop=False)[:, 0]
        for pool, row in zip(part, logits, strict=True):
            order = row[: len(pool)].argsort(descending=True, stable=True).tolist()
            rest = order[best:]
            rng = np.random.default_rng(source_seed(seed, "acquire", pool.query))
            drawn = [rest[int(k)] for k in rng.permutation(len(rest))[:chance]]
            chosen[pool.query] = [pool.candidates[k] for k in (*order[:best], *drawn)]
    return chosen
