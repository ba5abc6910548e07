"""Write the page of the explorer: ``python -m capsule_lab.explorer ckpt=runs/… out=explorer.html``."""

from __future__ import annotations

from omegaconf import DictConfig, ListConfig, OmegaConf
from rich.console import Console

from capsule_lab.command import command
from capsule_lab.errors import ConfigError
from capsule_lab.explorer import show
from capsule_lab.system.files import expanded


@command("explorer")
def main(config: DictConfig) -> None:
    """Write the page for ``config.ckpt`` and the networks ``config.beside`` it, and print its path and size."""
    if OmegaConf.is_missing(config, "ckpt") or config.ckpt is None:
        raise ConfigError(
            "ckpt is missing; expected ckpt=<a run, a file or the name of ready weights>"
        )
    from capsule_lab.config import build  # torch and Lightning

    build.quiet_lightning_logs()
    beside = (
        config.beside
        if isinstance(config.beside, ListConfig)
        else [config.beside]
        if config.beside
        else []
    )
    out = expanded(config.out)
    show(config.ckpt, *beside, precision=config.precision, trust=config.trust).save(out)
    text = f"written to {out} ({out.stat().st_size / 1e6:.1f} MB); open it in a browser"
    Console(highlight=False).print(text, soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
