"""Hostile files of data sets run no code and write nothing outside of their folder."""

import io
import os
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from capsule_lab.data import cifar10
from capsule_lab.data.cifar10 import CIFAR10Files
from capsule_lab.data.download import fetch
from capsule_lab.data.formats import affnist
from capsule_lab.data.formats.binary_matrix import read_matrix
from capsule_lab.data.formats.cifar10 import read_batch
from capsule_lab.data.formats.pictures import open_picture
from capsule_lab.data.svhn import SVHNFiles
from capsule_lab.errors import DataError
from tests.helpers.cifar10_files import CONTENTS, array, pickled
from tests.helpers.matlab import matlab

FOLDER = CIFAR10Files.path
FIRST = f"{FOLDER}/data_batch_1"


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


class Member(NamedTuple):
    """A member of an archive; ``HERE`` in its name and its link is the working directory of the test."""

    name: str
    kind: bytes
    link: str = ""


# each would write elsewhere if it were unpacked as requested
MEMBERS = [
    Member("../MARKER", tarfile.REGTYPE),
    Member(f"{FOLDER}/../../MARKER", tarfile.REGTYPE),
    Member("HERE/MARKER", tarfile.REGTYPE),
    Member(FIRST, tarfile.SYMTYPE, "HERE/SECRET"),
    Member(FIRST, tarfile.SYMTYPE, "../../../SECRET"),
    Member(FIRST, tarfile.LNKTYPE, "../SECRET"),
    Member(FOLDER, tarfile.SYMTYPE, "HERE"),
    Member(FIRST, tarfile.CHRTYPE),
    Member(FIRST, tarfile.FIFOTYPE),
    Member(FIRST, tarfile.DIRTYPE),
]


def archive(member: Member) -> bytes:
    """CIFAR10's archive with a hostile first member, which replaces the one with the same name."""
    here = str(Path.cwd())
    hostile = tarfile.TarInfo(member.name.replace("HERE", here))
    hostile.type = member.kind
    hostile.linkname = member.link.replace("HERE", here)
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as file:
        file.addfile(hostile, io.BytesIO(b""))
        for other, content in CONTENTS.items():
            info = tarfile.TarInfo(f"{FOLDER}/{other}")
            info.size = len(content)
            if info.name != hostile.name:
                file.addfile(info, io.BytesIO(content))
    return written.getvalue()


@pytest.mark.parametrize("member", MEMBERS, ids=str)
def test_archive_writes_only_into_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: Member
) -> None:
    secret = tmp_path / "SECRET"
    secret.write_text("another file of the user")
    source = CIFAR10Files(tmp_path / "data")

    def download_file(name: str, checksum: str, servers: Any, folder: Path) -> Path:
        return write(folder / "archive", archive(member))

    monkeypatch.setattr(cifar10, "download_file", download_file)
    fetch(source.folder, source.download)
    assert sorted(os.listdir(tmp_path)) == ["SECRET", "data"]
    assert secret.read_text() == "another file of the user"
    for path in source.folder.glob("*"):
        assert path.is_dir() or path.read_bytes() in CONTENTS.values(), path.name


class Calls:
    """An object whose unpickling calls ``os.mkdir``."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("MARKER",)


PIXELS = array(np.zeros((1, 3072), np.uint8))
PICKLES = {
    "call": pickle.dumps({"data": Calls(), "labels": []}),
    "call of protocol 0": b"cos\nmkdir\n(S'MARKER'\ntR.",
    "instance by name": b"(S'MARKER'\nios\nmkdir\n.",
    "eval": b'cbuiltins\neval\n(S\'open("MARKER", "w")\'\ntR.',
    "attribute": b"cbuiltins\ngetattr\n(cos\nS'mkdir'\ntR.",
    "call in an array": pickled(pickle.dumps(Calls(), 2)[2:-1], [0]),
    "numpy's own loader": b"cnumpy\nload\n(S'MARKER'\ntR.",
    "numpy's scalars": b"cnumpy.core.multiarray\nscalar\n(S'MARKER'\ntR.",
    "huge array": b"cnumpy\nndarray\n((L1000000000000L\nttR.",
    "array of objects": pickled(PIXELS.replace(b"U\x02u1", b"U\x02O8"), [0]),
    "number": pickle.dumps(5),
    "labels of text": pickle.dumps({"data": [[0]], "labels": ["a"]}),
    "endless list": b"(lp0\ng0\na.",
}


OBJECTS = np.array([["a", 1]], dtype=object)
SVHN = {
    "objects": matlab(X=OBJECTS, y=np.zeros((1, 1))),
    "text": matlab(X="text", y="text"),
    "pickle": PICKLES["call"],
}
AFFNIST = {"objects": matlab(affNISTdata={"image": OBJECTS}), "pickle": PICKLES["call"]}


def read_svhn(path: Path) -> Any:
    return SVHNFiles(path.parent.parent).load(train=False)


@pytest.mark.parametrize(
    ("read", "contents"),
    [(read_batch, PICKLES), (read_svhn, SVHN), (affnist.load_mat, AFFNIST)],
    ids=["CIFAR10", "SVHN", "affNIST"],
)
def test_hostile_file_is_refused_and_runs_nothing(
    tmp_path: Path, read: Any, contents: dict[str, bytes]
) -> None:
    (tmp_path / "SVHN").mkdir()
    for name, content in contents.items():
        file = write(tmp_path / "SVHN" / "test_32x32.mat", content)
        with pytest.raises(DataError) as caught:
            read(file)
        assert "\n" not in str(caught.value), name
        assert not list(tmp_path.rglob("MARKER")), name


def test_zip_is_never_unpacked_to_disk(tmp_path: Path) -> None:
    for name in ("../MARKER", f"{tmp_path}/MARKER", "../test.mat"):
        with zipfile.ZipFile(tmp_path / "test.mat.zip", "w") as packed:
            packed.writestr(name, b"no MATLAB file")
        with pytest.raises(DataError, match=r"test\.mat\.zip(/test\.mat)? cannot be read"):
            affnist.load(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["test.mat.zip"], name


READERS = {
    "data_batch_1": read_batch,
    "test.mat": affnist.load_mat,
    "test_32x32.mat": read_svhn,
    "norb.mat": read_matrix,
    "norb.mat.gz": read_matrix,
    "picture.png": open_picture,
}


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [os.mkfifo, link_to_device], ids=["FIFO", "device"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file_is_refused_without_waiting(
    tmp_path: Path, name: str, make: Any
) -> None:
    (tmp_path / "SVHN").mkdir()
    file = tmp_path / "SVHN" / name
    make(file)
    with pytest.raises(DataError, match=r"cannot be read.*not a regular file"):
        READERS[name](file)
