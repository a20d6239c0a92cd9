"""The corpus of training logs: does the doctor name the planted cause first, and nothing in healthy logs?

    python benchmarks/doctor_corpus.py --judge             the table of docs/doctor.md, from tests/doctor/corpus
    python benchmarks/doctor_corpus.py --make FOLDER       write the logs of formats whose libraries cannot run here
    python benchmarks/doctor_corpus.py --make FOLDER --real --seed 1 --scale 1.0    train with TRL, Transformers and SB3
    python benchmarks/doctor_corpus.py --pack FOLDER NAME  keep a folder of logs as tests/doctor/corpus/NAME.tar.xz

The half `tuned` was looked at while the checks were written; `heldout` has other seeds, levels and learning rates and
was not. A log is called FORMAT-CAUSE.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

CORPUS = Path(__file__).parents[1] / "tests" / "doctor" / "corpus"
HALVES = ("tuned", "heldout")
SILENT = ("healthy", "seeds_agree")
"""Causes that are none: no error and no warning may be raised."""
ACCEPTED: dict[str, tuple[str, ...]] = {
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
"""The finding that names each cause; two where both are the same thing in other words."""


@dataclass(frozen=True)
class Verdict:
    """What the doctor said first about a log; "nothing" where it raised no error and no warning."""

    half: str
    form: str
    cause: str
    first: str

    @property
    def right(self) -> bool:
        return self.first == "nothing" if self.cause in SILENT else self.first in ACCEPTED[self.cause]


def judge(folder: Path, half: str) -> list[Verdict]:
    """The doctor's first word on every log of a folder."""
    from leverplus.doctor.examine import examine
    from leverplus.doctor.findings import INFO
    from leverplus.doctor.read import read_target

    verdicts = []
    for path in sorted(folder.iterdir()):
        form, _, cause = path.name.partition("-")
        grave = [finding.code for finding in examine(read_target(path)) if finding.severity != INFO]
        verdicts.append(Verdict(half, form, cause.partition(".")[0], grave[0] if grave else "nothing"))
    return verdicts


def judge_corpus() -> list[Verdict]:
    """Both halves as they are kept."""
    verdicts = []
    for half in HALVES:
        with tempfile.TemporaryDirectory() as place:
            with tarfile.open(CORPUS / f"{half}.tar.xz") as archive:
                archive.extractall(place, filter="data")
            verdicts += judge(Path(place), half)
    return verdicts


def table(verdicts: list[Verdict]) -> str:
    """The confusion table: planted causes, how often each was named first, and what was named instead."""
    lines = ["| planted | tuned | held out | named first instead |", "|---|---|---|---|"]
    causes = list(dict.fromkeys([*SILENT, *ACCEPTED]))
    for cause in causes:
        own = [verdict for verdict in verdicts if verdict.cause == cause]
        if not own:
            continue
        wrong = Counter(f"{v.first} ({v.form}, {v.half})" for v in own if not v.right)
        cells = [_share([v for v in own if v.half == half]) for half in HALVES]
        lines.append(f"| {cause} | {cells[0]} | {cells[1]} | {', '.join(wrong) or '-'} |")
    cells = [_share([v for v in verdicts if v.half == half]) for half in HALVES]
    lines.append(f"| **all** | **{cells[0]}** | **{cells[1]}** | |")
    return "\n".join([*lines, "", *_by_format(verdicts)]) + "\n"


def _by_format(verdicts: list[Verdict]) -> list[str]:
    lines = ["| format | tuned | held out |", "|---|---|---|"]
    for form in sorted({verdict.form for verdict in verdicts}):
        cells = [_share([v for v in verdicts if v.form == form and v.half == half]) for half in HALVES]
        lines.append(f"| {form} | {cells[0]} | {cells[1]} |")
    return lines


def _share(verdicts: list[Verdict]) -> str:
    return f"{sum(v.right for v in verdicts)} of {len(verdicts)}" if verdicts else "-"


def pack(folder: Path, name: str) -> None:
    """Keep a folder of logs, packed."""
    CORPUS.mkdir(parents=True, exist_ok=True)
    with tarfile.open(CORPUS / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name, filter=_nameless)


def _nameless(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without owner and time, so that the same logs give the same archive."""
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--make", type=Path, metavar="FOLDER")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--pack", nargs=2, metavar=("FOLDER", "NAME"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    if args.make is not None:
        args.make.mkdir(parents=True, exist_ok=True)
        if args.real:
            from doctor_corpus_real import make_real

            make_real(args.make, args.seed, args.scale)
        else:
            from doctor_corpus_written import make_written

            make_written(args.make, args.seed, args.scale)
    if args.pack is not None:
        pack(Path(args.pack[0]), args.pack[1])
    if args.judge:
        print(table(judge_corpus()), end="")


if __name__ == "__main__":
    main()
