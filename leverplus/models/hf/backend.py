"""The `hf` backend: any language or vision-language model that transformers loads, on a GPU or a CPU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from leverplus.data.tasks.base import Task
from leverplus.data.types import Item
from leverplus.errors import ScoringError
from leverplus.models.base import Reply, Request
from leverplus.models.hf.language import Language
from leverplus.models.hf.load import find_model, load_model
from leverplus.models.hf.prompts import ModelPrompts
from leverplus.models.hf.reader import Beams, PromptReading, Reader, tokens_that_fit
from leverplus.models.hf.sight import Sight
from leverplus.models.hf.tree import Codes, Prompt
from leverplus.models.room import Room, too_long
from leverplus.models.settings import ModelSection

ROUNDING = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}
"""How far the log-probability of an answer may move with the batch it is read in (nats)."""


class OwnModel:
    """What models in this process share: files, fingerprint, prompts; `library` computes them (name and version)."""

    prompts: ModelPrompts
    dtype: str
    tolerance: float
    library: tuple[str, str]
    longest: int | None = None
    """The most tokens of a prompt, where the model says."""

    def __init__(self, task: Task, section: ModelSection) -> None:
        self.task = task
        self.section = section
        self.files = find_model(section)
        self.notice = self.files.notice

    def fingerprint(self) -> Mapping[str, str]:
        section = self.section
        how = "greedy"
        if section.beams > 1:
            how = f"{section.beams} beams, length penalty {section.length_penalty:g}"
        found = {
            "model": self.files.name,
            "revision": self.files.digest,
            "template": self.prompts.digest(),
            "decoding": f"{how}, at most {section.max_new_tokens} tokens",
            "dtype": self.dtype,
            self.library[0]: self.library[1],
        }
        if self.prompts.picture:
            most = section.image_pixels or "any number of"
            found["images"] = f"pil, at most {most} pixels"
        return found

    def prompt_text(self, request: Request) -> str:
        """The whole prompt, up to where the answer begins."""
        return self.prompts.text(request)

    def require_room(self, shots: int) -> str:
        """Refuse prompts that cannot fit before anything is asked; a note where only few may not fit.

        Pictures count as one token, so that what is refused does not fit in any case.
        """
        if self.longest is None:
            return ""

        def needed(request: Request) -> int:
            return len(self.prompts.tokens(self.prompts.text(request))) + 1

        return Room(self.longest, "the model", needed).require(self.task, shots)

    def shown(self, request: Request) -> list[Item]:
        """The items of a request that have pictures; a request that this model cannot answer is refused."""
        if request.choose and not request.references:
            raise ScoringError(f"query {request.query.id} has no labels to choose from")
        shown = []
        for item in (*request.demos, request.query):
            if item.image is not None:
                shown.append(item)
        if shown and not self.prompts.picture:
            raise ScoringError(
                f"item {shown[0].id} has a picture, but {self.files.name} is a language model; "
                "use a vision-language model, or a task whose questions carry captions"
            )
        return shown


class HfBackend(OwnModel):
    """Answers with a model of transformers: written answers, log-probabilities of the exact answer tokens."""

    def __init__(self, task: Task, section: ModelSection) -> None:
        super().__init__(task, section)
        self.loaded = load_model(self.files.folder, section)
        model = self.loaded.model
        processor = self.loaded.processor
        self.sight: Sight | None = None
        if processor is not None:
            self.sight = Sight(task, processor, model, section)
        self.language = Language(model) if self.sight is None else self.sight.language
        self.prompts = ModelPrompts(self.loaded.tokenizer, section, processor)
        self.longest = getattr(self.language.config, "max_position_embeddings", None)
        self.dtype = self.loaded.dtype
        self.tolerance = ROUNDING[self.dtype]
        self.library = ("transformers", version("transformers"))
        beams = Beams(section.beams, section.length_penalty)
        tokens = section.batch_tokens or tokens_that_fit(self.language)
        self.reader = Reader(self.language, batch_tokens=tokens, beams=beams)
        self.stops = self.prompts.stops(getattr(model, "generation_config", None))
        self._verify()

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        prompts = self._prompts(requests)
        replies: dict[int, Reply] = {}
        # where a label is chosen, nothing needs to be written
        for choose in (False, True):
            places = []
            for place, request in enumerate(requests):
                if request.choose == choose:
                    places.append(place)
            new_tokens = 0 if choose else self.section.max_new_tokens
            readings = self.reader.read(
                [prompts[place] for place in places], new_tokens, self.stops
            )
            for place, reading in zip(places, readings, strict=True):
                replies[place] = self._reply(requests[place], reading)
        return [replies[place] for place in range(len(requests))]

    def _reply(self, request: Request, reading: PromptReading) -> Reply:
        if request.choose:
            best = reading.logprobs.index(max(reading.logprobs))
            raw = request.references[best]
        else:
            raw = self.prompts.written(reading.written)
        return Reply(raw, reading.logprobs, math.ceil(reading.tokens))

    def _prompts(self, requests: Sequence[Request]) -> list[Prompt]:
        """The prompts of some requests: their texts made into tokens together, their pictures decoded together."""
        shown = [self.shown(request) for request in requests]
        if self.sight is not None:
            self.sight.prepare(item for items in shown for item in items)
        texts = [self.prompts.text(request) for request in requests]
        prompts = []
        for request, text, ids, items in zip(
            requests, texts, self.prompts.tokens_of(texts), shown, strict=True
        ):
            slots = []
            if self.sight is not None:
                slots = [self.sight.slot(item) for item in items]
            answers = [self.prompts.answer(text, own) for own in request.references]
            prompt = self._prompt(ids, slots, answers)
            most = int(prompt.positions.max())
            if self.longest is not None and most >= self.longest:
                said = f"it takes {most + 1:,} tokens, and the model has room for {self.longest:,}"
                raise ScoringError(too_long(request, said))
            prompts.append(prompt)
        return prompts

    def _prompt(
        self, ids: Sequence[int], slots: Sequence[int], answers: Sequence[Sequence[int]]
    ) -> Prompt:
        """A prompt whose `ids` (tokens of its text,) have one token for each of the pictures in these slots."""
        codes: Codes = np.array(ids, dtype=np.int64)
        weighed = tuple(map(tuple, answers))
        if self.sight is None:
            return Prompt(codes, np.arange(len(ids), dtype=np.int64)[None], weighed)
        codes = self.sight.pictures.codes(codes, slots)
        return Prompt(codes, self.sight.pictures.positions(codes), weighed)

    def _verify(self) -> None:
        """Refuse a model for which answers after a shared beginning, side by side or alone, are not as likely as whole.

        Each is compared with the model's own forward pass over the whole prompt, with pictures if it sees any. This
        finds mistakes that no written answer shows: in places, masks, positions, padding, branches or what is kept.
        """
        # Long enough to be a branch of its own (`tree.GRAIN`), which both prompts share.
        picture = self.prompts.picture
        common = f"{picture}Question: What is shown in the picture that hangs on the wall beside the door?\nAnswer:"
        ends = ("", f" a red house\n{picture}Question: And what else?\nAnswer:")
        wholes: list[tuple[Any, int]] = []
        prompts = []
        for count, end in enumerate(ends, start=1):
            ids = self.prompts.tokenizer(common + end)["input_ids"]
            answers = []
            for words in (" a red house", " a small white picture"):
                own, slots = self._own_inputs(common + end + words, count)
                whole = self.prompts.tokenizer(common + end + words)["input_ids"]
                answers.append(whole[len(ids) :])
                wholes.append((own, len(answers[-1])))
            prompts.append(self._prompt(ids, slots, answers))
        # with one answer each, attention takes its way without a mask
        alone = [replace(prompt, answers=prompt.answers[:1]) for prompt in prompts]
        read: list[float] = []
        for part in (prompts, alone):
            for reading in self.reader.read(part, 0, self.stops):
                read += reading.logprobs
        for (own, length), ours in zip([*wholes, *wholes[::2]], read, strict=True):
            with torch.inference_mode():
                out = self.loaded.model(**own, use_cache=False)
                logits = out.logits[0].float()
            # The logits at a place are about the token after it.
            logprobs = logits[-length - 1 : -1].log_softmax(-1)  # (length, V)
            targets = own["input_ids"][0, -length:]
            weighed = logprobs.gather(1, targets[:, None])
            found = float(weighed.sum())
            # Rounding adds up over tokens, so a longer answer may be further off.
            if not abs(found - ours) <= max(1.0, length / 4) * self.tolerance:
                raise ScoringError(
                    f"an answer that this model finds {found:.3f} nats likely is weighed at {ours:.3f}, so its kind "
                    f"({type(self.loaded.model).__name__}) is not supported"
                )

    def _own_inputs(self, text: str, pictures: int) -> tuple[dict[str, Any], list[int]]:
        """What the model itself is given for a text with so many pictures, and the pictures' slots."""
        if self.sight is not None:
            return self.sight.probe(text, pictures)
        ids = torch.tensor([self.prompts.tokenizer(text)["input_ids"]])
        return {"input_ids": ids.to(self.language.device)}, []
