"""What the accuracy of a list is made of, what choosing could gain, and what asking several lists does gain.

Everything is told by `benchmarks/real/okvqa-lists.parquet`. Of every question six lists of eight and two of sixteen
were drawn and asked, beside those of the arms; the questions stand for themselves, so errors are over questions.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from real_lists_keep import CHECK, COMPANY, Kept
from real_lists_pools import Floats, Ints

BLOCKS = 20
"""Of questions; each is left out once for the error of a variance."""
REACH = (6, 100, 10_000)
"""Numbers of lists to choose from that a value's possible gain is told for."""


@dataclass(frozen=True)
class Shares:
    """Variance of the accuracy of drawn lists: between questions, and within one question."""

    question: float
    within: float

    @property
    def total(self) -> float:
        return self.question + self.within


def shares(scores: Floats) -> Shares:
    """From scores (N, L) of L lists for each question: one-way analysis of variance."""
    within = float(scores.var(axis=1, ddof=1).mean())
    return Shares(float(scores.mean(axis=1).var(ddof=1)) - within / scores.shape[1], within)


@dataclass(frozen=True)
class Overlap:
    """Pairs of lists of one question by how many demonstrations they share: half the mean squared difference.

    `other_order` are pairs that show the same demonstrations in another order. `member` is what one demonstration that
    is not shared adds to half the squared difference, `rest` what is left between lists that share all.
    """

    by_shared: dict[int, tuple[int, float]]
    other_order: tuple[int, float]
    member: float
    rest: float

    def member_share(self, shots: int) -> float:
        """Share of the variance within a question that lies in which demonstrations are shown."""
        return shots * self.member / (shots * self.member + self.rest)


def overlap(kept: Kept, shots: int) -> Overlap:
    """All pairs of lists of one question, drawn or of an arm; `member` and `rest` by regression within questions."""
    rows = np.flatnonzero(kept.shots == shots)
    rows = rows[np.argsort(kept.query[rows], kind="stable")]
    ends = np.flatnonzero(np.diff(kept.query[rows])) + 1
    shared, apart, question = [], [], []
    for own in np.split(rows, ends):
        i, j = np.triu_indices(len(own), 1)
        lists = kept.demos[own][:, :shots]
        common = (lists[i][:, :, None] == lists[j][:, None, :]).any(axis=2).sum(axis=1)
        same = (lists[i] == lists[j]).all(axis=1)  # the same prompt: says nothing
        shared.append(common[~same])
        apart.append((kept.accuracy[own[i]] - kept.accuracy[own[j]])[~same] ** 2 / 2)
        question.append(np.full((~same).sum(), kept.query[own[0]]))
    k, y, q = np.concatenate(shared), np.concatenate(apart), np.concatenate(question)
    size = np.maximum(np.bincount(q), 1)
    k_within = k - (np.bincount(q, k) / size)[q]
    member = -float(k_within @ y) / float(k_within @ k_within)
    rest = float(y.mean()) - member * float((shots - k).mean())
    by_shared = {n: (int((k == n).sum()), float(y[k == n].mean())) for n in range(shots + 1) if (k == n).any()}
    return Overlap(by_shared, by_shared.pop(shots, (0, float("nan"))), member, rest)


def member_spread(kept: Kept, shots: int) -> tuple[float, float]:
    """Variance of what a demonstration adds to drawn lists of any question, with its error (jackknife over questions).

    As `leverplus.effects.company` estimates it, from pairs of lists of different questions, without features.
    """
    from scipy import sparse

    rows = kept.drawn(shots)
    count, lists = rows.shape
    query = np.repeat(np.arange(count), lists)
    scores = kept.accuracy[rows]
    scores = (scores - scores.mean(axis=1, keepdims=True)).ravel()
    members = kept.demos[rows.ravel()][:, :shots].ravel()
    at = np.repeat(np.arange(count * lists), shots)
    shown = sparse.csr_matrix((np.ones(len(at)), (at, members)), shape=(count * lists, count))
    own = sparse.csr_matrix((np.ones(len(query)), (np.arange(len(query)), query)), shape=(len(query), count))
    shown = (shown - own @ (own.T @ shown) / lists).tocsr()
    sums = (own.T @ shown.multiply(scores[:, None])).tocsr()  # (question, demonstration)
    alike = (shown @ shown.T).tocoo()
    apart = np.flatnonzero(query[alike.row] != query[alike.col])
    block = np.random.default_rng(0).integers(BLOCKS, size=count)
    pair = BLOCKS * block[query[alike.row[apart]]] + block[query[alike.col[apart]]]
    squares = np.bincount(pair, alike.data[apart] ** 2, BLOCKS**2).reshape(BLOCKS, BLOCKS)

    def spread(blocks: Ints) -> float:
        part = sums[np.flatnonzero(np.isin(block, blocks))]
        whole = np.asarray(part.sum(axis=0)).ravel()
        return float((whole @ whole - part.multiply(part).sum()) / squares[np.ix_(blocks, blocks)].sum())

    without = np.array([spread(np.delete(np.arange(BLOCKS), b)) for b in range(BLOCKS)])
    error = float(np.sqrt((BLOCKS - 1) / BLOCKS * ((without - without.mean()) ** 2).sum()))
    return spread(np.arange(BLOCKS)), error


