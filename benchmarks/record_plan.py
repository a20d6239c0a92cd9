"""What a recorded benchmark asks: items, one-shot candidates and longer sequences of a task, the same for all models.

`benchmarks/record_tables.py` runs it; docs/recorded.md says why it is built so. Nothing here asks a language model:
MiniLM vectors and seeds decide everything, so the plan of a task is the same on every machine.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.embedders.base import Array
from leverplus.pools.similarity import cosine, mmr_order, top
from leverplus.recipe.sections import TaskSection
from leverplus.tasks.files import group_of
from leverplus.types import Item, ItemId

Ints = NDArray[np.int64]
Texts = Callable[[Sequence[str]], Array]
"""Unit vectors (N, D) of texts."""

FOLDS = 5
LONGEST = 16
SEQUENCE_SHOTS = (2, 4, 8)
VOTERS = 16
MMR_LAMBDA, MMR_FIRST = 0.7, 200


@dataclass(frozen=True)
class Sizes:
    """How much is asked: candidates by kind, queries by split, queries with longer sequences, random draws."""

    question: int = 20
    both: int = 12
    caption: int = 4
    answer: int = 4
    anchors: int = 8
    chance: int = 16
    corpus: int = 3000
    queries: Mapping[str, int] = field(default_factory=lambda: {"train": 2000, "dev": 300, "test": 700})
    sequences: Mapping[str, int] = field(default_factory=lambda: {"train": 250, "dev": 250, "test": 500})
    draws: Mapping[str, int] = field(default_factory=lambda: {"train": 4, "dev": 2, "test": 2})

    @property
    def near(self) -> int:
        return self.question + self.both + self.caption + self.answer


TINY = Sizes(3, 2, 1, 1, 2, 3, 60, {"train": 12, "dev": 6, "test": 6}, {"train": 2, "dev": 2, "test": 2})
"""For tests and for trying the whole path on a CPU."""


@dataclass(frozen=True)
class Source:
    """A task of the benchmark: where its items come from and how a prompt is written.

    `crossed`: every item is a query, and candidates come from the four other folds, so that every item can be a test
    item once. Else demonstrations are those of split train.
    """

    name: str
    read: Callable[[Path], list[Item]]
    template: str
    postprocess: str
    crossed: bool
    licence: str
    labels: tuple[str, ...] = ()


def read_okvqa(data: Path) -> list[Item]:
    """The 5,046 questions of OK-VQA val with a caption in the picture's place, ten stemmed answers."""
    from leverplus.tasks.okvqa_captions import okvqa_captions

    task = okvqa_captions(TaskSection(name="okvqa_captions", folder=str(data), skip_empty=True))
    items = [item for split in ("train", "dev", "test") for item in task.items(split)]
    # two items have an empty answer among their ten
    return [replace(item, answers=tuple(answer for answer in item.answers if answer.strip())) for item in items]


def read_aokvqa(data: Path) -> list[Item]:
    """The 1,145 questions of A-OKVQA val with a caption in the picture's place, ten direct answers."""
    captions = read_captions(data / "coco_small" / "vinvl_captions_val2014.tsv.gz")
    rows = json.loads((data / "aokvqa" / "aokvqa_v1p0_val.json").read_text(encoding="utf-8"))
    items = []
    for row in rows:
        image = str(row["image_id"])
        meta = {"caption": captions[image], "question": row["question"]}
        # one annotator of one question wrote nothing, which no answer may be right by
        answers = tuple(answer for answer in row["direct_answers"] if answer.strip())
        text = f"{captions[image]} {row['question']}"
        items.append(Item(ItemId(row["question_id"]), text, answers, "", image_id=image, meta=meta))
    return items


def read_captions(path: Path) -> dict[str, str]:
    found = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            image, _, text = line.partition("\t")
            found[image] = json.loads(text)[0]["caption"].strip()
    return found


def read_trec(data: Path) -> list[Item]:
    from leverplus.tasks.labels import trec

    return _split_items(trec(TaskSection(name="trec", folder=str(data / "text"))))


def read_sst2(data: Path) -> list[Item]:
    from leverplus.tasks.labels import sst2

    return _split_items(sst2(TaskSection(name="sst2", folder=str(data / "text"))))


