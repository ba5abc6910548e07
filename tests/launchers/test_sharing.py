"""Several runs on one GPU, with short commands as jobs and GPUs that CUDA only seems to show."""

import json
import os
import signal
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import DictConfig

from capsule_lab.commands import compose
from capsule_lab.commands.tables import read_table as read
from capsule_lab.data import loader
from capsule_lab.data.loader import Images
from capsule_lab.errors import DeviceError, InterruptError
from capsule_lab.launchers import Job, gpus, local
from capsule_lab.launchers.gpus import lock_gpus
from capsule_lab.launchers.local import LocalLauncher
from capsule_lab.runs import memory
from capsule_lab.runs.memory import Estimate
from capsule_lab.system import protocol
from capsule_lab.system.environment import hardware
from capsule_lab.tables.expand import expand
from tests.helpers import crash_callbacks
from tests.helpers.commands import NO_PICTURES, ROOT, TINY_CAPSNET, Cli, wait_for
from tests.helpers.messages import one_sentence
from tests.helpers.tables import statuses, write_table

SHARE = 20 * 10**9  # bytes of a GPU for each of four runs
RUN = """
import json, os, sys, time
from pathlib import Path
folder, name = Path(sys.argv[1]), sys.argv[2]
(folder / f"{name}.started").write_text(json.dumps([time.time(), os.environ["CUDA_VISIBLE_DEVICES"]]))
time.sleep(0.3)
(folder / f"{name}.ended").write_text(json.dumps(time.time()))
sys.exit("capsule_lab: no luck" if name == "unlucky" else 0)
"""
WAIT = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: (Path(sys.argv[1], sys.argv[2] + ".saved").touch(), sys.exit(0)))
Path(sys.argv[1], sys.argv[2] + ".started").touch()
time.sleep(max(0, float(os.environ.get("CAPSULE_LAB_DEADLINE", time.time() + 60)) - time.time()))
"""


@pytest.fixture
def config() -> DictConfig:
    return compose("train", ["trainer.accelerator=gpu", "model=capsnet", *TINY_CAPSNET])


@pytest.fixture(autouse=True)
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the GPUs, each with the memory for four shares; a test may change them."""
    names = ["3", "5"]
    monkeypatch.setattr(local, "visible_gpus", lambda: names)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    properties = SimpleNamespace(total_memory=4 * SHARE)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    return names


def jobs_of(folder: Path, config: DictConfig, script: str, *names: str) -> list[Job]:
    return [Job(f"the {name}", ("-c", script, str(folder), name), config, name) for name in names]


def most_at_once(times: list[tuple[float, float]]) -> int:
    """The largest number of intervals with a common moment."""
    most = 0
    for moment, _ in times:
        most = max(most, sum(start <= moment < end for start, end in times))
    return most


def test_as_many_runs_share_each_gpu_as_asked_for(tmp_path: Path, config: DictConfig) -> None:
    names = ["unlucky", *"abcdefghijk"]
    launcher = LocalLauncher(per_gpu=3, logs=str(tmp_path / "logs"))
    ended = launcher.launch(jobs_of(tmp_path, config, RUN, *names))
    assert ended == dict.fromkeys(names) | {"unlucky": "no luck"}
    by_gpu: dict[str, list[tuple[float, float]]] = {"3": [], "5": []}
    for name in names:
        start, gpu = json.loads((tmp_path / f"{name}.started").read_text())
        end = json.loads((tmp_path / f"{name}.ended").read_text())
        by_gpu[gpu].append((start, end))
    assert most_at_once(by_gpu["3"]) == 3
    assert most_at_once(by_gpu["5"]) == 3


