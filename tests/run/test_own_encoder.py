"""`lever fit --embed package.module:attribute`: an encoder of the user's own, tried before anything is asked."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leverplus.bundle.selector import Selector
from leverplus.cli.main import main

sys.path += [str(Path(__file__).parents[1] / "models")]
from speaking_server import CAPITALS, Served, speaking

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "parts.md"


def shown_encoder() -> str:
    """The encoder that docs/howto/parts.md shows."""
    (block,) = [
        own
        for own in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "letters.py" in own
    ]
    return block


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the user's file and data, in which commands are typed."""
    (tmp_path / "letters.py").write_text(shown_encoder())
    rows = [
        {"question": f"{word} capital of {country}?", "answers": [city]}
        for word in ("name the", "tell me the", "what is the", "say the")
        for country, city in CAPITALS.items()
    ]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    for name in ("letters", "wrong"):
        sys.modules.pop(name, None)


@pytest.fixture
def served() -> Iterator[Served]:
    with speaking(weighs=False) as server:
        yield server


def words(served: Served, embed: str) -> list[str]:
    return [
        "fit",
        "d.jsonl",
        "--model",
        served.url,
        "--embed",
        embed,
        "--out",
        "o",
        "--store",
        "s.db",
        "--shots",
        "1",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_the_encoder_of_the_page_fits_and_travels_by_name(
    served: Served, monkeypatch, capsys, tmp_path: Path
) -> None:
    assert main([*words(served, "letters:Letters"), "--calls", "600"]) == 0
    assert "rule: vectors by letters:Letters" in capsys.readouterr().err
    assert (
        json.loads(Path("o/bundle.json").read_text())["embedder"]["name"]
        == "letters:Letters"
    )
    asked = [
        "select",
        "o",
        "--question",
        "name the capital of peru?",
        "-k",
        "1",
        "--explain",
    ]
    assert main(asked) == 1
    assert "say so: LEVER_TRUST=letters in front" in capsys.readouterr().err
    question = "name the capital of peru?"
    trusted = Selector.load("o", trust=["letters"])
    assert len(trusted.select(question=question, shots=1, explain=True)) == 1
    monkeypatch.setenv("LEVER_TRUST", "letters")
    assert main(asked) == 0
    (tmp_path / "elsewhere").mkdir()
    Path("o").rename(tmp_path / "elsewhere" / "o")
    monkeypatch.chdir(tmp_path / "elsewhere")
    sys.path[:] = [place for place in sys.path if place != str(tmp_path)]
    sys.modules.pop("letters")
    capsys.readouterr()
    assert main(asked) == 1
    assert (
        "the embedder 'letters:Letters' cannot be imported" in capsys.readouterr().err
    )


WRONG = {
    "no module": ("nowhere:Part", "", "the embedder 'nowhere:Part' cannot be imported"),
    "no attribute": ("wrong:Part", "", "module wrong has no 'Part'"),
    "not called": ("wrong:Part", "Part = 3", "a query without answers (TypeError"),
    "raises": (
        "wrong:Part",
        "from letters import Letters\nclass Part(Letters):\n    def _counts(self, texts):\n        raise KeyError('x')",
        "a query without answers (KeyError",
    ),
    "no queries": (
        "wrong:Part",
        "from letters import Letters\nclass Part(Letters):\n    def embed(self, items, task):\n"
        "        return self._counts([item.answer for item in items])",
        "a query without answers (NotMeasured",
    ),
    "no fingerprint": (
        "wrong:Part",
        "from letters import Letters\nclass Part(Letters):\n    def fingerprint(self):\n        return {}",
        "has no fingerprint()",
    ),
    "no vectors": (
        "wrong:Part",
        "from letters import Letters\nclass Part(Letters):\n    def embed(self, items, task):\n        return [1]",
        "embeds items as list instead of leverplus.encode.base.Vectors",
    ),
    "too few": (
        "wrong:Part",
        "from letters import Letters\nclass Part(Letters):\n    def _counts(self, texts):\n"
        "        return super()._counts(texts)[:2]",
        "gives text vectors of shape (2, 26) for 3 items",
    ),
    "not of length 1": (
        "wrong:Part",
        "from letters import Letters\nclass Part(Letters):\n    def _counts(self, texts):\n"
        "        return 2 * super()._counts(texts)",
        "gives text vectors that are no unit vectors (their lengths: [2.0, 2.0, 2.0])",
    ),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_an_encoder_that_cannot_work_is_one_sentence_and_nothing_is_asked(
    here: Path, served: Served, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, text, expected = WRONG[case]
    (here / "wrong.py").write_text(text)
    assert main(words(served, name)) == 1
    said = [
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("lever:")
    ]
    assert len(said) == 1
    assert expected in said[0]
    assert not served.asked
