"""Hooks of the site: formulas become MathML, so that they need no script; links to files of the source become hints."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(
    r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL
)


OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[a-z.][^)]*)\)")


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """A link to a file of the source tree, which is no page, becomes its words with the file's name as a hint."""
    depth = page.file.src_uri.count("/") + 1

    def as_hint(found: re.Match[str]) -> str:
        words, link = found.groups()
        if not link.startswith("../" * depth):
            return found.group(0)
        return f'<abbr title="{link[3 * depth :]}">{words}</abbr>'

    return OUTSIDE.sub(as_hint, text)


def on_page_content(text: str, **_: Any) -> str:
    """Every formula that arithmatex marked, as MathML."""

    def as_mathml(found: re.Match[str]) -> str:
        kind, formula = found.groups()
        return convert(
            html.unescape(formula).strip(),
            display="block" if kind == "div" else "inline",
        )

    return FORMULA.sub(as_mathml, text)
