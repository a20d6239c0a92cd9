"""Reads the rows of an SQLite file page by page, without SQLite: one damaged page costs only its own rows.

SQLite finds a row by way of the pages above it and stops at the first that makes no sense. Here every page is read for
itself, in the file and in its write-ahead log, so that damage to the header, the schema or the pages above loses
nothing else. What is found is unproven: the caller checks each row against its checksum. Every offset, size and code
below is from https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

Value = int | float | bytes | None
"""A value of a row; texts are given as bytes, because damage may have left them no text."""
Values = tuple[Value, ...]

_HEADER = 100  # bytes of the file's header, at the start of page 1
_LOG_HEADER = 32  # bytes before the first frame of a write-ahead log
_FRAME_HEADER = 24  # bytes before the page that each frame of the log holds
_USUAL_SIZE = 4096
# The first byte of a page says what it holds. Records lie in index pages, because their table has no row numbers
# (WITHOUT ROWID); contexts lie in table leaves. Inner table pages hold no values.
_INDEX_LEAF, _INDEX_INNER, _TABLE_LEAF = 0x0A, 0x02, 0x0D
_KINDS = (_INDEX_LEAF, _INDEX_INNER, _TABLE_LEAF)
_INTEGER_SIZES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
"""Bytes of an integer, by its type code in a row's header."""
_MOST_BYTES = 16_000_000
"""A row that says it is longer than this is damaged; a score takes a few hundred bytes."""


class NotARow(ValueError):
    """Bytes that are no row."""


def rows_in_file(path: Path) -> Iterator[Values]:
    """Everything in a file that may be a row; a page whose kind was damaged is read as each kind in turn."""
    for size, image, pages in _images(path):
        for number, page in image:
            start = _HEADER if number == 1 else 0
            own_kind = page[start]
            kinds = (own_kind,) if own_kind in _KINDS else _KINDS
            for kind in kinds:
                page_header = 12 if kind == _INDEX_INNER else 8
                for offset in _cells(page, start + page_header):
                    try:
                        yield _values(_payload(page, offset, kind, size, pages))
                    except (NotARow, IndexError, KeyError):
                        continue  # a pointer or a cell that was damaged, or a page of another kind


def page_size(path: Path) -> int:
    """The page size that the file's header gives; 4096 where that is no valid size."""
    with path.open("rb") as file:
        head = file.read(18)
    size = int.from_bytes(head[16:18], "big")
    if size == 1:  # 65536 does not fit into the header's two bytes
        return 65536
    is_power_of_two = size & (size - 1) == 0
    return size if size >= 512 and is_power_of_two else _USUAL_SIZE


class _Pages:
    """The pages of a file by their number (the first is 1), for rows that continue on other pages."""

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
    numbers = range(1, len(own.data) // size + 1)
    yield size, ((number, own[number]) for number in numbers), own
    log = path.with_name(path.name + "-wal")
    if log.is_file():
        frames = list(_frames(log, size))
        latest = {number: own[number] for number in numbers}
        # A page may stand in the log several times; for rows that continue on other pages its last image counts.
        latest.update(frames)
        yield size, iter(frames), latest


def _frames(log: Path, size: int) -> _Image:
    """The page number and the page of each frame in a write-ahead log, in the order they were written."""
    data = memoryview(log.read_bytes())
    for start in range(_LOG_HEADER, len(data) - _FRAME_HEADER - size + 1, _FRAME_HEADER + size):
        number = int.from_bytes(data[start : start + 4], "big")
        yield number, data[start + _FRAME_HEADER : start + _FRAME_HEADER + size]


def _cells(page: memoryview, place: int) -> Iterator[int]:
    """Where the cells of a page begin, by its list of pointers, which begins at `place`.

    The list ends where the cells begin. The count in the page's header may be damaged and is not used; neither is the
    lowest pointer alone, because it may be the damaged one. Reading too far costs time and finds nothing.
    """
    lowest = second = len(page)  # the lowest and the second lowest pointer so far
    while place + 2 <= second:
        offset = page[place] << 8 | page[place + 1]
        if place + 2 <= offset < len(page):
            second = min(second, max(lowest, offset))
            lowest = min(lowest, offset)
            yield offset
        place += 2


def _payload(
    page: memoryview, offset: int, kind: int, size: int, pages: dict[int, memoryview] | _Pages
) -> bytes | memoryview:
    """The bytes of a row, gathered from overflow pages where it is long."""
    if kind == _INDEX_INNER:
        offset += 4  # skips the number of the page with the smaller keys
    length, offset = _varint(page, offset)
    if kind == _TABLE_LEAF:
        _, offset = _varint(page, offset)  # skips the row's number
    if not 0 < length <= _MOST_BYTES:
        raise NotARow("a length that makes no sense")
    # How many bytes of a row its own page holds: X, M and K of "Cell Payload Overflow Pages" in the file format.
    most = size - 35 if kind == _TABLE_LEAF else (size - 12) * 64 // 255 - 23
    if length <= most:
        return page[offset : offset + length]
    least = (size - 12) * 32 // 255 - 23
    local = least + (length - least) % (size - 4)
    if local > most:
        local = least
    parts = [bytes(page[offset : offset + local])]
    # The number of the first overflow page follows; each of these begins with the number of the next one.
    following = int.from_bytes(page[offset + local : offset + local + 4], "big")
    left = length - local
    while left > 0:
        extra = pages[following]
        parts.append(bytes(extra[4 : 4 + min(left, size - 4)]))
        following = int.from_bytes(extra[:4], "big")
        left -= size - 4
    return b"".join(parts)


def _values(payload: bytes | memoryview) -> Values:
    """The values of a row: a header with the type code of each value, then the values one after the other."""
    end, place = _varint(payload, 0)  # the header's length, counted from the payload's first byte
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
    """How many bytes a value of this type code takes."""
    if kind >= 12:  # even: a blob, odd: a text, both of (code - 12) // 2 bytes
        return (kind - 12) // 2
    if kind == 7:
        return 8
    return _INTEGER_SIZES.get(kind, 0)


def _value(kind: int, part: bytes) -> Value:
    if kind == 0:
        return None
    if kind >= 12:
        return part
    if kind == 7:
        return float(struct.unpack(">d", part)[0])
    if kind in (8, 9):  # the integers 0 and 1 take no bytes of their own
        return kind - 8
    return int.from_bytes(part, "big", signed=True)


def _varint(data: bytes | memoryview, offset: int) -> tuple[int, int]:
    """A number of 1 to 9 bytes and the offset after it: 7 bits per byte, all 8 of the ninth."""
    value = 0
    for place in range(offset, offset + 8):
        byte = data[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    return value << 8 | data[offset + 8], offset + 9
