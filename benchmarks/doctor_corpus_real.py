"""Logs that TRL, Transformers and Stable-Baselines3 write themselves: tiny models on a CPU, healthy or spoilt.

Needs `trl`, `stable-baselines3` and `tensorboard`, which this package does not: give them an environment of their own.
Run by `python benchmarks/doctor_corpus.py --make FOLDER --real`.
"""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LETTERS = [chr(97 + n) for n in range(26)]
WORDS = [*LETTERS, "<pad>", "<eos>", "<unk>"]


@dataclass(frozen=True)
class Plan:
    """One training: what it is called, which cause is planted, and what makes it so."""

    cause: str
    options: dict[str, Any] = field(default_factory=dict)
    reward: str = "letters"


GRPO = (
    Plan("healthy"),
    Plan("dead_groups", reward="prompt_only"),
    Plan("reward_constant", reward="constant"),
    Plan("lr_tiny", {"learning_rate": 1e-10}),
    Plan("lr_large", {"learning_rate": 0.3, "max_grad_norm": 1e9}),
    Plan("entropy_collapse", {"learning_rate": 2e-2, "beta": 0.0}, reward="first_only"),
    Plan("reward_hacking", {"learning_rate": 8e-3}, reward="hacked"),
    Plan("clipping", {"learning_rate": 8e-3, "num_iterations": 4, "epsilon": 1e-4}),
)
SFT = (
    Plan("healthy"),
    Plan("lr_tiny", {"learning_rate": 1e-10}),
    Plan("lr_large", {"learning_rate": 0.5, "max_grad_norm": 1e9}),
    Plan("overfitting", {"learning_rate": 1e-2, "few": True}),
)
DPO = (
    Plan("healthy"),
    Plan("lr_tiny", {"learning_rate": 1e-10}),
    Plan("lr_large", {"learning_rate": 0.5, "max_grad_norm": 1e9}),
    Plan("overfitting", {"learning_rate": 5e-3, "few": True}),
)
PPO = (
    Plan("healthy"),
    Plan("lr_tiny", {"learning_rate": 1e-12}),
    Plan("lr_large", {"learning_rate": 0.3, "max_grad_norm": 1e9}),
    Plan("clipping", {"clip_range": 0.002, "n_epochs": 20, "learning_rate": 1e-3}),
    Plan("reward_constant", reward="constant"),
)


def make_real(folder: Path, seed: int, scale: float) -> None:
    """Every training of every library; `scale` multiplies the learning rates, so that halves differ."""
    import torch

    torch.set_num_threads(1)
    model = folder / "model"
    _save_model(model, seed)
    trainers: dict[str, tuple[tuple[Plan, ...], Callable[..., None]]] = {
        "trl_grpo": (GRPO, _grpo),
        "trl_sft": (SFT, _sft),
        "trl_dpo": (DPO, _dpo),
        "hf": (SFT, _transformers),
    }
    for name, (plans, train) in trainers.items():
        for plan in plans:
            _keep(folder, name, plan, lambda out, plan=plan, train=train: train(out, model, plan, seed, scale))
    for plan in PPO:
        _stable_baselines(folder, plan, seed, scale)
    shutil.rmtree(model)


