"""Time training steps: ``python -m capsule_lab.bench`` (forward, backward, optimiser; no data loading)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from capsule_lab.command import ConfigError, command, conf_dir


@command("bench")
def main(config: DictConfig) -> None:
    """Time every case of ``config``, show a table, write ``config.out``."""
    from capsule_lab import runs, surroundings, timing

    if config.rounds < 1 or config.steps < 1:
        raise ConfigError(f"rounds is {config.rounds} and steps {config.steps}; expected 1 or more")
    models = [file.stem for file in (conf_dir() / "model").glob("*.yaml")]
    for option, given, allowed in (
        ("models", config.models, models), ("precisions", config.precisions, ["bf16-mixed", "32-true"])
    ):  # fmt: skip
        if not set(given) <= set(allowed):
            raise ConfigError(f"{option} is {list(given)}; expected some of {', '.join(sorted(allowed))}")
    if config.out:
        runs.check_writable(Path(str(config.out)))  # before all the work
    rows = timing.measure(config)
    hardware = surroundings.hardware(timing.device_named(config.device))
    Console(highlight=False).print(table(rows, hardware))
    if config.out:
        report = {"rows": rows, "hardware": hardware, "bench": runs.plain(config), **surroundings.of_this_process()}
        runs.write_json(Path(config.out), report)


def table(rows: list[dict[str, Any]], hardware: str) -> Table:
    """The rows for people."""
    title = f"training step, batch {rows[0]['batch_size']}, {hardware}"
    shown = Table(title=title, caption=f"ratios to the first row, {rows[0]['network']} {rows[0]['precision']}")
    for name in ("network", "precision", "images/s", "ms/step", "ratio", "peak memory", "share"):
        shown.add_column(name, justify="left" if name in ("network", "precision") else "right")
    for row in rows:
        low, middle, high = (1000 * row[f"seconds_{name}"] for name in ("fastest", "median", "slowest"))  # ms
        shown.add_row(
            row["network"], row["precision"], f"{row['images_per_second']:.0f}",
            f"{middle:.0f} ({low:.0f}-{high:.0f})", f"{row['speedup']:.2f}x",
            f"{row['peak_memory_bytes'] / 1e9:.2f} GB", f"{row['memory_share']:.0%}",
        )  # fmt: skip
    return shown


if __name__ == "__main__":
    main()
