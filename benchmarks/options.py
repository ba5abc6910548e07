"""Options of the scripts of this package: files in ``conf/`` and overrides ``key=value``; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from capsule_lab.errors import ConfigError, one_line

FOLDER = Path(__file__).parent / "conf"


def load(files: Sequence[str], overrides: Sequence[str], free: Sequence[str]) -> DictConfig:
    """Load files of ``conf/``, later ones over earlier ones, and apply overrides.

    Args:
        files: names without ``.yaml``.
        overrides: ``key=value``.
        free: keys of mappings to which overrides may add keys.

    Raises:
        ConfigError: if an override is malformed or its key does not exist.
    """
    config = cast(
        DictConfig, OmegaConf.merge(*(OmegaConf.load(FOLDER / f"{file}.yaml") for file in files))
    )
    OmegaConf.set_struct(config, True)
    for key in free:
        OmegaConf.set_struct(config[key], False)
    try:
        return cast(DictConfig, OmegaConf.merge(config, OmegaConf.from_dotlist(list(overrides))))
    except (OmegaConfBaseException, ValueError) as error:
        keys = f"keys of benchmarks/conf/{files[-1]}.yaml"
        raise ConfigError(f"{one_line(error)}; expected key=value with {keys}") from error
