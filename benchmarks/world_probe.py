"""A quick look at what a pretrained model does in the world, straight on the device, without store or pools on disk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leverplus.world.encoder import DualEncoder
from leverplus.world.model import TinyLVLM, normalise_pictures
from leverplus.world.questions import NONE, Questions, draw_questions
from leverplus.world.reader import PromptItems, read_prompts
from leverplus.world.scenes import SIZE, render_scenes
from leverplus.world.words import END, PARAPHRASES, question_tokens

POOL = 64
SHOTS = (1, 2, 3, 4)
BATCH = 4096
RIGHT = 0.5
"""An answer counts as right when its accuracy is at least this."""


@dataclass(frozen=True)
class Look:
    """Two splits of a world on the device: demonstrations first, then questions; vectors for both."""

    model: TinyLVLM
    table: PromptItems
    image: Tensor
    text: Tensor
    query: Tensor
    pool: Tensor
    references: Tensor
    two_facts: Tensor

    def ask(self, query: Tensor, demos: Tensor, references: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Accuracy, mean probability of the references, and answers of prompts."""
        parts = [
            read_prompts(self.model, self.table, *(x[i : i + BATCH] for x in (query, demos, references)))
            for i in range(0, len(query), BATCH)
        ]
        answer = torch.cat([part.answer for part in parts])
        weight = torch.cat([part.logprobs for part in parts]).exp().mean(1)
        return accuracy(answer, references), weight, answer

    def of(self, demos: Tensor) -> Tensor:
        return self.ask(self.query, demos, self.references)[0]

    def nearest(self, similarity: Tensor) -> list[float]:
        order = similarity.argsort(1, descending=True)
        return [float(self.of(self.pool.gather(1, order[:, :n].flip(1))).mean()) for n in SHOTS]

    def similarity(self, vectors: Tensor) -> Tensor:
        return torch.einsum("nd,nkd->nk", vectors[self.query], vectors[self.pool])


def accuracy(answer: Tensor, references: Tensor) -> Tensor:
    """Official accuracy (N,) of answers (N, 2) against ten references (N, 10, 2)."""
    hits = (answer[:, None] == references).all(-1).sum(1).float()
    own = torch.clamp((hits - 1) / 3, 0, 1)
    others = torch.clamp(hits / 3, 0, 1)
    return (hits * own + (10 - hits) * others) / 10


@torch.inference_mode()
def look(models: tuple[TinyLVLM, DualEncoder], split: str, n: int, world_seed: int, device: str) -> Look:
    """n questions of a split with random pools of 64 demonstrations."""
    model, encoder = models[0].to(device).eval(), models[1].to(device).eval()
    train, asked = draw_questions(world_seed, "train"), draw_questions(world_seed, split)
    parts = [_read(model, encoder, questions, device) for questions in (train, asked)]
    table = PromptItems(
        *(torch.cat([getattr(part[0], name) for part in parts]) for name in ("seen", "question", "answer"))
    )
    rng = np.random.default_rng([world_seed, 99])
    rows = np.sort(rng.choice(len(asked), n, replace=False))
    pool = np.stack([rng.choice(len(train), POOL, replace=False) for _ in rows])
    return Look(
        model,
        table,
        torch.cat([part[1] for part in parts]),
        encoder.embed_words(table.question),
        torch.as_tensor(rows + len(train), device=device),
        torch.as_tensor(pool, device=device),
        torch.as_tensor(_references(asked)[rows], device=device),
        torch.as_tensor(asked.truth[rows, 1] != NONE, device=device),
    )


