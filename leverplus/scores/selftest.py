"""What a model must pass before its scores are believed: at most 32 prompts that prove the wiring, not the knowledge.

A question is shown as a demonstration with an answer, then asked again. Every pretrained model then repeats the shown
answer, and finds it likelier than if another one had been shown: models copy, whether or not they know their task. So
the right reply is known, and how a reply differs from it says which part is wrong: length, cut, template or server.
With answers weighed at the wrong place, a prompt that is cut or shuffled, or a mask that hides the demonstrations, the
shown answer gains nothing. The calls of a self-test are not stored and not counted.
"""

from __future__ import annotations

import hashlib
import html
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.base import HasLabels, Task
from leverplus.data.types import Item, ItemId
from leverplus.errors import ScoringError
from leverplus.models.base import Backend, LocalEngine, Reply, Request
from leverplus.scores.scorer import Progress, Scorer

FILE = "selftests.jsonl"
TEST_VERSION = 7
"""Raised when the self-test asks or judges differently: what an older one found does not count then."""

MOST_PROMPTS = 32
QUESTIONS, AGAIN, LONGER, SWAPPED = 8, 4, 4, 2
"""Questions that are shown with a right and with a wrong answer (16 prompts); of these prompts, those that are asked
once more together and alone (8); longer answers (4); other pictures (2, or 4 and 4 where nothing is weighed)."""

FEW_WORDS = 4
"""Of longer answers so many words are shown, to see whether their end is weighed."""

USUALLY_MOVED = 0.9
FALSE_REFUSALS = 0.01
"""A model is refused where so few margins move towards the shown answer that one wired right, in which at least 9 in
10 move, has so few less than once in 100."""

FEWEST = 4
"""So many replies at least, before a share or a standard error says anything."""

TOLERANCE = 1e-3
"""How far float32 may move a log-probability (nats) from batch to batch."""

TIES = 8
WRITTEN_TIES = 4
"""Coarser numbers may decide one comparison in so many otherwise in another batch: two words were equally likely. The
second is for models that only write, where each of several words may be the one: of 64 comparisons, llama.cpp with
SmolLM2 (Q4_1) had 2 to 5 different ones, and a server that mixes up two labels has half."""

MOSTLY = 0.5
NOTED = 0.1
"""The part of the replies with one fault from which on a model is refused, and from which on the user is told."""

NO_ANSWER = "something else entirely"
"""A wrong answer for tasks whose items all have the same one."""

LONGEST = 120
"""Characters of a raw text that a sentence shows."""


class SelfTestFailed(ScoringError):
    """The model answered, and its answers cannot be trusted."""


@dataclass(frozen=True)
class SelfTest:
    """What was measured. None where it does not apply: no log-probabilities, no pictures, spans not shown.

    `prompts` that were asked; `batch_gap`: the largest difference of a log-probability between batches; `effect`: by how
    many nats the shown answer gains on the other one, `error` its standard error, `moved` the share of questions in
    which it gains at all; `copied`: the share of prompts after which the model wrote the shown answer; `ends`: the share
    of prompts in which a shown answer is likelier than its own first words; `picture_effect`: how much another picture
    changes; `note`: what the user should know.
    """

    prompts: int
    batch_gap: float
    picture_effect: float | None = None
    effect: float | None = None
    error: float | None = None
    moved: float | None = None
    copied: float | None = None
    ends: float | None = None
    note: str = ""


