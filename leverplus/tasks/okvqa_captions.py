"""OK-VQA with a machine caption in the picture's place, so that a model that only reads text can answer.

Captions exist for val2014, so its questions are split by picture into demonstrations, dev and test. The ten answers
are stemmed, and predictions are stemmed likewise: results are not comparable with published OK-VQA.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leverplus.recipe.sections import TaskSection
from leverplus.tasks.files import Draft, FileTask, task_from_drafts
from leverplus.tasks.jsonl import UNREADABLE, json_record
from leverplus.tasks.reading import Problems, find_file, is_whole_number, read_task_json, read_text, records_under
from leverplus.types import Item, ItemId

NOTE = "answers and predictions are stemmed and captions stand for pictures: not comparable with published OK-VQA"
WHERE = (
    "val_ten_answers.json (okvqa_val_eval.json) https://github.com/CR-Gjx/Img2Prompt; captions "
    "VinVL_base_val2014.tsv https://github.com/microsoft/PICa"
)
CAPTIONS = ("vinvl_captions_val2014.tsv", "VinVL_base_val2014.tsv")
ANSWERS = ("val_ten_answers.json", "okvqa_val_eval.json")


def okvqa_captions(section: TaskSection) -> FileTask:
    """5,046 questions on val2014; a question is asked as "CAPTION QUESTION"."""
    problems = Problems("okvqa_captions", WHERE)
    folder = Path(section.folder).expanduser()
    captions = _captions(section, folder, problems)
    path = find_file((folder, folder / "okvqa"), ANSWERS)
    drafts = []
    if path is None:
        problems.add(ANSWERS[0], f"is not in task.folder = {folder}")
    else:
        rows = records_under({"rows": read_task_json(path, problems)}, "rows", path, problems)
        problems.present.append(f"{path} ({len(rows):,} questions)")
        for row in rows:
            draft = _draft(row, captions, path, problems)
            if draft is not None:
                drafts.append(draft)
    return task_from_drafts(
        "okvqa_captions", drafts, section, problems, metric="vqa_accuracy", postprocess="vqa_stem", notes=[NOTE]
    )


def _captions(section: TaskSection, folder: Path, problems: Problems) -> dict[str, str]:
    """The caption of every picture: lines `image id, tab, [{"caption": ...}]`."""
    if section.captions:
        wanted = Path(section.captions).expanduser()
        path = find_file((wanted.parent,), (wanted.name,))
    else:
        wanted = Path(CAPTIONS[0])
        path = find_file((folder, folder / "coco_small"), CAPTIONS)
    if path is None:
        problems.add(str(wanted), "is not there; set task.captions = FILE")
        return {}
    found: dict[str, str] = {}
    content = read_text(path, problems) or ""
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path.name}, line {number}"
        image, _, text = line.partition("\t")
        value = json_record(text, place, problems)
        first = value[0] if isinstance(value, list) and value else None
        if isinstance(first, Mapping) and isinstance(first.get("caption"), str):
            found[image] = first["caption"].strip()
        elif value is not UNREADABLE:
            problems.add(place, 'must be IMAGE, a tab, [{"caption": text}]')
    problems.present.append(f"{path} ({len(found):,} captions)")
    return found


def _draft(row: Mapping[str, Any], captions: Mapping[str, str], path: Path, problems: Problems) -> Draft | None:
    """The item of a record, its caption before its question; None, with a problem reported, where it is faulty."""
    place = f"{path.name}, question_id {row.get('question_id')}"
    answers, question, name = row.get("answer"), row.get("question"), str(row.get("image", ""))
    number = name[-16:-4]  # the twelve digits of .../COCO_val2014_NUMBER.jpg
    are_texts = isinstance(answers, list) and all(isinstance(answer, str) for answer in answers)
    has_numbers = is_whole_number(row.get("question_id")) and number.isdecimal()
    if not isinstance(question, str) or not isinstance(answers, list) or not are_texts or not has_numbers:
        problems.add(
            place,
            "needs question_id (a whole number), question, answer (a list of texts) and image "
            "(.../COCO_val2014_NUMBER.jpg)",
        )
        return None
    image = str(int(number))  # captions name pictures without leading zeros
    if captions and image not in captions:
        problems.add(place, f"there is no caption of picture {image}")
        return None
    caption = captions.get(image, "")
    item = Item(
        id=ItemId(str(row["question_id"])),
        question=f"{caption} {question}".strip(),
        answers=tuple(answers),
        split="",
        image_id=image,
        meta={"caption": caption, "question": question},
    )
    return Draft(item, place)
