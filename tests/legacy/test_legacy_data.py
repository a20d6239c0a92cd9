"""Beam, RL and metrics files are read without guessing, and written back with every value that is used, to the digit."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from legacy_files import beam, candidate, metrics, rl_global, rl_local

from leverplus.cli.main import main
from leverplus.data.types import Group, ItemId, Member, Pool, Reference, Score
from leverplus.errors import DataError, LeverError, NotMeasured
from leverplus.evaluate.published import check_published
from leverplus.evaluate.record import record_of
from leverplus.learn.data.from_search import rows_from_groups
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.settings import RewardConfig
from leverplus_doctor.check import examine
from leverplus_doctor.read import read_target
from leverplus_lab.legacy.groups import (
    GroupFile,
    beam_from_groups,
    load_groups,
    read_groups,
    rl_from_groups,
)
from leverplus_lab.legacy.imports import (
    import_file,
    kind_of,
    metrics_of,
    published_tables,
    read_metrics,
)


def balanced() -> dict:
    """Data of the generator that stores three fields only."""
    return {"7": {"pointer_candidates": [
        {"pointer": [1, 2], "vqa_pred_answer": "red", "vqa_acc_score": 0.6},
        {"pointer": [3, 4], "vqa_pred_answer": "", "vqa_acc_score": 0.0},
    ]}}  # fmt: skip


def write(path, value):
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize("make", [rl_global, rl_local, balanced, beam])
def test_values_survive_import_and_export_to_the_digit(make, tmp_path) -> None:
    path = write(tmp_path / "file.json", make())
    import_file(path, tmp_path / "in")
    words = ["--format", kind_of(make()), "--out", str(tmp_path / "out.json")]
    assert main(["export", str(tmp_path / "in"), *words]) == 0
    written = json.loads((tmp_path / "out.json").read_text())
    assert read_groups(written, "again") == read_groups(make(), "file")
    for key, entry in written.items():
        given = make()[key]
        rows = entry.get("pointer_candidates", ())
        for row, own in zip(rows, given.get("pointer_candidates", ()), strict=True):
            assert row.items() <= own.items()
        for name in ("query", "candidate_pool_ids", "id_list", "score_list"):
            assert entry.get(name) == given.get(name)


def test_kinds_are_told_apart() -> None:
    values = (rl_global(), rl_local(), beam(), metrics())
    assert [kind_of(value) for value in values] == ["rl", "rl", "beam", "metrics"]
    assert "cache" in kind_of([1, 2, 3])
    assert "cache of candidates" in kind_of({"4": [1, 2]})
    assert "without queries" in kind_of({"_meta": {}})


def test_local_and_global_pointers_give_the_same_groups() -> None:
    wide = read_groups(rl_global(), "a").groups()
    local = read_groups(rl_local(), "b").groups()
    assert [group.members for group in wide] == [group.members for group in local]
    assert [len(group.pool) for group in wide] == [4, 3]
    assert [len(group.pool) for group in local] == [64, 64]
    assert wide[0].members[0] == Member(("88", "1203"), "beam", None)
    assert wide[0].members[1].log_mu == -18.25


def test_scores_hold_what_was_measured_and_refuse_the_rest() -> None:
    score = read_groups(rl_global(), "a").groups()[0].scores[0]
    assert (score.accuracy, score.correct, score.answer) == (1.0, True, "tennis")
    assert (score.relevance, score.gt_prob, score.weighed) == (1.0, 4e-7, True)
    assert score.references == (Reference("tennis", 2, None), Reference("golf", 1, None))  # fmt: skip
    with pytest.raises(NotMeasured, match="no tokens for query 4711"):
        _ = score.tokens
    bare = read_groups(balanced(), "a").groups()[0].scores[0]
    assert (bare.accuracy, bare.correct, bare.weighed) == (0.6, True, False)
    for name in ("raw", "token_f1", "edit_similarity", "relevance", "gt_prob"):
        with pytest.raises(NotMeasured):
            getattr(bare, name)
    assert "0.6" in repr(bare)


def test_training_reads_imported_groups_and_is_refused_what_was_not_measured(
    tmp_path,
) -> None:
    import_file(write(tmp_path / "rl.json", balanced()), tmp_path / "in")
    groups = load_groups(tmp_path / "in")
    ids = [ItemId(str(n)) for n in range(9)]
    table = ItemTable(ids, {"text": np.eye(9, dtype=np.float32)})
    rows = rows_from_groups(groups, table, RewardConfig(mode="hard_plus_soft"))
    assert rows[0].rewards.tolist() == pytest.approx([1.6, 0.0])
    assert rows[0].sequences.tolist() == [[0, 1], [2, 3]]
    with pytest.raises(NotMeasured, match="query 7"):
        rows_from_groups(groups, table, RewardConfig(mode="gt_prob"))


def test_beams_can_be_imitated_but_have_no_accuracy() -> None:
    group = read_groups(beam(), "a").groups()[0]
    assert group.members[0].demos == ("88", "1203")
    assert group.scores[0].info_score == 0.0461
    with pytest.raises(NotMeasured, match="no accuracy"):
        _ = group.scores[0].accuracy


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"vqa_eval_mode": "fallback"}, "guessed by comparing strings"),
        ({"vqa_eval_mode": "simple_match"}, "guessed by comparing strings"),
        ({"vqa_eval_mode": "error"}, "evaluation failed"),
        ({"eval_failed": True}, "evaluation failed"),
        ({"gen_method": "global_positive_transfer"}, "taken over from another query"),
        ({"source_query": 0}, "taken over from another query"),
        ({"vqa_acc_score": None}, "never measured"),
        ({"vqa_correct": 0}, "contradicts"),
        ({"pointer": [4711, 2], "pointer_pos": None}, "among its own demonstrations"),
        ({"pointer": [2, 2], "pointer_pos": None}, "occurs twice"),
    ],
)
def test_labels_that_were_not_measured_are_set_aside_but_kept(fields, reason) -> None:
    value = rl_global()
    value["4711"]["pointer_candidates"].append(candidate([7, 8], 1.0) | fields)
    file = read_groups(value, "a")
    assert len(file.groups()[0].members) == 3
    assert [reason in why for why in file.set_aside()] == [True]
    assert read_groups(file.as_json(), "b").set_aside() == file.set_aside()


def change(value: dict, **fields: object) -> dict:
    value["4711"]["pointer_candidates"][0].update(fields)
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            change(rl_global(), pointer_global=[88, 1203]),
            "pointer_global without candidate_pool_ids",
        ),
        (change(rl_local(), pointer_global=[5, 1203]), "name different items"),
        (change(rl_local(), pointer=[64, 1]), "name different items"),
        (change(rl_global(), pointer=[0, 1]), "differ, and no pool says"),
        (change(rl_global(), pointer="88"), "pointer: Input should be a valid list"),
        (change(rl_global(), vqa_acc_score=60.0), "vqa_acc_score: .* equal to 1"),
        (change(rl_global(), vqa_acc_score=math.nan), "vqa_acc_score: .* finite"),
        (change(rl_global(), vqa_correct=2), "vqa_correct: Input should be 0 or 1"),
        (change(rl_global(), gen_method=["beam"]), "gen_method: .* valid string"),
        (change(rl_global(), logprob_score="low"), "valid number, not 'low'"),
    ],
)
def test_ambiguous_or_impossible_rl_data_are_refused(value, words) -> None:
    with pytest.raises(DataError, match=words) as caught:
        read_groups(value, "file.json")
    assert "query 4711: pointer_candidates[0]" in str(caught.value)


STRANGE = (None, 7, -1, 1.5, True, "", "text", [], [3], ["a", None], {}, {"a": "b"}, [[]], [{}], math.nan)  # fmt: skip


def places(value: object, before: tuple = ()) -> list[tuple]:
    """Where something stands in a value; of lists the first two."""
    inside = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value[:2])
    found = [before]
    for key, part in inside:
        found += places(part, (*before, key))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("make", [rl_global, rl_local, beam, metrics])
def test_whatever_a_file_holds_it_is_taken_over_whole_or_refused(
    make, tmp_path
) -> None:
    refused, broken = 0, []
    for place in places(make())[1:]:
        for odd in STRANGE:
            value = part = make()
            for key in place[:-1]:
                part = part[key]
            part[place[-1]] = odd
            try:
                import_file(write(tmp_path / "a.json", value))
            except LeverError:
                refused += 1
            except Exception as error:
                broken.append(f"{place} = {odd!r}: {type(error).__name__} {error}")
    assert broken == []
    assert refused > 20


def test_items_without_a_name_are_refused_and_names_come_back() -> None:
    for value in (rl_local(), beam()):
        names = {"_meta": {"item_ids": {"88": "a", "1203": "b"}}}
        with pytest.raises(DataError, match="is not among the known names"):
            read_groups({**value, **names}, "file")
        with pytest.raises(DataError, match="must give names by number"):
            read_groups({**value, "_meta": {"item_ids": 7}}, "file")
    items = {str(n): ItemId(f"okvqa-{n}") for n in (4711, 12, 88, 1203, 5, 640, 3, 4)}
    renamed = read_groups(rl_global(), "a", items)
    assert renamed.groups()[0].members[0].demos == ("okvqa-88", "okvqa-1203")
    again = read_groups(json.loads(json.dumps(renamed.as_json())), "b")
    assert again == renamed
    assert again.queries == read_groups(rl_global(), "a").queries
    with pytest.raises(DataError, match="item 3 is not among the known names"):
        read_groups(rl_global(), "a", {k: v for k, v in items.items() if k != "3"})


def test_a_pool_without_global_pointers_is_read_only_when_it_cannot_mean_places():
    value = rl_global()
    value["4711"]["candidate_pool_ids"] = [5, 88, 640, 1203]
    assert read_groups(value, "a").groups()[0].members[0].demos == ("88", "1203")
    value["12"]["candidate_pool_ids"] = [3, 4, 88, 0, 1]
    with pytest.raises(
        DataError,
        match=r"query 12: pointer_candidates\[1\]: pointer \[3, 4\] may be places",
    ):
        read_groups(value, "a")


def test_a_pool_that_holds_the_query_loses_it_in_training_only() -> None:
    value = rl_local()
    value["4711"]["candidate_pool_ids"][-1] = 4711
    file = read_groups(value, "a")
    assert ItemId("4711") not in file.groups()[0].pool.candidates
    assert 4711 in file.as_json()["4711"]["candidate_pool_ids"]


def test_faulty_beams_are_refused_together() -> None:
    value = beam()
    value["4711"]["id_list"][1][-1] = 4712
    value["9"]["score_list"] = []
    with pytest.raises(DataError, match="2 problems") as caught:
        read_groups(value, "b.json")
    assert "does not end with the query" in str(caught.value)
    assert "same length" in str(caught.value)
    assert GroupFile("rl", {}).groups() == []


def native() -> list[Group]:
    """Groups measured here, with ids that are no numbers."""
    pool = Pool(ItemId("train-1"), (ItemId("train-2"), ItemId("train-3")), "b")
    scores = []
    for demos, accuracy, logprob in (
        (("train-2", "train-3"), 0.6, -0.5),
        (("train-3",), 0.0, -2.0),
        ((), 0.0, -3.0),
    ):
        ids = tuple(map(ItemId, demos))
        references = (Reference("red", 3, logprob),)
        told = ("red", "red", accuracy, accuracy > 0, references, 1.0, 1.0, 9, 0.1)
        scores.append(Score(pool.query, ids, *told))
    members = tuple(Member(one.demos, "beam", None) for one in scores)
    return [Group(pool.query, pool, members, tuple(scores))]


def test_groups_measured_here_become_rl_data_that_read_back_the_same() -> None:
    facts = {ItemId("train-1"): {"gt_answers_norm": ["red"] * 3}}
    value = json.loads(json.dumps(rl_from_groups(native(), facts)))
    assert value["0"]["pointer_candidates"][0]["pointer_global"] == [1, 2]
    again = read_groups(value, "a").groups()[0]
    assert (again.query, again.pool.candidates) == ("train-1", ("train-2", "train-3"))
    demos = [member.demos for member in again.members]
    assert demos == [("train-2", "train-3"), ("train-3",)]
    for own, score in zip(again.scores, native()[0].scores, strict=False):
        assert own.gt_prob == score.gt_prob
    numbers = {"7": ItemId("train-1"), "8": ItemId("train-2"), "9": ItemId("train-3")}
    numbered = rl_from_groups(native(), facts, numbers)
    assert list(numbered) == ["7"]
    assert numbered["7"]["candidate_pool_ids"] == [8, 9]


def test_beams_of_groups_measured_here_hold_the_last_gain() -> None:
    value = beam_from_groups(native(), shots=2, width=5)
    assert value["0"]["id_list"] == [[1, 2, 0]]
    assert value["0"]["score_list"] == [math.exp(-0.5) - math.exp(-2.0)]
    with pytest.raises(NotMeasured, match="no sequence of 3 demonstrations"):
        beam_from_groups(native(), shots=3, width=5)


def test_metrics_become_tables_that_compare_reads_and_two_runs_stay_apart() -> None:
    assert read_metrics(metrics(), "m.json") == metrics()
    tables = published_tables(metrics())
    assert list(tables) == ["n800-shots1_2_3_4"]
    table = check_published(tables["n800-shots1_2_3_4"], "table")
    assert table.n == 800
    assert table.arms["LeverLMRetriever"]["2"] == 0.4833
    value = {}
    for day in (1, 2):
        key = f"2025-12-2{day} 10:00:00.000-test_data_num=100-Random"
        value[key] = {"shot_num=1": 0.5 + day / 100}
    assert set(published_tables(value)["n100-shots1"]["arms"]) == {
        "Random 2025-12-21 10:00:00.000",
        "Random 2025-12-22 10:00:00.000",
    }
    wrong = {"shot_num=1": "0.5", "shots": 0.5, "shot_num=2": math.nan}
    with pytest.raises(DataError, match="3 problems"):
        read_metrics({"2025-test_data_num=100-Random": wrong}, "m.json")


def test_an_evaluation_made_here_can_be_written_for_the_earlier_tools() -> None:
    arms = {"learned": {"shots": {"1": 0.5, "2": 0.6}}}
    record = record_of({"n": 300, "arms": arms, "comparisons": []})
    written = metrics_of(record, "2026-01-01 00:00:00.000")
    key = "2026-01-01 00:00:00.000-test_data_num=300-learned"
    assert written == {key: {"shot_num=1": 0.5, "shot_num=2": 0.6}}
    assert kind_of(written) == "metrics"


def row(pointer, accuracy, **parts):
    return candidate(pointer, accuracy, vqa_gt_prob=0.1 + 0.8 * accuracy, **parts)


def rl(*queries):
    """RL data with such rows for queries from 100 on."""
    value = {"_meta": {"strict_eval": True}}
    for number, rows in enumerate(queries, 100):
        value[str(number)] = {"pointer_candidates": list(rows)}
    return value


def codes(path):
    return {finding.code: finding for finding in examine(read_target(path))}


def test_the_doctor_counts_sources_picks_and_pools(tmp_path):
    groups = read_target(write(tmp_path / "rl.json", rl_local())).groups
    assert (groups.queries, groups.members, groups.without_density) == (2, 5, 1)
    assert (groups.pool, groups.lengths, groups.pick) == (64, {2: 5}, 0.5)
    assert set(groups.sources) == {"beam", "random", "sample"}


def test_the_doctor_finds_the_known_defects_of_rl_data(tmp_path):
    path = tmp_path / "rl.json"
    dull = []
    for query in range(300):
        best = query == 299
        tiny = {"vqa_gt_prob": 1e-8}
        dull.append([row([c, 9], float(best and c == 0)) | tiny for c in range(8)])
    found = codes(write(path, rl(*dull)))
    assert found["flat_groups"].severity == "error"
    assert found["flat_groups"].evidence["flat"] == pytest.approx(299 / 300)
    assert {"gt_prob_empty", "never_right"} <= set(found)
    mixed = [
        row([1, 2], 1.0, gen_method="global_positive_transfer"),
        row([1, 3], 0.0, vqa_eval_mode="fallback"),
        row([1, 4], 0.0, eval_failed=True),
    ]
    write(path, rl(*[mixed] * 10))
    groups = read_target(path).groups
    assert (groups.borrowed, groups.estimated, groups.unmeasured) == (10, 20, 10)
    assert "unmeasured_labels" in codes(path)

    def right(count):
        return [row([c, 9], float(c < count)) for c in range(6)]

    assert "filtered_by_outcome" in codes(write(path, rl(*[right(3)] * 100)))
    whole = [right(query % 7) for query in range(100)]
    assert "filtered_by_outcome" not in codes(write(path, rl(*whole)))


def test_scores_of_beams_are_no_accuracies_to_the_doctor(tmp_path):
    path = write(tmp_path / "beams.json", beam())
    groups = read_target(path).groups
    assert (groups.scale, groups.lengths) == ("gain", {2: 4})
    assert groups.oracle == pytest.approx((0.0461 - 1e-07) / 2)
    assert "no_headroom" not in codes(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"12": {"id_list": [[1, 2]], "score_list": []}}', "1 sequences and 0 scores"),
        ('{"12": {"query": {}}}', "neither pointer_candidates"),
        ('{"a": 1}', "no key is a query id"),
        ('{"12": ', "not a JSON file"),
        ('{"12": {"pointer_candidates": [{"vqa_acc_score": 1}]}}', "no pointer"),
    ],
)
def test_files_that_are_no_rl_data_are_refused_with_a_sentence(tmp_path, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_target(path)
