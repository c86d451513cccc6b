"""Which policy it is, by its weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

SAMPLED = 4096
"""Values of a tensor that `sampled_fingerprint` reads."""


def policy_fingerprint(model: Any, tokenizer: Any = None) -> str:
    """A digest of the weights and, where given, the vocabulary and the chat template: the same policy has the same
    one wherever it was loaded from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        for part in tensor.detach().reshape(-1).split(2**24):  # bounds the copy in the host's memory
            digest.update(part.contiguous().view(torch.uint8).cpu().numpy())
    if tokenizer is not None:
        digest.update(_described(tokenizer))
    return digest.hexdigest()


def architecture(model: Any) -> dict[str, Any]:
    """What a model's config says of its forward pass, as JSON has it: weights alone do not tell how positions are read."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    return {key: value for key, value in config.items() if key not in _NOT_OF_THE_PASS}


_NOT_OF_THE_PASS = frozenset({"_name_or_path", "name_or_path", "transformers_version", "architectures"})


def sampled_fingerprint(weights: Mapping[str, torch.Tensor]) -> str:
    """A digest of at most `SAMPLED` values of each tensor, as far apart as can be. Training moves nearly all values, so that
    another training's weights have another one; it takes no time where a digest of all of a large model's takes a minute."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        values = tensor.detach().reshape(-1)
        values = values[:: max(1, -(-len(values) // SAMPLED))].contiguous()
        digest.update(values.view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """A digest of the vocabulary and of the chat template."""
    return hashlib.sha256(_described(tokenizer)).hexdigest()


def _described(tokenizer: Any) -> bytes:
    template = getattr(tokenizer, "chat_template", None)
    return (json.dumps(sorted(tokenizer.get_vocab().items())) + (json.dumps(template) if template else "")).encode()
