"""Fixtures of all tests: commands in this process, and tiny runs of a CapsNet with a few hundred weights."""

import functools
import gc
import logging
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from capsule_lab.commands import compose, load
from tests.helpers.commands import (
    ENVIRONMENT_OF_THE_DEVELOPER,
    ROOT,
    TINY,
    TINY_CAPSNET,
    TINY_DATA,
    Ended,
    Trained,
)
from tests.helpers.compositions import composed_from_parts, folder_of_these_sources
from tests.helpers.extensions import HAS_STUDIES, OF_STUDIES

WITHOUT_FILES = {"kernels", "layers", "networks", "reference", "routing"}
"""Folders of tests that write no files and run no commands."""

SHAPES_ARE_CHECKED = pytest.StashKey[bool]()
END_TIME = pytest.StashKey[float]()
TOO_LATE = "the time of --seconds is over"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-shape",
        action="store_true",
        help="check shapes and types in every test; slower by half",
    )
    parser.addoption(
        "--seconds",
        type=float,
        help="begin no test later than this; the last line names those left out",
    )


@pytest.hookimpl(trylast=True)  # after pytest has grouped the parameters of fixtures
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Put files with long tests first: those that start processes, then those with ``trained``, then whole fits.

    With ``--dist worksteal`` each worker begins with a contiguous part, and an idle one steals from the end of
    another's. The tests of a file stay together, so that its fixtures are built once, and short tests end the session.
    Tests of a GPU run in the order of their markers, because a GPU is lent for minutes.
    """
    ranks: dict[Path, int] = {}
    for item in items:
        whole = item.get_closest_marker("whole") is not None
        processes = item.get_closest_marker("integration") is not None
        rank = (
            0
            if whole and processes
            else 1
            if processes
            else 2
            if "trained" in item.fixturenames
            else 4 - whole
        )
        ranks[item.path] = min(ranks.get(item.path, rank), rank)
    items.sort(key=lambda item: (ranks[item.path], order_on_a_gpu(item)))
    seen = set[tuple[object, ...]]()
    for item in items:
        parameters = item.callspec.params.items() if hasattr(item, "callspec") else ()
        features = {
            (item.path, item.originalname),
            *((item.path, name, repr(value)) for name, value in parameters),
        }
        item.stash[SHAPES_ARE_CHECKED] = config.option.every_shape or not features <= seen
        seen |= features


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check shapes only in the first case of a test and the first case of each parameter value in a file.

    Thousands of other cases would repeat the same checks, which take half of the time.
    """
    if time.monotonic() > item.config.stash[END_TIME]:
        pytest.skip(TOO_LATE)
    jaxtyping.config.update("jaxtyping_disable", not item.stash.get(SHAPES_ARE_CHECKED, True))


def _decorated_where_shapes_are_checked(decorate: Callable[..., Any]) -> Callable[..., Any]:
    """Leave a function that is defined within a call as it is, if that call's shapes are not checked.

    A routing defines its steps in each call. ``decorate`` compiles two functions for each step, which often takes
    longer than the routing itself.
    """

    def jaxtyped(*context: str, typechecker: Any = None) -> Any:
        if context:
            return decorate(*context)

        def decorated(function: Any) -> Any:
            defined_in_a_call = "<locals>" in function.__qualname__
            if defined_in_a_call and jaxtyping.config.jaxtyping_disable:
                return function
            return decorate(typechecker=typechecker)(function)

        return decorated

    return jaxtyped


def pytest_configure(config: pytest.Config) -> None:
    """Cache compositions, which collection needs, too, and collect no garbage while the tests are imported."""
    gc.disable()
    jaxtyping.jaxtyped = _decorated_where_shapes_are_checked(jaxtyping.jaxtyped)
    end_time = time.monotonic() + (config.option.seconds or math.inf)
    config.stash[END_TIME] = getattr(config, "workerinput", {}).get("end_time", end_time)
    folder = None
    if config.pluginmanager.hasplugin("cacheprovider"):
        folder = folder_of_these_sources(config.cache.mkdir("compositions"))
    parts = composed_from_parts(folder)
    parts.__enter__()
    config.add_cleanup(lambda: parts.__exit__(None, None, None))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the time to workers of pytest-xdist, which start later and have the same clock."""
    node.workerinput["end_time"] = node.config.stash[END_TIME]


def order_on_a_gpu(item: pytest.Item) -> int:
    """The order that a marker ``gpu`` states, of a case before a test before a file; by default 0."""
    marker = item.get_closest_marker("gpu")
    return marker.kwargs.get("order", 0) if marker is not None else 0


@pytest.hookimpl(wrapper=True, tryfirst=True)  # below the list of reasons
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """With ``--seconds``, end with the tests that did not run."""
    yield
    if terminalreporter.config.option.seconds is not None:
        terminalreporter.write_line(tests_that_ran(terminalreporter.stats))


def tests_that_ran(reports: dict[str, list[Any]]) -> str:
    """Say how many tests ran, and which did not because it was too late; the argument has the reports by outcome."""
    ran = sum(len(reports.get(outcome, [])) for outcome in ("passed", "failed", "error"))
    skipped = reports.get("skipped", [])
    late = [report.nodeid for report in skipped if report.longrepr[2].endswith(TOO_LATE)]
    text = f"{ran} of {ran + len(skipped)} tests ran"
    return f"{text}; too late for {', '.join(late)}" if late else text


def pytest_collection_finish() -> None:
    """Exclude the collected tests and their imports from garbage collection, also from that at the end."""
    gc.freeze()
    gc.set_threshold(
        100_000, 50, 100
    )  # composing configurations creates more objects than Python expects
    gc.enable()


@pytest.fixture
def shapes_checked_in_first(
    request: pytest.FixtureRequest,
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Iterates over the cases within a test; shapes are checked in the first case, with --every-shape in all."""

    def iterate(cases: Iterable[Any]) -> Iterator[Any]:
        for case in cases:
            yield case
            if not request.config.option.every_shape:
                jaxtyping.config.update("jaxtyping_disable", True)

    return iterate


