"""Run a paper's table: ``python -m capsule_lab.sweep table=smoke launcher=gpus``."""

from __future__ import annotations

import math
import time
from functools import partial

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig

from capsule_lab.command import command
from capsule_lab.errors import ConfigError
from capsule_lab.tables.arguments import FOR_SWEEP, SELECTION, budget_seconds, for_hydra


@command("sweep", partial(for_hydra, command_keys=FOR_SWEEP))
def main(config: DictConfig) -> None:
    """Train and evaluate the unfinished cells of ``config.table``; with ``dry_run``, only print them."""
    from capsule_lab.launchers.slurm import SlurmLauncher
    from capsule_lab.tables.reader import read, select
    from capsule_lab.tables.scheduler import run_table, show_plan

    deadline = math.inf if config.budget is None else time.time() + budget_seconds(config.budget)
    overrides = list(config.overrides)
    table = select(read(config.table, overrides), **{key: config[key] for key in SELECTION})
    if config.dry_run:
        show_plan(table, overrides)
        return
    launcher = instantiate(HydraConfig.get().launcher)
    if config.budget is not None and isinstance(launcher, SlurmLauncher):
        raise ConfigError(
            f"budget={config.budget} works only with launcher=basic and launcher=gpus; with launcher=slurm, set "
            "hydra.launcher.timeout_min, after which a job is requeued and continues"
        )
    run_table(table, overrides, launcher.launch, deadline)


if __name__ == "__main__":
    main()
