"""Miniatures of the data sets in their official formats, with small real pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from leverplus.data.tasks.settings import TaskSection


def section_of(**values: object) -> TaskSection:
    """The settings of a task; paths are written as texts."""
    texts = {key: str(v) if isinstance(v, Path) else v for key, v in values.items()}
    return TaskSection(**texts)  # type: ignore[arg-type]


def write_picture(path: Path, seed: int, size: int = 24) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(
        0, 256, (size, size, 3), dtype=np.uint8
    )
    Image.fromarray(pixels).save(path, quality=90)


def write_vqa(
    folder: Path, *, prefix: str = "", pictures: int = 12, first: int = 100
) -> None:
    """Two questions on every picture, ten answers each: `pictures` of train2014 and half as many of val2014."""
    for year, count, start in (
        ("train2014", pictures, first),
        ("val2014", pictures // 2, first + 1000),
    ):
        questions, annotations = [], []
        for image in range(start, start + count):
            write_picture(folder / year / f"COCO_{year}_{image:012d}.jpg", image)
            for turn in (1, 0):  # files are not sorted
                number = image * 10 + turn
                questions.append(
                    {
                        "image_id": image,
                        "question": f"What is {number}?",
                        "question_id": number,
                    }
                )
                answers = [
                    {
                        "answer": f"thing {image}" if k < 6 else "other",
                        "answer_id": k + 1,
                    }
                    for k in range(10)
                ]
                annotations.append(
                    {
                        "image_id": image,
                        "question_id": number,
                        "answers": answers,
                        "question_type": "what is",
                    }
                )
        meta = {"info": {}, "data_subtype": year}
        name = folder / f"{prefix}OpenEnded_mscoco_{year}_questions.json"
        name.write_text(json.dumps({**meta, "questions": questions}))
        (folder / f"{prefix}mscoco_{year}_annotations.json").write_text(
            json.dumps({**meta, "annotations": annotations})
        )
