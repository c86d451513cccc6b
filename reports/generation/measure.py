"""Ways to sample a batch of rollouts, in turns: this package's decoding loop and what `transformers` offers.

    python reports/generation/measure.py [--rounds 5]

writes README.md beside this file (its text outside the markers is kept).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from oar_lightning.wiring.device import seed_everything, set_threads

os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # as `python -m oar_lightning` sets them
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from transformers import CompileConfig, GenerationConfig

from oar_lightning.common.markdown import fill, markdown
from oar_lightning.common.paths import conf_dir
from oar_lightning.common.randomness import derive_seed
from oar_lightning.data.stream import ProblemStream
from oar_lightning.policy.language_model import evaluating
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.rollout import CachedEngine, HFEngine, SamplingConfig
from oar_lightning.rollout.hf import eos_token_ids, stored_defaults_off
from oar_lightning.rollout.sampling import encode_prompts, pad_left
from oar_lightning.wiring.settings import build_settings

README = Path(__file__).with_name("README.md")
SAMPLES = 8


class Settings:
    """The default run's policy, prompts and sampling."""

    def __init__(self) -> None:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            cfg = compose("config")
        settings = build_settings(cfg)
        seed_everything(0)
        assert isinstance(settings.policy, PretrainedPolicy)
        loaded = settings.policy.load()
        assert settings.train is not None
        stream = ProblemStream(settings.train, 0)
        prompt = instantiate(cfg.data.prompt, tokenizer=loaded.tokenizer)
        self.rounds = [[prompt.render(p) for p in stream.take(settings.method.update.problems)] for _ in range(3)]
        self.model, self.tokenizer, self.sampling = loaded.model.eval(), loaded.tokenizer, settings.method.sampling


def engine(settings: Settings, made: Any, sampling: SamplingConfig) -> Callable[[int], int]:
    def run(number: int) -> int:
        prompts = settings.rounds[number % len(settings.rounds)]
        seeds = [derive_seed("generation", number, i) for i in range(len(prompts))]
        return int(made(settings.model, prompts, SAMPLES, sampling, seeds).response_mask.sum())

    return run


def _prompt_ids(settings: Settings, number: int) -> list[list[int]]:
    prompts = settings.rounds[number % len(settings.rounds)]
    return [ids for ids in encode_prompts(settings.tokenizer, prompts, list(range(len(prompts)))) for _ in range(SAMPLES)]


def static(settings: Settings, compiled: bool) -> Callable[[int], int]:
    """`generate` with a static cache, its decoding step compiled or not."""
    extra: dict[str, Any] = {"disable_compile": True}
    if compiled:
        config = CompileConfig(dynamic=None)
        config._compile_all_devices = True  # generate() compiles for accelerators only unless told otherwise
        extra = {"compile_config": config}
    width = max(len(ids) for n in range(len(settings.rounds)) for ids in _prompt_ids(settings, n))
    eos = eos_token_ids(settings.model, settings.tokenizer)
    pad = settings.tokenizer.pad_token_id

    @torch.no_grad()
    def run(number: int) -> int:
        ids, attention = pad_left(_prompt_ids(settings, number), pad, torch.device("cpu"))
        ids = torch.nn.functional.pad(ids, (width - ids.shape[1], 0), value=pad)  # one shape, compiled once
        attention = torch.nn.functional.pad(attention, (width - attention.shape[1], 0))
        with evaluating(settings.model), stored_defaults_off(settings.model):
            found = settings.model.generate(
                input_ids=ids,
                attention_mask=attention.long(),
                max_new_tokens=settings.sampling.max_new_tokens,
                eos_token_id=eos,
                pad_token_id=pad,
                do_sample=True,
                top_k=0,
                cache_implementation="static",
                **extra,
            )[:, width:]
        ended = torch.isin(found, torch.tensor(eos))
        return int((ended.long().cumsum(1) - ended.long() == 0).sum())

    return run


def continuous(settings: Settings) -> Callable[[int], int]:
    """`generate_batch`: continuous batching over a paged cache."""
    config = GenerationConfig(
        max_new_tokens=settings.sampling.max_new_tokens,
        do_sample=True,
        top_k=0,
        eos_token_id=eos_token_ids(settings.model, settings.tokenizer)[0],
        pad_token_id=settings.tokenizer.pad_token_id,
    )

    @torch.no_grad()
    def run(number: int) -> int:
        with evaluating(settings.model):
            found = settings.model.generate_batch(_prompt_ids(settings, number), generation_config=config, progress_bar=False)
        return sum(len(answer.generated_tokens) for answer in found.values())

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    set_threads(2)
    settings = Settings()
    ways = {
        "decoding loop of this package (`engine=auto`)": engine(settings, CachedEngine(settings.tokenizer), settings.sampling),
        "`generate`, dynamic cache (`engine=hf`)": engine(settings, HFEngine(settings.tokenizer), settings.sampling),
        "`generate`, static cache": static(settings, compiled=False),
        "`generate`, static cache, compiled": static(settings, compiled=True),
        "`generate_batch`, continuous batching": continuous(settings),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    tokens = dict.fromkeys(ways, 0)
    first: dict[str, float] = {}
    failed: dict[str, str] = {}
    for number in range(-1, rounds):
        for name, run in ways.items():
            if name in failed:
                continue
            sys.stderr.write(f"\rround {number + 2} of {rounds + 1}: {name:60}")
            started = time.perf_counter()
            try:
                count = run(max(0, number))
            except Exception as error:  # what a way cannot do here is a finding
                failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                continue
            took = time.perf_counter() - started
            if number < 0:
                first[name] = took
            else:
                seconds[name].append(took)
                tokens[name] += count
    sys.stderr.write("\n")
    own = next(iter(ways))
    rows = [["way", "s (median)", "of this package's, median (range)", "first round s", "completion tokens"]]
    for name in ways:
        if name in failed:
            rows.append([name, f"failed: {failed[name]}", "", "", ""])
            continue
        ratios = [a / b for a, b in zip(seconds[name], seconds[own], strict=True)]
        span = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append([name, f"{median(seconds[name]):.2f}", span, f"{first[name]:.1f}", f"{tokens[name] // rounds}"])
    fill(README, markdown(rows))
    sys.stdout.write(markdown(rows) + "\n")


if __name__ == "__main__":
    main()
