"""Runs of the confirmatory study as its records hold them."""

from __future__ import annotations

from support.study_scripts import load_script

rules, records = (load_script("settle", name) for name in ("rules", "records"))


def row(stage: str, arm: str, lr: str, beta: str, seed: int, accuracy: float, state: str = "complete"):
    run_id = "".join(map(str, (stage, arm, lr, beta, seed)))
    return records.Row("graph", stage, arm, lr, beta, seed, accuracy, state, 100.0, "revision", run_id)


def tuning(arm: str, accuracy=lambda setting, seed: 0.5):
    return [
        row("tune", arm, setting.lr, setting.beta, seed, accuracy(setting, seed))
        for setting in rules.settings_of("graph", arm)
        for seed in rules.tuning_seeds(arm)
    ]
