"""Time training steps, every case in a process of its own, so that its peak memory is its own.

The parent lets the processes work in turn. The yardstick is the textbook CapsNet of ``tests/reference``,
where the source tree is at hand.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from capsule_lab.build import build_module
from capsule_lab.command import ConfigError, compose
from capsule_lab.types import Batch, DataSpec

_TEXTBOOK = Path(__file__).parent.parent / "tests" / "reference" / "textbook.py"


def measure(config: DictConfig) -> list[dict[str, Any]]:
    """Seconds per step and peak memory of every case, the textbook's first if there is one."""
    cases = [("textbook", "32-true")] if _TEXTBOOK.is_file() else []
    cases += [(model, precision) for model in config.models for precision in config.precisions]
    context = multiprocessing.get_context("spawn")
    workers = []
    for model, precision in cases:
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, config, model, precision), daemon=True)
        process.start()
        there.close()  # so that a worker that dies is noticed
        workers.append((process, here))
        _receive(here, model)  # ready, warmed up
    seconds: list[list[float]] = [[] for _ in cases]
    for _ in range(config.rounds):
        for (_, pipe), times in zip(workers, seconds, strict=True):
            pipe.send(config.steps)
            times += _receive(pipe, "a worker")
    rows = []
    for (model, precision), (process, pipe), times in zip(cases, workers, seconds, strict=True):
        pipe.send(0)
        median = statistics.median(times)
        rows.append(
            {
                "network": model,
                "precision": precision,
                "device": str(device_named(config.device)),
                "batch_size": config.batch_size,
                "images_per_second": config.batch_size / median,
                "seconds_median": median,
                "seconds_fastest": min(times),
                "seconds_slowest": max(times),
                **_receive(pipe, model),
            }
        )
        process.join()
    for row in rows:
        row["speedup"] = row["images_per_second"] / rows[0]["images_per_second"]
        row["memory_share"] = row["peak_memory_bytes"] / rows[0]["peak_memory_bytes"]
    return rows


def _receive(pipe: Connection, name: str) -> Any:
    try:
        return pipe.recv()
    except EOFError as error:
        raise ConfigError(
            f"{name} could not be timed; its error is above (out of memory? try batch_size=32)"
        ) from error


def device_named(name: str) -> torch.device:
    """``cpu``, ``cuda``, or with ``auto`` the faster one that is there."""
    return torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")


def _work(pipe: Connection, config: DictConfig, model: str, precision: str) -> None:
    """In the worker: time as many steps as the parent asks for, until it asks for none."""
    device = device_named(config.device)
    step = _training_step(config, model, precision, device)
    for _ in range(2):  # ours: the first builds kernels, the second the optimiser's state
        step()
    pipe.send("ready")
    while steps := pipe.recv():
        times = []
        for _ in range(steps):
            started = time.perf_counter()
            step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        pipe.send(times)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB elsewhere
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    pipe.send({"peak_memory_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else peak})


def _training_step(config: DictConfig, model: str, precision: str, device: torch.device) -> Callable[[], None]:
    torch.manual_seed(0)
    images = torch.rand(config.batch_size, *config.image_shape, device=device)
    labels = torch.randint(config.num_classes, (config.batch_size,), device=device)
    if model == "textbook":
        network = _load_textbook()(tuple(config.image_shape), config.num_classes).to(device)
        optimizer = torch.optim.Adam(network.parameters())

        def loss() -> torch.Tensor:
            return network(images, labels)
    else:
        spec = DataSpec(tuple(config.image_shape), config.num_classes)
        module = build_module(compose("train", [f"model={model}"]), spec).to(device)
        optimizer = module.optimizer(module.parameters_to_train(), lr=1e-3)  # 1e-3: Adam's default
        batch = Batch(images, labels, labels)

        def loss() -> torch.Tensor:
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed"):
                terms = module.loss_terms(batch, module(images), {})
            return torch.stack(list(terms.values())).sum()

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def _load_textbook() -> Any:
    spec = importlib.util.spec_from_file_location("textbook", _TEXTBOOK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TextbookCapsNet
