"""Settings of sampling, and the sampled completions as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.ranges import NonNegativeFloat, PositiveFraction, PositiveInt, checked
from oar_lightning.policy import language_model
from oar_lightning.policy.batching import chunks_by_tokens
from oar_lightning.policy.language_model import base_model
from oar_lightning.policy.token_budget import TokenBudget, Tokens, as_budget

Prompt = str | Sequence[int]
"""A text, or its token ids."""


class Generation(NamedTuple):
    """Prompts and sampled completions; rows of one prompt are consecutive. ``truncated``: stopped by the token limit.

    ``prediction_states``: see `Rollouts`; None from an engine that does not keep them.
    ``sampler_logprobs``: the engine's log-probabilities (nats) of the sampled tokens under the distribution that it drew from;
    0 elsewhere. None where the engine samples with the policy's own code.
    """

    token_ids: Int[Tensor, "B S"]
    attention_mask: Bool[Tensor, "B S"]
    response_mask: Bool[Tensor, "B S"]
    truncated: Bool[Tensor, " B"]
    prediction_states: Float[Tensor, "B S H"] | None = None
    sampler_logprobs: Float[Tensor, "B S"] | None = None


@checked("rollout")
@dataclass(frozen=True)
class SamplingConfig:
    """The settings of drawing completions.

    Args:
        max_new_tokens: limit of a completion, EOS included.
        temperature: divides the logits; 0 decodes greedily.
        top_p: nucleus; 1 keeps the whole distribution, which on-policy training needs.
        max_batch: completions generated at once; None for all.
        token_budget: the most prompt and completion tokens of one batch, counted with the batch's longest prompt and each
            completion at its limit; batches then hold prompts of similar length. None for no limit. `auto` for no limit until
            memory runs out; the batch is then sampled again in smaller chunks (see `TokenBudget`). vLLM ignores it: it bounds
            its memory itself.
        keep_states: whether an engine that can keeps the states that it sampled from, which spare later stages a pass.
    """

    max_new_tokens: PositiveInt = 80
    temperature: NonNegativeFloat = 1.0
    top_p: PositiveFraction = 1.0
    max_batch: PositiveInt | None = None
    token_budget: TokenBudget | Tokens = None
    keep_states: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_budget", as_budget("rollout.token_budget", self.token_budget))

    @property
    def budget(self) -> TokenBudget:
        assert isinstance(self.token_budget, TokenBudget)
        return self.token_budget

    def batches(self, prompt_lengths: Sequence[int]) -> list[list[int]]:
        """Indices of the completions, whose prompts have these lengths, in batches: in order, or with a token budget by
        length."""
        indices = list(range(len(prompt_lengths)))
        size = self.max_batch or len(indices)
        chunks = [indices]
        if self.budget.tokens is not None:
            chunks = list(chunks_by_tokens(self._sizes(prompt_lengths), self.budget.tokens))
        return [chunk[i : i + size] for chunk in chunks for i in range(0, len(chunk), size)]

    def _sizes(self, prompt_lengths: Sequence[int]) -> list[int]:
        return [n + self.max_new_tokens for n in prompt_lengths]

    def sample_in_batches(
        self, prompt_lengths: Sequence[int], sample: Callable[[list[int]], Generation], pad: int
    ) -> Generation:
        """The completions of all `batches`, in order. The draws of `sample` must not depend on how often it was called."""
        batches = self.batches(prompt_lengths)
        sampled = list(self.budget.run_in_chunks(self._sizes(prompt_lengths), sample, batches))
        return join_generations([generation for _, generation in sampled], pad, [chunk for chunk, _ in sampled])


class Engine(Protocol):
    """Samples completions. The result depends on the prompts and their seeds; the rest of a batch changes only rounding."""

    def __call__(
        self,
        model: object,
        prompts: Sequence[Prompt],
        samples: int,
        config: SamplingConfig,
        seeds: Sequence[int],
        limits: Sequence[int] | None = None,
    ) -> Generation:
        """`samples` completions for each prompt, a text or token ids, in consecutive rows; one seed a prompt.

        `limits`: the most tokens of each prompt's completions; None takes ``config.max_new_tokens`` for all.
        """
        ...


def encode_prompts(tokenizer: object, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[list[int]]:
    """Token ids of each prompt; one that is given as ids stays as it is.

    Raises:
        ValueError: for a prompt without tokens, or where prompts and seeds differ in number.
    """
    if len(prompts) != len(seeds):
        raise ValueError(f"{len(prompts)} prompts and {len(seeds)} seeds: give one seed a prompt")
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    tokenized = iter(tokenizer(texts, add_special_tokens=False).input_ids if texts else ())  # type: ignore[operator]
    encoded = [next(tokenized) if isinstance(prompt, str) else list(prompt) for prompt in prompts]
    if empty := [i for i, ids in enumerate(encoded) if not ids]:
        raise ValueError(f"data.prompt: {len(empty)} of {len(prompts)} prompts have no tokens (first: number {empty[0]})")
    return encoded


def read_prompts(
    model: Any,
    tokenizer: object,
    prompts: Sequence[Prompt],
    seeds: Sequence[int],
    config: SamplingConfig,
    limits: Sequence[int] | None = None,
    max_model_len: int | None = None,
) -> tuple[list[list[int]], Sequence[int]]:
    """Token ids of each prompt and the most new tokens of its completions, held against what policy and engine can read.

    Raises:
        ValueError: as `encode_prompts` and `check_prompts`.
    """
    encoded = encode_prompts(tokenizer, prompts, seeds)
    limits = limits or [config.max_new_tokens] * len(encoded)
    check_prompts(model, encoded, limits, max_model_len)
    return encoded, limits


OF_ENGINE = "tokens of engine.max_model_len"


def text_bounds(model: Any, max_model_len: int | None = None) -> dict[str, int]:
    """What bounds the tokens of a prompt and its completion -> how many there may be."""
    own = {} if max_model_len is None else {OF_ENGINE: max_model_len}
    return language_model.text_bounds(model) | own


def check_prompts(model: Any, prompts: Sequence[list[int]], limits: Sequence[int], max_model_len: int | None = None) -> None:
    """Hold prompts, with so many new tokens each, against what the policy and the engine (`max_model_len`) can read.

    Raises:
        ValueError: where one is too long, or holds a token that the policy does not have.
    """
    tokens, limit = max(((len(ids), limit) for ids, limit in zip(prompts, limits, strict=True)), key=sum)
    for what, most in text_bounds(model, max_model_len).items():
        if tokens + limit > most:
            remedies = [f"set rollout.max_new_tokens to at most {most - tokens}"] if tokens < most else []
            if limit < most:
                remedies.append(f"take problems whose prompts are longer than {most - limit} tokens out of the set")
            remedies.append("raise engine.max_model_len" if what == OF_ENGINE else "choose another policy")
            raise ValueError(
                f"rollout.max_new_tokens={limit} and the longest prompt ({tokens} tokens) are beyond the {most} {what}; "
                f"{', '.join(remedies[:-1])}{', or ' if remedies[1:] else ''}{remedies[-1]}"
            )
    size, largest = base_model(model).config.get_text_config().vocab_size, max(map(max, prompts))
    if largest >= size:
        raise ValueError(
            f"a prompt holds token {largest}, and the policy has {size}: its tokenizer is another model's, or has tokens that "
            "the model was not resized for; save both again after model.resize_token_embeddings(len(tokenizer))"
        )


def pad_left(rows: list[list[int]], pad: int, device: torch.device) -> tuple[Int[Tensor, "B W"], Bool[Tensor, "B W"]]:
    """Ids and attention mask of left-padded rows."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=device)
    starts = torch.tensor([[width - len(row)] for row in rows], device=device)
    return ids, torch.arange(width, device=device) >= starts


