"""Config -> the policy."""

from __future__ import annotations

from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.outputs import output_folder
from oar_lightning.data.stream import sample_texts
from oar_lightning.policy.casting import MIXED, TRUE, cast, precision_name
from oar_lightning.policy.fresh import FreshPolicy
from oar_lightning.policy.lm_head import check_head
from oar_lightning.policy.pretrained import Policy, PretrainedPolicy
from oar_lightning.wiring.data import build_train


def bare_policy(cfg: DictConfig) -> Policy:
    """The policy at the start of a run."""
    spec: PretrainedPolicy | FreshPolicy = instantiate(cfg.policy)
    if not isinstance(spec, FreshPolicy):
        return spec.load()
    render = instantiate(cfg.data.prompt).render
    return spec.build(sample_texts(build_train(cfg), render, int(cfg.supervised.tokenizer_problems)))


def load_policy(
    spec: PretrainedPolicy | FreshPolicy,
    task: str,
    device: torch.device,
    precision: object = "32-true",
    *,
    trained: bool = False,
) -> Policy:
    """The policy of a task that does not train, in eval mode on its device; its weights in the precision of a Trainer. They are
    frozen, but with `trained` for those that training moves.

    Raises:
        ConfigError: for a fresh policy, whose weights are random, and for a precision that only a Trainer knows.
    """
    name = precision_name(precision)
    if name not in TRUE and name not in MIXED:
        raise ConfigError(
            f"trainer.precision={precision} needs a Trainer, and task={task} has none; set one of {', '.join([*TRUE, *MIXED])}"
        )
    if isinstance(spec, FreshPolicy):
        raise ConfigError(
            f"policy=fresh is a random policy, which says nothing in task={task}; train it first with "
            "+experiment=warm_start, then pass policy=hf policy.name=<its folder>"
        )
    policy = spec.load()
    check_head(policy.model)
    cast(policy.model, device, TRUE.get(name))
    if not trained:
        policy.model.requires_grad_(False)
    return policy


def export_folder(cfg: DictConfig, run_dir: Path) -> Path:
    """Where the policy is exported to, a folder that can be written."""
    return output_folder(str(cfg.export_to), "export_to") if cfg.export_to else run_dir / "policy"
