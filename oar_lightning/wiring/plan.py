"""Config -> what the memory of a run depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.credit.scorers.reference import ReferenceOarG, ReferenceOarP
from oar_lightning.planning.config import PlanConfig
from oar_lightning.planning.job import Job
from oar_lightning.planning.memory import Sharding
from oar_lightning.planning.scoring import innermost
from oar_lightning.policy.casting import precision_name
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.rollout import AutoEngineConfig, VllmConfig
from oar_lightning.training.method import Method
from oar_lightning.wiring.config import plain

STATES = {"AdamW": 2, "Adam": 2, "SGD": 0}
"""Numbers that an optimizer keeps of each parameter, without AMSGrad's one."""


def read_job(cfg: DictConfig, config: PlanConfig, method: Method) -> Job:
    policy, engine = instantiate(cfg.policy), instantiate(cfg.engine)
    scorer, sampling, loss, entropy = method.scorer, method.sampling, method.loss, method.entropy
    if not isinstance(policy, PretrainedPolicy):
        raise ConfigError(
            "task=plan reads a policy's config.json, and policy=fresh has none; pass policy=hf policy.name=<hub id or folder>"
        )
    settings = plain(cfg)
    optimizer: Mapping[str, Any] = settings["optimizer"]
    kind = str(optimizer["_target_"]).rpartition(".")[2]
    if kind not in STATES or (kind == "SGD" and optimizer.get("momentum")):
        raise ConfigError(
            f"optimizer._target_={optimizer['_target_']}: a plan knows {', '.join(STATES)} (without momentum) only"
        )
    sharding = Sharding.of(settings["trainer"])
    on_gpu = settings["trainer"].get("accelerator") in ("gpu", "cuda", "auto")  # the GPU that it may be has less room
    vllm = engine if isinstance(engine, VllmConfig) else None
    if isinstance(innermost(scorer), ReferenceOarG | ReferenceOarP):
        raise ConfigError(
            f"{type(innermost(scorer)).__name__} is written for tests, and nothing bounds its passes; plan for scorer=oar_g or "
            "scorer=oar_p"
        )
    return Job(
        policy=policy,
        precision=precision_name(settings["trainer"].get("precision")),
        sharding=sharding,
        update=method.update,
        sampling=sampling,
        scorer=scorer,
        prompt=int(cfg.data.get("max_prompt_tokens") or config.prompt_tokens),
        answer=min(config.answer_tokens, max(1, sampling.max_new_tokens - 1)),
        kl=bool(loss.kl_coef) or scorer.needs_reference,
        later_reference=loss.later_reference,
        entropy_grad=loss.entropy_coef != 0 or entropy.active,
        entropy=entropy,
        states=STATES[kind] + bool(optimizer.get("amsgrad")),
        whole_copy=on_gpu and not optimizer.get("fused") and optimizer.get("foreach") is not False,
        engine_bytes=None if vllm is None else vllm.gpu_memory_utilization * config.card_bytes,
        own_loop=isinstance(engine, AutoEngineConfig),
        engine_sleeps=vllm is not None and vllm.sleep,
    )
