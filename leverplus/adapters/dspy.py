"""DSPy: demonstrations chosen for every call of a program's predictors, beside whatever tunes their instructions."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from leverplus.adapters.opening import Columns, matching_fields, open_selector
from leverplus.bundle.demo import Demo
from leverplus.bundle.selector import Selector
from leverplus.errors import LeverError, needs_extra

with needs_extra("the adapter for DSPy"):
    import dspy
    from dspy.predict.parameter import Parameter
    from dspy.teleprompt import Teleprompter

REASONING = "reasoning"
"""The output that DSPy's ChainOfThought adds; no demonstration has one."""


@dataclass(frozen=True)
class Fields:
    """Which fields of a signature hold what of a demonstration; `inputs` and `outputs` are names with their types.

    `question` is the input that holds the question ("": inputs go by the names of the bundle's), `answer` the output
    that holds the whole answer ("": outputs go by the keys of a JSON answer), `image` the picture ("": there is none).
    """

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    question: str
    answer: str
    image: str

    @classmethod
    def of(cls, signature: Any, named: Mapping[str, str | None]) -> Fields | None:
        """Fields by the names given, else by `question` and `answer`, else the only ones; None where named ones lack."""
        inputs = {}
        seen = []
        for name, own in signature.input_fields.items():
            if own.annotation is dspy.Image:
                seen.append(name)
            else:
                inputs[name] = own.annotation
        outputs = {}
        for name, own in signature.output_fields.items():
            if name != REASONING:
                outputs[name] = own.annotation
        question = named["question"] or _usual(inputs, "question")
        answer = named["answer"] or _usual(outputs, "answer")
        if not {question, answer, ""} <= {*inputs, *outputs, ""}:
            return None
        if not inputs or not outputs:
            return None
        image = named["image"] or next(iter(seen), "")
        return cls(inputs, outputs, question, answer, image)

    def example(self, demo: Demo) -> Any:
        """A demonstration as a DSPy example in the types of the signature; LeverError where a text does not fit."""
        given = matching_fields(self.inputs, demo.fields)
        if not given and self.question:
            given = {self.question: demo.question}
        written: dict[str, str] = {}
        with suppress(ValueError, AttributeError):  # no JSON, or no object
            written = matching_fields(self.outputs, json.loads(demo.answer))
        if not written and not self.answer:
            raise LeverError(
                f"the answer of demonstration {demo.id} is one text, and the signature has the outputs "
                f"{', '.join(self.outputs)}; name the one it is with answer="
            )
        kinds = {**self.inputs, **self.outputs}
        values = {}
        texts = {**given, **(written or {self.answer: demo.answer})}
        for name, text in texts.items():
            where = f"{name} of demonstration {demo.id}"
            values[name] = _as_type(text, kinds[name], where)
        if self.image and demo.image is not None:
            given[self.image] = ""
            values[self.image] = dspy.Image(demo.data_url())  # a path is refused there
        return dspy.Example(**values).with_inputs(*given)


def _usual(fields: Mapping[str, Any], usual: str) -> str:
    """The field of the usual name, else the only one; "" where there are several others."""
    if usual in fields:
        return usual
    if len(fields) == 1:
        return next(iter(fields))
    return ""


def _as_type(text: str, kind: Any, where: str) -> Any:
    """A text as the type of a field: true as a truth value, [1, 2] as a list."""
    if kind is str:
        return text
    adapter = TypeAdapter(kind)
    try:
        return adapter.validate_json(text)
    except ValidationError:
        pass
    try:
        return adapter.validate_python(text.strip())
    except ValidationError as error:
        raise LeverError(
            f"{where} is {text[:60]!r}, which is no {getattr(kind, '__name__', kind)}"
        ) from error


class ChosenDemos(Parameter):
    """What chooses the demonstrations of one predictor. `program.save` writes down where its bundle lies, how many are
    shown and the bundle's fingerprint; `program.load` opens that bundle.
    """

    def __init__(self, source: Selector | str | Path, shots: int | None) -> None:
        self.selector = open_selector(source)
        self.shots = shots
        if isinstance(source, Selector):
            source = source.source.folder
        self.source = str(source)

    def reset(self) -> None:
        """Optimisers reset what they tune; the choice is not tuned by them."""

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:  # noqa: ARG002 DSPy's signature
        state = {"source": self.source, "shots": self.shots}
        return {**state, "fingerprint": self.selector.fingerprint}

    def load_state(self, state: Mapping[str, Any], **_options: Any) -> ChosenDemos:
        """Open the bundle that a saved program names; a warning where its demonstrations have changed since."""
        self.selector = open_selector(state["source"])
        self.source = state["source"]
        self.shots = state["shots"]
        if self.selector.fingerprint != state["fingerprint"]:
            warnings.warn(
                f"{self.source} has changed since this program was saved; other demonstrations may be chosen",
                stacklevel=2,
            )
        return self


