"""Making a run folder, taking up the one that is there, and refusing a folder or data that belong to another run."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leverplus.catalog import KINDS, load
from leverplus.data import rundir
from leverplus.data.rundir import (
    commit,
    make_private_folder,
    read_json,
    text_digest,
    versions,
    write_json,
    write_text,
)
from leverplus.errors import LeverError, MissingFile
from leverplus.run.parts import Parts, Progress, Say
from leverplus.run.recipe import Recipe, load_recipe
from leverplus.run.run import Run


def open_run(
    recipe: Recipe,
    source: Path,
    folder: Path,
    *,
    seed: int,
    store_path: Path,
    say: Say = lambda _: None,
    progress: Progress = lambda _what, _done, _total: None,
    strict: bool = False,
    most_queries: int = 0,
    log_to: Sequence[str] = (),
    shared: Parts | None = None,
) -> Run:
    """Create a run folder, or take up the one that is there if it belongs to the same recipe and seed."""
    identity = {"recipe": recipe.name, "recipe_hash": recipe.hash, "seed": seed}
    manifest = folder / rundir.MANIFEST
    stored = read_json(manifest) if manifest.is_file() else {}
    if {key: stored.get(key) for key in identity} != identity:
        _refuse_occupied(folder, stored)
        if recipe.train.start:
            from leverplus.learn.given import find_given

            find_given(
                recipe.train.start
            )  # one that is missing is refused before there is a folder
        from leverplus.encode.pretrained import require_installed

        require_installed(
            recipe.embed
        )  # likewise an encoder whose package or weights are not here
        for _, kind, part in recipe.outside_parts():
            load(
                dict(KINDS)[kind], part, kind
            )  # likewise a part of the user's own that cannot be imported
        try:
            _write_folder(folder, recipe, source, identity, stored)
        except OSError as error:
            raise LeverError(
                f"cannot write to {folder} ({error.strerror}); choose another folder with --out DIR"
            ) from error
    return Run(
        recipe, folder, seed, store_path, say, progress,
        strict=strict, most_queries=most_queries, log_to=tuple(log_to), shared=shared,
    )  # fmt: skip


def _refuse_occupied(folder: Path, stored: Mapping[str, Any]) -> None:
    """Refuse a folder that holds results of another run, or of one that nobody can name."""
    if stored and has_results(folder):
        raise LeverError(
            f"{folder} holds another run (recipe {stored.get('recipe')}, hash {stored.get('recipe_hash')}, seed "
            f"{stored.get('seed')}); choose a new folder with --out DIR, or delete {folder}"
        )
    leftovers = [
        name
        for name in (rundir.CHECKPOINTS, rundir.STATE, rundir.ACTIVE)
        if (folder / name).exists()
    ]
    if leftovers:
        raise LeverError(
            f"{folder} has {', '.join(leftovers)} but no run.json, so it is unknown which run they belong to; "
            f"choose a new folder with --out DIR, or delete {folder}"
        )


def _write_folder(
    folder: Path,
    recipe: Recipe,
    source: Path,
    identity: Mapping[str, Any],
    stored: Mapping[str, Any],
) -> None:
    """The recipe as given, every value of it, and run.json; `stored` is what an earlier recipe left there."""
    import tomli_w

    make_private_folder(folder)
    (folder / rundir.CALLS).unlink(missing_ok=True)  # of the earlier recipe
    shutil.copyfile(source, folder / rundir.RECIPE)
    resolved = tomli_w.dumps(_without_none(recipe.values()))
    write_text(folder / rundir.RESOLVED, resolved)
    facts: dict[str, Any] = {
        "versions": versions(),
        "commit": commit(),
        "platform": platform.platform(),
        "started_in": str(Path.cwd()),
    }
    if "spent" in stored:  # what a server was paid stays paid
        facts["spent"] = stored["spent"]
    write_json(
        folder / rundir.MANIFEST,
        {**identity, "resolved_digest": text_digest(resolved), **facts},
    )


RESULTS = (
    rundir.CHECKPOINTS,
    rundir.STATE,
    rundir.ACTIVE,
    rundir.LOG,
    rundir.EVAL,
    rundir.PREDICTIONS,
    rundir.PROBE,
)
"""What a run has once something was trained or evaluated; before that a corrected recipe may take its folder over."""


def has_results(folder: Path) -> bool:
    return any((folder / name).exists() for name in RESULTS)


def load_run(
    folder: Path,
    store_path: Path | None = None,
    say: Say = lambda _: None,
    progress: Progress = lambda _what, _done, _total: None,
    *,
    strict: bool = False,
    at_work: bool = True,
    log_to: Sequence[str] = (),
) -> Run:
    """The run in a folder that was made before."""
    from leverplus.scores.store import default_store_path

    if not (folder / rundir.RESOLVED).is_file():
        raise MissingFile(
            f"{folder} is not a run folder (no resolved.toml); type `lever run RECIPE --out {folder}`"
        )
    manifest = read_json(folder / rundir.MANIFEST)
    recipe = replace(
        load_recipe(str(folder / rundir.RESOLVED)), name=manifest["recipe"]
    )
    # settings that were added since are at their defaults: the file is compared, not the hash of today's settings
    if text_digest(
        (folder / rundir.RESOLVED).read_text(encoding="utf-8")
    ) != manifest.get("resolved_digest"):
        raise LeverError(
            f"{folder}/resolved.toml was changed after this run was made; start a new run with --out DIR"
        )
    store = store_path or default_store_path()
    return Run(
        recipe,
        folder,
        manifest["seed"],
        store,
        say,
        progress,
        strict=strict,
        at_work=at_work,
        log_to=tuple(log_to),
    )


def require_same_task(run: Run, *, force: bool = False) -> None:
    """Refuse data other than that the run was trained on, unless forced; a run without any notes what it has."""
    trained, now = (
        read_json(run.folder / rundir.MANIFEST).get("task_version"),
        run.task.version,
    )
    if trained is None:
        run.remember({"task_version": now})
    elif trained != now and force:
        run.say(
            f"note: the data changed since this run was trained ({trained}, now {now})"
        )
        run.remember({"trained_on": trained, "task_version": now})
    elif trained != now:
        raise LeverError(
            f"the data of task {run.task.name} changed since {run.folder} was trained (version {trained}, now "
            f"{now}), and items may stand in other splits; train a new run with --out DIR, bring the "
            "old data back, or evaluate all the same with `lever eval RUN --force`"
        )


def _without_none(values: Any) -> Any:
    if isinstance(values, dict):
        return {
            key: _without_none(value)
            for key, value in values.items()
            if value is not None
        }
    return values