def require_trust(
    scorer: Scorer, folder: Path, *, trained: bool, progress: Progress, most: int
) -> SelfTest | None:
    """Run the self-test unless it was passed before; ScoringError when the model fails it.

    `most` is the largest number of demonstrations that the run shows. What was passed is kept in `folder`, by all that
    could change the result. None where scores of this model were believed before.
    """
    if scorer.store.count(scorer.context):
        return None
    about = f"{scorer.context.canonical}\n{TEST_VERSION}\n{trained}"
    key = hashlib.sha256(about.encode()).hexdigest()[:32]
    known = _passed(folder / FILE, key)
    if known is not None:
        return known
    # A test that was cut short goes on with the replies it has already paid for; one that failed is asked anew, because
    # the user may have mended the server meanwhile.
    forget = getattr(scorer.backend, "forget", lambda: None)
    try:
        found = self_test(
            scorer.task, scorer.backend, trained=trained, most=most, progress=progress
        )
    except SelfTestFailed:
        forget()
        raise
    finally:
        progress("self-test", MOST_PROMPTS, MOST_PROMPTS)
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": key, "found": asdict(found)}) + "\n")
    forget()
    return found


def _passed(path: Path, key: str) -> SelfTest | None:
    """The self-test that was passed under a key; a line that a killed process left unfinished does not count."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for line in lines:
        if line.startswith(f'{{"key": "{key}"') and line.endswith("}"):
            return SelfTest(**json.loads(line)["found"])
    return None


def self_test(
    task: Task,
    backend: Backend,
    *,
    trained: bool = True,
    most: int = 2,
    progress: Progress = lambda *_: None,
) -> SelfTest:
    """Measure a model on some dev questions; ScoringError with every problem when it must not be trusted.

    No prompt shows more than `most` demonstrations, or one: a question with its own answer. Random weights (`trained`
    is false) do not repeat what they are shown, so they are not judged by it.
    """
    return _Test(task, backend, most, progress).run(trained=trained)


class _Test:
    """One self-test: what it asks, and the problems it found.

    A question is a request without demonstrations, whose references are its own answer and one that is wrong for it.
    """

    def __init__(
        self, task: Task, backend: Backend, most: int, progress: Progress
    ) -> None:
        self.task = task
        self.backend = backend
        self.rules = task.answers
        self.most = most
        self.progress = progress
        self.asked = 0
        self.labels = isinstance(task, HasLabels) and bool(task.labels)
        self.weighs: bool = getattr(backend, "weighs", True)
        self.tolerance: float = getattr(backend, "tolerance", TOLERANCE)
        self.problems: list[str] = []
        rng = np.random.default_rng(41)
        self.shown = _shuffled(filter(shows_answer, task.items("train")), rng)
        self.questions = self._questions(_shuffled(task.items("dev"), rng))

    def run(self, *, trained: bool) -> SelfTest:
        told = []
        for place, question in enumerate(self.questions):
            # Every second one with one further demonstration. Not more: they drown the copy (SST-2 with SmolLM2: 2.7
            # nats with none, 1.9 with one, 0.0 with three), and a model that believes them is no wrong wiring.
            others: list[Item] = []
            if place % 2 and self.most > 1:
                asked = (question.query.question, question.query.image_id)
                for demo in self.shown[:2]:
                    if (demo.question, demo.image_id) != asked:
                        others = [demo]
            for answer in question.references:
                example = _answered(question.query, answer)
                told.append(replace(question, demos=(example, *others)))
        replies = self.ask(told)
        measured: dict[str, Any] = {}
        if not self.problems:
            measured["batch_gap"] = self._check_batches(told[:AGAIN], replies)
            if trained:
                measured |= self._check_words(told, replies)
            if trained and self.weighs:
                measured |= self._check_effect(replies)
                measured["ends"] = self._check_ends()
            measured["picture_effect"] = self._check_pictures(told, replies)
        if self.problems:
            listed = "".join(f"\n  - {problem}" for problem in self.problems)
            raise SelfTestFailed(
                f"the backend failed its self-test, so nothing was scored with it:{listed}"
            )
        return SelfTest(self.asked, **measured)

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """The replies to some prompts."""
        replies: dict[int, Reply] = {}
        for part in LocalEngine(self.backend).run(requests, len(requests)):
            for place, reply, _ in part:
                replies[place] = reply
            self.progress("self-test", self.asked + len(replies), MOST_PROMPTS)
        self.asked += len(requests)
        found = []
        weighed = []
        for place in range(len(requests)):
            found.append(replies[place])
            if replies[place].logprobs is not None:
                weighed.append(replies[place].logprobs)
        self.weighs = bool(weighed)
        values = np.array(weighed)
        if weighed and (
            len(weighed) < len(found)
            or not ((values <= 0.0) & (values > -np.inf)).all()
        ):
            self.problems.append(
                "some log-probabilities are missing, not finite or above 0"
            )
        return found

    def _questions(self, dev: Sequence[Item]) -> list[Request]:
        """Dev items with two answers each; where dev is small, questions of train are asked too."""
        chosen = [*dev, *self.shown[2:]][:QUESTIONS]
        questions = []
        for place, item in enumerate(chosen):
            own = {self.rules.key(answer) for answer in item.answers}
            wrong = NO_ANSWER
            for other in [*chosen[place + 1 :], *chosen[:place], *self.shown]:
                answer = self._answer(other) if shows_answer(other) else ""
                if answer and self.rules.key(answer) not in own:
                    wrong = answer
                    break
            questions.append(Request(item, (), (self._answer(item), wrong)))
        return questions

    def _answer(self, item: Item) -> str:
        """The answer of an item as it is weighed, or as the data write it where nothing is weighed."""
        if self.weighs:
            return next(iter(self.rules.weighed_references(item)))
        return item.answer.strip()

    def _check_batches(
        self, requests: Sequence[Request], together: Sequence[Reply]
    ) -> float:
        """Alone or in a batch, in any order of prompts and of answers, a prompt gets the same reply."""
        turned = []
        for request in reversed(requests):
            turned.append(replace(request, references=request.references[::-1]))
        others: list[tuple[Reply, bool]] = []  # and whether it was chosen, not written
        for reply in reversed(self.ask(turned)):
            logprobs = None if reply.logprobs is None else reply.logprobs[::-1]
            others.append((replace(reply, logprobs=logprobs), False))
        choose = self.labels and self.weighs
        for request in requests:
            (alone,) = self.ask([replace(request, choose=choose)])
            others.append((alone, choose))
        allowed = 0
        if self.tolerance > TOLERANCE:
            allowed = len(others) // (TIES if self.weighs else WRITTEN_TIES)
        largest = 0.0
        different = 0
        for place, (reply, chosen) in enumerate(others):
            request = requests[place % len(requests)]
            first = together[place % len(requests)]
            gap = _gap(first, reply)
            largest = max(largest, gap)
            different += first.raw != reply.raw and not chosen
            if different <= allowed and gap <= self.tolerance:
                continue
            said = (
                f"query {request.query.id} with {len(request.demos)} demonstrations is answered '{first.raw}' in a "
                f"batch and '{reply.raw}' otherwise"
            )
            if self.weighs:
                said += f", log-probabilities differ by {gap:.2g} (allowed {self.tolerance:g})"
            if different > allowed > 0:
                said += f"; so differ more than {allowed} of {len(others)} answers, which are allowed"
            if advice := getattr(self.backend, "unsteady", ""):
                said += f"; {advice}"
            self.problems.append(said)
            break
        return largest

    def _check_words(
        self, told: Sequence[Request], replies: Sequence[Reply]
    ) -> dict[str, Any]:
        """What the model writes after it was shown an answer is that answer; labels that are weighed need not be."""
        shown = []
        raws = []
        copies = 0
        for request, reply in zip(told, replies, strict=True):
            shown.append(request.demos[0].answer)
            raws.append(reply.raw)
            copies += shown[-1].casefold() in reply.raw.casefold()
        only_weighed = self.labels and self.weighs and any(map(str.strip, raws))
        faults: list[Fault] = []
        if not only_weighed:
            faults = diagnose(shown, raws, self.rules, _ending(self.backend))
        notes = []
        severe = False
        for fault in faults:
            if fault.share >= MOSTLY and fault.refuses:
                severe = True
                self.problems.append(fault.sentence)
            elif fault.share >= NOTED:
                notes.append(
                    f"note: in {fault.share:.0%} of the replies, {fault.sentence}"
                )
        if only_weighed and not copies:
            notes.append(
                "note: the model writes none of the labels it is shown; they are weighed, so nothing is lost (it may "
                "begin with other words, or model.max_new_tokens may be too few for a label)"
            )
        elif not copies and not severe and len(told) >= FEWEST:
            self.problems.append(
                f"none of {len(told)} answers that were shown beside the very question is written again: "
                "demonstrations do not reach the model, or it is not asked where an answer stands (check the prompt "
                "template)"
            )
        return {"copied": copies / len(told), "note": "\n".join(notes)}

    def _check_effect(self, replies: Sequence[Reply]) -> dict[str, float]:
        """What showing the right answer instead of the wrong one moves right over wrong."""
        pairs = np.array([reply.logprobs for reply in replies])  # (prompts, 2)
        margins = pairs[:, 0] - pairs[:, 1]
        gains = margins[0::2] - margins[1::2]  # (questions,), nats
        effect = float(gains.mean())
        moved = int((gains > 0.0).sum())
        error = float(gains.std() / math.sqrt(max(1, len(gains) - 1)))
        least = max(self.tolerance, 2.0 * error if len(gains) >= FEWEST else 0.0)
        if not effect > least or at_most(moved, len(gains)) < FALSE_REFUSALS:
            self.problems.append(
                f"an answer shown beside the very question gains {effect:.2f} +- {error:.2f} nats on another answer, "
                f"in {moved} of {len(gains)} questions; every model that reads its prompt repeats what it is shown, so "
                "answers are not weighed where they should be (check the prompt template, the attention mask and the "
                "place of the answer; random weights need model.untrained = true)"
            )
        return {"effect": effect, "error": error, "moved": moved / len(gains)}

    def _check_ends(self) -> float | None:
        """A longer answer that is shown can be likelier than its own beginning, if the end of an answer is weighed.

        Without the end marker it never can: whoever says "new york" has said "new".
        """
        questions = self.questions[:LONGER]
        if len(questions) < FEWEST or getattr(self.backend, "fixed_answers", False):
            return None
        asked = []
        for question in questions:
            shorter = question.references[0]
            longer = " ".join(question.references)
            words = longer.split()
            if len(words) > FEW_WORDS:  # a few words, which a small model repeats
                shorter = " ".join(words[:2])
                longer = " ".join(words[:FEW_WORDS])
            example = _answered(question.query, longer)
            again = replace(example, id=ItemId(f"{example.id}="))
            demos = (example, again)[: max(1, self.most)]
            asked.append(Request(question.query, demos, (shorter, longer), choose=True))
        found = 0
        for reply in self.ask(asked):
            shorter_logprob, longer_logprob = reply.logprobs or (0.0, 0.0)
            found += longer_logprob - shorter_logprob > self.tolerance
        if not found:
            self.problems.append(
                f"in none of {len(asked)} prompts a shown answer is likelier than its own first words: what ends an "
                "answer is not weighed (check the end of the prompt template)"
            )
        return found / len(asked)

    def _check_pictures(
        self, told: Sequence[Request], replies: Sequence[Reply]
    ) -> float | None:
        """Another picture under the same question changes what the model says; None where there is only one picture."""
        own = []
        swapped = []
        before = []
        pairs = zip(pairwise([*told[::2], told[0]]), replies[::2], strict=True)
        for (request, other), reply in pairs:
            query = request.query
            donor = other.query
            digests = {self.task.image_digest(item) for item in (query, donor)}
            if query.image is None or donor.image is None or len(digests) < 2:
                continue
            changed = replace(
                query,
                id=ItemId(f"{query.id}~{donor.id}"),
                image=donor.image,
                image_id=donor.image_id,
            )
            # what is copied does not change with the picture, so where nothing is weighed nothing is shown
            demos = request.demos if self.weighs else ()
            own.append(replace(request, demos=demos))
            swapped.append(replace(request, demos=demos, query=changed))
            before.append(reply)
        if not own:
            return None
        count = SWAPPED
        least = min(self.tolerance, 0.05)
        if not self.weighs:
            count = FEWEST
            least = 0.0
            before = self.ask(own[:count])
        changes = []
        for one, two in zip(before, self.ask(swapped[:count]), strict=False):
            changes.append(_gap(one, two) if self.weighs else one.raw != two.raw)
        effect = float(np.mean(changes))
        if not effect > least:
            said = "other pictures under the same questions change no reply"
            if self.weighs:
                said = f"other pictures change log-probabilities by {effect:.2g} only"
            self.problems.append(
                f"{said}: the model does not see them (check task.images, and whether the server takes pictures)"
            )
        return effect


def shows_answer(item: Item) -> bool:
    """Whether an item can be a demonstration; those with empty answers cannot."""
    return bool(item.answers) and bool(item.answer.strip())


def at_most(moved: int, questions: int) -> float:
    """The probability that at most so many questions move although each does with probability USUALLY_MOVED."""
    total = 0.0
    for count in range(moved + 1):
        stay = (1.0 - USUALLY_MOVED) ** (questions - count)
        total += math.comb(questions, count) * USUALLY_MOVED**count * stay
    return total


def _shuffled(items: Any, rng: np.random.Generator) -> list[Item]:
    found = list(items)
    return [found[int(row)] for row in rng.permutation(len(found))]


def _answered(query: Item, answer: str) -> Item:
    return replace(query, id=ItemId(f"{query.id}={answer}"), answers=(answer,))


def _ending(backend: Backend) -> str:
    """What ends an answer in the backend's template; "" in a chat, or where it does not say."""
    prompts = getattr(backend, "prompts", None)
    if getattr(prompts, "chat", True):
        return ""
    return str(getattr(prompts, "ending", ""))


