"""lm-evaluation-harness: a task class with pictures, run by the harness itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from adapted import (
    ASKED,
    ROOT,
    animals,
    answer_of,
    by_hand,
    colour_at,
    make_bundle,
    png,
    rgb,
    run_page,
)

from leverplus.errors import LeverError

pytest.importorskip(
    "lm_eval", reason="lm_eval is not installed; type `make test-adapters`"
)

import datasets
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from leverplus.adapters.lm_eval import LeverTask

# the package's own warnings are not ours to mend
pytestmark = pytest.mark.filterwarnings("default")

QUESTIONS = [ASKED, "the fish", "say what colour is the bird"]
LINE = '{"question": "what colour is the dog", "answer": "red"}\n'


def questions(**_options: Any) -> datasets.DatasetDict:
    """A task of three questions with pictures, as the harness asks for it."""
    text = datasets.Value("string")
    kinds = {"question": text, "answer": text, "image": datasets.Image()}
    pictures = [{"bytes": png("yellow"), "path": None}] * 3
    columns = {"question": QUESTIONS, "answer": ["red"] * 3, "image": pictures}
    features = datasets.Features(kinds)
    test = datasets.Dataset.from_dict(columns, features=features)
    return datasets.DatasetDict({"test": test})


def task_of(folder: Path, shots: int = 2, **metadata: Any) -> LeverTask:
    config = {
        "task": "animals", "class": LeverTask, "custom_dataset": questions, "test_split": "test",
        "metadata": {"lever_bundle": str(folder), "version": 1.0, **metadata},
        "output_type": "generate_until", "doc_to_text": "<image>\nQ: {{question}}\nA:",
        "doc_to_target": "{{answer}}", "doc_to_image": "image", "num_fewshot": shots,
        "generation_kwargs": {"until": ["\n"]},
    }  # fmt: skip
    return LeverTask(config)


def prompt_by_hand(question: str, shots: int, before: str = "<image>\n") -> str:
    shown = []
    for name in by_hand(question, shots):
        shown.append(f"{before}Q: what colour is the {name}\nA: {answer_of(name)}")
    return "\n\n".join([*shown, f"{before}Q: {question}\nA:"])


class Recorder(LM):  # type: ignore[misc, unused-ignore]
    """A model that says "red" and remembers what it was asked."""

    MULTIMODAL = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []

    def generate_until(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[str]:
        self.asked += [request.args for request in requests]
        return ["red"] * len(requests)

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        return [(-1.0, False)] * len(requests)

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        return [0.0] * len(requests)


@pytest.mark.parametrize("shots", [0, 2])
def test_a_prompt_has_the_chosen_turns_and_their_pictures_in_order(
    folder: Path, shots: int
) -> None:
    task = task_of(folder, shots)
    task.build_all_requests()
    for request, question in zip(task.instances, QUESTIONS, strict=True):
        assert request.args[0] == prompt_by_hand(question, shots)
        colours = [colour_at(picture) for picture in request.args[2]["visual"]]
        expected = [rgb(answer_of(name)) for name in by_hand(question, shots)]
        assert colours == [*expected, rgb("yellow")]


def test_a_document_that_the_bundle_holds_is_not_shown_itself(tmp_path: Path) -> None:
    rows = []
    for row in animals():
        rows.append({**row, "image": png("yellow" if row["id"] == "dog" else "red")})
    task = task_of(make_bundle(tmp_path / "same", rows))
    task.build_all_requests()
    said = task.instances[0].args[0]
    assert "is the dog\nA: red" not in said, "it is on the query's own picture"


def test_a_task_without_a_bundle_or_with_another_column_is_told_what_to_write(
    folder: Path,
) -> None:
    with pytest.raises(LeverError, match="the task names no bundle"):
        task_of(folder, lever_bundle=None)
    task = task_of(folder, lever_fields={"question": "text"})
    with pytest.raises(LeverError, match="there is no 'text'"):
        task.build_all_requests()


def test_the_program_and_the_yaml_of_the_page_run_in_the_harness(
    reader: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(reader / "cache"))
    (reader / "questions.jsonl").write_text(LINE)
    expected = prompt_by_hand(ASKED, 2, "")
    assert run_page("lm_eval")["prompt"] == expected
    text = (ROOT / "docs" / "adapters" / "lm_eval.md").read_text(encoding="utf-8")
    (reader / "tasks").mkdir()
    yaml = text.split("```yaml\n")[1].split("```")[0]
    (reader / "tasks" / "mine.yaml").write_text(yaml, encoding="utf-8")
    lm = Recorder()
    manager = TaskManager(include_path=str(reader / "tasks"), include_defaults=False)
    found = simple_evaluate(
        model=lm, tasks=["mine_lever"], task_manager=manager, bootstrap_iters=0
    )
    assert "mine_lever" in found["results"]
    assert lm.asked[0][0] == expected
