"""One rank of a small training job, started by tests. It trains each case and saves its logs and weights."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import hydra
import lightning as L
import torch
from support.credit_methods import credit_methods, decided_policy, reference_of
from support.fixtures import ConstantReward, LengthReward, fit, make_module, make_warm_start, tiny_policy, weights

from oar_lightning.common.paths import conf_dir
from oar_lightning.credit.gates import BilevelGate, DirectGate, SelectGate
from oar_lightning.credit.scorers import Entropy, OarG, OarP, Uniform
from oar_lightning.credit.scorers.implicit import ImplicitRewards
from oar_lightning.data.curriculum import Curriculum, DifficultyCurriculum, EveryProblem
from oar_lightning.distributed.strategies import adapt
from oar_lightning.objective.advantage import AdvantageConfig
from oar_lightning.objective.entropy import AdaptiveEntropy, StepEntropy
from oar_lightning.objective.loss import LossConfig
from oar_lightning.policy.pretrained import LoraSpec, Policy
from oar_lightning.rollout import CachedEngine, SamplingConfig
from oar_lightning.training.callbacks import LastCheckpoint, RandomState
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.slots import Slot, UpdatePlan
from oar_lightning.types import MathProblem

SECOND = os.environ.get("RANK") == "1"
PLAN = UpdatePlan(problems=4, group_size=4, minibatches=2, microbatches=2)
LR = 1e-4
"""The gradients that OAR-G scores by are ill-conditioned in float32 (a KL of outcomes 1e-3 apart): its weights, and by them how
the loss depends on an update, round 1e-4 apart."""
UNUSED = BilevelGate(mode="off")
"""Scores are computed, and do not weigh the advantages."""


class OneTeaches:
    """Rewards that differ within the groups of about half of the problems, told apart by their questions."""

    def __call__(self, problems: list[MathProblem], completions: list[Any]) -> list[float]:
        varied = LengthReward()(problems, completions)
        return [r if sum(map(ord, p.question)) % 2 else 1.0 for p, r in zip(problems, varied, strict=True)]


class Cramped(CachedEngine):
    """An engine whose second rank runs out of memory with more than five completions at once."""

    def _sample(self, model: Any, prompts: Any, owner: torch.Tensor, *rest: Any) -> Any:
        if SECOND and len(owner) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super()._sample(model, prompts, owner, *rest)


def gives_way(update: bool) -> PolicyOptimization:
    """A module whose second rank runs out of memory in sampling and, with `update`, in the backward pass of large updates."""
    plan = UpdatePlan(problems=4, group_size=4, minibatches=2, microbatches=2, token_budget="auto" if update else None)
    module = make_module(tiny_policy(), update=plan)
    sampling = SamplingConfig(max_new_tokens=12, token_budget="auto")
    module.collector.method = dataclasses.replace(module.method, sampling=sampling)
    module.collector.stage = dataclasses.replace(module.collector.stage, engine=Cramped(module.tokenizer))

    def refuse(gradient: torch.Tensor) -> None:
        if gradient.shape[:2].numel() > 45:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def watch(layer: Any, args: Any, output: torch.Tensor) -> None:
        if layer.training and SECOND:
            output.register_hook(refuse)

    if update:
        module.model.get_decoder().layers[0].register_forward_hook(watch)
    return module


class Case(NamedTuple):
    """A training job: what makes its module, its number of steps, and which problems it takes."""

    module: Callable[[], L.LightningModule]
    steps: int
    curriculum: Curriculum = EveryProblem()


def tiny(**settings: Any) -> Callable[[], PolicyOptimization]:
    return lambda: make_module(tiny_policy(), **settings)


def scaled_by_batch() -> PolicyOptimization:
    budget = UpdatePlan(problems=4, group_size=4, minibatches=2, microbatches=4, token_budget=40)
    module = make_module(tiny_policy(), update=budget, loss=LossConfig(reduction="dapo"))
    module.collector.method = dataclasses.replace(module.method, advantage=AdvantageConfig(scale="batch"))
    return module


def two_stages() -> PolicyOptimization:
    """A KL term and accuracy times confidence from the second of three batches on, and an entropy term of some steps."""
    entropy = AdaptiveEntropy(1.5, 0.05, coef_start=0.01, steps="explore")
    gate, loss = DirectGate(region="reasoning"), LossConfig(kl_coef=0.1, kl_from=0.3)
    module = make_module(tiny_policy(), Entropy(), update=PLAN, gate=gate, loss=loss, entropy=entropy, lr=LR)
    module.collector.method = dataclasses.replace(module.method, advantage=AdvantageConfig(confidence_from=0.3))
    return module


def stepped_entropy() -> PolicyOptimization:
    """The target lies among the entropies of the steps, which are 0.003 apart, so that those of one rank would not do."""
    entropy = StepEntropy(target=5.579, delta=0.02, coef_start=0.05)
    return make_module(decided_policy(), update=PLAN, entropy=entropy, lr=LR)


WHOLE = UpdatePlan(problems=2, group_size=4, microbatches=2)


def of_credit(name: str) -> PolicyOptimization:
    """SPRO's reference is another policy, as after long training: as long as they are the same its scores are rounding."""
    (scorer, gate), policy = credit_methods()[name], decided_policy()
    reference = reference_of(scorer, decided_policy(1) if name == "spro" else policy)
    return make_module(policy, scorer, gate=gate, update=WHOLE, lr=LR, reference=reference)


