"""A recipe: a whole experiment in one TOML file, read with all its problems at once; its hash names the run."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverplus import catalog
from leverplus.errors import MissingFile, RecipeError, UnknownName
from leverplus.parsing import parse_toml
from leverplus.recipe.mistakes import MistakesSection
from leverplus.recipe.model import ModelSection
from leverplus.recipe.pools import PoolSection
from leverplus.recipe.schema import hashed_settings, plain_settings, read_section, sick_settings
from leverplus.recipe.sections import EmbedSection, EvalSection, ScoreSection, TaskSection, TrainSection
from leverplus.recipe.selection import PolicyConfig, read_selection
from leverplus.recipe.training import FREE, RewardConfig, StageConfig
from leverplus.recipe.training import SECTIONS as STAGE_SECTIONS

FOLDER = Path(__file__).parent.parent / "recipes"
GALLERY = "gallery"

PLAIN = {
    "task": TaskSection,
    "embed": EmbedSection,
    "pool": PoolSection,
    "model": ModelSection,
    "score": ScoreSection,
    "reward": RewardConfig,
    "train": TrainSection,
    "eval": EvalSection,
    "mistakes": MistakesSection,
}
TEXTS = ("purpose", "expected")


LONGEST_CHAIN = 16
"""Recipes that may extend each other."""


@dataclass(frozen=True)
class Recipe:
    """Every value of an experiment; `purpose` and `expected` are for people and not part of the hash."""

    name: str
    purpose: str
    expected: str
    task: TaskSection
    embed: EmbedSection
    pool: PoolSection
    model: ModelSection
    score: ScoreSection
    select: PolicyConfig
    reward: RewardConfig
    train: TrainSection
    eval: EvalSection
    mistakes: MistakesSection
    stages: Mapping[str, StageConfig]

    def values(self) -> dict[str, Any]:
        """All settings as nested plain values, stages in the order they run."""
        return {key: plain_settings(section) for key, section in self._sections().items()}

    @property
    def hash(self) -> str:
        """Twelve digits that name the experiment; a setting that a later version added counts once it is changed."""
        covered = {key: hashed_settings(section) for key, section in self._sections().items()}
        return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()[:12]

    def sick(self) -> list[str]:
        """Settings that reproduce a known mistake on purpose."""
        return [line for key, section in self._sections().items() for line in sick_settings(section, f"{key}.")]

    def _sections(self) -> dict[str, Any]:
        return {**{key: getattr(self, key) for key in (*PLAIN, "select")}, **self.stages}


def recipe_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def gallery_names() -> list[str]:
    """The recipes of the gallery of sick runs, as `gallery/NAME`."""
    return sorted(f"{GALLERY}/{path.stem}" for path in (FOLDER / GALLERY).glob("*.toml"))


def find_recipe(name: str) -> Path:
    """The file of a shipped recipe, or the path given."""
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise MissingFile(f"there is no recipe file {path}; `lever recipes` lists the shipped ones")
        return path
    shipped = FOLDER / f"{name}.toml"
    if not shipped.is_file():
        raise UnknownName(f"there is no recipe called '{name}'; known: {', '.join(recipe_names())}")
    return shipped


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by name or path, with `key=value` overrides; raises RecipeError with every problem."""
    path = find_recipe(name)
    problems: list[str] = []
    values = read_values(path)
    for override in overrides:
        apply_override(values, override, problems)
    if any(override.partition("=")[0].strip() == "train.stages" for override in overrides):
        values = _only_stages(values)
    return build_recipe(path.stem, values, str(path), problems)


