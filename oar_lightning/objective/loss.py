"""Policy losses, exact for any split of an optimizer step into micro-batches and ranks.

PPO clip 1707.06347, GRPO 2402.03300, Dr. GRPO 2503.20783, DAPO 2503.14476, GSPO 2507.18071, CISPO 2506.13585; truncated
importance sampling of the engine mismatch: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL
Training".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from annotated_types import Interval
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.common.ranges import Finite, Fraction, NonNegativeFloat, ProperFraction, Rule, checked
from oar_lightning.types import LossOutput

Bound = float | Tensor
"""One bound of the ratio for all tokens, or one for each."""


@checked(
    "loss",
    Rule(
        lambda ratio_max, clip_high: ratio_max is None or ratio_max > 1 + clip_high,
        "loss.ratio_max={ratio_max} must be greater than 1 + loss.clip_high, and clip_high={clip_high}: no ratio would come to "
        "that bound; set it higher, or null for no cap",
    ),
    Rule(
        lambda surrogate, ratio_max: surrogate != "cispo" or ratio_max is None,
        "loss.ratio_max={ratio_max} caps the ratio of loss.surrogate=clip; CISPO's is loss.ratio_cap; set loss.ratio_max=null",
    ),
)
@dataclass(frozen=True)
class LossConfig:
    """The surrogate and how its tokens are averaged.

    Args:
        surrogate: `clip` (PPO) or `cispo` (clipped weight on log p).
        ratio: importance ratio per `token`, per `sequence` (GSPO) or `sequence_token` (GSPO-token).
        reduction: `grpo` mean over completions of token means; `dapo` mean over the tokens of the optimizer step;
            `dr_grpo` sum / (completions * max_completion_length); `bnpo` mean over micro-batches of
            token means.
        clip_low: lower clip, ratio >= 1 - clip_low.
        clip_high: upper clip, ratio <= 1 + clip_high.
        ratio_max: upper cap delta on the unclipped ratio (two-sided clipping), None for none.
        ratio_cap: CISPO's cap; the cap is the ratio itself (TRL's `epsilon_high`; verl's plus one).
        kl_coef: weight of the k3 estimate of KL(policy || reference), nats; never weighted by credit.
        kl_from: fraction of the run's steps after which the KL term begins; its reference then is the policy of that time. 0:
            there is one from the first step on, and the reference is the policy at the start.
        kl_bias_correction: multiply k3 by the importance ratio, which makes its gradient unbiased off-policy.
        entropy_coef: weight of the entropy bonus, nats; below 0 a penalty, which sharpens the policy (entropy minimization,
            2505.15134).
        sampler_ratio_cap: cap of a token's weight exp(old - sampler log-probability) where an engine with its own numerics
            samples; None leaves the mismatch uncorrected. Unused where the policy's own code samples.
    """

    surrogate: Literal["clip", "cispo"] = "clip"
    ratio: Literal["token", "sequence", "sequence_token"] = "token"
    reduction: Literal["grpo", "dapo", "dr_grpo", "bnpo"] = "grpo"
    clip_low: Annotated[Fraction, "1 minus the ratio's lower bound"] = 0.2
    clip_high: NonNegativeFloat = 0.2
    ratio_max: Annotated[float, Interval(gt=1), "the cap of a ratio"] | None = None
    ratio_cap: Annotated[float, Interval(ge=1), "the cap of a ratio, which is 1 before the policy moves"] = 5.0
    kl_coef: NonNegativeFloat = 0.0
    kl_from: ProperFraction = 0.0
    kl_bias_correction: bool = False
    entropy_coef: Finite = 0.0
    sampler_ratio_cap: (
        Annotated[float, Interval(ge=1), "the cap of a weight that is 1 where engine and policy agree"]
        | Annotated[None, "no correction"]
    ) = 2.0

    @property
    def idle(self) -> dict[str, str]:
        """Settings without effect -> why, of those that are not the defaults."""
        clip, no_kl = self.surrogate == "clip", self.kl_coef == 0
        capped = "loss.surrogate=cispo, whose bound is loss.ratio_cap"
        unread = {"ratio_cap": "loss.surrogate=clip"} if clip else dict.fromkeys(("clip_low", "clip_high"), capped)
        unread |= dict.fromkeys(("kl_from", "kl_bias_correction"), "loss.kl_coef=0") if no_kl else {}
        return {key: why for key, why in unread.items() if key in self._chosen(unread)}

    @property
    def of_ratios(self) -> dict[str, Any]:
        """Settings that change nothing where all ratios are 1, of those that are not the defaults."""
        return self._chosen(("ratio", "clip_low", "clip_high", "ratio_max", "ratio_cap"))

    def _chosen(self, keys: Iterable[str]) -> dict[str, Any]:
        return {key: getattr(self, key) for key in keys if getattr(self, key) != getattr(type(self), key)}

    @property
    def later_reference(self) -> bool:
        """Whether a KL term begins in the course of the run."""
        return self.kl_coef > 0 and self.kl_from > 0

    @property
    def ignores_zero_advantage(self) -> bool:
        """Whether a completion with advantage 0 has exactly zero gradient and is in no denominator of its own micro-batch."""
        return self.kl_coef == 0 and self.entropy_coef == 0 and self.reduction != "bnpo"


class Denominators(NamedTuple):
    """What the loss of a whole optimizer step is averaged over, the same for all its `passes` micro-batches."""

    completions: float
    tokens: float
    max_completion_length: float
    passes: float = 1.0

    @classmethod
    def of(cls, mask: Bool[Tensor, "B S"], max_completion_length: int) -> Denominators:
        """The denominators of an optimizer step with all its rows in one mask."""
        return cls(float(mask.shape[0]), float(mask.sum().clamp(min=1)), float(max_completion_length))


@dataclass(frozen=True)
class LossInputs:
    """One micro-batch, and what the whole optimizer step is averaged over.

    Args:
        logprobs: of the current policy, nats, with gradient.
        old_logprobs: of the policy that the ratios are relative to; detached.
        advantages: of every token, the credit included.
        mask: the tokens that count; values outside it do not matter.
        denominators: of the whole optimizer step.
        ref_logprobs: of the frozen reference, where `kl_coef` is not 0.
        entropy: of the current policy, nats, where `entropy_coef` is not 0 or there are `entropy_weights`.
        sampler_logprobs: of the distribution that an engine with its own numerics drew from.
        entropy_weights: times a token's entropy, subtracted; the step's denominators are in them (`EntropyControl.weights`).
        clip_low, clip_high: a token's own bounds in place of the config's; NaN takes the config's.
        kl_factor: times `kl_coef`, token by token.
        ratio_mask: the tokens over which a ratio of the whole completion is averaged; None: those of `mask`.
    """

    logprobs: Float[Tensor, "B S"]
    old_logprobs: Float[Tensor, "B S"]
    advantages: Float[Tensor, "B S"]
    mask: Bool[Tensor, "B S"]
    denominators: Denominators
    ref_logprobs: Float[Tensor, "B S"] | None = None
    entropy: Float[Tensor, "B S"] | None = None
    entropy_weights: Float[Tensor, "B S"] | None = None
    sampler_logprobs: Float[Tensor, "B S"] | None = None
    clip_low: Float[Tensor, "B S"] | None = None
    clip_high: Float[Tensor, "B S"] | None = None
    kl_factor: Float[Tensor, "B S"] | None = None
    ratio_mask: Bool[Tensor, "B S"] | None = None

    def clip_bounds(self, config: LossConfig) -> tuple[Bound, Bound]:
        """The bounds 1 - clip_low and 1 + clip_high of the ratio."""
        low, high = config.clip_low, config.clip_high
        return (
            1 - low if self.clip_low is None else 1 - self.clip_low.nan_to_num(nan=low),
            1 + high if self.clip_high is None else 1 + self.clip_high.nan_to_num(nan=high),
        )


def policy_loss(inputs: LossInputs, config: LossConfig = LossConfig()) -> LossOutput:
    """This micro-batch's share of the optimizer step's loss; the shares of a step add up to its loss.

    l_t = -c_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t) + kl_coef k3_t, reduced over the mask with the
    step's denominators; minus entropy_coef times the mean entropy, minus the sum of entropy_weights_t times the entropy.
    c_t = min(exp(old_t - sampler_t), sampler_ratio_cap), detached; 1 without `sampler_logprobs`. c_t weights only the
    surrogate, as in TRL, not the KL and entropy terms.

    Raises:
        ValueError: where kl_coef is set without reference log-probabilities, or a term of the entropy without entropies.
    """
    mask, denominators = inputs.mask, inputs.denominators
    logprobs, old_logprobs, advantages = (
        values.masked_fill(~mask, 0.0) for values in (inputs.logprobs, inputs.old_logprobs, inputs.advantages)
    )
    if inputs.ratio_mask is None:
        ratio = importance_ratio(logprobs, old_logprobs, mask, config.ratio)
    else:
        own, old = (values.masked_fill(~inputs.ratio_mask, 0.0) for values in (inputs.logprobs, inputs.old_logprobs))
        ratio = importance_ratio(own, old, inputs.ratio_mask, config.ratio)
    bounds = inputs.clip_bounds(config)
    per_token = surrogate(ratio, logprobs, advantages, config, bounds)
    metrics = _clip_metrics(ratio, advantages, mask, config, bounds)
    if inputs.sampler_logprobs is not None:
        weight, mismatch = sampler_correction(old_logprobs, inputs.sampler_logprobs, mask, config.sampler_ratio_cap)
        per_token = weight * per_token
        metrics |= mismatch
    if config.kl_coef:
        if inputs.ref_logprobs is None:
            raise ValueError(f"loss.kl_coef={config.kl_coef} needs ref_logprobs of a frozen reference model")
        kl = k3(logprobs, inputs.ref_logprobs.masked_fill(~mask, 0.0))
        metrics["kl"] = _mean(kl.detach(), mask)
        kl = kl * ratio if config.kl_bias_correction else kl
        per_token = per_token + config.kl_coef * (kl if inputs.kl_factor is None else kl * inputs.kl_factor)
    loss = reduce_tokens(per_token, mask, denominators, config.reduction)
    if config.entropy_coef:
        if inputs.entropy is None:
            raise ValueError(f"loss.entropy_coef={config.entropy_coef} needs the policy's entropies")
        loss = loss - config.entropy_coef * inputs.entropy.masked_fill(~mask, 0.0).sum() / denominators.tokens
    if inputs.entropy_weights is not None:
        if inputs.entropy is None:
            raise ValueError("entropy_weights need the policy's entropies")
        loss = loss - (inputs.entropy_weights * inputs.entropy).masked_fill(~mask, 0.0).sum()
    return LossOutput(loss, metrics)


def surrogate(
    ratio: Float[Tensor, "B S"],
    logprobs: Float[Tensor, "B S"],
    advantages: Float[Tensor, "B S"],
    config: LossConfig,
    bounds: tuple[Bound, Bound],
) -> Float[Tensor, "B S"]:
    """The token losses before corrections: PPO's clipped ratio (1707.06347), or CISPO's clipped weight on log p
    (2506.13585). `bounds`: of the clipped ratio."""
    if config.surrogate == "cispo":
        return -ratio.detach().clamp(max=config.ratio_cap) * advantages * logprobs
    capped = ratio if config.ratio_max is None else ratio.clamp(max=config.ratio_max)
    clipped = ratio.clamp(min=bounds[0]).clamp(max=bounds[1])
    return -torch.minimum(capped * advantages, clipped * advantages)


def importance_ratio(
    logprobs: Float[Tensor, "B S"], old_logprobs: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"], level: str
) -> Float[Tensor, "B S"]:
    """r_t = exp(logp_t - old_t); `sequence`: exp of its mean over the completion; `sequence_token`: that value with
    the gradient flowing through the token's own log p (GSPO-token, eq. 14)."""
    log_ratio = logprobs - old_logprobs
    if level == "token":
        return log_ratio.exp()
    length = mask.sum(1, keepdim=True).clamp(min=1)
    sequence = (log_ratio.masked_fill(~mask, 0.0).sum(1, keepdim=True) / length).expand_as(log_ratio)
    if level == "sequence":
        return sequence.exp()
    return (sequence.detach() + logprobs - logprobs.detach()).exp()


