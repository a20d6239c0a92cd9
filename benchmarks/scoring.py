"""Scoring in batches against one sequence at a time, on the world: candidates per second, same answers, one run.

    python benchmarks/scoring.py                    the whole table: 100 queries x 64 candidates, then 2-shot expansions
    python benchmarks/scoring.py --json             the same as one JSON object
    python benchmarks/scoring.py --queries 10 --naive 20    a quick look

Both sides generate an answer and weigh every reference answer, with as many threads. `OneByOne` is the plain way: for
every prompt it encodes all pictures, runs the whole prompt for every generated word and again for every reference. It
is measured on a sample of the same prompts, half of it before and half after the batches, so that a change in the
machine's load falls on both sides. The batched side goes through the scorer: keys, store look-up and commit included.
Pictures are drawn before the clock starts, on both sides.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leverplus.backends.base import Reply, Request
from leverplus.backends.world import WorldBackend
from leverplus.engine.local import LocalEngine
from leverplus.scoring.scorer import Prompt, Scorer, reference_counts
from leverplus.scoring.search import truth_objective
from leverplus.store.db import ScoreStore
from leverplus.tasks.world import WorldTask
from leverplus.types import Demos, ItemId, Score
from leverplus.world.model import TinyLVLM, normalise_pictures
from leverplus.world.weights import load_lvlm
from leverplus.world.words import ANSWER_END, ANSWER_START, END, answer_text, answer_tokens, question_tokens

BEAMS = 2
TOLERANCE = 1e-4


class OneByOne:
    """The world's model asked the plain way: one prompt at a time, pictures encoded each time, nothing remembered."""

    def __init__(self, task: WorldTask) -> None:
        self.task = task
        self.model: TinyLVLM = load_lvlm()

    def fingerprint(self) -> Mapping[str, str]:
        return WorldBackend(self.task).fingerprint()

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Reply:
        first, tokens = self._run(request, [])
        word = int(first[-1, ANSWER_START:ANSWER_END].argmax()) + ANSWER_START
        second, more = self._run(request, [word])
        last = int(second[-1, END:ANSWER_END].argmax()) + END
        logprobs = []
        for reference in request.references:
            begin, end = answer_tokens(reference)
            steps, cost = self._run(request, [begin])
            logprobs.append(min(0.0, float(steps[-2, begin] + steps[-1, end])))
            more += cost
        return Reply(answer_text([word, last]), tuple(logprobs), tokens + more)

    @torch.inference_mode()
    def _run(self, request: Request, said: list[int]) -> tuple[torch.Tensor, int]:
        """Log-probabilities (tokens, V) of one whole forward pass over a prompt and the words said so far."""
        model, items = self.model, [*request.demos, request.query]
        seen = model.see(normalise_pictures(self.task.pictures(items)))
        question = torch.tensor([question_tokens(item.question) for item in items])
        parts = [
            model.item_inputs(seen[i : i + 1], question[i : i + 1], torch.tensor([answer_tokens(demo.answer)]))
            for i, demo in enumerate(request.demos)
        ]
        parts.append(model.item_inputs(seen[-1:], question[-1:], None))
        if said:
            parts.append(model.words(torch.tensor([said])))
        inputs = torch.cat(parts, 1)
        hidden, _ = model.extend(inputs, 0, None, None)
        return model.word_logits(hidden[0]).log_softmax(-1), inputs.shape[1]


def random_pools(task: WorldTask, queries: int, size: int) -> dict[ItemId, Demos]:
    """For every query `size` random candidates that show another picture."""
    items = task.items("train")
    rng = np.random.default_rng(7)
    pools = {}
    for row in rng.choice(len(items), queries, replace=False):
        query = items[int(row)]
        drawn = (items[int(place)] for place in rng.choice(len(items), size + 4, replace=False))
        pools[query.id] = tuple(item.id for item in drawn if item.image_id != query.image_id)[:size]
    return pools


