"""The sweeper class that Hydra finds in this namespace package; the implementation is in ``capsule_lab``."""

from capsule_lab.launchers import grid


class GridSweeper(grid.GridSweeper):
    """``hydra/sweeper=grid``."""
