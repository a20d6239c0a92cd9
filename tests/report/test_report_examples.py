from __future__ import annotations

import base64
import io
from collections import Counter

from PIL import Image

from leverplus.report.examples import (
    arm_rows,
    card,
    chosen_items,
    examples,
    fates,
    most_used,
    shorten,
    usage_table,
    worth_alone,
)
from leverplus.report.pictures import SIDE, Thumbnails

HEADLINE = {"baseline": "nearest_both", "shots": 1}


def test_a_third_of_the_examples_was_helped_and_a_third_harmed() -> None:
    items = [f"i{k}" for k in range(100)]
    fate = {item: ("helped", "harmed", "same")[min(k // 20, 2)] for k, item in enumerate(items)}
    chosen = chosen_items(items, fate)
    assert Counter(fate[item] for item in chosen) == {"helped": 10, "harmed": 10, "same": 10}
    assert chosen == chosen_items(items[::-1], fate)


def test_a_kind_that_runs_out_is_filled_up_and_no_item_comes_twice() -> None:
    items = [f"i{k}" for k in range(50)]
    chosen = chosen_items(items, {"i0": "helped"})
    assert len(chosen) == len(set(chosen)) == 30
    assert chosen[0] == "i0"
    assert len(chosen_items(items[:7], {})) == 7


def test_the_fate_of_an_item_is_its_difference_at_the_headline(results) -> None:
    found = fates(results, HEADLINE)
    gains = results.accuracy("learned", 1) - results.accuracy("nearest_both", 1)
    assert [found[item] for item in results.items] == [
        "helped" if gain > 0 else "harmed" if gain < 0 else "same" for gain in gains
    ]
    assert fates(results, None) == {}


def test_an_example_shows_each_arm_with_its_own_demonstrations_in_order(results, task) -> None:
    row = 5
    shown = {entry.arm: entry for entry in arm_rows(results, Thumbnails(task), row, 2)}
    assert set(shown) == set(results.draws)
    assert shown["zero_shot"].demos == []
    prediction = results.draws["learned"][2][0][row]
    assert [demo.id for demo in shown["learned"].demos] == list(prediction.demos)
    assert shown["learned"].mark == ("right" if prediction.accuracy == 1 else "wrong")


def test_every_example_has_a_card_for_its_query(results, task) -> None:
    found = examples(results, Thumbnails(task), HEADLINE)
    assert len(found) == 30
    assert all(example.query.picture and example.fate for example in found)


def test_picks_are_counted_over_items_and_draws(results) -> None:
    table = {row[0]: row[1:] for row in usage_table(results).rows}
    used = Counter(demo for draw in results.draws["random"][2] for p in draw for demo in p.demos)
    share = 100 * sum(n for _, n in used.most_common(10)) / used.total()
    assert table["random"] == ("2", str(36 * 2 * 2), str(len(used)), f"{share:.1f} %")
    assert "zero-shot" not in table


def test_the_most_used_come_first(results, task) -> None:
    cards = most_used(results, Thumbnails(task))
    used = Counter(demo for p in results.draws["learned"][2][0] for demo in p.demos)
    assert [int(c.note[:-1]) for c in cards] == [n for _, n in used.most_common(12)]


def test_long_texts_are_cut_with_their_length() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("x" * 10_240, 160) == "x" * 160 + "… (10,240 characters)"


def test_each_distinct_picture_is_embedded_once_and_small(task) -> None:
    pictures = Thumbnails(task)
    one, same, other = (card(pictures, name) for name in ("train-0", "train-1", "train-2"))
    assert one.picture == same.picture != other.picture
    rules = pictures.style_sheet().splitlines()
    assert len(rules) == 2
    data = base64.b64decode(rules[0].split("base64,")[1].rstrip(")}"))
    with Image.open(io.BytesIO(data)) as image:
        assert (image.format, max(image.size)) == ("WEBP", SIDE)


def test_an_item_out_of_reach_is_shown_by_its_id(task) -> None:
    for pictures in (Thumbnails(None), Thumbnails(task)):
        shown = card(pictures, "gone")
        assert (shown.question, shown.picture, shown.answer) == ("gone", "", "")


def test_demonstrations_are_named_by_what_they_are_worth_alone() -> None:
    def line(demo: str, effect: float) -> dict[str, object]:
        return {"demo": demo, "effect": effect, "error": 0.02, "shown": 41}

    few = {"effects": {"answers": 10, "useful": [], "harmful": [], "is_noise": True}}
    many = {
        "effects": {"answers": 900, "useful": [line("a", 0.045)], "harmful": [line("b", -0.135)], "is_noise": False}
    }
    found = worth_alone({"sft": few, "listwise": many, "grpo": {"flat": 3}}, Thumbnails(None))
    assert found is not None
    (useful,), (harmful,) = found["useful"], found["harmful"]
    assert (useful.id, useful.note) == ("a", "+4.5 (error 2.0), 41 queries")
    assert (harmful.id, harmful.note) == ("b", "-13.5 (error 2.0), 41 queries")
    assert worth_alone({"grpo": {"flat": 3}}, Thumbnails(None)) is None
