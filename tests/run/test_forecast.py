"""The forecast of calls: by hand from the recipe, and never below what a run then asks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_world import TINY, TinyRun, run_tiny

from leverplus.cli.main import main
from leverplus.data.types import Item, ItemId
from leverplus.run.forecast import (
    SEARCH,
    DataSizes,
    forecast,
    forecast_calls,
    line,
    rough_price,
)
from leverplus.run.recipe import load_recipe
from leverplus.run.run import load_run

SIZES = DataSizes(train=85, dev=20, test=30, pictures=True)


def test_every_part_is_counted_by_hand() -> None:
    overrides = (
        "pool.size=10",
        "eval.shots=[1,2,4]",
        "eval.random_draws=2",
        "eval.items=50",
        "eval.dev_items=200",
    )
    recipe = load_recipe(
        "world",
        [
            *overrides,
            "score.budget=9000",
            "score.search=beam",
            "score.shots=2",
            "score.beam=3",
        ],
    )
    found = {part.what: part.calls for part in forecast(recipe, SIZES)}
    epochs = sum(stage.epochs + 1 for stage in recipe.stages.values())
    # two draws; text, MMR, learned; picture, both, two stages; by labels, by effects
    ways = 2 + 3 + 3 + 2 + (recipe.select.stop != "never")
    assert found == {
        SEARCH: 85 * (1 + 10 + 3 * 9),
        "judging on dev": 20 * 4 * epochs,
        "comparing ways of choosing": 30 * (1 + ways * 3),
        "the weight of pictures, on dev": 20 * 5 * 3,
        "oracle": 30 * (10 + 9 + 8 + 7 + 10 * 9),
        "diagnostics": 30 * (0 + 1 + 4),
        "advice, on dev": 20 * (1 + (ways - 1) * 3),
    }
    assert next(part for part in forecast(recipe, SIZES) if part.what == SEARCH).exact


def test_without_the_data_a_part_that_follows_them_is_open_and_the_search_takes_the_whole_budget() -> (
    None
):
    recipe = load_recipe("world", ["eval.items=0", "score.search=dense"])
    parts = {part.what: part for part in forecast(recipe)}
    assert parts["oracle"].calls is None
    calls = parts[SEARCH].calls
    assert calls is not None
    assert not parts[SEARCH].exact
    assert (
        recipe.score.budget - recipe.dev_reserve() - 65
        < calls
        <= recipe.score.budget - recipe.dev_reserve()
    )
    assert "oracle as many as the data have items" in line(list(parts.values()))
    assert line(list(parts.values())).endswith(
        "; what is stored already is not asked again"
    )
    assert line(list(parts.values()), replayed=True).endswith(
        "; all are replayed from recorded answers and cost nothing"
    )


def test_the_price_counts_what_is_read_and_what_is_written() -> None:
    item = Item(ItemId("d"), "q" * 18, ("a" * 2,), "train")
    sets = ["model.template={question}{answer}'", "model.max_new_tokens=8"]
    sets += ["model.price_in=2.0", "model.price_out=5.0"]
    recipe = load_recipe("world", sets)
    run = SimpleNamespace(
        recipe=recipe, demonstrations=[item], task=SimpleNamespace(labels=("x",) * 3)
    )
    parts = [part for part in forecast(recipe, SIZES) if part.what == SEARCH]
    calls = parts[0].calls
    assert calls is not None
    # one demonstration and the query, 39 characters or 9.75 tokens each, read three times; 8 tokens written
    wanted = calls * (2 * 9.75 * 3 * 2.0 + 8 * 5.0) / 1e6
    assert rough_price(run, parts) == pytest.approx(wanted)  # type: ignore[arg-type]


def _within_forecast(run: TinyRun) -> None:
    parts = {
        part.what: part.calls or 0 for part in forecast_calls(load_run(run.folder))
    }
    training = (
        parts[SEARCH] + parts.get("rounds of asking", 0) + parts["judging on dev"]
    )
    advice = parts.get("advice, on dev", 0)
    assert 0 < run.report["model_calls"] <= training
    assert 0 < run.report["eval_calls"] <= sum(parts.values()) - training - advice
    assert run.report["dev_calls"] <= advice


def test_a_run_asks_no_more_than_was_forecast(tiny_run: TinyRun) -> None:
    _within_forecast(tiny_run)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        (
            "score.search=beam",
            "score.shots=2",
            "score.beam=2",
            "score.queries=8",
            "select.stop=anywhere",
        ),
        (
            "score.rounds=2",
            "score.first_share=0.3",
            "eval.shots=[1,2,3]",
            "eval.oracle=false",
        ),
    ],
)
def test_a_run_of_another_kind_asks_no_more_than_was_forecast(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    words = [word for override in more for word in ("--set", override)]
    _within_forecast(run_tiny(tmp_path / "run", tmp_path / "s.db", *words))


def test_run_and_score_say_the_forecast_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_run: object, _policy: object = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("leverplus.run.evaluate.run_all", refuse)
    monkeypatch.setattr("leverplus.run.train.search_groups", refuse)
    sets = [word for override in TINY for word in ("--set", override)]
    place = ["--out", str(tmp_path / "run"), "--store", str(tmp_path / "s.db")]
    assert main(["run", "world", *place, *sets]) == 130
    said = capsys.readouterr().err
    assert "forecast: at most" in said
    assert "judging on dev at most 32" in said
    assert (
        main(["score", str(tmp_path / "run"), "--store", str(tmp_path / "s.db")]) == 130
    )
    said = capsys.readouterr().err
    assert "forecast: 1,258 calls (search 1,258)" in said  # 74 queries of 1 + 16
    assert not (tmp_path / "s.db").exists()


def test_check_gives_the_forecast_that_the_recipe_alone_allows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "world", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["forecast"]
    assert found["calls"] == sum(part["calls"] for part in found["parts"]) > 100_000
    assert found["exact"] is False
    assert main(["check", "world"]) == 0
    assert f"{found['calls']:,} calls" in capsys.readouterr().out
