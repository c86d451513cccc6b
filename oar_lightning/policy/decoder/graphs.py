"""Decoding steps of a GPU as CUDA graphs.

A step of a deep model is many hundred small kernels, which Python starts more slowly than the GPU runs them. A graph starts
them all at once.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import weakref
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
from oar_lightning.policy.lm_head import in_shards
from oar_lightning.policy.out_of_memory import free_memory, out_of_memory

log = logging.getLogger(__name__)

LEAST_COLUMNS = 16
"""For fewer columns to come, recording a graph takes longer than it saves."""
CHECKED = 2
"""The first columns that the modules read, too."""

_refused: weakref.WeakSet[Any] = weakref.WeakSet()
"""Models whose steps cannot be recorded, or are something else when they are."""


class GraphTexts(ModuleTexts):
    """Texts whose columns, one at a time, a graph reads.

    A graph runs at fixed places: the first rows and all columns of the cache's storage, of which a mask hides those that are
    not there. It is recorded anew where the storage has moved, and where half of its rows have left. The first `CHECKED`
    columns are read by the modules, too. Where a graph finds something else, or a step cannot be recorded, the modules read
    all, and a warning says so; the model is then not tried again.
    """

    def __init__(self, model: Any, first: Int[Tensor, " n"], limit: int) -> None:
        super().__init__(model, first, limit)
        self._step: _Step | None = None
        self._unchecked = CHECKED
        self._usable = model not in _refused

    def _read(self, token_ids: Tensor, columns: Tensor, positions: Tensor) -> Tensor:
        if not (self.width and token_ids.shape[1] == 1 and self._usable and self._prepare(token_ids)):
            return super()._read(token_ids, columns, positions)
        assert self._step is not None
        found = self._step(token_ids, self.first, self.width)
        rows = len(token_ids)
        if self._unchecked:  # the modules write the column again
            expected = super()._read(token_ids, columns, positions)
            self._check(found, expected)
            return expected
        for layer in self.cache.layers:
            layer.set_view(rows, self.width + 1)
        return found

    def _prepare(self, token_ids: Int[Tensor, "n 1"]) -> bool:
        """Whether there is a graph for these rows now."""
        if self._step is not None and self._step.fits(self, len(token_ids)):
            return True
        self._step = None  # its memory is free before others take some
        if self.limit - self.width < LEAST_COLUMNS:
            return False
        for layer in self.cache.layers:
            layer.make_room(self.width + 1)
        try:
            self._step = _Step(self, token_ids)
        except Exception as error:  # whatever it is: the modules raise it again if it is theirs
            failure, lasts = first_line(error), not out_of_memory(error)
        else:
            return True
        # not in the except block, where the error's frames still hold tensors
        self._give_up(f"a decoding step could not be recorded ({failure})", lasts)
        free_memory()
        return False

    def _check(self, found: Float[Tensor, "n 1 H"], expected: Float[Tensor, "n 1 H"]) -> None:
        """Hold a graph's states against the modules', in rows where these are finite."""
        finite = expected.isfinite().all(-1)
        if not finite.any():  # a policy that has diverged agrees with nothing
            return
        self._unchecked -= 1
        scale = float(expected[finite].abs().max())
        difference = float((found - expected)[finite].abs().max()) / max(scale, 1e-30)
        if not difference <= _rounding(expected):
            self._give_up(f"a recorded decoding step finds something else (by {difference:.2g} of the largest state)", True)

    def _give_up(self, why: str, lasts: bool) -> None:
        self._step, self._usable = None, False
        if lasts:
            _refused.add(self.model)
        log.warning("%s: %s; its own modules sample, which are slower", type(base_model(self.model)).__name__, why)

    def run_decoder(self, **inputs: Any) -> Tensor:
        """The decoder's final hidden states."""
        with scoring_attention(base_model(self.model)):
            return self._decoder(past_key_values=self.cache, use_cache=True, **inputs).last_hidden_state


class _Step:
    """The reading of one column of some rows. What it reads and writes are tensors at fixed places; on a GPU it is a graph.

    Raises:
        Exception: whatever the model raises, or torch where its work cannot be recorded.
    """

    def __init__(self, texts: GraphTexts, token_ids: Int[Tensor, "n 1"]) -> None:
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

        if device.type == "cuda":
            self._replay = _recorded(run, device)
        else:
            run()
            self._replay = run

    def fits(self, texts: GraphTexts, rows: int) -> bool:
        """Whether it can read the next column of so many rows, and is not much too large for them."""
        storage = texts.cache.layers[0].storage
        return storage is self._storage and texts.width < storage.shape[2] and self.rows // 2 < rows <= self.rows

    def __call__(self, token_ids: Int[Tensor, "n 1"], first: Int[Tensor, " n"], column: int) -> Float[Tensor, "n 1 H"]:
        """Final hidden states. Rows beyond n, which nobody looks at, read one token: they may have no later position."""
        rows = len(token_ids)
        self._token_ids[:rows] = token_ids
        self._first[:rows] = first
        self._first[rows:].fill_(column)
        self._column.fill_(column)
        self._replay()
        return self._hidden[:rows].clone()


def _rounding(states: Tensor) -> float:
    """How far two ways of computing these states may be apart, relative to the largest: 16 bits may be autocast's."""
    kind = states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
    return 1e-4 if dtype in (torch.float32, torch.float64) else 5e-2


def _recorded(run: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """A function that repeats on the GPU what `run` does there, which must not depend on any tensor's value."""
    stream, pool = _stream(device), torch.cuda.graph_pool_handle()
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.device(device), torch.cuda.stream(stream):
        run()  # libraries set themselves up at their first call, which cannot be recorded
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        # within its stream, since a recording that fails leaves the stream current that it was made on
        with (
            torch.cuda.device(device),
            torch.cuda.stream(stream),
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            run()
    except Exception:
        # torch before 2.12 leaves the allocator as it is while a graph is recorded; later ones refuse this call
        with contextlib.suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(torch.device(device).index or 0, pool)
        raise
    return graph.replay


@functools.cache
def _stream(device: torch.device) -> Any:
    """One for all recordings: for each stream cuBLAS keeps a workspace, of 32 MB on an H100."""
    return torch.cuda.Stream(device)


def can_record(model: Any) -> bool:
    """Whether the model, whole, is on one GPU and takes positions and a mask of its attention.

    Not where operations are counted: what counts them sees none of a graph's.
    """
    base = base_model(model)
    device = base.get_input_embeddings().weight.device
    if device.type != "cuda" or _get_current_dispatch_mode() is not None or base.config._attn_implementation != "sdpa":
        return False
    weights = list(base.parameters())
    takes_positions = "position_ids" in inspect.signature(base.get_decoder().forward).parameters
    return takes_positions and not in_shards(weights) and all(weight.device == device for weight in weights)
