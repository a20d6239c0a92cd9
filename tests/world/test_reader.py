"""Reading in batches is checked against one whole forward pass a prompt, which remembers nothing."""

from __future__ import annotations

import pytest
import torch

from leverplus_lab.world.model import ModelConfig, PromptItems, TinyLVLM, read_prompts
from leverplus_lab.world.words import ANSWER_END, ANSWER_START, END, VOCABULARY

ITEMS, REFERENCES = 30, 3


@pytest.fixture(scope="module")
def model() -> TinyLVLM:
    """A small model with weights large enough that every token matters."""
    torch.manual_seed(3)
    model = TinyLVLM(ModelConfig(width=24, layers=3, heads=3, channels=(4, 4, 4, 4)))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.eval()


@pytest.fixture(scope="module")
def table() -> PromptItems:
    generator = torch.Generator().manual_seed(4)
    return PromptItems(
        torch.randn(ITEMS, 2, 24, generator=generator),
        torch.randint(ANSWER_END, len(VOCABULARY), (ITEMS, 4), generator=generator),
        torch.randint(ANSWER_START, ANSWER_END, (ITEMS, 2), generator=generator),
    )


def whole_pass(
    model: TinyLVLM, table: PromptItems, query: int, demos: list[int], said: list[int]
) -> torch.Tensor:
    parts = [
        model.item_inputs(
            table.seen[d : d + 1], table.question[d : d + 1], table.answer[d : d + 1]
        )
        for d in demos
    ]
    parts.append(
        model.item_inputs(
            table.seen[query : query + 1], table.question[query : query + 1], None
        )
    )
    parts.append(model.words(torch.tensor([said], dtype=torch.long)))
    inputs = torch.cat(parts, 1)
    x = inputs + model.positions.weight[: inputs.shape[1]]
    for block in model.blocks:
        parts = block.into(block.norm_attention(x)).chunk(
            3, -1
        )  # queries, keys, values
        heads = [
            part.unflatten(-1, (block.heads, -1)).transpose(1, 2) for part in parts
        ]
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + block.out(mixed.transpose(1, 2).flatten(2))
        x = x + block.down(torch.nn.functional.gelu(block.up(block.norm_mlp(x))))
    return model.word_logits(model.norm(x)[0]).log_softmax(-1)


@torch.inference_mode()
def plainly(
    model: TinyLVLM,
    table: PromptItems,
    query: int,
    demos: list[int],
    references: list[list[int]],
) -> tuple[list[int], list[float]]:
    word = (
        int(
            whole_pass(model, table, query, demos, [])[
                -1, ANSWER_START:ANSWER_END
            ].argmax()
        )
        + ANSWER_START
    )
    last = (
        int(whole_pass(model, table, query, demos, [word])[-1, END:ANSWER_END].argmax())
        + END
    )
    logprobs = []
    for first, second in references:
        steps = whole_pass(model, table, query, demos, [first])
        logprobs.append(float(steps[-2, first] + steps[-1, second]))
    return [word, last], logprobs


def prompts(
    shots: int, count: int = 24
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prompts in which leading demonstrations repeat, and references that share first words or are repeated."""
    generator = torch.Generator().manual_seed(shots)
    query = torch.randint(20, ITEMS, (count,), generator=generator)
    rows = [torch.randperm(20, generator=generator)[:shots] for _ in range(count)]
    demos = torch.stack(rows) if shots else torch.empty(count, 0, dtype=torch.long)
    if shots > 1:
        demos[: count // 2, :-1] = demos[0, :-1]
    references = torch.randint(
        ANSWER_START, ANSWER_END, (count, REFERENCES, 2), generator=generator
    )
    references[::2, 1, 0] = references[::2, 0, 0]
    references[::3, 2] = references[::3, 0]
    references[1::4, 0, 1] = END
    return query, demos, references


@pytest.mark.slow
@pytest.mark.parametrize("shots", [0, 1, 3, 8])
def test_a_batch_says_what_whole_passes_say(model, table, shots) -> None:
    query, demos, references = prompts(shots)
    reading = read_prompts(model, table, query, demos, references)
    for row in range(len(query)):
        answer, logprobs = plainly(
            model, table, int(query[row]), demos[row].tolist(), references[row].tolist()
        )
        assert reading.answer[row].tolist() == answer
        assert reading.logprobs[row].tolist() == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("shots", [0, 2])
def test_company_and_order_change_nothing(model, table, shots) -> None:
    query, demos, references = prompts(shots)
    together = read_prompts(model, table, query, demos, references)
    order = torch.randperm(len(query), generator=torch.Generator().manual_seed(9))
    shuffled = read_prompts(model, table, query[order], demos[order], references[order])
    assert torch.equal(shuffled.answer, together.answer[order])
    torch.testing.assert_close(
        shuffled.logprobs, together.logprobs[order], atol=1e-4, rtol=0
    )
    for row in (0, 5):
        part = slice(row, row + 1)
        alone = read_prompts(model, table, query[part], demos[part], references[part])
        torch.testing.assert_close(
            alone.logprobs, together.logprobs[part], atol=1e-4, rtol=0
        )


def test_every_part_of_a_prompt_matters(model, table) -> None:
    query, demos, references = prompts(2, 4)
    before = read_prompts(model, table, query, demos, references).logprobs
    assert not torch.allclose(
        read_prompts(model, table, query, demos.flip(1), references).logprobs, before
    )
    for name in ("seen", "question", "answer"):
        block = getattr(table, name).clone()
        block[:20] = block[:20].roll(1, 0)
        changed = PromptItems(**{**vars(table), name: block})
        assert not torch.allclose(
            read_prompts(model, changed, query, demos, references).logprobs, before
        ), name


def test_shared_demonstrations_and_shared_first_words_are_computed_once(
    model, table
) -> None:
    query = torch.tensor([20, 21, 22])
    references = torch.tensor([[[5, 6], [5, END]]] * 3)
    demos = torch.tensor([[1, 2], [1, 2], [1, 3]])
    reading = read_prompts(model, table, query, demos, references)
    items, words = (
        1 + 2,
        sum(1 if int(answer[0]) == 5 else 2 for answer in reading.answer),
    )
    assert reading.tokens == items * 9 + 3 * 7 + words


@pytest.mark.slow
def test_log_probabilities_of_all_answers_sum_to_one(model, table) -> None:
    """First word times second word, over the whole vocabulary: nothing is lost between prompt and branches."""
    words = torch.arange(len(VOCABULARY))
    references = torch.cartesian_prod(words, words)[None]
    reading = read_prompts(
        model, table, torch.tensor([25]), torch.tensor([[3, 4]]), references
    )
    assert float(reading.logprobs.exp().sum()) == pytest.approx(1.0, abs=1e-4)
