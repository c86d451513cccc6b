"""Small models and hand-made rollouts for the tests, and the golden files."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM

from oar_lightning.credit.component import Tools
from oar_lightning.types import MathProblem, Rollouts

FOLDER = Path(__file__).parents[1] / "golden"


@functools.cache
def golden(name: str) -> Any:
    """A golden file; see golden/README.md."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def floats(rows: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    """Nested lists as a tensor, null as NaN."""

    def number(value: Any) -> Any:
        return [number(v) for v in value] if isinstance(value, list) else float("nan") if value is None else value

    return torch.tensor(number(rows), dtype=dtype)


def pad_rows(rows: list[list[float]], fill: float = 0.0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Ragged rows as a right-padded tensor and its mask."""
    width = max(map(len, rows))
    mask = torch.tensor([[i < len(row) for i in range(width)] for row in rows])
    return torch.stack([torch.cat([floats(r, dtype), torch.full((width - len(r),), fill, dtype=dtype)]) for r in rows]), mask


def qwen2_golden() -> Qwen2ForCausalLM:
    settings = {k: v for k, v in golden("model")["config"].items() if k not in ("model_class", "dropout", "rope_theta")}
    theta = golden("model")["config"]["rope_theta"]
    rope = {"rope_type": "default", "rope_theta": theta}
    model = Qwen2ForCausalLM(Qwen2Config(**settings, attention_dropout=0.0, rope_parameters=rope)).double().eval()
    missing, unexpected = model.load_state_dict(load_file(str(FOLDER / "tiny_qwen2_f64.safetensors")), strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    return model


def gpt2(seed: int = 1, vocab_size: int = 40, dropout: float = 0.1) -> GPT2LMHeadModel:
    """float64, large enough weights that predictions are far from uniform, in training mode."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        initializer_range=0.4,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config).double().train()


def phi3_longrope(bound: int = 24) -> Phi3ForCausalLM:
    """float64; a text of more than `bound` tokens, and all that are read with it, is turned by other angles."""
    torch.manual_seed(0)
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [8.0] * 4}
    config = Phi3Config(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        original_max_position_embeddings=bound,
        sliding_window=200,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        rope_parameters=rope | {"original_max_position_embeddings": bound},
    )
    return Phi3ForCausalLM(config).double().eval()


def rollouts_of(sequences: list[dict[str, list[int]]], pad_token_id: int = 0, **changes: Any) -> Rollouts:
    """Left-padded prompts (`before`) and right-padded completions (`reasoning`, `conclude`, `answer`, `tail`)."""
    parts = ("reasoning", "conclude", "answer", "tail")
    before = max(len(s["before"]) for s in sequences)
    after = max(sum(len(s.get(p, [])) for p in parts) for s in sequences)
    rows: dict[str, list[list[int]]] = {k: [] for k in ("ids", "attention", "response", "reasoning", "answer")}
    for s in sequences:
        completion = [(token, part) for part in parts for token in s.get(part, [])]
        cells = [(pad_token_id, "pad")] * (before - len(s["before"])) + [(token, "before") for token in s["before"]]
        cells += completion + [(pad_token_id, "pad")] * (after - len(completion))
        rows["ids"].append([token for token, _ in cells])
        rows["attention"].append([part != "pad" for _, part in cells])
        rows["response"].append([part in parts for _, part in cells])
        rows["reasoning"].append([part == "reasoning" for _, part in cells])
        rows["answer"].append([part == "answer" for _, part in cells])
    n = len(sequences)
    values: dict[str, Any] = {
        "token_ids": torch.tensor(rows["ids"]),
        "attention_mask": torch.tensor(rows["attention"]),
        "response_mask": torch.tensor(rows["response"]),
        "reasoning_mask": torch.tensor(rows["reasoning"]),
        "answer_mask": torch.tensor(rows["answer"]),
        "reward_terms": torch.arange(float(n))[:, None],
        "rewards": torch.arange(float(n)),
        "group_size": n,
        "pad_token_id": pad_token_id,
        "problems": tuple(MathProblem(f"question {i}", str(i)) for i in range(n)),
        "completions": tuple(f"completion {i}" for i in range(n)),
        "answers": tuple(str(i) if s.get("answer") else None for i, s in enumerate(sequences)),
    }
    return Rollouts(**values | changes)


def padded(rollouts: Rollouts, left: int, right: int) -> Rollouts:
    """The same rollouts with extra pad columns on either side."""
    changes = {}
    masks = ("attention_mask", "response_mask", "reasoning_mask", "answer_mask")
    for name in ("token_ids", *masks, "old_logprobs", "ref_logprobs"):
        value = getattr(rollouts, name)
        fill = rollouts.pad_token_id if name == "token_ids" else 0
        changes[name] = None if value is None else torch.nn.functional.pad(value, (left, right), value=fill)
    return dataclasses.replace(rollouts, **changes)


def _not_lent(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("the test lends no such tool")


def tools(
    continuations: Any = _not_lent,
    reprompt: Any = _not_lent,
    encode: Any = _not_lent,
    temperature: float = 1.0,
    tokenizer: Any = None,
) -> Tools:
    """What a test lends to a scorer."""
    return SimpleNamespace(
        continuations=continuations, reprompt=reprompt, encode=encode, temperature=temperature, tokenizer=tokenizer
    )
