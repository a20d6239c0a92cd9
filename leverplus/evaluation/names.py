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
    "learned": "learned",
    "learned_auto": "learned, own count",
    "oracle": "greedy oracle",
    "oracle_any": "oracle, any count",
    "oracle_exhaustive": "exhaustive oracle",
}


def arm_name(arm: str) -> str:
    """The readable name of an arm; one that is not known here keeps its own."""
    plain = arm.removesuffix("_calibrated")
    name = ARM_NAMES.get(plain, plain.replace("_", " "))
    return name if plain == arm else f"{name}, calibrated"


def shots_name(shots: int) -> str:
    return "1 shot" if shots == 1 else f"{shots} shots"
