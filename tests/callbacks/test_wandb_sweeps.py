"""Every sweep that we ship for W&B is valid there, and every run of it would be here."""

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from capsule_lab.commands import compose
from capsule_lab.commands.train import check_training as check
from capsule_lab.config.build import build_without_weights
from capsule_lab.config.folders import sweeps_dir
from capsule_lab.runs.directories import config_hash
from tests.helpers.commands import Trained

FILES = sorted((sweeps_dir() / "wandb").glob("*.yaml"))
SWEEPS = [pytest.param(yaml.safe_load(file.read_text()), id=file.stem) for file in FILES]
SCHEMA = json.loads((Path(__file__).parent / "wandb_sweep_schema.json").read_text())


def values(parameter: dict[str, Any]) -> list[Any]:
    """All that a parameter can be; of a range, its ends and its middle."""
    if "value" in parameter:
        return [parameter["value"]]
    if "values" in parameter:
        return list(parameter["values"])
    low, high = parameter["min"], parameter["max"]
    return [low, math.sqrt(low * high), high]


def command_of(sweep: dict[str, Any], chosen: dict[str, Any]) -> list[str]:
    """What W&B's agent starts for these values, put together by its own functions."""
    from wandb.sdk.launch.sweeps import utils  # a second to import

    arguments = {name: {"value": value} for name, value in chosen.items()}
    macros = {
        "${env}": ["/usr/bin/env"],
        "${interpreter}": ["python"],
        "${program}": [sweep["program"]],
    }
    for name, filled in utils.create_sweep_command_args({"args": arguments}).items():
        macros[f"${{{name}}}"] = filled
    command = []
    for part in utils.create_sweep_command([*sweep["command"]]):
        command += macros.get(part, [part])
    return command


def varied(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    """The first run, then those in which one parameter has another value."""
    first: dict[str, Any] = {}
    changes: list[dict[str, Any]] = []
    for name, parameter in sweep["parameters"].items():
        first[name], *others = values(parameter)
        changes += [{name: value} for value in others]
    return [first, *[{**first, **change} for change in changes]]


@pytest.mark.whole
@pytest.mark.parametrize("sweep", SWEEPS)
def test_sweep_is_valid_to_wandb_and_its_network_can_be_built(
    sweep: dict[str, Any], trained: Trained
) -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(sweep)
    assert set(sweep) <= set(SCHEMA["properties"]), "the schema lets pass what it does not know"
    heading, *_ = (trained.directory / "metrics.csv").read_text().splitlines()
    metric = sweep["metric"]["name"]
    assert metric in heading.split(",")
    assert not metric.startswith("test/"), "nothing is chosen on the test set"
    first_run, *_ = varied(sweep)
    overrides = command_of(sweep, first_run)[5:]
    config = compose("train", [*overrides, "data.source=standin"])
    module = build_without_weights(config)
    assert sum(parameter.numel() for parameter in module.parameters()) > 0


@pytest.mark.whole
@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_value_makes_another_run(sweep: dict[str, Any]) -> None:
    hashes = []
    for chosen in varied(sweep):
        command = command_of(sweep, chosen)
        start, overrides = command[:5], command[5:]
        assert start == ["/usr/bin/env", "python", "-m", "capsule_lab", "train"]
        config = compose("train", overrides)
        check(config)
        assert config.logger.wandb.mode == "online"
        assert config.data.validation != "none", "there is no val/error without validation"
        hashes.append(config_hash(config))
    assert len({*hashes}) == len(hashes)
