"""Logs in the formats of libraries that cannot run here: one simulated training, written as each of them writes it.

A training is a set of curves with noise: healthy ones first, then one of them spoilt. Levels, noise, lengths and speeds
are drawn from a seed, so that no two logs are alike. Formats: verl (console and file), OpenRLHF, CleanRL (event files),
Weights & Biases (exported CSV, offline folder), MLflow, CSV and JSON lines of one's own, text in English and Chinese.
"""

from __future__ import annotations

import csv
import json
import math
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

Curves = dict[str, list[float]]
EVERY = 5
"""A held-out evaluation every so many steps."""


def simulate(cause: str, seed: int, scale: float = 1.0) -> Curves:
    """A training by rewards with one planted cause; `healthy` has none. Missing values are nan.

    `scale` multiplies what has a scale of its own: rewards, gradients and lengths.
    """
    rng = random.Random(f"{cause} {seed}")
    steps = rng.randrange(40, 70)
    time = [n / (steps - 1) for n in range(steps)]
    low, high, noise = rng.uniform(0.15, 0.35), rng.uniform(0.6, 0.85), rng.uniform(0.008, 0.02)
    speed, size = rng.uniform(3.0, 6.0), rng.uniform(120.0, 400.0)
    far = rng.uniform(0.03, 0.15)
    learnt = [1.0 - math.exp(-speed * t) for t in time]

    def noisy(values: list[float], spread: float) -> list[float]:
        return [value + rng.gauss(0.0, spread) for value in values]

    def positive(values: list[float], share: float) -> list[float]:
        return [value * math.exp(rng.gauss(0.0, share)) for value in values]

    reward = noisy([low + (high - low) * own for own in learnt], noise)
    accuracy = noisy([0.8 * (low + (high - low) * own) for own in learnt], noise)
    curves: Curves = {
        "reward": reward,
        "reward_std": positive([rng.uniform(0.25, 0.4)] * steps, 0.1),
        "flat": [min(1.0, abs(value)) for value in noisy([0.2 + 0.1 * own for own in learnt], 0.05)],
        "adv_std": positive([0.85] * steps, 0.04),
        "kl": positive([0.002 + far * own for own in learnt], 0.15),
        "ppo_kl": positive([rng.uniform(2e-4, 2e-3)] * steps, 0.3),
        "clip": positive([rng.uniform(0.01, 0.08)] * steps, 0.3),
        "ratio": noisy([1.0] * steps, 0.003),
        "grad": positive([rng.uniform(0.2, 2.0)] * steps, 0.2),
        "lr": [rng.choice([1e-6, 2e-6, 5e-6, 1e-5])] * steps,
        "length": positive([size * (1.0 + 0.3 * own) for own in learnt], 0.04),
        "loss": noisy([0.0] * steps, 0.02),
        "accuracy": accuracy,
        "val_reward": noisy([low + 0.9 * (high - low) * own for own in learnt], noise),
        "val_accuracy": noisy([0.75 * (low + (high - low) * own) for own in learnt], noise),
    }
    curves["entropy"] = positive([rng.uniform(0.8, 2.0)] * 1, 0.0) * steps
    curves["entropy"] = positive(
        [v * (1.0 - 0.5 * own) for v, own in zip(curves["entropy"], learnt, strict=True)], 0.03
    )
    for name in ("reward_std", "grad", "kl", "ppo_kl", "clip"):
        level = rng.uniform(0.7, 1.3)
        curves[name] = [level * value for value in curves[name]]
    _spoil(curves, cause, time, rng)
    for name in ("reward", "val_reward", "reward_std", "group_std", "grad", "length"):
        curves |= {name: [scale * value for value in curves[name]]} if name in curves else {}
    for name in ("val_reward", "val_accuracy"):
        curves[name] = [value if n % EVERY == 0 else math.nan for n, value in enumerate(curves[name])]
    return curves