@dataclass(frozen=True)
class Foreseen:
    """Values of lists that were given before asking, against what was measured, within questions.

    `slope` is what one point of value was worth, with its error; `known` the share of the variance within questions
    that the value explains once its scale is right; `spread` the standard deviation of that rightly scaled value, in
    accuracy; both are 0 where the slope is not above 0. `promised` and `got` are for the most valued list of each
    question, over the mean of its lists.
    """

    slope: float
    slope_error: float
    known: float
    spread: float
    promised: float
    got: float
    got_error: float


def foreseen(value: Floats, scores: Floats) -> Foreseen:
    """From values and scores (N, L) of the lists of every question."""
    count, lists = scores.shape
    v, y = value - value.mean(axis=1, keepdims=True), scores - scores.mean(axis=1, keepdims=True)
    power = float((v * v).sum())
    slope = float((v * y).sum()) / power
    error = float(np.sqrt(((v * (y - slope * v)).sum(axis=1) ** 2).sum())) / power
    useful = max(slope, 0.0)
    best = np.arange(count), v.argmax(axis=1)
    return Foreseen(
        slope,
        error,
        useful**2 * power / float((y * y).sum()),
        useful * float(np.sqrt(power / (count * (lists - 1)))),
        float(v[best].mean()),
        float(y[best].mean()),
        float(y[best].std() / np.sqrt(count)),
    )


def majority(kept: Kept, columns: Sequence[Ints]) -> Floats:
    """Accuracy (N,) of the answer that most of the lists of a question give; of equally frequent ones the first.

    A column (N,) holds one row for every question.
    """
    rows = np.stack(columns, axis=1)  # (N, L)
    said = kept.answer[rows]
    times = (said[:, :, None] == said[:, None, :]).sum(axis=2)
    chosen = rows[np.arange(len(rows)), times.argmax(axis=1)]
    return np.asarray(kept.accuracy[chosen])


def print_shares(kept: Kept) -> None:
    for shots in (8, 16):
        rows = kept.drawn(shots)
        scores, lists = kept.accuracy[rows], rows.shape[1]
        own, pairs = shares(scores), overlap(kept, shots)
        spread, error = member_spread(kept, shots)
        print(
            f"{shots} shots, {lists} drawn lists of each of {len(rows):,} questions: mean {100 * scores.mean():.2f},"
            f" best of them {100 * scores.max(axis=1).mean():.2f}, worst {100 * scores.min(axis=1).mean():.2f},"
            f" all alike {100 * (scores.max(axis=1) == scores.min(axis=1)).mean():.1f} %\n"
            f"- variance {own.total:.4f}: question {100 * own.question / own.total:.1f} %,"
            f" list {100 * own.within / own.total:.1f} % (sd {100 * own.within**0.5:.1f} points)\n"
            f"- within questions: which demonstrations are shown {100 * pairs.member_share(shots):.0f} %"
            f" (one of them {100 * pairs.member**0.5:.1f} points), order and luck the rest;"
            f" what they add to any question {100 * shots * spread / own.within:.1f} %"
            f" (error {100 * shots * error / own.within:.1f})"
        )
        for name, value in (("promised by `learned`", kept.promised), ("ridge over all drawn lists", kept.expected)):
            print(f"- {name}: {_told(foreseen(value[rows], scores), lists)}")
        cells = [f"{n}: {half:.3f} ({count:,})" for n, (count, half) in pairs.by_shared.items()]
        print(f"- half squared difference by demonstrations shared (pairs): {'; '.join(cells)};")
        print(f"  all, in another order: {pairs.other_order[1]:.3f} ({pairs.other_order[0]:,})\n")


def _told(found: Foreseen, lists: int) -> str:
    from leverplus.effects.shares import expected_largest

    reach = [100 * found.spread * expected_largest(count) for count in REACH]
    return (
        f"slope {found.slope:.2f} (error {found.slope_error:.2f}), explains {100 * found.known:.2f} % within questions,"
        f" rightly scaled sd {100 * found.spread:.2f} points; the most valued of {lists}:"
        f" promised {100 * found.promised:+.2f}, got {100 * found.got:+.2f} (error {100 * found.got_error:.2f});"
        f" the best of {' / '.join(map(str, REACH))} such lists at most {' / '.join(f'{r:+.1f}' for r in reach)}"
    )


def print_promises(kept: Kept, rival: str) -> None:
    """What `learned` thought of the lists of every arm, and what they scored, over a rival with as many shots."""
    print(
        f"| arm | shots | n | promised over {rival} | measured | probability of the truth |\n|---|---|---|---|---|---|"
    )
    for shots in (8, 16):
        value, score, likely = _by_question(kept, rival, shots)
        for arm in np.unique(kept.arm[kept.shots == shots]).tolist():
            if arm in (COMPANY, CHECK, rival):
                continue
            own = _by_question(kept, arm, shots)
            both = ~np.isnan(own[0]) & ~np.isnan(value)
            if both.sum() < len(kept.fold) / 4:
                continue
            cells = [100 * float((a - b)[both].mean()) for a, b in zip(own, (value, score, likely), strict=True)]
            print(f"| {arm} | {shots} | {both.sum():,} | " + " | ".join(f"{cell:+.2f}" for cell in cells) + " |")
    print()


def _by_question(kept: Kept, arm: str, shots: int) -> tuple[Floats, Floats, Floats]:
    rows = kept.rows_of(arm, shots)
    found = np.full((3, len(kept.fold)), np.nan)
    found[:, kept.query[rows]] = kept.promised[rows], kept.accuracy[rows], kept.gt_prob[rows]
    return found[0], found[1], found[2]
