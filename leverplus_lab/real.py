"""Ways of choosing on recorded answers of real models: records item by item, and what may be said of them.

`benchmarks/real_measure.py` (commit e857164) wrote the records, one file for each task and model. Here they are read
back and compared: pairs of arms item by item, pictures drawn whole, p corrected by
Holm's rule over everything that is compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.errors import DataError, MissingFile
from leverplus.evaluate.names import arm_name
from leverplus.evaluate.stats import adjust, compare

Floats = NDArray[np.float64]

KINDS = {
    "free": "prompts without training",
    "labels": "labels, no call for training",
    "calls": "learnt from answers",
    "looks": "looks at the answer",
}
OURS = ("effects", "learned")
"""Arms whose standing against the others is asked about."""
ABOUT = ("kind", "setting", "tries", "dev", "estimate")
"""What a file says of an arm beside its accuracies."""


@dataclass(frozen=True)
class WayRecord:
    """An arm on the test queries of one table: accuracy by item (NaN: not recorded), and how its setting was chosen.

    `kind` is one of KINDS; `shots` is "best" (its own best number) or "1". `estimate` is the accuracy on training and
    dev queries that its setting was chosen by, among `tries`; `dev` that on dev alone. `groups` names each item's
    picture.
    """

    task: str
    model: str
    arm: str
    kind: str
    shots: str
    setting: str
    tries: int
    dev: float
    items: Sequence[str]
    groups: Sequence[int]
    accuracy: Floats
    estimate: float = float("nan")

    @property
    def expected(self) -> float:
        """What arms are chosen by: the estimate, or accuracy on dev where there is none; NaN where neither is."""
        if np.isnan(self.estimate):
            return self.dev
        return self.estimate

    @property
    def mean(self) -> float:
        return float(np.nanmean(self.accuracy))


def shots_of_setting(setting: str) -> str:
    """The number of demonstrations that a setting shows; "" where it shows none."""
    found = re.search(r"(\d+) shots?\b", setting)
    if found is None:
        return ""
    return found.group(1)


def read_records(folder: Path) -> list[WayRecord]:
    """The records of all files of a folder."""
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise MissingFile(
            f"{folder} holds no records of recorded tables; name their folder with --records DIR"
        )
    records = []
    for path in paths:
        records += read_file(path)
    return records


def read_file(path: Path) -> list[WayRecord]:
    """The records of one task and model."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    meta = (table.schema.metadata or {}).get(b"leverplus.real")
    if meta is None:
        raise DataError(
            f"{path} holds no records of recorded tables; the package brings its own"
        )
    about = json.loads(meta)
    items = table.column("item").to_pylist()
    groups = table.column("group").to_pylist()
    found = []
    for name, known in about["arms"].items():
        arm, _, shots = name.rpartition("@")
        values = table.column(name).to_numpy(zero_copy_only=False)
        record = WayRecord(
            task=about["task"],
            model=about["model"],
            arm=arm,
            shots=shots,
            items=items,
            groups=groups,
            accuracy=values.astype(np.float64),
            **{"dev": float("nan"), **known},
        )
        found.append(record)
    return found


def summarise_tables(records: Sequence[WayRecord]) -> dict[str, Any]:
    """Every table's arms, the comparisons of ours with the rivals, and how often ours are above, within and below."""
    tables: dict[tuple[str, str], list[WayRecord]] = {}
    for record in records:
        key = (record.task, record.model)
        tables.setdefault(key, []).append(record)
    rows: list[dict[str, Any]] = []
    compared: list[dict[str, Any]] = []
    for (task, model), own in sorted(tables.items()):
        advised = recommended(own)
        for record in own:
            rows.append(_row(record, record is advised))
        for pair in _pairs(own, advised):
            compared.append({"task": task, "model": model, **pair})
    _correct(compared)
    return {"arms": rows, "comparisons": compared, "shares": _shares(compared)}


def _best(records: Iterable[WayRecord]) -> WayRecord | None:
    """The one that training and dev queries find best; those without an estimate are left out."""
    known = [record for record in records if not np.isnan(record.expected)]
    return max(known, key=lambda record: record.expected, default=None)


def _usable(records: Sequence[WayRecord]) -> list[WayRecord]:
    """Arms that do not look at the answer, at their own number of shots."""
    found = []
    for record in records:
        if record.shots == "best" and record.kind != "looks":
            found.append(record)
    return found


def recommended(records: Sequence[WayRecord]) -> WayRecord:
    """The arm to use: the best on training and dev queries at its own number of shots."""
    found = _best(_usable(records))
    if found is None:
        raise DataError("no arm of these records has an estimate to choose by")
    return found


def best_of(
    records: Sequence[WayRecord],
    kinds: Sequence[str],
    shots: str,
) -> WayRecord | None:
    """The arm of some kinds that training and dev queries find best."""
    found = []
    for record in records:
        if record.kind in kinds and record.shots == shots and record.arm not in OURS:
            found.append(record)
    return _best(found)


def _pairs(records: Sequence[WayRecord], advised: WayRecord) -> list[dict[str, Any]]:
    """Ours against the best of each kind of rival, with one demonstration and at each one's own number of shots."""
    found = []
    for shots in ("1", "best"):
        for record in records:
            if record.arm not in OURS or record.shots != shots:
                continue
            for kind in ("free", "labels"):
                rival = best_of(records, (kind,), shots)
                if rival is not None:
                    found.append(_compare(record, rival, kind))
    strongest = max(_usable(records), key=lambda record: record.mean)
    if strongest is not advised:
        pair = _compare(advised, strongest, "best on test")
        found.append({**pair, "arm": "recommended", "is": advised.arm})
    return found


