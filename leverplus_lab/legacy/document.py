"""A report or log as blocks: headings, tables, items, paragraphs, code; each knows the headings it stands under."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEADING = re.compile(r"^(#{1,6})\s+(.*)$")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+(.*)$")
_RULE = re.compile(r"^[\s|:+\-=─│┼├┤]+$")


@dataclass(frozen=True)
class DocumentBlock:
    """A piece of a document; `rows` of a table, its header first; `headings` from the outermost to the innermost."""

    kind: str
    text: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...] = ()


def read_blocks(text: str) -> list[DocumentBlock]:
    """The blocks of a Markdown report or a plain log, in order."""
    blocks: list[DocumentBlock] = []
    path: list[tuple[int, str]] = []
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        line = lines[index]
        headings = tuple(title for _, title in path)
        heading = _HEADING.match(line)
        item = _ITEM.match(line)
        if line.lstrip().startswith("```"):
            index, block = _code(lines, index, headings)
            blocks.append(block)
            continue
        if not heading and _cells(line) is not None:
            index, block = _table(lines, index, headings)
            blocks.append(block)
            continue
        if heading:
            level = len(heading.group(1))
            title = heading.group(2).strip()
            while path and path[-1][0] >= level:
                path.pop()
            path.append((level, title))
            headings = (*headings[: len(path) - 1], title)
            blocks.append(DocumentBlock("heading", title, headings))
        elif item and not _RULE.match(line):
            blocks.append(DocumentBlock("item", item.group(1), headings))
        elif line.strip() and not _RULE.match(line):
            blocks.append(DocumentBlock("text", line.strip(), headings))
        index += 1
    return blocks


def _code(
    lines: list[str],
    start: int,
    headings: tuple[str, ...],
) -> tuple[int, DocumentBlock]:
    end = start + 1
    while end < len(lines) and not lines[end].lstrip().startswith("```"):
        end += 1
    text = "\n".join(lines[start + 1 : end])
    return end + 1, DocumentBlock("code", text, headings)


def _table(
    lines: list[str],
    start: int,
    headings: tuple[str, ...],
) -> tuple[int, DocumentBlock]:
    rows: list[tuple[str, ...]] = []
    index = start
    wide = "|" not in lines[start].replace("│", "|")
    while index < len(lines):
        if wide and index > start:
            cells = _columns(lines[index], len(rows[0]))
        else:
            cells = _cells(lines[index])
        if cells is None:
            break
        if not _RULE.match(lines[index]):
            rows.append(tuple(cells))
        index += 1
    return index, DocumentBlock("table", "", headings, tuple(rows))


def _cells(line: str) -> list[str] | None:
    """The cells of a table line: between bars, or of a header line in columns that starts with Epoch (轮次)."""
    barred = line.replace("│", "|").strip()
    if barred.startswith("|") and barred.count("|") >= 2:
        cells = barred.strip("|").split("|")
    elif re.match(r"^\s*(?:epoch|轮次)(\s{2,}|\t)\S", line, re.IGNORECASE):
        cells = re.split(r"\s{2,}|\t", line.strip())
    else:
        return None
    return list(map(str.strip, cells))


def _columns(line: str, count: int) -> list[str] | None:
    """The cells of a line in columns; None where their number does not fit."""
    cells = line.split()
    if len(cells) == count or (cells and _RULE.match(line)):
        return cells
    return None
