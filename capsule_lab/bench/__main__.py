"""Time layers and training steps: ``python -m capsule_lab.bench`` (no data loading)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from capsule_lab.command import command
from capsule_lab.config.compose import to_container


@command("bench")
def main(config: DictConfig) -> None:
    """Time every case of ``config``, show tables, write ``config.out``."""
    from capsule_lab import bench, runs
    from capsule_lab.bench import tables
    from capsule_lab.system import environment

    if config.out:
        runs.files.check_writable(Path(str(config.out)))  # before all the work
    report: dict[str, Any]
    if config.scaling:
        report, show = {"rows": bench.scale(config)}, lambda hardware: tables.of_scaling(report["rows"], hardware)
    elif config.profile:
        report, show = {"rows": bench.profile(config)}, lambda hardware: tables.of_profile(report["rows"], hardware)
    else:
        report, show = bench.measure(config), lambda hardware: tables.of_measured(report, hardware)
    hardware = environment.hardware(bench.device_named(config.device))
    tables.show(show(hardware))
    if config.out:
        extra = {"hardware": hardware, "bench": to_container(config), **environment.of_this_process()}
        runs.files.write_json(Path(config.out), {**report, **extra})


if __name__ == "__main__":
    main()
