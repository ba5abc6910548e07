"""Costs of the experiments in ``conf/``, computed from the records in ``results/``: ``make costs``.

A record belongs to an experiment if its network, its image and its routing are the same. Its seconds per image, times
the images of the experiment's schedule, are the cost. Records of two threads are preferred to records of one.
"""

import functools
import json
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig

from capsule_lab.commands import compose
from capsule_lab.config import build
from capsule_lab.config.folders import head, option_files, options_of
from tests.helpers.records import RESULTS, overrides_of, today, trainings

TOLERANCE = 0.1
"""Relative difference of a number in a head from the records, beside its rounding."""
NO_RECORD = "no record"
_IMAGES = {
    "MNISTDataModule": 60_000,
    "MultiMNISTDataModule": 60_000,
    "AffNISTDataModule": 60_000,
    "MNISTPairsDataModule": 60_000,
    "SmallNORBPairsDataModule": 4_860,  # the cars
}
"""Training images of the published sets, for schedules in epochs."""
_SHARES = {"none": 0.0, "instance": 1 / 5}  # one toy of five
_BENCHMARK = "bench_cpu.json"
_MODELS = {"capsnet": "capsnet", "em_caps": "em_caps_paper"}
"""Models of the benchmark, by their names at that time; its other model had smaller images than any experiment."""
_OF_NETWORK = ("experiment", "model", "routing", "class_routing", "data", "loss", "module")
_OF_IMAGES = (
    "data.affine_validation",
    "data.affine_within",
    "data.digits",
    "data.eval_images",
    "data.path",
    "data.seed",
    "data.source",
    "data.train_images",
    "data.validation",
)
"""Beginnings of options that choose images, on which the cost of an image does not depend."""
_CORES = {1: "one CPU core", 2: "two CPU cores"}
_SECONDS = {"minutes": 60, "hours": 3600, "days": 86400}


class Network(NamedTuple):
    """What decides the cost of an image."""

    kind: str
    parameters: int
    image_shape: tuple[int, ...]
    routing: str
    iterations: int | None


class Speed(NamedTuple):
    """The seconds per training image in a record, and its number of threads."""

    file: str
    threads: int
    seconds: float


class Cost(NamedTuple):
    """The smallest and the largest cost of an experiment in seconds, and the files of these two records."""

    shortest: float
    longest: float
    threads: int
    files: tuple[str, ...]

    @property
    def unit(self) -> str:
        hours = self.longest / 3600
        if hours < 2:
            return "minutes"
        if hours < 100:
            return "hours"
        return "days"

    @property
    def text(self) -> str:
        """The cost as in the head of an experiment: ``26 to 59 hours on two CPU cores (results/mnist_hour.json)``."""
        shortest = self._in_units(self.shortest)
        longest = self._in_units(self.longest)
        number = longest if shortest == longest else f"{shortest} to {longest}"
        cores = _CORES[self.threads]
        files = ", ".join(f"results/{file}" for file in self.files)
        return f"{number} {self.unit} on {cores} ({files})"

    def _in_units(self, seconds: float) -> str:
        units = seconds / _SECONDS[self.unit]
        return f"{max(units, 1):.0f}"


def cost_of(experiment: str) -> Cost | None:
    """The cost of an experiment, or ``None`` without a record of its network."""
    config = _composed((f"experiment={experiment}",))
    found = [speed for speed in speeds().get(network_of(config), []) if speed.threads in _CORES]
    if not found:
        return None
    threads = max(speed.threads for speed in found)
    chosen = [speed for speed in found if speed.threads == threads]
    fastest = min(chosen, key=lambda speed: speed.seconds)
    slowest = max(chosen, key=lambda speed: speed.seconds)
    files = (fastest.file, slowest.file)
    if fastest.file == slowest.file:
        files = (fastest.file,)
    images = images_of(config)
    return Cost(fastest.seconds * images, slowest.seconds * images, threads, files)


def steps_of(config: DictConfig) -> int:
    """The steps of a schedule on the published data."""
    if config.trainer.max_steps > 0:
        return int(config.trainer.max_steps)
    data = config.data
    share = _SHARES.get(data.validation)
    if share is None:
        first, _, second = str(data.validation_share).partition("/")
        share = float(first) / float(second or 1)
    images = round(_IMAGES[_name_of(data)] * (1 - share))
    steps = images // data.batch_size
    return int(config.trainer.max_epochs * steps)


def _name_of(node: Any) -> str:
    """The class of a node, without its module."""
    *_, name = str(node.get("_target_")).split(".")
    return name


def images_of(config: DictConfig) -> int:
    """The images of a schedule, with repetitions."""
    return steps_of(config) * int(config.data.batch_size)