def read_agnews(data: Path) -> list[Item]:
    from leverplus.tasks.labels import labels

    items = _split_items(labels(TaskSection(name="labels", file=str(data / "text" / "agnews.jsonl"))))
    return [replace(item, answers=(item.answer.lower(),)) for item in items]  # shown as they are weighed


def _split_items(task: Any) -> list[Item]:
    return [item for split in ("train", "dev", "test") for item in task.items(split)]


CAPTIONED = "Question: {question}\nAnswer: {answer}\n\n"
TREC_LABELS = ("description", "entity", "abbreviation", "person", "location", "number")
SOURCES = {
    source.name: source
    for source in (
        Source("okvqa", read_okvqa, CAPTIONED, "vqa_stem", True, "OK-VQA CC-BY-4.0; VinVL captions by PICa MIT"),
        Source("aokvqa", read_aokvqa, CAPTIONED, "vqa", True, "A-OKVQA Apache-2.0; VinVL captions by PICa MIT"),
        Source(
            "trec",
            read_trec,
            "Question: {question}\nType: {answer}\n\n",
            "vqa",
            False,
            "scores CC-BY-4.0; TREC texts are for research use and not included",
            TREC_LABELS,
        ),
        Source(
            "sst2",
            read_sst2,
            "Review: {question}\nSentiment: {answer}\n\n",
            "vqa",
            False,
            "scores CC-BY-4.0; SST-2 texts are for research use and not included",
            ("negative", "positive"),
        ),
        Source(
            "agnews",
            read_agnews,
            "News: {question}\nTopic: {answer}\n\n",
            "vqa",
            False,
            "scores CC-BY-4.0; AG's corpus is for non-commercial use and not included",
            ("tech", "business", "sports", "world"),
        ),
    )
}


@dataclass(frozen=True)
class Plan:
    """Items (with split and fold) and prompts as item numbers: queries (N,), demos (N, LONGEST) filled up with -1.

    The first `dense` prompts are the one-shot tables, query by query: no demonstration, then the candidates in order.
    `choosers` names who chose each further prompt.
    """

    items: list[Item]
    queries: Ints
    demos: Ints
    dense: int
    choosers: list[str]


