"""Write a trained network for other programs and people: ``capsule-lab export ckpt=runs/… to=onnx out=a.onnx``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from rich.console import Console

from capsule_lab import runs
from capsule_lab.commands.declare import command
from capsule_lab.config.check_options import check_effect
from capsule_lab.config.declaration import Expected, Options, Trusted, Weights
from capsule_lab.errors import ConfigError
from capsule_lab.system.files import expanded


class ExportOptions(Options):
    """Options of ``export``."""

    ckpt: Weights
    """A run directory (its best checkpoint), a .ckpt or .safetensors file, the name of ready weights, or last: the
    latest finished run."""
    to: Literal["onnx", "torch_export", "safetensors", "hub"] = "onnx"
    """torch_export: for torch.export.load; safetensors: weights and configuration for capsule_lab.load;
    hub: a folder with these and a model card, to publish."""
    out: Annotated[str, Expected("the file to write")]
    """The file to write; hub: the folder."""
    reconstruction: bool = False
    """onnx, torch_export: also return the decoder's image of the predicted class."""
    trust: Trusted = Field([])
    """Your own packages that the checkpoint may name, such as the one with your routing;
    safetensors refuses files that must be unpickled."""


@command("export", ExportOptions, first="ckpt")
def main(options: ExportOptions) -> None:
    """Export ``ckpt`` and print the file; for safetensors also its entry for the index of ready weights."""
    if options.to in ("safetensors", "hub"):
        where = f"with to={options.to}, which has all weights"
        check_effect(options, where, ["reconstruction"])
    if options.to == "safetensors" and Path(options.out).suffix != ".safetensors":
        raise ConfigError(
            f"out is {options.out}; expected a name that ends in .safetensors, by which the file is read"
        )
    from capsule_lab.config import build
    from capsule_lab.deploy import export, hub  # torch and Lightning

    build.quiet_lightning_logs()
    run = runs.open(options.ckpt, trust=options.trust)
    out = expanded(options.out)
    if options.to == "hub":
        hub.write_folder(run, out)
        text = f"written to {out}: {', '.join(hub.FILES)}; read the card before you publish it"
        Console(highlight=False).print(text, soft_wrap=True, markup=False)
        return
    difference = export.export(run, options.to, out, reconstruction=options.reconstruction)
    console = Console(highlight=False)
    size = out.stat().st_size / 1e6
    if options.to == "safetensors":
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
