"""The verbs of a run, one function each: the only module that wires the parts together."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from leverplus.acquisition import Acquisition
from leverplus.errors import TrainingError
from leverplus.oversight import examine_run, judge_handover, preflight_run, watched
from leverplus.recipe.training import AgreementConfig
from leverplus.run import POOL_SEED, Run, load_run, open_run
from leverplus.rundir import read_json, write_json, write_text

if TYPE_CHECKING:
    from leverplus.evaluation.arms import Bench
    from leverplus.evaluation.predictions import Results
    from leverplus.policies.base import Policy
    from leverplus.training.groups import ItemTable, Row
    from leverplus.training.loop import Refresh
    from leverplus.types import Group, Item

__all__ = [
    "POOL_SEED",
    "Run",
    "advice_of",
    "bench_of",
    "choose_text_share",
    "dev_judge",
    "evaluate_run",
    "examine_run",
    "load_run",
    "open_run",
    "read_json",
    "run_all",
    "search_groups",
    "sweep_run",
    "train_run",
    "write_json",
    "write_text",
]


def search_groups(run: Run, policy: Policy | None = None) -> list[Group]:
    """What training learns from: the scores of searched sequences, asked for once.

    Sequences that are drawn from the selector wait until the first stage has trained one.
    """
    from leverplus.scoring.mining import keep_groups
    from leverplus.scoring.plan import find_groups
    from leverplus.training.mistakes import spoil_groups

    section = run.recipe.score
    if policy is None:
        section = replace(section, samples=0, stochastic=0, selector_beams=0)
    if section.groups:
        run.say(f"{len(run.imported_groups)} imported groups; nothing is searched")
        if run.imitates_beams:
            return run.imported_groups
        return keep_groups(run.imported_groups, section.keep, section.tiers)
    run.require_model()
    queries = run.training_queries()
    pools, table = run.pools(queries)
    groups = find_groups(run.scorer, pools, section, seed=run.seed, table=table, policy=policy)
    if not groups:
        raise TrainingError(
            f"none of {len(queries)} searched groups is kept; loosen score.keep or score.tiers, or raise score.mine"
        )
    run.say(f"searched {len(queries)} training queries with {run.calls():,} calls")
    return groups if not run.recipe.mistakes.any else spoil_groups(run.recipe.mistakes, groups)


def train_run(run: Run) -> Policy:
    """Every stage of the recipe in order, each going on where it was stopped."""
    from leverplus.evaluation.sweep import checkpoint_names
    from leverplus.policies.build import build_policy
    from leverplus.training.checkpoint import load_checkpoint
    from leverplus.training.given import fill_from
    from leverplus.training.loop import StageRun, run_stage
    from leverplus.training.mistakes import convert_checkpoint
    from leverplus.training.seeds import derive_seed

    recipe, checkpoints, asking = run.recipe, run.folder / "checkpoints", run.recipe.train.asking
    run.require_same_task()
    start = run.starting_policy()
    queries = run.training_queries()
    run.expects()  # a metric that does not suit the reward is refused before the model is loaded
    run.require_model()
    if not all((checkpoints / name).is_dir() for name in recipe.stages):
        _ = run.expectation  # a reward that cannot be had is refused before the model is asked
    _, table = run.pools(queries if recipe.mistakes.any else queries[:1])
    policy = build_policy(recipe.select, table.dims, items=len(table), seed=derive_seed(run.seed, "init"))
    run.add_adapters(policy)
    if start is not None:
        fill_from(policy, start, recipe.train.start)
    judge = dev_judge(run)
    judge(policy)
    for name in checkpoint_names(checkpoints, recipe.stages):
        judge(load_checkpoint(checkpoints / name)[0])  # asks the store only; counts the calls of epochs run before
    groups: Sequence[Group] = ()
    acquisition: Acquisition | None = None
    anchors: dict[str, Policy] = {} if start is None else {"sft": start}
    for number, (name, config) in enumerate(recipe.stages.items()):
        done = checkpoints / name
        if name == asking or (number == 1 and recipe.score.draws_from_selector):
            groups = search_groups(run, policy if number and recipe.score.draws_from_selector else None)
            acquisition = Acquisition(run, groups, table) if recipe.score.rounds else None
        if not done.is_dir():
            refresh = _refresh(run, name, table, acquisition)
            rows = refresh(policy, 0) if refresh else _scored_rows(run, name, groups, table, acquisition)
            if name == asking and not run.imitates_beams:  # lists without accuracies say nothing of their quality
                preflight_run(run, policy, rows, groups, table)
            watch = watched(run, judge, name, config.epochs)
            stage = StageRun(name, config, table, run.seed, run.folder, anchors, watch, refresh, recipe.hash, run.calls)
            result = run_stage(policy, rows, stage)
            convert_checkpoint(recipe.mistakes, done)
            judge_handover(run, policy, done, rows, table)
            value = "not judged" if result.best_value is None else f"dev accuracy {result.best_value:.3f}"
            run.say(f"{name}: {result.epochs} epochs, best {result.best_epoch}, {value}")
        elif acquisition is not None and name == asking:
            acquisition.replay(policy)  # asks the store only; what later stages learn from
        shutil.rmtree(run.folder / "state" / name, ignore_errors=True)  # the stage is done: nothing goes on from it
        policy = load_checkpoint(done)[0]
        anchors[name] = load_checkpoint(done)[0]
    return policy


def _refresh(run: Run, name: str, table: ItemTable, acquisition: Acquisition | None) -> Refresh | None:
    """Where a stage has fresh rows from: labels, rounds of asking, or nowhere."""
    from leverplus.metrics import metric_named
    from leverplus.training.agreement import Agreement

    config = run.recipe.stages[name]
    if isinstance(config, AgreementConfig):
        queries = [query.id for query in run.shuffled_queries()]
        metric = metric_named(run.task.metric)
        return Agreement(run.demonstrations, queries, table, metric, config=config, seed=run.seed)
    return acquisition if name == run.recipe.train.asking else None


def _scored_rows(
    run: Run, name: str, groups: Sequence[Group], table: ItemTable, acquisition: Acquisition | None
) -> Sequence[Row]:
    """What a stage learns from that learns from the model's answers."""
    from leverplus.scoring.search import top_members
    from leverplus.training.groups import rows_from_groups
    from leverplus.training.mistakes import spoil_rows

    recipe, select = run.recipe, run.recipe.select
    if run.imitates_beams:
        from leverplus.scoring.group_file import beam_gain
        from leverplus.training.groups import rows_by

        best = top_members(groups, recipe.train.imitate, beam_gain)
        rows = rows_by(best, table, beam_gain, stop=select.stop, max_shots=select.max_shots)
    elif acquisition is not None:
        rows = acquisition.rows
    else:
        own = top_members(groups, recipe.train.imitate) if name == "sft" else groups
        rows = rows_from_groups(
            own,
            table,
            recipe.reward,
            stop=select.stop,
            max_shots=select.max_shots,
            whole=groups,
            expect=run.expectation,
        )
    return spoil_rows(recipe.mistakes, rows) if name == "sft" else rows


