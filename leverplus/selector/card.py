"""The card of a bundle, README.md: what it was made for, what it gains, how it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leverplus.errors import plain
from leverplus.evaluation.names import arm_name, shots_name


def write_card(facts: Mapping[str, Any], name: str) -> str:
    """Markdown with a header that hubs read."""
    licence = plain(str(facts.get("licence") or "unknown"))
    task, model, embedder = (facts.get(key) or {} for key in ("task", "model", "embedder"))
    made = embedder.get("fingerprint") or {}
    lines = [
        "---",
        "library_name: leverplus",
        f"license: {licence}",
        "tags: [in-context-learning, demonstration-selection]",
        "---",
        f"# {plain(name)}",
        "",
        "A bundle of Lever-Plus: it chooses the worked examples to put into the prompt of a frozen model.",
        "",
        "| | |",
        "|---|---|",
        f"| task | {plain(str(task.get('name', 'not said')))}, judged by {task.get('metric', 'not said')} |",
        f"| model it was measured with | {plain(str(model.get('name') or model.get('backend') or 'not said'))} |",
        f"| way of choosing | {arm_name(facts['arm'])} (`{facts['arm']}`), {shots_name(facts['shots'])} recommended |",
        f"| demonstrations | {facts['demonstrations']['count']:,} when it was packed |",
        f"| embedder | {made.get('embedder', 'none')} {made.get('revision', '')} |",
        f"| licence of the demonstrations | {licence} |",
        "",
        *_figures(facts.get("figures") or {}),
        "## Use",
        "",
        "```python",
        "from leverplus import Selector",
        f'selector = Selector.load("{plain(name)}")',
        'demos = selector.select(question="...", image=None)          # nearest to the query last',
        'messages = selector.messages(question="...", image=None)     # an OpenAI chat',
        "```",
        "",
        f'or `lever select {plain(name)} --question "..."`.',
        "",
    ]
    return "\n".join(lines)


def _figures(figures: Mapping[str, Any]) -> list[str]:
    """Accuracies with their n and, against other ways, with intervals."""
    if not figures.get("shots"):
        return ["It was not evaluated before it was packed.", ""]
    shots = figures["shots"]
    lines = [
        f"## Accuracy on {figures['n']} {figures['split']} items",
        "",
        "| shots | accuracy |",
        "|---|---|",
        *(f"| {count} | {100 * value:.1f} % |" for count, value in shots.items() if value is not None),
        "",
    ]
    for row in figures.get("comparisons", ()):
        low, high = (100 * end for end in row["ci95"])
        lines.append(
            f"- against {arm_name(row['baseline'])} at {shots_name(int(row['shots']))}: "
            f"{100 * row['diff']:+.1f} points ({low:+.1f} to {high:+.1f}, n = {row['n']})"
        )
    kinds = {"training_calls": "for training", "dev_calls": "for the choice on dev", "test_calls": "on test"}
    if calls := [f"{figures[key]:,} {what}" for key, what in kinds.items() if figures.get(key)]:
        lines.append(f"- calls of the model: {', '.join(calls)}")
    if figures.get("advice"):
        lines += ["", plain(str(figures["advice"]))]
    return [*lines, ""]
