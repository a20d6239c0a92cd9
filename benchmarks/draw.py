"""The pictures of README and site that come from recorded answers of real models.

    python benchmarks/draw.py measure      what they show, from the recorded tables, into benchmarks/real/pictures.json
    python benchmarks/draw.py              docs/pictures/*.svg, from that file and the tables of docs/recorded.md

A test draws them again and compares. `lever bench` draws bench.svg, `benchmarks/pictures.py` takes screenshots.
"""

from __future__ import annotations

import html
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from draw_records import CHOOSERS, EXAMPLE, measure  # beside this file

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
KEPT = HERE / "real" / "pictures.json"
TRANSFER_PAGE = DOCS / "recorded.md"

MODELS = {
    "smollm2-135m": "SmolLM2-135M",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B",
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B",
}
TASKS = {
    "okvqa": "OK-VQA by captions",
    "aokvqa": "A-OKVQA by captions",
    "trec": "TREC",
    "sst2": "SST-2",
    "agnews": "AG News",
}
INK, GREY, PALE, GOOD, BAD = "#1f2933", "#80868b", "#e3e5e8", "#2a9d8f", "#c8452d"
LINES = ("#e0592a", "#2f7fc1", "#8f6bc4")


def svg(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="13" fill="{INK}" role="img" aria-label="{html.escape(label)}">'
    )
    paper = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, paper, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, **style: str) -> str:
    given = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in style.items())
    return f'<text x="{x:g}" y="{y:g}"{given}>{html.escape(words)}</text>'


def line(start: tuple[float, float], end: tuple[float, float], colour: str, width: float = 1) -> str:
    (x1, y1), (x2, y2) = start, end
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"/>'


