"""Several runs on one GPU, with short commands as jobs and GPUs that CUDA only seems to show."""

import json
import os
import signal
import tempfile
import threading
import time
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
from tests.helpers.tables import write_table

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
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=4 * SHARE)
    )
    return names


def jobs_of(folder: Path, config: DictConfig, script: str, *names: str) -> list[Job]:
    return [Job(f"the {name}", ("-c", script, str(folder), name), config, name) for name in names]


def most_at_once(times: list[tuple[float, float]]) -> int:
    """The largest number of intervals with a common moment."""
    return max(sum(start <= moment < end for start, end in times) for moment, _ in times)


def test_as_many_runs_share_each_gpu_as_asked_for(tmp_path: Path, config: DictConfig) -> None:
    names = ["unlucky", *"abcdefghijk"]
    launcher = LocalLauncher(per_gpu=3, logs=str(tmp_path / "logs"))
    ended = launcher.launch(jobs_of(tmp_path, config, RUN, *names))
    assert ended == {name: "no luck" if name == "unlucky" else None for name in names}
    by_gpu: dict[str, list[tuple[float, float]]] = {"3": [], "5": []}
    for name in names:
        start, gpu = json.loads((tmp_path / f"{name}.started").read_text())
        by_gpu[gpu].append((start, json.loads((tmp_path / f"{name}.ended").read_text())))
    assert [most_at_once(times) for times in by_gpu.values()] == [3, 3]


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
    assert {name: environment[name] for name in expected} == expected


def test_a_run_copies_its_images_if_they_fit_into_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1600, 1600))
    images = Images(torch.zeros(100, 1, 1, 1, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))
    for runs, expected in ((1, True), (4, True), (5, False)):
        monkeypatch.setenv(protocol.PER_GPU, str(runs))
        assert loader.fits(images, torch.device("cuda")) is expected


def test_a_record_says_that_a_gpu_was_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report compares times of the same hardware only."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    for runs, expected in (("1", "1 x a GPU"), ("4", "1 x a GPU, shared by 4 runs")):
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
    with pytest.raises(
        InterruptError, match="4 runs were stopped after saving checkpoints; the same command"
    ):
        LocalLauncher(per_gpu=4, logs=str(tmp_path)).launch(jobs)
    thread.join()
    assert sorted(path.name for path in tmp_path.glob("*.saved")) == [
        f"{name}.saved" for name in "abcd"
    ]
    locks = [lock_gpus(["0"], 1, 4) for _ in range(5)]
    assert [*map(bool, locks)] == [True] * 4 + [False], "all places are free again"
    for descriptors in locks[:4]:
        os.close((descriptors or {})["0"])


def test_runs_that_wait_for_a_place_do_not_start_after_the_deadline(
    tmp_path: Path, config: DictConfig, shown: list[str]
) -> None:
    shown[:] = ["0"]
    jobs = jobs_of(tmp_path, config, WAIT, *"abcd")
    launcher = LocalLauncher(per_gpu=2, logs=str(tmp_path))
    assert launcher.launch(jobs, time.time() + 2) == {"a": None, "b": None}


def test_a_gpu_has_places_of_one_size_at_a_time() -> None:
    """Also for the sweeps of other processes, which may start at the same time."""
    quarters = [lock_gpus(["0", "1"], 1, 4) or {} for _ in range(3)]
    assert [list(locks) for locks in quarters] == [["0"], ["1"], ["0"]], "both GPUs are used"
    assert lock_gpus(["0", "1"], 1) is None
    assert lock_gpus(["0", "1"], 1, 2) is None
    os.close(quarters[1]["1"])
    whole = lock_gpus(["0", "1"], 1) or {}
    assert list(whole) == ["1"]
    more = [lock_gpus(["0", "1"], 1, 4) for _ in range(3)]
    assert [locks and list(locks) for locks in more] == [["0"], ["0"], None], (
        "the whole of 1 is used"
    )
    for locks in (quarters[0], quarters[2], whole, *more[:2]):
        for descriptor in (locks or {}).values():
            os.close(descriptor)


