"""Files in MATLAB's format 5, the format of SVHN and affNIST."""

import io
from typing import Any

import scipy.io


def matlab(**variables: Any) -> bytes:
    """A file as ``save -v7`` writes it."""
    return _saved(variables, compressed=True)


def matlab_6(**variables: Any) -> bytes:
    """A file as ``save -v6`` writes it, without compression."""
    return _saved(variables, compressed=False)


def _saved(variables: dict[str, Any], *, compressed: bool) -> bytes:
    written = io.BytesIO()
    scipy.io.savemat(written, variables, do_compression=compressed)
    return written.getvalue()
