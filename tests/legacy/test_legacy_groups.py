"""Beam and RL files are read without guessing, and written back as they were."""

from __future__ import annotations

import json
import math

import pytest
from legacy_files import beam, candidate, metrics, rl_global, rl_local

from leverplus.errors import DataError, LeverError, NotMeasured
from leverplus.legacy.beam import read_beam, write_beam
from leverplus.legacy.imports import import_file, kind_of
from leverplus.legacy.rl import read_rl, rl_from_groups, write_rl
from leverplus.policies.items import ItemTable
from leverplus.recipe.training import RewardConfig
from leverplus.scoring.group_file import GroupFile, load_groups, read_group_file, rename_items, save_group_file
from leverplus.training.data.from_search import rows_from_groups
from leverplus.types import Group, ItemId, Member, Pool, Reference, Score


def balanced() -> dict:
    """Data of the generator that stores three fields only."""
    return {"7": {"pointer_candidates": [
        {"pointer": [1, 2], "vqa_pred_answer": "red", "vqa_acc_score": 0.6},
        {"pointer": [3, 4], "vqa_pred_answer": "", "vqa_acc_score": 0.0},
    ]}}  # fmt: skip


@pytest.mark.parametrize("make", [rl_global, rl_local, balanced])
def test_rl_data_survive_import_and_export(make, tmp_path) -> None:
    value = make()
    save_group_file(read_rl(value, "file"), tmp_path)
    assert write_rl(read_group_file(tmp_path)) == value


def test_beam_data_survive_import_and_export(tmp_path) -> None:
    save_group_file(read_beam(beam(), "file"), tmp_path)
    assert write_beam(read_group_file(tmp_path)) == beam()


def test_kinds_are_told_apart() -> None:
    assert [kind_of(value) for value in (rl_global(), rl_local(), beam())] == ["rl", "rl", "beam"]
    assert "cache" in kind_of([1, 2, 3])
    assert "cache of candidates" in kind_of({"4": [1, 2]})
    assert "without queries" in kind_of({"_meta": {}})


def test_local_and_global_pointers_give_the_same_groups() -> None:
    wide, local = read_rl(rl_global(), "a").groups(), read_rl(rl_local(), "b").groups()
    assert [group.members for group in wide] == [group.members for group in local]
    assert [len(group.pool) for group in wide] == [4, 3]
    assert [len(group.pool) for group in local] == [64, 64]
    assert wide[0].members[0] == Member(("88", "1203"), "beam", None)
    assert wide[0].members[1].log_mu == -18.25


def test_scores_hold_what_was_measured_and_refuse_the_rest() -> None:
    group = read_rl(rl_global(), "a").groups()[0]
    score = group.scores[0]
    assert (score.accuracy, score.correct, score.answer, score.relevance, score.gt_prob) == (
        1.0,
        True,
        "tennis",
        1.0,
        4e-7,
    )
    assert score.references == (Reference("tennis", 2, None), Reference("golf", 1, None))
    with pytest.raises(NotMeasured, match="no tokens for query 4711"):
        _ = score.tokens
    bare = read_rl(balanced(), "a").groups()[0].scores[0]
    assert (bare.accuracy, bare.correct) == (0.6, True)
    for name in ("raw", "token_f1", "edit_similarity", "relevance", "gt_prob"):
        with pytest.raises(NotMeasured):
            getattr(bare, name)
    assert "0.6" in repr(bare)


def test_training_reads_imported_groups_and_is_refused_what_was_not_measured(tmp_path) -> None:
    import numpy as np

    path = tmp_path / "rl.json"
    path.write_text(json.dumps(balanced()))
    import_file(path, tmp_path / "in")
    groups = load_groups(tmp_path / "in")
    table = ItemTable.from_arrays([ItemId(str(n)) for n in range(9)], {"text": np.eye(9, dtype=np.float32)})
    rows = rows_from_groups(groups, table, RewardConfig(mode="hard_plus_soft"))
    assert rows[0].rewards.tolist() == pytest.approx([1.6, 0.0])
    assert rows[0].sequences.tolist() == [[0, 1], [2, 3]]
    with pytest.raises(NotMeasured, match="gt_prob"):
        rows_from_groups(groups, table, RewardConfig(mode="gt_prob"))


