"""From a `[score]` section to groups: search, and which groups are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leverplus import catalog
from leverplus.data.types import Group, Pool
from leverplus.learn.data.search import beam_groups, dense_groups, join_groups
from leverplus.learn.maths import signal
from leverplus.scores.scorer import Scorer
from leverplus.scores.settings import ScoreSection

if TYPE_CHECKING:
    from leverplus.learn.policies.base import Policy
    from leverplus.learn.policies.table import ItemTable


def find_groups(
    scorer: Scorer,
    pools: Sequence[Pool],
    section: ScoreSection,
    *,
    seed: int = 0,
    table: ItemTable | None = None,
    policy: Policy | None = None,
) -> list[Group]:
    """The groups a `[score]` section asks for, measured or from the store; groups that its filters refuse are left out.

    `table` holds the vectors that retrieval needs, `policy` the selector that is sampled from (`search = "mixed"`).
    """
    groups: list[Group]
    if section.search == "mixed":
        search = catalog.load(catalog.SEARCHES, "mixed", "search")
        groups = search(scorer, pools, section, seed=seed, table=table, policy=policy)
    else:
        groups = dense_groups(scorer, pools)
        if section.search == "beam" and section.shots > 1:
            deeper = beam_groups(
                scorer,
                pools,
                shots=section.shots,
                width=section.beam,
                side=section.side,
            )
            groups = [join_groups(*pair) for pair in zip(groups, deeper, strict=True)]
    if section.mine:
        shots = 1 if section.search == "dense" else section.shots
        mine = catalog.load(catalog.SEARCHES, "mine", "search")
        groups = mine(scorer, groups, shots=shots, calls=section.mine)
    return keep_groups(groups, section.keep, section.tiers)


@dataclass(frozen=True)
class Balance:
    """How mixed a group must be: positives (accuracy above 0) and negatives, their share, distinct accuracies."""

    positives: int = 0
    negatives: int = 0
    largest_share: float = 1.0
    distinct: int = 1

    def holds(self, group: Group) -> bool:
        values = [score.accuracy for score in group.scores if score.demos]
        right = sum(map(signal.is_right, values))
        return (
            right >= self.positives
            and len(values) - right >= self.negatives
            and right <= self.largest_share * len(values)
            and len(set(values)) >= self.distinct
        )


BALANCES: Mapping[str, Balance] = {
    "all": Balance(distinct=0),
    "mixed": Balance(positives=1, negatives=1),
    "strict": Balance(positives=2, negatives=3, largest_share=0.6),
    "few_positives": Balance(positives=1, negatives=3, largest_share=0.45),
    "diverse": Balance(distinct=2),
}
"""The filters a recipe may name in `score.keep`."""


def tier_of(group: Group) -> str:
    """The tier of a group; sequences without demonstrations do not count."""
    return signal.tier([score.accuracy for score in group.scores if score.demos])


def keep_groups(
    groups: Sequence[Group], balance: str, tiers: Sequence[str]
) -> list[Group]:
    """The groups that are balanced as asked and lie in one of the tiers, in their order."""
    rule = BALANCES[balance]
    return [group for group in groups if rule.holds(group) and tier_of(group) in tiers]
