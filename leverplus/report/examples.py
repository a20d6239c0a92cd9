"""Shows single queries with the demonstrations and answer of every arm, and the demonstrations used most."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leverplus.evaluation.names import arm_name, shots_name
from leverplus.evaluation.predictions import Results
from leverplus.report.pictures import Thumbnails
from leverplus.report.tables import Table

EXAMPLES = 30  # queries on the page
MOST_USED = 12  # demonstrations in the list of those used most
QUESTION, SHORT = 2_000, 160
"""Characters shown of a query's question and of every other text."""


@dataclass(frozen=True)
class ItemCard:
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
    demos: Sequence[ItemCard]
    answer: str
    score: float

    @property
    def mark(self) -> str:
        """The word for the accuracy: right (1), wrong (0) or partly."""
        if self.score >= 1.0 - 1e-6:  # accuracies are float32 in predictions.parquet
            return "right"
        return "partly" if self.score > 0 else "wrong"


@dataclass(frozen=True)
class Example:
    """A query, its fate (helped, harmed or same: the learned arm against the headline's baseline), all arms by shots.

    `gist` are the rows of these two arms at the shots of the headline.
    """

    query: ItemCard
    fate: str
    gist: Sequence[ArmRow]
    shots: Sequence[tuple[str, Sequence[ArmRow]]]


def shorten(text: str, limit: int) -> str:
    """The text, or its beginning with its length where it is longer."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


def card(pictures: Thumbnails, item_id: str, limit: int = SHORT, note: str = "") -> ItemCard:
    """An item as a card; its id alone where the task does not know it."""
    item = pictures.item(item_id)
    if item is None:
        return ItemCard(item_id, "", item_id, "", note)
    counts = Counter(item.answers).most_common()
    shown = ", ".join(_times(answer, count) for answer, count in counts)
    if limit == SHORT and counts:  # a demonstration, of which the prompt shows one answer
        shown = item.answer
    return ItemCard(item_id, pictures.css_class(item), shorten(item.question, limit), shorten(shown, SHORT), note)


def _times(answer: str, count: int) -> str:
    return answer if count == 1 else f"{answer} ×{count}"


def fates(results: Results, headline: Mapping[str, Any] | None) -> dict[str, str]:
    """Whether the learned arm helped or harmed each item against the headline's baseline; {} without a headline."""
    if headline is None:
        return {}
    baseline, shots = headline["baseline"], headline["shots"]
    if "learned" not in results.draws or baseline not in results.draws:
        return {}
    against = results.against(baseline, shots)  # the baseline's own number of shots: 0 where it shows nothing
    if against is None:
        return {}
    gains = results.accuracy("learned", shots) - results.accuracy(baseline, against)  # (items,)
    found: dict[str, str] = {}
    for item, gain in zip(results.items, gains, strict=True):
        found[item] = "same"
        if abs(gain) > 1e-6:
            found[item] = "helped" if gain > 0 else "harmed"
    return found


def chosen_items(items: Sequence[str], fate: Mapping[str, str], count: int = EXAMPLES) -> list[str]:
    """A third helped, a third harmed, a third unchanged, drawn by a hash of their ids; filled up where one runs out."""
    order = sorted(items, key=lambda item: hashlib.sha256(item.encode()).digest())
    kinds = ("helped", "harmed", "same")
    picked: list[str] = []
    for kind in kinds:
        of_kind = [item for item in order if fate.get(item, "same") == kind]
        picked += of_kind[: count // 3]
    rest = [item for item in order if item not in set(picked)]
    picked += rest[: count - len(picked)]
    return sorted(picked, key=lambda item: kinds.index(fate.get(item, "same")))


def examples(results: Results, pictures: Thumbnails, headline: Mapping[str, Any] | None) -> list[Example]:
    """Thirty queries with everything every arm did; of an arm with several draws the first."""
    fate = fates(results, headline)
    evaluated: set[int] = set()
    for arm in results.draws:
        evaluated.update(results.shots(arm))
    shots = sorted(evaluated - {0}) or [0]
    rows: dict[str, int] = {item: row for row, item in enumerate(results.items)}
    compared = ("learned", headline["baseline"]) if headline else ()
    found = []
    for item in chosen_items(results.items, fate):
        by_shots = {n: arm_rows(results, pictures, rows[item], n) for n in shots}
        decisive = by_shots.get(headline["shots"], []) if headline else []
        gist = []
        for name in compared:  # learned first
            gist += [row for row in decisive if row.arm == name]
        shown = [(shots_name(n), own) for n, own in by_shots.items()]
        found.append(Example(card(pictures, item, QUESTION), fate.get(item, ""), gist, shown))
    return found


def arm_rows(results: Results, pictures: Thumbnails, row: int, shots: int) -> list[ArmRow]:
    """Every arm on one item (its row of the results) at a number of shots; one that shows nothing is in every list."""
    rows = []
    for arm in results.draws:
        by_shots = results.draws[arm]
        at = shots if shots in by_shots else 0
        if at in by_shots:
            prediction = by_shots[at][0][row]  # of the first draw
            demos = [card(pictures, demo) for demo in prediction.demos]
            rows.append(ArmRow(arm, demos, shorten(prediction.answer, SHORT), prediction.accuracy))
    return rows


def demo_counts(results: Results, arm: str, shots: int) -> Counter[str]:
    """How often an arm showed each demonstration at a number of shots, over items and draws."""
    counts: Counter[str] = Counter()
    for draw in results.draws[arm][shots]:
        for prediction in draw:
            counts.update(prediction.demos)
    return counts


def usage_table(results: Results) -> Table:
    """How many different demonstrations each arm used, at its most shots."""
    rows = []
    for arm in results.draws:
        shots = max(results.shots(arm))
        used = demo_counts(results, arm, shots)
        if used:
            top = sum(count for _, count in used.most_common(10)) / used.total()
            cells = (str(shots), f"{used.total():,}", f"{len(used):,}", f"{100 * top:.1f} %")
            rows.append((arm_name(arm), *cells))
    return Table(("who chooses", "shots", "picks", "distinct", "top-10 share"), rows)


def measured_effects(groups: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The effects of demonstrations that a run measured, of the stage that saw the most answers; None without any."""
    known = [own["effects"] for own in groups.values() if isinstance(own.get("effects"), Mapping)]
    return max(known, key=lambda own: int(own["answers"]), default=None)


def worth_alone(groups: Mapping[str, Mapping[str, Any]], pictures: Thumbnails) -> dict[str, Any] | None:
    """The demonstrations with the largest and the smallest effects."""
    found = measured_effects(groups)
    if found is None:
        return None

    def cards(end: str) -> list[ItemCard]:
        return [
            card(
                pictures,
                line["demo"],
                note=f"{100 * line['effect']:+.1f} (error {100 * line['error']:.1f}), {line['shown']} queries",
            )
            for line in found[end]
        ]

    return {**found, "useful": cards("useful"), "harmful": cards("harmful")}


def most_used(results: Results, pictures: Thumbnails, arm: str = "learned") -> list[ItemCard]:
    """The demonstrations an arm showed most, at its most shots."""
    if arm not in results.draws:
        return []
    used = demo_counts(results, arm, max(results.shots(arm)))
    order = sorted(used.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_USED]
    return [card(pictures, demo, note=f"{count}×") for demo, count in order]
