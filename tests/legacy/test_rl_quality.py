"""Both formats of RL data of the earlier code are read, and their known defects are found."""

from __future__ import annotations

import json

import pytest

from leverplus.doctor.examine import examine
from leverplus.doctor.read import read_target
from leverplus.errors import DataError


def candidate(pointer, accuracy, **parts):
    values = {
        "pointer": pointer,
        "gen_method": "beam",
        "beam_rank": None,
        "logprob_score": -8.0,
        "vqa_acc_score": accuracy,
        "vqa_correct": int(accuracy > 0),
        "vqa_gt_prob": 0.1 + 0.8 * accuracy,
        "vqa_eval_mode": "vqaEval",
        "eval_failed": False,
    }
    return {**values, **parts}


def write(path, entries, meta=True):
    path.write_text(json.dumps({**({"_meta": {"strict_eval": True}} if meta else {}), **entries}))
    return path


def entry(*candidates, **parts):
    return {"query": {"query_id": 1}, "pointer_candidates": list(candidates), **parts}


def codes(path):
    return {finding.code for finding in examine(read_target(path))}


def test_pointer_candidates_are_read_with_sources_picks_and_pools(tmp_path):
    first = entry(
        candidate([0, 1], 1.0, pointer_global=[88, 1203], beam_rank=0),
        candidate([2, 3], 0.0, pointer_global=[5, 7], gen_method="random", logprob_score=None),
        candidate_pool_ids=list(range(64)),
    )
    groups = read_target(write(tmp_path / "rl.json", {"4711": first})).groups
    assert (groups.queries, groups.members, groups.without_density, groups.pool) == (1, 2, 1, 64)
    assert groups.pick == 1.0
    assert groups.lengths == {2: 2}
    assert set(groups.sources) == {"beam", "random"}


def test_nearly_reward_free_data_are_called_flat(tmp_path):
    dull = {str(q): entry(*(candidate([q + c, c], 0.0, vqa_gt_prob=1e-8) for c in range(8))) for q in range(1, 300)}
    dull["300"] = entry(*(candidate([300 + c, c], float(c == 0), vqa_gt_prob=1e-8) for c in range(8)))
    found = examine(read_target(write(tmp_path / "rl.json", dull)))
    flat = next(finding for finding in found if finding.code == "flat_groups")
    assert flat.severity == "error"
    assert flat.evidence["flat"] == pytest.approx(299 / 300)
    assert {"gt_prob_empty", "never_right"} <= {finding.code for finding in found}


def test_labels_that_nobody_measured_are_found(tmp_path):
    mixed = {
        str(q): entry(
            candidate([q, 1], 1.0, gen_method="global_positive_transfer"),
            candidate([q, 2], 0.0, vqa_eval_mode="fallback"),
            candidate([q, 3], 0.0, eval_failed=True),
        )
        for q in range(10, 20)
    }
    path = write(tmp_path / "rl.json", mixed)
    groups = read_target(path).groups
    assert (groups.borrowed, groups.estimated, groups.unmeasured) == (10, 10, 10)
    assert {"unmeasured_labels", "missing_rewards"} <= codes(path)


def test_a_file_kept_by_outcome_is_found_and_an_unfiltered_one_is_not(tmp_path):
    def query(q, right):
        return entry(*(candidate([q, c], float(c < right)) for c in range(6)))

    kept = {str(q): query(q, 3) for q in range(100)}
    whole = {str(q): query(q, q % 7) for q in range(100)}
    assert "filtered_by_outcome" in codes(write(tmp_path / "kept.json", kept))
    assert "filtered_by_outcome" not in codes(write(tmp_path / "whole.json", whole))


def test_legacy_lists_end_with_the_query_and_their_scores_are_no_accuracies(tmp_path):
    legacy = {
        "4711": {"id_list": [[88, 1203, 4711], [88, 5, 4711], [640, 1203, 4711]], "score_list": [0.046, 0.0449, 0.037]}
    }
    path = write(tmp_path / "beams.json", legacy, meta=False)
    groups = read_target(path).groups
    assert groups.scale == "gain"
    assert groups.lengths == {2: 3}
    assert groups.oracle == 0.046
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