CASES = {
    "grpo": Case(tiny(scorer=Uniform(), update=PLAN, lr=LR), 20),
    "oar_g": Case(tiny(scorer=OarG(), update=PLAN, lr=LR), 20),
    "oar_p": Case(tiny(scorer=OarP(), update=PLAN, lr=LR), 20),
    "budget": Case(scaled_by_batch, 4),
    "some_learn": Case(tiny(reward=OneTeaches(), update=WHOLE), 6),
    "gives_way": Case(lambda: gives_way(update=True), 4),
    "samples_again": Case(lambda: gives_way(update=False), 4),
    "uniform_short": Case(tiny(update=PLAN, gate=UNUSED), 4),
    "oar_g_unused": Case(tiny(scorer=OarG(), update=PLAN, gate=UNUSED), 4),
    "oar_p_unused": Case(tiny(scorer=OarP(), update=PLAN, gate=UNUSED), 4),
    "nobody_learns": Case(tiny(reward=ConstantReward(), update=WHOLE), 2),
    "warm_start": Case(lambda: make_warm_start(tiny_policy(), batch_size=8), 4),
    # of eight pairs of demonstrations four have one that is too long, and one has two
    "warm_start_too_long": Case(lambda: make_warm_start(tiny_policy(), batch_size=2, max_tokens=53), 8),
    "lora": Case(lambda: make_module(lora_policy(), scorer=OarG(), update=PLAN, loss=LossConfig(kl_coef=0.1), lr=LR), 4),
    "full_disk": Case(tiny(update=PLAN), 3),
    "selected": Case(tiny(scorer=Entropy(region="response"), update=PLAN, gate=SelectGate(), lr=LR), 4),
    "adapted_entropy": Case(tiny(reward=OneTeaches(), update=WHOLE, lr=LR, entropy=AdaptiveEntropy(1.5, 0.05)), 2),
    "stepped_entropy": Case(stepped_entropy, 4),
    "two_stages": Case(two_stages, 6),
    "handed_over": Case(tiny(scorer=OarP(), update=PLAN, lr=LR), 4, DifficultyCurriculum(floor=0.01)),
    **{name: Case(functools.partial(of_credit, name), 3) for name in credit_methods()},
}


def lora_policy() -> Policy:
    """The tiny policy with LoRA adapters that are not zero, and gradient checkpointing."""
    policy = tiny_policy()
    torch.manual_seed(0)
    model = LoraSpec(r=4, alpha=8).apply(policy.model)
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.05)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return Policy(model, policy.tokenizer)


class FullDisk(L.Callback):
    """During one optimizer step the rank that writes checkpoints (under DeepSpeed the second) can write no file beyond 64 kB.

    `seen`: the names in the folder before each step, and the step of its last checkpoint.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.folder = folder
        self.step = step
        self.former = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.seen: list[tuple[list[str], int]] = []

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        if batch.microbatch:
            return
        names, last = sorted(path.name for path in self.folder.glob("*")), self.folder / "last.ckpt"
        if last.is_dir():
            step = json.loads((last / "summary.json").read_text())["global_step"]
        else:
            step = torch.load(last, weights_only=True)["global_step"] if last.exists() else 0
        self.seen.append((names, step))
        writer = trainer.world_size - 1 if adapt(trainer).layout is not None else 0
        full = trainer.global_step + 1 == self.step and trainer.global_rank == writer
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16 if full else self.former[0], self.former[1]))


class Watch(L.Callback):
    """Records the completions of every batch of rollouts, and the weights at the end."""

    def __init__(self) -> None:
        self.completions: list[tuple[str, ...]] = []
        self.own: dict[str, torch.Tensor] = {}
        """Weights of the scorer's own model, where it has one."""

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if isinstance(batch, Slot) and batch.first:
            self.completions.append(module.experience.rollouts.completions)

    def on_train_end(self, trainer: L.Trainer, module: Any) -> None:
        with adapt(trainer).gathered_parameters():
            self.weights = weights(module)
        if isinstance(module, PolicyOptimization) and isinstance(module.method.scorer, ImplicitRewards):
            self.own = module.method.scorer.state_dict()["weights"]


def train(names: list[str], folder: Path, strategy: Callable[[], Any] = lambda: "auto", devices: int = 1) -> dict[str, Any]:
    """Train the named cases. Returns name -> logged rows, final weights and completions.

    `handed_over` saves a checkpoint of its second step, and `resumed` goes on from the one of the other number of ranks.
    """
    results = {}
    for name in names:
        make, steps, curriculum = CASES["handed_over" if name == "resumed" else name]
        module = make()
        watch, about = Watch(), {"strategy": strategy(), "devices": devices}
        callbacks: list[L.Callback] = [watch, RandomState()]
        if name == "full_disk":
            checkpoints = folder / f"full{devices}"
            disk = FullDisk(checkpoints, 2)
            callbacks += [disk, LastCheckpoint(checkpoints, 1)]
        if name == "handed_over":
            callbacks.append(LastCheckpoint(folder / f"of{devices}", 2))
        if name == "resumed":
            about["ckpt_path"] = str(folder / f"of{3 - devices}" / "previous.ckpt")
        rows = fit(module, steps, callbacks, curriculum=curriculum, **about).rows
        results[name] = {"rows": rows, "weights": watch.weights, "completions": watch.completions, "own": watch.own}
        if name == "full_disk":
            results[name]["seen"] = disk.seen
    return results


def configured(trainer: str) -> Any:
    """The strategy that a `trainer=...` of the command line names."""
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return hydra.utils.instantiate(hydra.compose("config", [f"trainer={trainer}"]).trainer.strategy)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, rank, ranks, trainer, *names = sys.argv[1:]
    found = train(names, Path(folder), strategy=lambda: configured(trainer), devices=int(ranks))
    torch.save(found, Path(folder) / f"rank{rank}.pt")
