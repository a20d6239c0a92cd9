"""Logs of other libraries are read under the names they use, and the names are shown."""

from __future__ import annotations

import json
import struct

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
    assert "nothing is called 'foo'" in capsys.readouterr().err


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
