"""Run directories: what lies in them, and how to come back to them.

::

    runs/<model>-<data>-<hash>/      the hash is of everything that decides the result; a second run of the same
        config.yaml                  configuration gets -2, and so on
        metrics.json                 status, results, provenance, cost: written at the end
        metrics.csv                  every epoch
        train.log
        checkpoints/best.ckpt  last.ckpt
        figures/                     drawn while training, and by ``python -m capsule_lab.figures``
        evaluations/                 by ``python -m capsule_lab.evaluate``
    runs/…-<hash>-continued/         began with another configuration's weights, ckpt=…: never a cell of a table
    runs/cells/<hash>.lock  .json    while a process trains that configuration, and if it failed: see ``runs.lock``
    runs/reports/                    of tables

Checkpoints carry their own configuration, so that a run can be opened without anything else::

    from capsule_lab import runs

    run = runs.open("runs/capsnet-mnist-2f4c01ab")
    for batch in run.batches("val"):
        run.network(batch.images).scores

All else is in the modules of this package, used as ``runs.directories.config_hash(config)``. Importing them loads
neither torch nor Lightning.
"""

from capsule_lab.runs import checkpoints, directories, files, lock, results, signals
from capsule_lab.runs.run import Run, open  # noqa: A004  # runs.open(path), as Image.open(path)

__all__ = ["Run", "checkpoints", "directories", "files", "lock", "open", "results", "signals"]
