"""Exported programs equal the network at every size of the batch."""

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from capsule_lab import runs
from capsule_lab.data.mnist import MNISTFiles
from capsule_lab.deploy import export as module
from capsule_lab.deploy.export import ExportedNetwork, export, published_command
from capsule_lab.errors import MissingPackageError, RunError
from capsule_lab.layers import PrimaryCapsules
from capsule_lab.networks import CapsNet, EfficientCapsNet
from capsule_lab.routing import DynamicRouting, EMRouting, NormalisedEMRouting
from capsule_lab.types import DataSpec
from tests.helpers.commands import Cli, Trained, python
from tests.helpers.networks import small_capsnet, small_em_caps

pytestmark = pytest.mark.usefixtures("unchecked_types")

SHAPE = (1, 28, 28)
NETWORKS: dict[str, Any] = {
    "capsnet": lambda: small_capsnet(SHAPE, 10, decoder=None),
    "efficient": lambda: EfficientCapsNet(SHAPE, 10, decoder=None),
    "em": lambda: small_em_caps(SHAPE, 10, routing=EMRouting),
    "em_normalised": lambda: small_em_caps(
        SHAPE, 10, routing=NormalisedEMRouting, class_routing=None
    ),
}


def run_of(network: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    record = {"spec": {"classes": ["a"]}, "input_form": {"kind": "digit"}}
    monkeypatch.setattr(module, "record_of", lambda run: record)
    monkeypatch.setattr(module, "_images", lambda run: torch.rand(72, *SHAPE))
    facts = {
        "checkpoint": Path("a.ckpt"),
        "check_classifies": lambda name: None,
        "spec": DataSpec(SHAPE, 10),
    }
    return SimpleNamespace(network=network.eval(), **facts)


@pytest.mark.whole
@pytest.mark.parametrize("to", ["onnx", "torch_export"])
@pytest.mark.parametrize(
    "name",
    [
        "capsnet",
        pytest.param("efficient", marks=pytest.mark.slow),
        pytest.param("em", marks=pytest.mark.slow),
        pytest.param("em_normalised", marks=pytest.mark.slow),
    ],
)
def test_programs_equal_the_network(
    name: str, to: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    run = run_of(NETWORKS[name](), monkeypatch)
    assert export(run, to, tmp_path / "program") <= 1e-5
    assert backends_of(run.network) <= {"auto"}, "put back"


def backends_of(network: Any) -> set[str]:
    return {part.backend for part in network.modules() if hasattr(part, "backend")}


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("validation", "none", "(the run was trained on all of them)"),
        ("source", "real", "(the data set is not on this machine)"),
    ],
)
def test_comparison_on_random_images_says_why(
    option: str, value: str, reason: str, trained: Trained, caplog: pytest.LogCaptureFixture
) -> None:
    run = runs.open(trained.directory)
    run.config.data[option] = value
    assert module._images(run).shape == (72, *SHAPE)
    message = f"there are no validation images {reason}; the file is compared on random images"
    assert message in caplog.text


