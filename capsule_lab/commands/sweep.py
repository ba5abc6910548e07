"""Run a paper's table: ``capsule-lab sweep table=smoke launcher=gpus``."""

from __future__ import annotations

import logging
import math
import shlex
import time
from functools import partial
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate

from capsule_lab.commands.declare import command
from capsule_lab.commands.tables import TableOptions, selected_table
from capsule_lab.config.declaration import Group
from capsule_lab.config.overrides import search_override
from capsule_lab.errors import ConfigError
from capsule_lab.tables.arguments import budget_seconds, for_hydra
from capsule_lab.tables.reader import listed_of

log = logging.getLogger(__name__)


class SweepOptions(TableOptions):
    """Options of ``sweep``."""

    budget: Any = None
    """Time for training and evaluation, such as 9m; default: until all runs are complete."""
    dry_run: bool = False
    """Show the command and the status of every run without training."""
    launcher: Group | None  # Hydra keeps its node: hydra.launcher


@command("sweep", SweepOptions, first="table", for_hydra=partial(for_hydra, options=SweepOptions))
def main(options: SweepOptions) -> None:
    """Train and evaluate the unfinished cells of ``table``; with ``dry_run``, only print them."""
    from capsule_lab.tables.scheduler import run_table, show_plan

    deadline = math.inf
    if options.budget is not None:
        deadline = time.time() + budget_seconds(options.budget)
    table = selected_table(options)
    if options.dry_run:
        show_plan(table, options.overrides)
        return
    launcher = instantiate(HydraConfig.get().launcher)
    if options.budget is not None and not launcher.has_deadline:
        raise ConfigError(
            f"budget={options.budget} works only with launcher=basic and launcher=gpus; with launcher=slurm, set "
            "hydra.launcher.timeout_min, after which a job is requeued and continues"
        )
    run_table(table, options.overrides, launcher.launch, deadline)
    command = ["capsule-lab", "report", f"table={options.table}"]
    for key in ("rows", "columns", "seeds"):
        chosen = getattr(options, key)
        if chosen is not None:
            listed = map(str, listed_of(chosen))
            command.append(f"{key}=[{','.join(listed)}]")
    command += options.overrides
    log.info("next: %s", shlex.join([*command, *search_override()]))


if __name__ == "__main__":
    main()
