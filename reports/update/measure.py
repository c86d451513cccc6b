"""What makes the update cheaper on a CPU: `python reports/update/measure.py` (a quarter of an hour; needs a C++ compiler).

Each way is timed in processor seconds of one thread, which a busy machine disturbs less than its clock; the ways take turns.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["TRANSFORMERS_SDPA_FORCE_GQA"] = "1"  # as the command sets it

import torch
import transformers.models.qwen2.modeling_qwen2 as qwen2
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor

from oar_lightning.answers.reward import Accuracy, Rewards
from oar_lightning.benchmark import ConfiguredWorkload, RandomWorkload, Workload
from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.paths import conf_dir
from oar_lightning.data.stream import ProblemStream
from oar_lightning.policy import lm_head
from oar_lightning.policy.decoder import plain
from oar_lightning.rollout import build_stage
from oar_lightning.training.experience import Experience
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.slots import Slot
from oar_lightning.wiring.policy import load_policy
from oar_lightning.wiring.settings import build_settings

HERE = Path(__file__).parent
ROUNDS = {"tiny": 9, "wide": 3}


class Norm(torch.autograd.Function):
    """RMSNorm in few passes, with its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(eps).rsqrt_()[..., None]
        normal = x * scale
        ctx.save_for_backward(normal, weight, scale)
        return normal * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        normal, weight, scale = ctx.saved_tensors
        size = normal.shape[-1]
        of_weight = torch.linalg.vecdot(gradient.reshape(-1, size), normal.reshape(-1, size), dim=0)
        inner = gradient * weight
        along = torch.linalg.vecdot(inner, normal)[..., None] / size
        return torch.addcmul(inner, normal, along, value=-1).mul_(scale), of_weight, None


class Rotary(torch.autograd.Function):
    """Rotary positions without turned copies, with their gradient: the turn back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return turned(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return turned(gradient, cos, sin, -1), None, None


def turned(x: Tensor, cos: Tensor, sin: Tensor, way: int) -> Tensor:
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., half:], value=-way)
    out[..., half:].addcmul_(x[..., :half], sin[..., :half], value=way)
    return out


class SwiGLU(torch.autograd.Function):
    """silu(gate) up, with its gradient."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        sigmoid = torch.sigmoid(gate)
        ctx.save_for_backward(gate, up, sigmoid)
        return torch.mul(gate, sigmoid).mul_(up)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up, sigmoid = ctx.saved_tensors
        silu = gate * sigmoid
        return torch.addcmul(sigmoid + silu, silu, sigmoid, value=-1).mul_(up).mul_(gradient), silu * gradient


def norm(self: Any, x: Tensor) -> Any:
    return Norm.apply(x, self.weight, self.variance_epsilon)


def rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Any, Any]:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return Rotary.apply(query, cos, sin), Rotary.apply(key, cos, sin)


def swiglu(self: Any, x: Tensor) -> Any:
    return self.down_proj(SwiGLU.apply(self.gate_proj(x), self.up_proj(x)))


def whole_head(
    model: Any, hidden: Tensor, targets: Tensor, temperature: float, entropy_grad: bool | None
) -> tuple[Tensor, Tensor]:
    """The head as it was: chunks of 64 MiB of logits, softmax made again in the backward pass."""
    size = len(model.get_output_embeddings().weight)
    head = functools.partial(scaled_logits, model, temperature)
    return lm_head.chunked_logprobs(head, hidden, targets, entropy_grad, size)


def scaled_logits(model: Any, temperature: float, hidden: Tensor) -> Tensor:
    return lm_head.head_logits(model, hidden) / temperature


