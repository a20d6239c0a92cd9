"""What a run may ask of the model, and what that may cost, said before anything is asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leverplus.experiment.run import Run
from leverplus.recipe.forecast import DataSizes, ForecastPart, TextLengths, forecast, price

LOOKED_AT = 200
"""Items whose length a rough price goes by."""


def forecast_calls(run: Run) -> list[ForecastPart]:
    """What the whole run may ask of the model, by the recipe and the data; asks nothing."""
    counts = {split: len(run.task.items(split)) for split in ("dev", "test")}
    pictures = any(item.image is not None for item in run.demonstrations)
    queries = len(run.task.items(run.recipe.mistakes.queries))
    return forecast(run.recipe, DataSizes(train=queries, **counts, pictures=pictures))


def rough_price(run: Run, parts: Sequence[ForecastPart]) -> float | None:
    """What these parts may cost at the recipe's prices, by the length of some items; None where none are given."""
    section = run.recipe.model
    some = run.demonstrations[:LOOKED_AT]
    if not some or not section.price_in + section.price_out:
        return None
    labels = len(getattr(run.task, "labels", ()))
    # a server that weighs answers reads the prompt once for each, and once more where the answer is written
    weighed = labels or 1 + float(np.mean([len(set(item.answers)) for item in some]))
    readings = 1.0 if section.logprobs == "never" else weighed
    lengths = [len(section.template) + len(item.question) + len(item.answer) for item in some]
    texts = TextLengths(float(np.mean(lengths)), readings)
    prices = {"price_in": section.price_in, "price_out": section.price_out}
    return price(parts, prices, texts, section.max_new_tokens)
