"""Named selectors, each a choice of parts; `leverplus_lab/selectors/presets.py` has those of further parts.

A named selector sees the candidate's answer, learns its temperature, uses the default dropout of 0.1 (the earlier
code's forms: 0.5) and chooses up to 8.
"""

from __future__ import annotations

from dataclasses import replace

from leverplus.learn.policies.settings import PolicyConfig

CROSS_ATTENTION = PolicyConfig(learn_temperature=True)
BI_ENCODER_GATE = replace(
    CROSS_ATTENTION,
    trunk="bi_encoder",
    state="scalar_gate",
    temperature=0.5,
    hidden=512,
    dropout=0.08,
)
