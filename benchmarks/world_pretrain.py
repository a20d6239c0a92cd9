"""Pretraining of the world's two models: `python benchmarks/world_pretrain.py --out DIR` (minutes on one GPU).

Needs torch, numpy and safetensors only. Episodes of nine items are drawn on the device: known facts come from the fixed
table, the others are redrawn for every episode, so the model must learn to read its context. In most episodes all items
speak one dialect, which teaches the model to follow its demonstrations' wording; in the world they do not, so it is
readily misled.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from world_probe import probe  # beside this file

from leverplus.world.encoder import DualEncoder
from leverplus.world.facts import known_facts
from leverplus.world.model import ITEM_TOKENS, MAX_DEMOS, PROMPT_TOKENS, ModelConfig, TinyLVLM, normalise_pictures
from leverplus.world.questions import CUES
from leverplus.world.scenes import SIZE, Scenes, draw_nuisance, render_scenes
from leverplus.world.words import (
    ANSWER_START,
    BACKGROUNDS,
    COLOURS,
    DEPENDS_ON,
    END,
    PAD,
    PARAPHRASES,
    RELATIONS,
    SHAPES,
    THINGS,
    TOKEN,
    UNKNOWN,
    question_tokens,
)

ITEMS = MAX_DEMOS + 1


@dataclass(frozen=True)
class Pretraining:
    """Everything that shapes the weights, besides the code."""

    seed: int = 0
    layers: int = 3
    steps: int = 12000
    batch: int = 512
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    warm_up: int = 500
    share_relation: float = 0.6
    share_attribute: float = 0.6
    one_dialect: float = 0.61
    mislabelled: float = 0.05
    counterfactual: float = 0.05
    unknown_word: float = 0.03
    encoder_steps: int = 2000
    encoder_batch: int = 1024
    pictures_per_look: int = 512


@dataclass(frozen=True)
class Episodes:
    """B episodes of nine items: rows into the picture bank, question ids (B, 9, 4), answer ids (B, 9, 2)."""

    picture: Tensor
    question: Tensor
    answer: Tensor


def draw_bank(settings: Pretraining, device: str) -> Tensor:
    """Pictures (294 looks x M, 3, 32, 32) uint8 of every shape, colour and background under varied nuisance."""
    rng = np.random.default_rng([settings.seed, 2])
    looks = np.stack(np.meshgrid(range(len(SHAPES)), range(len(COLOURS)), range(len(BACKGROUNDS)), indexing="ij"), -1)
    generator = torch.Generator(device).manual_seed(settings.seed)
    bank = []
    for shape, colour, background in looks.reshape(-1, 3):
        m = settings.pictures_per_look
        scenes = Scenes(np.full(m, shape), np.full(m, colour), np.full(m, background), *draw_nuisance(rng, m))
        noise = torch.randn(m, 3, SIZE, SIZE, generator=generator, device=device)
        bank.append(render_scenes(scenes, noise, device))
    return torch.cat(bank)


class EpisodeSource:
    """Draws pretraining episodes on the device."""

    def __init__(self, settings: Pretraining, device: str) -> None:
        self.settings, self.device = settings, device
        self.generator = torch.Generator(device).manual_seed(settings.seed + 1)
        facts = known_facts()
        self.known_shape = torch.as_tensor(facts.known_shape, device=device)
        self.known_colour = torch.as_tensor(facts.known_colour, device=device)
        self.by_shape = torch.as_tensor(facts.by_shape, device=device)
        self.by_colour = torch.as_tensor(facts.by_colour, device=device)
        ids = [[question_tokens(text) for text in group] for group in PARAPHRASES]
        self.questions = torch.tensor(ids, device=device)
        self.needs_shape = torch.tensor([needs != "colour" for needs in DEPENDS_ON], device=device)
        self.cues = torch.tensor(CUES, device=device)
        self.needs_both = torch.tensor([needs == "both" for needs in DEPENDS_ON], device=device)

    def _int(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.generator, device=self.device)

    def _chance(self, probability: float, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device) < probability

    def draw(self, batch: int) -> Episodes:
        settings = self.settings
        relation, shape, colour = self._attributes(batch)
        strange = self._chance(settings.counterfactual, batch, 1, 1)
        fresh = (batch, len(RELATIONS))
        things = len(THINGS)
        by_shape = torch.where(self.known_shape & ~strange, self.by_shape, self._int(things, *fresh, len(SHAPES)))
        by_colour = torch.where(self.known_colour & ~strange, self.by_colour, self._int(things, *fresh, len(COLOURS)))
        rows = torch.arange(batch, device=self.device)[:, None]
        shape_thing, colour_thing = by_shape[rows, relation, shape], by_colour[rows, relation, colour]
        both = self.needs_both[relation]
        first = torch.where(self.needs_shape[relation] & ~both, shape_thing, colour_thing)
        wrong = self._chance(settings.mislabelled, batch, ITEMS)
        first = torch.where(wrong, self._int(things, batch, ITEMS), first)
        second = torch.where(wrong, self._int(things, batch, ITEMS), shape_thing)
        together = self._chance(settings.one_dialect, batch, 1)
        dialect = torch.where(together, self._int(2, batch, 1), self._int(2, batch, ITEMS))
        kind = self._int(len(CUES), batch, ITEMS)
        typical = torch.rand(kind.shape, generator=self.generator, device=self.device) < self.cues[kind]
        background = torch.where(typical, dialect, 1 - dialect) * len(CUES) + kind
        look = (shape * len(COLOURS) + colour) * len(BACKGROUNDS) + background
        per_look = settings.pictures_per_look
        picture = look * per_look + self._int(per_look, batch, ITEMS)
        question = self.questions[relation, self._int(len(PARAPHRASES[0]), batch, ITEMS)]
        question = torch.where(self._chance(settings.unknown_word, batch, ITEMS, 1), UNKNOWN, question)
        second_word = torch.where(both, ANSWER_START + 2 * second + dialect, END)
        return Episodes(picture, question, torch.stack([ANSWER_START + 2 * first + dialect, second_word], 2))

    def _attributes(self, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Relation, shape and colour (B, 9): some items take after an earlier one, to be read from it."""
        settings = self.settings
        relation = self._int(len(RELATIONS), batch, ITEMS)
        shape, colour = self._int(len(SHAPES), batch, ITEMS), self._int(len(COLOURS), batch, ITEMS)
        for item in range(1, ITEMS):
            parent = self._int(item, batch, 1)
            related = self._chance(settings.share_relation, batch)
            for values, chance in ((shape, settings.share_attribute), (colour, settings.share_attribute)):
                copy = related & self._chance(chance, batch)
                values[:, item] = torch.where(copy, values.gather(1, parent)[:, 0], values[:, item])
            relation[:, item] = torch.where(related, relation.gather(1, parent)[:, 0], relation[:, item])
        return relation, shape, colour