@functools.cache
def speeds() -> dict[Network, list[Speed]]:
    """The speeds in all records, by network."""
    found: dict[Network, list[Speed]] = {}
    for network, speed in (*_of_runs(), *_of_benchmark()):
        found.setdefault(network, []).append(speed)
    return found


def _of_runs() -> Iterator[tuple[Network, Speed]]:
    for record in trainings():
        hardware = str(record.content.get("hardware"))
        threads = re.search(r"1 x (\d+) threads", hardware)
        steps = float(record.content.get("steps") or 0)
        if not (threads and steps and record.seconds):
            continue
        command, _ = today()[record.command, record.recorded_hash]
        overrides = overrides_of(command)
        of_network = [each for each in overrides if each.startswith(_OF_NETWORK)]
        kept = [each for each in of_network if not each.startswith(_OF_IMAGES)]
        config = _composed(tuple(kept))
        seconds = record.seconds / steps / config.data.batch_size
        yield network_of(config), Speed(record.file, int(threads[1]), seconds)


def _of_benchmark() -> Iterator[tuple[Network, Speed]]:
    content = json.loads((RESULTS / _BENCHMARK).read_text())
    for row in content["rows"]:
        if row["form"] != "fused" or row["name"] not in _MODELS:
            continue
        model = _MODELS[row["name"]]
        channels, *_ = row["image_shape"]
        data = "mnist" if channels == 1 else "smallnorb"
        config = _composed((f"model={model}", f"data={data}"))
        network = network_of(config)
        assert list(network.image_shape) == row["image_shape"]
        seconds = 1 / row["images_per_second"]
        yield network, Speed(_BENCHMARK, 2, seconds)


@functools.cache
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    return compose("train", [*overrides, "data.source=standin"])


_NETWORKS: dict[int, Network] = {}


def network_of(config: DictConfig) -> Network:
    """The network of a configuration of ``_composed``."""
    key = id(config)
    if key not in _NETWORKS:
        data = build.build_data(config)
        with torch.device("meta"):
            module = build.build_module(config, data.spec)
        parameters = sum(parameter.numel() for parameter in module.network.parameters())
        routing: Any = config.routing or {}
        _NETWORKS[key] = Network(
            kind=_name_of(config.model),
            parameters=parameters,
            image_shape=tuple(data.spec.image_shape),
            routing=_name_of(routing),
            iterations=routing.get("iterations"),
        )
    return _NETWORKS[key]


def head_of(experiment: str) -> str:
    """The comments at the head of an experiment's file, on one line."""
    file = option_files("experiment")[experiment]
    text = " ".join(head(file))
    return " ".join(text.split())


def problem_with(text: str, cost: Cost | None) -> str:
    """What is wrong with the cost in a head; empty if it is that of the records, within ``TOLERANCE`` and rounding."""
    written = re.search(r"Cost: (.*?)(?= Expected:|$)", text)
    expected = NO_RECORD if cost is None else cost.text
    if written is None:
        return f"expected 'Cost: {expected}'"
    text = written[1]
    if cost is None:
        has_none = text.startswith(NO_RECORD)
        return "" if has_none else f"{text!r} has no record; expected {NO_RECORD!r}"
    words = _NUMBER.sub("", text)
    expected_words = _NUMBER.sub("", expected)
    same_words = words.startswith(expected_words)
    if same_words and _are_near(_numbers(text), _numbers(expected)):
        return ""
    return f"{text!r} is not the cost by the records; expected {expected!r}"


_NUMBER = re.compile(r"\d+(?= to |\s\w+ on )")


def _numbers(text: str) -> list[float]:
    return [float(number) for number in _NUMBER.findall(text)]


def _are_near(numbers: list[float], expected: list[float]) -> bool:
    if len(numbers) != len(expected):
        return False
    pairs = zip(numbers, expected, strict=True)
    return all(abs(one - other) <= 1 + TOLERANCE * other for one, other in pairs)


def main() -> None:
    """Print a table of the experiments."""
    rows = []
    for experiment in options_of("experiment"):
        cost = cost_of(experiment)
        if cost is None:
            rows.append((experiment, "", "", NO_RECORD))
            continue
        config = _composed((f"experiment={experiment}",))
        steps = steps_of(config)
        shortest = f"{cost.shortest / steps:.3f}"
        longest = f"{cost.longest / steps:.3f}"
        seconds = longest if shortest == longest else f"{shortest} to {longest}"
        rows.append((experiment, f"{steps:,}", seconds, cost.text))
    for row in [("experiment", "steps", "seconds a step", "cost"), *rows]:
        sys.stdout.write("{:24}{:>10}  {:18}{}\n".format(*row))


if __name__ == "__main__":
    main()
