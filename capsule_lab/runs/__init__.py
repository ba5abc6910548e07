"""Run directories and checkpoints, and how to open them; ``runs.directories`` documents the layout.

A checkpoint contains its configuration, so that a run can be opened without any other file::

    from capsule_lab import runs

    run = runs.open("last")  # or "runs/…", a file, or the name of ready weights
    for batch in run.batches("val"):
        run.network(batch.images).scores

Everything else is in the modules of this package, for example ``runs.directories.config_hash(config)``. Importing them
loads neither torch nor Lightning.
"""

from capsule_lab.runs import (
    checkpoints,
    directories,
    files,
    initial_weights,
    lock,
    predictions,
    ready_weights,
    results,
    select_run,
    trust,
)
from capsule_lab.runs.open_run import (
    Run,
    check_has_no_pickles,
    check_will_open,
    open,  # noqa: A004  # as Image.open
)

__all__ = [
    "Run",
    "check_has_no_pickles",
    "check_will_open",
    "checkpoints",
    "directories",
    "files",
    "initial_weights",
    "lock",
    "open",
    "predictions",
    "ready_weights",
    "results",
    "select_run",
    "trust",
]
