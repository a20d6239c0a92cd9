"""Does a network on top of the closed-form score choose better, trained by supervision or by reinforcement?

    python benchmarks/real_network.py prepare --data DATA --cache vectors --out PREPARED [--tasks ...] [--models ...]
    python benchmarks/real_network.py train PREPARED --out CURVES          several processes share the work; GPU or CPU
    python benchmarks/real_network.py keep PREPARED CURVES                 writes benchmarks/real/network
    python benchmarks/real_network.py table                                the table of what is kept

The score of `effects` (similarity, labels, effects; ridge regression) is where the network starts: it adds a product of
two towers over the texts and a small network over the parts of the score, both 0 before the first step. It is
trained by regression, listwise, by reward-weighted cross-entropy (RCE) and by GRPO, each with the same settings. The
setting and the epoch are those with the highest accuracy over training queries that the network did not see (five
parts) and dev queries; epoch 0 is the closed form. Test queries are looked at once. Item by item in
`benchmarks/real/network`; DATA is where the data sets lie (docs/recorded.md); nothing asks a model.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from real_arms import PARTS, Arms
from real_data import HERE, SHIPPED, Floats, ModelTable, TaskData, embedder
from real_measure import MODELS, TASKS

from leverplus.lab.real import WayRecord, read_file, read_records, write_records
from leverplus.maths import advantages, losses

KEPT = HERE / "real" / "network"
FORMS = ("regression", "listwise", "rce", "grpo")
REWARDS, RATES = ("accuracy", "probability"), (3e-4, 2e-3)
EPOCHS, BATCH = 6, 128
AXES, RANK, HIDDEN = 128, 64, 16
GROUP = 8
"""Demonstrations that RCE and GRPO compare for one query."""
WARMTH = 0.1
"""Of the targets of listwise and RCE."""
TOWARDS_START = 0.02
"""The weight of the divergence from the closed form, in GRPO."""
SPREAD = 2.0
"""Of the closed form's scores among a query's candidates, as logits."""
LINEAR = "effects"

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Inputs:
    """What a table gives the network: scores to start from, parts of the score, texts, and what every choice got."""

    start: Tensor  # (Q, 64)
    parts: Tensor  # (Q, 64, F)
    query: Tensor  # (Q, D)
    demo: Tensor  # (N, E)
    candidates: Tensor  # (Q, 64)
    allowed: Tensor  # (Q, 64)
    rewards: Mapping[str, Tensor]  # (Q, 64) each
    worth: Mapping[str, float]  # what a start of 1 is worth in each reward, on training queries


@dataclass(frozen=True)
class Prepared:
    """One table, ready for training; everything is by query (Q,) or (Q, 64), demonstrations are numbered."""

    arrays: Mapping[str, NDArray[Any]]

    @classmethod
    def read(cls, path: Path) -> Prepared:
        with np.load(path) as file:
            return cls({name: file[name] for name in file.files})

    def inputs(self, device: str) -> Inputs:
        own = {name: torch.tensor(value).to(device) for name, value in self.arrays.items()}
        worth = {name: float(own[f"worth_{name}"]) for name in REWARDS}
        return Inputs(
            own["start"],
            own["parts"].float(),
            own["texts"][own["queries"]],
            torch.cat([own["texts"], own["answers"].float()], dim=1),
            own["candidates"],
            own["allowed"],
            {name: own[name].float() for name in REWARDS},
            worth,
        )


class Correction(nn.Module):
    """What the network adds to the closed form; nothing before the first step."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.query = nn.Linear(inputs.query.shape[1], RANK, bias=False)
        self.demo = nn.Linear(inputs.demo.shape[1], RANK, bias=False)
        self.parts = nn.Sequential(nn.Linear(inputs.parts.shape[2], HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 1))
        last: Any = self.parts[2]
        for own in (self.query.weight, last.weight, last.bias):
            nn.init.zeros_(own)

    def forward(self, inputs: Inputs, rows: Tensor) -> Tensor:
        """Logits (B, 64)."""
        texts = torch.einsum(
            "br,bkr->bk", self.query(inputs.query[rows]), self.demo(inputs.demo)[inputs.candidates[rows]]
        )
        added = texts / RANK**0.5 + self.parts(inputs.parts[rows]).squeeze(-1)
        return (inputs.start[rows] + added).masked_fill(~inputs.allowed[rows], -torch.inf)


