"""Small files in CIFAR10's format, valid and broken ones."""

import io
import tarfile

import numpy as np
import torch

from capsule_lab.data.cifar10 import ARCHIVE
from capsule_lab.data.loader import Images

IMAGES = 12  # in each file
RANDOM = np.random.default_rng(0)
TRAINING_NAMES = [f"data_batch_{number}" for number in range(1, 6)]
BATCHES: dict[str, tuple[np.ndarray, list[int]]] = {}
for file in (*TRAINING_NAMES, "test_batch"):
    pixels_of_file = RANDOM.integers(0, 256, (IMAGES, 3072), dtype=np.uint8)
    labels_of_file = RANDOM.integers(0, 10, IMAGES)
    BATCHES[file] = (pixels_of_file, labels_of_file.tolist())


def byte(number: int) -> bytes:
    return bytes([number])


def text(written: bytes) -> bytes:
    length = byte(len(written))
    return b"U" + length + written


def array(values: np.ndarray) -> bytes:
    """An array as Python 2 pickles it: the constructor, then the state."""
    sizes = [b"M" + size.to_bytes(2, "little") for size in values.shape]
    parts = [
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85",
        text(b"b"),
        b"\x87R(K\x01(",
        *sizes,
        b"tcnumpy\ndtype\n",
        text(b"u1"),
        b"K\x00K\x01\x87R(K\x03",
        text(b"|"),
        b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T",
        values.nbytes.to_bytes(4, "little"),
        values.tobytes(),
        b"tb",
    ]
    return b"".join(parts)


def pickled(pixels: bytes, labels: list[int], *, key: bytes = b"labels") -> bytes:
    """A batch in protocol 2, entry by entry as in the real files."""
    numbers = []
    names = []
    for number, label in enumerate(labels):
        numbers.append(b"K" + byte(label))
        name = b"leptodactylus_s_%06d.png" % number
        names.append(text(name))
    parts = [
        b"\x80\x02}(",
        text(b"batch_label"),
        text(b"training batch 1 of 5"),
        text(key),
        b"](",
        *numbers,
        b"e",
        text(b"data"),
        pixels,
        text(b"filenames"),
        b"](",
        *names,
        b"eu.",
    ]
    return b"".join(parts)


def stored(*batches: tuple[np.ndarray, list[int]]) -> Images:
    """The images of the data module for these batches."""
    pixels, labels = zip(*batches, strict=True)
    all_pixels = torch.from_numpy(np.concatenate(pixels))
    all_labels = torch.from_numpy(np.concatenate(labels))
    return Images(all_pixels.view(-1, 3, 32, 32), all_labels)


CONTENTS = {name: pickled(array(pixels), labels) for name, (pixels, labels) in BATCHES.items()}
TRAINING = stored(*[BATCHES[name] for name in TRAINING_NAMES])
TEST = stored(BATCHES["test_batch"])


def downloads(contents: dict[str, bytes]) -> dict[str, bytes]:
    """The files of the server: an archive of ``contents``."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            file = io.BytesIO(content)
            archive.addfile(member, file)
    return {ARCHIVE: written.getvalue()}


PIXELS, _ = BATCHES["test_batch"]
WHOLE = array(PIXELS)
ONE_CHANNEL = array(PIXELS[:, :1024])
EQUAL_LABELS = [0] * IMAGES
BROKEN = {
    "truncated": (
        CONTENTS["test_batch"][:-200],
        r"cannot be read \(.+\); expected a file of CIFAR10",
    ),
    "another file": (b"<html>a login page</html>", r"cannot be read \(.+\)"),
    "no labels": (
        pickled(WHOLE, EQUAL_LABELS, key=b"etikett"),
        r"cannot be read \(it has batch_label, etikett, data, filenames, not data and labels\)",
    ),
    "label of CIFAR100": (
        pickled(WHOLE, [*range(10), 0, 10]),
        "it has label 10; expected 0 to 9",
    ),
    "too few labels": (
        pickled(WHOLE, [0] * 11),
        "holds 12 images and 11 labels; expected as many labels as images",
    ),
    "grey": (
        pickled(ONE_CHANNEL, EQUAL_LABELS),
        r"12288 bytes of shape \(12, 1024\)",
    ),
}
