"""Inspect AI: the solver by its entry point, in real evaluations with a model of our own."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from adapted import ASKED, answer_of, by_hand, colour_at, png, rgb, run_page

pytest.importorskip("inspect_ai", reason="inspect-ai is not installed; type `make test-adapters`")

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageUser,
    ContentImage,
    ContentText,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    get_model,
    modelapi,
)
from inspect_ai.scorer import match
from inspect_ai.solver import SolverSpec, generate

from leverplus.adapters.inspect import lever_demos

pytestmark = pytest.mark.filterwarnings("default")  # the package's own warnings are not ours to mend

ASKED_OF_MODEL: list[list[Any]] = []


@modelapi(name="recorder")
def recorder() -> Any:
    """A model that says "red"; `mockllm` would fetch a table of tokens to count with."""

    class Recorder(ModelAPI):  # type: ignore[misc, unused-ignore]
        async def generate(self, input: Any, tools: Any, tool_choice: Any, config: GenerateConfig) -> ModelOutput:
            ASKED_OF_MODEL.append(list(input))
            return ModelOutput.from_content(self.model_name, "red")

        async def count_tokens(self, input: Any, *more: Any, **options: Any) -> int:
            return 1

    return Recorder


def ask(tmp_path: Path, solver: Any, sample: Sample) -> Any:
    ASKED_OF_MODEL.clear()
    task = Task(dataset=[sample], solver=[solver, generate()] if callable(solver) else generate(), scorer=match())
    options = {} if callable(solver) else {"solver": solver}
    logs = evaluate(task, model=get_model("recorder/one"), log_dir=str(tmp_path / "logs"), display="none", **options)
    assert logs[0].status == "success", logs[0].error
    return logs[0]


def pictured(colour: str = "yellow") -> Sample:
    url = "data:image/png;base64," + base64.b64encode(png(colour)).decode()
    content = [ContentImage(image=url), ContentText(text=ASKED)]
    return Sample(input=[ChatMessageUser(content=content)], target="red")


def test_the_model_sees_turns_with_pictures_and_the_log_names_them(folder: Path, tmp_path: Path) -> None:
    log = ask(tmp_path, lever_demos(bundle=str(folder), shots=2), pictured())
    turns = ASKED_OF_MODEL[0]
    assert [turn.role for turn in turns] == ["user", "assistant", "user", "assistant", "user"]
    chosen = [answer_of(name) for name in by_hand(ASKED, 2)]
    assert [turn.text for turn in turns if turn.role == "assistant"] == chosen
    urls = [turn.content[0].image for turn in turns if turn.role == "user"]
    assert [colour_at(base64.b64decode(url.partition(",")[2])) for url in urls] == [*map(rgb, chosen), rgb("yellow")]
    assert log.samples[0].metadata["demonstrations"] == by_hand(ASKED, 2)


def test_a_question_without_a_picture_works(folder: Path, tmp_path: Path) -> None:
    log = ask(tmp_path, lever_demos(bundle=str(folder)), Sample(input="the fish", target="red"))
    assert log.samples[0].metadata["demonstrations"] == by_hand("the fish", 2)
    assert ASKED_OF_MODEL[0][-1].text == "the fish"


def test_a_sample_that_the_bundle_holds_is_not_shown_itself(folder: Path, tmp_path: Path) -> None:
    log = ask(tmp_path, lever_demos(bundle=str(folder), shots=3), pictured("red"))
    assert "dog" not in log.samples[0].metadata["demonstrations"]
    log = ask(tmp_path, lever_demos(bundle=str(folder), shots=3, leave_out_itself=False), pictured("red"))
    assert log.samples[0].metadata["demonstrations"][-1] == "dog"


def test_no_shots_leaves_the_prompt_as_it_was(folder: Path, tmp_path: Path) -> None:
    ask(tmp_path, lever_demos(bundle=str(folder), shots=0), pictured())
    assert len(ASKED_OF_MODEL[0]) == 1


def test_the_entry_point_leads_to_the_solver() -> None:
    from importlib.metadata import entry_points

    found = [point for point in entry_points(group="inspect_ai") if point.name == "leverplus"]
    if not found:
        pytest.skip("the installed package is from before its entry points; type `make test-adapters`")
    assert found[0].load().lever_demos is lever_demos


def test_it_is_found_by_the_name_that_a_command_line_gives(folder: Path, tmp_path: Path) -> None:
    given = {"bundle": str(folder), "shots": 2}
    log = ask(tmp_path, SolverSpec(solver="leverplus/lever_generate", args=given, args_passed=given), pictured())
    assert log.samples[0].metadata["demonstrations"] == by_hand(ASKED, 2)
    assert len(ASKED_OF_MODEL[0]) == 5, "it takes the place of the task's own solver, so it asks the model itself"


def test_the_page_runs(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    log = run_page("inspect", model="recorder/one")["log"]
    assert log.status == "success", log.error
    assert log.samples[0].metadata["demonstrations"] == by_hand(ASKED, 2)