def test_runs_know_their_share_of_the_processor_and_of_the_gpu(
    tmp_path: Path, config: DictConfig, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    shown[:] = ["0"]
    show = "import json, os; print(json.dumps({**os.environ}))"
    jobs = jobs_of(tmp_path, config, show, *"abcdef")
    LocalLauncher(per_gpu=4, logs=str(tmp_path)).launch(jobs)
    environment = json.loads((tmp_path / "a.log").read_text())
    expected = {"CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "4", protocol.PER_GPU: "4"}
    assert expected.items() <= environment.items()


@pytest.mark.parametrize(("runs", "expected"), [("1", True), ("4", True), ("5", False)])
def test_a_run_copies_its_images_if_they_fit_into_its_share(
    monkeypatch: pytest.MonkeyPatch, runs: str, expected: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1600, 1600))
    monkeypatch.setenv(protocol.PER_GPU, runs)
    pixels = torch.zeros(100, 1, 1, 1, dtype=torch.uint8)
    images = Images(pixels, torch.zeros(0, dtype=torch.int64))
    assert loader.fits(images, torch.device("cuda")) is expected


@pytest.mark.parametrize(
    ("runs", "expected"), [("1", "1 x a GPU"), ("4", "1 x a GPU, shared by 4 runs")]
)
def test_a_record_says_that_a_gpu_was_shared(
    monkeypatch: pytest.MonkeyPatch, runs: str, expected: str
) -> None:
    """A report compares times of the same hardware only."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setenv(protocol.PER_GPU, runs)
    assert hardware(torch.device("cuda")) == expected


def test_interruption_saves_all_runs_of_a_gpu(
    tmp_path: Path, config: DictConfig, shown: list[str]
) -> None:
    shown[:] = ["0"]
    jobs = jobs_of(tmp_path, config, WAIT, *"abcdef")

    def interrupt() -> None:
        wait_for(lambda: len(list(tmp_path.glob("*.started"))) == 4)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    message = "4 runs were stopped after saving checkpoints; the same command"
    with pytest.raises(InterruptError, match=message):
        LocalLauncher(per_gpu=4, logs=str(tmp_path)).launch(jobs)
    thread.join()
    assert {path.stem for path in tmp_path.glob("*.saved")} == {*"abcd"}
    *locks, fifth = [lock_gpus(["0"], 1, 4) for _ in range(5)]
    assert all(locks), "all places are free again"
    assert fifth is None
    close(*locks)


def close(*locks: dict[str, int] | None) -> None:
    """Give places on GPUs back."""
    for by_gpu in locks:
        for descriptor in (by_gpu or {}).values():
            os.close(descriptor)


@pytest.mark.whole
def test_runs_that_wait_for_a_place_do_not_start_after_the_deadline(
    tmp_path: Path, config: DictConfig, shown: list[str]
) -> None:
    shown[:] = ["0"]
    jobs = jobs_of(tmp_path, config, WAIT, *"abcd")
    launcher = LocalLauncher(per_gpu=2, logs=str(tmp_path))
    assert launcher.launch(jobs, time.time() + 2) == {"a": None, "b": None}


def test_a_gpu_has_places_of_one_size_at_a_time() -> None:
    """Also for the sweeps of other processes, which may start at the same time."""
    quarter = partial(lock_gpus, ["0", "1"], 1, 4)
    first, second, third = quarter(), quarter(), quarter()
    assert [*first, *second, *third] == ["0", "1", "0"], "both GPUs are used"
    assert lock_gpus(["0", "1"], 1) is None
    assert lock_gpus(["0", "1"], 1, 2) is None
    close(second)
    whole = lock_gpus(["0", "1"], 1)
    assert [*whole] == ["1"]
    fourth, fifth = quarter(), quarter()
    assert [*fourth, *fifth] == ["0", "0"]
    assert quarter() is None, "the whole of 1 is used"
    close(first, third, whole, fourth, fifth)


@pytest.mark.parametrize("option", ["per_gpu", "jobs"])
@pytest.mark.parametrize("value", [0, -1, "x", 1.5, True])
def test_wrong_number_of_runs_is_refused(cli: Cli, option: str, value: object) -> None:
    message = rf"^hydra\.launcher\.{option} is {value}; expected 1 or more"
    with pytest.raises(ValueError, match=message):
        LocalLauncher(**{option: value})
    ended = cli("sweep", "table=smoke", "launcher=gpus", f"hydra.launcher.{option}={value}")
    assert f"hydra.launcher.{option} is {value}; expected 1 or more" in one_sentence(ended)


def test_sharing_needs_a_gpu(tmp_path: Path, config: DictConfig, shown: list[str]) -> None:
    shown.clear()
    jobs = jobs_of(tmp_path, config, RUN, "a")
    message = r"per_gpu is 4, but CUDA shows no GPU; expected .* hydra\.launcher\.jobs=4"
    with pytest.raises(DeviceError, match=message):
        LocalLauncher(per_gpu=4, logs=str(tmp_path)).launch(jobs)


def jobs_of_sizes(folder: Path, config: DictConfig) -> list[Job]:
    """A small run, two large ones that differ in their seed, and a large one on the CPU."""
    small = compose("train", ["trainer.accelerator=gpu", "data.batch_size=4"])
    on_cpu = compose("train", ["trainer.accelerator=cpu", "data.batch_size=256"])
    config.data.batch_size = 256
    config.seed = 1
    again = config.copy()
    again.seed = 2
    return [
        *jobs_of(folder, small, RUN, "a"),
        *jobs_of(folder, config, RUN, "b"),
        *jobs_of(folder, again, RUN, "c"),
        *jobs_of(folder, on_cpu, RUN, "d"),
    ]


@pytest.fixture
def estimated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batch sizes of the estimated runs; a large run needs the bytes of the fixture's parameter."""
    batch_sizes: list[int] = []

    def need_of(config: DictConfig, enough: float) -> Estimate | None:
        assert enough == SHARE - memory.OF_CUDA
        batch_sizes.append(config.data.batch_size)
        if config.data.batch_size < 256:
            return None
        return Estimate(0, 0, 0, int(request.param))

    monkeypatch.setattr(memory, "need_of", need_of)
    return batch_sizes


ESTIMATED_ONCE = [4, 256]
"""Runs that differ in their seed are estimated once; those on the CPU are not."""


@pytest.mark.parametrize("estimated", [18.9e9], indirect=True)
def test_runs_that_fit_are_not_refused(
    tmp_path: Path, config: DictConfig, estimated: list[int]
) -> None:
    gpus.check_sharing(jobs_of_sizes(tmp_path, config), ["3", "5"], 4)
    assert estimated == ESTIMATED_ONCE


@pytest.mark.parametrize(
    ("estimated", "needed", "expected"),
    [
        (19.1e9, r"19\.1 GB", "3 or less"),
        (60e9, r"60\.0 GB", "1"),
        (100e9, r"100\.0 GB", "1"),
    ],
    indirect=["estimated"],
)
def test_runs_that_do_not_fit_are_refused_before_one_begins(
    tmp_path: Path, config: DictConfig, estimated: list[int], needed: str, expected: str
) -> None:
    message = (
        r"^hydra\.launcher\.per_gpu is 4, which leaves 20\.0 GB of a GPU to each run, but the b "
        rf"needs about {needed} \(.*\) and 1\.0 for CUDA; expected hydra\.launcher\.per_gpu={expected}$"
    )
    launcher = LocalLauncher(per_gpu=4, logs=str(tmp_path / "logs"))
    with pytest.raises(DeviceError, match=message):
        launcher.launch(jobs_of_sizes(tmp_path, config))
    assert not (tmp_path / "logs").exists()
    assert estimated == ESTIMATED_ONCE


def test_a_sweep_that_does_not_fit_is_one_sentence(
    cli: Cli, tmp_path: Path, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "OF_CUDA", SHARE)
    overrides = ["debug=smoke", *TINY_CAPSNET, "trainer.accelerator=auto"]
    file = write_table(tmp_path, seeds=[0], base=overrides)
    sharing = ["launcher=gpus", "hydra.launcher.per_gpu=4"]
    leaves = "hydra.launcher.per_gpu is 4, which leaves 20.0 GB of a GPU to each run, but "
    for ended in (
        cli("sweep", f"table={file}", *sharing),
        cli("train", "-m", *overrides, "seed=0,1", *sharing),
    ):
        message = one_sentence(ended)
        assert message.startswith(leaves)
        assert message.endswith("expected hydra.launcher.per_gpu=3 or less")
    assert not list(tmp_path.rglob("metrics.csv"))


@pytest.mark.slow
@pytest.mark.integration
def test_a_stopped_sweep_of_a_shared_gpu_continues(
    cli: Cli, tmp_path: Path, shown: list[str]
) -> None:
    shown[:] = ["0"]
    wait = f"+callbacks.wait={{_target_: {crash_callbacks.__name__}.WaitsOnce}}"
    overrides = ["debug=smoke", *TINY_CAPSNET, *NO_PICTURES, "trainer.accelerator=auto", wait]
    file = write_table(tmp_path, seeds=[0, 1], base=overrides)
    command = ("sweep", f"table={file}", "launcher=gpus", "hydra.launcher.per_gpu=2")

    def interrupt() -> None:
        wait_for(lambda: len(list(tmp_path.glob("runs/*/waits"))) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    first = cli(*command)
    thread.join()
    assert first.status == 128 + signal.SIGTERM
    assert "2 runs were stopped after saving checkpoints" in first.err
    second = cli(*command)
    assert (second.status, second.err) == (0, "")
    cells = expand(read(file))
    assert statuses(cells) == ["done", "done"]
    for cell in cells:
        (directory,) = cell.directories
        assert ", continuing " in (directory / "train.log").read_text()
