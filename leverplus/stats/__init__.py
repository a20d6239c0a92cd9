"""Statistics of paired scores: intervals, tests and power for the difference of two arms on the same items."""

from leverplus.stats.bootstrap import Interval, known_interval, mean_interval, paired_bootstrap
from leverplus.stats.comparison import Comparison, adjust, compare
from leverplus.stats.power import Changes, minimum_detectable_effect, paired_power, plan_n
from leverplus.stats.seeds import SeededComparison, compare_seeds
from leverplus.stats.significance import holm, mcnemar_test, sign_flip_test
from leverplus.stats.summary import SummaryRow, compare_summary

__all__ = [
    "Changes",
    "Comparison",
    "Interval",
    "SeededComparison",
    "SummaryRow",
    "adjust",
    "compare",
    "compare_seeds",
    "compare_summary",
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