def _gap(one: Reply, other: Reply) -> float:
    pairs = zip(one.logprobs or (), other.logprobs or (), strict=True)
    return max((abs(a - b) for a, b in pairs), default=0.0)


# -- which part is wrong, by the raw text

MARKERS = re.compile(
    r"<\|[\w ]{2,30}\|>|<(?:start|end)_of_turn>|\[/?INST\]|</?s>|<<SYS>>|<\uff5c[^>]{2,40}\uff5c>"
)
"""Pieces of chat templates: ChatML, Llama, Gemma, Mistral, DeepSeek."""

THINKS = re.compile(r"\s*<(think|thinking|thought|reasoning)>", re.IGNORECASE)

FAULTS: dict[str, tuple[str, str]] = {
    "empty": (
        "template",
        "the model writes nothing where {shown} was shown; look at the chat template, the place of the answer "
        "(model.template, model.prompt) and what the server takes as the end",
    ),
    "same": (
        "server",
        "every prompt is answered {raw}: prompts, or the demonstrations in them, do not reach the model; check the "
        "prompt template and the server",
    ),
    "thinks": (
        "length",
        "the model thinks aloud before it answers ({raw}); switch that off at the server, or raise "
        "model.max_new_tokens and take the answer out with a cut of your own",
    ),
    "markers": (
        "template",
        "pieces of a chat template stand in the answer ({raw}): the server has none for this model, or another "
        "model's; start it with the right one (llama-server --chat-template, vllm --chat-template)",
    ),
    "cut": (
        "cut",
        "the model wrote {raw}, which is right, and task.cut = {cut} makes {made} of it; try --cut plain",
    ),
    "letters": (
        "server",
        "answers come back in other letters: {shown} was shown, and {raw} came back; something between here and the "
        "model changes texts",
    ),
    "ended": (
        "template",
        "an answer is ended by {mark}, which stands inside it: {shown} was shown, and {raw} came back; let "
        "model.template end an answer with something that no answer holds",
    ),
    "short": (
        "length",
        "answers break off: {shown} was shown, and {raw} came back; raise --max-tokens (model.max_new_tokens)",
    ),
    "goes_on": (
        "template",
        "the model goes on after the answer ({raw}): its end is not found; look at the end of model.template, or take "
        "the first line with --cut line",
    ),
    "lines": (
        "cut",
        "the model writes further lines after the answer ({raw}); ask for the answer alone (--instruction), or, where "
        "answers have one line, take that with --cut line",
    ),
    "adds": (
        "model",
        "it adds to the answer that was shown ({raw}), as small models do; that costs accuracy, and nothing is wired "
        "wrong",
    ),
    "around": (
        "cut",
        "the model writes words around the answer ({raw}), and task.cut = {cut} leaves them there; ask for the answer "
        "alone (--instruction), or try --cut json or --cut fenced",
    ),
}
"""How a reply differs from the answer that was shown: the part that is wrong, and what to do about it."""


