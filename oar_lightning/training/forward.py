"""The policy's log-probabilities and entropies of completions."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.policy.language_model import base_model, token_logprobs
from oar_lightning.training.method import Method
from oar_lightning.types import Rollouts


def completion_logprobs(
    model: Any, rollouts: Rollouts, method: Method, states: Tensor | None = None, decoder: Any = None
) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]]:
    """Log-probabilities and entropies in nats of the response tokens, at the temperature that sampled them.

    `states`: prediction states that an earlier pass has left; `decoder`: in place of the model's own.
    """
    return token_logprobs(
        model,
        rollouts.token_ids,
        rollouts.attention_mask,
        rollouts.response_mask,
        temperature=method.sampling.temperature,
        entropy_grad=method.entropy_grad,
        states=states,
        decoder=decoder,
    )


class UpdateForward:
    """The update's forward pass, whose decoder is compiled at its first call where `update.compile` asks for it."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._decoder: Any = None

    def __call__(self, rollouts: Rollouts, method: Method) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]]:
        if method.update.compile and self._decoder is None:
            # dynamic: lengths differ from pass to pass
            self._decoder = torch.compile(base_model(self.model).get_decoder(), dynamic=True)
        return completion_logprobs(self.model, rollouts, method, decoder=self._decoder)
