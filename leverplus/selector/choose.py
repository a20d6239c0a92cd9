"""Ways of choosing: each takes one query and all demonstrations, and gives the rows to show, nearest to the query last.

The training-free ways search everything; a learned selector chooses among the nearest candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from leverplus.embedders.base import Vectors
from leverplus.errors import LeverError
from leverplus.pools.similarity import Floats, Positions, cosine, mmr_order, top
from leverplus.ranking.ranking import RANKED
from leverplus.selector.corpus import CorpusRows
from leverplus.selector.index import Mask
from leverplus.types import ItemId

if TYPE_CHECKING:
    from torch import Tensor

    from leverplus.policies.base import Encoded, Policy
    from leverplus.recipe.pools import PoolSection

EFFECT = "effect"
"""The name of the numbers that say how much a demonstration raises accuracy by itself."""

MOST_SHOTS = 64
"""Most demonstrations that a training-free way shows."""

FEWEST = 64
"""A query is served from so many candidates at least, where there are as many."""

MOST_READ = 8192
"""Most candidates that a learned selector reads at once; some compare all with all."""

MOST_KEPT, KEPT_AT_ONCE = 50_000, 1024
"""Demonstrations whose vectors in the policy are kept in memory (2 kB each), and how many are computed together."""

WEIGHTS = {"nearest_text": 1.0, "nearest_image": 0.0, "two_stage": 0.0}
"""Share of the question in the similarity by which arms, and pools of a kind, are searched; others have their own."""

ARMS = (
    *("learned", "learned_auto", "nearest_text", "nearest_image", "nearest_both", "two_stage", "mmr"),
    *(*RANKED, "fixed", "random", "zero_shot"),
)
"""Every way of choosing that a bundle can hold."""


@dataclass(frozen=True)
class AskedQuery:
    """One query as a way of choosing sees it: its vectors (1, D), all rows, and those a caller allows (None: all)."""

    vectors: Vectors
    rows: CorpusRows
    allowed: Mask | None = None
    digest: str = ""
    """Names the query by its words and pixels."""

    def nearest(self, count: int) -> tuple[Positions, Floats]:
        return self.rows.nearest(self.vectors, count, self.allowed)

    @property
    def open_rows(self) -> Mask:
        return self.rows.alive if self.allowed is None else self.rows.alive & self.allowed


@dataclass(frozen=True)
class JudgedCandidates:
    """What was considered, best first, by what score, and what is shown (rows in prompt order)."""

    candidates: Positions
    score: Floats
    shown: list[int]
    interaction: Floats | None = None
    label: Floats | None = None
    """What labels add to the score, in an arm that ranks by them."""


class Chooser(Protocol):
    """`choose` gives at most `shots` rows in prompt order; `judge` says the same with the candidates' scores.

    `searches` says whether it looks at the query's vectors; one that does not needs no embedder.
    """

    @property
    def searches(self) -> bool: ...

    @property
    def most(self) -> int:
        """The longest list it can choose."""

    def choose(self, asked: AskedQuery, shots: int) -> list[int]: ...

    def judge(self, asked: AskedQuery, shots: int) -> JudgedCandidates: ...


class NearestChooser:
    """The most similar ones, by what `CorpusRows.text_weight` says."""

    most, searches = MOST_SHOTS, True

    def choose(self, asked: AskedQuery, shots: int) -> list[int]:
        return in_prompt_order(asked.nearest(shots)[0])

    def judge(self, asked: AskedQuery, shots: int) -> JudgedCandidates:
        rows, near = asked.nearest(max(FEWEST, shots))
        return JudgedCandidates(rows, near, in_prompt_order(rows[:shots]))


@dataclass(frozen=True)
class TwoStageChooser:
    """The `first` most similar pictures, of those the most similar questions."""

    first: int
    most, searches = MOST_SHOTS, True

    def choose(self, asked: AskedQuery, shots: int) -> list[int]:
        return self.judge(asked, shots).shown

    def judge(self, asked: AskedQuery, shots: int) -> JudgedCandidates:
        rows, _ = asked.nearest(max(self.first, shots))
        near = cosine(asked.vectors.text, asked.rows.blocks["text"].take(rows))[0]  # (first,)
        order = top(near[None], len(rows))[0]
        return JudgedCandidates(rows[order], near[order], in_prompt_order(rows[order][:shots]))


@dataclass(frozen=True)
class MmrChooser:
    """Near to the query and unlike each other, among the `first` nearest; what is chosen first comes last."""

    first: int
    strength: float
    """The weight of nearness against variety."""
    most, searches = MOST_SHOTS, True

    def choose(self, asked: AskedQuery, shots: int) -> list[int]:
        return self.judge(asked, shots).shown

    def judge(self, asked: AskedQuery, shots: int) -> JudgedCandidates:
        rows, near = asked.nearest(max(self.first, shots))
        if not len(rows):
            return JudgedCandidates(rows, near, [])
        like = self._likeness(asked.rows, rows)
        order = mmr_order(near[None], lambda one: like[one], self.strength, min(shots, len(rows)))[0]
        return JudgedCandidates(rows, near, in_prompt_order(rows[order]))

    def _likeness(self, held: CorpusRows, rows: Positions) -> Floats:
        """How similar candidates are to each other (K, K), weighted as the query's similarity is."""
        weight, total = held.text_weight, np.zeros((len(rows), len(rows)))
        for name, share in (("text", weight), ("image", 1.0 - weight)):
            if share > 0.0:
                block = held.blocks[name].take(rows)
                total += share * cosine(block, block)
        return total


