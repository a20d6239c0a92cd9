"""Bundles on a hub, against a small stand-in of its file interface on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from bundles import ids, make_bundle, open_words

from leverplus.errors import LeverError, MissingFile
from leverplus.selector.hub import download_bundle, push_bundle, repository_of

SHA = "a" * 40


class StandIn(BaseHTTPRequestHandler):
    """Repositories of models as a dictionary of files: listing, download, upload of small files by commit."""

    files: dict[str, bytes]

    def log_message(self, *_: Any) -> None:
        return

    def _send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": SHA, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), Content_Type="application/json")

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/org/mine/tree"):
            rows = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in self.files.items()
            ]
            self._json(rows)
        elif path.startswith("/api/models/org/mine"):
            names = [{"rfilename": name} for name in self.files]
            self._json({"id": "org/mine", "modelId": "org/mine", "sha": SHA, "siblings": names, "private": False})
        elif path.startswith("/org/mine/resolve/"):
            name = path.split("/", 5)[5]
            if name not in self.files:
                self._send(404, X_Error_Code="EntryNotFound")
                return
            content = self.files[name]
            self._send(200, content, ETag=f'"{hashlib.sha1(content).hexdigest()}"')
        else:
            self._send(404, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path == "/api/repos/create":
            self._json({"url": "https://huggingface.co/org/mine", "name": "org/mine"})
        elif "/preupload/" in self.path:
            asked = json.loads(body)["files"]
            self._json(
                {"files": [{"path": own["path"], "uploadMode": "regular", "shouldIgnore": False} for own in asked]}
            )
        elif "/commit/" in self.path:
            for line in body.splitlines():
                row = json.loads(line)
                if row["key"] == "file":
                    self.files[row["value"]["path"]] = base64.b64decode(row["value"]["content"])
            self._json(
                {"success": True, "commitOid": SHA, "commitUrl": f"https://huggingface.co/org/mine/commit/{SHA}"}
            )
        else:
            self._json({})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    pytest.importorskip("huggingface_hub")
    files: dict[str, bytes] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (StandIn,), {"files": files}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    from huggingface_hub import constants, hf_api

    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(hf_api.api, "endpoint", address)
    monkeypatch.setenv("HF_TOKEN", "stand-in")
    yield files
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_bundle_goes_to_a_hub_and_comes_back(hub: dict[str, bytes], tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "mine")
    (folder / "private.txt").write_text("stays here")
    push_bundle(folder, "hf://org/mine")
    assert set(hub) >= {"bundle.json", "demos.sqlite", "vectors.text.npy", "README.md"}
    assert "private.txt" not in hub, "only what belongs to a bundle travels"
    hub["evil.py"] = b"print('no')"
    fetched = download_bundle("hf://org/mine", tmp_path / "cache")
    assert not (fetched / "evil.py").exists()
    expected = ids(open_words(folder).select(question="word3 thing4", shots=5))
    assert ids(open_words(fetched).select(question="word3 thing4", shots=5)) == expected


def test_what_is_not_there_is_one_sentence(hub: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="hf://org/nobody cannot be fetched"):
        download_bundle("hf://org/nobody", tmp_path / "cache")
    hub["README.md"] = b"empty"
    with pytest.raises(MissingFile, match=r"is not a bundle: it has no bundle\.json"):
        download_bundle("hf://org/mine", tmp_path / "cache")
    with pytest.raises(MissingFile, match="is not a bundle"):
        push_bundle(tmp_path, "hf://org/mine")


@pytest.mark.parametrize("address", ["hf://", "hf://org", "hf://a/b/c", "hf://a/../b", "hf://a b/c"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(LeverError, match="is not the address of a bundle"):
        repository_of(address)
    assert repository_of("hf://org/mine@v1") == ("org/mine", "v1")
