"""A trained selector in the hand: `Selector.load(folder).select(image=..., question=..., shots=2)`."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.errors import LeverError, MissingFile
from leverplus.types import Item, ItemId

if TYPE_CHECKING:
    from PIL import Image

    from leverplus.pipeline import Run
    from leverplus.policies.base import Policy


class Selector:
    """Chooses demonstrations from the task's labelled set for any query, by the same pools as in training."""

    def __init__(self, run: Run, policy: Policy) -> None:
        self.run = run
        self.policy = policy

    @classmethod
    def load(cls, folder: str | Path) -> Selector:
        """From a run folder, or one made by `save`."""
        from leverplus.pipeline import load_run
        from leverplus.training.checkpoint import load_checkpoint

        run = load_run(Path(folder))
        run.at_work = False
        checkpoint = run.folder / "checkpoints" / list(run.recipe.stages)[-1]
        if not checkpoint.is_dir():
            raise MissingFile(f"{folder} holds no trained selector yet; type `lever train {folder}`")
        return cls(run, load_checkpoint(checkpoint)[0])

    def save(self, folder: str | Path) -> Path:
        """A small folder that `load` reads: recipe, manifest and the last checkpoint."""
        target = Path(folder)
        if target.exists():
            raise LeverError(f"{target} exists already; choose another folder")
        last = list(self.run.recipe.stages)[-1]
        part = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            (part / "checkpoints").mkdir(parents=True)
            for name in ("recipe.toml", "resolved.toml", "run.json"):
                shutil.copyfile(self.run.folder / name, part / name)
            shutil.copytree(self.run.folder / "checkpoints" / last, part / "checkpoints" / last)
            part.replace(target)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise LeverError(f"cannot save the selector to {target} ({error}); choose another folder") from error
        return target

    def select(self, *, question: str, shots: int = 4, image: Image.Image | str | Path | None = None) -> list[Item]:
        """The chosen demonstrations, ordered, nearest to the query last."""
        from leverplus.evaluation.arms import learned

        if not 1 <= shots <= self.policy.config.max_shots:
            raise LeverError(f"this selector chooses 1 to {self.policy.config.max_shots} demonstrations, not {shots}")
        if not question.strip():
            raise LeverError("the question is empty")
        with tempfile.TemporaryDirectory() as folder:
            pools, table = self.run.pools([self.query(question, image, Path(folder))])
        demos = learned(self.policy, pools, table, [shots])[shots][0]
        return [self.run.task.item(demo) for demo in demos]

    def query(self, question: str, image: Any, folder: Path) -> Item:
        """An unlabelled item for a question and a picture (an image, or a path to one)."""
        path: Path | None = None
        if image is not None:
            path = Path(image) if isinstance(image, (str, Path)) else folder / "query.png"
            if not isinstance(image, (str, Path)):
                image.save(path)
            if not path.is_file():
                raise MissingFile(f"there is no image file {path}")
        content = question.encode() + (path.read_bytes() if path else b"")
        name = ItemId(f"query-{hashlib.sha256(content).hexdigest()[:12]}")
        return Item(name, question, (), "query", str(path) if path else None, name)
