"""From the seconds of the steps to tables, verdicts and the README; pure functions of the results."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oar_lightning.benchmark.machine_load import QUIET, is_quiet

OURS = ("grpo", "oar_g")
"""Our contestants by name; all others of a setting are ways to run TRL, of which the fastest counts."""

TARGETS = {("tiny", "grpo"): 0.5, ("tiny", "oar_g"): 1.0, ("wide", "grpo"): 0.35}
"""The most that a step may take, in steps of TRL's GRPO; without a target: for information."""

Step = Mapping[str, Any]
"""Of one step: `seconds`, `cpu_seconds` of all threads, `peak_bytes` (the most that its process had held by then; both absent
from measurements of before they were kept), seconds of its `parts`, `mean_length` of its completions, their mean `reward`,
`zero_std` (the share of groups with equal rewards), the share of the cores that `others` used."""


@dataclass(frozen=True)
class Ratio:
    """How long a step takes in steps of TRL's, round by round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.rounds):.2f} to {max(self.rounds):.2f})"


def median_seconds(steps: Sequence[Step]) -> float:
    return statistics.median(step["seconds"] for step in steps)


def fastest_trl(contestants: Mapping[str, Mapping[str, Any]]) -> str:
    """TRL's way with the lowest median: that of the same measurement, which favours TRL."""
    return min((name for name in contestants if name not in OURS), key=lambda name: median_seconds(contestants[name]["steps"]))


def ratio(steps: Sequence[Step], of: Sequence[Step]) -> Ratio:
    """Round by round: a round's steps ran one after the other."""
    return Ratio(tuple(a["seconds"] / b["seconds"] for a, b in zip(steps, of, strict=True)))


def mean(steps: Sequence[Step], key: str) -> float:
    return statistics.fmean(step[key] for step in steps)


def verdict(setting: str, name: str, measured: Ratio) -> str:
    target = TARGETS.get((setting, name))
    if target is None:
        return "-"
    within = sum(one <= target for one in measured.rounds)
    verdict = "met" if measured.median <= target else "missed"
    return f"{target:g}: {verdict}, within it {within} of {len(measured.rounds)} rounds"


def step_table(setting: str, result: Mapping[str, Any]) -> list[list[str]]:
    """Header and rows: seconds of a step, ratio to TRL's fastest way, the target, and what was sampled."""
    contestants = result["contestants"]
    trl = fastest_trl(contestants)
    header = [
        "step",
        "s (median)",
        "s (min to max)",
        "CPU s (median)",
        "of TRL's step, median (range)",
        "target",
        "tokens",
        "reward",
        "equal groups",
        "peak MB of the process",
    ]
    rows = [header]
    for name, contestant in contestants.items():
        steps = contestant["steps"]
        seconds = [step["seconds"] for step in steps]
        measured = ratio(steps, contestants[trl]["steps"])
        tokens = result["completions"] * mean(steps, "mean_length")
        rows.append(
            [
                contestant["title"] + (" **(counts)**" if name == trl else ""),
                f"{median_seconds(steps):.2f}",
                f"{min(seconds):.2f} to {max(seconds):.2f}",
                f"{statistics.median(step['cpu_seconds'] for step in steps):.2f}" if "cpu_seconds" in steps[0] else "-",
                "1" if name == trl else str(measured),
                verdict(setting, name, measured),
                f"{tokens:.0f}",
                f"{mean(steps, 'reward'):.2f}",
                f"{100 * mean(steps, 'zero_std'):.0f} %",
                f"{max(step['peak_bytes'] for step in steps) / 2**20:.0f}" if "peak_bytes" in steps[0] else "-",
            ]
        )
    return rows


def part_table(result: Mapping[str, Any]) -> list[list[str]]:
    """Header and rows: median seconds of a step's parts; `rest` is what the step takes besides."""
    rows = [["step", "generation s", "reward s", "credit s", "update and all else s"]]
    for contestant in result["contestants"].values():
        steps = contestant["steps"]
        known = ("generate", "reward", "credit")
        rest = [step["seconds"] - sum(step["parts"].get(part, 0.0) for part in known) for step in steps]
        cells = [
            f"{statistics.median(step['parts'][part] for step in steps):.3f}" if part in steps[0]["parts"] else "-"
            for part in known
        ]
        rows.append([contestant["title"], *cells, f"{statistics.median(rest):.3f}"])
    return rows


def markdown(table: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return "\n".join([lines[0], "|" + "---|" * len(table[0]), *lines[1:]])


def plain(table: Sequence[Sequence[str]]) -> str:
    """For a terminal: columns of equal width."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table)


def readme(results: Mapping[str, Mapping[str, Any]]) -> str:
    sections = "\n\n".join(_section(setting, result) for setting, result in results.items())
    return f"""# A GRPO step here and in TRL, on a CPU

**Question.** Does a step take at most half as long as a step of TRL's `GRPOTrainer` on the built-in task (`tiny`: completions
of any length, EOS), at most 0.35 times as long on `wide` (long completions without EOS), and an OAR-G step on `tiny` no longer
than TRL's plain GRPO step?

