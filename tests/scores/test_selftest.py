"""The self-test: a model that is wired right is believed, and of one that is not the part that is wrong is named."""

from __future__ import annotations

import itertools
import json
import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_task import WORDS, TinyBackend, TinyTask, open_scorer

from leverplus import catalog
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import FileTask
from leverplus.data.types import Item, ItemId
from leverplus.errors import ScoringError
from leverplus.models.base import Reply, Request
from leverplus.models.callable import CallableBackend, name_function
from leverplus.models.settings import ModelSection
from leverplus.run.scoring import require_offered
from leverplus.scores.selftest import (
    FALSE_REFUSALS,
    FILE,
    MOST_PROMPTS,
    at_most,
    diagnose,
    require_trust,
    self_test,
)
from leverplus_lab.world.backend import WorldBackend
from leverplus_lab.world.task import WorldTask


class Copies(TinyBackend):
    """Knows nothing and repeats what was shown beside the same question, to the end."""

    def _reply(self, prompt, request) -> Reply:
        shown = {demo.question: demo.answer for demo in request.demos}
        raw = shown.get(request.query.question, "none")
        logprobs = [-0.5 if own == raw else -5.0 for own in request.references]
        return Reply(raw, tuple(logprobs), 1)


class Labels(TinyTask):
    labels = WORDS


def changed(change: Callable[[Reply, Request], Reply], kind=Copies) -> TinyBackend:
    """The copying model with other replies."""

    class Changed(kind):
        def _reply(self, prompt, request) -> Reply:
            return change(super()._reply(prompt, request), request)

    return Changed()


def reading(shown: Callable[[Sequence[Item]], Sequence[Item]]) -> TinyBackend:
    """The copying model that gets only some of the demonstrations."""

    class Reads(Copies):
        def _reply(self, prompt, request) -> Reply:
            own = replace(request, demos=tuple(shown(request.demos)))
            return super()._reply(prompt, own)

    return Reads()


def mute(backend: TinyBackend) -> TinyBackend:
    """The same model behind a server without log-probabilities."""
    answer, backend.weighs = backend.answer, False
    backend.answer = lambda asked: [
        replace(own, logprobs=None) for own in answer(asked)
    ]
    return backend


def test_a_model_that_knows_nothing_of_the_task_passes_with_32_prompts() -> None:
    model = Copies()
    found = self_test(TinyTask(), model)
    assert len(model.asked) == found.prompts <= MOST_PROMPTS
    assert (found.effect, found.error, found.moved) == (9.0, 0.0, 1.0)
    assert (found.copied, found.ends, found.note) == (1.0, 1.0, "")
    silent = self_test(TinyTask(), mute(Copies()))
    assert (silent.effect, silent.copied, silent.ends) == (None, 1.0, None)


def without_end(reply: Reply, request: Request) -> Reply:
    said = [-0.5 if reply.raw.startswith(own) else -5.0 for own in request.references]
    return replace(reply, logprobs=tuple(said))


def seeing_one_another(reply: Reply, _request: Request) -> Reply:
    said = [value - 0.1 * place for place, value in enumerate(reply.logprobs)]
    return replace(reply, logprobs=tuple(said))


