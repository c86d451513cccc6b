"""Which policy it is, by its weights."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch


def policy_fingerprint(model: Any, tokenizer: Any = None) -> str:
    """A digest of the weights and, where given, the vocabulary and the chat template: the same policy has the same
    one wherever it was loaded from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        for part in tensor.detach().reshape(-1).split(2**24):  # bounds the copy in the host's memory
            digest.update(part.contiguous().view(torch.uint8).cpu().numpy())
    if tokenizer is not None:
        digest.update(json.dumps(sorted(tokenizer.get_vocab().items())).encode())
        if template := getattr(tokenizer, "chat_template", None):
            digest.update(json.dumps(template).encode())
    return digest.hexdigest()
