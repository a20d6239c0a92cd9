"""A bundle for others: its card, and its way to a hub and back.

`hf://ORG/NAME` is downloaded once and opened, `push_bundle` uploads one; only files that belong to a bundle travel. The
address of the hub and the token come from the environment, as `huggingface_hub` reads them (HF_ENDPOINT, HF_TOKEN).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.errors import LeverError, MissingFile, plain
from leverplus.evaluate.names import arm_name, shots_name
from leverplus.evaluate.record import EvaluationRecord

if TYPE_CHECKING:
    from leverplus.bundle.bundle import Manifest

MANIFEST = "bundle.json"
DEMOS = "demos.sqlite"
CARD = "README.md"
ARM = "arm"
ENCODER = "encoder"
FILES = [MANIFEST, DEMOS, CARD, "fit.json", "report.html", f"{ARM}/*", f"{ENCODER}/*"]
ADDRESS = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def repository_of(address: str) -> tuple[str, str | None]:
    """The repository and the revision (None: the newest) of an address.

    >>> repository_of("hf://org/mine@v1")
    ('org/mine', 'v1')
    """
    found = ADDRESS.fullmatch(address)
    if found is None:
        raise LeverError(
            f"{address[:100]} is not the address of a bundle; write it as hf://ORG/NAME"
        )
    return found[1], found[2]


@contextmanager
def _hub(problem: str, kind: type[LeverError]) -> Iterator[Any]:
    """The client of the hub; what fails inside is one sentence."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise LeverError(
            "hf:// needs huggingface_hub; type `pip install huggingface_hub`"
        ) from error
    try:
        yield huggingface_hub
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise kind(f"{problem} ({reason[:200]})") from error


def download_bundle(address: str) -> Path:
    """The folder of a bundle that lies on a hub, fetched where it is not here yet."""
    name, revision = repository_of(address)
    with _hub(f"{address} cannot be fetched", MissingFile) as hub:
        found = hub.snapshot_download(name, revision=revision, allow_patterns=FILES)
    return _require_bundle(Path(found), address)


def push_bundle(folder: Path, address: str, *, private: bool = True) -> str:
    """Upload a bundle and return its address on the hub."""
    name, revision = repository_of(address)
    _require_bundle(folder, str(folder))
    with _hub(f"{folder} cannot be uploaded to {address}", LeverError) as hub:
        hub.create_repo(name, private=private, exist_ok=True)
        told = hub.upload_folder(
            repo_id=name,
            folder_path=folder,
            revision=revision,
            allow_patterns=FILES,
            commit_message="A bundle of Lever-Plus",
        )
    return str(told)


def _require_bundle(folder: Path, named: str) -> Path:
    if not (folder / MANIFEST).is_file():
        raise MissingFile(f"{named} is not a bundle: it has no {MANIFEST}")
    return folder


CARD_TEXT = """---
library_name: leverplus
license: {licence}
tags: [in-context-learning, demonstration-selection]
---
# {name}

A bundle of Lever-Plus: it chooses the worked examples to put into the prompt of a frozen model.

| | |
|---|---|
| task | {task}, judged by {metric} |
| model it was measured with | {model} |
| way of choosing | {title} (`{arm}`), {shots} recommended |
| demonstrations | {count:,} when it was packed |
| embedder | {embedder} {revision} |
| licence of the demonstrations | {licence} |

{figures}

## Use

```python
from leverplus import Selector
selector = Selector.load("{name}")
demos = selector.select(question="...", image=None)          # nearest to the query last
messages = selector.messages(question="...", image=None)     # an OpenAI chat
```

or `lever select {name} --question "..."`.
"""


def write_card(facts: Manifest, name: str, found: EvaluationRecord | None) -> str:
    """README.md: what a bundle was made for, what it gains, how it is used; with a header that hubs read."""
    made = facts.embedder.fingerprint
    return CARD_TEXT.format(
        licence=plain(facts.licence or "unknown"),
        name=plain(name),
        task=plain(facts.task.name or "not said"),
        metric=facts.task.metric,
        model=plain(facts.model.name or "not said"),
        title=arm_name(facts.arm),
        arm=facts.arm,
        shots=shots_name(facts.shots),
        count=facts.demonstrations.count,
        embedder=made.get("embedder", "none"),
        revision=made.get("revision", ""),
        figures="\n".join(_figures(facts, found)),
    )


def _figures(facts: Manifest, found: EvaluationRecord | None) -> list[str]:
    """Accuracies with their n and, against other ways, with intervals."""
    own = None if found is None else found.arms.get(facts.arm)
    if found is None or own is None:
        return ["It was not evaluated as it chooses here."]
    lines = [f"## Accuracy on {found.n} {found.split} items", ""]
    lines += ["| shots | accuracy |", "|---|---|"]
    for count, value in own.shots.items():
        lines.append(f"| {count} | {100 * value:.1f} % |")
    lines.append("")
    for row in found.comparisons:
        if row.arm == facts.arm and row.shots == facts.shots:
            low, high = row.ci95
            lines.append(
                f"- against {arm_name(row.baseline)} at {shots_name(row.shots)}: {100 * row.diff:+.1f} points "
                f"({100 * low:+.1f} to {100 * high:+.1f}, n = {row.n})"
            )
    lines.append(
        f"- calls of the model: {found.model_calls or 0:,} for training, {found.dev_calls:,} for the choice on dev, "
        f"{found.eval_calls or 0:,} on test"
    )
    if found.advice is not None:
        lines += ["", plain(found.advice.why)]
    return lines