def _spoil(curves: Curves, cause: str, time: list[float], rng: random.Random) -> None:
    """Plant one cause; what follows from it in every training follows here too."""
    start = curves["reward"][0]
    after = rng.uniform(0.3, 0.5)
    late = [max(0.0, (t - after) / (1.0 - after)) for t in time]

    def still(name: str, level: float, spread: float) -> None:
        curves[name] = [level + rng.gauss(0.0, spread) for _ in time]

    def flat_training() -> None:
        for name in ("reward", "val_reward"):
            still(name, start, 0.012)
        for name in ("accuracy", "val_accuracy"):
            still(name, 0.8 * start, 0.012)
        curves["kl"] = [abs(rng.gauss(0.0, 5e-4)) for _ in time]
        still("entropy", curves["entropy"][0], 0.01)
        still("length", curves["length"][0], 4.0)

    if cause == "kl_explosion":
        top = math.log(rng.uniform(8.0, 60.0) / 0.04)
        curves["kl"] = [0.04 * math.exp(top * own + rng.gauss(0.0, 0.1)) for own in late]
        for name in ("reward", "accuracy", "val_reward", "val_accuracy"):
            curves[name] = [value * (1.0 - 0.7 * own) for value, own in zip(curves[name], late, strict=True)]
    elif cause == "dead_groups":
        flat_training()
        curves["flat"] = [min(1.0, 0.97 + abs(rng.gauss(0.0, 0.02))) for _ in time]
        curves["adv_std"] = [1.0 - value for value in curves["flat"]]
        curves["group_std"] = [0.0 for _ in time]
    elif cause == "zero_advantages":
        flat_training()
        curves["adv_std"] = [abs(rng.gauss(0.0, 1e-5)) for _ in time]
    elif cause == "reward_constant":
        flat_training()
        level = rng.choice([0.0, 1.0])
        curves["reward"], curves["reward_std"] = [level for _ in time], [0.0 for _ in time]
        curves["val_reward"] = [level for _ in time]
        still("accuracy", 0.4, 0.01)
        still("val_accuracy", 0.4, 0.01)
        curves["flat"], curves["adv_std"] = [1.0 for _ in time], [0.0 for _ in time]
        curves["group_std"] = [0.0 for _ in time]
    elif cause == "lr_tiny":
        flat_training()
        curves["lr"] = [10 ** rng.uniform(-11.0, -8.5)] * len(time)
        curves["kl"] = [abs(rng.gauss(0.0, 1e-6)) for _ in time]
        curves["ppo_kl"] = [abs(rng.gauss(0.0, 1e-8)) for _ in time]
        curves["clip"] = [0.0 for _ in time]
    elif cause == "lr_large":
        growth = rng.uniform(20.0, 200.0)
        curves["grad"] = [v * (1.0 + growth * own) for v, own in zip(curves["grad"], late, strict=True)]
        curves["lr"] = [rng.choice([1e-3, 3e-3, 1e-2])] * len(time)
        curves["ppo_kl"] = [v + 0.6 * own for v, own in zip(curves["ppo_kl"], late, strict=True)]
        for name in ("reward", "accuracy", "val_reward", "val_accuracy"):
            curves[name] = [start * (1.0 - 0.8 * own) + rng.gauss(0.0, 0.01) for own in late]
    elif cause in ("entropy_collapse_early", "entropy_collapse_late"):
        at = 0.15 if cause.endswith("early") else 0.65
        fall = [1.0 / (1.0 + math.exp(30.0 * (t - at))) for t in time]
        curves["entropy"] = [max(0.002, v * own) for v, own in zip(curves["entropy"], fall, strict=True)]
        for name in ("reward", "accuracy", "val_reward", "val_accuracy"):
            place = int(at * len(time))
            curves[name] = [v if n <= place else curves[name][place] + rng.gauss(0.0, 0.01)
                            for n, v in enumerate(curves[name])]  # fmt: skip
    elif cause == "overfitting":
        for name in ("val_reward", "val_accuracy"):
            top = curves[name][int(after * len(time))]
            curves[name] = [v if own == 0.0 else top - 0.3 * own + rng.gauss(0.0, 0.01)
                            for v, own in zip(curves[name], late, strict=True)]  # fmt: skip
    elif cause == "same_demonstrations":
        curves["unique_demos"] = [
            float(max(1, round(40 - 60 * t))) if t < 0.6 else float(rng.choice([1, 2])) for t in time
        ]
    elif cause == "ratio_off":
        off = rng.choice([0.55, 1.6, 2.4])
        curves["ratio"] = [off + rng.gauss(0.0, 0.03) for _ in time]
        curves["clip"] = [0.45 + rng.gauss(0.0, 0.03) for _ in time]
    elif cause == "clipping":
        level = rng.uniform(0.45, 0.85)
        curves["clip"] = [level + rng.gauss(0.0, 0.03) for _ in time]
    elif cause == "reward_hacking":
        for name in ("accuracy", "val_accuracy"):
            drop = rng.choice([0.0, 0.5])
            curves[name] = [0.8 * start * (1.0 - drop * t) + rng.gauss(0.0, 0.006) for t in time]
    elif cause == "length_drift":
        factor = rng.choice([rng.uniform(2.5, 5.0), rng.uniform(0.15, 0.35)])
        curves["length"] = [v * factor**t for v, t in zip(curves["length"], time, strict=True)]
        for name in ("reward", "val_reward"):
            still(name, start, 0.012)
        for name in ("accuracy", "val_accuracy"):
            still(name, 0.8 * start, 0.012)
    elif cause == "resume_lost":
        place = len(time) // 2
        curves["resumed"] = [float(place)]
        for n, share in ((0, 1.0), (1, 0.6), (2, 0.3)):
            curves["grad"][place + n] *= 1.0 + rng.uniform(15.0, 40.0) * share
            curves["reward"][place + n] *= 1.0 - 0.7 * share
            curves["loss"][place + n] += rng.uniform(0.5, 1.5) * share


