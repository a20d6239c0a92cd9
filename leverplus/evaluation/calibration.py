"""Batch calibration: removes the advantage of a label that an arm's prompts favour whatever is asked.

Demonstrations shift the log-probabilities of all answers: the label shown last, or most often, gains on every item. The
mean log-probability of a label over all evaluated items, under the same arm and number of shots, estimates that shift
and is subtracted before the likeliest label is taken. It needs the other items of the split, not their labels. After
Zhou et al., Batch Calibration, ICLR 2024, with the mean taken of log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from leverplus.errors import NotMeasured
from leverplus.evaluation.arms import CALIBRATED, asks_model
from leverplus.evaluation.predictions import Prediction, Results
from leverplus.metrics import metric_named
from leverplus.tasks.base import Task


def calibrate(draw: Sequence[Prediction], task: Task) -> list[Prediction]:
    """The predictions of one arm at one number of shots with every label's mean over them subtracted."""
    labels = list(draw[0].choices)
    if not labels or any(list(own.choices) != labels for own in draw):
        raise NotMeasured(
            "calibration needs the log-probability of every label on every item; set eval.calibrate = false, or use a "
            "task with labels and a backend that offers log-probabilities"
        )
    logprobs = np.array([[own.choices[label] for label in labels] for own in draw])  # (items, labels)
    best = (logprobs - logprobs.mean(axis=0)).argmax(axis=1)  # (items,)
    metric = metric_named(task.metric)
    calibrated = []
    for own, place in zip(draw, best.tolist(), strict=True):
        answer = labels[place]
        accuracy = metric(answer, task.item(own.item).answers)
        calibrated.append(replace(own, answer=answer, accuracy=accuracy))
    return calibrated


def add_calibrated(results: Results, task: Task) -> None:
    """Adds `ARM_calibrated` with calibrated answers for every arm that asked the model, except oracles; no call.

    An oracle picks by the answers as they were given, so calibrating it afterwards would mean nothing.
    """
    for arm in list(results.draws):  # a list, since arms are added on the way
        if not asks_model(arm) or arm.startswith("oracle"):
            continue
        for shots, draws in results.draws[arm].items():
            for draw in draws:
                results.add(arm + CALIBRATED, shots, calibrate(draw, task))
