"""What labels let one expect of an answer: its accuracy, judged by what annotators said of questions like this one.

How a question's own annotators happened to put it, and who of them was careless, is luck that nobody knows before they
speak; a selector that learns from it learns noise. A small network learns from the labels of the training questions,
without any call of the model, which answers score with which questions. Each question is judged by a network that saw
neither it nor another question on its picture, so what comes out is an expectation and no memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from leverplus.embedders.base import Vectors
from leverplus.errors import TrainingError
from leverplus.metrics import Metric, normalise_answer
from leverplus.pools.build import picture_of
from leverplus.schedules import learning_rate
from leverplus.training.seeds import derive_seed
from leverplus.types import Item, ItemId, Score

FOLDS = 3
MOST_ANSWERS = 4096
"""Answers that the network tells apart, the most common ones; others are worth what they were measured to be."""
HIDDEN, DROPOUT, EPOCHS, FEWEST_STEPS, BATCH, LR, DECAY = 256, 0.3, 20, 200, 256, 2e-3, 0.05


class Expectation:
    """The expected accuracy of the answers that a model gave to training questions: call it with a score.

    `vectors` are those of `items`; `tell` is told how many of the networks are trained.
    """

    def __init__(
        self,
        items: Sequence[Item],
        vectors: Vectors,
        metric: Metric,
        *,
        seed: int,
        tell: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        self.places = {item.id: place for place, item in enumerate(items)}
        given = Counter(normalise_answer(answer) for item in items for answer in set(item.answers))
        self.columns = {answer: column for column, (answer, _) in enumerate(given.most_common(MOST_ANSWERS))}
        self.inputs = _inputs(vectors)
        self.folds = _folds(items, derive_seed(seed, "expectation"))
        worth = [_worth(item, self.columns, metric) for item in items]
        self.networks = []
        for fold in range(FOLDS):
            tell(fold, FOLDS)
            seen = np.flatnonzero(self.folds != fold)
            own = derive_seed(seed, "expectation", fold)
            self.networks.append(_fit(self.inputs, worth, torch.from_numpy(seen), len(self.columns), own))
        tell(FOLDS, FOLDS)
        self._last: tuple[ItemId | None, Tensor] = (None, torch.empty(0))

    def __call__(self, score: Score) -> float:
        """The expected accuracy of a score's answer; what was measured where labels do not tell."""
        column = self.columns.get(normalise_answer(score.answer))
        if column is None or score.query not in self.places:
            return score.accuracy
        return float(self._expected(score.query)[column])

    @torch.no_grad()
    def _expected(self, query: ItemId) -> Tensor:
        if self._last[0] != query:  # scores come group by group
            place = self.places[query]
            self._last = query, self.networks[self.folds[place]](self.inputs[place]).sigmoid()
        return self._last[1]


def _inputs(vectors: Vectors) -> Tensor:
    """Picture and question side by side, numbers of about unit size."""
    blocks = [block for block in (vectors.image, vectors.text) if block is not None]
    return torch.from_numpy(np.concatenate([block * np.sqrt(block.shape[1]) for block in blocks], 1).astype(np.float32))


def _folds(items: Sequence[Item], seed: int) -> np.typing.NDArray[np.int64]:
    """A fold for every item; all questions on a picture are in one."""
    pictures = [picture_of(item) or f"of its own {place}" for place, item in enumerate(items)]
    names = sorted(set(pictures))
    if len(names) < FOLDS:
        raise TrainingError(
            f'reward "expected_accuracy" learns from labels of at least {FOLDS} pictures or texts, and there are '
            f'{len(names)}; use "soft_only" instead'
        )
    fold = dict(zip(names, np.random.default_rng(seed).permutation(len(names)) % FOLDS, strict=True))
    return np.array([fold[picture] for picture in pictures])


def _worth(item: Item, columns: dict[str, int], metric: Metric) -> tuple[Tensor, Tensor]:
    """The columns of an item's answers, and what each scores with it; all others score nothing."""
    given = sorted({normalise_answer(answer) for answer in item.answers} & columns.keys())
    places = torch.tensor([columns[answer] for answer in given], dtype=torch.long)
    return places, torch.tensor([metric(answer, item.answers) for answer in given])


def _fit(inputs: Tensor, worth: Sequence[tuple[Tensor, Tensor]], seen: Tensor, answers: int, seed: int) -> nn.Module:
    """A network from a question's vectors to the logits of what every answer scores, trained on the questions seen."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            *_layer(inputs.shape[1], HIDDEN), *_layer(HIDDEN, HIDDEN), last := nn.Linear(HIDDEN, answers)
        )
        nn.init.constant_(last.bias, -4.0)  # most answers score nothing
        optimizer = torch.optim.AdamW(network.parameters(), weight_decay=DECAY)
        for step, rows in enumerate(order := _batches(seen)):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(LR, "cosine", step, len(order), warmup=len(order) // 20)
            target = _targets([worth[row] for row in rows.tolist()], answers)
            logits = network(inputs[rows])
            loss = nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="sum") / len(rows)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    return network.eval()


def _batches(seen: Tensor) -> list[Tensor]:
    """The questions in a fresh order every epoch; more epochs where there are few, so that something is learnt."""
    steps = -(-len(seen) // BATCH)
    epochs = max(EPOCHS, FEWEST_STEPS // steps)
    return [rows for _ in range(epochs) for rows in torch.split(seen[torch.randperm(len(seen))], BATCH)]


def _layer(size: int, wide: int) -> Iterable[nn.Module]:
    return nn.Linear(size, wide), nn.GELU(), nn.Dropout(DROPOUT)


def _targets(worth: Sequence[tuple[Tensor, Tensor]], answers: int) -> Tensor:
    target = torch.zeros(len(worth), answers)
    for row, (columns, values) in enumerate(worth):
        target[row, columns] = values
    return target
