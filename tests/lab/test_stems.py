"""Stems of answers: plurals and -ing, nothing that has a digit, no word that only looks like one."""

from __future__ import annotations

import pytest

from leverplus_lab.stems import stem_answer, stemmed_vqa_answer

STEMS = {
    "race": "racing", "surf": "surfing", "cut": "cutting", "roll": "rolling", "skate": "skating", "eat": "eating",
    "live room": "living room", "battery": "batteries", "pie": "pies", "wolf": "wolves", "tomato": "tomatoes",
    "shoe": "shoes", "tie": "ties", "fly": "flies", "city": "cities", "cat": "cats", "church": "churches",
    "dish": "dishes", "glass": "glasses", "box": "boxes", "potato": "potatoes", "buzz": "buzzes", "shelf": "shelves",
    "scarf": "scarves", "leaf": "leaves", "bus": "buses", "bake": "baking", "ride": "riding", "swim": "swimming",
    "run": "running", "grill": "grilling", "kiss": "kissing", "see": "seeing", "drive": "driving", "dance": "dancing",
    "judge": "judging", "float": "floating", "heat": "heating", "double": "doubling", "argue": "arguing",
    "play": "playing", "draw": "drawing", "mix": "mixing", "go": "going", "be": "being", "add": "adding",
    "seize": "seizing", "bowl": "bowling",
}  # fmt: skip
KEPT = (
    "king", "string", "15 years", "denny's", "christmas", "ring", "sing", "gas", "his", "tennis", "cactus", "dress",
    "nothing", "boeing",
)  # fmt: skip


@pytest.mark.parametrize("stem", [*STEMS, *KEPT])
def test_words_are_reduced_to_their_stem(stem: str) -> None:
    assert stem_answer(STEMS.get(stem, stem)) == stem
    assert stem_answer(stem) == stem


def test_buzzing_is_buzz_and_the_answer_is_cut_out_before_it_is_stemmed() -> None:
    assert stem_answer("buzzing") == "buzz"
    assert stemmed_vqa_answer(" Horse Racing\nQuestion: What") == "horse race"
