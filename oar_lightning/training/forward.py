"""The policy's log-probabilities and entropies of completions."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.policy.decoder import PlainDecoder, choose_decoder, has_learning_decoder, learning_decoder, states_before
from oar_lightning.policy.language_model import base_model
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.training.method import Method
from oar_lightning.training.precision import update_precision
from oar_lightning.training.shared_prompts import Prompts, worth_sharing
from oar_lightning.types import Rollouts


def completion_logprobs(
    model: Any, rollouts: Rollouts, method: Method, states: Tensor | None = None, decoder: Any = None
) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]]:
    """Log-probabilities and entropies in nats of the response tokens, at the temperature that sampled them.

    `states`: see `token_logprobs`; `decoder`: in place of the model's own.
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
    """The update's forward pass: through the plain form of the decoder where it has one with gradients, else through its own
    modules, which are compiled at the first call where `update.compile` asks for it.

    Args:
        model: the policy.
        same_order: whether the gradients of all ranks have to come in the same order, as for DeepSpeed's buckets. Then every
            pass goes through the modules, as that of a rank without rows does.
    """

    def __init__(self, model: Any, same_order: bool = False) -> None:
        self.model = model
        self._compiled: Any = None
        self._plain: bool | None = False if same_order else None

    def __call__(
        self, rollouts: Rollouts, method: Method, states: Float[Tensor, "k H"] | None = None
    ) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B S"]]:
        """`states`: those that predict the response tokens, where `SharedPrompts` has made them."""
        with update_precision(method.update, rollouts.token_ids.device):
            if states is not None:
                return completion_logprobs(self.model, rollouts, method, states=states)
            if method.update.compile:
                if self._compiled is None:  # dynamic: lengths differ from pass to pass
                    self._compiled = torch.compile(base_model(self.model).get_decoder(), dynamic=True)
                return completion_logprobs(self.model, rollouts, method, decoder=self._compiled)
            return completion_logprobs(self.model, rollouts, method, states=self._plain_states(rollouts))

    def prompts(self, rollouts: Rollouts, rows: Int[Tensor, " n"], method: Method) -> Prompts | None:
        """The prompts of these rows of an optimizer step, where they are to be `SharedPrompts`."""
        update = method.update
        if update.compile or update.budget.auto:  # whose passes may be made again
            return None
        with update_precision(update, rollouts.token_ids.device):
            if not (self._is_plain() and has_learning_decoder(self.model)):
                return None
        return worth_sharing(rollouts, rows, update.microbatches, update.budget.tokens)

    def _is_plain(self) -> bool:
        if self._plain is None:  # compares the two forms
            self._plain = isinstance(choose_decoder(self.model), PlainDecoder)
        return self._plain

    def _plain_states(self, rollouts: Rollouts) -> Float[Tensor, "k H"] | None:
        decoder = learning_decoder(self.model) if self._is_plain() else None
        if decoder is None:
            return None
        return states_before(self.model, decoder, rollouts.token_ids, rollouts.attention_mask, rollouts.response_mask)
