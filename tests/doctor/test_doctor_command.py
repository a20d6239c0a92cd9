"""`lever doctor` answers for people and for programs, and only fails on what it cannot read."""

from __future__ import annotations

import json
import re

import pytest

from leverplus.cli.main import main
from leverplus.errors import LeverError

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
    candidates = [
        {"pointer": [n, n + 1], "vqa_acc_score": n / 4, "gen_method": "ab"[n % 2]}
        for n in range(5)
    ]
    path = tmp_path / "rl.json"
    path.write_text(json.dumps({"7": {"pointer_candidates": candidates}}))
    assert main(["doctor", str(path), "--csv", str(tmp_path / "q.csv")]) == 0
    out = capsys.readouterr().out
    assert "mean accuracy" in out
    assert "by origin" in out
    rows = dict(
        line.rsplit(",", 1) for line in (tmp_path / "q.csv").read_text().splitlines()
    )
    assert rows["members"] == "5"
    assert float(rows["mean accuracy"]) == 0.5
    assert main(["doctor", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quality"]["members"] == 5
    page = tmp_path / "<page>.html"
    assert main(["doctor", str(path), "--html", str(page)]) == 0
    assert "mean accuracy" in page.read_text()
    assert "single_length_data" in page.read_text()


def test_a_target_that_cannot_be_read_is_one_sentence_and_exit_code_one(
    tmp_path, capsys
):
    assert main(["doctor", str(tmp_path / "nothing")]) == 1
    assert "there is no file or folder" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path)]) == 1
    assert "is not a run folder" in capsys.readouterr().err


def test_quality_of_a_target_without_groups_is_refused(report, tmp_path, capsys):
    assert main(["doctor", str(report), "--csv", str(tmp_path / "q.csv")]) == 1
    assert "holds no groups" in capsys.readouterr().err


def test_several_files_and_a_folder_of_reports_keep_every_finding_and_say_which_file(
    report, tmp_path, capsys
):
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "kl.md").write_text(REPORT)
    (folder / "seeds.md").write_text("Average gain: 1.2%\nAverage gain: 2.5%\n")
    (folder / "cut.json").write_text('{"7": {"pointer_cand')
    alone = []
    for path in (folder / "kl.md", folder / "seeds.md"):
        assert main(["doctor", str(path), "--json"]) == 0
        alone += [
            (str(path), own["code"])
            for own in json.loads(capsys.readouterr().out)["findings"]
        ]
    assert len(alone) > 4
    for words in ([str(folder)], [str(path) for path in sorted(folder.iterdir())]):
        assert main(["doctor", *words, "--json"]) == 1  # one of them cannot be read
        out, err = capsys.readouterr()
        values = json.loads(out)
        assert [(own["source"], own["code"]) for own in values["findings"]] == alone
        assert [own["source"] for own in values["targets"]] == [
            str(path) for path in sorted(folder.iterdir())
        ]
        assert "was cut off" in err
    assert main(["doctor", str(folder / "kl.md"), str(folder / "seeds.md")]) == 0
    out = capsys.readouterr().out
    assert (
        out.index("kl.md: ")
        < out.index("1. [error] kl_at_start")
        < out.index("seeds.md: 1 error")
    )


def test_a_run_that_cannot_be_written_to_or_is_damaged_is_a_sentence(
    tmp_path, capsys, monkeypatch
):
    run = tmp_path / "run"
    run.mkdir()
    (run / "log.jsonl").write_text('{"stage": "sft", "epoch": 1, "train/nll": 1.0}\n')

    def refuse(*_):
        raise LeverError("read-only")

    monkeypatch.setattr("leverplus_doctor.monitor.write_json", refuse)
    assert main(["doctor", str(run)]) == 0
    assert "findings.json was not written" in capsys.readouterr().err
    for name, content in (
        (
            "eval.json",
            '{"n": 3, "arms": {"random": {"shots": {"1": "much"}}}, "comparisons": []}',
        ),
        ("eval.json", '{"n": 3, "arms": {}, "comparisons": [{"arm": "learned"}]}'),
        ("eval.json", "[]"),
        ("probe.json", '{"probe": {"kl": "far"}, "groups": null}'),
        ("probe.json", '{"probe": null, "groups": {"queries": 3}}'),
        ("run.json", "7"),
    ):
        (run / name).write_text(content)
        assert main(["doctor", str(run)]) == 1, (name, content)
        assert re.match(rf"lever: .*{name} ", capsys.readouterr().err), (name, content)
        (run / name).unlink()


