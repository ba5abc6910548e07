"""What is timed, at which sizes, against which limits; and that both scripts show and write what they found."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import __main__ as bench
from benchmarks import breakdown, cases, gpu, layers, models, roofline, scaling, timing, traffic
from benchmarks.cases import Case, configuration
from benchmarks.recorded_graphs import recorded_graphs
from benchmarks.roofline import Work
from capsule_lab.config.folders import options_of
from capsule_lab.errors import ConfigError, RunError

SMALL = [
    "device=cpu", "rounds=2", "steps=1", "precisions=[32-true]", "backends=[matmul]", "batch_size=2",
    "options=['model.channels=4','model.primary.types=2']", "image_shape=[1,21,21]",
    "sizes.em_window={rows: 2, children: 9, parents: 3, iterations: 2}",
    "sizes.em_all_parents={batch_size: 2, grid: 5, child_types: 2, parents: 3, iterations: 2}",
    "sizes.dynamic={batch_size: 2, children: 6, child_dim: 4, parents: 3, parent_dim: 5, iterations: 2}",
    "sizes.scaling={batch_size: 1, grid: 5, child_types: 2, parents: 4, iterations: 2}",
]  # fmt: skip
LAYERS = ["em_window", "em_all_parents", "dynamic"]
RATES = {
    "float32_operations_per_second": 1e9,
    "bfloat16_operations_per_second": 4e9,
    "bytes_per_second": 1e8,
}


def small_case(name: str, *overrides: str) -> Case:
    """The last case of a layer or model."""
    config = configuration("bench", [*SMALL, *overrides])
    config.layers = config.models = [name]
    return (cases.layer_groups if name in LAYERS else cases.model_groups)(config)[0][-1]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Workers start no process; what they were called for, as (worker, function)."""
    found: list[tuple[str, str]] = []

    class InThisProcess(timing.Worker):
        def __init__(self, name: str) -> None:
            self.name, self.timer = name, None

        def __exit__(self, *_: object) -> None: ...

        def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
            found.append((self.name, function.__name__))
            timing._timer = self.timer  # type: ignore[assignment]
            result = function(*arguments)
            self.timer = timing._timer  # type: ignore[assignment]
            return result

    for module in (timing, breakdown):
        monkeypatch.setattr(module, "Worker", InThisProcess)
    monkeypatch.setattr(timing, "_timer", None, raising=False)
    for name, value in (("MATRIX", 64), ("ARRAY", 1024)):
        monkeypatch.setattr(roofline, name, value)
    monkeypatch.setattr(timing, "PAUSE", 0.0)
    monkeypatch.setenv("COLUMNS", "300")
    return found


WRONG = {
    "rounds=0": "rounds is 0 and steps 1; expected 1 or more",
    "models=[capsnot]": "models is ['capsnot']; expected a list of values from capsnet, ",
    "models=capsnet": "models is capsnet; expected a list of values from capsnet, ",
    "layers=[em]": "layers is ['em']; expected a list of values from dynamic, em_all_parents, em_window",
    "backends=[]": "backends or precisions is empty",
    "layers=[] models=[]": "layers and models are both empty",
    "profile=true models=[]": "profile is true, but models is empty",
    "device=tpu": "device is tpu; expected auto, cpu or cuda",
    "scaling=depth": "scaling is depth; expected one of batch, children, parents, iterations, image_size, all",
    "batch_size=0": "batch_size of em_all_parents is 0; expected 1 or more",
    "options=['model.chanels=3']": "options: model.chanels does not exist",
    "bath_size=2": "Key 'bath_size' is not in struct",
}


@pytest.mark.parametrize("overrides", WRONG)
def test_refused_before_a_process_starts(calls: list[tuple[str, str]], overrides: str) -> None:
    with pytest.raises(ConfigError) as refused:
        bench.main(configuration("bench", [*SMALL, *overrides.split()]))
    assert str(refused.value).startswith(WRONG[overrides])
    assert calls == []


