"""Selectors of the earlier code: its two language models over item ids, and `faithful` forms with their old limits.

A faithful form is the old model: mean of image and question, no answer, fixed temperature, dropout 0.5.
"""

from __future__ import annotations

from dataclasses import replace

from leverplus.learn.policies.presets import BI_ENCODER_GATE
from leverplus.learn.policies.settings import PolicyConfig
from leverplus_lab.selectors.presets import (
    GRU_PARTS,
    MMR_PARTS,
    REFINE_PARTS,
    SLOT_PARTS,
)

_OLD = PolicyConfig(
    query_fields=("image", "text"),
    demo_fields=("image", "text"),
    fuse="mean",
    dropout=0.5,
)

_GPT2 = {"model": "gpt2", "hidden": 512, "layers": 2, "heads": 8, "dropout": 0.1}
_LSTM = {"model": "lstm", "hidden": 128, "layers": 2, "dropout": 0.1}


def _faithful(**parts: object) -> PolicyConfig:
    return replace(_OLD, **parts)  # type: ignore[arg-type]


ID_GPT2_FAITHFUL = _faithful(**_GPT2)
ID_LSTM_FAITHFUL = _faithful(**_LSTM)
BI_ENCODER_GATE_FAITHFUL = replace(
    BI_ENCODER_GATE,
    query_fields=_OLD.query_fields,
    demo_fields=_OLD.demo_fields,
    fuse="mean",
    learn_temperature=False,
)
CROSS_ATTENTION_FAITHFUL = _faithful()
VECTOR_GATE_FAITHFUL = _faithful(state="vector_gate")
RECURRENT_FAITHFUL = _faithful(**GRU_PARTS)
DIVERSE_FAITHFUL = _faithful(**MMR_PARTS)
POOL_AWARE_FAITHFUL = _faithful(**MMR_PARTS, trunk="set_encoder")
ADDITIVE_HEAD_FAITHFUL = _faithful(**GRU_PARTS, head="additive")
BILINEAR_HEAD_FAITHFUL = _faithful(**GRU_PARTS, head="bilinear")
TOPIC_COVERAGE_FAITHFUL = _faithful(**GRU_PARTS, topics=16)
VOLUME_FAITHFUL = _faithful(
    **GRU_PARTS,
    dpp="bound",
    dpp_rank=32,
)
PARALLEL_SLOTS_FAITHFUL = _faithful(**SLOT_PARTS)
TWO_STAGE_FAITHFUL = _faithful(**REFINE_PARTS, refine_others="drop")
STOPPING_FAITHFUL = _faithful(**GRU_PARTS, stop="anywhere")
