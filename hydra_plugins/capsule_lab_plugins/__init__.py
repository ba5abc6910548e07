"""The class that Hydra looks for, by its place in this namespace; what it does is in ``capsule_lab``."""

from capsule_lab.launchers import grid


class GridSweeper(grid.GridSweeper):
    """``hydra/sweeper=grid``."""
