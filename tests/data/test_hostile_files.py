"""Files of data sets from elsewhere: nothing in them is run, and nothing is written outside of their folder."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from capsule_lab.data import cifar10
from capsule_lab.data.cifar10 import CIFAR10Files
from capsule_lab.data.download import fetch
from capsule_lab.data.formats import affnist
from capsule_lab.data.formats.cifar10 import read_batch
from capsule_lab.data.svhn import SVHNFiles
from capsule_lab.errors import DataError
from tests.helpers.cifar10_files import CONTENTS, array, pickled

FOLDER = CIFAR10Files.path
FIRST = f"{FOLDER}/data_batch_1"


def members() -> dict[str, tarfile.TarInfo]:
    """Members of CIFAR10's archive that would write elsewhere if they were unpacked as they say."""

    def made(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        return member

    return {
        "parent": made("../MARKER"),
        "below a parent": made(f"{FOLDER}/../../MARKER"),
        "absolute": made(f"{Path.cwd()}/MARKER"),
        "symbolic link": made(FIRST, tarfile.SYMTYPE, f"{Path.cwd()}/SECRET"),
        "symbolic link upwards": made(FIRST, tarfile.SYMTYPE, "../../../SECRET"),
        "hard link": made(FIRST, tarfile.LNKTYPE, "../SECRET"),
        "folder that is a link": made(FOLDER, tarfile.SYMTYPE, str(Path.cwd())),
        "device": made(FIRST, tarfile.CHRTYPE),
        "pipe": made(FIRST, tarfile.FIFOTYPE),
        "folder": made(FIRST, tarfile.DIRTYPE),
    }


def archive(member: tarfile.TarInfo) -> bytes:
    """CIFAR10's archive with one more member, before the others or in the place of the one with its name."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as file:
        file.addfile(member, io.BytesIO(b""))
        for name, content in CONTENTS.items():
            each = tarfile.TarInfo(f"{FOLDER}/{name}")
            each.size = len(content)
            if each.name != member.name:
                file.addfile(each, io.BytesIO(content))
    return written.getvalue()


def test_members_of_an_archive_stay_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "SECRET").write_text("another file of the user")
    source = CIFAR10Files(tmp_path / "data")
    for name, member in members().items():
        content = archive(member)
        monkeypatch.setattr(cifar10, "download_file", lambda *_, content=content: write(_[3] / "archive", content))
        fetch(source.folder, source.download)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["SECRET", "data"], name
        assert (tmp_path / "SECRET").read_text() == "another file of the user", name
        for path in source.folder.iterdir() if source.folder.exists() else ():
            assert path.read_bytes() in CONTENTS.values(), f"{name}: {path.name}"


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


class Calls:
    """Pickles as a call of ``os.mkdir``."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("MARKER",)


def pickles() -> Iterator[tuple[str, bytes]]:
    yield "call", pickle.dumps({"data": Calls(), "labels": []})
    yield "call of protocol 0", b"cos\nmkdir\n(S'MARKER'\ntR."
    yield "instance by name", b"(S'MARKER'\nios\nmkdir\n."
    yield "eval", b'cbuiltins\neval\n(S\'open("MARKER", "w")\'\ntR.'
    yield "attribute", b"cbuiltins\ngetattr\n(cos\nS'mkdir'\ntR."
    yield "call in an array", pickled(pickle.dumps(Calls(), 2)[2:-1], [0])
    yield "numpy's own loader", b"cnumpy\nload\n(S'MARKER'\ntR."
    yield "huge array", b"cnumpy\nndarray\n((L1000000000000L\nttR."
    yield "array of objects", pickled(array(np.zeros((1, 3072), np.uint8)).replace(b"U\x02u1", b"U\x02O8"), [0])
    yield "number", pickle.dumps(5)
    yield "labels of text", pickle.dumps({"data": [[0]], "labels": ["a"]})
    yield "endless list", b"(lp0\ng0\na."


def test_pickles_of_cifar10_create_arrays_only(tmp_path: Path) -> None:
    for name, content in pickles():
        with pytest.raises(DataError) as caught:
            read_batch(write(tmp_path / "test_batch", content))
        assert "\n" not in str(caught.value), name
        assert not (tmp_path / "MARKER").exists(), name


def matlab(**variables: Any) -> bytes:
    written = io.BytesIO()
    scipy.io.savemat(written, variables, do_compression=True)
    return written.getvalue()


def svhn(path: Path) -> None:
    SVHNFiles(path.parent.parent).load(train=False)


HOSTILE: tuple[tuple[str, Callable[[Path], Any], bytes], ...] = (
    ("svhn: objects", svhn, matlab(X=np.array([["a", 1]], dtype=object), y=np.zeros((1, 1)))),
    ("svhn: text", svhn, matlab(X="text", y="text")),
    ("svhn: pickle", svhn, pickle.dumps(Calls())),
    ("affnist: objects", affnist.load_mat, matlab(affNISTdata={"image": np.array([["a", 1]], dtype=object)})),
    ("affnist: text", affnist.load_mat, matlab(affNISTdata="text")),
    ("affnist: pickle", affnist.load_mat, pickle.dumps(Calls())),
    ("affnist: HDF5", affnist.load_mat, b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + b"\x89HDF"),
)


def test_matlab_files_create_arrays_only(tmp_path: Path) -> None:
    (tmp_path / "SVHN").mkdir()
    for name, read, content in HOSTILE:
        with pytest.raises(DataError) as caught:
            read(write(tmp_path / "SVHN" / "test_32x32.mat", content))
        assert "\n" not in str(caught.value), name
        assert not list(tmp_path.rglob("MARKER")), name


def test_members_of_a_zip_are_read_and_never_unpacked(tmp_path: Path) -> None:
    for name in ("../MARKER", f"{tmp_path}/MARKER", "../test.mat"):
        with zipfile.ZipFile(tmp_path / "test.mat.zip", "w") as packed:
            packed.writestr(name, gzip.compress(b"no MATLAB file"))
        with pytest.raises(DataError, match=r"test\.mat\.zip(/test\.mat)? cannot be read"):
            affnist.load(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["test.mat.zip"], name
