"""Classes that Hydra finds in this namespace package; the implementations are in ``capsule_lab``."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from capsule_lab.config.folders import extensions
from capsule_lab.launchers import grid


class GridSweeper(grid.GridSweeper):
    """``hydra/sweeper=grid``."""


class ExtensionFolders(SearchPathPlugin):
    """Adds the configuration folders of packages that extend ``capsule_lab``."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folders, after that of ``capsule_lab``."""
        for folder in extensions().values():
            search_path.append("capsule-lab", f"file://{folder}")
