import copy
import resource
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from capsule_lab.commands import compose
from capsule_lab.config import build
from capsule_lab.errors import ConfigError
from capsule_lab.runs import memory
from capsule_lab.types import DataSpec
from tests.helpers.commands import interpreter

MEASURE = """
import torch
from contextlib import nullcontext
from pathlib import Path
from capsule_lab.config import build
from capsule_lab.commands import compose
from capsule_lab.runs.memory import estimate
from capsule_lab.types import DataSpec
def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if name in line)
shape = (3, 64, 64)
module = build.build_module(compose("train", ["model=MODEL"]), DataSpec(shape, 3))
need = estimate(module, shape, 64, nullcontext())
optimizer = module.build_optimizer()
def step(size):
    module.network(torch.rand(size, *shape)).ranking.float().sum().backward()
step(2)  # compiles kernels
optimizer.zero_grad()
before = status("VmRSS") - need.weights
for _ in range(2):
    step(64)
    optimizer.step()
    optimizer.zero_grad()
print(sum(need) / (status("VmHWM") - before))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory of a process is read from /proc"
)
@pytest.mark.parametrize(
    "model", ["em_caps_small_normalised", "capsnet model.decoder=null", "efficient_capsnet"]
)
def test_the_estimate_is_near_what_is_measured(model: str, tmp_path: Path) -> None:
    overrides = model.replace(" ", '", "')
    ended = interpreter("-c", MEASURE.replace("MODEL", overrides), cwd=tmp_path)
    assert 0.8 < float(ended.out) < 1.2, ended.err


@pytest.mark.whole
def test_an_estimate_is_logged_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = compose("train", ["model=capsnet_slim", "data=folder", "trainer.accelerator=cpu"])
    spec = DataSpec((3, 32, 32), 3)
    module = build.build_module(config, spec)
    before = copy.deepcopy(module.state_dict())
    random = torch.get_rng_state()
    need = memory.estimate(module, spec.image_shape, 32, nullcontext())
    state = module.network.state_dict()
    assert need.weights == sum(value.nbytes for value in state.values())
    assert need.optimizer == 2 * need.gradients
    more = memory.estimate(module, spec.image_shape, 64, nullcontext())
    assert need.activations < more.activations <= 2 * need.activations
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)
    assert random.equal(torch.get_rng_state())
    for parameter in module.parameters():
        assert parameter.grad is None

    monkeypatch.setattr(memory, "free_bytes", lambda _: sum(need) // 2)
    caplog.set_level("INFO")
    memory.log_need(config, module, spec, build.build_trainer(config.trainer))
    assert "training needs about" in caplog.text
    assert "this is more than is free; the cheapest change is " in caplog.text


def test_need_of_a_run_is_the_estimate_or_a_bound_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose("train", ["model=capsnet_slim", "data=mnist", "trainer.accelerator=gpu"])
    random = torch.get_rng_state()
    need = memory.need_of(config, 0)
    assert random.equal(torch.get_rng_state())
    module = build.build_module(config, DataSpec((1, 28, 28), 10))
    assert need == memory.estimate(module, (1, 28, 28), config.data.batch_size, nullcontext())
    monkeypatch.setattr(memory, "estimate", lambda *_: pytest.fail("estimated"))
    bound = memory.need_of(config, 1e12)
    assert bound[:3] == need[:3]
    assert bound.activations > need.activations


def test_the_advice_keeps_the_proportions_of_oblong_images() -> None:
    config = compose("train", [*LARGE, "model=capsnet", "model.transformation=shared"])
    spec = DataSpec((3, 48, 160), 2)
    options = [option for option, *_ in memory._smaller(config, spec)]
    assert options == ["data.size=[24,80]", "data.size=[12,40]"]


def test_need_of_a_run_that_cannot_be_built_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    assert memory.need_of(compose("train", ["model.channels=0"]), 0) is None
    assert caplog.text == ""


LARGE = ("trainer.accelerator=cpu", "data=folder", "data.size=1024")


@pytest.mark.parametrize(
    ("model", "free", "change"),
    [
        ("capsnet", 1e9, "data.size=128"),
        ("capsnet", 12e9, "data.size=256"),
        ("capsnet", 40e9, "model.transformation=shared"),
        ("efficient_capsnet", 12e9, "data.size=512"),
        ("em_caps model.decoder=[512]", 1e9, "data.size=256"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_they_are_built(
    model: str,
    free: float,
    change: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The change that the message names is enough, and the check leaves no trace."""
    monkeypatch.setattr(memory, "free_bytes", lambda _: int(free))
    overrides = [*LARGE, *f"model={model}".split()]
    random = torch.get_rng_state()
    message = rf"^training needs [\d.]+ GB \(weights .*; the cheapest change is {change}$"
    with pytest.raises(ConfigError, match=message):
        memory.check_weights(compose("train", overrides), DataSpec((1, 1024, 1024), 2))
    size = int(change.partition("data.size=")[2] or 1024)
    memory.check_weights(compose("train", [*overrides, change]), DataSpec((1, size, size), 2))
    assert caplog.text == ""
    assert random.equal(torch.get_rng_state())


@pytest.mark.parametrize("model", ["capsnet", "em_caps"])
def test_weights_that_fit_are_accepted(model: str) -> None:
    config = compose("train", [f"model={model}", "trainer.accelerator=cpu"])
    memory.check_weights(config, DataSpec((1, 28, 28), 10))


def test_a_network_that_cannot_be_built_without_values_is_left_to_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # raises an error on the meta device, as a network does that reads a number of its weights
    monkeypatch.setattr(build, "build_module", lambda *_: torch.zeros(1).item())
    memory.check_weights(compose("train", ["trainer.accelerator=cpu"]), DataSpec((1, 28, 28), 10))


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="free memory is read from /proc")
def test_free_memory_is_within_the_limit_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert memory.free_bytes(cpu) > 0
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 10**8, used + 10**8))
    assert memory.free_bytes(cpu) == pytest.approx(10**8, rel=0.2)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1))
    assert memory.free_bytes(cpu) == 0
