"""What an arm may learn from: examples with their answers and vectors; a run adds what was trained and asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from leverplus.arms.base import ArmUnavailable, Rows
from leverplus.arms.corpus import Corpus, Queries, forbidden_positions, words_digest
from leverplus.arms.settings import PoolSection
from leverplus.arms.similarity import rows as vector_rows
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Demos, Item, Score
from leverplus.encode.base import Vectors

if TYPE_CHECKING:
    from leverplus.arms.effects import Ranking
    from leverplus.arms.labels import Labels


class Training:
    """Labelled examples alone: nothing was asked and nothing is trained. What is costly is computed once and kept.

    >>> from leverplus.arms.spec import open_arm
    >>> # arm = open_arm("by_answer").fit(Training(items, vectors, rules))
    """

    pool = PoolSection()
    """The first stage of a trained selector."""
    pool_seed = 0
    live: Any = None
    """Embeds items anew, for selectors with adapters in the embedder; else None."""

    shots: Sequence[int] = (1,)
    """The numbers of examples that will be shown."""

    def __init__(
        self,
        items: Sequence[Item],
        vectors: Vectors,
        rules: AnswerRules,
        corpus: Corpus | None = None,
    ) -> None:
        self.items = items
        self.vectors = vectors
        self.rules = rules
        self.corpus = corpus or Corpus.of_items(items, vectors, rules)

    @cached_property
    def text_share(self) -> float:
        """Share of the question in a similarity of question and picture; 1 where there are no pictures."""
        return self.corpus.weight(0.5)

    @cached_property
    def labels(self) -> Labels | None:
        """What labels predict; None where answers are no labels."""
        from leverplus.arms.labels import learn_labels

        return learn_labels(self.corpus)

    def asked(self, rows: Sequence[int]) -> Queries:
        """Some of the examples as questions, which are never shown themselves nor another one on their picture."""
        items = [self.items[row] for row in rows]
        return Queries(
            items,
            vector_rows(self.vectors, list(rows)),
            forbidden_positions(items, self.items),
            digest_of=lambda item: words_digest(item.question, None),
        )

    def ask(
        self,
        queries: Queries,  # noqa: ARG002
        lists: Sequence[Sequence[Rows]],  # noqa: ARG002
        what: str,
    ) -> list[list[Score]]:
        """What the frozen model answers to questions with each of their lists; these are calls of training."""
        raise ArmUnavailable(
            f"{what} takes the model's answers to some training questions, and no model is asked here; use `lever fit`"
        )

    def policy(self) -> Any:
        """The trained selector of a run; None without one."""
        return None

    def effects(self) -> Ranking:
        """The ranking by labels, similarity and measured effects; ArmUnavailable where too little was measured."""
        raise ArmUnavailable("effects are measured by asking a model; use `lever fit`")

    def fixed_lists(self) -> Mapping[int, Demos]:
        """The lists that a pilot found best for everybody, by their length; empty without a pilot."""
        return {}
