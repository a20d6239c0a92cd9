"""What training calls: the preflight before the first step, and findings after every epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leverplus.doctor.examine import examine
from leverplus.doctor.findings import ERROR, Finding
from leverplus.doctor.records import GroupStats, Probe, Record
from leverplus.doctor.runfolder import flat, series_of
from leverplus.errors import TrainingError

if TYPE_CHECKING:
    from leverplus.policies.base import Policy
    from leverplus.policies.items import ItemTable
    from leverplus.training.groups import Row
    from leverplus.types import Item, Pool

PROBES = 64
LATE = {"difference_inside_noise", "worse_than_random", "missing_anchors", "seed_missing"}
"""Codes that speak about an evaluation, not about a training under way."""


def preflight(values: Mapping[str, Any], probe: Probe | None = None, groups: GroupStats | None = None) -> list[Finding]:
    """Findings before the first step, from a recipe's values (`Recipe.values()`), a probe and the groups."""
    return examine(Record(source="preflight", settings=flat(values), probe=probe, groups=groups))


def epoch_findings(lines: Iterable[Mapping[str, Any]], values: Mapping[str, Any]) -> list[Finding]:
    """Findings on the log lines so far, with the recipe's values."""
    settings = flat(values)
    found = examine(Record(source="log", settings=settings, series=series_of(lines, settings)))
    return [finding for finding in found if finding.code not in LATE]


def refuse(findings: Sequence[Finding]) -> None:
    """Raise on the first error, with what to try; silent when there is none."""
    errors = [finding for finding in findings if finding.severity == ERROR]
    if not errors:
        return
    first = errors[0]
    more = f" ({len(errors) - 1} more errors follow)" if len(errors) > 1 else ""
    raise TrainingError(
        f"preflight {first.code}: {first.title}. {first.cure}{more} Type the command again with --ignore-findings to "
        "train all the same."
    )


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
    builders = {split: ",".join(sorted({pool.builder for pool in own})) for split, own in pools.items() if own}
    images: dict[str, set[str]] = {}
    leaked = 0
    for split, own in pools.items():
        images[split] = {image for pool in own if (image := items[pool.query].image_id) is not None}
        for pool in own:
            image = items[pool.query].image_id
            inside = pool.query in pool.candidates
            leaked += inside or (image is not None and any(items[c].image_id == image for c in pool.candidates))
    held_out = set().union(*(found for split, found in images.items() if split != "train"))
    return Probe(builders=builders, leaked=leaked, overlap=len(images.get("train", set()) & held_out))


def probe_policy(policy: Policy, rows: Sequence[Row], table: ItemTable) -> Probe:
    """Two passes over the same weights, chance level of the start, labels outside the pool, shuffled pools."""
    import torch

    from leverplus.divergences import categorical_kl
    from leverplus.training.groups import collate
    from leverplus.training.stages import frozen_copy, policy_logprobs, sequence_nll

    inside = [row for row in rows if not _outside(row)]
    batch = collate(inside[:PROBES], table)
    copy = frozen_copy(policy)
    with torch.no_grad():
        new, old = policy_logprobs(policy.eval(), batch), policy_logprobs(copy, batch)
        kl = categorical_kl(new.table, old.table)
        measured = sequence_nll(old, batch.mask)
    gap = torch.where(new.valid, (new.steps - old.steps).abs(), torch.zeros_like(new.steps))
    skill = measured["nll_skill"]
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
