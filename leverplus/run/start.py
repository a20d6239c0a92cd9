"""The selector a training begins with: a fresh one, or one that was trained elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leverplus.data import rundir
from leverplus.errors import LeverError
from leverplus.run.run import Run

if TYPE_CHECKING:
    from leverplus.learn.policies.base import Policy
    from leverplus.learn.policies.table import ItemTable


def given_policy(run: Run, text: str) -> Policy:
    """A selector from outside this run, refused where it does not fit the task's vectors."""
    from leverplus.learn.given import read_given, require_widths

    policy = read_given(text)
    _, table = run.pools(run.demonstrations[:1])
    require_widths(policy, table.dims, len(table), text)
    if (policy.adapters is None) != (run.live is None):
        which = (
            "has no adapters, and"
            if policy.adapters is None
            else "has adapters in the embedder, and not"
        )
        raise LeverError(
            f"{text} {which} this recipe (sft.lora_rank); use a run of the same kind"
        )
    return policy


def starting_policy(run: Run) -> Policy | None:
    """What `train.start` names, kept in the run folder once read; None where training begins from scratch."""
    from leverplus.learn.checkpoint import load_checkpoint, save_checkpoint

    kept = run.folder / rundir.CHECKPOINTS / "start"
    if not run.recipe.train.start:
        return None
    if not kept.is_dir():
        given = given_policy(run, run.recipe.train.start)
        save_checkpoint(kept, given, run.recipe.hash, {"from": run.recipe.train.start})
    return load_checkpoint(kept)[0]


def add_adapters(run: Run, policy: Policy) -> None:
    """Give a fresh policy the adapters that the recipe asks for."""
    if run.live is None:
        return
    from leverplus.learn.policies.adapters import Adapters
    from leverplus.learn.seeds import derive_seed

    sft: Any = run.recipe.stages["sft"]
    seed = derive_seed(run.seed, "adapters")
    options = {
        "rank": sft.lora_rank,
        "alpha": sft.lora_alpha,
        "dropout": sft.lora_dropout,
    }
    policy.adapters = Adapters.around(
        run.live.network, run.live.revision, **options, seed=seed
    )


def first_policy(run: Run, table: ItemTable, start: Policy | None) -> Policy:
    """A fresh selector with the weights of `start`, where there is one."""
    from leverplus.learn.given import fill_from
    from leverplus.learn.policies.build import build_policy
    from leverplus.learn.seeds import derive_seed

    policy = build_policy(
        run.recipe.select,
        table.dims,
        items=len(table),
        seed=derive_seed(run.seed, "init"),
    )
    add_adapters(run, policy)
    if start is not None:
        fill_from(policy, start, run.recipe.train.start)
    return policy
