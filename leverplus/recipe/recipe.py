"""A recipe: a whole experiment in one TOML file, read with all its problems at once; its hash names the run."""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leverplus.errors import MissingFile, RecipeError, UnknownName
from leverplus.parsing import parse_toml
from leverplus.recipe.mistakes import MistakesSection
from leverplus.recipe.model import ModelSection
from leverplus.recipe.pools import PoolSection
from leverplus.recipe.rules import contradictions, failures
from leverplus.recipe.schema import hashed_settings, known_mistakes_in, outside_parts, plain_settings, read_section
from leverplus.recipe.sections import EmbedSection, EvalSection, ScoreSection, TaskSection, TrainSection
from leverplus.recipe.selection import PolicyConfig, read_selection
from leverplus.recipe.training import SECTIONS as STAGE_SECTIONS
from leverplus.recipe.training import RewardConfig, StageConfig
from leverplus.renamed import first_name, override_today, values_today

PACKAGE = Path(__file__).parent.parent
FOLDER = PACKAGE / "recipes"
LEGACY_FOLDER = PACKAGE / "legacy" / "recipes"
"""Plans of the earlier code, the same in the form of its documents, and its mistakes; known by name like the others."""
GALLERY = "gallery"
DOCUMENTS = "documents"

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


SCHEMA = 1
"""Raised when what a recipe means changes while its settings do not, such as by another default of a later setting."""

LISTS = 2
"""Lists of one length that a pilot tries for everybody."""

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
    given: frozenset[str] = field(default=frozenset(), compare=False)
    """The keys that somebody wrote (in the file, through extends, or by --set), such as `pool.size`."""
    old_names: tuple[str, ...] = field(default=(), compare=False)
    """A sentence for every name of an earlier version that somebody wrote."""

    def values(self) -> dict[str, Any]:
        """All settings as nested plain values, stages in the order they run."""
        return {key: plain_settings(section) for key, section in self._sections().items()}

    @property
    def hash(self) -> str:
        """Twelve digits that name the experiment: every setting that `hashed_settings` counts, and SCHEMA."""
        # a stage counts under its first name, so that results from before it was renamed are recognised
        covered: dict[str, Any] = {
            first_name(key): hashed_settings(section) for key, section in self._sections().items()
        }
        covered["train"]["stages"] = [first_name(stage) for stage in self.train.stages]
        if SCHEMA > 1:
            covered["schema"] = SCHEMA
        return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()[:12]

    def dev_reserve(self) -> int:
        """Most calls that judging on dev takes: every stage before its first epoch and after each."""
        epochs = sum(stage.epochs + 1 for stage in self.stages.values())
        return self.score.dev_queries * len(self.score.dev_shots) * epochs

    def pilot_calls(self) -> int:
        """Most calls of the pilot: each query alone, with every demonstration, and with two lists of every length."""
        longer = sum(shots > 1 for shots in self.eval.shots)
        return self.score.pilot * (1 + self.score.pilot_demos + LISTS * longer)

    def reserve(self) -> int:
        """Calls of the budget that are not for asking what training learns from: judging on dev, and the pilot."""
        return self.dev_reserve() + self.pilot_calls()

    def known_mistakes(self) -> list[str]:
        """Settings that reproduce a known mistake on purpose."""
        found = []
        for key, section in self._sections().items():
            found += known_mistakes_in(section, f"{key}.")
        return found

    def outside_parts(self) -> list[tuple[str, str, str]]:
        """Parts of somebody else that the recipe names: key, kind and `package.module:attribute`."""
        found = []
        for key, section in self._sections().items():
            found += outside_parts(section, f"{key}.")
        return found

    def _sections(self) -> dict[str, Any]:
        plain = {key: getattr(self, key) for key in (*PLAIN, "select")}
        return {**plain, **self.stages}


def recipe_names() -> list[str]:
    return sorted(path.stem for folder in (FOLDER, LEGACY_FOLDER) for path in folder.glob("*.toml"))


def gallery_names() -> list[str]:
    """The recipes of the gallery of known mistakes, as `gallery/NAME`."""
    return sorted(f"{GALLERY}/{path.stem}" for path in (LEGACY_FOLDER / GALLERY).glob("*.toml"))


def documents_names() -> list[str]:
    """The plans in the form of the documents that they come from, as `documents/NAME`."""
    return sorted(f"{DOCUMENTS}/{path.stem}" for path in (LEGACY_FOLDER / DOCUMENTS).glob("*.toml"))


