"""The classes that Hydra looks for, by their place in this namespace; what they do is in ``capsule_lab``."""

from capsule_lab.launchers import gpu_pool, slurm_array
from capsule_lab.tables import sweeper


class GPULauncher(gpu_pool.GPUPool):
    """``launcher=gpus``."""


class SlurmLauncher(slurm_array.SlurmArray):
    """``launcher=slurm``."""


class GridSweeper(sweeper.GridSweeper):
    """``hydra/sweeper=grid``."""


class TableSweeper(sweeper.CellSweeper):
    """``hydra/sweeper=table``."""
