"""The sections of a recipe that are not about the selector or its training: task, vectors, scores, evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from leverplus import catalog
from leverplus.recipe.schema import setting
from leverplus.recipe.training import LABEL_ONLY

TEXT_SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)
"""Shares of the question that nearest_both tries on dev."""


def _tasks() -> tuple[str, ...]:
    return tuple(catalog.TASKS)


def _metrics() -> tuple[str, ...]:
    return ("auto", *catalog.METRICS)


def _embedders() -> tuple[str, ...]:
    return tuple(catalog.EMBEDDERS)


def _backends() -> tuple[str, ...]:
    return tuple(catalog.BACKENDS)


def _stages() -> tuple[str, ...]:
    return tuple(catalog.STAGES)


@dataclass(frozen=True)
class TaskSection:
    """`[task]`: where questions, pictures and answers come from."""

    name: str = setting("world", "the task", choices=_tasks, part="task")
    world_seed: int = setting(0, "which world is drawn (task = world)", low=0)
    folder: str = setting("data", "folder that holds the task's files")
    images: str = setting("", 'folder of the pictures; "": beside the files; "none": questions only')
    file: str = setting("", "the file of tasks that are one file (jsonl, labels)")
    captions: str = setting("", "file of machine captions (okvqa_captions)")
    metric: str = setting(
        "auto",
        "how an answer is judged (jsonl); auto: by the number of answers of most items",
        choices=_metrics,
        part="metric",
    )
    split_seed: int = setting(0, "which pictures make a split that the data set does not have", low=0)
    dev_items: int = setting(500, "items of such a dev split; at most a fifth of what there is", low=1)
    test_items: int = setting(1000, "items of such a test split; at most a fifth of what there is", low=1)
    skip_empty: bool = setting(False, "leave out items whose answer is empty, instead of refusing all")
    limit: int = setting(0, "items kept of each split, whole pictures; 0: all", low=0)
    outside: bool = setting(
        False, "pictures of a JSONL file may lie outside task.images and the file's own folder (jsonl)", since="0.2"
    )
    rules: str = setting(
        "0.2",
        "version whose rules decide what a file leaves open: its splits, and metric = auto (jsonl, labels)",
        choices=("0.2", "0.1"),
        since="0.2",
    )


@dataclass(frozen=True)
class EmbedSection:
    """`[embed]`: what turns items into vectors."""

    name: str = setting("world", "the embedder", choices=_embedders, part="embedder")
    model: str = setting("", 'its weights: a folder, an installed package, a name on a hub; "": the usual ones')
    device: str = setting("auto", "where it runs: auto, cpu, cuda, cuda:1, ...")
    batch: int = setting(64, "texts or pictures embedded together", low=1)
    mean: bool = setting(False, "one vector for picture and question, their mean, instead of two (clip, siglip)")

    def problems(self, prefix: str = "embed.") -> list[str]:
        """Values that are allowed one by one but not together."""
        given = [
            key for key in ("model", "device", "batch", "mean") if getattr(self, key) != getattr(EmbedSection, key)
        ]
        if self.name == "world" and given:
            return [f"{prefix}{key}: the world's embedder has no such choice" for key in given]
        if self.name == "sentence" and self.mean:
            return [f"{prefix}mean = true: a sentence encoder sees no pictures; use clip or siglip"]
        return []


@dataclass(frozen=True)
class ScoreSection:
    """`[score]`: what is asked of the frozen model for training, and how much of it."""

    backend: str = setting("world", "the frozen model", choices=_backends, part="backend")
    engine: str = setting("local", "where it runs: this process, or a Ray cluster", choices=("local", "ray"))
    workers: int = setting(0, "model copies on a Ray cluster; 0: one a GPU, or one a CPU where there is none", low=0)
    worker_timeout: float = setting(
        1800.0, "ray: seconds a worker may take for a chunk before another one is asked", above=0.0, since="0.2"
    )
    chunk: int = setting(512, "prompts asked and committed together: the most a crash costs a worker", low=1)
    budget: int = setting(32000, "calls that training and dev selection may ask for", low=1)
    groups: str = setting("", "learn from groups that `lever import` took over, in this folder, instead of searching")
    queries: int = setting(0, "training queries; 0: as many as the budget pays for", low=0)
    search: str = setting(
        "beam",
        "one-shot tables, beam search on top of them, or sequences from several sources",
        choices=("dense", "beam", "mixed"),
    )
    shots: int = setting(2, "how many demonstrations searched sequences have", low=1, high=8)
    beam: int = setting(5, "how many sequences beam search keeps", low=1)
    side: str = setting(
        "right", "where beam search puts a new one: next to the query, or in front", choices=("right", "left")
    )
    random: int = setting(5, "mixed: sequences drawn by chance", low=0)
    retrieved: int = setting(5, "mixed: sequences of nearest neighbours", low=0)
    samples: int = setting(0, "mixed: sequences drawn from the selector at each temperature", low=0)
    temperatures: tuple[float, ...] = setting((1.0, 1.3), "mixed: temperatures of these samples", above=0.0)
    stochastic: int = setting(0, "mixed: sequences drawn from the selector without replacement", low=0)
    selector_beams: int = setting(0, "mixed: likeliest sequences under the selector", low=0)
    prefixes: bool = setting(False, "mixed: also score every prefix of a sequence")
    mine: int = setting(
        0, "calls to find better or worse sequences for a query whose sequences all score the same", low=0
    )
    keep: str = setting(
        "all",
        "which groups are kept: mixed has right and wrong, strict and few_positives more wrong than right",
        choices=("all", "mixed", "strict", "few_positives", "diverse"),
    )
    tiers: tuple[str, ...] = setting(
        ("high", "medium", "low"), "tiers of the curriculum that are kept", choices=("high", "medium", "low")
    )
    rounds: int = setting(
        0, "epochs of the first stage that learns from answers, before which the selector says what to ask next", low=0
    )
    first_share: float = setting(0.3, "share of the calls spent before the first of these rounds", above=0.0, high=1.0)
    best: int = setting(8, "rounds: the selector's best candidates that are measured for a fresh query", low=1)
    chance: int = setting(2, "rounds: candidates measured by chance beside them", low=0)
    depth: int = setting(
        1, "rounds: the last place in the list that is asked about; every other turn is about the first", low=1, high=8
    )
    pilot: int = setting(
        0,
        "training queries of a pilot before training, each asked with every demonstration of it; it says what can be "
        "gained, and finds one list for everybody; 0: none",
        low=0,
        since="0.2",
    )
    pilot_demos: int = setting(10, "demonstrations of the pilot, drawn by chance", low=2, high=64, since="0.2")
    dev_queries: int = setting(64, "dev queries on which every epoch is judged", low=1)
    dev_shots: tuple[int, ...] = setting((1, 2, 3, 4), "numbers of demonstrations judged there", low=1, high=8)

    @property
    def draws_from_selector(self) -> bool:
        """Whether sequences come from the selector that the first stage trained."""
        return self.search == "mixed" and bool(self.samples or self.stochastic or self.selector_beams)

    def cost(self, pool: int) -> int:
        """Most calls one training query needs."""
        if self.groups:
            return 0
        calls = 1 + self.mine
        if self.search == "mixed":
            drawn = self.random + self.retrieved + self.stochastic + self.selector_beams
            drawn += self.samples * len(self.temperatures)
            return calls + drawn * (self.shots if self.prefixes else 1)
        calls += pool
        if self.search == "beam":
            calls += sum(min(self.beam, pool) * (pool - step) for step in range(1, self.shots))
        return calls


LOG_SINKS = ("mlflow", "wandb", "tensorboard")
"""Where a training's log may go beside log.jsonl."""