def sampler_correction(
    old_logprobs: Float[Tensor, "B S"], sampler_logprobs: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"], cap: float | None
) -> tuple[Float[Tensor, "B S"], dict[str, tuple[float, float]]]:
    """c_t = min(exp(old_t - sampler_t), cap), detached (1 without a cap), and metrics of the mismatch of engine and policy.

    The expected mean of the ratio is 1, whatever the mismatch, if the engine can sample every token that the policy can (a
    nucleus cannot). `logprob_difference` is the mean of |old_t - sampler_t| in nats.
    """
    difference = (old_logprobs - sampler_logprobs).detach().masked_fill(~mask, 0.0)
    ratio = difference.exp()
    capped = torch.zeros_like(mask) if cap is None else ratio > cap
    metrics = {
        "sampler/ratio_mean": _mean(ratio, mask),
        "sampler/capped_frac": _mean(capped, mask),
        "sampler/logprob_difference": _mean(difference.abs(), mask),
    }
    return torch.ones_like(ratio) if cap is None else ratio.clamp(max=cap), metrics


def k3(logprobs: Float[Tensor, "B S"], ref_logprobs: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """exp(ref - logp) - (ref - logp) - 1 >= 0, an unbiased estimate of KL(policy || reference) in nats."""
    delta = ref_logprobs - logprobs
    return delta.exp() - delta - 1


def reduce_tokens(
    per_token: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"], denominators: Denominators, reduction: str
) -> Float[Tensor, ""]:
    """Sum of the masked tokens, each weighted so that micro-batches of a step add up to its mean.

    Only `bnpo` divides by the micro-batch's own tokens, and by the number of these: its value depends on the split and is for
    comparison only.
    """
    values = per_token.masked_fill(~mask, 0.0)
    if reduction == "grpo":
        return (values.sum(1) / mask.sum(1).clamp(min=1)).sum() / denominators.completions
    if reduction == "dapo":
        return values.sum() / denominators.tokens
    if reduction == "dr_grpo":
        return values.sum() / (denominators.completions * denominators.max_completion_length)
    return values.sum() / (mask.sum().clamp(min=1) * denominators.passes)


def _clip_metrics(
    ratio: Float[Tensor, "B S"],
    advantages: Float[Tensor, "B S"],
    mask: Bool[Tensor, "B S"],
    config: LossConfig,
    bounds: tuple[Bound, Bound],
) -> dict[str, tuple[float, float]]:
    """Fraction of tokens whose ratio is clipped, in the directions in which clipping acts (names: TRL's; its one of CISPO is
    `cispo_clip_ratio`, and like this one leaves out tokens with A < 0, whose ratio is capped, too)."""
    ratio = ratio.detach()
    if config.surrogate == "cispo":
        return {"clip_ratio/cispo_mean": _mean((ratio > config.ratio_cap) & (advantages > 0), mask)}
    low = (ratio < bounds[0]) & (advantages < 0)
    high = (ratio > bounds[1]) & (advantages > 0)
    return {
        "clip_ratio/low_mean": _mean(low, mask),
        "clip_ratio/high_mean": _mean(high, mask),
        "clip_ratio/region_mean": _mean(low | high, mask),
    }


def _mean(values: Tensor, mask: Bool[Tensor, "B S"]) -> tuple[float, float]:
    return float(values.masked_fill(~mask, 0).sum()), float(mask.sum())
