"""Peak memory of the package's own passes, counted over tensors without values."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oar_lightning.language_model import base_model, chunked_logprobs, embed, head_logits, new_cache
from oar_lightning.scoring.probes import AnswerMeanProbe


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations inside the block have made and that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in given:
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, storage.nbytes())

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def peak_bytes(work: Callable[[], Any]) -> int:
    """Of the tensors that `work` makes."""
    with LiveBytes() as count:
        work()
    return count.peak


@contextlib.contextmanager
def _updating(model: Any) -> Iterator[None]:
    """Training mode, with gradients there as they are in a step's second pass."""
    model.train()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    try:
        yield
    finally:
        model.zero_grad(set_to_none=True)
        model.eval()


def update_bytes(model: Any, rows: int, length: int, autocast: torch.dtype | None = None, entropy_grad: bool = False) -> int:
    """A forward-backward pass of an update beyond weights and gradients: activations, logits, gradients on their way."""
    ids = torch.zeros(rows, length, dtype=torch.long)

    def work() -> None:
        with _mixed(autocast):
            logprobs, entropy = _logprobs(model, ids, entropy_grad)
            loss = logprobs.sum() + (entropy.sum() if entropy_grad else 0.0)
        loss.backward()

    with _updating(model):
        return peak_bytes(work)


@torch.no_grad()
def logprobs_bytes(model: Any, rows: int, length: int, autocast: torch.dtype | None = None) -> int:
    """The log-probabilities of completions without gradient."""
    ids = torch.zeros(rows, length, dtype=torch.long)

    def work() -> None:
        with _mixed(autocast):
            _logprobs(model, ids, False)

    return peak_bytes(work)


def _logprobs(model: Any, ids: Tensor, entropy_grad: bool) -> tuple[Tensor, Tensor]:
    """`token_logprobs` where every token is of a completion: whose own tokens are found by their values."""
    hidden = base_model(model).get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    vocabulary = base_model(model).get_output_embeddings().weight.shape[0]
    return chunked_logprobs(lambda h: head_logits(model, h), hidden.flatten(0, 1), ids.flatten(), entropy_grad, vocabulary)


def gradient_bytes(model: Any, rows: int, length: int, answer: int, autocast: torch.dtype | None = None) -> int:
    """OAR-G's gradient to the embeddings through the model's own modules, the parameters being trained ones."""
    ids = torch.zeros(rows, length, dtype=torch.long)
    probe, valid = AnswerMeanProbe(), torch.ones(rows, min(answer, length), dtype=torch.bool)

    def work() -> None:
        with _mixed(autocast):
            embeddings = embed(model, ids).detach()
            noisy = embeddings.clone().requires_grad_()
            states = base_model(model).get_decoder()(inputs_embeds=noisy, use_cache=False).last_hidden_state
            states = states[:, -valid.shape[1] :]
            with torch.no_grad():
                clean = probe.outcome(head_logits(model, states.detach()), ids, valid)
            outcome = probe.outcome(head_logits(model, states), ids, valid)
            torch.autograd.grad(probe.gap(clean, outcome).sum(), noisy)

    return peak_bytes(work)


@torch.no_grad()
def forward_bytes(model: Any, rows: int, length: int, autocast: torch.dtype | None = None) -> int:
    """The decoder without gradient, nothing kept."""
    ids = torch.zeros(rows, length, dtype=torch.long)

    def work() -> None:
        with _mixed(autocast):
            base_model(model).get_decoder()(input_ids=ids, use_cache=False)

    return peak_bytes(work)


@torch.no_grad()
def cache_bytes(model: Any, autocast: torch.dtype | None = None) -> int:
    """Keys and values of one token, all layers."""
    cache = new_cache(model)
    with _mixed(autocast):
        base_model(model).get_decoder()(input_ids=torch.zeros(1, 16, dtype=torch.long), past_key_values=cache, use_cache=True)
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) // 16


def _mixed(dtype: torch.dtype | None) -> Any:
    return torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None)
