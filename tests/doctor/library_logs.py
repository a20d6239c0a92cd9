"""Logs as the libraries themselves print them, with all that stands around the numbers, each with one planted cause.

Ten to ninety steps each, most of them noisy. Names and layout follow what TRL, verl, OpenRLHF, Transformers, PEFT,
DeepSpeed-Chat, SB3, CleanRL, Tianshou, Weights & Biases and MLflow write; the numbers are drawn from
`random.Random` with a fixed seed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pprint import pformat
from random import Random

Rows = list[dict[str, float]]


@dataclass(frozen=True)
class Planted:
    """A log, the findings of which one must stand first (none: healthy), and what the user says about its names."""

    write: Callable[[Path], Path]
    named: tuple[str, ...] = ()
    names: str = ""


LOGS: dict[str, Planted] = {}


def log(*named: str, names: str = "") -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    def keep(write: Callable[[Path], Path]) -> Callable[[Path], Path]:
        LOGS[write.__name__] = Planted(write, named, names)
        return write

    return keep


def course(rng: Random, points: Sequence[float], count: int, noise: float) -> list[float]:
    """Values between points at equal distances, with noise of so many units."""
    found = []
    for n in range(count):
        at = n / (count - 1) * (len(points) - 1)
        left = min(int(at), len(points) - 2)
        value = points[left] + (at - left) * (points[left + 1] - points[left])
        found.append(value + rng.gauss(0.0, noise))
    return found


def exponential(rng: Random, points: Sequence[float], count: int, noise: float) -> list[float]:
    """The same in logarithms: values that stay above 0."""
    return [math.exp(value) for value in course(rng, [math.log(point) for point in points], count, noise)]


def share(rng: Random, points: Sequence[float], count: int, noise: float) -> list[float]:
    return [min(1.0, max(0.0, value)) for value in course(rng, points, count, noise)]


def text(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def rows_of(columns: Mapping[str, Sequence[float]]) -> Rows:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


# TRL


def trl_grpo(rng: Random, count: int, **own: Sequence[float]) -> Rows:
    """What GRPOTrainer logs; columns of one's own replace the healthy ones."""
    reward = own.get("reward") or course(rng, [0.32, 0.5, 0.61], count, 0.03)
    length = own.get("completions/mean_length") or course(rng, [180, 205], count, 9)
    columns: dict[str, Sequence[float]] = {
        "loss": course(rng, [0.0, 0.004], count, 0.004),
        "grad_norm": exponential(rng, [0.4, 0.3], count, 0.25),
        "learning_rate": [1e-6 * (1 - n / count) for n in range(count)],
        "num_tokens": [38211.0 * (n + 1) for n in range(count)],
        "completions/mean_length": length,
        "completions/min_length": [value * 0.4 for value in length],
        "completions/max_length": [value * 2.2 for value in length],
        "completions/clipped_ratio": share(rng, [0.02, 0.02], count, 0.01),
        "completions/mean_terminated_length": [value * 0.97 for value in length],
        "rewards/accuracy_reward/mean": [value * 0.8 for value in reward],
        "rewards/accuracy_reward/std": share(rng, [0.45, 0.46], count, 0.02),
        "rewards/format_reward/mean": [value * 0.2 for value in reward],
        "reward": reward,
        "reward_std": share(rng, [0.35, 0.3], count, 0.02),
        "frac_reward_zero_std": share(rng, [0.2, 0.3], count, 0.06),
        "kl": exponential(rng, [0.0005, 0.03, 0.05], count, 0.15),
        "entropy": exponential(rng, [0.55, 0.42], count, 0.05),
        "clip_ratio/low_mean": share(rng, [0.0005, 0.001], count, 0.0003),
        "clip_ratio/high_mean": share(rng, [0.001, 0.002], count, 0.0005),
        "clip_ratio/region_mean": share(rng, [0.0015, 0.003], count, 0.0006),
        **own,
        "epoch": [round(0.02 * (n + 1), 2) for n in range(count)],
    }
    return rows_of(columns)


@log("reward_hacked")
def trl_console_quoted(folder: Path) -> Path:
    """Transformers 5 prints numbers as texts; the format is paid more and more, answers get no better."""
    rng = Random(1)
    right = share(rng, [0.31, 0.31], 60, 0.02)
    form = share(rng, [0.15, 0.7, 0.99], 60, 0.03)
    rows = trl_grpo(
        rng,
        60,
        **{
            "rewards/accuracy_reward/mean": right,
            "rewards/format_reward/mean": form,
            "reward": [a + f for a, f in zip(right, form, strict=True)],
        },
    )
    return text(folder / "train.log", [str({name: f"{value:.4g}" for name, value in row.items()}) for row in rows])


@log("flat_groups", "advantage_std_tiny")
def trl_console_bars(folder: Path) -> Path:
    """Dicts behind progress bars; from the first third on no group has two rewards."""
    rng = Random(2)
    count = 60
    rows = trl_grpo(
        rng,
        count,
        frac_reward_zero_std=share(rng, [0.7, 0.98, 0.99, 0.98], count, 0.01),
        reward_std=share(rng, [0.08, 0.01, 0.008, 0.01], count, 0.003),
        reward=course(rng, [0.9, 0.93, 0.93], count, 0.012),
        grad_norm=exponential(rng, [0.1, 0.02, 0.02], count, 0.2),
    )
    lines = [
        "[2025-06-03 09:12:44,118] [INFO] [real_accelerator.py:239:get_accelerator] Setting ds_accelerator to cuda"
    ]
    for n, row in enumerate(rows):
        bar = f"{n + 1:3d}%|{'█' * (n // 6):<10}| {n + 1}/500 [{n:02d}:10<1:05:10,  8.06s/it]"
        lines.append(f"\r{bar}\r{' ' * 20}{ {k: round(v, 4) if abs(v) > 1e-3 else v for k, v in row.items()} }")
    return text(folder / "slurm-81231.out", lines)


@log("overfits")
def trl_dpo_state(folder: Path) -> Path:
    rng = Random(3)
    history = []
    loss = share(rng, [0.69, 0.35, 0.12, 0.05], 60, 0.02)
    for n, value in enumerate(loss):
        step = 10 * (n + 1)
        accuracy = min(1.0, 0.55 + 0.008 * n + rng.gauss(0, 0.02))
        history.append(
            {
                "epoch": round(step / 200, 2),
                "grad_norm": 5 + rng.gauss(0, 0.6),
                "learning_rate": 5e-7,
                "logits/chosen": -1.8,
                "logits/rejected": -1.9,
                "logps/chosen": -210 - n,
                "logps/rejected": -230 - 3 * n,
                "loss": value,
                "rewards/accuracies": accuracy,
                "rewards/chosen": 0.01 * n,
                "rewards/margins": 0.05 * n,
                "rewards/rejected": -0.04 * n,
                "step": step,
            }
        )
        if step % 50 == 0:
            late = step / 600
            history.append(
                {
                    "epoch": round(step / 200, 2),
                    "eval_loss": 0.69 - 0.2 * late + 0.55 * late**2.5 + rng.gauss(0, 0.004),
                    "eval_rewards/accuracies": 0.56 + 0.3 * late - 0.26 * late**2,
                    "eval_runtime": 31.2,
                    "step": step,
                }
            )
    state = {
        "best_metric": None,
        "epoch": 3.0,
        "global_step": 600,
        "is_world_process_zero": True,
        "log_history": history,
    }
    path = folder / "checkpoint-600" / "trainer_state.json"
    path.parent.mkdir()
    path.write_text(json.dumps(state, indent=2))
    return path


@log("kl_explodes")
def trl_ppo_console(folder: Path) -> Path:
    """PPOTrainer of TRL, with its own names."""
    rng = Random(4)
    count = 50
    kl = exponential(rng, [0.05, 0.8, 9, 48], count, 0.1)
    rows = rows_of(
        {
            "eps": [3.0] * count,
            "objective/kl": kl,
            "objective/entropy": course(rng, [52, 40], count, 2),
            "objective/non_score_reward": [-0.05 * value for value in kl],
            "objective/rlhf_reward": [0.4 - 0.05 * value + rng.gauss(0, 0.05) for value in kl],
            "objective/scores": course(rng, [0.4, 0.45, 0.3, 0.1], count, 0.05),
            "policy/approxkl_avg": exponential(rng, [0.004, 0.03], count, 0.2),
            "policy/clipfrac_avg": share(rng, [0.02, 0.12], count, 0.01),
            "loss/policy_avg": course(rng, [-0.01, 0.01], count, 0.004),
            "loss/value_avg": exponential(rng, [0.3, 0.5], count, 0.1),
            "val/ratio": course(rng, [1.0, 1.01], count, 0.004),
            "val/num_eos_tokens": course(rng, [40, 30], count, 3),
            "lr": [3e-6] * count,
            "episode": [64.0 * (n + 1) for n in range(count)],
            "epoch": [0.01 * (n + 1) for n in range(count)],
        }
    )
    return text(folder / "ppo.log", [str(row) for row in rows])