def _read(model: TinyLVLM, encoder: DualEncoder, questions: Questions, device: str) -> tuple[PromptItems, Tensor]:
    """The questions of a split, ready for the model, and their picture vectors."""
    rng = np.random.default_rng(0)
    seen, vectors = [], []
    for start in range(0, len(questions.scenes), 500):
        rows = np.arange(start, min(start + 500, len(questions.scenes)))
        noise = torch.from_numpy(rng.standard_normal((len(rows), 3, SIZE, SIZE), dtype=np.float32)).to(device)
        pictures = normalise_pictures(render_scenes(questions.scenes.take(rows), noise, device))
        seen.append(model.see(pictures))
        vectors.append(encoder.embed_pictures(pictures))
    image = torch.as_tensor(questions.image, device=device)
    ids = np.array([[question_tokens(text) for text in group] for group in PARAPHRASES])
    question = torch.as_tensor(ids[questions.relation, questions.paraphrase], device=device)
    shown = torch.as_tensor(_shown(questions), device=device)
    return PromptItems(torch.cat(seen)[image], question, shown), torch.cat(vectors)[image]


def _references(questions: Questions) -> np.ndarray:
    return np.where(questions.answers == NONE, END, questions.answers)


def _shown(questions: Questions) -> np.ndarray:
    """The most common of the ten answers (ties: first mention)."""
    answers = _references(questions)
    same = (answers[:, :, None, :] == answers[:, None, :, :]).all(-1).sum(-1)
    return np.asarray(answers[np.arange(len(answers)), same.argmax(1)])


@torch.inference_mode()
def probe(models: tuple[TinyLVLM, DualEncoder], device: str, n: int, world_seed: int = 0) -> dict[str, object]:
    """The ladder of a world: zero-shot, random, nearest and greedy oracle at 1-4 shots; harm, order, two-fact gap."""
    dev, test = look(models, "dev", min(n, 1000), world_seed, device), look(models, "test", n, world_seed, device)
    none = test.pool[:, :0]
    zero, one = test.of(none), test.of(test.pool[:, :1])
    right = zero >= RIGHT
    shares = (0.2, 0.35, 0.5, 0.65, 0.8)
    dev_image, dev_text = dev.similarity(dev.image), dev.similarity(dev.text)
    share = max(shares, key=lambda s: sum(dev.nearest(s * dev_text + (1 - s) * dev_image)))
    image, text = test.similarity(test.image), test.similarity(test.text)
    forward = test.ask(test.query, test.pool[:, :2], test.references)[2]
    backward = test.ask(test.query, test.pool[:, :2].flip(1), test.references)[2]
    oracle, two_facts = _oracle(test)
    return {
        "n": n,
        "world_seed": world_seed,
        "zero_shot": float(zero.mean()),
        "random": [float(test.of(test.pool[:, :k]).mean()) for k in SHOTS],
        "nearest_image": test.nearest(image),
        "nearest_text": test.nearest(text),
        "nearest_both": test.nearest(share * text + (1 - share) * image),
        "text_share": share,
        "oracle": oracle,
        "oracle_two_facts": two_facts,
        "harmed": float((one[right] < RIGHT).float().mean()),
        "harmed_to_zero": float((one[zero > 0] == 0).float().mean()),
        "helped": float((one[~right] >= RIGHT).float().mean()),
        "reversed": float((forward != backward).any(1).float().mean()),
    }


def _oracle(test: Look) -> tuple[list[float], list[float]]:
    """Greedy oracle at 1-4 shots, over all questions and over those that need two facts."""
    n, chosen = len(test.query), test.pool[:, :0]
    everyone, two_facts = [], []
    for _ in SHOTS:
        demos = torch.cat([chosen[:, None].expand(-1, POOL, -1), test.pool[:, :, None]], 2).flatten(0, 1)
        got, weight, _ = test.ask(test.query.repeat_interleave(POOL), demos, test.references.repeat_interleave(POOL, 0))
        used = (test.pool[:, :, None] == chosen[:, None, :]).any(2)
        value = (got + 1e-3 * weight).view(n, POOL).masked_fill(used, -1)
        best = value.argmax(1, keepdim=True)
        chosen = torch.cat([chosen, test.pool.gather(1, best)], 1)
        picked = got.view(n, POOL).gather(1, best)[:, 0]
        everyone.append(float(picked.mean()))
        two_facts.append(float(picked[test.two_facts].mean()))
    return everyone, two_facts
