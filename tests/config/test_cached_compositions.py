"""The caches of ``tests.helpers.compositions`` do not change what Hydra composes."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from capsule_lab.commands import compose
from tests.helpers import compositions
from tests.helpers.compositions import (
    composed_anew,
    composed_from_parts,
    folder_of_these_sources,
)

VALUES = [
    "seed=3",
    "++trainer.gradient_clip_algorithm=value",
    "callbacks.last=null",
    "~trainer.log_every_n_steps",
]


@pytest.mark.whole
@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment=hinton2018/smallnorb", "routing=em", "debug=smoke"],
        ["experiment=sabour2017/multimnist", "loss=margin", "callbacks=[default,averaged_weights]"],
    ],
    ids=" ".join,
)
def test_cached_composition_equals_that_of_hydra(overrides: list[str], tmp_path: Path) -> None:
    """With and without overrides of values, which do not change the cached parts; then from files."""
    with composed_anew():
        expected = [compose("train", given) for given in (overrides, [*overrides, *VALUES])]
    for _ in range(2):
        with composed_from_parts(tmp_path):
            for _ in range(2):
                cached = [compose("train", given) for given in (overrides, [*overrides, *VALUES])]
                assert cached == expected
                shown = list(map(OmegaConf.to_yaml, cached))
                assert shown == list(map(OmegaConf.to_yaml, expected))


def test_files_are_read_in_another_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with composed_from_parts(tmp_path):
        expected = compose("train", ["model=capsnet"])
    for name in ("create", "merge"):
        monkeypatch.setattr(compositions, name, None)  # not called
    with composed_from_parts(tmp_path):
        assert compose("train", ["model=capsnet"]) == expected


def test_files_are_those_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compositions, "ROOT", tmp_path / "root")
    source = tmp_path / "root" / "conf" / "model" / "mine.yaml"
    source.parent.mkdir(parents=True)
    parent = tmp_path / "files"
    parent.mkdir()
    source.write_text("a: 1")
    first = folder_of_these_sources(parent)
    first.mkdir()
    assert folder_of_these_sources(parent) == first
    assert first.is_dir()
    source.write_text("a: 2")
    assert folder_of_these_sources(parent) != first
    assert not first.exists()
