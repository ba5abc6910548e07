"""All forms of a layer have the same sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from capsule_lab.bench import layers
from capsule_lab.bench.cases import LAYERS
from tests.helpers.bench import small_case


@pytest.mark.parametrize("name", LAYERS)
def test_forms_of_a_layer_do_the_same(name: str) -> None:
    numbers = []
    for form in ("textbook", "reference", "matmul"):
        forward, inputs = layers.build_layer(replace(small_case(name), form=form))
        outputs = forward()
        gradients = torch.autograd.grad([output.sum() for output in outputs], inputs)
        assert all(gradient.isfinite().all() for gradient in gradients)
        numbers.append(tuple(sum(each.numel() for each in tensors) for tensors in (outputs, inputs)))
    assert numbers[0] == numbers[1] == numbers[2]


@pytest.mark.parametrize("name", LAYERS)
def test_compiled_form_is_matmul_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda forward: compiled.append(forward) or forward)
    case = replace(small_case(name), form="compiled")
    assert case.backend == "matmul"
    forward, _ = layers.build_layer(case)
    assert compiled == [forward]
    torch.testing.assert_close(forward(), layers.build_layer(small_case(name))[0]())
