"""The benchmark as a picture: the share of the gap closed against calls of the frozen model, as SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from leverplus.evaluation.names import arm_name
from leverplus.lab.methods import METHODS
from leverplus.lab.pages import title, usual

Row = Mapping[str, Any]
WIDTH, HEIGHT = 860, 460
LEFT, RIGHT, TOP, BOTTOM = 64, 300, 24, 52
COLOURS = ("#e0592a", "#2f7fc1", "#2a9d8f", "#8f6bc4", "#c79a1b", "#c05780", "#5b8c3a", "#a0664a", "#4a6fa5")
GREY = "#80868b"
LEVELS = ("nearest_both", "two_stage", "mmr")
ONCE = {name for method in METHODS.values() for name in method.once.values()}


def gap_picture(found: Mapping[str, Any]) -> str:
    """Every method's share of the gap at each budget with its interval; what has no budget is a level line."""
    drawn = [
        row for row in usual(found, "methods") if row["arm"] == "learned" and (row["gap_closed"] or {}).get("mean")
    ]
    rows = [row for row in drawn if row["method"] not in ONCE]
    levels = [row for row in usual(found, "arms") if row["arm"] in LEVELS and (row["gap_closed"] or {}).get("mean")]
    levels += [row for row in drawn if row["method"] in ONCE]
    names = list(dict.fromkeys(title(row) for row in rows))
    frame = _Frame.around(rows, levels)
    parts = [frame.axes()]
    legend: list[tuple[str, str, str]] = []
    for name, colour in zip(names, _cycle(len(names)), strict=True):
        parts.append(frame.curve([row for row in rows if title(row) == name], colour))
        legend.append((name, colour, "none"))
    for place, row in enumerate(levels):
        dash = f"{2 + 3 * place} 4"
        parts.append(frame.level(row["gap_closed"]["mean"]["share"], dash))
        legend.append((title(row) if "method" in row else arm_name(row["arm"]), GREY, dash))
    parts.append(_legend(legend))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="13" role="img" aria-label="Share of the gap closed against calls">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


class _Frame:
    """Where a number of calls (on a logarithmic scale) and a share of the gap stand on the picture."""

    def __init__(self, calls: tuple[float, float], shares: tuple[float, float], ticks: Sequence[int]) -> None:
        self.calls, self.shares, self.ticks = calls, shares, ticks

    @classmethod
    def around(cls, rows: Sequence[Row], levels: Sequence[Row]) -> _Frame:
        budgets = sorted({row["budget"] for row in rows}) or [1]
        ends = [bound for row in (*rows, *levels) for bound in row["gap_closed"]["mean"]["ci95"]]
        low = math.floor(10 * max(-1.0, min([*ends, 0.5]))) / 10
        high = math.ceil(10 * min(2.0, max([*ends, 1.0]))) / 10
        return cls((budgets[0] / 1.4, budgets[-1] * 1.4), (low, high), budgets)

    def x(self, calls: float) -> float:
        low, high = (math.log(end) for end in self.calls)
        return LEFT + (math.log(calls) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, share: float) -> float:
        low, high = self.shares
        return HEIGHT - BOTTOM - (share - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def axes(self) -> str:
        end, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        parts = []
        step = 0.1 if self.shares[1] - self.shares[0] <= 1.2 else 0.2
        for number in range(round((self.shares[1] - self.shares[0]) / step) + 1):
            share = self.shares[0] + number * step
            y = self.y(share)
            parts.append(f'<line x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e5e8"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>')
        for calls in self.ticks:
            x, label = self.x(calls), f"{calls // 1000} k" if calls >= 1000 else str(calls)
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}" stroke="{GREY}"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{label}</text>')
        parts.append(f'<line x1="{LEFT}" x2="{end}" y1="{bottom}" y2="{bottom}" stroke="{GREY}"/>')
        middle = (LEFT + end) / 2
        parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">calls of the frozen model</text>')
        y = (TOP + bottom) / 2
        words = "share of the gap from random to oracle"
        parts.append(f'<text transform="translate(16 {y}) rotate(-90)" text-anchor="middle">{words}</text>')
        return "\n".join(parts)

    def curve(self, rows: Sequence[Row], colour: str) -> str:
        rows = sorted(rows, key=lambda row: row["budget"])
        points = [(self.x(row["budget"]), row["gap_closed"]["mean"]) for row in rows]
        line = " ".join(f"{x:.1f},{self.y(found['share']):.1f}" for x, found in points)
        parts = [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>']
        for x, found in points:
            low, high = (self.y(min(max(bound, self.shares[0]), self.shares[1])) for bound in found["ci95"])
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}"/>')
            parts.append(f'<circle cx="{x:.1f}" cy="{self.y(found["share"]):.1f}" r="4" fill="{colour}"/>')
        return "\n".join(parts)

    def level(self, share: float, dash: str) -> str:
        y, end = self.y(share), WIDTH - RIGHT
        return f'<line x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GREY}" stroke-dasharray="{dash}"/>'


def _cycle(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]


def _legend(entries: Sequence[tuple[str, str, str]]) -> str:
    parts = []
    for number, (name, colour, dash) in enumerate(entries):
        x, y = WIDTH - RIGHT + 16, TOP + 14 + 22 * number
        parts.append(
            f'<line x1="{x}" x2="{x + 26}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/>'
        )
        parts.append(f'<text x="{x + 34}" y="{y}">{html.escape(name)}</text>')
    return "\n".join(parts)
