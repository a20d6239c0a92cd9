"""Every named part on one page: "name": "module:attribute", loaded when it is asked for.

Adding a part is its code, one row here and its cases in the mirrored test.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from leverplus.errors import UnknownName

Table = Mapping[str, str]

REWARDS: Table = {
    "hard_plus_soft": "leverplus.rewards:hard_plus_soft",
    "hard_plus_soft_v2": "leverplus.rewards:hard_plus_soft_v2",
    "separated": "leverplus.rewards:separated",
    "hard_only": "leverplus.rewards:hard_only",
    "soft_only": "leverplus.rewards:soft_only",
    "gt_prob": "leverplus.rewards:gt_prob",
    "hard_plus_gtprob": "leverplus.rewards:hard_plus_gtprob",
    "hard01_plus_gtprob": "leverplus.rewards:hard_plus_gtprob",
    "hard01_plus_gtprob_separated": "leverplus.rewards:hard01_plus_gtprob_separated",
    "hard_plus_gtprob_plus_rel": "leverplus.rewards:hard_plus_gtprob_plus_rel",
    "legacy": "leverplus.rewards:legacy",
    "hybrid": "leverplus.rewards:hybrid",
    "rank": "leverplus.rewards:rank",
}
ADVANTAGES: Table = {
    "zscore": "leverplus.advantages:zscore",
    "rank": "leverplus.advantages:rank",
    "centred": "leverplus.advantages:centred",
    "leave_one_out": "leverplus.advantages:leave_one_out",
}
LOSSES: Table = {
    "cross_entropy": "leverplus.losses:cross_entropy",
    "rce": "leverplus.losses:rce",
    "ppo_clip": "leverplus.losses:ppo_clip",
    "listwise": "leverplus.losses:listwise",
    "pairwise": "leverplus.losses:pairwise",
}
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
    "id_gpt2": "leverplus.policies.presets:ID_GPT2",
    "id_lstm": "leverplus.policies.presets:ID_LSTM",
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
    "id_gpt2_faithful": "leverplus.policies.presets:ID_GPT2_FAITHFUL",
    "id_lstm_faithful": "leverplus.policies.presets:ID_LSTM_FAITHFUL",
    "bi_encoder_gate_faithful": "leverplus.policies.presets:BI_ENCODER_GATE_FAITHFUL",
    "cross_attention_faithful": "leverplus.policies.presets:CROSS_ATTENTION_FAITHFUL",
    "vector_gate_faithful": "leverplus.policies.presets:VECTOR_GATE_FAITHFUL",
    "recurrent_faithful": "leverplus.policies.presets:RECURRENT_FAITHFUL",
    "diverse_faithful": "leverplus.policies.presets:DIVERSE_FAITHFUL",
    "pool_aware_faithful": "leverplus.policies.presets:POOL_AWARE_FAITHFUL",
    "additive_head_faithful": "leverplus.policies.presets:ADDITIVE_HEAD_FAITHFUL",
    "bilinear_head_faithful": "leverplus.policies.presets:BILINEAR_HEAD_FAITHFUL",
    "topic_coverage_faithful": "leverplus.policies.presets:TOPIC_COVERAGE_FAITHFUL",
    "volume_faithful": "leverplus.policies.presets:VOLUME_FAITHFUL",
    "parallel_slots_faithful": "leverplus.policies.presets:PARALLEL_SLOTS_FAITHFUL",
    "two_stage_faithful": "leverplus.policies.presets:TWO_STAGE_FAITHFUL",
    "stopping_faithful": "leverplus.policies.presets:STOPPING_FAITHFUL",
}
EMBEDDERS: Table = {
    "world": "leverplus.embedders.world:WorldEmbedder",
}
BACKENDS: Table = {
    "world": "leverplus.backends.world:WorldBackend",
}
TASKS: Table = {
    "world": "leverplus.tasks.world:WorldTask",
}
STAGES: Table = {
    "sft": "leverplus.training.stages:Sft",
    "rce": "leverplus.training.stages:Rce",
    "grpo": "leverplus.training.grpo:Grpo",
    "listwise": "leverplus.training.stages:Listwise",
    "pairwise": "leverplus.training.stages:Pairwise",
}
CHECKS: Table = {}


def load(table: Table, name: str, kind: str) -> Any:
    """The part called `name` from a table; an unknown name is answered with the nearest known one."""
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(table))}"
        raise UnknownName(f"there is no {kind} called '{name}'; {hint}")
    module, attribute = table[name].split(":")
    return getattr(import_module(module), attribute)
