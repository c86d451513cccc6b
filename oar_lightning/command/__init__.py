"""The command line beside Hydra's: the page of `--help`, and what bash completes."""
