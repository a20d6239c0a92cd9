"""Every check of the catalog fires on its own sick record and on no healthy one; the page says what the code says."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from doctor_cases import (
    GRPO,
    HEALTHY,
    SFT,
    SICK,
    WORLD,
    compared,
    lines,
    near,
    report,
)

from leverplus import catalog
from leverplus.evaluate.published import PublishedTable, compare_published
from leverplus.run.recipe import load_recipe
from leverplus_doctor.check import (
    ERROR,
    INFO,
    WARNING,
    Finding,
    Seen,
    check,
    examine,
    handbook,
    root_causes_first,
)
from leverplus_doctor.checks.ratio import nats_behind
from leverplus_doctor.checks.results import (
    below_training_free,
    beyond_trained_length,
    printed_differences,
)
from leverplus_doctor.command import overview
from leverplus_doctor.curves import Curve
from leverplus_doctor.records import Arm, Epoch, Published, Record, Series

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


def codes(record):
    return {finding.code for finding in examine(record)}


def the_check(code):
    return catalog.load(catalog.CHECKS, code, "check")


def test_every_check_fires_on_its_sick_record_with_all_that_a_finding_says():
    assert set(SICK) == set(catalog.CHECKS)
    for code, record in SICK.items():
        (finding,) = the_check(code)(record)
        assert finding.code == code
        assert finding.evidence, code
        assert "{" not in finding.title, code
        assert min(map(len, (finding.title, finding.cause, finding.cure))) > 10, code
        values = json.loads(json.dumps(finding.as_json()))
        assert [*values] == ["code", "severity", "title", "evidence", "cause", "try", "consequences", "fix"]  # fmt: skip
        assert set(finding.explains) <= set(catalog.CHECKS) - {code}


def test_no_check_fires_on_a_healthy_record():
    for name, record in HEALTHY.items():
        assert examine(record) == [], name


def test_a_fix_is_a_setting_that_a_recipe_accepts_and_that_mends_what_it_names():
    for code, record in SICK.items():
        (finding,) = the_check(code)(record)
        if finding.fix is None:
            continue
        settings = finding.fix["set"]
        stages = sorted({key.split(".")[0] for key in settings} & set(catalog.STAGES))
        overrides = [f"train.stages={json.dumps(stages)}"] if stages else []
        for key, value in settings.items():
            overrides.append(f"{key}={json.dumps(value)}")
        load_recipe("world", overrides)
        if not record.series and record.report is None and record.groups is None:
            mended = Record(settings={**record.settings, **settings})
            assert the_check(code)(mended) == [], code


def test_the_page_lists_exactly_the_checks_of_the_catalog_in_their_words() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.endswith(handbook())
    assert re.findall(r"^\| `(\w+)` \| \w+ \|", handbook(), re.M) == [*catalog.CHECKS]
    decisions = PAGE.with_name("decisions.md").read_text(encoding="utf-8")
    assert f"{len(catalog.CHECKS)} checks" in decisions


def test_a_check_is_a_function_with_its_text_in_its_docstring():
    @check
    def nameless(record):
        """{unnamed} of {runs:.1f} runs have {what}.

        Warning: nobody named them,
            which was easy
        Looks at: names
        Try: name them
        Explains: seed_missing
        """
        return not record.source and Seen(unnamed=3, runs=4.00000001, what="no name")

    assert nameless(Record(source="x")) == []
    (found,) = nameless(Record())
    assert (found.code, found.severity) == ("nameless", "warning")
    assert found.title == "3 of 4.0 runs have no name."
    assert found.evidence == {"unnamed": 3, "runs": 4.0}  # words are no evidence
    assert found.cause == "nobody named them, which was easy"
    assert (found.cure, found.explains) == ("name them", ("seed_missing",))
    assert nameless.looks_at == "names"


def finding(code, severity, *explains, about=(), source=""):
    about = frozenset(about)
    texts = {"title": "t", "evidence": {}, "cause": "c", "cure": "c"}
    return Finding(
        code, severity, **texts, explains=explains, about=about, source=source
    )


def test_a_cause_stands_before_what_it_explains_even_when_it_is_less_grave():
    symptom = finding("symptom", ERROR)
    cause = finding("cause", INFO, "symptom", "absent")
    first, second = root_causes_first([symptom, cause])
    assert (first.code, second.code) == ("cause", "symptom")
    assert (first.consequences, second.consequences) == (("symptom",), ())
    circle = [finding("a", WARNING, "b"), finding("b", ERROR, "a")]
    assert [own.code for own in root_causes_first(circle)] == ["b", "a"]
    unrelated = [finding("a", INFO), finding("b", ERROR), finding("c", WARNING)]
    assert [own.code for own in root_causes_first(unrelated)] == ["b", "c", "a"]


def test_findings_about_different_trainings_do_not_explain_each_other():
    cause = finding("cause", ERROR, "symptom", about=["plan 7"])
    for about, consequences in (
        (["plan 5"], ()),
        (["plan 7", "plan 8"], ("symptom",)),
        ([], ("symptom",)),
    ):
        symptom = finding("symptom", ERROR, about=about)
        assert root_causes_first([cause, symptom])[0].consequences == consequences
    elsewhere = finding("symptom", ERROR, source="another.log")
    assert root_causes_first([cause, elsewhere])[0].consequences == ()


def test_a_finding_in_a_training_says_the_stage_and_epoch_after_which_it_could_first_be_made():
    dead = {**GRPO, "update/param_rel": 1e-5, "picks/changed_frac": 0.0}
    broken = {**dead, "loss/total": None}
    stages = (lines("sft", SFT, SFT, SFT), lines("grpo", dead, dead, dead, broken))
    found = {}
    for own in examine(Record(settings=WORLD, series=stages)):
        found[own.code] = (own.evidence["stage"], own.evidence["epoch"])
    assert found == {
        "dead_updates": ("grpo", 2),  # two epochs make a rule, one does not
        "identical_picks": ("grpo", 3),
        "not_finite": ("grpo", 4),
    }
    stale = {**WORLD, "grpo.behaviour": "sft"}
    for record in (
        Record(settings=stale, series=(lines("grpo", GRPO),)),
        Record(series=(lines("grpo", *[{"adv/std": 0.006}] * 2, exact=False),)),
    ):
        (own,) = examine(record)
        assert "epoch" not in own.evidence  # of a recipe alone, or printed


def printed(rng, n, gain, shared):
    """Two arms on n items at four numbers of shots; with chance `shared` both see the same luck on an item."""
    left, right = {}, {}
    for shots in (1, 2, 3, 4):
        luck = rng.random(n)
        other = np.where(rng.random(n) < shared, luck, rng.random(n))
        left[shots] = float((luck < 0.5).mean())
        right[shots] = float((other < 0.5 + gain).mean())
    arms = (Arm("baseline", left, n, 1, True), Arm("plan 1", right, n, 1))
    return Record(published=Published(arms=arms))


def settled(record):
    rows = printed_differences(record.published)
    return [row.shots for row in rows if row.settled and row.shots != "mean"]


@pytest.mark.parametrize("shared", [0.5, 0.9])
def test_what_printed_accuracies_settle_is_right_against_simulations(shared):
    rng = np.random.default_rng(1)
    false = sum(bool(settled(printed(rng, 400, 0.0, shared))) for _ in range(150))
    assert false <= 13  # 5 % of 150 is 7.5; 13 has a chance of 3 % even then
    large, small = printed(rng, 3000, 0.12, shared), printed(rng, 200, 0.02, shared)
    assert len(settled(large)) == 4
    assert "difference_inside_noise" not in codes(large)
    assert "difference_inside_noise" in codes(small)


def test_the_doctor_and_compare_from_summary_say_the_same_of_a_table():
    """Document 000: only -11.9 at four shots is outside the noise whether 5 or 30 % of 200 items differ."""
    base = {1: 0.573, 2: 0.502, 3: 0.512, 4: 0.547}
    own = {1: 0.507, 2: 0.403, 3: 0.420, 4: 0.428}
    arms = (Arm("baseline", base, 200, 1, True), Arm("RCE-only", own, 200, 1))
    record = Record(published=Published(arms=arms))
    values = {}
    for name, row in (("baseline", base), ("RCE-only", own)):
        values[name] = {str(k): v for k, v in row.items()}
    report = compare_published(PublishedTable(200, "fraction", values))
    for row, other in zip(
        printed_differences(record.published), report.rows, strict=True
    ):
        assert (row.shots, row.diff) == (other.shots, other.diff)
        assert [not end.within_noise for end in other.assuming] == list(row.outside)
    assert settled(record) == ["4"]
    _, concluded, left = overview(record)
    assert concluded.startswith(
        "can be concluded about accuracy: RCE-only -11.9 points at 4 shots (n = 200), whether"
    )
    assert (
        "3 of 4 differences from a baseline, noise or not by the share of items" in left
    )
    assert "too small" not in left


def test_the_inverted_estimate_is_solved_for_the_nats_behind_it():
    for nats in (0.1, 1.0, 3.06, 6.0):
        assert nats_behind(math.exp(nats) - 1.0 - nats) == pytest.approx(nats)


def advantages(*rows, **settings):
    epochs = tuple(Epoch(place, row) for place, row in enumerate(rows, 1))
    return Record(series=(Series("grpo", epochs),), settings=settings)


def test_three_kept_members_of_two_levels_leave_the_print_the_doctor_looks_for():
    kept = np.array([1.0, 0.0, 0.0])
    z = (kept - kept.mean()) / kept.std(ddof=1)
    assert z.max() / z.std(ddof=1) == pytest.approx(1.155, abs=1e-3)
    five = [np.array([1.0] * k + [0.0] * (5 - k)) for k in (1, 2)]
    ratios = [(v.max() - v.mean()) / v.std(ddof=1) for v in five]
    assert np.mean(ratios) == pytest.approx(1.44, abs=0.01)
    rows = []
    for ratio in (z.max(), np.mean(ratios)):
        rows.append({"adv/std": 0.006, "adv/max": 0.006 * ratio})
    (finding,) = examine(advantages(*rows))
    assert finding.code == "advantage_std_tiny"
    assert "which fits" in finding.cause


@pytest.mark.parametrize("spread", [0.03, 0.2])
def test_a_small_spread_of_rewards_that_were_only_centred_is_no_missing_signal(spread):
    named = {"top_k_before_baseline", "advantage_std_tiny"}
    whole = {"grpo.topk_before_advantage": False}
    rows = [{"adv/std": spread, "frac_reward_zero_std": 0.02}] * 2
    assert not codes(advantages(*rows, **whole)) & named
    assert codes(advantages(*rows)) & named
    flat = [{"adv/std": 0.03, "frac_reward_zero_std": 0.97}] * 2
    assert "advantage_std_tiny" in codes(advantages(*flat, **whole))


FAR = near(-0.2, -0.3, -0.1, 0.001)


@pytest.mark.parametrize(
    ("rows", "severity"),
    [
        ([near(-0.076, -0.138, -0.014, 0.016)], "error"),  # below after correction
        ([near(-0.076, -0.138, -0.014, 0.4)], "warning"),  # one of many comparisons
        ([near(-0.05, -0.1, 0.0, 0.5), near(0.02, -0.1, 0.1, 1.0, 2)], "warning"),
        ([near(-0.02, -0.1, 0.06, 1.0), near(0.03, -0.1, 0.1, 1.0, 2)], None),  # above
        ([{**FAR, "arm": "learned_auto"}], None),
        ([{**FAR, "baseline": "label_vote"}], None),  # chooses no demonstrations
    ],
)
def test_a_selector_below_the_nearest_demonstrations_is_named_with_its_rival(
    rows, severity
):
    found = below_training_free(report(*rows))
    assert [own.severity for own in found] == ([severity] if severity else [])
    assert all("nearest by both" in own.title for own in found)
    if severity == "warning":
        assert "cannot tell from noise" in found[0].title


def test_the_rival_is_the_one_that_is_furthest_above():
    (finding,) = below_training_free(
        report(near(-0.02, -0.1, 0.05, 1.0), {**FAR, "baseline": "mmr"})
    )
    assert "(MMR)" in finding.title


@pytest.mark.parametrize(("gain", "said"), [(0.01, True), (0.04, True), (0.15, False)])
def test_a_gain_that_lasts_beyond_the_trained_length_is_no_warning_though_few_items_hide_it(
    gain, said
):
    rows = (compared(0.1, 0.02, 0.18), compared(gain, gain - 0.2, gain + 0.2, 4))
    settings = {**WORLD, "score.search": "dense"}
    found = beyond_trained_length(report(*rows, settings=settings))
    assert bool(found) is said
    for own in found:
        assert own.title.startswith(
            f"Trained on 1 shot; at 4 it is {100 * gain:+.1f} points from random ("
        )


def test_a_straight_line_has_no_noise_and_a_zigzag_has():
    line = Curve(tuple(0.1 * n for n in range(20)))
    assert line.noise == pytest.approx(0.0, abs=1e-12)
    assert line.rises
    zigzag = Curve(tuple(0.5 + 0.2 * (-1) ** n for n in range(20)))
    # |a - 2b + c| = 0.8 everywhere
    assert zigzag.noise == pytest.approx(1.4826 * 0.8 / 6**0.5)
    assert not zigzag.moves
