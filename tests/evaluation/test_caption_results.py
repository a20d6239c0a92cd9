"""Captions are judged as a corpus: CIDEr stands in the result beside the metric the search used."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from leverplus.evaluation.predictions import Prediction, Results
from leverplus.evaluation.result import JudgesCaptions, cider_table
from leverplus.metrics import CiderScores, cider
from leverplus.types import ItemId

REFERENCES = {
    "a": ("a dog runs on the beach", "a dog running by the sea"),
    "b": ("two men play tennis", "men playing tennis on a court"),
    "c": ("a red bus in the street", "a bus drives down a street"),
}


class Captions:
    def cider(self, captions: Mapping[ItemId, str]) -> CiderScores:
        given = {str(number): caption for number, caption in captions.items()}
        return cider(given, {str(number): REFERENCES[number] for number in captions})


def test_every_arm_has_its_cider_by_shots_averaged_over_draws() -> None:
    ids = [ItemId(name) for name in REFERENCES]
    good = [Prediction(i, (), REFERENCES[i][0], 1.0) for i in ids]
    bad = [Prediction(i, (), "nothing to see", 0.0) for i in ids]
    results = Results(ids, list(ids))
    results.add("learned", 1, good)
    results.add("random", 1, good)
    results.add("random", 1, bad)
    task = Captions()
    assert isinstance(task, JudgesCaptions)
    table = cider_table(results, task)
    best = cider({i: REFERENCES[i][0] for i in REFERENCES}, REFERENCES).mean
    assert table["learned"]["1"] == pytest.approx(best)
    assert best > 1.0
    assert table["random"]["1"] == pytest.approx(best / 2)
