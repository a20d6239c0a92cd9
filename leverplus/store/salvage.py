"""Saves what a damaged store still holds: every record that its checksum proves, whatever happened around it.

A record is proven by a checksum over the digest of its context, its key and its bytes, so records can be taken from
pages that nothing points to any more. A context is proven by its digest: where a bit of its text has changed it is
found again by trying, where more is lost its records are kept under the digest alone (`Context.lost`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from leverplus.store.keys import CONTEXT_PART, DIGEST_SIZE, KEY_SIZE, Context, context_digest
from leverplus.store.pages import Values, rows_in_file
from leverplus.store.records import StoredRow, is_intact

_RECORD_VALUES = 6
"""key, context, tokens, seconds, checksum, payload: the order of the columns in `migrations.MIGRATIONS`."""


class Salvage:
    """Reads a damaged store page by page; `damaged` counts rows that look like records but fail their checksum."""

    def __init__(self, path: Path, known: Sequence[Context] = ()) -> None:
        """`known` are contexts of other stores: they give back texts that this file has lost."""
        self.path = path
        self.damaged = 0
        self._texts = {context.digest: context for context in known}
        self._damaged_texts: list[bytes] = []
        digests = dict.fromkeys(self._texts)  # a dict as an ordered set
        for digest in self._read_contexts():
            digests.setdefault(digest)
        # Digests by the bytes of them that stand in a key: the candidates for the context of a record.
        self._by_start: dict[bytes, list[bytes]] = {}
        for digest in digests:
            self._by_start.setdefault(digest[:CONTEXT_PART], []).append(digest)

    def rows(self) -> Iterator[tuple[Context, StoredRow]]:
        """Every record that is whole, once, with its context."""
        seen: set[bytes] = set()
        broken: set[bytes] = set()
        for values in rows_in_file(self.path):
            row = _as_record(values)
            if row is None:
                continue
            digest = self._digest_of(row)
            if digest is None:
                broken.add(row.key)
            elif row.key not in seen:
                seen.add(row.key)
                yield self._context(digest), row
        # A record may stand in the file twice (in the log as well); it is lost only where no copy is whole.
        self.damaged = len(broken - seen)

    def _digest_of(self, row: StoredRow) -> bytes | None:
        """The digest of the context whose checksum fits the row; None where none does."""
        for digest in self._by_start.get(row.key[:CONTEXT_PART], ()):
            if is_intact(digest, row):
                return digest
        return None

    def _context(self, digest: bytes) -> Context:
        if digest not in self._texts:
            self._texts[digest] = self._mended_context(digest)
        return self._texts[digest]

    def _mended_context(self, digest: bytes) -> Context:
        """The context of a digest whose text is damaged: its text with one bit turned back, else the digest alone."""
        for damaged in self._damaged_texts:
            text = mend_bit(damaged, digest)
            if text is not None:
                return Context(text.decode("ascii"))
        return Context.lost(digest)

    def _read_contexts(self) -> Iterator[bytes]:
        """Every digest that may belong to a context: as its row has it, as the index has it, as its text gives it.

        On the way the texts are kept: those that read as JSON by the digest they give, and all for `mend_bit` to try.
        """
        for values in rows_in_file(self.path):
            digest, text = _as_context(values)
            if digest is not None:
                yield digest
            if text is not None:
                own = context_digest(text)
                if text.isascii() and text.startswith(b"{"):
                    self._texts.setdefault(own, Context(text.decode("ascii")))
                self._damaged_texts.append(text)
                yield own


def mend_bit(text: bytes, digest: bytes) -> bytes | None:
    """The text with one bit changed that has this digest; None where there is none."""
    changed = bytearray(text)
    for place in range(len(changed)):
        for bit in range(8):
            changed[place] ^= 1 << bit
            if context_digest(bytes(changed)) == digest and changed.isascii():
                return bytes(changed)
            changed[place] ^= 1 << bit  # turns the bit back before the next is tried
    return None


def _as_record(values: Values) -> StoredRow | None:
    """The values as a row of the table of records; None where their number or types do not fit one."""
    if len(values) != _RECORD_VALUES:
        return None
    key, _, tokens, seconds, checksum, payload = values
    if not isinstance(key, bytes) or len(key) != KEY_SIZE or not isinstance(payload, bytes):
        return None
    if isinstance(seconds, int):
        seconds = float(seconds)  # SQLite keeps a whole number of seconds as an integer
    if not isinstance(tokens, int) or not isinstance(seconds, float) or not isinstance(checksum, int):
        return None
    return StoredRow(key, payload, tokens, seconds, checksum)


def _as_context(values: Values) -> tuple[bytes | None, bytes | None]:
    """The digest and the text of a row of the table of contexts; the digest of a row of its index."""
    digests = [value for value in values if isinstance(value, bytes) and len(value) == DIGEST_SIZE]
    digest = digests[0] if digests else None
    if len(values) == 2:  # the index of the unique digests: (digest, id)
        return digest, None
    if len(values) != 3 or not isinstance(values[2], bytes) or len(values[2]) < 2:
        return None, None
    return digest, values[2]  # the table: (id, digest, text)
