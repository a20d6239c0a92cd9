"""The run log: one JSON object a line, metric names fixed here and explained in docs/metrics.md."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from leverplus.data.rundir import disk_sentence, read_log, write_text
from leverplus.errors import TrainingError

CONTEXT = ("stage", "epoch", "step", "lvlm_calls")
"""Keys that say where a line belongs; every other key is a metric."""

STEPS = range(1, 18)
"""Places of a list that may be logged: the longest has 16 demonstrations and a STOP."""

METRICS: dict[str, str] = {
    "reward": "mean reward of all members",
    "reward_std": "mean over groups of the standard deviation inside a group",
    "reward_std_batch": "standard deviation of all rewards of a batch",
    "frac_reward_zero_std": "share of groups whose rewards are all equal",
    "frac_reward_all_zero": "share of groups in which no member is right",
    "frac_reward_all_one": "share of groups in which every member is right",
    "rewards/acc/mean": "mean accuracy of all members",
    "reward/oracle_in_group": "mean of the best reward of each group",
    "reward/headroom": "mean of best minus mean reward of each group",
    "group/size": "mean number of members",
    "adv/std": "mean over groups of the standard deviation of the advantages",
    "adv/max": "largest absolute advantage",
    "adv/frac_active": "share of members with an advantage that moves the policy",
    "kl": "exact KL to the reference, nats a sequence",
    "kl_prox": "exact KL to the proximal policy, nats a sequence",
    "kl_k3": "k3 estimate of the KL to the reference on the stored sequences",
    "tv_prox": "mean total variation to the proximal policy, a step",
    "kl_coef": "weight of the KL term",
    "entropy": "mean entropy of a step, nats",
    "entropy/norm": "mean of entropy / log(allowed actions)",
    "clip_ratio/low_mean": "share of ratios below the clip with negative advantage",
    "clip_ratio/high_mean": "share of ratios above the clip with positive advantage",
    "clip_ratio/region_mean": "share of ratios outside the clip range",
    "ratio/mean": "mean ratio",
    "ratio/max": "largest ratio",
    "ratio/first_mb_dev": "largest |log ratio| of the first batch after a refresh; 0 when nothing is wrong",
    "sampling/is_mean": "mean of proximal / behaviour",
    "sampling/is_max": "largest proximal / behaviour",
    "sampling/ess": "effective share of sequences under these weights",
    "pair/count": "pairs of a batch that differ by more than the margin (listwise: at all)",
    "pair/accuracy": "share of pairs in which the better is ahead",
    "pair/margin": "mean difference of log-ratios over pairs (listwise: of log π)",
    "listwise/rows": "prefixes of a batch with several measured next picks",
    "listwise/accuracy": "share of prefixes whose best measured pick is ranked first",
    "contrastive/ahead": "share of candidates with like answers that are ahead of all less alike ones",
    "contrastive/likeness": "mean likeness of the answer of the candidate that is ahead",
    "nll": "mean negative log-likelihood of the members, nats a sequence",
    "nll_skill": "1 - nll / nll of a uniform policy",
    "temperature": "temperature of the reward weights",
    "fit/loss": "reward-weighted cross-entropy at temperature 1 on groups that are learnt from, as val/loss elsewhere",
    "fit/group_reward": (
        "mean reward of a group's members, each counted by its probability among them, as val/group_reward"
    ),
    "loss/total": "what is minimised",
    "loss/pg": "clipped policy-gradient term",
    "loss/kl": "KL term with its weight",
    "loss/entropy": "entropy bonus, minus the mean entropy of a step with its weight",
    "loss/nll": "likelihood term",
    "loss/rce": "reward-weighted cross-entropy",
    "loss/pair": "pairwise term",
    "loss/listwise": "listwise term",
    "loss/info_nce": "contrastive term",
    "grad/policy": "norm of the gradient of the clipped policy-gradient term after the epoch",
    "grad/kl": "norm of the gradient of the KL term with its weight",
    "grad/entropy": "norm of the gradient of the entropy bonus with its weight",
    "grad/nll": "norm of the gradient of the likelihood term with its weight",
    "grad/rce": "norm of the gradient of the reward-weighted cross-entropy",
    "grad/pair": "norm of the gradient of the pairwise term",
    "grad/listwise": "norm of the gradient of the listwise term",
    "grad/info_nce": "norm of the gradient of the contrastive term",
    "grad_norm": "norm of the gradient before clipping",
    "frac_clipped_steps": "share of optimiser steps whose gradient was clipped",
    "lr": "learning rate of the last step",
    "rows": "groups the epoch learnt from",
    "update/param_rel": "norm of the change of the weights in an epoch / norm of the weights",
    "picks/changed_frac": "share of probe queries whose greedy picks changed in the epoch",
    "picks/unique_demos": "different demonstrations among the greedy picks of the probe queries",
}
for _step in STEPS:
    METRICS[f"kl/step{_step}"] = (
        f"exact KL to the reference at place {_step} of the list, nats"
    )
    METRICS[f"entropy/step{_step}"] = (
        f"entropy of the choice at place {_step} of the list, nats"
    )
"""Every metric a stage may log under `train/`, with what it means."""


class RunLog:
    """An append-only log file; lines of epochs that are run again after a resume are dropped first."""

    def __init__(
        self,
        path: Path | None,
        also: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        """`also` is given every line once it is written."""
        self.path = path
        self.also = also
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def write(
        self,
        context: Mapping[str, object],
        train: Mapping[str, float],
        val: Mapping[str, float],
    ) -> None:
        """One line: where it belongs, `train/...` and `val/...`; numbers that are not finite are written as null."""
        unknown = sorted(set(train) - set(METRICS))
        if unknown:
            raise TrainingError(
                f"metrics without a description: {', '.join(unknown)}; add them to runlog.METRICS"
            )
        line: dict[str, object] = dict(context)
        for part, values in (("train", train), ("val", val)):
            for name, value in sorted(values.items()):
                line[f"{part}/{name}"] = value if math.isfinite(value) else None
        if self.path is not None:
            with disk_sentence(self.path), self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        if self.also is not None:
            self.also(line)

    def lines(self) -> list[dict[str, Any]]:
        if self.path is None or not self.path.is_file():
            return []
        return read_log(self.path)[0]

    def rewind(
        self,
        stage: str,
        epochs: int,
    ) -> None:
        """Forget the lines of a stage after its first `epochs` epochs."""
        if self.path is None or not self.path.is_file():
            return
        kept = []
        for line in self.lines():
            epoch = line.get("epoch")
            late = isinstance(epoch, (int, float)) and epoch > epochs
            if line.get("stage") != stage or not late:
                kept.append(json.dumps(line) + "\n")
        write_text(self.path, "".join(kept))
