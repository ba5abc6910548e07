"""Every sweep that we ship for W&B is valid there, and every run of it would be here."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from capsule_lab.config.build import build_without_weights
from capsule_lab.config.check import check
from capsule_lab.config.compose import compose, sweeps_dir
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
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args  # a second to import

    filled = create_sweep_command_args({"args": {name: {"value": value} for name, value in chosen.items()}})
    macros = {"${env}": ["/usr/bin/env"], "${interpreter}": ["python"], "${program}": [sweep["program"]]}
    macros |= {f"${{{name}}}": given for name, given in filled.items()}
    return [argument for part in create_sweep_command([*sweep["command"]]) for argument in macros.get(part, [part])]


RUNS = [
    pytest.param(sweep.values[0], dict(zip(parameters, chosen, strict=True)), id=f"{sweep.id}-{number}")
    for sweep in SWEEPS
    for parameters in [sweep.values[0]["parameters"]]
    for number, chosen in enumerate(itertools.product(*map(values, parameters.values())))
    if sum(value != values(parameter)[0] for value, parameter in zip(chosen, parameters.values(), strict=True)) < 2
]


def test_there_are_some() -> None:
    assert len(SWEEPS) >= 3
    assert {sweep.values[0]["method"] for sweep in SWEEPS} >= {"grid", "bayes"}


@pytest.mark.parametrize("sweep", SWEEPS)
def test_sweep_is_valid_to_wandb(sweep: dict[str, Any]) -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(sweep)
    assert set(sweep) <= set(SCHEMA["properties"]), "the schema lets pass what it does not know"


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "gird"},
        {"metric": {"name": "val/error", "goal": "least"}},
        {"parameters": {"seed": {"valus": [0, 1]}}},
        {"parameters": {"seed": {"distribution": "log_uniform_values", "min": 1}}},
        {"run_cap": 0},
    ],
    ids=str,
)
def test_schema_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(SCHEMA).validate({**SWEEPS[0].values[0], **wrong})


@pytest.mark.parametrize(("sweep", "chosen"), RUNS)
def test_every_value_makes_a_run(sweep: dict[str, Any], chosen: dict[str, Any]) -> None:
    env, interpreter, option, program, *overrides = command_of(sweep, chosen)
    assert [env, interpreter, option, program] == ["/usr/bin/env", "python", "-m", "capsule_lab.train"]
    config = compose("train", overrides)
    check(config)
    assert config.logger.wandb.mode == "online"
    assert config.data.validation != "none", "there is no val/error without validation"


@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_parameter_changes_the_run(sweep: dict[str, Any]) -> None:
    every = {name: values(parameter) for name, parameter in sweep["parameters"].items()}
    first = {name: options[0] for name, options in every.items()}
    varied = [{**first, name: option} for name, options in every.items() for option in options[1:]]
    runs = [config_hash(compose("train", command_of(sweep, chosen)[4:])) for chosen in [first, *varied]]
    assert len({*runs}) == len(runs)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_metric_is_one_that_runs_log(sweep: dict[str, Any], trained: Trained) -> None:
    names = (trained.directory / "metrics.csv").read_text().splitlines()[0].split(",")
    assert sweep["metric"]["name"] in names
    assert not sweep["metric"]["name"].startswith("test/"), "nothing is chosen on the test set"


@pytest.mark.parametrize("sweep", SWEEPS)
def test_network_of_the_first_run_can_be_built(sweep: dict[str, Any]) -> None:
    first = {name: values(parameter)[0] for name, parameter in sweep["parameters"].items()}
    config = compose("train", [*command_of(sweep, first)[4:], "data.source=standin"])
    assert sum(p.numel() for p in build_without_weights(config).parameters()) > 0
