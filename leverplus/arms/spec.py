"""Names of arms, and how they compose: `nearest_text`, `vote(nearest_text, 5)`, `fixed(8)+nearest_text(8)`, `mine:Arm`."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from leverplus import catalog
from leverplus.arms.base import Arm
from leverplus.arms.composed import AtMost, Composed, Joined
from leverplus.errors import LeverError

OUTSIDE = "._from_outside_."
"""Stands for the colon of `package.module:Class` while a name is read as an expression of Python."""


def open_arm(spec: str, *, trusted: Sequence[str] | None = None) -> Arm:
    """An arm by its name, not fitted yet. `trusted` names the modules of arms from outside that may be imported; None: any.

    >>> open_arm("vote(nearest_text, 5)").spec
    'vote(nearest_text, 5)'
    """
    try:
        tree = ast.parse(spec.strip().replace(":", OUTSIDE), mode="eval").body
        return _opened(tree, trusted)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise LeverError(
            f'arm "{spec}" is not understood: {error}; write a name, vote(nearest_text, 5), cover(by_answer) or '
            "fixed(8)+nearest_text(8)"
        ) from error


def _opened(node: ast.expr, trusted: Sequence[str] | None) -> Arm:
    """The arm of one part of an expression; ValueError where it is none."""
    arms: list[Arm] = []
    numbers: list[int] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for side in (node.left, node.right):
            arm = _opened(side, trusted)
            arms += arm.parts if isinstance(arm, Joined) else [arm]
        return Joined(arms)
    if isinstance(node, ast.Call) and not node.keywords:
        for argument in node.args:
            if isinstance(argument, ast.Constant) and type(argument.value) is int:
                numbers.append(argument.value)
            else:
                arms.append(_opened(argument, trusted))
        node = node.func
    name = ast.unparse(node).replace(OUTSIDE, ":")
    if not re.fullmatch(r"[\w.]+(:\w+)?", name):
        raise ValueError(f'"{name}" is no name')
    module = name.split(":")[0]
    if ":" in name and trusted is not None and module not in trusted:
        raise LeverError(
            f'arm "{name}" is code from outside; if you trust it, say so: LEVER_TRUST={module} in front of the command, '
            f"or in Python "
            f'Selector.load(path, trust=["{module}"])'
        )
    kind = arm_class(name)
    if issubclass(kind, Composed):
        return _named(kind.of_parts(arms, numbers), name)
    if arms or len(numbers) > 1:
        raise ValueError(f"{kind.name} takes no arms in brackets")
    arm = _named(kind(), name)
    if numbers:
        return AtMost(arm, numbers[0])
    return arm


def _named(arm: Arm, name: str) -> Arm:
    """The same arm, which is opened again by the name of the module that it came from."""
    if ":" in name:
        arm.opened_as = name
    return arm


def split_specs(text: str) -> list[str]:
    """Names separated by commas; commas inside brackets do not separate.

    >>> split_specs("bm25, vote(nearest_text, 5)")
    ['bm25', 'vote(nearest_text, 5)']
    """
    parts = [""]
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def arms_of(named: Sequence[str], *, trains: bool, kind: str = "short") -> list[Arm]:
    """The arms of an evaluation, not fitted yet: those that are named, else all that suit this kind of answers.

    The question without examples is always asked, and so is what was trained.
    """
    wanted = list(dict.fromkeys(["zero_shot", *named]))
    for name in known_arms():
        own = arm_class(name)
        if (trains and own.needs.policy) if named else kind in own.suits:
            wanted.append(name)
    return [open_arm(spec) for spec in dict.fromkeys(wanted)]


def fit_calls(named: Sequence[str]) -> int:
    """Most calls of the frozen model with which the named arms learn, apart from those of a training.

    Nobody's code is imported for it, and a name that is not understood is somebody else's to refuse.

    >>> fit_calls(["vote(nearest_text, 5)", "fused(nearest_text)"])
    64
    """
    total = 0
    for spec in dict.fromkeys(named):
        with suppress(LeverError):
            total += open_arm(spec, trusted=()).fit_calls
    return total


def known_arms() -> list[str]:
    """The names of all arms of the catalog."""
    return list(catalog.ARMS)


def arm_class(name: str) -> type[Arm]:
    """The class behind one name, of the catalog or `package.module:Class`."""
    found: Any = catalog.load(catalog.ARMS, name, "arm")
    if not (isinstance(found, type) and issubclass(found, Arm)):
        raise LeverError(f"{name} is no arm; derive a class from leverplus.Arm")
    return found
