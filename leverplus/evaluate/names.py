"""What tables and advice need to know of an arm that stands in a file: its title, what it costs, whether it learnt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from leverplus.errors import LeverError

if TYPE_CHECKING:
    from leverplus.arms.base import Arm

CALIBRATED = "_calibrated"
"""The ending of the name of an arm whose answers were calibrated after the model was asked."""

MEAN_SHOTS = (1, 2, 3, 4)
"""`mean` is the mean over these shots, of those that were evaluated."""


@dataclass(frozen=True)
class ArmFacts:
    """What is known of an arm apart from its figures."""

    title: str
    calls: int = 1
    """Calls of the model for each question; 0: it answers by itself."""
    trained: bool = False
    """Whether it learns from the model's answers to training questions."""
    advised: bool = True
    """Whether it may be recommended."""
    compared_with: tuple[str, ...] = ()
    same_for_all: bool = False
    """Whether everybody is shown the same."""
    combines: bool = False
    """Whether its answer is made of the model's answers to its lists."""
    fit_calls: int = 0
    """Most calls that it takes to learn, apart from those of a trained selector."""
    is_rival: bool = False
    """Whether a sweep compares what it chose with this."""

    @property
    def asks_model(self) -> bool:
        return self.calls > 0


YARDSTICKS = {
    "oracle": ArmFacts("greedy oracle", advised=False),
    "oracle_any": ArmFacts("oracle, any count", advised=False),
    "oracle_exhaustive": ArmFacts("exhaustive oracle", advised=False),
}
"""They look at the answers of the questions that are asked, so nobody can use them."""


_MET: dict[str, ArmFacts] = {}
"""Arms that were opened in this process, those from outside among them."""


def remember_arm(arm: Arm) -> None:
    """Know an arm by its name from now on, though its code comes from outside."""
    _MET[arm.spec] = _facts(arm)


def facts_of(arm: str) -> ArmFacts:
    """What is known of an arm by its name; one that nobody knows here keeps its name as its title.

    >>> facts_of("nearest_text").title
    'nearest by text'
    """
    if arm.endswith(CALIBRATED):
        plain = facts_of(arm.removesuffix(CALIBRATED))
        return replace(plain, title=f"{plain.title}, calibrated", advised=False)
    if arm in YARDSTICKS:
        return YARDSTICKS[arm]
    if arm in _MET:
        return _MET[arm]
    return _known_facts(arm)


@lru_cache(maxsize=1024)
def _known_facts(arm: str) -> ArmFacts:
    from leverplus.arms.spec import open_arm

    try:
        # a name in a file is no reason to import somebody's code
        return _facts(open_arm(arm, trusted=()))
    except LeverError:
        return ArmFacts(arm.replace("_", " "))


def _facts(arm: Arm) -> ArmFacts:
    return ArmFacts(
        arm.label,
        arm.calls,
        arm.needs.training,
        arm.advised,
        arm.compared_with,
        arm.same_for_all,
        arm.combines,
        arm.fit_calls,
        arm.is_rival,
    )


def arm_name(arm: str) -> str:
    """The readable name of an arm."""
    return facts_of(arm).title


def asks_model(arm: str) -> bool:
    """Whether an arm's answers are the model's own, as they came."""
    return facts_of(arm).asks_model and not arm.endswith(CALIBRATED)


def shots_name(shots: int) -> str:
    if shots == 1:
        return "1 shot"
    return f"{shots} shots"