def test_beams_can_be_imitated_but_have_no_accuracy() -> None:
    group = read_beam(beam(), "a").groups()[0]
    assert group.members[0].demos == ("88", "1203")
    assert group.scores[0].info_score == 0.0461
    with pytest.raises(NotMeasured, match="no accuracy"):
        _ = group.scores[0].accuracy


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"vqa_eval_mode": "fallback"}, "guessed by comparing strings"),
        ({"vqa_eval_mode": "simple_match", "gen_method": "mined_from_old"}, "guessed by comparing strings"),
        ({"vqa_eval_mode": "error"}, "evaluation failed"),
        ({"eval_failed": True}, "evaluation failed"),
        ({"gen_method": "global_positive_transfer"}, "taken over from another query"),
        ({"source_query": 3}, "taken over from another query"),
        ({"vqa_acc_score": None}, "never measured"),
        ({"vqa_correct": 0}, "contradicts"),
        ({"pointer": [4711, 2], "pointer_pos": [4711, 2]}, "among its own demonstrations"),
        ({"pointer": [2, 2], "pointer_pos": [2, 2]}, "occurs twice"),
    ],
)
def test_labels_that_were_not_measured_are_set_aside_but_kept(fields, reason) -> None:
    value = rl_global()
    value["4711"]["pointer_candidates"].append(candidate([7, 8], 1.0) | fields)
    file = read_rl(value, "a")
    assert len(file.groups()[0].members) == 3
    assert [reason in why for why in file.set_aside()] == [True]
    assert write_rl(file) == value


def change(value: dict, **fields: object) -> dict:
    value["4711"]["pointer_candidates"][0].update(fields)
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (change(rl_global(), pointer_global=[88, 1203]), "pointer_global without candidate_pool_ids"),
        (change(rl_local(), pointer_global=[5, 1203]), "name different items"),
        (change(rl_local(), pointer=[64, 1]), "name different items"),
        (change(rl_global(), pointer=[0, 1]), "differ, and no pool says"),
        (change(rl_global(), pointer="88"), "must be a list of whole numbers"),
        (change(rl_global(), vqa_acc_score=60.0), "divide percentages by 100"),
        (change(rl_global(), vqa_acc_score=math.nan), "is not a number"),
        (change(rl_global(), vqa_correct=2), "must be 0 or 1"),
        (change(rl_global(), gen_method=["beam"]), "gen_method = .* is not a text"),
        (change(rl_global(), logprob_score="low"), "logprob_score = 'low' is not a number"),
    ],
)
def test_ambiguous_or_impossible_rl_data_are_refused(value, words) -> None:
    with pytest.raises(DataError, match=words) as caught:
        read_rl(value, "file.json")
    assert "query 4711: pointer_candidates[0]" in str(caught.value)


STRANGE = (None, 7, -1, 1.5, True, "", "text", [], [3], ["a", None], {}, {"a": "b"}, [[]], [{}], math.nan)


def places(value: object, before: tuple = ()) -> list[tuple]:
    """Where something stands in a value; of lists the first two."""
    inside = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    return [before, *(place for key, part in inside for place in places(part, (*before, key)))]


@pytest.mark.slow
@pytest.mark.parametrize("make", [rl_global, rl_local, beam, metrics])
def test_whatever_a_file_holds_it_is_taken_over_whole_or_refused(make, tmp_path) -> None:
    path, refused, broken = tmp_path / "a.json", 0, []
    for place in places(make())[1:]:
        for odd in STRANGE:
            value = part = make()
            for key in place[:-1]:
                part = part[key]
            part[place[-1]] = odd
            path.write_text(json.dumps(value))
            try:
                import_file(path)
            except LeverError:
                refused += 1
            except Exception as error:
                broken.append(f"{place} = {odd!r}: {type(error).__name__} {error}")
    assert broken == []
    assert refused > 20


