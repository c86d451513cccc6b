"""Sampling with a key-value cache: each prompt runs once for all its samples, and finished completions leave the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.activity import within
from oar_lightning.policy.decoder import PlainTexts, growing_texts
from oar_lightning.policy.language_model import evaluating, states_fit
from oar_lightning.rollout.drafts import MOST_COLUMNS, KnownTexts, copy_greedily
from oar_lightning.rollout.drawing import draw_tokens, uniform_draws
from oar_lightning.rollout.hf import eos_token_ids
from oar_lightning.rollout.sampling import (
    Generation,
    Prompt,
    SamplingConfig,
    lay_out,
    pad_left,
    read_prompts,
)


class CachedEngine:
    """Samples with the policy's decoder and head. Needs `can_share_prefixes`.

    Every prompt has its own seed and every completion its own random numbers: the other rows of a batch change only rounding.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @torch.no_grad()
    def __call__(
        self,
        model: Any,
        prompts: Sequence[Prompt],
        samples: int,
        config: SamplingConfig,
        seeds: Sequence[int],
        limits: Sequence[int] | None = None,
        known: Sequence[KnownTexts] | None = None,
    ) -> Generation:
        """See `Engine`. Greedy decoding copies from texts that are `known` of each prompt's problem, where that is faster."""
        encoded, limits = read_prompts(model, self.tokenizer, prompts, seeds, config, limits)
        owners = [prompt for prompt in range(len(encoded)) for _ in range(samples)]
        config = dataclasses.replace(config, max_new_tokens=max(limits))
        uniforms = uniform_draws(samples, seeds, limits)
        width = max(map(len, encoded), default=0) + config.max_new_tokens
        keep_states = config.keep_states and keeps_states(model, len(owners), width)
        if config.temperature or samples > 1:
            known = None  # other draws are not those of greedy decoding

        def sample(batch: list[int]) -> Generation:
            batch_prompts = list(dict.fromkeys(owners[i] for i in batch))
            index_of = {prompt: index for index, prompt in enumerate(batch_prompts)}
            owner = torch.tensor([index_of[owners[i]] for i in batch])
            ids = [encoded[prompt] for prompt in batch_prompts]
            texts = None if known is None else [known[prompt] for prompt in batch_prompts]
            return self._sample(model, ids, owner, uniforms[batch], config, keep_states, texts)

        lengths = [len(encoded[prompt]) for prompt in owners]
        with evaluating(model):
            return config.sample_in_batches(lengths, sample, self.tokenizer.pad_token_id)

    def _sample(
        self,
        model: Any,
        prompts: list[list[int]],
        owner: Int[Tensor, " B"],
        uniforms: Float[Tensor, "B T"],
        config: SamplingConfig,
        keep_states: bool,
        known: Sequence[KnownTexts] | None,
    ) -> Generation:
        device = model.get_input_embeddings().weight.device
        owner, uniforms = owner.to(device), uniforms.to(device)
        limits = (uniforms >= 0).sum(1)
        eos = torch.tensor(eos_token_ids(model, self.tokenizer), device=device)
        ids, prompt_mask = pad_left(prompts, self.tokenizer.pad_token_id, device)
        width = ids.shape[1]
        room = config.max_new_tokens if known is None else config.max_new_tokens + MOST_COLUMNS
        texts = growing_texts(model, prompt_mask.long().argmax(1), width + room)
        hidden = texts(ids)[:, -1][owner]
        if known is not None and isinstance(texts, PlainTexts):
            end = set(eos.tolist())
            completions = copy_greedily(texts, hidden, prompts, limits.tolist(), known, end)
            return lay_out(prompts, completions, [c[-1] not in end for c in completions], self.tokenizer.pad_token_id, device)
        texts.select(owner)
        ids, prompt_mask = ids[owner], prompt_mask[owner]

        completion = torch.full(uniforms.shape, self.tokenizer.pad_token_id, device=device)
        lengths = torch.zeros_like(limits)
        states = hidden.new_zeros(len(owner), width + config.max_new_tokens, hidden.shape[1]) if keep_states else None
        live = torch.arange(len(owner), device=device)
        for column in range(config.max_new_tokens):
            tokens = draw_tokens(texts.logits(hidden), uniforms[live, column], config)
            completion[live, column] = tokens
            if states is not None:
                states[live, width + column] = hidden
            going = (tokens[:, None] != eos).all(1) & (column + 1 < limits[live])
            if not going.all():
                lengths[live[~going]] = column + 1
                rows = packed_rows(going)
                live, tokens = live[rows], tokens[rows]
                if len(live):
                    texts.select(rows)
            within(len(owner) - len(live), f"token {column + 1}/{config.max_new_tokens}")
            if not len(live):
                break
            hidden = texts(tokens[:, None])[:, -1]
        last = completion.gather(1, lengths[:, None] - 1)
        longest = int(lengths.max())
        response: Bool[Tensor, "B W"] = torch.arange(longest, device=device) < lengths[:, None]
        return Generation(
            torch.cat([ids, completion[:, :longest]], 1),
            torch.cat([prompt_mask, response], 1),
            torch.cat([torch.zeros_like(prompt_mask), response], 1),
            (last != eos).all(1),
            None if states is None else states[:, : width + longest],
        )


def packed_rows(stay: Bool[Tensor, " n"]) -> Int[Tensor, " m"]:
    """The rows that stay, in an order that leaves most of them in their place: the last ones fill the gaps before them."""
    rows = stay.nonzero().flatten()
    gaps = (~stay[: len(rows)]).nonzero().flatten()
    order = torch.arange(len(rows), device=stay.device)
    order[gaps] = rows[len(rows) - len(gaps) :]
    return order


def keeps_states(model: Any, completions: int, tokens: int) -> bool:
    """Whether the states from which completions are predicted are exact and, with so many tokens of each text, its prompt
    included, small enough to be kept.

    A decoding step rounds differently from a pass over the whole text. In float32 the log-probabilities of the two agree
    within 1e-4 (a test checks this); in half precision they do not, and later stages compute their own states.
    """
    weight = model.get_input_embeddings().weight
    exact = weight.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(weight.device.type)
    return exact and states_fit(model, completions * tokens)
