"""How the model of a fit is asked: what it offers, found out once; instruction, template, cut, length; prompts shown.

Whatever the user set stays as it is; every choice comes with the sentence that says why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from leverplus.data import rundir
from leverplus.data.kinds import AnswerKind, Kind
from leverplus.data.metrics import cut_named
from leverplus.data.metrics.values import read_json_text
from leverplus.data.rundir import shipped
from leverplus.data.tasks.base import Task
from leverplus.data.types import Item, Score
from leverplus.errors import DataError, LeverError, MissingFile
from leverplus.evaluate.predictions import read_predictions
from leverplus.models.base import LocalEngine, Request
from leverplus.models.open import build_backend
from leverplus.models.prompts import render_prompt
from leverplus.models.room import Room
from leverplus.models.settings import ModelSection, warn_of_plain_key
from leverplus.run.rules import WORLD_READS
from leverplus.scores.scorer import Scorer
from leverplus.scores.store import ScoreStore

if TYPE_CHECKING:
    from leverplus.run.run import Run

ENDINGS = ("\n", " ###\n", " ---\n", " <end>\n", " <|answer ends|>\n")
"""What may end an answer in a plain prompt: the first that no answer holds."""

FEWEST_TOKENS = 8
SPARE = 1.1
"""A right answer may be a tenth longer than the longest that is known."""

LETTERS_A_TOKEN = 2.5
"""Characters of a token where no tokenizer is at hand: SQL, JSON and code have fewer than sentences."""

LISTED_LABELS = 100
LISTED_LETTERS = 4000
"""Labels, and letters of all labels, that an instruction names."""

LONG_SENTENCE = 60
"""Beyond so many words an answer is a text, whose form no instruction can say in a sentence."""

MOST_KEYS = 12
"""Keys of JSON answers that an instruction names."""

COUNTED = 64
"""The longest answers by characters, whose tokens are counted."""

LARGEST_UNPACKED = 1 << 30
"""Bytes of a GGUF file that is unpacked for its tokenizer before anything else is decided."""

PIXELS_A_TOKEN = 28 * 28
LEAST_PICTURE = 64
"""Qwen2-VL, Qwen2.5-VL and others read 28 x 28 pixels as a token; only a model itself knows what it makes of a picture."""

SEEN = 5
"""Prompts that `fit.json` shows."""

INSTRUCTIONS = {
    Kind.PHRASE: "Answer with one word or a short phrase.",
    Kind.NUMBER: "Answer with a number alone.",
    Kind.SQL: "Answer with one SQL statement alone, without an explanation.",
    Kind.CODE: "Answer in the form of the examples alone, without an explanation.",
}
CUTS = {Kind.JSON: "json", Kind.SQL: "fenced", Kind.CODE: "fenced"}
CUT_RULES = {
    "plain": "answers are taken whole, without the spaces around them",
    "json": "the answer is the longest JSON value in what the model writes (task.cut = json)",
    "fenced": "the answer is the code block where the model writes one, else all of it (task.cut = fenced)",
}

Say = Callable[[str], None]
CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Chosen:
    """One value of the recipe and the sentence that says why."""

    value: Any
    why: str


@dataclass(frozen=True)
class Probe:
    """What a model offers. `values` is its [model] section; `count` and `room` are None where nobody can say."""

    backend: str
    values: dict[str, Any]
    weighs: bool
    """Whether it gives the log-probability of given answers."""
    count: CountTokens | None = None
    room: Callable[[ModelSection, Task], Room | None] = lambda _section, _task: None


def probe_model(backend: str, values: dict[str, Any], task: Task, say: Say) -> Probe:
    """Find out what a model offers, before anything is paid for; refuse one that is nowhere."""
    if backend == "openai":
        return _probe_server(values, task, say)
    if backend == "hf":
        return _probe_weights(values)
    if backend == "table":
        for name in values["name"].split(","):
            if not shipped(name).is_file():
                raise MissingFile(
                    f"there is no recorded table {name}; `lever record` makes one"
                )
    if backend == "callable":
        say(
            "model: a function gives no log-probabilities of given answers; answers are written and judged"
        )
    return Probe(backend, values, weighs=backend != "callable")


def _probe_server(values: dict[str, Any], task: Task, say: Say) -> Probe:
    """A server is asked what it serves, whether it weighs answers, plain texts first, and how it counts tokens."""
    from leverplus.models.api.client import Client

    quick = {"retries": 1}
    section = ModelSection(**{**values, "name": values["name"] or "any", **quick})
    if warning := warn_of_plain_key(section.url, section.key_env):
        say(warning)
    url = section.url
    if not values["name"]:
        served = []
        for row in Client(section).models():
            served.append(str(row["id"]))
        if not served:
            raise LeverError(
                f"{url} lists no models; most addresses end in /v1, else name the model: --model {url}#NAME"
            )
        if len(served) > 1:
            listed = ", ".join(f"{url}#{name}" for name in served[:10])
            raise LeverError(
                f"{url} serves {len(served)} models; name one with --model: {listed}"
            )
        values = {**values, "name": served[0]}
        say(f"model: {url} serves {served[0]}")
    forms = ["plain", "chat"]
    if values.get("prompt") == "chat":
        forms.remove("plain")
    for form in forms:
        section = ModelSection(**{**values, **quick, "prompt": form})
        server: Any = build_backend("openai", task, section)
        if server.weighs:
            break
    values = {**values, "prompt": form}
    if not server.weighs:
        # known now: not asked again, and not priced
        values["logprobs"] = "never"
        say(
            "model: the server gives no log-probabilities of given answers; answers are written and judged"
        )

    def count(text: str) -> int:
        return server.client.count_tokens(text, prompt=text) or 0

    def room(section: ModelSection, task: Task) -> Room | None:
        known = replace(section, logprobs="always" if server.weighs else "never")
        stated: Room | None = build_backend("openai", task, known).room  # type: ignore[attr-defined]
        if stated is None:
            return None
        count = stated.count
        return replace(
            stated,
            count=lambda request: count(request) + picture_tokens(request, section),
        )

    counts = count("a few words") > 0
    return Probe("openai", values, server.weighs, count if counts else None, room)


def _probe_weights(values: dict[str, Any]) -> Probe:
    """Weights in this process: their tokenizer and config tell what is asked here; the weights are not loaded."""
    from leverplus.models.hf.load import (
        PACKAGE,
        find_model,
        load_words,
        require_model,
    )
    from leverplus.models.hf.prompts import ModelPrompts

    named = ModelSection(**values)
    require_model(named)
    probe = Probe("hf", values, weighs=True)
    path = Path(named.name).expanduser()
    there = path.exists() or named.name.startswith(PACKAGE)
    packed = path.is_file() and path.stat().st_size > LARGEST_UNPACKED
    if packed or not there:
        return probe
    try:
        folder = find_model(named).folder
        config = json.loads((folder / "config.json").read_bytes())
        tokenizer, processor = load_words(folder)
    except (LeverError, OSError, ValueError):  # said when the model is loaded
        return probe
    context = config.get("text_config", config).get("max_position_embeddings")

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    def room(section: ModelSection, _task: Task) -> Room | None:
        prompts = ModelPrompts(tokenizer, section, processor)

        def needed(request: Request) -> int:
            *demos, query = map(_blind, (*request.demos, request.query))
            bare = Request(query, tuple(demos), ())
            tokens = len(prompts.tokens(prompts.text(bare)))
            return tokens + section.max_new_tokens + picture_tokens(request, section)

        if context:
            return Room(context, "the model", needed)
        return None

    return replace(probe, count=count, room=room)


def _blind(item: Item) -> Item:
    return replace(item, image=None)


def picture_tokens(request: Request, section: ModelSection) -> int:
    """About how many tokens the pictures of a prompt take, by their pixels."""
    total = 0
    for item in (*request.demos, request.query):
        if item.image is not None:
            with Image.open(item.image) as picture:
                pixels = picture.width * picture.height
            if section.image_pixels:
                pixels = min(pixels, section.image_pixels)
            total += max(LEAST_PICTURE, pixels // PIXELS_A_TOKEN)
    return total


def fitting_shots(
    probe: Probe,
    section: ModelSection,
    task: Task,
    shots: Sequence[int],
    say: Say,
    *,
    named: bool,
) -> tuple[int, ...]:
    """The numbers of demonstrations that fit; DataError where those that the user `named` do not.

    A number that was not named is left out where the longest prompt it may lead to does not fit.
    """
    if probe.backend == "world" and not named:
        shots = [count for count in shots if count <= WORLD_READS]
    room = probe.room(section, task)
    if room is None:
        return tuple(shots)
    if named:
        for count in shots:
            if note := room.require(task, count):
                say(note)
        return tuple(shots)
    fit = []
    for count in shots:
        try:
            if not room.require(task, count):
                fit.append(count)
        except DataError:
            break
    if not fit:
        say(room.require(task, 1))
        fit = [1]
    if left := [str(count) for count in shots if count not in fit]:
        say(
            f"rule: prompts with {', '.join(left)} demonstrations are left out, because the longest of them would not "
            f"fit into {room.owner}'s {room.tokens:,} tokens (--shots asks for them all the same)"
        )
    return tuple(fit)


def choose_cut(answers: AnswerKind, items: Sequence[Item]) -> Chosen:
    """How an answer is cut out of the model's words: code out of its fence, JSON out of its sentence, else nothing."""
    wanted = CUTS.get(answers.kind, "plain")
    cut = cut_named(wanted)
    for item in items:
        for answer in item.answers:
            if cut(answer) != answer.strip():
                why = f"answers are taken whole, because the cut {wanted} would change some of yours"
                return Chosen("plain", why)
    return Chosen(wanted, CUT_RULES[wanted])


