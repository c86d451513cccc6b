"""Hydra plugins of oar_lightning. Imported by Hydra for every command, so nothing slow is imported at the top."""
