"""A scorer of capitals behind a server that costs money."""

from __future__ import annotations

import json
from pathlib import Path

from speaking_server import CAPITALS

from leverplus.data.tasks.jsonl import jsonl
from leverplus.data.tasks.settings import TaskSection
from leverplus.models.api.account import Account
from leverplus.models.api.backend import OpenAIBackend
from leverplus.models.base import LocalEngine
from leverplus.models.settings import ModelSection
from leverplus.scores.scorer import Prompt, Scorer
from leverplus.scores.store import ScoreStore

WORDS = {"train": "which city is the", "dev": "name the", "test": "tell me the"}


def open_scorer(
    folder: Path, section: ModelSection, demos: int = 2
) -> tuple[Scorer, list[Prompt]]:
    """A scorer with its store and its account in a folder, and prompts of every dev question with `demos` of them."""
    path = folder / "capitals.jsonl"
    if not path.is_file():
        rows = []
        for split, words in WORDS.items():
            for country, city in CAPITALS.items():
                row = {"id": f"{split}-{country}", "split": split}
                row["question"] = f"{words} capital of {country}?"
                rows.append(
                    json.dumps({**row, "answers": [city, city, f"{city} city"]})
                )
        path.write_text("\n".join(rows))
    task = jsonl(
        TaskSection(name="jsonl", file=str(path), folder=str(folder), images="none")
    )
    backend = OpenAIBackend(task, section, Account(folder / "paid.jsonl"))
    store = ScoreStore(folder / "scores.db")
    scorer = Scorer(task, backend, store, LocalEngine(backend))
    shown = [item.id for item in task.items("train")[:demos]]
    return scorer, [(item.id, (demo,)) for item in task.items("dev") for demo in shown]
