"""The `[task]` section of a recipe, where questions, pictures and answers come from, and `[judge]`, who judges them."""

from __future__ import annotations

from dataclasses import dataclass

from leverplus import catalog
from leverplus.data.settings import setting


@dataclass(frozen=True)
class TaskSection:
    """`[task]`: where questions, pictures and answers come from."""

    name: str = setting("world", "the task", choices=catalog.TASKS, part="task")
    world_seed: int = setting(0, "which world is drawn (task = world)", low=0)
    folder: str = setting("data", "folder that holds the task's files")
    images: str = setting(
        "", 'folder of the pictures; "": beside the files; "none": questions only'
    )
    file: str = setting("", "the file of tasks that are one file (jsonl, labels)")
    columns: str = setting(
        "",
        "which columns hold what, as question=COL,answer=COL,context=COL (jsonl, labels)",
    )
    split_key: str = setting(
        "split", "the key of a record's split, such as meta.query_split (jsonl, labels)"
    )
    metric: str = setting(
        "auto",
        "how an answer is judged (jsonl); auto: by what kind the answers are",
        choices=("auto", *catalog.METRICS),
        part="metric",
    )
    tolerance: float = setting(
        0.0,
        "numbers that differ by at most so much count as equal (metric number)",
        low=0.0,
    )
    database: str = setting(
        "",
        "a SQLite file, or the folder of those that meta.database names (metric sql_execution)",
    )
    cut: str = setting(
        "plain",
        "how an answer is cut out of the model's words (jsonl, labels)",
        choices=catalog.CUTS,
        part="cut",
    )
    split_seed: int = setting(
        0, "which pictures make a split that the data set does not have", low=0
    )
    dev_items: int = setting(
        500, "items of such a dev split; at most a fifth of what there is", low=1
    )
    test_items: int = setting(
        1000, "items of such a test split; at most a fifth of what there is", low=1
    )
    skip_empty: bool = setting(
        False, "leave out items whose answer is empty, instead of refusing all"
    )
    limit: int = setting(0, "items kept of each split, whole pictures; 0: all", low=0)


INSTRUCTION = (
    "You judge answers. An answer is right if it says the same as a right answer, whatever its wording. "
    "Reply with yes or no, and nothing else."
)


@dataclass(frozen=True)
class JudgeSection:
    """`[judge]`: the model that judges answers."""

    model: str = setting(
        "",
        "the judge: a server as URL#NAME, weights, or a function as module:function",
    )
    instruction: str = setting(
        INSTRUCTION, "what the judge is told; it must ask for yes or no"
    )
    max_new_tokens: int = setting(8, "the most tokens that the judge writes", low=1)
    key_env: str = setting(
        "", 'environment variable that holds its key; "": none is sent'
    )
    price_in: float = setting(0.0, "price of a million tokens it reads", low=0.0)
    price_out: float = setting(0.0, "price of a million tokens it writes", low=0.0)
    max_cost: float = setting(
        0.0, "stop when judging has cost this much; 0: no limit", low=0.0
    )
