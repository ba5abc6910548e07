"""``python -m tests.campaign minutes=30``."""

from __future__ import annotations

import sys

from tests.campaign import processes, runner
from tests.campaign.kinds import KINDS

if __name__ == "__main__":
    processes.preload()
    sys.exit(runner.main(sys.argv[1:], KINDS))
