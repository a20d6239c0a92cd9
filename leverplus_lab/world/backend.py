"""The world's tiny vision-language model as a backend; each picture is encoded once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from leverplus.data.types import Item, ItemId
from leverplus.errors import ScoringError
from leverplus.models.base import Reply, Request
from leverplus.models.settings import ModelSection
from leverplus_lab.world.model import (
    MAX_DEMOS,
    PromptItems,
    normalise_pictures,
    read_prompts,
)
from leverplus_lab.world.task import WorldTask
from leverplus_lab.world.weights import MODEL, digest, load_lvlm
from leverplus_lab.world.words import answer_text, answer_tokens, question_tokens

BATCH = {"cpu": 256, "cuda": 8192}
"""Prompts read together: as many as keep the activations within a core's cache, or as fill a GPU."""


def world_backend(task: WorldTask, _model: ModelSection) -> WorldBackend:
    """The backend `world` of a recipe; it brings its own model and reads no setting."""
    return WorldBackend(task)


class WorldBackend:
    """Answers up to eight demonstrations and a query; greedy over the 48 names; on a GPU where there is one."""

    fixed_answers = True
    """Every answer is one name or two, so the self-test cannot ask for longer ones."""

    def __init__(self, task: WorldTask) -> None:
        self.task = task
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.batch = BATCH[self.device.type]
        self.model = load_lvlm().to(self.device)
        self._rows: dict[ItemId, int] = {}
        self._table: PromptItems | None = None

    def fingerprint(self) -> Mapping[str, str]:
        return {
            "model": "world-lvlm",
            "revision": digest(MODEL),
            "template": "items-then-query",
            "decoding": "greedy",
        }

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        self._encode_new_items(requests)
        # the prompts of a batch show equally many demonstrations
        by_shots: dict[int, list[int]] = defaultdict(list)
        for place, request in enumerate(requests):
            if len(request.demos) > MAX_DEMOS:
                raise ScoringError(
                    f"the world's model reads at most {MAX_DEMOS} demonstrations, not {len(request.demos)}"
                )
            if not request.references:
                raise ScoringError(
                    f"query {request.query.id} has no true answers whose probability could be measured; "
                    "run `lever task check`"
                )
            by_shots[len(request.demos)].append(place)
        replies: dict[int, Reply] = {}
        for places in by_shots.values():
            for start in range(0, len(places), self.batch):
                batch = places[start : start + self.batch]
                said = self._read([requests[place] for place in batch])
                replies.update(zip(batch, said, strict=True))
        return [replies[place] for place in range(len(requests))]

    def _read(self, requests: Sequence[Request]) -> list[Reply]:
        """Replies to requests with equally many demonstrations."""
        assert self._table is not None
        width = max(len(request.references) for request in requests)
        queries = []
        shown = []
        padded = []
        for request in requests:
            queries.append(self._rows[request.query.id])
            shown.append([self._rows[demo.id] for demo in request.demos])
            padded.append(_padded(request.references, width))
        # (B, shots), (B, 0) without demonstrations
        demos = self._tensor(shown).view(len(requests), -1)
        references = self._tensor(padded)  # (B, width, 2)
        reading = read_prompts(
            self.model, self._table, self._tensor(queries), demos, references
        )
        tokens = reading.tokens // len(requests)
        answers = reading.answer.tolist()
        logprobs = reading.logprobs.tolist()
        replies = []
        for request, answer, row in zip(requests, answers, logprobs, strict=True):
            weighed = row[: len(request.references)]  # without the padding
            # rounding may lift one above 0
            below = tuple(min(value, 0.0) for value in weighed)
            replies.append(Reply(answer_text(answer), below, tokens))
        return replies

    def _tensor(self, ids: Sequence[object]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.device)

    def _encode_new_items(self, requests: Sequence[Request]) -> None:
        """Encode the pictures of items that no request had before, and add them to the table of items."""
        fresh: dict[ItemId, Item] = {}
        for request in requests:
            for item in (request.query, *request.demos):
                if item.id not in self._rows:
                    fresh[item.id] = item
        if not fresh:
            return
        items = list(fresh.values())
        with torch.inference_mode():
            pictures = self.task.pictures(items).to(self.device)
            split = torch.split(normalise_pictures(pictures), self.batch)
            seen = torch.cat([self.model.see(part) for part in split])
        questions = []
        answers = []
        for item in items:
            self._rows[item.id] = len(self._rows)
            questions.append(question_tokens(item.question))
            answers.append(answer_tokens(item.answer if item.answers else ""))
        question = self._tensor(questions)
        answer = self._tensor(answers)
        if self._table is not None:
            seen = torch.cat([self._table.seen, seen])
            question = torch.cat([self._table.question, question])
            answer = torch.cat([self._table.answer, answer])
        self._table = PromptItems(seen, question, answer)


@lru_cache(maxsize=1 << 14)
def _padded(references: tuple[str, ...], width: int) -> list[list[int]]:
    """The tokens of references, and copies of the first up to `width`, whose log-probabilities are not used."""
    tokens = [answer_tokens(reference) for reference in references]
    return tokens + [tokens[0]] * (width - len(tokens))
