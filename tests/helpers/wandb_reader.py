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
    run, history = None, []
    for line in _inspect(folder).splitlines():
        record = json.loads(line)
        if record["type"] == "run" and run is None:
            run = record["run"]
        elif record["type"] == "history":
            history.append(record["history"]["item"])
    assert run is not None
    return {**json.loads(_inspect(folder, "--summary")), "run": run, "history": history}


def _inspect(folder: Path, *more: str) -> str:
    words = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", *more, str(folder)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout
