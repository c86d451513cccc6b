"""TRL's GRPOTrainer, one step a turn: its own `train()` with a callback that waits where a step begins.

Run by compare.py with the Python of TRL's environment; knows nothing of oar_lightning.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from turns import Turns

BOXED = re.compile(r"\\boxed\{([^}]*)\}")


def exact_answer(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 where the last box holds the gold answer to the letter: the cheapest judge of the built-in task."""
    boxes = [BOXED.findall(text) for text in completions]
    return [float(bool(found) and found[-1].strip() == gold) for found, gold in zip(boxes, answer, strict=True)]


def alternating(completions: list[str], **_: Any) -> list[float]:
    """Half of each group is rewarded, whatever it says."""
    return [float(row % 2) for row in range(len(completions))]


def number_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Numbers are their own ids. EOS is an id that the model does not have, so that no completion can end."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    words = Tokenizer(WordLevel({str(i): i for i in range(vocab_size)} | {"<eos>": vocab_size}, unk_token="0"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="0", padding_side="left")


class TakesTurns(TrainerCallback):
    """Waits where a step begins; times generation and reward by wrapping the trainer's two methods."""

    def __init__(self, turns: Turns, trainer: GRPOTrainer) -> None:
        self.turns = turns
        self.trainer = trainer
        self.seconds: dict[str, float] = {}
        trainer._generate = self._timed("generate", trainer._generate)
        trainer._calculate_rewards = self._timed("reward", trainer._calculate_rewards)

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            out = method(*args, **kwargs)
            self.seconds[name] = time.perf_counter() - started
            return out

        return run

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.turns.step_begins(self.facts)

    def facts(self) -> dict[str, Any]:
        metrics = {name: values[-1] for name, values in self.trainer._metrics["train"].items() if values}
        return {
            "parts": dict(self.seconds),
            "mean_length": metrics["completions/mean_length"],
            "reward": metrics["reward"],
            "zero_std": metrics["frac_reward_zero_std"],
        }


def build(job: dict[str, Any], variant: dict[str, Any]) -> GRPOTrainer:
    rows = [json.loads(line) for line in Path(job["prompts"]).read_text(encoding="utf-8").splitlines()]
    model = AutoModelForCausalLM.from_pretrained(job["weights"], dtype=torch.float32)
    completions = job["problems"] * job["group_size"]
    optimizer = job["optimizer"]
    args = GRPOConfig(
        output_dir=job["folder"],
        per_device_train_batch_size=completions // variant["accumulation"],
        gradient_accumulation_steps=variant["accumulation"],
        num_generations=job["group_size"],
        max_completion_length=job["max_new_tokens"],
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        use_transformers_continuous_batching=False,
        torch_compile=variant["compile"],
        loss_type="grpo",
        beta=0.0,
        epsilon=0.2,
        scale_rewards="group",
        num_iterations=1,
        learning_rate=optimizer["lr"],
        adam_beta1=optimizer["betas"][0],
        adam_beta2=optimizer["betas"][1],
        adam_epsilon=optimizer["eps"],
        weight_decay=optimizer["weight_decay"],
        max_grad_norm=job["max_grad_norm"],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=job["warmup_steps"],
        max_steps=job["steps"] + 1,  # one more than there are turns: each step ends where the next begins
        shuffle_dataset=False,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )
    numbers = job["judge"] == "alternating"
    return GRPOTrainer(
        model=model,
        reward_funcs=alternating if numbers else exact_answer,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=number_tokenizer(job["vocab_size"]) if numbers else AutoTokenizer.from_pretrained(job["weights"]),
    )


def main(job_file: str, variant: str) -> None:
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    turns = Turns()
    trainer = build(job, job["trl_variants"][variant])
    trainer.add_callback(TakesTurns(turns, trainer))
    turns.ready(
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        trl=trl.__version__,
        parameters=trainer.model.num_parameters(),
        optimizer=str(trainer.args.optim.value),
    )
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
