"""Every check of the catalog fires on its own sick record and on no healthy one."""

from __future__ import annotations

import json
import math

import pytest
from doctor_cases import HEALTHY, SICK

from leverplus import catalog
from leverplus.doctor.examine import examine, text_of
from leverplus.recipe.recipe import load_recipe


def test_there_are_at_least_forty_checks_and_each_has_a_sick_case():
    assert len(catalog.CHECKS) >= 40
    assert set(SICK) == set(catalog.CHECKS)


@pytest.mark.parametrize("code", catalog.CHECKS)
def test_a_check_fires_on_its_sick_record(code):
    found = catalog.load(catalog.CHECKS, code, "check")(SICK[code])
    assert [finding.code for finding in found] == [code]
    (finding,) = found
    assert finding.evidence
    assert finding.severity in ("info", "warning", "error")
    assert finding.title
    assert finding.cause
    assert finding.cure


@pytest.mark.parametrize("name", HEALTHY)
def test_no_check_fires_on_a_healthy_record(name):
    assert examine(HEALTHY[name]) == []


@pytest.mark.parametrize("code", catalog.CHECKS)
def test_what_a_check_explains_exists(code):
    assert set(text_of(code).explains) <= set(catalog.CHECKS) - {code}


@pytest.mark.parametrize("code", catalog.CHECKS)
def test_a_finding_is_json_of_the_documented_shape(code):
    values = json.loads(json.dumps(examine(SICK[code])[0].as_json()))
    assert list(values) == ["code", "severity", "title", "evidence", "cause", "try", "consequences", "fix"]
    assert all(isinstance(value, (int, float, str)) for value in values["evidence"].values())


@pytest.mark.parametrize("code", catalog.CHECKS)
def test_a_fix_is_a_setting_that_a_recipe_accepts_and_that_mends_what_it_names(code):
    (finding,) = catalog.load(catalog.CHECKS, code, "check")(SICK[code])
    if finding.fix is None:
        return
    settings = finding.fix["set"]
    stages = sorted({key.split(".")[0] for key in settings} & set(catalog.STAGES))
    overrides = [f"train.stages={json.dumps(stages)}"] if stages else []
    load_recipe("world", [*overrides, *(f"{key}={json.dumps(value)}" for key, value in settings.items())])
    record = SICK[code]
    if not record.series and record.report is None and record.groups is None:
        mended = type(record)(settings={**record.settings, **settings})
        assert catalog.load(catalog.CHECKS, code, "check")(mended) == []


def test_a_term_that_takes_the_gradient_is_named_with_the_setting_that_weighs_it():
    (finding,) = catalog.load(catalog.CHECKS, "gradient_drowned", "check")(SICK["gradient_drowned"])
    assert finding.evidence["share"] == pytest.approx(0.02 / 1.42, rel=1e-4)
    assert finding.evidence["term"] == "kl"
    assert finding.fix == {"set": {"grpo.kl_beta": 0.01}}


def test_a_later_step_is_measured_against_the_choices_that_are_left():
    (finding,) = catalog.load(catalog.CHECKS, "later_steps_uniform", "check")(SICK["later_steps_uniform"])
    assert finding.evidence["place"] == 2
    assert finding.evidence["later"] == pytest.approx(4.12 / math.log(63), rel=1e-5)
    assert finding.evidence["first"] == pytest.approx(1.9 / math.log(64), rel=1e-5)
