"""The settings by which one algorithm differs from another."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field

from oar_lightning.common.config_check import ConfigError, warn_idle
from oar_lightning.credit.component import Component
from oar_lightning.credit.fit import check_fit
from oar_lightning.credit.gates import BilevelGate, ClipGate, Gate
from oar_lightning.credit.scorers import Scorer, Uniform, as_scorer
from oar_lightning.objective.advantage import AdvantageConfig
from oar_lightning.objective.entropy import EntropyControl, Unadapted
from oar_lightning.objective.loss import LossConfig
from oar_lightning.rollout import SamplingConfig
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.types import Rollouts

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Method:
    """An algorithm: who gets the advantage, its loss, and how a batch of rollouts is sampled and used.

    `entropy`: what adapts the coefficient of an entropy term.
    """

    scorer: Scorer = field(default_factory=Uniform)
    gate: Gate = BilevelGate()
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    update: UpdatePlan = field(default_factory=lambda: UpdatePlan(microbatches=8))
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    entropy: EntropyControl = field(default_factory=Unadapted)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scorer", as_scorer(self.scorer))  # a plain function is one too

    @property
    def components(self) -> dict[str, Component]:
        """The parts that take a run's tools."""
        return {"scorer": self.scorer, "gate": self.gate}

    @property
    def stateful(self) -> dict[str, Component | EntropyControl]:
        """The parts that may keep a state."""
        return {**self.components, "entropy": self.entropy}

    @property
    def masks_loss(self) -> bool:
        """Whether credit leaves tokens out of the loss."""
        return self.gate.masks_loss or self.scorer.masks_loss

    def loss_of(self, rollouts: Rollouts) -> LossConfig:
        """The loss that these rollouts are learnt by: without its KL term where they were sampled before it begins."""
        begun = not self.loss.later_reference or rollouts.ref_logprobs is not None
        return self.loss if begun else dataclasses.replace(self.loss, kl_coef=0.0)

    def leaves_out_zero_advantage(self, rollouts: Rollouts) -> bool:
        """Whether completions of advantage 0 take no part in the update, since their gradient is exactly zero."""
        return self.loss_of(rollouts).ignores_zero_advantage and not self.entropy.active

    @property
    def entropy_teaches(self) -> bool:
        """Whether the loss of some step may have a term of the entropy."""
        return self.loss.entropy_coef != 0 or self.entropy.active

    @property
    def entropy_grad(self) -> bool:
        """Whether the loss of the step to come has a term of the entropy."""
        return self.loss.entropy_coef != 0 or self.entropy.coefficient > 0


def check_method(method: Method) -> None:
    """Hold the parts of a method against each other.

    Raises:
        ConfigError: names key, value and remedy.
    """
    check_credit(method)
    check_clipping(method)
    check_entropy(method)


def check_credit(method: Method) -> None:
    """Hold scorer, gate and loss against each other.

    Raises:
        ConfigError: for a combination that cannot work or would silently do something else.
    """
    scorer, gate, loss = method.scorer, method.gate, method.loss
    name = type(scorer).__name__
    if scorer.needs_reference and loss.later_reference:
        raise ConfigError(
            f"loss.kl_from={loss.kl_from} compares with the policy of a later time, and scorer {name} with the policy at the "
            "start; set loss.kl_from=0, or loss.kl_coef=0"
        )
    warn_idle("loss", {f"{key}={getattr(loss, key)}": why for key, why in loss.idle.items()})
    check_fit(scorer, gate)
    if isinstance(scorer, Uniform):
        return
    if gate.replaces and method.advantage != AdvantageConfig():
        log.warning(
            "%s puts scores in the place of the group advantages, so that %s changes nothing but what %s reads of them",
            type(gate).__name__,
            " ".join(f"advantage.{key}={value}" for key, value in vars(method.advantage).items()),
            name,
        )
    if loss.ratio == "sequence" and not gate.uniform:
        raise ConfigError(
            f"loss.ratio=sequence has one ratio for a whole completion and cannot carry token weights of {name}; use "
            "loss=gspo_token (loss.ratio=sequence_token) or scorer=uniform"
        )
    if loss.surrogate == "cispo" and gate.clips:
        raise ConfigError("loss.surrogate=cispo has no clip bounds that gate=clip could widen; use loss=grpo or loss=dapo")
    if gate.averages_tokens and loss.reduction != "dapo":
        raise ConfigError(
            f"{type(gate).__name__} averages over the tokens of the step, and loss.reduction={loss.reduction} over others; use "
            "loss.reduction=dapo"
        )
    if loss.ratio == "sequence" and method.masks_loss:
        raise ConfigError("loss.ratio=sequence averages over whole completions, which a loss mask cuts; use loss=gspo_token")


def check_clipping(method: Method) -> None:
    """Refuse bounds of a gate that never act, and tell of those of the loss that do not.

    Raises:
        ConfigError: names keys and remedy.
    """
    gate, loss = method.gate, method.loss
    if isinstance(gate, ClipGate) and loss.ratio_max is not None and loss.ratio_max <= 1 + gate.clip_high:
        raise ConfigError(
            f"loss.ratio_max={loss.ratio_max} must be greater than 1 + gate.clip_high, and gate.clip_high={gate.clip_high}: no "
            "ratio would come to that bound; set it higher, or null for no cap"
        )
    if method.update.steps_per_rollout > 1:
        return
    if idle := [f"loss.{key}={value}" for key, value in loss.of_ratios.items() if key not in loss.idle]:
        weighted = ", though loss.ratio=sequence changes gradients where engine=vllm or kl_bias_correction weights tokens"
        log.warning(
            "%s: without effect, since one optimizer step for each batch of rollouts leaves all ratios at 1%s; set "
            "update.minibatches=2, or leave it out",
            " ".join(idle),
            weighted if loss.ratio == "sequence" else "",
        )
    if gate.clips and not loss.kl_coef:
        raise ConfigError(
            f"{type(method.gate).__name__} sets bounds of the ratio and a factor of the KL term; with one optimizer step for "
            "each batch of rollouts all ratios are 1, and loss.kl_coef=0 leaves no KL term: it would be plain GRPO; set "
            "update.minibatches=2, or loss.kl_coef"
        )


def check_entropy(method: Method) -> None:
    """Refuse two entropy terms, and one by steps without steps.

    Raises:
        ConfigError: names keys, values and remedy.
    """
    if method.entropy.active and method.loss.entropy_coef:
        raise ConfigError(
            f"loss.entropy_coef={method.loss.entropy_coef} is constant, and {type(method.entropy).__name__} adapts a "
            "coefficient of its own; set loss.entropy_coef=0 (the adapted one begins with entropy.coef_start), or entropy=none"
        )
    gate = method.gate
    if method.entropy.by_step and isinstance(gate, BilevelGate) and gate.advantages != "both":
        raise ConfigError(
            f"entropy.steps=explore tells the steps of all completions apart by their scores, and gate.advantages="
            f"{gate.advantages} leaves scores to those of one sign; set gate.advantages=both, or entropy=adaptive"
        )
    if method.entropy.by_step and isinstance(method.scorer, Uniform):
        raise ConfigError(
            "entropy.steps=explore tells steps apart by their scores, and scorer=uniform scores 0 everywhere; choose a scorer, "
            "e.g. scorer=information_gain, or entropy=adaptive"
        )