def choose_length(items: Sequence[Item], count: CountTokens | None) -> Chosen:
    """The most tokens that the model may write: those of the longest answer and a tenth, by its tokenizer if any."""
    answers: set[str] = set()
    for item in items:
        answers.update(item.answers)
    longest = sorted(answers, key=len, reverse=True)[:COUNTED]
    by = "by its tokenizer"
    if count is None:
        count = estimated_tokens
        by = "estimated, because its tokenizer is not at hand"
    tokens = max((count(answer) for answer in longest), default=1)
    written = max(FEWEST_TOKENS, math.ceil(SPARE * tokens) + 2)
    why = f"the model may write {written:,} tokens, because the longest answer has {tokens:,} ({by})"
    return Chosen(written, why)


def estimated_tokens(text: str) -> int:
    """At least about as many tokens as a text has, without its tokenizer.

    >>> estimated_tokens("SELECT name FROM city"), estimated_tokens("北京是中国的首都")
    (9, 16)
    """
    plain = sum(char.isascii() for char in text)
    return math.ceil(plain / LETTERS_A_TOKEN) + 2 * (len(text) - plain)


def choose_template(items: Sequence[Item], *, texts: bool) -> str:
    """The template of plain prompts, with an ending that no answer holds.

    >>> one = Item("1", "q", ("SELECT a\\nFROM t",), "train")
    >>> choose_template([one], texts=False)
    'Question: {question}\\nAnswer: {answer} ###\\n'
    """
    every = "\0".join(own.strip() for item in items for own in item.answers)
    free = ENDINGS[-1]
    for ending in reversed(ENDINGS):
        if (ending.strip() or ending) not in every:
            free = ending
    if not texts:
        return "Question: {question}\nAnswer: {answer}" + free
    return "Text: {question}\nLabel: {answer}" + ("\n\n" if free == "\n" else free)


