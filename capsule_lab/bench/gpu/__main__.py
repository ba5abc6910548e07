"""The process of a part: ``python -m capsule_lab.bench.gpu module:function device size limit result.json``."""

from __future__ import annotations

import os
import pkgutil
import sys
from pathlib import Path

import torch

from capsule_lab.bench.gpu.part_process import finite
from capsule_lab.runs.files import write_json
from capsule_lab.system.signals import end_with_parent


def main(function: str, device: str, size: str, limit: str, result: str) -> None:
    """Call the function, write what it returns, and end, whatever still runs."""
    end_with_parent()
    found = pkgutil.resolve_name(function)(torch.device(device), size, float(limit))
    write_json(Path(result), finite(found))
    sys.stdout.flush()
    os._exit(0)  # processes of the part, which may hang, are killed by the one that started this one


if __name__ == "__main__":
    main(*sys.argv[1:])
