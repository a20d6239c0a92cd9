"""A whole evaluation on the embedded world: every arm, what they hide, sweeps, and choosing on test."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from leverplus.arms.spec import open_arm
from leverplus.cli.command import Outcome, show
from leverplus.cli.experiments import sweep_shown
from leverplus.cli.main import main
from leverplus.data.rundir import read_json
from leverplus.data.types import Demos
from leverplus.errors import EvaluationError, LeverError
from leverplus.evaluate.evaluate import EvaluationContext, answered, run_arms
from leverplus.evaluate.predictions import Results, read_predictions
from leverplus.evaluate.regret import (
    Regret,
    regret,
    regret_table,
    sample_places,
)
from leverplus.evaluate.runs import checkpoint_folder
from leverplus.learn.checkpoint import load_checkpoint
from leverplus.learn.policies.base import Policy
from leverplus.run.arms import RunTraining, fitted_arms, kept_arm, measured_scores
from leverplus.run.evaluate import (
    evaluate_checkpoints,
    evaluate_run,
    evaluation_context,
)
from leverplus.run.run import Run

pytestmark = pytest.mark.slow

ARMS = {
    "zero_shot", "random", "nearest_text", "nearest_image", "nearest_both", "two_stage", "mmr", "majority",
    "label_vote", "label_regression", "label_rank", "effects", "learned", "learned_auto", "oracle", "oracle_any",
    "oracle_exhaustive",
}  # fmt: skip


@pytest.fixture(scope="module")
def context(world_run: Run) -> EvaluationContext:
    return evaluation_context(
        world_run, world_run.chosen_items("test", world_run.recipe.eval.items)
    )


@pytest.fixture(scope="module")
def policy(world_run: Run) -> Policy:
    return load_checkpoint(world_run.folder / "checkpoints" / "sft")[0]


@pytest.fixture(scope="module")
def training(world_run: Run, policy: Policy) -> RunTraining:
    return RunTraining(world_run, policy, lambda _run: 0.5)


@pytest.fixture(scope="module")
def results(world_run: Run) -> Results:
    return read_predictions(world_run.folder / "predictions.parquet")


def test_every_arm_answers_the_same_items(world_run: Run, results: Results) -> None:
    report = read_json(world_run.folder / "eval.json")
    assert set(report["arms"]) == ARMS
    assert report["n"] == len(results.items) == 14
    for arm in ARMS - {
        "zero_shot",
        "label_vote",
        "label_regression",
        "oracle_exhaustive",
    }:
        assert set(report["arms"][arm]["shots"]) == {"1", "2", "3", "4"}
        values = list(report["arms"][arm]["shots"].values())
        assert np.isclose(report["arms"][arm]["mean"], np.mean(values))


def test_every_list_holds_other_demonstrations_each_once(
    context: EvaluationContext, results: Results
) -> None:
    pools = {pool.query: set(pool.candidates) for pool in context.pools}
    train = {item.id for item in context.demonstrations}
    for arm, shots, draw in results:
        for own in draw:
            assert len(set(own.demos)) == len(own.demos)
            assert len(own.demos) == shots or arm in ("learned_auto", "oracle_any")
            assert set(own.demos) <= train - {own.item}
            if arm.startswith("oracle"):  # the others search everything
                assert set(own.demos) <= pools[own.item]


def test_oracles_are_in_order(results: Results) -> None:
    for n in (1, 2, 3, 4):
        best = results.accuracy("oracle_any", n)
        assert (best >= results.accuracy("oracle", n)).all()
        assert (best >= results.accuracy("zero_shot", 0)).all()
    assert (
        results.accuracy("oracle_exhaustive", 1) == results.accuracy("oracle", 1)
    ).all()
    best_pair = results.accuracy("oracle_exhaustive", 2)
    assert (best_pair >= results.accuracy("oracle", 2)).all()


def test_an_unaffordable_exhaustive_oracle_is_not_run(
    world_run: Run, context: EvaluationContext
) -> None:
    section = replace(world_run.recipe.eval, exhaustive_calls=14 * 6 * 5 - 1)
    found = run_arms(context, [open_arm("zero_shot")], section)
    assert found.shots("oracle_exhaustive") == [1]
    assert "learned" not in found.draws


def test_a_limit_holds_for_every_arm(world_run: Run, training: RunTraining) -> None:
    """With eval.candidates = "pool" every arm chooses among the pools, so that chance and oracle have the same."""
    section = replace(world_run.recipe.eval, candidates="pool")
    limited = replace(world_run, recipe=replace(world_run.recipe, eval=section))
    queries = limited.chosen_items("test", 6)
    context = evaluation_context(limited, queries)
    for arm in fitted_arms(limited, training)[0]:
        if arm.calls and arm.name != "zero_shot":
            for pool, rows in zip(
                context.pools,
                arm.choose(context.asked, context.corpus, 3),
                strict=True,
            ):
                assert set(context.demos(rows)) <= set(pool.candidates)
                assert len(rows) == 3 or arm.name == "learned_auto"


def test_the_nearest_arm_matches_a_search_by_hand(
    context: EvaluationContext, training: RunTraining
) -> None:
    chosen = (
        open_arm("nearest_both").fit(training).choose(context.asked, context.corpus, 2)
    )
    vectors, held = context.asked.vectors, training.vectors
    for place, rows in enumerate(chosen):
        near = np.zeros(len(context.corpus))
        for name in ("image", "text"):
            asked = vars(vectors)[name][place].astype(float)
            near += 0.5 * (vars(held)[name].astype(float) @ asked)
        best = np.argsort(-near, kind="stable")[:2].tolist()
        assert rows == [best[1], best[0]]


def test_ranked_arms_match_a_ranking_by_hand(
    context: EvaluationContext, training: RunTraining
) -> None:
    arm = open_arm("effects").fit(training)
    labels, own = training.labels, training.effects()
    assert labels is not None
    expected = labels.expected(context.asked, context.corpus)
    chosen = arm.choose(context.asked, context.corpus, 2)
    for row in range(len(context.queries)):
        score = {}
        for place, demo in enumerate(context.demonstrations):
            column = labels.columns.get(training.rules.key(demo.answer))
            total = own.effect[place]
            total += own.label * (0.0 if column is None else expected[row, column])
            for name, slope in own.similarity.items():
                asked = vars(context.asked.vectors)[name][row].astype(float)
                total += slope * float(
                    asked @ vars(training.vectors)[name][place].astype(float)
                )
            score[place] = total
        best = sorted(score.values())
        found = [score[place] for place in chosen[row]]
        assert found == pytest.approx([best[-2], best[-1]], abs=1e-5)


def test_the_arms_of_a_run_are_kept_as_they_were_evaluated(
    world_run: Run, context: EvaluationContext, results: Results
) -> None:
    for arm in results.draws:
        if not arm.startswith("oracle"):
            kept, measured = kept_arm(world_run, arm)
            assert measured
            for shots in results.shots(arm):
                rows = kept.choose(context.asked, context.corpus, shots)
                shown = [own.demos for own in results.draws[arm][shots][0]]
                assert [context.demos(own) for own in rows] == shown


def test_rankings_ask_nothing_and_learn_from_training_alone(world_run: Run) -> None:
    fresh = world_run.scorer.meter.fresh
    scores = measured_scores(world_run)
    RunTraining(world_run, None, lambda _run: 0.5).effects()
    assert world_run.scorer.meter.fresh == fresh
    train = {item.id for item in world_run.task.items("train")}
    assert scores
    assert {score.query for score in scores} <= train
    assert all(len(score.demos) == 1 and score.demos[0] in train for score in scores)


def test_the_label_regression_predicts_training_items_without_their_picture(
    world_run: Run, training: RunTraining
) -> None:
    train = list(world_run.demonstrations[:40])
    labels = training.labels
    assert labels is not None
    arm = open_arm("label_regression").fit(training)
    found = answered(evaluation_context(world_run, train), arm, 0)
    for own in found:
        left_out = labels.ridge.left_out.get(own.item)
        if left_out is not None:
            assert own.answer == labels.answers[int(left_out.argmax())]


def test_the_label_vote_never_sees_the_querys_own_picture(
    world_run: Run, training: RunTraining
) -> None:
    train = world_run.demonstrations[:8]
    context = evaluation_context(world_run, train)
    arm = open_arm("label_vote").fit(training)
    for own in answered(context, arm, 0):
        assert own.demos == ()
    voters = arm.choose_lists(context.asked, context.corpus, 0)
    for query, own in zip(train, voters, strict=True):
        pictures = {world_run.demonstrations[row].image_id for row in own[0]}
        assert query.image_id not in pictures


def test_what_the_accuracy_hides_is_in_the_record(world_run: Run) -> None:
    report = read_json(world_run.folder / "eval.json")
    learned = report["regret"]["learned"]["2"]
    parts = [learned[name] for name in ("pool", "count", "choice", "order")]
    assert min(parts) >= 0.0
    assert np.isclose(sum(parts), learned["total"])
    assert report["conditions"]["split"] == "test"
    assert report["chosen_on_test"] is False
    assert "seconds" not in json.dumps(report)
    assert str(world_run.folder) not in json.dumps(report)


def test_the_same_run_gives_the_same_bytes(world_run: Run, policy: Policy) -> None:
    before = (world_run.folder / "eval.json").read_bytes()
    evaluate_run(world_run, policy)
    assert (world_run.folder / "eval.json").read_bytes() == before


def test_other_orders_are_really_asked(
    context: EvaluationContext, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    def noted(ceiling: float, measured: dict, chosen: Demos) -> Regret:
        seen[chosen] = set(measured)
        return regret(ceiling, measured, chosen)

    monkeypatch.setattr("leverplus.evaluate.regret.regret", noted)
    found = regret_table(context, results, 3)
    assert found["learned"][2].n == 3
    for place in sample_places(len(context.queries), 3):
        demos = results.first("learned", 2)[place].demos
        assert {demos, demos[::-1]} <= seen[demos]


def test_a_sweep_on_dev_names_the_best_checkpoint_and_leaves_the_test_result_alone(
    world_run: Run,
) -> None:
    before = (world_run.folder / "eval.json").read_bytes()
    found = evaluate_checkpoints(world_run, "dev", 6)
    names = [row["checkpoint"] for row in found["checkpoints"]]
    assert names == ["sft-epoch001", "sft-epoch002", "sft"]
    means = {row["checkpoint"]: row["mean"] for row in found["checkpoints"]}
    assert means[found["best"]] == max(means.values())
    assert found["chosen_on_test"] is False
    assert found["checkpoints"][0]["agreement"] is None
    assert found["checkpoints"][1]["agreement"]["n"] == 6
    assert read_json(world_run.folder / "sweep-dev.json") == found
    assert (world_run.folder / "eval.json").read_bytes() == before


def test_choosing_on_test_is_refused_unless_forced_and_then_marked(
    world_run: Run,
) -> None:
    with pytest.raises(
        EvaluationError, match="choose with --split dev, or add --force"
    ):
        evaluate_checkpoints(world_run, "test", 6)
    assert (
        evaluate_checkpoints(world_run, "test", 6, force=True)["chosen_on_test"] is True
    )


def test_an_unknown_checkpoint_is_answered_with_the_known_ones(world_run: Run) -> None:
    with pytest.raises(LeverError, match="known: sft-epoch001, sft-epoch002, sft"):
        checkpoint_folder(
            world_run.folder / "checkpoints", "best", world_run.recipe.stages
        )


def test_the_command_refuses_a_sweep_on_test_in_one_sentence(
    world_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, store = str(world_run.folder), str(world_run.store_path)
    assert main(["eval", folder, "--store", store, "--checkpoint", "all"]) == 1
    captured = capsys.readouterr()
    assert "too good by luck" in captured.err
    assert captured.out == ""
    with pytest.raises(SystemExit) as caught:
        main(["eval", folder, "--store", store, "--items", "-3"])
    assert caught.value.code == 2
    assert "'-3' is not a whole number" in capsys.readouterr().err


def test_the_sweep_table_shows_every_checkpoint_with_its_interval(
    world_run: Run,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    report = evaluate_checkpoints(world_run, "dev", 6)
    show(Outcome(report, sweep_shown(report)), as_json=False)
    out = capsys.readouterr().out
    assert all(
        name in out for name in ("sft-epoch001", "sft-epoch002", "95 %", "picks")
    )
    assert "may differ by noise alone" in out