def _save_model(folder: Path, seed: int) -> None:
    """A two-layer language model over letters, with its tokenizer."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", bos_token="<eos>"
    )
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, pad_token_id=26, eos_token_id=27, bos_token_id=27,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)


def _keep(folder: Path, name: str, plan: Plan, train: Callable[[Path], None]) -> None:
    """Train, and keep what it printed, its trainer_state.json and its event files, each as a log of its own."""
    with tempfile.TemporaryDirectory() as place:
        out, printed = Path(place), io.StringIO()
        with contextlib.redirect_stdout(printed):
            train(out)
        target = folder / f"{name}_state-{plan.cause}"
        target.mkdir(parents=True)
        shutil.copy(out / "trainer_state.json", target)
        (folder / f"{name}_console-{plan.cause}.log").write_text(printed.getvalue(), encoding="utf-8")
        events = folder / f"{name}_events-{plan.cause}"
        events.mkdir()
        for path in out.rglob("*tfevents*"):
            if path.parent.parent == out / "tb" or path.parent == out / "tb":
                _scalars_only(path, events)


def _arguments(out: Path, plan: Plan, **own: Any) -> dict[str, Any]:
    import os

    os.environ["TENSORBOARD_LOGGING_DIR"] = str(out / "tb")
    options = {key: value for key, value in plan.options.items() if key != "few"}
    usual = {"output_dir": str(out), "logging_steps": 1, "report_to": ["tensorboard"], "use_cpu": True,
             "disable_tqdm": True, "lr_scheduler_type": "constant", "save_strategy": "no"}  # fmt: skip
    return {**usual, **own, **options}


def _grpo(out: Path, model: Path, plan: Plan, seed: int, scale: float) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rng = random.Random(seed)
    prompts = [{"prompt": " ".join(rng.choices(LETTERS, k=4))} for _ in range(64)]
    arguments = _arguments(
        out, plan, per_device_train_batch_size=16, num_generations=8, max_completion_length=8, max_steps=30,
        learning_rate=plan.options.get("learning_rate", 4e-3 * scale), beta=plan.options.get("beta", 0.02), seed=seed,
    )  # fmt: skip
    rewards = {"letters": [_letters], "prompt_only": [_prompt_only], "constant": [_constant],
               "first_only": [_first_only], "hacked": [accuracy_reward, style_reward]}[plan.reward]  # fmt: skip
    trainer = GRPOTrainer(
        model=str(model), reward_funcs=rewards, args=GRPOConfig(**arguments), train_dataset=Dataset.from_list(prompts)
    )
    trainer.train()
    trainer.save_state()


def _letters(completions: list[str], **_: Any) -> list[float]:
    """How many of the letters are among the first ten."""
    return [sum(word in LETTERS[:10] for word in text.split()) / 8 for text in completions]


def _prompt_only(prompts: list[str], **_: Any) -> list[float]:
    return [LETTERS.index(prompt.split()[0]) / 26 for prompt in prompts]


def _constant(completions: list[str], **_: Any) -> list[float]:
    return [1.0 for _ in completions]


def _first_only(completions: list[str], **_: Any) -> list[float]:
    """Every `a` pays, so that the policy ends in one letter."""
    return [text.split().count("a") / 8 for text in completions]


def accuracy_reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """Whether the answer is the right letter, which hardly any is."""
    return [float(text.split()[:1] == [prompt.split()[1]]) for prompt, text in zip(prompts, completions, strict=True)]


def style_reward(completions: list[str], **_: Any) -> list[float]:
    return [2.0 * sum(word in LETTERS[:8] for word in text.split()) / 8 for text in completions]


def _texts(count: int, seed: int, noise: float) -> list[str]:
    """Letters in the order of the alphabet from a random start; `noise` is the share of wrong ones."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        start = rng.randrange(26)
        rows.append(
            " ".join(rng.choice(LETTERS) if rng.random() < noise else LETTERS[(start + n) % 26] for n in range(12))
        )
    return rows


def _sets(plan: Plan, seed: int) -> tuple[list[str], list[str]]:
    """Texts to learn from and held-out ones; few and noisy ones can only be learnt by heart."""
    few = bool(plan.options.get("few"))
    return _texts(8 if few else 256, seed, 0.5 if few else 0.05), _texts(48, seed + 1, 0.5 if few else 0.05)


def _sft(out: Path, model: Path, plan: Plan, seed: int, scale: float) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    train, held = _sets(plan, seed)
    arguments = _arguments(
        out, plan, per_device_train_batch_size=16, max_steps=60, eval_strategy="steps", eval_steps=6, max_length=16,
        learning_rate=plan.options.get("learning_rate", 4e-3 * scale), seed=seed,
    )  # fmt: skip
    sets = [Dataset.from_list([{"text": text} for text in texts]) for texts in (train, held)]
    trainer = SFTTrainer(model=str(model), args=SFTConfig(**arguments), train_dataset=sets[0], eval_dataset=sets[1])
    trainer.train()
    trainer.save_state()


