"""Train a paper's table: ``python -m capsule_lab.sweep table=smoke launcher=gpus``."""

from __future__ import annotations

import sys

from capsule_lab import train
from capsule_lab.command import command
from capsule_lab.tables import arguments


def main() -> None:
    """Hydra's multirun of ``train``, whose jobs a table gives; see ``hydra_plugins/capsule_lab_plugins``."""
    sys.argv[1:] = arguments.for_hydra(sys.argv[1:], (*arguments.OWN, "dry_run"), "hydra.sweeper.")
    command("sweep")(train.run)()


if __name__ == "__main__":
    main()
