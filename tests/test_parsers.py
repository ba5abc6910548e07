"""Readers of files of others, on generated files: a value or one sentence, never another error.

``make fuzz`` runs more examples.
"""

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from capsule_lab import runs
from capsule_lab.commands import load
from capsule_lab.commands.tables import read_table
from capsule_lab.config import plain_yaml
from capsule_lab.config.overrides import choices, quoted
from capsule_lab.data.arrays import ArraySource
from capsule_lab.data.formats import affnist, binary_matrix
from capsule_lab.data.formats.cifar10 import read_batch
from capsule_lab.data.mnist import MNISTFiles
from capsule_lab.data.svhn import SVHNFiles
from capsule_lab.deploy.export import export
from capsule_lab.errors import CapsuleLabError, is_unicode
from capsule_lab.tables import reader
from tests.helpers import affnist_files, cifar10_files, mnist_files, svhn_files
from tests.helpers.commands import Trained
from tests.helpers.generated import GENERATED, changed, damaged, texts
from tests.helpers.matlab import matlab, matlab_6
from tests.helpers.tables import write_table

FOLDER = "files"
IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


class Parser(NamedTuple):
    """A valid file, its path, and the function that reads it."""

    whole: bytes
    path: str
    read: Callable[[Path], Any]


def read_mnist(_: Path) -> Any:
    return MNISTFiles(Path(FOLDER)).load(train=False)


def read_packed_mnist(path: Path) -> Any:
    path.with_suffix("").unlink()
    return read_mnist(path)


def read_svhn(_: Path) -> Any:
    return SVHNFiles(Path(FOLDER)).load(train=False)


def read_arrays(path: Path) -> Any:
    source = ArraySource(str(path), None, None, None, None)
    return source.load(train=True)


def npz(**arrays: Any) -> bytes:
    written = io.BytesIO()
    np.savez(written, **arrays)
    return written.getvalue()


PACKED = mnist_files.downloads(mnist_files.CONTENTS)
NORB = bytes.fromhex("553d4c1e03000000020000000300000004000000") + bytes(range(24))
PIXELS = np.zeros((4, 5, 6), np.uint8)
CLASSES = np.arange(4)
PARSERS = {
    "IDX images": Parser(mnist_files.CONTENTS[IMAGES], f"MNIST/raw/{IMAGES}", read_mnist),
    "IDX labels": Parser(mnist_files.CONTENTS[LABELS], f"MNIST/raw/{LABELS}", read_mnist),
    "packed IDX": Parser(PACKED[f"{IMAGES}.gz"], f"MNIST/raw/{IMAGES}.gz", read_packed_mnist),
    "NORB": Parser(NORB, "a.mat", binary_matrix.read_matrix),
    "CIFAR10": Parser(cifar10_files.CONTENTS["test_batch"], "test_batch", read_batch),
    "MAT of SVHN": Parser(svhn_files.CONTENTS["test_32x32.mat"], "SVHN/test_32x32.mat", read_svhn),
    "MAT of affNIST": Parser(
        matlab(affNISTdata=affnist_files.fields(slice(8))), "test.mat", affnist.load_mat
    ),
    "arrays of NumPy": Parser(npz(images=PIXELS, labels=CLASSES), "a.npz", read_arrays),
    "arrays of MATLAB": Parser(matlab(images=PIXELS, labels=CLASSES), "arrays.mat", read_arrays),
    "arrays of MATLAB 6": Parser(
        matlab_6(images=PIXELS, labels=list("abcd")), "arrays.mat", read_arrays
    ),
    "weights": Parser(b"", "a.safetensors", runs.open),
    "pickle of weights": Parser(b"", "a.ckpt", runs.open),
}


def check_answer(read: Callable[[], Any]) -> None:
    """Check that ``read`` returns, or raises one sentence of this project."""
    message = ""
    try:
        read()
    except CapsuleLabError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 2000
    assert is_unicode(message)


@pytest.fixture(scope="module")
def stored(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Valid weights, as both kinds of file."""
    path = tmp_path_factory.mktemp("stored") / "a.safetensors"
    export(runs.open(trained.directory), "safetensors", path)
    checkpoint = trained.directory / "checkpoints" / "last.ckpt"
    return {"weights": path.read_bytes(), "pickle of weights": checkpoint.read_bytes()}


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("name", PARSERS)
@GENERATED
@given(data=st.data())
def test_damaged_file_gives_a_value_or_one_sentence(
    stored: dict[str, bytes], name: str, data: Any
) -> None:
    parser = PARSERS[name]
    path = Path(FOLDER) / parser.path
    path.parent.mkdir(parents=True, exist_ok=True)
    for other in (IMAGES, LABELS):
        (path.parent / other).write_bytes(mnist_files.CONTENTS[other])
    path.write_bytes(data.draw(damaged(stored.get(name, parser.whole))))
    check_answer(lambda: parser.read(path))


@pytest.mark.usefixtures("unchecked_types")
@GENERATED
@given(data=st.data())
def test_changed_record_of_weights_gives_a_run_or_one_sentence(
    stored: dict[str, bytes], data: Any
) -> None:
    whole = stored["weights"]
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    if data.draw(st.booleans()):
        record = data.draw(changed(json.loads(header["__metadata__"]["capsule_lab"])))
        header["__metadata__"]["capsule_lab"] = json.dumps(record)
    else:
        header = data.draw(changed(header))
    written = json.dumps(header).encode()
    Path("a.safetensors").write_bytes(
        len(written).to_bytes(8, "little") + written + whole[8 + length :]
    )
    check_answer(lambda: runs.open("a.safetensors"))


@GENERATED
@given(content=st.data())
def test_damaged_predictions_give_a_value_or_one_sentence(trained: Trained, content: Any) -> None:
    whole = (trained.directory / trained.result["predictions"]["file"]).read_bytes()
    damage = content.draw(damaged(whole))
    Path("predictions.npz").write_bytes(damage)
    entry = {"file": "predictions.npz", "sha256": hashlib.sha256(damage).hexdigest()}
    check_answer(lambda: runs.predictions.read(Path(), {"predictions": entry}))


@GENERATED
@given(text=texts())
def test_any_yaml_gives_a_value_or_one_sentence(text: str) -> None:
    message = ""
    try:
        plain_yaml.parse(text)
    except ValueError as error:
        message = str(error)
    assert "\n" not in message


@GENERATED
@given(data=st.data())
def test_changed_table_gives_a_table_or_one_sentence(data: Any) -> None:
    file = write_table(
        Path(),
        columns={"a": {"label": "x"}},
        rows=[{"name": "r", "overrides": ["a=1"], "note": "n"}],
    )
    content = yaml.safe_load(file.read_text())
    if data.draw(st.booleans()):
        text = yaml.dump(data.draw(changed(content)), allow_unicode=True)
    else:
        text = data.draw(texts()).join([file.read_text()[:60], file.read_text()[60:]])
    file.write_bytes(text.encode(errors="surrogatepass"))
    check_answer(lambda: read_table(file))


@GENERATED
@given(text=texts())
def test_any_override_gives_a_value_or_one_sentence(text: str) -> None:
    check_answer(lambda: reader.check_overrides("a row", [text]))
    check_answer(lambda: choices([text], load("train")))


@GENERATED
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=40) | texts())
def test_quoted_text_is_read_back_by_hydra(text: str) -> None:
    override = OverridesParser.create().parse_override(f"key={quoted(text)}")
    assert OmegaConf.create({"key": override.value()}).key == text
