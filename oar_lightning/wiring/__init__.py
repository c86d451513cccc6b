"""Config -> objects: settings, data, policy, the run itself and how it resumes. Knows Hydra."""
