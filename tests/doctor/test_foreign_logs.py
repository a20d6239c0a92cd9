"""Logs of other libraries are read under the names they use, and the names are shown."""

from __future__ import annotations

import json
import sqlite3
import struct
from contextlib import closing

import pytest

from leverplus.cli.main import main
from leverplus.doctor.examine import examine
from leverplus.doctor.logs.names import meaning, table
from leverplus.doctor.read import read_target, read_targets


def codes(record):
    return [finding.code for finding in examine(record)]


@pytest.mark.parametrize(
    ("logged", "ours"),
    [
        ("train/reward", "reward"),
        ("critic/rewards/mean", "reward"),
        ("rollout/ep_rew_mean", "reward"),
        ("eval_loss", "val/loss"),
        ("eval/reward", "val/reward"),
        ("rewards/accuracy_reward/mean", "accuracy"),
        ("val-core/gsm8k/acc/mean@1", "val/accuracy"),
        ("completions/clipped_ratio", "truncated"),
        ("actor/pg_clipfrac", "clip_ratio/region_mean"),
        ("actor/ppo_kl", "kl_prox"),
        ("actor/kl_loss", "kl"),
        ("train/approx_kl", "kl_prox"),
        ("验证损失", "val/loss"),
        ("奖励", "reward"),
        ("timing_s/gen", None),
    ],
)
def test_a_logged_name_means_what_its_library_says(logged, ours):
    found = meaning(logged)
    assert (found and found[0]) == ours


def test_no_name_stands_twice_in_the_table():
    names = [name for _, own in table().values() for name in own]
    assert len(names) == len(set(names))


def trl_lines(count=12):
    return [{"loss": "0.01", "reward": f"{0.5 - 0.03 * n:.3f}", "kl": f"{0.04 * 2**n:.4f}"} for n in range(count)]


def test_dicts_that_trl_prints_are_a_training(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        "loading model\n" + "\n".join(map(str, trl_lines())) + "\n{'train_runtime': '5.5', 'train_loss': '1'}\n"
    )
    record = read_target(path)
    assert record.read_as == {"loss/total": "loss", "reward": "reward", "kl": "kl"}
    assert len(record.series[0].epochs) == 12
    assert codes(record)[0] == "kl_explodes"