**Commands.** TRL lives in an environment of its own; it is no dependency.
```
python3 -m venv .venv-trl
.venv-trl/bin/pip install -c constraints.txt torch==2.13.0
.venv-trl/bin/pip install -c constraints.txt trl==1.16.0
python reports/benchmark_trl/compare.py --trl-python .venv-trl/bin/python
```
The last one writes this page and `results.json` (every counted step). `--settings tiny` measures one of the two and leaves the
other's results as they are.

{sections}

## What is compared
- **A step** is all that happens from where a training step begins to where the next one does: data, generation, reward,
  credit, loss, backward pass, clipping, optimizer, the trainer's own bookkeeping. Each contestant is a process that stays; they
  take turns step by step, those whose turn it is not being blocked in a read. Every round begins with another one. The ratio
  is the median of the rounds' ratios.
- **Here**: `PolicyOptimization` under `lightning.Trainer.fit`, `+experiment=grpo` and `+experiment=oar_g`, 8 micro-batches as
  in the default config. No evaluation, no checkpoint; metrics are computed and kept in memory. The update runs each prompt once
  for all its completions, TRL's with each of them.
- **TRL**: `GRPOTrainer.train()` with a callback that waits. Gradient checkpointing, bf16, logging, saving and the progress bar
  are off (its defaults would cost time here); the optimizer is its default, fused AdamW. All completions are one batch, or 4
  micro-batches; with and without the switch that this project's command sets on a CPU (`TRANSFORMERS_SDPA_FORCE_GQA=1`:
  attention does not repeat keys); with it also with `torch_compile`. The one with the lowest median in this
  very measurement counts and is marked. Generation is its default; its continuous batching took 31 times as long as our loop
  of an earlier revision ([generation](../generation/README.md)).
- **A CPU is not TRL's home**: its fused head of the loss leaves out positions that are no completion tokens only where there is
  Triton. Here it computes the head, and its gradient, for prompts and padding too, which this project does not. Nothing here
  says how the two compare on a GPU.
- **On both**: the same weights at the start, the same prompts in the same order, the same number of completions, temperature 1,
  top-p 1, no top-k, GRPO's loss (mean over completions of token means, clip 0.2), no KL, advantages divided by the group's
  standard deviation, one optimizer step for each batch of rollouts, AdamW with the default config's learning rate, betas and
  warm-up, clipping of the gradient's norm at 1, float32. The old log-probabilities of such a step are the policy's own on both
  sides: no pass of their own.
- **Reward** of `tiny`: here the full path (answer spans on token ids, verification), in TRL an exact comparison of the last
  box, which costs less. Of `wide`: 1 for every other completion.
- **Sampling** has other random numbers on each side, hence *tokens* (completion tokens of a step, mean), *reward* and *equal
  groups* (all of whose completions got the same reward). The completions of equal groups have no gradient; here they are left
  out of the update, TRL runs them through.
- **Threads**: as many for each, by the environment (`torch.set_num_threads` would make attention of few queries about twice
  as slow, on both sides); `GOMP_SPINCOUNT=20000` for each and freed memory kept here as this project's command does.
- **Quiet**: a step during which something else on the machine (processes, the hypervisor) used more than {100 * QUIET:.0f} %
  of the cores does not count, whatever its time; the contestant takes its turn again, with the next prompts.
"""


def _section(setting: str, result: Mapping[str, Any]) -> str:
    facts = [contestant["facts"] for contestant in result["contestants"].values()]
    names = ("oar_lightning", "lightning", "trl", "torch", "transformers", "python")
    versions = {name: fact[name] for name in names for fact in facts if name in fact}
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"""## `{setting}`
{result["title"]}. Policy of {facts[0]["parameters"] / 1e6:.2f} M parameters.
{result["machine"]}, {facts[0]["threads"]} threads; {listed}. {rounds_text(result)}

{markdown(step_table(setting, result))}

Where the time goes (medians):

{markdown(part_table(result))}"""


def rounds_text(result: Mapping[str, Any]) -> str:
    steps = [step for contestant in result["contestants"].values() for step in contestant["steps"]]
    text = (
        f"{result['rounds']} rounds after {result['warmup']} of warm-up; {result['repeated']} tries did not count (not quiet)"
    )
    unquiet = sum(not is_quiet(step["others"]) for step in steps)
    note = f" {result['note']}." if "note" in result else ""  # what was different from what the page says
    return text + (f"; **{unquiet} of the {len(steps)} steps that count were not quiet**." if unquiet else ".") + note
