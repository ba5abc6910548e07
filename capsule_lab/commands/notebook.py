"""Training in a notebook: ``run = capsule_lab.train("quickstart", "routing=uniform")``."""

from __future__ import annotations

from capsule_lab import runs
from capsule_lab.commands import compose
from capsule_lab.commands import train as training
from capsule_lab.config.compose import check_words, chosen_options


def train(*overrides: str) -> runs.Run:
    """Train as ``capsule-lab train`` does, and return the run with its best weights.

    ``run.figure("curves")`` draws a figure of it, ``run.analyse("votes")`` looks inside the network, and
    ``run.explore()`` returns its page; see ``runs.Run``. A call with ``"train.resume=true"`` among the overrides
    continues an interrupted run, or opens the finished one.

    Args:
        *overrides: as on the command line, such as ``"routing=uniform"``. A word without ``=`` is an experiment:
            ``"quickstart"`` is ``"experiment=quickstart"``.

    Raises:
        ConfigError, DataError, RunError: as ``capsule_lab.commands.train.train``.
    """
    check_words(overrides)
    given = [_override(word) for word in overrides]
    config = compose("train", given)
    name = "{model}-{data}".format_map(chosen_options(training.main, given))
    with runs.lock.train_lock(config):
        directory = training.directory_for(config, name)
        if not (config.train.resume and training.is_finished(directory, config)):
            training.train(config, directory)
    return runs.open(directory)


def _override(word: str) -> str:
    is_override = "=" in word or word.startswith("~")
    return word if is_override else f"experiment={word}"