@dataclass(frozen=True)
class FixedChooser:
    """The same list for everybody, in prompt order; of a shorter list those that stand last."""

    rows: Sequence[int]
    searches = False

    @property
    def most(self) -> int:
        return len(self.rows)

    def choose(self, asked: AskedQuery, shots: int) -> list[int]:
        open_rows = asked.open_rows
        left = [row for row in self.rows if open_rows[row]]
        return left[len(left) - min(shots, len(left)) :]

    def judge(self, asked: AskedQuery, shots: int) -> JudgedCandidates:
        shown = self.choose(asked, shots)
        rows = np.array(shown[::-1], np.int64)
        return JudgedCandidates(rows, -np.arange(len(rows), dtype=np.float64), shown)


@dataclass(frozen=True)
class RandomChooser:
    """Drawn by the query's own digest: the same query gets the same ones, as long as nothing is added or deleted."""

    seed: int = 0
    most, searches = MOST_SHOTS, False

    def choose(self, asked: AskedQuery, shots: int) -> list[int]:
        rows = np.flatnonzero(asked.open_rows)
        rng = np.random.default_rng([self.seed, int(asked.digest[:15] or "0", 16)])
        return [int(row) for row in rng.choice(rows, size=min(shots, len(rows)), replace=False)]

    def judge(self, asked: AskedQuery, shots: int) -> JudgedCandidates:
        shown = self.choose(asked, shots)
        return JudgedCandidates(np.array(shown, np.int64), np.zeros(len(shown)), shown)


class ZeroShotChooser:
    """Nothing is shown."""

    most, searches = MOST_SHOTS, False

    def choose(self, asked: AskedQuery, shots: int) -> list[int]:  # noqa: ARG002 one signature
        return []

    def judge(self, asked: AskedQuery, shots: int) -> JudgedCandidates:  # noqa: ARG002
        return JudgedCandidates(np.empty(0, np.int64), np.empty(0), [])


class KeptItems:
    """What a policy makes of every demonstration apart from the query, computed at the first choice and kept.

    Demonstrations that were added later are computed when they are candidates. Always the same rows are computed
    together, so that a choice does not depend on earlier ones, not even in the last bit.
    """

    def __init__(self, policy: Policy, fields: Sequence[str]) -> None:
        self.policy, self.fields = policy, fields
        self.lock = Lock()
        self.vectors: Tensor | None = None  # (rows of the file, H)

    def of(self, held: CorpusRows, rows: Positions) -> Tensor | None:
        """The vectors of some rows (K, H); None where the policy has none, or there are too many to keep."""
        import torch

        count = len(held.blocks[self.fields[0]].base)
        if not 0 < count <= MOST_KEPT:
            return None
        with self.lock, torch.inference_mode():
            if self.vectors is None:
                self.vectors = self._of_file(held, count)
        if not len(self.vectors):
            return None
        if rows.max(initial=-1) < count:
            return self.vectors[torch.from_numpy(rows)]
        with torch.inference_mode():
            late = rows >= count
            found = torch.empty(len(rows), self.vectors.shape[1])
            found[torch.from_numpy(~late)] = self.vectors[torch.from_numpy(rows[~late])]
            made = self._made(held, rows[late])
            assert made is not None, "the same policy made those of the file"
            found[torch.from_numpy(late)] = made
        return found

    def _of_file(self, held: CorpusRows, count: int) -> Tensor:
        """All rows of the file; nothing (0, 0) where the policy has no such vectors."""
        import torch

        parts = []
        for start in range(0, count, KEPT_AT_ONCE):
            made = self._made(held, np.arange(start, min(start + KEPT_AT_ONCE, count)))
            if made is None:
                return torch.empty(0, 0)
            parts.append(made)
        return torch.cat(parts)

    def _made(self, held: CorpusRows, rows: Positions) -> Tensor | None:
        import torch

        return self.policy.item_vectors({name: torch.from_numpy(held.blocks[name].take(rows)) for name in self.fields})


