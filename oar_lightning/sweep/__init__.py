"""Sweeps that survive interruption: an Optuna study in SQLite, one process and one folder a trial, one MLflow run over all.

`trial` (what a trial and its sweep tell each other, by files), `process` (jobs in processes of their own), `storage`,
`samplers`, `study` (which trials are missing, who works on which), `loop`, `table`, `figures` and `publish` (MLflow).
"""
