from __future__ import annotations

import sqlite3

import pytest

from leverplus.store import db
from leverplus.store.db import ScoreStore
from leverplus.store.migrations import MIGRATIONS, migrate, schema_version

LATER = (*MIGRATIONS, ("ALTER TABLE contexts ADD COLUMN note TEXT", "UPDATE contexts SET note = 'migrated'"))


def test_opening_an_older_store_migrates_it_and_keeps_its_scores(tmp_path, maker, monkeypatch) -> None:
    with ScoreStore(tmp_path / "scores.db") as store:
        store.put(maker.context, maker.records(5))
    monkeypatch.setattr(db, "MIGRATIONS", LATER)
    with ScoreStore(tmp_path / "scores.db") as store:
        assert schema_version(store._db) == 2
        assert store._db.execute("SELECT note FROM contexts").fetchall() == [("migrated",)]
        assert store.get(key for key, _ in maker.records(5)) == dict(maker.records(5))


def test_a_migration_that_fails_changes_nothing(tmp_path) -> None:
    connection = sqlite3.connect(tmp_path / "scores.db", isolation_level=None)
    assert migrate(connection, MIGRATIONS) == 1
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, (*MIGRATIONS, ("CREATE TABLE half (x)", "this is not SQL")))
    assert schema_version(connection) == 1
    assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone() == (0,)
    connection.close()


def test_migrating_twice_does_nothing_the_second_time(tmp_path) -> None:
    connection = sqlite3.connect(tmp_path / "scores.db", isolation_level=None)
    assert [migrate(connection, LATER), migrate(connection, LATER)] == [2, 0]
    connection.close()
