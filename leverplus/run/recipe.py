"""A recipe: a whole experiment in one TOML file, read with all its problems at once; its hash names the run."""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leverplus.arms.settings import PoolSection
from leverplus.data.parsing import parse_toml
from leverplus.data.settings import (
    hashed_settings,
    known_mistakes_in,
    nearest,
    outside_parts,
    plain_settings,
    read_section,
)
from leverplus.data.tasks.settings import JudgeSection, TaskSection
from leverplus.encode.settings import EmbedSection
from leverplus.errors import MissingFile, RecipeError, UnknownName
from leverplus.evaluate.settings import EvalSection
from leverplus.learn.policies.settings import PolicyConfig, read_selection
from leverplus.learn.settings import SECTIONS as STAGE_SECTIONS
from leverplus.learn.settings import RewardConfig, StageConfig, TrainSection
from leverplus.models.settings import ModelSection
from leverplus.run.rules import contradictions
from leverplus.scores.settings import ScoreSection

FOLDERS = (
    Path(__file__).parents[1] / "recipes",
    Path(__file__).parents[2] / "leverplus_lab" / "recipes",
)
"""Recipes known by name; those of the lab are plans of the earlier code, the same as its documents have them, and the
gallery of known mistakes."""

PLAIN: dict[str, Any] = {
    "task": TaskSection,
    "embed": EmbedSection,
    "pool": PoolSection,
    "model": ModelSection,
    "score": ScoreSection,
    "reward": RewardConfig,
    "train": TrainSection,
    "eval": EvalSection,
    "judge": JudgeSection,
    "select": PolicyConfig,
}
SECTIONS = {**PLAIN, **STAGE_SECTIONS}
"""Every section that a recipe may have, by its name."""

TEXTS = ("purpose", "expected")

