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
from leverplus.types import Demos, Pool

BATCH = 256


def propose(
    policy: Policy, table: ItemTable, pools: Sequence[Pool], depth: int, *, best: int, chance: int, seed: int
) -> list[list[Demos]]:
    """For every pool the prompts worth measuring: what the selector would show first, each with one more behind it.

    The first `depth` demonstrations are the selector's own; what is tried behind them are its best candidates for that
    place and some by chance. The first prompt of a pool is the beginning alone.
    """
    policy.eval()
    chosen: list[list[Demos]] = []
    for start in range(0, len(pools), BATCH):
        part = pools[start : start + BATCH]
        features = table.features([pool.query for pool in part], [pool.candidates for pool in part])
        with torch.no_grad():
            encoded = policy.prepare(features)
            state, shown = policy.start(encoded, 1, depth + 1), []
            for _ in range(depth):
                action = policy.step(encoded, state, allow_stop=False).argmax(-1)
                shown.append(action[:, 0])
                state = policy.advance(encoded, state, action)
            logits = policy.step(encoded, state, allow_stop=False)[:, 0]
        beginnings = torch.stack(shown, dim=-1).tolist() if shown else [[] for _ in part]
        for pool, beginning, row in zip(part, beginnings, logits, strict=True):
            order = row[: len(pool)].argsort(descending=True, stable=True).tolist()
            order = order[: len(pool) - depth]  # what is shown already comes last
            rest = order[best:]
            rng = np.random.default_rng(source_seed(seed, f"acquire {depth}" if depth else "acquire", pool.query))
            drawn = [rest[int(k)] for k in rng.permutation(len(rest))[:chance]]
            first = tuple(pool.candidates[k] for k in beginning)
            chosen.append([first, *((*first, pool.candidates[k]) for k in (*order[:best], *drawn))])
    return chosen
