"""The contract of a run directory: what lies there, and how to come back to it.

::

    runs/<model>-<data>-<hash>/      the hash is of everything that decides the result; a second run of the
        config.yaml                  same configuration gets -2, and so on
        metrics.json                 status, results, provenance, cost: written at the end
        metrics.csv                  every epoch
        train.log
        checkpoints/best.ckpt  last.ckpt
        figures/
    runs/…-<hash>-continued/         began with another configuration's weights, ckpt=…: never a cell of a table
    runs/cells/<hash>.json           while a process trains that configuration, and if it failed: see ``claims``

Checkpoints carry their own plain configuration: ``load_run(path)`` needs nothing else.
"""

from capsule_lab.runs.checkpoints import (
    FORMAT,
    Record,
    check_same_source,
    checkpoint_to_resume,
    checkpoint_to_test,
    embed,
    find_checkpoint,
    home_of,
    last_checkpoint,
    load_run,
    plain,
    read_checkpoint,
    restore,
)
from capsule_lab.runs.directories import attempts, choose_directory, config_hash, is_first_process, open_directory, root
from capsule_lab.runs.files import check_writable, save_figure, write_atomically, write_json, write_text
from capsule_lab.runs.results import data_in_words, is_finished, numbers, result_of
from capsule_lab.runs.signals import SIGNALS, interruptible, logging_to

__all__ = [
    "FORMAT",
    "SIGNALS",
    "Record",
    "attempts",
    "check_same_source",
    "check_writable",
    "checkpoint_to_resume",
    "checkpoint_to_test",
    "choose_directory",
    "config_hash",
    "data_in_words",
    "embed",
    "find_checkpoint",
    "home_of",
    "interruptible",
    "is_finished",
    "is_first_process",
    "last_checkpoint",
    "load_run",
    "logging_to",
    "numbers",
    "open_directory",
    "plain",
    "read_checkpoint",
    "restore",
    "result_of",
    "root",
    "save_figure",
    "write_atomically",
    "write_json",
    "write_text",
]
