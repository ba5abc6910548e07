"""Names of run directories, and what a run changes from the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import DictConfig

from capsule_lab.config.compose import compose
from capsule_lab.errors import RunError
from capsule_lab.runs import directories
from tests.helpers.commands import TINY


def created(config: DictConfig, *overrides: str) -> Path:
    directory = directories.choose_directory(config, "capsnet-mnist")
    directories.create_directory(directory, config, overrides)
    return directory


def test_name_stands_before_the_hash_and_changes_nothing_else() -> None:
    plain = compose("train", TINY)
    named = compose("train", [*TINY, "name=first.try_1"])
    fingerprint = directories.config_hash(plain)
    assert directories.config_hash(named) == fingerprint
    found = [created(named), created(plain), created(compose("train", [*TINY, "name=7"]))]
    assert [path.name for path in found] == [
        f"first.try_1-capsnet-mnist-{fingerprint}",
        f"capsnet-mnist-{fingerprint}-2",
        f"7-capsnet-mnist-{fingerprint}-3",
    ]
    assert directories.attempts(fingerprint) == found[::-1]
    assert [directories.hash_in(path) for path in found] == [fingerprint] * 3
    plain.train.resume = named.train.resume = True
    assert [directories.choose_directory(config, "capsnet-mnist") for config in (plain, named)] == [found[-1]] * 2


def test_time_of_a_command_is_no_part_of_the_configuration() -> None:
    """Runs that were begun before it had no part have ``null`` in their hash."""
    plain = compose("train", TINY)
    limited = [compose("train", [*TINY, f"trainer.max_time={time}"]) for time in ("00:00:09:00", "{minutes: 9}")]
    assert {directories.config_hash(config) for config in limited} == {directories.config_hash(plain)}
    del plain.trainer.max_time
    assert directories.config_hash(plain) != directories.config_hash(limited[0])
    assert limited[0].trainer.max_time == "00:00:09:00", "it is as it was"


def test_where_batches_are_made_does_not_change_the_hash() -> None:
    config = compose("train", TINY)
    fingerprint, config.data.on_device = directories.config_hash(config), False
    assert directories.config_hash(config) == fingerprint


def test_options_that_earlier_runs_had_no_names_for_are_hashed_when_they_differ() -> None:
    plain = compose("train", TINY)
    earlier = plain.copy()
    del earlier.routing.squash, earlier.model.transformation, earlier.model.primary_squash, earlier.model.masked_decoder
    del earlier.model.hidden, earlier.model.primary_relu, earlier.routing.learned_prior, earlier.routing.update
    fingerprint = directories.config_hash(plain)
    assert directories.config_hash(earlier) == fingerprint
    changes = (
        "routing.squash=none", "model.transformation=shared", "model.primary_squash=none", "model.masked_decoder=false",
        "model.hidden=[[4,8]]", "model.primary_relu=true", "routing.learned_prior=true", "routing.update=replace",
    )  # fmt: skip
    hashes = {directories.config_hash(compose("train", [*TINY, change])) for change in changes}
    assert len(hashes - {fingerprint}) == len(changes)


def test_model_in_a_folder_of_its_own_has_a_directory_that_is_found() -> None:
    config = compose("train", TINY)
    directories.create_directory(directory := directories.choose_directory(config, "mine/net-mnist"), config)
    assert directory.name.startswith("mine_net-mnist-")
    assert directories.attempts(directories.config_hash(config)) == [directory]


def test_names_that_directories_should_not_have_are_refused() -> None:
    config = compose("train", TINY)
    for name in ("a/b", "..", "../a", "-x", ".hidden", "two words", "ä", "a" * 101, ""):
        config.name = name
        with pytest.raises(RunError, match=r"^name is .*; expected at most 100 letters, digits, _, - and \."):
            directories.choose_directory(config, "capsnet-mnist")


@pytest.mark.parametrize("overrides", [[], ["routing=uniform", "model.decoder=[8, 16]"]], ids=str)
def test_overrides_of_a_run_are_kept_as_they_are_typed(overrides: list[str]) -> None:
    expected = "routing=uniform 'model.decoder=[8, 16]'" if overrides else ""
    assert directories.read_overrides(created(compose("train", TINY), *overrides)) == expected


def test_overrides_of_older_runs_are_not_known(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    assert directories.read_overrides(tmp_path) == ""


def test_pairs_of_one_class_are_another_configuration() -> None:
    plain = compose("train", ["data=multimnist"])
    earlier = plain.copy()
    del earlier.data.same_class
    assert directories.config_hash(earlier) == directories.config_hash(plain)
    other = compose("train", ["data=multimnist", "data.same_class=also"])
    assert directories.config_hash(other) != directories.config_hash(plain)


def test_a_prior_that_another_routing_always_had_is_hashed() -> None:
    hashes = {
        directories.config_hash(compose("train", ["routing=self_attention", f"routing.prior={value}"]))
        for value in ("true", "false")
    }
    assert len(hashes) == 2
