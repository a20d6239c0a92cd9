"""The `vllm` backend: the frozen model inside vLLM, in this process, with its prefix cache.

Written against the interface of vLLM 0.32. Prompts are tokens that we write ourselves, as for `hf`. A given answer is
weighed as the end of its prompt (`prompt_logprobs`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from leverplus.data.tasks.base import Task
from leverplus.data.types import Item
from leverplus.errors import LeverError, ScoringError, first_line
from leverplus.models.base import Reply, Request
from leverplus.models.hf.backend import ROUNDING, OwnModel
from leverplus.models.hf.load import load_words, pick_device
from leverplus.models.hf.prompts import ModelPrompts
from leverplus.models.prompts import shown_picture
from leverplus.models.settings import ModelSection

MOST_PICTURES = 17
"""Pictures of the longest prompt: sixteen demonstrations and the query. vLLM keeps memory free for so many."""


@dataclass(frozen=True)
class PromptJob:
    """One prompt for the engine: what is sent, how, and the tokens to weigh; none where the model shall write."""

    prompt: dict[str, Any]
    params: Any
    answer: tuple[int, ...] = ()


class VllmBackend(OwnModel):
    """Answers with a model in vLLM: written answers, log-probabilities of the exact answer tokens."""

    def __init__(self, task: Task, section: ModelSection) -> None:
        if find_spec("vllm") is None:
            raise LeverError(
                'score.backend = "vllm" needs vLLM in this process; type `pip install vllm` on a machine with a GPU, '
                'or start a vLLM server and use score.backend = "openai" with its address'
            )
        if section.beams > 1:
            raise LeverError(
                'model.beams: score.backend = "vllm" writes greedily; use "hf" for beams'
            )
        import vllm
        from transformers import GenerationConfig

        self.vllm: Any = vllm
        self.library = ("vllm", str(vllm.__version__))
        super().__init__(task, section)
        folder = self.files.folder
        tokenizer, self.processor = load_words(folder)
        self.prompts = ModelPrompts(tokenizer, section, self.processor)
        _, self.dtype = pick_device(section)
        self.tolerance = ROUNDING[self.dtype]
        self.engine = self._open_engine()
        ends = None
        if (folder / "generation_config.json").is_file():
            ends = GenerationConfig.from_pretrained(folder)
        self.stops = sorted(self.prompts.stops(ends))

    def _open_engine(self) -> Any:
        settings: dict[str, Any] = {
            "dtype": self.dtype,
            "enable_prefix_caching": True,
            "seed": 0,
            "trust_remote_code": False,
        }
        if self.processor is not None:
            limit = {"count": MOST_PICTURES}
            if self.section.image_pixels:  # bounded pictures save memory
                side = math.isqrt(self.section.image_pixels)
                limit |= {"width": side, "height": side}
            settings["limit_mm_per_prompt"] = {"image": limit}
        try:
            return self.vllm.LLM(str(self.files.folder), **settings)
        except (ValueError, RuntimeError, OSError) as error:
            raise LeverError(
                f"vLLM cannot load {self.files.name} ({first_line(error)}); is there enough free memory on the GPU, "
                "and does this version know the model?"
            ) from error

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        # All jobs go to the engine in one call: it batches them as its memory allows. The jobs of one request stand
        # together, so that the second finds the prompt of the first in the prefix cache.
        jobs = [self._jobs(request) for request in requests]
        flat = [job for own in jobs for job in own]
        try:
            outputs = iter(
                self.engine.generate(
                    [job.prompt for job in flat],
                    [job.params for job in flat],
                    use_tqdm=False,
                )
            )
        # a prompt longer than the model reads, or with too many pictures
        except ValueError as error:
            raise ScoringError(f"vLLM refuses a prompt: {first_line(error)}") from error
        replies = []
        for request, own in zip(requests, jobs, strict=True):
            asked = [(job, next(outputs)) for job in own]
            replies.append(self._reply(request, asked))
        return replies

    def _jobs(self, request: Request) -> list[PromptJob]:
        pictures = self._pictures(self.shown(request))
        text = self.prompts.text(request)
        ids = self.prompts.tokens(text)
        # Greedy; tokens come back and are decoded here, as the `hf` backend decodes them.
        greedy = {"temperature": 0.0, "detokenize": False}
        jobs = []
        if not request.choose:
            most = self.section.max_new_tokens
            params = self.vllm.SamplingParams(
                max_tokens=most, stop_token_ids=self.stops, **greedy
            )
            jobs.append(PromptJob({"prompt_token_ids": ids, **pictures}, params))
        for reference in request.references:
            answer = self.prompts.answer(text, reference)
            params = self.vllm.SamplingParams(max_tokens=1, prompt_logprobs=0, **greedy)
            prompt = {"prompt_token_ids": [*ids, *answer], **pictures}
            jobs.append(PromptJob(prompt, params, answer))
        return jobs

    def _pictures(self, shown: Sequence[Item]) -> dict[str, Any]:
        """The pictures of a prompt, each with the digest of its pixels: vLLM computes each digest once."""
        if not shown:
            return {}
        pictures = []
        digests = []
        for item in shown:
            pixels = self.section.image_pixels
            pictures.append(shown_picture(self.task, item, pixels))
            digests.append(f"{self.task.image_digest(item)}-{pixels}")
        return {
            "multi_modal_data": {"image": pictures},
            "multi_modal_uuids": {"image": digests},
        }

    def _reply(
        self, request: Request, outputs: Sequence[tuple[PromptJob, Any]]
    ) -> Reply:
        logprobs: list[float] = []
        raw = ""
        tokens = 0
        for job, output in outputs:
            written = list(output.outputs[0].token_ids)
            read = len(output.prompt_token_ids) - (output.num_cached_tokens or 0)
            tokens += read + len(written)
            if job.answer:
                logprobs.append(self._weigh(job.answer, output.prompt_logprobs))
                continue
            # the token that ended the answer is handed over as well
            for place, token in enumerate(written):
                if token in self.stops:
                    written = written[:place]
                    break
            raw = self.prompts.written(written)
        if request.choose:
            raw = request.references[logprobs.index(max(logprobs))]
        return Reply(raw, tuple(logprobs), tokens)

    def _weigh(self, answer: Sequence[int], entries: Any) -> float:
        """The log-probability of the answer's tokens, which are the last of the prompt."""
        last = (entries or [])[-len(answer) :]
        if len(last) < len(answer):
            raise ScoringError(
                f"vLLM {self.vllm.__version__} gave no log-probabilities of a given answer"
            )
        total = 0.0
        for entry, token in zip(last, answer, strict=True):
            if token not in entry:
                raise ScoringError(
                    f"vLLM {self.vllm.__version__} weighed another token than the answer's"
                )
            total += entry[token].logprob
        return total
