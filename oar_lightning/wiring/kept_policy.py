"""What policy a run began with, by content: its folder may be written anew between two starts of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.mappings import differing
from oar_lightning.distributed.frozen import frozen_weights
from oar_lightning.policy.fingerprint import sampled_fingerprint, tokenizer_fingerprint
from oar_lightning.policy.lm_head import in_shards
from oar_lightning.policy.pretrained import Policy

POLICY = "policy.json"
"""Artifact of a run: digests of what it began with."""

Digests = Mapping[str, str]
"""``tokenizer`` (and chat template), ``weights`` (under adapters those that stay, else all), ``reference`` (that of a KL term
or of the scorer). Of weights that ranks divide among them there is none."""


def digests_of(policy: Policy, reference: Any = None) -> Digests:
    """Those of a policy before training; `reference`: the frozen model beside it."""
    found = {"tokenizer": tokenizer_fingerprint(policy.tokenizer)}
    for name, model in (("weights", policy.model), ("reference", reference)):
        if model is not None and not in_shards(model.parameters()):
            frozen = frozen_weights(model) if name == "weights" else {}
            found[name] = sampled_fingerprint(frozen or model.state_dict())
    return found


def check_policy_kept(run_dir: Path, now: Digests, names: tuple[str, ...]) -> None:
    """Compare the digests of these names with what the run in `run_dir` began with; runs of older versions have kept none.

    Raises:
        ConfigError: names what is another.
    """
    path = run_dir / "artifacts" / POLICY
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); mend it, or remove it to resume without a comparison") from error
    if other := [name for name in differing(before, now) if name in names]:
        raise ConfigError(
            f"{run_dir}: the {' and the '.join(other)} of the policy are others than those that the run began with, as where "
            f"the folder of policy.name was written anew. Bring it back, or start a new run (or remove {path} to go on)"
        )


def compared(policy: Policy, begun: bool) -> tuple[str, ...]:
    """What the rest of a run depends on: of weights that it trains, and so has in its checkpoints, not what they were; but all
    where it has `begun` without a checkpoint."""
    return ("tokenizer", "reference", *(["weights"] if begun or frozen_weights(policy.model) else []))
