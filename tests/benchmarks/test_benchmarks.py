"""What is timed, at which sizes, against which limits; and that both scripts show and write what they found."""

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from benchmarks import __main__ as bench
from benchmarks import breakdown, cases, gpu, layers, models, roofline, scaling, timing, traffic
from benchmarks.cases import Case, configuration
from benchmarks.recorded_graphs import recorded_graphs
from benchmarks.roofline import Work
from capsule_lab.config.folders import options_of
from capsule_lab.errors import ConfigError, RunError
from capsule_lab.lit.captured_step import EAGER_STEPS
from tests.helpers.tiers import whole_but

SMALL = [
    "device=cpu",
    "rounds=2",
    "steps=1",
    "precisions=[32-true]",
    "backends=[matmul]",
    "batch_size=2",
    "options=['model.channels=4','model.primary.types=2']",
    "image_shape=[1,21,21]",
    "sizes.em_window={rows: 2, children: 9, parents: 3, iterations: 2}",
    "sizes.em_all_parents={batch_size: 2, grid: 5, child_types: 2, parents: 3, iterations: 2}",
    "sizes.dynamic={batch_size: 2, children: 6, child_dim: 4, parents: 3, parent_dim: 5, iterations: 2}",
    "sizes.scaling={batch_size: 1, grid: 5, child_types: 2, parents: 4, iterations: 2}",
]
LAYERS = ["em_window", "em_all_parents", "dynamic"]
RATES = {
    "float32_operations_per_second": 1e9,
    "bfloat16_operations_per_second": 4e9,
    "bytes_per_second": 1e8,
}


def small_config(*overrides: str, script: str = "bench") -> Any:
    return configuration(script, [*SMALL, *overrides])


def small_case(name: str, *overrides: str) -> Case:
    """The last case of a layer or model."""
    config = small_config(*overrides)
    config.layers = config.models = [name]
    groups = cases.layer_groups if name in LAYERS else cases.model_groups
    ((*_, last),) = groups(config)
    return last


def forms(found: list[Case]) -> list[str]:
    return [case.form for case in found]