@pytest.mark.whole
@pytest.mark.parametrize("iterations", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_iterations_are_unrolled(
    iterations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    routing = partial(DynamicRouting, iterations=iterations)
    network = small_capsnet(SHAPE, 10, decoder=None, routing=routing)
    export(run_of(network, monkeypatch), "onnx", tmp_path / "a.onnx")
    model = onnx.load(str(tmp_path / "a.onnx"))
    operators = [node.op_type for node in model.graph.node]
    # the softmax of the first iteration, of zeros, may be folded into a constant
    assert operators.count("Softmax") in (iterations, iterations - 1)
    if model.functions:
        assert "capsule_lab" not in {node.domain for node in model.graph.node}
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(metadata["capsule_lab.classes"]) == ["a"]
    assert json.loads(metadata["capsule_lab.input_form"]) == {"kind": "digit"}


@pytest.mark.whole
@pytest.mark.parametrize("value", [2e-5, float("nan")])
def test_another_program_is_refused(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(NETWORKS["capsnet"](), monkeypatch)
    network = ExportedNetwork(run.network)

    def read(path: Path) -> Any:
        return lambda images: [output + value for output in network(images)]

    other = module._FORMATS["torch_export"]._replace(read=read)
    monkeypatch.setitem(module._FORMATS, "torch_export", other)
    message = r"differ from those of a\.ckpt by (2\.0e-05|nan); expected at most 1e-05"
    with pytest.raises(RunError, match=message):
        export(run, "torch_export", tmp_path / "program")
    assert [*tmp_path.iterdir()] == []
    assert backends_of(run.network) == {"auto"}, "put back"


@pytest.mark.whole
def test_a_fixed_batch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed(CapsNet):
        def forward(self, images: Any, **options: Any) -> Any:
            return super().forward(images.reshape(len(images), *SHAPE), **options)

    network = Fixed(SHAPE, 10, channels=4, primary=partial(PrimaryCapsules, types=2), decoder=None)
    run = run_of(network, monkeypatch)
    message = r"Fixed with DynamicRouting cannot be exported to torch_export \("
    with pytest.raises(RunError, match=message):
        export(run, "torch_export", tmp_path / "program")


def test_missing_packages_are_named(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    message = r'needs onnx, onnxscript, onnxruntime; .* pip install "capsule-lab\[export\]"'
    with pytest.raises(MissingPackageError, match=message):
        export(runs.open(trained.directory), "onnx", tmp_path / "a.onnx")


def test_a_comparison_downloads_nothing(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MNISTFiles, "find", lambda self: pytest.fail("files were fetched"))
    run = runs.open(trained.directory)
    run.config.data.update(source="auto", directory=str(tmp_path))
    assert module._images(run).shape == (72, *SHAPE)


def test_command_exports_a_program(cli: Cli, trained: Trained) -> None:
    ckpt = f"ckpt={trained.directory}"
    ended = cli("export", ckpt, "to=torch_export", "out=a.pt2", "reconstruction=true")
    assert (ended.status, ended.err) == (0, "")
    assert "on batches of 1, 7, 64 images" in ended.out
    extra = {"capsule_lab.record": ""}
    program = torch.export.load("a.pt2", extra_files=extra)
    *_, reconstruction = program.module()(torch.rand(5, *SHAPE))
    assert reconstruction.shape == (5, *SHAPE)
    record = json.loads(extra["capsule_lab.record"])
    assert record["input_form"]["kind"] == "digit"


def test_command_exports_weights_with_their_entry_of_the_index(cli: Cli, trained: Trained) -> None:
    ended = cli("export", f"ckpt={trained.directory}", "to=safetensors", "out=tiny.safetensors")
    assert (ended.status, ended.err) == (0, "")
    _, brace, rest = ended.out.partition("{")
    entry = json.loads(brace + rest)["tiny"]
    assert entry["bytes"] == Path("tiny.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("command", "published"),
    [
        ("a train seed=1 data.test_share=1/5", "a train seed=1 data.test_share=1/5"),
        ("a data.path=/home/me/p.npz", "a data.path=p.npz"),
        ("a data.path=me/p.npz data.labels=part/l.csv", "a data.path=p.npz data.labels=part/l.csv"),
        ("a 'data={path: /home/me/p, labels: [/home/me/l]}'", "a 'data={path: p, labels: [l]}'"),
        ("""a "data.path='/home/me too/p'" """, "a data.path=p"),
        ("a logger.mlflow.tracking_uri=file:/home/me/runs", "a logger.mlflow.tracking_uri=runs"),
        ("a train.start_from=../me/run ckpt=~/me/a.ckpt", "a train.start_from=run ckpt=a.ckpt"),
        ("a logger.wandb.url=https://here/me", "a logger.wandb.url=https://here/me"),
    ],
)
def test_published_command_names_no_folder(command: str, published: str) -> None:
    assert published_command(command) == published


def test_weights_have_the_name_by_which_they_are_read(cli: Cli, trained: Trained) -> None:
    ended = cli("export", f"ckpt={trained.directory}", "to=safetensors", "out=weights.st")
    assert ended.status == 2
    assert "out is weights.st; expected a name that ends in .safetensors" in ended.err


@pytest.mark.whole
@pytest.mark.integration
def test_one_graph_is_compiled(tmp_path: Path) -> None:
    """In a process without checks of shapes, which torch does not compile."""
    script = """
import torch
from capsule_lab import CapsNet, EMRouting
network = CapsNet((1, 28, 28), 10, channels=4, decoder=None), (torch.rand(2, 1, 28, 28),)
routing = EMRouting(parents=3, dim=16), (torch.randn(2, 5, 3, 16), torch.rand(2, 5))
for function, arguments in (network, routing):
    outputs = []
    for called in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        function.zero_grad()
        output = called(*arguments)[0]
        output.square().sum().backward()
        gradients = [each.grad.clone() for each in function.parameters() if each.grad is not None]
        outputs.append([output, *gradients])
    torch.testing.assert_close(*outputs)
"""
    ended = python("-c", script, cwd=tmp_path)
    assert (ended.status, ended.err) == (0, "")
