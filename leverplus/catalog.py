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

from leverplus import errors
from leverplus.errors import UnknownName

Table = Mapping[str, str]

REWARDS: Table = {
    "hard_plus_soft": "leverplus.learn.maths.rewards:hard_plus_soft",
    "hard_plus_soft_v2": "leverplus.learn.maths.rewards:hard_plus_soft_v2",
    "separated": "leverplus.learn.maths.rewards:separated",
    "hard_only": "leverplus.learn.maths.rewards:hard_only",
    "soft_only": "leverplus.learn.maths.rewards:soft_only",
    "expected_accuracy": "leverplus.learn.maths.rewards:expected_accuracy",
    "gt_prob": "leverplus.learn.maths.rewards:gt_prob",
    "log_prob": "leverplus.learn.maths.rewards:log_prob",
    "choice_prob": "leverplus.learn.maths.rewards:choice_prob",
    "hard_plus_gtprob": "leverplus.learn.maths.rewards:hard_plus_gtprob",
    "hard01_plus_gtprob": "leverplus.learn.maths.rewards:hard_plus_gtprob",
    "hard01_plus_gtprob_separated": "leverplus.learn.maths.rewards:hard01_plus_gtprob_separated",
    "hard_plus_gtprob_plus_rel": "leverplus.learn.maths.rewards:hard_plus_gtprob_plus_rel",
    "legacy": "leverplus.learn.maths.rewards:legacy",
    "hybrid": "leverplus.learn.maths.rewards:hybrid",
    "rank": "leverplus.learn.maths.rewards:rank",
}
ESTIMATES: Table = {
    "expected_accuracy": "leverplus_lab.expected_accuracy:ExpectedAccuracy",
}
"""What a reward of that name asks for the accuracy of an answer."""
ADVANTAGES: Table = {
    "zscore": "leverplus.learn.maths.advantages:zscore",
    "zscore_sample": "leverplus.learn.maths.advantages:zscore_sample",
    "rank": "leverplus.learn.maths.advantages:rank",
    "centred": "leverplus.learn.maths.advantages:centred",
    "leave_one_out": "leverplus.learn.maths.advantages:leave_one_out",
}
LISTWISE_LOSSES: Table = {
    "listwise": "leverplus.learn.maths.losses:listwise",
}
"""What `listwise.loss` may name: losses of tables of next picks, all called alike."""
STAGE_LOSSES: Table = {
    "cross_entropy": "leverplus.learn.maths.losses:cross_entropy",
    "rce": "leverplus.learn.maths.losses:rce",
    "ppo_clip": "leverplus.learn.maths.losses:ppo_clip",
    "pairwise": "leverplus.learn.maths.losses:pairwise",
    "info_nce": "leverplus.learn.maths.losses:info_nce",
}
"""The formulas of the other stages. Each is called by its own stage with what that stage has; no recipe names one."""
LOSSES: Table = {**STAGE_LOSSES, **LISTWISE_LOSSES}
"""Every loss by name, for whoever lists them."""
ARMS: Table = {
    "zero_shot": "leverplus.arms.nearest:ZeroShot",
    "random": "leverplus.arms.nearest:Random",
    "nearest_text": "leverplus.arms.nearest:NearestText",
    "nearest_image": "leverplus.arms.nearest:NearestImage",
    "nearest_both": "leverplus.arms.nearest:NearestBoth",
    "two_stage": "leverplus.arms.nearest:TwoStage",
    "mmr": "leverplus.arms.nearest:Mmr",
    "bm25": "leverplus.arms.by_words:NearestWords",
    "hybrid": "leverplus.arms.by_words:Hybrid",
    "masked": "leverplus.arms.by_words:NearestMasked",
    "by_answer": "leverplus.arms.by_answer:ByAnswer",
    "cover": "leverplus.arms.cover:Cover",
    "predicted": "leverplus.arms.by_answer:Predicted",
    "fixed": "leverplus.arms.fixed:Fixed",
    "fixed_nearest": "leverplus.arms.fixed:FixedNearest",
    "majority": "leverplus.arms.voting:Majority",
    "label_vote": "leverplus.arms.voting:LabelVote",
    "label_regression": "leverplus.arms.labels:LabelRegression",
    "copy_nearest": "leverplus.arms.copy_nearest:CopyNearest",
    "label_rank": "leverplus.arms.labels:LabelRank",
    "effects": "leverplus.arms.effects:EffectsArm",
    "learned": "leverplus.learn.arm:Learned",
    "learned_auto": "leverplus.learn.arm:LearnedAuto",
    "vote": "leverplus.arms.composed:Vote",
    "fused": "leverplus.arms.fused:Fused",
}
"""Every way of choosing, in the order of tables."""
SAMPLERS: Table = {
    "random": "leverplus.arms.pools:random",
    "nearest_text": "leverplus.arms.pools:nearest_text",
    "nearest_image": "leverplus.arms.pools:nearest_image",
    "nearest_both": "leverplus.arms.pools:nearest_both",
    "mix": "leverplus.arms.pools:mix",
    "two_stage": "leverplus.arms.pools:two_stage",
    "mmr": "leverplus.arms.pools:mmr",
    "corpus": "leverplus.arms.pools:corpus",
}
POLICIES: Table = {
    "bi_encoder_gate": "leverplus.learn.policies.presets:BI_ENCODER_GATE",
    "cross_attention": "leverplus.learn.policies.presets:CROSS_ATTENTION",
    "vector_gate": "leverplus_lab.selectors.presets:VECTOR_GATE",
    "recurrent": "leverplus_lab.selectors.presets:RECURRENT",
    "diverse": "leverplus_lab.selectors.presets:DIVERSE",
    "pool_aware": "leverplus_lab.selectors.presets:POOL_AWARE",
    "additive_head": "leverplus_lab.selectors.presets:ADDITIVE_HEAD",
    "bilinear_head": "leverplus_lab.selectors.presets:BILINEAR_HEAD",
    "topic_coverage": "leverplus_lab.selectors.presets:TOPIC_COVERAGE",
    "volume": "leverplus_lab.selectors.presets:VOLUME",
    "parallel_slots": "leverplus_lab.selectors.presets:PARALLEL_SLOTS",
    "two_stage": "leverplus_lab.selectors.presets:TWO_STAGE",
    "stopping": "leverplus_lab.selectors.presets:STOPPING",
    "id_gpt2_faithful": "leverplus_lab.legacy.presets:ID_GPT2_FAITHFUL",
    "id_lstm_faithful": "leverplus_lab.legacy.presets:ID_LSTM_FAITHFUL",
    "bi_encoder_gate_faithful": "leverplus_lab.legacy.presets:BI_ENCODER_GATE_FAITHFUL",
    "cross_attention_faithful": "leverplus_lab.legacy.presets:CROSS_ATTENTION_FAITHFUL",
    "vector_gate_faithful": "leverplus_lab.legacy.presets:VECTOR_GATE_FAITHFUL",
    "recurrent_faithful": "leverplus_lab.legacy.presets:RECURRENT_FAITHFUL",
    "diverse_faithful": "leverplus_lab.legacy.presets:DIVERSE_FAITHFUL",
    "pool_aware_faithful": "leverplus_lab.legacy.presets:POOL_AWARE_FAITHFUL",
    "additive_head_faithful": "leverplus_lab.legacy.presets:ADDITIVE_HEAD_FAITHFUL",
    "bilinear_head_faithful": "leverplus_lab.legacy.presets:BILINEAR_HEAD_FAITHFUL",
    "topic_coverage_faithful": "leverplus_lab.legacy.presets:TOPIC_COVERAGE_FAITHFUL",
    "volume_faithful": "leverplus_lab.legacy.presets:VOLUME_FAITHFUL",
    "parallel_slots_faithful": "leverplus_lab.legacy.presets:PARALLEL_SLOTS_FAITHFUL",
    "two_stage_faithful": "leverplus_lab.legacy.presets:TWO_STAGE_FAITHFUL",
    "stopping_faithful": "leverplus_lab.legacy.presets:STOPPING_FAITHFUL",
}
MODELS: Table = {
    "pointer": "leverplus.learn.policies.pointer:PointerPolicy",
    "gpt2": "leverplus_lab.legacy.ids:IdPolicy",
    "lstm": "leverplus_lab.legacy.ids:IdPolicy",
}
"""The classes of selectors, by `select.model`."""
HEADS: Table = {
    "cosine": "leverplus.learn.policies.heads:Cosine",
    "additive": "leverplus_lab.selectors.heads:Additive",
    "bilinear": "leverplus_lab.selectors.heads:Bilinear",
}
STATES: Table = {
    "vector_gate": "leverplus_lab.selectors.states:VectorGate",
    "gru": "leverplus_lab.selectors.states:Recurrent",
}
SET_TERMS: Table = {
    "mmr": "leverplus.learn.policies.setterms:Redundancy",
    "coverage": "leverplus_lab.selectors.setterms:Coverage",
    "dpp": "leverplus_lab.selectors.setterms:Volume",
}
DECODERS: Table = {
    "slots": "leverplus_lab.selectors.decoders:Slots",
    "refine": "leverplus_lab.selectors.decoders:Refine",
}
ADAPTERS: Table = {
    "lora": "leverplus_lab.selectors.adapters:Adapters",
    "live": "leverplus_lab.selectors.live:LiveEmbedder",
}
"""Parts of a selector that only the forms of the earlier code have; recipes name them by settings of `[select]`."""
METRICS: Table = {
    "exact": "leverplus.data.metrics.text:exact",
    "exact_match": "leverplus.data.metrics.text:exact_match",
    "vqa_accuracy": "leverplus.data.metrics.vqa:vqa_accuracy",
    "label_accuracy": "leverplus.data.metrics.text:label_accuracy",
    "token_f1": "leverplus.data.metrics.text:token_f1",
    "edit_similarity": "leverplus.data.metrics.text:edit_similarity",
    "cider": "leverplus_lab.cider:Cider",
    "number": "leverplus.data.metrics.values:Number",
    "json": "leverplus.data.metrics.values:json_equal",
    "json_fields": "leverplus.data.metrics.values:json_fields",
    "sql": "leverplus.data.metrics.sql:sql",
    "sql_execution": "leverplus.data.metrics.sql:SqlExecution",
    "judge": "leverplus.data.metrics.text:JudgedByModel",
}
CUTS: Table = {
    "plain": "leverplus.data.metrics.cuts:plain_answer",
    "line": "leverplus.data.metrics.cuts:line_answer",
    "fenced": "leverplus.data.metrics.cuts:fenced_answer",
    "json": "leverplus.data.metrics.cuts:json_answer",
    "vqa": "leverplus.data.metrics.cuts:vqa_answer",
    "caption": "leverplus_lab.tasks:caption_answer",
    "vqa_stem": "leverplus_lab.stems:stemmed_vqa_answer",
}
EMBEDDERS: Table = {
    "world": "leverplus_lab.world.embedder:world_embedder",
    "sentence": "leverplus.encode.networks:SentenceEncoder",
    "clip": "leverplus.encode.networks:PictureTextEncoder",
    "siglip": "leverplus.encode.networks:PictureTextEncoder",
    "onnx": "leverplus.encode.pretrained:OnnxEncoder",
    "endpoint": "leverplus.encode.endpoint:EndpointEncoder",
    "stored": "leverplus.encode.cached:StoredVectors",
    "tfidf": "leverplus.encode.tfidf:TfidfVectors",
}
BACKENDS: Table = {
    "world": "leverplus_lab.world.backend:world_backend",
    "openai": "leverplus.models.api.backend:OpenAIBackend",
    "hf": "leverplus.models.hf.backend:HfBackend",
    "table": "leverplus.scores.tables:TableBackend",
    "vllm": "leverplus.models.vllm:VllmBackend",
    "callable": "leverplus.models.callable:CallableBackend",
}
WRITING: Table = {
    "beams": "leverplus_lab.beams:beam_search",
}
"""How a model of transformers writes where `model.beams` asks for more than the likeliest token."""
TASKS: Table = {
    "world": "leverplus_lab.world.task:world_task",
    "okvqa": "leverplus.data.tasks.vqa:okvqa",
    "vqav2": "leverplus.data.tasks.vqa:vqav2",
    "okvqa_captions": "leverplus_lab.tasks:okvqa_captions",
    "jsonl": "leverplus.data.tasks.jsonl:jsonl",
    "coco_captions": "leverplus_lab.tasks:coco_captions",
    "trec": "leverplus_lab.tasks:trec",
    "sst2": "leverplus_lab.tasks:sst2",
    "labels": "leverplus.data.tasks.jsonl:labels",
}
SEARCHES: Table = {
    "mixed": "leverplus_lab.search.mixed:mixed_groups",
    "mine": "leverplus_lab.search.mining:mine_flat",
}
"""Ways to find groups that only some recipes ask for (`score.search`, `score.mine`)."""
STAGES: Table = {
    "label_pretraining": "leverplus.learn.stages:Listwise",
    "contrastive": "leverplus.learn.stages:Contrastive",
    "sft": "leverplus.learn.stages:Sft",
    "rce": "leverplus.learn.stages:Rce",
    "grpo": "leverplus.learn.grpo:Grpo",
    "listwise": "leverplus.learn.stages:Listwise",
    "pairwise": "leverplus_lab.pairwise:Pairwise",
}
CHECKS: Table = {
    "ratio_not_one": "leverplus_doctor.checks.preflight:ratio_not_one",
    "dropout_in_ratio": "leverplus_doctor.checks.preflight:dropout_in_ratio",
    "reference_not_start": "leverplus_doctor.checks.preflight:reference_not_start",
    "stale_behaviour": "leverplus_doctor.checks.preflight:stale_behaviour",
    "missing_density": "leverplus_doctor.checks.preflight:missing_density",
    "checkpoint_not_whole": "leverplus_doctor.checks.preflight:checkpoint_not_whole",
    "pool_builder_differs": "leverplus_doctor.checks.preflight:pool_builder_differs",
    "pool_too_small": "leverplus_doctor.checks.preflight:pool_too_small",
    "dead_setting": "leverplus_doctor.checks.preflight:dead_setting",
    "query_leaks": "leverplus_doctor.checks.preflight:query_leaks",
    "split_overlap": "leverplus_doctor.checks.preflight:split_overlap",
    "scores_not_reproducible": "leverplus_doctor.checks.preflight:scores_not_reproducible",
    "worse_than_chance": "leverplus_doctor.checks.preflight:worse_than_chance",
    "labels_unreachable": "leverplus_doctor.checks.preflight:labels_unreachable",
    "seed_missing": "leverplus_doctor.checks.preflight:seed_missing",
    "reward_constant": "leverplus_doctor.checks.course:reward_constant",
    "reward_hacked": "leverplus_doctor.checks.course:reward_hacked",
    "learning_rate_too_large": "leverplus_doctor.checks.course:learning_rate_too_large",
    "kl_explodes": "leverplus_doctor.checks.course:kl_explodes",
    "length_drifts": "leverplus_doctor.checks.course:length_drifts",
    "resumed_without_optimiser": "leverplus_doctor.checks.course:resumed_without_optimiser",
    "seeds_outweigh_gain": "leverplus_doctor.checks.course:seeds_outweigh_gain",
    "flat_groups": "leverplus_doctor.checks.groups:flat_groups",
    "top_k_before_baseline": "leverplus_doctor.checks.groups:top_k_before_baseline",
    "advantage_std_tiny": "leverplus_doctor.checks.groups:advantage_std_tiny",
    "never_right": "leverplus_doctor.checks.groups:never_right",
    "no_headroom": "leverplus_doctor.checks.groups:no_headroom",
    "reward_fights_metric": "leverplus_doctor.checks.groups:reward_fights_metric",
    "gt_prob_empty": "leverplus_doctor.checks.groups:gt_prob_empty",
    "advantage_explodes": "leverplus_doctor.checks.groups:advantage_explodes",
    "unmeasured_labels": "leverplus_doctor.checks.groups:unmeasured_labels",
    "filtered_by_outcome": "leverplus_doctor.checks.groups:filtered_by_outcome",
    "source_tells_label": "leverplus_doctor.checks.groups:source_tells_label",
    "small_groups": "leverplus_doctor.checks.groups:small_groups",
    "pick_no_better_than_group": "leverplus_doctor.checks.groups:pick_no_better_than_group",
    "single_length_data": "leverplus_doctor.checks.groups:single_length_data",
    "normalised_twice": "leverplus_doctor.checks.groups:normalised_twice",
    "kl_at_start": "leverplus_doctor.checks.ratio:kl_at_start",
    "inverted_kl": "leverplus_doctor.checks.ratio:inverted_kl",
    "kl_estimate_disagrees": "leverplus_doctor.checks.ratio:kl_estimate_disagrees",
    "beta_every_batch": "leverplus_doctor.checks.ratio:beta_every_batch",
    "kl_weight_on_rails": "leverplus_doctor.checks.ratio:kl_weight_on_rails",
    "kl_collapsed": "leverplus_doctor.checks.ratio:kl_collapsed",
    "kl_from_flat_groups": "leverplus_doctor.checks.ratio:kl_from_flat_groups",
    "clip_saturated": "leverplus_doctor.checks.ratio:clip_saturated",
    "weights_degenerate": "leverplus_doctor.checks.ratio:weights_degenerate",
    "likelihood_displaced": "leverplus_doctor.checks.ratio:likelihood_displaced",
    "not_finite": "leverplus_doctor.checks.ratio:not_finite",
    "dead_updates": "leverplus_doctor.checks.learning:dead_updates",
    "identical_picks": "leverplus_doctor.checks.learning:identical_picks",
    "learning_rate_tiny": "leverplus_doctor.checks.learning:learning_rate_tiny",
    "learning_rate_without_signal": "leverplus_doctor.checks.learning:learning_rate_without_signal",
    "batch_of_one": "leverplus_doctor.checks.learning:batch_of_one",
    "nothing_learnt": "leverplus_doctor.checks.learning:nothing_learnt",
    "selected_by_loss": "leverplus_doctor.checks.learning:selected_by_loss",
    "claimed_best_is_not": "leverplus_doctor.checks.learning:claimed_best_is_not",
    "reward_falls": "leverplus_doctor.checks.learning:reward_falls",
    "overfits": "leverplus_doctor.checks.learning:overfits",
    "loss_falls_by_kl_only": "leverplus_doctor.checks.learning:loss_falls_by_kl_only",
    "entropy_collapsed": "leverplus_doctor.checks.learning:entropy_collapsed",
    "entropy_stuck": "leverplus_doctor.checks.learning:entropy_stuck",
    "query_ignored": "leverplus_doctor.checks.learning:query_ignored",
    "comparison_without_n": "leverplus_doctor.checks.results:comparison_without_n",
    "accuracy_falls_with_n": "leverplus_doctor.checks.results:accuracy_falls_with_n",
    "difference_inside_noise": "leverplus_doctor.checks.results:difference_inside_noise",
    "same_run_twice": "leverplus_doctor.checks.results:same_run_twice",
    "identical_rows": "leverplus_doctor.checks.results:identical_rows",
    "winners_curse": "leverplus_doctor.checks.results:winners_curse",
    "missing_anchors": "leverplus_doctor.checks.results:missing_anchors",
    "conditions_differ": "leverplus_doctor.checks.results:conditions_differ",
    "worse_than_random": "leverplus_doctor.checks.results:worse_than_random",
    "below_training_free": "leverplus_doctor.checks.results:below_training_free",
    "few_items": "leverplus_doctor.checks.results:few_items",
    "hub_demonstrations": "leverplus_doctor.checks.results:hub_demonstrations",
    "stop_collapse": "leverplus_doctor.checks.results:stop_collapse",
    "more_shots_hurt": "leverplus_doctor.checks.results:more_shots_hurt",
    "beyond_trained_length": "leverplus_doctor.checks.results:beyond_trained_length",
    "shots_identical": "leverplus_doctor.checks.results:shots_identical",
}
LEGACY: Table = {
    "checkpoint": "leverplus_lab.legacy.checkpoints:read_legacy",
    "group_stats": "leverplus_lab.legacy.imports:group_stats",
    "groups": "leverplus_lab.legacy.imports:open_groups",
    "imported_groups": "leverplus_lab.legacy.groups:load_groups",
    "imitation": "leverplus_lab.legacy.groups:require_imitation",
    "beam_gain": "leverplus_lab.legacy.groups:beam_gain",
    "report": "leverplus_lab.legacy.published:parse_report",
    "checked_report": "leverplus_lab.legacy.published:checked_report",
}
"""Readers of the earlier code's files."""
DOCTOR: Table = {
    "monitor": "leverplus_doctor.monitor:Monitor",
    "examine_run": "leverplus_doctor.monitor:examine_run",
}
"""What a training asks of the doctor: to look on, and to say at the end what it found."""
ABOVE: Table = {
    "run_source": "leverplus.run.pack:RunSource",
    "report": "leverplus.web.report:build_report",
}
"""What a room asks of one above it: a bundle of a run, a run of its report."""
COMMANDS: Table = {
    "fit": "leverplus.cli.fit:fit",
    "select": "leverplus.cli.use:select",
    "demos add": "leverplus.cli.use:add_demos",
    "demos delete": "leverplus.cli.use:delete_demos",
    "demos list": "leverplus.cli.use:list_demos",
    "demos audit": "leverplus.cli.use:audit_demos",
    "pack": "leverplus.cli.use:pack",
    "serve": "leverplus.cli.use:serve",
    "run": "leverplus.cli.experiments:run",
    "recipes": "leverplus.cli.experiments:recipes",
    "check": "leverplus.cli.experiments:check",
    "pool": "leverplus.cli.experiments:pool",
    "score": "leverplus.cli.experiments:score",
    "train": "leverplus.cli.experiments:train",
    "eval": "leverplus.cli.experiments:evaluate",
    "sweep": "leverplus.cli.experiments:sweep",
    "report": "leverplus.cli.results:report",
    "view": "leverplus.cli.results:view",
    "compare": "leverplus.cli.results:compare",
    "doctor": "leverplus_doctor.command:doctor",
    "plan": "leverplus.cli.results:plan",
    "plan-n": "leverplus.cli.results:plan_n",
    "diff": "leverplus.cli.results:diff",
    "bench": "leverplus_lab.cli.bench:bench",
    "task check": "leverplus.cli.stored:check_task",
    "store stats": "leverplus.cli.stored:store_stats",
    "store export": "leverplus.cli.stored:export_store",
    "store merge": "leverplus.cli.stored:merge_stores",
    "store verify": "leverplus.cli.stored:verify_store",
    "record": "leverplus.cli.stored:record",
    "import": "leverplus_lab.cli.import_:import_file",
    "export": "leverplus_lab.cli.export:export",
    "world ladder": "leverplus_lab.cli.world:ladder",
    "world sample": "leverplus_lab.cli.world:sample",
}
"""The commands of `lever`, some with a verb."""

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
    ("cut", CUTS),
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
        hint = (
            f"did you mean '{near[0]}'?"
            if near
            else f"known: {', '.join(sorted(table))}"
        )
        raise UnknownName(f"there is no {kind} called '{name}'; {hint}")
    module, attribute = table[name].split(":")
    with errors.needs_extra(f"the {kind} '{name}'", errors.PART_EXTRAS.get(name, "")):
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
        raise UnknownName(
            f"the {kind} '{name}' is not there: module {module} has no '{attribute}'"
        )
    return getattr(found, attribute)
