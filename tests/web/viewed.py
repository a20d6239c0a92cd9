"""How tests of the page ask for it."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from fastapi.testclient import TestClient

from leverplus.web.view import create_view

ADDRESS = "http://127.0.0.1:8765"


def client_of(root: Path, host: str = "127.0.0.1") -> TestClient:
    app = create_view(root, host)
    return TestClient(app, base_url=ADDRESS, raise_server_exceptions=False)


def sentence(text: str) -> str:
    """What a page says where it cannot show what was asked for."""
    found = re.search(r'<p class="note sentence"[^>]*>(.*?)</p>', text, re.DOTALL)
    return unescape(found[1]) if found else ""
