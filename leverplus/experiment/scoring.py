"""Opening the scorer of a run: store, model and engine together, the model tested before its answers are believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.experiment.calls import KeptCalls
from leverplus.experiment.parts import Parts, Progress, Say
from leverplus.recipe.recipe import Recipe

if TYPE_CHECKING:
    from leverplus.scoring.scorer import CallMeter, Scorer


@dataclass(frozen=True)
class RunOutput:
    """How a run speaks: lines for people, progress, and facts for its run.json."""

    say: Say
    progress: Progress
    remember: Callable[[Mapping[str, Any]], None]


def open_scorer(recipe: Recipe, parts: Parts, store_path: Path, calls: KeptCalls, voice: RunOutput) -> Scorer:
    """The scorer of a run; a model that fails its self-test is refused."""
    from leverplus.backends.base import Recorded
    from leverplus.engine.open import BackendFactory, open_engine
    from leverplus.scoring.scorer import TRAINING, CallMeter, Scorer
    from leverplus.scoring.trust import require_offered, require_trust
    from leverplus.store.db import ScoreStore

    _ = parts.embedder  # one that is missing is named before the model is loaded, or a server paid
    section, backend = recipe.score, parts.backend
    engine = open_engine(section, backend, BackendFactory(parts.task_section, section.backend, parts.model_section))
    meter = CallMeter(keep=calls.write)
    meter.asked[TRAINING] = calls.keys  # one set, so that both always agree
    watch = ScoringWatch(parts, meter, voice)
    store = ScoreStore(store_path)
    scorer = Scorer(parts.task, backend, store, engine, meter, progress=watch.scored, chunk=section.chunk)
    if notice := getattr(backend, "notice", ""):
        voice.say(notice)
    if isinstance(backend, Recorded):
        return scorer  # there is no model to be tested
    reward = recipe.reward
    if not section.groups:  # imported groups bring their own measurements
        require_offered(backend, reward.components or (reward.mode,), reward.quality)
    most = _most_shots(recipe)
    if hasattr(backend, "require_room") and (note := backend.require_room(most)):
        voice.say(note)
    trained = not recipe.model.untrained
    passed = require_trust(scorer, store_path.parent, trained=trained, progress=watch.scored, most=most)
    if passed is not None:
        voice.remember({"self_test": passed.found})
        if passed.note:
            voice.say(passed.note)
    return scorer


def _most_shots(recipe: Recipe) -> int:
    """The largest number of demonstrations that any prompt of a run shows."""
    return max(recipe.score.shots, *recipe.score.dev_shots, *recipe.eval.shots)


class ScoringWatch:
    """Told of replies as they come: shows progress, notes what a server was paid, and says when answers are empty."""

    def __init__(self, parts: Parts, meter: CallMeter, voice: RunOutput) -> None:
        self.backend, self.meter, self.voice = parts.backend, meter, voice
        self.said_unlabelled = 0

    def scored(self, what: str, done: int, total: int) -> None:
        meter = self.meter
        self.voice.progress(what, done, total)
        if hasattr(self.backend, "usage"):
            self.voice.remember({"spent": self.backend.usage()})
        if done >= total and meter.unlabelled > self.said_unlabelled:
            self.said_unlabelled = meter.unlabelled
            self.voice.say(
                f"note: {meter.unlabelled:,} of {meter.fresh:,} answers were empty where a label was asked for, "
                "and count as wrong; name the labels in model.instruction, or raise model.max_new_tokens"
            )