def test_sizes_and_forms_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration("bench", ["models=[em_caps_small,cnn_smallnorb]", "device=cpu"])
    (em, cnn) = cases.model_groups(config)
    assert [case.form for case in em] == ["textbook", "matmul", "fused", "matmul", "fused"]
    assert [(case.form, case.precision) for case in cnn] == [
        ("plain", "bf16-mixed"),
        ("plain", "32-true"),
    ]
    assert small_case("capsnet").sizes == {
        "batch_size": 2,
        "image_shape": [1, 21, 21],
        "num_classes": 10,
    }
    assert [case.form for case in cases.model_groups(configuration("bench", [
        "models=[capsnet]", "backends=[matmul]", "precisions=[32-true]", "options=['model.decoder=null']"
    ]))[0]] == ["matmul"]  # fmt: skip
    for model, *options in (["cnn_multimnist"], ["capsnet", "data=smallnorb"]):
        sizes = cases.sizes_of(
            configuration("bench"), model, cases.training_config([f"model={model}", *options])
        )
        shapes = {"cnn_multimnist": [1, 36, 36], "capsnet": [2, 32, 32]}
        assert sizes["image_shape"] == shapes[model]
    monkeypatch.setattr(cases, "fused_kernels", lambda _: "no numba")
    with pytest.raises(
        ConfigError,
        match=r"fused, which does not run here: no numba; expected backends=\[matmul\]$",
    ):
        cases.check_bench(configuration("bench", ["device=cpu"]))


@pytest.mark.whole
def test_every_model_has_a_step() -> None:
    for model in options_of("model"):
        sizes = cases.sizes_of(
            configuration("bench"), model, cases.training_config([f"model={model}"])
        )
        assert [*sizes] == [*cases.SIZES]


def test_forms_of_a_layer_and_a_network_are_of_the_same_size() -> None:
    for name in LAYERS:
        numbers = set()
        for form in ("textbook", "reference", "matmul"):
            forward, inputs = layers.build_layer(replace(small_case(name), form=form))
            outputs = forward()
            assert all(
                each.isfinite().all()
                for each in torch.autograd.grad([o.sum() for o in outputs], inputs)
            )
            numbers.add(
                tuple(sum(each.numel() for each in tensors) for tensors in (outputs, inputs))
            )
        assert len(numbers) == 1
    for model, biases in (("capsnet", 0), ("em_caps_paper", 2 * 17)):
        case = small_case(
            model, "options=['model.channels=3','model.primary.types=2','routing.iterations=2']"
        )
        config = cases.training_config(case.overrides)
        networks = models.build_textbook(case, config), models.build_network(case, config).network
        theirs, ours = (
            sum(parameter.numel() for parameter in network.parameters()) for network in networks
        )
        assert theirs == ours + biases
    cnns = (small_case("cnn_small", f"options=['module.l2={weight}']") for weight in (0.0, 1.0))
    losses = [models.build_step(case).loss() for case in cnns]
    assert losses[1] > losses[0]


def test_work_is_counted_as_by_hand() -> None:
    forward = (
        16 * 4 + 2 * (16 + 16) + (16 + 16)
    )  # the vote, mean and variance twice, the distance once
    inputs = 2 * 9 * (16 + 1) + 9 * 3 * 16 + 2 * 3  # poses and activations, transformations, betas
    window = Work(
        routing_operations=2 * 3 * (2 * 9 * 3) * forward,
        full_numbers=3 * inputs + 2 * 2 * 3 * (16 + 1),
    )
    assert roofline.count(small_case("em_window")) == window
    conv, dense, network = (
        roofline.count(small_case(name)) for name in ("em_all_parents", "dynamic", "capsnet")
    )
    assert conv.routing_operations == 6 * 8 * 18 * 3 * 160  # 8 positions, 18 places, 3 parents
    assert conv.full_numbers == 3 * (2 * 25 * 2 * 17 + 18 * 3 * 16 + 6) + 2 * 8 * 3 * 17
    assert dense.routing_operations == 6 * (2 * 6 * 3) * (4 * 5 + 2 * 5 + 5)
    assert dense.full_numbers == 3 * (2 * 6 * 4 + 6 * 4 * 3 * 5 + 3 * 5) + 2 * 2 * 3 * 5
    assert network.routing_operations == 6 * 2 * (2 * 3 * 3) * 10 * (8 * 16 + 3 * 16 + 2 * 16)
    convolutions = 2 * 4 * 13 * 13 * 81 + 3 * 16 * 3 * 3 * 4 * 81  # the images have no gradient
    assert network.operations == 2 * 2 * (
        convolutions + 3 * (160 * 512 + 512 * 1024 + 1024 * 21 * 21)
    )
    row = {"precision": "32-true", "seconds_median": 0.01}
    found = roofline.beside_roofline(row, window, RATES)
    assert (found["operations"], found["bytes"]) == (51_840, 9_744)
    assert found["roofline_percent"] == pytest.approx(100 * 9_744 / 1e8 / 0.01)
    found = roofline.beside_roofline({**row, "precision": "bf16-mixed"}, Work(8, 1, 100, 10), RATES)
    assert (found["bytes"], found["floor_arithmetic_seconds"]) == (240, pytest.approx(3e-9))


