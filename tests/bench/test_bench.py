"""Layers and training steps are timed, ours beside the textbook's, and beside what they need at the least."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from capsule_lab import bench
from capsule_lab.bench import Case, breakdown, cases, interleave, layers, models, roofline, scaling, workers
from capsule_lab.bench.roofline import Work
from capsule_lab.config import compose
from capsule_lab.errors import ConfigError
from capsule_lab.layers import ConvCapsules
from capsule_lab.routing import EMRouting
from tests.helpers.commands import ROOT, Ended

Cli = Callable[..., Ended]
SMALL = [
    "device=cpu", "rounds=2", "steps=1", "precisions=[32-true]", "backends=[matmul]", "batch_size=2",
    "options=['model.channels=4','model.primary_types=2']", "image_shape=[1,21,21]",
    "sizes.em_window={rows: 2, children: 9, parents: 3, iterations: 2}",
    "sizes.em_all_parents={batch_size: 2, grid: 5, child_types: 2, parents: 3, iterations: 2}",
    "sizes.dynamic={batch_size: 2, children: 6, child_dim: 4, parents: 3, parent_dim: 5, iterations: 2}",
    "sizes.scaling={batch_size: 1, grid: 5, child_types: 2, parents: 4, iterations: 2}",
]  # fmt: skip
NAMES = ["em_window", "em_all_parents", "dynamic", "capsnet", "em_caps"]
RATES = {"float32_operations_per_second": 1e9, "bfloat16_operations_per_second": 4e9, "bytes_per_second": 1e8}


class Pipe:
    """One end of a pipe between threads."""

    def __init__(self, out: queue.Queue[Any], into: queue.Queue[Any]) -> None:
        self.send, self.recv = out.put, lambda: into.get(timeout=60)

    def close(self) -> None:
        """A thread that is gone is noticed by its timeout."""


class Threads:
    """A multiprocessing context whose processes are threads: no imports to wait for."""

    def __init__(self, *_: Any) -> None: ...

    def Pipe(self) -> tuple[Pipe, Pipe]:
        one, other = queue.Queue(), queue.Queue()
        return Pipe(one, other), Pipe(other, one)

    def Process(self, **options: Any) -> threading.Thread:
        return threading.Thread(**options)


def quick(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(workers.multiprocessing, "get_context", Threads)
    patch.setattr(roofline, "MATRIX", 64)
    patch.setattr(roofline, "ARRAY", 1024)
    patch.setattr(interleave, "PAUSE", 0.0)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


@pytest.fixture(scope="module")
def report() -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        quick(patch)
        yield bench.measure(compose("bench", SMALL))


def case(name: str, form: str = "matmul", *overrides: str) -> Case:
    config = compose("bench", [*SMALL, f"backends=[{form}]", *overrides])
    kind = "layers" if name in cases.LAYERS else "models"
    config[kind] = [name]
    return (cases.layer_groups(config) if kind == "layers" else cases.model_groups(config))[0][-1]


# ----------------------------------------------------------------------------------------------- measuring


def test_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (row,) = interleave.time_in_turn([case("dynamic")], rounds=2, steps=2)
    assert 0 < row["seconds_fastest"] <= row["seconds_median"] <= row["seconds_slowest"]
    assert 0 < row["forward_seconds_median"] < row["seconds_median"]
    assert 10**8 < row["peak_memory_bytes"] < 10**11
    assert row["memory_above_bytes"] < 10**8


@pytest.mark.parametrize(("number", "name"), list(enumerate(NAMES)))
def test_rows(report: dict[str, Any], number: int, name: str) -> None:
    assert len(report["rows"]) == 2 * len(NAMES)
    textbook, ours = report["rows"][2 * number : 2 * number + 2]
    for row, form in ((textbook, "textbook"), (ours, "matmul")):
        assert (row["name"], row["form"], row["precision"], row["device"]) == (name, form, "32-true", "cpu")
        assert ("images_per_second" in row) == (row["kind"] == "model") == (name not in cases.LAYERS)
        assert row["floor_arithmetic_seconds"] == textbook["floor_arithmetic_seconds"] > 0
    assert textbook["speedup"] == textbook["peak_memory_share"] == 1
    assert ours["speedup"] == pytest.approx(textbook["seconds_median"] / ours["seconds_median"])
    assert ours["peak_memory_share"] == pytest.approx(ours["peak_memory_bytes"] / textbook["peak_memory_bytes"])


def test_images_per_second(report: dict[str, Any]) -> None:
    row = report["rows"][-1]
    assert row["images_per_second"] == pytest.approx(2 / row["seconds_median"])


def test_rounds_are_interleaved(threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    original = workers.Worker.ask
    monkeypatch.setattr(workers.Worker, "ask", lambda self, steps: asked.append(self.name) or original(self, steps))
    interleave.time_in_turn([case("dynamic"), case("em_window")], rounds=2, steps=1)
    assert [name.split()[0] for name in asked] == ["dynamic", "em_window"] * 3  # the last asks for the memory


@pytest.mark.parametrize(
    ("model", "forms"),
    [
        ("cnn_smallnorb", ["plain", "plain"]),
        ("em_caps_small", ["textbook", "matmul", "fused", "matmul", "fused"]),
    ],
)
def test_forms_of_a_model(model: str, forms: list[str]) -> None:
    words = ["backends=[matmul,fused]", "precisions=[bf16-mixed,32-true]", "options=[]", f"models=[{model}]"]
    (group,) = cases.model_groups(compose("bench", [*SMALL, *words]))
    assert [each.form for each in group] == forms
    assert [each.precision for each in group][-1] == "32-true"


@pytest.mark.parametrize("model", sorted(file.stem for file in (ROOT / "conf" / "model").glob("*.yaml")))
def test_every_model_has_sizes(model: str) -> None:
    assert set(cases.sizes_of(compose("bench"), model)) == {"batch_size", "image_shape", "num_classes"}


@pytest.mark.parametrize("name", cases.LAYERS)
def test_forms_of_a_layer_do_the_same(name: str) -> None:
    numbers = []
    for form in ("textbook", "reference", "matmul"):
        forward, inputs = layers.build_layer(replace(case(name), form=form))
        outputs = forward()
        gradients = torch.autograd.grad([output.sum() for output in outputs], inputs)
        assert all(gradient.isfinite().all() for gradient in gradients)
        numbers.append(tuple(sum(each.numel() for each in tensors) for tensors in (outputs, inputs)))
    assert numbers[0] == numbers[1] == numbers[2]


@pytest.mark.parametrize(("model", "biases"), [("capsnet", 0), ("em_caps", 2 * 17)])
def test_textbook_has_the_sizes_that_were_asked_for(model: str, biases: int) -> None:
    of = case(model, "matmul", "options=['model.channels=3','model.primary_types=2','routing.iterations=2']")
    config = cases.training_config(of.words)
    textbook, ours = models.build_textbook(of, config), models.build_network(of, config).network
    sizes = [sum(parameter.numel() for parameter in network.parameters()) for network in (textbook, ours)]
    assert sizes[0] == sizes[1] + biases
    assert len(getattr(textbook, "lambdas", [1, 2])) == 2


def test_step_has_every_term_of_the_loss() -> None:
    terms = []
    for weight in (0.0, 1.0):
        of = case("em_caps", "matmul", f"options=['model.channels=4','module.l2={weight}']")
        step = models.build_step(of)
        terms.append(step.loss().item())
    kernels = [parameter for name, parameter in step.network.named_parameters() if name.endswith("weight")]
    assert terms[1] - terms[0] == pytest.approx(sum(kernel.square().sum().item() for kernel in kernels) / 2)


# -------------------------------------------------------------------------------------------------- floors


def test_floor_of_a_layer_counted_by_hand() -> None:
    votes = 2 * 9 * 3
    forward = 16 * 4 + 2 * (16 + 16) + (16 + 16)  # the vote, mean and variance twice, the distance once
    inputs = 2 * 9 * (16 + 1) + 9 * 3 * 16 + 2 * 3  # poses and activations, transformations, betas
    outputs = 2 * 3 * (16 + 1)
    expected = Work(routing_operations=2 * 3 * votes * forward, full_numbers=3 * inputs + 2 * outputs)
    assert roofline.count(case("em_window")) == expected
    assert expected.floors(RATES, "32-true") == {
        "operations": 51_840,
        "bytes": 9_744,
        "floor_arithmetic_seconds": 51_840 / 1e9,
        "floor_memory_seconds": 9_744 / 1e8,
    }


def test_floor_of_the_other_layers() -> None:
    positions = 2 * 2 * 2
    conv = roofline.count(case("em_all_parents"))
    assert conv.routing_operations == 6 * positions * 18 * 3 * 160  # 18 places, 3 parents, 160 as above
    assert conv.full_numbers == 3 * (2 * 25 * 2 * 17 + 18 * 3 * 16 + 6) + 2 * positions * 3 * 17
    dynamic = roofline.count(case("dynamic"))
    assert dynamic.routing_operations == 6 * (2 * 6 * 3) * (4 * 5 + 2 * 5 + 5)
    assert dynamic.full_numbers == 3 * (2 * 6 * 4 + 6 * 4 * 3 * 5 + 3 * 5) + 2 * 2 * 3 * 5


def test_floor_of_a_network_has_what_torch_counts() -> None:
    of = case("capsnet")
    module = models.build_network(of, cases.training_config(of.words))
    with FlopCounterMode(display=False) as counter:
        models.loss_of(module, models.random_batch(of, 2)).backward()
    torchs = {str(operator): count for operator, count in counter.get_flop_counts()["Global"].items()}
    work = roofline.count(of)
    assert work.operations == sum(count for operator, count in torchs.items() if "bmm" not in operator)
    children = 2 * 3 * 3  # at 21x21 pixels
    assert work.routing_operations == 6 * 2 * children * 10 * (8 * 16 + 3 * 16 + 2 * 16)


def test_bfloat16_is_half_as_long_and_faster() -> None:
    work = Work(operations=8, routing_operations=1, numbers=100, full_numbers=10)
    full, half = work.floors(RATES, "32-true"), work.floors(RATES, "bf16-mixed")
    assert (full["bytes"], half["bytes"]) == (440, 240)
    assert half["floor_arithmetic_seconds"] == pytest.approx(3e-9)


# ---------------------------------------------------------------------------------- scaling, and where time goes


@pytest.mark.parametrize(
    ("axis", "option", "values"),
    [
        ("batch", "batch_size", [1, 2, 4]),
        ("children", "child_types", [1, 2, 4, 8]),
        ("parents", "parents", [1, 2, 4, 8, 16]),
        ("iterations", "iterations", [1, 2, 3, 4, 6]),
        ("image_size", "grid", [3, 5, 7, 10]),
    ],
)
def test_sizes_along_an_axis(axis: str, option: str, values: list[int]) -> None:
    config = compose("bench", [*SMALL, "batch_size=null", "backends=[matmul,fused]"])
    found = scaling.scaled(config, axis)
    assert [each.sizes[option] for each in found] == [value for value in values for _ in range(2)]
    assert [each.form for each in found] == ["matmul", "fused"] * len(values)
    assert all({**each.sizes, option: 0} == {**found[0].sizes, option: 0} for each in found)


def test_scaling(cli: Cli, threads: None, tmp_path: Path) -> None:
    ended = cli("bench", *SMALL, "scaling=children", "out=scaling.json")
    assert (ended.status, ended.err) == (0, "")
    assert "ns per vote and iteration" in ended.out
    rows = json.loads((tmp_path / "scaling.json").read_text())["rows"]
    assert [(row["value"], row["votes"]) for row in rows] == [(n, 2 * 4 * 9 * n * 4) for n in (1, 2, 4, 8)]
    for row in rows:
        assert row["seconds_per_vote"] == pytest.approx(row["seconds_median"] / row["votes"] / 2)


def test_profile(cli: Cli, threads: None, tmp_path: Path) -> None:
    ended = cli("bench", *SMALL, "profile=true", "models=[capsnet]", "out=profile.json")
    assert (ended.status, ended.err) == (0, "")
    (row,) = json.loads((tmp_path / "profile.json").read_text())["rows"]
    assert set(row["shares"]) == set(breakdown.FAMILIES)
    assert sum(row["shares"].values()) == pytest.approx(1)
    assert min(row["shares"].values()) > 0
    families = {found["name"]: found["family"] for found in row["operators"]}
    assert families["aten::convolution_backward"] == "convolutions"
    assert families["aten::_fused_adam_"] == "optimiser"
    assert "convolutions" in ended.out
    assert "aten::convolution_backward" in ended.out


def test_backward_of_routing_is_routing() -> None:
    capsules = ConvCapsules((5, 5), 2, 16, 3, 16, rows=4, routing=partial(EMRouting, backend="matmul"))
    breakdown._mark(capsules)
    poses = torch.randn(2, 50, 16, requires_grad=True)
    with torch.profiler.profile(acc_events=True) as profiler, torch.profiler.record_function(breakdown.STEP):
        (capsules(poses, torch.rand(2, 50)).poses.sum() + torch.nn.Linear(4, 4)(torch.randn(3, 4)).sum()).backward()
    found = breakdown.break_down(profiler.events(), 2)
    assert {each["family"] for each in found["operators"] if each["name"] == "aten::bmm"} == {"routing"}
    shares = found["shares"]
    assert min(shares["routing"], shares["matrix products"]) > shares["convolutions"] == 0
    (whole,) = (event for event in profiler.events() if event.name == breakdown.STEP)
    assert found["seconds"] == pytest.approx(whole.cpu_time_total / 1e6 / 2)


# ------------------------------------------------------------------------------------------------- command


def test_command_shows_tables_and_writes_the_numbers(
    cli: Cli, report: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure", lambda _: report)
    ended = cli("bench", *SMALL, "out=numbers/bench.json")
    assert (ended.status, ended.err) == (0, "")
    for word in ("textbook", "em_window", "capsnet", "1.00x", "least ms", "GB/s"):
        assert word in ended.out
    written = json.loads((tmp_path / "numbers" / "bench.json").read_text())
    assert written["rows"] == report["rows"]
    assert written["bench"]["batch_size"] == 2
    assert {"rows", "rates", "hardware", "bench", "command", "commit", "versions", "python"} == set(written)


def test_command_writes_nothing_unless_asked(
    cli: Cli, report: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure", lambda _: report)
    assert cli("bench", *SMALL).status == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["rounds=0"], "rounds is 0 and steps 1; expected 1 or more"),
        (["steps=0"], "rounds is 2 and steps 0; expected 1 or more"),
        (["models=[capsnot]"], "models is ['capsnot']; expected a list of some of capsnet, "),
        (["models=capsnet"], "models is capsnet; expected a list of some of capsnet, "),
        (["layers=[em]"], "layers is ['em']; expected a list of some of dynamic, em_all_parents, em_window"),
        (["backends=[slow]"], "backends is ['slow']; expected a list of some of fused, matmul, reference"),
        (["precisions=[8bit]"], "precisions is ['8bit']; expected a list of some of 32-true, bf16-mixed"),
        (["backends=[]"], "backends or precisions is empty"),
        (["layers=[]", "models=[]"], "layers and models are both empty"),
        (["profile=true", "models=[]"], "profile is true, but models is empty"),
        (["device=tpu"], "device is tpu; expected auto, cpu or cuda"),
        (["scaling=depth"], "scaling is depth; expected one of batch, children, parents, iterations, image_size, all"),
        (["scaling=all", "profile=true"], "scaling is all and profile true; expected one of them"),
        (["batch_size=0"], "batch_size of em_all_parents is 0; expected 1 or more"),
        (["sizes.em_window.rows=0"], "rows of em_window is 0; expected 1 or more"),
        (["image_shape=[1,two,3]"], "image_shape of capsnet is [1, 'two', 3]; expected 1 or more"),
        (["~sizes.capsnet"], "sizes has no capsnet; expected +sizes.capsnet={"),
        (["options=['model.chanels=3']"], "options: model.chanels does not exist"),
        (["options=['routing=em']", "models=[cnn_baseline]"], "options: BaselineCNN does not route"),
    ],
    ids=str,
)
def test_what_cannot_be_timed_is_refused_before_a_process_starts(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, overrides: list[str], sentence: str
) -> None:
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda _: pytest.fail("a process was started"))
    ended = cli("bench", *SMALL, *overrides)
    assert ended.status == 2
    assert ended.err.startswith(f"capsule_lab: {sentence}")
    assert ended.err.count("\n") == 1


def test_what_a_worker_refuses_is_one_sentence(cli: Cli, threads: None) -> None:
    ended = cli("bench", *SMALL, "layers=[]", "image_shape=[1,9,9]")
    assert ended.status == 2
    assert ended.err.startswith("capsule_lab: the machine: model: ")
    assert "9x9" in ended.err
    assert ended.err.count("\n") == 1


def test_fused_kernels_that_do_not_run_here_are_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "fused_kernels", lambda _: "no numba")
    ended = cli("bench", *SMALL, "backends=[fused]")
    assert ended.err == (
        "capsule_lab: backends has fused, which does not run here: no numba; expected backends=[matmul]\n"
    )


def test_a_worker_that_dies_is_noticed(threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = workers.Worker("capsnet", lambda pipe: None)

    def gone() -> None:
        raise EOFError

    monkeypatch.setattr(worker.pipe, "recv", gone)
    with pytest.raises(ConfigError, match=r"capsnet could not be timed; its error is above \(out of memory\?"):
        worker.receive()
