"""Renders the pages from Jinja templates, which escape whatever comes from data, and serves the assets they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from leverplus.evaluation.names import arm_name, shots_name
from leverplus.report.build import script_json
from leverplus.report.figures import Figure, figure_values

if TYPE_CHECKING:
    import jinja2

OWN = resources.files("leverplus.view") / "assets"
REPORT = resources.files("leverplus.report") / "assets"

ASSETS = {
    "report.css": (REPORT, "text/css"),
    "view.css": (OWN, "text/css"),
    "plotly-basic.min.js": (REPORT, "text/javascript"),
    "report.js": (REPORT, "text/javascript"),
    "view.js": (OWN, "text/javascript"),
}
"""Every file the page may ask for; charts are drawn by the same script as in the report."""


def asset(name: str) -> tuple[bytes, str] | None:
    """A file of the page and its type; None if it is not one."""
    if name not in ASSETS:
        return None
    place, kind = ASSETS[name]
    return (place / name).read_bytes(), kind


@cache
def environment() -> jinja2.Environment:
    import jinja2

    loader = jinja2.FunctionLoader(lambda name: (OWN / name).read_text(encoding="utf-8"))
    made = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    made.globals.update(arm_name=arm_name, shots_name=shots_name, figures=(), title="")
    made.filters.update(points=points, percent=percent_or_dash, mark=mark)
    return made


def render_page(template: str, **values: Any) -> bytes:
    """A page as bytes; a text that is no valid Unicode is shown with question marks."""
    figures: Sequence[Figure] = values.get("figures", ())
    values["figure_json"] = script_json(figure_values(figures)) if figures else ""
    text = environment().get_template(f"{template}.html.j2").render(**values)
    return text.encode("utf-8", errors="replace")


def percent_or_dash(value: float | None) -> str:
    """An accuracy in percent; a dash where there is none."""
    return "–" if value is None else f"{100 * value:.1f}"


def points(value: float) -> str:
    return f"{100 * value:+.1f}"


def mark(score: float) -> str:
    """The class of the style sheet for an accuracy: right (1), wrong (0) or partly."""
    if score >= 1.0:
        return "right"
    return "partly" if score > 0.0 else "wrong"
