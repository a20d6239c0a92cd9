"""The training sections: `[reward]` and one section a stage, each a frozen dataclass of documented settings.

Values listed as mistakes reproduce one of the earlier code on purpose, so that the doctor has something to find.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leverplus import catalog
from leverplus.data.settings import setting

BOTH = (
    "hard_plus_soft", "hard_plus_soft_v2", "separated", "hard_plus_gtprob", "hard01_plus_gtprob",
    "hard01_plus_gtprob_separated", "hard_plus_gtprob_plus_rel",
)  # fmt: skip
HARD = ("modes", *BOTH, "hard_only")
SOFT = ("modes", *BOTH, "soft_only", "expected_accuracy", "gt_prob", "log_prob", "choice_prob", "rank")  # fmt: skip
LEGACY = ("modes", "legacy")
"""The rewards that read a weight, each a tuple for `when`."""


@dataclass(frozen=True)
class RewardConfig:
    """`[reward]`: how a score becomes a reward. Computed on read, so changing it never asks the model again."""

    mode: str = setting(
        "gt_prob", "the reward of one prompt", choices=catalog.REWARDS, part="reward"
    )
    components: tuple[str, ...] = setting(
        (),
        "several rewards instead of one, each normalised in its group and then summed",
        choices=catalog.REWARDS,
        part="reward",
    )
    component_weights: tuple[float, ...] = setting(
        (), "weights of the components; 1 each when empty"
    )
    adaptive: bool = setting(
        False, "scale component weights until each spreads alike inside groups"
    )
    hard_weight: float = setting(1.0, "weight of correctness", when=HARD)
    soft_weight: float = setting(1.0, "weight of accuracy or gt_prob", when=SOFT)
    rel_weight: float = setting(
        0.1,
        "weight of the relevance of wrong answers",
        when=("modes", "hard_plus_gtprob_plus_rel"),
    )
    alpha: float = setting(0.5, "weight of quality", when=("modes", "legacy", "hybrid"))
    beta: float = setting(1.0, "weight of correctness", when=LEGACY)
    correctness: str = setting(
        "01", "how a wrong answer counts: 0, or -1", choices=("01", "pm1"), when=LEGACY
    )
    quality: str = setting(
        "gain",
        "quality: gain over the prefix, or -log mu",
        choices=("gain", "logprob"),
        when=LEGACY,
    )
    hard_by_shots: tuple[float, ...] = setting(
        (),
        "factors on hard_weight for 1, 2, ... shots; the last holds for more",
        when=HARD,
    )
    soft_by_shots: tuple[float, ...] = setting(
        (),
        "factors on soft_weight for 1, 2, ... shots; the last holds for more",
        when=SOFT,
    )
    normalise: str = setting(
        "none",
        "normalisation inside a group",
        choices=("none", "z_score", "z_score_clamp", "rank"),
    )
    clamp: float = setting(
        3.0, "bound of the z-score", above=0.0, when=("normalise", "z_score_clamp")
    )
    compare: str = setting(
        "auto",
        "which sequences of a query compete: those of equal length, or all; auto: all when the selector may stop",
        choices=("auto", "same_shots", "all"),
    )

    @property
    def modes(self) -> tuple[str, ...]:
        """The rewards: the components, or the one that is named."""
        return self.components or (self.mode,)


@dataclass(frozen=True)
class StageConfig:
    """Settings every stage has: optimiser, schedule, selection of queries, early stopping, freezing."""

    epochs: int = setting(20, "passes over the groups", low=0)
    lr: float = setting(1e-3, "learning rate of AdamW", above=0.0)
    weight_decay: float = setting(0.01, "weight decay", low=0.0)
    batch_size: int = setting(64, "groups in a batch", low=1)
    schedule: str = setting(
        "cosine", "learning-rate decay", choices=("constant", "linear", "cosine")
    )
    warmup: float = setting(
        0.05, "share of steps in which the learning rate rises", low=0.0, high=1.0
    )
    grad_clip: float = setting(
        1.0, "largest norm of the gradient; 0 leaves it alone", low=0.0
    )
    freeze: tuple[str, ...] = setting(
        (), "parts that stay as they are: projections, attention, state, head, ..."
    )
    patience: int = setting(
        0, "stop after so many epochs without a better held-out reward; 0 never", low=0
    )
    monitor: str = setting(
        "reward",
        "which held-out number decides: the highest is best, of loss the lowest",
    )
    keep: str = setting(
        "best", "the epoch whose weights a stage ends with", choices=("best", "last")
    )
    min_positive_ratio: float = setting(
        0.0, "leave out groups with a smaller share of positives", low=0.0, high=1.0
    )
    positive_threshold: float = setting(
        0.0,
        "a member is positive when its accuracy is above this, whatever the reward",
        low=0.0,
        high=1.0,
    )
    easy_epochs: int = setting(
        0, "first epochs on easy queries only (curriculum)", low=0
    )
    easy_gap: float = setting(
        1.0, "an easy query has this much between its best and worst reward", low=0.0
    )
    easy_count: int = setting(
        2, "... and at least so many positives and negatives", low=0
    )
    easy_best: bool = setting(
        False,
        "after the easy epochs begin anew from the best of them, which is also what ratio and KL then refer to",
    )
    held_out: float = setting(
        0.0,
        "share of the queries that are not learnt from but judged after every epoch (val/loss, val/group_reward)",
        low=0.0,
        high=0.9,
    )
    drop_wrong: float = setting(
        0.0,
        "share of the wrong members of a group that are left out, those least likely where they were drawn",
        low=0.0,
        high=1.0,
    )

    def problems(self, prefix: str) -> list[str]:
        """Values that are allowed one by one but not together."""
        found = []
        if self.patience and self.keep == "last":
            found.append(
                f'{prefix}patience = {self.patience}: has no effect with {prefix}keep = "last"; use "best", or 0'
            )
        if self.monitor in ("loss", "group_reward") and not self.held_out:
            found.append(
                f'{prefix}monitor = "{self.monitor}": needs {prefix}held_out above 0, such as 0.2'
            )
        return found


@dataclass(frozen=True)
class SftConfig(StageConfig):
    """`[sft]`: supervised on the best sequences known."""

    labels: str = setting(
        "all",
        "learn from the best sequence, all of them, or all weighted by score",
        choices=("top", "all", "weighted"),
    )
    temperature: float = setting(
        0.1, "of the weights when labels = weighted", above=0.0
    )
    lora_rank: int = setting(
        0,
        "rank of adapters (LoRA) trained in the embedder with the selector; 0: none",
        low=0,
    )
    lora_alpha: float = setting(32.0, "adapters count alpha / rank times", above=0.0)
    lora_dropout: float = setting(0.1, "dropout before adapters", low=0.0, high=0.9)


@dataclass(frozen=True)
class RceConfig(StageConfig):
    """`[rce]`: cross-entropy weighted by reward."""

    temperature_start: float = setting(
        0.3, "temperature of the weights at the first step", above=0.0
    )
    temperature_end: float = setting(
        0.05, "temperature of the weights at the last step", above=0.0
    )
    weights: str = setting(
        "raw",
        "what the weights are made of",
        choices=("raw", "zscore", "clamped", "rank"),
    )
    centred: bool = setting(
        True,
        "subtract 1/G from the weights, so that the worse push away",
        mistakes=(False,),
    )
    skip_flat: bool = setting(True, "leave out groups without any difference in reward")


@dataclass(frozen=True)
class ListwiseConfig(StageConfig):
    """`[listwise]`: soft targets over all measured next picks of the same prefix, or these two by two."""

    temperature: float = setting(
        0.1, "of the targets softmax(reward / temperature); pairs have none", above=0.0
    )
    among: str = setting(
        "tried",
        "what a pick is compared with: all measured ones, the whole pool, or measured ones in pairs, by gap in reward",
        choices=("tried", "pool", "pairs"),
    )
    loss: str = setting(
        "listwise",
        "the loss of the tables of next picks",
        choices=catalog.LISTWISE_LOSSES,
        part="loss",
    )

    def problems(self, prefix: str) -> list[str]:
        found = super().problems(prefix)
        if self.among == "pairs" and self.temperature != ListwiseConfig.temperature:
            found.append(
                f'{prefix}temperature = {self.temperature}: has no effect with {prefix}among = "pairs"'
            )
        return found


@dataclass(frozen=True)
class LabelPretrainingConfig(StageConfig):
    """`[label_pretraining]`: soft targets from labels alone, before the model is asked: a candidate's target is what
    its answer would score for the query. The candidates are drawn afresh every epoch from the whole training split."""

    among: ClassVar[str] = "tried"
    epochs: int = setting(4, "passes over the training questions", low=0)
    temperature: float = setting(
        0.1, "of the targets softmax(score / temperature)", above=0.0
    )
    queries: int = setting(
        8000, "training questions of an epoch at most; 0: all", low=0
    )
    candidates: int = setting(16, "candidates a question is compared with", low=2)
    agreeing: int = setting(
        2,
        "of these, at most, drawn among those whose answer scores with the question",
        low=0,
    )

    def problems(self, prefix: str) -> list[str]:
        found = super().problems(prefix)
        if self.agreeing >= self.candidates:
            found.append(
                f"{prefix}agreeing = {self.agreeing}: must be below {prefix}candidates = {self.candidates}, "
                "or there is nothing to tell them from"
            )
        return found


@dataclass(frozen=True)
class ContrastiveConfig(StageConfig):
    """`[contrastive]`: candidates whose answers are built like the query's own go before others, by InfoNCE. The model
    is not asked, and answers may have any shape."""

    epochs: int = setting(8, "passes over the training questions", low=0)
    lr: float = setting(3e-3, "learning rate of AdamW", above=0.0)
    batch_size: int = setting(32, "questions in a batch", low=1)
    queries: int = setting(
        8000, "training questions of an epoch at most; 0: all", low=0
    )
    positives: int = setting(4, "candidates with the likest answers", low=1)
    near: int = setting(
        8, "candidates near by question whose answers are less alike", low=0
    )
    others: int = setting(20, "candidates drawn by chance", low=0)
    margin: float = setting(
        0.1, "how much less alike an answer is that counts against another", above=0.0
    )


@dataclass(frozen=True)
class PairwiseConfig(StageConfig):
    """`[pairwise]`: the better of two sequences of a group should be the likelier."""

    margin: float = setting(
        0.05, "pairs nearer than this in reward are left out", low=0.0
    )
    beta: float = setting(0.1, "steepness of the logistic", above=0.0)
    reference: str = setting(
        "stage_start",
        "log-probabilities are taken relative to this policy",
        choices=("stage_start", "none"),
    )
    nll_best: float = setting(
        0.1, "weight of the likelihood of the best sequence", low=0.0
    )


@dataclass(frozen=True)
class GrpoConfig(StageConfig):
    """`[grpo]`: group-relative policy optimisation. Four policies are kept apart: the trained one; `proximal`, its copy
    from the start of the round, which the ratio and clip refer to; the behaviour, which made the sequences; and the
    reference, which the KL term refers to."""

    lr: float = setting(2e-4, "learning rate of AdamW", above=0.0)
    batch_size: int = setting(32, "groups in a batch", low=1)
    inner_epochs: int = setting(
        1, "passes over the groups between refreshes of the proximal policy", low=1
    )
    advantage: str = setting(
        "leave_one_out",
        "how a member compares with its group",
        choices=catalog.ADVANTAGES,
        part="advantage",
    )
    std_floor: float = setting(
        0.1, "smallest standard deviation of the z-score", above=0.0
    )
    batch_scale: bool = setting(
        True, "divide advantages by their deviation over the batch"
    )
    advantage_clip: float = setting(5.0, "largest advantage", above=0.0)
    top_k: tuple[int, ...] = setting(
        (),
        "members kept by reward in epoch 1, 2, ...; the last holds on; empty: all",
        low=1,
    )
    topk_before_advantage: bool = setting(
        False,
        "choose the top k before the baseline is taken, which ties what is left",
        mistakes=(True,),
        when=("top_k",),
    )
    clip_low: float = setting(0.2, "how far a ratio may fall", low=0.0, high=1.0)
    clip_high: float = setting(0.28, "how far a ratio may rise", low=0.0)
    clip_level: str = setting(
        "step",
        "ratios of single steps or of whole sequences",
        choices=("step", "sequence"),
    )
    clip_only: bool = setting(False, "no KL term at all; kl_beta then has no effect")
    behaviour: str = setting(
        "proximal",
        "what the ratio refers to: proximal; stored also corrects by prox / mu; sft is stale after a warm-up",
        choices=("proximal", "stored", "sft"),
        mistakes=("sft",),
    )
    importance_cap: float = setting(
        2.0,
        "largest prox / mu when behaviour = stored",
        above=0.0,
        when=("behaviour", "stored"),
    )
    reference: str = setting(
        "stage_start",
        "what the KL term refers to",
        choices=("stage_start", "round_start", "sft"),
        when=("clip_only", False),
    )
    kl: str = setting(
        "exact",
        "KL over the whole pool, or estimated from the taken actions",
        choices=("exact", "k1", "k2", "k3", "k3_inverted"),
        mistakes=("k3_inverted",),
        when=("clip_only", False),
    )
    kl_beta: float = setting(
        0.01,
        "weight of the KL term (at first, when it adapts)",
        low=0.0,
        when=("clip_only", False),
    )
    beta_rule: str = setting(
        "fixed",
        "the weight of the KL term is fixed, or follows the KL once an epoch, or after every batch",
        choices=("fixed", "epoch", "batch"),
        mistakes=("batch",),
        when=("clip_only", False),
    )
    kl_low: float = setting(
        0.1,
        "below this KL (nats a sequence) the weight falls",
        low=0.0,
        when=("beta_rule", "epoch", "batch"),
    )
    kl_high: float = setting(
        1.0,
        "above this KL the weight rises",
        above=0.0,
        when=("beta_rule", "epoch", "batch"),
    )
    beta_factor: float = setting(
        1.5,
        "by what the weight rises or falls",
        above=1.0,
        when=("beta_rule", "epoch", "batch"),
    )
    beta_min: float = setting(
        1e-4, "smallest weight", low=0.0, when=("beta_rule", "epoch", "batch")
    )
    beta_max: float = setting(
        0.5, "largest weight", above=0.0, when=("beta_rule", "epoch", "batch")
    )
    entropy_bonus: float = setting(0.0, "weight of the entropy of the steps", low=0.0)
    flat_groups: str = setting(
        "leave_out",
        "groups without any difference in reward: out of both terms, or kept in the KL",
        choices=("leave_out", "keep"),
    )
    trust_kl: float = setting(
        0.1,
        "end an epoch when the KL to the proximal policy passes this, per step; 0 never",
        low=0.0,
    )
    dropout_in_ratio: bool = setting(
        False, "dropout in the new pass but not in the old", mistakes=(True,)
    )

    def problems(self, prefix: str) -> list[str]:
        found = super().problems(prefix)
        for low, high in (("kl_low", "kl_high"), ("beta_min", "beta_max")):
            below, above = getattr(self, low), getattr(self, high)
            if below > above:
                found.append(
                    f"{prefix}{low} = {below}: must not be above {prefix}{high} = {above}"
                )
        return found


SECTIONS: dict[str, type[StageConfig]] = {
    "label_pretraining": LabelPretrainingConfig,
    "contrastive": ContrastiveConfig,
    "sft": SftConfig,
    "rce": RceConfig,
    "grpo": GrpoConfig,
    "listwise": ListwiseConfig,
    "pairwise": PairwiseConfig,
}
"""The settings of each stage, by the name of the stage."""

LABEL_ONLY = ("label_pretraining", "contrastive")
"""Stages that learn without the model's answers."""


LOG_SINKS = ("mlflow", "wandb", "tensorboard")
"""Where a training's log may go beside log.jsonl."""


@dataclass(frozen=True)
class TrainSection:
    """`[train]`: which stages, in which order; each has a section of its own. Without one nothing is trained."""

    stages: tuple[str, ...] = setting(
        ("sft",), "stages in order; none: nothing is trained", choices=catalog.STAGES
    )
    imitate: int = setting(1, "best sequences of every length that sft imitates", low=1)
    start: str = setting(
        "",
        "what the first stage begins with: a checkpoint folder, a run, RUN:NAME, or a file of the earlier code",
    )
    checks: tuple[str, ...] = setting(
        (),
        "checks of your own that the doctor makes beside its own",
        choices=(),
        part="check",
    )
    log_to: tuple[str, ...] = setting(
        (),
        "who is given the training log beside log.jsonl",
        choices=LOG_SINKS,
    )

    @property
    def asking(self) -> str:
        """The first stage that learns from the model's answers; "" where nothing is trained."""
        return next((stage for stage in self.stages if stage not in LABEL_ONLY), "")