@pytest.fixture
def unchecked_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls without type checks, as outside of pytest, so that the code raises its own errors."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(autouse=True)
def _isolated_where_files_are_written(request: pytest.FixtureRequest) -> None:
    if WITHOUT_FILES.isdisjoint(request.path.relative_to(ROOT).parts):
        request.getfixturevalue("isolated")


@pytest.fixture
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty current directory, no environment variables of the developer, and no handlers of commands afterwards."""
    for name in ENVIRONMENT_OF_THE_DEVELOPER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("lightning.pytorch", "lightning.fabric"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", logging.getLogger(name).propagate)
    sources = sys.modules.get("capsule_lab.data.sources")
    if sources is not None:
        sources._announce.cache_clear()  # each test is a process of its own
    yield
    GlobalHydra.instance().clear()
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if type(handler) is logging.StreamHandler]:
        root.removeHandler(handler)  # of a command in this process


@pytest.fixture
def tiny() -> Callable[..., DictConfig]:
    """A function that composes a tiny training run: ``tiny("trainer.max_epochs=2", model=TINY_CNN)``."""

    def build(*overrides: str, model: list[str] = TINY_CAPSNET) -> DictConfig:
        return compose("train", [*model, *TINY_DATA, "trainer.max_epochs=2", *overrides])

    return build


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """One tiny run, for reading only; tests change ``a_copy``."""
    # imported here: pytest-xdist's main process runs no test and needs no torch
    from lightning.pytorch.callbacks import LambdaCallback

    from capsule_lab.commands.train import train
    from capsule_lab.config import build
    from capsule_lab.data import MNISTDataModule

    config = compose("train", TINY)
    directory = tmp_path_factory.mktemp("trained") / "capsnet-mnist-00000000"
    events: list[str] = []
    modules: list[Any] = []
    watch = LambdaCallback(
        on_fit_start=lambda *_: events.append("fit starts"),
        on_fit_end=lambda *_: events.append("fit ends"),
    )
    original = build.build_callbacks, build.build_module, MNISTDataModule.load

    def load(self: Any, *, train: bool) -> Any:
        events.append("training images" if train else "test images")
        return original[2](self, train=train)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "build_callbacks", lambda group: [*original[0](group), watch])
        patch.setattr(
            build, "build_module", lambda *args: modules.append(original[1](*args)) or modules[-1]
        )
        patch.setattr(MNISTDataModule, "load", load)
        patch.setenv("CAPSULE_LAB_RUN", "")
        patch.setattr(logging.getLogger("capsule_lab"), "level", logging.INFO)  # a command's
        result = train(config, directory)
    trained_module = next(module for module in modules if not next(module.parameters()).is_meta)
    return Trained(directory, config, result, trained_module.eval(), events)


@pytest.fixture
def a_copy(trained: Trained, tmp_path: Path) -> Path:
    """A copy of the directory of ``trained``, for changes."""
    return Path(shutil.copytree(trained.directory, tmp_path / "copies" / trained.directory.name))


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with small files that count as real MNIST."""
    from tests.helpers.mnist_files import write_mnist

    return write_mnist(tmp_path / "data", monkeypatch)


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """A function that runs a command in this process as a shell would: ``cli("train", "seed=1")``."""
    monkeypatch.setattr(
        "jaxtyping.config.jaxtyping_disable", True
    )  # commands run without type checks
    monkeypatch.setenv("COLUMNS", "300")  # else rich wraps lines at 80 columns

    def call(command: str, *arguments: str) -> Ended:
        if command in OF_STUDIES and not HAS_STUDIES:
            pytest.skip(f"{command} is a command of capsule-studies, which is not installed")
        monkeypatch.setattr(sys, "argv", [command, *arguments])
        monkeypatch.delenv("CAPSULE_LAB_RUN", raising=False)
        capsys.readouterr()
        status = 0
        try:
            load(command)()  # type: ignore[operator]
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        return Ended(status, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def toynorb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the stand-in for smallNORB, so that nothing is rendered. For reading only.

    Real format, random pixels: 100 + 100 pairs from 4 viewpoints, for both sizes. Use it with
    ``cli("train", "data=smallnorb", "data.source=standin", f"data.directory={toynorb}")``, or in a command's
    environment ``CAPSULE_LAB_DATA=str(toynorb)``.
    """
    from tests.helpers.smallnorb_files import write_standin

    return write_standin(tmp_path_factory.mktemp("toynorb"))


@pytest.fixture
def table_file(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a table of tiny runs; see ``write_table``."""
    from tests.helpers.tables import write_table

    return functools.partial(write_table, tmp_path)


@pytest.fixture
def runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of a sweep run in this process. ``test_sweep.py`` covers jobs in processes of their own."""
    from capsule_lab.launchers.local import LocalLauncher
    from tests.helpers.tables import launch_here

    monkeypatch.setattr(LocalLauncher, "launch", lambda _, *given: launch_here(*given))