@dataclass(frozen=True)
class LearnedChooser:
    """A trained selector: greedy among the nearest `candidates`; with `stops` it may show fewer, or none."""

    policy: Policy
    candidates: int
    stops: bool = False
    searches = True

    @property
    def most(self) -> int:
        return self.policy.config.max_shots

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """What the policy reads of a candidate."""
        return tuple(dict.fromkeys(self.policy.dims))

    @cached_property
    def kept(self) -> KeptItems:
        return KeptItems(self.policy, self.fields)

    def choose(self, asked: AskedQuery, shots: int) -> list[int]:
        rows, _ = asked.nearest(max(self.candidates, shots))
        return self._picked(self.encode(asked.vectors, asked.rows, rows), rows, shots) if len(rows) else []

    def judge(self, asked: AskedQuery, shots: int) -> JudgedCandidates:
        import torch

        rows, _ = asked.nearest(max(self.candidates, shots))
        if not len(rows):
            return JudgedCandidates(rows, np.empty(0), [])
        encoded = self.encode(asked.vectors, asked.rows, rows)
        with torch.inference_mode():
            logits = self.policy.step(encoded, self.policy.start(encoded, 1, max(1, shots)), self.stops)
        score = logits[0, 0, : len(rows)].double().numpy()  # (K,), the first pick's; STOP stands behind them
        shown = self._picked(encoded, rows, shots)
        order = top(score[None], len(rows))[0]
        return JudgedCandidates(rows[order], score[order], shown, interaction=score[order] - score.mean())

    def _picked(self, encoded: Encoded, rows: Positions, shots: int) -> list[int]:
        """The same as `greedy`, without the log-probabilities, which take longer than the choice."""
        import torch

        chosen: list[int] = []
        with torch.inference_mode():
            state = self.policy.start(encoded, 1, shots)
            for _ in range(min(shots, len(rows))):
                action = self.policy.step(encoded, state, self.stops).argmax(-1)  # (1, 1)
                place = int(action)
                if place >= len(rows):
                    break  # STOP
                chosen.append(int(rows[place]))
                if len(chosen) < shots:
                    state = self.policy.advance(encoded, state, action)
        return chosen

    def encode(self, query: Vectors, held: CorpusRows, rows: Positions, live: Any = None) -> Encoded:
        """A query and its candidates as the policy reads them."""
        import torch

        from leverplus.policies.base import Features

        asked = {name: block for name, block in vars(query).items() if block is not None and name != "answer"}
        known = None if live is not None else self.kept.of(held, rows)
        items = {name: held.blocks[name].take(rows) for name in self.fields} if known is None else {}
        features = Features(
            query={name: torch.from_numpy(np.ascontiguousarray(block)) for name, block in asked.items()},  # (1, D)
            items={name: torch.from_numpy(block) for name, block in items.items()},  # (K, D)
            encoded=known,
            pool=torch.arange(len(rows)).unsqueeze(0),  # (1, K)
            rows=torch.from_numpy(rows),
            query_rows=torch.tensor([len(held)]),
            live=live,
        )
        with torch.inference_mode():
            return self.policy.prepare(features)


def in_prompt_order(best_first: Positions) -> list[int]:
    return [int(row) for row in best_first[::-1]]


def weight_of(arm: str, share: float, section: PoolSection | None = None) -> float:
    """The share of the question in the similarity by which an arm searches; a learned one by the pools of its run."""
    if arm in ("learned", "learned_auto") and section is not None:
        return WEIGHTS.get(section.kind, section.text_weight)
    return WEIGHTS.get(arm, share)


def candidates_of(section: PoolSection) -> int:
    """How many candidates a learned selector is served: as many as a pool of training had, or its first stage."""
    staged = section.kind in ("two_stage", "mmr")
    return max(FEWEST, section.first_stage if staged else section.size)


def make_chooser(
    arm: str, settings: Mapping[str, Any], policy: Policy | None = None, fixed: Sequence[int] = ()
) -> Chooser:
    """The way of choosing that a bundle names; `settings` are those of bundle.json."""
    if arm in ("learned", "learned_auto"):
        if policy is None:
            raise LeverError(f'arm "{arm}" needs a trained selector, and there is none; choose a training-free arm')
        return LearnedChooser(policy.eval(), int(settings["candidates"]), arm == "learned_auto")
    if arm == "two_stage":
        return TwoStageChooser(int(settings["candidates"]))
    if arm == "mmr":
        return MmrChooser(int(settings["candidates"]), float(settings["mmr_lambda"]))
    if arm == "fixed":
        return FixedChooser(list(fixed))
    simple: dict[str, type[NearestChooser] | type[RandomChooser] | type[ZeroShotChooser]] = {
        "random": RandomChooser,
        "zero_shot": ZeroShotChooser,
    }
    if arm not in ARMS:
        raise LeverError(f'there is no arm "{arm}" that can be used; known: {", ".join(ARMS)}')
    return simple.get(arm, NearestChooser)()


def allowed_mask(rows: CorpusRows, chosen: Sequence[int]) -> Mask:
    """Only these rows may be shown, (M,)."""
    mask = np.zeros(len(rows), np.bool_)
    mask[list(chosen)] = True
    return mask


Ids = Sequence[ItemId]
