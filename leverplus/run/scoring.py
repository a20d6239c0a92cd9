"""Opening the scorer of a run: store, model and engine together, the model tested before its answers are believed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus import catalog
from leverplus.data.rundir import disk_sentence, write_text
from leverplus.data.types import ItemId, Reference, Score
from leverplus.errors import NotMeasured, ScoringError
from leverplus.learn.maths.rewards import Evidence, Weights
from leverplus.models.base import Backend, Recorded
from leverplus.models.open import BackendFactory, open_engine
from leverplus.scores.scorer import TRAINING, CallMeter, Scorer
from leverplus.scores.selftest import require_trust
from leverplus.scores.store import ScoreStore

if TYPE_CHECKING:
    from leverplus.run.run import Run


class KeptCalls:
    """The keys of all prompts that training and dev selection asked for, one hexadecimal line each in a file.

    A run that was stopped and goes on, and an evaluation later, therefore know the count without asking again.
    `path` is None where there is no run folder.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.keys: set[bytes] = set()
        if path is None or not path.is_file():
            return
        whole, _, torn = path.read_text(encoding="ascii").rpartition("\n")
        if torn:  # a process was killed while it wrote: its last prompts are asked, and counted, again
            write_text(path, whole + "\n" if whole else "")
        self.keys.update(map(bytes.fromhex, whole.split()))

    def write(self, keys: Iterable[bytes]) -> None:
        """Append keys that are counted for the first time."""
        if self.path is None:
            return
        with disk_sentence(self.path), self.path.open("a", encoding="ascii") as file:
            file.write("".join(f"{key.hex()}\n" for key in sorted(keys)))


def open_scorer(run: Run) -> Scorer:
    """The scorer of a run; a model that fails its self-test is refused."""
    # one that is missing is named before the model is loaded, or a server paid
    _ = run.embedder
    recipe = run.recipe
    backend = run.backend
    section = recipe.score
    calls = run.kept_calls
    engine = open_engine(
        section.engine,
        backend,
        BackendFactory(run.task_section, section.backend, run.model_section),
        workers=section.workers,
        worker_timeout=section.worker_timeout,
    )
    meter = CallMeter(keep=calls.write)
    meter.asked[TRAINING] = calls.keys  # one set, so that both always agree
    watch = ScoringWatch(run, meter)
    store = ScoreStore(run.store_path)
    scorer = Scorer(
        run.task, backend, store, engine, meter, watch.scored, section.chunk
    )
    if notice := getattr(backend, "notice", ""):
        run.say(notice)
    if isinstance(backend, Recorded):
        return scorer  # there is no model to be tested
    # imported groups bring their own measurements
    if recipe.stages and not section.groups:
        require_offered(backend, recipe.reward.modes, recipe.reward.quality)
    most = max(section.shots, *section.dev_shots, *recipe.eval.shots)
    if hasattr(backend, "require_room") and (note := backend.require_room(most)):
        run.say(note)
    passed = require_trust(
        scorer,
        run.store_path.parent,
        trained=not recipe.model.untrained,
        progress=watch.scored,
        most=most,
    )
    if passed is not None:
        run.remember({"self_test": asdict(passed)})
        if passed.note:
            run.say(passed.note)
    return scorer


def require_offered(backend: Backend, modes: Sequence[str], quality: str) -> None:
    """Refuse rewards that need log-probabilities of a backend that has none."""
    if getattr(backend, "weighs", True):
        return
    for mode in modes:
        if _needs_logprobs(mode, Weights(quality=quality)):
            key = "reward.components with"
            if len(modes) == 1:
                key = "reward.mode ="
            raise ScoringError(
                f'{key} "{mode}" needs log-probabilities of given answers, which this server does not offer; nothing '
                'was scored: set reward.mode = "soft_only" (and take out reward.components), or use a server that '
                "echoes prompts with log-probabilities, such as vLLM"
            )


def _needs_logprobs(mode: str, weights: Weights) -> bool:
    """Whether a reward raises when all but log-probabilities is known."""
    weighed = (Reference("a", 1, None),)
    score = Score(
        ItemId("q"), (ItemId("d"),), "a", "a", 1.0, True, weighed, 1.0, 1.0, 1, 0.0
    )
    known = Evidence(score, score, log_mu=-1.0, rivals=(score, score), expected=1.0)
    try:
        catalog.load(catalog.REWARDS, mode, "reward")(known, weights)
    except NotMeasured:
        return True
    return False


class ScoringWatch:
    """Told of replies as they come: shows progress, notes what a server was paid, and says when answers are empty."""

    def __init__(self, run: Run, meter: CallMeter) -> None:
        self.run = run
        self.meter = meter
        self.said_unlabelled = 0

    def scored(self, what: str, done: int, total: int) -> None:
        run = self.run
        meter = self.meter
        run.show_progress(what, done, total)
        if hasattr(run.backend, "usage"):
            run.remember({"spent": run.backend.usage()})
        judge: Any = run.task.answers.options.judge
        if judge is not None:
            run.remember({"judge": judge.usage()})
        if done >= total and meter.unlabelled > self.said_unlabelled:
            self.said_unlabelled = meter.unlabelled
            run.say(
                f"note: {meter.unlabelled:,} of {meter.fresh:,} answers were empty where a label was asked for, "
                "and count as wrong; name the labels in model.instruction, or raise model.max_new_tokens"
            )
