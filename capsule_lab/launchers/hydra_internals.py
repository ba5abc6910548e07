"""All that launchers and tables use of Hydra beyond its plugin interface, read from hydra-core 1.3.8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hydra._internal.core_plugins import basic_sweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, flag_override, open_dict

__all__ = [
    "BasicSweeper",
    "JobReturn",
    "Task",
    "error_of",
    "failed",
    "find_plugins",
    "launcher_of",
    "left_out",
    "override_keys",
    "process_state",
    "restore_process",
    "shown",
    "was_left_out",
    "without_hydra",
]


class BasicSweeper(basic_sweeper.BasicSweeper):
    """Hydra's (1.3.8), which can be made after Hydra has executed its module a second time to look for plugins.

    The ``super()`` of its ``__init__`` then names another class than the one that was imported before.
    """

    def __init__(self, max_batch_size: int | None, params: dict[str, str] | None) -> None:
        self.overrides: Sequence[Sequence[Sequence[str]]] | None = None
        self.batch_index = 0
        self.max_batch_size = max_batch_size
        self.params = params or {}
        self.hydra_context: HydraContext | None = None
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None


class Task(NamedTuple):
    """What a launcher is set up with: what to run, and the configuration that overrides of jobs are applied to."""

    hydra_context: HydraContext
    function: TaskFunction
    config: DictConfig

    def compose(self, overrides: Sequence[str], number: int | None = None) -> DictConfig:
        """The configuration of a job, with the node ``hydra``."""
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        if number is not None:
            with open_dict(config):
                config.hydra.job.id = config.hydra.job.num = number
        return config

    def run(self, config: DictConfig) -> JobReturn:
        """Run a job in this process; an exception of the function is in what is returned."""
        return run_job(
            task_function=self.function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            hydra_context=self.hydra_context,
        )


def without_hydra(config: DictConfig) -> DictConfig:
    """The configuration of a job as its function gets it."""
    with flag_override(config, ["readonly", "struct"], False):
        config.pop("hydra")
    return config


def failed(overrides: Sequence[str], error: BaseException) -> JobReturn:
    """What a job that ended with ``error`` returns."""
    return JobReturn(overrides=list(overrides), status=JobStatus.FAILED, _return_value=error)


def error_of(result: JobReturn) -> BaseException | None:
    """What a job ended with, if it failed; ``return_value`` would raise it."""
    return result._return_value if result.status is JobStatus.FAILED else None


def left_out(overrides: Sequence[str]) -> JobReturn:
    """What stands for a job that was not started, as the time was over."""
    return JobReturn(overrides=list(overrides), status=JobStatus.UNKNOWN)


def was_left_out(result: JobReturn) -> bool:
    """Whether a job was not started."""
    return result.status is JobStatus.UNKNOWN


def process_state() -> dict[str, Any]:
    """Hydra's global objects, for another process."""
    state: dict[str, Any] = Singleton.get_state()
    return state


def restore_process(state: dict[str, Any] | None = None) -> None:
    """Hydra's global objects and resolvers in this process."""
    if state is not None:
        Singleton.set_state(state)
    setup_globals()


def shown(overrides: Sequence[str]) -> str:
    """Overrides of a job for its log line, without those that are for Hydra."""
    return " ".join(filter_overrides(list(overrides)))


def override_keys(overrides: Sequence[str]) -> list[str]:
    """The key of each override: of ``+a.b=1`` and ``~a.b`` it is ``a.b``, of ``group@package=option`` all before =."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [override.get_key_element().lstrip("+~") for override in parsed]


def find_plugins() -> None:
    """Search all packages for plugins, which Hydra does once per process."""
    Plugins.instance()


def launcher_of(config: DictConfig, hydra_context: HydraContext, task_function: TaskFunction) -> Launcher:
    """The launcher that a configuration names."""
    return Plugins.instance().instantiate_launcher(
        hydra_context=hydra_context, task_function=task_function, config=config
    )
