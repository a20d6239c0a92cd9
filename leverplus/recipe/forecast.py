"""How many prompts a recipe asks of the frozen model, part by part, before the first one is asked.

A call is a distinct prompt, as everywhere; what the store holds already is not asked again. `exact` numbers follow from
the recipe and the data; the others are upper bounds, because ways of choosing often choose the same demonstrations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leverplus.recipe.idle import embeds_pictures
from leverplus.recipe.sections import TEXT_SHARES

if TYPE_CHECKING:
    from leverplus.recipe.recipe import Recipe

SEARCH = "search"
"""The part that `lever score` asks."""

CHARACTERS_A_TOKEN = 4.0
"""English text; what a tokeniser makes of other texts differs by a factor of two and more."""


@dataclass(frozen=True)
class DataSizes:
    """What the data add to a recipe: items of each split, and whether any of them has a picture."""

    train: int
    dev: int
    test: int
    pictures: bool


@dataclass(frozen=True)
class ForecastPart:
    """Calls of one part of a run; None where only the data tell. `demos` is how many demonstrations a prompt shows."""

    what: str
    calls: int | None
    exact: bool
    demos: float


@dataclass(frozen=True)
class TextLengths:
    """How long the data are: characters of a written demonstration, and how often a server reads a prompt."""

    characters: float
    readings: float


def forecast(recipe: Recipe, sizes: DataSizes | None = None) -> list[ForecastPart]:
    """Every part of `lever run` that asks the model; without `sizes` what the recipe alone tells."""
    section, size = recipe.eval, recipe.pool.size
    shots, most = section.shots, max(section.shots)
    mean = sum(shots) / len(shots)
    test = _at_most(section.items, sizes.test if sizes else None)
    dev = _at_most(section.dev_items, sizes.dev if sizes else None)
    pictures = embeds_pictures(recipe) and (sizes is None or sizes.pictures)
    shares = (dev or 0) * len(TEXT_SHARES) * len(shots) if pictures else 0
    parts = [
        *_training(recipe, sizes),
        ForecastPart("comparing ways of choosing", _times(test, _asked(recipe, pictures)), False, mean),
        ForecastPart("the weight of pictures, on dev", shares, False, mean),
    ]
    if section.oracle:
        calls = sum(size - step for step in range(most))  # greedy: every candidate that is left, at every place
        pairs = size * (size - 1) if 2 in shots else 0
        pairs = pairs if (test or 0) * pairs <= section.exhaustive_calls else 0
        parts.append(ForecastPart("oracle", _times(test, calls + pairs), False, (1 + most) / 2))
    if section.diagnostics:
        asked = _least(section.diagnostic_items, test)
        groups = recipe.score.groups != ""  # how many were imported is not known here
        trained = section.diagnostic_items if groups else _least(section.diagnostic_items, _queries(recipe, sizes))
        # other orders of every list, the picks for another query, and zero-shot and the picks on training queries
        calls = asked * (sum(other_orders(n) for n in shots) + len(shots)) + trained * (1 + len(shots))
        parts.append(ForecastPart("diagnostics", calls, False, mean))
    if section.advice:
        parts.append(ForecastPart("advice, on dev", _times(dev, _asked(recipe, pictures, draws=1)), False, mean))
    return [part for part in parts if part.calls != 0]


def other_orders(shots: int) -> int:
    """Orders that the diagnostics try beside the chosen one: all up to 3, else rotations and the reverse."""
    return math.factorial(shots) - 1 if shots <= 3 else shots


def _training(recipe: Recipe, sizes: DataSizes | None) -> list[ForecastPart]:
    """The search before training, the rounds within it, and the judging of every epoch on dev."""
    section, cost = recipe.score, recipe.score.cost(recipe.pool.size)
    judged = recipe.dev_reserve() // section.dev_queries * _least(section.dev_queries, sizes.dev if sizes else None)
    searched = _queries(recipe, sizes) * cost
    # mixed sources may draw one list twice, and mining ends when it has found something
    exact = sizes is not None and section.search != "mixed" and not section.mine
    demos = 1.0 if section.search == "dense" else float(section.shots)
    longest = max(recipe.eval.shots)
    parts = [
        ForecastPart("pilot", recipe.pilot_calls(), False, (1 + longest) / 2),
        ForecastPart(SEARCH, searched, exact, demos),
    ]
    if section.rounds:
        asked = section.budget - recipe.reserve() - searched
        if sizes is not None and section.depth == 1:  # then every training query has one turn
            asked = min(asked, (sizes.train - _queries(recipe, sizes)) * (section.best + section.chance + 1))
        parts.append(ForecastPart("rounds of asking", asked, False, (1 + section.depth) / 2))
    dev_shots = sum(section.dev_shots) / len(section.dev_shots)
    return [*parts, ForecastPart("judging on dev", judged, False, dev_shots)]


def _queries(recipe: Recipe, sizes: DataSizes | None) -> int:
    """Training queries that are searched; without `sizes` as many as the budget pays for."""
    section, cost = recipe.score, recipe.score.cost(recipe.pool.size)
    if section.groups:
        return 0
    share = section.first_share if section.rounds else 1.0
    affordable = max(1, int(share * (section.budget - recipe.reserve())) // cost)
    wanted = min(affordable, section.queries or affordable)
    return wanted if sizes is None else min(wanted, sizes.train)


def _asked(recipe: Recipe, pictures: bool, draws: int | None = None) -> int:
    """Calls per item over all ways of choosing that ask the model, the oracle left out."""
    section = recipe.eval
    ways = (section.random_draws if draws is None else draws) + 3  # and nearest by text, MMR, the selector
    ways += 3 if pictures else 0  # nearest by picture, by both, two stages
    ways += 1 if recipe.select.stop != "never" else 0  # the selector with its own count
    ways += 1 if recipe.score.pilot else 0  # one list for everybody
    ways += 2 if section.ranked else 0  # by labels, by labels and effects
    return 1 + ways * len(section.shots)  # and once without demonstrations


def _at_most(wanted: int, there: int | None) -> int | None:
    """Items of a split: `wanted` (0: all) of as many as there are, if anybody knows."""
    if there is None:
        return wanted or None
    return min(wanted, there) if wanted else there


def _least(wanted: int, there: int | None) -> int:
    return wanted if there is None else min(wanted, there)


def _times(items: int | None, calls: int) -> int | None:
    return None if items is None else items * calls


def as_json(parts: Sequence[ForecastPart]) -> dict[str, Any]:
    """What `lever check --json` says; `open` names the parts of which only the data tell."""
    return {
        "calls": sum(part.calls or 0 for part in parts),
        "exact": all(part.exact for part in parts),
        "open": [part.what for part in parts if part.calls is None],
        "parts": [{"what": part.what, "calls": part.calls, "exact": part.exact} for part in parts],
    }


def line(parts: Sequence[ForecastPart], replayed: bool = False) -> str:
    """The forecast in one sentence; `replayed` where the answers are those of a recorded table."""
    total = sum(part.calls or 0 for part in parts)
    shown = []
    for part in parts:
        if part.calls is None:
            shown.append(f"{part.what} as many as the data have items")
        else:
            bound = "" if part.exact else "at most "
            shown.append(f"{part.what} {bound}{part.calls:,}")
    bound = "" if all(part.exact for part in parts) else "at most "
    end = "what is stored already is not asked again"
    if replayed:
        end = "all are replayed from recorded answers and cost nothing"
    return f"{bound}{total:,} calls ({'; '.join(shown)}); {end}"


def price(parts: Sequence[ForecastPart], prices: Mapping[str, float], texts: TextLengths, written: int) -> float:
    """What all parts may cost at `prices` (price_in, price_out) of a million tokens; rough, and without pictures."""
    total = 0.0
    for part in parts:
        # tokens of the demonstrations and the query, as often as a server reads them
        read = (1 + part.demos) * texts.characters / CHARACTERS_A_TOKEN * texts.readings
        total += (part.calls or 0) * (read * prices["price_in"] + written * prices["price_out"]) / 1e6
    return total
