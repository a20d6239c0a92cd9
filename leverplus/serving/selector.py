"""A trained selector in the hand: `Selector.load(folder).select(image=..., question=..., shots=2)`."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from leverplus.errors import LeverError
from leverplus.experiment.run import Run
from leverplus.policies.base import Encoded, Features
from leverplus.policies.decode import greedy
from leverplus.rundir import CALLS, make_private_folder
from leverplus.serving.corpus import Corpus
from leverplus.serving.query import Picture, query_item
from leverplus.types import Item

if TYPE_CHECKING:
    from leverplus.policies.base import Policy


class Selector:
    """Chooses demonstrations for any query out of the nearest of the task's whole labelled set."""

    def __init__(self, run: Run, policy: Policy) -> None:
        self.run = run
        self.policy = policy

    @classmethod
    def load(cls, folder: str | Path, checkpoint: str | None = None) -> Selector:
        """From a run folder, or one made by `save`; `checkpoint` names a selector from elsewhere, or RUN:NAME."""
        from leverplus.experiment.opening import load_run
        from leverplus.experiment.start import given_policy
        from leverplus.experiment.train import trained_policy

        run = load_run(Path(folder), at_work=False)
        if checkpoint is not None:
            return cls(run, given_policy(run, checkpoint))
        return cls(run, trained_policy(run))

    def save(self, folder: str | Path) -> Path:
        """A small folder that `load` reads: recipe, manifest and the last checkpoint."""
        target = Path(folder)
        if target.exists():
            raise LeverError(f"{target} exists already; choose another folder")
        last = list(self.run.recipe.stages)[-1]
        part = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            make_private_folder(part / "checkpoints")
            for name in ("recipe.toml", "resolved.toml", "run.json"):
                shutil.copyfile(self.run.folder / name, part / name)
            if (calls := self.run.folder / CALLS).is_file():
                shutil.copyfile(calls, part / CALLS)
            shutil.copytree(self.run.folder / "checkpoints" / last, part / "checkpoints" / last)
            part.replace(target)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise LeverError(f"cannot save the selector to {target} ({error}); choose another folder") from error
        return target

    def select(self, *, question: str, shots: int = 4, image: Picture = None) -> list[Item]:
        """The chosen demonstrations, ordered, nearest to the query last.

        `image` is a path, a PIL image, the bytes of a picture file, a data URL, a numpy array or None. The same words
        and pixels give the same demonstrations, out of the nearest of the whole labelled set.
        """
        if self.check_shots(shots) == 0:
            return []
        with tempfile.TemporaryDirectory() as folder:
            encoded, candidates = self.read(query_item(question, image, Path(folder)))
        places = greedy(self.policy, encoded, self.check_shots(shots, len(candidates))).positions[0, 0].tolist()
        return [self.run.demonstrations[candidates[place]] for place in places]

    def check_shots(self, shots: Any, candidates: int | None = None) -> int:
        """A whole number from 0 to what this selector, and the labelled set, can show."""
        most = self.policy.config.max_shots
        if isinstance(shots, bool) or not isinstance(shots, (int, np.integer)):
            raise LeverError(f"shots must be a whole number from 0 to {most}, not {shots!r}")
        if not 0 <= shots <= most:
            raise LeverError(f"this selector chooses 0 to {most} demonstrations, not {shots}")
        if candidates is not None and shots > candidates:
            raise LeverError(f"{shots} demonstrations were asked for, but there are only {candidates} to choose from")
        return int(shots)

    @cached_property
    def corpus(self) -> Corpus:
        return Corpus(self.run.demonstrations, self.run.demonstration_vectors, self.run.recipe.pool)

    @torch.no_grad()
    def read(self, query: Item) -> tuple[Encoded, list[int]]:
        """A query and its candidates as the policy reads them, and the candidates' rows in the labelled set."""
        embedder: Any = self.run.embedder
        alone = embedder.uncached() if hasattr(embedder, "uncached") else embedder
        vectors = alone.embed([query], self.run.task)
        if vectors.image is None and self.corpus.vectors.image is not None:
            raise LeverError("this selector sees pictures, and the query has none; pass an image")
        rows = self.corpus.nearest(vectors, query)
        if not len(rows):
            raise LeverError(f"there is no demonstration that query {query.id} may be shown")
        live = None
        if self.run.live is not None:
            live = self.run.live.items([*self.run.demonstrations, query])
        asked = {name: block for name, block in vars(vectors).items() if block is not None and name != "answer"}
        features = Features(
            query={name: torch.from_numpy(block) for name, block in asked.items()},  # (1, D)
            items={name: block[rows] for name, block in self.corpus.blocks.items()},  # (K, D)
            pool=torch.arange(len(rows)).unsqueeze(0),  # (1, K)
            rows=torch.from_numpy(rows),
            query_rows=torch.tensor([len(self.run.demonstrations)]),
            live=live,
        )
        return self.policy.eval().prepare(features), rows.tolist()
