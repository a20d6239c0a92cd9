"""Files as the earlier code wrote them, with invented values, and its selector network in a few lines."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def candidate(pointer: list[int], accuracy: float, **fields: Any) -> dict[str, Any]:
    return {
        "pointer": pointer,
        "pointer_pos": pointer,
        "gen_method": "beam",
        "beam_rank": 0,
        "beam_score": 0.0003,
        "logprob_score": -17.9,
        "temperature": None,
        "vqa_raw_generation": "tennis. Question",
        "vqa_pred_answer": "tennis",
        "vqa_correct": int(accuracy > 0),
        "vqa_acc_score": accuracy,
        "vqa_gt_prob": 4e-07,
        "vqa_rel_token_f1": 1.0,
        "vqa_rel_edit_sim": 0.9,
        "vqa_rel_score": 1.0,
        "vqa_eval_mode": "vqaEval",
        "eval_split_used": "train",
        "eval_failed": False,
        **fields,
    }


def rl_global() -> dict[str, Any]:
    gen = {
        "max_new_tokens": 5,
        "num_beams": 3,
        "length_penalty": 0.0,
        "min_new_tokens": 0,
        "do_sample": False,
    }
    query = {
        "query_id": 4711,
        "question_id": 2971475,
        "image_id": 297147,
        "question": "What sport is this?",
    }
    answers = {
        "gt_answers_raw": ["Tennis", "tennis", "golf"],
        "gt_answers_norm": ["tennis", "tennis", "golf"],
    }
    return {
        "_meta": {"strict_eval": True, "task_gen_args": gen},
        "4711": {
            "query": {**query, **answers},
            "pointer_candidates": [
                candidate([88, 1203], 1.0),
                candidate(
                    [1203, 88],
                    0.6,
                    gen_method="sample",
                    temperature=1.3,
                    logprob_score=-18.25,
                ),
                candidate(
                    [5, 640],
                    0.0,
                    gen_method="random",
                    beam_rank=None,
                    logprob_score=None,
                    similarity_score=0.5,
                ),
            ],
        },
        "12": {
            "query": {**query, "query_id": 12},
            "pointer_candidates": [candidate([88, 3], 0.0), candidate([3, 4], 1.0)],
        },
    }


def rl_local() -> dict[str, Any]:
    """The same after the repair of pools to 64 items."""
    value = copy.deepcopy(rl_global())
    for key, entry in value.items():
        if key == "_meta":
            continue
        used = sorted(
            {n for row in entry["pointer_candidates"] for n in row["pointer"]}
        )
        pool = used + list(range(2000, 2064))[: 64 - len(used)]
        entry["candidate_pool_ids"] = pool
        for row in entry["pointer_candidates"]:
            row["pointer_global"] = row["pointer"]
            row["pointer"] = [pool.index(n) for n in row["pointer"]]
    return value


def beam() -> dict[str, Any]:
    return {
        "4711": {
            "id_list": [[88, 1203, 4711], [88, 5, 4711], [640, 1203, 4711]],
            "score_list": [0.0461, 0.0449, 0.0373],
            "shot_scores": [[0.031, 0.0461], [0.031, 0.0449], [0.028, 0.0373]],
            "beams": [
                {
                    "shots": [{"id": 1203, "score": 0.031}],
                    "final_score": 0.0461,
                    "full_sequence": [88, 1203, 4711],
                }
            ],
            "few_shot_num": 2,
        },
        "9": {"id_list": [[1, 2, 9]], "score_list": [-1e-07]},
    }


def metrics() -> dict[str, Any]:
    return {
        "2025-12-23 10:11:12.345-test_data_num=800-LeverLMRetriever": {
            "shot_num=1": 0.5015, "shot_num=2": 0.4833, "shot_num=3": 0.474, "shot_num=4": 0.4752,
        },
        "2025-12-23 11:00:00.000-test_data_num=800-RandomRetriever": {
            "shot_num=1": 0.5059, "shot_num=2": 0.5, "shot_num=3": 0.49, "shot_num=4": 0.48,
        },
        "2025-12-24 09:00:00.000-test_data_num=200-ZeroShot": {"shot_num=0": 0.31},
    }  # fmt: skip


RECURRENT = (
    "gru",
    "mmr",
    "additive",
    "bilinear",
    "pool",
    "topics",
    "volume",
    "refine",
    "refine_mlp",
    "stop",
)
"""Variants that remember picks by a recurrent cell and have a vector for each step."""


class OldSelector(nn.Module):
    """The pointer network with cross-attention, as its state dictionaries name it, written from its formulas.

    `variant`: "gate" is v4-1; "gru" v4-2, a recurrent state with a vector for each step; on top of that "mmr" v4-3, a
    penalty on likeness to earlier picks, "pool" v4-4, candidates that attend to each other first, "additive" and
    "bilinear" v4-5, other heads, "topics" v4-6, "volume" v4-7, "refine" and "refine_mlp" v4-9, "stop" v4-10; "slots"
    v4-8 has no state: all picks at once.
    """

    def __init__(
        self, width: int = 24, hidden: int = 16, layers: int = 1, *, variant: str = ""
    ) -> None:
        super().__init__()
        self.variant = variant
        self.input_proj = nn.Linear(width, hidden, bias=False)
        self.cross_attn_layers = nn.ModuleList(
            nn.MultiheadAttention(hidden, 1, batch_first=True) for _ in range(layers)
        )
        self.attn_norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers))
        self.query_proj = nn.Linear(hidden, hidden, bias=False)
        self.cand_proj = nn.Linear(hidden, hidden, bias=False)
        if variant == "gate":
            self.query_update_gate = nn.Linear(2 * hidden, hidden)
        if variant in RECURRENT:
            self.decoder_gru = nn.GRUCell(hidden, hidden)
            self.step_emb = nn.Embedding(
                8 if variant in ("topics", "volume") else 2, hidden
            )
        self._add_parts(hidden)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    def _add_parts(self, hidden: int) -> None:
        if self.variant in ("mmr", "pool"):
            self.div_lambda = nn.Parameter(torch.zeros(2))
        if self.variant == "pool":
            layer = nn.TransformerEncoderLayer(
                hidden, 1, 4 * hidden, 0.5, "gelu", batch_first=True, norm_first=True
            )
            self.cand_encoder = nn.TransformerEncoder(
                layer, 1, enable_nested_tensor=False
            )
        if self.variant == "additive":
            self.attn_Wq = nn.Linear(hidden, hidden)
            self.attn_Wc = nn.Linear(hidden, hidden, bias=False)
            self.attn_v = nn.Linear(hidden, 1, bias=False)
        if self.variant == "bilinear":
            self.bilinear = nn.Bilinear(hidden, hidden, 1, bias=False)
        if self.variant == "topics":
            self.topic_prototypes = nn.Parameter(torch.zeros(5, hidden))
            self.query_topic_head = nn.Linear(hidden, 5)
            self.cover_lambda = nn.Parameter(torch.tensor(0.0))
        if self.variant == "volume":
            self.dpp_proj = nn.Linear(hidden, 7, bias=False)
            self.dpp_lambda = nn.Parameter(torch.tensor(0.0))
        if self.variant == "slots":
            self.slot_emb = nn.Embedding(8, hidden)
            self.slot_self_attn_layers = nn.ModuleList(
                nn.MultiheadAttention(hidden, 1, batch_first=True) for _ in range(2)
            )
            self.slot_norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
            self.slot_cand_attn = nn.MultiheadAttention(hidden, 1, batch_first=True)
            self.slot_cand_norm = nn.LayerNorm(hidden)
        if self.variant == "refine":
            self.refine_attn = nn.MultiheadAttention(hidden, 1, batch_first=True)
            self.refine_norm = nn.LayerNorm(hidden)
            self.refine_score = nn.Linear(hidden, 1)  # made and never used
        if self.variant == "refine_mlp":
            self.refine_mlp = nn.Sequential(
                nn.Linear(2 * hidden, hidden),
                nn.ReLU(),
                nn.Dropout(0.5),
                nn.Linear(hidden, 1),
            )
        if self.variant == "stop":
            self.stop_token = nn.Parameter(torch.zeros(1, hidden))

    def forward(self, query: Tensor, pool: Tensor, labels: Tensor) -> Tensor:
        """query (B, D), pool (B, K, D), labels (B, S) -> logits (B, S, K); used candidates at -100."""
        q, c = self.input_proj(query).unsqueeze(1), self.input_proj(pool)
        if self.variant == "pool":
            c = self.cand_encoder(c)
        for attention, norm in zip(
            self.cross_attn_layers, self.attn_norms, strict=True
        ):
            q = norm(q + attention(q, c, c, need_weights=False)[0])
        u, v = (
            F.normalize(self.query_proj(q.squeeze(1)), dim=-1),
            F.normalize(self.cand_proj(c), dim=-1),
        )
        self.first = u
        if self.variant == "stop":  # STOP is one candidate more, the last one
            v = torch.cat(
                [v, F.normalize(self.stop_token, dim=-1).expand(len(v), 1, -1)], dim=1
            )
        used, steps = torch.zeros(v.shape[:2], dtype=torch.bool), []
        for step in range(labels.shape[1]):
            steps.append(
                self._logits(u, v, labels, step, used).masked_fill(used, -100.0)
            )
            used = used.scatter(1, labels[:, step : step + 1], True)
            chosen = v[torch.arange(len(v)), labels[:, step]]
            if self.variant == "gate":
                gate = torch.sigmoid(
                    self.query_update_gate(torch.cat([u, chosen], dim=-1))
                )
                u = F.normalize(gate * u + (1 - gate) * chosen, dim=-1)
            elif self.variant in RECURRENT:
                u = F.normalize(self.decoder_gru(chosen, u), dim=-1)
        return torch.stack(steps, dim=1)

    def _logits(
        self, u: Tensor, v: Tensor, labels: Tensor, step: int, used: Tensor
    ) -> Tensor:
        if self.variant == "slots":
            return (
                v @ self._slots(u, v, labels.shape[1])[:, step].unsqueeze(-1)
            ).squeeze(-1) / 0.1
        if self.variant in RECURRENT:
            u = F.normalize(u + self.step_emb.weight[step], dim=-1)
        if self.variant == "additive":
            joined = torch.tanh(self.attn_Wq(u).unsqueeze(1) + self.attn_Wc(v))
            return self.attn_v(joined).squeeze(-1) / 0.1
        if self.variant == "bilinear":
            return (
                self.bilinear(u.unsqueeze(1).expand_as(v).contiguous(), v).squeeze(-1)
                / 0.1
            )
        logits = (v @ u.unsqueeze(-1)).squeeze(-1) / 0.1
        if self.variant.startswith("refine"):
            return self._refined(u, v, logits.masked_fill(used, -100.0))
        if step == 0:
            return logits
        earlier = torch.gather(
            v, 1, labels[:, :step].unsqueeze(-1).expand(-1, -1, v.shape[-1])
        )
        if self.variant in ("mmr", "pool"):
            logits = (
                logits
                - F.softplus(self.div_lambda[step]) * (v @ earlier.mT).max(-1).values
            )
        if self.variant == "topics":
            topics = torch.softmax(
                v @ F.normalize(self.topic_prototypes, dim=-1).T, dim=-1
            )  # (B, K, M)
            shown = torch.gather(
                topics,
                1,
                labels[:, :step].unsqueeze(-1).expand(-1, -1, topics.shape[-1]),
            )
            covered = shown.sum(1).clamp(max=1.0)
            need = torch.softmax(self.query_topic_head(self.first), dim=-1)
            logits = logits + F.softplus(self.cover_lambda) * (
                topics * (need * (1 - covered)).unsqueeze(1)
            ).sum(-1)
        if self.variant == "volume":
            features = F.normalize(self.dpp_proj(v), dim=-1)
            shown = torch.gather(
                features,
                1,
                labels[:, :step].unsqueeze(-1).expand(-1, -1, features.shape[-1]),
            )
            likest = (features @ shown.mT).max(-1).values
            gain = torch.log(1e-6 + 1 - likest.square().clamp(max=0.999))
            logits = logits + F.softplus(self.dpp_lambda) * gain
        return logits

    def _slots(self, u: Tensor, v: Tensor, count: int) -> Tensor:
        slots = u.unsqueeze(1) + self.slot_emb.weight[:count]
        for attention, norm in zip(
            self.slot_self_attn_layers, self.slot_norms, strict=True
        ):
            slots = norm(slots + attention(slots, slots, slots, need_weights=False)[0])
        slots = self.slot_cand_norm(
            slots + self.slot_cand_attn(slots, v, v, need_weights=False)[0]
        )
        return F.normalize(slots, dim=-1)

    def _refined(self, u: Tensor, v: Tensor, cheap: Tensor) -> Tensor:
        best = cheap.topk(8, dim=-1).indices
        near = torch.gather(v, 1, best.unsqueeze(-1).expand(-1, -1, v.shape[-1]))
        if self.variant == "refine":
            looked = self.refine_norm(
                u.unsqueeze(1) + self.refine_attn(u.unsqueeze(1), near, near)[0]
            )
            second = (near @ F.normalize(looked, dim=-1).mT).squeeze(-1)
        else:
            second = self.refine_mlp(
                torch.cat([u.unsqueeze(1).expand_as(near), near], dim=-1)
            ).squeeze(-1)
        return torch.full_like(cheap, -100.0).scatter(1, best, second / 0.1)


class OldBiEncoder(nn.Module):
    """v1: query and candidates each through a network of their own; one number mixes the query with what was chosen."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()

        def network() -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU(), nn.Dropout(0.08),
                nn.Linear(width, width), nn.LayerNorm(width),
            )  # fmt: skip

        self.query_proj, self.cand_proj = network(), network()
        self.query_update_weight = nn.Parameter(torch.tensor(0.6))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    def forward(self, query: Tensor, pool: Tensor, labels: Tensor) -> Tensor:
        u, v = (
            F.normalize(self.query_proj(query), dim=-1),
            F.normalize(self.cand_proj(pool), dim=-1),
        )
        used, steps = torch.zeros(v.shape[:2], dtype=torch.bool), []
        share = torch.sigmoid(self.query_update_weight)
        for step in range(labels.shape[1]):
            steps.append(
                ((v @ u.unsqueeze(-1)).squeeze(-1) / 0.5).masked_fill(used, -100.0)
            )
            used = used.scatter(1, labels[:, step : step + 1], True)
            u = F.normalize(
                share * u + (1 - share) * v[torch.arange(len(v)), labels[:, step]],
                dim=-1,
            )
        return torch.stack(steps, dim=1)


def convert_like_the_earlier_script(state: dict[str, Tensor]) -> dict[str, Any]:
    """ "v2 format" with the renaming that later code cannot read, first layer only."""
    out = {}
    for name, tensor in state.items():
        if any(
            part in name for part in ("layers.1.", "layers.2.", "norms.1.", "norms.2.")
        ):
            continue
        new = name.replace("cross_attn_layers.0.", "cross_attn.").replace(
            "attn_norms.0.", "attn_norm."
        )
        out[f"lever_lm.pointer_selector.{new}"] = tensor
    return {
        "epoch": 4,
        "global_step": 0,
        "pytorch-lightning_version": "2.0.0",
        "state_dict": out,
        "hyper_parameters": {},
    }


def identical(left: Any, right: Any) -> bool:
    """Whether two checkpoints hold the same keys, plain values and tensors, bit for bit."""
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(identical(left[k], right[k]) for k in left)
        )
    return torch.equal(left, right) if isinstance(left, Tensor) else bool(left == right)
