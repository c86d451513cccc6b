"""Sweeps that survive interruption: an Optuna study in SQLite, a process and a folder for each trial, one parent MLflow run.

`trial` (the files that a trial and its sweep exchange), `process` (each job in its own process), `storage`, `samplers`, `study`
(claims of trials, and their results), `loop`, `table`, `figures` and `publish` (MLflow); `multirun` and `search_space` (Hydra).
"""