def measure(
    scorer: Scorer, plain: OneByOne, prompts: Sequence[Prompt], sample: int
) -> tuple[dict[str, Any], list[Score]]:
    """Score all prompts in batches and a sample one by one; the figures of both, and the scores."""
    rng = np.random.default_rng(11)
    rows = [int(row) for row in rng.choice(len(prompts), min(sample, len(prompts)), replace=False)]
    requests = [_request(scorer, prompts[row]) for row in rows]
    half = len(rows) // 2
    before, replies = _timed_answers(plain, requests[:half])
    started = time.perf_counter()
    scores = scorer.score(prompts)
    seconds = time.perf_counter() - started
    after, more = _timed_answers(plain, requests[half:])
    pairs = list(zip(replies + more, (scores[row] for row in rows), strict=True))
    naive = len(rows) / (before + after)
    return {
        "candidates": len(prompts),
        "per_second": len(prompts) / seconds,
        "one_by_one_candidates": len(rows),
        "one_by_one_per_second": naive,
        "ratio": len(prompts) / seconds / naive,
        "same_answers": all(reply.raw == score.raw for reply, score in pairs),
        "largest_logprob_gap": max(_gap(reply, score) for reply, score in pairs),
    }, scores


def _request(scorer: Scorer, prompt: Prompt) -> Request:
    query = scorer.task.item(prompt[0])
    return Request(query, tuple(scorer.task.item(demo) for demo in prompt[1]), tuple(reference_counts(query)))


def _timed_answers(plain: OneByOne, requests: Sequence[Request]) -> tuple[float, list[Reply]]:
    started = time.perf_counter()
    replies = plain.answer(requests)
    return time.perf_counter() - started, replies


def _gap(reply: Reply, score: Score) -> float:
    measured = [math.nan if r.logprob is None else r.logprob for r in score.references]
    return max(abs(a - b) for a, b in zip(reply.logprobs or (), measured, strict=True))


def run(queries: int, candidates: int, sample: int) -> dict[str, Any]:
    """The dense one-shot table and the two-shot expansions of its best beams."""
    task = WorldTask()
    pools = random_pools(task, queries, candidates)
    plain, backend = OneByOne(task), WorldBackend(task)
    task.pictures([task.items("train")[0]])
    dense: list[Prompt] = [(query, (candidate,)) for query, pool in pools.items() for candidate in pool]
    with tempfile.TemporaryDirectory() as folder, ScoreStore(Path(folder) / "scores.db") as store:
        scorer = Scorer(task, backend, store, LocalEngine(backend))
        plain.answer([_request(scorer, dense[0])])
        table, scores = measure(scorer, plain, dense, sample)
        expansions: list[Prompt] = []
        for place, (query, pool) in enumerate(pools.items()):
            own = sorted(scores[place * candidates : (place + 1) * candidates], key=truth_objective, reverse=True)[
                :BEAMS
            ]
            expansions += [(query, (*best.demos, c)) for best in own for c in pool if c not in best.demos]
        two, _ = measure(scorer, plain, expansions, sample)
    return {"threads": torch.get_num_threads(), "queries": queries, "dense_one_shot": table, "two_shot_expansions": two}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--naive", type=int, default=200, help="prompts scored one by one, for each of the two tables")
    parser.add_argument("--threads", type=int, default=2, help="threads of both sides")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result = run(options.queries, options.candidates, options.naive)
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"{'':22}{'candidates':>11}{'per second':>12}{'one by one':>12}{'ratio':>8}  same answers, largest log-prob gap"
    )
    for name in ("dense_one_shot", "two_shot_expansions"):
        row = result[name]
        same = "yes" if row["same_answers"] else "NO"
        print(
            f"{name:22}{row['candidates']:11,}{row['per_second']:12,.0f}{row['one_by_one_per_second']:12,.1f}"
            f"{row['ratio']:7.1f}x  {same}, {row['largest_logprob_gap']:.1e}"
        )
    print(f"{result['threads']} threads on both sides; one by one on {row['one_by_one_candidates']} of the prompts")


if __name__ == "__main__":
    main()
