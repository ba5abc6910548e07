"""Environment variables: those that users set, and those through which a command talks to the processes it starts.

A sweep starts each run as a command of its own, and Lightning starts one more process for each further GPU. They learn
only through these variables what their command line does not say. Each is read in one place.
"""

from __future__ import annotations

DATA = "CAPSULE_LAB_DATA"
"""Set by users: the folder of data sets; default ``data``."""

RUNS = "CAPSULE_LAB_RUNS"
"""Set by users: the folder of run directories; default ``runs``."""

SEARCH_PATH = "CAPSULE_LAB_SEARCH_PATH"
"""From a command to itself and its children: the user's configuration folders, one a line."""

PARENT = "CAPSULE_LAB_PARENT"
"""From a launcher to a run: the process id of the launcher. The run ends when that process does."""

DEADLINE = "CAPSULE_LAB_DEADLINE"
"""From a launcher to a run: the time, as of ``time.time``, at which the run must pause."""

LOG = "CAPSULE_LAB_LOG"
"""From a launcher to a run: the file that receives the output of the run."""

PER_GPU = "CAPSULE_LAB_PER_GPU"
"""From a launcher to a run: how many runs share the GPU, for its record."""

RESULT = "CAPSULE_LAB_RESULT"
"""From a launcher to an evaluation: the file for its result."""

RUN = "CAPSULE_LAB_RUN"
"""From the first process of a run to those that Lightning starts: hash of the configuration, colon, run directory."""
