"""What a batch costs that is made on the host, and one that is made on the device that trains on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Any, Literal

import lightning as L
import torch
from lightning.fabric.utilities import move_data_to_device

from capsule_lab.bench.cases import FULL, Case, training_config
from capsule_lab.bench.gpu.random_digits import RandomDigits
from capsule_lab.bench.gpu.synchronisations import MODELS
from capsule_lab.bench.models import build_network, loss_of
from capsule_lab.data.loader import ResumableLoader
from capsule_lab.data.mnist import SIZE
from capsule_lab.errors import one_line
from capsule_lab.types import Batch

TRAINED = ("cnn_small", "capsnet")
BATCH_SIZES = {"full": (64, 128, 256, 512, 1024), "small": (4,)}
STEPS = {"full": 50, "small": 2}  # ours: a second of the smallest network
WARM_UP = 5  # ours: steps that are not timed
IMAGES = {"full": 60_000, "small": 64}  # 60,000: MNIST's


def compare_loaders(device: torch.device, size: Literal["full", "small"], limit: float) -> dict[str, Any]:
    """Time batches of MNIST's sizes, made on the host and on the device, alone and in front of a training step.

    Args:
        device: that trains.
        size: ``"full"`` or, for a CPU, ``"small"``.
        limit: seconds, after which no further batch size begins.

    Returns:
        ``rows``, one for each batch size, model and value of ``data.on_device``: ``loader_seconds`` for a batch of
        stored images on the device, ``step_seconds`` for a training step of one batch over and over,
        ``together_seconds`` for a step of a new batch, its transformation included, and ``loader_share``, by how much
        of that the steps of one batch are shorter; ``failures``: a sentence where the two make other batches, or
        nothing could be measured; ``not_measured``: batch sizes that the limit left out.
    """
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    left_out = []
    for batch_size in BATCH_SIZES[size]:
        if time.monotonic() - began > limit:
            left_out.append(batch_size)
            continue
        try:
            rows += _rows(device, size, batch_size, failures)
        except RuntimeError as error:  # torch's own, such as OutOfMemoryError
            failures.append(f"batches of {batch_size} could not be timed: {one_line(error)}")
    return {"rows": rows, "failures": failures, "not_measured": left_out}


def _rows(
    device: torch.device, size: Literal["full", "small"], batch_size: int, failures: list[str]
) -> list[dict[str, Any]]:
    trainer = _trainer(device)
    loaders: dict[bool, ResumableLoader] = {}
    for on_device in (False, True):
        data = RandomDigits(images=max(IMAGES[size], 2 * batch_size), batch_size=batch_size, on_device=on_device)
        data.trainer = trainer
        data.setup("fit")
        loaders[on_device] = data.train_dataloader()
    one, other = (move_data_to_device(next(iter(loader)), device) for loader in loaders.values())
    if not all(mine.equal(theirs) for mine, theirs in zip(one, other, strict=True) if mine is not None):
        failures.append(f"batches of {batch_size} differ between data.on_device=false and true; expected the same bits")
    seconds = {on_device: _seconds(loader, device, STEPS[size]) for on_device, loader in loaders.items()}
    rows = []
    for model in TRAINED:
        step = _training_step(model, device, size, batch_size)
        resident = data.transform_batch(one, "train")
        alone = _seconds([resident] * len(loaders[True]), device, STEPS[size], step)
        for on_device, loader in loaders.items():
            together = _seconds(loader, device, STEPS[size], step, data)
            rows.append({
                "batch_size": batch_size, "model": model, "on_device": on_device,
                "loader_seconds": seconds[on_device], "step_seconds": alone, "together_seconds": together,
                "loader_share": 1 - alone / together,
            })  # fmt: skip
    return rows


def _trainer(device: torch.device) -> L.Trainer:
    """What tells a DataModule its device."""
    devices = 1 if device.type == "cpu" else [device.index or 0]
    return L.Trainer(accelerator=device.type, devices=devices, logger=False, enable_checkpointing=False)


def _training_step(model: str, device: torch.device, size: str, batch_size: int) -> Callable[[Batch], None]:
    overrides = (f"model={model}", *(MODELS[model] if size == "small" else ()))
    sizes = {"batch_size": batch_size, "image_shape": (1, SIZE, SIZE), "num_classes": 10}
    case = Case("model", model, "plain", FULL, device.type, sizes, overrides)
    module = build_network(case, training_config(overrides)).to(device)
    optimizer = module.optimizer(module.parameters_to_train(), lr=1e-3)  # 1e-3: Adam's default

    def step(batch: Batch) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(module, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def _seconds(
    batches: ResumableLoader | list[Batch],
    device: torch.device,
    steps: int,
    step: Callable[[Batch], None] | None = None,
    data: RandomDigits | None = None,
) -> float:
    """Seconds for a batch on the device, for its transformation by ``data``, and for what ``step`` does with it."""

    def run(number: int) -> int:
        done = 0
        for batch in islice(moved, number):
            transformed = batch if data is None else data.transform_batch(batch, "train")
            if step is not None:
                step(transformed)
            done += 1
        _synchronise(device)
        return done

    moved = (move_data_to_device(batch, device) for batch in batches)
    run(min(WARM_UP, len(batches) // 2))
    began = time.perf_counter()
    done = run(steps)
    return (time.perf_counter() - began) / done


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
