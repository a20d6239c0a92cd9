from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from tiny_task import WORDS, TinyBackend, TinyTask

from leverplus.backends.base import Reply, Request
from leverplus.backends.world import WorldBackend
from leverplus.errors import ScoringError
from leverplus.scoring.copying import FALSE_REFUSALS, Copying, KnowsFewAnswers, _agreement, _at_most, _effect
from leverplus.scoring.selftest import self_test
from leverplus.scoring.trust import WatchedBackend
from leverplus.tasks.world import WorldTask


@pytest.fixture(scope="module")
def task() -> WorldTask:
    return WorldTask()


@pytest.fixture
def world(task) -> WorldBackend:
    return WorldBackend(task)


def test_the_world_passes_to_a_ten_thousandth(task, world) -> None:
    found = self_test(task, world, tolerance=1e-4)
    assert found.prompts == 32
    assert found.spans_checked == 64
    assert found.batch_gap < 1e-4
    assert found.right_over_wrong is not None
    assert found.right_error is not None
    assert found.right_over_wrong > 3 * found.right_error
    assert found.picture_effect is not None
    assert found.picture_effect > 0.1


def test_a_backend_without_log_probabilities_is_judged_by_its_answers(task, world, monkeypatch) -> None:
    answer = world.answer
    monkeypatch.setattr(world, "answer", lambda requests: [replace(r, logprobs=None) for r in answer(requests)])
    found = self_test(task, world)
    assert found.right_over_wrong is None
    assert found.picture_effect is not None
    assert 0.2 < found.picture_effect <= 1.0


def test_a_model_that_cannot_see_fails(task, world, monkeypatch) -> None:
    monkeypatch.setattr(world.model, "see", lambda pictures: torch.zeros(len(pictures), 2, 192))
    with pytest.raises(ScoringError, match="does not see them"):
        self_test(task, world)


def test_a_model_that_does_not_read_its_prompt_fails() -> None:
    with pytest.raises(ScoringError, match=r"an answer shown beside the very question gains .* nats on another answer"):
        self_test(TinyTask(), TinyBackend())


class Copies(TinyBackend):
    """Knows nothing and repeats what was shown beside the same question, to the end."""

    def _reply(self, prompt, request) -> Reply:
        shown = {demo.question: demo.answer for demo in request.demos}
        raw = shown.get(request.query.question, "none")
        logprobs = tuple(-0.5 if reference == raw else -5.0 for reference in request.references)
        return Reply(raw, logprobs, 1)


def test_a_model_that_does_not_know_the_task_passes_with_a_note() -> None:
    found = self_test(TinyTask(), Copies())
    assert found.knows_task is False
    assert found.note == (
        "note: with random demonstrations the model does not know this task (right answers are 0.00 +- 0.00 nats "
        "likelier than those of other items); chosen ones may help"
    )
    assert found.copying == Copying(9.0, 0.0, 1.0, 1.0, 1.0, 1.0)


def test_a_model_that_knows_the_task_gets_no_note(task, world) -> None:
    found = self_test(task, world, queries=16)
    assert found.knows_task
    assert found.note == ""


def test_a_backend_that_writes_one_thing_and_weighs_another_fails() -> None:
    class Contrary(Copies):
        def _reply(self, prompt, request) -> Reply:
            reply = super()._reply(prompt, request)
            gone = min(request.references) if reply.raw == max(request.references) else max(request.references)
            return replace(reply, raw=gone)

    with pytest.raises(ScoringError, match="32 are weighed clearly less likely than another one"):
        self_test(TinyTask(), Contrary())


def test_greedy_words_need_not_be_the_likeliest_answer() -> None:
    """Four of 24 answers were written although another was a little likelier: the tokens of made-up labels do that."""
    query = TinyTask().items("train")[0]
    told = [Request(query, (), ("zorp", "blim"))] * 24
    replies = [Reply("zorp", (-2.0, -1.0 if place < 4 else -4.0), 1) for place in range(24)]
    problems: list[str] = []
    assert _agreement(told, replies, problems) == 1.0
    assert problems == []
    far = [replace(reply, logprobs=(-9.0, -1.0)) if place < 4 else reply for place, reply in enumerate(replies)]
    assert _agreement(told, far, problems) == pytest.approx(20 / 24)
    assert "4 are weighed clearly less likely" in problems[0]


def test_a_backend_that_leaves_out_the_end_of_an_answer_fails() -> None:
    class Endless(Copies):
        def _reply(self, prompt, request) -> Reply:
            reply = super()._reply(prompt, request)
            said = tuple(-0.5 if reply.raw.startswith(reference) else -5.0 for reference in request.references)
            return replace(reply, logprobs=said)

    with pytest.raises(ScoringError, match="what ends an answer is not weighed"):
        self_test(TinyTask(), Endless())


