"""Token-level credit assignment for RL with verifiable rewards, on Lightning, Hydra and MLflow."""

__version__ = "0.1.0"
