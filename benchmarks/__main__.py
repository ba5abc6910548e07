"""Time layers and training steps: ``python -m benchmarks key=value ...`` (no data loading)."""

from __future__ import annotations

import sys
from pathlib import Path

from omegaconf import DictConfig

from benchmarks import breakdown, scaling, tables, timing
from benchmarks.cases import check_bench, check_writable, configuration, device_named
from capsule_lab.config.composition import to_container
from capsule_lab.errors import ConfigError
from capsule_lab.runs import files
from capsule_lab.system import environment


def main(config: DictConfig) -> None:
    """Time every case of ``config``, print tables, and write ``config.out``."""
    check_bench(config)
    if config.out:
        check_writable(Path(str(config.out)))  # fails before the work starts
    measure = (
        scaling.scale if config.scaling else breakdown.profile if config.profile else timing.measure
    )
    report = measure(config)
    hardware = environment.hardware(device_named(config.device))
    tables.show(report, hardware)
    if config.out:
        extra = {
            "hardware": hardware,
            "bench": to_container(config),
            **environment.of_this_process(),
        }
        files.write_record(Path(config.out), {**report, **extra})


if __name__ == "__main__":
    try:
        main(configuration("bench", sys.argv[1:]))
    except ConfigError as error:
        sys.exit(f"benchmarks: {error}")
