"""`lever doctor` answers for people and for programs, and only fails on what it cannot read."""

from __future__ import annotations

import json
import re

import pytest

from leverplus.cli.main import main

REPORT = """
## GRPO
| Epoch | Val Loss | KL | Beta |
|---|---|---|---|
| 1 | 9.1 | 12.0 | 9.7 |
| 8 | 9.3 | 0.04 | 0.001 |
"""


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "report.md"
    path.write_text(REPORT)
    return path


def test_findings_are_printed_with_evidence_cause_and_what_to_try(report, capsys):
    assert main(["doctor", str(report)]) == 0
    out = capsys.readouterr().out
    assert "trainings: training grpo (2 epochs)" in out
    assert "1. [error] kl_at_start" in out
    assert out.index("kl_at_start: ") < out.index("kl_weight_on_rails: ")
    assert all(word in out for word in ("evidence:", "cause:", "try:", "explains:"))


def test_json_is_one_object_of_the_documented_shape(report, capsys):
    assert main(["doctor", str(report), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["findings"][0]["code"] == "kl_at_start"
    assert set(values["findings"][0]) == {
        "code",
        "severity",
        "title",
        "evidence",
        "cause",
        "try",
        "consequences",
        "fix",
    }


def test_data_quality_is_a_table_json_and_csv(tmp_path, capsys):
    candidates = [{"pointer": [n, n + 1], "vqa_acc_score": n / 4, "gen_method": "ab"[n % 2]} for n in range(5)]
    path = tmp_path / "rl.json"
    path.write_text(json.dumps({"7": {"pointer_candidates": candidates}}))
    assert main(["doctor", str(path), "--csv", str(tmp_path / "q.csv")]) == 0
    out = capsys.readouterr().out
    assert "mean accuracy" in out
    assert "by origin" in out
    rows = dict(line.rsplit(",", 1) for line in (tmp_path / "q.csv").read_text().splitlines())
    assert rows["members"] == "5"
    assert float(rows["mean accuracy"]) == 0.5
    assert main(["doctor", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quality"]["members"] == 5


def test_a_target_that_cannot_be_read_is_one_sentence_and_exit_code_one(tmp_path, capsys):
    assert main(["doctor", str(tmp_path / "nothing")]) == 1
    assert "there is no file or folder" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path)]) == 1
    assert "is not a run folder" in capsys.readouterr().err


def test_quality_of_a_target_without_groups_is_refused(report, tmp_path, capsys):
    assert main(["doctor", str(report), "--csv", str(tmp_path / "q.csv")]) == 1
    assert "holds no groups" in capsys.readouterr().err


def test_queries_candidates_and_a_page_of_an_rl_file_are_written(tmp_path, capsys):
    candidates = [{"pointer": [n, n + 1], "vqa_acc_score": n / 4, "vqa_gt_prob": n / 5} for n in range(5)]
    path, queries, listed, page = (tmp_path / name for name in ("rl.json", "q.csv", "c.csv", "p.html"))
    path.write_text(json.dumps({"7": {"pointer_candidates": candidates}}))
    files = ["--queries", str(queries), "--candidates", str(listed), "--html", str(page)]
    assert main(["doctor", str(path), *files]) == 0
    assert queries.read_text().splitlines()[1].startswith("7,5,5,4,0.5,1.0,0.0,")
    assert len(listed.read_text().splitlines()) == 6
    assert "Members by accuracy" in page.read_text()
    assert not list(tmp_path.glob(".*"))
    capsys.readouterr()


def test_the_gallery_is_listed_with_what_each_run_shows(capsys):
    assert main(["doctor", "--gallery", "--json"]) == 0
    gallery = json.loads(capsys.readouterr().out)["gallery"]
    assert len(gallery) > 20
    assert "stale_behaviour" in gallery["gallery/stale_policy"]["expected"]
    assert main(["doctor", "--gallery"]) == 0
    shown = capsys.readouterr().out
    assert all(f" {name} " in shown for name in gallery)


def test_asking_for_nothing_is_wrong_usage(capsys):
    assert main(["doctor"]) == 2
    assert "name what to examine" in capsys.readouterr().err


STRANGE = {
    "log.jsonl": (b"PAR1\xa0\xff", b"null\n", b"[1, 2]\n", b'{"stage"', b'{"stage": "sft"}\n3\n'),
    "eval.json": (b'{"arms": 3, "comparisons": 4}', b'{"arms": {"a": 1}, "comparisons": [1]}', b'{"arms": {"a"'),
    "rl.json": (b'{"1": ' * 90_000, b'{"1": {"pointer_candidates": [{"poin', b'{"a": ' + b"9" * 5_000 + b"}"),
    "scores.db": (b"SQLite format 3\x00", b"SQLite format 3\x00" + b"\x10\x00" * 2_000),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_cut_or_strange_file_is_one_sentence(tmp_path, capsys, name) -> None:
    for content in STRANGE[name]:
        (tmp_path / name).write_bytes(content)
        assert main(["doctor", str(tmp_path / name)]) == 1
        assert capsys.readouterr().err.startswith("lever: ")


DATA = json.dumps({"id": 1, "question": "What?", "answers": ["a"]}) + "\n"
LABELS = json.dumps({"text": "good", "label": "positive"}) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("empty.json", b"", "is empty; the doctor reads a run folder"),
        ("empty.md", b" \n ", "is empty"),
        (
            "data.jsonl",
            DATA.encode() * 3,
            "is a data set of 3 items, not a training; type `lever task check jsonl --set",
        ),
        ("data.json", f"[{DATA},{DATA}]".encode(), "is a data set of 2 items"),
        ("data.txt", DATA.encode() * 2, "is a data set of 2 items"),
        ("labels.jsonl", LABELS.encode() * 2, "type `lever task check labels --set"),
        ("null.jsonl", b"null\nnull\n", "line 1 is not JSON or is no JSON object"),
        ("words.jsonl", b'{"a": "b"}\n', "no line holds a number that a training would log"),
        ("latin.jsonl", b'{"a": "caf\xe9"}\n{"a": 1}\n', "no metric was recognised"),
        ("list.json", b"[1, 2]", "holds a JSON list, not an object"),
        ("cut.json", b'{"7": {"pointer_cand', "is not a JSON file, or was cut off"),
        ("bomb.json", b'{"a": ' + b"[" * 50_000, "nested more than 64 deep"),
        ("odd.json", b'{"7": {"pointer_candidates": 3}}', "is not RL data of a form this version knows"),
        ("odd2.json", b'{"7": {"id_list": 3, "score_list": [[]]}}', "is not RL data of a form this version knows"),
        ("odd3.json", b'{"7": {"id_list": [[1, 7]], "score_list": [null]}}', "is not RL data of a form"),
        ("scores.parquet", b"PAR1xxxxPAR1", "is a Parquet file; `lever store merge`"),
        ("photo.log", b"\x89PNG\r\n\x1a\n", "is a picture"),
        ("store.db", b"SQLite format 3\x00" + b"x" * 50, "store.db"),
    ],
)
def test_what_is_no_training_is_named_with_what_to_type(tmp_path, capsys, name, content, what):
    path = tmp_path / name
    path.write_bytes(content)
    assert main(["doctor", str(path)]) == 1
    assert re.search(what, capsys.readouterr().err)


def test_a_log_with_blank_lines_a_mark_and_a_half_last_line_is_read(tmp_path, capsys):
    path = tmp_path / "log.jsonl"
    line = json.dumps({"stage": "sft", "epoch": 1, "train/reward": 0.5})
    path.write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n\r\n{line}\r\n{line[:20]}".encode())
    assert main(["doctor", str(path)]) == 0
    assert "sft (2 epochs)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"7", b"{}", b'{"7": {"pointer_candidates": 3}}', b'{"7": {"id_list": 3, "score_list": 3}}',
     b'{"7": {"pointer_candidates": [7]}}', b"[" * 50_000, b"\xff\xfe", b'{"7": ' + b"1" * 5000 + b"}",
     b'{"a-test_data_num=' + b"1" * 5000 + b'-x": {}}', b'{"a": "\\ud800"}'],
)  # fmt: skip
def test_importing_an_odd_file_ends_with_a_sentence(tmp_path, capsys, content):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    assert main(["import", str(path), "--into", str(tmp_path / "into")]) == 1
    assert capsys.readouterr().err.startswith("lever: ")
    assert main(["import", str(tmp_path)]) == 1
    assert "is a folder; give a file" in capsys.readouterr().err
