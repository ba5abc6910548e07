from pathlib import Path

import pytest
import torch

from capsule_lab.system import environment

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: {family}
model\t\t: {model}
model name\t: AMD EPYC
flags\t\t: fpu {flags}

processor\t: 1
model name\t: another
"""


def test_hardware_distinguishes_processors_with_the_same_name(tmp_path: Path) -> None:
    for family, model, flags, text in (
        (25, 1, "avx2", "AMD EPYC (family 25 model 1, AVX2)"),
        (
            6,
            143,
            "avx2 avx512f amx_tile amx_bf16",
            "AMD EPYC (family 6 model 143, AVX-512, bfloat16)",
        ),
    ):
        (tmp_path / "cpuinfo").write_text(CPUINFO.format(family=family, model=model, flags=flags))
        assert environment._processor(tmp_path / "cpuinfo") == text
    assert environment._processor(tmp_path / "none"), "a name also without /proc/cpuinfo"
    threads = torch.get_num_threads()
    hardware = environment.hardware(torch.device("cpu"), 2)
    assert hardware.endswith(f" cores, 2 x {threads} threads")


def test_commit_is_read_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    first = environment.commit()
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("called again"))
    assert environment.commit() == environment.of_this_process()["commit"] == first


def test_a_notebook_continues_in_the_same_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/lib/ipykernel_launcher.py", "-f", "kernel.json"])
    assert environment.command_line("train.resume=true") == "the same cell with train.resume=true"
