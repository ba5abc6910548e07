"""All kinds of faults, as the table names them."""

from __future__ import annotations

from tests.campaign import interruptions, numbers, resources, sweeps
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
    "sweeps": Kind("a process of a sweep is signalled", sweeps.interrupted_sweeps, sweeps.try_interrupted_sweep),
    "ranks": Kind("one of two DDP processes is killed, stopped or signalled", sweeps.ranks, sweeps.try_rank),
    "at_once": Kind("runs, reports and locks at once", sweeps.at_once, sweeps.try_at_once),
    "numbers": Kind("routing x backend x shape x scale up to 1e10, 100 draws each", numbers.cases, numbers.attempt),
    "resources": Kind("no disk, files, memory or place to write", resources.cases, resources.attempt),
}
