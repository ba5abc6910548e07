"""Imported by the server that GPUPool forks its jobs from, so that each of them need not; starts no thread, no CUDA."""

from __future__ import annotations

import importlib
import os
import signal

MODULES = (
    "torch",
    "lightning",
    "matplotlib.backends.backend_agg",
    "sklearn.datasets",
    "capsule_lab.callbacks",
    "capsule_lab.data",
    "capsule_lab.kernels.cpu",
    "capsule_lab.launchers.job_process",
    "capsule_lab.launchers.hydra_internals",
    "capsule_lab.config.compose",
)

_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the sweep, the server would show a traceback
_sweep = os.getppid()
for _name in MODULES:
    if os.getppid() != _sweep:
        os._exit(1)  # the sweep has ended, which the server notices after its imports, many seconds on a busy machine
    importlib.import_module(_name)

from capsule_lab.config.compose import compose  # noqa: E402  # not before the others, see above
from capsule_lab.launchers.hydra_internals import find_plugins  # noqa: E402

find_plugins()
compose()  # fills the caches of the parser
signal.signal(signal.SIGINT, _interrupt)  # from here on, the server ignores it itself, and its jobs have this handler