HARMLESS = ("adds",)
"""What is told, and is no reason to refuse a model."""


class Fault(NamedTuple):
    """One fault: in how many of the replies, and the sentence for the user, which begins with the part that is wrong."""

    share: float
    sentence: str
    refuses: bool = True
    """Whether a model is refused where most replies have it."""


def diagnose(
    shown: Sequence[str], raws: Sequence[str], rules: AnswerRules, ending: str = ""
) -> list[Fault]:
    """The faults that replies show, the commonest first; `ending` is what ends an answer in the template.

    >>> cities = ["Lisbon, Portugal", "Bern, Schweiz"] * 2
    >>> diagnose(cities, cities, AnswerRules("exact", "vqa"))[0].sentence[:13]
    'cut: the mode'
    """
    if len(shown) < FEWEST:
        return []
    kinds = [_kind(*own, rules, ending) for own in zip(shown, raws, strict=True)]
    if set(kinds) == {"other"} and len(set(raws)) == 1:
        kinds = ["same"] * len(kinds)
    counts = Counter(kind for kind in kinds if kind in FAULTS)
    faults = []
    for kind, count in counts.most_common():
        place = kinds.index(kind)
        part, sentence = FAULTS[kind]
        said = sentence.format(
            shown=_short(shown[place]),
            raw=_short(raws[place]),
            cut=rules.cut,
            made=_short(rules.cut_answer(raws[place])),
            mark=ending.strip() or "a line end",
        )
        refuses = kind not in HARMLESS
        faults.append(Fault(count / len(kinds), f"{part}: {said}", refuses))
    return faults