def salted(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def assign(source: Source, items: Sequence[Item], sizes: Sizes) -> list[Item]:
    """Items with their split and, in a crossed task, their fold; which and in what order follows from hashes.

    Crossed: five folds by picture; fold 0 is the test split, the first pictures of fold 1 are dev, all others train.
    """
    if not source.crossed:
        kept = []
        for split, most in (("train", sizes.corpus), ("dev", sizes.queries["dev"]), ("test", sizes.queries["test"])):
            own = sorted((item for item in items if item.split == split), key=lambda item: salted(f"kept {item.id}"))
            kept += own[:most]
        return kept
    pictures = sorted({group_of(item) for item in items}, key=lambda name: salted(f"fold {name}"))
    fold = {name: place % FOLDS for place, name in enumerate(pictures)}
    dev: set[str] = set()
    counted = 0
    of_picture: dict[str, int] = {}
    for item in items:
        of_picture[group_of(item)] = of_picture.get(group_of(item), 0) + 1
    most = min(sizes.queries["dev"], len(items) // 10)
    for name in pictures:
        if fold[name] == 1 and counted + of_picture[name] <= most:
            dev.add(name)
            counted += of_picture[name]
    out = []
    for item in items:
        name = group_of(item)
        split = "test" if fold[name] == 0 else "dev" if name in dev else "train"
        out.append(replace(item, split=split, meta={**item.meta, "fold": str(fold[name])}))
    return sorted(out, key=lambda item: salted(f"kept {item.id}"))


class Planner:
    """Candidates and sequences of one task."""

    def __init__(self, source: Source, items: Sequence[Item], texts: Texts, sizes: Sizes, seed: int = 0) -> None:
        self.source, self.sizes, self.seed = source, sizes, seed
        self.items = assign(source, items, sizes)
        questions = [item.meta.get("question", item.question) for item in self.items]
        self.vectors = {"question": texts(questions)}
        if source.labels:
            self.answers = np.array([source.labels.index(item.answer) for item in self.items])
        else:
            self.vectors["both"] = texts([item.question for item in self.items])
            self.vectors["caption"] = texts([item.meta["caption"] for item in self.items])
            shown = texts([item.answer for item in self.items])
            self.spoken = cosine(self.vectors["both"], shown)  # the query's text against the answers shown
        self.likeness = {name: cosine(own, own) for name, own in self.vectors.items()}
        self.groups = np.array([salted(group_of(item)) % 2**62 for item in self.items])
        self.folds = np.array([int(item.meta.get("fold", -1)) for item in self.items])
        self.training = np.array([item.split == "train" for item in self.items])
        self.anchors = self._anchors()

    def queries(self, counts: Mapping[str, int]) -> list[int]:
        """The first queries of every split, test first; a crossed task asks about all of them in one-shot tables."""
        found = []
        for split in ("test", "dev", "train"):
            own = [place for place, item in enumerate(self.items) if item.split == split]
            found += own[: counts[split]]
        return found

    def allowed(self, query: int) -> NDArray[np.bool_]:
        """What may be shown for a query: not on its picture; of another fold, or of split train."""
        room = self.folds != self.folds[query] if self.source.crossed else self.training
        return room & (self.groups != self.groups[query])

    def _rng(self, *parts: Any) -> np.random.Generator:
        return np.random.default_rng(salted(f"{self.seed} {self.source.name} {parts}"))

    def _anchors(self) -> list[int]:
        """Demonstrations that (nearly) every query is asked with: two a fold, or a few of every label."""
        kinds = self.folds if self.source.crossed else np.where(self.training, self.answers, -1)
        names = sorted(set(kinds.tolist()) - {-1})
        each = -(-self.sizes.anchors // (len(names) - int(self.source.crossed)))
        drawn = [self._rng("anchors", name).permutation(np.flatnonzero(kinds == name))[:each] for name in names]
        return [int(own[turn]) for turn in range(each) for own in drawn if turn < len(own)]

    def ranked(self, query: int, vectors: str, count: int) -> list[int]:
        """The most similar allowed items by one field, best first."""
        return self._best(self.likeness[vectors][query], query, count)

    def _best(self, value: NDArray[np.float64], query: int, count: int) -> list[int]:
        open_ = np.where(self.allowed(query), value, -np.inf)
        return [int(place) for place in top(open_[None], min(count, len(open_)))[0] if np.isfinite(open_[place])]

    def candidates(self, query: int) -> list[int]:
        """The one-shot candidates of a query in table order: by field, the anchors, then uniform random ones."""
        sizes, found = self.sizes, dict[int, None]()

        def take(ranking: Sequence[int], count: int) -> None:
            fresh = [place for place in ranking if place not in found]
            found.update(dict.fromkeys(fresh[: max(0, count)]))

        deep = sizes.near + sizes.anchors
        if self.source.labels:
            own = self.likeness["question"][query]
            take(self.ranked(query, "question", deep), sizes.question)
            for label in range(len(self.source.labels)):
                take(self._best(np.where(self.answers == label, own, -np.inf), query, 3), 3)
            take(self.ranked(query, "question", 2 * deep), sizes.near - len(found))
        else:
            take(self.ranked(query, "question", deep), sizes.question)
            take(self.ranked(query, "both", deep), sizes.both)
            take(self.ranked(query, "caption", deep), sizes.caption)
            take(self._best(self.spoken[query], query, deep), sizes.answer)
        allowed = self.allowed(query)
        take([place for place in self.anchors if allowed[place]], sizes.anchors)
        rest = self._rng("chance", self.items[query].id).permutation(np.flatnonzero(allowed))
        take([int(place) for place in rest[: 4 * deep]], sizes.near + sizes.anchors + sizes.chance - len(found))
        return list(found)

    def sequences(self, query: int) -> list[tuple[str, list[int]]]:
        """Longer prompts of a query, nearest last: (who chose it, demonstrations in prompt order)."""
        split = self.items[query].split
        lists = dict[str, list[int]]()
        for name in self.vectors:
            lists[f"nearest_{name}"] = self.ranked(query, name, LONGEST)
            if name != "caption":
                lists[f"mmr_{name}"] = self._mmr(query, name)
        if self.source.labels:
            lists |= self._by_label(query)
        allowed = self.allowed(query)
        lists["fixed"] = [place for place in self.anchors if allowed[place]][: max(SEQUENCE_SHOTS)]
        for draw in range(self.sizes.draws[split]):
            rest = self._rng("sequence", draw, self.items[query].id).permutation(np.flatnonzero(allowed))
            lists[f"random_{draw}"] = [int(place) for place in rest[: max(SEQUENCE_SHOTS)]]
        found = []
        for name, ranking in lists.items():
            long = (LONGEST,) if split != "train" and name in ("nearest_question", "nearest_both") else ()
            for shots in (*SEQUENCE_SHOTS, *long):
                if len(ranking) >= shots:
                    found.append((name, ranking[:shots][::-1]))
        return found

    def _mmr(self, query: int, name: str) -> list[int]:
        first = np.array(self.ranked(query, name, MMR_FIRST))
        own = self.likeness[name]
        relevance, likeness = own[query : query + 1, first], own[np.ix_(first, first)]
        count = min(max(SEQUENCE_SHOTS), len(first))
        return [int(first[place]) for place in mmr_order(relevance, likeness.__getitem__, MMR_LAMBDA, count)[0]]

    def _by_label(self, query: int) -> dict[str, list[int]]:
        """The nearest of the label that the nearest vote for, and the nearest of every label in turn."""
        near = self.ranked(query, "question", MMR_FIRST * 4)
        votes = np.bincount(self.answers[near[:VOTERS]], minlength=len(self.source.labels))
        winner = int(votes.argmax())
        of_label = [[place for place in near if self.answers[place] == label] for label in range(len(votes))]
        rounds = [own[turn] for turn in range(max(SEQUENCE_SHOTS)) for own in of_label if turn < len(own)]
        return {"vote": of_label[winner][: max(SEQUENCE_SHOTS)], "balanced": rounds[: max(SEQUENCE_SHOTS)]}

    def plan(self) -> Plan:
        """Every prompt of the task."""
        counts = dict.fromkeys(("train", "dev", "test"), 10**9)
        rows: list[tuple[int, list[int]]] = []
        asked = self.queries(counts if self.source.crossed and self.sizes is not TINY else self.sizes.queries)
        for query in asked:
            rows.append((query, []))
            rows += [(query, [place]) for place in self.candidates(query)]
        dense, known, choosers = len(rows), set[tuple[int, ...]](), []
        for query in self.queries(self.sizes.sequences):
            for name, demos in self.sequences(query):
                if (query, *demos) not in known:
                    known.add((query, *demos))
                    rows.append((query, demos))
                    choosers.append(name)
        demos = np.full((len(rows), LONGEST), -1, dtype=np.int64)
        for row, (_, own) in enumerate(rows):
            demos[row, : len(own)] = own
        return Plan(self.items, np.array([query for query, _ in rows]), demos, dense, choosers)


def write_plan(plan: Plan, folder: Path, name: str) -> None:
    """`NAME.jsonl` (items) and `NAME.npz` (prompts)."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for item in plan.items:
        row = {"id": item.id, "question": item.question, "answers": item.answers, "image_id": item.image_id}
        lines.append(json.dumps({**row, "split": item.split, "meta": dict(item.meta)}, ensure_ascii=False))
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    np.savez_compressed(
        folder / f"{name}.npz",
        queries=plan.queries.astype(np.int16),
        demos=plan.demos.astype(np.int16),
        dense=plan.dense,
        choosers=np.array(plan.choosers),
    )


def read_plan(folder: Path, name: str) -> Plan:
    items = []
    for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        items.append(
            Item(
                ItemId(row["id"]),
                row["question"],
                tuple(row["answers"]),
                row["split"],
                image_id=row["image_id"],
                meta=row["meta"],
            )
        )
    with np.load(folder / f"{name}.npz") as arrays:
        queries, demos = arrays["queries"].astype(np.int64), arrays["demos"].astype(np.int64)
        return Plan(items, queries, demos, int(arrays["dense"]), arrays["choosers"].tolist())
