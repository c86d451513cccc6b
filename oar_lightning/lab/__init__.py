"""The credit lab: which estimate of credit is right, on the same completions, without training."""

from oar_lightning.lab.config import LabConfig

__all__ = ["LabConfig"]
