"""Build the W&B workspace of a table: ``capsule-lab workspace table=smoke``."""

from __future__ import annotations

import logging
import os
from typing import Any

from capsule_lab.commands.declare import command
from capsule_lab.commands.tables import read_table
from capsule_lab.config.declaration import Options
from capsule_lab.runs.files import write_text
from capsule_lab.system.extras import require
from capsule_lab.system.files import expanded

log = logging.getLogger(__name__)


class WorkspaceOptions(Options):
    """Options of ``workspace``."""

    table: Any = None
    """A file in sweeps/, or the path of another .yaml file."""
    project: str | None = None
    """The W&B project of the runs; default: WANDB_PROJECT, else capsule-lab."""
    entity: str | None = None
    """A user or team of W&B; default: WANDB_ENTITY, else your own."""
    out: str | None = None
    """Write the workspace to this .json file instead of saving it in W&B."""


@command("workspace", WorkspaceOptions, first="table")
def main(options: WorkspaceOptions) -> None:
    """Save the workspace of ``table`` in W&B, or write it to ``out``."""
    require("workspace", "workspace", "wandb_workspaces")
    from capsule_lab.tables.workspace import as_json, build, save

    project = options.project or os.environ.get("WANDB_PROJECT", "capsule-lab")
    entity = options.entity or os.environ.get("WANDB_ENTITY", "")
    workspace = build(read_table(options.table), project=project, entity=entity)
    if options.out is None:
        log.info("saved: %s", save(workspace))
        return
    path = expanded(options.out)
    write_text(path, as_json(workspace) + "\n")
    log.info("written to %s", path)


if __name__ == "__main__":
    main()
