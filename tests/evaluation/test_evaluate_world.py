"""A whole evaluation on the embedded world: every arm, what they hide, sweeps, and choosing on test."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from leverplus.cli.eval import print_sweep
from leverplus.cli.main import main
from leverplus.errors import EvaluationError, LeverError
from leverplus.evaluation import arms
from leverplus.evaluation.checkpoints import checkpoint_folder, guard_test
from leverplus.evaluation.diagnose import order_sensitivity, sample_places, shuffled_queries
from leverplus.evaluation.evaluate import run_arms
from leverplus.evaluation.predictions import Results, read_predictions
from leverplus.experiment.checkpoints import evaluate_checkpoints
from leverplus.experiment.evaluate import evaluate_run, evaluation_context
from leverplus.experiment.ranking import measured_scores, rankings_of
from leverplus.experiment.run import Run
from leverplus.policies.base import Policy
from leverplus.ranking.labels import answer_key
from leverplus.rundir import read_json
from leverplus.scoring.scorer import EVALUATION
from leverplus.training.checkpoint import load_checkpoint

pytestmark = pytest.mark.slow

ARMS = {
    "zero_shot", "random", "nearest_text", "nearest_image", "nearest_both", "two_stage", "mmr", "majority",
    "label_vote", "label_regression", "label_rank", "effects", "learned", "learned_auto", "oracle", "oracle_any",
    "oracle_exhaustive",
}  # fmt: skip


@pytest.fixture(scope="module")
def context(world_run: Run) -> arms.EvaluationContext:
    return evaluation_context(world_run, world_run.chosen_items("test", world_run.recipe.eval.items))


@pytest.fixture(scope="module")
def policy(world_run: Run) -> Policy:
    return load_checkpoint(world_run.folder / "checkpoints" / "sft")[0]


@pytest.fixture(scope="module")
def results(world_run: Run) -> Results:
    return read_predictions(world_run.folder / "predictions.parquet")


def test_every_arm_answers_the_same_items(world_run: Run, results: Results) -> None:
    report = read_json(world_run.folder / "eval.json")
    assert set(report["arms"]) == ARMS
    assert report["n"] == len(results.items) == 14
    for arm in ARMS - {"zero_shot", "label_vote", "label_regression", "oracle_exhaustive"}:
        assert set(report["arms"][arm]["shots"]) == {"1", "2", "3", "4"}
        values = list(report["arms"][arm]["shots"].values())
        assert np.isclose(report["arms"][arm]["mean"], np.mean(values))


def test_demonstrations_come_from_the_querys_pool_each_once(context: arms.EvaluationContext, results: Results) -> None:
    pools = {pool.query: set(pool.candidates) for pool in context.pools}
    for arm, shots, draw in results:
        for own in draw:
            assert len(set(own.demos)) == len(own.demos)
            assert len(own.demos) == shots or arm in ("learned_auto", "oracle_any")
            assert set(own.demos) <= pools[own.item]


def test_oracles_are_in_order(results: Results) -> None:
    for n in (1, 2, 3, 4):
        best = results.accuracy("oracle_any", n)
        assert (best >= results.accuracy("oracle", n)).all()
        assert (best >= results.accuracy("zero_shot", 0)).all()
    assert (results.accuracy("oracle_exhaustive", 1) == results.accuracy("oracle", 1)).all()
    for arm in ("random", "nearest_both", "mmr", "learned"):
        assert (results.accuracy("oracle_exhaustive", 2) >= results.accuracy(arm, 2)).all()


def test_an_unaffordable_exhaustive_oracle_is_not_run(world_run: Run, context: arms.EvaluationContext) -> None:
    section = replace(world_run.recipe.eval, exhaustive_calls=14 * 6 * 5 - 1)
    found = run_arms(context, section, None, 0.5, 0.7)
    assert found.shots("oracle_exhaustive") == [1]
    assert "learned" not in found.draws


def test_the_nearest_arm_matches_a_search_by_hand(context: arms.EvaluationContext) -> None:
    chosen = arms.nearest_arm(context, 0.5, [2])[2]
    for pool, demos in zip(context.pools, chosen, strict=True):
        query = {name: block[context.table.row(pool.query)].double() for name, block in context.table.blocks.items()}
        rows = [context.table.row(candidate) for candidate in pool.candidates]
        similar = sum(0.5 * context.table.blocks[name][rows].double() @ query[name] for name in ("image", "text"))
        assert isinstance(similar, torch.Tensor)
        best = similar.argsort(descending=True)[:2].tolist()
        assert demos == (pool.candidates[best[1]], pool.candidates[best[0]])


def test_ranked_arms_match_a_ranking_by_hand(world_run: Run, context: arms.EvaluationContext) -> None:
    found = rankings_of(world_run, 0.5)
    assert found.labels is not None
    assert found.effects is not None
    demos, own = context.demonstrations, found.effects
    expected = found.labels.expected([query.id for query in context.queries], context.query_vectors)
    asked, held = vars(context.query_vectors), vars(context.vectors)
    near = {name: asked[name].astype(float) @ held[name].astype(float).T for name in ("text", "image")}
    columns = [found.labels.columns.get(answer_key(demo.answer)) for demo in demos]
    for whole in (False, True):
        chosen = arms.ranked_arm(replace(context, whole_corpus=whole), own, found.labels, [2])[2]
        for row, (query, pool) in enumerate(zip(context.queries, context.pools, strict=True)):
            score = {}
            for place, demo in enumerate(demos):
                if demo.image_id == query.image_id or not (whole or demo.id in pool.candidates):
                    continue
                column = columns[place]
                total = own.effect[place] + own.label * (0.0 if column is None else expected[row, column])
                total += sum(slope * float(near[name][row, place]) for name, slope in own.similarity.items())
                score[demo.id] = total
            best = sorted(score.values())
            assert [score[name] for name in chosen[row]] == pytest.approx([best[-2], best[-1]], abs=1e-5)


def test_rankings_ask_nothing_and_learn_from_training_alone(world_run: Run) -> None:
    fresh = world_run.scorer.meter.fresh
    asked = {name: len(keys) for name, keys in world_run.scorer.meter.asked.items()}
    scores = measured_scores(world_run)
    rankings_of(world_run, 0.5)
    assert world_run.scorer.meter.fresh == fresh
    assert {name: len(keys) for name, keys in world_run.scorer.meter.asked.items()} == asked
    train = {item.id for item in world_run.task.items("train")}
    assert scores
    assert {score.query for score in scores} <= train
    assert all(len(score.demos) == 1 and score.demos[0] in train for score in scores)
    written = read_json(world_run.folder / "eval.json")["rankings"]
    assert written["effects"]["answers"] == len(scores)
    assert 0.0 < written["labels"]["left_out_accuracy"] < 1.0


def test_the_label_regression_predicts_training_items_without_their_picture(world_run: Run) -> None:
    train = list(world_run.demonstrations[:40])
    labels = rankings_of(world_run, 0.5).labels
    assert labels is not None
    found = arms.label_regression_arm(evaluation_context(world_run, train), labels)
    places = {item: place for place, item in enumerate(labels.items)}
    for own in found:
        if own.item in places:
            assert own.answer == labels.answers[int(labels.left_out[places[own.item]].argmax())]


def test_the_label_vote_never_sees_the_querys_own_answer(world_run: Run) -> None:
    train = world_run.demonstrations[:8]
    own = evaluation_context(world_run, train)
    alone = arms.label_vote_arm(own, 1.0, 1)
    assert len(alone) == 8
    assert all(prediction.demos == () and prediction.tokens == 0 for prediction in alone)
    found = arms.forbidden_positions(train, world_run.demonstrations)
    for query, closed in zip(train, found, strict=True):
        assert {world_run.demonstrations[int(place)].image_id for place in closed} == {query.image_id}


def test_what_the_accuracy_hides_is_in_the_record(world_run: Run) -> None:
    report = read_json(world_run.folder / "eval.json")
    learned = report["regret"]["learned"]["2"]
    parts = [learned[name] for name in ("pool", "count", "choice", "order")]
    assert min(parts) >= 0.0
    assert np.isclose(sum(parts), learned["total"])
    assert report["order"]["2"]["best"] >= max(report["order"]["2"]["accuracy"], report["order"]["2"]["reversed"])
    assert set(report["train"]["learned"]) == {"1", "2", "3", "4"}
    assert report["picks"]["learned"]["1"]["distinct"] <= 14
    assert report["conditions"]["split"] == "test"
    assert report["chosen_on_test"] is False
    assert "seconds" not in json.dumps(report)
    assert str(world_run.folder) not in json.dumps(report)
    assert "learned" in read_json(world_run.folder / "run.json")["query_cost"]


def test_the_same_run_gives_the_same_bytes(world_run: Run, policy: Policy) -> None:
    before = (world_run.folder / "eval.json").read_bytes()
    evaluate_run(world_run, policy)
    assert (world_run.folder / "eval.json").read_bytes() == before


def test_a_policy_that_ignores_its_query_is_caught(
    context: arms.EvaluationContext, policy: Policy, results: Results
) -> None:
    places = list(range(len(context.pools)))
    seeing = shuffled_queries(context, results, policy, places)

    class Blind(type(policy)):  # type: ignore[misc]
        """The same selector, given the same query vector whatever is asked."""

        def prepare(self, features):  # type: ignore[no-untyped-def]
            same = {name: torch.ones_like(block) / block.shape[-1] ** 0.5 for name, block in features.query.items()}
            return super().prepare(replace(features, query=same))

    blind = copy.deepcopy(policy)
    blind.__class__ = Blind
    own = Results.of(context.queries)
    for shots, lists in arms.learned(blind, context.pools, context.table, [1, 2]).items():
        own.add("learned", shots, context.ask(lists, "blind"))
    caught = shuffled_queries(context, own, blind, places)
    assert all(row["same_picks"] == 1.0 and row["lost"] == 0.0 for row in caught.values())
    assert seeing["1"]["same_picks"] < 1.0


def test_other_orders_are_really_asked(context: arms.EvaluationContext, results: Results) -> None:
    measured = {item: dict[tuple, float]() for item in results.items}
    for own in results.draws["learned"][2][0]:
        measured[own.item][own.demos] = own.accuracy
    before = context.scorer.meter.calls(EVALUATION)
    two = Results(results.items, results.images, {"learned": {2: results.draws["learned"][2]}})
    found = order_sensitivity(context, two, [0, 3, 5], measured)
    assert context.scorer.meter.calls(EVALUATION) >= before
    assert found["2"]["n"] == 3
    for place in (0, 3, 5):
        demos = results.draws["learned"][2][0][place].demos
        assert set(measured[results.items[place]]) == {demos, demos[::-1]}


def test_a_sample_is_fixed_and_without_repetition() -> None:
    assert sample_places(5, 9) == [0, 1, 2, 3, 4]
    first = sample_places(1000, 100)
    assert first == sample_places(1000, 100) == sorted(set(first))
    assert len(first) == 100
    assert first != list(range(100))


def test_a_sweep_on_dev_names_the_best_checkpoint_and_leaves_the_test_result_alone(world_run: Run) -> None:
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


def test_choosing_on_test_is_refused_unless_forced_and_then_marked(world_run: Run) -> None:
    with pytest.raises(EvaluationError, match="choose with --split dev, or add --force"):
        evaluate_checkpoints(world_run, "test", 6)
    assert evaluate_checkpoints(world_run, "test", 6, force=True)["chosen_on_test"] is True


def test_a_second_checkpoint_on_test_is_a_choice_and_the_first_is_not() -> None:
    assert guard_test("test", "sft", None, False) is False
    assert guard_test("test", "sft", {"split": "test", "checkpoint": "sft"}, False) is False
    assert guard_test("dev", "all", None, False) is False
    with pytest.raises(EvaluationError, match="'sft-epoch001' after another one"):
        guard_test("test", "sft-epoch001", {"split": "test", "checkpoint": "sft"}, False)
    assert guard_test("test", "sft-epoch001", {"split": "test", "checkpoint": "sft"}, True) is True


def test_an_unknown_checkpoint_is_answered_with_the_known_ones(world_run: Run) -> None:
    with pytest.raises(LeverError, match="known: sft-epoch001, sft-epoch002, sft"):
        checkpoint_folder(world_run.folder / "checkpoints", "best", world_run.recipe.stages)


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
    world_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    print_sweep(evaluate_checkpoints(world_run, "dev", 6))
    out = capsys.readouterr().out
    assert all(name in out for name in ("sft-epoch001", "sft-epoch002", "95 %", "picks"))
    assert "may differ by noise alone" in out
