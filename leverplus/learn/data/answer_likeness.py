"""How alike two answers are built: words in ones, twos and threes, with names and numbers left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

Likeness = Callable[[Sequence[str], Sequence[str]], NDArray[np.float32]]
"""How alike answers are: A answers and B answers in, (A, B) numbers in [0, 1] out."""

LONGEST = 3
"""Words in a row that are counted together, at most."""

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_WORD = re.compile(r"\w+|[^\w\s]")


class NgramLikeness:
    """The cosine of word n-grams, rare ones weighing more; quoted values and numbers count as one word each.

    >>> alike = NgramLikeness(["SELECT a FROM t WHERE b = 'x'", "DELETE FROM t"])
    >>> found = alike(["SELECT a FROM t WHERE b = 'x'"], ["SELECT a FROM t WHERE b = 'y'", "DELETE FROM t"])
    >>> bool(found[0, 0] > 0.99 > 0.5 > found[0, 1])
    True
    """

    def __init__(self, answers: Sequence[str]) -> None:
        seen: Counter[str] = Counter()
        for answer in answers:
            seen.update(set(_ngrams(answer)))
        self.columns = {ngram: column for column, ngram in enumerate(seen)}
        counts = np.array(list(seen.values()), dtype=np.float64)
        self.weights = 1.0 + np.log((1.0 + len(answers)) / (1.0 + counts))
        self._kept: tuple[Sequence[str], csr_matrix] | None = None

    def __call__(
        self,
        left: Sequence[str],
        right: Sequence[str],
    ) -> NDArray[np.float32]:
        # the same answers stand on the right chunk after chunk
        if self._kept is None or self._kept[0] is not right:
            self._kept = (right, self._vectors(right))
        product = self._vectors(left) @ self._kept[1].T
        clipped = np.clip(product.toarray(), 0.0, 1.0)
        return np.asarray(clipped, dtype=np.float32)

    def _vectors(self, answers: Sequence[str]) -> csr_matrix:
        """Unit rows (N, n-grams); n-grams that were not learnt are left out."""
        values: list[float] = []
        columns: list[int] = []
        ends = [0]
        for answer in answers:
            counted = Counter(_ngrams(answer))
            own: list[float] = []
            for ngram, count in counted.items():
                column = self.columns.get(ngram)
                if column is not None:
                    own.append(count * float(self.weights[column]))
                    columns.append(column)
            size = float(np.linalg.norm(own)) or 1.0
            values.extend(value / size for value in own)
            ends.append(len(columns))
        shape = (len(answers), len(self.columns))
        return csr_matrix((values, columns, ends), shape=shape)


def _ngrams(answer: str) -> list[str]:
    """All runs of one to three words of an answer, values masked."""
    masked = _NUMBER.sub(" 0 ", _QUOTED.sub(" Q ", answer))
    words = _WORD.findall(masked.lower())
    found = []
    for length in range(1, LONGEST + 1):
        for start in range(len(words) - length + 1):
            found.append(" ".join(words[start : start + length]))
    return found
