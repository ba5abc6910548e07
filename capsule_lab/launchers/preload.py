"""What every run would do first, done once by the server that runs are forked from; no thread and no CUDA begins here.

Hydra leaves modules alone whose name begins with an underscore.
"""

from __future__ import annotations

import matplotlib.backends.backend_agg
import sklearn.datasets
from hydra.core.plugins import Plugins

import capsule_lab.callbacks
import capsule_lab.data
import capsule_lab.kernels.cpu
import capsule_lab.launchers.gpu_lease
import capsule_lab.runs.lock
from capsule_lab.config import compose

LOADED = (matplotlib.backends.backend_agg, sklearn.datasets, capsule_lab)

Plugins.instance()  # looks through all packages
compose()  # fills the parser's caches
