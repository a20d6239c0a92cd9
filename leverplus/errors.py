"""Every error raised on purpose, one tree; each message says what to type next."""

import re

_OBEYED = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Control characters but tab and line end, marks that turn the writing direction, and halves of characters."""


def plain(text: str) -> str:
    """A text without what a terminal would obey instead of showing it: messages may quote servers and files."""
    return _OBEYED.sub("\N{REPLACEMENT CHARACTER}", text)


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
        super().__init__(f"{source}: {count}\n" + "\n".join(f"  - {problem}" for problem in problems))


class UnknownName(LeverError):
    """A name that is not in the catalog."""


class MissingFile(LeverError):
    """A file the user named, or the package ships, is not there."""


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
