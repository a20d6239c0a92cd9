"""A task and a model small enough to follow by hand; run as a program it scores until it is done or killed.

python tiny_task.py STORE LOG CHUNK SECONDS    scores every prompt of `all_prompts`, logging what the model is asked
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError
from leverplus.models.base import LocalEngine, Reply, Request
from leverplus.scores.scorer import Prompt, Scorer
from leverplus.scores.store import ScoreStore

WORDS = ("red", "green", "blue", "round")


def number(*parts: str) -> float:
    """A number in (0, 1) that follows from texts."""
    return (
        int.from_bytes(blake2b("/".join(parts).encode(), digest_size=4).digest(), "big")
        + 1
    ) / 2**32


class TinyTask:
    """Queries q0..q19 and demonstrations d0..d19 with four annotators each, and two items with empty answers."""

    name, version, answers = "tiny", "1", AnswerRules("vqa_accuracy", "plain")

    def __init__(self) -> None:
        self._items = {
            "train": self._make("d", "train"),
            "dev": self._make("q", "dev"),
            "test": [],
        }
        self._items["train"] += [
            Item(ItemId("blank"), "what is it", ("", " "), "train"),
            Item(ItemId("silent"), "what is it", (), "train"),
        ]
        self._by_id = {
            item.id: item for items in self._items.values() for item in items
        }

    def _make(self, letter: str, split: str) -> list[Item]:
        return [
            Item(
                ItemId(f"{letter}{row}"),
                f"what is {row}",
                tuple(WORDS[(row + annotator // 3) % 4] for annotator in range(4)),
                split,
            )
            for row in range(20)
        ]

    def items(self, split: str) -> Sequence[Item]:
        return self._items[split]

    def item(self, item_id: ItemId) -> Item:
        if item_id not in self._by_id:
            raise DataError(f"tiny has no item '{item_id}'")
        return self._by_id[item_id]

    def image(self, item: Item) -> None:
        return None

    def image_digest(self, item: Item) -> str:
        return ""


class TinyBackend:
    """Answers by a hash of the prompt, order included; remembers what it was asked."""

    def __init__(self, seconds: float = 0.0, log: Path | None = None) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.batches: list[int] = []
        self.seconds, self.log = seconds, log

    def fingerprint(self) -> Mapping[str, str]:
        return {"model": "hash", "revision": "1"}

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        prompts = [
            (request.query.id, *(demo.id for demo in request.demos))
            for request in requests
        ]
        self.asked += prompts
        self.batches.append(len(requests))
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(
                    "".join(" ".join(prompt) + "\n" for prompt in prompts) + "--\n"
                )
        time.sleep(self.seconds)
        return [
            self._reply(prompt, request)
            for prompt, request in zip(prompts, requests, strict=True)
        ]

    def _reply(self, prompt: tuple[str, ...], request: Request) -> Reply:
        raw = WORDS[int(4 * number(*prompt))]
        logprobs = tuple(
            math.log(number(*prompt, reference) / 4) for reference in request.references
        )
        return Reply(raw, logprobs, 10 * len(prompt))


def all_prompts(task: TinyTask) -> list[Prompt]:
    """Every query with every single demonstration: 400 prompts."""
    demos = [item.id for item in task.items("train")[:20]]
    return [(query.id, (demo,)) for query in task.items("dev") for demo in demos]


def open_scorer(path: Path, backend: TinyBackend, chunk: int = 16) -> Scorer:
    return Scorer(
        TinyTask(), backend, ScoreStore(path), LocalEngine(backend), chunk=chunk
    )


def main() -> None:
    store, log, chunk, seconds = sys.argv[1:]
    scorer = open_scorer(
        Path(store), TinyBackend(float(seconds), Path(log)), int(chunk)
    )
    scorer.score(all_prompts(TinyTask()))


if __name__ == "__main__":
    main()