REFUSED = {
    "a model that does not read its prompt": (TinyBackend, "gains .* nats on another"),
    "no end of an answer": (lambda: changed(without_end), "what ends an answer is not"),
    "answers that see one another": (
        lambda: changed(seeing_one_another),
        r"log-probabilities differ by 0\.1",
    ),
    "only the nearest demonstration": (
        lambda: reading(lambda demos: demos[-1:]),
        "in 4 of 8 questions",
    ),
    "all but the nearest": (lambda: reading(lambda demos: demos[:-1]), "in 4 of 8"),
    "demonstrations that do not arrive": (
        lambda: mute(reading(lambda _demos: ())),
        "do not reach the model",
    ),
    "NaN": (
        lambda: changed(lambda reply, _: replace(reply, logprobs=(math.nan, -1.0))),
        "not finite or above 0",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_wrong_wiring_is_refused(fault: str) -> None:
    build, said = REFUSED[fault]
    with pytest.raises(ScoringError, match=said):
        self_test(TinyTask(), build())


def test_a_right_wiring_is_refused_by_its_signs_less_than_once_in_a_hundred() -> None:
    """By counting every outcome of up to 12 questions of which each moves with probability 0.9."""
    for questions in range(1, 13):
        refused = 0.0
        for outcome in itertools.product((True, False), repeat=questions):
            if at_most(sum(outcome), questions) < FALSE_REFUSALS:
                refused += math.prod(0.9 if moves else 0.1 for moves in outcome)
        assert refused < 0.01 + 1e-12
    assert at_most(1, 2) == pytest.approx(0.01 + 2 * 0.09)


class Unsteady(Copies):
    """A server without log-probabilities that writes `other` prompts otherwise when they are asked alone."""

    tolerance, unsteady, weighs = 0.5, "start it with one slot", False

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
    """8 comparisons: four prompts alone and in another order, against the first batch."""
    assert self_test(TinyTask(), Unsteady(2)).batch_gap == 0.0
    with pytest.raises(ScoringError) as caught:
        self_test(TinyTask(), Unsteady(3))
    said = str(caught.value)
    assert "'dbs' otherwise; so differ more than 2 of 8 answers" in said
    assert said.endswith("start it with one slot")
    assert "log-probabilities differ" not in said, "it gives none"


def test_labels_need_not_be_written_because_they_are_weighed() -> None:
    words = "Well, let me see"

    def talks(reply: Reply, _request: Request) -> Reply:
        return replace(reply, raw=words)

    found = self_test(Labels(), changed(talks))
    assert (found.copied, found.moved) == (0.0, 1.0)
    assert "the model writes none of the labels it is shown" in found.note
    with pytest.raises(ScoringError, match=f"every prompt is answered '{words}'"):
        self_test(TinyTask(), changed(talks))  # free answers are written
    with pytest.raises(ScoringError, match="every prompt is answered"):
        self_test(Labels(), mute(changed(talks)))
    words = "\n"
    with pytest.raises(ScoringError, match="writes nothing"):
        self_test(Labels(), changed(talks))


def test_a_small_dev_split_borrows_questions_from_train() -> None:
    task = TinyTask()
    task._items["dev"] = task._items["dev"][:1]
    assert self_test(task, Copies()).moved == 1.0
    alone = [replace(item, answers=("red",)) for item in task._items["dev"]]
    task._items["dev"] = task._items["train"] = alone
    # one answer for all: the wrong one is made up
    assert self_test(task, Copies()).note == ""


def test_no_prompt_shows_more_than_the_run_does_but_for_the_own_question() -> None:
    for most, shown in ((0, 1), (1, 1), (2, 2), (4, 2)):
        model = Copies()
        self_test(TinyTask(), model, most=most)
        assert max(len(prompt) for prompt in model.asked) == 1 + shown


# -- with pictures


@pytest.fixture(scope="module")
def task() -> WorldTask:
    return WorldTask()


@pytest.fixture
def world(task) -> WorldBackend:
    return WorldBackend(task)


def test_the_world_passes_to_a_ten_thousandth(task, world) -> None:
    world.tolerance = 1e-4
    found = self_test(task, world)
    assert found.prompts <= MOST_PROMPTS
    assert found.batch_gap < 1e-4
    assert found.picture_effect > 0.1


def test_a_model_that_only_writes_is_asked_whether_it_sees(task, world) -> None:
    found = self_test(task, mute(world))
    assert 0.2 < found.picture_effect <= 1.0
    assert found.prompts <= MOST_PROMPTS


def test_a_model_that_cannot_see_fails(task, world, monkeypatch) -> None:
    blind = torch.zeros(1, 2, 192)
    monkeypatch.setattr(
        world.model, "see", lambda pictures: blind.expand(len(pictures), -1, -1)
    )
    with pytest.raises(ScoringError, match="does not see them"):
        self_test(task, world)


def test_all_problems_are_told_at_once(task, world, monkeypatch) -> None:
    same = Reply("red", (-1.0, -1.0), 1)
    monkeypatch.setattr(world, "answer", lambda requests: [same for _ in requests])
    with pytest.raises(ScoringError) as caught:
        self_test(task, world)
    said = str(caught.value)
    for problem in ("every prompt", "gains 0.00", "other pictures"):
        assert problem in said


# -- which part is wrong

PLACES = ("Zürich, Switzerland", "Łódź, Poland", "São Paulo, Brazil", "Lisbon > Porto")
SQL = "SELECT name, '{}'\nFROM city\nWHERE size > #"
PLAIN = "Question: {question}\nAnswer: {answer}\n"
ENDED = "Question: {question}\nAnswer: {answer} ###\n"
LINES = tuple(SQL.format(name) for name in ("a", "b", "c"))


def task_of(answers: Sequence[str], cut: str = "plain") -> FileTask:
    items = []
    for number in range(60):
        split = ("train", "dev", "test")[number % 3]
        answer = answers[number % len(answers)].replace("#", str(number // 3))
        items.append(Item(ItemId(str(number)), f"what is {number}?", (answer,), split))
    return FileTask("jsonl", items, answers=AnswerRules("exact", cut))


def shown_answer(prompt: str, task: FileTask) -> str:
    """What stands in a prompt beside the question that it asks: a model that repeats what it is shown."""
    asked = prompt.rstrip().removesuffix("Answer:").rstrip().rsplit("\n", 1)[-1]
    _, found, rest = prompt[: prompt.rfind(asked)].rpartition(asked)
    rest = rest.removeprefix("\nAnswer: ")
    items = [item for split in ("train", "dev", "test") for item in task.items(split)]
    fitting = [item.answer for item in items if rest.startswith(item.answer)]
    return max(fitting, key=len) if found and fitting else "I do not know"


@dataclass(frozen=True)
class Planted:
    """A fault, the part that the self-test must name, and a text that its sentence must hold."""

    part: str
    says: str
    change: Callable[[str], str] = lambda answer: answer
    answers: tuple[str, ...] = PLACES
    cut: str = "plain"
    template: str = PLAIN


def escaped(text: str) -> str:
    return text.replace(">", "&gt;").replace(", ", "&#44; ")


def without_accents(text: str) -> str:
    spread = unicodedata.normalize("NFD", text)
    return "".join(char for char in spread if not unicodedata.combining(char))


FAULTS = {
    "cut at the comma": Planted("cut", "task.cut = vqa makes", cut="vqa"),
    "cut after a line": Planted("cut", "task.cut = line", answers=LINES, cut="line", template=ENDED),
    "too few tokens": Planted("length", "--max-tokens", lambda answer: answer[:6]),
    "too few tokens for SQL": Planted("length", "break off", lambda answer: answer[:12], LINES, template=ENDED),
    "an ending inside the answer": Planted("template", "which stands inside it", answers=LINES),
    "a server that lower-cases": Planted("server", "other letters", str.lower),
    "a server that loses accents": Planted("server", "other letters", without_accents),
    "a server that escapes signs": Planted("server", "other letters", escaped),
    "no chat template": Planted("template", "chat template", lambda answer: f"{answer}<|im_end|><|im_start|>user"),
    "nothing is written": Planted("template", "writes nothing", lambda _: ""),
    "one answer for all": Planted("server", "do not reach the model", lambda _: "Hello! How can I help?"),
    "it thinks aloud": Planted("length", "thinks aloud", lambda answer: f"<think>They want {answer}, I guess."),
    "words around the answer": Planted("cut", "words around the answer", lambda answer: f"Sure: {answer}!"),
    "it goes on": Planted("template", "goes on after the answer", lambda answer: f"{answer} And more words"),
}  # fmt: skip


def asked_of(function: Callable[[str], str], task: FileTask, template: str) -> str:
    """What is said of a function of prompts: why it is refused, or what is noted."""
    section = ModelSection(name=name_function(function), template=template)
    try:
        return self_test(task, CallableBackend(task, section)).note
    except ScoringError as error:
        return str(error)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str) -> None:
    planted = FAULTS[fault]
    task = task_of(planted.answers, planted.cut)
    asked = []

    def model(prompt: str) -> str:
        asked.append(prompt)
        return planted.change(shown_answer(prompt, task))

    said = asked_of(model, task, planted.template)
    first = said.splitlines()[1]
    assert first.startswith(f"  - {planted.part}: "), said
    assert planted.says in first
    assert len(asked) <= MOST_PROMPTS


def test_a_sound_model_of_any_answer_is_believed_and_few_short_ones_are_noted() -> None:
    for task in map(task_of, (PLACES, LINES)):
        copies = partial(shown_answer, task=task)
        copies.__qualname__ = "copies"
        assert not asked_of(copies, task, ENDED)
    task = task_of(("x", "y", "z", "a much longer answer than the others #"))
    said = asked_of(lambda prompt: shown_answer(prompt, task)[:10], task, PLAIN)
    assert said.startswith("note: in ")
    assert "length: answers break off" in said


def test_a_chat_model_that_rambles_is_told_and_one_that_adds_lines_is_refused() -> None:
    """In a chat nothing ends an answer but the model: more words in the line are its own, further lines a setting."""
    shown = list(PLACES)
    rules = AnswerRules("exact", "plain")
    (adds,) = diagnose(shown, [f"{own} and more" for own in shown], rules)
    assert adds.sentence.startswith("model: it adds to the answer")
    assert not adds.refuses
    (lines,) = diagnose(shown, [f"{own}\nBecause." for own in shown], rules)
    assert lines.sentence.startswith("cut: the model writes further lines")
    assert "--cut line" in lines.sentence
    assert lines.refuses
    (plain,) = diagnose(shown, [f"{own} and more" for own in shown], rules, "\n")
    assert plain.sentence.startswith("template: the model goes on after the answer")
    assert plain.refuses


# -- what was passed is kept


def test_a_self_test_that_was_passed_is_kept_by_all_that_could_change_it(
    tmp_path: Path,
) -> None:
    def trust() -> list[tuple[str, int, int]]:
        scorer = open_scorer(tmp_path / "scores.db", TinyBackend())
        told: list[tuple[str, int, int]] = []
        how = {"trained": False, "progress": lambda *line: told.append(line), "most": 3}
        assert require_trust(scorer, tmp_path, **how).batch_gap == 0.0
        assert bool(told) == bool(scorer.backend.asked)
        scorer.store.close()
        return told

    first = trust()
    assert first, "asked, and shown as it goes on"
    assert first[-1][1] == first[-1][2]
    assert trust() == []
    kept = (tmp_path / FILE).read_text()
    with (tmp_path / FILE).open("a") as file:
        file.write('{"key": "half of a li')
    assert trust() == [], "a line that was cut by a kill does no harm"
    other = {**json.loads(kept), "key": "of another model"}
    (tmp_path / FILE).write_text(json.dumps(other) + "\n")
    assert trust() != []


@pytest.mark.parametrize("cut_short", [False, True])
def test_a_failed_self_test_gives_its_replies_up_and_one_cut_short_keeps_them(
    tmp_path: Path, cut_short: bool
) -> None:
    class Failing(TinyBackend):
        forgotten = 0

        def answer(self, requests):
            if cut_short and len(self.batches) == 2:
                raise ScoringError("the server stays away")
            drift = float(len(self.batches))
            replies = []
            for reply in super().answer(requests):
                values = tuple(value - drift for value in reply.logprobs)
                replies.append(replace(reply, logprobs=values))
            return replies

        def forget(self) -> None:
            self.forgotten += 1

    scorer = open_scorer(tmp_path / "scores.db", Failing())
    said = "stays away" if cut_short else "failed its self-test"
    with pytest.raises(ScoringError, match=said):
        require_trust(scorer, tmp_path, trained=False, progress=lambda *_: None, most=3)
    assert scorer.backend.forgotten == (0 if cut_short else 1)
    assert not (tmp_path / FILE).exists()


# -- rewards that a model cannot serve

NEED = {
    "gt_prob",
    "choice_prob",
    "hard_plus_gtprob",
    "hard01_plus_gtprob",
    "hard01_plus_gtprob_separated",
}


@pytest.mark.parametrize("mode", sorted(catalog.REWARDS))
def test_a_reward_that_needs_log_probabilities_is_refused_where_there_are_none(
    mode,
) -> None:
    require_offered(TinyBackend(), [mode], "gain")
    said = ""
    try:
        require_offered(mute(TinyBackend()), [mode], "gain")
    except ScoringError as error:
        said = str(error)
    assert mode not in NEED or said
    free = {"soft_only", "hard_only", "hard_plus_soft", "expected_accuracy"}
    assert mode not in free or not said
    assert not said or f'reward.mode = "{mode}" needs log-probabilities' in said


def test_one_of_several_components_is_named() -> None:
    silent = mute(TinyBackend())
    require_offered(silent, ["soft_only", "hard_only"], "gain")
    with pytest.raises(ScoringError, match=r'components with "gt_prob" needs log'):
        require_offered(silent, ["soft_only", "gt_prob"], "gain")
