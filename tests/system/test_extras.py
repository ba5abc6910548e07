"""Without the packages of an extra, what needs them fails with one sentence before anything long begins."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from capsule_lab.data.affnist import AffNISTFiles
from capsule_lab.data.sources import choose_source
from capsule_lab.errors import MissingPackageError
from capsule_lab.runs import ready_weights
from capsule_lab.system.extras import require
from tests.helpers.commands import TINY, Cli, Trained

Hide = Callable[[Sequence[str]], None]


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    """A function after which packages are not installed."""

    def hidden(names: Sequence[str]) -> None:
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)

    return hidden


@pytest.mark.parametrize(
    ("extra", "packages", "command", "purpose"),
    [
        ("data", ["pooch"], "train data.source=real", "the download of MNIST"),
        ("data", ["scipy"], "train data.source=standin data.mixup=0.2", "data.mixup"),
        ("mlflow", ["mlflow"], "train data.source=standin logger=mlflow", "logger=mlflow"),
        ("report", ["jinja2", "pandas", "scipy"], "report table=smoke", "report"),
        ("slurm", ["submitit"], "sweep table=smoke launcher=slurm", "launcher=slurm"),
        (
            "tensorboard",
            ["tensorboard"],
            "train data.source=standin logger=tensorboard",
            "logger=tensorboard",
        ),
        (
            "toynorb",
            ["toynorb"],
            "train data=smallnorb data.source=standin",
            "the stand-in for smallNORB",
        ),
        ("toynorb", ["toynorb"], "dataset name=toynorb", "name=toynorb"),
        (
            "weights",
            ["safetensors"],
            "predict ckpt=cnn_mnist images=[a.png]",
            "reading cnn_mnist.safetensors",
        ),
    ],
)
def test_command_names_the_package_and_its_extra(
    cli: Cli, hide: Hide, extra: str, packages: list[str], command: str, purpose: str
) -> None:
    hide(packages)
    name, *overrides = command.split()
    ended = cli(name, *(TINY if name == "train" else []), *overrides)
    assert ended.status == 2
    sentence = f'{purpose} needs {", ".join(packages)}; install it with: pip install "capsule-lab[{extra}]"'
    assert ended.err.splitlines()[-1].endswith(sentence), ended.err
    assert not Path("runs").exists()


def test_weights_for_other_programs_name_their_extra(
    cli: Cli, hide: Hide, trained: Trained, tmp_path: Path
) -> None:
    hide(["safetensors"])
    ended = cli("export", f"ckpt={trained.directory}", "to=safetensors", "out=a.safetensors")
    assert ended.err.splitlines()[-1].endswith(
        'writing a.safetensors needs safetensors; install it with: pip install "capsule-lab[weights]"'
    )
    assert not Path("a.safetensors").exists()
    hide(["pooch"])
    with pytest.raises(
        MissingPackageError, match=r'the weights far needs pooch; .*lab\[weights\]"'
    ):
        ready_weights._download("far", {"url": "https://example.org/far", "sha256": ""})


def test_auto_takes_the_stand_in_and_says_what_to_install(
    hide: Hide, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hide(["pooch"])
    real, standin = AffNISTFiles(tmp_path), AffNISTFiles(tmp_path)
    standin.find = lambda: None  # type: ignore[method-assign]
    assert choose_source("auto", real, standin, "AffNIST") is standin
    (message,) = caplog.messages
    assert message == (
        "stand-in data for AffNIST, not the real set: the download of affNIST needs pooch; install it with: "
        'pip install "capsule-lab[data]"'
    )
    with pytest.raises(MissingPackageError, match="AffNIST has no stand-in"):
        choose_source("auto", real, None, "AffNIST")


def test_compare_leaves_out_the_test_that_needs_scipy(
    cli: Cli, hide: Hide, trained: Trained
) -> None:
    hide(["scipy"])
    ended = cli("compare", f"runs=[{trained.directory},{trained.directory}]")
    assert ended.status == 0
    assert ended.out.splitlines()[-1] == (
        'no test: a test of two runs needs scipy; install it with: pip install "capsule-lab[report]"'
    )


def test_packages_that_are_installed_are_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("submitit", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    require("this test", "slurm", "submitit", "torch")
    assert not {"submitit", "torch"} & {*sys.modules}
