from __future__ import annotations

import numpy as np
import pytest

from leverplus.evaluation.evaluate import compared_pairs, comparisons
from leverplus.evaluation.predictions import Prediction, Results
from leverplus.report import figures, tables
from leverplus.report.figures import GREY, Estimate
from leverplus.report.verdict import within_noise
from leverplus.stats import mean_interval


@pytest.fixture(scope="module")
def rows(results):
    """What the statistics say of the results, and one comparison that says nothing."""
    found = comparisons(results, compared_pairs(results))
    vague = {"baseline": "mmr", "diff": 0.01, "ci95": [-0.1, 0.12], "p_value": 0.8, "p_adjusted": 0.8}
    return [*found, {**found[0], **vague}]


def test_points_and_error_bars_are_the_means_and_bootstrap_intervals_over_images(results) -> None:
    figure = figures.accuracy_figure(figures.estimates(results), len(results.items))
    learned = next(trace for trace in figure.data if trace.get("name") == "learned")
    scores = results.accuracy("learned", 2)
    low, high = mean_interval(scores, clusters=results.images)
    assert learned["y"][1] == pytest.approx(100 * scores.mean())
    assert learned["y"][1] - learned["error_y"]["arrayminus"][1] == pytest.approx(100 * low)
    assert learned["y"][1] + learned["error_y"]["array"][1] == pytest.approx(100 * high)
    cells = {row[0]: row[1:] for row in figure.table.rows}
    assert cells["learned"] == ("", *(str(Estimate.of(results.accuracy("learned", n), results.images)) for n in (1, 2)))
    assert cells["zero-shot"][1:] == ("", "")


def test_every_arm_has_a_series_and_a_row(results) -> None:
    figure = figures.accuracy_figure(figures.estimates(results), len(results.items))
    assert len([t for t in figure.data if t.get("showlegend", True)]) == len(results.draws) == len(figure.table.rows)
    assert all(trace["visible"] for trace in figure.data if trace.get("showlegend", True))


def test_what_is_inside_the_noise_is_grey_in_the_forest_and_its_table(rows) -> None:
    (figure,) = figures.forest_figures(rows)
    clear, noise = figure.data
    assert 0 < len(noise["x"]) < len(rows)
    assert len(clear["x"]) + len(noise["x"]) == len(rows)
    assert noise["marker"]["color"] == noise["error_x"]["color"] == GREY != clear["marker"]["color"]
    assert figure.table.muted == {k for k, row in enumerate(rows) if within_noise(row)}
    for k, shown in enumerate(figure.table.rows):
        assert (shown[-1] == "within noise") is within_noise(rows[k])
        assert float(shown[2]) == pytest.approx(100 * rows[k]["diff"], abs=0.05)


def test_the_forest_draws_each_interval_from_end_to_end(rows) -> None:
    (figure,) = figures.forest_figures(rows)
    ends = sorted((x - lo, x + hi) for t in figure.data for x, lo, hi in zip(
        t["x"], t["error_x"]["arrayminus"], t["error_x"]["array"], strict=True))  # fmt: skip
    np.testing.assert_allclose(ends, sorted((100 * r["ci95"][0], 100 * r["ci95"][1]) for r in rows))


def higher_lower(left, right) -> str:
    pairs = list(zip(left, right, strict=True))
    return f"{sum(a > b for a, b in pairs)} / {sum(a < b for a, b in pairs)}"


def test_help_and_harm_count_items(results, rows) -> None:
    left, right = results.accuracy("learned", 1), results.accuracy("nearest_both", 1)
    expected = higher_lower(left, right)
    (table,) = tables.help_harm_tables(rows)
    assert table.head == ("learned against", "1 shot", "2 shots")
    assert next(row for row in table.rows if row[0] == "nearest by both")[1] == expected
    zero = results.accuracy("zero_shot", 0)
    drawn = results.accuracy("random", 2)
    against = tables.against_zero_shot(results)
    assert next(row for row in against.rows if row[0] == "random")[2] == higher_lower(drawn, zero)


