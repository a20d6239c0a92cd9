"""Stems of answers: plurals and -ing, nothing that has a digit, no word that only looks like one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from leverplus.metrics.stem import stem_answer, stemmed_vqa_answer


@pytest.mark.parametrize(
    ("word", "stem"),
    [
        ("racing", "race"), ("surfing", "surf"), ("cutting", "cut"), ("rolling", "roll"), ("skating", "skate"),
        ("eating", "eat"), ("living room", "live room"), ("batteries", "battery"), ("pies", "pie"), ("wolves", "wolf"),
        ("tomatoes", "tomato"), ("shoes", "shoe"), ("glass", "glass"), ("bus", "bus"), ("king", "king"),
        ("string", "string"), ("15 years", "15 years"), ("denny's", "denny's"), ("christmas", "christmas"),
    ],
)  # fmt: skip
def test_words_are_reduced_to_their_stem(word, stem) -> None:
    assert stem_answer(word) == stem
    assert stem_answer(stem) == stem


def test_the_answer_is_cut_out_before_it_is_stemmed() -> None:
    assert stemmed_vqa_answer(" Horse Racing\nQuestion: What") == "horse race"


def test_most_official_stems_of_real_answers_are_met() -> None:
    folder = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "okvqa"
    if not folder.is_dir():
        pytest.skip("the real data sets are not beside the repository")
    labels = {row["question_id"]: row["label"] for row in json.loads((folder / "val_labels.json").read_text())}
    pairs = []
    for row in json.loads((folder / "val_ten_answers.json").read_text()):
        whole = [answer for answer, value in labels[row["question_id"]].items() if value == 1]
        stems = [answer for answer, count in Counter(row["answer"]).items() if count >= 3]
        if len(whole) == len(stems) == 1:
            pairs.append((whole[0], stems[0]))
    assert len(pairs) == 4143
    assert sum(stem_answer(whole) == stem for whole, stem in pairs) / len(pairs) > 0.97


@pytest.mark.parametrize(
    ("word", "stem"),
    [
        ("ring", "ring"), ("sing", "sing"), ("ties", "tie"), ("flies", "fly"), ("cities", "city"), ("gas", "gas"),
        ("cats", "cat"), ("his", "his"), ("tennis", "tennis"), ("cactus", "cactus"), ("dress", "dress"),
        ("churches", "church"), ("dishes", "dish"), ("glasses", "glass"), ("boxes", "box"), ("potatoes", "potato"),
        ("buzzes", "buzz"), ("shelves", "shelf"), ("scarves", "scarf"), ("leaves", "leaf"), ("buses", "bus"),
        ("baking", "bake"), ("riding", "ride"), ("swimming", "swim"), ("running", "run"), ("grilling", "grill"),
        ("kissing", "kiss"), ("buzzing", "buzz"), ("seeing", "see"), ("driving", "drive"), ("dancing", "dance"),
        ("judging", "judge"), ("floating", "float"), ("heating", "heat"), ("doubling", "double"), ("arguing", "argue"),
        ("playing", "play"), ("drawing", "draw"), ("mixing", "mix"), ("going", "go"), ("being", "be"),
        ("adding", "add"), ("nothing", "nothing"), ("boeing", "boeing"), ("seizing", "seize"), ("bowling", "bowl"),
    ],
)  # fmt: skip
def test_more_words_one_for_each_rule(word: str, stem: str) -> None:
    assert stem_answer(word) == stem
