"""DSPy: demonstrations for every call, saved with a program, under threads and under optimisers."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from adapted import (
    ASKED,
    TURN_ROLES,
    animals,
    answer_of,
    by_hand,
    colour_at,
    make_bundle,
    png,
    rgb,
    run_page,
)

from leverplus.bundle.selector import Selector
from leverplus.errors import LeverError

pytest.importorskip("dspy", reason="dspy is not installed; type `make test-adapters`")

import dspy
from dspy.utils import DummyLM

from leverplus.adapters.dspy import LeverFewShot, WithDemos

# the package's own warnings are not ours to mend
pytestmark = pytest.mark.filterwarnings("default")

PLAIN = "question -> answer"


class VQA(dspy.Signature):
    """Answer in one word."""

    image: dspy.Image = dspy.InputField()
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


def model(answer: str = "red") -> Any:
    return DummyLM([{"answer": answer, "reasoning": "because"}] * 500)


def compiled(source: Any, signature: Any, shots: int = 2, **options: Any) -> Any:
    return LeverFewShot(source, shots, **options).compile(dspy.Predict(signature))


def texts_of(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content)


def shown_answers(messages: list[dict[str, Any]]) -> list[str]:
    """The answers of the demonstrations in a prompt, by their turns."""
    said = [texts_of(message) for message in messages if message["role"] == "assistant"]
    return [text.partition("[[ ## answer ## ]]")[2].split()[0] for text in said]


def expected(question: str, shots: int = 2) -> list[str]:
    return [answer_of(name) for name in by_hand(question, shots)]


def test_demonstrations_stand_in_the_prompt_with_their_pictures_sync_and_async(
    selector: Selector,
) -> None:
    program, lm = compiled(selector, VQA), model()
    asked = {"question": ASKED, "image": dspy.Image(png("yellow"))}

    async def call() -> Any:
        return await program.acall(**asked)

    with dspy.context(lm=lm):
        assert program(**asked).answer == "red"
        asyncio.run(call())
    first, again = [call["messages"] for call in lm.history]
    assert first == again
    assert [message["role"] for message in first] == ["system", *TURN_ROLES]
    assert shown_answers(first) == expected(ASKED)
    colours = []
    for message in first[1::2]:
        for part in message["content"]:
            if part["type"] == "image_url":
                content = part["image_url"]["url"].partition(",")[2]
                colours.append(colour_at(base64.b64decode(content)))
    assert colours == [*map(rgb, expected(ASKED)), rgb("yellow")]


def test_threads_of_evaluate_each_see_their_own_demonstrations(
    text_selector: Selector,
) -> None:
    program, lm = compiled(text_selector, PLAIN), model()
    asked = [f"{word} {row['question']}" for word in ("say", "oh") for row in animals()]
    examples = []
    for question in asked:
        own = dspy.Example(question=question, answer="red")
        examples.append(own.with_inputs("question"))
    with dspy.context(lm=lm):
        judge = dspy.Evaluate(
            devset=examples,
            metric=lambda a, b, trace=None: a.answer == b.answer,
            num_threads=4,
        )
        judge(program)
    assert len(lm.history) == len(asked)
    for call in lm.history:
        last = texts_of(call["messages"][-1])
        question = last.partition("[[ ## question ## ]]")[2].split("\n")[1]
        assert shown_answers(call["messages"]) == expected(question)


def test_a_saved_program_names_its_bundle_and_loads_it(
    folder: Path, tmp_path: Path
) -> None:
    program, kept = compiled(str(folder), VQA), tmp_path / "vqa.json"
    program.save(str(kept))
    written = json.loads(kept.read_text())
    assert (written["chosen"]["source"], written["chosen"]["shots"]) == (str(folder), 2)
    loaded = compiled(make_bundle(tmp_path / "other", animals()[:3]), VQA, 1)
    loaded.load(str(kept))
    assert (loaded.chosen.source, loaded.chosen.shots) == (str(folder), 2)
    found = loaded.demos_for({"question": ASKED})
    assert [demo.answer for demo in found] == expected(ASKED)
    program.chosen.selector.delete(["dog"])
    with pytest.warns(UserWarning, match="has changed since this program was saved"):
        program.load(str(kept))
    written["chosen"]["source"] = str(tmp_path / "nowhere")
    kept.write_text(json.dumps(written))
    with pytest.raises(LeverError, match="nowhere"):
        program.load(str(kept))


def test_copies_share_the_selector(selector: Selector) -> None:
    program = LeverFewShot(selector, 2).compile(dspy.ChainOfThought(VQA))
    for copied in (program.deepcopy(), program.reset_copy(), copy.deepcopy(program)):
        assert copied.predict.chosen.selector is selector
        assert copied.predict is not program.predict


def test_every_predictor_of_a_program_gets_its_own_and_others_are_left_alone(
    text_selector: Selector,
) -> None:
    class Two(dspy.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = dspy.Predict(PLAIN), dspy.Predict(PLAIN)
            self.count = dspy.Predict("number: int -> total: int")

        def forward(self, question: str) -> Any:
            self.first(question=question)
            return self.second(question="the fish")

    named = {"question": "question", "answer": "answer"}
    program, lm = LeverFewShot(text_selector, 2, **named).compile(Two()), model()
    with dspy.context(lm=lm):
        program(question=ASKED)
    shown = [shown_answers(call["messages"]) for call in lm.history]
    assert shown == [expected(ASKED), expected("the fish")]
    assert isinstance(program.first, WithDemos)
    assert isinstance(program.count, dspy.Predict), "it has no such fields"
    one = LeverFewShot(text_selector, 2, predictors=["second"]).compile(Two())
    assert isinstance(one.first, dspy.Predict)
    assert isinstance(one.second, WithDemos)
    with pytest.raises(LeverError, match="no predictor 'third'; it has first, second"):
        LeverFewShot(text_selector, predictors=["third"]).compile(Two())
    with pytest.raises(LeverError, match="has fields for a question"):
        compiled(text_selector, PLAIN, question="title")


def test_the_choice_wins_over_bootstrapped_demonstrations_and_a_call_wins_over_both(
    text_selector: Selector,
) -> None:
    program, lm = compiled(text_selector, PLAIN), model()
    trainset = [dspy.Example(question="is it so", answer="red").with_inputs("question")]
    with dspy.context(lm=lm):
        tuned = dspy.BootstrapFewShot(metric=lambda a, b, trace=None: True).compile(
            program, trainset=trainset
        )
        tuned(question=ASKED)
        assert shown_answers(lm.history[-1]["messages"]) == expected(ASKED)
        tuned(question=ASKED, demos=[])
    assert len(lm.history[-1]["messages"]) == 2
    inside = [name for name, _ in tuned.named_predictors()]
    assert inside == ["predictor"], "optimisers find the predictor inside"


def test_a_query_of_the_training_set_is_not_shown_itself_where_that_is_asked(
    selector: Selector,
) -> None:
    own = {"question": ASKED, "image": dspy.Image(png("red"))}
    for apart in (False, True):
        program = compiled(selector, VQA, leave_out_itself=apart)
        shown = [demo.answer for demo in program.demos_for(own)]
        assert (len(shown), "red" in shown) == (2, not apart)


def test_the_page_runs(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model()
    monkeypatch.setattr(dspy, "LM", lambda *_words, **_options: lm)
    assert run_page("dspy")["prediction"].answer == "red"
    assert shown_answers(lm.history[0]["messages"]) == expected(ASKED)
    assert Path("vqa.json").is_file()


class Read(dspy.Signature):
    """Read a note."""

    context: str = dspy.InputField()
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()
    confidence: float = dspy.OutputField()


def shown_by(source: Any, signature: Any, **inputs: Any) -> list[Any]:
    return [demo.toDict() for demo in compiled(source, signature, 1).demos_for(inputs)]


def test_several_inputs_and_outputs_go_by_their_names_and_types(tmp_path: Path) -> None:
    rows = []
    for place, name in enumerate(("dog", "cat", "horse")):
        fields = {"context": f"the {name} is here", "question": f"where is the {name}"}
        answer = json.dumps({"answer": f"place {place}", "confidence": place / 2})
        rows.append({"id": name, "fields": fields, "answer": answer})
    folder = make_bundle(tmp_path / "notes", rows)
    asked = rows[1]["fields"]
    (demo,) = shown_by(folder, Read, **asked)
    assert demo == {**asked, "answer": "place 1", "confidence": 0.5}


def test_what_a_bundle_has_nothing_for_is_left_out_and_said(text_folder: Path) -> None:
    """The question lands in `question` and the answer in `answer`, wherever they stand in the signature."""
    with pytest.warns(UserWarning, match="nothing for confidence, context"):
        (demo,) = shown_by(text_folder, Read, context="a farm", question=ASKED)
    assert demo == {"question": ASKED, "answer": "red"}
    with pytest.raises(LeverError, match="name the one that holds the question"):
        shown_by(text_folder, "story, hint -> answer", story="a farm", hint="dog")
    with pytest.warns(UserWarning, match="name the one it is with answer="):
        assert shown_by(text_folder, "question -> colour, shade", question=ASKED) == []


def test_answers_take_the_type_of_their_field_and_others_are_not_shown(
    tmp_path: Path,
) -> None:
    rows = []
    for name, text in (("dog", "true"), ("cat", "bear"), ("horse", '["a", "b"]')):
        rows.append({"id": name, "question": f"is the {name} here", "answer": text})
    folder = make_bundle(tmp_path / "kinds", rows)

    def answer(name: str, kind: str) -> list[Any]:
        asked = {"question": f"is the {name} here"}
        found = shown_by(folder, f"question -> answer: {kind}", **asked)
        return [demo["answer"] for demo in found]

    assert answer("dog", "bool") == [True]
    assert answer("horse", "list[str]") == [["a", "b"]]
    with pytest.warns(UserWarning, match="'bear', which is no bool"):
        assert answer("cat", "bool") == []
