"""Root causes come first, and only what concerns the same training is linked."""

from __future__ import annotations

from doctor_cases import GRPO, SFT, WORLD, lines

from leverplus.doctor.examine import examine
from leverplus.doctor.findings import ERROR, INFO, WARNING, Text, root_causes_first
from leverplus.doctor.records import Record


def text(code, severity, *explains):
    return Text(code, severity, "cause", "evidence", "cure", explains)


def test_a_cause_stands_before_what_it_explains_even_when_it_is_less_grave():
    symptom = text("symptom", ERROR).found("s", {"x": 1.0})
    cause = text("cause", INFO, "symptom", "absent").found("c", {"x": 1.0})
    first, second = root_causes_first(symptom + cause)
    assert (first.code, second.code) == ("cause", "symptom")
    assert first.consequences == ("symptom",)
    assert second.consequences == ()


def test_among_unrelated_findings_the_graver_stands_first():
    found = [
        text(code, severity).found("t", {"x": 1})[0] for code, severity in (("a", INFO), ("b", ERROR), ("c", WARNING))
    ]
    assert [finding.code for finding in root_causes_first(found)] == ["b", "c", "a"]


def test_a_circle_of_explanations_is_cut_and_nothing_is_lost():
    found = text("a", WARNING, "b").found("a", {}) + text("b", ERROR, "a").found("b", {})
    assert [finding.code for finding in root_causes_first(found)] == ["b", "a"]


def test_findings_about_different_trainings_do_not_explain_each_other():
    cause = text("cause", ERROR, "symptom").found("c", {}, about=["plan 7"])
    other = text("symptom", ERROR).found("s", {}, about=["plan 5"])
    assert root_causes_first(cause + other)[0].consequences == ()
    same = text("symptom", ERROR).found("s", {}, about=["plan 7", "plan 8"])
    assert root_causes_first(cause + same)[0].consequences == ("symptom",)
    whole = text("symptom", ERROR).found("s", {})
    assert root_causes_first(cause + whole)[0].consequences == ("symptom",)


def evidence_of(record):
    return {finding.code: finding.evidence for finding in examine(record)}


def test_a_finding_in_a_training_says_the_stage_and_epoch_after_which_it_could_first_be_made():
    dead = {**GRPO, "update/param_rel": 1e-5, "picks/changed_frac": 0.0}
    broken = {**GRPO, "update/param_rel": 1e-5, "picks/changed_frac": 0.0, "loss/total": None}
    stages = (lines("sft", SFT, SFT, SFT), lines("grpo", dead, dead, dead, broken))
    found = evidence_of(Record(settings=WORLD, series=stages))
    assert {code: (e["stage"], e["epoch"]) for code, e in found.items()} == {
        "dead_updates": ("grpo", 2),  # two epochs make a rule, one does not
        "identical_picks": ("grpo", 3),
        "not_finite": ("grpo", 4),
    }


def test_what_a_recipe_alone_shows_and_what_a_text_prints_has_no_place_on_the_curves():
    sick = Record(settings={**WORLD, "grpo.behaviour": "sft"}, series=(lines("grpo", GRPO),))
    assert "epoch" not in evidence_of(sick)["stale_behaviour"]
    printed = Record(series=(lines("grpo", {"adv/std": 0.006}, {"adv/std": 0.006}, exact=False),))
    assert "epoch" not in evidence_of(printed)["advantage_std_tiny"]
