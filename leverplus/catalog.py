"""Every named part on one page: "name": "module:attribute", loaded when it is asked for.

Adding a part is its code, one row here and its cases in the mirrored test. Who uses this package adds one without
touching it: wherever a recipe names a part, `package.module:attribute` is taken as well.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from leverplus.errors import UnknownName

Table = Mapping[str, str]

REWARDS: Table = {
    "hard_plus_soft": "leverplus.maths.rewards:hard_plus_soft",
    "hard_plus_soft_v2": "leverplus.maths.rewards:hard_plus_soft_v2",
    "separated": "leverplus.maths.rewards:separated",
    "hard_only": "leverplus.maths.rewards:hard_only",
    "soft_only": "leverplus.maths.rewards:soft_only",
    "expected_accuracy": "leverplus.maths.rewards:expected_accuracy",
    "gt_prob": "leverplus.maths.rewards:gt_prob",
    "choice_prob": "leverplus.maths.rewards:choice_prob",
    "hard_plus_gtprob": "leverplus.maths.rewards:hard_plus_gtprob",
    "hard01_plus_gtprob": "leverplus.maths.rewards:hard_plus_gtprob",
    "hard01_plus_gtprob_separated": "leverplus.maths.rewards:hard01_plus_gtprob_separated",
    "hard_plus_gtprob_plus_rel": "leverplus.maths.rewards:hard_plus_gtprob_plus_rel",
    "legacy": "leverplus.maths.rewards:legacy",
    "hybrid": "leverplus.maths.rewards:hybrid",
    "rank": "leverplus.maths.rewards:rank",
}
ADVANTAGES: Table = {
    "zscore": "leverplus.maths.advantages:zscore",
    "zscore_sample": "leverplus.maths.advantages:zscore_sample",
    "rank": "leverplus.maths.advantages:rank",
    "centred": "leverplus.maths.advantages:centred",
    "leave_one_out": "leverplus.maths.advantages:leave_one_out",
}
LISTWISE_LOSSES: Table = {
    "listwise": "leverplus.maths.losses:listwise",
}
"""What `listwise.loss` may name: losses of tables of next picks, all called alike."""
STAGE_LOSSES: Table = {
    "cross_entropy": "leverplus.maths.losses:cross_entropy",
    "rce": "leverplus.maths.losses:rce",
    "ppo_clip": "leverplus.maths.losses:ppo_clip",
    "pairwise": "leverplus.maths.losses:pairwise",
}
"""The formulas of the other stages. Each is called by its own stage with what that stage has; no recipe names one."""
LOSSES: Table = {**STAGE_LOSSES, **LISTWISE_LOSSES}
"""Every loss by name, for whoever lists them."""
SAMPLERS: Table = {
    "random": "leverplus.pools.samplers:random",
    "nearest_text": "leverplus.pools.samplers:nearest_text",
    "nearest_image": "leverplus.pools.samplers:nearest_image",
    "nearest_both": "leverplus.pools.samplers:nearest_both",
    "mix": "leverplus.pools.samplers:mix",
    "two_stage": "leverplus.pools.samplers:two_stage",
    "mmr": "leverplus.pools.samplers:mmr",
    "corpus": "leverplus.pools.samplers:corpus",
}
POLICIES: Table = {
    "interaction": "leverplus.policies.presets:INTERACTION",
    "id_gpt2": "leverplus.legacy.presets:ID_GPT2",
    "id_lstm": "leverplus.legacy.presets:ID_LSTM",
    "bi_encoder_gate": "leverplus.policies.presets:BI_ENCODER_GATE",
    "cross_attention": "leverplus.policies.presets:CROSS_ATTENTION",
    "vector_gate": "leverplus.policies.presets:VECTOR_GATE",
    "recurrent": "leverplus.policies.presets:RECURRENT",
    "diverse": "leverplus.policies.presets:DIVERSE",
    "pool_aware": "leverplus.policies.presets:POOL_AWARE",
    "additive_head": "leverplus.policies.presets:ADDITIVE_HEAD",
    "bilinear_head": "leverplus.policies.presets:BILINEAR_HEAD",
    "topic_coverage": "leverplus.policies.presets:TOPIC_COVERAGE",
    "volume": "leverplus.policies.presets:VOLUME",
    "parallel_slots": "leverplus.policies.presets:PARALLEL_SLOTS",
    "two_stage": "leverplus.policies.presets:TWO_STAGE",
    "stopping": "leverplus.policies.presets:STOPPING",
    "id_gpt2_faithful": "leverplus.legacy.presets:ID_GPT2_FAITHFUL",
    "id_lstm_faithful": "leverplus.legacy.presets:ID_LSTM_FAITHFUL",
    "bi_encoder_gate_faithful": "leverplus.legacy.presets:BI_ENCODER_GATE_FAITHFUL",
    "cross_attention_faithful": "leverplus.legacy.presets:CROSS_ATTENTION_FAITHFUL",
    "vector_gate_faithful": "leverplus.legacy.presets:VECTOR_GATE_FAITHFUL",
    "recurrent_faithful": "leverplus.legacy.presets:RECURRENT_FAITHFUL",
    "diverse_faithful": "leverplus.legacy.presets:DIVERSE_FAITHFUL",
    "pool_aware_faithful": "leverplus.legacy.presets:POOL_AWARE_FAITHFUL",
    "additive_head_faithful": "leverplus.legacy.presets:ADDITIVE_HEAD_FAITHFUL",
    "bilinear_head_faithful": "leverplus.legacy.presets:BILINEAR_HEAD_FAITHFUL",
    "topic_coverage_faithful": "leverplus.legacy.presets:TOPIC_COVERAGE_FAITHFUL",
    "volume_faithful": "leverplus.legacy.presets:VOLUME_FAITHFUL",
    "parallel_slots_faithful": "leverplus.legacy.presets:PARALLEL_SLOTS_FAITHFUL",
    "two_stage_faithful": "leverplus.legacy.presets:TWO_STAGE_FAITHFUL",
    "stopping_faithful": "leverplus.legacy.presets:STOPPING_FAITHFUL",
}
MODELS: Table = {
    "pointer": "leverplus.policies.pointer:PointerPolicy",
    "gpt2": "leverplus.legacy.id_models:IdPolicy",
    "lstm": "leverplus.legacy.id_models:IdPolicy",
}
"""The classes of selectors, by `select.model`."""
HEADS: Table = {
    "cosine": "leverplus.policies.heads:Cosine",
    "neighbour": "leverplus.policies.heads:Neighbour",
    "additive": "leverplus.policies.heads:Additive",
    "bilinear": "leverplus.policies.heads:Bilinear",
    "interaction_mlp": "leverplus.policies.heads:Interaction",
}
METRICS: Table = {
    "vqa_accuracy": "leverplus.metrics.vqa:vqa_accuracy",
    "exact_match": "leverplus.metrics.text:exact_match",
    "label_accuracy": "leverplus.metrics.text:label_accuracy",
    "token_f1": "leverplus.metrics.text:token_f1",
    "edit_similarity": "leverplus.metrics.text:edit_similarity",
}
EMBEDDERS: Table = {
    "world": "leverplus.embedders.world:world_embedder",
    "sentence": "leverplus.embedders.sentence:SentenceEncoder",
    "clip": "leverplus.embedders.dual:clip",
    "siglip": "leverplus.embedders.dual:siglip",
    "stored": "leverplus.embedders.stored:StoredVectors",
}
BACKENDS: Table = {
    "world": "leverplus.backends.world:world_backend",
    "openai": "leverplus.backends.api.backend:OpenAIBackend",
    "hf": "leverplus.backends.hf.backend:HfBackend",
    "table": "leverplus.backends.table.backend:TableBackend",
    "vllm": "leverplus.backends.vllm:VllmBackend",
}
TINY_MODELS: Table = {
    "qwen2_5_vl": "leverplus.lab.tiny_models:qwen2_5_vl",
}
"""Models with random weights, `model.name = "tiny:NAME"`: they prove the wiring, no answer need be right."""
TASKS: Table = {
    "world": "leverplus.tasks.world:world_task",
    "okvqa": "leverplus.tasks.vqa:okvqa",
    "vqav2": "leverplus.tasks.vqa:vqav2",
    "okvqa_captions": "leverplus.tasks.okvqa_captions:okvqa_captions",
    "coco_small": "leverplus.tasks.coco_small:coco_small",
    "jsonl": "leverplus.tasks.jsonl:jsonl",
    "coco_captions": "leverplus.tasks.captions:coco_captions",
    "trec": "leverplus.tasks.labels:trec",
    "sst2": "leverplus.tasks.labels:sst2",
    "labels": "leverplus.tasks.labels:labels",
}
STAGES: Table = {
    "label_pretraining": "leverplus.training.stages:Listwise",
    "sft": "leverplus.training.stages:Sft",
    "rce": "leverplus.training.stages:Rce",
    "grpo": "leverplus.training.grpo:Grpo",
    "listwise": "leverplus.training.stages:Listwise",
    "pairwise": "leverplus.training.stages:Pairwise",
}
CHECKS: Table = {
    "ratio_not_one": "leverplus.doctor.preflight:ratio_not_one",
    "dropout_in_ratio": "leverplus.doctor.preflight:dropout_in_ratio",
    "reference_not_start": "leverplus.doctor.preflight:reference_not_start",
    "stale_behaviour": "leverplus.doctor.preflight:stale_behaviour",
    "missing_density": "leverplus.doctor.preflight:missing_density",
    "checkpoint_not_whole": "leverplus.doctor.preflight:checkpoint_not_whole",
    "pool_builder_differs": "leverplus.doctor.preflight:pool_builder_differs",
    "pool_too_small": "leverplus.doctor.preflight:pool_too_small",
    "dead_setting": "leverplus.doctor.preflight:dead_setting",
    "query_leaks": "leverplus.doctor.preflight:query_leaks",
    "split_overlap": "leverplus.doctor.preflight:split_overlap",
    "scores_not_reproducible": "leverplus.doctor.preflight:scores_not_reproducible",
    "worse_than_chance": "leverplus.doctor.preflight:worse_than_chance",
    "labels_unreachable": "leverplus.doctor.preflight:labels_unreachable",
    "order_leaks": "leverplus.doctor.preflight:order_leaks",
    "seed_missing": "leverplus.doctor.preflight:seed_missing",
    "resumed_without_optimiser": "leverplus.doctor.course:resumed_without_optimiser",
    "reward_hacked": "leverplus.doctor.course:reward_hacked",
    "learning_rate_too_large": "leverplus.doctor.course:learning_rate_too_large",
    "reward_constant": "leverplus.doctor.course:reward_constant",
    "kl_explodes": "leverplus.doctor.course:kl_explodes",
    "length_drifts": "leverplus.doctor.course:length_drifts",
    "seeds_outweigh_gain": "leverplus.doctor.course:seeds_outweigh_gain",
    "flat_groups": "leverplus.doctor.groups:flat_groups",
    "top_k_before_baseline": "leverplus.doctor.groups:top_k_before_baseline",
    "advantage_std_tiny": "leverplus.doctor.groups:advantage_std_tiny",
    "never_right": "leverplus.doctor.groups:never_right",
    "no_headroom": "leverplus.doctor.groups:no_headroom",
    "two_level_reward": "leverplus.doctor.groups:two_level_reward",
    "components_duplicate": "leverplus.doctor.groups:components_duplicate",
    "reward_fights_metric": "leverplus.doctor.groups:reward_fights_metric",
    "gt_prob_empty": "leverplus.doctor.groups:gt_prob_empty",
    "repeated_members": "leverplus.doctor.groups:repeated_members",
    "advantage_explodes": "leverplus.doctor.groups:advantage_explodes",
    "missing_rewards": "leverplus.doctor.groups:missing_rewards",
    "unmeasured_labels": "leverplus.doctor.groups:unmeasured_labels",
    "filtered_by_outcome": "leverplus.doctor.groups:filtered_by_outcome",
    "source_tells_label": "leverplus.doctor.groups:source_tells_label",
    "small_groups": "leverplus.doctor.groups:small_groups",
    "pick_no_better_than_group": "leverplus.doctor.groups:pick_no_better_than_group",
    "normalised_twice": "leverplus.doctor.groups:normalised_twice",
    "kl_at_start": "leverplus.doctor.ratio:kl_at_start",
    "inverted_kl": "leverplus.doctor.ratio:inverted_kl",
    "kl_estimate_disagrees": "leverplus.doctor.ratio:kl_estimate_disagrees",
    "beta_every_batch": "leverplus.doctor.ratio:beta_every_batch",
    "kl_weight_on_rails": "leverplus.doctor.ratio:kl_weight_on_rails",
    "kl_collapsed": "leverplus.doctor.ratio:kl_collapsed",
    "kl_from_flat_groups": "leverplus.doctor.ratio:kl_from_flat_groups",
    "over_optimised": "leverplus.doctor.ratio:over_optimised",
    "clip_saturated": "leverplus.doctor.ratio:clip_saturated",
    "clip_unused": "leverplus.doctor.ratio:clip_unused",
    "weights_degenerate": "leverplus.doctor.ratio:weights_degenerate",
    "likelihood_displaced": "leverplus.doctor.ratio:likelihood_displaced",
    "not_finite": "leverplus.doctor.ratio:not_finite",
    "dead_updates": "leverplus.doctor.optimisation:dead_updates",
    "identical_picks": "leverplus.doctor.optimisation:identical_picks",
    "learning_rate_tiny": "leverplus.doctor.optimisation:learning_rate_tiny",
    "learning_rate_without_signal": "leverplus.doctor.optimisation:learning_rate_without_signal",
    "batch_of_one": "leverplus.doctor.optimisation:batch_of_one",
    "gradient_always_clipped": "leverplus.doctor.optimisation:gradient_always_clipped",
    "nothing_learnt": "leverplus.doctor.optimisation:nothing_learnt",
    "selected_by_loss": "leverplus.doctor.optimisation:selected_by_loss",
    "claimed_best_is_not": "leverplus.doctor.optimisation:claimed_best_is_not",
    "reward_falls": "leverplus.doctor.optimisation:reward_falls",
    "overfits": "leverplus.doctor.optimisation:overfits",
    "loss_falls_by_kl_only": "leverplus.doctor.optimisation:loss_falls_by_kl_only",
    "gradient_drowned": "leverplus.doctor.optimisation:gradient_drowned",
    "entropy_collapsed": "leverplus.doctor.exploration:entropy_collapsed",
    "entropy_stuck": "leverplus.doctor.exploration:entropy_stuck",
    "hub_demonstrations": "leverplus.doctor.exploration:hub_demonstrations",
    "query_ignored": "leverplus.doctor.exploration:query_ignored",
    "stop_collapse": "leverplus.doctor.exploration:stop_collapse",
    "effects_are_noise": "leverplus.doctor.exploration:effects_are_noise",
    "more_shots_hurt": "leverplus.doctor.shots:more_shots_hurt",
    "beyond_trained_length": "leverplus.doctor.shots:beyond_trained_length",
    "later_steps_uniform": "leverplus.doctor.shots:later_steps_uniform",
    "shots_identical": "leverplus.doctor.shots:shots_identical",
    "single_length_data": "leverplus.doctor.shots:single_length_data",
    "comparison_without_n": "leverplus.doctor.evaluation:comparison_without_n",
    "accuracy_falls_with_n": "leverplus.doctor.evaluation:accuracy_falls_with_n",
    "difference_inside_noise": "leverplus.doctor.evaluation:difference_inside_noise",
    "same_run_twice": "leverplus.doctor.evaluation:same_run_twice",
    "identical_rows": "leverplus.doctor.evaluation:identical_rows",
    "winners_curse": "leverplus.doctor.evaluation:winners_curse",
    "missing_anchors": "leverplus.doctor.evaluation:missing_anchors",
    "conditions_differ": "leverplus.doctor.evaluation:conditions_differ",
    "worse_than_random": "leverplus.doctor.evaluation:worse_than_random",
    "below_training_free": "leverplus.doctor.evaluation:below_training_free",
    "oracle_beaten": "leverplus.doctor.evaluation:oracle_beaten",
    "few_items": "leverplus.doctor.evaluation:few_items",
}
LEGACY: Table = {
    "checkpoint": "leverplus.legacy.checkpoints:read_legacy",
    "group_stats": "leverplus.legacy.rl_quality:rl_group_stats",
    "groups": "leverplus.legacy.imports:rl_groups",
    "report": "leverplus.legacy.published:parse_report",
    "checked_report": "leverplus.legacy.published:checked_report",
    "spoil_pools": "leverplus.legacy.mistakes:spoil_pools",
    "spoil_groups": "leverplus.legacy.mistakes:spoil_groups",
    "spoil_rows": "leverplus.legacy.mistakes:spoil_rows",
    "convert_checkpoint": "leverplus.legacy.mistakes:convert_checkpoint",
}
"""What the core asks of the room for the earlier code: readers of its files, and its mistakes, made on purpose."""

KINDS: tuple[tuple[str, Table], ...] = (
    ("reward", REWARDS),
    ("advantage", ADVANTAGES),
    ("loss", LISTWISE_LOSSES),
    ("pool", SAMPLERS),
    ("head", HEADS),
    ("embedder", EMBEDDERS),
    ("backend", BACKENDS),
    ("task", TASKS),
    ("metric", METRICS),
    ("check", CHECKS),
)
"""What a setting that names a part may name, and the table of those that ship."""

_OUTSIDE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_outside(name: str) -> bool:
    """Whether a name is written as `package.module:attribute`, the way to a part of somebody else."""
    return _OUTSIDE.fullmatch(name) is not None


def load(table: Table, name: str, kind: str) -> Any:
    """The part called `name` from a table, or from outside; an unknown name is answered with the nearest known one."""
    if name not in table and is_outside(name):
        return _load_outside(name, kind)
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(table))}"
        raise UnknownName(f"there is no {kind} called '{name}'; {hint}")
    module, attribute = table[name].split(":")
    return getattr(import_module(module), attribute)


def _load_outside(name: str, kind: str) -> Any:
    """A part of somebody else; whatever its module does wrong is told in one sentence."""
    module, attribute = name.split(":")
    if os.getcwd() not in sys.path:
        # a file in the folder the command is typed in is found too, but never instead of what is installed
        sys.path.append(os.getcwd())
    try:
        found = import_module(module)
    except Exception as error:
        raise UnknownName(
            f"the {kind} '{name}' cannot be imported ({type(error).__name__}: {error}); type the command in the folder "
            f"that holds {module.split('.')[0]}, or install its package"
        ) from error
    if not hasattr(found, attribute):
        raise UnknownName(f"the {kind} '{name}' is not there: module {module} has no '{attribute}'")
    return getattr(found, attribute)