@log()
def trl_sft_console(folder: Path) -> Path:
    """A healthy supervised training: its entropy falls because it learns."""
    rng = Random(5)
    count = 50
    loss = exponential(rng, [2.1, 1.2, 0.95, 0.88], count, 0.03)
    rows = rows_of(
        {
            "loss": loss,
            "grad_norm": exponential(rng, [2.5, 0.9], count, 0.1),
            "learning_rate": [2e-5 * (1 - n / 50) for n in range(count)],
            "entropy": [value * 0.95 for value in loss],
            "num_tokens": [16384.0 * (n + 1) for n in range(count)],
            "mean_token_accuracy": [0.9 - 0.17 * value for value in loss],
            "epoch": [0.04 * (n + 1) for n in range(count)],
        }
    )
    lines = [str({name: f"{value:.4g}" for name, value in row.items()}) for row in rows]
    held = {
        "eval_loss": "0.912",
        "eval_runtime": "12.3",
        "eval_entropy": "0.93",
        "eval_mean_token_accuracy": "0.75",
        "epoch": "2",
    }
    lines += [
        str(held),
        str({"train_runtime": "831.2", "train_samples_per_second": "12.1", "train_loss": "1.1", "epoch": "2"}),
    ]
    return text(folder / "sft.log", lines)


@log("length_drifts")
def trl_state_lengths(folder: Path) -> Path:
    rng = Random(6)
    count = 80
    length = exponential(rng, [190, 300, 800, 1010], count, 0.03)
    rows = trl_grpo(
        rng,
        count,
        **{
            "reward": course(rng, [0.41, 0.42, 0.41], count, 0.025),
            "completions/mean_length": length,
            "completions/clipped_ratio": share(rng, [0.01, 0.1, 0.7, 0.95], count, 0.02),
        },
    )
    history = [{**row, "step": n + 1} for n, row in enumerate(rows)]
    return text(folder / "trainer_state.json", [json.dumps({"global_step": count, "log_history": history}, indent=2)])


@log()
def trl_state_without_kl(folder: Path) -> Path:
    """Healthy, with beta = 0: no KL is logged."""
    rows = trl_grpo(Random(7), 70)
    history = [{**{k: v for k, v in row.items() if k != "kl"}, "step": 5 * (n + 1)} for n, row in enumerate(rows)]
    return text(folder / "trainer_state.json", [json.dumps({"global_step": 350, "log_history": history})])


# verl


