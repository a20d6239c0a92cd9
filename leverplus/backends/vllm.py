"""The `vllm` backend: the frozen model inside vLLM, in this process, with its prefix cache.

Written against the interface of vLLM 0.32. Prompts are tokens that we write ourselves, as for `hf`. A given answer is
weighed in one of two ways: by replay, where the engine is made to write exactly the tokens of the answer behind a
prompt that it may have in its cache; or, where a version or a machine cannot do that, as the end of the prompt
(`prompt_logprobs`), for which vLLM reads the whole prompt again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from leverplus.backends.base import Reply, Request
from leverplus.backends.hf.backend import ROUNDING
from leverplus.backends.hf.files import find_model, first_line
from leverplus.backends.hf.load import load_words, pick_device
from leverplus.backends.hf.sight import prompts_for, shrink
from leverplus.errors import DataError, LeverError, ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.tasks.base import Task
from leverplus.types import Item

MOST_PICTURES = 17
"""Pictures of the longest prompt: sixteen demonstrations and the query. vLLM keeps memory free for so many."""

REPLAY = "trace_decode_token_ids"


@dataclass(frozen=True)
class PromptJob:
    """One prompt for the engine: what is sent, how, and which request and reference it is for.

    `answer` holds the tokens to weigh; it is empty where the model shall write, and `reference` is None there.
    """

    prompt: dict[str, Any]
    params: Any
    place: int
    reference: int | None
    answer: tuple[int, ...] = ()


class VllmBackend:
    """Answers with a model in vLLM: written answers, log-probabilities of the exact answer tokens."""

    def __init__(self, task: Task, section: ModelSection) -> None:
        if find_spec("vllm") is None:
            raise LeverError(
                'score.backend = "vllm" needs vLLM in this process; type `pip install vllm` on a machine with a GPU, '
                'or start a vLLM server and use score.backend = "openai" with its address'
            )
        if section.beams > 1:
            raise LeverError('model.beams: score.backend = "vllm" writes greedily; use "hf" for beams')
        import vllm

        self.vllm: Any = vllm
        self.task = task
        self.section = section
        self.files = find_model(section)
        self.notice = self.files.notice
        self.tokenizer, self.processor = load_words(self.files.folder)
        self.prompts = prompts_for(self.tokenizer, self.processor, section)
        device = pick_device(section.device)
        self.dtype = section.dtype
        if self.dtype == "auto":
            self.dtype = "bfloat16" if device == "cuda" else "float32"
        self.tolerance = ROUNDING[self.dtype]
        # The engine runs a replay on a GPU only; older versions do not know it.
        self.replays = device == "cuda" and REPLAY in known_settings(vllm.SamplingParams)
        self.engine = self._open_engine()
        self.stops = sorted(self.prompts.stops(_GenerationSettings(self.files.folder)))

    def _open_engine(self) -> Any:
        settings: dict[str, Any] = {
            "dtype": self.dtype,
            "enable_prefix_caching": True,
            "seed": 0,
            "trust_remote_code": False,
        }
        if self.replays:
            settings["enable_trace_replay"] = True
        if self.processor is not None:
            settings["limit_mm_per_prompt"] = {"image": self._picture_limit()}
        try:
            return self.vllm.LLM(str(self.files.folder), **settings)
        except (ValueError, RuntimeError, OSError) as error:
            raise LeverError(
                f"vLLM cannot load {self.files.name} ({first_line(error)}); is there enough free memory on the GPU, "
                "and does this version know the model?"
            ) from error

    def _picture_limit(self) -> dict[str, int]:
        """How many pictures a prompt may show; their size too where it is bounded, which saves memory."""
        limit = {"count": MOST_PICTURES}
        if self.section.image_pixels:
            side = math.isqrt(self.section.image_pixels)
            limit |= {"width": side, "height": side}
        return limit

    def fingerprint(self) -> Mapping[str, str]:
        section = self.section
        template = section.template if section.prompt == "plain" else str(self.prompts.renderer.chat_template)
        shape = [section.prompt, section.instruction, template]
        found = {
            "model": self.files.name,
            "revision": self.files.digest,
            "template": f"{section.prompt}-{hashlib.sha256(repr(shape).encode()).hexdigest()[:16]}",
            "decoding": f"greedy, at most {section.max_new_tokens} tokens",
            "dtype": self.dtype,
            "vllm": str(self.vllm.__version__),
        }
        if self.processor is not None:
            found["images"] = f"pil, at most {section.image_pixels or 'any number of'} pixels"
        return found

    def answer_span(self, request: Request, reference: str) -> str:
        """The text of the tokens that are weighed for a reference."""
        return self.prompts.span(request, reference)

    def prompt_text(self, request: Request) -> str:
        """The whole prompt, up to where the answer begins."""
        return self.prompts.text(request)

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        # All jobs go to the engine in one call: it batches them as its memory allows. The jobs of one request stand
        # together, so that the second finds the prompt of the first in the prefix cache.
        jobs: list[PromptJob] = []
        for place, request in enumerate(requests):
            jobs += self._jobs(place, request)
        try:
            outputs = self.engine.generate([job.prompt for job in jobs], [job.params for job in jobs], use_tqdm=False)
        except ValueError as error:  # a prompt longer than the model reads, or with too many pictures
            raise ScoringError(f"vLLM refuses a prompt: {first_line(error)}") from error
        found: list[list[tuple[PromptJob, Any]]] = [[] for _ in requests]
        for job, output in zip(jobs, outputs, strict=True):
            found[job.place].append((job, output))
        return [self._reply(request, own) for request, own in zip(requests, found, strict=True)]

    def _jobs(self, place: int, request: Request) -> list[PromptJob]:
        if request.choose and not request.references:
            raise ScoringError(f"query {request.query.id} has no labels to choose from")
        text = self.prompts.text(request)
        ids = self.prompts.tokens(text)
        shown = [item for item in (*request.demos, request.query) if item.image is not None]
        pictures = self._pictures(shown)
        jobs = []
        if not request.choose:
            params = self._params(max_tokens=self.section.max_new_tokens, stop_token_ids=self.stops)
            jobs.append(PromptJob(self._prompt(ids, pictures), params, place, None))
        for number, reference in enumerate(request.references):
            answer = self.prompts.answer(text, reference)
            if self.replays:
                prompt = self._prompt(ids, pictures)
                params = self._params(
                    max_tokens=len(answer), logprobs=0, flat_logprobs=True, ignore_eos=True, **{REPLAY: list(answer)}
                )
            else:
                prompt = self._prompt([*ids, *answer], pictures)
                params = self._params(max_tokens=1, prompt_logprobs=0)
            jobs.append(PromptJob(prompt, params, place, number, answer))
        return jobs

    def _params(self, **settings: Any) -> Any:
        """Greedy; tokens come back and are decoded here, as the `hf` backend decodes them."""
        return self.vllm.SamplingParams(temperature=0.0, detokenize=False, **settings)

    def _prompt(self, ids: Sequence[int], pictures: Mapping[str, Any]) -> dict[str, Any]:
        return {"prompt_token_ids": list(ids), **pictures}

    def _pictures(self, shown: Sequence[Item]) -> dict[str, Any]:
        """The pictures of a prompt, each with the digest of its pixels: vLLM computes each digest once."""
        if not shown:
            return {}
        if self.processor is None:
            raise ScoringError(
                f"item {shown[0].id} has a picture, but {self.files.name} is a language model; "
                "use a vision-language model, or a task whose questions carry captions"
            )
        pictures, digests = [], []
        for item in shown:
            picture = self.task.image(item)
            if picture is None:
                raise DataError(f"item {item.id} names a picture that its task does not show")
            pictures.append(shrink(picture.convert("RGB"), self.section.image_pixels))
            digests.append(f"{self.task.image_digest(item)}-{self.section.image_pixels}")
        return {"multi_modal_data": {"image": pictures}, "multi_modal_uuids": {"image": digests}}

    def _reply(self, request: Request, outputs: Sequence[tuple[PromptJob, Any]]) -> Reply:
        logprobs = [0.0] * len(request.references)
        raw, tokens = "", 0
        for job, output in outputs:
            written = output.outputs[0].token_ids
            tokens += len(output.prompt_token_ids) - (output.num_cached_tokens or 0) + len(written)
            if job.reference is None:
                raw = self.prompts.written(self._before_stop(written))
            else:
                logprobs[job.reference] = self._weigh(job, output)
        if request.choose:
            raw = request.references[logprobs.index(max(logprobs))]
        return Reply(raw, tuple(logprobs), tokens)

    def _before_stop(self, written: Sequence[int]) -> list[int]:
        """The written tokens up to the one that ended the answer, which vLLM hands over as well."""
        kept: list[int] = []
        for token in written:
            if token in self.stops:
                break
            kept.append(token)
        return kept

    def _weigh(self, job: PromptJob, output: Any) -> float:
        """The log-probability of the answer's tokens: the last entries of the prompt, or all that were written."""
        entries = output.outputs[0].logprobs if self.replays else output.prompt_logprobs
        if entries is None or len(entries) < len(job.answer):
            raise ScoringError(f"vLLM {self.vllm.__version__} gave no log-probabilities of a given answer")
        first = len(entries) - len(job.answer)
        total = 0.0
        for place, token in enumerate(job.answer, start=first):
            if token not in entries[place]:
                raise ScoringError(f"vLLM {self.vllm.__version__} weighed another token than the answer's")
            total += entries[place][token].logprob
        return total


class _GenerationSettings:
    """What a model's folder says about how its answers end, in the place where a loaded model would hold it."""

    def __init__(self, folder: Path) -> None:
        from transformers import GenerationConfig

        named = (folder / "generation_config.json").is_file()
        self.generation_config = GenerationConfig.from_pretrained(folder) if named else None


def known_settings(kind: Any) -> tuple[str, ...]:
    """The settings that a class of vLLM takes: its parameters are structures that name their fields."""
    return tuple(getattr(kind, "__struct_fields__", ()) or getattr(kind, "__annotations__", ()))
