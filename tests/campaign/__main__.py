"""``python -m tests.campaign minutes=30``."""

from __future__ import annotations

import signal
import sys

from tests.campaign import processes, runner
from tests.campaign.kinds import KINDS

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what it has started ends with it
    processes.preload()
    sys.exit(runner.main(sys.argv[1:], KINDS))
