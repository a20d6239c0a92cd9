"""Keeps the account of a run with a server, `paid.jsonl`: what every request cost, and replies not yet stored.

One line is appended when a request leaves and one when it is settled, in the thread that asked. A killed process thus
leaves the exact sum of what the server charged for, the number of requests whose price nobody will ever know, and the
replies that were paid for. The next take (process that works on this run) uses those instead of asking again. Once
scores are stored, only sums stay.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from leverplus.data.rundir import write_text
from leverplus.errors import LeverError

FILE = "paid.jsonl"


@dataclass
class Spent:
    """What was asked of a server: requests (repeated ones too), tokens, and money where prices are given.

    `lost` are replies with a price that could not be used; their tokens and money are in the sums. `unpriced`
    are requests that may have been charged for though no price came back: cut replies, timeouts, a killed process.
    """

    requests: int = 0
    repeated: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    lost: int = 0
    unpriced: int = 0

    def add(self, values: Mapping[str, Any]) -> None:
        """Add the amounts that a line of the account names; its other fields are left alone."""
        for field in fields(self):
            setattr(
                self, field.name, getattr(self, field.name) + values.get(field.name, 0)
            )


@dataclass(frozen=True)
class ReplyPart:
    """What was read from one reply, and the tokens it took."""

    value: Any
    tokens: int


class Account:
    """Sums over all takes in `total`, over this one in `take`; without a file all is forgotten with the process.

    Several threads may use it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.take, self.total = path, Spent(), Spent()
        self._lock = threading.Lock()
        self._file: int | None = None
        self._parts: dict[str, deque[ReplyPart]] = defaultdict(deque)
        self._facts: dict[str, Any] = {}
        if path is not None:
            if path.is_file():
                self._read(path)
            self._rewrite(path)

    # -- money

    def sent(self, *, again: bool) -> None:
        """Count a request that leaves; `again` for a further attempt."""
        self._append({"requests": 1, "repeated": int(again)})

    def settled(self, **values: Any) -> None:
        """Note that a request is over: what it cost, or `unpriced`, or nothing; as `key` and `value` what was read."""
        self._append({"settled": 1} | values)

    # -- replies whose scores are not stored yet

    def earlier_part(self, key: str) -> ReplyPart | None:
        """A reply to the same request that an earlier take paid for and could not store; each is given once."""
        with self._lock:
            parts = self._parts.get(key)
            if parts:
                return parts.popleft()
            return None

    def stored(self) -> None:
        """Forget the replies, because their scores are stored or they were judged: only sums and facts stay."""
        with self._lock:
            self._parts.clear()
            if self.path is not None:
                self._rewrite(self.path)

    # -- what was found out about the server

    def fact(self, key: str) -> Any:
        return self._facts.get(key)

    def learn(self, key: str, value: Any) -> None:
        """Keep a fact about the server, which a later take need not ask for again."""
        self._facts[key] = value
        self._append({"fact": key, "value": value})

    def _append(self, line: Mapping[str, Any]) -> None:
        """Add a line to the sums and to the file, in one `write`, so that a killed process leaves whole lines."""
        with self._lock:
            self.take.add(line)
            self.total.add(line)
            if self._file is not None:
                try:
                    os.write(self._file, json.dumps(line).encode() + b"\n")
                except OSError as error:
                    raise LeverError(
                        f"cannot write to {self.path} ({error.strerror}), so what a server charges would not be "
                        "counted; make room, then type the same command to go on"
                    ) from error

    def _read(self, path: Path) -> None:
        """Read the file of earlier takes: sums, facts and parts."""
        settled = 0
        lines = path.read_bytes().splitlines()
        for number, text in enumerate(lines, start=1):
            try:
                line = json.loads(text)
                self.total.add(line)
                settled += line.get("settled", 0)
            except (ValueError, TypeError, AttributeError) as error:
                if number == len(lines):
                    break  # a process was killed while it wrote: its request stays unsettled
                raise LeverError(
                    f"line {number} of {path} is damaged ({error}); delete the line if what was spent before does not "
                    "matter"
                ) from error
            if "fact" in line:
                self._facts[line["fact"]] = line["value"]
            elif "key" in line:
                part = ReplyPart(line["value"], line["tokens"])
                self._parts[line["key"]].append(part)
        # What left and was never settled: the process was killed before the price came back.
        self.total.unpriced += self.total.requests - settled

    def _rewrite(self, path: Path) -> None:
        """Write the file anew: one line of sums, the facts, and the parts that are still needed."""
        lines: list[Mapping[str, Any]] = [
            {**asdict(self.total), "settled": self.total.requests}
        ]
        for key, value in self._facts.items():
            lines.append({"fact": key, "value": value})
        for key, parts in self._parts.items():
            # "tokens" is no field of `Spent`: what the part cost is in the sums already.
            lines += [{"key": key, **asdict(part)} for part in parts]
        write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
        try:
            if self._file is not None:
                os.close(self._file)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise LeverError(
                f"cannot write to {path} ({error.strerror}); choose another folder with --out DIR"
            ) from error

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        """`close` is held, because `os` may be gone when Python ends."""
        if self._file is not None:
            close(self._file)


def part_key(path: str, body: Mapping[str, Any]) -> str:
    """A digest of a request's path and whole body: equal requests have equal keys."""
    content = json.dumps([path, body], sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()[:32]
