"""The records that a fit trains on, for whoever writes or finds an instruction: its dev and test items stay unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leverplus.errors import LeverError
from leverplus.fitting.look import find_data
from leverplus.rundir import make_private_folder


def training_records(
    data: str | Path, *, images: str | Path | None = None, out: str | Path | None = None
) -> list[dict[str, Any]]:
    """What `fit` of the same data takes as training queries and demonstrations: `id`, `question`, `answer` (the most
    common one), `answers`, and `image` where there is a picture.

    An instruction that was tuned on these, and on nothing else, may be given to `fit`. `images` and `out` as there.
    """
    from leverplus.engine.open import build_task
    from leverplus.fitting.fit import bundle_folder
    from leverplus.recipe.schema import read_section
    from leverplus.recipe.sections import TaskSection

    folder = bundle_folder(data, out)
    make_private_folder(folder.parent)
    found = find_data(data, str(images) if images else None, folder.with_name(f"{folder.name}.items.jsonl"))
    problems: list[str] = []
    section = read_section(TaskSection, dict(found.values), "task.", problems)
    if section is None or problems:
        raise LeverError(f"the data cannot be used: {'; '.join(problems)}")
    rows = []
    for item in build_task(section).items("train"):
        row = {"id": item.id, "question": item.question, "answer": item.answer, "answers": list(item.answers)}
        rows.append(row if item.image is None else {**row, "image": item.image})
    return rows