def verl(rng: Random, count: int, **own: Sequence[float]) -> Rows:
    score = own.get("critic/score/mean") or share(rng, [0.25, 0.5, 0.62], count, 0.02)
    return rows_of(
        {
            "global_seqlen/mean": course(rng, [51000, 52000], count, 900),
            "actor/entropy": exponential(rng, [0.42, 0.3], count, 0.05),
            "actor/kl_loss": exponential(rng, [0.0005, 0.01, 0.02], count, 0.1),
            "actor/kl_coef": [0.001] * count,
            "actor/pg_loss": course(rng, [0.01, 0.0], count, 0.01),
            "actor/pg_clipfrac": share(rng, [0.001, 0.003], count, 0.0006),
            "actor/ppo_kl": course(rng, [0.0002, 0.0003], count, 0.0001),
            "actor/pg_clipfrac_lower": [0.0] * count,
            "actor/grad_norm": exponential(rng, [0.4, 0.3], count, 0.2),
            "perf/mfu/actor": [0.31] * count,
            "perf/max_memory_allocated_gb": [61.2] * count,
            "actor/lr": [1e-6] * count,
            "training/global_step": [n + 1.0 for n in range(count)],
            "training/epoch": [float(n // 29) for n in range(count)],
            "critic/score/mean": score,
            "critic/score/max": [1.0] * count,
            "critic/score/min": [0.0] * count,
            "critic/rewards/mean": score,
            "critic/rewards/max": [1.0] * count,
            "critic/rewards/min": [0.0] * count,
            "critic/advantages/mean": course(rng, [-0.02, -0.02], count, 0.01),
            "critic/advantages/max": [1.79] * count,
            "critic/advantages/min": [-1.79] * count,
            "critic/returns/mean": course(rng, [-0.02, -0.02], count, 0.01),
            "response_length/mean": course(rng, [240, 260], count, 8),
            "response_length/max": [1024.0] * count,
            "response_length/clip_ratio": share(rng, [0.01, 0.01], count, 0.004),
            "prompt_length/mean": [104.2] * count,
            "timing_s/gen": [41.0] * count,
            "timing_s/step": [88.1] * count,
            "perf/throughput": [1201.0] * count,
            **own,
        }
    )


def verl_lines(rows: Rows, form: str = "{}") -> list[str]:
    lines = [
        "(TaskRunner pid=48121) Size of train dataloader: 29, Size of val dataloader: 1",
        "(TaskRunner pid=48121) 'val-core/openai/gsm8k/reward/mean@1': 0.24}",
        "(WorkerDict pid=49002) site-packages/torch/utils/checkpoint.py:87: FutureWarning: ...",
    ]
    for n, row in enumerate(rows):
        values = " - ".join(f"{name}:{form.format(value)}" for name, value in row.items())
        lines.append(f"\x1b[36m(TaskRunner pid=48121)\x1b[0m step:{n + 1} - {values}")
        lines.append(
            f"(TaskRunner pid=48121) Training Progress:  {n}%|▏         | {n + 1}/435 [01:28<10:38:11, 88.22s/it]"
        )
    return lines


@log("entropy_collapsed")
def verl_entropy(folder: Path) -> Path:
    rng = Random(8)
    rows = verl(
        rng,
        60,
        **{
            "actor/entropy": exponential(rng, [0.5, 0.03, 0.006, 0.005], 60, 0.1),
            "critic/score/mean": share(rng, [0.25, 0.38, 0.39, 0.39], 60, 0.015),
        },
    )
    return text(folder / "verl.log", verl_lines(rows))


@log("clip_saturated")
def verl_clipping(folder: Path) -> Path:
    rng = Random(9)
    rows = verl(
        rng,
        50,
        **{
            "actor/pg_clipfrac": share(rng, [0.62, 0.7, 0.66], 50, 0.03),
            "critic/score/mean": share(rng, [0.3, 0.33, 0.32], 50, 0.02),
        },
    )
    return text(folder / "verl.log", verl_lines(rows))


@log()
def verl_healthy(folder: Path) -> Path:
    rows = verl(Random(10), 58)
    for n in range(0, 58, 10):
        rows[n]["val-core/openai/gsm8k/reward/mean@1"] = 0.25 + 0.006 * n
        rows[n]["val-aux/openai/gsm8k/reward/std@1"] = 0.0
    return text(folder / "verl.log", verl_lines(rows))


@log("reward_constant")
def verl_all_zero(folder: Path) -> Path:
    """Numbers as newer numpy prints them; not one answer is right."""
    count, zero = 40, [0.0] * 40
    own = {
        f"critic/{kind}/{what}": zero for kind in ("score", "rewards", "advantages") for what in ("mean", "max", "min")
    }
    rows = verl(Random(11), count, **own, **{"actor/grad_norm": exponential(Random(1), [0.01, 0.01], count, 0.1)})
    return text(folder / "verl.log", verl_lines(rows, "np.float64({})"))


@log("overfits")
def verl_validation(folder: Path) -> Path:
    rng = Random(12)
    count = 90
    rows = verl(rng, count, **{"critic/score/mean": share(rng, [0.25, 0.6, 0.85, 0.95], count, 0.02)})
    for n in range(0, count, 5):
        at = n / count
        rows[n]["val-core/math500/acc/mean@8"] = 0.28 + 0.9 * at - 1.15 * at**2 + rng.gauss(0, 0.006)
    return text(folder / "verl.log", verl_lines(rows))


# OpenRLHF


@log("learning_rate_tiny")
def openrlhf_steps(folder: Path) -> Path:
    rng = Random(13)
    lines = ["[2025-07-01 10:00:00,000] [INFO] [config.py:733:__init__] Config mesh_device None world_size = 8"]
    for n in range(50):
        status = {
            "policy_loss": rng.gauss(0, 0.01),
            "actor_lr": 1e-10,
            "ppo_clip_ratio": 0.0,
            "ppo_kl": abs(rng.gauss(0, 2e-8)),
            "entropy_loss": 0.44 + rng.gauss(0, 0.01),
            "response_length": 301 + rng.gauss(0, 9),
            "total_length": 420.0,
            "reward": 0.36 + rng.gauss(0, 0.02),
            "return": 0.36 + rng.gauss(0, 0.02),
            "kl": abs(rng.gauss(0, 1e-7)),
            "truncated": 0.01,
        }
        lines.append(
            f"\x1b[36m(PPOTrainer pid=812)\x1b[0m 2025-07-01 10:{n:02d}:12.123 | INFO     | "
            f"openrlhf.trainer.ppo_trainer:fit:430 - ✨ Global step {n + 1}: {status}"
        )
    return text(folder / "openrlhf.log", lines)


@log("kl_explodes")
def openrlhf_bars(folder: Path) -> Path:
    """The progress bars of OpenRLHF's trainer, with numbers behind them."""
    rng = Random(14)
    kl = exponential(rng, [0.01, 0.3, 4, 22], 48, 0.1)
    reward = course(rng, [0.5, 0.52, 0.3, 0.11], 48, 0.02)
    lines = []
    for n in range(48):
        shown = {
            "pg": rng.gauss(0, 0.01),
            "rm": reward[n],
            "ret": reward[n] - 0.01 * kl[n],
            "glen": 210 + rng.gauss(0, 5),
            "tlen": 340.0,
            "kl": kl[n],
            "act_lr": 5e-7,
        }
        listed = ", ".join(f"{name}={value:.3g}" for name, value in shown.items())
        lines.append(f"Train epoch [1/1]: 100%|██████████| 16/16 [00:31<00:00,  1.97s/it, {listed}]")
        lines.append(f"Episode [1/20]:  {n}%|▏| {n + 1}/400 [01:02<5:11:10, 62.3s/it]")
    return text(folder / "nohup.out", lines)


@log("learning_rate_too_large")
def openrlhf_sft(folder: Path) -> Path:
    rng = Random(15)
    loss = exponential(rng, [1.9, 2.8, 6.5, 8.9, 9.3], 60, 0.1)
    lines = ["Train epoch:   0%|          | 0/2 [00:00<?, ?it/s]"]
    for n in range(60):
        mean = sum(loss[: n + 1]) / (n + 1)
        lines.append(
            f"Train step of epoch 0: {n:3d}%|▊| {n + 1}/600 [00:12<08:01,  1.2it/s, gpt_loss={loss[n]:.4f}, "
            f"loss_mean={mean:.4f}, lr={0.01 if n > 4 else 0.002 * n:.4g}]"
        )
    return text(folder / "sft.log", lines)


@log()
def openrlhf_healthy(folder: Path) -> Path:
    rng = Random(16)
    reward = share(rng, [0.3, 0.5, 0.6], 50, 0.02)
    kl = exponential(rng, [0.0004, 0.01, 0.03], 50, 0.1)
    lines = []
    for n in range(50):
        status = {
            "policy_loss": rng.gauss(0, 0.01),
            "actor_lr": 5e-7,
            "ppo_clip_ratio": 0.002,
            "ppo_kl": 0.0004 + rng.gauss(0, 1e-4),
            "entropy_loss": 0.44 - 0.002 * n,
            "response_length": 301 + rng.gauss(0, 9),
            "reward": reward[n],
            "return": reward[n],
            "kl": kl[n],
        }
        lines.append(f"INFO 07-01 10:{n:02d}:12 ppo_trainer.py:430] ✨ Global step {n + 1}: {status}")
    return text(folder / "openrlhf.log", lines)


# Transformers and PEFT


@log("overfits")
def trainer_classification(folder: Path) -> Path:
    """`run_glue.py`: a line of training and one of evaluation for every epoch."""
    rng = Random(17)
    lines = []
    for n in range(1, 11):
        lines.append(
            str(
                {
                    "loss": round(0.65 * 0.55**n + abs(rng.gauss(0, 0.004)), 4),
                    "grad_norm": 2.1,
                    "learning_rate": 2e-5 * (1 - n / 10),
                    "epoch": float(n),
                }
            )
        )
        held = 0.48 - 0.05 * min(n, 3) + 0.09 * max(0, n - 3)
        lines.append(
            str(
                {
                    "eval_loss": round(held, 4),
                    "eval_accuracy": round(0.8 + 0.02 * min(n, 3) - 0.004 * max(0, n - 3), 4),
                    "eval_runtime": 3.1,
                    "eval_samples_per_second": 281.0,
                    "epoch": float(n),
                }
            )
        )
    return text(
        folder / "glue.log", ["***** Running training *****", "  Num examples = 2,490", "  Num Epochs = 10", *lines]
    )


@log("overfits")
def peft_tensors(folder: Path) -> Path:
    """PEFT's examples print tensors: train_ppl=tensor(4.1, device='cuda:0')."""
    lines = []
    for n in range(12):
        train, held = 1.5 * 0.72**n + 0.05, 1.4 - 0.12 * min(n, 3) + 0.13 * max(0, n - 3)
        shown = {
            "train_ppl": math.exp(train),
            "train_epoch_loss": train,
            "eval_ppl": math.exp(held),
            "eval_epoch_loss": held,
        }
        lines.append(f"epoch={n}: " + " ".join(f"{k}=tensor({v:.4f}, device='cuda:0')" for k, v in shown.items()))
    return text(folder / "prompt_tuning.log", lines)


@log()
def trainer_frame(folder: Path) -> Path:
    """`pd.DataFrame(trainer.state.log_history).to_csv(...)`: healthy, with empty cells."""
    rng = Random(18)
    lines = [",loss,grad_norm,learning_rate,epoch,step,eval_loss,eval_runtime,eval_samples_per_second,train_runtime"]
    for n in range(40):
        lines.append(
            f"{len(lines) - 1},{2.2 * 0.97**n + rng.gauss(0, 0.03):.4f},{1.1 + rng.gauss(0, 0.1):.4f},"
            f"{5e-5 * (1 - n / 40):.6g},"
            f"{n / 10 + 0.1:.1f},{50 * (n + 1)},,,,"
        )
        if n % 10 == 9:
            lines.append(f"{len(lines) - 1},,,,{n / 10 + 0.1:.1f},{50 * (n + 1)},{2.15 * 0.972**n:.4f},3.1,201.0,")
    return text(folder / "history.csv", [*lines, f"{len(lines) - 1},,,,4.0,2000,,,,812.1"])


@log("resumed_without_optimiser")
def trainer_resumed(folder: Path) -> Path:
    rng = Random(19)
    lines = []
    for n in range(60):
        if n == 30:
            lines += [
                "There were missing keys in the checkpoint model loaded: ['lm_head.weight'].",
                "  Continuing training from checkpoint, will skip to saved global_step",
                "  Continuing training from global step 300",
            ]
        jump = max(0.0, 1.0 - (n - 30) / 8) if n >= 30 else 0.0
        row = {
            "loss": 2.0 * 0.985**n + 0.9 * jump + rng.gauss(0, 0.02),
            "grad_norm": 0.9 + 14 * jump + rng.gauss(0, 0.05),
            "learning_rate": 5e-5 * (1 - n / 60),
            "epoch": round(0.05 * (n + 1), 2),
        }
        lines.append(str({name: round(value, 6) for name, value in row.items()}))
    return text(folder / "train.log", lines)


@log("learning_rate_tiny")
def trainer_notebook_html(folder: Path) -> Path:
    """Step, Training Loss and Validation Loss as a Trainer shows them in Markdown; the rate is in the lines above."""
    rng = Random(20)
    lines = ["TrainingArguments(learning_rate=2e-10, lr_scheduler_type=constant)", ""]
    lines += [
        "| Step | Training Loss | Validation Loss | Learning Rate |",
        "|------|---------------|-----------------|------|",
    ]
    lines += [
        f"| {50 * n} | {2.31 + rng.gauss(0, 0.01):.6f} | {2.33 + rng.gauss(0, 0.001):.6f} | 2e-10 |"
        for n in range(1, 25)
    ]
    return text(folder / "notes.md", lines)


# Agents in environments


def sb3(rng: Random, count: int, **own: Sequence[float]) -> Rows:
    return rows_of(
        {
            "rollout/ep_len_mean": course(rng, [40, 180], count, 4),
            "rollout/ep_rew_mean": course(rng, [21, 120, 190], count, 4),
            "time/fps": [1211.0] * count,
            "time/iterations": [n + 1.0 for n in range(count)],
            "time/time_elapsed": [2.0 * n + 1 for n in range(count)],
            "time/total_timesteps": [2048.0 * (n + 1) for n in range(count)],
            "train/approx_kl": exponential(rng, [0.009, 0.005], count, 0.2),
            "train/clip_fraction": share(rng, [0.1, 0.06], count, 0.01),
            "train/clip_range": [0.2] * count,
            "train/entropy_loss": course(rng, [-0.69, -0.5], count, 0.01),
            "train/explained_variance": share(rng, [0.1, 0.8], count, 0.05),
            "train/learning_rate": [0.0003] * count,
            "train/loss": exponential(rng, [8, 20], count, 0.2),
            "train/n_updates": [10.0 * n for n in range(count)],
            "train/policy_gradient_loss": course(rng, [-0.01, -0.006], count, 0.002),
            "train/value_loss": exponential(rng, [40, 50], count, 0.2),
            **own,
        }
    )


def comma_separated(path: Path, rows: Rows) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return text(
        path, [",".join(names), *(",".join(f"{row[n]:.6g}" if n in row else "" for n in names) for row in rows)]
    )


@log("entropy_collapsed")
def sb3_progress_late(folder: Path) -> Path:
    rng = Random(21)
    entropy = [-value for value in exponential(rng, [0.69, 0.6, 0.5, 0.02, 0.004], 60, 0.05)]
    rows = sb3(
        rng, 60, **{"train/entropy_loss": entropy, "rollout/ep_rew_mean": course(rng, [21, 90, 110, 111, 110], 60, 3)}
    )
    return comma_separated(folder / "progress.csv", rows)


@log()
def sb3_progress_healthy(folder: Path) -> Path:
    rows = sb3(Random(22), 60)
    for row in rows[:1]:
        for name in [name for name in row if name.startswith("train/")]:
            del row[name]  # nothing was trained when the first line is written
    for n in range(4, 60, 5):
        rows[n] |= {"eval/mean_ep_length": 150.0 + n, "eval/mean_reward": 60 + 2.2 * n}
    return comma_separated(folder / "progress.csv", rows)


@log("learning_rate_too_large")
def sb3_stdout(folder: Path) -> Path:
    rng = Random(23)
    rows = sb3(
        rng,
        40,
        **{
            "train/approx_kl": exponential(rng, [0.3, 0.9, 0.8], 40, 0.3),
            "train/learning_rate": [0.05] * 40,
            "rollout/ep_rew_mean": course(rng, [22, 12, 9.4], 40, 0.4),
        },
    )
    lines = ["Using cpu device", "Wrapping the env in a DummyVecEnv."]
    for row in rows:
        parts: dict[str, list[str]] = {}
        for name, value in row.items():
            head, _, tail = name.partition("/")
            parts.setdefault(head, []).append(f"|    {tail:<21}| {value:<12.3g}|")
        lines.append("-" * 41)
        for head, own in parts.items():
            lines += [f"| {head + '/':<24}| {'':<12}|", *own]
        lines.append("-" * 41)
    return text(folder / "stdout.txt", lines)


@log()
def cleanrl_stdout(folder: Path) -> Path:
    """CleanRL prints an episode when it ends, and the speed."""
    rng = Random(24)
    lines = []
    for n in range(80):
        lines.append(f"global_step={130 * (n + 1)}, episodic_return=[{20 + 2.1 * n + rng.gauss(0, 9):.0f}.]")
        if n % 4 == 3:
            lines.append(f"SPS: {2211 + n}")
    return text(folder / "cartpole.txt", lines)


@log("entropy_collapsed")
def tensorboard_download(folder: Path) -> Path:
    """The CSV that TensorBoard lets download, of CleanRL's entropy."""
    rng = Random(25)
    values = exponential(rng, [0.69, 0.1, 0.003, 0.002], 60, 0.05)
    lines = [f"{1718000000 + 3 * n}.12,{512 * (n + 1)},{value:.8f}" for n, value in enumerate(values)]
    name = "CartPole-v1__ppo__1__1718000000-tag-losses_entropy.csv"
    return text(folder / name, ["Wall time,Step,Value", *lines])


@log("reward_falls", "learning_rate_too_large", "over_optimised")
def tianshou(folder: Path) -> Path:
    rng = Random(26)
    best, lines = 0.0, []
    for n in range(1, 31):
        reward = 195 - 6.2 * max(0, n - 5) + rng.gauss(0, 2)
        best = max(best, reward)
        lines.append(
            f"Epoch #{n}: 10001it [00:07, 1301.40it/s, env_step={10000 * n}, gradient_step={40 * n}, "
            f"len=180, loss=12.1, n/ep=4, rew={reward:.2f}]"
        )
        lines.append(f"Epoch #{n}: test_reward: {reward:.6f} ± 3.1, best_reward: {best:.6f} ± 2.1 in #{min(n, 5)}")
    return text(folder / "tianshou.log", lines)


# Weights & Biases and MLflow


@log("kl_explodes")
def wandb_chart(folder: Path) -> Path:
    """A chart's export: run name before the metric, smallest and largest beside it."""
    rng = Random(27)
    columns = {
        "train/kl": exponential(rng, [0.002, 0.1, 3, 17], 50, 0.1),
        "train/reward": course(rng, [0.5, 0.45, 0.2, 0.1], 50, 0.02),
    }
    head = ['"Step"'] + [f'"qwen-grpo-7 - {name}{end}"' for name in columns for end in ("", "__MIN", "__MAX")]
    rows = [
        ",".join([f'"{10 * n}"', *(f'"{values[n]:.6g}"' for values in columns.values() for _ in range(3))])
        for n in range(50)
    ]
    return text(folder / "wandb_export_2025-06-03T11_02_19.123+02_00.csv", [",".join(head), *rows])


@log("overfits")
def wandb_history(folder: Path) -> Path:
    """`run.history().to_csv()`: times, empty cells, an evaluation now and then."""
    rng = Random(28)
    reward = share(rng, [0.3, 0.6, 0.8, 0.9], 80, 0.02)
    lines = [",_step,_runtime,_timestamp,train/reward,train/kl,train/learning_rate,eval/reward"]
    for n in range(80):
        at = n / 80
        held = f"{0.3 + 0.9 * at - 1.2 * at**2 + rng.gauss(0, 0.005):.5f}" if n % 5 == 4 else ""
        lines.append(
            f"{n},{n},{12.1 * n:.3f},{1718000000 + 12.1 * n:.3f},{reward[n]:.5f},{0.01 + 0.001 * n:.5f},1e-06,{held}"
        )
    return text(folder / "history.csv", lines)


@log("seeds_outweigh_gain")
def wandb_runs(folder: Path) -> Path:
    """One chart with four runs: three seeds end at very different accuracies."""
    rng = Random(29)
    ends = {"grpo-seed0": 0.31, "grpo-seed1": 0.58, "grpo-seed2": 0.36, "grpo-seed3": 0.66}
    runs = {name: share(rng, [0.42, (0.42 + end) / 2, end, end], 50, 0.01) for name, end in ends.items()}
    head = ['"Step"'] + [f'"{name} - eval/accuracy"' for name in runs]
    rows = [",".join([f'"{10 * n}"', *(f'"{values[n]:.6g}"' for values in runs.values())]) for n in range(50)]
    return text(folder / "wandb_export.csv", [",".join(head), *rows])


@log("flat_groups", "advantage_std_tiny")
def wandb_output(folder: Path) -> Path:
    """An offline run: only what was printed and the last values are there as text."""
    rng = Random(30)
    rows = trl_grpo(
        rng,
        40,
        frac_reward_zero_std=share(rng, [0.95, 0.97], 40, 0.01),
        reward=course(rng, [0.05, 0.05], 40, 0.01),
        reward_std=share(rng, [0.012, 0.012], 40, 0.003),
    )
    files = folder / "wandb" / "offline-run-20250603_110219-a1b2c3d4" / "files"
    files.mkdir(parents=True)
    text(files / "output.log", [str(row) for row in rows])
    text(files / "wandb-summary.json", [json.dumps({"train/reward": 0.05, "_step": 40})])
    return folder / "wandb"


@log("reward_hacked")
def mlruns(folder: Path) -> Path:
    """MLflow's folder: a file for each metric, `timestamp value step` on a line."""
    rng = Random(31)
    home = folder / "mlruns" / "312" / "4fa0c1" / "metrics"
    (home / "eval").mkdir(parents=True)
    for name, values in {
        "reward": course(rng, [0.2, 0.9, 1.6], 50, 0.04),
        "eval/accuracy": share(rng, [0.44, 0.44], 50, 0.01),
        "kl": exponential(rng, [0.001, 0.08], 50, 0.1),
    }.items():
        text(home / name, [f"{1718000000000 + 900 * n} {value} {n}" for n, value in enumerate(values)])
    text(home.parent / "meta.yaml", ["run_id: 4fa0c1", "run_name: bold-fox-7", "lifecycle_stage: active"])
    return folder / "mlruns"


@log("learning_rate_tiny")
def mlflow_answer(folder: Path) -> Path:
    """What MLflow's server answers when it is asked for the history of metrics."""
    rng = Random(32)
    metrics = []
    for key, values in {
        "loss": course(rng, [2.4, 2.4], 40, 0.01),
        "learning_rate": [1e-9] * 40,
        "val_loss": course(rng, [2.41, 2.41], 40, 0.002),
    }.items():
        metrics += [
            {"key": key, "value": value, "timestamp": 1718000000000 + n, "step": str(n)}
            for n, value in enumerate(values)
        ]
    return text(folder / "metrics.json", [json.dumps({"metrics": metrics})])


# What people write themselves


@log("ratio_not_one")
def logger_lines(folder: Path) -> Path:
    rng = Random(33)
    lines = []
    for n in range(40):
        lines.append(
            f"2025-03-02 10:{n:02d}:12,345 - INFO - trainer.py:88 - update {n + 1}/400 | "
            f"avg_reward=0.4{rng.randrange(10)} | "
            f"ratio_mean={1.71 + rng.gauss(0, 0.05):.3f} | kl={0.02 + rng.gauss(0, 0.002):.4f} | t=12.1s"
        )
    return text(folder / "train.log", lines)


@log("kl_explodes")
def bug_report(folder: Path) -> Path:
    """Prose, a step a sentence."""
    rng = Random(34)
    kl = exponential(rng, [0.02, 0.6, 14], 12, 0.05)
    reward = course(rng, [0.52, 0.4, 0.18], 12, 0.01)
    told = [
        f"By step {100 * (n + 1)} the mean reward had gone to {reward[n]:.2f} "
        f"and the KL divergence stood at {kl[n]:.3g}."
        for n in range(12)
    ]
    head = [
        "Hi all, I fine-tune a 7B model with GRPO (8 samples per prompt) and it falls apart. Here is what I see.",
        "",
    ]
    return text(folder / "issue.md", [*head, *told, "", "Any ideas? Thanks!"])


@log("advantage_std_tiny", "top_k_before_baseline")
def chinese_logger(folder: Path) -> Path:
    rng = Random(35)
    lines = ["[2025-03-02 10:11:12] 加载模型完成，开始训练"]
    for n in range(40):
        lines.append(
            f"[2025-03-02 10:{n:02d}:12] [INFO] 步数: {n + 1}/400 | 平均奖励: {0.4 + rng.gauss(0, 0.015):.4f} | "
            f"奖励标准差: {0.31 + rng.gauss(0, 0.01):.4f} | 优势标准差: {abs(rng.gauss(2e-6, 5e-7)):.2e} | 耗时: 12.3秒"
        )
    return text(folder / "训练日志.txt", lines)


@log("overfits")
def chinese_epochs_prose(folder: Path) -> Path:
    lines = ["GRPO训练记录（第二次）", ""]
    for n in range(1, 13):
        train, held = 0.3 + 0.045 * n, 0.3 + 0.04 * min(n, 5) - 0.03 * max(0, n - 5)
        lines.append(
            f"第{n}个epoch结束后，训练集奖励为{train:.3f}，验证集奖励为{held:.3f}，KL散度约为{0.004 * n:.3f}。"
        )
    return text(folder / "记录.txt", lines)


@log("query_ignored")
def chinese_demonstrations(folder: Path) -> Path:
    rng = Random(36)
    counts = [61, 44, 30, 17, 8, 4, 3, 2, 2, 2, 2, 2]
    lines = [
        f"epoch {n}: 平均奖励 {0.3 + 0.012 * n + rng.gauss(0, 0.002):.3f}，不同示例个数 {own}（共64个问题）"
        for n, own in enumerate(counts, 1)
    ]
    return text(folder / "选择器.log", lines)


@log("query_ignored")
def english_demonstrations(folder: Path) -> Path:
    counts = [58, 47, 33, 15, 6, 3, 2, 2, 2, 2, 2, 2]
    lines = [
        f"[epoch {n:02d}] dev reward 0.{30 + n} | num unique demos: {own} (64 dev queries)"
        for n, own in enumerate(counts, 1)
    ]
    return text(folder / "selector.log", lines)


@log()
def deepspeed_chat(folder: Path) -> Path:
    """A step is told on three lines."""
    rng = Random(37)
    lines = []
    for n in range(50):
        reward = 0.4 + 0.03 * n + rng.gauss(0, 0.1)
        lines += [
            f"Epoch: 0 | Step: {n} | PPO Epoch: 1 | Actor Loss: {rng.gauss(0.02, 0.01):.6f} | "
            f"Critic Loss: {0.05 + abs(rng.gauss(0, 0.01)):.6f} | Unsupervised Loss: 0.0",
            "End-to-End => Latency: 4.51s, TFLOPs: 11.2, Samples/sec: 7.1, Time/seq 0.14s, Batch Size: 32",
            f"Average reward score: {reward:.6f} | EMA reward score: {reward - 0.05:.6f}",
            "-" * 85,
        ]
    return text(folder / "training.log", lines)


@log()
def chinese_healthy(folder: Path) -> Path:
    rng = Random(38)
    reward, kl = share(rng, [0.3, 0.5, 0.6], 40, 0.012), exponential(rng, [0.001, 0.03], 40, 0.1)
    lines = [
        f"【第{n + 1}步】奖励均值：{reward[n]:.4f}；KL散度：{kl[n]:.5f}；策略熵：{1.8 - 0.01 * n:.3f}；学习率：1e-06"
        for n in range(40)
    ]
    return text(folder / "log.txt", lines)


# Tables with names of one's own


@log("kl_explodes", names="step=t,reward=gewinn,kl=abstand")
def own_semicolons(folder: Path) -> Path:
    """A spreadsheet in German: semicolons and decimal commas."""
    rng = Random(39)
    kl, reward = exponential(rng, [0.02, 1, 20], 40, 0.1), course(rng, [0.5, 0.4, 0.1], 40, 0.02)
    lines = [f"{n};{reward[n]:.4f};{kl[n]:.4f}".replace(".", ",") for n in range(40)]
    return text(folder / "lauf.csv", ["t;gewinn;abstand", *lines])


@log("overfits", names="reward=fit.score,val_reward=holdout.score")
def own_nested(folder: Path) -> Path:
    """JSON lines with objects inside; the user writes their names with dots."""
    rng = Random(40)
    lines = []
    for n in range(40):
        at = n / 40
        held = 0.3 + 0.9 * at - 1.2 * at**2 + rng.gauss(0, 0.005)
        lines.append(
            json.dumps({"i": n, "fit": {"score": 0.3 + 0.6 * at + rng.gauss(0, 0.01)}, "holdout": {"score": held}})
        )
    return text(folder / "log.jsonl", lines)


@log("entropy_collapsed", names="entropy=H,reward=R")
def own_tabs(folder: Path) -> Path:
    rng = Random(41)
    entropy, reward = exponential(rng, [1.9, 0.1, 0.006, 0.005], 50, 0.1), course(rng, [0.3, 0.42, 0.42], 50, 0.01)
    return text(folder / "log.tsv", ["iter\tR\tH", *(f"{n}\t{reward[n]:.4f}\t{entropy[n]:.5f}" for n in range(50))])


@log("reward_hacked", names="reward=rm_score,accuracy=em_score")
def own_scores(folder: Path) -> Path:
    rng = Random(42)
    reward, right = course(rng, [-1.2, 0.5, 2.4], 50, 0.1), course(rng, [41, 41], 50, 0.8)
    return text(
        folder / "scores.csv",
        ["iteration,rm_score,em_score", *(f"{n},{reward[n]:.3f},{right[n]:.1f}" for n in range(50))],
    )


@log("flat_groups", "advantage_std_tiny", names="frac_reward_zero_std=same_reward_groups")
def own_percentages(folder: Path) -> Path:
    rng = Random(43)
    lines = [
        json.dumps(
            {
                "step": n,
                "reward": round(0.3 + rng.gauss(0, 0.01), 4),
                "same_reward_groups": f"{96 + rng.gauss(0, 1):.0f}%",
            }
        )
        for n in range(40)
    ]
    return text(folder / "groups.jsonl", lines)


@log()
def own_gaps(folder: Path) -> Path:
    """Healthy, with cells that were not measured."""
    rng = Random(44)
    lines = []
    for n in range(60):
        row: dict[str, object] = {
            "step": n,
            "mean_reward": round(0.3 + 0.005 * n + rng.gauss(0, 0.02), 4),
            "kl": round(0.001 * n, 5),
        }
        row["eval_accuracy"] = round(0.4 + 0.003 * n, 3) if n % 10 == 9 else None
        lines.append(json.dumps(row))
    return text(folder / "metrics.jsonl", lines)


@log("learning_rate_too_large")
def accelerate_lines(folder: Path) -> Path:
    """A loop of one's own with a bar of tqdm that shows the loss."""
    rng = Random(45)
    loss = exponential(rng, [3.1, 4.5, 7.8, 11.2], 50, 0.12)
    lines = [
        f"Steps:  {2 * n}%|{'#' * (n // 5):<10}| {n + 1}/50 [00:{n:02d}<00:20,  1.1it/s, loss={loss[n]:.3f}, lr=0.02]"
        for n in range(50)
    ]
    return text(folder / "out.txt", lines)


# A second look, at forms that the first had not


@log()
def skyrl_tables(folder: Path) -> Path:
    """Several lines of metrics under a line with the step, indented."""
    rng = Random(101)
    lines = []
    for n in range(40):
        lines += [
            f"INFO:root:Started training step {n + 1}",
            f"  reward/avg_raw_reward: {0.2 + 0.01 * n + rng.gauss(0, 0.01):.4f}",
            f"  policy/policy_kl: {0.0005 * n:.5f}",
            f"  policy/policy_entropy: {0.6 - 0.003 * n:.4f}",
            "  policy/policy_lr: 1e-06",
            f"  generate/avg_num_tokens: {320 + rng.gauss(0, 9):.1f}",
        ]
    return text(folder / "skyrl.log", lines)


@log("entropy_collapsed")
def areal_stats(folder: Path) -> Path:
    """A table in box signs for every step."""
    rng = Random(102)
    entropy = exponential(rng, [0.5, 0.02, 0.004, 0.003], 40, 0.1)
    reward = share(rng, [0.3, 0.4, 0.41], 40, 0.01)
    lines = []
    for n in range(40):
        lines.append(
            f"20250801-10:{n:02d}:01.123 StatsLogger INFO: Epoch 1/10 Step {n + 1}/233 Train step {n + 1}/2330 done."
        )
        lines.append("╭──────────────────────────────────┬────────────╮")
        for name, value in {
            "grpo_actor/task_reward/avg": reward[n],
            "grpo_actor/update/entropy/avg": entropy[n],
            "grpo_actor/update/grad_norm": 0.3,
            "grpo_actor/update/lr": 1e-6,
        }.items():
            lines.append(f"│ {name:<32} │ {value:10.4e} │")
        lines.append("╰──────────────────────────────────┴────────────╯")
    return text(folder / "areal.log", lines)


@log("reward_constant")
def verifiers_rich(folder: Path) -> Path:
    rng = Random(103)
    rows = trl_grpo(
        rng,
        40,
        reward=[1.0] * 40,
        reward_std=[0.0] * 40,
        frac_reward_zero_std=[1.0] * 40,
        loss=[0.0] * 40,
        grad_norm=[0.0] * 40,
    )
    lines = [
        json.dumps(
            {
                "timestamp": f"2025-08-01T10:{n:02d}:00Z",
                "level": "INFO",
                "logger": "verifiers.trainer",
                "message": "metrics",
                "extra": {**row, "global_step": n},
            }
        )
        for n, row in enumerate(rows)
    ]
    return text(folder / "metrics.jsonl", lines)


@log("learning_rate_too_large")
def nanogpt(folder: Path) -> Path:
    """`iter 120: loss 4.1, time 120.5ms, mfu 31.2%` and `step 500: train loss .., val loss ..`."""
    rng = Random(104)
    loss = exponential(rng, [4.2, 5.9, 8.8, 10.4], 60, 0.05)
    lines = ["number of parameters: 123.59M", "using fused AdamW: True"]
    for n in range(60):
        if n % 20 == 0:
            lines.append(f"step {10 * n}: train loss {loss[n]:.4f}, val loss {loss[n] + 0.05:.4f}")
        lines.append(f"iter {10 * n}: loss {loss[n]:.4f}, time {121.3 + rng.gauss(0, 2):.2f}ms, mfu 31.20%")
    return text(folder / "train.out", lines)


@log()
def nanogpt_healthy(folder: Path) -> Path:
    rng = Random(105)
    loss = exponential(rng, [10.9, 4.2, 3.6, 3.3], 60, 0.01)
    lines = ["number of parameters: 123.59M"]
    for n in range(60):
        if n % 10 == 0:
            lines.append(f"step {10 * n}: train loss {loss[n]:.4f}, val loss {loss[n] + 0.05:.4f}")
        lines.append(f"iter {10 * n}: loss {loss[n]:.4f}, time {121.3 + rng.gauss(0, 2):.2f}ms, mfu 31.20%")
    return text(folder / "train.out", lines)


@log("overfits")
def fastai_table(folder: Path) -> Path:
    """The table of fastai: epoch, train_loss, valid_loss, accuracy, time."""
    lines = ["epoch     train_loss  valid_loss  accuracy  time"]
    for n in range(14):
        held = 1.1 - 0.12 * min(n, 4) + 0.09 * max(0, n - 4)
        lines.append(
            f"{n:<9} {1.3 * 0.75**n + 0.02:.6f}    {held:.6f}    "
            f"{0.6 + 0.03 * min(n, 4) - 0.006 * max(0, n - 4):.6f}  00:4{n % 10}"
        )
    return text(folder / "fastai.txt", lines)


@log("overfits")
def yolo_style(folder: Path) -> Path:
    """Columns with blanks around names and commas, `train/box_loss`, `val/box_loss`."""
    lines = [
        "                  epoch,         train/loss,           val/loss,    metrics/accuracy_top1,  "
        "             lr/pg0"
    ]
    for n in range(30):
        held = 0.9 - 0.04 * min(n, 8) + 0.03 * max(0, n - 8)
        lines.append(
            f"{n:>23},{1.0 * 0.88**n + 0.03:>19.5f},{held:>19.5f},"
            f"{0.7 + 0.01 * min(n, 8) - 0.002 * max(0, n - 8):>25.5f},{0.001:>21.5g}"
        )
    return text(folder / "results.csv", lines)


@log("length_drifts")
def rich_progress(folder: Path) -> Path:
    rng = Random(106)
    length = exponential(rng, [120, 400, 950], 50, 0.04)
    lines = [
        f"[10:{n:02d}:12] INFO     Step {n + 1} | Time: 41.2s | Reward: "
        f"{0.35 + rng.gauss(0, 0.015):.4f} | Throughput: 3211.2 tokens/s | "
        f"Seq. Length: {length[n] + 90:.1f} tokens/sample | Completion length: {length[n]:.1f}"
        for n in range(50)
    ]
    return text(folder / "orchestrator.log", lines)


@log("advantage_std_tiny", "flat_groups", "top_k_before_baseline")
def verl_zero_advantages(folder: Path) -> Path:
    rng = Random(107)
    zero = [0.0] * 50
    rows = verl(
        rng,
        50,
        **{
            "critic/advantages/mean": zero,
            "critic/advantages/max": zero,
            "critic/advantages/min": zero,
            "critic/score/mean": share(rng, [0.4, 0.4], 50, 0.02),
            "actor/pg_loss": zero,
        },
    )
    return text(folder / "verl.log", verl_lines(rows, "{:.4g}"))


@log("ratio_not_one")
def trl_sampling_ratio(folder: Path) -> Path:
    """The sampler's probabilities are not those of the trainer."""
    rng = Random(108)
    rows = trl_grpo(
        rng,
        60,
        **{
            "sampling/sampling_logp_difference/mean": course(rng, [0.9, 0.9], 60, 0.05),
            "sampling/importance_sampling_ratio/min": course(rng, [0.01, 0.01], 60, 0.001),
            "sampling/importance_sampling_ratio/mean": course(rng, [1.9, 1.95], 60, 0.05),
            "sampling/importance_sampling_ratio/max": [2.0] * 60,
            "reward": course(rng, [0.4, 0.4], 60, 0.02),
        },
    )
    return text(folder / "train.log", [str({k: round(v, 8) for k, v in row.items()}) for row in rows])


@log("resumed_without_optimiser")
def chinese_resumed(folder: Path) -> Path:
    rng = Random(109)
    lines = []
    for n in range(60):
        if n == 25:
            lines += ["警告：未找到优化器状态文件 optimizer.pt，将重新初始化优化器", "从 checkpoint-250 继续训练"]
        jump = max(0.0, 1.0 - (n - 25) / 6) if n >= 25 else 0.0
        lines.append(
            f"[训练] step={10 * (n + 1)} loss={1.9 * 0.98**n + 0.8 * jump + rng.gauss(0, 0.02):.4f} "
            f"grad_norm={0.8 + 12 * jump + rng.gauss(0, 0.04):.3f} lr=5e-05"
        )
    return text(folder / "train.log", lines)


@log("seeds_outweigh_gain")
def seeds_in_folders(folder: Path) -> Path:
    """progress.csv of four seeds, each in its folder."""
    rng = Random(110)
    for seed, end in enumerate((60.0, 180.0, 75.0, 210.0)):
        home = folder / "logs" / f"ppo_seed{seed}"
        home.mkdir(parents=True)
        comma_separated(
            home / "progress.csv",
            sb3(rng, 40, **{"rollout/ep_rew_mean": course(rng, [100, (100 + end) / 2, end, end], 40, 3)}),
        )
    return folder / "logs"


@log()
def english_diary_healthy(folder: Path) -> Path:
    rng = Random(111)
    lines = ["Training diary, run 14", ""]
    for n in range(1, 16):
        lines.append(
            f"Epoch {n}: average reward {0.3 + 0.02 * n + rng.gauss(0, 0.005):.3f}, validation reward "
            f"{0.29 + 0.017 * n + rng.gauss(0, 0.005):.3f}, KL {0.003 * n:.3f}."
        )
    return text(folder / "diary.txt", lines)


@log("reward_hacked")
def english_table_hacked(folder: Path) -> Path:
    rng = Random(112)
    lines = ["| iteration | RM score | human-eval accuracy (%) | KL |", "|:---|---:|---:|---:|"]
    for n in range(14):
        lines.append(
            f"| {50 * n} | {0.1 + 0.15 * n + rng.gauss(0, 0.02):.2f} | {36.5 + rng.gauss(0, 0.4):.1f} "
            f"| {0.02 * n:.2f} |"
        )
    return text(folder / "report.md", lines)


@log("kl_explodes")
def chinese_csv(folder: Path) -> Path:
    rng = Random(113)
    kl, reward = exponential(rng, [0.01, 0.5, 18], 40, 0.1), course(rng, [0.5, 0.4, 0.1], 40, 0.02)
    return text(folder / "训练.csv", ["步数,平均奖励,KL散度", *(f"{n},{reward[n]:.4f},{kl[n]:.4f}" for n in range(40))])


@log("learning_rate_tiny")
def llama_factory(folder: Path) -> Path:
    rng = Random(114)
    lines = [
        json.dumps(
            {
                "current_steps": 10 * n,
                "total_steps": 500,
                "loss": round(1.91 + rng.gauss(0, 0.01), 4),
                "lr": 1e-10,
                "epoch": round(0.04 * n, 2),
                "percentage": 2.0 * n,
                "elapsed_time": f"0:0{n // 10}:1{n % 10}",
                "remaining_time": "0:10:00",
            }
        )
        for n in range(1, 41)
    ]
    return text(folder / "trainer_log.jsonl", lines)


@log("query_ignored", names="unique_demos=n_distinct,val_reward=dev_reward")
def own_demos(folder: Path) -> Path:
    rng = Random(115)
    lines = [
        "epoch,dev_reward,n_distinct",
        *(
            f"{n},{0.3 + 0.01 * n + rng.gauss(0, 0.002):.4f},{own}"
            for n, own in enumerate([60, 41, 22, 10, 5, 3, 2, 2, 2, 2, 2, 2], 1)
        ),
    ]
    return text(folder / "selector.csv", lines)


@log()
def cleanrl_history_healthy(folder: Path) -> Path:
    """A history of Weights & Biases with CleanRL's names."""
    rng = Random(116)
    rows = rows_of(
        {
            "_step": [float(n) for n in range(60)],
            "global_step": [512.0 * (n + 1) for n in range(60)],
            "charts/episodic_return": course(rng, [20, 150, 400], 60, 15),
            "charts/SPS": [2100.0] * 60,
            "charts/learning_rate": [2.5e-4 * (1 - n / 60) for n in range(60)],
            "losses/value_loss": exponential(rng, [20, 40], 60, 0.3),
            "losses/policy_loss": course(rng, [-0.01, -0.005], 60, 0.003),
            "losses/entropy": course(rng, [0.69, 0.5], 60, 0.01),
            "losses/old_approx_kl": course(rng, [0.004, 0.002], 60, 0.002),
            "losses/approx_kl": exponential(rng, [0.006, 0.004], 60, 0.2),
            "losses/clipfrac": share(rng, [0.1, 0.06], 60, 0.02),
            "losses/explained_variance": share(rng, [0.1, 0.9], 60, 0.05),
        }
    )
    return comma_separated(folder / "history.csv", rows)


@log("clip_saturated", names="step=it,reward=R,clip_fraction=clipped")
def own_clip(folder: Path) -> Path:
    rng = Random(117)
    lines = [
        f"[GRPO] it={n} R={0.4 + rng.gauss(0, 0.01):.3f} clipped={61 + rng.gauss(0, 3):.1f}% "
        f"kl={0.04 + rng.gauss(0, 0.003):.4f}"
        for n in range(40)
    ]
    return text(folder / "grpo.log", lines)


@log("flat_groups", "advantage_std_tiny")
def ms_swift(folder: Path) -> Path:
    rng = Random(118)
    rows = trl_grpo(
        rng,
        40,
        frac_reward_zero_std=share(rng, [0.94, 0.97], 40, 0.01),
        reward=course(rng, [0.5, 0.5], 40, 0.03),
        reward_std=share(rng, [0.015, 0.015], 40, 0.004),
    )
    lines = [
        json.dumps(
            {
                **{k: round(v, 8) for k, v in row.items()},
                "memory(GiB)": 61.2,
                "train_speed(iter/s)": 0.11,
                "global_step/max_steps": f"{n + 1}/400",
                "percentage": "1.0%",
                "elapsed_time": "12m 3s",
            }
        )
        for n, row in enumerate(rows)
    ]
    return text(folder / "logging.jsonl", lines)


# A third look


@log()
def pprint_dicts(folder: Path) -> Path:
    """Dicts that `pprint` lays out over several lines."""
    rng = Random(201)
    rows = [{k: round(v, 5) for k, v in row.items()} for row in trl_grpo(rng, 40)]
    lines = []
    for n, row in enumerate(rows):
        lines += [f"step {n + 1}", pformat(row)]
    return text(folder / "log.txt", lines)


@log("overfits")
def axolotl(folder: Path) -> Path:
    rng = Random(202)
    lines = ["[2025-08-01 10:00:00,123] [INFO] [axolotl.train.train:133] [PID:812] [RANK:0] Starting trainer..."]
    for n in range(60):
        lines.append(
            str(
                {
                    "loss": round(1.4 * 0.95**n + rng.gauss(0, 0.01), 4),
                    "grad_norm": 0.8,
                    "learning_rate": 2e-4,
                    "ppl": 3.1,
                    "memory/max_active (GiB)": 31.2,
                    "epoch": round(0.1 * (n + 1), 2),
                }
            )
        )
        if n % 6 == 5:
            lines.append(
                str(
                    {
                        "eval_loss": round(1.3 - 0.02 * min(n, 20) + 0.02 * max(0, n - 20), 4),
                        "eval_ppl": 2.9,
                        "eval_runtime": 31.1,
                        "epoch": round(0.1 * (n + 1), 2),
                    }
                )
            )
    return text(folder / "axolotl.log", lines)


@log("entropy_collapsed")
def baselines_table(folder: Path) -> Path:
    rng = Random(203)
    entropy = exponential(rng, [1.37, 0.05, 0.002, 0.002], 40, 0.05)
    lines = []
    for n in range(40):
        lines.append("-" * 39)
        for name, value in {
            "eplenmean": 200 + n,
            "eprewmean": 20 + 0.1 * n + rng.gauss(0, 0.5),
            "fps": 1211,
            "loss/approxkl": 0.004,
            "loss/clipfrac": 0.05,
            "loss/policy_entropy": entropy[n],
            "loss/policy_loss": -0.002,
            "loss/value_loss": 1.2,
            "misc/explained_variance": 0.5,
            "misc/nupdates": n + 1,
            "misc/total_timesteps": 2048 * (n + 1),
        }.items():
            lines.append(f"| {name:<23} | {value:<9.3g} |")
        lines.append("-" * 39)
    return text(folder / "log.txt", lines)


@log("overfits")
def hosted_results(folder: Path) -> Path:
    """results.csv of a hosted fine-tuning."""
    rng = Random(204)
    lines = ["step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy"]
    for n in range(1, 121):
        held = f"{1.1 - 0.006 * min(n, 50) + 0.007 * max(0, n - 50):.5f},{0.72:.5f}" if n % 10 == 0 else ","
        lines.append(f"{n},{1.2 * 0.97**n + abs(rng.gauss(0, 0.02)):.5f},{min(1, 0.7 + 0.0025 * n):.5f},{held}")
    return text(folder / "results.csv", lines)


@log("clip_saturated")
def chinese_clip(folder: Path) -> Path:
    rng = Random(205)
    lines = [
        f"迭代 {n}：平均奖励 {0.4 + rng.gauss(0, 0.01):.3f}，裁剪比例 {71 + rng.gauss(0, 2):.1f}%，KL散度 "
        f"{0.05 + rng.gauss(0, 0.004):.4f}"
        for n in range(1, 31)
    ]
    return text(folder / "log.txt", lines)


@log("kl_explodes")
def json_messages(folder: Path) -> Path:
    rng = Random(206)
    kl, reward = exponential(rng, [0.01, 0.5, 18], 40, 0.1), course(rng, [0.5, 0.4, 0.1], 40, 0.02)
    lines = [
        json.dumps(
            {
                "ts": f"2025-08-01T10:{n:02d}:00Z",
                "level": "info",
                "msg": f"step={n} reward={reward[n]:.3f} kl={kl[n]:.4f}",
            }
        )
        for n in range(40)
    ]
    return text(folder / "app.jsonl", lines)


@log("length_drifts")
def yaml_list(folder: Path) -> Path:
    rng = Random(207)
    length = exponential(rng, [150, 400, 900], 30, 0.03)
    lines = []
    for n in range(30):
        lines += [f"- step: {n}", f"  reward: {0.4 + rng.gauss(0, 0.01):.4f}", f"  mean_length: {length[n]:.1f}"]
    return text(folder / "log.yaml", lines)


@log()
def trl_dpo_healthy(folder: Path) -> Path:
    rng = Random(208)
    rows = []
    for n in range(60):
        rows.append(
            {
                "loss": 0.69 - 0.004 * n + rng.gauss(0, 0.01),
                "grad_norm": 5 + rng.gauss(0, 0.5),
                "learning_rate": 5e-7,
                "rewards/chosen": 0.01 * n,
                "rewards/rejected": -0.02 * n,
                "rewards/accuracies": min(1, 0.5 + 0.004 * n + rng.gauss(0, 0.02)),
                "rewards/margins": 0.03 * n + rng.gauss(0, 0.02),
                "logps/chosen": -200 - 0.1 * n,
                "logps/rejected": -210 - 0.3 * n,
                "epoch": round(n / 60, 2),
            }
        )
        if n % 10 == 9:
            rows.append(
                {
                    "eval_loss": 0.69 - 0.0035 * n,
                    "eval_rewards/accuracies": 0.5 + 0.003 * n,
                    "eval_rewards/margins": 0.025 * n,
                    "epoch": round(n / 60, 2),
                }
            )
    return text(folder / "dpo.log", [str({k: round(v, 5) for k, v in row.items()}) for row in rows])


@log("overfits")
def model_card(folder: Path) -> Path:
    """The table that a Trainer writes into README.md: the step is not its first column."""
    lines = [
        "---",
        "library_name: transformers",
        "tags:",
        "- generated_from_trainer",
        "---",
        "",
        "# whisper-small-hi",
        "",
        "## Training procedure",
        "",
        "### Training hyperparameters",
        "",
        "- learning_rate: 1e-05",
        "- train_batch_size: 16",
        "- num_epochs: 10",
        "",
        "### Training results",
        "",
        "| Training Loss | Epoch  | Step | Validation Loss | Wer     |",
        "|:-------------:|:------:|:----:|:---------------:|:-------:|",
    ]
    for n in range(1, 13):
        held = 0.42 - 0.03 * min(n, 4) + 0.03 * max(0, n - 4)
        lines.append(
            f"| {0.5 * 0.6**n:<13.4f} | {n / 1.2:<6.4f} | {100 * n:<4} | {held:<15.4f} | {33.1 + 0.1 * n:.4f} |"
        )
    return text(folder / "README.md", lines)


@log()
def sb3_sac(folder: Path) -> Path:
    rng = Random(209)
    rows = rows_of(
        {
            "time/episodes": [4.0 * (n + 1) for n in range(50)],
            "time/fps": [80.0] * 50,
            "time/total_timesteps": [800.0 * (n + 1) for n in range(50)],
            "rollout/ep_len_mean": [200.0] * 50,
            "rollout/ep_rew_mean": course(rng, [-1400, -600, -180], 50, 40),
            "train/actor_loss": course(rng, [20, 90, 60], 50, 3),
            "train/critic_loss": exponential(rng, [1, 8, 3], 50, 0.3),
            "train/ent_coef": exponential(rng, [0.9, 0.05], 50, 0.05),
            "train/ent_coef_loss": course(rng, [-1, 0.1], 50, 0.3),
            "train/learning_rate": [0.0003] * 50,
            "train/n_updates": [800.0 * n for n in range(50)],
        }
    )
    return comma_separated(folder / "progress.csv", rows)


@log(names="reward=r,length=l")
def sb3_monitor(folder: Path) -> Path:
    """monitor.csv: a comment with JSON before the header r,l,t."""
    rng = Random(210)
    lines = ['#{"t_start": 1718000000.1, "env_id": "CartPole-v1"}', "r,l,t"]
    lines += [f"{20 + 2 * n + rng.gauss(0, 8):.1f},{20 + 2 * n},{3.1 * n:.3f}" for n in range(80)]
    return text(folder / "monitor.csv", lines)


@log("seeds_outweigh_gain")
def mlflow_runs(folder: Path) -> Path:
    rng = Random(211)
    lines = ["run_id,key,value,step,timestamp"]
    for seed, end in enumerate((0.3, 0.62, 0.35, 0.68)):
        values = share(rng, [0.45, (0.45 + end) / 2, end, end], 40, 0.01)
        lines += [f"a{seed}f0,eval_accuracy,{value:.5f},{n},{1718000000000 + n}" for n, value in enumerate(values)]
    return text(folder / "runs.csv", lines)


@log("reward_hacked")
def english_report_lines(folder: Path) -> Path:
    rng = Random(212)
    lines = [
        f"iteration {20 * n}: reward model score {0.2 + 0.1 * n + rng.gauss(0, 0.02):.2f}, exact "
        f"match {31 + rng.gauss(0, 0.5):.1f}%, KL to reference {0.01 * n:.3f}"
        for n in range(20)
    ]
    return text(folder / "notes.txt", lines)


@log("learning_rate_tiny")
def keras_bar(folder: Path) -> Path:
    rng = Random(213)
    lines = []
    for n in range(1, 21):
        lines += [
            f"Epoch {n}/20",
            f"100/100 ━━━━━━━━━━━━━━━━━━━━ 3s 31ms/step - accuracy: {0.11 + rng.gauss(0, 0.004):.4f} "
            f"- loss: {2.303 + rng.gauss(0, 0.002):.4f} - val_accuracy: "
            f"{0.1 + rng.gauss(0, 0.002):.4f} - val_loss: {2.303 + rng.gauss(0, 0.0004):.4f} - "
            f"learning_rate: 1.0000e-10",
        ]
    return text(folder / "keras.log", lines)


@log("flat_groups", "advantage_std_tiny")
def chinese_groups(folder: Path) -> Path:
    rng = Random(214)
    lines = [
        f"第{n}步 奖励={0.42 + rng.gauss(0, 0.02):.3f} 零方差组比例={95 + rng.gauss(0, 1):.0f}% "
        f"梯度范数={0.02 + abs(rng.gauss(0, 0.004)):.4f}"
        for n in range(1, 41)
    ]
    return text(folder / "grpo.txt", lines)


@log()
def wandb_verl_healthy(folder: Path) -> Path:
    rows = verl(Random(215), 60)
    for n, row in enumerate(rows):
        row["_step"] = float(n)
        if n % 10 == 0:
            row["val-core/gsm8k/acc/mean@1"] = 0.25 + 0.006 * n
    return comma_separated(folder / "history.csv", rows)
