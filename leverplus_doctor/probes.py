"""Probes: what is measured before the first step, so that the preflight has something to judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from leverplus.learn.checkpoint import load_checkpoint
from leverplus.learn.data.batch import collate
from leverplus.learn.maths.divergences import categorical_kl
from leverplus.learn.maths.signal import is_flat
from leverplus.learn.policies.base import STOP
from leverplus.learn.stages import frozen_copy, policy_logprobs, sequence_nll
from leverplus_doctor.records import Probe

if TYPE_CHECKING:
    from leverplus.data.types import Group, Item, Pool
    from leverplus.learn.data.batch import GroupBatch
    from leverplus.learn.data.from_search import RowMaker
    from leverplus.learn.data.rows import Row
    from leverplus.learn.policies.base import Policy, StepLogprobs
    from leverplus.learn.policies.table import ItemTable
    from leverplus.run.run import Run
    from leverplus.scores.scorer import Prompt, Scorer

PROBES = 64  # rows or queries that a probe looks at: seconds, and enough to see what is wrong everywhere
JUDGED_GROUPS = 200
ASKED_AGAIN = 32
"""Groups whose rewards are compared, and scores that are asked for again."""


def merged(*probes: Probe) -> Probe:
    """What several probes measured, as one; a later probe fills in what the earlier left open.

    >>> merged(Probe(kl=0.1), Probe(kl=0.5, leaked=2)).kl
    0.1
    """
    values: dict[str, Any] = {}
    for probe in reversed(probes):
        for name, value in vars(probe).items():
            if value is not None:
                values[name] = value
    return Probe(**values)


def measure(
    run: Run,
    policy: Policy,
    rows: Sequence[Row],
    groups: Sequence[Group],
    make_rows: RowMaker,
) -> Probe:
    """Everything that can be measured before the first step."""
    pools: dict[str, Sequence[Pool]] = {"train": [group.pool for group in groups]}
    queries = run.training_queries()
    shown = [*run.demonstrations, *queries]
    held_out: list[Item] = []
    for split in ("dev", "test"):
        chosen = run.chosen_items(split, PROBES)
        shown += chosen
        pools[split] = run.pools(chosen)[0]
        held_out += run.task.items(split)
    items = {str(item.id): item for item in shown}
    measured = [
        probe_splits(queries, held_out),
        probe_pools(pools, items),
        probe_policy(policy, rows, make_rows.table),
        probe_labels(rows, groups),
        probe_rewards(make_rows(groups[:JUDGED_GROUPS])),
    ]
    # the model is in this process, was asked for something, and the groups are its answers
    score = run.recipe.score
    if score.engine == "local" and run.scorer.meter.fresh and not score.groups:
        asked = []
        for group in groups:
            if group.members:
                last = group.members[-1]
                asked.append((group.query, last.demos))
        measured.append(probe_scorer(run.scorer, asked[:ASKED_AGAIN]))
    return merged(*measured)


def probe_pools(
    pools: Mapping[str, Sequence[Pool]], items: Mapping[str, Item]
) -> Probe:
    """Builders of the pools of each split, and queries whose pools hold them or their picture."""
    builders = {}
    leaked = 0
    for split, own in pools.items():
        used = set()
        for pool in own:
            used.add(pool.builder)
            image = items[pool.query].image_id
            shown = {items[candidate].image_id for candidate in pool.candidates}
            found = image is not None and image in shown
            leaked += found or pool.query in pool.candidates
        if used:
            builders[split] = ",".join(sorted(used))
    return Probe(builders=builders, leaked=leaked)


def probe_splits(queries: Iterable[Item], held_out: Iterable[Item]) -> Probe:
    """Images that training queries share with all items of dev and test."""
    trained = {item.image_id for item in queries} - {None}
    tested = {item.image_id for item in held_out}
    return Probe(overlap=len(trained & tested))


def probe_policy(policy: Policy, rows: Sequence[Row], table: ItemTable) -> Probe:
    """Two passes over the same weights, KL to a fresh copy, loss of the start and of chance, labels outside pools."""
    batch = _batch(rows, table)
    with torch.no_grad():
        new = policy_logprobs(policy.eval(), batch)
        old = policy_logprobs(frozen_copy(policy), batch)
        kl = categorical_kl(new.table, old.table)  # (B, G, S), per step
        measured = sequence_nll(old, batch.mask)
    nll = measured["nll"]
    skill = measured["nll_skill"]  # 1 - nll / nll of a uniform choice
    chance = None
    if skill < 1.0:
        chance = nll / (1.0 - skill)
    kl = kl.masked_fill(~new.valid, 0.0).sum(-1)  # (B, G)
    return Probe(
        log_ratio=_largest_gap(new, old),
        kl=float(kl.max()),
        nll=nll,
        chance=chance,
        unreachable=sum(map(_outside, rows)),
    )


def _batch(rows: Sequence[Row], table: ItemTable) -> GroupBatch:
    """The first rows whose sequences all lie in their pools."""
    whole = [row for row in rows if not _outside(row)]
    return collate(whole[:PROBES], table)


def _largest_gap(first: StepLogprobs, second: StepLogprobs) -> float:
    """The largest difference of two passes over the steps (B, G, S) that a list has."""
    gap = (first.steps - second.steps).abs()
    return float(gap.masked_fill(~first.valid, 0.0).max())


def _outside(row: Row) -> int:
    """Sequences of a row that name a position beyond its pool."""
    beyond = row.sequences >= len(row.pool_rows)  # (G, S)
    return int(beyond.any(-1).sum())


def probe_labels(rows: Sequence[Row], groups: Sequence[Group]) -> Probe:
    """How many of the sequences a stage is about to learn from do not have the accuracy that was measured for them."""
    pools = {}
    known = {}
    for group in groups:
        pools[group.query] = group.pool.candidates
        for score in group.scores:
            known[group.query, score.demos] = score.accuracy
    labels = wrong = 0
    for row in rows:
        candidates = pools[row.query]
        accuracies = row.accuracy.tolist()
        labels += len(accuracies)
        for sequence, accuracy in zip(row.sequences.tolist(), accuracies, strict=True):
            demos = []
            for place in sequence:
                if 0 <= place < len(candidates) and place != STOP:
                    demos.append(candidates[place])
            measured = known.get((row.query, tuple(demos)))
            wrong += measured is None or abs(measured - accuracy) > 1e-6
    return Probe(labels=labels, mislabelled=wrong)


def probe_rewards(rows: Sequence[Row]) -> Probe:
    """How reward and accuracy go together among sequences that compete, and how often the reward tells none apart."""
    found = []
    flat = []
    for row in rows:
        reward = row.rewards.double().numpy()
        accuracy = row.accuracy.double().numpy()
        flat.append(is_flat(reward.tolist()))
        if np.ptp(reward) > 1e-6 and np.ptp(accuracy) > 1e-6:
            correlation = np.corrcoef(reward, accuracy)[0, 1]
            found.append(float(correlation))
    return Probe(reward_agreement=_mean(found), reward_flat=_mean(flat))


def _mean(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return float(np.mean(values))


def probe_checkpoint(
    policy: Policy, folder: Path, rows: Sequence[Row], table: ItemTable
) -> Probe:
    """Whether a checkpoint answers as the policy that was saved; one that does not fit raises CheckpointError."""
    batch = _batch(rows, table)
    with torch.no_grad():
        saved = policy_logprobs(policy.eval(), batch)
        loaded = policy_logprobs(load_checkpoint(folder)[0].eval(), batch)
    return Probe(missing=0, unexpected=0, logit_gap=_largest_gap(saved, loaded))


def probe_scorer(scorer: Scorer, prompts: Sequence[Prompt]) -> Probe:
    """Asks the model again for prompts that were scored, in reverse order, and counts the accuracies that changed.

    These calls are not counted and not stored.
    """
    keys = [scorer.key(prompt) for prompt in prompts]
    known = scorer.store.get(keys)
    scores = list(reversed(known.values()))
    requests = [scorer.request((score.query, score.demos)) for score in scores]
    replies = scorer.backend.answer(requests)
    flipped = 0
    for request, reply, old in zip(requests, replies, scores, strict=True):
        new = scorer.judge(request, reply, 0.0)
        flipped += abs(new.accuracy - old.accuracy) > 1e-6
    return Probe(rescored=len(scores), flipped=flipped)
