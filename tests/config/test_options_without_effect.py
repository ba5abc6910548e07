"""No command ignores a key: it is unknown and refused, or it has an effect, or it is refused where it has none."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from capsule_lab.commands import compose, load, measuring, names
from capsule_lab.config.folders import default_options, options_of
from capsule_lab.errors import ConfigError
from tests.helpers.commands import ROOT, Cli, Trained
from tests.helpers.messages import one_sentence
from tests.helpers.records import records
from tests.helpers.tiers import whole_but

OTHERS = [name for name in names() if name not in ("train", "report", "sweep")]
"""Commands that do not hand other keys on to the runs of a table; ``config.check`` has the keys of ``train``."""
WEIGHTS = {"ckpt": "RUN", "run": "RUN", "images": "a.png", "out": "a.onnx", "name": "mnist"}


def required(command: str) -> list[str]:
    """The required options of a command, with the values above."""
    keys = [option.key for option in load(command).required]
    return [f"{key}={WEIGHTS[key]}" for key in keys]


@pytest.mark.parametrize("command", OTHERS)
@pytest.mark.parametrize("key", ["nonsense", "blend", "model.channels"])
def test_unknown_key_is_refused(command: str, key: str) -> None:
    overrides = [*required(command), f"+{key}=max"]
    group, _, _ = key.partition(".")
    with pytest.raises(ConfigError, match=rf"^{group} does not exist; "):
        compose(command, overrides)


@pytest.mark.parametrize("command", ["report", "sweep"])
def test_other_keys_of_a_table_are_checked_as_those_of_its_runs(cli: Cli, command: str) -> None:
    more = ["dry_run=true"] if command == "sweep" else []
    ended = cli(command, "table=smoke", "+nonsense=1", *more)
    assert ended.status == 2
    assert "nonsense does not exist" in ended.err


@pytest.mark.parametrize("command", OTHERS)
def test_every_option_is_read_by_the_code_of_its_command(command: str) -> None:
    """A key that no code names has no effect."""
    declared = load(command)
    files = [Path(inspect.getfile(declared.function))]
    if declared.measures:
        files += (ROOT / "capsule_studies").glob("*.py")
        files.append(ROOT / "capsule_lab" / "commands" / "evaluate.py")
    code = "".join(file.read_text() for file in files)
    unread = []
    for key in declared.own_options:
        use = rf"\boptions\.{key}\b|[\"']{key}[\"']"
        if not re.search(use, code):
            unread.append(key)
    assert command == "dataset" or unread == []


OF_DATA = ["source", "directory"]


KNOWN = {
    "toynorb": ["directory", "size", "workers"],
    "folder": ["path", "size", "workers", "source", "directory"],
    "arrays": ["path", "source", "directory"],
}
"""The options of ``dataset`` that reach a data set, if they are not ``OF_DATA``."""


@pytest.mark.parametrize(
    "name", whole_but(["toynorb", *options_of("data")], "toynorb", "folder", "mnist", "multimnist")
)
@pytest.mark.parametrize(
    "option",
    [
        "path=there",
        "size=9",
        "workers=2",
        "source=standin",
        "directory=there",
    ],
)
def test_option_of_dataset_reaches_its_data_set_or_is_refused(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str, option: str
) -> None:
    key, _, _ = option.partition("=")
    reached: list[str] = []

    def build_data(training: OmegaConf) -> None:
        reached.append(f"{key}={training.data[key]}")
        raise ConfigError("reached")

    def render(options: Any) -> None:
        reached.append(f"{key}={getattr(options, key)}")

    monkeypatch.setattr("capsule_lab.config.build.build_data", build_data)
    monkeypatch.setattr("capsule_lab.commands.dataset._render", render)
    ended = cli("dataset", f"name={name}", option)
    if key in KNOWN.get(name, OF_DATA):
        assert reached == [option], ended.err
    else:
        assert reached == []
        message = f"{option} has no effect with name={name}; leave it out: the options there are "
        assert one_sentence(ended).startswith(message)


REFUSED = {
    "export ckpt=RUN to=safetensors out=a reconstruction=true": (
        "reconstruction=True has no effect with to=safetensors"
    ),
    "report table=smoke power=0.9": (
        "power=0.9 has no effect without difference="
    ),
    "evaluate ckpt=RUN seed=5": (
        "seed=5 has no effect on the data of the training"
    ),
    "evaluate ckpt=RUN trainer.limit_val_batches=1": (
        "trainer.limit_val_batches is 1, which has no effect here"
    ),
    "evaluate ckpt=RUN split=val trainer.limit_test_batches=1": (
        "trainer.limit_test_batches is 1, which has no effect"
    ),
    "evaluate ckpt=RUN +trainer.min_epochs=2": (
        "trainer.min_epochs is 2, which has no effect here"
    ),
    "evaluate ckpt=RUN +trainer.fast_dev_run=true": (
        "trainer.fast_dev_run is True, which cannot be used here"
    ),
    "analyse ckpt=RUN trainer.precision=bf16-mixed": (
        "trainer.precision is bf16-mixed, which has no effect here"
    ),
    "analyse ckpt=RUN untrained=false seed=5": (
        "seed=5 has no effect on the data of the training"
    ),
    "attack ckpt=RUN trainer.devices=2": (
        "trainer.devices is 2, which has no effect here"
    ),
    "attack ckpt=RUN seed=5": (
        "seed=5 has no effect on the data of the training"
    ),
    "attack ckpt=RUN attack=noise objective=margin": (
        "objective=margin has no effect with attack=noise"
    ),
    "attack ckpt=RUN attack=rotation couplings=equal": (
        "couplings=equal has no effect with attack=rotation"
    ),
    "attack ckpt=RUN attack=corruption source=RUN": (
        "has no effect with attack=corruption, which uses no network"
    ),
    "attack ckpt=RUN checks=false check_images=9": (
        "check_images=9 has no effect without checks of this attack"
    ),
    "attack ckpt=RUN attack=square baseline=RUN": (
        "has no effect without checks of this attack"
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_option_without_effect_is_refused(cli: Cli, trained: Trained, words: str) -> None:
    command, *arguments = words.replace("RUN", str(trained.directory)).split()
    message = one_sentence(cli(command, *arguments))
    assert REFUSED[words] in message


@pytest.mark.parametrize("command", measuring())
def test_recorded_commands_have_no_option_without_effect(command: str, tmp_path: Path) -> None:
    """Only the Trainer's options: the others need the weights."""
    start = re.compile(rf"[. ]{command} ")
    trainer_options = set()
    for record in records():
        if start.search(record.command):
            words = record.command.split()
            trainer_options |= {word for word in words if word.startswith("trainer.")}
    config = compose(command, [*required(command), *sorted(trainer_options)])
    load(command).check(config)
    assert "trainer" in default_options(command)
