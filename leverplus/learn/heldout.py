"""Groups of measured sequences that a stage does not learn from, and how well the policy does on them.

They cost no call: their scores are there. Two numbers say how a stage gets on where it does not learn. `loss` is the
reward-weighted cross-entropy at temperature 1, the held-out loss of the earlier code: it must rise when a policy puts
its trust in few sequences, so it is no measure of skill by itself. `group_reward` is: the mean reward of the members
of a group, each counted by how likely the policy is to choose it among them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from leverplus.learn.data.batch import collate
from leverplus.learn.data.rows import Row
from leverplus.learn.maths import losses
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.stages import policy_logprobs

BATCH = 64
"""Groups judged together."""

TEMPERATURE = 1.0
"""Of the weights of the held-out loss, as the earlier code had it."""


def split_rows(
    rows: Sequence[Row],
    share: float,
) -> tuple[list[Row], list[Row]]:
    """Rows to learn from, and those of a share of the queries, at least one of each where there are two queries.

    Which query goes where follows from its id alone, so that rows of later rounds never move over.
    """
    queries = sorted({str(row.query) for row in rows}, key=_place)
    count = 0
    if share > 0.0:
        count = min(max(1, round(share * len(queries))), len(queries) - 1)
    kept_out = set(queries[:count])
    learnt = [row for row in rows if row.query not in kept_out]
    judged = [row for row in rows if row.query in kept_out]
    return learnt, judged


def _place(query: str) -> bytes:
    """Where a query stands in an order that looks random and is the same everywhere."""
    return hashlib.sha256(query.encode("utf-8", "surrogatepass")).digest()


@torch.no_grad()
def judge_rows(
    policy: Policy,
    rows: Sequence[Row],
    table: ItemTable,
) -> dict[str, float]:
    """`loss` and `group_reward` of a policy on rows; nothing where there are none."""
    if not rows:
        return {}
    policy.eval()
    totals = {"loss": 0.0, "group_reward": 0.0}
    for start in range(0, len(rows), BATCH):
        batch = collate(rows[start : start + BATCH], table)
        logprobs = policy_logprobs(policy, batch)
        weights = losses.reward_weights(
            batch.rewards, batch.mask, TEMPERATURE
        )  # (B, G)
        loss = losses.rce(logprobs.steps, logprobs.valid, weights, batch.mask)
        # the policy's probability of each member, given that it chooses one of them
        among = torch.softmax(
            logprobs.total.masked_fill(~batch.mask, -torch.inf), dim=-1
        )  # (B, G)
        rewards = torch.where(
            batch.mask, batch.rewards, torch.zeros_like(batch.rewards)
        )  # (B, G)
        totals["loss"] += float(loss.total) * len(batch)
        totals["group_reward"] += float((among * rewards).sum())
    return {name: total / len(rows) for name, total in totals.items()}
