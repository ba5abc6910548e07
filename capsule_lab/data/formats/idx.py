"""IDX files, the format of MNIST: unsigned bytes after a header with the sizes (LeCun's page of MNIST).

The header consists of two zeros, the type (8 for unsigned bytes), the number of dimensions, and a big-endian 32-bit
size for each. A name that ends in ``.gz`` means that the whole file is compressed, as published.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import torch
from torch import Tensor

from capsule_lab.data.download import open_content

_UNSIGNED_BYTES = b"\0\0\x08"


def read_idx(path: Path, dimensions: int, largest: int) -> Tensor:
    """Return the numbers in ``path`` as a uint8 tensor with this number of dimensions.

    Raises:
        OSError, EOFError, zlib.error: if the file is not a regular one, or cannot be unpacked.
        ValueError: if its header or its length is wrong, or if it has more than ``largest`` bytes when it is unpacked.
            No more than these are unpacked.
    """
    with open_content(path) as file:
        kind = file.read(len(_UNSIGNED_BYTES) + 1)
        if kind != _UNSIGNED_BYTES + bytes([dimensions]):
            raise ValueError(
                f"it begins with {kind.hex()}, not with that of unsigned bytes in {dimensions} dimensions"
            )
        header = file.read(4 * dimensions)
        sizes = struct.unpack(f">{dimensions}I", header)
        length = math.prod(sizes)
        if len(kind) + len(header) + length > largest:
            raise ValueError(
                f"its header states {length} bytes; a file of this data set has at most {largest}"
            )
        content = bytearray(file.read(length + 1))
    if len(content) != length:
        found = "more" if len(content) > length else str(len(content))
        raise ValueError(f"its header states {length} bytes, but {found} follow")
    return torch.frombuffer(content, dtype=torch.uint8).view(sizes)
