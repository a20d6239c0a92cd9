"""Writes the distribution of a reward as a page: its measures, and how many sequences of each reward are right."""

from __future__ import annotations

from html import escape

from leverplus.doctor.spread import Spread

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{padding:.15rem .8rem;text-align:right}td:first-child,th:first-child"
    "{text-align:left}.r{fill:#2a6f97}.w{fill:#c9c9c9}"
)
WIDTH, HEIGHT = 640, 180  # of the chart, in units of the SVG


def spread_page(found: Spread, title: str) -> str:
    """The page as text; bars of right sequences stand on those of wrong ones."""
    bins = found.histogram()
    most = max(right + wrong for _, _, right, wrong in bins)  # the highest bar fills the chart
    step = WIDTH / len(bins)
    bars = []
    for place, (low, high, right, wrong) in enumerate(bins):
        tall = {"w": HEIGHT * wrong / most, "r": HEIGHT * right / most}
        tip = escape(f"{low:.4g} to {high:.4g}: {right} right, {wrong} wrong")
        # In an SVG y grows downwards: the bar of wrong ones stands on the bottom, that of right ones on top of it.
        for kind, base in (("w", HEIGHT), ("r", HEIGHT - tall["w"])):
            bars.append(
                f'<rect class="{kind}" x="{place * step:.1f}" y="{base - tall[kind]:.1f}" width="{step - 1:.1f}" '
                f'height="{tall[kind]:.1f}"><title>{tip}</title></rect>'
            )
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{value:.6g}</td></tr>" for name, value in found.rows())
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f'<h1>{escape(title)}</h1><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="sequences by reward">'
        f"{''.join(bars)}</svg><p>{bins[0][0]:.4g} to {bins[-1][1]:.4g}; blue: right, grey: wrong sequences.</p>"
        f"<table><tr><th>measure</th><th>value</th></tr>{rows}</table></html>\n"
    )