def episode_loss(model: TinyLVLM, bank: Tensor, episodes: Episodes) -> Tensor:
    """Mean cross-entropy of both answer words of all nine items: every number of demonstrations is trained at once."""
    batch = len(episodes.picture)
    pictures = normalise_pictures(bank[episodes.picture.reshape(-1)])
    answers = episodes.answer.reshape(-1, 2)
    inputs = model.item_inputs(model.see(pictures), episodes.question.reshape(batch * ITEMS, -1), answers)
    hidden, _ = model.extend(inputs.reshape(batch, ITEMS * ITEM_TOKENS, -1), 0, None, None)
    hidden = hidden.view(batch, ITEMS, ITEM_TOKENS, -1)[:, :, PROMPT_TOKENS - 1 : PROMPT_TOKENS + 1]
    return functional.cross_entropy(
        model.word_logits(hidden).float().reshape(batch * ITEMS * 2, -1), answers.reshape(-1)
    )


def learning_rate(settings: Pretraining, step: int) -> float:
    """Linear warm-up, then a cosine down to a hundredth."""
    if step < settings.warm_up:
        return settings.learning_rate * (step + 1) / settings.warm_up
    done = (step - settings.warm_up) / max(1, settings.steps - settings.warm_up)
    return settings.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def train_model(settings: Pretraining, config: ModelConfig, bank: Tensor, device: str) -> TinyLVLM:
    """The tiny vision-language model, trained on freshly drawn episodes."""
    torch.manual_seed(settings.seed)
    model = TinyLVLM(config).to(device)
    source = EpisodeSource(settings, device)
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), fused=device != "cpu")
    loss_of = torch.compile(episode_loss) if device != "cpu" else episode_loss
    started = time.time()
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device != "cpu"):
            loss = loss_of(model, bank, source.draw(settings.batch))
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 500 == 0 or step == settings.steps - 1:
            line = f"model step {step} loss {loss.item():.4f} seconds {time.time() - started:.0f}"
            sys.stderr.write(line + "\n")
    return model.eval()


