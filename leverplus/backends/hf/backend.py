"""The `hf` backend: any language or vision-language model that transformers loads, on a GPU or a CPU."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import numpy as np

from leverplus.backends.base import Reply, Request
from leverplus.backends.hf.files import find_model
from leverplus.backends.hf.language import Language
from leverplus.backends.hf.load import load_model
from leverplus.backends.hf.prompts import Prompts
from leverplus.backends.hf.reader import Reader, Reading
from leverplus.backends.hf.tree import Prompt
from leverplus.errors import ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.tasks.base import Task

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2, "float16": 0.05}
"""How far reading in parts may be from the model's own logits, in standard deviations of these."""


class HfBackend:
    """Answers requests with a model of transformers: greedy answers and log-probabilities of the exact answer tokens."""

    def __init__(self, task: Task, section: ModelSection) -> None:
        self.task = task
        self.section = section
        self.files = find_model(section)
        self.loaded = load_model(self.files.folder, section)
        self.language = Language(self.loaded.model)
        self.prompts = Prompts(self.loaded.tokenizer, section)
        default = 65536 if self.language.device.type == "cuda" else 2048
        self.reader = Reader(self.language, batch_tokens=section.batch_tokens or default)
        self.stops = self.prompts.stops(self.loaded.model)
        self._verify()

    def fingerprint(self) -> Mapping[str, str]:
        section = self.section
        shape = [section.prompt, section.instruction]
        shape.append(section.template if section.prompt == "plain" else str(self.prompts.renderer.chat_template))
        return {
            "model": self.files.name,
            "revision": self.files.digest,
            "template": f"{section.prompt}-{hashlib.sha256(repr(shape).encode()).hexdigest()[:16]}",
            "decoding": f"greedy, at most {section.max_new_tokens} tokens",
            "dtype": self.loaded.dtype,
            "transformers": version("transformers"),
        }

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        prompts = [self._prompt(request) for request in requests]
        replies: dict[int, Reply] = {}
        for choose in (False, True):
            places = [place for place, request in enumerate(requests) if request.choose == choose]
            new_tokens = 0 if choose else self.section.max_new_tokens
            readings = self.reader.read([prompts[place] for place in places], new_tokens, self.stops)
            for place, reading in zip(places, readings, strict=True):
                replies[place] = self._reply(requests[place], reading)
        return [replies[place] for place in range(len(requests))]

    def answer_span(self, request: Request, reference: str) -> str:
        """The text of the tokens that are weighed for a reference."""
        return self.prompts.span(request, reference)

    def _reply(self, request: Request, reading: Reading) -> Reply:
        if request.choose:
            best = max(range(len(reading.logprobs)), key=reading.logprobs.__getitem__)
            raw = request.references[best]
        else:
            raw = self.prompts.written(reading.written)
        return Reply(raw, reading.logprobs, math.ceil(reading.tokens))

    def _prompt(self, request: Request) -> Prompt:
        if request.choose and not request.references:
            raise ScoringError(f"query {request.query.id} has no labels to choose from")
        text = self.prompts.text(request)
        ids = self.prompts.tokens(text)
        longest = getattr(self.language.config, "max_position_embeddings", None)
        if longest is not None and len(ids) > longest:
            raise ScoringError(
                f"query {request.query.id} with {len(request.demos)} demonstrations has {len(ids)} tokens; the model "
                f"reads at most {longest}: show fewer or shorter ones"
            )
        answers = tuple(self.prompts.answer(text, reference) for reference in request.references)
        return Prompt(np.array(ids, dtype=np.int64), np.arange(len(ids), dtype=np.int64)[None], answers)

    def _verify(self) -> None:
        """Reading in parts must give what the model itself gives."""
        import torch

        ids = self.prompts.tokens("Question: What is this?\nAnswer:")
        inputs = torch.tensor([ids], device=self.language.device)
        places = np.arange(len(ids), dtype=np.int64)[None]
        self.language.verify(np.array(ids, dtype=np.int64), places, TOLERANCE[self.loaded.dtype], input_ids=inputs)
