"""Attack a trained network: ``python -m capsule_lab.attack ckpt=runs/…``."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from capsule_lab import runs
from capsule_lab.command import command
from capsule_lab.config import to_container
from capsule_lab.errors import ConfigError, printable, suggest

if TYPE_CHECKING:
    import torch

    from capsule_lab.attacks.evaluation import LogitsOf, Measured, Prepared
    from capsule_lab.runs import Run

CHOICES = {"couplings": ("trained", "equal"), "space": ("input", "grey_levels"), "split": ("test", "val")}
EPSILONS = {
    "unit": [0.02, 0.05, 0.1, 0.15, 0.2, 0.3],  # ours: of pixels in [0, 1]
    "standardised": [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5],  # Hinton 2018, figure 3
    "grey_levels": [1, 2, 4, 8, 16, 32, 64],  # ours: of 255
    "l2": [0.25, 0.5, 1, 1.5, 2, 3],  # ours
}


@command("attack")
def main(config: DictConfig) -> None:
    """Attack ``config.ckpt``, print accuracy and checks, and write both and their figures beside the checkpoint."""
    from capsule_lab.analysis.attacks import figures

    check_options(config)
    result, path, sheet = attack(config)
    console = Console(highlight=False)
    for shown in tables(result):
        console.print(shown)
    runs.files.write_record(path, result)
    console.print(f"written to {path}", soft_wrap=True, markup=False)
    for name, figure in figures(result, sheet):
        file = path.with_name(f"{path.stem}-{name}.png")
        runs.files.save_figure(figure, file)
        console.print(f"written to {file}", soft_wrap=True, markup=False)
