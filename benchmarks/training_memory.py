"""How much of a batched training step is moving memory: bytes and products counted, against rates measured here.

    python benchmarks/training_memory.py [--queries 128] [--json]

Every operation of a step (forward, reference, backward) is seen as torch runs it; the bytes of the arrays it reads and
writes are added up, matrix products are counted apart. Rates are measured in the same run with the same one thread: a
copy of an array as large as the head's largest, and the head's own matrix product. CPU seconds throughout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from training import CANDIDATES, CASES, MEMBERS, learn, synthetic

from leverplus import catalog
from leverplus.policies.build import build_policy
from leverplus.recipe.training import SECTIONS

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


class Traffic(TorchDispatchMode):
    """Adds up what operations read and write, and the multiplications and additions of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        written = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        mine = {tensor.untyped_storage().data_ptr() for tensor in read}
        views = all(tensor.untyped_storage().data_ptr() in mine for tensor in written)
        if views and not func._schema.is_mutable:
            return result  # a view of what was there moves nothing
        self.bytes += sum(_size(tensor) for tensor in [*read, *written])
        name = func._schema.name.removeprefix("aten::")
        if name in PRODUCTS:
            left = read[-2]
            self.flops += 2 * written[0].numel() * left.shape[-1]
        return result


def _size(tensor: torch.Tensor) -> int:
    """Bytes behind a tensor; one that is expanded has fewer than it shows."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def fastest(work: Callable[[], Any], repeats: int = 5) -> float:
    """CPU seconds of the least disturbed of several runs."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def rates(rows: int, width: int) -> tuple[float, float]:
    """Bytes a second of a copy, and operations a second of a product, of arrays (rows, width)."""
    array, other, weight = torch.randn(rows, width), torch.empty(rows, width), torch.randn(width, width)
    moved = 2 * array.numel() * array.element_size()
    copied = fastest(lambda: other.copy_(array), 20)
    multiplied = fastest(lambda: torch.mm(array, weight, out=other), 20)
    return moved / copied, 2 * rows * width * width / multiplied


def measure(case: tuple[int, int, str, str], queries: int) -> dict[str, Any]:
    width, hidden, preset, stage_name = case
    table, rows = synthetic(800, queries, width)
    config = catalog.load(catalog.POLICIES, preset, "preset")
    config = replace(config, dropout=0.0, attention_dropout=0.0, hidden=hidden)
    policy = build_policy(config, table.dims).eval()
    settings = SECTIONS[stage_name]()
    if stage_name == "grpo":
        settings = replace(settings, batch_scale=False)
    stage = catalog.load(catalog.STAGES, stage_name, "stage")(settings, policy, {})
    learn(stage, policy, table, [rows[:1]])
    together = fastest(lambda: learn(stage, policy, table, [rows]), 4)
    apart = fastest(lambda: learn(stage, policy, table, [[row] for row in rows]), 1)
    traffic = Traffic()
    with traffic:
        learn(stage, policy, table, [rows])
    copy, product = rates(queries * MEMBERS * CANDIDATES, 64)
    bound = traffic.bytes / copy + traffic.flops / product
    return {
        "selector": preset,
        "stage": stage_name,
        "queries": queries,
        "times": apart / together,
        "ms_apart": 1e3 * apart / queries,
        "ms_together": 1e3 * together / queries,
        "mb_moved": traffic.bytes / queries / 1e6,
        "copy_gb_s": copy / 1e9,
        "ms_moving": 1e3 * traffic.bytes / copy / queries,
        "mflop": traffic.flops / queries / 1e6,
        "product_gflop_s": product / 1e9,
        "ms_products": 1e3 * traffic.flops / product / queries,
        "times_at_most": apart / bound,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=128, help="queries of the batch")
    parser.add_argument("--json", action="store_true", help="one JSON object a line on stdout")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for case in CASES:
        found = measure(case, arguments.queries)
        if arguments.json:
            print(json.dumps(found))
        else:
            print("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
