"""Every run of the gallery shows the findings it stands for, and healthy runs show none."""

from __future__ import annotations

import pytest

from leverplus import catalog
from leverplus.run.recipe import recipe_names
from leverplus.run.sweep import Workshop
from leverplus_lab.gallery import QUICK, SMALL, case, cases, run_case

pytestmark = pytest.mark.slow

SHORT = (*SMALL, "sft.epochs=12")
SIZES = (*SHORT, "sft.batch_size=16")
WORLD = (*SIZES, "eval.shots=[1, 2]", "eval.items=80")
"""The oracle asks most of what this recipe asks: for every item, and at every number of shots as much again."""
SICKLY = (*QUICK, "score.queries=48", "score.dev_queries=12")
"""Most mistakes show at fewer queries than QUICK has; not a weight that needs steps to reach its limit."""
NEEDS_STEPS = {"gallery/beta_on_rails"}
HEALTHY = ("gallery/healthy", "gallery/healthy_listwise", "world")
SICK = [name for name in recipe_names("gallery") if name not in HEALTHY]
"""Their recipes are read by the tests: read here, every process that collects tests would read all of them."""
PRINTED = "speaks about printed tables and texts"
LOGS = "a training log of another library, see tests/doctor/corpus, or hand-made in tests/doctor"
FILE = "speaks about RL files of the earlier code; the scorer cannot make such data"
NOISE = "needs a fall of two standard errors on dev or test, more than small runs show every time"
GUARDED = "what it looks for is refused or cannot happen in a run"
PROBED = "no setting makes it; tests/doctor gives the doctor what it would measure"
ONLY_IN_RECORDS = {
    "accuracy_falls_with_n": PRINTED,
    "claimed_best_is_not": PRINTED,
    "comparison_without_n": PRINTED,
    "conditions_differ": PRINTED,
    "identical_rows": PRINTED,
    "learning_rate_without_signal": PRINTED,
    "same_run_twice": PRINTED,
    "winners_curse": PRINTED,
    "gt_prob_empty": FILE,
    "pick_no_better_than_group": FILE,
    "source_tells_label": FILE,
    "difference_inside_noise": NOISE,
    "more_shots_hurt": NOISE,
    "never_right": NOISE,
    "overfits": NOISE,
    "reward_falls": NOISE,
    "worse_than_random": NOISE,
    "below_training_free": NOISE,
    "beyond_trained_length": "on this world a selector that learnt one demonstration chooses later ones well too",
    "entropy_collapsed": "logits are bounded, and no gallery run trains long enough",
    "checkpoint_not_whole": PROBED,
    "pool_builder_differs": PROBED,
    "hub_demonstrations": PROBED,
    "query_ignored": PROBED,
    "query_leaks": PROBED,
    "split_overlap": PROBED,
    "unmeasured_labels": PROBED,
    "missing_anchors": GUARDED,
    "not_finite": GUARDED,
    "scores_not_reproducible": GUARDED,
    "seed_missing": GUARDED,
    "shots_identical": GUARDED,
    "kl_explodes": LOGS,
    "learning_rate_too_large": LOGS,
    "length_drifts": LOGS,
    "resumed_without_optimiser": LOGS,
    "reward_constant": LOGS,
    "reward_hacked": LOGS,
    "seeds_outweigh_gain": LOGS,
}
"""Checks that no run of the gallery shows at these sizes, and why; they have a record of their own in tests/doctor."""


class Hall:
    """The gallery's runs on one store; a recipe is run when it is first asked for, whatever its name."""

    def __init__(self, folder):
        self.workshop = Workshop(folder, folder / "scores.db")
        self.by_hash = {}

    @property
    def like(self):
        return self.outcome("gallery/healthy").run if self.by_hash else None

    def outcome(self, name):
        sizes = WORLD if name == "world" else SIZES
        if name in SICK:
            sizes = QUICK if name in NEEDS_STEPS else SICKLY
        own = case(name, sizes)
        return self.run_case(own, self.workshop, None, evaluate=own.needs_test)

    def run_case(self, own, workshop, like, *, evaluate):
        """The outcome of a recipe: training it again would give the same bytes, as tests/test_pipeline.py shows."""
        if own.recipe.hash not in self.by_hash:
            self.by_hash[own.recipe.hash] = run_case(
                own, workshop, like or self.like, evaluate=evaluate
            )
        return self.by_hash[own.recipe.hash]


@pytest.fixture(scope="module")
def hall(tmp_path_factory):
    made = Hall(tmp_path_factory.mktemp("gallery"))
    made.outcome("gallery/healthy")
    return made


def test_there_are_at_least_twenty_sick_runs_and_every_check_is_shown_by_one_or_by_a_record():
    assert len(SICK) >= 20
    assert {own.name for own in cases() if own.healthy} == set(HEALTHY) - {"world"}
    shown = {code for own in cases() for code in own.codes}
    assert shown | set(ONLY_IN_RECORDS) == set(catalog.CHECKS)
    assert not shown & set(ONLY_IN_RECORDS)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_has_no_error_and_no_warning(hall, name):
    outcome = hall.outcome(name)
    assert outcome.stopped == ""
    # trained for seconds, it may well lie below a way of choosing that needs no training: an outcome, not an illness
    ill = [
        f
        for f in outcome.findings
        if f.severity != "info" and f.code != "below_training_free"
    ]
    assert [(f.code, f.title) for f in ill] == []


@pytest.mark.parametrize("name", SICK)
def test_a_sick_run_shows_what_it_stands_for(hall, name):
    assert set(case(name).codes) - hall.outcome(name).codes == set()
