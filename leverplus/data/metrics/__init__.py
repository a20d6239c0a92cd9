"""Metrics that score an answer and functions that cut it out of a model's words.

`catalog.METRICS` and `catalog.CUTS` have the names a task may declare; either may also be `package.module:attribute`.
A metric is a function of (answer, example), where `example` is the sequence of the reference answers and has
`.question`, `.answers`, `.meta` and `.fields`.
"""

from __future__ import annotations

from collections.abc import Callable

from leverplus.catalog import CUTS, METRICS, load
from leverplus.data.metrics.base import ConfiguredMetric, Metric, MetricOptions

Cut = Callable[[str], str]
"""Raw model text -> answer."""

MATCHING = (
    "vqa_accuracy",
    "exact_match",
    "label_accuracy",
    "exact",
    "number",
    "json",
    "sql",
)
"""Metrics that give 0 to an answer that no annotator gave; the others grade how near it came, or look further."""


def metric_named(name: str, options: MetricOptions | None = None) -> Metric:
    """The metric a task declares; an unknown name is answered with the nearest known one.

    >>> metric_named("number", MetricOptions(tolerance=0.5))("7.2", ["7"])
    1.0
    """
    found = load(METRICS, name, "metric")
    if isinstance(found, type) and issubclass(found, ConfiguredMetric):
        return found(options or MetricOptions())
    metric: Metric = found
    return metric


def cut_named(name: str) -> Cut:
    """The cut a task declares; an unknown name is answered with the nearest known one."""
    cut: Cut = load(CUTS, name, "cut")
    return cut
