"""Bundles on a hub, against a stand-in of its client: only what belongs to a bundle travels."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from bundles import ids, make_bundle, open_words

from leverplus.bundle.hub import push_bundle, repository_of
from leverplus.bundle.selector import Selector
from leverplus.errors import LeverError, MissingFile

hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the repository org/mine."""
    place, cache = tmp_path / "hub", tmp_path / "cache"

    def copy(source: Path, target: Path, patterns: Sequence[str]) -> str:
        for path in source.rglob("*"):
            name = str(path.relative_to(source))
            if path.is_file() and any(fnmatch(name, own) for own in patterns):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target / name)
        return str(target)

    def fetch(name: str, allow_patterns: Any, **_options: Any) -> str:
        if name != "org/mine":
            raise OSError("no such repository\nmore")
        cache.mkdir(exist_ok=True)
        return copy(place, cache, allow_patterns)

    def upload(folder_path: Path, allow_patterns: Any, **_options: Any) -> str:
        return copy(folder_path, place, allow_patterns)

    def stand_in(name: str, does: Any) -> None:
        """Is called with what the client itself takes."""
        real = inspect.signature(getattr(hub, name))

        def called(*words: Any, **options: Any) -> Any:
            real.bind(*words, **options)
            return does(*words, **options)

        monkeypatch.setattr(hub, name, called)

    stand_in("snapshot_download", fetch)
    stand_in("create_repo", lambda name, **_options: None)
    stand_in("upload_folder", upload)
    return place


def test_a_bundle_goes_to_a_hub_and_comes_back(there: Path, tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "mine")
    (folder / "private.txt").write_text("stays here")
    selector = open_words(folder)
    selector.push_to_hub("hf://org/mine")
    held = {str(path.relative_to(there)) for path in there.rglob("*.*")}
    assert held == {"bundle.json", "demos.sqlite", "arm/arm.json", "README.md"}
    (there / "evil.py").write_text("print('no')")
    fetched = open_words("hf://org/mine")
    assert not (fetched.source.folder / "evil.py").exists()
    asked = {"question": "word3 thing4", "shots": 5}
    assert ids(fetched.select(**asked)) == ids(selector.select(**asked))


def test_what_is_not_there_is_one_sentence(there: Path, tmp_path: Path) -> None:
    there.mkdir()
    for address, what in (
        (
            "hf://org/nobody",
            r"hf://org/nobody cannot be fetched \(no such repository\)",
        ),
        ("hf://org/mine", r"is not a bundle: it has no bundle\.json"),
    ):
        with pytest.raises(MissingFile, match=what):
            Selector.load(address)
    with pytest.raises(MissingFile, match="is not a bundle"):
        push_bundle(tmp_path, "hf://org/mine")


@pytest.mark.parametrize(
    "address", ["hf://org", "hf://a/b/c", "hf://a/../b", "hf://a b/c"]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(LeverError, match="is not the address of a bundle"):
        repository_of(address)
    assert repository_of("hf://org/mine@v1") == ("org/mine", "v1")
