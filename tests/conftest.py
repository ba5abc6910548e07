"""Runs small enough for tests: a CapsNet of a few hundred weights on the stand-in digits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from capsule_lab.build import compose

TINY_CAPSNET = ["model.channels=4", "model.primary_types=2", "model.class_dim=4", "model.decoder=[8]"]
TINY_CNN = ["model=cnn_baseline", "model.channels=[4]", "model.hidden=[8]"]
TINY_DATA = ["data.source=standin", "data.batch_size=64", "data.train_images=256", "trainer.limit_val_batches=1"]


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every test runs in a folder of its own, without the developer's environment, and cleans up after itself."""
    for name in ("CAPSULE_LAB_DATA", "CAPSULE_LAB_RUN", "CAPSULE_LAB_RUNS", "WANDB_MODE", "HYDRA_FULL_ERROR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    levels = {name: logging.getLogger(name).propagate for name in ("lightning.pytorch", "lightning.fabric")}
    yield
    GlobalHydra.instance().clear()
    for name, propagate in levels.items():
        logging.getLogger(name).propagate = propagate


@pytest.fixture
def tiny() -> Callable[..., DictConfig]:
    """Composes the configuration of a tiny training run: ``tiny("trainer.max_epochs=2", model=TINY_CNN)``."""

    def build(*overrides: str, model: list[str] = TINY_CAPSNET) -> DictConfig:
        return compose("train", [*model, *TINY_DATA, "trainer.max_epochs=2", *overrides])

    return build
