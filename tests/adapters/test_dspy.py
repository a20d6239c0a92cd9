"""DSPy: demonstrations for every call, saved with a program, under threads and under optimisers."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from adapted import ASKED, animals, answer_of, by_hand, colour_at, make_bundle, png, rgb, run_page

from leverplus.errors import LeverError
from leverplus.selector.selector import Selector

pytest.importorskip("dspy", reason="dspy is not installed; type `make test-adapters`")

import dspy
from dspy.utils import DummyLM

from leverplus.adapters.dspy import LeverFewShot, WithDemos

pytestmark = pytest.mark.filterwarnings("default")  # the package's own warnings are not ours to mend


class VQA(dspy.Signature):
    """Answer in one word."""

    image: dspy.Image = dspy.InputField()
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


def model(answer: str = "red") -> Any:
    return DummyLM([{"answer": answer, "reasoning": "because"}] * 500)


def texts_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def colours_of(messages: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [colour_at(base64.b64decode(url.partition(",")[2])) for url in urls]


def shown_answers(messages: list[dict[str, Any]]) -> list[str]:
    """The answers of the demonstrations in a prompt, by their turns."""
    said = [texts_of(message) for message in messages if message["role"] == "assistant"]
    return [text.partition("[[ ## answer ## ]]")[2].split()[0] for text in said]


def expected(question: str, shots: int = 2) -> list[str]:
    return [answer_of(name) for name in by_hand(question, shots)]


def test_demonstrations_stand_in_the_prompt_with_their_pictures(selector: Selector) -> None:
    program, lm = LeverFewShot(selector, 2).compile(dspy.Predict(VQA)), model()
    with dspy.context(lm=lm):
        said = program(question=ASKED, image=dspy.Image(png("yellow")))
    messages = lm.history[-1]["messages"]
    assert said.answer == "red"
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert shown_answers(messages) == expected(ASKED)
    assert colours_of(messages) == [*map(rgb, expected(ASKED)), rgb("yellow")]


def test_an_asynchronous_call_shows_the_same(selector: Selector) -> None:
    program, lm = LeverFewShot(selector, 2).compile(dspy.Predict(VQA)), model()
    asked = {"question": ASKED, "image": dspy.Image(png("yellow"))}

    async def call() -> Any:
        return await program.acall(**asked)

    with dspy.context(lm=lm):
        program(**asked)
        asyncio.run(call())
    assert lm.history[0]["messages"] == lm.history[1]["messages"]


def test_threads_of_evaluate_each_see_their_own_demonstrations(text_selector: Selector) -> None:
    program, lm = LeverFewShot(text_selector, 2).compile(dspy.Predict("question -> answer")), model()
    asked = [f"{words} {row['question']}" for words in ("say", "tell", "oh") for row in animals()]
    examples = [dspy.Example(question=question, answer="red").with_inputs("question") for question in asked]
    with dspy.context(lm=lm):
        judge = dspy.Evaluate(devset=examples, metric=lambda a, b, trace=None: a.answer == b.answer, num_threads=4)
        judge(program)
    assert len(lm.history) == len(asked)
    for call in lm.history:
        question = texts_of(call["messages"][-1]).partition("[[ ## question ## ]]")[2].split("\n")[1]
        assert shown_answers(call["messages"]) == expected(question)


def test_a_saved_program_names_its_bundle_and_loads_it(folder: Path, tmp_path: Path) -> None:
    program = LeverFewShot(str(folder), 2).compile(dspy.Predict(VQA))
    program.save(str(tmp_path / "vqa.json"))
    state = json.loads((tmp_path / "vqa.json").read_text())["chosen"]
    assert (state["source"], state["shots"]) == (str(folder), 2)
    other = make_bundle(tmp_path / "other", animals()[:3])
    loaded = LeverFewShot(str(other), 1).compile(dspy.Predict(VQA))
    loaded.load(str(tmp_path / "vqa.json"))
    assert (loaded.chosen.source, loaded.chosen.shots) == (str(folder), 2)
    found = loaded.demos_for({"question": ASKED})
    assert [demo.answer for demo in found] == expected(ASKED)


def test_a_bundle_that_changed_since_is_told_and_one_that_is_gone_is_refused(folder: Path, tmp_path: Path) -> None:
    program = LeverFewShot(str(folder), 2).compile(dspy.Predict("question -> answer"))
    program.save(str(tmp_path / "p.json"))
    program.chosen.selector.delete(["dog"])
    with pytest.warns(UserWarning, match="has changed since this program was saved"):
        program.load(str(tmp_path / "p.json"))
    written = json.loads((tmp_path / "p.json").read_text())
    written["chosen"]["source"] = str(tmp_path / "nowhere")
    (tmp_path / "p.json").write_text(json.dumps(written))
    with pytest.raises(LeverError, match="nowhere"):
        program.load(str(tmp_path / "p.json"))


def test_copies_share_the_selector(selector: Selector) -> None:
    program = LeverFewShot(selector, 2).compile(dspy.ChainOfThought(VQA))
    for copied in (program.deepcopy(), program.reset_copy(), copy.deepcopy(program)):
        assert copied.predict.chosen.selector is selector
        assert copied.predict is not program.predict


def test_every_predictor_of_a_program_gets_its_own_and_others_are_left_alone(text_selector: Selector) -> None:
    class Two(dspy.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = dspy.Predict("question -> answer"), dspy.Predict("question -> answer")
            self.count = dspy.Predict("number: int -> total: int")

        def forward(self, question: str) -> Any:
            self.first(question=question)
            return self.second(question="the fish")

    program, lm = LeverFewShot(text_selector, 2, question="question", answer="answer").compile(Two()), model()
    with dspy.context(lm=lm):
        program(question=ASKED)
    assert [shown_answers(call["messages"]) for call in lm.history] == [expected(ASKED), expected("the fish")]
    assert isinstance(program.first, WithDemos)
    assert isinstance(program.count, dspy.Predict), "it has no such fields"
    one = LeverFewShot(text_selector, 2, predictors=["second"]).compile(Two())
    assert isinstance(one.first, dspy.Predict)
    assert isinstance(one.second, WithDemos)
    with pytest.raises(LeverError, match="no predictor 'third'; it has first, second, count"):
        LeverFewShot(text_selector, predictors=["third"]).compile(Two())
    with pytest.raises(LeverError, match="no predictor has fields"):
        LeverFewShot(text_selector, question="title").compile(dspy.Predict("question -> answer"))


def test_chain_of_thought_shows_a_demonstration_without_reasoning_as_not_supplied(text_selector: Selector) -> None:
    program, lm = LeverFewShot(text_selector, 1).compile(dspy.ChainOfThought("question -> answer")), model()
    with dspy.context(lm=lm):
        program(question=ASKED)
    said = " ".join(texts_of(message) for message in lm.history[-1]["messages"])
    assert "Not supplied for this particular example" in said
    assert shown_answers(lm.history[-1]["messages"]) == ["red"]


def test_a_path_is_no_picture_for_dspy_and_ours_are_data_urls(selector: Selector, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png("red"))
    with pytest.raises(Exception, match=r"a\.png"):
        dspy.Image(str(tmp_path / "a.png"))
    program = LeverFewShot(selector, 1).compile(dspy.Predict(VQA))
    demo = program.demos_for({"question": ASKED, "image": dspy.Image.from_path(str(tmp_path / "a.png"))})[0]
    assert demo.image.url.startswith("data:image/png;base64,")


def test_the_choice_wins_over_bootstrapped_demonstrations_and_a_call_wins_over_both(text_selector: Selector) -> None:
    program, lm = LeverFewShot(text_selector, 2).compile(dspy.Predict("question -> answer")), model()
    trainset = [dspy.Example(question="is it so", answer="red").with_inputs("question")]
    with dspy.context(lm=lm):
        tuned = dspy.BootstrapFewShot(metric=lambda a, b, trace=None: True).compile(program, trainset=trainset)
        tuned(question=ASKED)
        assert shown_answers(lm.history[-1]["messages"]) == expected(ASKED)
        tuned(question=ASKED, demos=[])
    assert len(lm.history[-1]["messages"]) == 2
    assert [name for name, _ in tuned.named_predictors()] == ["predictor"], "optimisers find the predictor inside"


def test_under_an_instruction_optimiser_the_instruction_is_tuned_and_the_choice_stays(text_selector: Selector) -> None:
    program = LeverFewShot(text_selector, 2).compile(dspy.Predict("question -> answer"))
    trainset = [
        dspy.Example(question=f"oh {row['question']}", answer="blue").with_inputs("question") for row in animals()
    ]

    class Knows(DummyLM):  # type: ignore[misc, unused-ignore]
        """Answers right once it is told the instruction that the reflection proposes."""

        def __init__(self) -> None:
            super().__init__([{"answer": "red"}] * 500)

        def forward(self, prompt: Any = None, messages: Any = None, **options: Any) -> Any:
            told = "ALWAYS SAY BLUE" in texts_of(messages[0])
            self.answers = iter([{"answer": "blue" if told else "red"}])
            return super().forward(prompt=prompt, messages=messages, **options)

    def metric(gold: Any, said: Any, trace: Any = None, name: Any = None, inside: Any = None) -> Any:
        return dspy.Prediction(score=float(gold.answer == said.answer), feedback=f"the answer is {gold.answer}")

    def propose(candidate: Any, reflective_dataset: Any, components_to_update: list[str]) -> dict[str, str]:
        return dict.fromkeys(components_to_update, "ALWAYS SAY BLUE")

    lm = Knows()
    with dspy.context(lm=lm):
        gepa = dspy.GEPA(metric=metric, max_metric_calls=30, instruction_proposer=propose, num_threads=1)
        tuned = gepa.compile(program, trainset=trainset, valset=trainset)
        tuned(question=ASKED)
    assert "ALWAYS SAY BLUE" in tuned.predictor.signature.instructions
    assert shown_answers(lm.history[-1]["messages"]) == expected(ASKED)
    assert tuned.chosen.selector is text_selector


def test_a_query_of_the_training_set_is_not_shown_itself_where_that_is_asked(selector: Selector) -> None:
    own = {"question": ASKED, "image": dspy.Image(png("red"))}
    shown = LeverFewShot(selector, 2).compile(dspy.Predict(VQA)).demos_for(own)
    assert "red" in [demo.answer for demo in shown]
    apart = LeverFewShot(selector, 2, leave_out_itself=True).compile(dspy.Predict(VQA)).demos_for(own)
    assert "red" not in [demo.answer for demo in apart]
    assert len(apart) == 2


def test_the_page_runs(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model()
    monkeypatch.setattr(dspy, "LM", lambda *_words, **_options: lm)
    said = run_page("dspy")
    assert said["prediction"].answer == "red"
    assert shown_answers(lm.history[0]["messages"]) == expected(ASKED)
    assert Path("vqa.json").is_file()
