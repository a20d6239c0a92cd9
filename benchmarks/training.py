"""How fast a batch is learnt from, against one query at a time accumulating over the same batch; gradients must agree.

    python benchmarks/training.py [--quick] [--json]

Both sides use the same policy, loss, groups and collation; only how many queries are read at once differs. With one
thread CPU seconds are counted, so that what else runs on the machine matters little.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch.nn.functional import normalize

from leverplus import catalog
from leverplus.policies.base import Policy
from leverplus.policies.build import build_policy
from leverplus.policies.items import ItemTable
from leverplus.recipe.training import SECTIONS, RewardConfig
from leverplus.training.data.batch import collate
from leverplus.training.data.from_search import rows_from_groups
from leverplus.training.data.rows import Row
from leverplus.training.stages import Progress, Stage
from leverplus.types import Group, ItemId, Member, Pool, Reference, Score

START = Progress(0, 0, 1)
CANDIDATES, SHOTS, MEMBERS = 64, 2, 8
CASES = [  # width of the feature blocks, hidden width, selector, stage
    (512, 256, "cross_attention_faithful", "sft"),
    (64, 64, "cross_attention", "rce"),
    (64, 64, "recurrent", "grpo"),
    (64, 64, "interaction", "pairwise"),
]


def synthetic(items: int, queries: int, width: int) -> tuple[ItemTable, list[Row]]:
    """Random unit vectors and groups of random lists with random scores."""
    generator = torch.Generator().manual_seed(0)
    ids = [ItemId(str(index)) for index in range(items + queries)]
    names = ("image", "text", "answer")
    table = ItemTable(
        ids, {name: normalize(torch.randn(len(ids), width, generator=generator), dim=-1) for name in names}
    )
    groups = []
    for query in ids[items:]:
        candidates = tuple(ids[index] for index in torch.randperm(items, generator=generator)[:CANDIDATES].tolist())
        members, scores = [], []
        for _ in range(MEMBERS):
            order = torch.randperm(CANDIDATES, generator=generator)[:SHOTS].tolist()
            demos = tuple(candidates[index] for index in order)
            p = float(torch.rand(1, generator=generator)) * 0.9 + 0.05
            members.append(Member(demos, "random", -SHOTS * math.log(CANDIDATES)))
            reference = (Reference("x", 3, math.log(p)),)
            scores.append(Score(query, demos, "x", "x", float(p > 0.5), p > 0.5, reference, p, p, 1, 0.0))
        groups.append(Group(query, Pool(query, candidates, "bench"), tuple(members), tuple(scores)))
    return table, rows_from_groups(groups, table, RewardConfig())


def gradients(policy: Policy) -> list[torch.Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in policy.parameters()]


def learn(stage: Stage, policy: Policy, table: ItemTable, parts: Sequence[Sequence[Row]]) -> list[torch.Tensor]:
    """The gradient of the mean loss over rows that are read part by part."""
    policy.zero_grad(set_to_none=True)
    for part in parts:
        (stage.loss(policy, collate(part, table), START).total / len(parts)).backward()
    return gradients(policy)


def timed(work: Callable[[], list[torch.Tensor]], repeats: int = 1) -> tuple[float, list[torch.Tensor]]:
    """Seconds of the fastest of several runs, which is the least disturbed one, and what the work returned."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times, result = [], []
    for _ in range(repeats):
        begin = clock()
        result = work()
        times.append(clock() - begin)
    return min(times), result


def measure(preset: str, stage_name: str, table: ItemTable, rows: list[Row], hidden: int) -> dict[str, float | str]:
    config = catalog.load(catalog.POLICIES, preset, "preset")
    config = replace(config, dropout=0.0, attention_dropout=0.0, hidden=hidden)
    policy = build_policy(config, table.dims).eval()
    settings = SECTIONS[stage_name]()
    if stage_name == "grpo":
        settings = replace(settings, batch_scale=False)  # a scale of the whole batch cannot be had one query at a time
    stage: Stage = catalog.load(catalog.STAGES, stage_name, "stage")(settings, policy, {})
    learn(stage, policy, table, [rows[:1]])
    fast, together = timed(lambda: learn(stage, policy, table, [rows]), repeats=4)
    slow, apart = timed(lambda: learn(stage, policy, table, [[row] for row in rows]))
    error = max(float((a - b).abs().max()) for a, b in zip(together, apart, strict=True))
    return {
        "selector": preset,
        "stage": stage_name,
        "width": table.dims["text"],
        "batched_per_s": len(rows) / fast,
        "one_by_one_per_s": len(rows) / slow,
        "speedup": slow / fast,
        "gradient_error": error,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a batch of 64 queries")
    parser.add_argument("--queries", type=int, help="queries of the batch (default 256)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (take 1 on a busy machine)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    queries = arguments.queries or (64 if arguments.quick else 256)
    results = []
    for width, hidden, preset, stage in CASES:
        table, rows = synthetic(800, queries, width)
        results.append(measure(preset, stage, table, rows, hidden))
    if arguments.json:
        print(json.dumps({"queries": queries, "threads": torch.get_num_threads(), "results": results}))
        return 0
    print(f"{queries} queries, {CANDIDATES} candidates, {MEMBERS} lists of {SHOTS}, {torch.get_num_threads()} threads")
    print(f"{'selector':26} {'stage':8} {'width':>5} {'batched/s':>10} {'one by one/s':>13} {'times':>6} {'error':>12}")
    for row in results:
        print(
            f"{row['selector']:26} {row['stage']:8} {row['width']:5} {row['batched_per_s']:10.0f} "
            f"{row['one_by_one_per_s']:13.0f} {row['speedup']:6.1f} {row['gradient_error']:12.1e}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
