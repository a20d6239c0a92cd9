"""The page at `/`, in a real Chromium: it shows why, and whatever a bundle or a visitor writes stays text."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import browsing
import pytest
from listening import listening
from served import COLOURS, client_of, data_url, make_bundle, png

EVIL = '<img src=x onerror="document.title=1"><script>document.title=2</script>"\'><b>bold</b>{{7*7}}</textarea>'
TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("page") / "<b>mine", pictures=True)


def test_the_page_holds_nothing_of_the_bundle_and_says_what_a_browser_may_do(
    folder: Path,
) -> None:
    answer = client_of(folder).get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<script>" not in answer.text
    assert "style=" not in answer.text
    assert "mine" not in answer.text


@pytest.mark.browser
def test_a_visitor_asks_sees_why_and_nothing_written_is_run(
    folder: Path, visitor: browsing.Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVER_TOKEN", TOKEN)
    client = client_of(folder)
    client.headers["x-lever-token"] = TOKEN
    evil = {
        "question": EVIL,
        "answer": EVIL,
        "id": EVIL,
        "meta": {EVIL: EVIL},
        "image": data_url(png(COLOURS[2])),
    }
    client.post("/demos", json=evil).raise_for_status()
    with listening(folder) as running:
        page = visitor.open(running.address + "/")
        page.wait_for_selector("#token-label:not([hidden])")
        assert "token" in page.inner_text("#message")
        visitor.problems.clear()  # the 401 stands on the console
        page.fill("#token", TOKEN)
        page.dispatch_event("#token", "change")
        page.get_by_text("41 demonstrations").wait_for()
        assert page.inner_text("#name") == "<b>mine"
        page.fill("#question", EVIL)
        page.fill("#shots", "3")
        page.set_input_files(
            "#image",
            {
                "name": EVIL[:20] + ".png",
                "mimeType": "image/png",
                "buffer": png(COLOURS[2]),
            },
        )
        page.click("#choose")
        page.wait_for_selector("#chosen:not([hidden])")
        assert page.locator("#picks li").count() == 3
        assert page.locator("#picks img").count() == 3
        assert EVIL in page.inner_text("#picks")
        assert EVIL in page.inner_text("#candidates")
        assert page.locator("#picks b b, #candidates b, #content script").count() == 0
        assert page.title().startswith("lever serve")
        assert page.locator("tr.taken").count() == 3
        assert browsing.barriers(page) == []
        assert browsing.overflow(page) == []
        browsing.shot(page, "serve")

        page.fill("#shots", "")
        page.set_input_files(
            "#image",
            {"name": "x.png", "mimeType": "image/png", "buffer": b"no picture"},
        )
        page.click("#choose")
        page.locator("#message", has_text="is not a picture").wait_for()
        visitor.problems.clear()  # the 422
        phone = visitor.open(running.address + "/", **browsing.PHONE)
        phone.wait_for_selector("#token-label:not([hidden])")
        assert browsing.overflow(phone) == []
        visitor.problems.clear()
    assert client.delete("/demos/" + quote(EVIL, safe="")).status_code == 200
