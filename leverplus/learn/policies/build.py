"""Build a policy from its config: the one place that knows which class a config means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from leverplus.catalog import MODELS, load
from leverplus.errors import RecipeError
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.settings import PolicyConfig


def build_policy(
    config: PolicyConfig,
    dims: Mapping[str, int],
    *,
    items: int | None = None,
    seed: int = 0,
) -> Policy:
    """A fresh policy with weights drawn from `seed`; `dims` gives the width of each feature block.

    `items` is the size of the index, needed by id models only. All problems of the config are raised in one error.
    """
    wanted = dict.fromkeys(
        (*config.query_fields, *config.demo_fields)
    )  # each field once, in the order of the recipe
    problems = [*config.problems(), *_field_problems(config, dims, wanted)]
    if config.model != "pointer" and items is None:
        problems.append(
            f'select.model = "{config.model}": the size of the index must be given'
        )
    if problems:
        raise RecipeError("[select]", problems)
    used = {name: dims[name] for name in wanted}
    with torch.random.fork_rng(
        devices=[]
    ):  # weights depend on `seed` only; the caller's generator stays untouched
        torch.default_generator.manual_seed(
            seed
        )  # torch.manual_seed would keep a stack trace for every device
        model = load(MODELS, config.model, "selector model")
        policy: Policy = (
            model(config, used)
            if config.model == "pointer"
            else model(config, used, items or 0)
        )
        return policy


def _field_problems(
    config: PolicyConfig,
    dims: Mapping[str, int],
    wanted: Iterable[str],
) -> list[str]:
    """What is wrong with the wanted fields: some are not embedded, or their widths do not fit the config."""
    problems = []
    for name in wanted:
        if name not in dims:
            problems.append(
                f'select.*_fields: "{name}" was not embedded for this task; it has {", ".join(sorted(dims))}, so '
                f'set select.query_fields = ["text"] and select.demo_fields = ["text", "answer"]'
            )
    widths = {name: dims[name] for name in wanted if name in dims}
    if config.fuse == "mean" and len(set(widths.values())) > 1:
        problems.append(
            'select.fuse = "mean": the fields differ in width; use select.fuse = "concat"'
        )
    misfits = {name: width for name, width in widths.items() if width != config.hidden}
    if config.model != "pointer" and config.id_form == "added" and misfits:
        listed = ", ".join(f"{name} {width}" for name, width in misfits.items())
        problems.append(
            f'select.id_form = "added" adds vectors to ids as they are, which needs them as wide as select.hidden = '
            f'{config.hidden} ({listed}); use select.id_form = "adapter"'
        )
    return problems
