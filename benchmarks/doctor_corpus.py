"""The corpus of training logs: does the doctor name the planted cause first, and nothing in healthy logs?

    python benchmarks/doctor_corpus.py             the tables of docs/doctor.md, from tests/doctor/corpus

The part `tuned` was looked at while the checks were written; `heldout` has other seeds, levels and learning rates and
was not. A log of these is called FORMAT-CAUSE. `invented` (short trainings in 21 forms) and `library` (long logs with
all that libraries print around the numbers) hold a `planted.json` that says which findings may come first.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parents[1] / "tests" / "doctor" / "corpus"
HALVES = ("tuned", "heldout")
ACCEPTED: dict[str, tuple[str, ...]] = {
    "healthy": ("nothing",),
    "seeds_agree": ("nothing",),
    "kl_explosion": ("kl_explodes",),
    "dead_groups": ("flat_groups", "advantage_std_tiny"),
    "zero_advantages": ("advantage_std_tiny", "top_k_before_baseline"),
    "reward_constant": ("reward_constant",),
    "lr_tiny": ("learning_rate_tiny",),
    "lr_large": ("learning_rate_too_large",),
    "entropy_collapse": ("entropy_collapsed",),
    "entropy_collapse_early": ("entropy_collapsed",),
    "entropy_collapse_late": ("entropy_collapsed",),
    "overfitting": ("overfits",),
    "same_demonstrations": ("query_ignored",),
    "ratio_off": ("ratio_not_one",),
    "clipping": ("clip_saturated",),
    "reward_hacking": ("reward_hacked",),
    "length_drift": ("length_drifts",),
    "resume_lost": ("resumed_without_optimiser",),
    "seeds_differ": ("seeds_outweigh_gain",),
}
"""What may come first for each cause; two where both are the same thing in other words."""


@dataclass(frozen=True)
class Verdict:
    """What the doctor said first about a log; "nothing" where it raised no error and no warning."""

    part: str
    form: str
    cause: str
    first: str
    right: bool


def judge(part: str) -> Iterator[Verdict]:
    """The doctor's first word on every log of a part of the corpus."""
    from leverplus_doctor.check import INFO, examine
    from leverplus_doctor.logs.names import user_names
    from leverplus_doctor.read import read_target

    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(CORPUS / f"{part}.tar.xz") as archive:
            archive.extractall(place, filter="data")
        for name, accepted, names in _planted(Path(place)):
            record = read_target(Path(place) / name, user_names(names))
            codes = [own.code for own in examine(record) if own.severity != INFO]
            first = codes[0] if codes else "nothing"
            form, _, cause = name.partition("-")
            cause = cause.partition(".")[0]
            yield Verdict(part, form, cause, first, first in accepted)


def _planted(folder: Path) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Every log, what may come first, and what the user says about its names."""
    listed = folder / "planted.json"
    if listed.is_file():
        for name, planted in json.loads(listed.read_text(encoding="utf-8")).items():
            first = tuple(planted["first"]) or ("nothing",)
            yield name, first, planted.get("map", "")
        return
    for path in sorted(folder.iterdir()):
        cause = path.name.partition("-")[2].partition(".")[0]
        yield path.name, ACCEPTED[cause], ""


def table(verdicts: list[Verdict]) -> str:
    """The confusion table: planted causes, how often each was named first, and what was named instead."""
    lines = [
        "| planted | tuned | held out | named first instead |",
        "|---|---|---|---|",
    ]
    for cause in ACCEPTED:
        own = [verdict for verdict in verdicts if verdict.cause == cause]
        wrong = Counter(f"{v.first} ({v.form}, {v.part})" for v in own if not v.right)
        instead = ", ".join(wrong) or "-"
        lines.append(f"| {cause} | {_shares(own)} | {instead} |")
    tuned, held_out = _shares(verdicts).split(" | ")
    lines.append(f"| **all** | **{tuned}** | **{held_out}** | |")
    lines += ["", "| format | tuned | held out |", "|---|---|---|"]
    for form in sorted({verdict.form for verdict in verdicts}):
        own = [verdict for verdict in verdicts if verdict.form == form]
        lines.append(f"| {form} | {_shares(own)} |")
    return "\n".join(lines) + "\n"


def _shares(verdicts: list[Verdict]) -> str:
    """How many of both halves are right."""
    cells = []
    for half in HALVES:
        own = [verdict.right for verdict in verdicts if verdict.part == half]
        cells.append(f"{sum(own)} of {len(own)}" if own else "-")
    return " | ".join(cells)


if __name__ == "__main__":
    print(table([*judge("tuned"), *judge("heldout")]), end="")
