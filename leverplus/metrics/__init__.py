"""Metrics that score an answer (official VQA accuracy, exact match, CIDEr, ...) and functions that cut it from text.

`catalog.METRICS` and POSTPROCESS have the names a task may declare; a metric may also be `package.module:attribute`.
CIDEr judges a corpus, not one answer, so it is not a row:
`cider` scores a corpus, `CiderD(corpus).score(caption, references)` one caption.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from leverplus.catalog import METRICS, load
from leverplus.errors import UnknownName
from leverplus.metrics.cider import CiderD, CiderScores, cider
from leverplus.metrics.postprocess import caption_answer, plain_answer, vqa_answer
from leverplus.metrics.stem import stemmed_vqa_answer
from leverplus.metrics.text import edit_similarity, exact_match, label_accuracy, token_f1
from leverplus.metrics.vqa import normalise_answer, vqa_accuracy

__all__ = [
    "MATCHING",
    "POSTPROCESS",
    "CiderD",
    "CiderScores",
    "Metric",
    "Postprocess",
    "caption_answer",
    "cider",
    "edit_similarity",
    "exact_match",
    "label_accuracy",
    "metric_named",
    "normalise_answer",
    "plain_answer",
    "postprocess_named",
    "stemmed_vqa_answer",
    "token_f1",
    "vqa_accuracy",
    "vqa_answer",
]

Metric = Callable[[str, Sequence[str]], float]
"""(answer, references) -> [0, 1]."""

Postprocess = Callable[[str], str]
"""Raw model text -> answer."""

MATCHING = ("vqa_accuracy", "exact_match", "label_accuracy")
"""Metrics that give 0 to an answer that no annotator gave; the others grade how near it came."""

POSTPROCESS: Mapping[str, Postprocess] = {
    "plain": plain_answer,
    "vqa": vqa_answer,
    "caption": caption_answer,
    "vqa_stem": stemmed_vqa_answer,
}

Function = TypeVar("Function")


def metric_named(name: str) -> Metric:
    """The metric a task declares; an unknown name is answered with the nearest known one."""
    metric: Metric = load(METRICS, name, "metric")
    return metric


def postprocess_named(name: str) -> Postprocess:
    """The post-processing a task declares; an unknown name is answered with the nearest known one."""
    return _named(POSTPROCESS, name, "post-processing")


def _named(table: Mapping[str, Function], name: str, kind: str) -> Function:
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(table))}"
        raise UnknownName(f"there is no {kind} called '{name}'; {hint}")
    return table[name]