def count(tensors: Iterable[torch.Tensor]) -> int:
    """Numbers in all tensors."""
    return sum(tensor.numel() for tensor in tensors)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Workers start no process; what they were called for, as (worker, function)."""
    found: list[tuple[str, str]] = []

    class InThisProcess(timing.Worker):
        def __init__(self, name: str) -> None:
            self.name = name
            self.timer = None

        def __exit__(self, *_: object) -> None: ...

        def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
            found.append((self.name, function.__name__))
            timing._timer = self.timer  # type: ignore[assignment]
            result = function(*arguments)
            self.timer = timing._timer  # type: ignore[assignment]
            return result

    monkeypatch.setattr(timing, "Worker", InThisProcess)
    monkeypatch.setattr(breakdown, "Worker", InThisProcess)
    monkeypatch.setattr(timing, "_timer", None, raising=False)
    monkeypatch.setattr(roofline, "MATRIX", 64)
    monkeypatch.setattr(roofline, "ARRAY", 1024)
    monkeypatch.setattr(timing, "PAUSE", 0.0)
    monkeypatch.setenv("COLUMNS", "300")
    return found


WRONG = {
    "rounds=0": "rounds is 0 and steps 1; expected 1 or more",
    "models=[capsnot]": "models is ['capsnot']; expected a list of values from capsnet, ",
    "models=capsnet": "models is capsnet; expected a list of values from capsnet, ",
    "layers=[em]": "layers is ['em']; expected a list of values from dynamic, em_all_parents",
    "backends=[]": "backends or precisions is empty",
    "layers=[] models=[]": "layers and models are both empty",
    "profile=true models=[]": "profile is true, but models is empty",
    "device=tpu": "device is tpu; expected auto, cpu or cuda",
    "scaling=depth": "scaling is depth; expected one of batch, children, parents, iterations",
    "batch_size=0": "batch_size of em_all_parents is 0; expected 1 or more",
    "options=['model.chanels=3']": "options: model.chanels does not exist",
    "bath_size=2": "Key 'bath_size' is not in struct",
}


@pytest.mark.parametrize("overrides", WRONG)
def test_refused_before_a_process_starts(calls: list[tuple[str, str]], overrides: str) -> None:
    message = re.escape(WRONG[overrides])
    with pytest.raises(ConfigError, match=f"^{message}"):
        bench.main(small_config(*overrides.split()))
    assert calls == []


def test_forms_of_models() -> None:
    overrides = ["models=[em_caps_small,cnn_smallnorb]", "device=cpu"]
    config = configuration("bench", overrides)
    em, cnn = cases.model_groups(config)
    assert forms(em) == ["textbook", "matmul", "fused", "matmul", "fused"]
    assert forms(cnn) == ["plain", "plain"]
    precisions = [case.precision for case in cnn]
    assert precisions == ["bf16-mixed", "32-true"]


def test_textbook_form_has_a_decoder() -> None:
    overrides = [
        "models=[capsnet]",
        "backends=[matmul]",
        "precisions=[32-true]",
        "options=['model.decoder=null']",
    ]
    without = configuration("bench", overrides)
    (group,) = cases.model_groups(without)
    assert forms(group) == ["matmul"]


def test_sizes_of_models() -> None:
    case = small_case("capsnet")
    assert case.sizes == {"batch_size": 2, "image_shape": [1, 21, 21], "num_classes": 10}


@pytest.mark.parametrize(
    ("overrides", "shape"),
    [
        (["model=cnn_multimnist"], [1, 36, 36]),
        (["model=capsnet", "data=smallnorb"], [2, 32, 32]),
    ],
)
def test_images_of_a_model_are_those_of_its_data(overrides: list[str], shape: list[int]) -> None:
    chosen = cases.training_config(overrides)
    sizes = cases.sizes_of(configuration("bench"), "any", chosen)
    assert sizes["image_shape"] == shape


def test_fused_kernels_that_do_not_run_here_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "fused_kernels", lambda _: "no numba")
    config = configuration("bench", ["device=cpu"])
    message = r"fused, which does not run here: no numba; expected backends=\[matmul\]$"
    with pytest.raises(ConfigError, match=message):
        cases.check_bench(config)


@pytest.mark.whole
@pytest.mark.parametrize("model", options_of("model"))
def test_every_model_has_a_step(model: str) -> None:
    chosen = cases.training_config([f"model={model}"])
    sizes = cases.sizes_of(configuration("bench"), model, chosen)
    assert tuple(sizes) == cases.SIZES


@pytest.mark.parametrize("name", LAYERS)
def test_forms_of_a_layer_are_of_the_same_size(name: str) -> None:
    sizes = set()
    case = small_case(name)
    for form in ("textbook", "reference", "matmul"):
        of_form = replace(case, form=form)
        forward, inputs = layers.build_layer(of_form)
        outputs = forward()
        total = sum(output.sum() for output in outputs)
        for gradient in torch.autograd.grad(total, inputs):
            assert gradient.isfinite().all()
        sizes.add((count(outputs), count(inputs)))
    assert len(sizes) == 1


@pytest.mark.parametrize(("model", "biases"), [("capsnet", 0), ("em_caps_paper", 2 * 17)])
def test_textbook_network_is_as_large_as_ours_but_for_biases(model: str, biases: int) -> None:
    options = "options=['model.channels=3','model.primary.types=2','routing.iterations=2']"
    case = small_case(model, options)
    config = cases.training_config(case.overrides)
    theirs = models.build_textbook(case, config)
    ours = models.build_network(case, config).network
    assert count(theirs.parameters()) == count(ours.parameters()) + biases


def test_loss_of_a_model_is_that_of_its_options() -> None:
    losses = []
    for weight in (0.0, 1.0):
        case = small_case("cnn_small", f"options=['module.l2={weight}']")
        step = models.build_step(case)
        losses.append(step.loss())
    without_decay, with_decay = losses
    assert with_decay > without_decay


def of_window() -> Work:
    """Two rows of nine children and three parents, two iterations."""
    vote = 16 * 4
    mean_and_variance = 2 * (16 + 16)
    distance = 16 + 16
    votes = 2 * 9 * 3
    poses_and_activations = 2 * 9 * (16 + 1)
    transformations = 9 * 3 * 16
    betas = 2 * 3
    inputs = poses_and_activations + transformations + betas
    outputs = 2 * 3 * (16 + 1)
    of_a_vote = 2 * (vote + mean_and_variance + distance)
    return Work(
        routing_operations=3 * votes * of_a_vote,
        full_numbers=3 * inputs + 2 * outputs,
    )


def test_work_of_a_window_is_counted_as_by_hand() -> None:
    case = small_case("em_window")
    assert roofline.count(case) == of_window()


def test_work_of_a_convolutional_layer_is_counted_as_by_hand() -> None:
    found = roofline.count(small_case("em_all_parents"))
    positions = 8
    places = 18
    votes = positions * places * 3
    children = 2 * 25 * 2 * 17
    transformations = places * 3 * 16
    betas = 6
    inputs = children + transformations + betas
    outputs = positions * 3 * 17
    assert found.routing_operations == 6 * votes * 160
    assert found.full_numbers == 3 * inputs + 2 * outputs


def test_work_of_a_dense_layer_is_counted_as_by_hand() -> None:
    found = roofline.count(small_case("dynamic"))
    votes = 2 * 6 * 3
    poses = 2 * 6 * 4
    transformations = 6 * 4 * 3 * 5
    bias = 3 * 5
    inputs = poses + transformations + bias
    outputs = 2 * 3 * 5
    assert found.routing_operations == 6 * votes * (4 * 5 + 2 * 5 + 5)
    assert found.full_numbers == 3 * inputs + 2 * outputs


def test_work_of_a_network_is_counted_as_by_hand() -> None:
    network = roofline.count(small_case("capsnet"))
    votes = 2 * (2 * 3 * 3) * 10
    of_a_vote = 8 * 16 + 3 * 16 + 2 * 16
    assert network.routing_operations == 6 * votes * of_a_vote
    first = 2 * 4 * 13 * 13 * 81  # the images have no gradient
    primary = 3 * 16 * 3 * 3 * 4 * 81
    decoder = 3 * (160 * 512 + 512 * 1024 + 1024 * 21 * 21)
    assert network.operations == 2 * 2 * (first + primary + decoder)


def test_roofline_is_the_longer_of_both_times() -> None:
    row = {"precision": "32-true", "seconds_median": 0.01}
    found = roofline.beside_roofline(row, of_window(), RATES)
    assert found["operations"] == 51_840
    assert found["bytes"] == 9_744
    seconds_of_memory = 9_744 / RATES["bytes_per_second"]
    assert found["roofline_percent"] == pytest.approx(100 * seconds_of_memory / 0.01)


def test_roofline_in_bfloat16() -> None:
    row = {"precision": "bf16-mixed", "seconds_median": 0.01}
    work = Work(8, 1, 100, 10)
    found = roofline.beside_roofline(row, work, RATES)
    assert found["bytes"] == 2 * 100 + 4 * 10
    seconds = found["floor_arithmetic_seconds"]
    assert seconds == pytest.approx(8 / 4e9 + 1 / 1e9)


class KernelWork(NamedTuple):
    multiply_adds: int
    numbers: int
    """What it moves."""


def em_work(name: str) -> KernelWork:
    votes = 2 * 4 * 18 * 3
    windows = 8 * 18 * 16
    weight = 18 * 3 * 16
    parents = 8 * 3 * 16
    fit = windows + weight + 8 * 18 + votes + parents  # its inputs, and their gradients
    fitted = 8 * 3 + 2 * parents
    of_distances = windows + weight + 2 * parents  # its inputs
    vote = 16 * 4
    mean_and_variance = 4 * 16
    fit_of_a_vote = vote + mean_and_variance
    distance_of_a_vote = vote + 2 * 16
    work = {
        "fit": KernelWork(votes * fit_of_a_vote, fit + fitted + votes),
        "fit_backward": KernelWork(2 * votes * fit_of_a_vote, 2 * fit + 2 * fitted + votes),
        "distances": KernelWork(votes * distance_of_a_vote, of_distances + votes),
        "softmax_by_child": KernelWork(0, 2 * votes),
        "softmax_by_child_backward": KernelWork(0, 3 * votes),
    }
    return work[name]


def dynamic_work(name: str) -> KernelWork:
    votes = 2 * 6 * 3
    dim = 5
    poses = 2 * 6 * 4
    weight = 6 * 4 * 3 * 5
    above = 2 * 3 * 5
    inputs = poses + weight
    vote = 4 * dim
    once = KernelWork(votes * (vote + dim), inputs + votes + above)
    backward = KernelWork(votes * (3 * dim + 2 * vote), 2 * inputs + 3 * (votes + above))
    work = {
        "weighted_sum": once,
        "agreement": once,
        "contraction": backward,
    }
    return work[name]


@pytest.mark.parametrize("name", cases.KERNELS)
def test_work_of_a_kernel_is_counted_as_by_hand(name: str) -> None:
    config = small_config(f"kernels=[{name}]", script="gpu")
    (case,) = cases.kernel_cases(config)
    work = em_work if cases.KERNELS[name] == "em_all_parents" else dynamic_work
    multiply_adds, numbers = work(name)
    expected = Work(routing_operations=2 * multiply_adds, full_numbers=numbers)
    assert roofline.count(case) == expected


def test_unknown_kernel_is_refused() -> None:
    config = configuration("gpu", ["kernels=[fits]"])
    message = r"^kernels is \['fits'\]; expected a list of values from fit, fit_backward"
    with pytest.raises(ConfigError, match=message):
        cases.kernel_cases(config)


def test_rows_tables_and_file(calls: list[tuple[str, str]], tmp_path: Path, capsys: Any) -> None:
    bench.main(small_config("models=[capsnet]", "out=numbers/bench.json"))
    shown = capsys.readouterr().out
    for text in ("textbook", "em_window", "capsnet", "1.00x", "least", "GB/s"):
        assert text in shown
    file = tmp_path / "numbers" / "bench.json"
    written = json.loads(file.read_text())
    environment = {"hardware", "bench", "command", "commit", "versions", "python"}
    assert written.keys() == {"rows", "rates", *environment}
    textbook_rows = written["rows"][::2]
    our_rows = written["rows"][1::2]
    assert [row["name"] for row in our_rows] == [*LAYERS, "capsnet"]
    for textbook, ours in zip(textbook_rows, our_rows, strict=True):
        assert textbook["name"] == ours["name"]
        assert 0 < ours["seconds_fastest"] <= ours["seconds_median"] <= ours["seconds_slowest"]
        ratio = textbook["seconds_median"] / ours["seconds_median"]
        assert ours["speedup"] == pytest.approx(ratio)
        assert ours["floor_arithmetic_seconds"] == textbook["floor_arithmetic_seconds"] > 0
    in_turn = [call for call in calls if call[0].startswith("dynamic")]
    textbook_case = "dynamic (textbook, 32-true)"
    our_case = "dynamic (matmul, 32-true)"
    assert in_turn == [
        (textbook_case, "build_timer"),
        (our_case, "build_timer"),
        (textbook_case, "time_steps"),
        (our_case, "time_steps"),
        (textbook_case, "time_steps"),
        (our_case, "time_steps"),
        (textbook_case, "read_memory"),
        (our_case, "read_memory"),
    ]


def test_profile_is_shown(calls: list[tuple[str, str]], capsys: Any) -> None:
    """Which operations are among the slowest depends on the machine."""
    bench.main(small_config("models=[capsnet]", "profile=true"))
    shown = capsys.readouterr().out
    assert "optimiser" in shown


def test_operators_are_broken_down_by_family() -> None:
    seconds = {
        "aten::convolution_backward": 3.0,
        "capsule_lab::fit": 4.0,
        "aten::addmm": 1.0,
    }
    found = breakdown.break_down(seconds)
    assert found["shares"] == {
        "routing": 0.5,
        "convolutions": 0.375,
        "matrix products": 0.125,
        "optimiser": 0,
        "rest": 0,
    }


def test_scaling_is_shown(calls: list[tuple[str, str]], capsys: Any) -> None:
    bench.main(small_config("scaling=children"))
    shown = capsys.readouterr().out
    assert "ns per vote and iteration" in shown


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("batch", [1, 2, 4]),
        ("iterations", [1, 2, 3, 4, 6]),
        ("image_size", [3, 5, 7, 10]),
    ],
)
def test_sizes_along_an_axis(axis: str, values: list[int]) -> None:
    config = small_config("batch_size=null")
    size = cases.AXES[axis]
    found = [case.sizes[size] for case in scaling.scaled(config, axis)]
    assert found == values


def test_path_that_is_not_writable_is_named_before_the_work(
    calls: list[tuple[str, str]], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    path = file / "bench.json"
    config = small_config(f"out={path}")
    message = rf"^cannot write {path} \((Not a directory|File exists)\)"
    with pytest.raises(RunError, match=message):
        bench.main(config)
    assert not calls


@pytest.mark.whole
def test_script_for_a_gpu_writes_after_every_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Here on a CPU; CUDA graphs fail there, and other cases go on."""
    written: list[int] = []
    kept: dict[str, Any] = {}

    def keep(_: Path, report: dict[str, Any]) -> None:
        written.append(len(report["rows"]))
        kept.update(report)

    monkeypatch.setattr(gpu.files, "write_record", keep)
    monkeypatch.setattr(gpu, "machine_rates", lambda *_, **__: RATES)
    overrides = [
        "kernels=[agreement]",
        "layers=[dynamic]",
        "models=[capsnet]",
        "throughput=[capsnet]",
        "batches=[1,2]",
    ]
    gpu.main(small_config(*overrides, "backends=[fused,graphs]", script="gpu"))
    rows = kept["rows"]
    assert [row["form"] for row in rows] == [
        "fused",
        "textbook",
        "fused",
        "textbook",
        "fused",
        "graphs",
        "fused",
        "fused",
    ]
    (failed,) = [row for row in rows if "error" in row]
    assert failed["form"] == "graphs"
    assert written == [1, 2, 3, 4, 5, 6, 7, 8]
    sizes = "batch_size 2, children 6, child_dim 4, parents 3, parent_dim 5, iterations 2"
    assert rows[0]["sizes"] == sizes
    gpu.main(small_config(*overrides, "backends=[fused]", "limit=-1", script="gpu"))
    assert kept["rows"] == []
    assert len(kept["not_reached"]) == 7