def test_cost_stands_at_the_calls_spent_and_names_the_best_arm_without_training(results) -> None:
    log = [{"lvlm_calls": 50, "val/reward": 0.4}, {"lvlm_calls": 70, "val/reward": None}, {"epoch": 1}]
    figure = figures.cost_figure(results, 100, log)
    learned = next(trace for trace in figure.data if trace.get("name") == "learned")
    mean = np.mean([results.accuracy("learned", n).mean() for n in (1, 2)])
    assert learned["x"] == [100]
    assert learned["y"][0] == pytest.approx(100 * mean)
    assert any(trace["name"] == "nearest by both, the best without training" for trace in figure.data)
    dev = next(trace for trace in figure.data if "dev" in trace["name"])
    assert (dev["x"], dev["y"]) == ([50.0], [40.0])
    assert {row[0]: row[1] for row in figure.table.rows}["random"] == "0"


def test_cost_shows_the_best_chooser_beside_a_vote_that_asks_no_model(results) -> None:
    voted = Results(results.items, results.images)
    for arm, shots, draw in results:
        voted.add(arm, shots, draw)
    voted.add("label_vote", 0, [Prediction(item, (), "", 1.0) for item in results.items])
    names = [trace["name"] for trace in figures.cost_figure(voted, 100, []).data]
    assert "label vote, the best without training" in names
    assert "nearest by both, the best that chooses without training" in names


def test_regret_says_how_many_items_it_was_measured_on() -> None:
    parts = {"pool": 0.1, "count": 0.05, "choice": 0.2, "order": 0.0, "total": 0.35}
    figure = figures.regret_figure({"2": {"n": 30, **parts}, "1": {"n": 36, **parts}})
    assert figure.title == "Points lost, by where, n = 36 and 30"
    assert figure.table.head == ("shots", "n", "pool", "count", "choice", "order", "total")
    assert figure.table.rows[0] == ("1 shot", "36", "10.0", "5.0", "20.0", "0.0", "35.0")
    assert figures.regret_figure({"1": parts}).title == "Points lost, by where"


def test_the_gap_table_keeps_its_columns_where_an_arm_lacks_one() -> None:
    table = tables.gap_table({"label_vote": {"mean": 0.5}, "learned": {"1": 0.25, "mean": 0.75}, "empty": {}})
    assert table.head == ("who chooses", "1 shot", "mean")
    assert table.rows == [("label vote", "", "50 %"), ("learned", "25 %", "75 %")]


def test_text_in_a_chart_is_no_markup() -> None:
    assert figures.chart_text('<a href="x">&') == '&lt;a href="x"&gt;&amp;'


def test_long_names_beside_the_forest_are_cut_and_stay_apart(rows) -> None:
    name = "a recipe with a name of many words"
    figure = figures.forest_figure([{**rows[0], "shots": 1}, {**rows[0], "shots": 2}], [name, name], "title")
    labels = figure.layout["yaxis"]["ticktext"]
    assert [len(label) for label in labels] == [figures.LABEL] * 2
    assert [label[-5:] for label in labels] == ["… · 1", "… · 2"]
    assert sorted(place for trace in figure.data for place in trace["y"]) == [0, 1]
    texts = [text for trace in figure.data for text in trace["text"]]
    assert any(text.startswith(f"{name} · 1") for text in texts)


def test_every_arm_that_is_compared_has_a_chart_and_a_table_of_its_own(rows) -> None:
    others = [{**row, "arm": "effects"} for row in rows]
    first, second = figures.forest_figures([*rows, *others])
    assert (first.id, second.id) == ("forest", "forest-2")
    assert first.title.startswith("Learned minus baseline")
    assert second.title.startswith("Ranked by effects minus baseline")
    assert first.layout["yaxis"]["ticktext"] == second.layout["yaxis"]["ticktext"]
    assert len(set(second.layout["yaxis"]["ticktext"])) == len(rows)
    tables_of = tables.help_harm_tables([*rows, *others])
    assert [table.head[0] for table in tables_of] == ["learned against", "ranked by effects against"]


def test_the_arm_that_is_advised_is_shown_at_once(results) -> None:
    measured = {**figures.estimates(results), "label_regression": {0: Estimate(0.5, None)}}
    for advised, shown in ((None, False), ("label_regression", True)):
        figure = figures.accuracy_figure(measured, len(results.items), advised)
        named = {trace.get("name"): trace["visible"] for trace in figure.data if "name" in trace}
        assert named["label regression"] is shown
        assert named["learned"] is True
