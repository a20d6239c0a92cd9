"""Scores a small task against a server, with an account of what it pays; as a program it does so until it is killed.

python paying_scorer.py FOLDER URL THREADS    for every line on stdin: a new process passes the self-test, then scores
every prompt; its number and then how it ended are printed
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from speaking_server import CAPITALS, MODEL

from leverplus.backends.api.account import Account
from leverplus.backends.api.backend import OpenAIBackend
from leverplus.engine.local import LocalEngine
from leverplus.recipe.model import ModelSection
from leverplus.recipe.sections import TaskSection
from leverplus.scoring.scorer import Prompt, Scorer
from leverplus.scoring.trust import require_trust
from leverplus.store.db import ScoreStore
from leverplus.tasks.jsonl import jsonl


def open_scorer(folder: Path, section: ModelSection, demos: int = 1) -> tuple[Scorer, list[Prompt]]:
    """A scorer whose store and account lie in a folder, and prompts with two answers to weigh each."""
    path = folder / "capitals.jsonl"
    if not path.is_file():
        rows = []
        for split, words in {"train": "name the", "dev": "tell me the", "test": "which is the"}.items():
            for country, city in CAPITALS.items():
                question = f"{words} capital of {country}?"
                answers = [city, city, f"{city} city"]
                rows.append({"id": f"{split}-{country}", "question": question, "answers": answers, "split": split})
        path.write_text("\n".join(json.dumps(row) for row in rows))
    task = jsonl(TaskSection(name="jsonl", file=str(path), folder=str(folder), images="none"))
    backend = OpenAIBackend(task, section, Account(folder / "paid.jsonl"))
    scorer = Scorer(task, backend, ScoreStore(folder / "scores.db"), LocalEngine(backend))
    shown = [item.id for item in task.items("train")[:demos]]
    return scorer, [(item.id, (demo,)) for item in task.items("dev") for demo in shown]


def score_all(folder: Path, url: str, threads: int) -> None:
    section = ModelSection(name=MODEL, url=url, concurrency=threads, price_in=2000.0, price_out=8000.0)
    scorer, prompts = open_scorer(folder, section, demos=12)
    require_trust(scorer, folder, trained=True, progress=lambda _what, _done, _total: None)
    scorer.score(prompts)


def main() -> None:
    """Processes are forked, so that each starts at once: what they import is there already."""
    folder, url, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    for _ in sys.stdin:
        process = os.fork()
        if process == 0:
            score_all(folder, url, threads)
            os._exit(0)
        print(process, flush=True)
        print(os.waitpid(process, 0)[1], flush=True)


if __name__ == "__main__":
    main()
