"""Vectors of words and of pieces of words, weighed by how rare they are: what serves where no encoder is installed.

Half of a vector is made of words and pairs of neighbouring words, the other half of all runs of 2 to 4 characters
inside words, so that endings, misspellings and languages without spaces count too. Every such feature has a fixed place
and sign by its hash (Weinberger et al. 2009), so there is no list of words to keep: what is learnt are the weights
1 + ln((1 + texts) / (1 + texts with the feature)), in a table of 2^18 numbers that a bundle keeps.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b, sha256
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leverplus.encode.base import Array, TextEmbedder, unit_rows
from leverplus.encode.cached import UNREADABLE
from leverplus.encode.settings import EmbedSection
from leverplus.errors import DataError, LeverError

FILE = "tfidf.npz"
SCHEME = "1"
"""Changes whenever the same texts would get other vectors."""

HALF = 512
"""Numbers for words, and as many for pieces of words."""

BUCKETS = 1 << 18
PIECES = (2, 3, 4)
LONGEST_WORD = 64
"""Characters of a word that is cut into pieces at once; a longer run is cut every so many characters."""

WORDS = re.compile(r"\w+")
Hashes = NDArray[np.uint64]


class TfidfVectors(TextEmbedder):
    """Unit vectors (N, 1024) of questions and answers, by words and pieces of words.

    >>> vectors = TfidfVectors(EmbedSection(name="tfidf"))
    >>> vectors.learn(["a red ball", "a blue ball", "two dogs"])
    >>> near = vectors.of_texts(["the red ball", "a red ball", "dogs"])
    >>> bool(near[0] @ near[1] > near[0] @ near[2])
    True
    """

    def __init__(self, section: EmbedSection) -> None:
        self.weights: Array | None = None
        if section.model:
            self.weights = _read_weights(Path(section.model).expanduser())

    def learn(self, texts: Iterable[str]) -> None:
        """Learn how rare features are."""
        counts = np.zeros(BUCKETS, np.int64)
        total = 0
        for text in texts:
            counts[np.unique(_bucket(np.concatenate(_features(text))))] += 1
            total += 1
        self.weights = (1.0 + np.log((1.0 + total) / (1.0 + counts))).astype(np.float32)

    def save(self, folder: Path) -> None:
        """Keep the weights in a folder, which `embed.model` may name."""
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / FILE, weights=self._learnt())

    def fingerprint(self) -> Mapping[str, str]:
        digest = sha256(self._learnt().tobytes()).hexdigest()[:16]
        return {"embedder": "tfidf", "revision": digest, "scheme": SCHEME}

    def of_texts(self, texts: Sequence[str]) -> Array:
        """Unit vectors of texts (N, 1024)."""
        weights = self._learnt()
        rows = np.zeros((len(texts), 2 * HALF), np.float32)
        for row, text in enumerate(texts):
            words, pieces = _features(text)
            rows[row, :HALF] = _half(words, weights)
            rows[row, HALF:] = _half(pieces, weights)
        return unit_rows(rows.astype(np.float64))

    def _learnt(self) -> Array:
        if self.weights is None:
            raise LeverError(
                'embed.name = "tfidf" has learnt from no texts yet; name a folder with tfidf.npz (embed.model)'
            )
        return self.weights


def _read_weights(path: Path) -> Array:
    file = path / FILE if path.is_dir() else path
    try:
        with np.load(file, allow_pickle=False) as kept:
            weights: Array = kept["weights"].astype(np.float32).reshape(BUCKETS)
    except UNREADABLE as error:
        raise DataError(
            f"{file} holds no weights of tf-idf vectors ({error})"
        ) from error
    if not np.isfinite(weights).all():
        raise DataError(f"{file} holds weights of tf-idf vectors that are no numbers")
    return weights


def _half(hashes: Hashes, weights: Array) -> NDArray[np.float64]:
    """The unit vector (512,) of some features: (1 + ln count) x weight, at the place and with the sign of each hash."""
    kinds, counts = np.unique(hashes, return_counts=True)
    values = (1.0 + np.log(counts)) * weights[_bucket(kinds)]
    places = ((kinds >> np.uint64(20)) % np.uint64(HALF)).astype(np.int64)
    signs = np.where(kinds >> np.uint64(63), 1.0, -1.0)
    half = np.bincount(places, weights=values * signs, minlength=HALF)
    unit: NDArray[np.float64] = half / (float(np.linalg.norm(half)) or 1.0)
    return unit


def _bucket(hashes: Hashes) -> NDArray[np.int64]:
    return (hashes % np.uint64(BUCKETS)).astype(np.int64)


def _features(text: str) -> tuple[Hashes, Hashes]:
    """The hashes of a text's words and pairs, and of its pieces, each as often as it occurs."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = WORDS.findall(plain)
    whole = [_hash(f"word {word}") for word in words]
    for first, second in pairwise(words):
        whole.append(_hash(f"pair {first} {second}"))
    # also where a text is made of signs alone
    pieces = [_pieces(plain.strip()[:LONGEST_WORD])]
    for word in words:
        for start in range(0, len(word), LONGEST_WORD):
            pieces.append(_pieces(word[start : start + LONGEST_WORD]))
    return np.array(whole, np.uint64), np.concatenate(pieces)


@lru_cache(maxsize=1 << 16)
def _pieces(word: str) -> Hashes:
    """The hashes of all runs of 2 to 4 characters of a word with a blank at both ends."""
    framed = f" {word} "
    found = []
    for size in PIECES:
        for start in range(max(1, len(framed) - size + 1)):
            found.append(_hash(f"piece {framed[start : start + size]}"))
    return np.array(found, np.uint64)


@lru_cache(maxsize=1 << 18)
def _hash(feature: str) -> int:
    content = feature.encode("utf-8", "replace")
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")