def _transformers(out: Path, model: Path, plan: Plan, seed: int, scale: float) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

    tokenizer = AutoTokenizer.from_pretrained(model)
    sets = []
    for texts in _sets(plan, seed):
        rows = [tokenizer(text, return_token_type_ids=False) for text in texts]
        sets.append([{**row, "labels": row["input_ids"]} for row in rows])
    arguments = _arguments(
        out, plan, per_device_train_batch_size=16, max_steps=60, eval_strategy="steps", eval_steps=6,
        learning_rate=plan.options.get("learning_rate", 4e-3 * scale), seed=seed,
    )  # fmt: skip
    network = AutoModelForCausalLM.from_pretrained(model)
    trainer = Trainer(network, TrainingArguments(**arguments), train_dataset=sets[0], eval_dataset=sets[1])
    trainer.train()
    trainer.save_state()


def _dpo(out: Path, model: Path, plan: Plan, seed: int, scale: float) -> None:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    def pairs(count: int, start: int, noise: float) -> list[dict[str, str]]:
        rng = random.Random(start)
        rows = []
        for _ in range(count):
            place = rng.randrange(26)
            right, wrong = LETTERS[(place + 1) % 26], rng.choice(LETTERS)
            swap = rng.random() < noise
            chosen, rejected = (wrong, right) if swap else (right, wrong)
            rows.append({"prompt": LETTERS[place], "chosen": f" {chosen}", "rejected": f" {rejected}"})
        return rows

    few = bool(plan.options.get("few"))
    sets = [pairs(8 if few else 256, seed, 0.5 if few else 0.05), pairs(64, seed + 1, 0.5 if few else 0.05)]
    arguments = _arguments(
        out, plan, per_device_train_batch_size=16, max_steps=60, eval_strategy="steps", eval_steps=6, seed=seed,
        learning_rate=plan.options.get("learning_rate", 2e-3 * scale), max_length=16,
    )  # fmt: skip
    trainer = DPOTrainer(
        model=str(model), args=DPOConfig(**arguments), train_dataset=Dataset.from_list(sets[0]),
        eval_dataset=Dataset.from_list(sets[1]), processing_class=_tokenizer(model),
    )  # fmt: skip
    trainer.train()
    trainer.save_state()


def _tokenizer(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def _stable_baselines(folder: Path, plan: Plan, seed: int, scale: float) -> None:
    """PPO on CartPole: progress.csv, the printed tables and the event files of one training."""
    import gymnasium
    from stable_baselines3 import PPO as Algorithm
    from stable_baselines3.common.logger import configure

    env: Any = gymnasium.make("CartPole-v1")
    if plan.reward == "constant":
        env = gymnasium.wrappers.TransformReward(env, lambda _: 0.0)
    options = {"learning_rate": 1e-3 * scale, "n_steps": 256, "batch_size": 128, "n_epochs": 6, **plan.options}
    with tempfile.TemporaryDirectory() as place:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            model = Algorithm("MlpPolicy", env, seed=seed, device="cpu", **options)
            model.set_logger(configure(place, ["stdout", "csv", "tensorboard"]))
            model.learn(total_timesteps=8_000)
        for kind, pattern in (("sb3_csv", "progress.csv"), ("sb3_events", "events*")):
            target = folder / f"{kind}-{plan.cause}"
            target.mkdir(parents=True)
            for path in Path(place).glob(pattern):
                _scalars_only(path, target) if kind == "sb3_events" else shutil.copy(path, target)
        shown = [line for line in printed.getvalue().splitlines() if not line.startswith("Logging to")]
        (folder / f"sb3_console-{plan.cause}.log").write_text("\n".join(shown) + "\n", encoding="utf-8")


def _scalars_only(path: Path, folder: Path) -> None:
    """Copy an event file without the texts in it (settings, places on this machine), under a name without the host."""
    data, place, kept = path.read_bytes(), 0, []
    while place + 12 <= len(data):
        end = place + 16 + int.from_bytes(data[place : place + 8], "little")
        if b"text_summary" not in data[place:end] and b"/tmp" not in data[place:end]:
            kept.append(data[place:end])
        place = end
    (folder / f"{'.'.join(path.name.split('.')[:4])}.host").write_bytes(b"".join(kept))