NAMES: dict[str, Mapping[str, str]] = {
    "verl": {"reward": "critic/rewards/mean", "reward_max": "critic/rewards/max", "reward_min": "critic/rewards/min",
             "adv_max": "critic/advantages/max", "adv_min": "critic/advantages/min", "kl": "actor/kl_loss",
             "ppo_kl": "actor/ppo_kl", "clip": "actor/pg_clipfrac", "entropy": "actor/entropy",
             "grad": "actor/grad_norm", "lr": "actor/lr", "length": "response_length/mean", "loss": "actor/pg_loss",
             "val_accuracy": "val-core/openai/gsm8k/acc/mean@1", "val_reward": "val-core/openai/gsm8k/reward/mean@1"},
    "openrlhf": {"reward": "reward", "group_std": "group_reward_std", "kl": "kl", "ppo_kl": "ppo_kl",
                 "clip": "ppo_clip_ratio", "entropy": "entropy_loss", "lr": "actor_lr", "length": "response_length",
                 "loss": "policy_loss", "grad": "actor_grad_norm"},
    "cleanrl": {"reward": "charts/episodic_return", "ppo_kl": "losses/approx_kl", "clip": "losses/clipfrac",
                "entropy": "losses/entropy", "lr": "charts/learning_rate", "loss": "losses/policy_loss"},
    "wandb": {"reward": "train/reward", "reward_std": "train/reward_std", "flat": "train/frac_reward_zero_std",
              "kl": "train/kl", "clip": "train/clip_ratio/region_mean", "entropy": "train/entropy",
              "grad": "train/grad_norm", "lr": "train/learning_rate", "length": "train/completions/mean_length",
              "loss": "train/loss", "val_reward": "eval/reward", "accuracy": "train/rewards/accuracy_reward/mean",
              "ratio": "train/sampling/importance_sampling_ratio/mean"},
    "mlflow": {"reward": "reward", "reward_std": "reward_std", "flat": "frac_reward_zero_std", "kl": "kl",
               "adv_std": "advantage_std", "clip": "clip_fraction", "entropy": "entropy", "grad": "grad_norm",
               "lr": "learning_rate", "length": "completion_length", "val_accuracy": "eval_accuracy",
               "val_reward": "eval_reward", "ratio": "importance_ratio"},
    "own": {"reward": "mean_reward", "reward_std": "reward_std", "adv_std": "adv_std", "kl": "kl_div",
            "clip": "clip_frac", "entropy": "policy_entropy", "grad": "gradient_norm", "lr": "lr",
            "length": "response_len", "accuracy": "acc", "val_accuracy": "val_acc", "val_reward": "val_reward",
            "unique_demos": "unique_demos", "ratio": "ratio", "loss": "loss"},
    "english": {"reward": "reward", "kl": "KL", "entropy": "entropy", "clip": "clip fraction", "grad": "grad norm",
                "lr": "lr", "length": "mean length", "accuracy": "accuracy", "val_reward": "val reward",
                "adv_std": "advantage std", "reward_std": "reward std", "unique_demos": "unique demos",
                "ratio": "ratio"},
    "chinese": {"reward": "平均奖励", "kl": "KL散度", "entropy": "熵", "clip": "裁剪比例", "grad": "梯度范数",
                "lr": "学习率", "length": "平均长度", "accuracy": "准确率", "val_reward": "验证奖励",
                "adv_std": "优势标准差", "reward_std": "奖励标准差", "unique_demos": "不同示例数",
                "ratio": "重要性比率"},
}  # fmt: skip
"""Which of the curves a format logs, and under which names."""