def _compare(
    record: WayRecord,
    rival: WayRecord,
    against: str,
) -> dict[str, Any]:
    both = np.isfinite(record.accuracy) & np.isfinite(rival.accuracy)
    groups = np.asarray(record.groups)[both].tolist()
    found = compare(
        record.accuracy[both],
        rival.accuracy[both],
        clusters=groups,
        resamples=2000,
    )
    return {
        "arm": record.arm,
        "rival": rival.arm,
        "against": against,
        "shots": record.shots,
        "rival_setting": rival.setting,
        **found.as_json(),
        "_comparison": found,
    }


def _correct(compared: list[dict[str, Any]]) -> None:
    """Holm over everything compared."""
    adjusted = adjust([row.pop("_comparison") for row in compared])
    for row, found in zip(compared, adjusted, strict=True):
        row["p_adjusted"] = found.p_adjusted
        row["mde80_adjusted"] = found.mde80_adjusted
        row["standing"] = "below"
        if found.within_noise:
            row["standing"] = "within"
        elif found.diff > 0:
            row["standing"] = "above"


def _row(record: WayRecord, advised: bool) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in ("task", "model", "arm", "shots", *ABOUT):
        row[name] = getattr(record, name)
    row["accuracy"] = record.mean
    row["n"] = int(np.isfinite(record.accuracy).sum())
    row["recommended"] = advised
    return row


def _shares(compared: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in compared:
        arm = row["arm"]
        against = row["against"]
        shots = row["shots"]
        fresh = {"arm": arm, "against": against, "shots": shots, "tables": 0}
        fresh |= {"above": 0, "within": 0, "below": 0}
        own = found.setdefault((arm, against, shots), fresh)
        own["tables"] += 1
        own[row["standing"]] += 1
    return list(found.values())


Row = Mapping[str, Any]
Pair = tuple[str, str]
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
    if plain == arm:
        return name
    return f"{name}, calibrated"


def task_lines(found: Mapping[str, Any], task: str) -> Lines:
    """Arms of a task: accuracy with one demonstration and at the arm's own number of shots, model by model."""
    models = set()
    arms: dict[Pair, dict[Pair, Row]] = {}  # (kind, arm) -> (model, shots)
    for row in found["arms"]:
        if row["task"] == task:
            models.add(row["model"])
            places = arms.setdefault((row["kind"], row["arm"]), {})
            places[row["model"], row["shots"]] = row
    head = ["way of choosing", "what it knows", "settings tried"]
    for model in sorted(models):
        head += [f"{model}, 1 shot", "own best"]
    lines = []
    order = list(KINDS)
    for kind, arm in sorted(arms, key=lambda pair: order.index(pair[0])):
        places = arms[kind, arm]
        cells = [way_name(arm), KINDS[kind]]
        cells.append(_tries(places.values()))
        for model in sorted(models):
            cells.append(_accuracy(places.get((model, "1"))))
            cells.append(_own_best(places.get((model, "best"))))
        lines.append(cells)
    return head, lines


def _tries(rows: Iterable[Row]) -> str:
    """Among how many settings an arm's own was chosen, at its own number of shots; from model to model, if it differs.

    An arm that looks at the answer chooses no setting.
    """
    tried = sorted({row["tries"] for row in rows if row["shots"] == "best"})
    ends = dict.fromkeys((*tried[:1], *tried[-1:]))
    return "-".join(map(str, ends))


def _accuracy(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{100 * row['accuracy']:.1f}"


def _own_best(row: Row | None) -> str:
    """Accuracy at an arm's own number of shots, that number, and a mark where the arm is recommended."""
    if row is None:
        return ""
    shots = shots_of_setting(row["setting"])
    cell = _accuracy(row)
    if shots:
        cell += f" ({shots})"
    if row["recommended"]:
        cell += " *"
    return cell


COMPARED = (
    *("task", "model", "arm", "against", "n", "points"),
    *("95 % interval", "p, corrected", "standing"),
)


def comparison_lines(found: Mapping[str, Any]) -> Lines:
    """Ours and the recommended arm against the rivals that training and dev queries find best."""
    lines = []
    for row in found["comparisons"]:
        low, high = row["ci95"]
        who = row["arm"]
        if who == "recommended":
            who = f"{row['is']}, recommended"
        shots = {"1": "1 shot", "best": "own best"}[row["shots"]]
        line = [
            row["task"],
            row["model"],
            f"{who}, {shots}",
            f"{row['rival']} ({row['against']})",
            str(row["n"]),
            f"{100 * row['diff']:+.1f}",
            f"{100 * low:+.1f} to {100 * high:+.1f}",
            f"{row['p_adjusted']:.2g}",
            row["standing"],
        ]
        lines.append(line)
    return COMPARED, lines


def share_sentences(found: Mapping[str, Any]) -> list[str]:
    """How often ours stand above, within and below each kind of rival."""
    against = {
        "free": "the best prompt without training",
        "labels": "the best arm that knows labels and asks no model",
    }
    tables = len({(row["task"], row["model"]) for row in found["arms"]})
    said = []
    for row in found["shares"]:
        shots = "each at its own number of shots"
        if row["shots"] == "1":
            shots = "with one demonstration"
        rival = against.get(row["against"], "the arm that turned out best on test")
        said.append(
            f"{row['arm']}, {shots}, against {rival}: above on {row['above']}, within noise on {row['within']}, "
            f"below on {row['below']} of {row['tables']} tables"
        )
        if row["arm"] == "recommended" and row["tables"] < tables:
            said[-1] += f"; on the other {tables - row['tables']} it is that arm itself"
    return said
