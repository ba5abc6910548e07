"""Write a trained network for other programs: ``python -m capsule_lab.export ckpt=runs/… to=onnx out=a.onnx``."""

from __future__ import annotations

import json

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from capsule_lab import runs
from capsule_lab.command import command
from capsule_lab.config.compose import check_effect
from capsule_lab.errors import ConfigError
from capsule_lab.system.files import expanded


@command("export")
def main(config: DictConfig) -> None:
    """Export ``config.ckpt`` and print the file; for safetensors also its entry for the index of ready weights."""
    for name, expected in (
        ("ckpt", "a run, a file or the name of ready weights"),
        ("out", "the file to write"),
    ):
        if OmegaConf.is_missing(config, name) or config[name] is None:
            raise ConfigError(f"{name} is missing; expected {name}=<{expected}>")
    if config.to == "safetensors":
        check_effect(
            config, "export", "with to=safetensors, which has all weights", ["reconstruction"]
        )
    from capsule_lab.config import build
    from capsule_lab.deploy import export  # torch and Lightning

    build.quiet_lightning_logs()
    run = runs.open(config.ckpt, trust=config.trust)
    out = expanded(config.out)
    difference = export.export(run, config.to, out, reconstruction=config.reconstruction)
    console = Console(highlight=False)
    size = out.stat().st_size / 1e6
    if config.to == "safetensors":
        entry = json.dumps({out.stem: export.index_entry(run, out)}, indent=2, ensure_ascii=False)
        console.print(
            f"written to {out} ({size:.2f} MB); its entry in the index:",
            soft_wrap=True,
            markup=False,
        )
        console.print(entry, soft_wrap=True, markup=False)
        return
    batches = ", ".join(map(str, export.BATCHES))
    text = f"written to {out} ({size:.2f} MB); largest difference {difference:.1e} on batches of {batches} images"
    console.print(text, soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
