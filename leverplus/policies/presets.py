"""Named selectors, each a choice of parts; and the `faithful` forms of the old ones with their old limits.

A repaired form sees the candidate's answer, learns its temperature, forgets half as much and chooses up to 8. A
faithful form is the old model: mean of image and question, no answer, fixed temperature, dropout 0.5, two shots.
"""

from __future__ import annotations

from dataclasses import replace

from leverplus.recipe.selection import PolicyConfig

_REPAIRED = PolicyConfig(learn_temperature=True)
_OLD = PolicyConfig(
    query_fields=("image", "text"),
    demo_fields=("image", "text"),
    fuse="mean",
    dropout=0.5,
    max_shots=2,
)

# the parts that make each idea; every other value comes from the form
_BI_ENCODER = {"trunk": "bi_encoder", "state": "scalar_gate", "temperature": 0.5, "hidden": 512, "dropout": 0.08}
_GRU = {"state": "gru", "step_embedding": True}
_MMR = {**_GRU, "mmr": "max"}
_SLOTS = {"decoder": "slots", "slot_layers": 2, "slot_attends": True}
_REFINE = {**_GRU, "decoder": "refine", "refine_top": 8, "refine": "attention"}
_GPT2 = {"model": "gpt2", "hidden": 512, "layers": 2, "heads": 8, "dropout": 0.1}
_LSTM = {"model": "lstm", "hidden": 128, "layers": 2, "dropout": 0.1}


def _repaired(**parts: object) -> PolicyConfig:
    return replace(_REPAIRED, **parts)  # type: ignore[arg-type]


def _faithful(**parts: object) -> PolicyConfig:
    return replace(_OLD, **parts)  # type: ignore[arg-type]


ID_GPT2 = _repaired(**_GPT2)
ID_LSTM = _repaired(**_LSTM)
BI_ENCODER_GATE = _repaired(**_BI_ENCODER)
CROSS_ATTENTION = _repaired()
VECTOR_GATE = _repaired(state="vector_gate")
RECURRENT = _repaired(**_GRU)
DIVERSE = _repaired(**_MMR)
POOL_AWARE = _repaired(**_MMR, trunk="set_encoder")
ADDITIVE_HEAD = _repaired(**_GRU, head="additive")
BILINEAR_HEAD = _repaired(**_GRU, head="bilinear")
TOPIC_COVERAGE = _repaired(**_GRU, topics=16)
VOLUME = _repaired(**_GRU, dpp="exact", dpp_rank=32)
PARALLEL_SLOTS = _repaired(**_SLOTS)
TWO_STAGE = _repaired(**_REFINE)
STOPPING = _repaired(**_GRU, stop="anywhere")
INTERACTION = _repaired(
    hidden=128, head="interaction_mlp", state="gru", step_embedding=True, temperature=1.0, dropout=0.1
)

ID_GPT2_FAITHFUL = _faithful(**_GPT2, id_form="adapter")
ID_LSTM_FAITHFUL = _faithful(**_LSTM, id_form="adapter")
BI_ENCODER_GATE_FAITHFUL = _faithful(**_BI_ENCODER)
CROSS_ATTENTION_FAITHFUL = _faithful()
VECTOR_GATE_FAITHFUL = _faithful(state="vector_gate")
RECURRENT_FAITHFUL = _faithful(**_GRU)
DIVERSE_FAITHFUL = _faithful(**_MMR)
POOL_AWARE_FAITHFUL = _faithful(**_MMR, trunk="set_encoder")
ADDITIVE_HEAD_FAITHFUL = _faithful(**_GRU, head="additive")
BILINEAR_HEAD_FAITHFUL = _faithful(**_GRU, head="bilinear")
TOPIC_COVERAGE_FAITHFUL = _faithful(**_GRU, topics=16)
VOLUME_FAITHFUL = _faithful(**_GRU, dpp="bound", dpp_rank=32)
PARALLEL_SLOTS_FAITHFUL = _faithful(**_SLOTS, slot_form="asked")
TWO_STAGE_FAITHFUL = _faithful(**_REFINE, refine_others="drop")
STOPPING_FAITHFUL = _faithful(**_GRU, stop="anywhere")