def test_answers_that_see_one_another_fail() -> None:
    class Leaking(Copies):
        def _reply(self, prompt, request) -> Reply:
            reply = super()._reply(prompt, request)
            return replace(reply, logprobs=tuple(lp - 0.1 * place for place, lp in enumerate(reply.logprobs)))

    with pytest.raises(ScoringError, match=r"log-probabilities differ by 0\.1"):
        self_test(TinyTask(), Leaking())


def test_without_log_probabilities_demonstrations_must_still_reach_the_model() -> None:
    class Writes(Copies):
        def _reply(self, prompt, request) -> Reply:
            return replace(super()._reply(prompt, request), logprobs=None)

    class Deaf(Writes):
        def _reply(self, prompt, request) -> Reply:
            return super()._reply(prompt, replace(request, demos=()))

    assert self_test(TinyTask(), Writes()).copying == Copying(None, None, None, 1.0, None, None)
    with pytest.raises(ScoringError, match="demonstrations do not reach the model"):
        self_test(TinyTask(), Deaf())


class Unsteady(Copies):
    """A server without log-probabilities that writes `other` prompts otherwise when they are asked alone."""

    tolerance, unsteady = 0.5, "start it with one slot"

    def __init__(self, other: int) -> None:
        super().__init__()
        self.other = other

    def answer(self, requests) -> list[Reply]:
        replies = [replace(reply, logprobs=None) for reply in super().answer(requests)]
        if len(requests) == 1 and self.other > 0:
            self.other -= 1
            return [replace(replies[0], raw="dbs")]
        return replies


def test_a_server_may_write_one_answer_in_four_otherwise() -> None:
    """40 comparisons: every prompt alone and in another order, against the first batch."""
    assert self_test(TinyTask(), Unsteady(10)).batch_gap == 0.0
    with pytest.raises(ScoringError) as caught:
        self_test(TinyTask(), Unsteady(11))
    said = str(caught.value)
    assert "is answered 'none' in a batch and 'dbs' otherwise; so differ more than 10 of 40 answers" in said
    assert said.endswith("start it with one slot")
    assert "log-probabilities differ" not in said, "it gives none"
    assert "model.template" not in said, "no setting of the prompt helps"


def test_a_server_that_mixes_up_two_labels_is_refused() -> None:
    class MixesUp(Unsteady):
        def answer(self, requests) -> list[Reply]:
            replies = super().answer(requests)
            labels = [("yes", "no")[int(request.query.id[1:].split("=")[0]) % 2] for request in requests]
            named = [replace(own, raw=label) for own, label in zip(replies, labels, strict=True)]
            return [*named[1:], *named[:1]]

    with pytest.raises(ScoringError, match="start it with one slot"):
        self_test(TinyTask(), MixesUp(0))


def test_a_model_that_believes_three_demonstrations_more_than_one_is_not_refused() -> None:
    """SmolLM2 on 90 short texts: three further demonstrations say more than the one that repeats the question."""

    class Swayed(Copies):
        def _reply(self, prompt, request) -> Reply:
            return super()._reply(prompt, request if len(request.demos) < 4 else replace(request, demos=()))

    found = self_test(TinyTask(), Swayed())
    assert found.copying is not None
    assert found.copying.moved == 1.0


def gaining(moved: int, questions: int) -> list[Reply]:
    """Replies in which the shown answer gains 8 nats in so many questions and loses 0.1 in the others."""
    gains = [8.0] * moved + [-0.1] * (questions - moved)
    return [Reply("a", pair, 1) for gain in gains for pair in ((-1.0, -1.0 - gain), (-1.0, -1.0))]


@pytest.mark.parametrize(("moved", "refused"), [(16, False), (11, False), (10, True), (0, True)])
def test_a_backend_is_refused_where_fewer_questions_move_than_chance_explains(moved, refused) -> None:
    problems: list[str] = []
    effect, _, share = _effect(gaining(moved, 16), 1e-3, problems)
    assert effect == pytest.approx((8.0 * moved - 0.1 * (16 - moved)) / 16)
    assert share == moved / 16
    assert bool(problems) is refused


def test_a_right_wiring_is_refused_by_its_signs_less_than_once_in_a_hundred() -> None:
    """By counting every outcome of up to 12 questions of which each moves with probability 0.9."""
    for questions in range(1, 13):
        refused = 0.0
        for outcome in itertools.product((True, False), repeat=questions):
            if _at_most(sum(outcome), questions) < FALSE_REFUSALS:
                refused += math.prod(0.9 if moves else 0.1 for moves in outcome)
        assert refused < 0.01 + 1e-12
    assert _at_most(1, 2) == pytest.approx(0.01 + 2 * 0.09)


class Labels(TinyTask):
    labels = WORDS


class Talks(Copies):
    """Finds likely what it was shown, but writes other words first."""

    words = "Well, let me see"

    def _reply(self, prompt, request) -> Reply:
        return replace(super()._reply(prompt, request), raw=self.words)


