"""The one reader: the same records in every format give the same items; what cannot be read is one sentence."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

from leverplus.data.fields import clean_fields, render_fields
from leverplus.data.formats import Problems
from leverplus.data.reader import Examples, ReadOptions, read_examples, write_examples
from leverplus.data.types import Item
from leverplus.errors import DataError, LeverError, WrongUsage

Row = dict[str, Any]


def read(data: Any, **options: Any) -> Examples:
    """The examples of data without a fault."""
    problems = Problems("test")
    examples = read_examples(data, ReadOptions(**options), problems)
    assert not problems.found
    return examples


def items(data: Any, **options: Any) -> list[Item]:
    return read(data, **options).items


def faults(data: Any, **options: Any) -> list[str]:
    """Everything that is said of data that cannot be used."""
    problems = Problems("test")
    try:
        read_examples(data, ReadOptions(**options), problems)
    except LeverError as error:
        return [str(error)]
    return [f"{place}: {what}" for place, what in problems.found]


def jsonl(rows: Sequence[Row], path: Path) -> Path:
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
        encoding="utf-8",
    )
    return path


def written_as_table(
    mark: str, start: bytes = b""
) -> Callable[[Sequence[Row], Path], Path]:
    def write(rows: Sequence[Row], path: Path) -> Path:
        out = io.StringIO(newline="")
        table = csv.DictWriter(out, list(rows[0]), delimiter=mark)
        table.writeheader()
        table.writerows(rows)
        path.write_bytes(start + out.getvalue().encode())
        return path

    return write


def parquet_file(rows: Sequence[Row], path: Path) -> Path:
    parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def saved_folder(rows: Sequence[Row], path: Path) -> Path:
    path.mkdir()
    table = pa.Table.from_pylist(list(rows))
    with (
        pa.OSFile(str(path / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as out,
    ):
        out.write_table(table)
    return path


def json_list(rows: Sequence[Row], path: Path) -> Path:
    path.write_text(
        json.dumps(list(rows), ensure_ascii=False, indent=1), encoding="utf-8"
    )
    return path


def packed_lines(rows: Sequence[Row], path: Path) -> Path:
    path.write_bytes(
        gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    )
    return path


FORMATS: Mapping[str, tuple[str, Callable[[Sequence[Row], Path], Any]]] = {
    "jsonl": ("d.jsonl", jsonl),
    "packed": ("d.jsonl.gz", packed_lines),
    "list": ("d.json", json_list),
    "csv": ("d.csv", written_as_table(",")),
    "spreadsheet": ("d.csv", written_as_table(";", b"\xef\xbb\xbf")),
    "tsv": ("d.tsv", written_as_table("\t")),
    "parquet": ("d.parquet", parquet_file),
    "folder": ("d", saved_folder),
    "dicts": ("", lambda rows, _: list(rows)),
    "iterator": ("", lambda rows, _: iter(rows)),
    "arrow": ("", lambda rows, _: pa.Table.from_pylist(list(rows))),
}
FILES = [name for name, (file, _) in FORMATS.items() if file and name != "folder"]


def made(name: str, rows: Sequence[Row], folder: Path) -> Any:
    file, write = FORMATS[name]
    return write(rows, folder / file)


def plain(count: int = 6) -> list[Row]:
    return [
        {
            "id": f"r{n}",
            "question": f'Which, "{n}";\nor\tnot?',
            "answer": f"one; two, {n} é 日本\nthree",
            "split": "train",
        }
        for n in range(count)
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_records_in_every_format_give_the_same_items(
    name: str, tmp_path: Path
) -> None:
    rows = plain()
    found = items(made(name, rows, tmp_path))
    assert found == items(list(rows))
    assert [(item.id, item.question, item.answers, item.split) for item in found] == [
        (row["id"], row["question"], (row["answer"],), "train") for row in rows
    ]


@pytest.mark.parametrize("name", FILES)
def test_empty_and_truncated_files_never_give_changed_items(
    name: str, tmp_path: Path
) -> None:
    rows = plain(40)
    path = made(name, rows, tmp_path)
    whole, content = items(path), path.read_bytes()
    path.write_bytes(b"")
    problems = Problems("test")
    with suppress(LeverError):  # a packed or binary file cannot be empty
        assert read_examples(path, ReadOptions(), problems).items == []
    rng = random.Random(0)
    for _ in range(30):
        path.write_bytes(content[: rng.randrange(1, len(content))])
        problems = Problems("test")
        try:
            found = read_examples(path, ReadOptions(), problems).items
        except LeverError:
            continue
        # whatever was cut is a fault, or the last record of a table, whose end no format marks
        assert found[:-1] == whole[: max(0, len(found) - 1)]


WORDS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    min_size=1,
    max_size=60,
).filter(lambda text: text.strip())


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "iterator"])
@given(answers=st.lists(WORDS, min_size=1, max_size=5))
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_answer_comes_back_as_it_was(
    name: str, answers: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [{"question": f"q{n}", "answer": answer} for n, answer in enumerate(answers)]
    found = items(made(name, rows, tmp_path_factory.mktemp("any")))
    assert [item.answers for item in found] == [(answer,) for answer in answers]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    answer=st.dictionaries(WORDS, JSON, min_size=1, max_size=3)
    | st.lists(JSON, min_size=1, max_size=3)
)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_json_answer_is_kept_as_its_text(
    answer: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (item,) = items(
        jsonl(
            [{"question": "q", "answer": answer}],
            tmp_path_factory.mktemp("any") / "d.jsonl",
        )
    )
    assert json.loads(item.answer) == answer
    assert item == items([{"question": "q", "answer": answer}])[0]


@pytest.mark.parametrize(
    ("row", "question", "answer"),
    [
        ({"question": "q", "answers": ["a", "b", "b"]}, "q", "b"),
        ({"prompt": "q", "completion": " a"}, "q", " a"),
        ({"input": "q", "output": "a"}, "q", "a"),
        ({"instruction": "Sum up", "output": "a"}, "Sum up", "a"),
        (
            {"instruction": "Sum up", "input": "the text", "output": "a"},
            "Instruction: Sum up\nInput: the text",
            "a",
        ),
        ({"instruction": "Sum up", "input": "", "output": "a"}, "Sum up", "a"),
        ({"text": "q", "label": 3}, "q", "3"),
        ({"text": "q", "label": 0, "label_text": "cold"}, "q", "cold"),
        ({"Question ": "q", "ANSWER": "a"}, "q", "a"),
        (
            {"fields": {"context": "c", "question": "q"}, "answer": True},
            "Context: c\nQuestion: q",
            "true",
        ),
        (
            {"question": "q", "answer": {"b": 1, "a": [2.5]}},
            "q",
            '{"b": 1, "a": [2.5]}',
        ),
        (
            {"question": "q", "answers": {"text": ["a", "a"], "answer_start": [1, 2]}},
            "q",
            "a",
        ),
        ({"question": "q", "query": "SELECT 1"}, "q", "SELECT 1"),
    ],
)
def test_forms_of_records(row: Row, question: str, answer: str) -> None:
    (item,) = items([row])
    assert (item.question, item.answer) == (question, answer)


def test_what_was_recognised_is_said() -> None:
    assert read([{"prompt": "q", "completion": "a", "source": "x"}]).said == (
        "prompt is taken as the question, completion as the answer",
        "keys that are not used: source; --columns NAME=source shows one as an input",
    )
    assert read([{"question": "q", "answer": "a"}]).said == ()
    assert (
        "1 answers are lists and count as JSON"
        in read([{"question": "q", "answer": ["a"]}]).said[0]
    )


def test_a_chat_is_its_turns_and_the_last_assistant_turn_is_the_answer() -> None:
    turns = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
        {"role": "assistant", "content": "Bye"},
    ]
    (item,) = items([{"messages": turns}])
    assert (
        item.question == "System: Be short.\nUser: Hi\nAssistant: Hello\nUser: And now?"
    )
    assert item.answer == "Bye"
    assert [turn["role"] for turn in json.loads(item.fields["messages"])] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    (single,) = items([{"messages": [turns[1], turns[2]]}])
    assert (single.question, single.answer, single.fields) == ("Hi", "Hello", {})


def test_tool_calls_are_the_answer_as_json_and_tools_are_kept() -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
    }
    turns = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    tools = [{"type": "function", "function": {"name": "weather"}}]
    (item,) = items([{"messages": turns, "tools": tools}])
    assert json.loads(item.answer) == [
        {"name": "weather", "arguments": {"city": "Paris"}}
    ]
    assert json.loads(item.fields["tools"]) == tools
    assert item.question.startswith("Tools: [")
    reply = [
        *turns,
        {"role": "tool", "content": "no", "tool_call_id": "c1"},
        {"role": "assistant", "content": "No."},
    ]
    (after,) = items([{"messages": reply}])
    assert after.answer == "No."
    assert "Tool: no" in after.question


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ([{"role": "user", "content": "x"}], "no assistant turn"),
        ([{"role": "assistant", "content": "x"}], "no user turn"),
        (
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}],
            "is empty",
        ),
        ([{"role": "robot", "content": "x"}], "needs a role"),
        ("hello", "not JSON"),
        (3, "must be a list"),
    ],
)
def test_chats_without_an_answer_are_named(turns: Any, said: str) -> None:
    (fault,) = faults([{"messages": turns}])
    assert fault.startswith("the data, record 1: ")
    assert said in fault


def test_columns_are_mapped_and_several_are_named_inputs(tmp_path: Path) -> None:
    rows = [{"Frage": "Where?", "Antwort": "here", "Absatz": "It is here.", "nr": "7"}]
    for name in FORMATS:
        folder = tmp_path / name
        folder.mkdir()
        (item,) = items(
            made(name, rows, folder),
            columns="question=Frage,answer=Antwort,context=Absatz,id=nr",
        )
        assert item.id == "7"
        assert item.question == "Context: It is here.\nQuestion: Where?"
        assert item.fields == {"context": "It is here.", "question": "Where?"}
    (fault,) = faults(rows, columns={"question": "Frag", "answer": "Antwort"})
    assert "has no column 'Frag' for question; it has Frage, Antwort" in fault
    with pytest.raises(WrongUsage, match="write NAME=COLUMN"):
        items(rows, columns="Frage")
    nested = [{"q": "x", "meta": {"sql": "SELECT 1"}}]
    assert items(nested, columns="question=q,answer=meta.sql")[0].answer == "SELECT 1"


def test_another_split_than_split() -> None:
    rows = [
        {
            "question": "q",
            "answer": "a",
            "split": "test",
            "meta": {"query_split": "validation", "database": "x.db"},
        }
    ]
    assert items(rows)[0].split == "test"
    (item,) = items(rows, split_key="meta.query_split")
    assert (item.split, item.meta["database"]) == ("dev", "x.db")
    assert (
        "there is no meta.other, which task.split_key names"
        in faults(rows, split_key="meta.other")[0]
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("d.xlsx", b"PK\x03\x04rest", "save the sheet as CSV (UTF-8)"),
        ("d.sqlite", b"SQLite format 3\0rest", "is a database; write the examples"),
        ("d.bin", b"\xfd7zXZrest", "packed; unpack it"),
        ("d.csv", b"question,answer\na,caf\xe9\n", "line 2: is not UTF-8 (byte 0xe9)"),
        ("d.csv", b"question\nhello\n", "neither JSON nor a table of several columns"),
        ("d.csv", b",\n", "neither JSON nor a table"),
        ("d.csv", b"question,answer\na,b,c\n", "line 2: has 3 cells, and the first"),
        (
            "d.csv",
            b'question,answer\n"a"b,c\n"d,e,f\n',
            "a quote inside it is written twice",
        ),
        ("d.csv", b"a,a\n1,2\n", "two columns are called 'a'"),
        ("d.csv", b"Qestion,Anser\n1,2\n", "d.csv has Qestion, Anser; every record"),
        ("d.txt", b"just some words\n", "neither JSON nor a table"),
        ("d.jsonl", b"7\n", "must be an object in braces; it is 7"),
        ("d.json", b'[{"question": "a", "answer": "b"}]\n[1]\n', "(Extra data, column"),
        ("d.json", b'[{"question": "a", "answer": "b"}, 1]', "record 2: must be an"),
        ("d.json", b'[{\n "question": \n', "line 3: is not JSON"),
        (
            "d.jsonl",
            b'{"question": {"a": 1}, "answer": "b"}\n',
            "must be a text; it is",
        ),
        ("d.jsonl", b'{"question": "a", "answer": NaN}\n', "the answer is empty"),
        ("d.jsonl", b'{"fields": "{", "answer": "b"}\n', "a text that is not JSON"),
        ("d.jsonl.gz", b"not packed", "cannot be read"),
        ("d.parquet", b"nothing", "d.parquet cannot be read as a data set"),
        ("", b"", "holds no data set: no *.arrow"),
        ("nowhere.parquet/d.csv", b"", "there is no file"),
    ],
)
def test_what_cannot_be_read_is_a_sentence_with_what_would_work(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    if name and "/" not in name:
        (tmp_path / name).write_bytes(content)
    found = faults(tmp_path / name)
    assert any(said in fault for fault in found), found


def test_files_as_other_programs_write_them_are_read(tmp_path: Path) -> None:
    for content in (
        "question\tanswer\na\tb\n".encode("utf-16"),
        b'question\tanswer\na\tb\n"lone\tquote\n',
        b"\xef\xbb\xbfquestion;answer\r\na;b\r\n\r\n;\r\n",
    ):
        (tmp_path / "d.csv").write_bytes(content)
        assert items(tmp_path / "d.csv")[0].answers == ("b",)
    (tmp_path / "d.jsonl").write_bytes(
        b'\xef\xbb\xbf{"text": "a\\u2028", "label": 1}\r\n'
    )
    assert items(tmp_path / "d.jsonl")[0].question == "a\u2028"


@pytest.mark.slow
def test_a_packed_file_that_grows_without_measure_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b" " * (1 << 27)))
    assert "it unpacks to more than 67,108,864" in faults(tmp_path / "d.jsonl.gz")[0]


def test_objects_that_hold_no_records_are_refused() -> None:
    for data in (7, [7], {"a": 1}, [("a", "b")], b"bytes"):
        with pytest.raises(WrongUsage, match=r"cannot be a|each must be a dict"):
            items(data)
    assert "half of a character" in faults([{"question": "q", "answer": "\ud800"}])[0]
    assert "id must be" in faults([{"question": "q", "answer": "a", "id": True}])[0]
    assert "meta must" in faults([{"question": "q", "answer": "a", "meta": [1]}])[0]
    assert (
        "split is 1; allowed"
        in faults([{"question": "q", "answer": "a", "split": 1}])[0]
    )


class Frame:
    """As much of a DataFrame of pandas as is used."""

    iloc = None

    def __init__(self, rows: Sequence[Row], columns: Sequence[str] = ()) -> None:
        self.rows, self.columns = rows, columns or list(rows[0])

    def to_dict(self, _orient: str) -> list[Row]:
        return list(self.rows)


def test_a_data_frame_is_read_by_what_it_offers() -> None:
    frame = Frame([{"id": 1, "question": "a", "answer": 0.5}])
    assert items(frame)[0].answer == "0.5"
    frame = Frame([{"question": "a", "answer": float("nan")}])
    assert faults(frame) == [
        "the Frame, row 1: the answer is empty; task.skip_empty = true leaves such out"
    ]
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    made = pandas.DataFrame({"id": [1, 2], "text": ["a", "b"], "label": [0, 1]})
    assert [item.answer for item in items(made)] == ["0", "1"]


class ClassLabel:
    names = ("neg", "pos")


class Dataset:
    """As much of a data set of the `datasets` library as is used."""

    features: Mapping[str, Any] = {"text": object(), "label": ClassLabel()}

    def with_format(self, _kind: str) -> Dataset:
        return self

    def iter(self, _size: int) -> list[pa.Table]:
        return [pa.table({"text": ["a", "b", "c"], "label": [1, 0, -1]})]


class DatasetDict(dict[str, Dataset]):
    """A data set with several splits."""


Dataset.__module__ = DatasetDict.__module__ = "datasets.stand_in"
NAMES = {
    "info": {"features": {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}
}


def test_a_data_set_has_words_for_labels_and_what_nobody_labelled_is_left_out() -> None:
    found = read(Dataset())
    assert [item.answer for item in found.items] == ["pos", "neg"]
    assert found.said == ("1 records without a label or an answer are left out",)
    both = items(DatasetDict(train=Dataset(), validation=Dataset()))
    assert [item.id for item in both] == ["train-1", "train-2", "dev-4", "dev-5"]
    assert [item.split for item in both] == ["train", "train", "dev", "dev"]


def table(columns: Row) -> pa.Table:
    about = {b"huggingface": json.dumps(NAMES).encode()}
    return pa.table(columns).replace_schema_metadata(about)


def test_folders_of_several_splits_are_read(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        folder = tmp_path / "saved" / split
        folder.mkdir(parents=True)
        own = table({"text": ["a", "b"], "label": [0, -1 if split == "test" else 1]})
        with (
            pa.OSFile(str(folder / "data.arrow"), "wb") as file,
            pa.ipc.new_stream(file, own.schema) as out,
        ):
            out.write_table(own)
        parquet.write_table(own, tmp_path / f"{split}-00000-of-00001.parquet")
    found = items(tmp_path / "saved")
    assert [(item.id, item.answer) for item in found] == [
        ("test-1", "neg"), ("train-3", "neg"), ("train-4", "pos"), ("dev-5", "neg"), ("dev-6", "pos"),
    ]  # fmt: skip
    for path in (tmp_path / "saved").rglob("*.arrow"):
        path.rename(path.with_name("cache-1.arrow"))
    again = items(tmp_path)
    assert [(item.id, item.answer) for item in again] == [
        (item.id, item.answer) for item in found
    ]
    parquet.write_table(
        table({"text": ["a"], "label": [-1]}), tmp_path / "none.parquet"
    )
    assert "none of 1 records has a label" in faults(tmp_path / "none.parquet")[0]


def test_pictures_inside_records_become_files_once_each(tmp_path: Path) -> None:
    out = io.BytesIO()
    red = Image.new("RGB", (4, 4), "red")
    red.save(out, "PNG", compress_level=1)
    url = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    inside = (out.getvalue(), {"bytes": out.getvalue(), "path": None}, url, [red])
    rows = [{"question": "q", "answer": "a", "image": image} for image in inside]
    found = read(rows, pictures=tmp_path / "p")
    assert found.written
    assert {item.image for item in found.items} == {str(*(tmp_path / "p").iterdir())}
    assert Path(str(found.items[0].image)).read_bytes() == out.getvalue()
    assert items([{**rows[0], "image": {"path": "a.png"}}])[0].image == "a.png"
    assert "set task.images = FOLDER" in faults(rows)[0]
    for image, said in (
        (["a.png", "b.png"], "there are 2 pictures"),
        ("data:image/png,x", "begins with data:image/png;base64"),
        ("data:image/png;base64,?", "is not base64"),
        (7, "image must be a path"),
        ("a\0b", "image must be a path"),
    ):
        assert said in faults([{**rows[0], "image": image}])[0]
    shown = [{"type": "image_url", "image_url": {"url": "cat.png"}}]
    turns = [{"role": "user", "content": shown}, {"role": "assistant", "content": "x"}]
    (item,) = items([{"messages": [{"role": "system", "content": "s"}, *turns]}])
    assert item.image == "cat.png"
    turns[0]["content"] = shown * 2
    assert "messages shows 2 pictures" in faults([{"messages": turns}])[0]


@pytest.mark.parametrize(
    ("fields", "said"),
    [([], "not list"), ({}, "is empty"), ({"a": None, "b": " "}, "is empty")],
)
def test_what_holds_no_named_inputs_is_one_sentence(fields: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        clean_fields(fields)
    inputs = {"question": "Where?", "context": "Here."}
    assert render_fields(inputs) == "Context: Here.\nQuestion: Where?"
    assert render_fields({"question": "Where?"}) == "Where?"


@given(
    answers=st.lists(st.lists(WORDS, min_size=1, max_size=3), min_size=1, max_size=4),
    inputs=WORDS,
)
@settings(max_examples=40, deadline=None)
def test_items_that_are_written_are_read_as_the_same_items(
    answers: list[list[str]], inputs: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [
        {
            "fields": {"context": inputs, "question": f"q{n}"},
            "answers": own,
            "meta": {"a": inputs},
        }
        for n, own in enumerate(answers)
    ]
    found = items([*rows, {"question": "q", "answer": "a", "image": "x.png"}])
    path = tmp_path_factory.mktemp("written") / "d.jsonl"
    write_examples(path, found)
    assert items(path) == found
