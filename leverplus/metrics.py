"""Metrics by their public names: `leverplus.metrics.vqa_accuracy(answer, references)`; they live in `leverplus.data.metrics`."""

from leverplus.data.metrics import metric_named
from leverplus.data.metrics.base import MetricOptions
from leverplus.data.metrics.text import (
    edit_similarity,
    exact,
    exact_match,
    label_accuracy,
    token_f1,
)
from leverplus.data.metrics.vqa import normalise_answer, vqa_accuracy

__all__ = [
    "MetricOptions",
    "edit_similarity",
    "exact",
    "exact_match",
    "label_accuracy",
    "metric_named",
    "normalise_answer",
    "token_f1",
    "vqa_accuracy",
]
