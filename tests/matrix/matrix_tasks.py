"""Small tasks nobody would write by hand: of every size, with duplicates, long texts, odd characters, one label, ...

`draw_task(rng, folder)` writes a data file (and pictures) into a folder and returns the `[task]` section that names it.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SPLITS = ("train", "dev", "test")
SIZES = {
    "train": (1, 2, 3, 5, 8, 8, 12, 30),
    "dev": (1, 1, 2, 3, 6, 30),
    "test": (1, 1, 2, 3, 6, 30),
}

WORDS = (
    "what",
    "who",
    "is",
    "the",
    "red",
    "small",
    "dog",
    "river",
    "moon",
    "of",
    "in",
    "plays",
    "seven",
    "why",
)
LABELS = (
    "yes",
    "no",
    "red",
    "a place",
    "person",
    "7",
    "blue green",
    "übel",
    "да",
    "naïve",
    "A",
    "B",
    "x-y",
)
ODD = (
    "naïve café ☕ — “quoted”",
    "日本語の質問です",
    "שלום עולם",
    "e\u0301 combining \u200b zero width \u202e turned",
    "a\ttab and a\nnew line",
    "line one\r\nline two",
    "{question} {answer}",
    "Question: what?\nAnswer: this\n",
    "<|im_end|> <|endoftext|> <image>",
    "<script>alert('x')</script> & &amp;",
    "'; DROP TABLE scores; --",
    "C:\\path\\n \\u0041 \x07 bell",
    "👩‍👩‍👧‍👦🏳️‍🌈",
    "100 %s {} [0] $HOME `ls`",
    "nul \x00 byte",
    "[bold red]rich markup[/bold red] [/]",
    "lone \ud800 surrogate",
)
KINDS = (
    "labels",
    "labels",
    "labels",
    "jsonl",
    "jsonl",
    "jsonl",
    "pictures",
    "pictures",
    "world",
)
"""World tasks are few: they have one size and bring their own model."""


@dataclass
class DrawnTask:
    """A task on disk: its kind, its `[task]` section, and what was planted in it."""

    kind: str
    section: dict[str, Any]
    traits: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def has_pictures(self) -> bool:
        return self.kind in ("pictures", "world")


def draw_task(rng: random.Random, folder: Path, kind: str | None = None) -> DrawnTask:
    """A task of a drawn kind, written below `folder`."""
    kind = kind or rng.choice(KINDS)
    if kind == "world":
        return DrawnTask("world", {"name": "world"})
    folder.mkdir(parents=True, exist_ok=True)
    task = DrawnTask(
        kind,
        {
            "name": "labels" if kind == "labels" else "jsonl",
            "file": str(folder / "data.jsonl"),
        },
    )
    task.rows = (
        _label_rows(rng, task.traits)
        if kind == "labels"
        else _answer_rows(rng, task.traits)
    )
    if kind == "pictures":
        _draw_pictures(rng, task, folder)
    if rng.random() < 0.15:
        task.traits.append("no splits given")
        for row in task.rows:
            del row["split"]
    if kind != "labels":
        fit = (
            "vqa_accuracy"
            if rng.random() < 0.1 or "of 4" in str(task.traits)
            else "exact_match"
        )
        task.section["metric"] = rng.choice(
            ("auto", "auto", fit, "token_f1", "edit_similarity", "label_accuracy")
        )
    _draw_options(rng, task)
    lines = [
        json.dumps(row, ensure_ascii=rng.random() < 0.5 or _has_surrogate(row))
        for row in task.rows
    ]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return task


def _has_surrogate(row: dict[str, Any]) -> bool:
    return "\\ud800" in json.dumps(row)


def _draw_options(rng: random.Random, task: DrawnTask) -> None:
    """Keys of `[task]` that change which items are kept."""
    if rng.random() < 0.15:
        task.section["limit"] = rng.choice((1, 2, 5, 1000))
    if rng.random() < 0.2:
        task.section["skip_empty"] = rng.random() < 0.5
    if rng.random() < 0.1:
        task.section |= {
            "dev_items": rng.choice((1, 2, 500)),
            "test_items": rng.choice((1, 2, 500)),
        }


def _texts(rng: random.Random, splits: list[str], traits: list[str]) -> list[str]:
    """Questions, plain or with one of the usual troubles; duplicates stay within a split in most tasks."""
    apart = rng.random() < 0.8
    trouble = rng.choice(
        ("plain",) * 6 + ("odd", "odd", "long", "duplicates", "mixed", "empty")
    )
    if trouble != "plain":
        traits.append(f"{trouble} texts")
    texts = []
    for number in range(len(splits)):
        text = f"{' '.join(rng.choices(WORDS, k=rng.randint(1, 6)))} {number}"
        own = (
            rng.choice(("odd", "long", "duplicates", "plain"))
            if trouble == "mixed"
            else trouble
        )
        if own == "odd":
            text = f"{rng.choice(ODD if rng.random() < 0.1 else ODD[:-1])} {number}"
        elif own == "long" and rng.random() < 0.3:
            text = " ".join(rng.choices(WORDS, k=rng.choice((60, 200)))) + f" {number}"
        elif own == "duplicates" and rng.random() < 0.6:
            text = rng.choice(("what is it", "What  is it", "who")) + (
                f" {splits[number]}" if apart else ""
            )
        elif own == "empty" and rng.random() < 0.1:
            text = rng.choice(("", "  ", "\n"))
        texts.append(text)
    return texts


def _sizes(rng: random.Random, traits: list[str]) -> dict[str, int]:
    """Items of each split: one in many tasks, none in a few."""
    sizes = {
        split: 0 if rng.random() < 0.02 else rng.choice(SIZES[split])
        for split in SPLITS
    }
    traits.append("/".join(str(sizes[split]) for split in SPLITS))
    return sizes


def _label_rows(rng: random.Random, traits: list[str]) -> list[dict[str, Any]]:
    """Texts with labels: balanced, rare, one for all, one a text; or such that short ones are always right or wrong."""
    sizes = _sizes(rng, traits)
    shape = rng.choice(
        ("balanced",) * 4
        + ("rare", "rare", "single", "each its own", "all right", "all wrong", "long")
    )
    traits.append(f"{shape} labels")
    splits = [split for split in SPLITS for _ in range(sizes[split])]
    texts = _texts(rng, splits, traits)
    known = rng.sample(LABELS, rng.randint(2, 6))
    rows = []
    for number, (split, text) in enumerate(zip(splits, texts, strict=True)):
        label = {
            "balanced": known[number % len(known)],
            "rare": known[0] if rng.random() < 0.9 else known[1],
            "single": known[0],
            "each its own": f"label{number}",
            # a model with random weights prefers the label with fewer tokens
            "all right": "long winded label words" if number == 0 else "a",
            "all wrong": "a" if number == 0 else "long winded label words",
            "long": f"{'word ' * 30}{number % 2}",
        }[shape]
        rows.append({"id": f"i{number}", "text": text, "label": label, "split": split})
    return rows


def _answer_rows(rng: random.Random, traits: list[str]) -> list[dict[str, Any]]:
    """Questions with one to ten free answers, some of them of the kind that normalising empties."""
    sizes = _sizes(rng, traits)
    shape = rng.choice(
        ("words",) * 5 + ("the same", "odd", "odd", "each its own", "long", "empty")
    )
    annotators = rng.choice((1, 1, 2, 4, 10))
    traits.append(f"{shape} answers of {annotators}")
    splits = [split for split in SPLITS for _ in range(sizes[split])]
    rows = []
    for number, (split, text) in enumerate(
        zip(splits, _texts(rng, splits, traits), strict=True)
    ):
        pool = {
            "words": LABELS,
            "the same": ("yes",),
            "odd": (*ODD[:-1], "...", "the", "a", "!?"),
            "each its own": (f"answer {number}", f"reply {number}"),
            "long": (" ".join(WORDS * 4), "short"),
            "empty": ("yes",) * 20 + ("", " "),
        }[shape]
        rows.append(
            {
                "id": number,
                "question": text,
                "answers": rng.choices(pool, k=annotators),
                "image": None,
                "split": split,
            }
        )
    return rows


def _draw_pictures(rng: random.Random, task: DrawnTask, folder: Path) -> None:
    """A picture for every row, or for some; small ones of several forms, in the formats people have."""
    from PIL import Image

    trouble = rng.choice(
        ("plain",) * 5 + ("shared", "shared", "some missing", "some without")
    )
    task.traits.append(f"{trouble} pictures")
    for number, row in enumerate(task.rows):
        if trouble == "some without" and number % 2:
            continue
        name = f"p{number if trouble != 'shared' else number // 2}.{rng.choice(('png', 'jpg'))}"
        row["image"] = name
        if trouble == "some missing" and number % 5 == 4:
            continue
        mode = rng.choice(
            ("RGB", "RGB", "L", "P", "CMYK" if name.endswith("jpg") else "RGBA")
        )
        size = (rng.choice((8, 32, 56)), rng.choice((8, 32, 56)))
        picture = Image.new(
            "RGB", size, (rng.randrange(256), rng.randrange(256), rng.randrange(256))
        )
        picture.convert("L" if mode == "P" and name.endswith("jpg") else mode).save(
            folder / name
        )
