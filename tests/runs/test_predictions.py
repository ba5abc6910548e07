import io
import os
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsule_lab import runs
from capsule_lab.errors import RunError
from capsule_lab.runs.predictions import read, write
from tests.helpers.commands import Trained

VALUES = {"label": [[1, 2], [0, 3]], "prediction": [[1, 2], [0, 2]], "margin": [0.5, -1.0]}
ARRAYS = {name: np.array(values) for name, values in VALUES.items()}


def test_a_run_leaves_the_predictions_of_its_test(trained: Trained) -> None:
    found = read(trained.directory, trained.result)
    error = 100 * found.wrong.mean()
    assert error == pytest.approx(trained.result["test"]["error"])
    is_negative = found.margin < 0
    assert (is_negative == found.wrong).all()
    assert found.label.shape == found.prediction.shape
    assert found.cluster is None
    assert found.part is None


def test_predictions_of_several_labels_are_wrong_if_one_is(tmp_path: Path) -> None:
    entry = write(tmp_path, "a/b.npz", ARRAYS)
    found = read(tmp_path, {"predictions": entry})
    assert found.wrong.tolist() == [False, True]


def record_of(file: Path) -> dict[str, Any]:
    """The record of a run with these predictions."""
    return {"predictions": {"file": file.name, "sha256": runs.files.sha256(file)}}


def test_missing_and_foreign_files_are_none(tmp_path: Path) -> None:
    entry = write(tmp_path, "a.npz", ARRAYS)
    foreign = {"predictions": {**entry, "file": "../a.npz"}}
    missing = {"predictions": {**entry, "file": "b.npz"}}
    assert read(tmp_path, {}) is None
    assert read(tmp_path / "b", foreign) is None
    assert read(tmp_path, missing) is None


def test_changed_files_are_refused(tmp_path: Path) -> None:
    entry = write(tmp_path, "a.npz", ARRAYS)
    changed = {"predictions": {**entry, "sha256": "0"}}
    with pytest.raises(RunError, match="is not the file of the run's test"):
        read(tmp_path, changed)
    file = tmp_path / "a.npz"
    file.write_bytes(b"no archive")
    with pytest.raises(RunError, match="is no file of predictions"):
        read(tmp_path, record_of(file))


def test_files_with_objects_run_nothing(tmp_path: Path) -> None:
    objects = np.array([print, print], dtype=object)
    file = tmp_path / "a.npz"
    np.savez(file, **{**ARRAYS, "label": objects})
    with pytest.raises(RunError, match="is no file of predictions"):
        read(tmp_path, record_of(file))


def saved(array: Any, **header: Any) -> bytes:
    """A file of numpy, with another header than that of the array if one is given."""
    written = io.BytesIO()
    np.save(written, np.asarray(array))
    if not header:
        return written.getvalue()
    header = {"descr": "<i4", "fortran_order": False, "shape": (2,), **header}
    changed = io.BytesIO()
    np.lib.format.write_array_header_1_0(changed, header)
    return changed.getvalue() + bytes(8)


LABELS = np.array([1, 2], np.int32)
MARGIN = np.array([0.5, 1.0], np.float32)
FITTING = {
    "label.npy": saved(LABELS),
    "prediction.npy": saved(LABELS),
    "margin.npy": saved(MARGIN),
}


def label_of(content: bytes) -> dict[str, bytes]:
    return {**FITTING, "label.npy": content}


def both(array: Any) -> dict[str, bytes]:
    return {**FITTING, "label.npy": saved(array), "prediction.npy": saved(array)}


def margin_of(array: Any) -> dict[str, bytes]:
    return {**FITTING, "margin.npy": saved(array)}


def with_clusters(array: Any) -> dict[str, bytes]:
    return {**FITTING, "cluster.npy": saved(array)}


