from __future__ import annotations

from pathlib import Path

from leverplus.store.location import default_store_path


def test_the_store_lies_in_the_cache_unless_the_user_says_otherwise(monkeypatch) -> None:
    monkeypatch.delenv("LEVERPLUS_STORE", raising=False)
    assert default_store_path() == Path.home() / ".cache" / "leverplus" / "scores.db"
    monkeypatch.setenv("LEVERPLUS_STORE", "~/elsewhere.db")
    assert default_store_path() == Path.home() / "elsewhere.db"