def train_encoder(settings: Pretraining, bank: Tensor, device: str) -> DualEncoder:
    """The dual encoder: pictures against captions, paraphrases against paraphrases, names against their synonyms."""
    torch.manual_seed(settings.seed)
    encoder = DualEncoder().to(device)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=settings.encoder_steps)
    generator = torch.Generator(device).manual_seed(settings.seed + 2)
    caption_words = [
        [TOKEN[shape], TOKEN[colour], TOKEN[background]]
        for shape in SHAPES
        for colour in COLOURS
        for background in BACKGROUNDS
    ]
    captions = torch.tensor(caption_words, device=device)
    questions = torch.tensor([[question_tokens(text) for text in group] for group in PARAPHRASES], device=device)

    def contrast(left: Tensor, right: Tensor, same: Tensor) -> Tensor:
        logits = left @ right.T * encoder.scale.exp()
        target = same.float() / same.sum(1, keepdim=True)
        return functional.cross_entropy(logits, target) + functional.cross_entropy(logits.T, target.T)

    for step in range(settings.encoder_steps):
        rows = torch.randint(len(bank), (settings.encoder_batch,), generator=generator, device=device)
        look = rows // settings.pictures_per_look
        caption = captions[look].clone()
        dropped = torch.rand(caption.shape, generator=generator, device=device) < 0.3
        caption[dropped & ~dropped.all(1, keepdim=True)] = PAD
        pictures = encoder.embed_pictures(normalise_pictures(bank[rows]))
        loss = contrast(pictures, encoder.embed_words(caption), look[:, None] == look[None, :])
        relation = torch.randint(len(RELATIONS), (64,), generator=generator, device=device)
        pick = torch.randint(len(PARAPHRASES[0]), (2, 64), generator=generator, device=device)
        left, right = (encoder.embed_words(questions[relation, pick[side]]) for side in (0, 1))
        loss = loss + 0.3 * contrast(left, right, relation[:, None] == relation[None, :])
        thing = torch.arange(len(THINGS), device=device)
        names = [ANSWER_START + 2 * thing[:, None] + dialect for dialect in (0, 1)]
        same = thing[:, None] == thing[None, :]
        loss = loss + 0.1 * contrast(encoder.embed_words(names[0]), encoder.embed_words(names[1]), same)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        if step % 500 == 0 or step == settings.encoder_steps - 1:
            sys.stderr.write(f"encoder step {step} loss {loss.item():.4f}\n")
    return encoder.eval()


def save_weights(model: torch.nn.Module, path: Path, card: dict[str, object]) -> None:
    """fp16 safetensors with the settings that made them in the header."""
    tensors = {name: tensor.detach().half().contiguous().cpu() for name, tensor in model.state_dict().items()}
    save_file(tensors, path, metadata={"format": "pt", "card": json.dumps(card)})


def main(argv: list[str] | None = None) -> int:
    defaults = Pretraining()
    parser = argparse.ArgumentParser(prog="python benchmarks/world_pretrain.py", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--probe", type=int, default=500, help="test questions of world 0 to measure on")
    for key, value in asdict(defaults).items():
        parser.add_argument(f"--{key.replace('_', '-')}", type=type(value), default=value)
    args = vars(parser.parse_args(argv))
    settings = replace(defaults, **{key: args[key] for key in asdict(defaults)})
    torch.set_float32_matmul_precision("high")
    args["out"].mkdir(parents=True, exist_ok=True)
    started = time.time()
    bank = draw_bank(settings, args["device"])
    encoder = train_encoder(settings, bank, args["device"])
    model = train_model(settings, ModelConfig(layers=settings.layers), bank, args["device"])
    card = {"settings": asdict(settings), "torch": torch.__version__, "seconds": round(time.time() - started)}
    save_weights(encoder, args["out"] / "encoder.safetensors", card)
    save_weights(model, args["out"] / "model.safetensors", card)
    figures = probe((model, encoder), args["device"], args["probe"])
    (args["out"] / "probe.json").write_text(json.dumps({"card": card, "probe": figures}, indent=1))
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
