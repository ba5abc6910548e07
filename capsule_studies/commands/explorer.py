"""Write the page of the explorer: ``capsule-lab explorer ckpt=runs/… out=explorer.html``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from omegaconf import DictConfig
from pydantic import Field
from rich.console import Console

from capsule_lab import runs
from capsule_lab.commands.declare import command
from capsule_lab.commands.figures import open_loggers
from capsule_lab.config.declaration import Group, Options, Trusted, Weights
from capsule_lab.errors import ConfigError
from capsule_lab.system.files import expanded
from capsule_studies.explorer import show


class ExplorerOptions(Options):
    """Options of ``explorer``."""

    ckpt: Weights
    """A run directory (its best checkpoint), a .ckpt or .safetensors file, or the name of ready weights;
    a network with capsules for grey or colour pictures."""
    beside: list[str] | str | None = None
    """Another network or several: an EMCaps for the view of EM routing, a CNN for the comparison."""
    out: str = "explorer.html"
    """The page, one file that needs no network."""
    precision: Literal["f16", "f32"] = "f16"
    """f32: twice the size."""
    trust: Trusted = Field([])
    """Your own packages that the checkpoints may name, such as the one with your routing;
    safetensors refuses files that must be unpickled."""
    logger: Group | None


def check_logger(config: DictConfig) -> None:
    """Raise a ``ConfigError`` if a logger cannot show a web page."""
    loggers = config.get("logger")
    if loggers and "wandb" not in loggers:
        names = ", ".join(map(str, loggers))
        raise ConfigError(f"logger has {names}, which show no web page; expected logger=wandb")


@command("explorer", ExplorerOptions, check=check_logger, first="ckpt")
def main(options: ExplorerOptions) -> None:
    """Write the page for ``ckpt`` and the networks ``beside`` it, and print its path and size."""
    from capsule_lab.config import build  # torch and Lightning

    build.quiet_lightning_logs()
    names = [options.beside] if isinstance(options.beside, str) else options.beside or []
    out = expanded(options.out)
    show(options.ckpt, *names, precision=options.precision, trust=options.trust or ()).save(out)
    if options.logger:
        _log_page(out, options)
    text = f"written to {out} ({out.stat().st_size / 1e6:.1f} MB); open it in a browser"
    Console(highlight=False).print(text, soft_wrap=True, markup=False)


def _log_page(page: Path, options: ExplorerOptions) -> None:
    """Show the page in the dashboard of the run of ``ckpt``, as an HTML panel."""
    import wandb
    from lightning.pytorch.loggers import WandbLogger

    from capsule_lab import callbacks

    run = runs.open(options.ckpt, trust=options.trust)
    assert options.logger is not None
    loggers = open_loggers(options.logger, run)
    failed = True
    try:
        for logger in loggers:
            if not isinstance(logger, WandbLogger):
                continue
            logger.experiment.log({"explorer": wandb.Html(str(page), inject=False)})
        failed = False
    finally:
        callbacks.close_loggers(loggers, failed=failed)


if __name__ == "__main__":
    main()
