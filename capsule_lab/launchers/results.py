"""What a run of a sweep came to, in a form that every process can read. Hydra leaves this module alone: underscore."""

from __future__ import annotations

import sys
import traceback

from hydra.core.utils import JobReturn, JobStatus


def plain(result: JobReturn, overrides: list[str]) -> JobReturn:
    """A ``JobReturn`` that every process can read: of an error, what it says."""
    from capsule_lab.config import user_message

    if result.status is not JobStatus.FAILED:
        return JobReturn(overrides=overrides, status=result.status, _return_value=result.return_value)
    error = result._return_value
    sentence = user_message(error)
    if sentence is None:
        traceback.print_exception(error)
    else:
        sys.stderr.write(f"capsule_lab: {sentence}\n")
    return failed(overrides, sentence or f"{type(error).__name__}: {error}")


def failed(overrides: list[str], sentence: str) -> JobReturn:
    """A run that ended with ``sentence``."""
    from capsule_lab.errors import RunError

    return JobReturn(overrides=overrides, status=JobStatus.FAILED, _return_value=RunError(sentence))
