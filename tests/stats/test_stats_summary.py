"""What two published accuracies can show, over a range of assumed discordance."""

import pytest

from leverplus.errors import EvaluationError
from leverplus.stats import Changes, compare_summary, mcnemar_test, minimum_detectable_effect, plan_n


def test_a_gain_of_a_third_of_a_point_on_800_items_is_noise_at_both_ends() -> None:
    rows = compare_summary(800, 0.4836, 0.4798)
    assert (rows[0].discordance, rows[-1].discordance) == (0.05, 0.30)
    assert all(row.within_noise and row.p_value > 0.5 for row in rows)
    # se = sqrt((0.05 - 0.0038^2) / 800)
    assert rows[0].se == pytest.approx(0.0079046, abs=1e-7)
    assert rows[0].ci95 == pytest.approx((0.0038 - 1.96 * 0.0079046, 0.0038 + 1.96 * 0.0079046), abs=1e-5)
    # (1.96 + 0.84)^2 * discordance / 0.0038^2
    assert rows[0].n_needed == pytest.approx(27_180, rel=0.03)
    assert rows[-1].n_needed == plan_n(0.0038, Changes(0.30))


def test_a_difference_can_be_clear_at_one_end_and_noise_at_the_other() -> None:
    rows = compare_summary(800, 0.53, 0.50)
    assert not rows[0].within_noise
    assert rows[-1].within_noise


def test_no_number_of_items_settles_equal_accuracies() -> None:
    row = compare_summary(800, 0.5, 0.5)[0]
    assert row.n_needed is None
    assert row.p_value == 1.0


def test_arms_differ_on_at_least_as_many_items_as_their_accuracies_do() -> None:
    assert [row.discordance for row in compare_summary(100, 0.62, 0.5)] == [0.15, 0.20, 0.25, 0.30]
    with pytest.raises(EvaluationError, match=r"at least 40.0% of the items differ"):
        compare_summary(100, 0.9, 0.5)


def test_percentages_and_other_bad_numbers_are_refused() -> None:
    with pytest.raises(EvaluationError, match=r"accuracy must lie in \[0, 1\]; got 48.3, divide percentages by 100"):
        compare_summary(800, 48.3, 0.4)
    with pytest.raises(EvaluationError, match="at least 2 items; got 1"):
        compare_summary(1, 0.5, 0.4)
    with pytest.raises(EvaluationError, match=r"in \(0, 1\]; got 5"):
        compare_summary(800, 0.5, 0.4, discordances=[5])


def test_rows_can_be_written_as_json() -> None:
    assert compare_summary(800, 0.5, 0.49)[0].as_json()["ci95"][0] < 0.0


def test_a_row_by_hand_and_at_the_ends_of_what_is_possible() -> None:
    row = compare_summary(200, 0.6, 0.5, discordances=[0.2])[0]
    se = ((0.2 - 0.01) / 200) ** 0.5
    assert (row.n, row.diff, row.se) == pytest.approx((200, 0.1, se))
    assert row.ci95 == pytest.approx((0.1 - 1.959964 * se, 0.1 + 1.959964 * se), abs=1e-7)
    assert row.p_value == pytest.approx(mcnemar_test(30, 10))
    assert row.mde80 == minimum_detectable_effect(200, Changes(0.2))
    assert row.n_needed == plan_n(0.1, Changes(0.2))
    assert compare_summary(2, 1.0, 0.0, discordances=[1.0])[0].ci95 == (1.0, 1.0)
    assert compare_summary(2, 0.0, 0.5, discordances=[1.0])[0].ci95[0] == -1.0
    assert compare_summary(2, 0.5, 0.0, discordances=[1.0])[0].ci95[1] == 1.0
    assert [own.discordance for own in compare_summary(100, 0.6, 0.5)] == [0.10, 0.15, 0.20, 0.25, 0.30]
    with pytest.raises(EvaluationError):
        compare_summary(800, 0.5, 0.4, discordances=[0.0])
    for accuracy, baseline in ((-0.1, 0.5), (0.5, 1.1)):
        with pytest.raises(EvaluationError):
            compare_summary(800, accuracy, baseline)
