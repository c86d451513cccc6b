"""A model that a component trains by itself, beside the policy."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.credit.predictions import logprobs_of_rows, response_logprobs
from oar_lightning.distributed.ranks import add_up
from oar_lightning.policy.language_model import turn_dropout_off
from oar_lightning.policy.lm_head import in_shards
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Rollouts

log = logging.getLogger(__name__)

ChunkLoss = Callable[[Int[Tensor, " n"], Float[Tensor, "n S"]], Tensor]
"""(rows, their log-probabilities in the columns of all rows) -> their part of a loss."""


class OwnModel:
    """A copy of the policy with an AdamW of its own (no weight decay, constant rate), of which the trainer knows nothing.

    Weights that the policy does not train are the policy's own tensors. Every rank holds the others: gradients are summed over
    the ranks, so copies stay equal. Weights of 16 bits are rounded from float32 ones, which the optimizer moves. There is no
    dropout.

    Args:
        lr: learning rate.
        max_norm: the gradient norm above which gradients are scaled down.
        budget: bounds the passes.
    """

    def __init__(self, lr: float, max_norm: float, budget: TokenBudget) -> None:
        self.lr = lr
        self.max_norm = max_norm
        self.budget = budget
        self.steps = 0
        """Optimizer steps so far."""
        self.temperature = 1.0
        """Of its log-probabilities."""
        self.model: Any = None
        self._trained: dict[str, torch.nn.Parameter] = {}
        self._masters: dict[str, torch.nn.Parameter] = {}
        self._optimizer: torch.optim.Optimizer | None = None
        self._saved: dict[str, Any] = {}

    def begin(self, policy: Any) -> None:
        """Copy the policy, or go on from a loaded state; nothing where that is done already.

        Raises:
            ValueError: for weights that are sharded over ranks, or too coarse to be trained.
        """
        if self.model is not None:
            return
        parameters = list(policy.parameters())
        check_sharding(in_shards(parameters))
        check_dtype(policy)
        self.model = copy.deepcopy(policy, {id(p): p for p in parameters if not p.requires_grad})
        turn_dropout_off(self.model)
        self._trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self._masters = {
            name: torch.nn.Parameter(p.detach().float()) if p.dtype == torch.bfloat16 else p
            for name, p in self._trained.items()
        }
        self._optimizer = torch.optim.AdamW(self._masters.values(), lr=self.lr, weight_decay=0.0)
        if self._saved:
            self._restore()

    def logprobs(self, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        """Log-probabilities of the response tokens, 0 elsewhere."""
        torch.clear_autocast_cache()  # it may hold weights from before a step
        return response_logprobs(self.model, rollouts, self.temperature, self.budget)

    def step(self, rollouts: Rollouts, loss_of: ChunkLoss) -> tuple[Float[Tensor, "B S"], float]:
        """An optimizer step on the sum of all chunks' losses of all ranks; the log-probabilities of the response tokens before
        it, and the gradient norm before clipping. All ranks have to call it, also those without rows.

        Nothing moves where the norm is not finite.

        Raises:
            ValueError: where the trainer computes in float16.
        """
        assert self._optimizer is not None, "begin comes first"
        device = rollouts.token_ids.device.type
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16:
            raise ValueError(_float16("trainer.precision=16-mixed"))
        trained, masters = list(self._trained.values()), list(self._masters.values())
        gradients = [torch.zeros_like(p) for p in masters]
        out = torch.zeros(rollouts.token_ids.shape, device=rollouts.token_ids.device)

        def work(chunk: list[int]) -> Tensor:
            logprobs = logprobs_of_rows(self.model, rollouts, chunk, self.temperature)
            loss = loss_of(_rows(rollouts, chunk), logprobs)
            # added up here, so that no pass holds the gradients of the one before; from here on nothing wants memory
            for gradient, part in zip(gradients, torch.autograd.grad(loss, trained, allow_unused=True), strict=True):
                if part is not None:
                    gradient.add_(part)
            return logprobs.detach()

        torch.clear_autocast_cache()  # it may hold weights from a pass without gradients
        self.model.train()  # gradients are checkpointed in this mode alone
        with torch.enable_grad():
            for chunk, found in self.budget.run_in_chunks(_lengths(rollouts), work):
                out = out.to(found.dtype)
                out[_rows(rollouts, chunk)] = found
        add_up(gradients)
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = gradient
        norm = float(torch.nn.utils.clip_grad_norm_(masters, self.max_norm))
        if norm < float("inf"):  # false for NaN, too
            self._optimizer.step()
            self.steps += 1
            self._round()
        else:
            log.warning("the gradient of the scorer's own model is not finite; its step is left out")
        self._optimizer.zero_grad(set_to_none=True)
        torch.clear_autocast_cache()
        return out, norm

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer and number of steps, copied to the CPU; empty before it has begun."""
        if self._optimizer is None:
            return self._saved
        moments = self._optimizer.state_dict()["state"]
        return {
            "steps": self.steps,
            "weights": {name: _on_cpu(p) for name, p in self._masters.items()},
            "optimizer": {key: {name: _on_cpu(value) for name, value in values.items()} for key, values in moments.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """An empty state, of a run without such a model, leaves it to begin with the policy that goes on."""
        self._saved = state
        if state and self.model is not None:
            self._restore()

    @torch.no_grad()
    def _restore(self) -> None:
        assert self._optimizer is not None
        weights = self._saved["weights"]
        if {name: w.shape for name, w in weights.items()} != {name: m.shape for name, m in self._masters.items()}:
            raise ValueError(
                "the checkpoint's scorer has trained other weights than this policy has; use the policy and policy.lora of "
                "that run"
            )
        for name, master in self._masters.items():
            master.copy_(weights[name])
        self._round()
        groups = self._optimizer.state_dict()["param_groups"]  # the settings of this run, not of that one
        moments = copy.deepcopy(self._saved["optimizer"])  # the optimizer would move the loaded ones
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.steps, self._saved = int(self._saved["steps"]), {}

    @torch.no_grad()
    def _round(self) -> None:
        for name, parameter in self._trained.items():
            if (master := self._masters[name]) is not parameter:
                parameter.copy_(master)


def _lengths(rollouts: Rollouts) -> list[int]:
    return rollouts.attention_mask.sum(1).tolist()


def _rows(rollouts: Rollouts, chunk: list[int]) -> Tensor:
    return torch.tensor(chunk, device=rollouts.token_ids.device)


def _on_cpu(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def check_dtype(policy: Any) -> None:
    """Raises: ValueError: for weights that are too coarse to be trained."""
    if any(p.dtype == torch.float16 for p in policy.parameters()):
        raise ValueError(_float16("weights are float16"))


def check_trainer(sharded: bool, precision: str) -> None:
    """Raises: ValueError: for weights that are sharded over ranks, and a trainer that computes in float16."""
    check_sharding(sharded)
    if precision.startswith("16-"):
        raise ValueError(_float16(f"trainer.precision={precision}"))


def check_sharding(sharded: bool) -> None:
    """Raises: ValueError: for weights that are sharded over ranks."""
    if sharded:
        raise ValueError(
            "the scorer trains a copy of the policy's weights, which ZeRO-3 has sharded over the ranks; use "
            "trainer=deepspeed_zero2 or trainer=ddp"
        )


def _float16(what: str) -> str:
    return (
        f"{what}: the scorer trains a model of its own, whose small gradients float16 would lose; use "
        "trainer.precision=bf16-mixed or 32-true"
    )