def dev_judge(run: Run) -> Callable[[Policy], Mapping[str, float]]:
    """Judges a policy by the accuracy of its picks on fixed dev queries, store first; these calls count as training."""
    from leverplus.evaluation.arms import learned
    from leverplus.scoring.scorer import TRAINING

    section = run.recipe.score
    pools, table = run.pools(run.chosen_items("dev", section.dev_queries))

    def judge(policy: Policy) -> Mapping[str, float]:
        choices = learned(policy, pools, table, section.dev_shots)
        values: dict[str, float] = {}
        for shots, lists in choices.items():
            prompts = [(pool.query, demos) for pool, demos in zip(pools, lists, strict=True)]
            scores = run.scorer.score(prompts, TRAINING, "judging on dev")
            values[f"reward@{shots}"] = float(np.mean([score.accuracy for score in scores]))
        return {"reward": float(np.mean(list(values.values()))), **values}

    return judge


def bench_of(run: Run, queries: Sequence[Item]) -> Bench:
    """What all arms share on some queries."""
    from leverplus.evaluation.arms import Bench

    pools, table = run.pools(queries)
    return Bench(run.task, run.scorer, queries, pools, table, run.demonstrations, run.demonstration_vectors)


def evaluate_run(
    run: Run,
    policy: Policy | None,
    split: str = "test",
    items: int | None = None,
    *,
    checkpoint: str | None = None,
    force: bool = False,
    advise: bool = True,
) -> dict[str, Any]:
    """Every arm on the same items and pools; writes eval.json and predictions.parquet (eval-dev.json, ... on dev).

    `checkpoint` names what `policy` is if it is not the run's last; a second one on test needs `force`. With `advise`
    an evaluation on test ends with what to use, by dev figures, unless eval.advice = false.
    """
    from leverplus.evaluation.conditions import require_unseen
    from leverplus.evaluation.cost import query_cost
    from leverplus.evaluation.evaluate import run_arms
    from leverplus.evaluation.predictions import write_predictions
    from leverplus.evaluation.result import alone, fill, first_record, makers
    from leverplus.evaluation.sweep import guard_test
    from leverplus.scoring.scorer import ADVICE, EVALUATION

    section, suffix = run.recipe.eval, "" if split == "test" else f"-{split}"
    path = run.folder / f"eval{suffix}.json"
    chosen_on_test = guard_test(split, checkpoint, read_json(path) if path.is_file() else None, force)
    run.scorer.meter.asked[EVALUATION].clear()  # eval_calls are those of this evaluation
    bench = bench_of(run, run.chosen_items(split, section.items if items is None else items))
    if split != "train":  # items of the training split are asked with pools that leave out their own picture
        require_unseen(bench.queries, run.demonstrations)
    share = choose_text_share(run)
    results = run_arms(bench, section, policy, share, run.recipe.pool.mmr_lambda)
    found = first_record(bench, results, split=split)
    found["nearest_both_text_share"] = share
    found["checkpoint"] = checkpoint or (list(run.recipe.stages)[-1] if policy is not None else None)
    found["chosen_on_test"] = chosen_on_test
    write_predictions(results, run.folder / f"predictions{suffix}.parquet")
    write_json(path, found)  # the answers were paid for: from here on nothing that fails can lose them
    trained = partial(_training_bench, run)
    fill(found, makers(bench, results, policy, section, record=found, trained=trained), run.say)
    found["eval_calls"] = run.scorer.meter.calls(EVALUATION)
    if advise and section.advice and split == "test":
        fill(found, {"advice": lambda: advice_of(run, policy, share, results)}, run.say)
        found["dev_calls"] = run.scorer.meter.calls(ADVICE)
    alone(found, "the cost of a query", lambda: run.remember({"query_cost": query_cost(results)}), run.say)
    write_json(path, found)
    return found


