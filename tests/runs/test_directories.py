"""Names of run directories, and the hash of a configuration."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from capsule_lab.commands import compose
from capsule_lab.config import identity
from capsule_lab.config.composition import to_container
from capsule_lab.config.identity import config_hash
from capsule_lab.errors import RunError
from capsule_lab.runs import directories
from tests.helpers.commands import TINY


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    return to_container(compose("train", TINY))


@pytest.fixture
def config(composed: dict[str, Any]) -> DictConfig:
    return OmegaConf.create(composed)


def create(config: DictConfig, *overrides: str, model: str = "capsnet") -> Path:
    directory = directories.choose_directory(config, f"{model}-mnist")
    directories.create_directory(directory, config, overrides)
    return directory


SAME_RESULT = [
    "name=first",
    "ckpt=runs/a",
    "train.resume=true",
    "train.directory=here",
    "trainer.max_time=00:00:09:00",
    "trainer.max_time={minutes: 9}",
    "logger=wandb",
    "data.directory=here",
    "data.on_device=false",
    "callbacks.not_learning=null",
    "callbacks.step_metrics=null",
    "trainer.log_every_n_steps=7",
]
OTHER_RESULT = [
    "seed=1",
    "routing.squash=none",
    "model.transformation=shared",
    "model.decoder=[8,16]",
    "model.hidden=[[4,8]]",
    "callbacks.best.monitor=val/loss",
    "data.batch_size=3",
    "trainer.max_epochs=3",
    "callbacks.confusion=null",
    "loss.classification.present=0.8",
    "schedule=constant",
    "optimizer.eps=1e-7",
    "train.test=last",
    "trainer.precision=bf16-mixed",
]


def test_hash_covers_every_option_that_changes_the_result(
    config: DictConfig, composed: dict[str, Any]
) -> None:
    fingerprint = config_hash(config)
    assert fingerprint == config_hash(composed), "of plain containers, too"
    hashes = {fingerprint}
    for override in SAME_RESULT:
        assert config_hash(compose("train", [*TINY, override])) == fingerprint, override
    for override in OTHER_RESULT:
        other = config_hash(compose("train", [*TINY, override]))
        assert other not in hashes, override
        hashes.add(other)
    # the configuration is not changed
    assert composed["trainer"].keys() >= {"max_time", "log_every_n_steps"}


@pytest.mark.parametrize(
    ("value", "is_hashed"), [("absent", False), (None, False), (False, True), ([1], True)]
)
def test_a_new_key_is_hashed_once_it_has_an_effect(
    monkeypatch: pytest.MonkeyPatch, value: Any, is_hashed: bool
) -> None:
    monkeypatch.setattr(identity, "_HASHED_WHEN_SET", {"data.new": None, "new.of_group": None})
    config: dict[str, Any] = {"data": {"name": "mnist"}, "seed": 0}
    fingerprint = config_hash(config)
    if value != "absent":
        config["data"]["new"] = value
    assert (config_hash(config) != fingerprint) == is_hashed


def test_name_is_a_prefix_of_the_directory_only(config: DictConfig) -> None:
    fingerprint, named = config_hash(config), config.copy()
    paths = []
    for name in ("first.try_1", None, "7"):
        named.name = name
        paths.append(create(named))
    assert [path.name for path in paths] == [
        f"first.try_1-capsnet-mnist-{fingerprint}",
        f"capsnet-mnist-{fingerprint}-2",
        f"7-capsnet-mnist-{fingerprint}-3",
    ]
    assert directories.attempts(fingerprint) == paths[::-1]
    assert [directories.hash_in(path) for path in paths] == [fingerprint] * 3
    for given in (config, named):
        given.train.resume = True
        assert directories.choose_directory(given, "capsnet-mnist") == paths[-1]


def test_name_of_a_class_in_a_package_is_one_word(config: DictConfig) -> None:
    directory = create(config, model="mine/net")
    assert directory.name.startswith("mine_net-mnist-")
    assert directories.attempts(config_hash(config)) == [directory]


@pytest.mark.parametrize(
    "name", ["a/b", "..", "../a", "-x", ".hidden", "two words", "ä", "a" * 101, ""]
)
def test_name_that_is_no_part_of_a_file_name_is_refused(config: DictConfig, name: str) -> None:
    config.name = name
    message = r"^name is .*; expected at most 100 letters, digits, _, - and \."
    with pytest.raises(RunError, match=message):
        directories.choose_directory(config, "capsnet-mnist")


def test_overrides_are_recorded_as_typed(config: DictConfig, tmp_path: Path) -> None:
    directory = create(config, "routing=uniform", "model.decoder=[8, 16]")
    assert directories.read_overrides(directory) == ["routing=uniform", "model.decoder=[8, 16]"]
    assert directories.read_overrides(create(config)) == []
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    assert directories.read_overrides(tmp_path) == [], "not known"


def test_only_the_first_process_writes(config: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    directories.create_directory(Path("run"), config)
    assert [*Path("run").iterdir()] == []
    leftover = Path("run/checkpoints/.last-0123abcd.ckpt")
    leftover.parent.mkdir()
    for path in (leftover, leftover.with_name("last.ckpt")):
        path.touch()
    monkeypatch.setenv("SLURM_PROCID", "0")
    directories.create_directory(Path("run"), config)
    files = sorted(str(path) for path in Path("run").rglob("*.*"))
    assert files == ["run/checkpoints/last.ckpt", "run/config.yaml"]
    message = r"already contains a run; continue it with train\.resume=true"
    with pytest.raises(RunError, match=message):
        directories.create_directory(Path("run"), config)
