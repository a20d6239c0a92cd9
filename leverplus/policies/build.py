"""Build a policy from its config: the one place that knows which class a config means."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from leverplus.catalog import MODELS, load
from leverplus.errors import RecipeError
from leverplus.policies.base import Policy
from leverplus.recipe.selection import PolicyConfig


def build_policy(config: PolicyConfig, dims: Mapping[str, int], *, items: int | None = None, seed: int = 0) -> Policy:
    """A fresh policy with weights drawn from `seed`; `dims` gives the width of each feature block.

    `items` is the size of the index, needed by id models only.
    """
    problems = config.problems()
    wanted = dict.fromkeys((*config.query_fields, *config.demo_fields))
    for name in wanted:
        if name not in dims:
            problems.append(
                f'select.*_fields: "{name}" was not embedded for this task; it has {", ".join(sorted(dims))}, so '
                f'set select.query_fields = ["text"] and select.demo_fields = ["text", "answer"]'
            )
    if config.fuse == "mean" and len({dims[name] for name in wanted if name in dims}) > 1:
        problems.append('select.fuse = "mean": the fields differ in width; use select.fuse = "concat"')
    other = {name: dims[name] for name in wanted if name in dims and dims[name] != config.hidden}
    if config.model != "pointer" and config.id_form == "added" and other:
        said = ", ".join(f"{name} {width}" for name, width in other.items())
        problems.append(
            f'select.id_form = "added" adds vectors to ids as they are, which needs them as wide as select.hidden = '
            f'{config.hidden} ({said}); use select.id_form = "adapter"'
        )
    if config.model != "pointer" and items is None:
        problems.append(f'select.model = "{config.model}": the size of the index must be given')
    if problems:
        raise RecipeError("[select]", problems)
    used = {name: dims[name] for name in wanted}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = load(MODELS, config.model, "selector model")
        policy: Policy = model(config, used) if config.model == "pointer" else model(config, used, items or 0)
        return policy
