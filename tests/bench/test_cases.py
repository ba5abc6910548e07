"""What can be timed, at which sizes, and what is refused before a process starts."""

from __future__ import annotations

import pytest

from capsule_lab import bench
from capsule_lab.bench import cases
from capsule_lab.config.compose import compose, options_of
from capsule_lab.errors import ConfigError
from tests.helpers.bench import small_bench, small_case


@pytest.mark.parametrize(
    ("model", "forms"),
    [
        ("cnn_smallnorb", ["plain", "plain"]),
        ("em_caps_small", ["textbook", "matmul", "fused", "matmul", "fused"]),
    ],
)
def test_forms_of_a_model(model: str, forms: list[str]) -> None:
    overrides = ["backends=[matmul,fused]", "precisions=[bf16-mixed,32-true]", "options=[]", f"models=[{model}]"]
    (group,) = cases.model_groups(small_bench(*overrides))
    assert [each.form for each in group] == forms
    assert [each.precision for each in group][-1] == "32-true"


def test_model_without_a_decoder_has_no_textbook_form() -> None:
    (group,) = cases.model_groups(small_bench("models=[capsnet]", "options=['model.decoder=null']"))
    assert [each.form for each in group] == ["matmul"]


@pytest.mark.parametrize("model", options_of("model"))
def test_every_model_has_sizes(model: str) -> None:
    sizes = cases.sizes_of(compose("bench"), model, cases.training_config([f"model={model}"]))
    assert list(sizes) == list(cases.SIZES)


@pytest.mark.parametrize(
    ("model", "options", "sizes"),
    [
        ("capsnet", [], (128, [1, 28, 28], 10)),
        ("cnn_multimnist", [], (128, [1, 36, 36], 10)),
        ("cnn_affnist", [], (128, [1, 40, 40], 10)),
        ("capsnet", ["data=smallnorb", "data.batch_size=7"], (7, [2, 32, 32], 5)),
        ("em_caps_paper", [], (16, [2, 32, 32], 5)),
        ("capsnet_cifar10", [], (128, [3, 24, 24], 10)),
    ],
)
def test_sizes_are_those_of_the_data_unless_configured(
    model: str, options: list[str], sizes: tuple[int, list[int], int]
) -> None:
    chosen = cases.training_config([f"model={model}", *options])
    assert tuple(cases.sizes_of(compose("bench"), model, chosen).values()) == sizes


def test_sizes_on_the_command_line_are_those_of_all_cases() -> None:
    assert small_case("capsnet").sizes == {"batch_size": 2, "image_shape": [1, 21, 21], "num_classes": 10}
    assert small_case("dynamic", "batch_size=3").sizes["batch_size"] == 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rounds=0"], "rounds is 0; expected a whole number, 1 or more"),
        (["steps=0"], "steps is 0; expected a whole number, 1 or more"),
        (["models=[capsnot]"], "models is ['capsnot']; expected a list of some of capsnet, "),
        (["models=capsnet"], "models is capsnet; expected a list of texts"),
        (["layers=[em]"], "layers is ['em']; expected a list of some of dynamic, em_all_parents, em_window"),
        (["backends=[slow]"], "backends is ['slow']; expected a list of some of compiled, fused, matmul, reference"),
        (["precisions=[8bit]"], "precisions is ['8bit']; expected a list of some of 32-true, bf16-mixed"),
        (["backends=[]"], "backends or precisions is empty"),
        (["layers=[]", "models=[]"], "layers and models are both empty"),
        (["profile=true", "models=[]"], "profile is true, but models is empty"),
        (["device=tpu"], "device is tpu; expected auto, cpu or cuda"),
        (["scaling=depth"], "scaling is depth; expected one of batch, children, parents, iterations, image_size, all"),
        (["scaling=all", "profile=true"], "scaling is all and profile true; expected one of them"),
        (["batch_size=0"], "batch_size is 0; expected a whole number, 1 or more, or null"),
        (["sizes.em_window.rows=0"], "sizes.em_window.rows is 0; expected a whole number, 1 or more"),
        (["image_shape=[1,two,3]"], "image_shape is [1, 'two', 3]; expected a list of whole numbers or null"),
        (["options=['model.chanels=3']"], "options: model.chanels does not exist"),
        (["options=['routing=em']", "models=[cnn_baseline]"], "options: BaselineCNN does not route"),
    ],
    ids=str,
)
def test_refused_before_a_process_starts(calls: list[tuple[str, str]], overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        bench.measure(small_bench(*overrides))
    assert str(refused.value).startswith(message)
    assert calls == []


def test_fused_kernels_that_do_not_run_here_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "fused_kernels", lambda _: "no numba")
    with pytest.raises(
        ConfigError, match=r"^backends has fused, which does not run here: no numba; expected backends=\[matmul\]$"
    ):
        cases.check_bench(small_bench("backends=[fused]"))