EVIDENCE: dict[str, tuple[tuple[str, ...], ...]] = {
    "healthy": (("reward",),),
    "kl_explosion": (("kl",),),
    "dead_groups": (("flat",), ("group_std",)),
    "zero_advantages": (("adv_std",), ("adv_max",)),
    "reward_constant": (("reward_std",), ("reward_max",)),
    "lr_tiny": (("lr", "kl"), ("lr", "ppo_kl")),
    "lr_large": (("grad",), ("ppo_kl",)),
    "entropy_collapse_early": (("entropy",),),
    "entropy_collapse_late": (("entropy",),),
    "overfitting": (("val_reward", "reward"), ("val_accuracy", "accuracy")),
    "same_demonstrations": (("unique_demos",),),
    "ratio_off": (("ratio",),),
    "clipping": (("clip",),),
    "reward_hacking": (("reward", "accuracy"), ("reward", "val_accuracy")),
    "length_drift": (("length",),),
    "resume_lost": (("grad",), ("loss",)),
}
"""What a log must hold for a cause to be seen in it: any one of these sets of curves."""


def causes_of(form: str) -> list[str]:
    """The causes whose evidence the format carries."""
    logged = set(NAMES[form])
    return [cause for cause, ways in EVIDENCE.items() if any(set(way) <= logged for way in ways)]


def rows_of(form: str, curves: Curves) -> list[dict[str, float]]:
    """The lines of a log, under the format's names; the line after a resumption repeats the steps before it."""
    spread = curves["adv_std"]
    curves = {
        **curves,
        "adv_max": [2.1 * value for value in spread],
        "adv_min": [-1.9 * value for value in spread],
        "reward_max": [r + 1.5 * s for r, s in zip(curves["reward"], curves["reward_std"], strict=True)],
        "reward_min": [r - 1.5 * s for r, s in zip(curves["reward"], curves["reward_std"], strict=True)],
        "group_std": curves.get("group_std") or [0.7 * value for value in curves["reward_std"]],
    }
    resumed = int(curves["resumed"][0]) if "resumed" in curves else None
    rows = []
    for n in range(len(curves["reward"])):
        step = n + 1 if resumed is None or n < resumed else n - 2  # a resumed log repeats three steps
        values = {name: curves[own][n] for own, name in NAMES[form].items() if own in curves}
        rows.append({"step": float(step), **{k: float(f"{v:.6g}") for k, v in values.items() if not math.isnan(v)}})
    return rows


def _verl(path: Path, rows: list[dict[str, float]]) -> None:
    lines = ["WARNING 11-16 [config.py:7] loading model"]
    for row in rows:
        parts = [f"{name}:{value!r}" for name, value in row.items() if name != "step"]
        lines.append(f"(TaskRunner pid=4711) step:{int(row['step'])} - " + " - ".join([*parts, "timing_s/gen:3.25"]))
    path.with_suffix(".log").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _verl_file(path: Path, rows: list[dict[str, float]]) -> None:
    lines = [{"step": int(row["step"]), "data": {k: v for k, v in row.items() if k != "step"}} for row in rows]
    path.with_suffix(".jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")


def _openrlhf(path: Path, rows: list[dict[str, float]]) -> None:
    lines = []
    for row in rows:
        status = {name: value for name, value in row.items() if name != "step"} | {"timing/generation": 8.5}
        lines.append(f"2026-11-16 02:00:00 INFO     ✨ Global step {int(row['step'])}: {status}")
    path.with_suffix(".log").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _exported(path: Path, rows: list[dict[str, float]]) -> None:
    """Weights & Biases puts the name of the run before each metric, and its least and most beside it."""
    names = list(dict.fromkeys(name for row in rows for name in row if name != "step"))
    header = ["Step", *(f"swift-otter-7 - {name}{end}" for name in names for end in ("", "__MIN", "__MAX"))]
    with path.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(header)
        for row in rows:
            writer.writerow([int(row["step"]), *(row.get(name, "") for name in names for _ in range(3))])


