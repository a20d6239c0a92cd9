"""Opens the SQLite file of a store, to write where that is allowed, else to read, and explains SQLite's errors."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from leverplus.errors import StoreError
from leverplus.rundir import make_private_folder
from leverplus.store.migrations import APPLICATION_ID, MIGRATIONS, schema_version


def is_writable(path: Path) -> bool:
    """Whether a store at this path can be written: its file, and its folder, where SQLite keeps its journal."""
    folder = path.parent
    while not folder.exists():  # folders that are missing will be made in the nearest one that is there
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        return False
    return not path.exists() or os.access(path, os.W_OK)


def connect_to_write(path: Path, timeout: float) -> sqlite3.Connection:
    """A connection that creates the file where there is none, readable by its owner only."""
    make_private_folder(path.parent)
    # SQLite gives the files it keeps beside a store the mode of the store itself.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    return sqlite3.connect(path, timeout=timeout, isolation_level=None)


def connect_to_read(path: Path, timeout: float) -> sqlite3.Connection:
    """A connection to a store on a read-only mount, in a folder or in a file that may not be written.

    Write-ahead logging needs files beside the store even to read. Where the log is empty the store is complete without
    them (`immutable`); where it is not, both are copied to a folder that can be written, so that nothing is left out.
    """
    log = path.with_name(path.name + "-wal")
    if not (log.exists() and log.stat().st_size):
        return sqlite3.connect(_address(path, "immutable=1"), uri=True, timeout=timeout, isolation_level=None)
    with tempfile.TemporaryDirectory(prefix="leverplus-store-") as folder:
        copy = Path(shutil.copyfile(path, Path(folder) / "scores.db"))
        shutil.copyfile(log, Path(folder) / "scores.db-wal")
        connection = sqlite3.connect(copy, timeout=timeout, isolation_level=None)
        try:
            # EXCLUSIVE keeps both files open until the connection closes, so the folder may be deleted under them.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens them
            connection.execute("PRAGMA query_only = 1")
        except BaseException:
            connection.close()
            raise
    return connection


def _address(path: Path, option: str) -> str:
    return f"file:{quote(str(path.resolve()))}?mode=ro&{option}"


def require_store(path: Path, connection: sqlite3.Connection, *, must_exist: bool) -> int:
    """The schema version of an opened file; StoreError where it is no score store or a newer version wrote it."""
    version = schema_version(connection)
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer Lever-Plus (schema {version}, this one reads up to "
            f"{len(MIGRATIONS)}); run `pip install --upgrade leverplus`, or name another file with --store"
        )
    mark = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    # A new, empty file has neither mark nor tables; it becomes a store when the schema is written.
    if mark != APPLICATION_ID and (tables or must_exist):
        raise StoreError(f"{path} is an SQLite file but not a score store; name another file with --store")
    return version


def set_journal(db: sqlite3.Connection, timeout: float) -> str:
    """Switch to write-ahead logging, else to a rollback journal; return the mode in force.

    SQLite does not wait by itself when another process makes the same switch, so the wait is here.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            mode: str = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if _code(error) == sqlite3.SQLITE_BUSY and time.monotonic() < deadline:
                time.sleep(0.01)
                continue
            # These three mean that the file system gives no shared memory (network mounts), which the log needs.
            if _code(error) not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_CANTOPEN):
                raise
            mode = ""
        if mode == "wal":
            return mode
        return str(db.execute("PRAGMA journal_mode = DELETE").fetchone()[0])


def _code(error: BaseException) -> int:
    """SQLite's primary result code: the low byte, without the details of an extended code; 0 where there is none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


_UNUSABLE = (
    "it cannot be opened or written there; name a file in a folder you may write with --store FILE or LEVERPLUS_STORE"
)
_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full; nothing already stored is lost: free some space and run the command again",
    sqlite3.SQLITE_BUSY: "another process has held it for too long; wait until that one is done and run this again",
    sqlite3.SQLITE_NOTADB: "it is not a score store (not an SQLite file); name another file with --store",
    sqlite3.SQLITE_CANTOPEN: _UNUSABLE,
    sqlite3.SQLITE_READONLY: _UNUSABLE,
    sqlite3.SQLITE_PERM: _UNUSABLE,
    sqlite3.SQLITE_IOERR: (
        "the disk did not read or write as asked; check its free space and health, then run the command again"
    ),
}


# Why each of them means damage: `is_damage`.
_DAMAGE_CODES = (
    0,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
)


def salvage_command(path: Path) -> str:
    """What to type to save what a damaged store still holds."""
    return f"`lever store merge --store NEW.db {path}`"


def explain_failure(path: Path, error: Exception) -> str:
    """An error of SQLite or of the file system as a sentence with what to type next."""
    if is_damage(error) and _code(error) != sqlite3.SQLITE_NOTADB:
        reason = f"the file is damaged or cut off; save what is whole with {salvage_command(path)}"
    else:
        # OSError comes from our own file handling and carries no code of SQLite.
        known = _UNUSABLE if isinstance(error, OSError) else _REASONS.get(_code(error))
        reason = known or "run `lever store verify` on it"
    return f"score store {path}: {reason} ({error})"


def is_damage(error: BaseException) -> bool:
    """Whether SQLite's error means that the file is damaged: its header, its schema, its pages or its texts.

    SQLITE_ERROR is among them: the store's own statements are right, so that a table or column is missing means that
    the schema was changed. Python raises errors without a code where a text is not UTF-8.
    """
    if not isinstance(error, sqlite3.Error) or isinstance(error, sqlite3.ProgrammingError):
        return False
    return _code(error) in _DAMAGE_CODES