@pytest.mark.parametrize("name", cases.KERNELS)
def test_work_of_a_kernel_is_counted_as_by_hand(name: str) -> None:
    (case,) = cases.kernel_cases(configuration("gpu", [*SMALL, f"kernels=[{name}]"]))
    votes, dim = (2 * 4 * 18 * 3, 16) if cases.KERNELS[name] == "em_all_parents" else (2 * 6 * 3, 5)
    poses, weight, above = 2 * 6 * 4, 6 * 4 * 3 * 5, 2 * 3 * 5  # of dynamic routing
    windows, em_weight, parents = 8 * 18 * 16, 18 * 3 * 16, 8 * 3 * 16
    fit = windows + em_weight + 8 * 18 + votes + parents  # its inputs, and their gradients
    fitted = 8 * 3 + 2 * parents
    multiply_adds, numbers = {
        "fit": (votes * (16 * 4 + 4 * 16), fit + fitted + votes),
        "fit_backward": (2 * votes * (16 * 4 + 4 * 16), 2 * fit + 2 * fitted + votes),
        "distances": (votes * (16 * 4 + 2 * 16), windows + em_weight + 2 * parents + votes),
        "softmax_by_child": (0, 2 * votes),
        "softmax_by_child_backward": (0, 3 * votes),
        "weighted_sum": (votes * (4 * dim + dim), poses + weight + votes + above),
        "agreement": (votes * (4 * dim + dim), poses + weight + votes + above),
        "contraction": (
            votes * (3 * dim + 2 * 4 * dim),
            2 * (poses + weight) + 3 * (votes + above),
        ),
    }[name]
    assert roofline.count(case) == Work(routing_operations=2 * multiply_adds, full_numbers=numbers)


def test_unknown_kernel_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^kernels is \['fits'\]; expected a list of values from fit, fit_backward",
    ):
        cases.kernel_cases(configuration("gpu", ["kernels=[fits]"]))


def test_rows_tables_and_file(calls: list[tuple[str, str]], tmp_path: Path, capsys: Any) -> None:
    bench.main(configuration("bench", [*SMALL, "models=[capsnet]", "out=numbers/bench.json"]))
    shown, numbers = (
        capsys.readouterr().out,
        json.loads((tmp_path / "numbers" / "bench.json").read_text()),
    )
    assert [
        text
        for text in ("textbook", "em_window", "capsnet", "1.00x", "least", "GB/s")
        if text not in shown
    ] == []
    assert {"rows", "rates", "hardware", "bench", "command", "commit", "versions", "python"} == set(
        numbers
    )
    assert [row["name"] for row in numbers["rows"]] == [
        name for name in [*LAYERS, "capsnet"] for _ in range(2)
    ]
    for textbook, ours in zip(numbers["rows"][::2], numbers["rows"][1::2], strict=True):
        assert 0 < ours["seconds_fastest"] <= ours["seconds_median"] <= ours["seconds_slowest"]
        assert ours["speedup"] == pytest.approx(textbook["seconds_median"] / ours["seconds_median"])
        assert ours["floor_arithmetic_seconds"] == textbook["floor_arithmetic_seconds"] > 0
    in_turn = [
        (name.split()[1], function) for name, function in calls if name.startswith("dynamic")
    ]
    rounds = ["build_timer", "time_steps", "time_steps", "read_memory"]
    assert in_turn == [
        (form, function) for function in rounds for form in ("(textbook,", "(matmul,")
    ]


