"""An arm that is added from outside, in one file, is found wherever the arms of the catalog are."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from worlds import ANSWERS, bundled, fitted

import leverplus
from leverplus.arms.spec import open_arm
from leverplus.bundle.selector import Selector
from leverplus.cli.main import main
from leverplus.errors import LeverError
from leverplus.run.evaluate import run_all
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus.run.run import open_run

SPEC = "outside_arm:Shortest"
SIZES = (
    "pool.size=6", "score.budget=700", "score.dev_queries=6", "score.queries=24", "score.search=dense",
    "score.shots=1", "sft.epochs=1", "eval.items=12", "eval.dev_items=6", "eval.diagnostics=false", "eval.oracle=false",
)  # fmt: skip


@pytest.mark.slow
def test_it_is_evaluated_advised_reported_packed_served_and_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from leverplus.run.forecast import forecast

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    named = f'eval.arms=["nearest_text", "{SPEC}"]'
    recipe = load_recipe("world", (*SIZES, named))
    without = load_recipe("world", (*SIZES, 'eval.arms=["nearest_text"]'))
    place = tmp_path / "run"
    run = open_run(
        recipe, find_recipe("world"), place, seed=0, store_path=tmp_path / "s.db"
    )
    found = run_all(run)

    calls = [
        sum(part.calls or 0 for part in forecast(own)) for own in (recipe, without)
    ]
    assert calls[0] - calls[1] >= 12 * 4, "the forecast counts its calls"
    assert set(found.arms[SPEC].shots) == {1, 2, 3, 4}
    assert found.arms[SPEC].title == "shortest questions"
    assert found.arms[SPEC].calls_per_question == 1
    assert found.advice is not None
    assert set(found.advice.dev_accuracy[SPEC]) == {1, 2, 3, 4}
    assert "shortest questions" in (place / "report.html").read_text(encoding="utf-8")

    assert main(["pack", str(place), "--arm", SPEC, "--out", str(tmp_path / "b")]) == 0
    with pytest.raises(LeverError, match="LEVER_TRUST=outside_arm"):
        Selector.load(tmp_path / "b")
    selector = Selector.load(tmp_path / "b", trust=["outside_arm"])
    item = run.task.items("test")[3]
    picks = selector.select(
        question=item.question, image=run.task.image(item), shots=2, explain=True
    )
    assert picks.explanation is not None
    assert picks.explanation["arm"] == SPEC
    assert picks.explanation["goes_by"] == "the shortest questions"
    capsys.readouterr()
    folder = str(tmp_path / "b")
    asked = ["select", folder, "--question", item.question, "-k", "2", "--json"]
    assert main([*asked, "--trust", "outside_arm"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [demo["id"] for demo in told["demos"]] == [demo.id for demo in picks]


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        f"{SPEC}(2)",
        f"vote({SPEC}, 3)",
        f"nearest_text(1)+{SPEC}",
        "outside_arm:TwoLists(nearest_text, 2)",
    ],
)
def test_it_is_known_by_the_name_that_opens_it_again(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert open_arm(spec).spec == spec
    with pytest.raises(LeverError, match="LEVER_TRUST=outside_arm"):
        open_arm(open_arm(spec).spec, trusted=())


@pytest.mark.parametrize("arm", [SPEC, "nearest_text(1)+outside_arm:Shortest"])
def test_it_works_as_an_estimator_and_in_company(
    arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sklearn = pytest.importorskip("leverplus.adapters.sklearn")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    texts = [
        "how long is it now",
        "how big",
        "what colour is the sea today",
        "how old is she",
    ]
    chooser = sklearn.DemoSelector(
        arm=arm, embedder="tfidf", shots=2, output="positions"
    )
    chosen = chooser.fit(texts, [ANSWERS[0]] * 4).transform(["how many"])
    assert chosen.shape == (1, 2)
    assert 1 in chosen[0].tolist(), "the shortest question that shares the first word"


def test_what_a_query_may_not_be_shown_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("LEVER_TRUST", "outside_arm")
    found = fitted("outside_arm:Deaf", False)
    assert found is not None
    selector = bundled(tmp_path / "b", found)
    first, second, third = (demo.id for demo in selector.select(question="a", shots=3))
    picks = selector.select(question="a", shots=2, allowed=[first, second])
    assert [demo.id for demo in picks] == [first, second]
    with pytest.raises(LeverError, match="may not be shown"):
        selector.select(question="a", shots=2, allowed=[third])


def test_no_module_knows_an_arm_by_name() -> None:
    """Whoever adds an arm writes its file and its row of the catalog, and nothing else."""
    telling = {
        "nearest_text", "nearest_image", "nearest_both", "label_rank", "label_vote", "label_regression",
        "learned_auto", "by_answer", "copy_nearest",
    }  # fmt: skip
    # kinds of pools have the same names; a default of an estimator is no knowledge of arms
    kinds_of_pools = {
        "arms/settings.py",
        "run/rules.py",
    }
    kinds_of_pools |= {"run/plan.py", "adapters/sklearn.py"}
    root = Path(leverplus.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if (
            name == "catalog.py"
            or name.startswith("arms/")
            or name in {*kinds_of_pools, "learn/arm.py"}
        ):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in telling:
                found.append(f"{name}:{node.lineno} {node.value}")
    assert not found, "an arm is named outside its own file"
