"""Measures of the code, signs and not aims: `python benchmarks/house.py [FOLDER ...]` prints one JSON object each.

Tokens of code (docstrings and comments apart), tokens a line of code, rooms (first folder or module below a package)
and imports between them, lengths of functions, and comprehensions, ternaries and imports inside functions. Give the
source folders of other packages (httpx, trl) to compare with.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = tuple(
    ROOT / name for name in ("leverplus", "leverplus_lab", "leverplus_doctor")
)
LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.COMMENT,
}
"""Tokens that say nothing themselves."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Measures = dict[str, float | list[int]]


def docstring_lines(tree: ast.AST) -> set[int]:
    """The lines of all texts that stand alone: docstrings of modules, classes, functions and constants."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if alone and isinstance(node.value.value, str):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def count_tokens(text: str) -> tuple[int, int]:
    """Tokens of code and the lines they stand in.

    >>> count_tokens("x = 1  # one")
    (3, 1)
    """
    docs = docstring_lines(ast.parse(text))
    tokens = 0
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT and token.start[0] not in docs:
            tokens += 1
            lines.update(range(token.start[0], token.end[0] + 1))
    return tokens, len(lines)


def imported_rooms(node: ast.AST, package: str) -> Iterator[str]:
    """The rooms of a package that an import statement names."""
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module == package:
        names = [f"{package}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        names = [node.module]
    for name in names:
        parts = name.split(".")
        if parts[0] == package and len(parts) > 1:
            yield parts[1]


def measure(folder: Path) -> Measures:
    """The measures of one package."""
    lines = tokens = code = comprehensions = ternaries = inner = 0
    lengths: list[int] = []
    rooms: set[str] = set()
    edges: set[tuple[str, str]] = set()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        rooms.add(room)
        lines += text.count("\n")
        counted = count_tokens(text)
        tokens += counted[0]
        code += counted[1]
        within: set[ast.AST] = set()
        for node in ast.walk(ast.parse(text)):
            comprehensions += isinstance(node, COMPREHENSIONS)
            ternaries += isinstance(node, ast.IfExp)
            if isinstance(node, FUNCTIONS):
                lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
                within.update(
                    part
                    for part in ast.walk(node)
                    if isinstance(part, (ast.Import, ast.ImportFrom))
                )
            for other in imported_rooms(node, folder.name):
                if other != room:
                    edges.add((room, other))
        inner += len(within)
    lengths.sort()
    return {
        "lines": lines,
        "tokens": tokens,
        "tokens a code line": round(tokens / code, 2),
        "rooms": len(rooms),
        "edges between rooms": len(edges),
        "function lines p50, p90, max": [
            lengths[len(lengths) // 2],
            lengths[len(lengths) * 9 // 10],
            lengths[-1],
        ],
        "comprehensions per 100 lines": round(100 * comprehensions / lines, 2),
        "ternaries per 100 lines": round(100 * ternaries / lines, 2),
        "imports inside functions": inner,
    }


if __name__ == "__main__":
    for given in map(Path, sys.argv[1:] or PACKAGES):
        print(given.name, json.dumps(measure(given)))
