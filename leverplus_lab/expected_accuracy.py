"""Predicts an answer's expected accuracy from labels, cross-fitted over the training questions.

How a question's own annotators happened to put it, and who of them was careless, is luck that nobody knows before they
speak; a selector that learns from it learns noise. A small network learns from the labels of the training questions,
without any call of the model, which answers score with which questions. The accuracy of a question's answers is
predicted by a network that saw neither it nor another question on its picture: a prediction, never a memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from leverplus.arms.corpus import picture_name
from leverplus.data.metrics import MATCHING
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId, Score
from leverplus.encode.base import Vectors
from leverplus.errors import TrainingError
from leverplus.learn.maths.schedules import learning_rate
from leverplus.learn.seeds import derive_seed

FOLDS = 3
MOST_ANSWERS = 4096
"""Answers that a network tells apart, the most common ones; others keep the accuracy that was measured."""
HIDDEN, DROPOUT, EPOCHS, FEWEST_STEPS, BATCH, LR, DECAY = (
    256,
    0.3,
    20,
    200,
    256,
    2e-3,
    0.05,
)
MOST_SEEN = 300_000
"""Questions that a network reads, one over several epochs counted so often: beyond 15,000 fewer epochs, beyond this
many one. So the time stops growing with the task until each question is read once."""

INSTEAD = 'put "soft_only" in its place, for example --set \'reward.components=["soft_only","gt_prob"]\''
"""What to type where labels cannot predict anything."""

Tell = Callable[[int, int], None]
AnswerScores = Mapping[str, float]
"""What each answer of an item scores with it, by its normalised form."""


@dataclass(frozen=True)
class Predictor:
    """A network that has not seen the questions of one fold: from vectors (D,) to one logit per known answer."""

    network: nn.Module
    columns: Mapping[str, int]  # the logit of a normalised answer


class ExpectedAccuracy:
    """The expected accuracy of the answers that a model gave to training questions: call it with a score.

    `vectors` are those of `items`; items without answers teach nothing. `tell` is told how many steps of all are done.
    """

    def __init__(
        self,
        items: Sequence[Item],
        vectors: Vectors,
        rules: AnswerRules,
        *,
        seed: int,
        tell: Tell = lambda _done, _total: None,
    ) -> None:
        self.rules = rules
        self.places = {item.id: place for place, item in enumerate(items)}
        self.inputs = inputs_of(vectors)  # (N, D)
        self.folds = _folds(items, derive_seed(seed, "expectation"))  # (N,)
        scored = [_answer_scores(item, rules) for item in items]
        self.predictors: list[Predictor] = []
        for fold in range(FOLDS):
            seen = []
            for place, own in enumerate(scored):
                if own and self.folds[place] != fold:
                    seen.append(place)
            labels = [scored[place] for place in seen]
            told = partial(_told, tell, fold)
            own_seed = derive_seed(seed, "judge", fold)
            self.predictors.append(_fit(self.inputs[seen], labels, own_seed, told))
        self._last: tuple[ItemId | None, Tensor] = (None, torch.empty(0))

    @staticmethod
    def require(metric: str) -> None:
        """Refuse a task whose metric does not allow an estimate, before anything is asked."""
        if metric not in MATCHING:
            raise TrainingError(
                f'reward "expected_accuracy" needs a metric by which an answer that nobody gave scores nothing '
                f"({', '.join(MATCHING)}), and the task has {metric}; {INSTEAD}"
            )

    def __call__(self, score: Score) -> float:
        """The expected accuracy of a score's answer; what was measured where no other question was answered so."""
        if score.query not in self.places:
            return score.accuracy
        columns = self._predictor(score.query).columns
        column = columns.get(self.rules.key(score.answer))
        if column is None:
            return score.accuracy
        return float(self._expected(score.query)[column])

    def _predictor(self, query: ItemId) -> Predictor:
        return self.predictors[int(self.folds[self.places[query]])]

    @torch.no_grad()
    def _expected(self, query: ItemId) -> Tensor:
        """The expected accuracy of every known answer (A,)."""
        # scores come group by group, so the last query's are enough to keep
        if self._last[0] != query:
            network = self._predictor(query).network
            logits: Tensor = network(self.inputs[self.places[query]])
            self._last = (query, logits.sigmoid())
        return self._last[1]


def inputs_of(vectors: Vectors) -> Tensor:
    """Picture and question side by side (N, D); unit vectors are scaled so that single numbers are of about size 1."""
    blocks = [block for block in (vectors.image, vectors.text) if block is not None]
    scaled = [block * np.sqrt(block.shape[1]) for block in blocks]
    return torch.from_numpy(np.concatenate(scaled, 1).astype(np.float32))