def axes(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """The first principal axes of vectors (N, D), scaled together to unit spread (N, AXES); no answer is used."""
    centred = vectors.astype(np.float64) - vectors.mean(axis=0)
    _, found = np.linalg.eigh(centred.T @ centred)
    own = centred @ found[:, ::-1][:, :AXES]
    return np.asarray(own / own.std(), np.float32)


def prepared(arms: Arms, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Starts and parts of a training query come from fits that did not see its part."""
    from leverplus.ranking.linear import within_queries

    table, task = arms.table, arms.task
    number = arms.parts_of_queries()

    def fitted(learn: Mask) -> tuple[Floats, list[Floats]]:
        parts = arms.effect_parts(learn)
        own = [value for name in ("similarity", "effects", "labels") for value in parts[name].values()]
        return arms.linear_score(parts, names, learn), own

    start, parts = fitted(arms.train)
    for part in range(PARTS):
        held = arms.train & (number == part)
        other, others = fitted(arms.train & ~held)
        start[held] = other[held]
        for own, value in zip(parts, others, strict=True):
            own[held] = value[held]
    allowed = arms.allowed
    used = allowed & arms.train[:, None]
    within = [within_queries(value, allowed) for value in parts]
    features = np.stack([value / max(float(value[used].std()), 1e-9) for value in within], axis=2)
    start = within_queries(start, allowed)
    start *= SPREAD / max(float(start[used].std()), 1e-9)
    rewards = {"accuracy": table.accuracy, "probability": table.probability}
    worth = {
        f"worth_{name}": np.array((start * within_queries(own, allowed))[used].sum() / (start[used] ** 2).sum())
        for name, own in rewards.items()
    }
    labels = len(task.source.labels)
    return {
        "start": start.astype(np.float32),
        "parts": np.clip(features, -5, 5).astype(np.float16),
        "texts": axes(task.vectors["question"]),
        "answers": np.eye(labels, dtype=np.float16)[task.shown]
        if labels
        else np.zeros((len(task.items), 0), np.float16),
        "queries": table.queries,
        "candidates": table.candidates,
        "allowed": allowed,
        "part": number,
        "train": arms.train,
        "dev": arms.dev,
        "test": arms.test,
        **{name: own.astype(np.float32) for name, own in rewards.items()},
        **worth,
    }


def squared_error(value: Tensor, wanted: Tensor, allowed: Tensor, worth: float) -> Tensor:
    """Of scores and rewards (B, 64), each less its mean over the query's candidates; a score of 1 is worth so much."""
    share = allowed / allowed.sum(1, keepdim=True)
    value, wanted = value.masked_fill(~allowed, 0.0), wanted.masked_fill(~allowed, 0.0)
    value = value - (value * share).sum(1, keepdim=True)
    wanted = wanted - (wanted * share).sum(1, keepdim=True)
    return ((worth * value - wanted) ** 2 * share).sum(1).mean()


def steps_of(form: str, network: Correction, inputs: Inputs, rows: Tensor, name: str) -> list[Callable[[], Tensor]]:
    """The losses of one batch, each a step of the optimiser; GRPO takes two from the same samples."""
    reward, worth = inputs.rewards[name], inputs.worth[name]
    if form == "regression":
        return [lambda: squared_error(network(inputs, rows), reward[rows], inputs.allowed[rows], worth)]
    if form == "listwise":
        wanted = reward[rows].masked_fill(~inputs.allowed[rows], torch.nan)
        return [lambda: losses.listwise(network(inputs, rows).log_softmax(1), wanted, WARMTH).total]
    with torch.no_grad():
        now = (
            inputs.start[rows].masked_fill(~inputs.allowed[rows], -torch.inf)
            if form == "rce"
            else network(inputs, rows)
        )
        drawn = torch.multinomial(now.softmax(1), GROUP, replacement=form == "grpo")  # (B, G)
        old = now.log_softmax(1).gather(1, drawn)
    got = reward[rows].gather(1, drawn)
    mask = torch.ones_like(got, dtype=torch.bool)
    if form == "rce":
        weights = losses.reward_weights(got, mask, WARMTH)

        def rce() -> Tensor:
            steps = network(inputs, rows).log_softmax(1).gather(1, drawn)
            return losses.rce(steps.unsqueeze(-1), mask.unsqueeze(-1), weights, mask).total

        return [rce]
    gains = advantages.zscore(got, mask)
    start = inputs.start[rows].masked_fill(~inputs.allowed[rows], -torch.inf).log_softmax(1)

    def grpo() -> Tensor:
        log_p = network(inputs, rows).log_softmax(1)
        steps = log_p.gather(1, drawn).unsqueeze(-1)
        clipped = losses.ppo_clip(steps, old.unsqueeze(-1), mask.unsqueeze(-1), gains, mask, clip=losses.Clip())
        # the difference is taken of finite numbers only: where both are -inf its gradient would be NaN
        further = log_p.masked_fill(~inputs.allowed[rows], 0.0) - start.masked_fill(~inputs.allowed[rows], 0.0)
        apart = (log_p.exp() * further).sum(1).mean()
        return clipped.total + TOWARDS_START * apart

    return [grpo, grpo]


def train(form: str, inputs: Inputs, learn: Mask, shown: Mask, *, reward: str, rate: float, seed: int) -> Floats:
    """What the network's choices get from the queries shown, before training and after every epoch (EPOCHS + 1, S)."""
    torch.manual_seed(seed)
    device = inputs.start.device
    network = Correction(inputs).to(device)
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.1)
    queries, shown_rows = (torch.tensor(np.flatnonzero(own)).to(device) for own in (learn, shown))
    accuracy = inputs.rewards["accuracy"][shown_rows]
    found = []
    for epoch in range(EPOCHS + 1):
        if epoch:
            for rows in queries[torch.randperm(len(queries)).to(device)].split(BATCH):
                for loss in steps_of(form, network, inputs, rows, reward):
                    optimiser.zero_grad()
                    loss().backward()
                    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                    optimiser.step()
        with torch.no_grad():
            place = network(inputs, shown_rows).argmax(1, keepdim=True)
        found.append(accuracy.gather(1, place).squeeze(1).cpu().numpy().astype(np.float64))
    return np.stack(found)


def curves_of(table: Prepared, form: str, device: str) -> dict[str, Floats]:
    """Accuracy of every query (EPOCHS + 1, Q) by setting; of training queries by networks that saw none of them."""
    inputs, own = table.inputs(device), table.arrays
    learn, found = own["train"], {}
    for reward, rate in product(REWARDS, RATES):
        got = np.zeros((EPOCHS + 1, len(learn)))
        for part in range(PARTS):
            held = learn & (own["part"] == part)
            got[:, held] = train(form, inputs, learn & ~held, held, reward=reward, rate=rate, seed=part)
        got[:, ~learn] = train(form, inputs, learn, ~learn, reward=reward, rate=rate, seed=PARTS)
        found[f"{reward}, rate {rate:g}"] = got
    return found


def train_all(folder: Path, out: Path, device: str) -> None:
    """Every table in every form; one that another process has begun is left to it."""
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("*.npz")):
        for form in FORMS:
            file = out / f"{path.stem}-{form}.npz"
            try:
                file.with_suffix(".begun").touch(exist_ok=False)
            except FileExistsError:
                continue
            started = time.perf_counter()
            np.savez_compressed(file, **curves_of(Prepared.read(path), form, device))
            print(f"{file.stem}: {time.perf_counter() - started:.0f} s", flush=True)


