"""The store's schema, as the ordered list of changes that lead to it; opening an older store applies the rest."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

APPLICATION_ID = 0x4C565253
"""The bytes "LVRS", kept in the file's header: they tell a score store from any other SQLite file."""

Migration = tuple[str, ...]

MIGRATIONS: Sequence[Migration] = (
    (
        "CREATE TABLE contexts (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, canonical TEXT NOT NULL)",
        """CREATE TABLE records (
            key BLOB PRIMARY KEY,
            context INTEGER NOT NULL REFERENCES contexts (id),
            tokens INTEGER NOT NULL,
            seconds REAL NOT NULL,
            checksum INTEGER NOT NULL,
            payload BLOB NOT NULL
        ) WITHOUT ROWID""",  # rows lie in key order, so the scores of one query share pages
    ),
)


def schema_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> int:
    """Apply the changes that are missing, all of them or none; return how many were applied.

    The version is read again inside the transaction, as another process may have migrated in the meantime.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        start = schema_version(connection)
        for statements in migrations[start:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {max(start, len(migrations))}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return max(0, len(migrations) - start)
