"""Advice: which arm to deploy at which number of shots, by accuracy on dev, and whether training helped.

Every arm that can be deployed is a candidate at every number of shots. Oracles look at the answers and cannot be
deployed; random demonstrations are a yardstick: a good draw on dev is luck, and in use others are drawn. The candidate
with the highest accuracy on dev is advised, the cheaper one among equals. The best of many is high by luck, and the
selector's checkpoint was itself chosen on some dev items: so the accuracies of the same pair on test are reported
beside it, and take no part in the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leverplus.evaluate.names import CALIBRATED, ArmFacts, facts_of, shots_name
from leverplus.evaluate.predictions import Results
from leverplus.evaluate.record import Advice, PairFigures, Rival
from leverplus.evaluate.stats import Comparison, compare
from leverplus.evaluate.stats.paired import TIE

CHANCE = "random"
"""The arm whose demonstrations are drawn by chance."""
NO_DEV = (
    "No way of choosing is recommended, because there are no dev items to choose on."
)


@dataclass(frozen=True)
class DevArm:
    """An arm at a number of shots with its accuracy on dev."""

    arm: str
    shots: int
    dev: float

    @property
    def facts(self) -> ArmFacts:
        return facts_of(self.arm)

    @property
    def trained(self) -> bool:
        return self.facts.trained

    @property
    def rank(self) -> tuple[Any, ...]:
        """A key that sorts better ones first, and of equals the cheaper: by training, model calls, demonstrations."""
        # in multiples of TIE: means that differ in the last bit only are equal
        return -round(self.dev / TIE), self.trained, self.facts.calls, self.shots

    @property
    def name(self) -> str:
        """Its name in a sentence: "nearest by text with 4 shots"."""
        if not self.facts.asks_model:
            return f"the {self.facts.title}, which does not ask the model"
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
    found = []
    for arm in dev.draws:
        for shots in dev.shots(arm) if is_deployable(arm) else ():
            mean = float(dev.accuracy(arm, shots).mean())
            found.append(DevArm(arm, shots, mean))
    return sorted(found, key=lambda own: own.rank)


def advise(dev: Results, test: Results | None) -> Advice:
    """What to use, why, and the figures behind it.

    `rival` is what the advised one is compared with: the best without training where a trained one is advised, else the
    best trained one; the runner-up where nothing was trained.
    """
    ranked = candidates(dev) if dev.items else []
    if not ranked:
        return Advice(why=NO_DEV)
    best = ranked[0]
    table: dict[str, dict[int, float]] = {}
    for own in ranked:
        table.setdefault(own.arm, {})[own.shots] = own.dev
    drawn = {}
    for shots in dev.draws.get(CHANCE, {}):
        drawn[shots] = float(dev.accuracy(CHANCE, shots).mean())
    judged_on = "1 dev item" if len(dev.items) == 1 else f"{len(dev.items):,} dev items"
    sentences = [f"Use {best.name}: {_percent(best.dev)} on {judged_on}."]
    if best.dev == 0.0:
        sentences.append(
            "No answer was right on dev, so this is only the cheapest way."
        )
    most = max(drawn.values(), default=0.0)
    if most > best.dev:
        sentences.append(
            f"Random ones had {_percent(most)} there, but a good draw is luck, and in use others are drawn."
        )
    against: dict[str, Any] = {}
    others = [own for own in ranked[1:] if own.trained != best.trained] or ranked[1:]
    if others:
        rival = others[0]
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
                f"On {on_test.n:,} test items: {one} against {other} ({_points(on_test.diff)}, {_ends(on_test)})."
            )
    return Advice(
        arm=best.arm,
        shots=best.shots,
        dev=best.dev,
        n=len(dev.items),
        why=" ".join(sentences),
        dev_accuracy={arm: table[arm] for arm in dev.draws if arm in table},
        random=drawn,
        **against,
    )


def _helped(best: DevArm, on_dev: Comparison) -> str:
    """`yes`, `no`, or `open` where the lead of the trained one may be luck."""
    if not best.trained:
        return "no"
    return "yes" if on_dev.ci95[0] > 0.0 else "open"


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
    if best.trained and not rival.trained:
        luck = "" if found.ci95[0] > 0.0 else "; the gain of training may be luck"
        return f"The best without training, {rival.name}, had {_percent(rival.dev)} there ({lead}){luck}."
    if rival.trained:
        had = "the same" if abs(found.diff) < TIE else _percent(rival.dev)
        return f"The best with training, {rival.name}, had {had} there ({lead}), so training did not help."
    return f"Next is {rival.name} with {_percent(rival.dev)} ({lead})."


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _ends(found: Comparison) -> str:
    return " to ".join(_points(bound) for bound in found.ci95)