@pytest.mark.whole
@pytest.mark.integration
def test_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    case = small_case("dynamic")
    (row,) = timing.time_in_turn([case], rounds=2, steps=2)
    median = row["seconds_median"]
    assert 0 < row["forward_seconds_median"] < median <= row["seconds_slowest"]
    assert 10**8 < row["peak_memory_bytes"] < 10**11
    message = r"^capsnet could not be timed: .*memory"
    with timing.Worker("capsnet") as worker, pytest.raises(ConfigError, match=message):
        worker.call(os._exit, 1)


@pytest.mark.parametrize("model", whole_but(["capsnet", "em_caps_small"], "capsnet"))
def test_replayed_steps_are_those_that_are_timed(model: str) -> None:
    case = replace(small_case(model), form="fused")
    plain = models.build_step(case)
    replayed = models.build_step(case)
    replayed.network.load_state_dict(plain.network.state_dict())
    with recorded_graphs() as graphs:
        forward, backward_and_update = timing.replayed_passes(replayed, torch.device("cpu"))
        for _ in range(2):
            backward_and_update(forward())
    assert graphs.replays == 6
    with recorded_graphs():
        timing.use_device_values(plain.optimizer, torch.device("cpu"))
    for _ in range(EAGER_STEPS + 2):
        models.take_step(plain)
    expected = plain.network.state_dict()
    found = replayed.network.state_dict()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_traffic_counts_arguments_and_results_once() -> None:
    numbers = torch.zeros(2, 3)
    with traffic.Traffic() as counted:
        total = numbers[:, :1] + numbers.T.T
        total.neg()
    assert counted.calls == {"add": 1, "neg": 1}
    assert counted.moved == {"add": 4 * (2 + 6 + 6), "neg": 4 * (6 + 6)}


@pytest.mark.whole
def test_traffic_of_a_model_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    traffic.main(small_config("models=[em_caps_small]", "precisions=[bf16-mixed]"))
    shown = capsys.readouterr().out
    assert shown.startswith("em_caps_small (fused, bf16-mixed), batch ")
    assert " fit_backward\n" in shown
