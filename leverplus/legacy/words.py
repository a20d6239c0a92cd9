"""The words by which metrics, settings and numbers are known in logs and reports, English and Chinese."""

from __future__ import annotations

import re
from typing import Any

from leverplus.doctor.logs.names import table

_PRINTED = ("loss/total", "loss/pg", "loss/kl", "kl", "kl_coef", "adv/std", "adv/max", "clip_ratio/region_mean",
            "entropy", "reward", "grad_norm")  # fmt: skip
"""Metrics that reports print in running text; of the names of the table only those without a slash stand in a text."""

METRICS: dict[str, str] = {
    **{
        name: ours for ours in _PRINTED for name in table()[ours][1] if "/" not in name and name not in ("loss", "损失")
    },
    **dict.fromkeys(("val loss", "valid loss", "validation loss", "eval loss", "验证损失"), "val/loss"),
    **dict.fromkeys(("val reward", "eval reward", "验证奖励"), "val/reward"),
}
"""Name of a metric as it is printed -> its name in the run log."""

POLICY_GRADIENT = {"loss/pg", "adv/std", "adv/max", "kl", "kl_coef", "clip_ratio/region_mean"}
"""Metrics that only a policy-gradient stage has."""

SETTINGS: dict[str, str] = {
    "grpo lr": "lr",
    "kl beta": "kl_beta",
    "use ppo clip only": "clip_only",
    "clip only": "clip_only",
    "clip epsilon": "clip",
    "grpo epochs": "epochs",
    "rce epochs": "rce_epochs",
    "rce lr": "rce_lr",
    "batch size": "batch_size",
    "use rank advantage": "rank_advantage",
    "reward mode": "reward_mode",
    "rel weight": "rel_weight",
    "seed": "seed",
}
"""Name of a setting as it is printed -> a short key."""