@pytest.mark.parametrize("option", ["per_gpu", "jobs"])
@pytest.mark.parametrize("value", [0, -1, "x", 1.5, True])
def test_wrong_number_of_runs_is_refused(cli: Cli, option: str, value: object) -> None:
    with pytest.raises(
        ValueError, match=rf"^hydra\.launcher\.{option} is {value}; expected 1 or more"
    ):
        LocalLauncher(**{option: value})
    ended = cli("sweep", "table=smoke", "launcher=gpus", f"hydra.launcher.{option}={value}")
    assert f"hydra.launcher.{option} is {value}; expected 1 or more" in one_sentence(ended)


def test_sharing_needs_a_gpu(tmp_path: Path, config: DictConfig, shown: list[str]) -> None:
    shown.clear()
    with pytest.raises(
        DeviceError,
        match=r"per_gpu is 4, but CUDA shows no GPU; expected .* hydra\.launcher\.jobs=4",
    ):
        LocalLauncher(per_gpu=4, logs=str(tmp_path)).launch(jobs_of(tmp_path, config, RUN, "a"))


@pytest.mark.parametrize(
    ("activations", "message"),
    [
        (18.9e9, None),
        (
            19.1e9,
            r"needs about 19\.1 GB \(.*\) and 1\.0 for CUDA; expected hydra\.launcher\.per_gpu=3 or less$",
        ),
        (
            60e9,
            r"needs about 60\.0 GB \(.*\) and 1\.0 for CUDA; expected hydra\.launcher\.per_gpu=1$",
        ),
        (
            100e9,
            r"needs about 100\.0 GB \(.*\) and 1\.0 for CUDA; expected hydra\.launcher\.per_gpu=1$",
        ),
    ],
)
def test_runs_that_do_not_fit_are_refused_before_one_begins(
    tmp_path: Path,
    config: DictConfig,
    monkeypatch: pytest.MonkeyPatch,
    activations: float,
    message: str | None,
) -> None:
    """Runs that differ in their seed are estimated once; those on the CPU are not."""
    estimated: list[int] = []

    def need_of(config: DictConfig, enough: float) -> Estimate | None:
        estimated.append(config.data.batch_size)
        assert enough == SHARE - memory.OF_CUDA
        return Estimate(0, 0, 0, int(activations)) if config.data.batch_size == 256 else None

    monkeypatch.setattr(memory, "need_of", need_of)
    small = compose("train", ["trainer.accelerator=gpu", "data.batch_size=4"])
    on_cpu = compose("train", ["trainer.accelerator=cpu", "data.batch_size=256"])
    configs = [small, config, config.copy(), on_cpu]
    config.data.batch_size = configs[2].data.batch_size = 256
    config.seed, configs[2].seed = 1, 2
    jobs = [
        jobs_of(tmp_path, each, RUN, name)[0] for name, each in zip("abcd", configs, strict=True)
    ]
    launcher = LocalLauncher(per_gpu=4, logs=str(tmp_path / "logs"))
    if message is None:
        gpus.check_sharing(jobs, ["3", "5"], 4)
    else:
        start = r"^hydra\.launcher\.per_gpu is 4, which leaves 20\.0 GB of a GPU to each run, but the b "
        with pytest.raises(DeviceError, match=start + message):
            launcher.launch(jobs)
        assert not (tmp_path / "logs").exists()
    assert estimated == [4, 256]


def test_a_sweep_that_does_not_fit_is_one_sentence(
    cli: Cli, tmp_path: Path, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "OF_CUDA", SHARE)
    overrides = ["debug=smoke", *TINY_CAPSNET, "trainer.accelerator=auto"]
    file = write_table(tmp_path, seeds=[0], base=overrides)
    sharing = ["launcher=gpus", "hydra.launcher.per_gpu=4"]
    for ended in (
        cli("sweep", f"table={file}", *sharing),
        cli("train", "-m", *overrides, "seed=0,1", *sharing),
    ):
        message = one_sentence(ended)
        assert message.startswith(
            "hydra.launcher.per_gpu is 4, which leaves 20.0 GB of a GPU to each run, but "
        )
        assert message.endswith("expected hydra.launcher.per_gpu=3 or less")
    assert not list(tmp_path.rglob("metrics.csv"))


@pytest.mark.whole
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
    assert [cell.status for cell in cells] == ["done"] * 2
    logs = [(path / "train.log").read_text() for cell in cells for path in cell.directories]
    assert [", continuing " in text for text in logs] == [True] * 2
