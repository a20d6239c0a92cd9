"""TensorBoard event files, read without TensorBoard: TFRecord frames that hold the protobuf message Event.

A frame is length (8 bytes), its checksum (4), the message, its checksum (4). Of the messages only scalars are read:
Event.step (field 2), Event.summary (5), Summary.value (1), Value.tag (1), Value.simple_value (2), and Value.tensor (8)
with TensorProto.float_val (5), double_val (6) or tensor_content (4), as PyTorch and TensorFlow 2 write them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from leverplus.doctor.logs.names import LogLine, finite
from leverplus.errors import DataError

Fields = Iterator[tuple[int, bytes | int]]


def read_events(paths: list[Path]) -> list[LogLine]:
    """The scalars of the event files of one run, a line a step; a later file with the same tags is a resumption."""
    lines: list[LogLine] = []
    seen: set[str] = set()
    for path in paths:
        steps: dict[int, dict[str, float | None]] = {}
        for step, tag, value in _scalars(path):
            steps.setdefault(step, {})[tag] = finite(value)
        tags = {tag for values in steps.values() for tag in values}
        # other tags are another writer of the same run, such as the evaluation's
        again = bool(lines) and len(tags & seen) > len(tags) / 2
        for place, step in enumerate(sorted(steps)):
            lines.append(LogLine({"step": float(step), **steps[step]}, resumed=again and place == 0))
        seen |= tags
    return lines


def _scalars(path: Path) -> Iterator[tuple[int, str, float]]:
    for record in _records(path):
        step, summaries = 0, []
        for number, value in _fields(record, path):
            if number == 2 and isinstance(value, int):
                step = value
            elif number == 5 and isinstance(value, bytes):
                summaries.append(value)
        for summary in summaries:
            for number, entry in _fields(summary, path):
                found = _scalar(entry, path) if number == 1 and isinstance(entry, bytes) else None
                if found is not None:
                    yield (step, *found)


def _scalar(entry: bytes, path: Path) -> tuple[str, float] | None:
    """(tag, value) of a Summary.Value that is a single number."""
    tag, number = "", None
    for field, value in _fields(entry, path):
        if not isinstance(value, bytes):
            continue
        if field == 1:
            tag = value.decode("utf-8", "replace")
        elif field == 2 and len(value) == 4:
            number = struct.unpack("<f", value)[0]
        elif field == 8:
            number = _tensor(value, path)
    return None if number is None or not tag else (tag, number)


def _tensor(message: bytes, path: Path) -> float | None:
    """The number of a TensorProto that holds one."""
    for field, value in _fields(message, path):
        if isinstance(value, bytes) and field in (4, 5, 6) and len(value) in (4, 8):
            return float(struct.unpack("<f" if len(value) == 4 else "<d", value)[0])
    return None


def _records(path: Path) -> Iterator[bytes]:
    """The messages of a file; one that was cut off at the end, as by a training under way, is left out."""
    data, place = path.read_bytes(), 0
    while place + 12 <= len(data):  # 8 bytes of length and 4 of its checksum stand before a message
        (length,) = struct.unpack_from("<Q", data, place)
        end = place + 12 + length
        if end + 4 > len(data):
            if place == 0:
                raise DataError(f"{path} is not a TensorBoard event file, or holds nothing yet")
            return
        yield data[place + 12 : end]
        place = end + 4


def _fields(message: bytes, path: Path) -> Fields:
    """(field number, value) of a protobuf message; numbers of fixed size stay bytes."""
    place = 0
    try:
        while place < len(message):
            key, place = _varint(message, place)
            kind = key & 7  # 0: number of any length, 1: eight bytes, 2: length and so many bytes, 5: four bytes
            if kind == 0:
                value, place = _varint(message, place)
                yield key >> 3, value
                continue
            size = {1: 8, 5: 4}.get(kind, -1)
            if kind == 2:
                size, place = _varint(message, place)
            if size < 0 or place + size > len(message):
                raise IndexError
            yield key >> 3, message[place : place + size]
            place += size
    except IndexError as error:
        raise DataError(f"{path} is damaged: not a TensorBoard event file") from error


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and the place behind it; the eighth bit says "more"."""
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