def test_asking_for_nothing_is_wrong_usage(capsys):
    assert main(["doctor"]) == 2
    assert "name what to examine" in capsys.readouterr().err


STRANGE = {
    "log.jsonl": (
        b"PAR1\xa0\xff",
        b"null\n",
        b"[1, 2]\n",
        b'{"stage"',
        b'{"stage": "sft"}\n3\n',
    ),
    "eval.json": (
        b'{"arms": 3, "comparisons": 4}',
        b'{"arms": {"a": 1}, "comparisons": [1]}',
        b'{"arms": {"a"',
    ),
    "rl.json": (
        b'{"1": ' * 90_000,
        b'{"1": {"pointer_candidates": [{"poin',
        b'{"a": ' + b"9" * 5_000 + b"}",
    ),
    "scores.db": (b"SQLite format 3\x00", b"SQLite format 3\x00" + b"\x10\x00" * 2_000),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_cut_or_strange_file_is_one_sentence(tmp_path, capsys, name) -> None:
    for content in STRANGE[name]:
        (tmp_path / name).write_bytes(content)
        assert main(["doctor", str(tmp_path / name)]) == 1
        assert capsys.readouterr().err.startswith("lever: ")


STRANGERS = [
    ("empty.json", b"", "is empty; the doctor reads a run folder"),
    ("empty.md", b" \n ", "is empty"),
    ("null.jsonl", b"null\nnull\n", "line 1 is not JSON or is no JSON object"),
    (
        "words.jsonl",
        b'{"a": "b"}\n',
        "no line holds a number that a training would log",
    ),
    ("latin.jsonl", b'{"a": "caf\xe9"}\n{"a": 1}\n', "no metric was recognised"),
    ("list.json", b"[1, 2]", "holds a JSON list that is no training"),
    ("cut.json", b'{"7": {"pointer_cand', "is not a JSON file, or was cut off"),
    ("bomb.json", b'{"a": ' + b"[" * 50_000, "nested more than 64 deep"),
    (
        "odd.json",
        b'{"7": {"pointer_candidates": 3}}',
        "is not RL data of a form this version knows",
    ),
    (
        "odd2.json",
        b'{"7": {"id_list": 3, "score_list": [[]]}}',
        "is not RL data of a form this version knows",
    ),
    (
        "odd3.json",
        b'{"7": {"id_list": [[1, 7]], "score_list": [null]}}',
        "no scored sequences were found",
    ),
    ("scores.parquet", b"PAR1xxxxPAR1", "is neither text nor a store"),
    ("photo.log", b"\x89PNG\r\n\x1a\n", "is neither text nor a store"),
    ("store.db", b"SQLite format 3\x00" + b"x" * 50, "store.db"),
]


def test_what_is_no_training_is_named_with_what_to_type(tmp_path, capsys):
    for name, content, what in STRANGERS:
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


ODD = [
    b"",
    b"[]",
    b"7",
    b"{}",
    b'{"7": {"pointer_candidates": 3}}',
    b'{"7": {"id_list": 3, "score_list": 3}}',
    b'{"7": {"pointer_candidates": [7]}}',
    b"[" * 50_000,
    b"\xff\xfe",
    b'{"7": ' + b"1" * 5000 + b"}",
    b'{"a-test_data_num=' + b"1" * 5000 + b'-x": {}}',
    b'{"a": "\\ud800"}',
]


def test_importing_an_odd_file_ends_with_a_sentence(tmp_path, capsys):
    for content in ODD:
        path = tmp_path / "file.json"
        path.write_bytes(content)
        assert main(["import", str(path), "--into", str(tmp_path / "into")]) == 1
        assert capsys.readouterr().err.startswith("lever: ")
        assert main(["import", str(tmp_path)]) == 1
        assert "is a folder; give a file" in capsys.readouterr().err
