"""All kinds of faults, as the table names them."""

from __future__ import annotations

from tests.campaign import interruptions
from tests.campaign.runner import Kind

KINDS = {
    "crash_points": Kind(
        "kill -9 before every change of a file, resume", interruptions.crash_points, interruptions.try_crash_point
    ),
    "hooks": Kind("a signal in every hook of training, resume", interruptions.hooks, interruptions.try_hook),
    "chains": Kind("chains of random signals until finished", interruptions.chains, interruptions.try_chain),
    "real_commands": Kind(
        "signals to real commands, imports included", interruptions.real_commands, interruptions.try_real_command
    ),
}
