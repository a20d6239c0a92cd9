"""Logs of other libraries are read under the names they use, and the names are shown.

The corpus shows every format; here stand the rules that it cannot show, and what is refused.
"""

from __future__ import annotations

import json
import math
import random
import sqlite3
import struct
from contextlib import closing

import pytest

from leverplus.cli.main import main
from leverplus.errors import DataError
from leverplus_doctor.check import examine
from leverplus_doctor.logs.names import TABLE, LogLine, meaning, series_from
from leverplus_doctor.read import read_target
from leverplus_doctor.records import Record


def codes(record):
    return [own.code for own in examine(record) if own.severity != "info"]


def text(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


NAMES = {
    "critic/rewards/mean": "reward",
    "rollout/ep_rew_mean": "reward",
    "eval/reward": "val/reward",
    "rewards/accuracy_reward/mean": "accuracy",
    "val-core/gsm8k/acc/mean@1": "val/accuracy",
    "completions/clipped_ratio": "truncated",
    "actor/pg_clipfrac": "clip_ratio/region_mean",
    "actor/ppo_kl": "kl_prox",
    "actor/kl_loss": "kl",
    "验证损失": "val/loss",
    "训练集准确率": "accuracy",
    "valid_loss": "val/loss",
    "train_reward": "reward",
    "Train Acc": "accuracy",
    "metrics/train/reward": "reward",
    "Value function loss": "loss/value",
    "test/env/all/reward/total": "val/reward",
    "completions / mean_length": "length",
    "info/learner/default_policy/learner_stats/kl": "kl",
    "rewards/accuracy_reward/std": None,
    "timing_s/reward": None,
    "value": None,
}


def test_a_logged_name_means_what_its_library_says():
    for logged, ours in NAMES.items():
        found = meaning(logged)
        assert (found and found[0]) == ours, logged
    names = [name for row in TABLE.values() for name in row["names"]]
    assert len(names) == len(set(names))


EXPLODES = [(n, round(0.5 - 0.03 * n, 3), round(0.04 * 2**n, 4)) for n in range(12)]


def test_names_of_ones_own_need_a_map(tmp_path, capsys):
    rows = [f"{n},{reward},{kl}" for n, reward, kl in EXPLODES]
    path = text(tmp_path / "mine.csv", ["t,profit,drift", *rows])
    assert main(["doctor", str(path)]) == 1
    assert "--map reward=NAME" in capsys.readouterr().err
    words = ["--map", "step=t,reward=profit,kl=drift", "--json"]
    assert main(["doctor", str(path), *words]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["read_as"] == {"step": "t", "reward": "profit", "kl": "drift"}
    assert values["findings"][0]["code"] == "kl_explodes"
    for wrong, said in (
        ("reward=income", "nothing is logged as 'income'"),
        ("foo=profit", "there is no metric 'foo'"),
        ("reward", "--map wants NAME=COLUMN pairs"),
    ):
        assert main(["doctor", str(path), "--map", wrong]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "row",
    [
        "step {n} profit={reward} drift={kl}",
        "| {n} | {reward} | {kl} |",
        "{{'step': {n}, 'profit': {reward}, 'drift': {kl}}}",
    ],
)
def test_names_of_ones_own_in_a_text_are_read_where_the_user_says_what_they_are(
    tmp_path, row
):
    head = ["| step | profit | drift |", "|---|---|---|"] if row[0] == "|" else []
    rows = [row.format(n=n, reward=reward, kl=kl) for n, reward, kl in EXPLODES]
    path = text(tmp_path / "train.log", [*head, *rows])
    with pytest.raises(DataError, match="--map reward=NAME"):
        read_target(path)
    record = read_target(path, {"reward": "profit", "kl": "drift"})
    assert record.read_as == {"step": "step", "reward": "profit", "kl": "drift"}
    assert codes(record)[0] == "kl_explodes"


def test_what_was_taken_for_what_is_printed_first(tmp_path, capsys):
    rows = [f"{n},{n / 10}" for n in range(8)]
    path = text(tmp_path / "log.csv", ["global_step,mean_reward", *rows])
    assert main(["doctor", str(path)]) == 0
    said = "read as: step from global_step, reward from mean_reward"
    assert capsys.readouterr().out.startswith(said)


def varint(value):
    out = b""
    while True:
        value, low = value >> 7, value & 127
        out += bytes([low | 128 if value else low])
        if not value:
            return out


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def event(step, tag, value):
    """A frame of an event file, written by the definition of the format; checksums are not looked at."""
    scalar = field(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)
    message = varint(2 << 3) + varint(step) + field(5, field(1, scalar))
    return struct.pack("<Q", len(message)) + b"\0" * 4 + message + b"\0" * 4


def test_an_event_file_is_read_without_tensorboard_though_its_end_is_cut(tmp_path):
    path = tmp_path / "events.out.tfevents.1700000000.host"
    frames = b""
    for n, reward, kl in EXPLODES:
        frames += event(n, "train/kl", kl) + event(n, "train/reward", reward)
    path.write_bytes(frames + event(12, "train/kl", 1.0)[:-7])
    record = read_target(tmp_path)
    assert record.series[0].values("kl")[-1] == (11, pytest.approx(81.92))
    assert codes(record)[0] == "kl_explodes"
    path.write_bytes(b"no events at all, just text")
    with pytest.raises(DataError, match="not a TensorBoard event file"):
        read_target(path)


def test_seeds_given_together_are_compared(tmp_path, capsys):
    paths = []
    for seed, end in enumerate((0.62, 0.38, 0.55)):
        rows = [f"{n},{0.5 if n < 5 else end}" for n in range(10)]
        paths.append(text(tmp_path / f"seed{seed}.csv", ["step,accuracy", *rows]))
    assert main(["doctor", *map(str, paths), "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["code"] == "seeds_outweigh_gain"
    assert all(str(path) in finding["source"] for path in paths)
    assert codes(read_target(paths[0])) == []


def test_a_step_number_that_falls_is_a_resumption(tmp_path):
    rows = [f"{n},{2 - 0.05 * n}" for n in range(12)]
    path = text(tmp_path / "log.csv", ["step,loss", *rows, "10,3.1", "11,2.2", "12,1"])
    record = read_target(path)
    assert record.series[0].marks == (12,)
    assert codes(record)[0] == "resumed_without_optimiser"


@pytest.mark.parametrize(
    ("said", "row"),
    [
        (
            "Resuming from checkpoint-600, optimizer state not found",
            "step {n}: reward {reward:.3f}, grad norm {norm:.2f}",
        ),
        ("从断点恢复训练", "第{n}步：奖励 {reward:.3f}，梯度范数 {norm:.2f}"),
    ],
)
def test_a_resumption_that_lost_its_optimiser_is_told_in_running_text(
    tmp_path, said, row
):
    rows = [(n, 0.3 + 0.01 * n, 0.8 + 0.02 * (-1) ** n) for n in range(1, 25)]
    rows[12:15] = [(13, 0.12, 24.0), (14, 0.2, 11.0), (15, 0.31, 3.0)]
    lines = [row.format(n=n, reward=reward, norm=norm) for n, reward, norm in rows]
    path = text(tmp_path / "train.txt", [*lines[:12], said, *lines[12:]])
    assert codes(read_target(path))[0] == "resumed_without_optimiser"


FOLLOWED = [0.30, 0.35, 0.40, 0.44, 0.46, 0.45, 0.42, 0.38, 0.34, 0.30, 0.26, 0.22]


def test_overfitting_of_a_policy_is_told_from_a_hacked_reward_where_only_held_out_accuracy_is_logged(
    tmp_path,
):
    """The reward rises in both; what is held out followed it for a while, or never did."""
    for held, first in (
        (FOLLOWED, "overfits"),
        ([0.3 + 0.002 * (-1) ** n for n in range(12)], "reward_hacked"),
    ):
        rows = [f"{n},{0.3 + 0.04 * n},{value}" for n, value in enumerate(held)]
        path = text(tmp_path / "log.csv", ["step,train/reward,eval/accuracy", *rows])
        assert codes(read_target(path))[0] == first


def test_answers_that_no_longer_fit_are_named_although_accuracy_still_rises(tmp_path):
    head = "step,rewards/accuracy_reward/mean,response_length,truncated,kl"
    for last, first in ((0.45, ["length_drifts"]), (0.08, [])):
        rows = []
        for n in range(20):
            cut = 0.02 + (last - 0.02) * n / 19
            rows.append(f"{n},{0.3 + 0.01 * n},{200 + 60 * n},{cut},0.02")
        assert codes(read_target(text(tmp_path / "log.csv", [head, *rows]))) == first


def test_runs_of_an_mlflow_database_are_apart_under_their_names(tmp_path):
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE runs (run_uuid, name)")
        database.execute("CREATE TABLE metrics (key, value, run_uuid, step, is_nan)")
    with pytest.raises(DataError, match="holds no metric yet"):
        read_target(path)
    with closing(sqlite3.connect(path)) as database:
        runs = [("1a", "bold-fox"), ("2b", "shy-owl")]
        database.executemany("INSERT INTO runs VALUES (?, ?)", runs)
        rows = [("kl", 0.1 + n, run, n, n == 2) for run, _ in runs for n in range(4)]
        database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", rows)
        database.commit()
    record = read_target(path)
    assert [series.label for series in record.series] == ["bold-fox 1a", "shy-owl 2b"]
    values = [line.values["kl"] for line in record.series[0].epochs]
    assert values == [0.1, 1.1, None, 3.1]


ROUNDED = [
    ("0.000", "0.000", []),
    ("0.0", "0.0", ["learning_rate_tiny"]),
    ("1e-10", "0.00000000", ["learning_rate_tiny"]),
]


@pytest.mark.parametrize(
    "form",
    [
        "step:{n} - actor/lr:{lr} - actor/ppo_kl:{kl} - critic/rewards/mean:{reward:.3f}",
        "step {n} lr={lr} approx_kl={kl} reward={reward:.3f}",
    ],
)
def test_a_learning_rate_that_was_rounded_to_zero_is_not_called_tiny(tmp_path, form):
    for lr, kl, found in ROUNDED:
        rows = []
        for n in range(20):
            reward = 0.3 + 0.01 * (-1) ** n
            rows.append(form.format(n=n, lr=lr, kl=kl, reward=reward))
        record = read_target(text(tmp_path / "train.log", rows))
        assert codes(record) == found
    (finding,) = examine(record)
    assert "for all weights of a model of billions" in finding.cure
    assert "selector" not in finding.cause


def read_lines(tmp_path, lines):
    record = read_target(text(tmp_path / "train.log", lines))
    return [dict(line.values) for line in record.series[0].epochs]


def test_what_else_a_line_says_does_not_become_a_number_of_the_step(tmp_path):
    steps = range(2, 9)
    rows = [f"step {n} | reward 0.{n} | best step {n - 1} | kl 0.0{n}" for n in steps]
    found = read_lines(tmp_path, rows)
    assert found == [{"reward": float(f"0.{n}"), "kl": n / 100} for n in steps]
    rows = [
        f"step {n} | auxiliary loss: 5 | the loss: 2.{n} | x loss: 7" for n in steps
    ]
    found = read_lines(tmp_path, rows)
    assert found == [{"loss/total": float(f"2.{n}")} for n in steps]
    rows = []
    for n in steps:
        rows += [f"Step: {n} | Actor Loss: 0.{n}", f"reward: 1.{n} | actor loss: 9.0"]
        rows.append("a note with reward 5 in it")
    found = read_lines(tmp_path, rows)
    assert found[0] == {"loss/pg": 0.2, "reward": 1.2}
    settings = ["{'learning_rate': 1e-06,", " 'epochs': 3,", " 'kl_coef': 0.05}"]
    rows = [*settings, *(f"step {n}: reward 0.{n}, kl 0.0{n}" for n in steps)]
    assert len(read_lines(tmp_path, rows)) == 7


@pytest.mark.parametrize(
    ("cells", "reward"),
    [("0,25;1,5", 0.25), ("1,234;0,5", 1.234), ("1,234;2,345", None), ("0.25;1", 0.25)],
    ids=["decimal commas", "one cell tells for all", "thousands", "points"],
)
def test_decimal_commas_are_known_by_a_comma_that_marks_no_thousands(
    tmp_path, cells, reward
):
    rows = [f"{n};{cells}" for n in range(1, 7)]
    path = text(tmp_path / "lauf.csv", ["step;reward;kl", *rows])
    if reward is None:
        with pytest.raises(DataError, match="no metric was recognised"):
            read_target(path)
    else:
        assert read_target(path).series[0].first("reward") == reward


def test_a_table_of_runs_is_no_log_and_results_beside_a_log_are_read_too(tmp_path):
    rows = [f"| plan {n} | {n} | 0.{n} |" for n in range(1, 7)]
    head = ["| Run | Epoch | Reward |", "|---|---|---|"]
    with pytest.raises(DataError, match="no training table, log line or result"):
        read_target(text(tmp_path / "report.md", [*head, *rows]))
    log = ["| Epoch | reward | KL |", "|---|---|---|"]
    log += [f"| {n} | {reward} | {kl} |" for n, reward, kl in EXPLODES]
    shown = ["", "## Results (800 samples)", "", "| Shot | Baseline | New |"]
    shown += ["|---|---|---|", "| 1 | 48.0% | 50.1% |"]
    record = read_target(text(tmp_path / "report.md", [*log, *shown]))
    assert [arm.name for arm in record.published.arms] == ["Baseline", "New"]
    assert "kl_explodes" in codes(record)


@pytest.mark.slow
def test_noise_of_few_held_out_items_is_not_called_overfitting() -> None:
    """Healthy trainings whose accuracy is that of 100 items: its best value is luck, and the last lies below it."""
    luck = random.Random(99)
    for _ in range(100):
        lines = []
        for step in range(100):
            right = 0.3 + 0.25 * (1.0 - math.exp(-0.06 * step))
            values = {"step": float(step), "reward": right + luck.gauss(0.05, 0.03)}
            if step % 2 == 0:
                held = sum(luck.random() < right for _ in range(100))
                values["eval/accuracy"] = held / 100.0
            lines.append(LogLine(values))
        series, _ = series_from(lines, "", {})
        assert codes(Record(series=(series,))) == []
