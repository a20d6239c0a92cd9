"""Statistics of paired scores: intervals, tests and power for the difference of two arms on the same items."""

from leverplus.evaluate.stats.bootstrap import (
    Interval,
    known_interval,
    mean_interval,
    paired_bootstrap,
)
from leverplus.evaluate.stats.comparison import Comparison, adjust, compare
from leverplus.evaluate.stats.power import (
    Changes,
    minimum_detectable_effect,
    paired_power,
    plan_n,
)
from leverplus.evaluate.stats.seeds import SeededComparison, compare_seeds
from leverplus.evaluate.stats.significance import holm, mcnemar_test, sign_flip_test

__all__ = [
    "Changes",
    "Comparison",
    "Interval",
    "SeededComparison",
    "adjust",
    "compare",
    "compare_seeds",
    "holm",
    "known_interval",
    "mcnemar_test",
    "mean_interval",
    "minimum_detectable_effect",
    "paired_bootstrap",
    "paired_power",
    "plan_n",
    "sign_flip_test",
]