@dataclass(frozen=True)
class TrainSection:
    """`[train]`: which stages, in which order; each has a section of its own."""

    stages: tuple[str, ...] = setting(("sft",), "stages in order", choices=_stages)
    imitate: int = setting(1, "best sequences of every length that sft imitates", low=1)
    start: str = setting(
        "",
        "what the first stage begins with: a checkpoint folder, a run, RUN:NAME, or a file of the earlier code",
        since="0.2",
    )
    checks: tuple[str, ...] = setting(
        (), "checks of your own that the doctor makes beside its own", choices=(), since="0.2", part="check"
    )
    log_to: tuple[str, ...] = setting(
        (), "who is given the training log beside log.jsonl; `--log-to` does the same", choices=LOG_SINKS, since="0.2"
    )

    @property
    def asking(self) -> str:
        """The first stage that learns from the model's answers; "" where no stage does, which no recipe may have."""
        return next((stage for stage in self.stages if stage not in LABEL_ONLY), "")


@dataclass(frozen=True)
class EvalSection:
    """`[eval]`: which items, numbers of demonstrations and rival arms."""

    items: int = setting(300, "test items, drawn at random once; 0: all", low=0)
    shots: tuple[int, ...] = setting((1, 2, 3, 4), "numbers of demonstrations", low=1, high=16)
    oracle: bool = setting(True, "also run the greedy oracle, which looks at the answers")
    random_draws: int = setting(3, "independent draws of the random arm", low=1)
    dev_items: int = setting(200, "dev items on which the weight of nearest_both is chosen", low=1)
    vote_neighbours: int = setting(16, "nearest of all demonstrations whose answers label_vote counts", low=1)
    ranked: bool = setting(
        True, "also rank demonstrations by labels, and by labels and the effects that training measured", since="0.2"
    )
    calibrate: bool = setting(True, "label tasks: also show every arm after batch calibration; costs no call")
    exhaustive_calls: int = setting(20000, "most calls that trying all ordered pairs may take; 0: never", low=0)
    diagnostics: bool = setting(True, "also measure order, regret, shuffled queries and training accuracy")
    diagnostic_items: int = setting(100, "items on which these are measured", low=2)
    advice: bool = setting(
        True, "also run every arm on eval.dev_items, to say at the end which one to use", since="0.2"
    )
