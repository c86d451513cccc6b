"""What a run logs: metrics table, journal on disk, delivery to MLflow, history over restarts."""
