"""Short training logs as people print them, each with one planted cause: a dozen epochs, few numbers, round values.

Every log prints only what its author would: the numbers that show the cause and two or three beside them. A column that
is None in a row is not printed there.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Columns = dict[str, Sequence[float | None]]


def line(start: float, end: float, count: int = 12) -> list[float]:
    """A straight course with a little zigzag, so that it is neither noise alone nor without any."""
    step = (end - start) / (count - 1)
    return [round(start + step * n + 0.02 * step * (-1) ** n, 6) for n in range(count)]


def level(value: float, wobble: float = 0.0, count: int = 12) -> list[float]:
    return [round(value + wobble * (1.0, -0.6, 0.3, -1.0, 0.5)[n % 5], 8) for n in range(count)]


def grown(start: float, end: float, count: int = 12) -> list[float]:
    return [round(start * (end / start) ** (n / (count - 1)), 6) for n in range(count)]


CASES: dict[str, Columns] = {
    "healthy": {
        "reward": line(0.31, 0.62), "kl": line(0.004, 0.08), "entropy": line(1.9, 1.3), "loss": level(0.02, 0.01),
    },
    "healthy_held_out": {
        "reward": line(0.31, 0.7), "val_reward": line(0.3, 0.6), "clip": level(0.04, 0.01),
        "grad_norm": level(0.7, 0.2), "lr": level(1e-6),
    },
    "healthy_longer": {"reward": line(0.3, 0.7), "accuracy": line(0.25, 0.55), "length": line(150.0, 340.0)},
    "healthy_supervised": {"loss": line(2.2, 0.9), "val_loss": line(2.25, 1.2), "lr": level(1e-4)},
    "healthy_groups": {
        "reward": line(0.3, 0.5), "reward_std": level(0.3, 0.02), "dead_groups": level(0.25, 0.04),
        "adv_std": level(0.9, 0.03), "ratio": level(1.0, 0.004), "unique_demos": level(42.0, 3.0),
    },
    "kl_explosion": {"reward": line(0.52, 0.21), "kl": grown(0.04, 29.0), "entropy": line(1.8, 1.5)},
    "dead_groups": {
        "reward": level(0.4, 0.012), "reward_std": level(0.3, 0.01), "dead_groups": level(0.97, 0.02),
        "kl": level(0.0004, 0.0001),
    },
    "zero_advantages": {"reward": level(0.4, 0.015), "reward_std": level(0.32, 0.01), "adv_std": level(1e-6, 4e-7)},
    "reward_constant": {"reward": level(1.0), "reward_std": level(0.0), "kl": level(0.0003, 0.0001)},
    "reward_zero": {"reward": level(0.0), "reward_std": level(0.0), "length": level(180.0, 6.0)},
    "lr_tiny": {"reward": level(0.41, 0.01), "kl": level(2e-7, 1e-7), "lr": level(1e-9)},
    "lr_large": {
        "reward": line(0.45, 0.08), "kl_prox": line(0.02, 0.7), "grad_norm": grown(0.8, 60.0), "lr": level(3e-3),
    },
    "lr_large_supervised": {"loss": [2.2, 1.9, 2.6, 4.8, 3.9, 7.5, 6.8, 9.1, 8.4, 9.9, 9.0, 9.6], "lr": level(0.1)},
    "entropy_early": {
        "reward": [0.3, 0.38, *level(0.41, 0.006, 10)], "entropy": [2.1, 0.5, *level(0.01, 0.002, 10)],
        "kl": level(0.1, 0.01),
    },
    "entropy_late": {
        "reward": [*line(0.3, 0.5, 8), *level(0.5, 0.004, 4)], "entropy": [*line(2.0, 1.6, 8), 0.4, 0.03, 0.01, 0.009],
        "kl": line(0.01, 0.15),
    },
    "overfitting": {
        "reward": line(0.3, 0.8), "val_reward": [0.3, 0.36, 0.42, 0.46, 0.48, 0.47, 0.44, 0.4, 0.37, 0.33, 0.3, 0.27],
        "kl": line(0.01, 0.12),
    },
    "overfitting_supervised": {
        "loss": line(2.2, 0.3), "val_loss": [2.2, 2.0, 1.85, 1.77, 1.75, 1.8, 1.88, 1.97, 2.08, 2.2, 2.33, 2.45],
    },
    "same_demonstrations": {"reward": line(0.3, 0.45), "unique_demos": [58, 40, 21, 9, 4, 2, 2, 2, 2, 2, 2, 2]},
    "ratio_off": {"reward": level(0.4, 0.01), "ratio": level(1.9, 0.05), "kl": level(0.05, 0.01)},
    "clipping": {"reward": line(0.3, 0.36), "clip": level(0.68, 0.04), "kl": level(0.06, 0.01)},
    "reward_hacking": {"reward": line(0.4, 1.9), "accuracy": level(0.37, 0.005), "kl": line(0.01, 0.3)},
    "length_drift": {"reward": level(0.4, 0.012), "length": line(140.0, 690.0), "kl": level(0.03, 0.004)},
}  # fmt: skip

NAMED: dict[str, tuple[str, ...]] = {
    "healthy": (),
    "healthy_held_out": (),
    "healthy_longer": (),
    "healthy_supervised": (),
    "healthy_groups": (),
    "kl_explosion": ("kl_explodes",),
    "dead_groups": ("flat_groups", "advantage_std_tiny"),
    "zero_advantages": ("advantage_std_tiny", "top_k_before_baseline"),
    "reward_constant": ("reward_constant",),
    "reward_zero": ("reward_constant",),
    "lr_tiny": ("learning_rate_tiny",),
    "lr_large": ("learning_rate_too_large",),
    "lr_large_supervised": ("learning_rate_too_large",),
    "entropy_early": ("entropy_collapsed",),
    "entropy_late": ("entropy_collapsed",),
    "overfitting": ("overfits",),
    "overfitting_supervised": ("overfits",),
    "same_demonstrations": ("query_ignored",),
    "ratio_off": ("ratio_not_one",),
    "clipping": ("clip_saturated",),
    "reward_hacking": ("reward_hacked",),
    "length_drift": ("length_drifts",),
}
"""The finding that must stand first; none for a healthy training."""

ENGLISH = {
    "reward": "mean reward", "kl": "KL", "entropy": "entropy", "loss": "train loss", "val_loss": "val loss",
    "val_reward": "eval reward", "reward_std": "reward std", "dead_groups": "zero-variance groups",
    "lr": "learning rate", "kl_prox": "approx KL", "grad_norm": "grad norm", "unique_demos": "unique demos",
    "ratio": "ratio", "clip": "clip fraction", "accuracy": "accuracy", "length": "mean length",
    "adv_std": "advantage std",
}  # fmt: skip
CHINESE = {
    "reward": "平均奖励", "kl": "KL散度", "entropy": "策略熵", "loss": "训练损失", "val_loss": "验证损失",
    "val_reward": "验证奖励", "reward_std": "奖励标准差", "dead_groups": "零方差组比例", "lr": "学习率",
    "kl_prox": "近似KL", "grad_norm": "梯度范数", "unique_demos": "不同示例数", "ratio": "重要性比率",
    "clip": "裁剪比例", "accuracy": "准确率", "length": "平均长度", "adv_std": "优势标准差",
}  # fmt: skip
OWN = {
    "reward": "reward", "kl": "kl", "entropy": "entropy", "loss": "loss/total", "val_loss": "val/loss",
    "val_reward": "val/reward", "reward_std": "reward_std", "dead_groups": "frac_reward_zero_std", "lr": "lr",
    "kl_prox": "kl_prox", "grad_norm": "grad_norm", "unique_demos": "picks/unique_demos", "ratio": "ratio/mean",
    "clip": "clip_ratio/region_mean", "accuracy": "rewards/acc/mean", "length": "length", "adv_std": "adv/std",
}  # fmt: skip


def _rows(columns: Columns) -> list[dict[str, float]]:
    count = len(next(iter(columns.values())))
    rows = [{name: values[n] for name, values in columns.items()} for n in range(count)]
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def keras(columns: Columns, path: Path) -> Path:
    """`Epoch 3/12 - mean_reward: 0.35 - kl: 0.04`."""
    lines = [
        " - ".join(
            [f"Epoch {n}/12", *(f"{ENGLISH[k].replace(' ', '_').replace('-', '_')}: {v:.6g}" for k, v in row.items())]
        )
        for n, row in enumerate(_rows(columns), start=1)
    ]
    return _text(path.with_suffix(".log"), lines)


def diary(columns: Columns, path: Path) -> Path:
    """A notebook: `epoch 3 | mean reward 0.35 | KL 0.04`, under a heading and a remark."""
    lines = ["GRPO run of Tuesday, 8 GPUs", "config: batch 64, 8 samples per prompt", ""]
    lines += [
        " | ".join([f"epoch {n}", *(f"{ENGLISH[k]} {v:.4g}" for k, v in row.items())])
        for n, row in enumerate(_rows(columns), start=1)
    ]
    return _text(path.with_suffix(".txt"), [*lines, "", "done in 3h12m"])


def markdown(columns: Columns, path: Path, names: dict[str, str] = ENGLISH, first: str = "Epoch") -> Path:
    """A table in a report."""
    head = [first, *(names[name] for name in columns)]
    rows = [[str(n), *(f"{value:.4g}" for value in row.values())] for n, row in enumerate(_rows(columns), start=1)]
    lines = ["# What happened" if names is ENGLISH else "# 训练情况", ""]
    lines += [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return _text(path.with_suffix(".md"), lines)


def chinese_lines(columns: Columns, path: Path) -> Path:
    """`第3轮：平均奖励=0.35，KL散度=0.04`."""
    lines = [
        f"第{n}轮：" + "，".join(f"{CHINESE[k]}={v:.6g}" for k, v in row.items())
        for n, row in enumerate(_rows(columns), start=1)
    ]
    return _text(path.with_suffix(".txt"), ["开始训练", *lines, "训练结束"])


def chinese_markdown(columns: Columns, path: Path) -> Path:
    return markdown(columns, path, CHINESE, "轮次")


def printed_columns(columns: Columns, path: Path) -> Path:
    """What a data frame prints: names above, numbers below, blanks between."""
    names = ["epoch", *(ENGLISH[name].replace(" ", "_").replace("-", "_") for name in columns)]
    lines = ["".join(f"{name:>22}" for name in names)]
    for n, row in enumerate(_rows(columns), start=1):
        lines.append("".join(f"{value:>22.6g}" for value in (n, *row.values())))
    return _text(path.with_suffix(".out"), lines)


def data_frame(columns: Columns, path: Path) -> Path:
    """What `print(frame)` shows: the number of the row first, under no name."""
    names = ["step", *(ENGLISH[name].replace(" ", "_").replace("-", "_") for name in columns)]
    lines = [" " * 3 + "".join(f"{name:>22}" for name in names)]
    for n, row in enumerate(_rows(columns)):
        lines.append(f"{n:<3}" + "".join(f"{value:>22.6g}" for value in (10 * n, *row.values())))
    return _text(path.with_suffix(".txt"), lines)


def data_frame_markdown(columns: Columns, path: Path) -> Path:
    """The same with `to_markdown`."""
    head = ["", "step", *(ENGLISH[name] for name in columns)]
    rows = [[str(n), str(10 * n), *(f"{value:.6g}" for value in row.values())] for n, row in enumerate(_rows(columns))]
    return _text(path.with_suffix(".md"), [f"| {' | '.join(cells)} |" for cells in (head, ["--:"] * len(head), *rows)])


def chinese_epochs(columns: Columns, path: Path) -> Path:
    """An epoch on a line of its own, training and held out below, in Chinese."""
    lines = []
    for n, row in enumerate(_rows(columns), start=1):
        lines.append(f"轮次 {n}/12")
        lines += [f"{CHINESE[name].replace('验证', '验证集')}：{value:.6g}" for name, value in row.items()]
    return _text(path.with_suffix(".log"), lines)


def comma_separated(columns: Columns, path: Path) -> Path:
    names = ["epoch", *(ENGLISH[name] for name in columns)]
    rows = [",".join(f"{value:.6g}" for value in (n, *row.values())) for n, row in enumerate(_rows(columns), start=1)]
    return _text(path.with_suffix(".csv"), [",".join(names), *rows])


def flat_jsonl(columns: Columns, path: Path) -> Path:
    """One object a line, names with underscores."""
    rows = [
        {"epoch": n, **{ENGLISH[k].lower().replace(" ", "_").replace("-", "_"): v for k, v in row.items()}}
        for n, row in enumerate(_rows(columns), start=1)
    ]
    return _text(path.with_suffix(".jsonl"), [json.dumps(row) for row in rows])


def nested_jsonl(columns: Columns, path: Path) -> Path:
    """Training and validation as objects of their own, with a time."""
    lines = []
    for n, row in enumerate(_rows(columns), start=1):
        parts: dict[str, dict[str, float]] = {"train": {}, "eval": {}}
        for name, value in row.items():
            parts["eval" if name.startswith("val_") else "train"][name.removeprefix("val_")] = value
        renamed = {
            part: {TRL.get(name, name): v for name, v in values.items()} for part, values in parts.items() if values
        }
        lines.append(json.dumps({"time": f"2026-05-04T10:{n:02d}:00", "step": 50 * n, **renamed}))
    return _text(path.with_suffix(".jsonl"), lines)


TRL = {
    "dead_groups": "frac_reward_zero_std", "lr": "learning_rate", "clip": "clip_ratio/region_mean",
    "length": "completions/mean_length", "accuracy": "rewards/accuracy_reward/mean", "adv_std": "advantages/std",
    "kl_prox": "approx_kl", "ratio": "sampling/importance_sampling_ratio/mean",
}  # fmt: skip


def run_folder(columns: Columns, path: Path) -> Path:
    """A run folder of this package: its log alone."""
    stage = "grpo" if "reward" in columns else "sft"
    path.mkdir(parents=True)
    lines = []
    for n, row in enumerate(_rows(columns), start=1):
        values = {OWN[k] if k.startswith("val_") else f"train/{OWN[k]}": v for k, v in row.items()}
        lines.append(json.dumps({"stage": stage, "epoch": n, "step": 40 * n, **values}))
    _text(path / "log.jsonl", lines)
    return path


def announced(columns: Columns, path: Path) -> Path:
    """An epoch has a line of its own, with its time; the numbers are below, training and held out on two lines."""
    lines = ["Using device: cuda"]
    for n, row in enumerate(_rows(columns), start=1):
        lines.append(f"Epoch: {n:02d} | Time: 0m {10 + n}s")
        for held in (False, True):
            own = {name: value for name, value in row.items() if name.startswith("val_") is held}
            start = "\tValidation " if held else "\tTrain "
            shown = [f"{start}{ENGLISH[name].split(' ', 1)[1]}" if held else f"\t{ENGLISH[name]}" for name in own]
            lines += [" | ".join(f"{name}: {v:.6g}" for name, v in zip(shown, own.values(), strict=True))] * bool(own)
    return _text(path.with_suffix(".log"), lines)


def prose(columns: Columns, path: Path) -> Path:
    """Notes in sentences, several steps on a line."""
    told = []
    for n, row in enumerate(_rows(columns), start=1):
        first, *others = [f"{ENGLISH[name]} was {value:.6g}" for name, value in row.items()]
        told.append(f"At step {50 * n} the {first}" + "".join(f" and the {other}" for other in others) + ".")
    return _text(path.with_suffix(".txt"), ["Notes of Tuesday.", *(" ".join(told[n : n + 3]) for n in range(0, 12, 3))])


def chinese_prose(columns: Columns, path: Path) -> Path:
    told = []
    for n, row in enumerate(_rows(columns), start=1):
        told.append(f"第 {50 * n} 步时" + "，".join(f"{CHINESE[name]}为 {v:.6g}" for name, v in row.items()) + "。")
    return _text(path.with_suffix(".txt"), ["实验记录", *("".join(told[n : n + 3]) for n in range(0, 12, 3))])


def notebook(columns: Columns, path: Path) -> Path:
    """What a Trainer shows in a notebook, copied: tabs, and blanks around the slashes."""
    shown = {"loss": "Training Loss", "val_loss": "Validation Loss", "length": "completions / mean_length",
             "accuracy": "rewards / correctness_reward_func / mean"}  # fmt: skip
    lines = ["\t".join(["Step", *(shown.get(name, ENGLISH[name]) for name in columns)])]
    for n, row in enumerate(_rows(columns), start=1):
        lines.append("\t".join([str(10 * n), *(f"{value:.6g}" for value in row.values())]))
    return _text(path.with_suffix(".txt"), lines)


def json_list(columns: Columns, path: Path) -> Path:
    """One JSON file with a list of objects, nested under `metrics`."""
    rows = [{"step": n, "metrics": {"train": _underscored(row)}} for n, row in enumerate(_rows(columns), start=1)]
    return _text(path.with_suffix(".json"), [json.dumps(rows)])


def json_columns(columns: Columns, path: Path) -> Path:
    """One JSON object with a list for every metric, like the history of Keras."""
    return _text(path.with_suffix(".json"), [json.dumps(_underscored(columns))])


def long_csv(columns: Columns, path: Path) -> Path:
    """A row for every measurement, metric after metric, as MLflow exports them."""
    lines = ["run_id,key,value,step,timestamp"]
    for name in columns:
        rows = [(n, row[name]) for n, row in enumerate(_rows(columns), start=1) if name in row]
        lines += [f"4fa0,{ENGLISH[name].replace(' ', '_')},{value!r},{n},{1700000000000 + n}" for n, value in rows]
    return _text(path.with_suffix(".csv"), lines)


def mlflow_database(columns: Columns, path: Path) -> Path:
    """The tables of an mlflow.db that hold metrics."""
    path = path.with_suffix(".db")
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE experiments (experiment_id INTEGER, name TEXT)")
        database.execute("CREATE TABLE runs (run_uuid TEXT PRIMARY KEY, name TEXT)")
        columns_of = "key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, step INTEGER, is_nan BOOLEAN"
        database.execute(f"CREATE TABLE metrics ({columns_of})")
        database.execute("INSERT INTO runs VALUES ('4fa0', 'bold-fox-7')")
        for n, row in enumerate(_rows(columns), start=1):
            for name, value in _underscored(row).items():
                database.execute("INSERT INTO metrics VALUES (?, ?, ?, '4fa0', ?, 0)", (name, value, 1000 * n, n))
        database.commit()
    return path


def _underscored(row: Mapping[str, T]) -> dict[str, T]:
    return {ENGLISH[name].lower().replace(" ", "_").replace("-", "_"): value for name, value in row.items()}


def _text(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


FORMS: dict[str, Callable[[Columns, Path], Path]] = {
    "keras": keras,
    "diary": diary,
    "markdown": markdown,
    "chinese_lines": chinese_lines,
    "chinese_markdown": chinese_markdown,
    "printed_columns": printed_columns,
    "comma_separated": comma_separated,
    "flat_jsonl": flat_jsonl,
    "nested_jsonl": nested_jsonl,
    "run_folder": run_folder,
    "data_frame": data_frame,
    "data_frame_markdown": data_frame_markdown,
    "chinese_epochs": chinese_epochs,
    "announced": announced,
    "prose": prose,
    "chinese_prose": chinese_prose,
    "notebook": notebook,
    "json_list": json_list,
    "json_columns": json_columns,
    "long_csv": long_csv,
    "mlflow_database": mlflow_database,
}