NUMBER = r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?"
EPOCH = re.compile(r"(?:epoch|轮次)\s*[:：=#]?\s*(\d+)|第\s*(\d+)\s*(?:个|轮)?\s*(?:epoch|轮)", re.IGNORECASE)
ITEMS = re.compile(
    r"(?<![\d.])(\d[\d,]*)\s*(?:个|条)?\s*(?:samples?\b|items\b|questions\b|test queries\b|样本|条数据|测试样本|道题)"
    r"|\bn\s*=\s*(\d[\d,]*)",
    re.IGNORECASE,
)
EXPECTED = re.compile(r"预期|期望|预计|目标|expected|target|forecast|hoped", re.IGNORECASE)
PRESENT = re.compile(r"当前|目前|现有|current|present|as run", re.IGNORECASE)
ACTUAL = re.compile(r"实际|当前|actual|current|value|measured|数值|^值$", re.IGNORECASE)
BASELINE = re.compile(r"baseline|基线|基准", re.IGNORECASE)
DIFFERENCE = re.compile(
    r"\bvs\b|差异|变化|差距|提升|评价|diff|change|delta|Δ|gain|remark|note|status|状态", re.IGNORECASE
)
SHOT = re.compile(r"^\s*(?:n?[- _]?shots?)(?:[ _]?num(?:ber)?)?\s*$|^number of shots$|^样例数$", re.IGNORECASE)
MEASURE = re.compile(r"^(?:指标|参数|对比项|metric|measure|parameter|setting|quantity|name)s?$", re.IGNORECASE)
GAIN = re.compile(
    rf"(?:平均(?:正确率)?提升|平均差异|平均下降|average (?:gain|improvement|drop)|mean (?:gain|difference))"
    rf"[^\d+\-\n]{{0,12}}({NUMBER})\s*%",
    re.IGNORECASE,
)
BEFORE = re.compile(r"优化前|修改前|改进前|before", re.IGNORECASE)
AFTER = re.compile(r"优化后|修改后|改进后|after", re.IGNORECASE)
SEED = re.compile(rf"(?:seed|随机种子|种子)\s*[=:：#]?\s*\d+\D{{1,20}}?({NUMBER})\s*%", re.IGNORECASE)
BEST = re.compile(r"最优|最佳|best|optimal|chosen|selected", re.IGNORECASE)
SAME_PICKS = re.compile(
    r"(?:索引|范例|indices|picks?|demonstrations?|icds?)[^。\n]{0,20}?(\d+(?:\.\d+)?)\s*%\s*"
    r"(?:相同|一致|identical|the same|equal|same)"
    r"|(\d+(?:\.\d+)?)\s*%\s*(?:of the )?(?:picks|demonstrations|icd indices)\s*(?:are |were )?"
    r"(?:identical|equal|the same)",
    re.IGNORECASE,
)
LIVE = re.compile(
    r"(\d+(?:\.\d+)?)\s*%\s*(?:的\s*)?(?:of (?:the )?)?(?:query|queries|groups?|组)\s*"
    r"(?:有不同|have different|with different|differ in|carry different)\s*(?:的\s*)?rewards?",
    re.IGNORECASE,
)
_MARKS = re.compile(r"[*`_~⭐⬆⬇➡✅❌⚠️🔄📊📌🔴🟡🟢🔥✓✗]+")
_NAMES = sorted({**METRICS}, key=len, reverse=True)
METRIC_VALUE = re.compile(
    "("
    + "|".join(re.escape(name).replace(r"\ ", "[ _-]?") for name in _NAMES)
    + rf")(\s*[=:：≈]?\s*)({NUMBER})(?![\d%.]|\s*%)",
    re.IGNORECASE,
)
SETTING_VALUE = re.compile(
    "("
    + "|".join(re.escape(name).replace(r"\ ", "[ _-]?") for name in sorted(SETTINGS, key=len, reverse=True))
    + rf")\s*(?:[=:：]|\s(?=[\d]))\s*(true|false|{NUMBER})(?![\d.\-])",
    re.IGNORECASE,
)
DATA_FILE = re.compile(r"(?:数据|data(?:set)?|rl_data_path|file)\s*[:：=]\s*\S*?([\w.-]+\.json)", re.IGNORECASE)


def without_marks(text: str) -> str:
    """Without emphasis, marks and emoji, blanks collapsed."""
    kept = re.sub(r"(?<=\w)_(?=\w)", "\0", text)
    return " ".join(_MARKS.sub(" ", kept).replace("\0", "_").split())


def metric(name: str) -> str | None:
    """The log name of a printed metric, None when it is none."""
    cleaned = re.sub(r"[_\-\s]+", " ", without_marks(name).lower()).strip()
    return METRICS.get(cleaned)


def printed_setting(name: str) -> str | None:
    """The short key of a printed setting, None when it is none."""
    return SETTINGS.get(re.sub(r"[_\-\s]+", " ", without_marks(name).lower()).strip())


def cell_number(cell: str) -> float | None:
    """The number of a cell that is nothing but a number (a percentage counts in hundredths)."""
    text = without_marks(cell).replace(" ", "")
    match = re.fullmatch(rf"({NUMBER})(%?)", text)
    if match is None:
        return None
    value = float(match.group(1).replace(",", ""))
    return value / 100.0 if match.group(2) else value


def truth_or_number(text: str) -> Any:
    lowered = text.lower()
    return lowered == "true" if lowered in ("true", "false") else float(text.replace(",", ""))


FEWEST_ITEMS = 20


def items_in(text: str) -> int | None:
    """The number of evaluated items a text speaks of; numbers below 20 are something else."""
    for match in ITEMS.finditer(text):
        count = int((match.group(1) or match.group(2)).replace(",", ""))
        if count >= FEWEST_ITEMS:
            return count
    return None


def epoch_in(text: str) -> int | None:
    match = EPOCH.search(text)
    return None if match is None else int(match.group(1) or match.group(2))