def choose_instruction(
    answers: AnswerKind | None, labels: Sequence[str], items: Sequence[Item]
) -> str:
    """One sentence that says what an answer looks like; "" where only examples can say it."""
    listed = ", ".join(labels)
    if labels and len(labels) <= LISTED_LABELS and len(listed) <= LISTED_LETTERS:
        return f"Answer with one of: {listed}."
    if labels:
        return "Answer with the label alone."
    if answers is None:
        return INSTRUCTIONS[Kind.PHRASE]
    if answers.kind is Kind.JSON:
        return f"Answer with JSON alone{_keys_named(items)}, without an explanation."
    if answers.kind is Kind.SENTENCE and answers.words <= LONG_SENTENCE:
        return "Answer in one or two sentences."
    return INSTRUCTIONS.get(answers.kind, "")


def _keys_named(items: Sequence[Item]) -> str:
    """The keys that every JSON answer has, in the order of the first; "" where they share none or too many."""
    shared: dict[str, None] | None = None
    every: set[str] = set()
    for item in items:
        for answer in item.answers:
            value = read_json_text(answer)
            if not isinstance(value, Mapping):
                return ""
            keys = dict.fromkeys(map(str, value))
            every.update(keys)
            if shared is None:
                shared = keys
            for key in set(shared) - set(keys):
                del shared[key]
    if not shared or len(shared) > MOST_KEYS:
        return ""
    noun = "keys"
    if len(shared) == 1:
        noun = "key"
    others = ""
    if len(every) > len(shared):
        others = " and others"
    return f", with the {noun} {', '.join(shared)}{others}"


def choose_form(
    probe: Probe, kind: AnswerKind | None, task: Task, items: Sequence[Item], *, texts: bool
) -> tuple[dict[str, Any], str]:  # fmt: skip
    """Instruction and template, where the user set none, and one sentence that describes the prompts."""
    values = probe.values
    yours = probe.values.get("instruction", "")
    if values.get("prompt") == "chat":
        said = "prompts are chats"
        if yours:
            return {}, f"{said}; the instruction is yours, word for word: {yours}"
        labels = getattr(task, "labels", ())
        if instruction := choose_instruction(kind, labels, items):
            return {
                "instruction": instruction
            }, f"{said}; the instruction is: {instruction}"
        return (
            {},
            f"{said}; no instruction, because no sentence says what these answers look like",
        )
    said = "prompts are plain texts: demonstrations one after the other, then the query"
    if yours:
        said += "; your instruction stands before them word for word, and zero-shot is your instruction alone"
    if "template" in values:
        return {}, said
    template = choose_template(items, texts=texts)
    ending = template.partition("{answer}")[2].strip()
    if ending:
        said += f"; an answer ends with {ending}, because answers have several lines"
    return {"template": template}, said


