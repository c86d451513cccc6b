"""Several processes: ranks, launching (torchrun, Slurm), strategies, DeepSpeed and its checkpoint format."""
