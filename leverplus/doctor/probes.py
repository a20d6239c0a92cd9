"""Probes: what is measured before the first step, so that the preflight has something to judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.doctor.records import Probe
from leverplus.maths.signal import is_flat

if TYPE_CHECKING:
    from leverplus.policies.base import Policy
    from leverplus.policies.items import ItemTable
    from leverplus.scoring.scorer import Prompt, Scorer
    from leverplus.training.data.rows import Row
    from leverplus.types import Group, Item, Pool

PROBES = 64  # rows or queries that a probe looks at: seconds, and enough to see what is wrong everywhere


def merged(*probes: Probe) -> Probe:
    """What several probes measured, as one; a later probe fills in what the earlier left open."""
    values: dict[str, Any] = {}
    for probe in probes:
        for name, value in vars(probe).items():
            if values.get(name) is None:
                values[name] = value
    return Probe(**values)


def probe_pools(pools: Mapping[str, Sequence[Pool]], items: Mapping[str, Item]) -> Probe:
    """Builders and leaks of the pools of each split, and images that train queries share with other splits' queries."""
    builders = {}
    for split, own in pools.items():
        if own:
            builders[split] = ",".join(sorted({pool.builder for pool in own}))
    images: dict[str, set[str | None]] = {}
    leaked = 0
    for split, own in pools.items():
        images[split] = {items[pool.query].image_id for pool in own} - {None}
        for pool in own:
            image = items[pool.query].image_id
            shown = {items[candidate].image_id for candidate in pool.candidates}
            leaked += pool.query in pool.candidates or (image is not None and image in shown)
    held_out = set().union(*(found for split, found in images.items() if split != "train"))
    return Probe(builders=builders, leaked=leaked, overlap=len(images.get("train", set()) & held_out))


def probe_splits(queries: Iterable[Item], held_out: Iterable[Item]) -> Probe:
    """Images that training queries share with all items of dev and test."""
    trained = {item.image_id for item in queries} - {None}
    judged = {item.image_id for item in held_out} - {None}
    return Probe(overlap=len(trained & judged))


def probe_policy(policy: Policy, rows: Sequence[Row], table: ItemTable) -> Probe:
    """Two passes over the same weights, KL to a fresh copy, loss of the start and of chance, labels outside pools."""
    import torch

    from leverplus.maths.divergences import categorical_kl
    from leverplus.training.data.batch import collate
    from leverplus.training.stages import frozen_copy, policy_logprobs, sequence_nll

    inside = [row for row in rows if not _outside(row)]
    batch = collate(inside[:PROBES], table)
    copy = frozen_copy(policy)
    with torch.no_grad():
        new, old = policy_logprobs(policy.eval(), batch), policy_logprobs(copy, batch)
        kl = categorical_kl(new.table, old.table)  # (B, G, S), per step
        measured = sequence_nll(old, batch.mask)
    # (B, G, S), 0 where a list has ended
    gap = torch.where(new.valid, (new.steps - old.steps).abs(), torch.zeros_like(new.steps))
    skill = measured["nll_skill"]  # 1 - nll / nll of a uniform choice
    return Probe(
        log_ratio=float(gap.max()),
        kl=float(torch.where(new.valid, kl, torch.zeros_like(kl)).sum(-1).max()),
        nll=measured["nll"],
        chance=measured["nll"] / (1.0 - skill) if skill < 1.0 else None,
        unreachable=sum(map(_outside, rows)),
    )


def _outside(row: Row) -> int:
    """Sequences of a row that name a position beyond its pool."""
    return int((row.sequences >= len(row.pool_rows)).any(-1).sum())


def probe_labels(rows: Sequence[Row], groups: Sequence[Group]) -> Probe:
    """How many of the sequences a stage is about to learn from do not have the accuracy that was measured for them."""
    from leverplus.policies.base import STOP

    pools = {group.query: group.pool for group in groups}
    known = {(group.query, score.demos): score.accuracy for group in groups for score in group.scores}
    labels = wrong = 0
    for row in rows:
        candidates = pools[row.query].candidates
        for sequence, accuracy in zip(row.sequences.tolist(), row.accuracy.tolist(), strict=True):
            demos = tuple(candidates[place] for place in sequence if 0 <= place < len(candidates) and place != STOP)
            measured = known.get((row.query, demos))
            labels += 1
            wrong += measured is None or abs(measured - accuracy) > 1e-6
    return Probe(labels=labels, mislabelled=wrong)


def probe_rewards(rows: Sequence[Row]) -> Probe:
    """How reward and accuracy go together among sequences that compete, and how often the reward tells none apart."""
    import numpy as np

    found, flat = [], []
    for row in rows:
        reward, accuracy = row.rewards.double().numpy(), row.accuracy.double().numpy()
        flat.append(is_flat(reward.tolist()))
        if np.ptp(reward) > 1e-6 and np.ptp(accuracy) > 1e-6:
            found.append(float(np.corrcoef(reward, accuracy)[0, 1]))
    return Probe(
        reward_agreement=sum(found) / len(found) if found else None,
        reward_flat=sum(flat) / len(flat) if flat else None,
    )


def probe_checkpoint(policy: Policy, folder: Path, rows: Sequence[Row], table: ItemTable) -> Probe:
    """Whether a checkpoint answers as the policy that was saved; one that does not fit raises CheckpointError."""
    import torch

    from leverplus.training.checkpoint import load_checkpoint
    from leverplus.training.data.batch import collate
    from leverplus.training.stages import policy_logprobs

    batch = collate([row for row in rows if not _outside(row)][:PROBES], table)
    with torch.no_grad():
        saved = policy_logprobs(policy.eval(), batch)
        loaded = policy_logprobs(load_checkpoint(folder)[0].eval(), batch)
    gap = torch.where(saved.valid, (saved.steps - loaded.steps).abs(), torch.zeros_like(saved.steps))
    return Probe(missing=0, unexpected=0, logit_gap=float(gap.max()))


def probe_order(policy: Policy, pools: Sequence[Pool], table: ItemTable, shots: int = 1) -> Probe:
    """The share of queries whose picks stay the same when their pools are reversed."""
    import torch

    from leverplus.policies.decode import greedy

    chosen = []
    for turn in (1, -1):
        lists = [pool.candidates[::turn] for pool in pools[:PROBES]]  # as they are, then reversed
        features = table.features([pool.query for pool in pools[:PROBES]], lists)
        with torch.no_grad():
            positions = greedy(policy.eval(), policy.prepare(features), shots).positions[:, 0].tolist()  # (B, shots)
        chosen.append([tuple(own[k] for k in row) for own, row in zip(lists, positions, strict=True)])
    same = sum(left == right for left, right in zip(*chosen, strict=True))
    return Probe(order_agreement=same / len(chosen[0]))


def probe_scorer(scorer: Scorer, prompts: Sequence[Prompt]) -> Probe:
    """Asks the model again for prompts that were scored, in reverse order, and counts the accuracies that changed.

    These calls are not counted and not stored.
    """
    known = scorer.store.get([scorer.key(prompt) for prompt in prompts])
    scores = list(reversed(known.values()))
    requests = [scorer.request((score.query, score.demos)) for score in scores]
    again = [
        scorer.judge(request, reply, 0.0)
        for request, reply in zip(requests, scorer.backend.answer(requests), strict=True)
    ]
    flipped = sum(abs(new.accuracy - old.accuracy) > 1e-6 for new, old in zip(again, scores, strict=True))
    return Probe(rescored=len(scores), flipped=flipped)
