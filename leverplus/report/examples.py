"""Single queries with what every arm showed and got, and the demonstrations used most."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leverplus.evaluation.names import arm_name, shots_name
from leverplus.evaluation.predictions import Results
from leverplus.report.pictures import Pictures
from leverplus.report.tables import Table

EXAMPLES = 30
MOST_USED = 12
QUESTION, SHORT = 2_000, 160
"""Characters shown of a query's question and of every other text."""


@dataclass(frozen=True)
class Card:
    """An item as it is shown: its picture's class, its question, its answers."""

    id: str
    picture: str
    question: str
    answer: str
    note: str = ""


@dataclass(frozen=True)
class ArmRow:
    """What one arm showed for a query, in prompt order, what the model answered and its accuracy."""

    arm: str
    demos: Sequence[Card]
    answer: str
    score: float

    @property
    def mark(self) -> str:
        """Right, partly or wrong: an accuracy of 1, between, or 0."""
        return "right" if self.score >= 1.0 - 1e-6 else "partly" if self.score > 0 else "wrong"


@dataclass(frozen=True)
class Example:
    """A query, how the learned arm fared on it against the headline's baseline, and every arm by shots.

    `gist` is what the two answered where they are compared.
    """

    query: Card
    fate: str
    gist: Sequence[ArmRow]
    shots: Sequence[tuple[str, Sequence[ArmRow]]]


def shorten(text: str, limit: int) -> str:
    """The text, or its beginning with its length where it is longer."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


def card(pictures: Pictures, item_id: str, limit: int = SHORT, note: str = "") -> Card:
    """An item as a card; its id alone where the task does not know it."""
    item = pictures.item(item_id)
    if item is None:
        return Card(item_id, "", item_id, "", note)
    counts = Counter(item.answers).most_common()
    shown = item.answer if limit == SHORT and counts else ", ".join(_times(*pair) for pair in counts)
    return Card(item_id, pictures.css_class(item), shorten(item.question, limit), shorten(shown, SHORT), note)


def _times(answer: str, count: int) -> str:
    return answer if count == 1 else f"{answer} ×{count}"


def fates(results: Results, headline: Mapping[str, Any] | None) -> dict[str, str]:
    """Whether the learned arm helped or harmed each item against the headline's baseline; {} without a headline."""
    if headline is None or any(a not in results.draws for a in ("learned", headline["baseline"])):
        return {}
    shots = headline["shots"]
    against = results.against(headline["baseline"], shots)
    if against is None:
        return {}
    gains = results.accuracy("learned", shots) - results.accuracy(headline["baseline"], against)
    return {
        item: "helped" if gain > 1e-6 else "harmed" if gain < -1e-6 else "same"
        for item, gain in zip(results.items, gains, strict=True)
    }


def chosen_items(items: Sequence[str], fate: Mapping[str, str], count: int = EXAMPLES) -> list[str]:
    """A third helped, a third harmed, a third unchanged, drawn by a hash of their ids; filled up where one runs out."""
    order = sorted(items, key=lambda item: hashlib.sha256(item.encode()).digest())
    kinds = {kind: [item for item in order if fate.get(item, "same") == kind] for kind in ("helped", "harmed", "same")}
    picked = [item for kind in kinds.values() for item in kind[: count // 3]]
    picked += [item for item in order if item not in set(picked)][: count - len(picked)]
    rank = {"helped": 0, "harmed": 1, "same": 2}
    return sorted(picked, key=lambda item: rank[fate.get(item, "same")])


def examples(results: Results, pictures: Pictures, headline: Mapping[str, Any] | None) -> list[Example]:
    """Thirty queries with everything every arm did; of an arm with several draws the first."""
    fate = fates(results, headline)
    shots = sorted({n for arm in results.draws for n in results.shots(arm)} - {0}) or [0]
    rows: dict[str, int] = {item: row for row, item in enumerate(results.items)}
    compared = ("learned", headline["baseline"]) if headline else ()
    found = []
    for item in chosen_items(results.items, fate):
        by_shots = {n: arm_rows(results, pictures, rows[item], n) for n in shots}
        decisive = by_shots.get(headline["shots"], []) if headline else []
        gist = [row for name in compared for row in decisive if row.arm == name]
        shown = [(shots_name(n), own) for n, own in by_shots.items()]
        found.append(Example(card(pictures, item, QUESTION), fate.get(item, ""), gist, shown))
    return found


def arm_rows(results: Results, pictures: Pictures, row: int, shots: int) -> list[ArmRow]:
    """Every arm on one item (its row of the results) at a number of shots; one that shows none stands at every."""
    rows = []
    for arm in results.draws:
        at = shots if shots in results.draws[arm] else 0
        if at in results.draws[arm]:
            one = results.draws[arm][at][0][row]
            demos = [card(pictures, demo) for demo in one.demos]
            rows.append(ArmRow(arm, demos, shorten(one.answer, SHORT), one.accuracy))
    return rows


def uses(results: Results, arm: str, shots: int) -> Counter[str]:
    """How often an arm showed each demonstration at a number of shots, over items and draws."""
    return Counter(demo for draw in results.draws[arm][shots] for prediction in draw for demo in prediction.demos)


def picks_table(results: Results) -> Table:
    """How many different demonstrations each arm used, at its most shots."""
    rows = []
    for arm in results.draws:
        shots = max(results.shots(arm))
        used = uses(results, arm, shots)
        if used:
            top = sum(count for _, count in used.most_common(10)) / used.total()
            cells = (str(shots), f"{used.total():,}", f"{len(used):,}", f"{100 * top:.1f} %")
            rows.append((arm_name(arm), *cells))
    return Table(("who chooses", "shots", "picks", "distinct", "top-10 share"), rows)


def most_used(results: Results, pictures: Pictures, arm: str = "learned") -> list[Card]:
    """The demonstrations an arm showed most, at its most shots."""
    if arm not in results.draws:
        return []
    used = uses(results, arm, max(results.shots(arm)))
    order = sorted(used.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_USED]
    return [card(pictures, demo, note=f"{count}×") for demo, count in order]
