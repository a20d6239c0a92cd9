"""The rules by which a fit decides: data, model and a number of calls in, a recipe and the reasons out.

All calls count: the self-test, training, the choice on dev and the one look at test. Every part is an upper bound, so
that the number a user gives is never passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from leverplus.arms.base import Outlook
from leverplus.arms.spec import fit_calls, open_arm
from leverplus.data.kinds import kind_of_answers
from leverplus.data.settings import read_section
from leverplus.data.tasks.base import Task
from leverplus.data.types import Item
from leverplus.errors import LeverError, WrongUsage, install_command, is_installed
from leverplus.evaluate.settings import TEXT_SHARES
from leverplus.models.settings import ModelSection
from leverplus.run.forecast import calls_per_question
from leverplus.run.look import (
    SPLITS,
    FoundData,
    Say,
    answers_recur,
    choose_encoder,
    describe_task,
    read_task,
)
from leverplus.run.prompt import (
    choose_cut,
    choose_form,
    choose_length,
    fitting_shots,
    probe_model,
)
from leverplus.run.recipe import LISTS, Recipe, load_recipe

SHOTS = (1, 4, 8, 16)
"""Numbers of demonstrations that are tried where nobody says."""

ENOUGH = 50
"""So many dev items come before many numbers of demonstrations, where nobody says which are tried."""

LEFT_OUT = (1, 4, 16)
"""Numbers of demonstrations that are given up for it, the first first."""

SELF_TEST = 32
"""Most calls of the test that every new model has to pass, where nothing looks wrong in it."""

CALLS = 6000
"""Calls where nobody says how many."""

TABLE_CALLS = 300_000
"""A recorded table costs nothing; this is what training may look up."""

FEWEST = 20
"""Fewest items of dev and of test that a choice and a figure are made on."""

PILOT_SHARE = 0.1
PILOT_DEMOS = 10
PILOT_QUERIES = (8, 60)
"""Fewest and most training queries of the pilot; where a tenth of the calls pays for fewer there is none."""

DEV_SHARE = 0.25
TEST_SHARE = 0.3
UNTRAINED_SHARES = 0.45, 0.55
"""The shares of dev and test where no selector is trained."""

MOST_DEV = 200
MOST_TEST = 500
FEWEST_QUERIES = 4
MOST_QUERIES = 16
"""Fewest and most dev queries on which training is judged."""

BASE = "fit"
"""The recipe that every fit extends."""


@dataclass(frozen=True)
class SeenData:
    """What the calls are divided by: the data, and what is asked of each question."""

    train: int
    dev: int
    test: int
    pictures: bool
    """Whether items have pictures and the embedder sees them."""
    kind: str = "short"
    """The kind of the answers, by which the ways of choosing go (`AnswerRules.kind`)."""
    arms: tuple[str, ...] = ()
    """The ways of choosing that the user named."""
    shots: tuple[int, ...] = SHOTS
    trains: bool = True
    """Whether a selector can be trained here, which takes torch."""

    def calls(self, *, pilot: bool) -> tuple[int, int]:
        """Most calls of a dev item and of a test item."""
        outlook = Outlook(self.pictures, self.trains, stops=False, pilot=pilot)
        test = calls_per_question(self.arms, self.shots, outlook, self.kind, 1)
        shares = len(TEXT_SHARES) * len(self.shots) if self.pictures else 0
        return test + shares, test

    @cached_property
    def base(self) -> Recipe:
        return load_recipe(BASE)

    @property
    def epochs(self) -> int:
        """How often training is judged on dev: after every epoch, and once more for each stage."""
        return sum(stage.epochs + 1 for stage in self.base.stages.values())

    def training(self, pilot: int = 0) -> int:
        """Fewest calls of training, with a pilot of so many."""
        own = pilot + fit_calls(self.arms)
        if not self.trains:
            return own
        searched = 4 * (self.base.pool.size + 1)
        return own + FEWEST_QUERIES * self.epochs + searched

    def smallest(self, pilot: int = 0) -> int:
        """The fewest calls that a fit of these data can do with."""
        per_dev, per_test = self.calls(pilot=pilot > 0)
        dev = min(FEWEST, self.dev)
        test = min(FEWEST, self.test)
        return SELF_TEST + dev * per_dev + test * per_test + self.training(pilot)


@dataclass(frozen=True)
class CallShares:
    """How the calls are divided."""

    training: int
    dev_items: int
    test_items: int
    dev_queries: int
    pilot: int = 0
    pilot_demos: int = PILOT_DEMOS
    trains: bool = True

    def lines(self, calls: int) -> list[str]:
        """The rule in words."""
        pilot = "no pilot and no list for everybody: too few calls or training items for them"
        if self.pilot:
            pilot = (
                f"a pilot first: {self.pilot} training queries with each of {self.pilot_demos} demonstrations drawn by "
                "chance say what can be gained, and give one list for everybody"
            )
        training = f"{self.training:,} for training with its pilot"
        if not self.trains:
            training = "none for training"
            if self.training > 1:
                what = "weights of ways of choosing"
                if self.pilot:
                    what = "a pilot"
                training = f"{self.training:,} for {what}"
        return [
            f"{calls:,} calls in all: at most {SELF_TEST} for the self-test, {training}, the choice on "
            f"{self.dev_items} dev items, and one look at {self.test_items} test items",
            pilot,
        ]


def divide(calls: int, seen: SeenData) -> CallShares:
    """So many calls for the pilot, training, dev and test; refused where even the smallest plan takes more.

    The pilot is left out where the calls do not suffice for all of it.
    """
    demos = min(PILOT_DEMOS, seen.train // 4)
    per_query = 1 + demos + LISTS * sum(count > 1 for count in seen.shots)
    fewest, most = PILOT_QUERIES
    affordable = int(PILOT_SHARE * (calls - SELF_TEST)) // per_query
    pilot = min(most, seen.train // 2, affordable)
    asked = pilot * per_query
    if pilot >= fewest and demos >= 2 and calls >= seen.smallest(asked):
        shares = _divide(calls, seen, asked)
        return replace(shares, pilot=pilot, pilot_demos=demos)
    least = seen.smallest()
    if calls < least:
        dev = min(FEWEST, seen.dev)
        test = min(FEWEST, seen.test)
        fewer = "fewer --arms"
        if len(seen.shots) > 1:
            fewer += " or --shots"
        raise LeverError(
            f"{calls:,} calls are too few: the smallest plan for these data takes {least:,} ({SELF_TEST} self-test, "
            f"{seen.training()} training, the rest for {dev} dev and {test} test items, {_prompts(seen)}); give "
            f"--calls {least} or more, or {fewer}"
        )
    return _divide(calls, seen, 0)


def _prompts(seen: SeenData) -> str:
    """How many prompts an item takes, in words."""
    _, prompts = seen.calls(pilot=False)
    numbers = f"{len(seen.shots)} numbers of shots"
    if len(seen.shots) == 1:
        numbers = "one number of shots"
    return f"up to {prompts} prompts for each over all ways of choosing and {numbers}"


def affordable_shots(calls: int, seen: SeenData) -> tuple[int, ...]:
    """Fewer numbers of demonstrations where all of them would leave too few dev items to choose by.

    >>> affordable_shots(1000, SeenData(600, 200, 200, pictures=False))
    (8,)
    """
    shots = seen.shots
    for count in LEFT_OUT:
        per_dev, _ = replace(seen, shots=shots).calls(pilot=True)
        items = int(DEV_SHARE * (calls - SELF_TEST)) // per_dev
        if len(shots) == 1 or items >= min(ENOUGH, seen.dev):
            break
        shots = tuple(own for own in shots if own != count)
    return shots


def _affordable(calls: int, seen: SeenData, say: Say, *, named: bool) -> SeenData:
    """What so many calls pay for: fewer numbers of demonstrations where none were named, then no training."""
    if not named:
        shots = affordable_shots(calls, seen)
        if shots != seen.shots:
            tried = ", ".join(map(str, shots))
            say(
                f"rule: demonstrations: {tried}; with other numbers of them too, {calls:,} calls would leave fewer dev "
                "items to choose by (--shots names them)"
            )
            seen = replace(seen, shots=shots)
    if seen.trains and calls < seen.smallest():
        without = replace(seen, trains=False)
        if calls >= without.smallest():
            say(
                f"rule: no selector is trained, because that takes --calls {seen.smallest():,} or more; the other ways "
                "of choosing are compared"
            )
        return without
    return seen


def _fewest_calls(seen: SeenData, *, named: bool) -> int:
    """The calls of the smallest plan: one number of demonstrations where none were named, and no training."""
    shots = seen.shots if named else affordable_shots(0, seen)
    return replace(seen, shots=shots, trains=False).smallest()


def _calls_of_model(task: Task, calls: int) -> int:
    """Of all calls those for the model: a judge takes as many."""
    if task.answers.metric == "judge":
        return calls // 2
    return calls


def _divide(calls: int, seen: SeenData, pilot: int) -> CallShares:
    """The shares where the pilot takes so many calls, which are enough."""
    per_dev, per_test = seen.calls(pilot=pilot > 0)
    least_dev = min(FEWEST, seen.dev)
    least_test = min(FEWEST, seen.test)
    left = calls - SELF_TEST
    dev_share = DEV_SHARE
    test_share = TEST_SHARE
    if not seen.trains:
        dev_share, test_share = UNTRAINED_SHARES
    dev = max(least_dev, min(seen.dev, MOST_DEV, int(dev_share * left) // per_dev))
    test = max(
        least_test, min(seen.test, MOST_TEST, int(test_share * left) // per_test)
    )
    rest = left - dev * per_dev - test * per_test
    # the minima leave room; shares were rounded in favour of dev and test
    while rest < seen.training(pilot):
        dev = max(least_dev, dev - 1)
        test = max(least_test, test - 1)
        rest = left - dev * per_dev - test * per_test
    if not seen.trains:
        asked = max(1, seen.training(pilot))
        return CallShares(asked, dev, test, FEWEST_QUERIES, trains=False)
    queries = min(MOST_QUERIES, seen.dev, (rest - pilot) // (6 * seen.epochs))
    return CallShares(rest, dev, test, max(FEWEST_QUERIES, queries))


@dataclass(frozen=True)
class Decided:
    """The values of a recipe, and the calls of the smallest plan (0: calls cost nothing)."""

    values: dict[str, Any]
    smallest: int = 0


def decide(
    data: FoundData,
    model: Mapping[str, Any],
    given: Mapping[str, Mapping[str, Any]],
    calls: int | None,
    say: Say,
    *,
    embed: str | None = None,
    no_model: bool = False,
) -> Decided:
    """The recipe of a fit, every rule said. `model` is the backend and its [model]; `given` are values the user set."""
    own = {section: dict(values) for section, values in given.items()}
    task_values = {**data.values, **own.pop("task", {})}
    if task_values.get("metric", "label_accuracy") != "label_accuracy":
        # its answers are judged, not weighed as labels
        task_values["name"] = task_values["name"].replace("labels", "jsonl")
    rule = ""
    if (
        data.answers is not None
        and "cut" not in task_values
        and not data.answers.labels
    ):
        cut = choose_cut(data.answers, data.items)
        task_values["cut"] = cut.value
        rule = cut.why
    task = read_task(task_values, data)
    for line in describe_task(task):
        say(f"data: {line}")
    if rule:
        say(f"rule: {rule}")
    items: list[Item] = []
    for split in SPLITS:
        items += task.items(split)
    shown = any(item.image is not None for item in items)
    embed_values, sees = choose_encoder(embed, task, say, shown=shown)
    values = {**model["model"], **own.pop("model", {})}
    backend = model["backend"]
    if shown and backend in ("hf", "openai", "callable"):
        values["prompt"] = "chat"
    require_model_values(backend, values)
    probe = probe_model(backend, values, task, _quiet if no_model else say)
    values = probe.values
    if backend not in ("table", "world"):
        kind = data.answers or kind_of_answers(items)
        form, rule = choose_form(probe, kind, task, items, texts=data.texts)
        values.update(form)
        say(f"rule: {rule}")
        if "max_new_tokens" not in values and backend != "callable":
            length = choose_length(items, probe.count)
            values["max_new_tokens"] = length.value
            say(f"rule: {length.why}")
    evaluation = own.get("eval", {})
    named = evaluation.get("shots")
    most = own.get("pool", {}).get("size", max(SHOTS))
    shots = tuple(named or [count for count in SHOTS if count <= most])
    if backend == "table" and not named:
        shots = (1,)
    section = ModelSection(**values)
    shots = fitting_shots(probe, section, task, shots, say, named=bool(named))
    train, dev, test = (len(task.items(split)) for split in SPLITS)
    dev = min(dev, evaluation.get("dev_items", dev))
    test = min(test, evaluation.get("items") or test)
    arms = tuple(evaluation.get("arms", ()))
    stages = own.get("train", {}).get("stages")
    trains = is_installed("torch") and not no_model and stages != []
    if trains and arms and not stages and not _learn_from_answers(arms):
        trains = False
        say("rule: no selector is trained, because none of --arms needs it")
    seen = SeenData(train, dev, test, sees, task.answers.kind, arms, shots, trains)
    if backend != "table" and not no_model:
        allowed = _calls_of_model(task, calls or CALLS)
        seen = _affordable(allowed, seen, say, named=bool(named))
        shots = seen.shots
    shares = _share_calls(backend, seen, task, calls, say, no_model=no_model)
    smallest = 0
    if backend != "table" and not no_model:
        smallest = _fewest_calls(seen, named=bool(named))
        if task.answers.metric == "judge":
            smallest *= 2
    recipe: dict[str, Any] = {
        "purpose": "Made by `lever fit`; edit it and type the same command, or `lever run` this file.",
        "extends": BASE,
        "task": task_values,
        "embed": embed_values,
        "model": values,
        "score": {
            "backend": backend,
            "budget": shares.training,
            "pilot": shares.pilot,
            "dev_queries": shares.dev_queries,
        },
        "eval": {
            "shots": list(shots),
            "items": shares.test_items,
            "dev_items": shares.dev_items,
        },
        **_training(probe.backend, seen, task, say, weighs=probe.weighs),
    }
    if shares.pilot:
        recipe["score"]["pilot_demos"] = shares.pilot_demos
    for name, table in own.items():
        recipe[name] = {**recipe.get(name, {}), **table}
        for key, value in table.items():
            say(f"rule: {name}.{key} = {value}, as you set it")
    if backend == "table" or not recipe["train"]["stages"]:
        recipe["score"]["rounds"] = 0
    return Decided(recipe, smallest)


def _quiet(_: str) -> None:
    """Say nothing: a fit without a model has nothing to say of one."""


def _learn_from_answers(arms: Sequence[str]) -> bool:
    """Whether one of these arms learns from what the model answers to training questions."""
    return any(open_arm(spec).needs.training for spec in arms)


def require_model_values(backend: str, values: Mapping[str, Any]) -> None:
    """Refuse settings of a model that make no sense, before anything is asked; a server may still say its name."""
    problems: list[str] = []
    named = {**values, "name": values.get("name") or "any"}
    section = read_section(ModelSection, named, "model.", problems)
    if section is not None:
        problems = section.problems(backend)
    if problems:
        raise WrongUsage("; ".join(problems))


def _training(
    backend: str, seen: SeenData, task: Task, say: Say, *, weighs: bool
) -> dict[str, Any]:
    """Candidates, fields and stages of the selector that is trained, and what it learns from."""
    kind = "nearest_text"
    if seen.pictures:
        kind = "nearest_both"
    if backend == "table":
        kind = "recorded"
    size = min(seen.base.pool.size, max(2, seen.train - 1))
    fields = ["image", "text"] if seen.pictures else ["text"]
    select = {
        "query_fields": fields,
        "demo_fields": [*fields, "answer"],
        "max_shots": max(8, *seen.shots),
    }
    found: dict[str, Any] = {"pool": {"kind": kind, "size": size}, "select": select}
    if not seen.trains:
        found["train"] = {"stages": []}
        if not is_installed("torch"):
            say(
                f"rule: no selector is trained, because torch is not installed; `{install_command('train')}` adds that "
                "way of choosing to those that are compared"
            )
        return found
    reward = "soft_only"
    what = (
        "accuracy alone, because the model gives no log-probabilities of given answers"
    )
    if weighs:
        labels = getattr(task, "labels", ())
        reward = "gt_prob"
        if labels:
            reward = "choice_prob"
        what = f"the probability of the true {'label' if labels else 'answer'}"
    say(f"rule: learnt from {what}; a query's candidates are {size} at most ({kind})")
    found["reward"] = {"mode": reward}
    stages = list(seen.base.stages)
    if answers_recur(task):
        say(
            "rule: training: labels alone first, which asks nothing; then the model's answers, asked where they tell most"
        )
    else:
        stages.remove("label_pretraining")
        say(
            "rule: training: from the model's answers, asked where they tell most; not from labels alone, because "
            "nearly all answers are different"
        )
    found["train"] = {"stages": stages}
    return found


def _share_calls(
    backend: str,
    seen: SeenData,
    task: Task,
    given: int | None,
    say: Say,
    *,
    no_model: bool,
) -> CallShares:
    """How the calls are divided."""
    if no_model:
        return CallShares(1000, seen.dev, seen.test, FEWEST_QUERIES)
    if backend == "table":
        say(
            "rule: a recorded table costs nothing, so calls are not divided; it is asked with one demonstration, "
            "because longer lists are recorded for few choices (--shots)"
        )
        return CallShares(TABLE_CALLS, 200, 0, min(64, seen.dev))
    whole = given or CALLS
    calls = _calls_of_model(task, whole)
    smallest = seen.smallest()
    if task.answers.metric == "judge":
        if calls < smallest:
            raise LeverError(
                f"{whole:,} calls are too few: the smallest plan for these data takes {2 * smallest:,}, half of them "
                f"for the judge; give --calls {2 * smallest} or more, or fewer --shots"
            )
        say(
            f"rule: every answer may take a call of the judge too, so {calls:,} calls are for the model and as many "
            "for the judge"
        )
    shares = divide(calls, seen)
    for line in shares.lines(calls):
        say(f"rule: {line}")
    return shares
