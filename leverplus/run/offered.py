"""Does the model offer what the rewards of a recipe read?"""

from __future__ import annotations

from collections.abc import Sequence

from leverplus import catalog
from leverplus.data.types import ItemId, Reference, Score
from leverplus.errors import NotMeasured, ScoringError
from leverplus.learn.maths.rewards import Evidence, Weights
from leverplus.models.base import Backend


def require_offered(backend: Backend, modes: Sequence[str], quality: str) -> None:
    """Refuse rewards that need log-probabilities of a backend that has none."""
    if getattr(backend, "weighs", True):
        return
    needing = [
        mode for mode in modes if _needs_logprobs(mode, Weights(quality=quality))
    ]
    if needing:
        key = (
            f'reward.mode = "{needing[0]}"'
            if len(modes) == 1
            else f'reward.components with "{needing[0]}"'
        )
        raise ScoringError(
            f"{key} needs log-probabilities of given answers, which this server does not offer; nothing was scored: "
            'set reward.mode = "soft_only" (and take out reward.components), or use a server that echoes prompts with '
            "log-probabilities, such as vLLM"
        )


def _needs_logprobs(mode: str, weights: Weights) -> bool:
    """Whether a reward raises when all but log-probabilities is known."""
    score = Score(
        ItemId("q"),
        (ItemId("d"),),
        "a",
        "a",
        1.0,
        True,
        (Reference("a", 1, None),),
        1.0,
        1.0,
        1,
        0.0,
    )
    reward = catalog.load(catalog.REWARDS, mode, "reward")
    try:
        reward(
            Evidence(
                score, prefix=score, log_mu=-1.0, rivals=(score, score), expected=1.0
            ),
            weights,
        )
    except NotMeasured:
        return True
    return False