def records_of(table: Prepared, curves: Mapping[str, Mapping[str, Floats]], about: WayRecord) -> list[WayRecord]:
    """The closed form, and every form of training at the setting and epoch that training and dev queries find best."""
    own = table.arrays
    known = own["train"] | own["dev"]

    def record(arm: str, setting: str, tries: int, accuracy: Floats) -> WayRecord:
        return replace(
            about,
            arm=arm,
            setting=setting,
            tries=tries,
            dev=float(accuracy[own["dev"]].mean()),
            estimate=float(accuracy[known].mean()),
            accuracy=accuracy[own["test"]],
        )

    found = []
    for form, settings in curves.items():
        if not found:  # before the first step all are the closed form
            found.append(record(LINEAR, about.setting, about.tries, next(iter(settings.values()))[0]))
        for arm, earliest in ((form, 0), (f"{form}_trained", 1)):
            tried = {
                (epoch, name): float(values[epoch][known].mean())
                for epoch in range(earliest, EPOCHS + 1)
                for name, values in settings.items()
            }
            epoch, name = max(
                tried, key=lambda key: round(tried[key], 9)
            )  # of equal ones the first: the earliest epoch
            found.append(record(arm, f"{name}, epoch {epoch}", len(tried), settings[name][epoch]))
    return found


def mean_gain(tables: Mapping[tuple[str, str], Mapping[str, WayRecord]], arm: str) -> tuple[float, float]:
    """An arm less the closed form in the mean of all tables, and half of its 95 % interval.

    The models of a task were asked the same questions, so a question's differences are averaged over them first.
    """
    from leverplus.stats import compare

    pairs = []
    for task in sorted({task for task, _ in tables}):
        own = [arms for (name, _), arms in tables.items() if name == task]
        both = [np.mean([arms[name].accuracy for arms in own], axis=0) for name in (arm, LINEAR)]
        pairs.append(compare(*both, clusters=own[0][LINEAR].groups, resamples=2000))
    errors = [(pair.ci95[1] - pair.ci95[0]) / 2 for pair in pairs]
    return float(np.mean([pair.diff for pair in pairs])), float(np.sqrt(np.sum(np.square(errors)))) / len(pairs)


