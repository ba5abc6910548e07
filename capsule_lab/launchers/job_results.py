"""Results of jobs in a form that can be sent from one process to another."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from capsule_lab.config.compose import user_message
from capsule_lab.errors import RunError
from capsule_lab.launchers.hydra_internals import JobReturn, error_of, failed


def portable(result: JobReturn, overrides: Sequence[str]) -> JobReturn:
    """A job's result without what cannot be pickled; of an exception, which is printed, the message."""
    error = error_of(result)
    if error is None:
        return JobReturn(overrides=list(overrides), status=result.status, _return_value=result.return_value)
    message = user_message(error)
    if message is None:
        traceback.print_exception(error)
    else:
        sys.stderr.write(f"capsule_lab: {message}\n")
    return failed(overrides, RunError(message or f"{type(error).__name__}: {error}"))
