"""Host time of a step: what is counted, that three loops do the same work, and that the script shows and writes it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import host, models
from benchmarks.cases import configuration, training_config
from capsule_lab.config import build
from capsule_lab.errors import ConfigError

FEW = ["rounds=1", "steps=3", "warm_up=1", "listed=2"]


def called() -> int:
    return len("")


def test_calls_between_two_starts_of_steps_are_counted() -> None:
    counter = host.CallCounter(first=1, last=3)
    for _ in range(5):
        called()
        counter()
    calls = counter.calls()
    (own,) = [function for function in calls if function.name.endswith(" called")]
    assert own.name.startswith("tests/benchmarks/test_host.py:")
    assert own.in_python
    assert own.calls == 1
    built_in = host.FunctionCalls("<built-in method builtins.len>", False, 1)
    assert built_in in [*calls]


def test_steps_of_the_warm_up_are_not_timed() -> None:
    clock = host.Clock()
    clock.starts = [0.0, 9.0, 10.0, 12.0]
    assert clock.seconds(warm_up=1) == [1.0, 2.0]


@pytest.mark.parametrize("model", ["capsnet", "em_caps"])
def test_loss_of_other_loops_is_ours(model: str) -> None:
    overrides = host.overrides_of_model(configuration("host"), model)
    config = training_config(overrides)
    data = build.build_data(config)
    data.setup("fit")
    torch.manual_seed(0)
    module = build.build_module(config, data.spec).train()
    first = next(iter(data.train_dataloader()))
    batch = data.transform_batch(first, "train")
    loss = host.loss_of(module)
    torch.testing.assert_close(loss(batch), models.loss_of(module, batch))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("graphs=all", "graphs is all; expected one of none, recorded"),
        (
            "models=[cnn_small]",
            r"models is \['cnn_small'\]; expected a list of values from capsnet, em_caps",
        ),
        ("steps=0", "rounds is 12, steps 0, and batch_size 4; expected 1 or more"),
        ("rounds=1 steps=1", "steps is 1 with rounds=1; expected two or more in all"),
        ("layers=[em]", "Key 'layers' is not in struct"),
    ],
)
def test_refused_before_anything_is_built(
    override: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "measure", None)
    overrides = override.split()
    with pytest.raises(ConfigError, match=f"^{message}"):
        host.main(configuration("host", overrides))


@pytest.mark.whole
@pytest.mark.parametrize("model", ["capsnet", "em_caps"])
def test_rows_tables_and_file(
    model: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    path = tmp_path / "host.json"
    host.main(configuration("host", [*FEW, f"models=[{model}]", f"out={path}"]))
    shown = capsys.readouterr().out
    for text in ("ours", "plain", "bare", "1.00x", "<built-in method"):
        assert text in shown
    written = json.loads(path.read_text())
    ours, plain, bare = written["loops"]
    assert ours["loop"] == "ours"
    assert plain["loop"] == "plain"
    assert bare["loop"] == "bare"
    assert ours["python_calls"] > plain["python_calls"] > bare["python_calls"] > 100
    assert ours["builtin_calls"] > plain["builtin_calls"] > bare["builtin_calls"] > 100
    for row in (ours, plain, bare):
        assert row["steps"] == 3
        seconds = row["seconds_tenth_percentile"]
        assert seconds > 0
        to_plain = seconds / plain["seconds_tenth_percentile"]
        to_bare = seconds / bare["seconds_tenth_percentile"]
        assert row["to_plain"] == pytest.approx(to_plain)
        assert row["to_bare"] == pytest.approx(to_bare)
        assert len(row["functions"]) == 2
