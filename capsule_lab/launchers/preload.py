"""Imported by the server that GPUPool forks its jobs from, so that each of them need not; starts no thread, no CUDA."""

from __future__ import annotations

import matplotlib.backends.backend_agg
import sklearn.datasets

import capsule_lab.callbacks
import capsule_lab.data
import capsule_lab.kernels.cpu
import capsule_lab.launchers.job_process
from capsule_lab.config import compose
from capsule_lab.launchers.hydra_internals import find_plugins

LOADED = (matplotlib.backends.backend_agg, sklearn.datasets, capsule_lab)

find_plugins()
compose()  # fills the caches of the parser
