"""Ways of choosing on recorded answers of real models: records item by item, and what may be said of them.

`benchmarks/real_measure.py` writes the records, one file for each task and model. Here they are read back and compared:
pairs of arms item by item, pictures drawn whole, p corrected by Holm's rule over everything that is compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.errors import DataError, MissingFile

Floats = NDArray[np.float64]

KINDS = {
    "free": "prompts without training",
    "labels": "labels, no call for training",
    "calls": "learnt from answers",
    "looks": "looks at the answer",
}
OURS = ("effects", "learned")
"""Arms whose standing against the others is asked about."""
DIGITS = 4


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
        return self.dev if np.isnan(self.estimate) else self.estimate

    @property
    def mean(self) -> float:
        return float(np.nanmean(self.accuracy))


def shots_of_setting(setting: str) -> str:
    """The number of demonstrations that a setting shows; "" where it shows none."""
    found = re.search(r"(\d+) shots?\b", setting)
    return found.group(1) if found else ""


def write_records(path: Path, records: Sequence[WayRecord]) -> None:
    """One file for a task and model: a column of accuracies for every arm, what is known of it in the metadata."""
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    first = records[0]
    columns: dict[str, Any] = {"item": list(first.items), "group": list(first.groups)}
    about = {}
    for record in records:
        name = f"{record.arm}@{record.shots}"
        columns[name] = pa.array(np.round(record.accuracy, DIGITS), from_pandas=True)  # NaN becomes null
        known = ("kind", "setting", "tries", "dev", "estimate")
        about[name] = {key: getattr(record, key) for key in known if getattr(record, key) == getattr(record, key)}
    meta = {"task": first.task, "model": first.model, "arms": about}
    table = pa.table(columns).replace_schema_metadata({b"leverplus.real": json.dumps(meta).encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}")
    pq.write_table(table, part, compression="zstd", compression_level=19)
    part.replace(path)


def read_records(folder: Path) -> list[WayRecord]:
    """The records of all files of a folder."""
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise MissingFile(f"{folder} holds no records of recorded tables; name their folder with --records DIR")
    return [record for path in paths for record in read_file(path)]


def read_file(path: Path) -> list[WayRecord]:
    """The records of one task and model."""
    import json

    import pyarrow.parquet as pq

    table = pq.read_table(path)
    meta = (table.schema.metadata or {}).get(b"leverplus.real")
    if meta is None:
        raise DataError(f"{path} holds no records of recorded tables; benchmarks/real_measure.py writes them")
    about = json.loads(meta)
    items, groups = table.column("item").to_pylist(), table.column("group").to_pylist()
    found = []
    for name, known in about["arms"].items():
        arm, _, shots = name.rpartition("@")
        found.append(
            WayRecord(
                task=about["task"],
                model=about["model"],
                arm=arm,
                shots=shots,
                kind=known["kind"],
                setting=known["setting"],
                tries=known["tries"],
                dev=known.get("dev", float("nan")),
                estimate=known.get("estimate", float("nan")),
                items=items,
                groups=groups,
                accuracy=table.column(name).to_numpy(zero_copy_only=False).astype(np.float64),
            )
        )
    return found


def summarise_tables(records: Sequence[WayRecord]) -> dict[str, Any]:
    """Every table's arms, the comparisons of ours with the rivals, and how often ours are above, within and below."""
    tables: dict[tuple[str, str], list[WayRecord]] = {}
    for record in records:
        tables.setdefault((record.task, record.model), []).append(record)
    rows, compared = [], []
    for (task, model), own in sorted(tables.items()):
        advised = recommended(own)
        rows += [_row(record, record is advised) for record in own]
        compared += [{"task": task, "model": model, **pair} for pair in _pairs(own, advised)]
    _correct(compared)
    return {"arms": rows, "comparisons": compared, "shares": _shares(compared)}


def recommended(records: Sequence[WayRecord]) -> WayRecord:
    """The arm to use: the best on training and dev queries at its own number of shots."""
    usable = [r for r in records if r.shots == "best" and r.kind != "looks" and not np.isnan(r.expected)]
    return max(usable, key=lambda record: record.expected)


def best_of(records: Sequence[WayRecord], kinds: Sequence[str], shots: str) -> WayRecord | None:
    """The arm of some kinds that training and dev queries find best."""
    open_ = [r for r in records if r.kind in kinds and r.shots == shots and r.arm not in OURS]
    own = [record for record in open_ if not np.isnan(record.expected)]
    return max(own, key=lambda record: record.expected, default=None)


def _pairs(records: Sequence[WayRecord], advised: WayRecord) -> list[dict[str, Any]]:
    """Ours against the best of each kind of rival, with one demonstration and at each one's own number of shots."""
    found = []
    for shots in ("1", "best"):
        rivals = {kind: best_of(records, (kind,), shots) for kind in ("free", "labels")}
        for record in records:
            if record.arm in OURS and record.shots == shots:
                found += [_compare(record, rival, kind) for kind, rival in rivals.items() if rival is not None]
    usable = [r for r in records if r.shots == "best" and r.kind != "looks"]
    strongest = max(usable, key=lambda record: record.mean)
    if strongest is not advised:
        found.append({**_compare(advised, strongest, "best on test"), "arm": "recommended", "is": advised.arm})
    return found


def _compare(record: WayRecord, rival: WayRecord, against: str) -> dict[str, Any]:
    from leverplus.stats import compare

    both = ~(np.isnan(record.accuracy) | np.isnan(rival.accuracy))
    groups = [group for group, there in zip(record.groups, both, strict=True) if there]
    found = compare(record.accuracy[both], rival.accuracy[both], clusters=groups, resamples=2000)
    names = {"arm": record.arm, "rival": rival.arm, "against": against, "shots": record.shots}
    return {**names, "rival_setting": rival.setting, **found.as_json(), "_comparison": found}


def _correct(compared: list[dict[str, Any]]) -> None:
    """Holm over everything compared."""
    from leverplus.stats import adjust

    for row, found in zip(compared, adjust([row.pop("_comparison") for row in compared]), strict=True):
        row |= {"p_adjusted": found.p_adjusted, "mde80_adjusted": found.mde80_adjusted}
        row["standing"] = "within" if found.within_noise else "above" if found.diff > 0 else "below"


def _row(record: WayRecord, advised: bool) -> dict[str, Any]:
    names = ("task", "model", "arm", "kind", "shots", "setting", "tries", "dev", "estimate")
    known = {name: getattr(record, name) for name in names}
    measured = int((~np.isnan(record.accuracy)).sum())
    return {**known, "accuracy": record.mean, "n": measured, "recommended": advised}


def _shares(compared: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in compared:
        key = row["arm"], row["against"], row["shots"]
        own = found.setdefault(key, dict(zip(("arm", "against", "shots"), key, strict=True)))
        own.setdefault("tables", 0)
        own["tables"] += 1
        for name in ("above", "within", "below"):
            own[name] = own.get(name, 0) + (row["standing"] == name)
    return list(found.values())