def test_labels_need_not_be_written_because_they_are_weighed() -> None:
    found = self_test(Labels(), Talks())
    assert found.copying is not None
    assert (found.copying.copied, found.copying.moved) == (0.0, 1.0)
    assert "the model writes none of the labels it is shown, but finds them likelier" in found.note
    with pytest.raises(ScoringError, match=r"none of 32 answers .* is written again"):
        self_test(TinyTask(), Talks())  # free answers are written


def test_labels_asked_at_the_wrong_place_are_refused() -> None:
    class Silent(Talks):
        words = "\n"

    class Unlikely(Talks):
        def _reply(self, prompt, request) -> Reply:
            reply = super()._reply(prompt, request)
            return replace(reply, logprobs=tuple(logprob - 30.0 for logprob in reply.logprobs))

    class NotWeighed(Talks):
        def _reply(self, prompt, request) -> Reply:
            return replace(super()._reply(prompt, request), logprobs=None)

    for backend in (Silent(), Unlikely(), NotWeighed()):
        with pytest.raises(ScoringError, match="is written again"):
            self_test(Labels(), backend)


def test_a_prompt_that_loses_a_demonstration_is_refused() -> None:
    class Nearest(Copies):
        def _reply(self, prompt, request) -> Reply:
            return super()._reply(prompt, replace(request, demos=request.demos[-1:]))

    class ButOne(Copies):
        def _reply(self, prompt, request) -> Reply:
            return super()._reply(prompt, replace(request, demos=request.demos[:-1]))

    for backend in (Nearest(), ButOne()):
        with pytest.raises(ScoringError, match="in 8 of 16 questions"):
            self_test(TinyTask(), backend)


def test_a_small_dev_split_borrows_questions_from_train() -> None:
    task = TinyTask()
    task._items["dev"] = task._items["dev"][:1]
    assert self_test(task, Copies()).prompts == 8
    task._items["dev"] = task._items["train"] = [replace(item, answers=("red",)) for item in task._items["dev"]]
    alone = self_test(task, Copies())  # one answer for all: the wrong one is made up
    assert (alone.prompts, alone.right_error, alone.knows_task, alone.note) == (1, None, None, "")


def test_an_answer_that_depends_on_its_company_fails(task, world, monkeypatch) -> None:
    answer = world.answer

    def leaking(requests) -> list[Reply]:
        return [
            replace(reply, logprobs=tuple(lp - 1e-3 * place for lp in reply.logprobs))
            for place, reply in enumerate(answer(requests))
        ]

    monkeypatch.setattr(world, "answer", leaking)
    with pytest.raises(ScoringError, match="log-probabilities differ by"):
        self_test(task, world)


def test_weighing_other_words_than_the_answer_fails(task, world, monkeypatch) -> None:
    monkeypatch.setattr(world, "answer_span", lambda request, reference: reference.split()[0][1:])
    with pytest.raises(ScoringError, match="would be weighed instead of"):
        self_test(task, world)


class Written(Copies):
    """Shows its prompts; `wrong` puts them together in another way."""

    def __init__(self, wrong=lambda demos, query: [*demos, query]) -> None:
        super().__init__()
        self.wrong = wrong

    def prompt_text(self, request) -> str:
        return "\n".join(f"{item.question}: {item.answer}" for item in self.wrong(request.demos, request.query))


def test_prompts_in_the_right_order_pass() -> None:
    assert self_test(TinyTask(), Written()).copying is not None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda demos, query: [query, *demos],
        lambda demos, query: [*demos[:1], query, *demos[1:]],
        lambda demos, query: [*demos[::-1], query],
    ],
    ids=["the query first", "the query in the middle", "the demonstrations backwards"],
)
def test_a_prompt_in_another_order_fails(wrong) -> None:
    """What the model answers does not show it, since this one answers as ever."""
    with pytest.raises(ScoringError, match="demonstrations go in their order, the query last"):
        self_test(TinyTask(), Written(wrong))


def test_a_question_that_is_part_of_another_or_not_in_the_text_is_no_problem() -> None:
    """`what is 1` stands within `what is 12`; a chat template may rewrite what it is given."""
    assert self_test(TinyTask(), Written(lambda demos, query: [])).copying is not None


def test_all_problems_are_told_at_once(task, world, monkeypatch) -> None:
    monkeypatch.setattr(world, "answer_span", lambda request, reference: "?")
    monkeypatch.setattr(world, "answer", lambda requests: [Reply("red", (-1.0, -1.0), 1) for _ in requests])
    with pytest.raises(ScoringError) as caught:
        self_test(task, world)
    assert str(caught.value).count("\n  - ") == 4  # words, pictures, nothing repeated, not where they should be


def test_a_watched_backend_offers_what_the_self_test_asks_for() -> None:
    """The world's model weighs a fixed set of answers; the self-test must know it behind the progress bar as well."""
    world = WorldBackend(WorldTask())
    watched = WatchedBackend(world, lambda *_: None)
    assert isinstance(watched, KnowsFewAnswers)
    assert watched.fixed_answers is world.fixed_answers
