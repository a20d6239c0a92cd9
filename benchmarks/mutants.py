"""Single small mistakes that can be made in a Python source: each a place, what stands there, and what would stand.

A mutant is found by walking the syntax tree and written by replacing its piece of the text, so that everything else,
comments included, stays as it is. Left alone are annotations, decorators, texts and what a `raise` says: a mistake
there changes no number.
"""

from __future__ import annotations

import ast
import difflib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div,
    ast.Mod: ast.Add, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
REVERSED = {
    ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
TWINS = {
    "min": "max", "minimum": "maximum", "amin": "amax", "argmin": "argmax", "any": "all", "floor": "ceil",
    "cumsum": "cumprod", "zeros_like": "ones_like", "zeros": "ones",
}  # fmt: skip
TWINS |= {right: left for left, right in TWINS.items()}
BOUNDED = ("clamp", "clamp_min", "clamp_max", "clip")
WHOLE = (ast.Name, ast.Attribute, ast.Call, ast.Constant, ast.Subscript)
"""Expressions that need no brackets, whatever stands around them."""

UNORDERED = (
    "isinstance",
    "zip",
    "TypeVar",
    "getattr",
    "hasattr",
    "cast",
    "min",
    "max",
    "maximum",
    "minimum",
)
"""Calls whose first two arguments are not swapped: nothing, or only an error, would come of it."""


@dataclass(frozen=True)
class Mutant:
    """One mistake: `old` at characters [start, end) of a file becomes `new`."""

    file: str
    line: int
    start: int
    end: int
    kind: str
    inside: str
    old: str
    new: str
    nth: int = 0

    @property
    def key(self) -> str:
        """A name that stays the same while lines move: file, function, kind, both texts, and which of equal ones."""
        return " | ".join(
            (self.file, self.inside, self.kind, self.old, self.new, str(self.nth))
        )

    def applied(self, source: str) -> str:
        if source[self.start : self.end] != self.old:
            raise ValueError(
                f"{self.file} has changed since its mistakes were listed; start again"
            )
        return source[: self.start] + self.new + source[self.end :]

    def diff(self, source: str) -> str:
        lines = difflib.unified_diff(
            source.splitlines(), self.applied(source).splitlines(), lineterm="", n=0
        )
        return "\n".join(
            line for line in lines if not line.startswith(("---", "+++", "@@"))
        )


def mutants_of(source: str, file: str) -> list[Mutant]:
    """All mutants of a source, outer expressions before what is inside them."""
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = source.encode()

    def place(line: int, column: int) -> int:  # ast counts columns in bytes
        return len(raw[: starts[line - 1] + column].decode())

    found: list[Mutant] = []
    counts: Counter[str] = Counter()
    for node, inside in _walk(tree, ()):
        for kind, new in _mistakes(node):
            if ast.dump(new) == ast.dump(node):
                continue  # f(x, x) with its arguments swapped
            start, end = (
                place(node.lineno, node.col_offset),
                place(node.end_lineno, node.end_col_offset),
            )
            text = (
                ast.unparse(new) if isinstance(new, WHOLE) else f"({ast.unparse(new)})"
            )
            mutant = Mutant(
                file,
                node.lineno,
                start,
                end,
                kind,
                ".".join(inside),
                source[start:end],
                text,
            )
            nth = counts[mutant.key]
            counts[mutant.key] += 1
            found.append(Mutant(**{**vars(mutant), "nth": nth}))
    return found


def _walk(
    node: ast.AST, inside: tuple[str, ...]
) -> Iterator[tuple[ast.expr, tuple[str, ...]]]:
    """Every expression that a mistake may be made in, with the functions and classes around it."""
    if isinstance(node, ast.expr):
        yield node, inside
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        inside = (*inside, node.name)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(
                child, (ast.JoinedStr, ast.Raise, ast.Import, ast.ImportFrom)
            ):
                continue
            if (
                isinstance(child, ast.Assign)
                and ast.unparse(child.targets[0]) == "__all__"
            ):
                continue
            if isinstance(child, ast.AST):
                yield from _walk(child, inside)


def _mistakes(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """(kind, what would stand there) for one expression."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            yield "arithmetic", ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.BoolOp(op=op, values=values):
            yield (
                "boolean",
                ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values),
            )
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield "minus", operand
            if isinstance(operand, ast.Constant) and isinstance(operand.value, int):
                yield (
                    "constant",
                    ast.UnaryOp(ast.USub(), ast.Constant(operand.value + 1)),
                )
        case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
            yield "negation", operand
        case ast.Compare(ops=[op, *_]):
            for kind, table in (("boundary", BOUNDARY), ("reversed", REVERSED)):
                if type(op) in table:
                    yield (
                        kind,
                        ast.Compare(
                            node.left,
                            [table[type(op)](), *node.ops[1:]],
                            node.comparators,
                        ),
                    )
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "branches", ast.IfExp(test, orelse, body)
        case ast.Constant(value=value):
            yield from _other_constant(value)
        case ast.Call():
            yield from _calls(node)


def _other_constant(value: object) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(value, bool):
        yield "flag", ast.Constant(not value)
    elif isinstance(value, int):
        yield "constant", ast.Constant(value + 1)
    elif isinstance(value, float):
        yield "constant", ast.Constant(2.0 * value if value else 1.0)


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    function, arguments = node.func, node.args
    name = (
        function.attr
        if isinstance(function, ast.Attribute)
        else getattr(function, "id", "")
    )
    if name in TWINS:
        twin = TWINS[name]
        other = (
            ast.Attribute(function.value, twin)
            if isinstance(function, ast.Attribute)
            else ast.Name(twin)
        )
        yield "twin", ast.Call(other, arguments, node.keywords)
    if name in BOUNDED:
        of_module = isinstance(function, ast.Attribute) and ast.unparse(
            function.value
        ) in ("np", "torch")
        yield "unbounded", arguments[0] if of_module else function.value  # type: ignore[attr-defined]
    plain = [
        argument for argument in arguments[:2] if not isinstance(argument, ast.Starred)
    ]
    if len(plain) == 2 and name not in UNORDERED:
        yield (
            "swapped",
            ast.Call(
                function, [arguments[1], arguments[0], *arguments[2:]], node.keywords
            ),
        )
