"""Prove and measure everything on a GPU: ``python -m capsule_lab.gpu``."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from capsule_lab.command import command
from capsule_lab.config.compose import to_container
from capsule_lab.errors import ConfigError, DeviceError, check_choice, suggest
from capsule_lab.system.files import expanded
from capsule_lab.system.signals import interruptible

if TYPE_CHECKING:
    import torch

    from capsule_lab.bench.gpu.parts import Part, Size
    from capsule_lab.bench.gpu.report import Record


@command("gpu")
def main(config: DictConfig) -> None:
    """Run the parts that are still to do, show what became of all; status 1 if something failed or is left."""
    device = None if config.dry_run else device_of(config)  # before all imports but torch's
    from capsule_lab.bench import tables
    from capsule_lab.bench.gpu.parts import PARTS

    parts = chosen(config, PARTS)
    if device is None:
        tables.show([tables.of_plan(parts)])
        return
    from capsule_lab.bench.gpu import report

    by_device: Size = "full" if device.type == "cuda" else "small"
    size: Size = by_device if config.size == "auto" else config.size
    folder = folder_of(config, device)
    with interruptible(f"stopped; {folder / report.JSON} has what is done, and the same command goes on"):
        records, left = report.run_parts(folder, device, size, parts, resume=config.resume, limit=config.limit)
    tables.show([tables.of_parts(parts, records, left)])
    sys.stdout.write(f"{folder / report.PAGE} shows all that was found\n")
    if not is_well(parts, records, left):
        sys.exit(1)


def device_of(config: DictConfig) -> torch.device:
    """The device that was asked for.

    Raises:
        ConfigError: for options that cannot be; a ``DeviceError`` where there is no GPU.
    """
    import torch

    with_names: dict[str, tuple[object, ...]] = {"device": ("auto", "cuda", "cpu"), "size": ("auto", "full", "small")}
    try:
        for option, choices in with_names.items():
            check_choice(option, config[option], choices)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if config.device != "cpu" and not torch.cuda.is_available():
        raise DeviceError(
            f"device is {config.device}, and torch {torch.__version__} finds no GPU; expected one, or device=cpu for a "
            "trial, or dry_run=true for a list of the parts"
        )
    return torch.device("cpu" if config.device == "cpu" else "cuda")


def chosen(config: DictConfig, parts: Sequence[Part]) -> list[Part]:
    """The parts that were asked for, in their order.

    Raises:
        ConfigError: for a name that no part has.
    """
    asked = to_container(config)["parts"]
    names = [part.name for part in parts]
    for name in asked:
        if name not in names:
            raise ConfigError(f"parts has {name}; {suggest(str(name), names)}")
    return [part for part in parts if part.name in asked or not asked]


def folder_of(config: DictConfig, device: torch.device) -> Path:
    """Where results go: ``out``, else a folder for each kind of device."""
    import torch

    from capsule_lab import runs

    if config.out:
        return expanded(str(config.out))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return runs.directories.root() / "gpu" / re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def is_well(parts: Sequence[Part], records: dict[str, Record], left: Sequence[Part]) -> bool:
    """Whether all that was asked for is done."""
    return not left and all(records[part.name]["state"] == "done" for part in parts)


if __name__ == "__main__":
    main()
