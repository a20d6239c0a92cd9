"""lm-evaluation-harness: a task class with pictures and a sampler, run by the harness itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from adapted import ASKED, ROOT, animals, answer_of, by_hand, colour_at, make_bundle, png, rgb, run_page

from leverplus.errors import LeverError

pytest.importorskip("lm_eval", reason="lm_eval is not installed; type `make test-adapters`")

import datasets
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from leverplus.adapters.lm_eval import LeverSampler, LeverTask

pytestmark = pytest.mark.filterwarnings("default")  # the package's own warnings are not ours to mend

QUESTIONS = [ASKED, "the fish", "say what colour is the bird"]


def questions(**_options: Any) -> datasets.DatasetDict:
    """A task of three questions with pictures, as the harness asks for it."""
    features = datasets.Features(
        {"question": datasets.Value("string"), "answer": datasets.Value("string"), "image": datasets.Image()}
    )
    columns = {"question": QUESTIONS, "answer": ["red"] * 3, "image": [{"bytes": png("yellow"), "path": None}] * 3}
    return datasets.DatasetDict({"test": datasets.Dataset.from_dict(columns, features=features)})


def config(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "task": "animals",
        "class": LeverTask,
        "metadata": {"lever_bundle": str(folder), "version": 1.0},
        "custom_dataset": questions,
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "<image>\nQ: {{question}}\nA:",
        "doc_to_target": "{{answer}}",
        "doc_to_image": "image",
        "num_fewshot": 2,
        "generation_kwargs": {"until": ["\n"]},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        **more,
    }


def prompt_by_hand(question: str, shots: int) -> str:
    shown = [f"<image>\nQ: what colour is the {name}\nA: {answer_of(name)}" for name in by_hand(question, shots)]
    return "\n\n".join([*shown, f"<image>\nQ: {question}\nA:"])


class Recorder(LM):  # type: ignore[misc, unused-ignore]
    """A model that says "red" and remembers what it was asked."""

    MULTIMODAL = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        self.asked += [request.args for request in requests]
        return ["red"] * len(requests)

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        self.asked += [request.args for request in requests]
        return [(-1.0, False)] * len(requests)

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        return [0.0] * len(requests)


def test_a_prompt_has_the_chosen_turns_and_their_pictures_in_order(folder: Path) -> None:
    task = LeverTask(config(folder))
    task.build_all_requests()
    assert [request.args[0] for request in task.instances] == [prompt_by_hand(question, 2) for question in QUESTIONS]
    for request, question in zip(task.instances, QUESTIONS, strict=True):
        colours = [colour_at(picture) for picture in request.args[2]["visual"]]
        assert colours == [*(rgb(answer_of(name)) for name in by_hand(question, 2)), rgb("yellow")]


def test_the_harness_runs_a_yaml_file_that_names_the_class(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "animals.yaml").write_text(
        f"""