def lay_out(
    prompts: Sequence[list[int]], completions: Sequence[list[int]], truncated: Sequence[bool], pad: int, device: torch.device
) -> Generation:
    """A `Generation` of ids, with one prompt a completion: prompts are padded on the left, completions on the right."""
    left, prompt_mask = pad_left(list(prompts), pad, device)
    width = max(map(len, completions))
    right = torch.tensor([row + [pad] * (width - len(row)) for row in completions], dtype=torch.long, device=device)
    lengths = torch.tensor([[len(row)] for row in completions], device=device)
    response = torch.arange(width, device=device) < lengths
    return Generation(
        torch.cat([left, right.view(len(completions), width)], 1),
        torch.cat([prompt_mask, response], 1),
        torch.cat([torch.zeros_like(prompt_mask), response], 1),
        torch.tensor(list(truncated), device=device),
    )


def cut(generation: Generation, limits: Sequence[int]) -> Generation:
    """Completions of at most so many tokens each."""
    within = generation.response_mask.cumsum(1) <= torch.tensor(limits, device=generation.token_ids.device)[:, None]
    removed = generation.response_mask & ~within
    return generation._replace(
        attention_mask=generation.attention_mask & ~removed,
        response_mask=generation.response_mask & within,
        truncated=generation.truncated | removed.any(1),
    )


def join_generations(parts: list[Generation], pad: int, batches: Sequence[Sequence[int]] | None = None) -> Generation:
    """Generations of different prompt and completion lengths as one, padded on the outer sides.

    `batches`: the index of each row in the result, part by part; None keeps the rows in order.
    """
    joined = parts[0] if len(parts) == 1 else _joined(parts, pad)
    order = [i for batch in batches or () for i in batch]
    if order == sorted(order):
        return joined
    sources = torch.tensor(order).argsort().to(joined.token_ids.device)
    return Generation._make(None if x is None else x[sources] for x in joined)


def _joined(parts: list[Generation], pad: int) -> Generation:
    prompts = [int(part.response_mask.long().argmax(1).max()) for part in parts]
    prompt = max(prompts)
    completion = max(part.token_ids.shape[1] - own for part, own in zip(parts, prompts, strict=True))

    def joined(name: str, value: float) -> Tensor:
        padded = []
        for part, own in zip(parts, prompts, strict=True):
            x = getattr(part, name)
            left, right = prompt - own, completion - (x.shape[1] - own)
            inner_dimensions = (0, 0) * (x.ndim - 2)
            padded.append(torch.nn.functional.pad(x, (*inner_dimensions, left, right), value=value))
        return torch.cat(padded)

    return Generation(
        token_ids=joined("token_ids", pad),
        attention_mask=joined("attention_mask", False),
        response_mask=joined("response_mask", False),
        truncated=torch.cat([p.truncated for p in parts]),
        prediction_states=None if any(p.prediction_states is None for p in parts) else joined("prediction_states", 0),
        sampler_logprobs=None if parts[0].sampler_logprobs is None else joined("sampler_logprobs", 0),
    )
