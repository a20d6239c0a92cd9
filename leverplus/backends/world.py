"""The world's tiny vision-language model as a backend; each picture is encoded once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from leverplus.backends.base import Reply, Request
from leverplus.errors import ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.tasks.world import WorldTask
from leverplus.types import Item, ItemId
from leverplus.world.model import MAX_DEMOS, normalise_pictures
from leverplus.world.reader import PromptItems, read_prompts
from leverplus.world.weights import MODEL, digest, load_lvlm
from leverplus.world.words import answer_text, answer_tokens, question_tokens

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
        return {"model": "world-lvlm", "revision": digest(MODEL), "template": "items-then-query", "decoding": "greedy"}

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        self._encode_new_items(requests)
        by_shots: dict[int, list[int]] = defaultdict(list)  # the prompts of a batch show equally many demonstrations
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
                replies.update(zip(batch, self._read([requests[place] for place in batch]), strict=True))
        return [replies[place] for place in range(len(requests))]

    def answer_span(self, request: Request, reference: str) -> str:
        """The text of the tokens that are weighed for a reference; they are built from it, not found in a text."""
        if reference not in request.references:
            return ""
        return answer_text(_padded((reference,), 1)[0])

    def _read(self, requests: Sequence[Request]) -> list[Reply]:
        assert self._table is not None
        """Replies to requests with equally many demonstrations."""
        width = max(len(request.references) for request in requests)
        query = self._tensor([self._rows[request.query.id] for request in requests])  # (B,)
        demo_rows = []
        for request in requests:
            demo_rows.append([self._rows[demo.id] for demo in request.demos])
        demos = self._tensor(demo_rows).view(len(requests), -1)  # (B, shots), (B, 0) without demonstrations
        references = self._tensor([_padded(request.references, width) for request in requests])  # (B, width, 2)
        reading = read_prompts(self.model, self._table, query, demos, references)
        tokens = reading.tokens // len(requests)
        replies = []
        for request, answer, row in zip(requests, reading.answer.tolist(), reading.logprobs.tolist(), strict=True):
            weighed = row[: len(request.references)]  # without the padding
            logprobs = tuple(min(value, 0.0) for value in weighed)  # rounding may lift one above 0
            replies.append(Reply(answer_text(answer), logprobs, tokens))
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
            pictures = normalise_pictures(self.task.pictures(items).to(self.device))  # (N, 3, 32, 32)
            seen = torch.cat([self.model.see(part) for part in torch.split(pictures, self.batch)])
        question = self._tensor([question_tokens(item.question) for item in items])  # (N, question tokens)
        answer = self._tensor([answer_tokens(item.answer if item.answers else "") for item in items])
        added = PromptItems(seen, question, answer)
        for item in items:
            self._rows[item.id] = len(self._rows)
        self._table = added if self._table is None else _joined(self._table, added)


def _joined(left: PromptItems, right: PromptItems) -> PromptItems:
    return PromptItems(
        torch.cat([left.seen, right.seen]),
        torch.cat([left.question, right.question]),
        torch.cat([left.answer, right.answer]),
    )


@lru_cache(maxsize=1 << 14)
def _padded(references: tuple[str, ...], width: int) -> list[list[int]]:
    """The tokens of references, and copies of the first up to `width`, whose log-probabilities are not used."""
    tokens = [answer_tokens(reference) for reference in references]
    return tokens + [tokens[0]] * (width - len(tokens))
