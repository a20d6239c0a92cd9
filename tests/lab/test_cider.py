"""CIDEr-D by hand and by a dense restatement of its formula."""

import math
from functools import partial
from itertools import product

import numpy as np
import pytest

from leverplus.errors import EvaluationError, NotMeasured
from leverplus_lab.cider import CiderD, caption_words

REFERENCES = {"cat": ["A cat sits."], "dog": ["a dog runs"]}


def cider(caption: str, image: str) -> float:
    return CiderD(REFERENCES.values()).score(caption, REFERENCES[image])


def test_a_caption_equal_to_its_reference_scores_by_the_lengths_it_has() -> None:
    # "a" is in both images, so it weighs nothing; lengths 1, 2 and 3 agree fully, and there is no 4-gram: 10 * 3 / 4.
    assert cider("a cat sits", "cat") == pytest.approx(7.5)


def test_a_shorter_caption_is_worth_its_cosine_times_the_length_penalty() -> None:
    # "a dog": words cos = 1/sqrt(2), pairs cos = 1/sqrt(2), no longer n-gram; one bigram fewer: exp(-1 / (2 * 36)).
    value = 10 * (2 / math.sqrt(2)) / 4 * math.exp(-1 / 72)
    assert cider("a dog", "dog") == pytest.approx(value)


def test_repeating_a_rare_word_is_clipped() -> None:
    # "dog dog dog": weight 3 is clipped to 1, over norms 3 and sqrt(2); the two bigrams do not match; equal length.
    assert cider("dog dog dog", "dog") == pytest.approx(10 / (3 * math.sqrt(2)) / 4)


def _cut(text: str, size: int) -> list[tuple[str, ...]]:
    return list(zip(*(caption_words(text)[i:] for i in range(size)), strict=False))


def _dense(captions: dict[str, str], references: dict[str, list[str]]) -> float:
    """CIDEr-D with explicit vectors over all n-grams of one length at a time."""
    values = []
    for image, caption in captions.items():
        per_reference = []
        for reference in references[image]:
            cosines = []
            for size in (1, 2, 3, 4):
                cut = partial(_cut, size=size)
                grams = sorted({*cut(caption), *cut(reference)})
                frequency = [
                    sum(any(g in cut(r) for r in refs) for refs in references.values())
                    for g in grams
                ]
                idf = np.array(
                    [math.log(len(references) / max(1, f)) for f in frequency]
                )
                given = np.array([cut(caption).count(g) for g in grams]) * idf
                wanted = np.array([cut(reference).count(g) for g in grams]) * idf
                norm = np.linalg.norm(given) * np.linalg.norm(wanted)
                cosines.append(
                    float(np.minimum(given, wanted) @ wanted / norm) if norm else 0.0
                )
            lengths = [
                max(0, len(caption_words(text)) - 1) for text in (caption, reference)
            ]
            per_reference.append(
                np.mean(cosines) * math.exp(-((lengths[0] - lengths[1]) ** 2) / 72)
            )
        values.append(10 * np.mean(per_reference))
    return float(np.mean(values))


@pytest.mark.slow
def test_the_mean_equals_the_dense_formula() -> None:
    subjects, verbs = (
        ["a cat", "the dog", "two dogs"],
        ["sits on a mat", "runs", "runs on the grass", "sits"],
    )
    sentences = [f"{subject} {verb}" for subject, verb in product(subjects, verbs)]
    references = {
        str(i): [sentences[i], sentences[(5 * i + 1) % 12], sentences[(7 * i + 2) % 12]]
        for i in range(12)
    }
    captions = {str(i): sentences[(i * i + 3) % 12] for i in range(12)}
    scorer = CiderD(references.values())
    values = [scorer.score(text, references[i]) for i, text in captions.items()]
    dense = _dense(captions, references)
    assert sum(values) / 12 == pytest.approx(dense, rel=1e-12)
    assert all(0.0 <= value <= 10.0 for value in values)


def test_bad_input_is_refused_with_a_sentence() -> None:
    with pytest.raises(EvaluationError, match="corpus is empty"):
        CiderD([])
    with pytest.raises(NotMeasured, match="at least one reference"):
        CiderD([["a cat"]]).score("a cat", [])
