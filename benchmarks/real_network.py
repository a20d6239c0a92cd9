"""Does a network on top of the closed-form score choose better, trained by supervision or by reinforcement?

    python benchmarks/real_network.py measure --data DATA --cache vectors [--tasks ...] [--models ...]
    python benchmarks/real_network.py table

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
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from real_arms import PARTS, Arms, first
from real_data import HERE, SHIPPED, Floats, ModelTable, TaskData, embedder
from real_measure import MODELS, TASKS

from leverplus.lab.real import WayRecord, read_file, read_records, write_records
from leverplus.maths import advantages, losses
from leverplus.ranking.linear import within_queries
from leverplus.stats import adjust, compare

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


def axes(vectors: NDArray[Any]) -> Tensor:
    """The first principal axes of vectors (N, D), each with unit spread (N, AXES)."""
    centred = vectors.astype(np.float64) - vectors.mean(axis=0)
    _, found = np.linalg.eigh(centred.T @ centred)
    own = centred @ found[:, ::-1][:, :AXES]
    return torch.tensor(own / own.std(), dtype=torch.float32)


def inputs_of(arms: Arms, names: Sequence[str]) -> Inputs:
    """Starts and parts of a training query come from fits that did not see its part."""
    table, task = arms.table, arms.task
    parts = arms.effect_parts(arms.train)
    start = arms.linear_score(parts, names, arms.train)
    own = {key: value for name in ("similarity", "effects", "labels") for key, value in parts[name].items()}
    number = arms.parts_of_queries()
    for part in range(PARTS):
        held = arms.train & (number == part)
        learn = arms.train & ~held
        found = arms.effect_parts(learn)
        start[held] = arms.linear_score(found, names, learn)[held]
        other = {key: value for name in ("similarity", "effects", "labels") for key, value in found[name].items()}
        for key, value in zip(own, other.values(), strict=True):  # names of bends hold the knots of the fit
            own[key][held] = value[held]
    allowed = arms.allowed
    used = allowed & arms.train[:, None]
    within = {key: within_queries(value, allowed) for key, value in own.items()}
    features = np.stack([value / max(float(value[used].std()), 1e-9) for value in within.values()], axis=2)
    start = within_queries(start, allowed)
    start *= SPREAD / max(float(start[used].std()), 1e-9)
    texts = axes(task.vectors["question"])
    answers = (
        torch.nn.functional.one_hot(torch.tensor(task.shown)) if task.source.labels else torch.zeros(len(texts), 0)
    )
    rewards = {"accuracy": table.accuracy, "probability": table.probability}
    return Inputs(
        torch.tensor(start, dtype=torch.float32),
        torch.tensor(np.clip(features, -5, 5), dtype=torch.float32),
        texts[torch.tensor(table.queries)],
        torch.cat([texts, answers.float()], dim=1),
        torch.tensor(table.candidates),
        torch.tensor(allowed),
        {name: torch.tensor(own, dtype=torch.float32) for name, own in rewards.items()},
        {
            name: float((start * within_queries(own, allowed))[used].sum() / (start[used] ** 2).sum())
            for name, own in rewards.items()
        },
    )


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
    network = Correction(inputs)
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.1)
    queries, shown_rows = torch.tensor(np.flatnonzero(learn)), torch.tensor(np.flatnonzero(shown))
    accuracy = inputs.rewards["accuracy"][shown_rows]
    found = []
    for epoch in range(EPOCHS + 1):
        if epoch:
            for rows in queries[torch.randperm(len(queries))].split(BATCH):
                for loss in steps_of(form, network, inputs, rows, reward):
                    optimiser.zero_grad()
                    loss().backward()
                    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                    optimiser.step()
        with torch.no_grad():
            place = network(inputs, shown_rows).argmax(1, keepdim=True)
        found.append(accuracy.gather(1, place).squeeze(1).numpy().astype(np.float64))
    return np.stack(found)


def measure(table: ModelTable, about: WayRecord) -> list[WayRecord]:
    """The closed form and every form of training, at the setting that training and dev queries find best."""
    arms = Arms(table)
    names = about.setting.split(",")[0].split(" + ")
    inputs = inputs_of(arms, names)
    number, known = arms.parts_of_queries(), arms.train | arms.dev
    start = first(inputs.start.numpy(), arms.allowed)
    linear = np.take_along_axis(table.accuracy, start[:, None], axis=1)[:, 0]
    same: dict[str, Any] = {"task": about.task, "model": about.model, "items": about.items, "groups": about.groups}
    one: dict[str, Any] = {**same, "kind": "calls", "shots": "1"}
    estimate = float(linear[known].mean())
    records = [
        WayRecord(
            **one,
            arm=LINEAR,
            setting=" + ".join(names),
            tries=about.tries,
            dev=float(linear[arms.dev].mean()),
            estimate=estimate,
            accuracy=linear[arms.test],
        )
    ]
    for form in FORMS:
        curves = {}
        for reward, rate in product(REWARDS, RATES):
            got = np.zeros((EPOCHS + 1, len(table.queries)))
            for part in range(PARTS):
                held = arms.train & (number == part)
                got[:, held] = train(form, inputs, arms.train & ~held, held, reward=reward, rate=rate, seed=part)
            rest = ~arms.train
            got[:, rest] = train(form, inputs, arms.train, rest, reward=reward, rate=rate, seed=PARTS)
            curves[reward, rate] = got
        for arm, earliest in ((form, 0), (f"{form}_trained", 1)):
            tried = {
                (key, epoch): own[epoch][known].mean()
                for key, own in curves.items()
                for epoch in range(earliest, EPOCHS + 1)
            }
            (reward, rate), epoch = max(tried, key=lambda key: (round(tried[key], 9), -key[1]))
            own = curves[reward, rate][epoch]
            records.append(
                WayRecord(
                    **one,
                    arm=arm,
                    setting=f"{reward}, rate {rate:g}, epoch {epoch}",
                    tries=len(tried),
                    dev=float(own[arms.dev].mean()),
                    estimate=float(own[known].mean()),
                    accuracy=own[arms.test],
                )
            )
    return records


def table_lines(records: Sequence[WayRecord]) -> list[str]:
    """Accuracies of every table, and each form less the closed form with p corrected over all of them."""
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
            gains = [pair.diff for pair in own_pairs]
            above = sum(not pair.within_noise and pair.diff > 0 for pair in own_pairs)
            below = sum(not pair.within_noise and pair.diff < 0 for pair in own_pairs)
            lines.append(
                f"- {form}, {says}: {100 * np.mean(gains):+.2f} in the mean of {len(gains)} tables; "
                f"beyond noise above on {above}, below on {below}"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    measuring = actions.add_parser("measure")
    measuring.add_argument("--data", type=Path, required=True)
    measuring.add_argument("--cache", type=Path, default=Path("vectors"))
    measuring.add_argument("--out", type=Path, default=KEPT)
    measuring.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    measuring.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    showing = actions.add_parser("table")
    showing.add_argument("--records", type=Path, default=KEPT)
    args = parser.parse_args()
    if args.action == "table":
        print("\n".join(table_lines(read_records(args.records))))
        return
    texts = embedder(args.cache).of_texts
    for name in args.tasks:
        task = TaskData(name, args.data, texts)
        for model in args.models:
            started = time.perf_counter()
            (about,) = [
                record
                for record in read_file(SHIPPED / "real" / f"{name}-{model}.parquet")
                if record.arm == "effects" and record.shots == "1"
            ]
            records = measure(ModelTable.read(task, model), about)
            write_records(args.out / f"{name}-{model}.parquet", records)
            shown = ", ".join(f"{r.arm} {100 * r.estimate:.1f} -> {100 * r.mean:.1f} ({r.setting})" for r in records)
            print(
                f"{name} {model}: {time.perf_counter() - started:.0f} s; published {100 * about.mean:.1f}; {shown}",
                flush=True,
            )


if __name__ == "__main__":
    main()