@dataclass(frozen=True)
class SeenExample:
    """One prompt and what came of it. `right` are the reference answers, `cut` is what was judged."""

    query: str
    demos: list[str]
    prompt: str
    raw: str
    cut: str
    right: list[str]
    score: float

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def lines(self) -> list[str]:
        """For a reader: the prompt indented, then the answer in three steps."""
        return [
            f"{self.query}, {len(self.demos)} demonstrations:",
            indent(self.prompt, "    "),
            f"  the model wrote: {self.raw!r}",
            f"  the answer in it: {self.cut!r}",
            f"  right would be: {' | '.join(map(repr, self.right[:3]))}",
            f"  score: {self.score:g}",
        ]


def try_prompts(run: Run, count: int) -> list[SeenExample]:
    """Ask about `count` dev items, with and without demonstrations drawn by chance; what was asked is kept.

    The model is not tested first: this is how to see what is wrong with it.
    """
    rng = np.random.default_rng([run.seed, 53])
    shots = sorted({0, *run.recipe.eval.shots})
    prompts = []
    for place, item in enumerate(run.chosen_items("dev", count)):
        wanted = shots[-1]
        if place % 2:
            wanted = shots[place // 2 % len(shots)]
        others = _others(run, item)
        drawn = rng.permutation(len(others))[:wanted].tolist()
        prompts.append((item.id, tuple(others[row].id for row in drawn)))
    with ScoreStore(run.store_path) as store:
        engine = LocalEngine(run.backend)
        progress = run.show_progress
        scorer = Scorer(run.task, run.backend, store, engine, progress=progress)
        return [_example(run, score) for score in scorer.score(prompts, what="trying")]


def _others(run: Run, query: Item) -> list[Item]:
    return [item for item in run.demonstrations if item.question != query.question]


def first_prompt(run: Run) -> str:
    """A prompt as it will be sent, with the most demonstrations that are shown; nothing is asked, no weights are loaded.

    "" where the model's own files are needed and are not at hand yet, and where none is asked.
    """
    query, *_ = run.chosen_items("dev", 1)
    demos = _others(run, query)[: max(run.recipe.eval.shots)]
    try:
        return prompt_text(run, query, demos)
    except LeverError:
        return ""  # said when the model is loaded


def prompt_text(run: Run, query: Item, demos: Sequence[Item]) -> str:
    """A prompt as one text; of a chat its turns with their roles, pictures left out."""
    backend = run.recipe.score.backend
    section = run.model_section
    written = render_prompt(backend, section, run.task, query, demos)
    if isinstance(written, str):
        return written
    lines = []
    for turn in written:
        content = turn["content"]
        if isinstance(content, str):
            content = [{"text": content}]
        line = f"{turn['role']}:"
        for part in content:
            line += " " + part.get("text", "[picture]")
        lines.append(line)
    return "\n".join(lines)


def examples_seen(run: Run, arm: str, shots: int) -> list[SeenExample]:
    """Some test prompts of an arm as they were asked; those of zero-shot where it was not asked."""
    draws = read_predictions(run.folder / rundir.PREDICTIONS).draws
    asked = draws.get(arm, {}).get(shots)
    if not asked:
        asked = draws.get("zero_shot", {}).get(0, [[]])
    prompts = []
    for own in asked[0][:SEEN]:
        prompts.append((own.item, own.demos))
    return [_example(run, score) for score in run.scorer.known(prompts)]


def _example(run: Run, score: Score) -> SeenExample:
    query = run.task.item(score.query)
    demos = tuple(run.task.item(demo) for demo in score.demos)
    backend: Any = run.backend
    if run.recipe.score.backend in ("openai", "callable"):
        prompt = prompt_text(run, query, demos)
    elif hasattr(backend, "prompt_text"):
        prompt = backend.prompt_text(Request(query, demos, ()))
    else:
        prompt = ""
        for item in demos:
            prompt += f"{item.question} -> {item.answer}\n"
        prompt += query.question
    return SeenExample(
        str(score.query),
        list(map(str, score.demos)),
        prompt,
        score.raw,
        score.answer,
        list(dict.fromkeys(query.answers)),
        score.accuracy,
    )