def _kind(shown: str, raw: str, rules: AnswerRules, ending: str) -> str:
    """How a reply differs from the answer that was shown."""

    def same(answer: str) -> bool:
        # A metric that ignores case does not see a changed case.
        return answer.strip() == shown or rules.key(answer) == rules.key(shown)

    shown = shown.strip()
    whole = raw.strip()
    if not whole:
        return "empty"
    if same(rules.cut_answer(raw)):
        return "right"
    if THINKS.match(raw):
        return "thinks"
    if MARKERS.search(whole) and not MARKERS.search(shown):
        return "markers"
    if same(whole):
        return "cut"
    if html.unescape(whole) == shown or (_plain(whole) == _plain(shown) != ""):
        return "letters"
    if shown.startswith(whole):
        rest = shown[len(whole) :].lstrip(" ")
        if rest.startswith((ending.strip() or "\n", "\n")):
            return "ended"
        return "short"
    if whole.startswith(shown):
        if ending:
            return "goes_on"
        if whole[len(shown) :].lstrip(" ")[0] == "\n":
            return "lines"
        return "adds"
    if shown in whole:
        return "around"
    return "other"


def _plain(text: str) -> str:
    """A text without case, accents, quotes and spaces."""
    spread = unicodedata.normalize("NFKD", text).casefold()
    return "".join(char for char in spread if unicodedata.category(char)[0] in "LNS")


def _short(text: str) -> str:
    return repr(text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}...")
