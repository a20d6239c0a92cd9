"""Named selectors, each a choice of parts; `leverplus_lab/legacy/presets.py` has the forms of the earlier code.

A named selector sees the candidate's answer, learns its temperature, uses the default dropout of 0.1 (the earlier
code's forms: 0.5) and chooses up to 8.
"""

from __future__ import annotations

from dataclasses import replace

from leverplus.learn.policies.settings import PolicyConfig

_REPAIRED = PolicyConfig(learn_temperature=True)

# the settings that make each idea, shared with the forms of the earlier code; all others come from the form
BI_ENCODER_PARTS = {
    "trunk": "bi_encoder",
    "state": "scalar_gate",
    "temperature": 0.5,
    "hidden": 512,
    "dropout": 0.08,
}
GRU_PARTS = {"state": "gru", "step_embedding": True}
MMR_PARTS = {**GRU_PARTS, "mmr": "max"}
SLOT_PARTS = {"decoder": "slots", "slot_layers": 2, "slot_attends": True}
REFINE_PARTS = {
    **GRU_PARTS,
    "decoder": "refine",
    "refine_top": 8,
    "refine": "attention",
}


def _repaired(**parts: object) -> PolicyConfig:
    return replace(_REPAIRED, **parts)  # type: ignore[arg-type]


BI_ENCODER_GATE = _repaired(**BI_ENCODER_PARTS)
CROSS_ATTENTION = _repaired()
VECTOR_GATE = _repaired(state="vector_gate")
RECURRENT = _repaired(**GRU_PARTS)
DIVERSE = _repaired(**MMR_PARTS)
POOL_AWARE = _repaired(**MMR_PARTS, trunk="set_encoder")
ADDITIVE_HEAD = _repaired(**GRU_PARTS, head="additive")
BILINEAR_HEAD = _repaired(**GRU_PARTS, head="bilinear")
TOPIC_COVERAGE = _repaired(**GRU_PARTS, topics=16)
VOLUME = _repaired(
    **GRU_PARTS,
    dpp="bound",
    dpp_rank=32,
)
PARALLEL_SLOTS = _repaired(**SLOT_PARTS)
TWO_STAGE = _repaired(**REFINE_PARTS)
STOPPING = _repaired(**GRU_PARTS, stop="anywhere")
