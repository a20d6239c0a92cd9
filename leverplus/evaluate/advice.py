"""Advice: which arm to deploy at which number of shots, by corrected accuracy on dev, and whether training helped.

Every arm that can be deployed is a candidate at every number of shots. Oracles look at the answers and cannot be
deployed; random demonstrations are a yardstick: a good draw on dev is luck, and in use others are drawn. The best of
many is high by luck, so accuracies on dev are corrected for the choice (`leverplus.evaluate.stats.choosing`), and the
candidate with the highest corrected one is advised, the cheaper one among equals; where the plain figures put another
first, that is said. Test takes no part in the choice and is reported beside it. What an interval leaves open is called
open, in either direction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from leverplus.evaluate.names import CALIBRATED, ArmFacts, facts_of, shots_name
from leverplus.evaluate.predictions import Prediction, Results
from leverplus.evaluate.record import Advice, Estimate, PairFigures, Rival
from leverplus.evaluate.stats import Comparison, compare
from leverplus.evaluate.stats.choosing import Corrected, Way, correct
from leverplus.evaluate.stats.paired import TIE

CHANCE = "random"
"""The arm whose demonstrations are drawn by chance."""
ALONE = "zero_shot"
"""The arm that shows the model nothing."""
HIDDEN_SHARE = 0.1
"""From this share of answers that hold the right one among other words on, that is said."""
NO_DEV = (
    "No way of choosing is recommended, because there are no dev items to choose on."
)


@dataclass(frozen=True)
class DevArm:
    """An arm at a number of shots with its accuracy on dev, as it is and corrected for choosing."""

    arm: str
    shots: int
    corrected: Corrected

    @property
    def dev(self) -> float:
        return self.corrected.raw

    @property
    def facts(self) -> ArmFacts:
        return facts_of(self.arm)

    @property
    def trained(self) -> bool:
        return self.facts.trained

    @property
    def price(self) -> tuple[bool, int, int]:
        """What it costs: training, model calls, demonstrations."""
        return self.trained, self.facts.calls, self.shots

    @property
    def rank(self) -> tuple[Any, ...]:
        """A key that sorts better ones first, and of equals the cheaper."""
        return -round(self.corrected.estimate / TIE), *self.price

    @property
    def plain_rank(self) -> tuple[Any, ...]:
        """The same by the accuracy as it is."""
        # in multiples of TIE: means that differ in the last bit only are equal
        return -round(self.dev / TIE), *self.price

    @property
    def name(self) -> str:
        """Its name in a sentence: "nearest by text with 4 shots"."""
        if not self.facts.asks_model:
            title = self.facts.title.removesuffix(" (no model)").removeprefix("the ")
            return f"the {title}, which does not ask the model"
        if not self.shots:
            return self.facts.title
        return f"{self.facts.title} with {shots_name(self.shots)}"

    def accuracy(self, results: Results) -> float:
        return float(results.accuracy(self.arm, self.shots).mean())


def is_deployable(arm: str) -> bool:
    """Whether a bundle can serve what was measured: no yardstick, no chance, no calibration over all questions."""
    return not arm.endswith(CALIBRATED) and facts_of(arm).advised


def candidates(dev: Results) -> list[DevArm]:
    """Everything that could be deployed, the best on dev first, the cheaper one of equals before the dearer."""
    ways = []
    for arm in dev.draws:
        if not is_deployable(arm):
            continue
        every = dev.shots(arm)
        if facts_of(arm).asks_model:
            ways += [Way(arm, shots) for shots in every]
        else:  # it shows nothing, so that it is the same at every number of shots
            ways.append(Way(arm, every[0], alone=True))
    if not ways or not dev.items:
        return []
    scores = np.stack([dev.accuracy(way.arm, way.shots) for way in ways], axis=1)
    found = []
    for way, corrected in zip(ways, correct(scores, ways, dev.images), strict=True):
        found.append(DevArm(way.arm, way.shots, corrected))
    return sorted(found, key=lambda own: own.rank)


def advise(dev: Results, test: Results | None) -> Advice:
    """What to use, why, and the figures behind it.

    `rival` is what the advised one is compared with: the best without training where a trained one is advised, else the
    best trained one; the next arm where nothing was trained.
    """
    ranked = candidates(dev)
    if not ranked:
        return Advice(why=NO_DEV)
    best = ranked[0]
    accuracy: dict[str, dict[int, float]] = {}
    worth: dict[str, dict[int, Estimate]] = {}
    for own in ranked:
        accuracy.setdefault(own.arm, {})[own.shots] = own.dev
        estimate = Estimate(estimate=own.corrected.estimate, ci95=own.corrected.ci95)
        worth.setdefault(own.arm, {})[own.shots] = estimate
    sentences = _choice(ranked, len(dev.items))
    sentences += _about_form(dev, best)
    sentences += _against_chance(dev, best)
    against: dict[str, Any] = {}
    rival = _rival(ranked)
    if rival is not None:
        on_dev = _compare(dev, best, rival)
        sentences.append(_against(best, rival, on_dev))
        if any(own.trained for own in ranked):
            against["training_helped"] = _helped(best, on_dev)
        against["rival"] = Rival(
            arm=rival.arm, shots=rival.shots, dev=rival.dev, **_figures(on_dev)
        )
        pair = (best, rival)
        if test and all(own.shots in test.draws.get(own.arm, {}) for own in pair):
            on_test = _compare(test, best, rival)
            against["test"] = PairFigures(**_figures(on_test))
            one, other = (_percent(own.accuracy(test)) for own in pair)
            sentences.append(
                f"On {on_test.n:,} test items: {one} against {other} ({_points(on_test.diff)}, {_ends(on_test)})"
                f"{_on_test(on_test)}."
            )
    random = {}
    for shots in dev.draws.get(CHANCE, {}):
        random[shots] = float(dev.accuracy(CHANCE, shots).mean())
    return Advice(
        arm=best.arm,
        shots=best.shots,
        dev=best.dev,
        n=len(dev.items),
        why=" ".join(sentences),
        dev_accuracy={arm: accuracy[arm] for arm in dev.draws if arm in accuracy},
        dev_corrected={arm: worth[arm] for arm in dev.draws if arm in worth},
        random=random,
        **against,
    )


def _rival(ranked: list[DevArm]) -> DevArm | None:
    """The best of the other kind (trained or not); where there is none the best other arm."""
    best = ranked[0]
    for own in ranked[1:]:
        if own.trained != best.trained:
            return own
    for own in ranked[1:]:
        if own.arm != best.arm:
            return own
    if len(ranked) > 1:
        return ranked[1]
    return None


def _choice(ranked: list[DevArm], count: int) -> list[str]:
    """What to use, its figures, and what the figures would have said without the correction."""
    best = ranked[0]
    judged_on = "1 dev item"
    if count != 1:
        judged_on = f"{count:,} dev items"
    said = f"Use {best.name}: {_percent(best.dev)} on {judged_on}"
    if len(ranked) == 1:
        return [f"{said}."]
    low, high = best.corrected.ci95
    sentences = [
        f"{said}; corrected for choosing among {len(ranked)} about {_percent(best.corrected.estimate)} "
        f"({100 * low:.1f} to {100 * high:.1f})."
    ]
    if best.dev == 0.0:
        sentences.append(
            "No answer was right on dev, so this is only the cheapest way."
        )
    plain = min(ranked, key=lambda own: own.plain_rank)
    if plain.dev - best.dev > TIE:
        sentences.append(
            f"Uncorrected, {plain.name} is ahead with {_percent(plain.dev)}, but that is more luck: about "
            f"{_percent(plain.corrected.estimate)}."
        )
    return sentences


def _against_chance(dev: Results, best: DevArm) -> list[str]:
    """How the advised one stands to examples drawn by chance, where it is not clearly above them."""
    drawn = {}
    for shots in dev.draws.get(CHANCE, {}):
        drawn[shots] = float(dev.accuracy(CHANCE, shots).mean())
    if not drawn:
        return []
    most = max(drawn, key=lambda shots: drawn[shots])
    found = compare(
        dev.accuracy(best.arm, best.shots),
        dev.accuracy(CHANCE, most),
        clusters=dev.images,
    )
    low, high = found.ci95
    if low > 0.0 or best.dev == drawn[most] == 0.0:
        return []
    had = f"Examples drawn by chance had {_percent(drawn[most])} there ({_points(found.diff)} points, {_ends(found)})"
    if high < 0.0:
        return [f"{had}, which is more: choosing like this harms on these items."]
    return [
        f"{had}: whether choosing gains anything over chance is open on these items."
    ]


def _about_form(dev: Results, best: DevArm) -> list[str]:
    """Whether the model alone fails by the form of its answers rather than by what it knows."""
    shots = dev.draws.get(ALONE)
    if not shots or best.dev == 0.0:
        return []
    alone = dev.first(ALONE, min(shots))
    right: dict[str, str] = {}
    for arm, _, draw in dev:
        if arm != ALONE:
            for own in draw:
                if own.accuracy >= 1.0:
                    right.setdefault(own.item, own.answer)
    hidden = sum(_holds(own, right.get(own.item, "")) for own in alone)
    if hidden >= max(2.0, HIDDEN_SHARE * len(alone)):
        return [
            f"For {hidden:,} of {len(alone):,} items zero-shot wrote the right answer among other words: there the form "
            "fails, not what it knows; another instruction, cut or metric may mend it."
        ]
    if all(own.accuracy == 0.0 for own in alone):
        return [
            "Zero-shot was never right, which may be the form of its answers rather than what it knows."
        ]
    return []


def _holds(own: Prediction, answer: str) -> bool:
    """Whether a wrong prediction holds an answer as words of its own."""
    if own.accuracy > 0.0 or not answer.strip():
        return False
    words = re.escape(answer.strip())
    return bool(re.search(rf"(?<!\w){words}(?!\w)", own.answer, re.IGNORECASE))


def _helped(best: DevArm, on_dev: Comparison) -> str:
    """`yes` or `no`, or `open` where the lead of the one with or without training may be luck."""
    if on_dev.ci95[0] <= 0.0:
        return "open"
    if best.trained:
        return "yes"
    return "no"


def _compare(results: Results, first: DevArm, second: DevArm) -> Comparison:
    """The paired comparison of both on the same items."""
    one = results.accuracy(first.arm, first.shots)
    other = results.accuracy(second.arm, second.shots)
    return compare(one, other, clusters=results.images)


def _figures(found: Comparison) -> dict[str, Any]:
    return {name: getattr(found, name) for name in PairFigures.model_fields}


def _against(best: DevArm, rival: DevArm, found: Comparison) -> str:
    """A sentence: how far the rival is behind on dev, and whether training helped."""
    lead = f"{_points(found.diff)} points, 95 % interval {_ends(found)}"
    is_open = found.ci95[0] <= 0.0
    if best.trained == rival.trained:
        noise = ""
        if is_open:
            noise = ", within noise"
        comma = ","
        if rival.facts.asks_model:
            comma = ""
        return (
            f"Next is {rival.name}{comma} with {_percent(rival.dev)} ({lead}){noise}."
        )
    had = "the same" if abs(found.diff) < TIE else _percent(rival.dev)
    if best.trained:
        said = f"The best without training, {rival.name}, had {had} there ({lead})"
        if is_open:
            return f"{said}: whether training helps is open."
        return f"{said}."
    said = f"The best with training, {rival.name}, had {had} there ({lead})"
    if is_open:
        return f"{said}: whether training helps is open."
    return f"{said}, so training did not help."


def _on_test(found: Comparison) -> str:
    low, high = found.ci95
    if high < 0.0:
        return ", so test says otherwise"
    if low <= 0.0:
        return ", within noise"
    return ""


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _ends(found: Comparison) -> str:
    return " to ".join(_points(bound) for bound in found.ci95)
