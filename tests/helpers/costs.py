"""Costs of the experiments in ``conf/``, computed from the records in ``results/``: ``make costs``.

A record belongs to an experiment if its network, its image and its routing are the same. Its seconds per image, times
the images of the experiment's schedule, are the cost. Records of two threads are preferred to records of one.
"""

import functools
import json
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from omegaconf import DictConfig

from capsule_lab.commands import compose
from capsule_lab.config import build
from capsule_lab.config.folders import head, option_files, options_of
from tests.helpers.records import RESULTS, TRAIN, today, trainings

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
    "data.eval_images",
    "data.path",
    "data.seed",
    "data.source",
    "data.train_images",
    "data.validation",
)
"""Beginnings of options that choose images, on which the cost of an image does not depend."""
_CORES = {1: "one CPU core", 2: "two CPU cores"}


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
        return "hours" if hours < 100 else "days"

    @property
    def text(self) -> str:
        """The cost as in the head of an experiment: ``26 to 59 hours on two CPU cores (results/mnist_hour.json)``."""
        length = {"minutes": 60, "hours": 3600, "days": 86400}[self.unit]
        shortest = f"{max(self.shortest / length, 1):.0f}"
        longest = f"{max(self.longest / length, 1):.0f}"
        number = longest if shortest == longest else f"{shortest} to {longest}"
        files = ", ".join(f"results/{file}" for file in self.files)
        return f"{number} {self.unit} on {_CORES[self.threads]} ({files})"


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
    images = round(_IMAGES[data._target_.rpartition(".")[2]] * (1 - share))
    return int(config.trainer.max_epochs * (images // data.batch_size))


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
        threads = re.search(r"1 x (\d+) threads", str(record.content.get("hardware")))
        steps = int(float(record.content.get("steps") or 0))
        if not (threads and steps and record.seconds):
            continue
        command, _ = today()[record.command, record.recorded_hash]
        overrides = shlex.split(command.removeprefix(TRAIN))
        of_network = [each for each in overrides if each.startswith(_OF_NETWORK)]
        kept = [each for each in of_network if not each.startswith(_OF_IMAGES)]
        config = _composed(tuple(kept))
        seconds = record.seconds / steps / config.data.batch_size
        yield network_of(config), Speed(record.file, int(threads[1]), seconds)


def _of_benchmark() -> Iterator[tuple[Network, Speed]]:
    content = json.loads((RESULTS / _BENCHMARK).read_text())
    for row in content["rows"]:
        if row["form"] == "fused" and row["name"] in _MODELS:
            data = "mnist" if row["image_shape"][0] == 1 else "smallnorb"
            config = _composed((f"model={_MODELS[row['name']]}", f"data={data}"))
            assert list(network_of(config).image_shape) == row["image_shape"]
            yield network_of(config), Speed(_BENCHMARK, 2, 1 / row["images_per_second"])


@functools.cache
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    return compose("train", [*overrides, "data.source=standin"])


_NETWORKS: dict[int, Network] = {}


def network_of(config: DictConfig) -> Network:
    """The network of a configuration of ``_composed``."""
    if id(config) not in _NETWORKS:
        module = build.build_without_weights(config)
        parameters = sum(parameter.numel() for parameter in module.network.parameters())
        routing: Any = config.routing or {}
        names = [str(node.get("_target_")).rpartition(".")[2] for node in (config.model, routing)]
        shape = tuple(build.build_data(config).spec.image_shape)
        _NETWORKS[id(config)] = Network(
            names[0], parameters, shape, names[1], routing.get("iterations")
        )
    return _NETWORKS[id(config)]


def head_of(experiment: str) -> str:
    """The comments at the head of an experiment's file, on one line."""
    return " ".join(" ".join(head(option_files("experiment")[experiment])).split())


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
    same_words = _NUMBER.sub("", text).startswith(_NUMBER.sub("", expected))
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
        steps = steps_of(_composed((f"experiment={experiment}",)))
        shortest = f"{cost.shortest / steps:.3f}"
        longest = f"{cost.longest / steps:.3f}"
        seconds = longest if shortest == longest else f"{shortest} to {longest}"
        rows.append((experiment, f"{steps:,}", seconds, cost.text))
    for row in [("experiment", "steps", "seconds a step", "cost"), *rows]:
        sys.stdout.write("{:24}{:>10}  {:18}{}\n".format(*row))


if __name__ == "__main__":
    main()
