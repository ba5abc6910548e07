"""Capsule networks: reproduce, ablate, extend.

All public names can be imported from here or from their modules. A module is imported when one of its names is first
used: ``from capsule_lab import EMRouting`` imports torch, but neither Lightning nor Hydra.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_NAMES = [  # routing, networks and data collect their names from the files in their folders
    "ClassCapsules", "ComposedPrimaryCapsules", "ConvCapsules", "ConvStack", "CoordinateClassCapsules", "Decoder",
    "DenseCapsules", "DepthwisePrimaryCapsules", "LinearPrimaryCapsules", "PrimaryCapsules", "Stem",
    "Trunk", "UntransformedCapsules",
    "dense_votes", "length", "squash",
    "cross_entropy_loss", "l2_loss", "logits_cross_entropy_loss", "margin_loss", "reconstruction_loss",
    "sigmoid_cross_entropy_loss", "spread_loss",
    "Constant", "Drops", "Exponential", "Linear", "OneCycle", "Schedule", "SigmoidRamp", "Staircase",
    "Batch", "CapsuleOutput", "Capsules", "DataSpec", "Votes",
    "compose", "train",  # a run in a notebook
    "load", "weights",  # trained networks for pictures
    "runs",  # used as runs.open
]  # fmt: skip

# Python sets argv[0] to "-m" while it looks for the module of ``python -m``. Commands in records of older runs are
# ``python -m capsule_lab.train``; an import of this name would be a second copy of the module.
if sys.argv[:1] == ["-m"]:
    __path__.append(str(Path(__file__).with_name("commands")))

_MODULES = ("types", "functional", "losses", "schedules", "layers")
_FOLDERS = ("routing", "networks", "data")  # data comes last because it imports Lightning


_FUNCTIONS = {
    "compose": "capsule_lab.commands",
    "load": "capsule_lab.deploy.predictor",
    "train": "capsule_lab.commands.notebook",
    "weights": "capsule_lab.runs.ready_weights",
}
"""Functions that need Lightning or Hydra, and their modules."""


def __getattr__(name: str) -> Any:
    if name == "runs":
        return importlib.import_module("capsule_lab.runs")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    if name == "__all__":
        folders = [importlib.import_module(f"{__name__}.{name}") for name in _FOLDERS]
        entries = [
            (name, getattr(folder, name), folder.__name__)
            for folder in folders
            for name in folder.__all__
        ]
        return [
            *_NAMES,
            *(name for name, value, folder in entries if value.__module__.startswith(folder)),
        ]
    if name in _NAMES or not (name.startswith("_") or find_spec(f"{__name__}.{name}")):
        for module in _MODULES if name in _NAMES else _FOLDERS:
            value = vars(importlib.import_module(f"capsule_lab.{module}")).get(name)
            if value is not None:
                return value
    raise AttributeError(f"module 'capsule_lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})


if TYPE_CHECKING:  # for editors and type checkers, which see more names here than exist at runtime
    # ruff: noqa: F401, F403
    from capsule_lab import runs
    from capsule_lab.commands import compose
    from capsule_lab.commands.notebook import train
    from capsule_lab.data import *
    from capsule_lab.deploy.predictor import load
    from capsule_lab.functional import dense_votes, length, squash
    from capsule_lab.layers import *
    from capsule_lab.losses import *
    from capsule_lab.networks import *
    from capsule_lab.routing import *
    from capsule_lab.runs.ready_weights import weights
    from capsule_lab.schedules import *
    from capsule_lab.types import Batch, CapsuleOutput, Capsules, DataSpec, Votes