LISTS = 2
"""Lists of one length that a pilot tries for everybody."""


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
    judge: JudgeSection
    stages: Mapping[str, StageConfig]
    given: frozenset[str] = field(default=frozenset(), compare=False)
    """The keys that somebody wrote (in the file, through extends, or by --set), such as `pool.size`."""

    @property
    def sections(self) -> dict[str, Any]:
        """Every section by its name, stages in the order they run."""
        return {**{key: getattr(self, key) for key in PLAIN}, **self.stages}

    def values(self) -> dict[str, Any]:
        """All settings as nested plain values."""
        return {key: plain_settings(own) for key, own in self.sections.items()}

    @property
    def hash(self) -> str:
        """Twelve digits that name the experiment: every setting that `hashed_settings` counts."""
        covered = {key: hashed_settings(own) for key, own in self.sections.items()}
        text = json.dumps(covered, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def dev_reserve(self) -> int:
        """Most calls that judging on dev takes: every stage before its first epoch and after each."""
        judged = self.score.dev_queries * len(self.score.dev_shots)
        return judged * sum(stage.epochs + 1 for stage in self.stages.values())

    def pilot_calls(self) -> int:
        """Most calls of the pilot: each query alone, with every demonstration, and with two lists of every length."""
        longer = sum(shots > 1 for shots in self.eval.shots)
        return self.score.pilot * (1 + self.score.pilot_demos + LISTS * longer)

    def reserve(self) -> int:
        """Calls of the budget that are not for asking what training learns from: judging on dev, pilot, weights of arms."""
        from leverplus.arms.spec import fit_calls

        return self.dev_reserve() + self.pilot_calls() + fit_calls(self.eval.arms)

    def known_mistakes(self) -> list[str]:
        """Settings that reproduce a known mistake on purpose."""
        found = []
        for key, section in self.sections.items():
            found += known_mistakes_in(section, f"{key}.")
        return found

    def outside_parts(self) -> list[tuple[str, str, str]]:
        """Parts of somebody else that the recipe names: key, kind and `package.module:attribute`."""
        found = []
        for key, section in self.sections.items():
            found += outside_parts(section, f"{key}.")
        return found


def recipe_names(family: str = "") -> list[str]:
    """The recipes that ship; of the lab's families `gallery` (known mistakes) and `documents` as `gallery/NAME`."""
    names = []
    for folder in FOLDERS:
        for path in (folder / family).glob("*.toml"):
            names.append(str(Path(family, path.stem)))
    return sorted(names)


def every_recipe() -> list[str]:
    """All recipes that ship, those of the lab's families last."""
    return [*recipe_names(), *recipe_names("documents"), *recipe_names("gallery")]


def find_recipe(name: str) -> Path:
    """The file of a shipped recipe, or the path given."""
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise MissingFile(
                f"there is no recipe file {path}; `lever recipes` lists the shipped ones"
            )
        return path
    for folder in FOLDERS:
        if (folder / f"{name}.toml").is_file():
            return folder / f"{name}.toml"
    if path.is_file():
        raise UnknownName(
            f"{name} is no recipe, whose name ends in .toml; if these are your data, type "
            f"`lever fit {name} --model MODEL`, or `lever run own_labels --set task.file={name}`"
        )
    near = difflib.get_close_matches(name, every_recipe(), n=1)
    hint = ""
    if near:
        hint = f"did you mean '{near[0]}'? "
    raise UnknownName(
        f"there is no recipe called '{name}'; {hint}`lever recipes` lists those that ship, and a file of your own is "
        "named with its .toml"
    )


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by name or path, with `key=value` overrides; raises RecipeError with every problem."""
    path = find_recipe(name)
    problems: list[str] = []
    values = read_values(path)
    for override in overrides:
        apply_override(values, override, problems)
    if any(own.partition("=")[0].strip() == "train.stages" for own in overrides):
        values = _only_stages(values)
    return build_recipe(path.stem, values, str(path), problems)


def read_values(path: Path, heirs: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The values of a recipe file; with `extends = "NAME"` those of that recipe, where the file gives no others."""
    try:
        values = parse_toml(path.read_bytes())
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(str(path), [f"this is not a TOML file: {error}"]) from error
    except OSError as error:
        raise MissingFile(
            f"the recipe file {path} cannot be read ({error.strerror})"
        ) from error
    name = values.pop("extends", None)
    if name is None:
        return values
    if not isinstance(name, str):
        raise RecipeError(str(path), ["extends: must be the name or file of a recipe"])
    if name.endswith(".toml"):
        name = str(path.parent / name)
    base = find_recipe(name)
    heirs = (*heirs, path.resolve())
    if base.resolve() in heirs:
        raise RecipeError(
            str(path), [f'extends = "{name}": recipes extend each other in a circle']
        )
    merged = read_values(base, heirs)
    for key, part in values.items():
        if isinstance(part, dict) and isinstance(merged.get(key), dict):
            merged[key].update(part)  # a section is not replaced as a whole
        else:
            merged[key] = part
    # inherited sections of stages that are not run here stay behind
    kept = _only_stages(merged)
    return kept | {key: merged[key] for key in values}


def _only_stages(values: dict[str, Any]) -> dict[str, Any]:
    """Without the sections of stages that train.stages does not name (any more)."""
    train = values.get("train")
    stages = train.get("stages") if isinstance(train, dict) else None
    if not isinstance(stages, list):
        return values  # a problem that is reported with the others
    kept = dict(values)
    for key in set(STAGE_SECTIONS) - set(stages):
        kept.pop(key, None)
    return kept


def apply_override(values: dict[str, Any], override: str, problems: list[str]) -> None:
    """Set `section.key=value`; the value is TOML, or a bare word."""
    key, equals, text = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not dot:
        problems.append(
            f"--set {override}: write it as section.key=value, for example --set score.budget=8000"
        )
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


def build_recipe(
    name: str, values: Mapping[str, Any], source: str, problems: list[str] | None = None
) -> Recipe:
    """A recipe from nested values, every problem reported with its key and what is allowed."""
    problems = [] if problems is None else problems
    known = [*SECTIONS, *TEXTS]
    for key, value in values.items():
        if key not in known:
            hint = nearest(key, dict.fromkeys(known))
            problems.append(f"{key}: there is no such section; {hint}")
        elif key in TEXTS and not isinstance(value, str):
            problems.append(f"{key}: must be a text")
        elif key in SECTIONS and not isinstance(value, Mapping):
            problems.append(f"{key}: must be a section, written [{key}]")
    sections: dict[str, Any] = {}
    given: set[str] = set()
    unread = []
    for key, cls in SECTIONS.items():
        table = values.get(key, {})
        if not isinstance(table, Mapping):
            table = {}
        given.update(f"{key}.{own}" for own in table)
        if key == "select":
            section = read_selection(table, problems)
        else:
            section = read_section(cls, table, f"{key}.", problems)
        if section is None:
            unread.append(f"{key}.")
        sections[key] = section or cls()
    stages = sections["train"].stages
    for key in STAGE_SECTIONS:
        if key in values and key not in stages and "train." not in unread:
            problems.append(
                f"[{key}]: this stage is not in train.stages, so it has no effect"
            )
    recipe = Recipe(
        name,
        values.get("purpose", ""),
        values.get("expected", ""),
        stages={key: sections[key] for key in stages},
        given=frozenset(given),
        **{key: sections[key] for key in PLAIN},
    )
    for problem in contradictions(recipe):
        if not any(map(problem.__contains__, unread)):
            problems.append(problem)
    if problems:
        raise RecipeError(source, problems)
    return recipe
