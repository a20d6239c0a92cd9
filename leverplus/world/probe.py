"""A quick look at what a pretrained model does in the world, straight on the device, without store or pools on disk."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from leverplus.world.model import TinyLVLM, normalise_pictures
from leverplus.world.questions import NONE, Questions, draw_questions
from leverplus.world.reader import ItemTable, read_prompts
from leverplus.world.scenes import SIZE, render
from leverplus.world.words import END, PARAPHRASES, question_tokens

POOL = 64


def item_table(model: TinyLVLM, questions: Questions, device: str) -> ItemTable:
    """The questions of one split, ready for the model."""
    generator = np.random.default_rng(0)
    noise = torch.from_numpy(generator.normal(size=(len(questions.scenes), 3, SIZE, SIZE))).to(device)
    with torch.inference_mode():
        pictures = torch.cat(
            [
                render(questions.scenes.take(np.arange(i, min(i + 500, len(noise)))), noise[i : i + 500], device)
                for i in range(0, len(noise), 500)
            ]
        )
        seen = torch.cat([model.see(normalise_pictures(part)) for part in torch.split(pictures, 2000)])
    ids = np.array([[question_tokens(text) for text in group] for group in PARAPHRASES])
    question = torch.as_tensor(ids[questions.relation, questions.paraphrase], device=device)
    image = torch.as_tensor(questions.image, device=device)
    return ItemTable(seen[image], question, torch.as_tensor(_shown(questions), device=device))


def _references(questions: Questions) -> np.ndarray:
    return np.where(questions.answers == NONE, END, questions.answers)


def _shown(questions: Questions) -> np.ndarray:
    """The most common of the ten answers (ties: first mention)."""
    answers = _references(questions)
    same = (answers[:, :, None, :] == answers[:, None, :, :]).all(-1).sum(-1)
    return np.asarray(answers[np.arange(len(answers)), same.argmax(1)])


def accuracy(answer: Tensor, references: Tensor) -> Tensor:
    """Official accuracy (N,) of answers (N, 2) against ten references (N, 10, 2)."""
    hits = (answer[:, None] == references).all(-1).sum(1).float()
    own = torch.clamp((hits - 1) / 3, 0, 1)
    others = torch.clamp(hits / 3, 0, 1)
    return (hits * own + (10 - hits) * others) / 10


def probe(model: TinyLVLM, device: str, n: int, world_seed: int = 0) -> dict[str, object]:
    """Zero-shot, random, and greedy oracle accuracy at 1-4 shots; harm, order, and the two-fact gap."""
    model = model.to(device).eval()
    train, test = draw_questions(world_seed, "train"), draw_questions(world_seed, "test")
    tables = [item_table(model, questions, device) for questions in (train, test)]
    table = ItemTable(*(torch.cat([getattr(t, name) for t in tables]) for name in ("seen", "question", "answer")))
    rng = np.random.default_rng([world_seed, 99])
    rows = np.sort(rng.choice(len(test), n, replace=False))
    query = torch.as_tensor(rows + len(train), device=device)
    pool = torch.as_tensor(np.stack([rng.choice(len(train), POOL, replace=False) for _ in rows]), device=device)
    references = torch.as_tensor(_references(test)[rows], device=device)
    both = torch.as_tensor(test.truth[rows, 1] != NONE, device=device)

    def ask(query: Tensor, demos: Tensor, refs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = [
            read_prompts(model, table, query[i : i + 4096], demos[i : i + 4096], refs[i : i + 4096])
            for i in range(0, len(query), 4096)
        ]
        answer = torch.cat([part.answer for part in parts])
        weight = torch.cat([part.logprobs for part in parts]).exp().mean(1)
        return accuracy(answer, refs), weight, answer

    none = torch.empty(n, 0, dtype=torch.long, device=device)
    zero, _, zero_answer = ask(query, none, references)
    figures: dict[str, object] = {"n": n, "zero_shot": zero.mean().item()}
    random_one, _, _ = ask(query, pool[:, :1], references)
    figures["random"] = [ask(query, pool[:, :shots], references)[0].mean().item() for shots in (1, 2, 3, 4)]
    right = zero >= 0.5
    figures["harmed"] = (random_one[right] < 0.5).float().mean().item()
    figures["harmed_to_zero"] = (random_one[zero > 0] == 0).float().mean().item()
    figures["helped"] = (random_one[~right] >= 0.5).float().mean().item()
    _, _, forward = ask(query, pool[:, :2], references)
    _, _, backward = ask(query, pool[:, :2].flip(1), references)
    figures["order_changes"] = (forward != backward).any(1).float().mean().item()
    chosen, oracle, oracle_both = none, [], []
    for _ in range(4):
        demos = torch.cat([chosen[:, None].expand(-1, POOL, -1), pool[:, :, None]], 2).flatten(0, 1)
        got, weight, _ = ask(query.repeat_interleave(POOL), demos, references.repeat_interleave(POOL, 0))
        used = (pool[:, :, None] == chosen[:, None, :]).any(2) if chosen.shape[1] else torch.zeros_like(pool).bool()
        value = (got * 10 + weight).view(n, POOL).masked_fill(used, -1)
        best = value.argmax(1, keepdim=True)
        chosen = torch.cat([chosen, pool.gather(1, best)], 1)
        picked = got.view(n, POOL).gather(1, best)[:, 0]
        oracle.append(picked.mean().item())
        oracle_both.append(picked[both].mean().item())
    figures["oracle"], figures["oracle_two_facts"] = oracle, oracle_both
    unknown = torch.as_tensor(test.unknown[rows], device=device)
    figures["zero_shot_by_unknown"] = [zero[unknown == k].mean().item() for k in (0, 1, 2)]
    figures["distinct_zero_answers"] = len(torch.unique(zero_answer, dim=0))
    return figures