task: animals_lever
class: !function leverplus.adapters.lm_eval.LeverTask
metadata: {{lever_bundle: {folder}, version: 1.0}}
custom_dataset: !function test_lm_eval.questions
test_split: test
output_type: generate_until
doc_to_text: "<image>\\nQ: {{{{question}}}}\\nA:"
doc_to_target: "{{{{answer}}}}"
doc_to_image: image
num_fewshot: 2
generation_kwargs: {{until: ["\\n"]}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
""",
        encoding="utf-8",
    )
    lm = Recorder()
    manager = TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False)
    found = simple_evaluate(model=lm, tasks=["animals_lever"], task_manager=manager, bootstrap_iters=0)
    assert found["results"]["animals_lever"]["exact_match,none"] == 1.0
    assert [asked[0] for asked in lm.asked] == [prompt_by_hand(question, 2) for question in QUESTIONS]
    assert [len(asked[2]["visual"]) for asked in lm.asked] == [3, 3, 3]


def test_a_document_that_the_bundle_holds_is_not_shown_itself(tmp_path: Path) -> None:
    folder = make_bundle(
        tmp_path / "same", [{**row, "image": png("yellow" if row["id"] == "dog" else "red")} for row in animals()]
    )
    task = LeverTask(config(folder))
    task.build_all_requests()
    assert "what colour is the dog\nA: red" not in task.instances[0].args[0], "it is on the query's own picture"


def test_no_shots_is_a_zero_shot_prompt(folder: Path) -> None:
    task = LeverTask(config(folder, num_fewshot=0))
    task.build_all_requests()
    assert task.instances[0].args[0] == f"<image>\nQ: {ASKED}\nA:"
    assert len(task.instances[0].args[2]["visual"]) == 1


def text_config(sampler: Any, **more: Any) -> dict[str, Any]:
    return {
        "task": "animals_text",
        "custom_dataset": questions,
        "test_split": "test",
        "fewshot_split": "test",
        "fewshot_config": {"sampler": sampler},
        "output_type": "multiple_choice",
        "doc_to_text": "Q: {{question}}\nA:",
        "doc_to_target": "{{answer}}",
        "doc_to_choice": ["red", "green", "blue", "white", "black", "gray"],
        "num_fewshot": 2,
        **more,
    }


def test_the_sampler_takes_its_bundle_from_the_environment(text_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval.api.task import ConfigurableTask

    monkeypatch.delenv("LEVER_BUNDLE", raising=False)
    with pytest.raises(LeverError, match="LEVER_BUNDLE"):
        ConfigurableTask(config=text_config(LeverSampler))
    monkeypatch.setenv("LEVER_BUNDLE", str(text_folder))
    task = ConfigurableTask(config=text_config(LeverSampler))
    task.build_all_requests()
    shown = [f"Q: what colour is the {name}\nA: {answer_of(name)}" for name in by_hand("the fish", 2)]
    asked = [request.args[0] for request in task.instances if "Q: the fish" in request.args[0]]
    assert asked[0] == "\n\n".join([*shown, "Q: the fish\nA:"])


def test_another_split_for_few_shots_hides_the_document_which_is_told(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVER_BUNDLE", str(text_folder))
    sampler = LeverSampler([])
    assert sampler.sample(0) == []
    with pytest.raises(LeverError, match="set fewshot_split to the same split as test_split"):
        sampler.sample(2, eval_doc=None)


def test_a_task_without_a_bundle_or_with_another_column_is_told_what_to_write(folder: Path) -> None:
    with pytest.raises(LeverError, match="the task names no bundle"):
        LeverTask(config(folder, metadata={"version": 1.0}))
    task = LeverTask(config(folder, metadata={"lever_bundle": str(folder), "lever_fields": {"question": "text"}}))
    with pytest.raises(LeverError, match="has no column 'text'"):
        task.build_all_requests()


def test_the_page_runs(reader: Path) -> None:
    (reader / "questions.jsonl").write_text('{"question": "what colour is the dog", "answer": "red"}\n')
    assert run_page("lm_eval")["prompt"].endswith("Q: what colour is the dog\nA:")


def test_the_yaml_of_the_page_is_a_task_that_the_harness_runs(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(reader / "cache"))
    (reader / "questions.jsonl").write_text('{"question": "what colour is the dog", "answer": "red"}\n')
    text = (ROOT / "docs" / "adapters" / "lm_eval.md").read_text(encoding="utf-8")
    (reader / "tasks").mkdir()
    (reader / "tasks" / "mine.yaml").write_text(text.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    lm = Recorder()
    manager = TaskManager(include_path=str(reader / "tasks"), include_defaults=False)
    found = simple_evaluate(model=lm, tasks=["mine_lever"], task_manager=manager, bootstrap_iters=0)
    assert "mine_lever" in found["results"]
    shown = [f"Q: what colour is the {name}\nA: {answer_of(name)}" for name in by_hand(ASKED, 2)]
    assert lm.asked[0][0] == "\n\n".join([*shown, f"Q: {ASKED}\nA:"])
