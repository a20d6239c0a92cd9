"""The doctor's sentences stay as they are, byte by byte, for one record per check and for every log of the corpus.

`python tests/doctor/test_kept_messages.py` writes kept_messages.json anew, after a sentence was changed on purpose.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest

from leverplus.doctor.examine import examine, text_of
from leverplus.doctor.read import read_target

HERE = Path(__file__).parent
KEPT = HERE / "kept_messages.json"
HALVES = ("tuned", "heldout")


def case_messages() -> dict[str, Any]:
    """All findings of the record that shows a check, by the code of the check."""
    from doctor_cases import SICK

    return {code: [finding.as_json() for finding in examine(record)] for code, record in SICK.items()}


def text_messages() -> dict[str, Any]:
    """What is always true of a check, by its code."""
    from leverplus.catalog import CHECKS

    found = {}
    for code in CHECKS:
        text = text_of(code)
        found[code] = [text.code, text.severity, text.cause, text.looks_at, text.cure, list(text.explains)]
    return found


def corpus_digests() -> dict[str, str]:
    """A digest of the findings of every log of the corpus, by its name."""
    found = {}
    for half in HALVES:
        with tempfile.TemporaryDirectory() as place:
            with tarfile.open(HERE / "corpus" / f"{half}.tar.xz") as archive:
                archive.extractall(place, filter="data")
            for path in sorted(Path(place).iterdir()):
                record = read_target(path)
                said = json.dumps([finding.as_json() for finding in examine(record)], sort_keys=True)
                found[f"{half}/{path.name}"] = hashlib.sha256(said.replace(place, "").encode()).hexdigest()[:16]
    return found


@pytest.mark.parametrize("part", ["cases", "texts", "corpus"])
def test_every_message_is_what_it_was(part: str) -> None:
    made = {"cases": case_messages, "texts": text_messages, "corpus": corpus_digests}[part]()
    kept = json.loads(KEPT.read_text(encoding="utf-8"))[part]
    assert {name: made.get(name) for name in kept} == kept  # a check that is newer has nothing to keep


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    kept = {"cases": case_messages(), "texts": text_messages(), "corpus": corpus_digests()}
    KEPT.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