class WithDemos(dspy.Module):
    """A predictor that is shown demonstrations chosen for each call. They are passed with the call, so threads do not
    see each other's, and win over those that an optimiser put into the predictor; `demos=` of a call wins over both.
    """

    def __init__(
        self, predictor: Any, chosen: ChosenDemos, fields: Fields, *, apart: bool
    ) -> None:
        super().__init__()
        self.predictor = predictor
        self.chosen = chosen
        self.fields = fields
        self.apart = apart
        self.told = False

    def forward(self, **inputs: Any) -> Any:
        if "demos" not in inputs:
            inputs["demos"] = self.demos_for(inputs)
        return self.predictor(**inputs)

    async def aforward(self, **inputs: Any) -> Any:
        if "demos" not in inputs:
            inputs["demos"] = await asyncio.to_thread(self.demos_for, inputs)
        return await self.predictor.acall(**inputs)

    def demos_for(self, inputs: Mapping[str, Any]) -> list[Any]:
        """The demonstrations for a call's inputs as DSPy examples, nearest to the query last."""
        fields = self.fields
        chosen = self.chosen
        image = inputs.get(fields.image)
        asked = {name: own for name, own in inputs.items() if name in fields.inputs}
        asked[fields.image] = getattr(image, "url", image)  # it holds a data URL
        columns = Columns(chosen.selector, fields.question, fields.image)
        found = []
        for demo in columns.choose(asked, chosen.shots, apart=self.apart):
            try:
                found.append(fields.example(demo))
            except LeverError as error:
                warnings.warn(f"{error}; it is not shown", stacklevel=2)
        names = {*fields.inputs, *fields.outputs}
        lacking = [name for name in names if found and name not in found[0]]
        if lacking and not self.told:
            self.told = True
            warnings.warn(
                f"the bundle's demonstrations have nothing for {', '.join(sorted(lacking))}; DSPy says there that it is "
                "not supplied for this example",
                stacklevel=2,
            )
        return found


class LeverFewShot(Teleprompter):
    """Gives the predictors of a program demonstrations that a selector chooses for every call.

    Inputs go by the names of the bundle's named inputs, outputs by the keys of its JSON answers. Where it has one question
    and one answer, `question`, `answer` and `image` name fields of the signatures; unnamed, they are the fields of these
    names, else the only ones, and the first `dspy.Image`. Values take the types of the fields; what a demonstration has
    nothing for is said in a warning. `predictors` names those that get demonstrations (as
    `program.named_predictors()` does); by default all that have such fields. Set `leave_out_itself` when the program is
    optimised or evaluated on examples that the bundle holds too: a query is then never shown itself.
    """

    def __init__(
        self,
        source: Selector | str | Path,
        shots: int | None = None,
        *,
        question: str | None = None,
        answer: str | None = None,
        image: str | None = None,
        predictors: Sequence[str] | None = None,
        leave_out_itself: bool = False,
    ) -> None:
        self.source = source
        self.shots = shots
        self.leave_out_itself = leave_out_itself
        self.names = {"question": question, "answer": answer, "image": image}
        self.predictors = predictors

    def compile(self, student: Any, **_options: Any) -> Any:
        """A copy of the program whose predictors are shown chosen demonstrations; no call of a model is made."""
        program = student.reset_copy()
        named = dict(program.named_predictors())
        found: dict[int, Fields | None] = {}
        for name in self.predictors or named:
            if name not in named:
                raise LeverError(
                    f"the program has no predictor '{name}'; it has {', '.join(named)}"
                )
            own = named[name]
            found[id(own)] = Fields.of(own.signature, self.names)
        if not any(found.values()):
            raise LeverError(
                f"no predictor ({', '.join(named)}) has fields for a question and an answer; name them"
            )

        def wrapped(predictor: Any) -> Any:
            fields = found.get(id(predictor))
            if fields is None:
                return predictor
            chosen = ChosenDemos(self.source, self.shots)
            return WithDemos(predictor, chosen, fields, apart=self.leave_out_itself)

        if isinstance(program, dspy.Predict):
            return wrapped(program)
        program.map_named_predictors(wrapped)
        return program
