"""The `hf` backend: any language or vision-language model that transformers loads, on a GPU or a CPU."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import numpy as np

from leverplus.backends.base import Reply, Request
from leverplus.backends.hf.beams import Beams
from leverplus.backends.hf.files import find_model
from leverplus.backends.hf.language import Language
from leverplus.backends.hf.load import load_model
from leverplus.backends.hf.reader import PromptReading, Reader, tokens_that_fit
from leverplus.backends.hf.sight import Sight, prompts_for
from leverplus.backends.hf.tree import Codes, Prompt
from leverplus.errors import DataError, ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.tasks.base import SPLITS, Task
from leverplus.types import Item

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2, "float16": 0.05}
"""How far reading in parts may be from the model's own logits, in standard deviations of those logits."""

ROUNDING = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}
"""How far the log-probability of an answer may move with the batch it is read in (nats)."""


class HfBackend:
    """Answers with a model of transformers: written answers, log-probabilities of the exact answer tokens."""

    def __init__(self, task: Task, section: ModelSection) -> None:
        self.task = task
        self.section = section
        self.files = find_model(section)
        self.notice = self.files.notice
        self.loaded = load_model(self.files.folder, section)
        model, processor = self.loaded.model, self.loaded.processor
        self.sight = Sight(task, processor, model, section) if processor is not None else None
        self.language = self.sight.language if self.sight else Language(model)
        self.prompts = prompts_for(self.loaded.tokenizer, processor, section)
        self.longest: int | None = getattr(self.language.config, "max_position_embeddings", None)
        self._require_texts_that_fit()
        beams = Beams(section.beams, section.length_penalty)
        tokens = section.batch_tokens or tokens_that_fit(self.language)
        self.reader = Reader(self.language, batch_tokens=tokens, beams=beams)
        self.stops = self.prompts.stops(self.loaded.model)
        self.tolerance = ROUNDING[self.loaded.dtype]
        self._verify()

    def fingerprint(self) -> Mapping[str, str]:
        section = self.section
        template = section.template if section.prompt == "plain" else str(self.prompts.renderer.chat_template)
        shape = [section.prompt, section.instruction, template]
        how = "greedy"
        if section.beams > 1:
            how = f"{section.beams} beams, length penalty {section.length_penalty:g}"
        found = {
            "model": self.files.name,
            "revision": self.files.digest,
            "template": f"{section.prompt}-{hashlib.sha256(repr(shape).encode()).hexdigest()[:16]}",
            "decoding": f"{how}, at most {section.max_new_tokens} tokens",
            "dtype": self.loaded.dtype,
            "transformers": version("transformers"),
        }
        if self.sight:
            found["images"] = f"pil, at most {section.image_pixels or 'any number of'} pixels"
        return found

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        prompts = self._prompts(requests)
        replies: dict[int, Reply] = {}
        for choose in (False, True):  # where a label is chosen, nothing needs to be written
            places = [place for place, request in enumerate(requests) if request.choose == choose]
            new_tokens = 0 if choose else self.section.max_new_tokens
            readings = self.reader.read([prompts[place] for place in places], new_tokens, self.stops)
            for place, reading in zip(places, readings, strict=True):
                replies[place] = self._reply(requests[place], reading)
        return [replies[place] for place in range(len(requests))]

    def answer_span(self, request: Request, reference: str) -> str:
        """The text of the tokens that are weighed for a reference."""
        return self.prompts.span(request, reference)

    def prompt_text(self, request: Request) -> str:
        """The whole prompt, up to where the answer begins."""
        return self.prompts.text(request)

    def _reply(self, request: Request, reading: PromptReading) -> Reply:
        if request.choose:
            best = reading.logprobs.index(max(reading.logprobs))
            raw = request.references[best]
        else:
            raw = self.prompts.written(reading.written)
        return Reply(raw, reading.logprobs, math.ceil(reading.tokens))

    def _prompts(self, requests: Sequence[Request]) -> list[Prompt]:
        """The prompts of some requests: their texts made into tokens together, their pictures decoded together."""
        shown = [[item for item in (*request.demos, request.query) if item.image is not None] for request in requests]
        if self.sight is not None:
            self.sight.prepare(item for items in shown for item in items)
        texts = [self.prompts.text(request) for request in requests]
        prompts = []
        for request, text, ids, items in zip(requests, texts, self.prompts.tokens_of(texts), shown, strict=True):
            prompts.append(self._prompt(request, text, np.array(ids, dtype=np.int64), items))
        return prompts

    def _prompt(self, request: Request, text: str, ids: Codes, shown: Sequence[Item]) -> Prompt:
        """The prompt of a request; `ids` (tokens of its text,) have one token for each of the pictures `shown`."""
        if request.choose and not request.references:
            raise ScoringError(f"query {request.query.id} has no labels to choose from")
        codes, positions = self._codes(ids, shown)  # (L,), (P, L)
        if self.longest is not None and int(positions.max()) >= self.longest:
            largest = max((*request.demos, request.query), key=lambda item: len(item.question))
            raise ScoringError(
                f"query {request.query.id} with {len(request.demos)} demonstrations takes {int(positions.max()) + 1:,} "
                f"tokens, and the model has room for {self.longest:,}; its longest text is item {largest.id}: shorten "
                "the longest texts of the data or leave them out, or show fewer (eval.shots, score.dev_shots)"
            )
        answers = tuple(self.prompts.answer(text, reference) for reference in request.references)
        return Prompt(codes, positions, answers)

    def _codes(self, ids: Codes, shown: Sequence[Item]) -> tuple[Codes, Codes]:
        """A prompt's codes (L,) and rotary positions (P, L); `shown` are the items with pictures, in their order."""
        if self.sight is None:
            if shown:
                raise ScoringError(
                    f"item {shown[0].id} has a picture, but {self.files.name} is a language model; "
                    "use a vision-language model, or a task whose questions carry captions"
                )
            return ids, np.arange(len(ids), dtype=np.int64)[None]
        codes = self.sight.pictures.codes(ids, [self.sight.slot(item) for item in shown])
        return codes, self.sight.pictures.positions(codes)

    def _require_texts_that_fit(self) -> None:
        """Refuse items whose text alone is too long for the model, before anything is asked."""
        if self.longest is None:
            return
        too_long: list[tuple[Item, int]] = []
        for split in SPLITS:
            for item in self.task.items(split):
                # A token has a byte at least, so that most texts need not be made into tokens.
                if len(item.question.encode(errors="replace")) > self.longest // 2:
                    ids = self.prompts.tokens_of([self.prompts.text(Request(item, (), ()))])[0]
                    if len(ids) >= self.longest:
                        too_long.append((item, len(ids)))
        if too_long:
            (item, tokens), places = too_long[0], getattr(self.task, "places", {})
            count = "1 text is" if len(too_long) == 1 else f"{len(too_long):,} texts are"
            raise DataError(
                f"{count} too long for this model: {places.get(item.id, f'item {item.id}')} takes {tokens:,} tokens, "
                f"and the model has room for {self.longest:,}; shorten such texts in task.file or leave them out"
            )

    def require_room(self, shots: int) -> str:
        """Refuse prompts that cannot fit before anything is asked: so many texts of middling length are too long.

        Returns a note where only the longest texts together would be ("": everything fits). Pictures count as one
        token here, so that what is refused does not fit in any case.
        """
        if self.longest is None:
            return ""
        demos = sorted(self.task.items("train"), key=_text_length)
        queries = sorted((item for split in ("dev", "test") for item in self.task.items(split)), key=_text_length)
        if not demos or not queries:
            return ""
        first = max(0, (len(demos) - shots) // 2)
        middling = self._tokens(queries[len(queries) // 2], demos[first : first + shots])
        if middling >= self.longest:
            raise DataError(
                f"a prompt with {shots} demonstrations of typical length takes {middling:,} tokens, and the model has "
                f"room for {self.longest:,}; show fewer (`lever fit --shots`; eval.shots and score.dev_shots in a "
                "recipe) or shorten the texts"
            )
        most = self._tokens(queries[-1], demos[-shots:])
        if most < self.longest:
            return ""
        return (
            f"note: {shots} demonstrations fit into the model's {self.longest:,} tokens as a rule, but the longest "
            f"texts together take {most:,}; where such a prompt is met, scoring stops and says which text to shorten"
        )

    def _tokens(self, query: Item, demos: Sequence[Item]) -> int:
        return len(self.prompts.tokens_of([self.prompts.text(Request(query, tuple(demos), ()))])[0])

    def _verify(self) -> None:
        """Refuse a model for which reading in parts does not give its own logits, with pictures if it sees any."""
        import torch

        tolerance = TOLERANCE[self.loaded.dtype]
        if self.sight is None:
            ids = np.array(self.prompts.tokens("Question: What is this?\nAnswer:"), dtype=np.int64)
            inputs = torch.from_numpy(ids)[None].to(self.language.device)
            self.language.verify(ids, np.arange(len(ids), dtype=np.int64)[None], tolerance, input_ids=inputs)
            self._verify_weighing()
            return
        text = f"{self.prompts.picture}What is this?{self.prompts.picture}And this?"
        own, slots = self.sight.probe(text)
        ids = np.array(self.prompts.tokenizer(text)["input_ids"], dtype=np.int64)
        codes = self.sight.pictures.codes(ids, slots)
        self.language.verify(codes, self.sight.pictures.positions(codes), tolerance, **own)

    def _verify_weighing(self) -> None:
        """Refuse a model for which answers weighed side by side, after a shared beginning, are not as likely as alone.

        This finds mistakes that no written answer shows: in places, masks, positions, padding or branches.
        """
        import torch

        # Long enough to be a branch of its own (`tree.GRAIN`), which both prompts share.
        common = "Question: What is shown in the picture that hangs on the wall beside the old wooden door?\nAnswer:"
        prompts, wholes = [], []
        for end in ("", " a red house\nQuestion: And what else?\nAnswer:"):
            ids = np.array(self.prompts.tokens(common + end), dtype=np.int64)
            answers = tuple(self.prompts.answer(common + end, words) for words in ("red", "a small white house"))
            prompts.append(Prompt(ids, np.arange(len(ids), dtype=np.int64)[None], answers))
            wholes += [(ids.tolist(), answer) for answer in answers]
        read: list[float] = []
        for reading in self.reader.read(prompts, 0, self.stops):
            read += reading.logprobs
        for (ids_before, answer), ours in zip(wholes, read, strict=True):
            whole = torch.tensor([[*ids_before, *answer]], device=self.language.device)  # (1, L + A)
            with torch.inference_mode():
                logits = self.loaded.model(input_ids=whole, use_cache=False).logits[0].float()  # (L + A, V)
            logprobs = logits.log_softmax(-1)
            # The logits at a place are about the token after it.
            places = range(len(ids_before) - 1, len(ids_before) + len(answer) - 1)
            own = sum(float(logprobs[place, token]) for place, token in zip(places, answer, strict=True))
            # Rounding adds up over tokens, so a longer answer may be further off.
            if not abs(own - ours) <= max(1.0, len(answer) / 4) * self.tolerance:
                raise ScoringError(
                    f"an answer that this model finds {own:.3f} nats likely is weighed at {ours:.3f}, so its kind "
                    f"({type(self.loaded.model).__name__}) is not supported"
                )


def _text_length(item: Item) -> int:
    return len(item.question)
