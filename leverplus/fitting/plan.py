"""The rules by which a fit decides: data, model and a number of calls in, a recipe and the reasons out.

All calls count: the self-test, training, the choice on dev and the one look at test. Every part is an upper bound, so
that the number a user gives is never passed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from leverplus.errors import LeverError, WrongUsage
from leverplus.recipe.recipe import LISTS
from leverplus.recipe.sections import TEXT_SHARES
from leverplus.rundir import SHIPPED, shipped

SELF_TEST = 256
"""Most calls of the test that every new model has to pass."""

CALLS = 6000
"""Calls where nobody says how many."""

FEWEST = 20
"""Fewest items of dev and of test that a choice and a figure are made on."""

POOL = 16
PILOT_SHARE, PILOT_DEMOS = 0.1, 10
PILOT_QUERIES = (8, 60)
"""Fewest and most training queries of the pilot; where a tenth of the calls pays for fewer there is none."""
YOURS = "your instruction stands before them word for word, and zero-shot is your instruction alone"
STAGE_EPOCHS = {"label_pretraining": 4, "listwise": 6}
EPOCHS = sum(count + 1 for count in STAGE_EPOCHS.values())
"""How often training is judged on dev at most: after every epoch, and once more for each stage."""
DEV_SHARE, TEST_SHARE = 0.25, 0.3
MOST_DEV, MOST_TEST = 200, 500


@dataclass(frozen=True)
class SeenData:
    """What the rules look at: the data, and what the model can do."""

    task: str
    train: int
    dev: int
    test: int
    labels: tuple[str, ...]
    pictures: bool
    """Whether items have pictures and the embedder sees them."""
    shown: bool
    """Whether items have pictures at all, so that prompts show them."""
    weighs: bool
    """Whether the model gives the log-probability of given answers."""
    texts: bool = False
    """Whether prompts speak of texts and labels instead of questions and answers."""


@dataclass(frozen=True)
class SplitShares:
    """How the calls are divided."""

    training: int
    dev_items: int
    test_items: int
    dev_queries: int
    pilot: int = 0
    pilot_demos: int = PILOT_DEMOS
    too_few: str = "calls"
    """What a pilot lacks where there is none."""

    def rule(self, calls: int) -> str:
        return (
            f"{calls:,} calls in all: at most {SELF_TEST} for the self-test, {self.training:,} for training"
            f"{' with its pilot' if self.pilot else ''}, the choice on {self.dev_items} dev items, and one look at "
            f"{self.test_items} test items"
        )

    def pilot_rule(self) -> str:
        if not self.pilot:
            lacking = {"calls": "a tenth of the calls is too little", "data": "the training items are too few"}
            return f"no pilot and no list for everybody: {lacking[self.too_few]} for them"
        return (
            f"a pilot first: {self.pilot} training queries with each of {self.pilot_demos} demonstrations drawn by "
            "chance say what can be gained, and give one list for everybody"
        )


def model_values(model: str) -> dict[str, Any]:
    """The backend and the [model] section that a MODEL names: URL#NAME, table:FILE, or a local model.

    A URL without a name is a server that is asked what it serves; the name is then "".
    """
    if model.startswith(("http://", "https://")):
        address, _, name = model.partition("#")
        if not urlsplit(address).hostname:
            raise WrongUsage(f"--model {model[:100]}: write the server's address and the model's name as URL#NAME")
        return {"backend": "openai", "model": {"url": address, "name": name}}
    if model.startswith(SHIPPED):
        files = sorted(shipped(model).parent.glob(f"{shipped(model).name}*.parquet"))
        if not files:
            raise WrongUsage(f"--model {model}: no recorded table of this name comes with the package")
        return {"backend": "table", "model": {"name": ",".join(f"{SHIPPED}{path.name}" for path in files)}}
    if model.startswith("table:"):
        return {"backend": "table", "model": {"name": model.removeprefix("table:")}}
    if model == "world":
        return {"backend": "world", "model": {}}
    if not model.strip():
        raise WrongUsage("--model is empty; give a folder, a GGUF file, a hub's name, URL#NAME or table:FILE")
    if re.match(r"[A-Za-z0-9_.-]+:[0-9]+(/|#|$)", model) and not Path(model).exists():
        address, _, name = model.partition("#")
        address = address.rstrip("/").removesuffix("/v1") + "/v1"
        raise WrongUsage(f"--model {model[:100]}: did you mean http://{address}{f'#{name}' if name else ''}?")
    return {"backend": "hf", "model": {"name": model}}


def asked_per_item(shots: Sequence[int], pictures: bool, pilot: bool = False) -> int:
    """Most calls of one item over all ways of choosing; the forecast counts the same."""
    return 1 + (6 + (3 if pictures else 0) + (1 if pilot else 0)) * len(shots)


def divide(calls: int, seen: SeenData, shots: Sequence[int]) -> SplitShares:
    """So many calls for the pilot, training, dev and test; refused where even the smallest plan takes more.

    The pilot is left out where the calls do not suffice for all of it.
    """
    demos = min(PILOT_DEMOS, seen.train // 4)
    per_query = 1 + demos + LISTS * sum(count > 1 for count in shots)
    fewest, most = PILOT_QUERIES
    pilot = min(most, seen.train // 2, int(PILOT_SHARE * (calls - SELF_TEST)) // per_query)
    if pilot >= fewest and demos >= 2:
        with suppress(LeverError):
            return replace(_divide(calls, seen, shots, pilot * per_query), pilot=pilot, pilot_demos=demos)
    enough_data = demos >= 2 and seen.train // 2 >= fewest
    return replace(_divide(calls, seen, shots, 0), too_few="calls" if enough_data else "data")


def smallest_plan(seen: SeenData, shots: Sequence[int]) -> int:
    """The fewest calls that a fit of these data can do with: no pilot, the fewest items of dev and test."""
    per_dev, per_test = _asked_per_split(seen, shots, pilot=False)
    few_dev, few_test = min(FEWEST, seen.dev), min(FEWEST, seen.test)
    return SELF_TEST + few_dev * per_dev + few_test * per_test + _training(4)


def _asked_per_split(seen: SeenData, shots: Sequence[int], *, pilot: bool) -> tuple[int, int]:
    """Most calls of a dev item and of a test item."""
    per_test = asked_per_item(shots, seen.pictures, pilot)
    return per_test + (len(TEXT_SHARES) * len(shots) if seen.pictures else 0), per_test


def _training(queries: int, pilot: int = 0) -> int:
    """Fewest calls of training that is judged on so many dev queries."""
    return pilot + queries * EPOCHS + 4 * (POOL + 1)


def _divide(calls: int, seen: SeenData, shots: Sequence[int], pilot: int) -> SplitShares:
    """The same where the pilot takes so many calls."""
    per_dev, per_test = _asked_per_split(seen, shots, pilot=pilot > 0)
    few_dev, few_test = min(FEWEST, seen.dev), min(FEWEST, seen.test)
    smallest = SELF_TEST + few_dev * per_dev + few_test * per_test + _training(4, pilot)
    if calls < smallest:
        raise LeverError(
            f"{calls:,} calls are too few: the smallest plan for these data takes {smallest:,} ({SELF_TEST} self-test, "
            f"{_training(4, pilot)} training, {few_dev * per_dev} for {few_dev} dev items, {few_test * per_test} for "
            f"{few_test} test items, all with {len(shots)} numbers of shots); give --calls {smallest} or more, or "
            "fewer --shots"
        )
    left = calls - SELF_TEST
    dev = max(few_dev, min(seen.dev, MOST_DEV, int(DEV_SHARE * left) // per_dev))
    test = max(few_test, min(seen.test, MOST_TEST, int(TEST_SHARE * left) // per_test))
    rest = left - dev * per_dev - test * per_test
    while rest < _training(4, pilot):  # the minima above leave room; shares were rounded in favour of dev and test
        dev, test = max(few_dev, dev - 1), max(few_test, test - 1)
        rest = left - dev * per_dev - test * per_test
    queries = max(4, min(16, seen.dev, (rest - pilot) // (6 * EPOCHS)))
    return SplitShares(rest, dev, test, queries)


def recipe_values(
    sections: Mapping[str, Mapping[str, Any]], seen: SeenData, shares: SplitShares, shots: Sequence[int]
) -> tuple[dict[str, Any], list[str]]:
    """The recipe of a fit and the rules behind it, one sentence each; `sections` has task, embed and model."""
    rules = []
    data, embed, model = sections["task"], sections["embed"], sections["model"]
    section = dict(model["model"])
    if model["backend"] in ("hf", "openai"):
        rules.append(_prompt(section, seen))
    reward = "soft_only"
    if seen.weighs:
        reward = "choice_prob" if seen.labels else "gt_prob"
    rules.append(_reward_rule(reward, seen))
    kind = "nearest_both" if seen.pictures else "nearest_text"
    if model["backend"] == "table":
        kind = "recorded"
    size = min(POOL, max(2, seen.train - 1))
    if kind == "recorded":
        rules.append("candidates are what the table holds")
    else:
        rules.append(f"a query's candidates are its {size} nearest ({kind})")
    fields = ["image", "text"] if seen.pictures else ["text"]
    rounds = {} if kind == "recorded" else {"rounds": 4, "first_share": 0.1, "best": 4, "chance": 1}
    values: dict[str, Any] = {
        "purpose": "Made by `lever fit`; edit it and type the same command, or `lever run` this file.",
        "task": dict(data),
        "embed": dict(embed),
        "model": section,
        "pool": {"kind": kind, "size": size},
        "score": {
            "backend": model["backend"],
            "budget": shares.training,
            "search": "dense",
            **rounds,
            **({"pilot": shares.pilot, "pilot_demos": shares.pilot_demos} if shares.pilot else {}),
            "dev_queries": shares.dev_queries,
            "dev_shots": [1],
        },
        "select": {
            "preset": "bi_encoder_gate",
            "state": "none",
            "query_fields": fields,
            "demo_fields": [*fields, "answer"],
            "temperature": 0.1,
            "dropout": 0.3,
        },
        "reward": {"mode": reward},
        "train": {"stages": list(STAGE_EPOCHS)},
        "label_pretraining": {"epochs": STAGE_EPOCHS["label_pretraining"], "weight_decay": 0.3, "keep": "last"},
        "listwise": {
            "epochs": STAGE_EPOCHS["listwise"],
            "lr": 0.0003,
            "among": "pairs",
            "weight_decay": 0.3,
            "keep": "last",
        },
        "eval": {
            "items": shares.test_items,
            "shots": list(shots),
            "random_draws": 1,
            "oracle": False,
            "exhaustive_calls": 0,
            "diagnostics": False,
            "dev_items": shares.dev_items,
        },
    }
    if not section:
        del values["model"]
    rules.append(
        "training: labels alone first, which asks nothing; then the model's answers, asked where they tell most"
    )
    return values, rules


def _prompt(section: dict[str, Any], seen: SeenData) -> str:
    """Set the prompt form and say why; an instruction of the user's own is taken word for word."""
    yours = section.get("instruction", "")
    if section.get("prompt") == "chat" or seen.shown:
        section["prompt"] = "chat"
        why = "items have pictures" if seen.shown else "the server weighs no answers in plain texts"
        if yours:
            return f"prompts are chats, because {why}; {YOURS}"
        named = f"one of: {', '.join(seen.labels)}" if seen.labels else "one word or a short phrase"
        section["instruction"] = f"Answer with {named}."
        return f"prompts are chats, because {why}; the instruction is: {section['instruction']}"
    if seen.texts:
        section["template"] = "Text: {question}\nLabel: {answer}\n\n"
    plain = "prompts are plain texts: demonstrations one after the other, then the query"
    return f"{plain}; {YOURS}" if yours else plain


def _reward_rule(reward: str, seen: SeenData) -> str:
    what = {
        "choice_prob": "the probability of the true label among all labels, because the model weighs labels",
        "gt_prob": "the probability of the true answer, because the model gives log-probabilities",
        "soft_only": "accuracy alone, because the model gives no log-probabilities of given answers",
    }
    as_texts = " (labels are asked for as texts)" if seen.labels and not seen.weighs else ""
    return f"learnt from {what[reward]}{as_texts}"
