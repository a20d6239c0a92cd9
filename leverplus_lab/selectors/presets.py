"""Named selectors with parts of the earlier code; `leverplus_lab/legacy/presets.py` has its own forms of them."""

from __future__ import annotations

from dataclasses import replace

from leverplus.learn.policies.presets import CROSS_ATTENTION

# the settings that make each idea, shared with the forms of the earlier code; all others come from the form
GRU_PARTS = {"state": "gru", "step_embedding": True}
MMR_PARTS = {**GRU_PARTS, "mmr": "max"}
SLOT_PARTS = {"decoder": "slots", "slot_layers": 2, "slot_attends": True}
REFINE_PARTS = {
    **GRU_PARTS,
    "decoder": "refine",
    "refine_top": 8,
    "refine": "attention",
}


VECTOR_GATE = replace(CROSS_ATTENTION, state="vector_gate")
RECURRENT = replace(CROSS_ATTENTION, **GRU_PARTS)  # type: ignore[arg-type]
DIVERSE = replace(CROSS_ATTENTION, **MMR_PARTS)  # type: ignore[arg-type]
POOL_AWARE = replace(DIVERSE, trunk="set_encoder")
ADDITIVE_HEAD = replace(RECURRENT, head="additive")
BILINEAR_HEAD = replace(RECURRENT, head="bilinear")
TOPIC_COVERAGE = replace(RECURRENT, topics=16)
VOLUME = replace(RECURRENT, dpp="bound", dpp_rank=32)
PARALLEL_SLOTS = replace(CROSS_ATTENTION, **SLOT_PARTS)  # type: ignore[arg-type]
TWO_STAGE = replace(CROSS_ATTENTION, **REFINE_PARTS)  # type: ignore[arg-type]
STOPPING = replace(RECURRENT, stop="anywhere")
