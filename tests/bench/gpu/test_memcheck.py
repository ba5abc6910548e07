"""What compute-sanitizer prints, and how it is started: by a script that stands for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab.bench.gpu import memcheck

CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("output", "finished", "failures"),
    [
        ("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", True, []),
        (
            "========= COMPUTE-SANITIZER\n========= Invalid read of size 4 bytes\n========= ERROR SUMMARY: 1 error",
            True,
            ["compute-sanitizer counts 1 errors: Invalid read of size 4 bytes; ERROR SUMMARY: 1 error"],
        ),
        (
            "========= COMPUTE-SANITIZER\nRuntimeError: no kernel\n",
            False,
            ["the kernels did not come to their end under compute-sanitizer: RuntimeError: no kernel"],
        ),
    ],
    ids=["right", "wrong", "died"],
)
def test_summary(output: str, finished: bool, failures: list[str]) -> None:
    assert memcheck.summary_of(output, finished=finished)["failures"] == failures


def test_a_device_that_is_not_supported_is_no_failure() -> None:
    found = memcheck.summary_of("========= COMPUTE-SANITIZER\n========= Error: Device not supported", finished=False)
    assert "failures" not in found
    assert "does not support this device" in found["note"]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in place of the program; ``$result`` is the file that the program under it would write."""
    file = tmp_path / "compute-sanitizer"
    monkeypatch.setattr(memcheck, "PLACES", (str(file),))
    return file


def run(tool: Path, script: str, limit: float = 20.0) -> dict[str, Any]:
    tool.write_text(f"#!/bin/sh\nfor result; do :; done\n{script}\n")
    tool.chmod(0o755)
    return memcheck.check_memory(CUDA, "full", limit)


def test_it_is_given_the_kernels(tool: Path) -> None:
    script = 'echo "$@" > "$0.txt"; echo $PYTORCH_NO_CUDA_MEMORY_CACHING >> "$0.txt"; touch "$result"'
    found = run(tool, f"{script}; echo '========= ERROR SUMMARY: 0 errors'")
    assert found == {"errors": 0, "failures": []}
    arguments, no_cache = tool.with_name("compute-sanitizer.txt").read_text().splitlines()
    assert arguments.startswith("--tool memcheck ")
    assert "-m capsule_lab.bench.gpu capsule_lab.bench.gpu.memcheck:launch_kernels cuda" in arguments
    assert no_cache == "1"


def test_one_that_hangs_is_a_note(tool: Path) -> None:
    assert "was not ready within" in run(tool, "sleep 60", limit=0.2)["note"]


def test_without_the_tool_there_is_a_note(tool: Path) -> None:
    assert memcheck.check_memory(CUDA, "full", 1.0) == {"note": "not checked: compute-sanitizer is not installed"}


def test_the_kernels_that_it_is_given() -> None:
    assert memcheck.launch_kernels(torch.device("cpu"), "small", 1.0) == {"cases": 12}
