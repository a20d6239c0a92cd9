"""What the page says about lists asked live is what the kept answers say, and the parts of it are right by hand."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.benchmarking import load_benchmark

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def keeping() -> ModuleType:
    return load_benchmark("real_lists_keep")


@pytest.fixture(scope="module")
def parts(keeping: ModuleType) -> ModuleType:
    return load_benchmark("real_lists_shares")


@pytest.fixture(scope="module")
def results(keeping: ModuleType, parts: ModuleType) -> Any:
    module = load_benchmark("real_lists_report")
    kept = keeping.read_kept()
    return module.Results(kept, module.ways_of(kept))


@pytest.fixture(scope="module")
def page() -> str:
    whole = (ROOT / "docs" / "recorded.md").read_text(encoding="utf-8")
    start = whole.index("## OK-VQA, lists of 4 to 32 asked live")
    return whole[start : whole.index("\n## ", start)]


def test_the_page_has_every_arm_as_it_was_answered(results, page) -> None:
    assert len(results.ways) == 30
    for way in results.ways:
        known = {"free": "", "labels": "labels", "calls": "answers"}[way.kind]
        figures = f"{100 * np.nanmean(way.accuracy):.2f} | {np.nanmean(way.gt_prob):.4f}"
        assert f"| {way.shots} | {way.arm} | {known} | {way.asked.sum():,} | {figures} |" in page


def test_the_page_has_the_answers_of_majorities_and_what_other_folds_choose(results, page) -> None:
    for name, (count, accuracy) in results.committees().items():
        assert f"| {name} | {count} | {100 * accuracy.mean():.2f} |" in page
    assert set(results.chosen["learned from answers"][1]) == {"fixed by effects, then nearest, 16"}
    assert set(results.chosen["all rivals"][1]) == {"vote + similarity, 8"}
    assert f"have {100 * results.chosen['rivals without labels'][0].mean():.1f}, less than most" in page


def test_the_page_has_the_shares_of_variance_and_what_was_promised(results, parts, page) -> None:
    kept = results.kept
    eight, sixteen = (kept.accuracy[kept.drawn(shots)] for shots in (8, 16))
    cells = [f"{100 * own.question / own.total:.1f} %" for own in map(parts.shares, (eight, sixteen))]
    assert f"| question | {' | '.join(cells)} |" in page
    pairs = [f"{100 * parts.overlap(kept, shots).member_share(shots):.0f} %" for shots in (8, 16)]
    assert f"which demonstrations are shown, for this question | {' | '.join(pairs)} |" in page
    spread, error = (100 * 16 * part / parts.shares(sixteen).within for part in parts.member_spread(kept, 16))
    assert f"| {abs(spread):.1f} % ({error:.1f}) |" in page
    best, mean, worst = (100 * float(own.mean()) for own in (eight.max(axis=1), eight, eight.min(axis=1)))
    assert f"six lists has {best:.2f}, the mean {mean:.2f}, the worst {worst:.2f}" in page
    ridge = parts.foreseen(kept.expected[kept.drawn(8)], eight)
    assert f"+{100 * ridge.got:.2f} (standard error {100 * ridge.got_error:.2f})" in page
    assert f"+{100 * ridge.promised:.2f}; slope {ridge.slope:.2f}, error {ridge.slope_error:.2f}" in page


def test_the_table_and_the_picture_of_promises_are_those_of_the_kept_values(results, page) -> None:
    kept = results.kept
    arms = ("learned", "learned without labels", "MMR + effects", "nearest by question", "MMR + company")
    for arm, shots in [(arm, 8) for arm in arms] + [("learned", 16), ("learned without effects", 16)]:
        rows, rivals = kept.rows_of(arm, shots), kept.rows_of("vote + similarity", shots)
        columns = (kept.promised, kept.accuracy, kept.gt_prob)
        cells = [f"{100 * (column[rows].mean() - column[rivals].mean()):+.2f}" for column in columns]
        assert f"| {arm} | {shots} | 5,045 | {' | '.join(cells)} |" in page
    picture = (ROOT / "docs" / "pictures" / "promises.svg").read_text(encoding="utf-8")
    assert load_benchmark("draw").draw("promises.svg") == picture


def test_no_list_shows_an_item_of_its_questions_fold_or_one_item_twice(results) -> None:
    kept = results.kept
    shown = np.append(kept.fold, -1)[kept.demos]
    assert not (shown == kept.fold[kept.query][:, None]).any()
    ordered = np.sort(kept.demos, axis=1)
    assert not ((np.diff(ordered, axis=1) == 0) & (ordered[:, 1:] >= 0)).any()


@pytest.mark.slow
def test_the_page_has_every_comparison_with_its_interval_and_verdict(results, page) -> None:
    told = load_benchmark("real_lists_report").told
    for name, own in results.comparisons().items():
        verdict = "within" if own.within_noise else "above" if own.diff > 0 else "below"
        assert f"| {name} | {told(own)} | {own.p_adjusted:.2g} | {verdict} |" in page


def test_tokens_of_a_shared_beginning_count_once(results) -> None:
    module = load_benchmark("real_lists_report")
    way = next(way for way in results.ways if way.name == "fixed by effects, then nearest, 16")
    whole, fresh = module.tokens_of(way, results.kept)
    assert (round(whole), round(fresh)) == (442, 232)
    lengths, lists = results.kept.lengths, results.kept.demos[way.rows, :16]
    tailored = lengths[lists[:, 8:], 0].sum(axis=1).mean() + lengths[results.kept.query[way.rows], 1].mean()
    assert fresh == pytest.approx(tailored, abs=5.0)  # the five fixed parts, one for each fold, and rare common nearest


def kept_of(keeping: ModuleType, tmp_path: Path, rows: list[tuple[str, int, int, list[int], float, str]]) -> Any:
    """Written and read again: (arm, question, number, demonstrations, accuracy, answer)."""
    from real_lists_ask import Record

    records = [
        Record("", arm, len(demos), 0, query, number, demos, accuracy, 0.25, answer, 0)
        for arm, query, number, demos, accuracy, answer in rows
    ]
    values = {name: np.array([0.0125] * (len(rows) - 1) + [np.nan]) for name in ("promised", "expected")}
    path = tmp_path / "lists.parquet"
    keeping.write_kept(path, records, values, {"lengths": [[1, 2]], "learnt": [{"fold": 0}]})
    return keeping.read_kept(path)


def test_what_is_written_is_read_back(keeping, tmp_path: Path) -> None:
    rows = [
        ("company", 3, 0, [7, 9], 0.6, "cat"),
        ("learned", 3, 0, [5], 1.0, "dog"),
        ("a", 4, 1, [1, 2, 3], 0.0, "cat"),
    ]
    kept = kept_of(keeping, tmp_path, rows)
    assert kept.arm.tolist() == ["company", "learned", "a"]
    assert [own[own >= 0].tolist() for own in kept.demos] == [[7, 9], [5], [1, 2, 3]]
    assert kept.accuracy == pytest.approx([0.6, 1.0, 0.0])
    assert kept.answer[0] == kept.answer[2] != kept.answer[1]
    assert kept.promised[:2] == pytest.approx([0.0125, 0.0125])
    assert np.isnan(kept.promised[2])
    assert kept.shots.tolist() == [2, 1, 3]


def test_the_majority_answers_and_the_first_of_equally_frequent_ones(keeping, parts, tmp_path: Path) -> None:
    said = {0: ["x", "y", "y"], 1: ["x", "y", "z"]}
    worth = {"x": 0.0, "y": 1.0, "z": 0.6}
    rows = [("a", q, n, [9], worth[word], word) for q, own in said.items() for n, word in enumerate(own)]
    kept = kept_of(keeping, tmp_path, rows)
    columns = [np.array([0, 3]), np.array([1, 4]), np.array([2, 5])]
    assert parts.majority(kept, columns).tolist() == [1.0, 0.0]


def test_variances_worked_by_hand(parts) -> None:
    found = parts.shares(np.array([[0.0, 1.0], [1.0, 1.0]]))  # within 0.5 and 0; means 0.5 and 1
    assert (found.within, found.question) == pytest.approx((0.25, 0.125 - 0.125))


def test_lists_that_are_sums_of_their_members_differ_by_those_not_shared(keeping, parts, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for query in range(300):
        worth = dict(enumerate(rng.normal(0.0, 0.5, 10)))
        for number in range(6):
            demos = [int(d) for d in rng.permutation(10)[:4]]
            rows.append(("a", query, number, demos, sum(worth[d] for d in demos) + rng.normal(0.0, 0.3), "x"))
    found = parts.overlap(kept_of(keeping, tmp_path, rows), 4)
    assert found.member == pytest.approx(0.25, rel=0.15)
    assert found.rest == pytest.approx(0.09, abs=0.05)
    assert found.member_share(4) == pytest.approx(1.0 / 1.09, abs=0.05)


def test_a_value_that_says_twice_what_is_true_has_slope_one_half(parts) -> None:
    rng = np.random.default_rng(1)
    truth = rng.normal(0.0, 0.1, (4000, 5))
    found = parts.foreseen(2 * truth, truth + rng.normal(0.0, 0.3, truth.shape))
    assert found.slope == pytest.approx(0.5, abs=0.03)
    assert found.spread == pytest.approx(0.1, rel=0.1)
    assert found.known == pytest.approx(0.1, abs=0.02)
    assert found.promised == pytest.approx(2 * found.got, rel=0.1)
