"""The `[select]` section: which selector is built, part by part, or from a named preset."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leverplus import catalog
from leverplus.data.settings import read_section, setting

QUERY_FIELDS = ("image", "text")
DEMO_FIELDS = ("image", "text", "answer")


@dataclass(frozen=True)
class PolicyConfig:
    """A selector from parts: what it sees (fields), how it reads (trunk), remembers (state), judges (head, set terms)
    and chooses (decoder, stop). One code path; every named selector is a choice of these values."""

    preset: str | None = setting(
        None,
        "start from a named selector; keys given here win",
        choices=catalog.POLICIES,
    )
    model: str = setting(
        "pointer",
        "pointer network, or a language model over item ids",
        choices=("pointer", "gpt2", "lstm"),
    )
    id_form: str = setting(
        "adapter",
        "how vectors join ids (model = gpt2, lstm): each field as it is, or each through a small network of its own",
        choices=("added", "adapter"),
    )
    query_fields: tuple[str, ...] = setting(
        ("image", "text"), "what is seen of the query", choices=QUERY_FIELDS
    )
    demo_fields: tuple[str, ...] = setting(
        ("image", "text", "answer"),
        "what is seen of a candidate; its answer is known",
        choices=DEMO_FIELDS,
    )
    fuse: str = setting(
        "concat", "how fields become one vector", choices=("mean", "concat")
    )
    trunk: str = setting(
        "cross_attention",
        "how query and candidates are read",
        choices=("bi_encoder", "cross_attention", "set_encoder"),
    )
    hidden: int = setting(256, "width of the selector", low=4)
    layers: int = setting(
        1, "cross-attention layers, or layers of an id model", low=1, high=12
    )
    heads: int = setting(1, "attention heads; divides hidden", low=1)
    pool_layers: int = setting(
        1, "self-attention layers over the pool (trunk = set_encoder)", low=1, high=12
    )
    dropout: float = setting(0.1, "dropout in supervised stages", low=0.0, high=0.9)
    attention_dropout: float = setting(
        0.1, "dropout on attention weights in supervised stages", low=0.0, high=0.9
    )
    state: str = setting(
        "none",
        "what is remembered of earlier picks",
        choices=("none", "scalar_gate", "vector_gate", "gru"),
    )
    step_embedding: bool = setting(
        False, "add a learned vector for the number of the step"
    )
    head: str = setting(
        "cosine",
        "how a candidate is scored",
        choices=catalog.HEADS,
        part="head",
    )
    temperature: float = setting(0.1, "scores are divided by this", above=0.0)
    learn_temperature: bool = setting(False, "let training change the temperature")
    mmr: str = setting(
        "none", "penalty on likeness to earlier picks", choices=("none", "max")
    )
    mmr_strength: float = setting(
        0.1, "this penalty at first, before its softplus; training changes it"
    )
    topics: int = setting(
        0, "topic prototypes of the coverage term; 0 leaves it out", low=0
    )
    dpp: str = setting(
        "none",
        "volume term: how much of the volume of the picks a candidate adds, by its likest pick",
        choices=("none", "bound"),
    )
    dpp_rank: int = setting(32, "rank of the volume term's kernel", low=1)
    pairs: bool = setting(
        False,
        "also weighs what answers, words and values say of a question and an example; begins as by_answer",
    )
    decoder: str = setting(
        "step",
        "one pick after the other, parallel slots, or re-scoring of the best",
        choices=("step", "slots", "refine"),
    )
    slot_layers: int = setting(
        2, "self-attention layers over slots (decoder = slots)", low=1, high=12
    )
    slot_attends: bool = setting(
        True, "slots also attend to the candidates (decoder = slots)"
    )
    refine: str = setting(
        "attention",
        "how the best are re-scored (decoder = refine)",
        choices=("attention", "mlp"),
    )
    refine_top: int = setting(8, "how many are re-scored (decoder = refine)", low=1)
    refine_others: str = setting(
        "keep",
        "the others keep their cheap score, or are lost",
        choices=("keep", "drop"),
        mistakes=("drop",),
    )
    stop: str = setting(
        "never",
        "when it may stop: never; instead of any demonstration; after the first; anywhere",
        choices=("never", "none_only", "after_first", "anywhere"),
    )
    max_shots: int = setting(8, "the longest list it can choose", low=1, high=16)

    def parts(self) -> tuple[str, ...]:
        """The parts that have weights of their own: what `freeze` can name, adapters aside."""
        if self.model != "pointer":
            return (
                ("embedding", "body", "output")
                if self.model == "lstm"
                else ("embedding", "body")
            )
        there = {
            "projections": True,
            "attention": self.trunk != "bi_encoder",
            "state": self.state != "none" or self.step_embedding,
            "head": self.head != "cosine" or self.learn_temperature,
            "pairs": self.pairs,
            "set_terms": self.mmr != "none" or self.topics > 0 or self.dpp != "none",
            "decoder": self.decoder != "step",
            "stop": self.stop != "never",
        }
        return tuple(part for part, present in there.items() if present)

    def problems(self, prefix: str = "select.") -> list[str]:
        """Values that are allowed one by one but not together."""
        found = []
        if self.hidden % self.heads:
            found.append(
                f"{prefix}heads = {self.heads}: must divide {prefix}hidden = {self.hidden}"
            )
        if not self.query_fields or not self.demo_fields:
            found.append(
                f"{prefix}query_fields and {prefix}demo_fields: name at least one field each"
            )
        if self.model != "pointer" and (
            self.stop not in ("never", "anywhere") or self.decoder != "step"
        ):
            found.append(
                f'{prefix}model = "{self.model}": needs decoder = "step" and stop = "never" or "anywhere"'
            )
        if self.decoder == "slots" and self.state != "none":
            found.append(
                f'{prefix}decoder = "slots" chooses all at once: needs state = "none"'
            )
        if self.pairs and self.model != "pointer":
            found.append(f'{prefix}pairs = true: needs {prefix}model = "pointer"')
        return found


def read_selection(
    values: Mapping[str, Any], problems: list[str], prefix: str = "select."
) -> PolicyConfig | None:
    """The section from TOML values: the preset's values, then the keys given, every problem reported."""
    name = values.get("preset")
    base: dict[str, Any] = {}
    if isinstance(name, str) and name in catalog.POLICIES:
        base = dataclasses.asdict(catalog.load(catalog.POLICIES, name, "policy preset"))
    config = read_section(PolicyConfig, {**base, **values}, prefix, problems)
    if config is None:
        return None
    found = config.problems(prefix)
    problems.extend(found)
    return None if found else config
