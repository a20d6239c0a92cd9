"""The tables of `lever bench real`: one for each task, then ours against the rivals, then how often above and below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leverplus.evaluation.names import arm_name
from leverplus.lab.real import KINDS, shots_of_setting

Row = Mapping[str, Any]
Lines = tuple[Sequence[str], list[list[str]]]
"""A head and the rows below it."""

NAMES = {
    "nearest": "nearest, field and shots chosen",
    "mmr": "diverse (MMR), field and shots chosen",
    "balanced": "nearest of every label in turn",
    "fixed": "one list for all queries, chosen on train",
    "vote_demos": "demonstrations of the answer a tuned vote predicts",
    "label_rank": "ranked by label regression and similarity",
    "label_vote": "tuned label vote as the answer, no model",
    "label_regression": "label regression as the answer, no model",
    "effects": "effects",
    "oracle": "best of the 64 (looks at the answer)",
}


def way_name(arm: str) -> str:
    """A way of choosing as the tables call it."""
    plain = arm.removesuffix("_calibrated")
    name = NAMES.get(plain, arm_name(plain))
    return name if plain == arm else f"{name}, calibrated"


def task_lines(found: Mapping[str, Any], task: str) -> Lines:
    """Arms of a task: accuracy with one demonstration and at the arm's own number of shots, model by model."""
    rows = [row for row in found["arms"] if row["task"] == task]
    models = sorted({row["model"] for row in rows})
    arms = list(dict.fromkeys((row["kind"], row["arm"]) for row in rows))
    arms.sort(key=lambda pair: list(KINDS).index(pair[0]))
    lines = []
    for kind, arm in arms:
        cells = [way_name(arm), KINDS[kind], _tries([row for row in rows if row["arm"] == arm])]
        for model in models:
            own = {row["shots"]: row for row in rows if (row["arm"], row["model"]) == (arm, model)}
            cells += [_cell(own.get("1")), _cell(own.get("best"), with_shots=True)]
        lines.append(cells)
    head = ["way of choosing", "what it knows", "settings tried"]
    for model in models:
        head += [f"{model}, 1 shot", "own best"]
    return head, lines


def _tries(rows: Sequence[Row]) -> str:
    """Among how many settings an arm's own was chosen, at its own number of shots; from model to model, if it differs.

    An arm that looks at the answer chooses no setting.
    """
    tried = sorted({row["tries"] for row in rows if row["shots"] == "best"})
    return "-".join(str(count) for count in dict.fromkeys((*tried[:1], *tried[-1:])))


def _cell(row: Row | None, *, with_shots: bool = False) -> str:
    if row is None:
        return ""
    mark = " *" if row["recommended"] and with_shots else ""
    if not with_shots:
        return f"{100 * row['accuracy']:.1f}"
    shots = shots_of_setting(row["setting"])
    shown = f" ({shots})" if shots else ""
    return f"{100 * row['accuracy']:.1f}{shown}{mark}"


def comparison_lines(found: Mapping[str, Any]) -> Lines:
    """Ours and the recommended arm against the rivals that training and dev queries find best."""
    lines = []
    for row in found["comparisons"]:
        low, high = (100 * bound for bound in row["ci95"])
        who = f"{row['is']}, recommended" if row["arm"] == "recommended" else row["arm"]
        lines.append(
            [
                row["task"],
                row["model"],
                f"{who}, {'1 shot' if row['shots'] == '1' else 'own best'}",
                f"{row['rival']} ({row['against']})",
                str(row["n"]),
                f"{100 * row['diff']:+.1f}",
                f"{low:+.1f} to {high:+.1f}",
                f"{row['p_adjusted']:.2g}",
                row["standing"],
            ]
        )
    return ("task", "model", "arm", "against", "n", "points", "95 % interval", "p, corrected", "standing"), lines


def share_sentences(found: Mapping[str, Any]) -> list[str]:
    """How often ours stand above, within and below each kind of rival."""
    against = {"free": "the best prompt without training", "labels": "the best arm that knows labels and asks no model"}
    tables = len({(row["task"], row["model"]) for row in found["arms"]})
    said = []
    for row in found["shares"]:
        shots = "with one demonstration" if row["shots"] == "1" else "each at its own number of shots"
        rival = against.get(row["against"], "the arm that turned out best on test")
        said.append(
            f"{row['arm']}, {shots}, against {rival}: above on {row['above']}, within noise on {row['within']}, "
            f"below on {row['below']} of {row['tables']} tables"
        )
        if row["arm"] == "recommended" and row["tables"] < tables:
            said[-1] += f"; on the other {tables - row['tables']} it is that arm itself"
    return said