def advice_of(run: Run, policy: Policy | None, share: float, test: Results) -> dict[str, Any]:
    """Which arm to use at which number of shots, by the accuracy of every arm that can be deployed on dev."""
    from leverplus.evaluation.advice import advise
    from leverplus.evaluation.evaluate import run_arms
    from leverplus.scoring.scorer import ADVICE

    run.scorer.meter.asked[ADVICE].clear()
    section = replace(run.recipe.eval, oracle=False, random_draws=1)
    bench = replace(bench_of(run, run.chosen_items("dev", section.dev_items)), purpose=ADVICE)
    return advise(run_arms(bench, section, policy, share, run.recipe.pool.mmr_lambda), test)


def _training_bench(run: Run) -> Bench:
    """The training queries on which the selector is asked: far better than elsewhere means over-fitting."""
    return bench_of(run, run.training_queries()[: run.recipe.eval.diagnostic_items])


def sweep_run(run: Run, split: str = "dev", items: int | None = None, force: bool = False) -> dict[str, Any]:
    """Every checkpoint of a run on the same items; writes sweep-dev.json. On test it needs `force` and is marked."""
    from leverplus.evaluation.conditions import conditions_of
    from leverplus.evaluation.sweep import best_row, checkpoint_names, guard_test, sweep
    from leverplus.training.checkpoint import load_checkpoint

    chosen_on_test = guard_test(split, "all", None, force)
    section, checkpoints = run.recipe.eval, run.folder / "checkpoints"
    bench = bench_of(run, run.chosen_items(split, section.items if items is None else items))
    names = checkpoint_names(checkpoints, run.recipe.stages)
    rows = sweep(bench, ((name, load_checkpoint(checkpoints / name)[0]) for name in names), section.shots)
    found = {
        "task": run.task.name,
        "split": split,
        "n": len(bench.queries),
        "checkpoints": rows,
        "best": best_row(rows),
        "chosen_on_test": chosen_on_test,
        "conditions": conditions_of(run.scorer.context, split, [item.id for item in bench.queries], bench.pools),
    }
    write_json(run.folder / f"sweep-{split}.json", found)
    return found


def choose_text_share(run: Run) -> float:
    """The share of the question in nearest_both with the best mean accuracy on dev."""
    from leverplus.evaluation.evaluate import best_text_share

    section = run.recipe.eval
    return best_text_share(bench_of(run, run.chosen_items("dev", section.dev_items)), section.shots)


def run_all(run: Run) -> dict[str, Any]:
    """Every stage of a recipe; what is done already is taken from the store and the run folder."""
    from leverplus.evaluation.result import alone
    from leverplus.report.build import build_report

    found = evaluate_run(run, train_run(run))
    noted = len(found["notes"])
    alone(found, "findings.json", lambda: examine_run(run), run.say)
    alone(found, "report.html", lambda: build_report(run), run.say)
    if len(found["notes"]) > noted:
        write_json(run.folder / "eval.json", found)
    return found
