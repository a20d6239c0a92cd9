"""Reads prompts in batches: branches of the prompt tree first, then the ends of prompts with their answers.

Keys and values of a branch stay on the device while its children are read. All answers to be weighed after a prompt are
read in the same pass as its end, side by side: each attends to the prompt and itself, none to another. Letters are
those of batch.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from leverplus import catalog
from leverplus.errors import ScoringError
from leverplus.models.hf.batch import (
    BatchRow,
    Kept,
    Sheet,
    batch_rows,
    batches,
    distances,
    visible,
)
from leverplus.models.hf.language import Language
from leverplus.models.hf.pictures import out_of_memory
from leverplus.models.hf.tree import Node, Prompt, grow

HEAD_ROWS = 4096
"""Places whose next-token distribution is computed together: logits over a large vocabulary take much memory."""

MOST_TOKENS = 1 << 17
"""The largest batch: beyond it nothing gets faster."""

FEWEST_TOKENS = 1024
"""The smallest batch that is tried when the memory of the device is too small for more."""


@dataclass(frozen=True)
class Beams:
    """How many beginnings are kept, and the exponent by which the length of an ending counts."""

    count: int = 1
    penalty: float = 1.0


@dataclass(frozen=True)
class PromptReading:
    """What came of a prompt: one log-probability per answer, the tokens written, and the number of tokens computed for
    it, its share of common branches included."""

    logprobs: tuple[float, ...]
    written: tuple[int, ...]
    tokens: float


@dataclass(frozen=True)
class _Job:
    """What is read, how much is to be written, and what was found so far."""

    prompts: Sequence[Prompt]
    new_tokens: int
    stops: frozenset[int]
    beams: Beams
    logprobs: dict[int, tuple[float, ...]] = field(default_factory=dict)
    written: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _End:
    """A prompt that ends in a batch: its number, the row and the last column of its node."""

    number: int
    row: int
    last: int


def tokens_that_fit(language: Language) -> int:
    """How many tokens to read at once: by the free memory of a GPU, and few on a CPU, where more are not faster."""
    if language.device.type != "cuda":
        return 2048
    config = language.config
    heads = config.num_attention_heads
    hidden = config.hidden_size
    width = getattr(config, "head_dim", None) or hidden // heads
    # Numbers for one token: keys and values of all layers, of the batch and of what it attends to; and of one layer
    # the states on both sides of the wide part and beside it.
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    kept = 4 * 2 * config.num_hidden_layers * key_heads * width
    passing = 3 * getattr(config, "intermediate_size", 4 * hidden) + 12 * hidden
    free, _ = torch.cuda.mem_get_info(language.device)
    fit = 0.4 * free / ((kept + passing) * language.output.weight.element_size())
    # the largest power of two that is not above it
    power = 1 << max(0, int(fit).bit_length() - 1)
    return min(MOST_TOKENS, max(FEWEST_TOKENS, power))


class Reader:
    """Reads prompts with one model. `share` = False computes every prompt on its own, in batches too.

    Where the memory of the device is too small for a batch, `batch_tokens` is halved and the prompts are read again.
    """

    def __init__(
        self,
        language: Language,
        *,
        batch_tokens: int,
        share: bool = True,
        beams: Beams | None = None,
    ) -> None:
        self.language = language
        self.beams = beams or Beams()
        self.batch_tokens = batch_tokens
        self.share = share

    def read(
        self,
        prompts: Sequence[Prompt],
        new_tokens: int,
        stops: frozenset[int] = frozenset(),
    ) -> list[PromptReading]:
        """One reading per prompt, in order; at most `new_tokens` tokens are written, up to a token of `stops`."""
        while True:
            try:
                return self._read(_Job(prompts, new_tokens, stops, self.beams))
            except RuntimeError as error:  # OutOfMemoryError is one
                if not out_of_memory(error):
                    raise
                if self.batch_tokens <= FEWEST_TOKENS:
                    raise ScoringError(
                        f"the memory of {self.language.device} is too small for this model even with "
                        f"{self.batch_tokens} tokens at once; use a smaller model, model.dtype = bfloat16, smaller "
                        "pictures (model.image_pixels), or stop what else runs there"
                    ) from error
            # Only here, after the `except` block: the error holds the tensors of what was read so far until it ends.
            self.batch_tokens = max(FEWEST_TOKENS, self.batch_tokens // 2)
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def _read(self, job: _Job) -> list[PromptReading]:
        roots = grow(job.prompts, share=self.share)
        self._descend(batch_rows(roots, job.prompts), None, job)
        spent = [0.0] * len(job.prompts)
        share_cost(roots, spent)
        readings = []
        for number, prompt in enumerate(job.prompts):
            logprobs = job.logprobs[number]
            written = job.written[number]
            # The last token of what is written or weighed is only predicted, never read.
            read = max(0, len(written) - 1)
            read += sum(len(answer) - 1 for answer in prompt.answers)
            readings.append(PromptReading(logprobs, written, spent[number] + read))
        return readings

    def _descend(self, rows: Sequence[BatchRow], kept: Kept | None, job: _Job) -> None:
        """Read nodes of the tree and all below them, depth first, so that few keys and values are kept at a time."""
        for batch in batches(rows, self.batch_tokens):
            past = None
            if kept is not None:
                past = kept.rows(self._index([row.parent for row in batch]))
            hidden, now = self._pass(Sheet.of(batch, job.prompts), past)
            ends: list[_End] = []
            for place, row in enumerate(batch):
                if row.node.prompt is not None:
                    ends.append(_End(row.node.prompt, place, row.node.length - 1))
            if ends:
                self._weigh(ends, hidden, job)
                self._write(ends, hidden, now, job)
            del hidden, past  # frees their memory before the children are read
            children: list[BatchRow] = []
            for place, row in enumerate(batch):
                children += batch_rows(
                    row.node.children, job.prompts, place, row.depth + row.length
                )
            if children:
                self._descend(children, now, job)

    def _pass(self, sheet: Sheet, past: Kept | None) -> tuple[Tensor, Kept]:
        """Hidden states (B, L, D) of a sheet, and what is kept with it."""
        branch = self._tensor(sheet.branches)  # (B, L)
        places = self._tensor(sheet.places)  # (B, L)
        # Without a mask attention takes its fast causal path; what is kept may then hide nothing.
        hidden_before = past is not None and not past.whole
        mask = visible(branch, past) if hidden_before or not sheet.is_plain else None
        distance = distances(places, past) if self.language.window else None
        layers = None if past is None else past.layers
        embedded = self.language.embed(sheet.codes)
        hidden, layers = self.language.run(
            embedded, self._tensor(sheet.positions), mask, distance, layers
        )
        # later rows attend to the prompt, not to its answers or padding
        seen = branch == 0
        if past is None:
            return hidden, Kept(layers, seen, places, sheet.is_whole)
        return hidden, past.joined(layers, seen, places, whole=sheet.is_whole)

    def _weigh(self, ends: Sequence[_End], hidden: Tensor, job: _Job) -> None:
        """Find the log-probability of every answer of the prompts that end in a batch; `hidden` (B, L, D)."""
        # For every token of every answer: the row and column that predict it, and the token.
        rows: list[int] = []
        columns: list[int] = []
        targets: list[int] = []
        for end in ends:
            column = end.last + 1
            for answer in job.prompts[end.number].answers:
                rows += [end.row] * len(answer)
                # The prompt's last place predicts the first token, each token of the answer the one after it.
                columns += [end.last, *range(column, column + len(answer) - 1)]
                targets += answer
                column += len(answer) - 1
        values = self._token_logprobs(hidden, rows, columns, targets)
        start = 0
        for end in ends:
            logprobs = []
            for answer in job.prompts[end.number].answers:
                total = float(values[start : start + len(answer)].sum())
                logprobs.append(min(0.0, total))  # rounding may lift one above 0
                start += len(answer)
            job.logprobs[end.number] = tuple(logprobs)

    def _token_logprobs(
        self,
        hidden: Tensor,
        rows: Sequence[int],
        columns: Sequence[int],
        targets: Sequence[int],
    ) -> np.ndarray:
        """The log-probability of each target after its place, in float64 on the host."""
        parts = []
        for start in range(0, len(rows), HEAD_ROWS):
            part = slice(start, start + HEAD_ROWS)
            # (N, D), (N, V), (N,)
            states = hidden[self._index(rows[part]), self._index(columns[part])]
            logits = self.language.head(states).float()
            chosen = logits.gather(1, self._index(targets[part])[:, None]).squeeze(1)
            parts.append((chosen - logits.logsumexp(1)).double().cpu())
        if parts:
            return torch.cat(parts).numpy()
        return np.zeros(0)

    def _write(
        self, ends: Sequence[_End], hidden: Tensor, kept: Kept, job: _Job
    ) -> None:
        """Let the model write after each prompt that ends in a batch, up to and with a stop token."""
        written: list[list[int]] = [[] for _ in ends]
        if job.new_tokens:
            rows = self._index([end.row for end in ends])
            last = self._index([end.last for end in ends])
            logits = self.language.head(hidden[rows, last])  # (ends, V)
            if len(ends) < hidden.shape[0]:
                kept = kept.rows(rows)
            following = []
            for end in ends:
                prompt = job.prompts[end.number]
                rotary = int(prompt.positions[:, -1].max()) + 1
                following.append([rotary, len(prompt.codes)])
            after = self._index(following)  # (ends, 2)
            if job.beams.count > 1:
                written = self._write_by_beams(logits, after, kept, job)
            else:
                self._write_greedily(written, logits.argmax(1), after, kept, job)
        for end, tokens in zip(ends, written, strict=True):
            job.written[end.number] = tuple(tokens)

    def _write_greedily(
        self,
        written: list[list[int]],
        tokens: Tensor,
        after: Tensor,
        kept: Kept,
        job: _Job,
    ) -> None:
        """Append the most probable tokens to every row of `written`; rows that are done leave the batch.

        `tokens` (rows,) are the first ones, `after` (rows, 2) is the next rotary position and place of each row.
        """
        alive = list(range(len(written)))
        dims = job.prompts[0].positions.shape[0]
        for step in range(job.new_tokens):
            values = tokens.tolist()
            for order, value in zip(alive, values, strict=True):
                written[order].append(value)
            going = [row for row, value in enumerate(values) if value not in job.stops]
            if step == job.new_tokens - 1 or not going:
                return
            if len(going) < len(alive):
                index = self._index(going)
                alive = [alive[row] for row in going]
                kept = kept.rows(index)
                tokens = tokens[index]
                after = after[index]
            logits, kept = self._step(tokens, after + step, dims, kept)
            tokens = logits.argmax(1)

    def _write_by_beams(
        self, logits: Tensor, after: Tensor, kept: Kept, job: _Job
    ) -> list[list[int]]:
        """The best tokens of a beam search after every row; `after` as in `_write_greedily`."""
        dims = job.prompts[0].positions.shape[0]
        state = [kept]  # a list, so that `advance` can replace what is kept

        def advance(
            rows: Sequence[int], tokens: Sequence[int], owners: Sequence[int], step: int
        ) -> Tensor:
            at = after[self._index(owners)] + step
            found, state[0] = self._step(
                self._index(tokens), at, dims, state[0].rows(self._index(rows))
            )
            return found.float().log_softmax(-1)

        search = catalog.load(catalog.WRITING, "beams", "way of writing")
        found = search(
            logits.float().log_softmax(-1),
            advance,
            job.beams,
            job.new_tokens,
            job.stops,
        )
        return [list(tokens) for tokens in found]

    def _step(
        self, tokens: Tensor, after: Tensor, dims: int, kept: Kept
    ) -> tuple[Tensor, Kept]:
        """Next-token logits (rows, V) after one more token (rows,); `after` (rows, 2) as in `_write_greedily`."""
        branch = torch.zeros_like(tokens)[:, None]  # (rows, 1)
        places = after[:, 1:]  # (rows, 1)
        distance = distances(places, kept) if self.language.window else None
        rotary = after[None, :, :1].expand(dims, -1, -1)  # (P, rows, 1)
        embedded = self.language.embed_tokens(tokens[:, None])
        mask = None if kept.whole else visible(branch, kept)
        hidden, layers = self.language.run(
            embedded, rotary, mask, distance, kept.layers
        )
        kept = kept.joined(layers, branch == 0, places, whole=True)
        return self.language.head(hidden[:, 0]), kept

    def _index(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.language.device)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.language.device)


def share_cost(nodes: Sequence[Node], spent: list[float]) -> list[int]:
    """Add the tokens of every branch to the prompts below it, divided among them; returns these prompts."""
    below: list[int] = []
    for node in nodes:
        own = [] if node.prompt is None else [node.prompt]
        own += share_cost(node.children, spent)
        for number in own:
            spent[number] += node.length / len(own)
        below.extend(own)
    return below
