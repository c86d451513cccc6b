"""Accuracies of a policy: avg@k, pass@k, majority vote, greedy, with intervals."""
