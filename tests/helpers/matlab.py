"""Files in MATLAB's format 5, the format of SVHN and affNIST."""

import io
from typing import Any

import scipy.io


def matlab(**variables: Any) -> bytes:
    written = io.BytesIO()
    scipy.io.savemat(written, variables, do_compression=True)
    return written.getvalue()