MODULES = "through the modules, as before"
PATCHES: dict[str, Callable[[], Any]] = {
    MODULES: lambda: mock.patch.object(plain, "LEARNING_BYTES", 0),
    "head in chunks, as before": lambda: mock.patch.object(lm_head, "_head_logprobs", whole_head),
    "norm in few passes": lambda: mock.patch.object(qwen2.Qwen2RMSNorm, "forward", norm),
    "rotary positions without copies": lambda: mock.patch.object(qwen2, "apply_rotary_pos_emb", rotary),
    "SwiGLU in few passes": lambda: mock.patch.object(qwen2.Qwen2MLP, "forward", swiglu),
    "autocast to bfloat16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}
WAYS: dict[str, tuple[str, ...]] = {
    "as it is": (),
    MODULES: (MODULES,),
    **{name: (MODULES, name) for name in PATCHES if name != MODULES},
    "norm and rotary": (MODULES, "norm in few passes", "rotary positions without copies"),
}
PLAIN = "as it is"
COMPILED = "`update.compile`"


def build(setting: str, *overrides: str) -> PolicyOptimization:
    """A module with a batch of rollouts to learn from."""
    task = ["task=benchmark", f"benchmark={setting}", "logger=none", *overrides]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("config", task)
    settings, config = build_settings(cfg), instantiate(cfg.benchmark, _convert_="all")
    torch.manual_seed(0)
    plan = settings.method.update
    workload: Workload
    stage: Any
    if config.shape is None:
        assert settings.train is not None
        policy = load_policy(settings.policy, "train", torch.device("cpu"))
        policy.model.requires_grad_(True)
        prompt = instantiate(cfg.data.prompt, tokenizer=policy.tokenizer)
        stage = build_stage(policy, prompt, settings.answer, settings.rewards, settings.engine)
        stream = ProblemStream(settings.train, 0)
        workload = ConfiguredWorkload(policy, stage, stream, plan.problems, plan.group_size, settings.method.sampling)
    else:
        workload = RandomWorkload(config.shape, torch.device("cpu"))
        stage = mock.Mock(rewards=Rewards({"accuracy": Accuracy()}))
    method = settings.method
    module = PolicyOptimization(workload.policy, stage, method, torch.optim.AdamW, settings.schedule, 0).train()
    rollouts = workload.judge(workload.sample(0), 0)
    advantages = module.collector.advantages(rollouts.reward_terms, rollouts.group_size)
    rollouts = replace(rollouts, advantages=advantages)
    module.experience = Experience(replace(rollouts, prediction_states=None), module.collector.assign_credit(rollouts))
    return module


def update(module: PolicyOptimization) -> Tensor:
    """Forward and backward passes of an optimizer step; the gradient."""
    for index in range(module.method.update.microbatches):
        loss = module.training_step(Slot((), 0, 0, 0, index), 0)
        if loss is not None:
            loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
    module.zero_grad()
    return gradient / module.method.update.microbatches  # the trainer would divide each loss by it


@contextlib.contextmanager
def patched(names: tuple[str, ...]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(PATCHES[name]())
        yield


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.double(), b.double(), 0))


def table(setting: str) -> str:
    module = build(setting)
    smaller = build(setting, "update.microbatches=8") if setting == "tiny" else None
    compiled = build(setting, "update.compile=true")
    started = time.perf_counter()
    update(compiled)
    first = time.perf_counter() - started
    ways: dict[str, tuple[PolicyOptimization, tuple[str, ...]]] = {name: (module, names) for name, names in WAYS.items()}
    ways[f"{COMPILED} (first step {first:.0f} s)"] = compiled, ()
    if smaller is not None:
        ways["8 micro-batches in place of 4"] = smaller, ()
    gradients, seconds = {}, {name: list[float]() for name in ways}
    for name, (one, names) in ways.items():  # also the warm-up
        with patched(names):
            gradients[name] = update(one)
    for number in range(ROUNDS[setting]):
        print(f"{setting}, round {number + 1}/{ROUNDS[setting]}", file=sys.stderr, flush=True)  # noqa: T201
        for name, (one, names) in ways.items():
            with patched(names):
                started = time.process_time()
                update(one)
                seconds[name].append(time.process_time() - started)
    header = ["update", "CPU s (median)", "of the update as it is, median (range)", "1 - cosine of the gradients", "its norm"]
    rows = [header]
    for name, own in seconds.items():
        ratios = sorted(a / b for a, b in zip(own, seconds[PLAIN], strict=True))
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        norms = gradients[name].norm() / gradients[PLAIN].norm()
        apart = 1 - cosine(gradients[name], gradients[PLAIN])
        rows.append([name, f"{statistics.median(own):.2f}", spread, f"{apart:.1e}", f"{norms:.4f}"])
    return f"## `{setting}`\n{markdown(rows)}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    fill(HERE / "README.md", "\n\n".join(table(setting) for setting in ROUNDS))
