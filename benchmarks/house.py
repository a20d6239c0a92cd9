"""Measures of the code, as signs and not as aims: `python benchmarks/house.py [FOLDER ...] [--json]`.

Sizes of functions and files, tokens per line of code, comments and comprehensions per 100 lines, class names used
twice, and import cycles, imports inside functions included. For this package also the lines of core, lab and legacy,
and imports between rooms that point upwards. Give the source folders of other packages (httpx, trl) to compare with.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OWN = ROOT / "leverplus"
LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT)
"""Tokens that say nothing themselves."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
OUTSIDE_THE_CORE = ("lab", "legacy")


def sources(folder: Path) -> dict[str, str]:
    """Dotted module name -> source of every module of a package."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = (folder.name, *path.relative_to(folder).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return found


def measure(folder: Path) -> dict[str, Any]:
    """The measures of one package."""
    code = sources(folder)
    trees = {name: ast.parse(text) for name, text in code.items()}
    lines = sum(len(text.splitlines()) for text in code.values())
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    lengths = sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    tokens, code_lines, comments = map(sum, zip(*(count_tokens(text) for text in code.values()), strict=True))
    return {
        "modules": len(code),
        "lines": lines,
        "longest module": max(len(text.splitlines()) for text in code.values()),
        "function lines p50": lengths[len(lengths) // 2],
        "function lines p90": lengths[len(lengths) * 9 // 10],
        "function lines max": lengths[-1],
        "tokens per line of code": round(tokens / code_lines, 2),
        "comments per 100 lines": round(100 * comments / lines, 2),
        "comprehensions per 100 lines": round(100 * sum(isinstance(n, COMPREHENSIONS) for n in nodes) / lines, 2),
        "classes": sum(classes.values()),
        "class names used twice": sum(count > 1 for count in classes.values()),
        "import cycles": len(cycles(import_graph(trees, code))),
    }


def count_tokens(text: str) -> tuple[int, int, int]:
    """Tokens of code, the lines they stand in, and comments (not those for linters); a docstring is one token."""
    tokens, lines, comments = 0, set[int](), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += not token.string.startswith(("# noqa", "# type:", "# fmt:", "# pragma", "#!"))
        elif token.type not in LAYOUT:
            tokens += 1
            lines.update(range(token.start[0], token.end[0] + 1))
    return tokens, len(lines), comments


def import_graph(trees: Mapping[str, ast.AST], code: Mapping[str, str]) -> dict[str, set[str]]:
    """Module -> modules of the same package that it imports when it runs: at the top or inside a function.

    Imports for type checkers only (`if TYPE_CHECKING:`) are never executed and do not count.
    """
    graph: dict[str, set[str]] = {name: set() for name in trees}
    for name, tree in trees.items():
        is_package = any(other.startswith(f"{name}.") for other in code)
        for node in executed(tree):
            for dotted in imported(node, name, is_package):
                # what is imported is a module, or an attribute of one
                target = dotted if dotted in graph else dotted.rpartition(".")[0]
                if target in graph and target != name:
                    graph[name].add(target)
    return graph


def executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from executed(node)


def imported(node: ast.AST, module: str, is_package: bool) -> list[str]:
    """The dotted names that an import statement brings in."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        parts = module.split(".")
        kept = parts[: len(parts) - node.level + is_package]
        base = ".".join([*kept, base] if base else kept)
    return [f"{base}.{alias.name}" for alias in node.names]


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules each of which reaches every other (strongly connected components of two or more; Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def core_lines() -> dict[str, int]:
    """Lines of this package: the core, lab and legacy."""
    found = dict.fromkeys(("core", *OUTSIDE_THE_CORE), 0)
    for path in OWN.rglob("*.py"):
        room = path.relative_to(OWN).parts[0]
        found[room if room in OUTSIDE_THE_CORE else "core"] += len(path.read_text(encoding="utf-8").splitlines())
    return found


def upward_imports() -> int:
    """Imports between rooms that point upwards, by the rows of tests/test_layers.py."""
    sys.path.insert(0, str(ROOT / "tests"))
    from test_layers import MODULES, upward_imports

    return sum(len(upward_imports(path, ast.parse(path.read_text(encoding="utf-8")))) for path in MODULES)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("others", nargs="*", type=Path, help="source folders of other packages")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    sys.setrecursionlimit(10_000)
    found = {folder.name: measure(folder) for folder in (OWN, *args.others)}
    own = {**{f"lines of {room}": count for room, count in core_lines().items()}, "upward imports": upward_imports()}
    if args.json:
        print(json.dumps({"packages": found, "rooms": own}))
        return 0
    width = max(map(len, [*found["leverplus"], *own]))
    print(" " * width, *(f"{name:>12}" for name in found))
    for measured in found["leverplus"]:
        print(f"{measured:{width}}", *(f"{values[measured]:>12,}" for values in found.values()))
    for name, count in own.items():
        print(f"{name:{width}} {count:>12,}")
    code = sources(OWN)
    for group in cycles(import_graph({name: ast.parse(text) for name, text in code.items()}, code)):
        print("cycle:", ", ".join(group))
    return 0


if __name__ == "__main__":
    sys.exit(main())
