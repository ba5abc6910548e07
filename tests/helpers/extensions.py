"""Whether the commands of other distributions of this repository are installed."""

import pytest

from capsule_lab import commands

OF_STUDIES = {"analyse", "attack", "explorer"}
HAS_STUDIES = {*commands.names()} >= OF_STUDIES

needs_studies = pytest.mark.skipif(not HAS_STUDIES, reason="capsule-studies is not installed")
