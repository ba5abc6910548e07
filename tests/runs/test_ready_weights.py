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
    run, before = runs.open(file), runs.open(trained.directory)
    assert (run.step, run.seconds, run.spec, run.provenance) == (
        *(before.step, before.seconds, before.spec, before.provenance),
    )
    for name, weight in before.network.state_dict().items():
        assert torch.equal(run.network.state_dict()[name], weight)
    with safe_open(file, "pt") as opened:
        text = opened.metadata()["capsule_lab"]
    assert str(trained.directory.parent) not in text, "no folders of this machine"
    assert json.loads(text)["input_form"]["kind"] == "digit"
    again = file.with_name("again.safetensors")
    export(run, "safetensors", again)
    assert again.read_bytes() == file.read_bytes()


def test_a_name_is_loaded(index: Callable[..., None], trained: Trained) -> None:
    assert capsule_lab.weights() == ["tiny"]
    assert runs.open("tiny").directory == runs.directories.root() / "tiny", (
        "commands write results beside runs"
    )
    assert "tiny.safetensors: CapsNet" in repr(capsule_lab.load("tiny"))
    entry = runs.ready_weights.index()["tiny"]
    assert entry["error"] == pytest.approx(trained.result["test"]["error"], abs=1e-4)
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
    monkeypatch.setattr("pooch.os_cache", lambda name: file.parent / "cache")
    kept = file.parent / "cache" / "weights" / "far.safetensors"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(file.read_bytes())
    index(file="absent", url="https://localhost:1/far.safetensors")
    assert capsule_lab.load("tiny").run.checkpoint == kept, "of the cache, without network"
    kept.unlink()
    with pytest.raises(
        RunError, match=r"the weights tiny cannot be downloaded \(.*ConnectionError\)"
    ):
        capsule_lab.load("tiny")


def test_a_wrong_name(index: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RunError, match=r"tinny is neither the name of .* did you mean tiny\? Options: tiny"
    ):
        capsule_lab.load("tinny")


HOSTILE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "target": (r"names os\.system", lambda r: r["config"]["model"].update(_target_="os.system")),
    "interpolation": (
        "without interpolation",
        lambda r: r["config"]["model"].update(channels="${oc.env:HOME}"),
    ),
    "huge": (
        "cannot be rebuilt|expected|larger",
        lambda r: r["config"]["model"].update(channels=10**6),
    ),
    "other width": (
        r"has .* for .*, but the network",
        lambda r: r["config"]["model"].update(channels=5),
    ),
    "unknown fact": ("cannot be rebuilt", lambda r: r["spec"].update(surprise=1)),
    "huge decoder": ("cannot be rebuilt", lambda r: r["config"]["model"].update(decoder=[10**9])),
    "huge layers": (
        "cannot be rebuilt",
        lambda r: r["config"]["model"].update(hidden=[[10**6, 16]]),
    ),
    "huge kernel": ("cannot be rebuilt", lambda r: r["config"]["model"].update(kernel_size=10**7)),
    "huge image": ("cannot be rebuilt", lambda r: r["spec"].update(image_shape=[1, 10**6, 10**6])),
    "no end": (
        "10000000 iterations of routing; expected at most",
        lambda r: r["config"]["model"]["routing"].update(iterations=10**7),
    ),
    "few names": (
        "1 names of classes; expected 10 texts",
        lambda r: r["spec"].update(classes=["a"]),
    ),
    "no names": (
        "names that are not text; expected str",
        lambda r: r["spec"].update(classes=[1] * 10),
    ),
    "data": (
        "names capsule_lab.commands.train.main",
        lambda r: r["config"]["data"].update(_target_="capsule_lab.commands.train.main"),
    ),
    "other data": (
        "has data that cannot be rebuilt",
        lambda r: r["config"]["data"].update(
            _target_="capsule_lab.data.PictureFolder", path="/etc"
        ),
    ),
    "provenance": ("has no provenance in its record", lambda r: r.update(provenance=[])),
    "another format": ("in checkpoint format 99", lambda r: r.update(format=99)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_record_is_refused(kind: str, file: Path) -> None:
    message, change = HOSTILE[kind]
    with safe_open(file, "pt") as opened:
        record = json.loads(opened.metadata()["capsule_lab"])
    change(record)
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
    entries = json.loads((folder / "index.json").read_text())["weights"].values()
    for entry in entries:
        assert "/" not in entry["file"]
        if (folder / entry["file"]).is_file():
            content = (folder / entry["file"]).read_bytes()
            assert (len(content), hashlib.sha256(content).hexdigest()) == (
                entry["bytes"],
                entry["sha256"],
            )
        else:
            assert entry["url"].startswith("https://")


# --- the files that are shipped ---

SHIPPED = runs.ready_weights.index()


def test_shipped_files_are_described_and_small() -> None:
    page = (ROOT / "docs" / "guides" / "predict.md").read_text()
    for name, entry in SHIPPED.items():
        run = runs.open(name)
        assert sum(weight.numel() for weight in run.network.parameters()) == entry["parameters"]
        error = "" if entry["error"] is None else f"{entry['error']:.2f} %"
        size, minutes = f"{entry['bytes'] / 1e6:.2f} MB", f"{entry['seconds'] / 60:.0f} min"
        overrides = entry["command"].removeprefix("capsule-lab train ")
        row = (
            f"| `{name}` | {error} | {entry['parameters']:,} | {size} | {minutes} | `{overrides}` |"
        )
        assert row in page, row
    assert sum(entry["bytes"] for entry in SHIPPED.values()) <= 10e6


def test_shipped_capsnet_draws_as_well_as_the_full_network() -> None:
    with tarfile.open(ROOT / "results" / "time_to_accuracy_runs.tar.gz") as archive:
        files = [
            name
            for name in archive.getnames()
            if re.match(r"capsnet-mnist-\w+/metrics\.json", name)
        ]
        full = [json.load(archive.extractfile(name))["test"]["reconstruction"] for name in files]
    assert SHIPPED["capsnet_mnist"]["reconstruction"] <= 1.1 * min(full)
    page = (ROOT / "docs" / "guides" / "predict.md").read_text()
    assert f"is {SHIPPED['capsnet_mnist']['reconstruction']:.4f} (a" in page
    assert (
        f"and {min(full):.4f} to {max(full):.4f} in {['no', 'one', 'two', 'three', 'four'][len(full)]} runs"
        in page
    )


@pytest.mark.parametrize(
    "name", [name for name in SHIPPED if "mnist" in name and SHIPPED[name]["error"] is not None]
)
def test_shipped_networks_read_drawn_digits(name: str) -> None:
    labels, pictures = zip(*drawn_digits(), strict=True)
    answers = [answer.name for answer in capsule_lab.load(name)(pictures)]
    assert sum(answer == str(label) for answer, label in zip(answers, labels, strict=True)) >= 19, (
        answers
    )
