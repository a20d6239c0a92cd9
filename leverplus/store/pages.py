"""The rows that the pages of an SQLite file hold, read without SQLite: one damaged page costs only its own rows.

SQLite finds a row by way of the pages above it and stops at the first that makes no sense. Here every page is read for
itself, in the file and in its write-ahead log, so that damage to the header, the schema or the pages above loses
nothing else. What is found is unproven: the reader checks each row (https://www.sqlite.org/fileformat2.html).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

Value = int | float | bytes | None
"""A value of a row; texts are given as bytes, because damage may have left them no text."""
Values = tuple[Value, ...]

_HEADER = 100
_LOG_HEADER = 32
_FRAME_HEADER = 24
_USUAL_SIZE = 4096
_INDEX_LEAF, _INDEX_INNER, _TABLE_LEAF = 0x0A, 0x02, 0x0D
_KINDS = (_INDEX_LEAF, _INDEX_INNER, _TABLE_LEAF)
_INTEGER_SIZES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
"""Bytes of an integer by its type in a row."""
_MOST_BYTES = 16_000_000
"""A row that says it is longer than this is damaged; a score takes a few hundred bytes."""


class NotARow(ValueError):
    """Bytes that are no row."""


def rows_of(path: Path) -> Iterator[Values]:
    """Everything in a file that may be a row; a page whose kind was damaged is read as each kind in turn."""
    for size, image, pages in _images(path):
        for number, page in image:
            start = _HEADER if number == 1 else 0
            for kind in (page[start],) if page[start] in _KINDS else _KINDS:
                for offset in _cells(page, start + (12 if kind == _INDEX_INNER else 8)):
                    try:
                        yield _values(_payload(page, offset, kind, size, pages))
                    except (NotARow, IndexError, KeyError):
                        continue  # a pointer or a cell that was damaged, or a page of another kind


def page_size(path: Path) -> int:
    """The page size that the header names, the usual one where it makes no sense."""
    with path.open("rb") as file:
        head = file.read(18)
    size = int.from_bytes(head[16:18], "big")
    size = 65536 if size == 1 else size
    return size if size >= 512 and size & (size - 1) == 0 else _USUAL_SIZE


class _Pages:
    """The pages of a file by number, as rows that run over several pages ask for them."""

    def __init__(self, path: Path, size: int) -> None:
        self.data = memoryview(path.read_bytes())
        self.size = size

    def __getitem__(self, number: int) -> memoryview:
        page = self.data[(number - 1) * self.size : number * self.size] if number > 0 else self.data[:0]
        if len(page) < self.size:
            raise NotARow("a page that is not there")
        return page


_Image = Iterator[tuple[int, memoryview]]


def _images(path: Path) -> Iterator[tuple[int, _Image, dict[int, memoryview] | _Pages]]:
    """The page size, all pages, and the pages by number: of the file, then of its write-ahead log."""
    size = page_size(path)
    own = _Pages(path, size)
    yield size, ((number, own[number]) for number in range(1, len(own.data) // size + 1)), own
    log = path.with_name(path.name + "-wal")
    if log.is_file():
        frames = list(_frames(log, size))
        # the last image of a page counts for rows that run over several pages
        latest = {number: own[number] for number in range(1, len(own.data) // size + 1)} | dict(frames)
        yield size, iter(frames), latest


def _frames(log: Path, size: int) -> _Image:
    data = memoryview(log.read_bytes())
    for start in range(_LOG_HEADER, len(data) - _FRAME_HEADER - size + 1, _FRAME_HEADER + size):
        number = int.from_bytes(data[start : start + 4], "big")
        yield number, data[start + _FRAME_HEADER : start + _FRAME_HEADER + size]


def _cells(page: memoryview, place: int) -> Iterator[int]:
    """Where the cells of a page begin, by its list of pointers, which begins at `place`.

    The list ends where the cells begin. The count in the page's header may be damaged and is not used; neither is the
    lowest pointer alone, because it may be the damaged one. Reading too far costs time and finds nothing.
    """
    lowest = second = len(page)
    while place + 2 <= second:
        offset = page[place] << 8 | page[place + 1]
        if place + 2 <= offset < len(page):
            lowest, second = min(lowest, offset), min(second, max(lowest, offset))
            yield offset
        place += 2


def _payload(
    page: memoryview, offset: int, kind: int, size: int, pages: dict[int, memoryview] | _Pages
) -> bytes | memoryview:
    """The bytes of a row, gathered from overflow pages where it is long."""
    if kind == _INDEX_INNER:
        offset += 4  # the page of the smaller keys
    length, offset = _varint(page, offset)
    if kind == _TABLE_LEAF:
        _, offset = _varint(page, offset)  # the row's number
    if not 0 < length <= _MOST_BYTES:
        raise NotARow("a length that makes no sense")
    most = size - 35 if kind == _TABLE_LEAF else (size - 12) * 64 // 255 - 23
    if length <= most:
        return page[offset : offset + length]
    least = (size - 12) * 32 // 255 - 23
    local = least + (length - least) % (size - 4)
    local = local if local <= most else least
    parts = [bytes(page[offset : offset + local])]
    following, left = int.from_bytes(page[offset + local : offset + local + 4], "big"), length - local
    while left > 0:
        extra = pages[following]
        parts.append(bytes(extra[4 : 4 + min(left, size - 4)]))
        following, left = int.from_bytes(extra[:4], "big"), left - (size - 4)
    return b"".join(parts)


def _values(payload: bytes | memoryview) -> Values:
    """The values of a row: a header of types, then the values one after the other."""
    end, place = _varint(payload, 0)
    if not place <= end <= len(payload):
        raise NotARow("a header that makes no sense")
    at, values = end, []
    while place < end:
        kind, place = _varint(payload, place)
        width = _width(kind)
        part = bytes(payload[at : at + width])
        if len(part) < width:
            raise NotARow("a value that is cut off")
        values.append(_value(kind, part))
        at += width
    return tuple(values)


def _width(kind: int) -> int:
    if kind >= 12:
        return (kind - 12) // 2
    return 8 if kind == 7 else _INTEGER_SIZES.get(kind, 0)


def _value(kind: int, part: bytes) -> Value:
    if kind >= 12:
        return part
    if kind == 7:
        return float(struct.unpack(">d", part)[0])
    if kind in (8, 9):
        return kind - 8
    return int.from_bytes(part, "big", signed=True) if kind else None


def _varint(data: bytes | memoryview, offset: int) -> tuple[int, int]:
    """A number of 1 to 9 bytes and where it ends."""
    value = 0
    for place in range(offset, offset + 8):
        byte = data[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    return value << 8 | data[offset + 8], offset + 9
