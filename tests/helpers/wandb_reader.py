import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def read_offline(directory: Path) -> dict[str, Any]:
    """State, config, tags and last metrics of the only run logged in ``directory``.

    Beside them, its first record as ``run``, and all that was logged, in order, as ``history``.
    """
    (folder,) = (directory / "wandb").glob("offline-run-*")
    records = [json.loads(line) for line in _inspect(folder).splitlines()]
    run = next(record["run"] for record in records if record["type"] == "run")
    history = [record["history"]["item"] for record in records if record["type"] == "history"]
    return {**json.loads(_inspect(folder, "--summary")), "run": run, "history": history}


def _inspect(folder: Path, *more: str) -> str:
    words = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", *more, str(folder)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout
