"""Advice: which arm to deploy at which number of shots, by accuracy on dev, and whether training helped.

Every arm that can be deployed is a candidate at every number of shots. Oracles look at the answers and cannot be
deployed; random demonstrations are a yardstick: a good draw on dev is luck, and in use others are drawn. The candidate
with the highest accuracy on dev is advised, the cheaper one among equals (the rule and what it was chosen by:
`leverplus.stats.choosing`). The best of many is high by luck, and the selector's checkpoint was itself chosen on some
dev items: so the accuracies of the same pair on test are reported beside it, and take no part in the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from leverplus.evaluation.arms import CALIBRATED
from leverplus.evaluation.names import MODEL_FREE, TRAINED, arm_name, shots_name
from leverplus.evaluation.predictions import Results
from leverplus.stats import Comparison, compare
from leverplus.stats.choosing import adjusted_means, best_first
from leverplus.stats.paired import TIE

CHANCE = "random"
"""How the names of arms begin whose demonstrations are drawn by chance."""
NO_DEV = "No way of choosing is recommended, because there are no dev items to choose on."


@dataclass(frozen=True)
class DevArm:
    """An arm at a number of shots with its accuracy on dev."""

    arm: str
    shots: int
    dev: float

    @property
    def trained(self) -> bool:
        return self.arm.startswith(TRAINED)

    @property
    def cost(self) -> tuple[bool, bool, int, bool]:
        """A key that sorts cheaper ones first: by training, model calls, demonstrations, calibration."""
        asks, calibrated = self.arm not in MODEL_FREE, self.arm.endswith(CALIBRATED)
        return self.trained, asks, self.shots, calibrated

    @property
    def name(self) -> str:
        """Its name in a sentence: "nearest by text with 4 shots"."""
        plain = self.arm.removesuffix(CALIBRATED)
        if plain == "learned":
            name = "the learned selector"
        elif plain == "learned_auto":
            name = "the learned selector, which chooses how many to show,"
        elif self.arm in MODEL_FREE:
            name = f"the {arm_name(self.arm)}, which does not ask the model,"
        else:
            name = arm_name(plain)
        calibrated = " (calibrated)" if self.arm != plain else ""
        if not self.shots or self.arm in MODEL_FREE:
            return name.rstrip(",") + calibrated
        most = "at most " if plain == "learned_auto" else ""
        return f"{name}{calibrated} with {most}{shots_name(self.shots)}"

    def as_json(self) -> dict[str, Any]:
        return {"arm": self.arm, "shots": self.shots, "dev": self.dev}


def candidates(dev: Results) -> list[DevArm]:
    """Everything that could be deployed, the best on dev first, the cheaper one of equals before the dearer."""
    deployable = [arm for arm in dev.draws if not arm.startswith(("oracle", CHANCE))]
    pairs = [(arm, shots) for arm in deployable for shots in dev.shots(arm)]
    means = adjusted_means(np.stack([dev.accuracy(arm, shots) for arm, shots in pairs], axis=1)).mean
    found = [DevArm(arm, shots, float(mean)) for (arm, shots), mean in zip(pairs, means, strict=True)]
    return [found[place] for place in best_first(means, [own.cost for own in found])]


def advise(dev: Results, test: Results | None) -> dict[str, Any]:
    """The `advice` entry of eval.json: what to use, why, and the figures behind it.

    `rival` is what the advised one is compared with: the best without training where a trained one is advised, else the
    best trained one; the runner-up where nothing was trained.
    """
    ranked = candidates(dev) if dev.items else []
    if not ranked:
        return {"arm": None, "shots": None, "dev": None, "n": 0, "training_helped": None, "why": NO_DEV}
    best = ranked[0]
    others = [own for own in ranked[1:] if own.trained != best.trained] or ranked[1:]
    table: dict[str, dict[str, float]] = {}
    for own in ranked:
        table.setdefault(own.arm, {})[str(own.shots)] = own.dev
    found: dict[str, Any] = {**best.as_json(), "n": len(dev.items), "training_helped": None, "why": ""}
    found["dev_accuracy"] = {arm: table[arm] for arm in dev.draws if arm in table}
    judged_on = "1 dev item" if len(dev.items) == 1 else f"{len(dev.items):,} dev items"
    sentences = [f"Use {best.name}: {_percent(best.dev)} on {judged_on}."]
    if best.dev == 0.0:
        sentences.append("No answer was right on dev, so this is only the cheapest way.")
    drawn = {shots: float(dev.accuracy(CHANCE, shots).mean()) for shots in dev.draws.get(CHANCE, {})}
    if drawn:
        found["random"] = {str(shots): value for shots, value in drawn.items()}
        most = max(drawn.values())
        if most > best.dev:
            sentences.append(
                f"Random ones had {_percent(most)} there, but a good draw is luck, and in use others are drawn."
            )
    if others:
        rival = others[0]
        on_dev = _compare(dev, best, rival)
        tested = test is not None and all(own.shots in test.draws.get(own.arm, {}) for own in (best, rival))
        on_test = _compare(test, best, rival) if test is not None and tested else None
        if any(own.trained for own in ranked):
            found["training_helped"] = _helped(best, on_dev)
        found["rival"] = {**rival.as_json(), **_figures(on_dev)}
        found["test"] = None if on_test is None else _figures(on_test)
        sentences.append(_against(best, rival, on_dev))
        if test is not None and on_test is not None:
            sentences.append(_tested(test, best, rival, on_test))
    found["why"] = " ".join(sentences)
    return found


def _helped(best: DevArm, on_dev: Comparison) -> str:
    """`yes`, `no`, or `open` where the lead of the trained one may be luck."""
    if not best.trained:
        return "no"
    return "yes" if on_dev.ci95[0] > 0.0 else "open"


def _compare(results: Results, first: DevArm, second: DevArm) -> Comparison:
    """The paired comparison of both on the same items."""
    one = results.accuracy(first.arm, first.shots)
    other = results.accuracy(second.arm, second.shots)
    return compare(one, other, ids=results.items, clusters=results.images)


def _figures(found: Comparison) -> dict[str, Any]:
    return {"n": found.n, "diff": found.diff, "ci95": list(found.ci95), "p_value": found.p_value}


def _against(best: DevArm, rival: DevArm, found: Comparison) -> str:
    """A sentence: how far the rival is behind on dev, and whether training helped."""
    lead = f"{_points(found.diff)} points, 95 % interval {_ends(found)}"
    if best.trained and not rival.trained:
        luck = "" if found.ci95[0] > 0.0 else "; the gain of training may be luck"
        return f"The best without training, {rival.name.rstrip(',')}, had {_percent(rival.dev)} there ({lead}){luck}."
    if rival.trained:
        had = "the same" if abs(found.diff) < TIE else _percent(rival.dev)
        return f"The best with training, {rival.name.rstrip(',')}, had {had} there ({lead}), so training did not help."
    return f"Next is {rival.name} with {_percent(rival.dev)} ({lead})."


def _tested(test: Results, best: DevArm, rival: DevArm, found: Comparison) -> str:
    """A sentence with the accuracies of both on test, which took no part in the choice."""
    one = _percent(float(test.accuracy(best.arm, best.shots).mean()))
    other = _percent(float(test.accuracy(rival.arm, rival.shots).mean()))
    return f"On {found.n:,} test items: {one} against {other} ({_points(found.diff)}, {_ends(found)})."


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _ends(found: Comparison) -> str:
    return " to ".join(_points(bound) for bound in found.ci95)