def test_numbers_that_stand_for_no_name_are_refused() -> None:
    for value, read in ((rl_local(), read_rl), (beam(), read_beam)):
        with pytest.raises(DataError, match=r"is not among the 3 names of _meta\.item_ids"):
            read({**value, "_meta": {"item_ids": ["a", "b", "c"]}}, "file")
        with pytest.raises(DataError, match="must be a list of names"):
            read({**value, "_meta": {"item_ids": 7}}, "file")


def test_a_pool_without_global_pointers_is_read_only_when_it_cannot_mean_places() -> None:
    value = rl_global()
    value["4711"]["candidate_pool_ids"] = [5, 88, 640, 1203]
    assert read_rl(value, "a").groups()[0].members[0].demos == ("88", "1203")
    value["12"]["candidate_pool_ids"] = [3, 4, 88, 0, 1]
    with pytest.raises(DataError, match=r"query 12: pointer_candidates\[1\]: pointer \[3, 4\] may be places"):
        read_rl(value, "a")


def test_a_pool_that_holds_the_query_loses_it_in_training_only() -> None:
    value = rl_local()
    value["4711"]["candidate_pool_ids"][-1] = 4711
    file = read_rl(value, "a")
    assert ItemId("4711") not in file.groups()[0].pool.candidates
    assert write_rl(file) == value


def test_faulty_beams_are_refused_together() -> None:
    value = beam()
    value["4711"]["id_list"][1][-1] = 4712
    value["9"]["score_list"] = []
    with pytest.raises(DataError, match="2 problems") as caught:
        read_beam(value, "b.json")
    assert "does not end with the query" in str(caught.value)
    assert "same length" in str(caught.value)


def native() -> list[Group]:
    """Groups measured here, with ids that are no numbers."""
    pool = Pool(ItemId("train-1"), (ItemId("train-2"), ItemId("train-3")), "b")

    def score(demos: tuple[str, ...], accuracy: float, logprob: float | None) -> Score:
        ids = tuple(ItemId(demo) for demo in demos)
        references = (Reference("red", 3, logprob),)
        return Score(pool.query, ids, "red", "red", accuracy, accuracy > 0, references, 1.0, 1.0, 9, 0.1)

    scores = (score(("train-2", "train-3"), 0.6, -0.5), score(("train-3",), 0.0, -2.0), score((), 0.0, -3.0))
    members = tuple(Member(one.demos, "beam", None) for one in scores)
    return [Group(pool.query, pool, members, scores)]


def test_groups_measured_here_become_rl_data_that_read_back_the_same() -> None:
    facts = {ItemId("train-1"): {"gt_answers_norm": ["red"] * 3}}
    value = json.loads(json.dumps(write_rl(rl_from_groups(native(), facts))))
    assert value["0"]["pointer_candidates"][0]["pointer_global"] == [1, 2]
    again = read_rl(value, "a").groups()[0]
    assert (again.query, again.pool.candidates) == ("train-1", ("train-2", "train-3"))
    assert [member.demos for member in again.members] == [("train-2", "train-3"), ("train-3",)]
    assert [s.gt_prob for s in again.scores] == [s.gt_prob for s in native()[0].scores[:2]]


def test_beams_of_groups_measured_here_hold_the_last_gain() -> None:
    from leverplus.legacy.beam import beam_from_groups

    value = write_beam(beam_from_groups(native(), shots=2, width=5))
    assert value["0"]["id_list"] == [[1, 2, 0]]
    assert value["0"]["score_list"] == [math.exp(-0.5) - math.exp(-2.0)]


def test_renaming_gives_items_their_ids_in_a_task() -> None:
    file = read_rl(rl_global(), "a")
    numbers = {ItemId(str(n)): ItemId(str(n + 10_000)) for n in (4711, 12, 88, 1203, 5, 640, 3, 4)}
    renamed = rename_items(file, numbers)
    assert renamed.groups()[0].members[0].demos == ("10088", "11203")
    assert rename_items(renamed, {new: old for old, new in numbers.items()}) == file
    with pytest.raises(DataError, match="item 3 is not in the task"):
        rename_items(file, {k: v for k, v in numbers.items() if k != "3"})


def test_an_empty_file_of_queries_gives_no_groups() -> None:
    assert GroupFile("rl", ()).groups() == []
