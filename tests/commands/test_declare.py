"""What a command declares: options with a sentence each, types, and what a table needs."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Lt
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from capsule_lab import commands
from capsule_lab.commands.declare import command
from capsule_lab.config.check_options import check_keys, check_options, check_required
from capsule_lab.config.compose import compose
from capsule_lab.config.declaration import MISSING, Count, Group, Options, Paths, Seed, Weights
from capsule_lab.config.signatures import described, kinds_of
from capsule_lab.errors import ConfigError
from tests.helpers.commands import interpreter


class Inner(Options):
    resume: bool = False
    """Continue."""


class Example(Options):
    ckpt: Weights
    """The network."""
    images: Paths
    """Pictures."""
    source: Weights | None = None
    """Another
    network."""
    to: Literal["table", "json"] = "table"
    """The format."""
    top: Count = 3
    """How many."""
    seed: Seed | None = None
    """The seed."""
    anything: Any = None
    """Not checked."""
    run: Inner = Inner()
    """How it is stored."""
    data: Group


@pytest.fixture
def example() -> Any:
    """A command that is not in a file; ``list`` has no groups."""
    return command("list", Example)(lambda options: None)


def test_options_are_declared_with_key_default_and_sentence(example: Any) -> None:
    own = example.own_options
    assert [*own] == ["ckpt", "images", "source", "to", "top", "seed", "anything", "run.resume"]
    defaults = {key: option.default for key, option in own.items()}
    assert defaults["ckpt"] == MISSING
    assert defaults["images"] == MISSING
    assert defaults["top"] == 3
    assert defaults["source"] is None
    assert defaults["run.resume"] is False
    assert own["source"].description == "Another network."
    required = [option.key for option in example.required]
    assert required == ["ckpt", "images"]
    assert example.paths == ["images"]
    assert example.other_weights == ["source"]


OF_WEIGHTS = "a run, last for the latest one, a file or the name of ready weights"
SEEDS = "a whole number, 0 to 4294967295, or null"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ckpt=3", f"ckpt is 3; expected {OF_WEIGHTS}"),
        ("ckpt=''", f"ckpt is an empty text; expected {OF_WEIGHTS}"),
        ("source=3", f"source is 3; expected {OF_WEIGHTS}, or null"),
        ("to=xml", "to is 'xml'; expected 'table' or 'json'"),
        ("top=0", "top is 0; expected a whole number, 1 or more"),
        ("top=true", "top is True; expected a whole number, 1 or more"),
        ("seed=-1", f"seed is -1; expected {SEEDS}"),
        ("seed=4294967296", f"seed is 4294967296; expected {SEEDS}"),
        ("run.resume=3", "run.resume is 3; expected true or false"),
        ("run=3", "run is 3; expected options such as run.resume=…"),
        ("topp=3", "topp does not exist; did you mean top? "),
        ("run.resum=true", "run.resum does not exist; did you mean run.resume? "),
    ],
)
def test_wrong_option_is_one_sentence(example: Any, override: str, message: str) -> None:
    config = OmegaConf.from_dotlist(["ckpt=a", "run.resume=false", override])
    with pytest.raises(ConfigError) as caught:
        check_options(config, example)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("override", ["top=3", "seed=0", "anything=[1,{a: 2}]", "data={a: 1}"])
def test_right_option_is_accepted(example: Any, override: str) -> None:
    config = OmegaConf.from_dotlist(["ckpt=a", "run.resume=false", override])
    check_options(config, example)


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("ckpt", f"ckpt=<{OF_WEIGHTS}>"),
        ("images", "images=<files or folders>"),
    ],
)
def test_required_option_that_is_not_given_is_one_sentence(
    example: Any, missing: str, expected: str
) -> None:
    given = {"ckpt": "a", "images": "a.png", missing: MISSING}
    with pytest.raises(ConfigError, match=rf"^{missing} is missing; expected {expected}$"):
        check_required(OmegaConf.create(given), example)


def test_options_are_read_from_a_configuration() -> None:
    config = OmegaConf.create(
        {
            "ckpt": "a",
            "images": ["b", "c"],
            "source": MISSING,
            "to": "json",
            "top": 4,
            "seed": None,
            "anything": {"x": [1]},
            "run": {"resume": True},
            "data": {"_target_": "builtins.dict"},
        }
    )
    options = Example.read(config)
    assert options.ckpt == "a"
    assert options.top == 4
    assert options.run.resume is True
    assert options.images == ["b", "c"]
    assert type(options.images) is list
    assert options.anything == {"x": [1]}
    assert type(options.anything) is dict
    assert options.source is None
    assert options.data is config.data
    assert options.config is config
    del config.top
    with pytest.raises(OmegaConfBaseException, match="top"):
        Example.read(config)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Annotated[int, Ge(2)] | None, "a whole number, 2 or more, or null"),
        (Annotated[int, Ge(0), Lt(8)], "a whole number, 0 to 7"),
        (list[int] | None, "a list of whole numbers or null"),
    ],
)
def test_words_of_types(annotation: Any, words: str) -> None:
    assert described(kinds_of(annotation)) == words


@pytest.mark.parametrize("annotation", [Any, Path])
def test_types_that_are_not_checked(annotation: Any) -> None:
    assert kinds_of(annotation) == []


@pytest.mark.parametrize("name", commands.names())
def test_every_option_of_every_command_has_a_sentence(name: str) -> None:
    declared = commands.load(name)
    assert declared.name == name
    for option in declared.own_options.values():
        sentence = option.description
        assert sentence.endswith((".", ")")), option.key
        assert sentence[:1].isupper() or ":" in sentence, option.key


@pytest.mark.parametrize("name", commands.names())
def test_defaults_are_those_of_the_composed_configuration(name: str) -> None:
    declared = commands.load(name)
    config = compose(declared)
    for option in declared.own_options.values():
        if option.default == MISSING:
            parent, _, key = option.key.rpartition(".")
            node = OmegaConf.select(config, parent) if parent else config
            assert OmegaConf.is_missing(node, key)
    check_keys(config, declared)


def test_a_command_that_measures_declares_what_a_table_needs() -> None:
    found = commands.measuring()
    assert "evaluate" in found
    metrics = []
    that_test = []
    for each in found.values():
        metrics += each.measures.metrics
        if "test" in each.measures.metrics:
            that_test.append(each.name)
    assert that_test == ["evaluate"], "a row without by: is measured as training tests"
    assert len(metrics) == len({*metrics}), "a column names one command"


def test_unknown_command_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^'trian' is not a command; did you mean train\?"):
        commands.load("trian")
    with pytest.raises(ConfigError, match=r"^3 is not a command; "):
        commands.compose(3)  # type: ignore[arg-type]


def test_check_runs_before_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command does not call its own check; tables and ``-m`` call it, too."""
    called = []

    def check(config: DictConfig) -> None:
        called.append("check")
        raise ConfigError("it cannot work")

    monkeypatch.setattr(sys, "argv", ["list"])
    checked = dataclasses.replace(
        commands.load("list"), check=check, function=lambda options: called.append("function")
    )
    with pytest.raises(SystemExit):
        checked()
    assert capsys.readouterr().err == "capsule_lab: it cannot work\n"
    assert called == ["check"]


def test_a_declaration_does_not_change(example: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        example.name = "other"


@pytest.mark.integration
@pytest.mark.whole
@pytest.mark.parametrize("module", ["capsule_lab.train", "capsule_lab.commands.train"])
def test_commands_of_older_records_run(tmp_path: Path, module: str) -> None:
    ended = interpreter("-m", module, "--version", cwd=tmp_path)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("capsule-lab ")