def table_lines(records: Sequence[WayRecord]) -> list[str]:
    """Accuracies of every table, and each form less the closed form with p corrected over all of them."""
    from leverplus.stats import adjust, compare

    tables: dict[tuple[str, str], dict[str, WayRecord]] = {}
    for record in records:
        tables.setdefault((record.task, record.model), {})[record.arm] = record
    pairs, names = [], []
    for key, own in sorted(tables.items()):
        for form in FORMS:
            for arm in (form, f"{form}_trained"):
                pairs.append(
                    compare(own[arm].accuracy, own[LINEAR].accuracy, clusters=own[LINEAR].groups, resamples=2000)
                )
                names.append((key, arm))
    found = dict(zip(names, adjust(pairs), strict=True))
    lines = [
        "| table | n | closed form | " + " | ".join(FORMS) + " |",
        "|---" * (3 + len(FORMS)) + "|",
    ]
    for key, own in sorted(tables.items()):
        cells = []
        for form in FORMS:
            one = found[key, f"{form}_trained"]
            low, high = one.ci95
            kept = "" if own[form].setting.endswith("epoch 0") else " *"
            cells.append(f"{100 * own[f'{form}_trained'].mean:.1f} ({100 * low:+.1f} to {100 * high:+.1f}){kept}")
        lines.append(
            f"| {' '.join(key)} | {len(own[LINEAR].items)} | {100 * own[LINEAR].mean:.1f} | {' | '.join(cells)} |"
        )
    lines.append("")
    for form in FORMS:
        for arm, says in (
            (form, "the closed form where that is estimated best"),
            (f"{form}_trained", "always trained"),
        ):
            own_pairs = [found[key, arm] for key in tables]
            mean, spread = mean_gain(tables, arm)
            low, high = 100 * (mean - spread), 100 * (mean + spread)
            above = sum(not pair.within_noise and pair.diff > 0 for pair in own_pairs)
            below = sum(not pair.within_noise and pair.diff < 0 for pair in own_pairs)
            lines.append(
                f"- {form}, {says}: {100 * mean:+.2f} points ({low:+.2f} to {high:+.2f}) in the mean of "
                f"{len(own_pairs)} tables; beyond noise above on {above}, below on {below}"
            )
    return lines


def effects_record(name: str) -> WayRecord:
    """The published record of the closed form with one demonstration."""
    (about,) = [
        record
        for record in read_file(SHIPPED / "real" / f"{name}.parquet")
        if record.arm == LINEAR and record.shots == "1"
    ]
    return about


def prepare(args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    texts = embedder(args.cache).of_texts
    for task in args.tasks:
        data = TaskData(task, args.data, texts)
        for model in args.models:
            started, name = time.perf_counter(), f"{task}-{model}"
            parts = effects_record(name).setting.split(",")[0].split(" + ")
            np.savez_compressed(args.out / f"{name}.npz", **prepared(Arms(ModelTable.read(data, model)), parts))
            print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)


def keep(folder: Path, curves: Path, out: Path) -> None:
    for path in sorted(folder.glob("*.npz")):
        about = effects_record(path.stem)
        own = {form: Prepared.read(curves / f"{path.stem}-{form}.npz").arrays for form in FORMS}
        records = records_of(Prepared.read(path), own, about)
        write_records(out / path.name.replace(".npz", ".parquet"), records)
        shown = ", ".join(f"{r.arm} {100 * r.estimate:.1f} -> {100 * r.mean:.1f} ({r.setting})" for r in records)
        print(f"{path.stem}: published {100 * about.mean:.1f}; {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    preparing = actions.add_parser("prepare")
    preparing.add_argument("--data", type=Path, required=True)
    preparing.add_argument("--cache", type=Path, default=Path("vectors"))
    preparing.add_argument("--out", type=Path, required=True)
    preparing.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    preparing.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    training = actions.add_parser("train")
    training.add_argument("prepared", type=Path)
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    keeping = actions.add_parser("keep")
    keeping.add_argument("prepared", type=Path)
    keeping.add_argument("curves", type=Path)
    keeping.add_argument("--out", type=Path, default=KEPT)
    showing = actions.add_parser("table")
    showing.add_argument("--records", type=Path, default=KEPT)
    args = parser.parse_args()
    if args.action == "prepare":
        prepare(args)
    elif args.action == "train":
        train_all(args.prepared, args.out, args.device)
    elif args.action == "keep":
        keep(args.prepared, args.curves, args.out)
    else:
        print("\n".join(table_lines(read_records(args.records))))


if __name__ == "__main__":
    main()
