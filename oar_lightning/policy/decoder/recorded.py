"""Decoding steps of a GPU as CUDA graphs.

A step of a deep model is many hundred small kernels, which Python starts more slowly than the GPU runs them. A graph starts
them all at once.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from oar_lightning.common.messages import first_line
from oar_lightning.policy.attention import scoring_attention
from oar_lightning.policy.decoder.growing import ModuleTexts
from oar_lightning.policy.key_value_cache import at_fixed_places
from oar_lightning.policy.language_model import base_model
from oar_lightning.policy.out_of_memory import free_memory, out_of_memory

log = logging.getLogger(__name__)

LEAST_COLUMNS = 16
"""For fewer columns to come, recording takes longer than it saves."""
AGREES = {torch.float32: 1e-4, torch.float64: 1e-4}
"""How far a recorded step may be from the modules' own, relative to the largest state; 16 bits: 5e-2."""


class NotRecorded(RuntimeError):
    """What a model does in a pass cannot be recorded, e.g. because Python looks at a tensor's value."""


class RecordedTexts(ModuleTexts):
    """Texts whose columns, one at a time, a recorded step reads.

    A recorded step runs at fixed places: the first rows and all columns of the cache's storage, of which a mask hides those
    that are not there. It is recorded anew where the storage has moved, and where half of its rows have left. The first column
    is read by the modules, too: where a recorded step finds something else, it is not used, and a warning says so.
    """

    def __init__(self, model: Any, first: Int[Tensor, " n"], limit: int) -> None:
        super().__init__(model, first, limit)
        self._step: _Step | None = None
        self._checked = False
        self._usable = True

    def _read(self, token_ids: Tensor, columns: Tensor, positions: Tensor) -> Tensor:
        if token_ids.shape[1] > 1 or not self._usable or (self.limit - self.width < LEAST_COLUMNS and self._step is None):
            return super()._read(token_ids, columns, positions)
        found = self._try(token_ids)
        if self._checked and found is not None:
            return found
        for layer in self.cache.layers:  # the modules write the column again
            layer.show(len(token_ids), self.width)
        expected = super()._read(token_ids, columns, positions)
        self._checked = True
        self._usable = found is not None and self._agrees(found, expected)
        return expected

    def _try(self, token_ids: Int[Tensor, "n 1"]) -> Float[Tensor, "n 1 H"] | None:
        """A recorded step's states; None where it cannot be recorded."""
        try:
            return self._run(token_ids)
        except Exception as error:
            if not isinstance(error, NotRecorded) and not out_of_memory(error):
                raise
            failure = first_line(error)
        # not in the except block, where the error's frames still hold tensors
        self._step = None
        free_memory()
        log.warning("a decoding step could not be recorded (%s); the policy's own modules sample, which are slower", failure)
        return None

    def _run(self, token_ids: Int[Tensor, "n 1"]) -> Float[Tensor, "n 1 H"]:
        rows = len(token_ids)
        for layer in self.cache.layers:
            layer.make_room(self.width + 1)
        if self._step is None or not self._step.fits(self, rows):
            self._step = None  # its memory is free before the next one takes some
            self._step = _Step(self, token_ids)
        hidden = self._step(token_ids, self.first, self.width)
        for layer in self.cache.layers:
            layer.show(rows, self.width + 1)
        return hidden

    def _agrees(self, found: Float[Tensor, "n 1 H"], expected: Float[Tensor, "n 1 H"]) -> bool:
        scale = float(expected.abs().max())
        difference = float((found - expected).abs().max()) / max(scale, 1e-30)
        tolerance = AGREES.get(expected.dtype, 5e-2)
        if difference <= tolerance or scale != scale:  # a policy that has diverged agrees with nothing
            return True
        log.warning(
            "%s computes something else when its decoding steps are recorded (largest difference %.2g of the largest state); "
            "its own modules sample, which are slower",
            type(base_model(self.model)).__name__,
            difference,
        )
        return False

    def run_decoder(self, **inputs: Any) -> Tensor:
        """The decoder's final hidden states."""
        with scoring_attention(base_model(self.model)):
            return self._decoder(past_key_values=self.cache, use_cache=True, **inputs).last_hidden_state


class _Step:
    """The reading of one column of some rows. What it reads and writes are tensors at fixed places; on a GPU it is a graph."""

    def __init__(self, texts: RecordedTexts, token_ids: Int[Tensor, "n 1"]) -> None:
        device = token_ids.device
        self.rows = len(token_ids)
        self._storage = texts.cache.layers[0].storage
        self._columns = torch.arange(self._storage.shape[2], device=device)
        self._token_ids, self._first = token_ids.clone(), texts.first.clone()
        self._column = torch.full((1,), texts.width, device=device)
        self._hidden = torch.empty(0)
        for layer in texts.cache.layers:
            layer.clear_room()

        def run() -> None:
            seen = (self._columns >= self._first[:, None]) & (self._columns <= self._column)
            with at_fixed_places(texts.cache, self._column):
                self._hidden = texts.run_decoder(
                    input_ids=self._token_ids,
                    attention_mask=seen[:, None, None],
                    position_ids=self._column - self._first[:, None],
                )

        self._replay = _recorded(run) if device.type == "cuda" else run

    def fits(self, texts: RecordedTexts, rows: int) -> bool:
        """Whether it can read a column of so many rows, and is not much too large for them."""
        return texts.cache.layers[0].storage is self._storage and self.rows // 2 < rows <= self.rows

    def __call__(self, token_ids: Int[Tensor, "n 1"], first: Int[Tensor, " n"], column: int) -> Float[Tensor, "n 1 H"]:
        """Final hidden states. Rows beyond n read what they read before, which nobody looks at."""
        rows = len(token_ids)
        self._token_ids[:rows] = token_ids
        self._first[:rows] = first
        self._column.fill_(column)
        self._replay()
        return self._hidden[:rows].clone()


def _recorded(run: Callable[[], None]) -> Callable[[], None]:
    """A function that repeats on the GPU what `run` does there, which must not depend on any tensor's value.

    Raises:
        NotRecorded: where it does, or memory for the recording is missing.
    """
    stream = _stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()  # libraries set themselves up at their first call, which cannot be recorded
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            run()
    except RuntimeError as error:
        raise NotRecorded(first_line(error)) from error
    return graph.replay


@functools.cache
def _stream() -> Any:
    """One for all recordings: for each stream cuBLAS keeps a workspace, of 32 MB on an H100."""
    return torch.cuda.Stream()


def can_record(model: Any) -> bool:
    """Whether the model runs on a GPU, takes positions and a mask of its attention, and has its weights there.

    Not where operations are counted: what counts them sees none of a graph's.
    """
    base = base_model(model)
    if base.get_input_embeddings().weight.device.type != "cuda" or _get_current_dispatch_mode() is not None:
        return False
    takes_positions = "position_ids" in inspect.signature(base.get_decoder().forward).parameters
    sharded = any(hasattr(weight, "ds_id") for weight in base.parameters())  # ZeRO-3 moves weights
    return takes_positions and not sharded and base.config._attn_implementation == "sdpa"