def cut(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def idea_card(kept: dict[str, Any], kind: str, x: int, y: int) -> list[str]:
    """A recorded question with one demonstration in front of it, and what the model wrote."""
    shown = kept["example"]
    demo, right = shown[kind]["demo"], kind == "right"
    colour, mark = (GOOD, "✓") if right else (BAD, "✗")
    title = "an example that fits" if right else "an example taken by chance"
    written = f"the model writes: {shown[kind]['answer']}"
    return [
        f'<rect x="{x}" y="{y}" width="410" height="228" rx="8" fill="none" stroke="{PALE}" stroke-width="2"/>',
        text(x + 16, y + 24, title, font_weight="bold"),
        text(x + 16, y + 48, "Picture: " + cut(demo["caption"], 50), fill=GREY),
        text(x + 16, y + 68, "Q: " + cut(demo["question"], 58)),
        text(x + 16, y + 88, "A: " + demo["answer"]),
        line((x + 16, y + 102), (x + 394, y + 102), PALE),
        text(x + 16, y + 126, "Picture: " + cut(shown["query"]["caption"], 50), fill=GREY),
        text(x + 16, y + 146, "Q: " + cut(shown["query"]["question"], 58)),
        text(x + 16, y + 166, "A:"),
        text(x + 16, y + 206, written, font_weight="bold", fill=colour, font_size="15"),
        text(x + 394, y + 206, mark, fill=colour, font_size="22", text_anchor="end"),
    ]


IDEA = "The same question with two different examples in front of it"


def idea_picture(kept: dict[str, Any]) -> str:
    """One recorded question with two different demonstrations in front of it."""
    title = "One question, one frozen model, two different worked examples"
    truth = kept["example"]["query"]["answer"]
    caption = f"Recorded: OK-VQA, a caption in the picture's place, Qwen2.5-Coder-1.5B; the annotators said “{truth}”."
    parts = [text(20, 26, title, font_size="16", font_weight="bold")]
    parts += idea_card(kept, "wrong", 20, 44) + idea_card(kept, "right", 450, 44)
    return svg(880, 310, IDEA, [*parts, text(20, 296, caption, fill=GREY, font_size="12")])


def narrow_idea_picture(kept: dict[str, Any]) -> str:
    """The same for a phone: one card below the other."""
    truth = kept["example"]["query"]["answer"]
    parts = [text(10, 26, "One question, two different worked examples", font_size="16", font_weight="bold")]
    parts += idea_card(kept, "wrong", 10, 44) + idea_card(kept, "right", 10, 288)
    parts += [
        text(10, 540, "Recorded: OK-VQA, a caption in the picture's place,", fill=GREY),
        text(10, 560, f"Qwen2.5-Coder-1.5B; the annotators said “{truth}”.", fill=GREY),
    ]
    return svg(430, 572, IDEA, parts)


def shots_picture(kept: dict[str, Any]) -> str:
    """Accuracy by shots with 95 % intervals, one panel per task and model."""
    width, height, left = 420, 250, 46
    parts = []
    for number, found in enumerate(kept["shots"]):
        x0, y0 = (number % 2) * width, (number // 2) * height
        points = [point for curve in found["curves"].values() for point in curve.values()]
        top = min(1.0, math.ceil(10 * max(point["ci95"][1] for point in points)) / 10)
        n = points[0]["n"]
        parts.append(
            text(x0 + left, y0 + 22, f"{TASKS[found['task']]}, {MODELS[found['model']]} (n = {n})", font_weight="bold")
        )

        def across(shots: int, x0: float = x0) -> float:
            return x0 + left + 14 + (0 if shots == 0 else 1 + math.log2(shots)) * 58

        def up(value: float, y0: float = y0, top: float = top) -> float:
            return y0 + height - 40 - value / top * (height - 76)

        for share in [tick / 10 for tick in range(0, round(10 * top) + 1, 1 if top <= 0.5 else 2)]:
            parts.append(line((x0 + left, up(share)), (x0 + width - 20, up(share)), PALE))
            parts.append(text(x0 + left - 6, up(share) + 4, f"{100 * share:.0f} %", text_anchor="end", font_size="11"))
        for shots in (0, 1, 2, 4, 8, 16):
            parts.append(text(across(shots), y0 + height - 22, str(shots), text_anchor="middle", font_size="11"))
        for place, (colour, curve) in enumerate(zip(LINES, found["curves"].values(), strict=True)):
            parts += curve_lines(curve, colour, lambda shots, place=place: across(shots) + 3 * (place - 1), up)
    below = 2 * height + 8
    parts.append(text(left, below, "demonstrations shown", font_size="12", fill=GREY))
    for place, (colour, name) in enumerate(zip(LINES, CHOOSERS, strict=True)):
        x = 230 + 150 * place
        parts += [line((x, below - 4), (x + 24, below - 4), colour, 2), text(x + 30, below, name)]
    return svg(2 * width, 2 * height + 20, "Accuracy by number of demonstrations with 95 % intervals", parts)


def curve_lines(
    curve: dict[str, Any], colour: str, across: Callable[[int], float], up: Callable[[float], float]
) -> list[str]:
    places = [(across(int(shots)), point) for shots, point in curve.items()]
    path = " ".join(f"{x:.1f},{up(point['mean']):.1f}" for x, point in places)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for x, point in places:
        parts.append(line((x, up(point["ci95"][0])), (x, up(point["ci95"][1])), colour))
        parts.append(f'<circle cx="{x:.1f}" cy="{up(point["mean"]):.1f}" r="3.5" fill="{colour}"/>')
    return parts


def effects_picture(kept: dict[str, Any]) -> str:
    """Both ends of a corpus with their texts and standard errors."""
    found = kept["effects"]
    rows = [*found["useful"], None, *reversed(found["harmful"])]
    middle, scale, top = 190, 900, 62
    parts = [
        text(20, 24, "Which demonstrations help most, and which harm?", font_size="16", font_weight="bold"),
        text(
            20,
            44,
            "effect in points, ± one standard error; how many queries saw it; its answer; its caption and question",
            fill=GREY,
        ),
    ]
    for number, row in enumerate(rows):
        y = top + 26 * number
        if row is None:
            parts.append(
                text(
                    middle + 156,
                    y + 14,
                    f"… {found['demonstrations'] - 2 * len(found['useful']):,} between them …",
                    fill=GREY,
                )
            )
            continue
        effect, error = row["effect"], row["error"]
        colour = GOOD if effect > 0 else BAD
        start, end = sorted((middle, middle + scale * effect))
        parts.append(
            f'<rect x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="16" fill="{colour}" opacity="0.75"/>'
        )
        tip = middle + scale * effect
        parts.append(line((tip - scale * error, y + 8), (tip + scale * error, y + 8), INK))
        question, answer = row["text"].split(": ", 1)[1].rsplit(" -> ", 1)
        parts.append(text(middle + 100, y + 13, f"{100 * effect:+.1f}", font_size="12", text_anchor="end"))
        parts.append(text(middle + 140, y + 13, f"({row['shown']})", font_size="12", text_anchor="end"))
        parts.append(text(middle + 156, y + 13, cut(answer, 22), font_size="12", font_weight="bold"))
        parts.append(text(middle + 290, y + 13, cut(question, 84), font_size="12"))
    bottom = top + 26 * len(rows)
    parts.append(line((middle, top - 6), (middle, bottom), GREY))
    said_by = f"OK-VQA by captions, Qwen2.5-Coder-1.5B: lever demos audit tables:{EXAMPLE}.parquet"
    note = f"{found['rows']:,} recorded answers, {found['queries']:,} queries, {said_by}"
    parts.append(text(20, bottom + 18, note, fill=GREY, font_size="12"))
    return svg(1040, bottom + 30, "The most useful and the most harmful demonstrations", parts)


def transfers() -> dict[str, list[tuple[str, list[str]]]]:
    """The tables of docs/recorded.md: task -> rows of (model that measured, gain with each model that was asked)."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    task = ""
    for row in TRANSFER_PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if re.match(r"\| \w+, effects of \|", row):
            task = cells[0].split(",")[0]
        elif task and cells[0] in MODELS:
            found.setdefault(task, []).append((cells[0], cells[1:4]))
        elif not row.startswith("|"):
            task = ""
    return found


def transfer_picture(_: dict[str, Any]) -> str:
    """What effects measured with one model gain with another, one matrix per task."""
    found = transfers()
    size, step = 74, 330
    parts = [
        text(
            20,
            24,
            "Effects measured with one model (row) choose for another (column)",
            font_size="16",
            font_weight="bold",
        )
    ]
    parts.append(text(20, 44, "points over a random demonstration; pale: the 95 % interval holds zero", fill=GREY))
    for number, (task, rows) in enumerate(found.items()):
        x0, y0 = 20 + step * (number % 3), 70 + 310 * (number // 3)
        parts.append(text(x0 + 84, y0, TASKS[task], font_weight="bold"))
        for column, (model, _) in enumerate(rows):
            parts.append(
                text(
                    x0 + 84 + size * (column + 0.5),
                    y0 + 20,
                    model.split("-")[-1].upper(),
                    text_anchor="middle",
                    font_size="11",
                )
            )
        for place, (model, cells) in enumerate(rows):
            y = y0 + 28 + size * place
            parts.append(
                text(x0 + 78, y + size / 2 + 4, model.split("-")[-1].upper(), text_anchor="end", font_size="11")
            )
            parts += [square(x0 + 84 + size * column, y, size, cell) for column, cell in enumerate(cells)]
    parts.append(
        text(
            20,
            680,
            "135M: SmolLM2-135M; 0.5B, 1.5B: Qwen2.5-Coder. python benchmarks/real_transfer.py TASK",
            fill=GREY,
            font_size="12",
        )
    )
    return svg(1010, 696, "Gain by effects of one model, used with another", parts)


def asked_curves() -> dict[str, list[tuple[int, float, float, float]]]:
    """The table of docs/recorded.md: how calls were picked -> (calls, accuracy, both ends of its interval)."""
    found: dict[str, list[tuple[int, float, float, float]]] = {}
    row = r"\| ([\d,]+) calls, (by [^|]+?) \| ([\d.]+) \| ([-+][\d.]+) \(([-+][\d.]+) to ([-+][\d.]+)\)"
    for calls, how, accuracy, diff, low, high in re.findall(row, TRANSFER_PAGE.read_text(encoding="utf-8")):
        rival = float(accuracy) - float(diff)
        found.setdefault(how, []).append(
            (int(calls.replace(",", "")), float(accuracy), rival + float(low), rival + float(high))
        )
    return found


def calls_picture(_: dict[str, Any]) -> str:
    """Accuracy with one demonstration against the calls that effects were learnt from, beside what needs none."""
    page, left, right, top, bottom, low, high = TRANSFER_PAGE.read_text(encoding="utf-8"), 60, 560, 66, 320, 31, 37

    def across(calls: float) -> float:
        return left + 20 + math.log(calls / 1000) / math.log(64) * (right - left - 40)

    def up(accuracy: float) -> float:
        return bottom - (accuracy - low) / (high - low) * (bottom - top)

    parts = [
        text(20, 24, "What more calls buy on a real model", font_size="16", font_weight="bold"),
        text(
            20, 44, "accuracy with one demonstration; intervals of the difference from the nearest question", fill=GREY
        ),
    ]
    for step in range(low, high + 1):
        parts.append(line((left, up(step)), (right, up(step)), PALE))
        parts.append(text(left - 6, up(step) + 4, f"{step} %", text_anchor="end", font_size="11"))
    for name in ("nearest by question", "one for all, chosen on train", "similarity + effects + labels"):
        level = float(re.search(rf"^\| {re.escape(name)} \| ([\d.]+)", page, re.MULTILINE)[1])  # type: ignore[index]
        parts.append(line((left, up(level)), (right, up(level)), GREY))
        said_more = {"similarity + effects + labels": " with every recorded call"}.get(name, "")
        parts.append(text(right + 8, up(level) + 4, f"{level:.1f}  {name}{said_more}", font_size="12"))
    for place, (colour, (how, curve)) in enumerate(zip(LINES, asked_curves().items(), strict=False)):
        shift = 4 * (2 * place - 1)
        path = " ".join(f"{across(calls) + shift:.1f},{up(accuracy):.1f}" for calls, accuracy, *_ in curve)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for calls, accuracy, worst, best in curve:
            x = across(calls) + shift
            parts.append(line((x, up(worst)), (x, up(best)), colour))
            parts.append(f'<circle cx="{x:.1f}" cy="{up(accuracy):.1f}" r="4" fill="{colour}"/>')
        parts.append(text(right + 8, top + 10 + 22 * place, f"asked {how}", fill=colour, font_weight="bold"))
    for calls in (1000, 4000, 16000, 64000):
        label = f"{calls // 1000},000"
        parts.append(text(across(calls), bottom + 18, label, text_anchor="middle", font_size="11"))
    parts.append(
        text((left + right) / 2, bottom + 38, "calls of the model for training", text_anchor="middle", fill=GREY)
    )
    note = "OK-VQA by captions, Qwen2.5-Coder-1.5B, 5,045 questions cross-fitted: python benchmarks/real_crossfit.py"
    parts.append(text(20, bottom + 62, note, fill=GREY, font_size="12"))
    return svg(960, bottom + 76, "Accuracy against calls on recorded answers of a real model", parts)


def square(x: float, y: float, size: float, cell: str) -> str:
    gain, low, high = (float(number) for number in re.findall(r"[-+]\d+\.\d", cell))
    colour = GOOD if gain > 0 else BAD
    strength = 0.12 if low <= 0 <= high else min(0.9, 0.3 + abs(gain) / 40)
    return "\n".join(
        [
            f'<rect x="{x + 2:g}" y="{y + 2:g}" width="{size - 4:g}" height="{size - 4:g}" rx="4" '
            f'fill="{colour}" opacity="{strength:.2f}"/>',
            text(x + size / 2, y + size / 2, f"{gain:+.1f}", text_anchor="middle", font_weight="bold"),
            text(x + size / 2, y + size / 2 + 16, f"{low:+.1f} to {high:+.1f}", text_anchor="middle", font_size="9"),
        ]
    )


def cost_picture(kept: dict[str, Any]) -> str:
    """Accuracy against what the model reads per query: full circles without, hollow ones with an ideal prefix cache."""
    found, left, right, top, bottom = kept["costs"], 60, 640, 66, 320
    points = [point for curve in found.values() for point in curve.values()]
    most, values = max(point["read"] for point in points), [point["accuracy"] for point in points]
    low, high = math.floor(50 * min(values)) / 50, math.ceil(50 * max(values)) / 50

    def across(characters: float) -> float:
        return left + characters / (1.05 * most) * (right - left)

    def up(accuracy: float) -> float:
        return bottom - (accuracy - low) / (high - low) * (bottom - top)

    parts = [
        text(20, 24, "What a prefix cache saves", font_size="16", font_weight="bold"),
        text(
            20,
            44,
            "● every character read   ○ read anew, if shared beginnings of prompts are kept; 2, 4, 8 shots",
            fill=GREY,
        ),
    ]
    for step in range(round(100 * low), round(100 * high) + 1, 2):
        parts.append(line((left, up(step / 100)), (right, up(step / 100)), PALE))
        parts.append(text(left - 6, up(step / 100) + 4, f"{step} %", text_anchor="end", font_size="11"))
    for characters in range(0, int(1.05 * most) + 1, 250):
        parts.append(text(across(characters), bottom + 18, str(characters), text_anchor="middle", font_size="11"))
    parts.append(text((left + right) / 2, bottom + 38, "characters per query", text_anchor="middle", fill=GREY))
    for colour, (name, curve) in zip(LINES, found.items(), strict=False):
        for shots, point in curve.items():
            y, full, anew = up(point["accuracy"]), across(point["read"]), across(point["new"])
            parts.append(line((anew, y), (full, y), colour))
            parts.append(f'<circle cx="{full:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>')
            parts.append(
                f'<circle cx="{anew:.1f}" cy="{y:.1f}" r="5" fill="white" stroke="{colour}" stroke-width="2"/>'
            )
            parts.append(text(full + 9, y + 4, shots, font_size="11"))
        place = list(found).index(name)
        parts.append(text(right + 24, top + 20 + 24 * place, name, fill=colour, font_weight="bold"))
    n = points[0]["n"]
    parts.append(
        text(
            20, bottom + 62, f"OK-VQA by captions, Qwen2.5-Coder-1.5B, {n} test questions in recorded order", fill=GREY
        )
    )
    return svg(820, bottom + 76, "Accuracy against characters read with and without a prefix cache", parts)


def promises_picture(_: dict[str, Any]) -> str:
    """What a learned value promised of lists before they were asked, and what they scored, over one rival."""
    row = r"^\| ([^|]+?) \| (8|16) \| [\d,]+ \| ([-+][\d.]+) \| ([-+][\d.]+) \| [-+][\d.]+ \|$"
    rows = re.findall(row, TRANSFER_PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    left, right, top, step = 250, 760, 86, 30
    bottom = top + step * len(rows)

    def across(points: float) -> float:
        return left + (points + 3) / 5 * (right - left)

    parts = [
        text(
            20, 24, "A search for the best list finds the errors of its own model", font_size="16", font_weight="bold"
        ),
        text(20, 44, "points over vote + similarity with as many demonstrations, 5,045 questions of OK-VQA", fill=GREY),
    ]
    for points in range(-3, 3):
        parts.append(line((across(points), top - 16), (across(points), bottom - 12), GREY if points == 0 else PALE))
        parts.append(text(across(points), bottom + 6, f"{points:+d}" if points else "0", text_anchor="middle"))
    for number, (arm, shots, promised, measured) in enumerate(rows):
        y, x0, x1 = top + step * number, across(float(promised)), across(float(measured))
        parts.append(text(left - 20, y + 4, f"{arm}, {shots}", text_anchor="end"))
        parts.append(line((x0, y), (x1, y), BAD if x1 < x0 else GOOD, 2))
        parts.append(f'<circle cx="{x0:.1f}" cy="{y}" r="5" fill="white" stroke="{GREY}" stroke-width="2"/>')
        parts.append(f'<circle cx="{x1:.1f}" cy="{y}" r="5" fill="{INK}"/>')
    parts += [
        f'<circle cx="26" cy="{bottom + 30}" r="5" fill="white" stroke="{GREY}" stroke-width="2"/>',
        text(38, bottom + 34, "promised by the learned value"),
        f'<circle cx="256" cy="{bottom + 30}" r="5" fill="{INK}"/>',
        text(268, bottom + 34, "measured: python benchmarks/real_lists.py report"),
    ]
    return svg(800, bottom + 48, "What a learned value promised of lists, and what they scored", parts)


PICTURES: dict[str, Callable[[dict[str, Any]], str]] = {
    "idea.svg": idea_picture,
    "idea_narrow.svg": narrow_idea_picture,
    "shots.svg": shots_picture,
    "effects.svg": effects_picture,
    "transfer.svg": transfer_picture,
    "cost.svg": cost_picture,
    "calls.svg": calls_picture,
    "promises.svg": promises_picture,
}


def draw(name: str) -> str:
    return PICTURES[name](json.loads(KEPT.read_text(encoding="utf-8")))


def main() -> int:
    if sys.argv[1:] == ["measure"]:
        KEPT.write_text(json.dumps(measure(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    elif sys.argv[1:]:
        print(__doc__)
        return 2
    for name in PICTURES:
        (DOCS / "pictures" / name).write_text(draw(name), encoding="utf-8")
        print(f"docs/pictures/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
