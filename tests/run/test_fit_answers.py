"""`lever fit` with answers that are more than a word: JSON, SQL, several lines, another script; and with a judge."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import leverplus
from leverplus.arms.spec import open_arm
from leverplus.cli.main import main
from leverplus.data.kinds import kind_of_answers
from leverplus.data.rundir import read_json
from leverplus.data.types import Item
from leverplus.errors import LeverError, WrongUsage
from leverplus.run.fit import fit
from leverplus.run.prompt import choose_instruction
from leverplus.run.recipe import load_recipe

CITIES = ("Lisbon", "Łódź", "北京", "القاهرة", "Zürich", "Москва", "Porto", "Ulm")
FAST = {"calls": 600, "shots": [1], "settings": ["train.stages=[]"], "embed": "tfidf"}


def json_row(number: int) -> dict[str, Any]:
    city = CITIES[number % len(CITIES)]
    people = {"city": city, "people": number, "tags": ["a, b", "line\nend"]}
    return {"question": f"Describe {city}, number {number}", "answer": people}


def sql_row(number: int) -> dict[str, Any]:
    city = CITIES[number % len(CITIES)]
    answer = f"SELECT people\nFROM city\nWHERE name = '{city}' AND id >= {number % 8}"
    return {"question": f"How many live in {city}? ({number})", "answer": answer}


def sentence_row(number: int) -> dict[str, Any]:
    city = CITIES[number % len(CITIES)]
    answer = f"In {city}, which is a large place, there are about {number} old houses."
    return {"question": f"Tell me about {city} {number}", "answer": answer}


def written(path: Path, make: Any, count: int = 90) -> Path:
    lines = [json.dumps(make(number), ensure_ascii=False) for number in range(count)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def copies(prompt: str) -> str:
    """Writes the answer of the last example; without one it has nothing to say."""
    parts = prompt.rsplit("Answer: ", 1)
    return parts[1].split("\nQuestion: ")[0] if len(parts) == 2 else "?"


def copies_labels(prompt: str) -> str:
    """The same for texts and labels."""
    return copies(prompt.replace("Label: ", "Answer: ").replace("Text: ", "Question: "))


def knows_nothing(prompt: str) -> str:
    return "something else"


def lenient(messages: list[dict[str, str]]) -> str:
    """A judge that says yes where the answer is about the right city."""
    text = messages[-1]["content"]
    right, _, judged = text.partition("Answer to judge:")
    return "Yes." if any(c in right and c in judged for c in CITIES) else "no"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "cities.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE city (id INTEGER, name TEXT, people INTEGER)")
    for number, city in enumerate(CITIES):
        connection.execute(
            "INSERT INTO city VALUES (?, ?, ?)", (number, city, 100 + number)
        )
    connection.commit()
    connection.close()
    return path


@pytest.mark.parametrize(
    ("make", "metric", "cut"),
    [(json_row, "json", "json"), (sql_row, "sql_execution", "fenced"), (sentence_row, "token_f1", "plain")],
    ids=["json", "sql", "sentences"],
)  # fmt: skip
def test_a_fit_of_any_answers_ends_with_a_bundle_and_shows_what_it_saw(
    tmp_path: Path, database: Path, make: Any, metric: str, cut: str
) -> None:
    data = written(tmp_path / "d.jsonl", make)
    own = dict(FAST)
    if metric == "sql_execution":
        own["settings"] = [*FAST["settings"], f"task.database={database}"]
    said: list[str] = []
    made = fit(
        data,
        model=copies,
        out=tmp_path / "b",
        store=tmp_path / "s.db",
        say=said.append,
        **own,
    )
    report = made.report
    assert any(line.startswith(f"data: judged by {metric};") for line in said)
    assert f'cut = "{cut}"' in made.recipe.read_text()
    assert report["arms"]["nearest_text"]["dev"] >= report["arms"]["zero_shot"]["dev"]
    seen = report["examples_seen"]
    assert len(seen) == 5
    assert all(own["prompt"] and own["cut"] and own["right"] for own in seen)
    assert read_json(tmp_path / "b" / "fit.json") == report
    demos = made.selector.select(question=make(3)["question"], shots=1)
    assert CITIES[3] in demos[0].question


def test_where_nearly_all_answers_differ_nothing_is_learnt_from_labels_alone(
    tmp_path: Path,
) -> None:
    """And where the model is never right, training finds nothing, which is no reason to fail."""
    data = written(tmp_path / "d.jsonl", json_row)
    said: list[str] = []
    made = fit(
        data, model=knows_nothing, calls=700, shots=[1], embed="tfidf", out=tmp_path / "b",
        store=tmp_path / "s.db", dry_run=True, say=said.append,
    )  # fmt: skip
    assert any("nearly all answers are different" in line for line in said)
    assert "label_pretraining" not in made.recipe.read_text()


def test_try_shows_prompt_raw_answer_cut_answer_and_score_and_stops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = written(tmp_path / "d.jsonl", json_row)
    name = f"{copies.__module__}:copies"
    command = [
        "fit",
        str(data),
        "--model",
        name,
        "--out",
        str(tmp_path / "b"),
        "--embed",
        "tfidf",
    ]
    command += [
        "--store",
        str(tmp_path / "s.db"),
        "--try",
        "3",
        "--set",
        "train.stages=[]",
    ]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert shown.count("  the model wrote: ") == 3
    assert "    Question: Describe" in shown
    assert "  score: " in shown
    assert not (tmp_path / "b").exists()


def test_an_edited_recipe_and_the_command_must_agree(tmp_path: Path) -> None:
    data = written(tmp_path / "d.jsonl", json_row)

    def again(**more: Any) -> list[str]:
        said: list[str] = []
        values = {
            "model": copies,
            "embed": "tfidf",
            "settings": ["train.stages=[]"],
            **more,
        }
        fit(
            data,
            out=tmp_path / "b",
            store=tmp_path / "s.db",
            dry_run=True,
            say=said.append,
            **values,
        )
        return said

    again(shots=[1], metric="json_fields")
    recipe = tmp_path / "b.toml"
    recipe.write_text(recipe.read_text().replace('cut = "json"', 'cut = "vqa"'))
    with pytest.raises(LeverError, match="records could never be answered right"):
        again(shots=[1], metric="json_fields")  # the edited cut destroys the answers
    recipe.write_text(recipe.read_text().replace('cut = "vqa"', 'cut = "fenced"'))
    said = again(shots=[1], metric="json_fields")
    assert any("was edited and is taken as it is" in line for line in said)
    assert any(line.startswith("data: judged by json_fields") for line in said)
    for more, both in (
        ({"shots": [2]}, r"says eval.shots = \[2\], and .* has \[1\]"),
        (
            {"metric": "json"},
            "says task.metric = 'json', and .* has 'json_fields'",
        ),
        ({"cut": "json"}, "says task.cut = 'json', and .* has 'fenced'"),
        (
            {"max_tokens": 7},
            "says model.max_new_tokens = 7, and .* has 8",
        ),
        ({"model": knows_nothing}, "says model.name"),
        ({"settings": ["pool.size=3"]}, "says pool.size = 3, and .* has 16"),
        ({"arms": ["random"]}, "says eval.arms"),
    ):
        with pytest.raises(WrongUsage, match=both):
            again(**more)


def test_the_instruction_names_the_keys_of_json_answers_and_says_if_there_are_more() -> (
    None
):
    def said(*answers: dict[str, Any]) -> str:
        items = []
        for number, answer in enumerate(answers):
            text = json.dumps(answer)
            items.append(Item(str(number), "q", (text,), "train"))  # type: ignore[arg-type]
        return choose_instruction(kind_of_answers(items), (), items)

    alone = "Answer with JSON alone{}, without an explanation."
    assert said({"a": 1, "b": 2}, {"b": 3, "a": 4}) == alone.format(
        ", with the keys a, b"
    )
    assert said({"a": 1, "b": 2}, {"a": 4}) == alone.format(
        ", with the key a and others"
    )
    assert said({"a": 1}, {"b": 4}) == alone.format("")


def test_settings_and_arms_reach_the_recipe(tmp_path: Path) -> None:
    data = written(tmp_path / "d.jsonl", sentence_row)
    said: list[str] = []
    made = fit(
        data, model=copies, embed="tfidf", out=tmp_path / "b", store=tmp_path / "s.db", dry_run=True,
        cut="line", arms=["nearest_text", "vote(nearest_text, 5)"],
        settings=["train.stages=[]", "pool.size=12", "eval.random_draws=2", "eval.items=10", "eval.dev_items=8"],
        say=said.append,
    )  # fmt: skip
    (calls,) = [line for line in said if "calls in all" in line]
    assert calls.endswith("the choice on 8 dev items, and one look at 10 test items")
    text = made.recipe.read_text()
    for line in (
        'cut = "line"',
        "size = 12",
        "random_draws = 2",
        "vote(nearest_text, 5)",
    ):
        assert line in text
    for arms, trains in ((["nearest_text"], False), (["learned"], True)):
        out = tmp_path / arms[0]
        made = fit(data, model=copies, embed="tfidf", out=out, dry_run=True, arms=arms)
        assert bool(load_recipe(str(made.recipe)).stages) == trains
    with pytest.raises(WrongUsage, match=r"section\.key=value"):
        fit(data, model=copies, out=tmp_path / "b", settings=["pool"])
    with pytest.raises(LeverError, match="is not understood"):
        open_arm("vote(nearest_text, 5")
    with pytest.raises(WrongUsage, match="no model is given"):
        fit(data, out=tmp_path / "b")


def label_row(number: int) -> dict[str, Any]:
    word, label = (("sun", "warm"), ("ice", "cold"), ("rain", "wet"))[number % 3]
    return {"text": f"{word} number {number} of {number % 7}", "label": label}


def copies_label(prompt: str) -> str:
    """Writes the label of the last example; without one it guesses."""
    found = re.findall(r"(warm|cold|wet)\n", prompt)
    return found[-1] if found else "warm"


def test_a_cut_of_ones_own_takes_the_answer_out_of_other_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def cut(text):\n    return text.rpartition('is: ')[2]\n"
    (tmp_path / "own_cut_here.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    data = written(tmp_path / "d.jsonl", sentence_row)

    def wordy(prompt: str) -> str:
        return f"The answer is: {copies(prompt)}"

    made = fit(
        data, model=wordy, metric="exact", cut="own_cut_here:cut", arms=["nearest_text"], out=tmp_path / "b",
        store=f"{tmp_path}/s.db", **FAST
    )  # fmt: skip
    shown = made.report["examples_seen"]
    for one in shown:
        assert one["raw"] == f"The answer is: {one['cut']}"
    asked = {"question": sentence_row(5)["question"], "shots": 1}
    stranger = leverplus.Selector.load(tmp_path / "b")
    with pytest.raises(LeverError, match='cut "own_cut_here:cut" is code from outside'):
        stranger.answer(lambda _: "It is: so", **asked)
    trusting = leverplus.Selector.load(tmp_path / "b", trust=["own_cut_here"])
    assert trusting.answer(lambda _: "It is: so", **asked).answer == "so"


def test_settings_of_reading_reach_the_first_look_at_the_data(tmp_path: Path) -> None:
    rows = []
    for number in range(90):
        rows.append(
            {**json_row(number), "meta": {"half": ("train", "dev", "test")[number % 3]}}
        )
    rows[7]["answer"] = ""
    own = {**FAST, "settings": ["task.skip_empty=true", "task.split_key=meta.half"]}
    said: list[str] = []
    fit(rows, model=copies, out=tmp_path / "b", dry_run=True, say=said.append, **own)
    assert any("splits: 30 train, 29 dev, 30 test" in line for line in said)
    with pytest.raises(LeverError, match="record 8: the answer is empty"):
        fit(rows, model=copies, out=tmp_path / "c", dry_run=True, **FAST)


def test_a_record_that_cannot_be_right_is_named_in_the_users_file(
    tmp_path: Path,
) -> None:
    data = written(tmp_path / "mine.jsonl", sql_row)
    with pytest.raises(LeverError, match=r"such as \S*mine\.jsonl, record 1:"):
        fit(data, model=copies, cut="line", out=tmp_path / "b", dry_run=True, **FAST)


def test_several_answers_become_one_and_their_calls_are_counted(tmp_path: Path) -> None:
    data = written(tmp_path / "d.jsonl", label_row, 200)
    arms = [
        "nearest_text",
        "vote(nearest_text, 2)",
        "fused(nearest_text)",
        "fused(random, 3)",
    ]
    made = fit(
        data, model=copies_label, out=tmp_path / "b", store=tmp_path / "s.db", arms=arms,
        **{**FAST, "calls": 1500, "settings": [*FAST["settings"], "score.pilot=0"]},
    )  # fmt: skip
    found = read_json(tmp_path / "b.run" / "eval.json")
    assert set(arms) <= set(found["arms"])
    spent = {arm: (own["calls_per_question"], own["training_calls"]) for arm, own in found["arms"].items()}  # fmt: skip
    assert spent["fused(nearest_text)"] == (1, 64)
    assert spent["fused(random, 3)"] == (1, 0)
    assert spent["vote(nearest_text, 2)"] == (2, 0)
    assert made.report["calls"]["training"] == found["model_calls"] == 64
    test = {arm: own["shots"].get("1", 0) for arm, own in found["arms"].items()}
    assert (
        test["fused(random, 3)"] > test["random" if "random" in test else "zero_shot"]
    )
    assert test["fused(nearest_text)"] >= test["nearest_text"]


def test_a_bundle_without_a_model_asks_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = [
        {"text": f"{w} number {n}", "label": own}
        for n in range(30)
        for w, own in (("sun", "warm"), ("ice", "cold"))
    ]
    data = tmp_path / "labels.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in labels))
    out = str(tmp_path / "b")
    assert main(["fit", str(data), "--no-model", "--embed", "tfidf", "--out", out]) == 0
    assert "nothing was asked" in capsys.readouterr().out
    selector = leverplus.Selector.load(out)
    assert {demo.answer for demo in selector.select(question="sun again", shots=2)} == {
        "warm"
    }
    assert read_json(tmp_path / "b" / "fit.json")["packed"]["arm"] == "label_rank"
    assert main(["fit", str(data), "--no-model", "--model", "m", "--out", out]) == 2
    # the same command with a model measures it, in the same folder, since nothing was paid for what lies there
    capsys.readouterr()
    name = f"{copies.__module__}:copies_labels"
    store = str(tmp_path / "s.db")
    same = ["fit", str(data), "--embed", "tfidf", "--out", out, "--store", store]
    same += ["--shots", "1", "--calls", "600", "--set", "train.stages=[]"]
    assert main([*same, "--model", name]) == 0, capsys.readouterr().err
    measured = read_json(tmp_path / "b" / "fit.json")
    assert measured["arms"]["label_rank"]["dev"] > 0.9
    # what was paid for is not thrown away
    assert main(["fit", str(data), "--no-model", "--embed", "tfidf", "--out", out]) == 1
    assert "choose a new folder with --out DIR" in capsys.readouterr().err
    assert read_json(tmp_path / "b" / "fit.json") == measured


def test_a_way_without_a_model_gives_its_answer_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = written(tmp_path / "d.jsonl", sql_row)
    out, copied = str(tmp_path / "b"), str(tmp_path / "copied")
    assert main(["fit", str(data), "--no-model", "--embed", "tfidf", "--out", out]) == 0
    assert read_json(tmp_path / "b" / "fit.json")["packed"]["arm"] == "by_answer"
    run = f"{out}.run"
    assert main(["pack", run, "--arm", "copy_nearest", "--out", copied]) == 0
    capsys.readouterr()
    asked = ["select", copied, "--question", "How many live in Ulm? (7)"]
    assert main(asked) == 0
    assert capsys.readouterr().out.startswith(
        "the answer, without a model: SELECT people\nFROM city\nWHERE name = 'Ulm'"
    )
    assert main([*asked, "--json"]) == 0
    assert "name = 'Ulm'" in json.loads(capsys.readouterr().out)["answer"]
    assert main(["report", out]) == 1
    assert f"the run behind it is {run}" in capsys.readouterr().err


def test_a_model_that_is_never_right_is_said_with_what_to_try(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(number: int) -> dict[str, Any]:
        own = sql_row(number)
        return {**own, "answer": own["answer"].replace("people", f"column_{number}")}

    data = written(tmp_path / "d.jsonl", row)
    name = f"{copies.__module__}:copies"
    words = ["fit", str(data), "--model", name, "--embed", "tfidf", "--shots", "1"]
    words += ["--out", str(tmp_path / "b"), "--store", str(tmp_path / "s.db")]
    words += ["--set", "train.stages=[]", "--metric", "exact"]
    assert main([*words, "--try", "3"]) == 0
    assert "none of these answers is right; if the answer" in capsys.readouterr().out
    assert main([*words, "--cut", "plain"]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert "no way of choosing led to one right answer on dev, judged by exact" in shown
    assert "--metric edit_similarity" in shown


@pytest.mark.parametrize("make", [sql_row, None], ids=["sql", "labels"])
def test_a_plan_says_what_choosing_could_gain_and_nothing_of_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any
) -> None:
    def label(number: int) -> dict[str, Any]:
        return {"text": f"text {number}", "label": ("warm", "cold")[number % 2]}

    data = written(tmp_path / "d.jsonl", make or label)
    assert main(["plan", str(data), "--embed", "tfidf"]) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = {line.partition(":")[0] for line in lines}
    assert starts == {"data", "rule", "forecast", "next"}
    told = [line for line in lines if line.startswith("forecast: ")]
    if make is None:
        assert "100 % have an example with the right answer itself" in told[0]
        assert any("label_rank shows one for" in line for line in told)
    else:
        assert told[0].startswith("forecast: without a call, for 18 dev questions")
        assert any("by_answer shows one for" in line for line in told)
        assert not any("label_rank" in line for line in told)


def test_a_judge_says_what_is_right_and_is_counted_and_kept(tmp_path: Path) -> None:
    data = written(tmp_path / "d.jsonl", sentence_row)
    judge = f"{lenient.__module__}:lenient"
    own = {
        **FAST,
        "calls": 1200,
        "settings": [*FAST["settings"], f"judge.model={judge}"],
    }
    made = fit(
        data,
        model=copies,
        metric="judge",
        out=tmp_path / "b",
        store=tmp_path / "s.db",
        **own,
    )
    nearest = made.report["arms"]["nearest_text"]
    assert nearest["dev"] > 0.5
    assert made.report["calls"]["judge"] > 0
    manifest = read_json(tmp_path / "b.run" / "run.json")
    assert manifest["judge"]["calls"] > 0
    again = fit(
        data,
        model=copies,
        metric="judge",
        out=tmp_path / "c",
        store=tmp_path / "s.db",
        **own,
    )
    assert again.report["arms"] == made.report["arms"]
    own = {**FAST, "calls": 1200}
    with pytest.raises(LeverError, match=r"judge\.model"):
        fit(
            data,
            model=copies,
            metric="judge",
            out=tmp_path / "d",
            store=tmp_path / "s.db",
            **own,
        )


def test_the_ceiling_of_a_judge_needs_no_judge() -> None:
    from leverplus.data.tasks.answers import AnswerRules

    item = Item("1", "q", ("a cat",), "train")  # type: ignore[arg-type]
    assert AnswerRules("judge").ceiling(item) == 1.0


ANSWERS = st.lists(
    st.text(min_size=1, max_size=40).filter(str.strip)
    | st.sampled_from(
        ["a, b\nc", "-5", '{"a": [1, "x\\n"]}', "SELECT 1;\n", "### b ---"]
    ),
    min_size=45,
    max_size=45,
    unique=True,
)


def as_it_is(_number: int, answer: str) -> str:
    return answer


def in_json(_number: int, answer: str) -> str:
    return json.dumps({"text": answer, "more": [answer, None]})


def after_words(number: int, answer: str) -> str:
    """Words are what is compared, so there must be some."""
    return f"number{number} {answer}"


def one_line(number: int, answer: str) -> str:
    return " ".join(f"number{number} {answer}".split())


@pytest.mark.parametrize(
    ("metric", "cut", "make"),
    [
        ("exact", "plain", as_it_is),
        ("exact", "line", one_line),
        ("json", "json", in_json),
        ("json_fields", "json", in_json),
        ("token_f1", "plain", after_words),
        ("exact_match", "fenced", after_words),
    ],
    ids=lambda own: own if isinstance(own, str) else "",
)
@settings(max_examples=1, deadline=None, phases=[Phase.generate])
@given(answers=ANSWERS)
def test_a_model_that_writes_the_references_reaches_the_ceiling_and_another_does_not(
    metric: str, cut: str, make: Any, answers: list[str]
) -> None:
    """In the whole way from the file through prompt, cut and metric to the table, and once more by `lever run`."""
    rows = [
        {"question": f"item {number}?", "answer": make(number, answer)}
        for number, answer in enumerate([*answers, "left", "right"])
    ]

    def right(prompt: str) -> str:
        asked = re.findall(r"item (\d+)\?", prompt)
        return f" {rows[int(asked[-1])]['answer']}"

    def wrong(prompt: str) -> str:
        asked = re.findall(r"item (\d+)\?", prompt)
        if asked[-1] in asked[:-1]:
            return right(prompt)  # it repeats what it is shown
        return re.sub(r"\S", "ѫ", right(prompt))

    for model, expected in ((right, 1.0), (wrong, 0.0)):
        with TemporaryDirectory() as folder:
            store = Path(folder, "s.db")
            made = fit(
                rows,
                model=model,
                metric=metric,
                cut=cut,
                out=Path(folder, "b"),
                store=store,
                **FAST,
            )
            for arm in ("zero_shot", "nearest_text", "mmr"):
                figures = made.report["arms"][arm]
                got = (arm, figures["dev"], figures["test"])
                assert got == (arm, expected, expected)
            run = Path(folder, "run")
            words = ["run", str(made.recipe), "--out", str(run), "--store", str(store)]
            assert main(words) == 0
            for arm in ("zero_shot", "nearest_text", "mmr"):
                by_shots = read_json(run / "eval.json")["arms"][arm]["shots"]
                assert set(by_shots.values()) == {expected}


def test_a_dry_run_shows_a_prompt_as_it_will_be_sent(tmp_path: Path) -> None:
    data = written(tmp_path / "d.jsonl", sql_row)
    said: list[str] = []
    fit(data, model=copies, out=tmp_path / "b", dry_run=True, say=said.append, **FAST)
    prompt = [line.removeprefix("prompt: ") for line in said if "prompt: " in line]
    assert prompt[0].startswith("Question: How many live in")
    assert prompt[1:3] == ["Answer: SELECT people", "FROM city"]
    assert prompt[-1] == "Answer:"
    assert any("an answer ends with ###" in line for line in said)