def read_values(path: Path, heirs: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The values of a recipe file; with `extends = "NAME"` those of that recipe, where the file gives no others."""
    try:
        values = parse_toml(path.read_bytes())
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(str(path), [f"this is not a TOML file: {error}"]) from error
    except OSError as error:
        raise MissingFile(f"the recipe file {path} cannot be read ({error.strerror})") from error
    name = values.pop("extends", None)
    if name is None:
        return values
    if not isinstance(name, str):
        raise RecipeError(str(path), ["extends: must be the name or file of a recipe"])
    if len(heirs) >= LONGEST_CHAIN:
        raise RecipeError(str(path), [f'extends = "{name}": more than {LONGEST_CHAIN} recipes extend each other'])
    base = find_recipe(str(path.parent / name) if name.endswith(".toml") else name)
    if base.resolve() in {heir.resolve() for heir in (*heirs, path)}:
        raise RecipeError(str(path), [f'extends = "{name}": recipes extend each other in a circle'])
    merged = read_values(base, (*heirs, path))
    for key, part in values.items():
        both = isinstance(part, dict) and isinstance(merged.get(key), dict)
        merged[key] = {**merged[key], **part} if both else part
    kept = _only_stages(merged)  # inherited sections of stages that are not run here stay behind
    return {key: part for key, part in merged.items() if key in kept or key in values}


def _only_stages(values: dict[str, Any]) -> dict[str, Any]:
    """Without the sections of stages that were overridden away on the command line."""
    train = values.get("train")
    kept = train.get("stages") if isinstance(train, dict) else None
    if not isinstance(kept, list):
        return values  # a problem that is reported with the others
    return {key: value for key, value in values.items() if key not in STAGE_SECTIONS or key in kept}


def apply_override(values: dict[str, Any], override: str, problems: list[str]) -> None:
    """Set `section.key=value`; the value is TOML, or a bare word."""
    key, equals, text = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not dot:
        problems.append(f"--set {override}: write it as section.key=value, for example --set score.budget=8000")
        return
    try:
        value = parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = values.setdefault(section, {})
    if not isinstance(table, dict):
        problems.append(f"--set {override}: '{section}' is not a section")
        return
    table[name] = value


def build_recipe(name: str, values: Mapping[str, Any], source: str, problems: list[str] | None = None) -> Recipe:
    """A recipe from nested values, every problem reported with its key and what is allowed."""
    problems = [] if problems is None else problems
    known = (*PLAIN, "select", *STAGE_SECTIONS, *TEXTS)
    for key in values:
        if key not in known:
            problems.append(f"{key}: there is no such section; known: {', '.join(known)}")
    texts = {key: values.get(key, "") for key in TEXTS}
    for key, text in texts.items():
        if not isinstance(text, str):
            problems.append(f"{key}: must be a text")
    tables = {key: _table(values, key, problems) for key in (*PLAIN, "select", *STAGE_SECTIONS)}
    sections: dict[str, Any] = {key: read_section(cls, tables[key], f"{key}.", problems) for key, cls in PLAIN.items()}
    sections["select"] = read_selection(tables["select"], problems)
    stages = {key: read_section(cls, tables[key], f"{key}.", problems) for key, cls in STAGE_SECTIONS.items()}
    problems.extend(_contradictions(sections))
    problems.extend(_idle_rounds(sections, stages))
    problems.extend(_late_labels(sections))
    for key, stage in stages.items():
        problems.extend(stage.problems(f"{key}.") if stage else [])
    problems.extend(_adapter_problems(sections, stages))
    order = sections["train"].stages if sections["train"] else tuple(STAGE_SECTIONS)
    problems.extend(
        f"[{key}]: this stage is not in train.stages, so it has no effect"
        for key in STAGE_SECTIONS
        if key in values and key not in order
    )
    if problems:
        raise RecipeError(source, problems)
    chosen = {key: stage for key in order if (stage := stages[key]) is not None}
    return Recipe(name, texts["purpose"], texts["expected"], stages=chosen, **sections)


def _table(values: Mapping[str, Any], key: str, problems: list[str]) -> Mapping[str, Any]:
    table = values.get(key, {})
    if not isinstance(table, Mapping):
        problems.append(f"{key}: must be a section, written [{key}]")
        return {}
    return table


def _contradictions(sections: Mapping[str, Any]) -> list[str]:
    """Values that are allowed one by one but not together."""
    pool, score, evaluation, select = (sections[key] for key in ("pool", "score", "eval", "select"))
    found = _list_problems(sections) + (pool.problems() if pool else [])
    if sections["model"] and score:
        found.extend(sections["model"].problems(score.backend))
    found += sections["embed"].problems() if sections["embed"] else []
    found += _world_for_others(sections)
    eval_shots = max(evaluation.shots, default=0) if evaluation else 0
    dev_shots = max(score.dev_shots, default=0) if score else 0
    if pool and pool.size < eval_shots:
        found.append(f"pool.size = {pool.size}: must be at least the largest of eval.shots = {eval_shots}")
    if pool and score and pool.size < max(score.shots, dev_shots):
        found.append(f"pool.size = {pool.size}: must be at least score.shots and every one of score.dev_shots")
    if select and select.max_shots < eval_shots:
        found.append(f"select.max_shots = {select.max_shots}: eval.shots asks for {eval_shots}")
    if select and select.max_shots < dev_shots:
        found.append(f"select.max_shots = {select.max_shots}: score.dev_shots asks for {dev_shots}")
    train = sections["train"]
    if score and train and score.draws_from_selector and len(train.stages) < 2:
        found.append(
            "score.samples, score.stochastic and score.selector_beams draw from the selector of the first stage: "
            "train.stages must name a second one that learns from them"
        )
    if score and score.groups and (score.rounds or score.mine or score.draws_from_selector):
        found.append(
            "score.groups: nothing is searched then, so score.rounds, score.mine and draws of the selector idle"
        )
    if score and score.rounds and (score.mine or score.search == "mixed"):
        found.append(f"score.rounds = {score.rounds}: needs score.search = dense or beam, and score.mine = 0")
    if pool and score and score.budget < score.cost(pool.size):
        found.append(
            f"score.budget = {score.budget}: one training query costs {score.cost(pool.size)} calls; "
            "raise the budget, or lower score.beam, score.shots or pool.size"
        )
    return found


def _world_for_others(sections: Mapping[str, Any]) -> list[str]:
    """The world's own model or embedder named for another task, whose items they cannot read."""
    task, embed, score = (sections[key] for key in ("task", "embed", "score"))
    if not task or task.name == "world":
        return []
    named = (
        ("embed.name", embed and embed.name, catalog.EMBEDDERS),
        ("score.backend", score and score.backend, catalog.BACKENDS),
    )
    return [
        f'{key} = "world": reads the world alone; for task {task.name} use '
        + " or ".join(other for other in known if other != "world")
        for key, name, known in named
        if name == "world"
    ]


def _idle_rounds(sections: Mapping[str, Any], stages: Mapping[str, StageConfig | None]) -> list[str]:
    """Rounds of acquisition that no epoch would follow."""
    score, train = sections["score"], sections["train"]
    first = stages.get(train.asking) if train and train.asking else None
    if score and first and score.rounds and score.rounds >= first.epochs:
        return [
            f"score.rounds = {score.rounds}: must be below {train.asking}.epochs = {first.epochs}, "
            "since a round is asked before an epoch other than the first"
        ]
    return []


def _late_labels(sections: Mapping[str, Any]) -> list[str]:
    """Stages that learn from labels and have no stage behind them that learns from the model, or one before them."""
    stages = sections["train"].stages if sections["train"] else ()
    return [
        f"train.stages: {name} learns from labels alone, so that a later stage knows what to ask the model about: name "
        "one behind it that learns from answers, such as listwise, and none before it"
        for place, name in enumerate(stages)
        if name in FREE and (set(stages[:place]) - set(FREE) or not set(stages[place:]) - set(FREE))
    ]


def _adapter_problems(sections: Mapping[str, Any], stages: Mapping[str, StageConfig | None]) -> list[str]:
    """Adapters where there is nothing to adapt, or that come after a stage that trained without them."""
    embed, train, sft = sections["embed"], sections["train"], stages.get("sft")
    rank = getattr(sft, "lora_rank", 0)
    if not rank or not embed or not train or "sft" not in train.stages:
        return []
    found = []
    if embed.name == "world":
        found.append(f'sft.lora_rank = {rank}: needs embed.name = "clip", "siglip" or "sentence"')
    if train.stages[0] != "sft":
        found.append(f"sft.lora_rank = {rank}: sft must be the first of train.stages")
    return found


def _list_problems(sections: Mapping[str, Any]) -> list[str]:
    """Lists of what is done that are empty or name something twice."""
    found = []
    for key, name in (("eval", "shots"), ("score", "dev_shots"), ("train", "stages")):
        values = getattr(sections[key], name) if sections[key] else (None,)
        if not values:
            found.append(f"{key}.{name} = []: must name at least one")
        elif len(set(values)) < len(values):
            found.append(f"{key}.{name} = {list(values)}: names one twice; each is done once")
    return found
