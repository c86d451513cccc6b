"""The trained weights in a checkpoint, and a policy with them."""

from __future__ import annotations

import torch
from torch import Tensor

from oar_lightning.common.config_check import ConfigError
from oar_lightning.distributed.deepspeed_checkpoint import consolidated_weights, read_summary
from oar_lightning.distributed.frozen import frozen_weights
from oar_lightning.policy.pretrained import Policy
from oar_lightning.wiring.resume import Saved

PREFIX = "model."
"""Of the policy's weights in a checkpoint, which is of the whole module."""


def put_weights(policy: Policy, saved: Saved) -> None:
    """Load the checkpoint's weights into the policy. Frozen weights (LoRA) are not in it and stay.

    Raises:
        ConfigError: where they do not fit.
    """
    weights = read_weights(saved)
    try:
        policy.model.load_state_dict(frozen_weights(policy.model) | weights)
    except RuntimeError as error:
        differences = str(error).splitlines()[1].strip()
        raise ConfigError(
            f"ckpt_path={saved.checkpoint}: its weights do not fit the policy ({differences:.300}); give "
            f"the policy=... of the run, see {saved.checkpoint.parent.parent / '.hydra' / 'overrides.yaml'}"
        ) from error


def read_weights(saved: Saved) -> dict[str, Tensor]:
    """All trained weights of the checkpoint, on the CPU.

    Raises:
        ConfigError: where a run that goes on has replaced the checkpoint since it was found.
    """
    if saved.layout is not None:
        step, state = read_summary(saved.checkpoint).global_step, consolidated_weights(saved.checkpoint)
    else:
        content = torch.load(saved.checkpoint, map_location="cpu", weights_only=True)
        step, state = int(content["global_step"]), content["state_dict"]
    if step != saved.step:
        raise ConfigError(
            f"{saved.checkpoint} was of step {saved.step} and is of step {step} now: its run goes on; repeat the command, or "
            "wait for the run's end"
        )
    return {name.removeprefix(PREFIX): weight for name, weight in state.items()}
