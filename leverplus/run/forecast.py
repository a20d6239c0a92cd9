"""How many prompts a recipe asks of the frozen model, part by part, and what they may cost, before the first is asked.

A call is a distinct prompt, as everywhere; what the store holds already is not asked again. `exact` numbers follow from
the recipe and the data; the others are upper bounds, because ways of choosing often choose the same demonstrations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from leverplus.arms.base import Outlook
from leverplus.arms.spec import arms_of, fit_calls
from leverplus.data.types import ItemId
from leverplus.evaluate.regret import orders
from leverplus.evaluate.settings import TEXT_SHARES
from leverplus.run.rules import embeds_pictures

if TYPE_CHECKING:
    from leverplus.run.recipe import Recipe
    from leverplus.run.run import Run

SEARCH = "search"
"""The part that `lever score` asks."""

CHARACTERS_A_TOKEN = 4.0
"""English text; what a tokeniser makes of other texts differs by a factor of two and more."""

LOOKED_AT = 200
"""Items whose length a rough price goes by."""

MANY = 10**9
"""Stands for the items of data that nobody has read yet."""


@dataclass(frozen=True)
class DataSizes:
    """What the data add to a recipe: items of each split, whether any has a picture, and the kind of the answers."""

    train: int = MANY
    dev: int = MANY
    test: int = MANY
    pictures: bool = True
    answers: str = "short"


@dataclass(frozen=True)
class ForecastPart:
    """Calls of one part of a run; None where only the data tell. `demos` is how many demonstrations a prompt shows."""

    what: str
    calls: int | None
    demos: float
    exact: bool = False


def forecast(recipe: Recipe, sizes: DataSizes | None = None) -> list[ForecastPart]:
    """Every part of `lever run` that asks the model; without `sizes` what the recipe alone tells."""
    sizes = sizes or DataSizes()
    section = recipe.eval
    size = recipe.pool.size
    shots = section.shots
    most = max(section.shots)
    mean = fmean(section.shots)
    test = min(section.items or sizes.test, sizes.test)
    dev = min(section.dev_items, sizes.dev)
    pictures = embeds_pictures(recipe) and sizes.pictures
    trains = bool(recipe.stages)
    stops = recipe.select.stop != "never"
    outlook = Outlook(pictures, trains, stops, bool(recipe.score.pilot))

    def asked(draws: int) -> int:
        return calls_per_question(section.arms, shots, outlook, sizes.answers, draws)

    parts = _training_parts(recipe, sizes)
    compared = test * asked(section.random_draws)
    parts.append(ForecastPart("comparing ways of choosing", compared, mean))
    if pictures:
        shares = dev * len(TEXT_SHARES) * len(shots)
        parts.append(ForecastPart("the weight of pictures, on dev", shares, mean))
    if section.oracle:
        # greedy: every candidate that is left, at every place; all ordered pairs where they are few
        calls = most * size - most * (most - 1) // 2
        pairs = size * (size - 1)
        if 2 in shots and test * pairs <= section.exhaustive_calls:
            calls += pairs
        parts.append(ForecastPart("oracle", test * calls, (1 + most) / 2))
    if section.oracle and section.diagnostics and trains:
        others = 0
        for count in shots:
            others += len(orders(tuple(ItemId(str(n)) for n in range(count))))
        calls = min(section.diagnostic_items, test) * others
        parts.append(ForecastPart("diagnostics", calls, mean))
    if section.advice:
        parts.append(ForecastPart("advice, on dev", dev * asked(1), mean))
    found = []
    for part in parts:
        if part.calls is not None and part.calls >= MANY:
            part = ForecastPart(part.what, None, part.demos)  # noqa: PLW2901
        if part.calls != 0:
            found.append(part)
    return found


def _training_parts(recipe: Recipe, sizes: DataSizes) -> list[ForecastPart]:
    """The pilot, the search before training, the rounds within it, and the judging of every epoch on dev."""
    score = recipe.score
    cost = recipe.score.cost(recipe.pool.size)
    longest = max(recipe.eval.shots)
    pilot = ForecastPart("pilot", recipe.pilot_calls(), (1 + longest) / 2)
    weights = fit_calls(recipe.eval.arms)
    weighed = ForecastPart("weights of arms", weights, fmean(recipe.eval.shots))
    if not recipe.stages:
        return [pilot, weighed]
    queries = 0
    if not score.groups:
        share = score.first_share if score.rounds else 1.0
        affordable = max(1, int(share * (score.budget - recipe.reserve())) // cost)
        queries = min(affordable, score.queries or affordable, sizes.train)
    # mixed sources may draw one list twice, and mining ends when it has found something
    exact = sizes.train < MANY and score.search != "mixed" and not score.mine
    demos = 1.0 if score.search == "dense" else float(score.shots)
    searched = queries * cost
    parts = [pilot, weighed, ForecastPart(SEARCH, searched, demos, exact)]
    if score.rounds:
        # every other training query has one turn
        turns = (sizes.train - queries) * (score.best + score.chance + 1)
        left = score.budget - recipe.reserve() - searched
        parts.append(ForecastPart("rounds of asking", min(left, turns), 1.0))
    judged = recipe.dev_reserve() // score.dev_queries
    judged *= min(score.dev_queries, sizes.dev)
    return [*parts, ForecastPart("judging on dev", judged, fmean(score.dev_shots))]


def calls_per_question(
    arms: Sequence[str], shots: Sequence[int], outlook: Outlook, kind: str, draws: int
) -> int:
    """Most calls of one question over all ways of choosing that ask the model, the oracle left out."""
    calls = 0
    for arm in arms_of(arms, trains=outlook.trains, kind=kind):
        if arm.is_possible(outlook):
            calls += arm.calls * len(arm.shots(shots)) * len(arm.draws(draws))
    return calls


def as_json(parts: Sequence[ForecastPart]) -> dict[str, Any]:
    """What `lever check --json` says; `open` names the parts of which only the data tell."""
    found: dict[str, Any] = {"calls": 0, "exact": True, "open": [], "parts": []}
    for part in parts:
        row = {"what": part.what, "calls": part.calls, "exact": part.exact}
        found["parts"].append(row)
        found["calls"] += part.calls or 0
        found["exact"] = found["exact"] and part.exact
        if part.calls is None:
            found["open"].append(part.what)
    return found


def line(parts: Sequence[ForecastPart], replayed: bool = False) -> str:
    """The forecast in one sentence; `replayed` where the answers are those of a recorded table."""
    shown = []
    for part in parts:
        bound = "at most "
        if part.exact:
            bound = ""
        if part.calls is None:
            shown.append(f"{part.what} as many as the data have items")
        else:
            shown.append(f"{part.what} {bound}{part.calls:,}")
    known = as_json(parts)
    bound = "at most "
    if known["exact"]:
        bound = ""
    end = "what is stored already is not asked again"
    if replayed:
        end = "all are replayed from recorded answers and cost nothing"
    return f"{bound}{known['calls']:,} calls ({'; '.join(shown)}); {end}"


def forecast_calls(run: Run) -> list[ForecastPart]:
    """What the whole run may ask of the model, by the recipe and the data; asks nothing."""
    task = run.task
    train, dev, test = map(len, map(task.items, ("train", "dev", "test")))
    pictures = any(item.image is not None for item in run.demonstrations)
    kind = task.answers.kind
    return forecast(run.recipe, DataSizes(train, dev, test, pictures, kind))


def forecast_line(run: Run, only: str | None = None) -> str:
    """What is going to be asked of the model, in a sentence: of the whole run, or of one part of it."""
    parts = [part for part in forecast_calls(run) if only in (None, part.what)]
    cost = rough_price(run, parts)
    said = f"forecast: {line(parts, run.recipe.score.backend == 'table')}"
    if cost is not None:
        said += (
            f"; roughly {cost:,.2f} at the prices of the recipe, pictures not counted"
        )
    return said


def rough_price(run: Run, parts: Sequence[ForecastPart]) -> float | None:
    """What these parts may cost at the recipe's prices, by the length of some items; None where none are given."""
    section = run.recipe.model
    some = run.demonstrations[:LOOKED_AT]
    if not some or not section.price_in + section.price_out:
        return None
    letters = fmean(len(item.question) + len(item.answer) for item in some)
    tokens = (len(section.template) + letters) / CHARACTERS_A_TOKEN
    if section.logprobs != "never":
        # a server that weighs answers reads the prompt once for each, and once more where the answer is written
        answers = 1 + fmean(len(set(item.answers)) for item in some)
        tokens *= len(getattr(run.task, "labels", ())) or answers
    written = section.max_new_tokens * section.price_out
    total = 0.0
    for part in parts:
        read = (1 + part.demos) * tokens * section.price_in
        total += (part.calls or 0) * (read + written) / 1e6
    return total
