"""Inspect AI: the solver by its entry point, in real evaluations with a model of our own."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from adapted import (
    ASKED,
    TURN_ROLES,
    answer_of,
    by_hand,
    colour_at,
    encoded,
    rgb,
    run_page,
)

pytest.importorskip(
    "inspect_ai", reason="inspect-ai is not installed; type `make test-adapters`"
)

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

# the package's own warnings are not ours to mend
pytestmark = pytest.mark.filterwarnings("default")

ASKED_OF_MODEL: list[list[Any]] = []


@modelapi(name="recorder")
def recorder() -> Any:
    """A model that says "red"; `mockllm` would fetch a table of tokens to count with."""

    class Recorder(ModelAPI):  # type: ignore[misc, unused-ignore]
        async def generate(
            self, input: Any, tools: Any, tool_choice: Any, config: GenerateConfig
        ) -> ModelOutput:
            ASKED_OF_MODEL.append(list(input))
            return ModelOutput.from_content(self.model_name, "red")

        async def count_tokens(self, input: Any, *more: Any, **options: Any) -> int:
            return 1

    return Recorder


def shown(tmp_path: Path, solver: Any, asked: Any) -> list[str]:
    """The ids that a sample was shown, by its log."""
    ASKED_OF_MODEL.clear()
    options = {} if callable(solver) else {"solver": solver}
    solvers = [solver, generate()] if callable(solver) else [generate()]
    sample = Sample(input=asked, target="red")
    (log,) = evaluate(
        Task(dataset=[sample], solver=solvers, scorer=match()),
        model=get_model("recorder/one"),
        log_dir=str(tmp_path / "logs"),
        display="none",
        **options,
    )
    assert log.status == "success", log.error
    return list(log.samples[0].metadata["demonstrations"])


def pictured(colour: str = "yellow") -> Any:
    url = "data:image/png;base64," + encoded(colour)
    content = [ContentImage(image=url), ContentText(text=ASKED)]
    return [ChatMessageUser(content=content)]


def test_the_model_sees_turns_with_pictures_and_the_log_names_them(
    folder: Path, tmp_path: Path
) -> None:
    place, expected = str(folder), by_hand(ASKED, 2)
    assert shown(tmp_path, lever_demos(place, 2), pictured()) == expected
    turns = ASKED_OF_MODEL[0]
    assert [turn.role for turn in turns] == TURN_ROLES
    chosen = [answer_of(name) for name in expected]
    assert [turn.text for turn in turns if turn.role == "assistant"] == chosen
    urls = [turn.content[0].image.partition(",")[2] for turn in turns[::2]]
    colours = [colour_at(base64.b64decode(url)) for url in urls]
    assert colours == [*map(rgb, chosen), rgb("yellow")]
    assert shown(tmp_path, lever_demos(place), "the fish") == by_hand("the fish", 2)
    assert ASKED_OF_MODEL[0][-1].text == "the fish"
    assert shown(tmp_path, lever_demos(place, 0), pictured()) == []
    assert len(ASKED_OF_MODEL[0]) == 1


def test_a_sample_that_the_bundle_holds_is_not_shown_itself(
    folder: Path, tmp_path: Path
) -> None:
    for leave_out in (True, False):
        solver = lever_demos(str(folder), 3, leave_out_itself=leave_out)
        assert ("dog" in shown(tmp_path, solver, pictured("red"))) is not leave_out


def test_it_is_found_by_the_name_that_a_command_line_gives(
    folder: Path, tmp_path: Path
) -> None:
    given = {"bundle": str(folder), "shots": 2}
    spec = SolverSpec(solver="leverplus/lever_generate", args=given, args_passed=given)
    assert shown(tmp_path, spec, pictured()) == by_hand(ASKED, 2)
    assert len(ASKED_OF_MODEL[0]) == 5, "it takes the place of the task's own solver"


def test_the_page_runs(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    log = run_page("inspect", model="recorder/one")["log"]
    assert log.status == "success", log.error
    assert log.samples[0].metadata["demonstrations"] == by_hand(ASKED, 2)