def test_a_trainer_state_alone_and_in_a_checkpoint_folder_say_the_same(tmp_path):
    history = [{**{k: float(v) for k, v in line.items()}, "step": n + 1} for n, line in enumerate(trl_lines())]
    (tmp_path / "checkpoint-12").mkdir()
    (tmp_path / "checkpoint-12" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    both = [tmp_path, tmp_path / "checkpoint-12" / "trainer_state.json"]
    assert [codes(read_target(path))[0] for path in both] == ["kl_explodes", "kl_explodes"]


def test_lines_of_verl_and_of_openrlhf_are_a_training(tmp_path):
    verl, open_rlhf = tmp_path / "verl.log", tmp_path / "openrlhf.log"
    rows = [(n, 0.04 * 2**n, 0.5 - 0.03 * n) for n in range(12)]
    verl.write_text(
        "\n".join(
            f"(TaskRunner pid=7) step:{n} - actor/kl_loss:{kl} - critic/rewards/mean:{reward} - timing_s/gen:1.5"
            for n, kl, reward in rows
        )
    )
    open_rlhf.write_text("\n".join(f"INFO ✨ Global step {n}: {{'kl': {kl}, 'reward': {r}}}" for n, kl, r in rows))
    for path in (verl, open_rlhf):
        record = read_target(path)
        assert [line.epoch for line in record.series[0].epochs] == list(range(12))
        assert codes(record)[0] == "kl_explodes"


TABLE = """
---------------------------------
| rollout/           |          |
|    ep_rew_mean     | {reward} |
| time/              |          |
|    total_timesteps | {step}   |
| train/             |          |
|    approx_kl       | {kl}     |
---------------------------------
"""


def test_tables_that_sb3_prints_are_a_training(tmp_path):
    path = tmp_path / "ppo.log"
    path.write_text("".join(TABLE.format(reward=20 + n, step=2048 * n, kl=0.01) for n in range(1, 9)))
    record = read_target(path)
    assert record.read_as["reward"] == "rollout/ep_rew_mean"
    assert record.series[0].stage == "ppo"
    assert [line.epoch for line in record.series[0].epochs] == [2048 * n for n in range(1, 9)]
    assert examine(record) == []


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


def test_an_event_file_is_read_without_tensorboard(tmp_path):
    path = tmp_path / "events.out.tfevents.1700000000.host"
    frames = [event(n, "train/kl", 0.04 * 2**n) + event(n, "train/reward", 0.5 - 0.03 * n) for n in range(12)]
    path.write_bytes(b"".join(frames) + event(12, "train/kl", 1.0)[:-7])
    record = read_target(tmp_path)
    assert record.series[0].values("kl")[-1] == (11, pytest.approx(81.92))
    assert codes(record)[0] == "kl_explodes"
    path.write_bytes(b"no events at all, just text")
    assert main(["doctor", str(path)]) == 1


def test_csv_with_names_of_ones_own_needs_a_map(tmp_path, capsys):
    path = tmp_path / "mine.csv"
    path.write_text("t,profit,drift\n" + "\n".join(f"{n},{0.5 - 0.03 * n},{0.04 * 2**n}" for n in range(12)))
    assert main(["doctor", str(path)]) == 1
    assert "--map" in capsys.readouterr().err
    assert main(["doctor", str(path), "--map", "step=t,reward=profit,kl=drift", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["read_as"] == {"step": "t", "reward": "profit", "kl": "drift"}
    assert values["findings"][0]["code"] == "kl_explodes"
    assert main(["doctor", str(path), "--map", "reward=income"]) == 2
    assert "nothing is logged as 'income'" in capsys.readouterr().err
    assert main(["doctor", str(path), "--map", "foo=profit"]) == 2
    assert "there is no metric 'foo'" in capsys.readouterr().err


def test_what_was_taken_for_what_is_printed_first(tmp_path, capsys):
    path = tmp_path / "log.csv"
    path.write_text("global_step,mean_reward\n" + "\n".join(f"{n},{n / 10}" for n in range(8)))
    assert main(["doctor", str(path)]) == 0
    assert capsys.readouterr().out.startswith("read as: step from global_step, reward from mean_reward")


@pytest.mark.parametrize(
    "row",
    [
        "step {n}: reward={r:.3f}, KL divergence={kl:.4f}, entropy 1.20",
        "第 {n} 步：奖励 {r:.3f}，KL散度 {kl:.4f}，熵 1.20",
        "[INFO] Epoch {n} | reward: {r:.3f} | kl: {kl:.4f}",
    ],
)
def test_running_text_in_english_and_chinese_is_a_training(tmp_path, row):
    path = tmp_path / "train.txt"
    path.write_text("\n".join(row.format(n=n, r=0.5 - 0.03 * n, kl=0.04 * 2**n) for n in range(1, 13)))
    record = read_target(path)
    assert len(record.series[0].epochs) == 12
    assert codes(record)[0] == "kl_explodes"


def test_mlflow_and_wandb_folders_are_read(tmp_path):
    run = tmp_path / "mlruns" / "0" / "abc"
    (run / "metrics" / "train").mkdir(parents=True)
    (run / "meta.yaml").write_text("run_id: abc\n")
    (run / "metrics" / "train" / "reward").write_text("".join(f"1700 {0.5 - 0.03 * n} {n}\n" for n in range(12)))
    (run / "metrics" / "kl").write_text("".join(f"1700 {0.04 * 2**n} {n}\n" for n in range(12)))
    assert codes(read_target(tmp_path / "mlruns"))[0] == "kl_explodes"
    files = tmp_path / "wandb" / "offline-run-1" / "files"
    files.mkdir(parents=True)
    (files / "wandb-summary.json").write_text('{"train/reward": 0.1, "train/kl": 81.0, "_step": 12}')
    (files / "output.log").write_text("\n".join(map(str, trl_lines())))
    assert codes(read_target(tmp_path / "wandb"))[0] == "kl_explodes"
    (files / "output.log").unlink()
    assert len(read_target(tmp_path / "wandb").series[0].epochs) == 1


def test_seeds_given_together_are_compared(tmp_path):
    paths = []
    for seed, end in enumerate((0.62, 0.38, 0.55)):
        paths.append(tmp_path / f"seed{seed}.csv")
        paths[-1].write_text("step,accuracy\n" + "\n".join(f"{n},{0.5 if n < 5 else end}" for n in range(10)))
    assert "seeds_outweigh_gain" in codes(read_targets(paths))
    assert codes(read_targets(paths[:1])) == []


def test_a_step_number_that_falls_is_a_resumption(tmp_path):
    path = tmp_path / "log.csv"
    losses = [*(f"{n},{2 - 0.05 * n}" for n in range(12)), *(f"{n},{v}" for n, v in ((10, 3.1), (11, 2.2), (12, 1.7)))]
    path.write_text("step,loss\n" + "\n".join(losses))
    record = read_target(path)
    assert record.series[0].marks == (12,)
    assert codes(record)[0] == "resumed_without_optimiser"


@pytest.mark.parametrize(
    ("logged", "ours"),
    [
        ("Validation Loss", "val/loss"),
        ("valid_loss", "val/loss"),
        ("validation accuracy", "val/accuracy"),
        ("train_reward", "reward"),
        ("Train Acc", "accuracy"),
        ("metrics/train/reward", "reward"),
        ("训练集准确率", "accuracy"),
        ("训练集损失", "loss/total"),
        ("Value function loss", "loss/value"),
        ("test/env/all/reward/total", "val/reward"),
        ("completions / mean_length", "length"),
        ("rewards / correctness_reward_func / mean", "accuracy"),
        ("info/learner/default_policy/learner_stats/kl", "kl"),
        ("rewards/accuracy_reward", "accuracy"),
        ("rewards/accuracy_reward/std", None),
        ("timing_s/reward", None),
        ("value", None),
    ],
)
def test_names_are_known_with_the_words_that_people_put_around_them(logged, ours):
    found = meaning(logged)
    assert (found and found[0]) == ours


def test_overfitting_of_a_policy_is_told_from_a_hacked_reward_where_only_held_out_accuracy_is_logged(tmp_path):
    """The reward rises in both; what is held out followed it for a while, or never did."""
    path = tmp_path / "log.csv"
    followed = [0.30, 0.35, 0.40, 0.44, 0.46, 0.45, 0.42, 0.38, 0.34, 0.30, 0.26, 0.22]
    for held, first in ((followed, "overfits"), ([0.3 + 0.002 * (-1) ** n for n in range(12)], "reward_hacked")):
        rows = [f"{n},{0.3 + 0.04 * n},{value}" for n, value in enumerate(held)]
        path.write_text("\n".join(["step,train/reward,eval/accuracy", *rows]) + "\n")
        assert codes(read_target(path))[0] == first


def test_answers_that_no_longer_fit_are_named_although_accuracy_still_rises(tmp_path):
    path = tmp_path / "log.csv"
    for last, first in ((0.45, ["length_drifts"]), (0.08, [])):
        rows = [f"{n},{0.3 + 0.01 * n},{200 + 60 * n},{0.02 + (last - 0.02) * n / 19}" for n in range(20)]
        path.write_text(
            "\n".join(
                ["step,rewards/accuracy_reward/mean,response_length,truncated,kl", *(f"{row},0.02" for row in rows)]
            )
        )
        assert codes(read_target(path)) == first


def test_what_tensorboard_lets_download_is_named_by_its_file(tmp_path):
    path = tmp_path / "run-ppo_1-tag-train_kl.csv"
    path.write_text("Wall time,Step,Value\n" + "".join(f"{1.7e9 + n},{100 * n},{0.04 * 2**n}\n" for n in range(12)))
    record = read_target(path)
    assert record.read_as == {"step": "Step", "kl": "train_kl"}
    assert codes(record)[0] == "kl_explodes"


def test_a_long_table_of_several_runs_is_read_run_by_run(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("run_id,key,value,step\n" + "".join(f"r{n % 2},kl,0.{n},{n}\n" for n in range(6)))
    record = read_target(path)
    assert [(own.label, [line.values["kl"] for line in own.epochs]) for own in record.series] == [
        ("r0", [0.0, 0.2, 0.4]),
        ("r1", [0.1, 0.3, 0.5]),
    ]


def test_runs_of_an_mlflow_database_are_compared_under_their_names(tmp_path):
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE experiments (experiment_id INTEGER)")
        database.execute("CREATE TABLE runs (run_uuid TEXT, name TEXT)")
        database.execute("CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan)")
        database.executemany("INSERT INTO runs VALUES (?, ?)", [("1a", "bold-fox"), ("2b", "shy-owl")])
        rows = [("kl", 0.1 + n, n, run, n, int(n == 2)) for run in ("1a", "2b") for n in range(4)]
        database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
        database.commit()
    record = read_target(path)
    assert [series.label for series in record.series] == ["bold-fox", "shy-owl"]
    assert [line.values["kl"] for line in record.series[0].epochs] == [0.1, 1.1, None, 3.1]


def test_an_mlflow_database_without_metrics_says_so(tmp_path, capsys):
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        for table_of in ("experiments (a)", "runs (run_uuid, name)"):
            database.execute(f"CREATE TABLE {table_of}")
        database.execute("CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan)")
    assert main(["doctor", str(path)]) == 1
    assert "holds no metric yet" in capsys.readouterr().err


def test_json_lines_in_a_json_file_are_read_or_say_what_they_log(tmp_path, capsys):
    path = tmp_path / "result.json"
    stats = {"learner": {"default_policy": {"learner_stats": {"kl": 0.04, "entropy": 1.2}}}}
    rows = [
        {"training_iteration": n, "env_runners": {"episode_return_mean": 20.0 + n}, "info": stats} for n in range(9)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    record = read_target(path)
    assert set(record.read_as) == {"step", "reward", "kl", "entropy"}
    path.write_text("\n".join(json.dumps({"a": 1.5, "b": n}) for n in range(3)))
    assert main(["doctor", str(path)]) == 1
    assert "no metric was recognised; it logs a, b" in capsys.readouterr().err


def test_counts_of_findings_are_told_in_one_or_several(tmp_path, capsys):
    path = tmp_path / "train.log"
    path.write_text("\n".join(map(str, trl_lines())))
    assert main(["doctor", str(path)]) == 0
    assert "train.log: 2 errors; root causes first" in capsys.readouterr().out


def test_a_sentence_that_mentions_another_step_stays_one_line(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("\n".join(f"step {n} | reward 0.{n} | best step {n - 1} | kl 0.0{n}" for n in range(2, 9)))
    lines = read_target(path).series[0].epochs
    assert len(lines) == 7
    assert all(set(line.values) == {"reward", "kl"} for line in lines)


@pytest.mark.parametrize("form", ["step:{n} - actor/lr:{lr} - actor/ppo_kl:{kl} - critic/rewards/mean:{reward:.3f}",
                                  "step {n} lr={lr} approx_kl={kl} reward={reward:.3f}"])  # fmt: skip
@pytest.mark.parametrize(
    ("lr", "kl", "found"),
    [("0.000", "0.000", []), ("0.0", "0.0", ["learning_rate_tiny"]), ("1e-10", "0.00000000", ["learning_rate_tiny"])],
)
def test_a_learning_rate_that_was_rounded_to_zero_is_not_called_tiny(tmp_path, form, lr, kl, found):
    path = tmp_path / "train.log"
    path.write_text("\n".join(form.format(n=n, lr=lr, kl=kl, reward=0.3 + 0.01 * (-1) ** n) for n in range(20)))
    assert codes(read_target(path)) == found


def test_a_tiny_rate_of_another_library_gets_advice_for_its_own_size(tmp_path, capsys):
    path = tmp_path / "train.log"
    path.write_text("\n".join(f"step {n} lr=1e-10 kl=0.0000001 reward=0.3" for n in range(20)))
    main(["doctor", str(path)])
    shown = capsys.readouterr().out
    assert "about 1e-6 for all weights of a model of billions" in " ".join(shown.split())
    assert "selector" not in shown
    assert "picks" not in shown


def test_an_iteration_in_a_heading_holds_for_the_lines_below(tmp_path):
    """As rsl_rl prints them: other numbers with `steps` in them do not begin another one."""
    below = "  Computation: 98304 steps/s\n  Surrogate loss: -0.01\n  Mean reward: {reward:.2f}\n"
    path = tmp_path / "train.log"
    rows = (f"#####\n   Learning iteration {n}/50   \n\n" + below.format(reward=20.0 + n) for n in range(6))
    path.write_text("".join(rows))
    lines = read_target(path).series[0].epochs
    assert [line.epoch for line in lines] == list(range(6))
    assert [line.values for line in lines] == [{"loss/pg": -0.01, "reward": 20.0 + n} for n in range(6)]


@pytest.mark.parametrize("row", ["step {n} profit={reward} drift={kl}", "| {n} | {reward} | {kl} |",
                                 "{{'step': {n}, 'profit': {reward}, 'drift': {kl}}}"])  # fmt: skip
def test_names_of_ones_own_in_a_text_are_read_where_the_user_says_what_they_are(tmp_path, capsys, row):
    path = tmp_path / "train.log"
    head = "| step | profit | drift |\n|---|---|---|\n" if row.startswith("|") else ""
    path.write_text(head + "\n".join(row.format(n=n, reward=0.5 - 0.03 * n, kl=0.04 * 2**n) for n in range(12)))
    assert main(["doctor", str(path)]) == 1
    assert "--map reward=NAME" in capsys.readouterr().err
    assert main(["doctor", str(path), "--map", "reward=profit,kl=drift", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["read_as"] == {"step": "step", "reward": "profit", "kl": "drift"}
    assert said["findings"][0]["code"] == "kl_explodes"
