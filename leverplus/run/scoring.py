"""Opening the scorer of a run: store, model and engine together, the model tested before its answers are believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.run.calls import KeptCalls
from leverplus.run.parts import Parts, Progress, Say
from leverplus.run.recipe import Recipe
from leverplus.scores.judge import Judge

if TYPE_CHECKING:
    from leverplus.scores.scorer import CallMeter, Scorer


@dataclass(frozen=True)
class RunOutput:
    """How a run speaks: lines for people, progress, and facts for its run.json."""

    say: Say
    progress: Progress
    remember: Callable[[Mapping[str, Any]], None]


def open_scorer(
    recipe: Recipe, parts: Parts, store_path: Path, calls: KeptCalls, voice: RunOutput
) -> Scorer:
    """The scorer of a run; a model that fails its self-test is refused."""
    from leverplus.models.base import Recorded
    from leverplus.models.open import BackendFactory, open_engine
    from leverplus.run.offered import require_offered
    from leverplus.scores.scorer import TRAINING, CallMeter, Scorer
    from leverplus.scores.selftest import require_trust
    from leverplus.scores.store import ScoreStore

    _ = (
        parts.embedder
    )  # one that is missing is named before the model is loaded, or a server paid
    section, backend = recipe.score, parts.backend
    engine = open_engine(
        section.engine,
        backend,
        BackendFactory(parts.task_section, section.backend, parts.model_section),
        workers=section.workers,
        worker_timeout=section.worker_timeout,
    )
    meter = CallMeter(keep=calls.write)
    meter.asked[TRAINING] = calls.keys  # one set, so that both always agree
    judge = parts.task.answers.options.judge
    watch = ScoringWatch(
        parts, meter, voice, judge if isinstance(judge, Judge) else None
    )
    store = ScoreStore(store_path)
    scorer = Scorer(
        parts.task,
        backend,
        store,
        engine,
        meter,
        progress=watch.scored,
        chunk=section.chunk,
    )
    if notice := getattr(backend, "notice", ""):
        voice.say(notice)
    if isinstance(backend, Recorded):
        return scorer  # there is no model to be tested
    reward = recipe.reward
    # imported groups bring their own measurements
    if recipe.stages and not section.groups:
        require_offered(backend, reward.components or (reward.mode,), reward.quality)
    most = _most_shots(recipe)
    if hasattr(backend, "require_room") and (note := backend.require_room(most)):
        voice.say(note)
    passed = require_trust(
        scorer,
        store_path.parent,
        trained=not recipe.model.untrained,
        progress=watch.scored,
        most=most,
    )
    if passed is not None:
        voice.remember({"self_test": asdict(passed)})
        if passed.note:
            voice.say(passed.note)
    return scorer


def _most_shots(recipe: Recipe) -> int:
    """The largest number of demonstrations that any prompt of a run shows."""
    return max(recipe.score.shots, *recipe.score.dev_shots, *recipe.eval.shots)


class ScoringWatch:
    """Told of replies as they come: shows progress, notes what a server was paid, and says when answers are empty."""

    def __init__(
        self,
        parts: Parts,
        meter: CallMeter,
        voice: RunOutput,
        judge: Judge | None = None,
    ) -> None:
        self.backend, self.meter, self.voice = parts.backend, meter, voice
        self.judge = judge
        self.said_unlabelled = 0

    def scored(self, what: str, done: int, total: int) -> None:
        meter = self.meter
        self.voice.progress(what, done, total)
        if hasattr(self.backend, "usage"):
            self.voice.remember({"spent": self.backend.usage()})
        if self.judge is not None:
            self.voice.remember({"judge": self.judge.usage()})
        if done >= total and meter.unlabelled > self.said_unlabelled:
            self.said_unlabelled = meter.unlabelled
            self.voice.say(
                f"note: {meter.unlabelled:,} of {meter.fresh:,} answers were empty where a label was asked for, "
                "and count as wrong; name the labels in model.instruction, or raise model.max_new_tokens"
            )