def _offline(path: Path, rows: list[dict[str, float]]) -> None:
    files = path / "wandb" / "offline-run-20261116_020000-abc" / "files"
    files.mkdir(parents=True)
    lines = [{**{k: v for k, v in row.items() if k != "step"}, "_step": int(row["step"])} for row in rows]
    (files / "wandb-history.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    (files / "wandb-summary.json").write_text(json.dumps(lines[-1]), encoding="utf-8")


def _mlflow(path: Path, rows: list[dict[str, float]]) -> None:
    run = path / "mlruns" / "0" / "0af1"
    (run / "metrics").mkdir(parents=True)
    (run / "meta.yaml").write_text("run_id: 0af1\n", encoding="utf-8")
    for name in dict.fromkeys(name for row in rows for name in row if name != "step"):
        lines = [f"1763251200000 {row[name]} {int(row['step'])}" for row in rows if name in row]
        (run / "metrics" / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _csv(path: Path, rows: list[dict[str, float]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _jsonl(path: Path, rows: list[dict[str, float]]) -> None:
    path.with_suffix(".jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")


def _english(path: Path, rows: list[dict[str, float]]) -> None:
    lines = [
        f"[2026-11-16 02:00:00] step {int(row['step'])}: "
        + ", ".join(f"{name} = {value:.6g}" for name, value in row.items() if name != "step")
        for row in rows
    ]
    path.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _chinese(path: Path, rows: list[dict[str, float]]) -> None:
    lines = [
        f"第 {int(row['step'])} 步："
        + "，".join(f"{name} {value:.6g}" for name, value in row.items() if name != "step")
        for row in rows
    ]
    path.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _events(path: Path, rows: list[dict[str, float]]) -> None:
    """TensorBoard's frames; a resumed training opens a second file, as the libraries do."""
    path.mkdir()
    files: list[list[bytes]] = [[]]
    before = 0.0
    for row in rows:
        if row["step"] <= before:
            files.append([])
        before = row["step"]
        for name, value in row.items():
            if name != "step":
                files[-1].append(_frame(int(row["step"]), name, value))
    for n, frames in enumerate(files):
        (path / f"events.out.tfevents.{1763251200 + n}.host.1.0").write_bytes(b"".join(frames))


def _frame(step: int, tag: str, value: float) -> bytes:
    scalar = _field(1, tag.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", value)
    message = _varint(2 << 3) + _varint(step) + _field(5, _field(1, scalar))
    return struct.pack("<Q", len(message)) + bytes(4) + message + bytes(4)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = b""
    while True:
        value, low = value >> 7, value & 127
        out += bytes([low | 128 if value else low])
        if not value:
            return out


WRITERS: dict[str, tuple[str, Callable[[Path, list[dict[str, float]]], None]]] = {
    "verl_console": ("verl", _verl),
    "verl_file": ("verl", _verl_file),
    "openrlhf_console": ("openrlhf", _openrlhf),
    "cleanrl_events": ("cleanrl", _events),
    "wandb_export": ("wandb", _exported),
    "wandb_offline": ("wandb", _offline),
    "mlflow": ("mlflow", _mlflow),
    "csv": ("own", _csv),
    "jsonl": ("own", _jsonl),
    "text_english": ("english", _english),
    "text_chinese": ("chinese", _chinese),
}
"""Name of a format -> whose names it uses, and what writes it."""


def make_written(folder: Path, seed: int, scale: float) -> None:
    """Every format with every cause it carries evidence of, and three seeds together as one more cause."""
    for place, (name, (form, write)) in enumerate(WRITERS.items()):
        for cause in causes_of(form):
            if cause == "resume_lost" and name in ("mlflow", "wandb_offline", "wandb_export"):
                continue  # these are kept by step number, so that nothing tells of a resumption
            write(folder / f"{name}-{cause}", rows_of(form, simulate(cause, 100 * seed + place, scale)))
    for cause in ("seeds_differ", "seeds_agree"):
        for name in ("csv", "jsonl", "verl_console"):
            form, write = WRITERS[name]
            home = folder / f"{name}-{cause}"
            home.mkdir()
            rng = random.Random(f"{cause} {name} {seed}")
            for n in range(3):
                curves = simulate("healthy", 1000 * seed + n)
                for own in ("reward", "accuracy", "val_reward", "val_accuracy"):
                    start = 0.45 if cause == "seeds_differ" else 0.3
                    end = start + (rng.choice([-0.25, 0.02, 0.3]) * (n - 0.9) if cause == "seeds_differ" else 0.35)
                    size = len(curves[own])
                    curves[own] = [
                        start + (end - start) * k / size + rng.gauss(0.0, 0.008) if not math.isnan(v) else v
                        for k, v in enumerate(curves[own])
                    ]
                write(home / f"seed{n}", rows_of(form, curves))
