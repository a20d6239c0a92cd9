from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from leverplus.cli import store as command
from leverplus.errors import StoreError
from leverplus.store.db import ScoreStore


def lever_store(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def path(tmp_path, maker, other_maker):
    with ScoreStore(tmp_path / "a.db") as store:
        store.put(maker.context, maker.records(12))
        store.put(other_maker.context, other_maker.records(3))
    return tmp_path / "a.db"


def test_stats_print_a_row_a_context(path, capsys) -> None:
    assert lever_store("stats", "--store", path) == 0
    out = capsys.readouterr().out
    assert "15 scores" in out
    assert "tiny" in out
    assert "world 1" in out


def test_stats_as_json_are_one_object(path, capsys) -> None:
    lever_store("stats", "--store", path, "--json")
    stats = json.loads(capsys.readouterr().out)
    assert (stats["records"], [entry["records"] for entry in stats["contexts"]]) == (15, [12, 3])


def test_stats_of_a_store_that_is_not_there_say_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LEVERPLUS_STORE", str(tmp_path / "absent.db"))
    with pytest.raises(StoreError, match=r"no score store at .*absent\.db"):
        lever_store("stats")


def test_an_export_can_be_merged_into_a_new_store(path, tmp_path, maker, capsys) -> None:
    digest = maker.context.digest.hex()[:8]
    lever_store("export", tmp_path / "a.parquet", "--store", path, "--context", digest, "--json")
    assert json.loads(capsys.readouterr().out)["records"] == 12
    lever_store("merge", tmp_path / "a.parquet", path, "--store", tmp_path / "b.db", "--json")
    merged = json.loads(capsys.readouterr().out)
    assert (merged["read"], merged["added"], merged["conflicts"], merged["records"]) == (27, 15, 0, 15)


def test_an_export_of_an_unknown_context_names_the_known_ones(path, tmp_path, maker) -> None:
    with pytest.raises(StoreError, match=maker.context.digest.hex()[:8]):
        lever_store("export", tmp_path / "a.parquet", "--store", path, "--context", "zz")


def test_merge_reports_conflicts_and_damaged_scores(path, tmp_path, maker, capsys) -> None:
    with ScoreStore(tmp_path / "b.db") as store:
        store.put(maker.context, [maker.record("q0", "d0", raw="other"), maker.record("q", "x")])
        store._db.execute("UPDATE records SET tokens = 0 WHERE key = ?", (maker.key("q", "x"),))
    assert lever_store("merge", tmp_path / "b.db", "--store", path) == 0
    out = capsys.readouterr().out
    assert "0 of 2 scores were new" in out
    assert "1 scores had been measured with another result" in out
    assert "1 damaged" in out


def test_verify_ends_with_code_1_when_something_is_wrong(path, capsys) -> None:
    assert lever_store("verify", "--store", path) == 0
    assert "clean" in capsys.readouterr().out
    with ScoreStore(path) as store:
        store._db.execute("UPDATE records SET tokens = 0")
    assert lever_store("verify", "--store", path, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["clean"], report["problem_count"], report["records"]) == (False, 15, 15)


def test_the_command_is_described_without_loading_heavy_packages() -> None:
    code = (
        "import sys, leverplus.cli.store; print([m for m in ('torch', 'pyarrow', 'rich', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
