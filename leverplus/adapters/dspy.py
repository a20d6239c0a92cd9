"""DSPy: demonstrations chosen for every call of a program's predictors, beside whatever tunes their instructions."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverplus.adapters.opening import apart_from, as_picture, folder_of, open_selector, require_framework
from leverplus.errors import LeverError
from leverplus.selector.demo import Demo
from leverplus.selector.selector import Selector

require_framework("dspy", "dspy")
import dspy  # noqa: E402 after the sentence about what is missing
from dspy.predict.parameter import Parameter  # noqa: E402
from dspy.teleprompt import Teleprompter  # noqa: E402


@dataclass(frozen=True)
class Fields:
    """Which fields of a signature hold a demonstration's question, answer and picture (None: no picture)."""

    question: str
    answer: str
    image: str | None

    @classmethod
    def of(cls, signature: Any, *, question: str | None, answer: str | None, image: str | None) -> Fields | None:
        """Fields by name, else the first text that goes in, the last field that comes out, and the first picture."""
        inputs, outputs = signature.input_fields, signature.output_fields
        seen = [name for name, field in inputs.items() if field.annotation is dspy.Image]
        image = image or next(iter(seen), None)
        question = question or next((name for name in inputs if name not in seen), None)
        answer = answer or next(reversed(outputs), None)
        if question not in inputs or answer not in outputs or question is None or answer is None:
            return None
        return cls(question, answer, image if image in inputs else None)


class ChosenDemos(Parameter):
    """What chooses the demonstrations of one predictor. `program.save` writes down where its bundle lies, how many are
    shown and the bundle's fingerprint; `program.load` opens that bundle.
    """

    def __init__(self, source: Selector | str | Path, shots: int | None, *, leave_out_itself: bool) -> None:
        self.selector = open_selector(source)
        self.source = folder_of(self.selector) if isinstance(source, Selector) else str(source)
        self.shots = self.selector.check_shots(self.selector.shots if shots is None else shots)
        self.leave_out_itself = leave_out_itself

    def reset(self) -> None:
        """Optimisers reset what they tune; the choice is not tuned by them."""

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:  # noqa: ARG002 DSPy's signature
        return {"source": self.source, "shots": self.shots, "fingerprint": self.selector.fingerprint}

    def load_state(self, state: Mapping[str, Any], **_options: Any) -> ChosenDemos:
        """Open the bundle that a saved program names; a warning where its demonstrations have changed since."""
        selector = open_selector(state["source"])
        self.shots = selector.check_shots(state["shots"])
        self.selector, self.source = selector, state["source"]
        if selector.fingerprint != state["fingerprint"]:
            warnings.warn(
                f"{self.source} has changed since this program was saved (fingerprint {state['fingerprint']} then, "
                f"{selector.fingerprint} now); other demonstrations may be chosen",
                stacklevel=2,
            )
        return self

    def choose(self, question: str, image: Any) -> Sequence[Demo]:
        allowed = apart_from(question, image) if self.leave_out_itself else None
        return self.selector.select(question=question, image=image, shots=self.shots, allowed=allowed)


class WithDemos(dspy.Module):
    """A predictor that is shown demonstrations chosen for each call. They are passed with the call, so threads do not
    see each other's, and win over those that an optimiser put into the predictor; `demos=` of a call wins over both.
    """

    def __init__(self, predictor: Any, chosen: ChosenDemos, fields: Fields) -> None:
        super().__init__()
        self.predictor, self.chosen, self.fields = predictor, chosen, fields

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
        if inputs.get(fields.question) is None:
            raise LeverError(f"the call has no '{fields.question}', by which demonstrations are chosen")
        image = inputs.get(fields.image) if fields.image else None
        image = getattr(image, "url", image)  # dspy.Image holds a data URL
        return [self._example(demo) for demo in self.chosen.choose(str(inputs[fields.question]), as_picture(image))]

    def _example(self, demo: Demo) -> Any:
        fields = self.fields
        given: dict[str, Any] = {fields.question: demo.question}
        if fields.image and demo.picture is not None:
            given[fields.image] = dspy.Image(demo.data_url())  # a path is refused there
        return dspy.Example(**given, **{fields.answer: demo.answer}).with_inputs(*given)


class LeverFewShot(Teleprompter):
    """Gives the predictors of a program demonstrations that a selector chooses for every call.

    `question`, `answer` and `image` name fields of the signatures; unnamed, they are the first text that goes in, the
    last field that comes out and the first `dspy.Image`. `predictors` names those that get demonstrations (as
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
        self.source, self.shots, self.leave_out_itself = source, shots, leave_out_itself
        self.names = {"question": question, "answer": answer, "image": image}
        self.predictors = predictors

    def compile(
        self,
        student: Any,
        *,
        trainset: Any = None,  # noqa: ARG002 DSPy's signature: the bundle holds the demonstrations
        teacher: Any = None,  # noqa: ARG002
        valset: Any = None,  # noqa: ARG002
        **_options: Any,
    ) -> Any:
        """A copy of the program whose predictors are shown chosen demonstrations; no call of a model is made."""
        program = student.reset_copy()
        named = dict(program.named_predictors())
        if self.predictors is not None and (unknown := set(self.predictors) - set(named)):
            raise LeverError(f"the program has no predictor '{sorted(unknown)[0]}'; it has {', '.join(named)}")
        wanted = {id(named[name]) for name in (self.predictors or named)}
        fit = {id(predictor): self._fields(predictor) for predictor in named.values() if id(predictor) in wanted}
        if not any(fit.values()):
            said = "; ".join(str(predictor.signature.signature) for predictor in named.values()) or "none"
            raise LeverError(f"no predictor has fields for a question and an answer (signatures: {said}); name them")
        if isinstance(program, dspy.Predict):
            return self._wrapped(program, fit[id(program)])
        program.map_named_predictors(lambda predictor: self._wrapped(predictor, fit.get(id(predictor))))
        return program

    def _fields(self, predictor: Any) -> Fields | None:
        return Fields.of(predictor.signature, **self.names)

    def _wrapped(self, predictor: Any, fields: Fields | None) -> Any:
        if fields is None:
            return predictor
        chosen = ChosenDemos(self.source, self.shots, leave_out_itself=self.leave_out_itself)
        return WithDemos(predictor, chosen, fields)
