"""Before anything is scored: rewards a backend cannot serve are refused, and a self-test is paid for once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_task import TinyBackend, open_scorer

from leverplus import catalog
from leverplus.errors import ScoringError
from leverplus.scoring import copying, selftest
from leverplus.scoring.trust import FILE, TRAITS, WatchedBackend, require_offered, require_trust

NEED = {"gt_prob", "choice_prob", "hard_plus_gtprob", "hard01_plus_gtprob", "hard01_plus_gtprob_separated"}


class Mute(TinyBackend):
    weighs = False


@pytest.mark.parametrize("mode", sorted(catalog.REWARDS))
def test_a_reward_that_needs_log_probabilities_is_refused_where_there_are_none(mode) -> None:
    require_offered(TinyBackend(), [mode], "gain")
    try:
        require_offered(Mute(), [mode], "gain")
    except ScoringError as error:
        said = str(error)
        refused = True
    else:
        said, refused = "", False
    assert mode not in NEED or refused
    assert mode not in {"soft_only", "hard_only", "hard_plus_soft", "expected_accuracy"} or not refused
    assert not refused or f'reward.mode = "{mode}" needs log-probabilities' in said
    assert not refused or 'set reward.mode = "soft_only"' in said


def test_one_of_several_components_is_named() -> None:
    require_offered(Mute(), ["soft_only", "hard_only"], "gain")
    with pytest.raises(ScoringError, match=r'reward\.components with "gt_prob" needs log-probabilities'):
        require_offered(Mute(), ["soft_only", "gt_prob"], "gain")


def test_a_self_test_that_was_passed_is_kept_by_all_that_could_change_it(tmp_path: Path) -> None:
    def trust(trained: bool = False) -> list[tuple[str, int, int]]:
        scorer = open_scorer(tmp_path / "scores.db", TinyBackend())
        told: list[tuple[str, int, int]] = []
        require_trust(scorer, tmp_path, trained=trained, progress=lambda *line: told.append(line))
        assert bool(told) == bool(scorer.backend.asked)
        return told

    first = trust()
    assert first, "asked, and shown as it goes on"
    assert first[-1][1] == first[-1][2]
    assert all(done < total for _, done, total in first[:-1])
    assert trust() == []
    kept = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert len(kept) == 1
    with (tmp_path / FILE).open("a") as file:
        file.write('{"key": "half of a li')
    assert trust() == [], "a line that was cut by a kill does no harm"
    (tmp_path / FILE).write_text(json.dumps({**kept[0], "key": "of another model"}) + "\n")
    assert trust() != []


def test_a_failed_self_test_is_not_kept_and_its_replies_are_given_up(tmp_path: Path) -> None:
    class Unsteady(TinyBackend):
        judgements = 0

        def answer(self, requests):
            replies = super().answer(requests)
            return [replace(reply, logprobs=tuple(v - len(self.batches) for v in reply.logprobs)) for reply in replies]

        def judged(self) -> None:
            self.judgements += 1

    scorer = open_scorer(tmp_path / "scores.db", Unsteady())
    with pytest.raises(ScoringError, match="failed its self-test"):
        require_trust(scorer, tmp_path, trained=False, progress=lambda *_: None)
    assert scorer.backend.judgements == 1
    assert not (tmp_path / FILE).exists()


def test_a_self_test_that_the_server_cut_short_keeps_its_replies(tmp_path: Path) -> None:
    class Away(TinyBackend):
        judgements = 0

        def answer(self, requests):
            if len(self.batches) == 2:
                raise ScoringError("the server stays away")
            return super().answer(requests)

        def judged(self) -> None:
            self.judgements += 1

    scorer = open_scorer(tmp_path / "scores.db", Away())
    with pytest.raises(ScoringError, match="stays away"):
        require_trust(scorer, tmp_path, trained=False, progress=lambda *_: None)
    assert scorer.backend.judgements == 0


def test_what_a_backend_says_of_itself_reaches_the_self_test() -> None:
    class Open(TinyBackend):
        tolerance, unsteady, fixed_answers = 0.25, "ask one at a time", True

        def answer_span(self, request, reference):
            return reference

        def prompt_text(self, request):
            return ""

    def ignore(*_: object) -> None: ...

    protocols = [
        value
        for module in (selftest, copying)
        for value in vars(module).values()
        if getattr(value, "_is_protocol", False) and value.__module__ == module.__name__
    ]
    assert protocols
    for protocol in protocols:
        assert isinstance(Open(), protocol), f"{protocol.__name__} is new: add it here and to TRAITS"
        assert isinstance(WatchedBackend(Open(), ignore), protocol)
        assert not isinstance(WatchedBackend(TinyBackend(), ignore), protocol)
    assert WatchedBackend(Open(), ignore).tolerance == 0.25
    assert set(TRAITS) <= set(vars(WatchedBackend(Open(), ignore)))