MEMBERS: dict[str, dict[str, bytes]] = {
    "no label": {"prediction.npy": saved(LABELS), "margin.npy": saved(MARGIN)},
    "another array": {**FITTING, "more.npy": saved(LABELS)},
    "another name": {**FITTING, "cluster.txt": b"1"},
    "a path": {**FITTING, "../cluster.npy": saved(LABELS)},
    "NUL in a name": {**FITTING, "cluster\0.npy": saved(LABELS)},
    "no archive member of numpy": label_of(b"1, 2"),
    "empty member": label_of(b""),
    "cut off": label_of(saved(LABELS)[:-1]),
    "shorter labels": label_of(saved(LABELS[:1])),
    "no dimensions": both(1),
    "no images": {**both(LABELS[:0]), "margin.npy": saved(MARGIN[:0])},
    "no labels per image": both(np.zeros((2, 0), np.int32)),
    "three dimensions": both(np.zeros((2, 1, 1), np.int32)),
    "another shape": label_of(saved(LABELS[:, None])),
    "a huge shape": label_of(saved(LABELS, shape=(2**40,))),
    "an overflowing shape": label_of(saved(LABELS, shape=(2**62, 4))),
    "a negative shape": label_of(saved(LABELS, shape=(-2,))),
    "a shape of text": label_of(saved(LABELS, shape=("2",))),
    "text": both(["a", "b"]),
    "floats": both(MARGIN),
    "booleans": both([True, False]),
    "complex": both([1j, 2]),
    "dates": both(np.array([1, 2], "M8[s]")),
    "fields": both(np.zeros(2, [("a", "i4")])),
    "objects": label_of(saved(LABELS, descr="|O")),
    "negative": both([-1, 2]),
    "NaN": margin_of([np.nan, 1]),
    "a margin of integers": margin_of(LABELS),
    "a longer margin": margin_of(np.zeros(3)),
    "clusters of another length": with_clusters(np.arange(3)),
    "clusters of floats": with_clusters(MARGIN),
    "a part without dimensions": {**FITTING, "part.npy": saved(0)},
}


def packed(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name.replace("\0", "\x01"), content)
    return written.getvalue().replace(b"\x01.npy", b"\0.npy")


def twice() -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as file, warnings.catch_warnings(action="ignore"):
        for name, content in [*FITTING.items(), *FITTING.items()]:
            file.writestr(name, content)
    return written.getvalue()


def with_bytes(old: bytes, new: bytes) -> bytes:
    """An archive of arrays that fit, with some of its bytes changed."""
    archive = packed(FITTING)
    assert old in archive
    return archive.replace(old, new)


CONTENTS = {name: packed(members) for name, members in MEMBERS.items()}
CONTENTS |= {
    "a member twice": twice(),
    "encrypted": with_bytes(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"),
    "another compression": with_bytes(b"\x14\x00\x00\x00\x08\x00", b"\x14\x00\x00\x00\x63\x00"),
    "an array without an archive": saved(LABELS),
    "nothing": b"",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_arrays_that_do_not_fit_are_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.npz"
    file.write_bytes(content)
    message = r"^[^\n]*a\.npz is no file of predictions \([^\n]+\); evaluate the run again$"
    with pytest.raises(RunError, match=message):
        read(tmp_path, record_of(file))


def test_an_archive_that_is_large_when_unpacked_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    file.write_bytes(packed(label_of(bytes(2**28 + 1))))
    with pytest.raises(RunError, match=f"bytes unpacked, more than {2**28}"):
        read(tmp_path, record_of(file))


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_predictions_in_other_compressions_are_read(tmp_path: Path, compression: int) -> None:
    file = tmp_path / "a.npz"
    file.write_bytes(packed(FITTING, compression))
    found = read(tmp_path, record_of(file))
    assert found.label.tolist() == [1, 2]


@pytest.mark.parametrize("name", ["fifo", "folder", "link", "/dev/zero", "a\0b", "x" * 5000])
def test_predictions_that_are_no_file_of_the_run_are_refused(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "run"
    secret = tmp_path / "secret"
    secret.touch()
    (directory / "folder").mkdir(parents=True)
    os.mkfifo(directory / "fifo")
    (directory / "link").symlink_to(secret)
    record = {"predictions": {"file": name, "sha256": ""}}
    message = r"^[^\n]* cannot be read \([^\n]+\); evaluate the run again$"
    with pytest.raises(RunError, match=message):
        read(directory, record)


def test_part_without_images_has_no_predictions(tmp_path: Path) -> None:
    arrays = {**ARRAYS, "part": np.zeros(2, np.int32)}
    entry = write(tmp_path, "a.npz", arrays)
    found = read(tmp_path, {"predictions": entry})
    assert found.of_part(0).label.tolist() == found.label.tolist()
    assert found.of_part(1) is None
