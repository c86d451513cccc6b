"""The credit lab: which estimate of credit is right, on the same completions, without training."""
