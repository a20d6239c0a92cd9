"""Every error raised on purpose, one tree; each message says what to type next."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

_OBEYED = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)
"""Control characters but tab and line end, marks that turn the writing direction, and halves of characters."""


def plain(text: str) -> str:
    """A text without what a terminal would obey instead of showing it: messages may quote servers and files."""
    return _OBEYED.sub("\N{REPLACEMENT CHARACTER}", text)


def first_line(error: Exception) -> str:
    """What an error of another library says, in one line, without the advice that follows; else its kind."""
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


class LeverError(Exception):
    """A problem the user can mend: one clear sentence, shown without a stack trace, exit code 1."""

    def __str__(self) -> str:
        return plain(super().__str__())


class WrongUsage(LeverError):
    """Arguments that do not go together: one clear sentence, exit code 2."""


class RecipeError(LeverError):
    """A recipe with problems; all of them are reported at once."""

    def __init__(self, source: str, problems: list[str]) -> None:
        self.source = source
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(
            f"{source}: {count}\n" + "\n".join(f"  - {problem}" for problem in problems)
        )


class UnknownName(LeverError):
    """A name that is not in the catalog."""


class MissingFile(LeverError):
    """A file the user named, or the package ships, is not there."""


class MissingExtra(LeverError, ImportError):
    """A package that the bare install leaves out; the sentence names what to type."""


class StoreError(LeverError):
    """The score store cannot be used as asked; nothing stored was changed."""


class ScoringError(LeverError):
    """A request for a score, or a reply of a model, that must not be stored."""


class NotMeasured(LeverError):
    """A value was asked for that nobody measured; it never becomes 0.0."""


class DataError(LeverError):
    """A data file that cannot be read as what it claims to be."""


class CheckpointError(LeverError):
    """A checkpoint that does not fit the model it is loaded into."""


class TrainingError(LeverError):
    """A training that cannot start or go on."""


class EvaluationError(LeverError):
    """An evaluation or comparison that would not mean anything."""


EXTRAS = {
    "torch": "train",
    "transformers": "hf",
    "accelerate": "hf",
    "gguf": "hf",
    "pyarrow": "tables",
    "onnxruntime": "encoder",
    "tokenizers": "encoder",
    "ray": "ray",
    "langchain_core": "langchain",
    "llama_index": "llama-index",
    "dspy": "dspy",
    "litellm": "litellm",
    "lm_eval": "lm-eval",
    "inspect_ai": "inspect",
    "sklearn": "sklearn",
}
"""The extra that brings each package."""

PART_EXTRAS = {
    "hf": "hf",
    "vllm": "hf",
    "sentence": "hf",
    "clip": "hf",
    "siglip": "hf",
    "onnx": "encoder",
}
"""The extra that brings what a part of the catalog needs, where torch alone is not enough."""


@contextmanager
def needs_extra(what: str, extra: str = "") -> Iterator[None]:
    """Imports for `what` inside: a package that is not installed becomes a sentence with the extra that brings it.

    >>> with needs_extra("a trained selector", "train"):
    ...     import json
    """
    try:
        yield
    except MissingExtra:
        raise
    except ImportError as error:
        package = (error.name or str(error).split(" ", 1)[0]).partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingExtra(
            _sentence(what, package, extra or EXTRAS[package])
        ) from error


def require_packages(what: str, *packages: str) -> None:
    """Refuse what needs packages that are not installed, before any of them is imported; the last one names the extra.

    >>> require_packages("a model in this process", "json")
    """
    for package in packages:
        if not is_installed(package):
            raise MissingExtra(_sentence(what, package, EXTRAS[packages[-1]]))


def is_installed(package: str) -> bool:
    """Whether a package can be imported; nothing is imported to find out.

    >>> is_installed("json")
    True
    """
    try:
        return find_spec(package) is not None
    except ImportError:  # something keeps it from being imported
        return False


def install_command(extra: str) -> str:
    """What to type for an extra: leverplus is on no index, so it comes from the clone or wheel it was installed from.

    >>> install_command("train").startswith("pip install")
    True
    """
    source = _installed_from()
    if source.endswith(".whl"):
        return f'pip install "leverplus[{extra}] @ {source}"'
    return f'pip install -e ".[{extra}]"'


def _installed_from() -> str:
    """The address that pip was given, by its own record (PEP 610); "" where leverplus runs from its sources."""
    try:
        record = distribution("leverplus").read_text("direct_url.json")
    except PackageNotFoundError:
        return ""
    return str(json.loads(record)["url"]) if record else ""


def _sentence(what: str, package: str, extra: str) -> str:
    return f"{what} needs {package}, which is not installed; type `{install_command(extra)}`"