def find_recipe(name: str) -> Path:
    """The file of a shipped recipe, or the path given."""
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise MissingFile(f"there is no recipe file {path}; `lever recipes` lists the shipped ones")
        return path
    for folder in (FOLDER, LEGACY_FOLDER):
        if (folder / f"{name}.toml").is_file():
            return folder / f"{name}.toml"
    if path.is_file():
        raise UnknownName(
            f"{name} is no recipe, whose name ends in .toml; if these are your data, type "
            f"`lever fit {name} --model MODEL`, or `lever run own_labels --set task.file={name}`"
        )
    near = difflib.get_close_matches(name, [*recipe_names(), *gallery_names(), *documents_names()], n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise UnknownName(
        f"there is no recipe called '{name}'; {hint}`lever recipes` lists those that ship, and a file of your own is "
        "named with its .toml"
    )


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by name or path, with `key=value` overrides; raises RecipeError with every problem."""
    path = find_recipe(name)
    problems: list[str] = []
    old_names: list[str] = []
    values = read_values(path, old_names)
    for override in overrides:
        apply_override(values, override_today(override, old_names), problems)
    values = values_today(values, old_names, problems)  # for the stages that an override names
    if any(override.partition("=")[0].strip() == "train.stages" for override in overrides):
        values = _only_stages(values)
    return replace(build_recipe(path.stem, values, str(path), problems), old_names=tuple(old_names))


def read_values(path: Path, old_names: list[str], heirs: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The values of a recipe file; with `extends = "NAME"` those of that recipe, where the file gives no others.

    Names of an earlier version come out as today's, and `old_names` gets a sentence for each.
    """
    try:
        values = parse_toml(path.read_bytes())
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(str(path), [f"this is not a TOML file: {error}"]) from error
    except OSError as error:
        raise MissingFile(f"the recipe file {path} cannot be read ({error.strerror})") from error
    problems: list[str] = []
    values = values_today(values, old_names, problems)
    if problems:
        raise RecipeError(str(path), problems)
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
    merged = read_values(base, old_names, (*heirs, path))
    for key, part in values.items():
        if isinstance(part, dict) and isinstance(merged.get(key), dict):
            merged[key] = {**merged[key], **part}  # key by key; a section is not replaced as a whole
        else:
            merged[key] = part
    kept = _only_stages(merged)  # inherited sections of stages that are not run here stay behind
    return {key: part for key, part in merged.items() if key in kept or key in values}


def _only_stages(values: dict[str, Any]) -> dict[str, Any]:
    """Without the sections of stages that train.stages does not name (any more)."""
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
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean [{near[0]}]?" if near else f"known: {', '.join(known)}"
            problems.append(f"{key}: there is no such section; {hint}")
    texts = {key: values.get(key, "") for key in TEXTS}
    for key, text in texts.items():
        if not isinstance(text, str):
            problems.append(f"{key}: must be a text")
    tables = {key: _table(values, key, problems) for key in (*PLAIN, "select", *STAGE_SECTIONS)}
    sections: dict[str, Any] = {key: read_section(cls, tables[key], f"{key}.", problems) for key, cls in PLAIN.items()}
    sections["select"] = read_selection(tables["select"], problems)
    stages = {key: read_section(cls, tables[key], f"{key}.", problems) for key, cls in STAGE_SECTIONS.items()}
    problems.extend(contradictions(sections, stages))
    order = sections["train"].stages if sections["train"] else tuple(STAGE_SECTIONS)
    for key in STAGE_SECTIONS:
        if key in values and key not in order:
            problems.append(f"[{key}]: this stage is not in train.stages, so it has no effect")
    chosen = {}
    for key in order:
        stage = stages[key]
        if stage is not None:
            chosen[key] = stage
    if len(chosen) < len(order) or None in sections.values():
        raise RecipeError(source, problems)
    given = frozenset(f"{section}.{key}" for section, table in tables.items() for key in table)
    recipe = Recipe(name, texts["purpose"], texts["expected"], stages=chosen, given=given, **sections)
    problems.extend(failures(recipe))
    if problems:
        raise RecipeError(source, problems)
    return recipe


def _table(values: Mapping[str, Any], key: str, problems: list[str]) -> Mapping[str, Any]:
    table = values.get(key, {})
    if not isinstance(table, Mapping):
        problems.append(f"{key}: must be a section, written [{key}]")
        return {}
    return table
