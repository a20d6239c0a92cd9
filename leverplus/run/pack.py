"""A run as something to choose from: its selector in the hand, and the bundle that is packed of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from leverplus.arms.base import Arm
from leverplus.arms.corpus import FIELDS
from leverplus.bundle.bundle import (
    SHOTS,
    BundlePlan,
    EmbedderFacts,
    ModelFacts,
    Source,
    TaskFacts,
    write_bundle,
)
from leverplus.bundle.demo import Demo, Query, pixel_digest, png_of
from leverplus.bundle.store import Kept
from leverplus.data import rundir
from leverplus.data.rundir import SHIPPED, moved_paths, text_digest
from leverplus.data.types import Item
from leverplus.encode.base import Embedder
from leverplus.errors import DataError, LeverError
from leverplus.evaluate.names import facts_of
from leverplus.evaluate.record import EvaluationRecord, read_record
from leverplus.run.arms import kept_arm
from leverplus.run.run import Run, load_run
from leverplus.run.train import given_policy, trained_policy


class RunSource(Source):
    """The training split of a run's task, and the selector that the run trained, or one from elsewhere."""

    def __init__(self, folder: Path, checkpoint: str | None) -> None:
        self.run = load_run(folder, at_work=False)
        if checkpoint is None:
            policy = trained_policy(self.run)
        else:
            policy = given_policy(self.run, checkpoint)
        self.folder, self.arm = self.run.folder, self.run.selector(policy)
        self.shots = min(SHOTS, self.arm.most_shots)
        self.corpus = self.run.corpus
        self.model = self.run.recipe.model

    @cached_property
    def embedder(self) -> Embedder:
        return self.run.embedder

    def item(self, query: Query) -> Item:
        """Adapters in the embedder read pictures by the run's task, from files."""
        item = query.item
        picture = query.picture
        if picture is None or self.run.live is None:
            return item
        shown = Demo.of(item, lambda: png_of(picture))
        return replace(item, image=shown.image_path)

    def demo(self, item: Item) -> Demo:
        return Demo.of(item, lambda: picture_file(self.run.task, item))

    @cached_property
    def fingerprint(self) -> str:
        how = f"{self.arm.spec} {self.run.recipe.hash}"
        return f"{how} {text_digest(repr(list(self.run.demonstrations)))}"

    def save(self, folder: Path) -> Path:
        return pack_run(self.run, folder, arm=self.arm)


def picture_file(task: Any, item: Item) -> bytes:
    """The picture of an item of a task: its file as it is, or a PNG where there is no file."""
    path = Path(item.image or "")
    if path.is_file():
        return path.read_bytes()
    image = task.image(item)
    if image is None:
        raise DataError(
            f"item {item.id} has no picture any more; run `lever task check`"
        )
    return png_of(image)


def pack_run(
    run: Run,
    folder: Path,
    *,
    arm: str | Arm | None = None,
    shots: int | None = None,
    licence: str = "",
    called: str = "",
) -> Path:
    """The bundle of a run: the arm that its evaluation advises, or the one that is named, as it was evaluated.

    `called` is for the card, as in `write_bundle`.
    """
    evaluation = found = read_record(run.folder / rundir.EVAL)
    if isinstance(arm, Arm):
        own = arm
    else:
        own, measured = kept_arm(run, arm or advised_arm(found))
        if not measured:
            evaluation = None  # it is of another choice than the one that is served
    if shots is None:
        shots = min(_shots_of(run, own, evaluation), own.most_shots)
    if shots > own.most_shots:
        raise LeverError(
            f"arm {own.spec} shows at most {own.most_shots} examples, not {shots}"
        )
    vectors = {}
    for name in FIELDS:
        block = getattr(run.demonstration_vectors, name)
        if name == "text" or name in own.vector_fields:
            if block is None:
                raise LeverError(
                    f'arm "{own.spec}" needs vectors of {name}, which this run does not have'
                )
            vectors[name] = block
    encoder = _encoder_of(run)
    embed = run.recipe.embed
    if encoder is not None:
        embed = replace(embed, model="")
    made = {"fingerprint": dict(run.embedder.fingerprint())}
    model = ModelFacts.model_validate(run.recipe.model)
    if not model.name:
        model = model.model_copy(update={"name": run.recipe.score.backend})
    rules = run.task.answers
    plan = BundlePlan(
        shots=shots,
        model=model,
        embedder=EmbedderFacts.model_validate(embed).model_copy(update=made),
        task=TaskFacts(name=run.task.name, metric=rules.metric, cut=rules.cut),
        licence=licence,
    )
    return write_bundle(
        folder,
        plan,
        own,
        run_demos(run),
        vectors,
        encoder=encoder,
        evaluation=evaluation,
        called=called,
    )


def advised_arm(found: EvaluationRecord | None) -> str:
    """The best arm on dev that asks the model; `learned` where nothing was advised."""
    advice = None if found is None else found.advice
    if advice is None:
        return "learned"
    if advice.arm and facts_of(advice.arm).asks_model:
        return advice.arm
    best = "learned"
    most = (-1.0, False)
    for arm, by_shots in advice.dev_accuracy.items():
        facts = facts_of(arm)
        # among equals the first, but what shows something before nothing
        own = (advice.worth(arm, advice.best_shots(arm)), list(by_shots) != [0])
        if facts.asks_model and facts.advised and own > most:
            best = arm
            most = own
    return best


def _shots_of(run: Run, arm: Arm, found: EvaluationRecord | None) -> int:
    """How many the evaluation advises of this arm; else the best on dev; else the most that it tried, at most 4."""
    advice = None if found is None else found.advice
    if advice is not None:
        if advice.arm == arm.spec and advice.shots is not None:
            return advice.shots
        if arm.spec in advice.dev_accuracy:
            return advice.best_shots(arm.spec)
    return min(SHOTS, max(run.recipe.eval.shots))


def run_demos(run: Run) -> Iterator[Kept]:
    """The demonstrations of a run as a bundle keeps them, with their picture files, one after the other."""
    seen: dict[str, str] = {}
    for item in run.demonstrations:
        name = None
        content = None
        if item.image is not None:
            if item.image not in seen:
                content = picture_file(run.task, item)
                image = run.task.image(item)
                assert image is not None
                seen[item.image] = pixel_digest(image)
            name = seen[item.image]
        yield replace(item, image=name, image_id=name), content


def _encoder_of(run: Run) -> Any:
    """The embedder where it saves itself; else the folder or file it was read from, unless a package or hub has it."""
    if hasattr(run.embedder, "save"):
        return run.embedder
    name = run.recipe.embed.model
    if not name or name.startswith(SHIPPED):
        return None
    found = Path(
        moved_paths(run.folder, run.recipe.embed, ("model",)).get("model", name)
    ).expanduser()
    if found.exists():
        return found
    return None