def _folds(
    items: Sequence[Item],
    seed: int,
) -> np.typing.NDArray[np.int64]:
    """A fold for every item (N,); all questions on a picture are in one."""
    pictures = []
    for place, item in enumerate(items):
        pictures.append(picture_name(item) or f"of its own {place}")
    names = sorted(set(pictures))
    if len(names) < FOLDS:
        raise TrainingError(
            f'reward "expected_accuracy" learns from the labels of training questions on at least {FOLDS} pictures or '
            f"texts, and there are {len(names)}; {INSTEAD}"
        )
    drawn = np.random.default_rng(seed).permutation(len(names)) % FOLDS
    fold = dict(zip(names, drawn, strict=True))
    return np.array([fold[picture] for picture in pictures])


def _answer_scores(
    item: Item,
    rules: AnswerRules,
) -> AnswerScores:
    found: dict[str, float] = {}
    for answer in sorted(set(item.answers)):
        own = rules.key(answer)
        score = rules.score(answer, item)
        found[own] = max(found.get(own, 0.0), score)
    return found


def _told(
    tell: Tell,
    fold: int,
    done: int,
    steps: int,
) -> None:
    tell(fold * steps + done, FOLDS * steps)


def _fit(
    inputs: Tensor,
    scored: Sequence[AnswerScores],
    seed: int,
    tell: Tell,
) -> Predictor:
    """A network trained on the questions it may see: `inputs` (N, D) and what their answers score."""
    if not scored:
        raise TrainingError(
            f'reward "expected_accuracy" learns from the labels of training questions, and too few have any; {INSTEAD}'
        )
    given = Counter(answer for own in scored for answer in own)
    ranked = sorted(given, key=lambda answer: (-given[answer], answer))
    known = ranked[:MOST_ANSWERS]
    columns = {answer: column for column, answer in enumerate(known)}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(
            seed
        )  # torch.manual_seed would keep a stack trace for every device
        # made in this order: each layer draws its first weights from the generator
        first = _layer(inputs.shape[1], HIDDEN)
        second = _layer(HIDDEN, HIDDEN)
        last = nn.Linear(HIDDEN, len(columns))
        network = nn.Sequential(*first, *second, last)
        nn.init.constant_(
            last.bias, -4.0
        )  # sigmoid(-4) = 0.02: most answers score nothing
        optimizer = torch.optim.AdamW(network.parameters(), weight_decay=DECAY)
        shown, scores = _scored_columns(scored, columns)
        order = _batches(len(inputs))
        for step, rows in enumerate(order):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(
                    LR,
                    "cosine",
                    step,
                    len(order),
                    warmup=len(order) // 20,
                )
            # (B, A); an answer that nobody gave scores nothing
            target = torch.zeros(len(rows), len(columns)).scatter_add_(
                1, shown[rows], scores[rows]
            )
            logits = network(inputs[rows])  # (B, A)
            loss = nn.functional.binary_cross_entropy_with_logits(
                logits, target, reduction="sum"
            ) / len(rows)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            tell(step + 1, len(order))
    return Predictor(network.eval(), columns)


def _batches(count: int) -> list[Tensor]:
    """The questions in a fresh order every epoch; more epochs where there are few, so that something is learnt, and
    fewer where there are many."""
    steps_per_epoch = -(-count // BATCH)  # rounded up
    epochs = max(1, min(EPOCHS, MOST_SEEN // count), FEWEST_STEPS // steps_per_epoch)
    batches: list[Tensor] = []
    for _ in range(epochs):
        batches.extend(torch.split(torch.randperm(count), BATCH))
    return batches


def _layer(
    size: int,
    wide: int,
) -> Iterable[nn.Module]:
    return nn.Linear(size, wide), nn.GELU(), nn.Dropout(DROPOUT)


def _scored_columns(
    scored: Sequence[AnswerScores],
    columns: Mapping[str, int],
) -> tuple[Tensor, Tensor]:
    """The columns of each question's known answers (N, M) and what they score (N, M), for the question with most M.

    The others are filled up with column 0 and a score of 0, which adds nothing. Made once: a loop over answers in every
    step took as long as the network's own gradients.
    """
    shown: list[list[int]] = []
    scores: list[list[float]] = []
    for own in scored:
        known = [answer for answer in own if answer in columns]
        shown.append([columns[answer] for answer in known])
        scores.append([own[answer] for answer in known])
    most = max(len(own) for own in shown)
    for places, values in zip(shown, scores, strict=True):
        missing = most - len(places)
        places.extend([0] * missing)
        values.extend([0.0] * missing)
    return torch.tensor(shown), torch.tensor(scores, dtype=torch.float32)