def test_profile_and_scaling(calls: list[tuple[str, str]], capsys: Any) -> None:
    bench.main(configuration("bench", [*SMALL, "models=[capsnet]", "profile=true"]))
    assert (
        "optimiser" in capsys.readouterr().out
    )  # which operations are among the slowest depends on the machine
    found = breakdown.break_down(
        {"aten::convolution_backward": 3.0, "capsule_lab::fit": 4.0, "aten::addmm": 1.0}
    )
    assert found["shares"] == {
        "routing": 0.5, "convolutions": 0.375, "matrix products": 0.125, "optimiser": 0, "rest": 0,
    }  # fmt: skip
    bench.main(configuration("bench", [*SMALL, "scaling=children"]))
    assert "ns per vote and iteration" in capsys.readouterr().out
    sizes = {"batch": [1, 2, 4], "iterations": [1, 2, 3, 4, 6], "image_size": [3, 5, 7, 10]}
    for axis, values in sizes.items():
        found = scaling.scaled(configuration("bench", [*SMALL, "batch_size=null"]), axis)
        assert [case.sizes[cases.AXES[axis]] for case in found] == values


def test_path_that_is_not_writable_is_named_before_the_work(
    calls: list[tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "bench.json"
    with pytest.raises(RunError, match=rf"^cannot write {path} \((Not a directory|File exists)\)"):
        bench.main(configuration("bench", [*SMALL, f"out={path}"]))
    assert not calls


@pytest.mark.whole
def test_script_for_a_gpu_writes_after_every_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Here on a CPU; CUDA graphs fail there, and other cases go on."""
    written: list[int] = []
    monkeypatch.setattr(
        gpu.files,
        "write_record",
        lambda _, report: written.append(len(report["rows"])) or kept.update(report),
    )
    monkeypatch.setattr(gpu, "machine_rates", lambda *_, **__: RATES)
    kept: dict[str, Any] = {}
    overrides = [
        *SMALL,
        "kernels=[agreement]",
        "layers=[dynamic]",
        "models=[capsnet]",
        "throughput=[capsnet]",
        "batches=[1,2]",
    ]
    gpu.main(configuration("gpu", [*overrides, "backends=[fused,graphs]"]))
    forms = ["fused", "textbook", "fused", "textbook", "fused", "graphs", "fused", "fused"]
    assert [row["form"] for row in kept["rows"]] == forms
    assert [number for number, row in enumerate(kept["rows"]) if "error" in row] == [5]
    assert written == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (
        kept["rows"][0]["sizes"]
        == "batch_size 2, children 6, child_dim 4, parents 3, parent_dim 5, iterations 2"
    )
    gpu.main(configuration("gpu", [*overrides, "backends=[fused]", "limit=-1"]))
    assert (kept["rows"], len(kept["not_reached"])) == ([], 7)


@pytest.mark.whole
@pytest.mark.integration
def test_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (row,) = timing.time_in_turn([small_case("dynamic")], rounds=2, steps=2)
    assert 0 < row["forward_seconds_median"] < row["seconds_median"] <= row["seconds_slowest"]
    assert 10**8 < row["peak_memory_bytes"] < 10**11
    with (
        timing.Worker("capsnet") as worker,
        pytest.raises(ConfigError, match=r"^capsnet could not be timed: .*memory"),
    ):
        worker.call(os._exit, 1)


@pytest.mark.parametrize("model", ["capsnet", "em_caps_small"])
def test_replayed_steps_are_those_that_are_timed(model: str) -> None:
    case = next(
        group[0]
        for group in cases.model_groups(configuration("bench", [*SMALL, f"models=[{model}]"]))
    )
    plain, replayed = (models.build_step(replace(case, form="fused")) for _ in range(2))
    replayed.network.load_state_dict(plain.network.state_dict())
    with recorded_graphs() as graphs:
        forward, backward_and_update = timing.replayed_passes(replayed, torch.device("cpu"))
        for _ in range(2):
            backward_and_update(forward())
    assert graphs.replays == 6
    with recorded_graphs():
        timing.use_device_values(plain.optimizer, torch.device("cpu"))
    for _ in range(timing.EAGER_STEPS + 2):
        models.take_step(plain)
    for one, other in zip(plain.network.parameters(), replayed.network.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_traffic_counts_arguments_and_results_once(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = torch.zeros(2, 3)
    with traffic.Traffic() as counted:
        (numbers[:, :1] + numbers.T.T).neg()
    assert counted.calls == {"add": 1, "neg": 1}
    assert counted.moved == {"add": 4 * (2 + 6 + 6), "neg": 4 * (6 + 6)}
    traffic.main(
        configuration("bench", [*SMALL, "models=[em_caps_small]", "precisions=[bf16-mixed]"])
    )
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("em_caps_small (fused, bf16-mixed), batch ")
    assert any(row.endswith(" fit_backward") for row in rows)
