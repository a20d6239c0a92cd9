"""How arms are called where people read them."""

from __future__ import annotations

ARM_NAMES = {
    "zero_shot": "zero-shot",
    "random": "random",
    "nearest_image": "nearest by image",
    "nearest_text": "nearest by text",
    "nearest_both": "nearest by both",
    "two_stage": "two-stage",
    "mmr": "nearest, diverse (MMR)",
    "fixed": "one list for everybody",
    "majority": "majority answer",
    "label_vote": "label vote",
    "label_regression": "label regression",
    "label_rank": "ranked by labels",
    "effects": "ranked by effects",
    "learned": "learned",
    "learned_auto": "learned, own count",
    "oracle": "greedy oracle",
    "oracle_any": "oracle, any count",
    "oracle_exhaustive": "exhaustive oracle",
}

MEAN_SHOTS = (1, 2, 3, 4)
"""`mean` is the mean over these shots, of those that were evaluated."""

LABELS_ALONE = ("label_vote", "label_regression")
"""Arms that answer from the labels of the whole labelled set, whatever the pools are."""

MODEL_FREE = ("majority", *LABELS_ALONE)
"""Arms that answer without asking the model."""

TRAINED = ("learned", "effects")
"""How the names of arms begin that learn from the model's answers to training queries."""


def arm_name(arm: str) -> str:
    """The readable name of an arm; one that is not known here keeps its own."""
    plain = arm.removesuffix("_calibrated")
    name = ARM_NAMES.get(plain, plain.replace("_", " "))
    return name if plain == arm else f"{name}, calibrated"


def shots_name(shots: int) -> str:
    return "1 shot" if shots == 1 else f"{shots} shots"
