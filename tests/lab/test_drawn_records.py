"""What the pictures count: characters that a prefix cache would not have to read again."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROMPTS = ["abcX", "abcY", "abdZ", "abcX", "q", "abdZZ", "a"]


def test_new_characters_are_those_behind_the_longest_shared_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from draw_records import shared, unseen

    assert unseen(PROMPTS) == [4, 1, 2, 0, 1, 1, 0]  # by hand
    for place, prompt in enumerate(PROMPTS):  # by looking at every earlier prompt
        seen = max((shared(prompt, other) for other in PROMPTS[:place]), default=0)
        assert unseen(PROMPTS)[place] == len(prompt) - seen
