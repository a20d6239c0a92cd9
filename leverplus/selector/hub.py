"""Bundles on a hub: `hf://ORG/NAME` is downloaded once and opened, `push_bundle` uploads one.

Only files that belong to a bundle are fetched. The address of the hub and the token come from the environment, as
`huggingface_hub` reads them (HF_ENDPOINT, HF_TOKEN).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from leverplus.errors import LeverError, MissingFile
from leverplus.selector.bundle import CARD, DEMOS, ENCODER, MANIFEST, SELECTOR

FILES = (MANIFEST, DEMOS, CARD, "fit.json", "report.html", "vectors.*", f"{SELECTOR}/*", f"{ENCODER}/*")
ADDRESS = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise LeverError("hf:// needs huggingface_hub; type `pip install huggingface_hub`") from error
    return huggingface_hub


def repository_of(address: str) -> tuple[str, str | None]:
    """The repository and the revision (None: the newest) that `hf://ORG/NAME` or `hf://ORG/NAME@REVISION` names."""
    found = ADDRESS.fullmatch(address)
    if found is None:
        raise LeverError(f"{address[:100]} is not the address of a bundle; write it as hf://ORG/NAME")
    return found[1], found[2]


def download_bundle(address: str, cache: Path | None = None) -> Path:
    """The folder of a bundle that lies on a hub, fetched where it is not here yet."""
    hub, (name, revision) = _hub(), repository_of(address)
    try:
        folder = Path(hub.snapshot_download(name, revision=revision, allow_patterns=list(FILES), cache_dir=cache))
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise MissingFile(f"{address} cannot be fetched ({reason})") from error
    if not (folder / MANIFEST).is_file():
        raise MissingFile(f"{address} is not a bundle: it has no {MANIFEST}")
    return folder


def push_bundle(folder: Path, address: str, *, private: bool = True) -> str:
    """Upload a bundle and return its address on the hub."""
    hub, (name, revision) = _hub(), repository_of(address)
    if not (folder / MANIFEST).is_file():
        raise MissingFile(f"{folder} is not a bundle: it has no {MANIFEST}")
    try:
        hub.create_repo(name, private=private, exist_ok=True)
        told = hub.upload_folder(
            repo_id=name,
            folder_path=folder,
            revision=revision,
            allow_patterns=list(FILES),
            commit_message="A bundle of Lever-Plus",
        )
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise LeverError(f"{folder} cannot be uploaded to {address} ({reason})") from error
    return str(told)
