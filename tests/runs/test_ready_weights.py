"""Weights in safetensors: the same gates as checkpoints, and an index of files by name."""

import hashlib
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import capsule_lab
from capsule_lab import runs
from capsule_lab.deploy.export import export, index_entry
from capsule_lab.errors import ConfigError, RunError
from tests.helpers.commands import ROOT, Trained
from tests.helpers.drawn_digits import drawn_digits
from tests.helpers.tiers import whole_but


@pytest.fixture
def file(trained: Trained, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.safetensors"
    export(runs.open(trained.directory), "safetensors", path)
    return path


@pytest.fixture
def index(file: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes an index with one entry, changed by ``changes``."""
    path = file.with_name("index.json")
    entry = index_entry(runs.open(trained.directory), file)
    monkeypatch.setattr(runs.ready_weights, "INDEX", path)

    def write(**changes: Any) -> None:
        path.write_text(json.dumps({"format": 1, "weights": {"tiny": entry | changes}}))

    write()
    return write


def test_a_file_is_the_same_run(file: Path, trained: Trained) -> None:
    run = runs.open(file)
    before = runs.open(trained.directory)
    assert run.step == before.step
    assert run.seconds == before.seconds
    assert run.spec == before.spec
    assert run.provenance == before.provenance
    found = run.network.state_dict()
    expected = before.network.state_dict()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    with safe_open(file, "pt") as opened:
        text = opened.metadata()["capsule_lab"]
    assert str(trained.directory.parent) not in text, "no folders of this machine"
    record = json.loads(text)
    assert record["input_form"]["kind"] == "digit"
    again = file.with_name("again.safetensors")
    export(run, "safetensors", again)
    assert again.read_bytes() == file.read_bytes()


def test_a_name_is_loaded(index: Callable[..., None], trained: Trained) -> None:
    assert capsule_lab.weights() == ["tiny"]
    beside_runs = runs.directories.root() / "tiny"
    assert runs.open("tiny").directory == beside_runs, "where commands write results"
    shown = repr(capsule_lab.load("tiny"))
    assert "tiny.safetensors: CapsNet" in shown
    entry = runs.ready_weights.index()["tiny"]
    error = trained.result["test"]["error"]
    assert entry["error"] == pytest.approx(error, abs=1e-4)
    assert entry["commit"] == trained.result["commit"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bytes": 1}, r"has \d+ bytes, but the index expects 1 bytes for tiny"),
        ({"sha256": "0" * 64}, r"has SHA-256 \w+, but the index expects 0+ for tiny"),
        ({"file": "absent", "url": "http://example.org/a"}, "expected one with https://"),
    ],
)
def test_another_file_than_that_of_the_index(
    index: Callable[..., None], changes: dict[str, Any], message: str
) -> None:
    index(**changes)
    with pytest.raises(RunError, match=message):
        capsule_lab.load("tiny")


def test_a_download_is_compared(
    index: Callable[..., None], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = file.parent / "cache"
    monkeypatch.setattr("pooch.os_cache", lambda name: cache)
    kept = cache / "weights" / "far.safetensors"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(file.read_bytes())
    index(file="absent", url="https://localhost:1/far.safetensors")
    loaded = capsule_lab.load("tiny")
    assert loaded.run.checkpoint == kept, "of the cache, without network"
    kept.unlink()
    message = r"the weights tiny cannot be downloaded \(.*ConnectionError\)"
    with pytest.raises(RunError, match=message):
        capsule_lab.load("tiny")


def test_a_wrong_name(index: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"tinny is neither the name of .* did you mean tiny\? Options: tiny"
    with pytest.raises(RunError, match=message):
        capsule_lab.load("tinny")


HUGE = 10**9


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("config.model", {"_target_": "os.system"}, r"names os\.system"),
        ("config.model", {"channels": "${oc.env:HOME}"}, "without interpolation"),
        ("config.model", {"channels": 10**6}, "cannot be rebuilt|expected|larger"),
        ("config.model", {"channels": 5}, r"has .* for .*, but the network"),
        ("config.model", {"decoder": [HUGE]}, "cannot be rebuilt"),
        ("config.model", {"hidden": [[10**6, 16]]}, "cannot be rebuilt"),
        ("config.model", {"kernel_size": 10**7}, "cannot be rebuilt"),
        ("config.model.routing", {"iterations": HUGE}, f"{HUGE} iterations of routing; expected"),
        ("config.data", {"_target_": "capsule_lab.train.main"}, "names capsule_lab.train.main"),
        (
            "config.data",
            {"_target_": "capsule_lab.data.PictureFolder", "path": "/etc"},
            "has data that cannot be rebuilt",
        ),
        ("spec", {"surprise": 1}, "cannot be rebuilt"),
        ("spec", {"image_shape": [1, 10**6, 10**6]}, "cannot be rebuilt"),
        ("spec", {"classes": ["a"]}, "1 names of classes; expected 10 texts"),
        ("spec", {"classes": [1] * 10}, "names that are not text; expected str"),
        ("", {"provenance": []}, "has no provenance in its record"),
        ("", {"start_from": 3}, "has no start_from.file in its record"),
        ("", {"start_from": {"file": "a", "name": 3}}, "has no start_from.name in its record"),
        ("", {"start_from": {"file": "a", "data": [1]}}, "has no start_from.data.source in its"),
        ("", {"format": 99}, "in checkpoint format 99"),
    ],
)
def test_a_hostile_record_is_refused(
    part: str, changes: dict[str, Any], message: str, file: Path
) -> None:
    with safe_open(file, "pt") as opened:
        record = json.loads(opened.metadata()["capsule_lab"])
    node = record
    for key in part.split(".") if part else []:
        node = node[key]
    node.update(changes)
    save_file(load_file(file), file, metadata={"capsule_lab": json.dumps(record)})
    with pytest.raises((RunError, ConfigError), match=message) as caught:
        capsule_lab.load(file)
    assert "\n" not in str(caught.value)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[:-100],
    "pickle": lambda content: b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "large header": lambda content: (2**21).to_bytes(8, "little") + b"{" + b" " * 2**21,
    "empty": lambda content: b"",
    "more": lambda content: content + b"0",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_refused(kind: str, file: Path) -> None:
    file.write_bytes(DAMAGE[kind](file.read_bytes()))
    with pytest.raises(RunError, match="cannot be read as weights") as caught:
        runs.open(file)
    assert "\n" not in str(caught.value)


def test_files_of_the_package_are_those_of_its_index() -> None:
    folder = ROOT / "capsule_lab" / "runs" / "ready"
    index = json.loads((folder / "index.json").read_text())
    for entry in index["weights"].values():
        name = entry["file"]
        assert "/" not in name
        file = folder / name
        if file.is_file():
            content = file.read_bytes()
            assert len(content) == entry["bytes"]
            assert hashlib.sha256(content).hexdigest() == entry["sha256"]
        else:
            assert entry["url"].startswith("https://")


# --- the files that are shipped ---

SHIPPED = runs.ready_weights.index()


GUIDE = ROOT / "docs" / "guides" / "predict.md"


def test_shipped_files_are_described_and_small() -> None:
    page = GUIDE.read_text()
    for name, entry in SHIPPED.items():
        weights = runs.open(name).network.parameters()
        count = sum(weight.numel() for weight in weights)
        assert count == entry["parameters"]
        error = entry["error"]
        megabytes = entry["bytes"] / 1e6
        minutes = entry["seconds"] / 60
        overrides = entry["command"].removeprefix("python -m capsule_lab.train ")
        cells = [
            f"`{name}`",
            "" if error is None else f"{error:.2f} %",
            f"{count:,}",
            f"{megabytes:.2f} MB",
            f"{minutes:.0f} min",
            f"`{overrides}`",
        ]
        row = f"| {' | '.join(cells)} |"
        assert row in page, row
    assert sum(entry["bytes"] for entry in SHIPPED.values()) <= 10e6


def test_shipped_capsnet_draws_as_well_as_the_full_network() -> None:
    losses = []
    with tarfile.open(ROOT / "results" / "time_to_accuracy_runs.tar.gz") as archive:
        for name in archive.getnames():
            if re.match(r"capsnet-mnist-\w+/metrics\.json", name):
                result = json.load(archive.extractfile(name))
                losses.append(result["test"]["reconstruction"])
    least = min(losses)
    slim = SHIPPED["capsnet_mnist"]["reconstruction"]
    assert slim <= 1.1 * least
    page = GUIDE.read_text()
    number = ["no", "one", "two", "three", "four"][len(losses)]
    assert f"is {slim:.4f} (a" in page
    assert f"and {least:.4f} to {max(losses):.4f} in {number} runs" in page


CLASSIFIERS = [name for name, entry in SHIPPED.items() if entry["error"] is not None]


OF_DIGITS = [name for name in CLASSIFIERS if "mnist" in name]


@pytest.mark.parametrize("name", whole_but(OF_DIGITS, "capsnet_mnist"))
def test_shipped_networks_read_drawn_digits(name: str) -> None:
    labels, pictures = zip(*drawn_digits(), strict=True)
    answers = capsule_lab.load(name)(pictures)
    right = 0
    for label, answer in zip(labels, answers, strict=True):
        right += answer.name == str(label)
    assert right >= 19, answers
