"""Each mistake gets one sentence, before anything is written; what only looks odd works.

The tables have what is typed after ``python -m capsule_lab.train`` and how the message begins, or has after ``…``;
``None`` if a run starts.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab.config import build
from capsule_lab.config.arguments import own_folders, prepared
from capsule_lab.config.check import check
from capsule_lab.config.compose import compose, user_message
from capsule_lab.errors import ConfigError, DataError
from tests.helpers.commands import TINY, TINY_DATA, Ended, Trained, interpreter
from tests.helpers.messages import one_sentence

Cli = Callable[..., Ended]

WORDS = {
    "capsnet": "capsnet does not have the form key=value; did you mean model=capsnet?",
    "=3": "=3 has no key; expected key=value",
    "--epochs 5": "--epochs is not an option; expected key=value without dashes: trainer.max_epochs=5",
    "--multirn seed=1": "--multirn is not an option; did you mean --multirun?",
    "--config-dir nowhere": "folder nowhere does not exist; expected a folder with files such as ",
    "hydra.run.dir=x": "hydra.run.dir=x would only create an empty folder; expected train.directory=",
    "train.test=[": "train.test=[ cannot be read as key=value; put quotes around ",
}
OPTIONS = {
    "model=capsnot": "model=capsnot does not exist; did you mean capsnet? Options: capsnet, ",
    "model=3": "model=3 does not exist; Options: capsnet, ",
    "logger=[csv,foo]": "logger=foo does not exist; Options: csv, ",
    "debug=[smoke,overfit]": "debug=[smoke,overfit] has several options; expected one, or -m debug=smoke,overfit to ",
    "data=null": "data=null leaves out a required part; expected data= one of affnist, cifar10, ",
    "routing=null": "CapsNet routes, but routing is none; expected routing= one of ",
    "logger=[csv,tensorboard]": None,
    "~data": "data is missing; expected data= one of affnist, ",
}
KEYS = {
    "modle=capsnet": "modle does not exist; did you mean model? Options: callbacks, ckpt, ",
    "lr=1": "lr does not exist; did you mean schedule.learning_rate.initial? ",
    "+optimizer.lr=1": "optimizer.lr is 1; expected schedule.learning_rate.initial=…",
    "model.routing.iterations=1": "model.routing.iterations does not exist; did you mean routing.iterations? ",
    "+train.tset=last": "train.tset does not exist; did you mean train.test? ",
    "model._target_=capsule_lab.networks.CapNet": "model._target_ is capsule_lab.networks.CapNet, which cannot be",
    "hydra.foo=1": "hydra.foo is not an option of Hydra; python -m capsule_lab.train --cfg hydra lists them",
    "seed=${nowhere}": "…nowhere",
}
VALUES = {
    "seed=-1": "seed is -1; expected a whole number, 0 to 4294967295",
    "train=null": "train is null; expected options such as train.resume=true",
    "class_routing=3": "class_routing is 3; expected {key: value} or null",
    "callbacks.best=3": "callbacks.best is 3; expected null, or options with a _target_",
    "callbacks=stop_at_error": "callbacks.stop_at_error.stopping_threshold is missing and has no default; ",
    "data.batch_size=1.5": "data.batch_size is 1.5; expected a whole number",
    "data.source=genuine": "data.source is 'genuine'; expected 'auto', 'real' or 'standin'",
    "schedule.learning_rate.initial=nan": "schedule.learning_rate.initial is nan; expected a finite number",
    "module.compile=fast": "module.compile is fast; expected true or false or 'reduce-overhead', 'max-autotune' or",
    "trainer.max_epochs=-1": "the run has no end; set trainer.max_epochs or trainer.max_steps",
    "trainer.max_time=5": "trainer.max_time is 5; expected days:hours:minutes:seconds",
    "trainer.max_time={minutes: 1}": None,
    "trainer.precision=64-true": "trainer.precision is 64-true; expected one of auto, 32-true, bf16-mixed",
    "trainer.val_check_interval=0": "trainer.val_check_interval is 0; expected 1 or more batches, or a share",
}
PARTS = {
    "model=cnn_baseline routing=uniform": "BaselineCNN does not route, so UniformRouting would have no effect; leave",
    "model=cnn_smallnorb loss=margin": "margin_loss expects activations, but BaselineCNN gives logits; use ",
    "loss=squared_error": "CapsNet classifies; expected loss=margin, or another with loss.classification",
    "model=transforming_autoencoder loss=margin": "TransformingAutoencoder draws the second image of a pair; expected",
    "callbacks=pairs": "callbacks=pairs is for pairs, but CapsNet classifies; use callbacks=default",
    "schedule.learning_rate=null": "module: the schedule has no entry; expected one named learning_rate",
    "module.cuda_graphs=true": "module.cuda_graphs is true, and training is on cpu; expected a GPU with CUDA, or",
    "model.channels=0": "model: CapsNet has channels 0; expected 1 or more",
    "model=em_caps_paper routing=dynamic routing.leaky=true": "model: routing.leaky is true",
    "model=em_caps_paper +class_routing.cots=paper": "model: class_routing has ",
    "data.batch_size=0": "data: batch sizes are 0 and 500; expected 1 or more",
    "trainer.num_nodes=2": "trainer.num_nodes is 2, but no variable describes the nodes",
    "trainer.val_check_interval=99999": "trainer.val_check_interval is 99999, but an epoch has 4 batches",
    "callbacks.best.monitor=val/acc": "BestCheckpoint: monitor is val/acc; ",
}


@functools.cache
def default_data() -> Any:
    data = build.build_data(compose("train", TINY))
    data.setup("fit")
    return data


def message_for(words: str, folder: Path) -> str | None:
    """What ``train`` says to these words before it creates a directory, if it refuses them."""
    base = [] if words.startswith("~") else TINY_DATA if "model=" in words else TINY
    given = [*base, *([words] if "{" in words else words.split())]
    overrides: list[str] = []
    message = None
    try:
        own_folders(given)
        overrides = prepared(given, "train")
        config = compose("train", overrides)
        check(config)
        data = default_data()
        if any(key in words for key in ("data.", "seed=")):
            data = build.build_data(config)
            with build.constructing("data"):
                data.setup("fit")
        with torch.device("meta"):
            module = build.build_module(config, data.spec)
        build.check_together(build.build_trainer(config, folder), module, data)
    except Exception as error:
        message = user_message(error, "train", overrides)
        message = message or f"no sentence for {error!r}"
    assert "\n" not in (message or "")
    return message


def fits(message: str | None, expected: str | None) -> bool:
    if message is None or expected is None:
        return message is expected
    return expected[1:] in message if expected.startswith("…") else message.startswith(expected)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "table", [WORDS, OPTIONS, KEYS, VALUES, PARTS], ids=["words", "options", "keys", "values", "parts"]
)
def test_a_mistake_gets_a_sentence(tmp_path: Path, table: dict[str, str | None]) -> None:
    build.quiet_lightning_logs()
    found = {words: message_for(words, tmp_path / "run") for words in table}
    assert {words: message for words, message in found.items() if not fits(message, table[words])} == {}
    assert list(tmp_path.iterdir()) == []


def test_a_notebook_gets_the_same_sentences(tmp_path: Path) -> None:
    from capsule_lab.train import train

    for override, message in (("seed=-1", VALUES["seed=-1"]), ("modle=capsnet", KEYS["modle=capsnet"])):
        with pytest.raises(ConfigError) as caught:
            compose("train", [override])
        assert fits(str(caught.value), message)
    with pytest.raises(ConfigError, match="expected a whole number"):
        train(compose("train", ["data.batch_size=abc"]), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


OTHERS = {  # of other commands; RUN is a finished run
    "evaluate": "ckpt is missing; expected ckpt=<",
    "evaluate ckpt=nowhere": "no checkpoint at nowhere; expected a .ckpt file or the directory of a run",
    "evaluate ckpt=RUN split=train": "split is 'train'; expected 'test' or 'val'",
    "evaluate ckpt=RUN data.batch_size=7": "data.batch_size does not exist; did you mean +data.batch_size? It ",
    "figures run=RUN image=3": "image does not exist; did you mean images?",
    "report table=smoke columns=[x]": "columns is ['x'], and smoke has one ",
    "sweep table=smoke dry_run=maybe": "dry_run is maybe; expected true or false",
    "sweep table=smoke model=em_caps dry_run=true": "row dynamic: model.class_dim does not exist; ",
    "analyse what=[votes,tree]": "what=[votes,tree] has several options; expected one, or -m what=votes,tree to run",
    "train train.directory=file/run": "cannot write to ",
}


def test_every_command_refuses_in_one_line_and_leaves_nothing(cli: Cli, tmp_path: Path, trained: Trained) -> None:
    (tmp_path / "file").write_text("in the way")
    before = sorted(trained.directory.rglob("*"))
    wrong = {}
    for words, expected in OTHERS.items():
        command, *given = words.replace("RUN", str(trained.directory)).split()
        message = one_sentence(cli(command, *(TINY if command == "train" else []), *given))
        if not message.startswith(expected):
            wrong[words] = message
    assert wrong == {}
    assert sorted(trained.directory.rglob("*")) == before
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "file"]


@pytest.mark.whole
def test_process_refuses_and_shows_the_traceback_if_told(tmp_path: Path) -> None:
    misspelt = ("-m", "capsule_lab.train", "trainer.max_epoch=3")
    one_sentence(interpreter(*misspelt, cwd=tmp_path))
    assert "Traceback" in interpreter(*misspelt, cwd=tmp_path, HYDRA_FULL_ERROR="1").err
    assert list(tmp_path.iterdir()) == []


def test_errors_that_are_no_mistakes_of_a_configuration() -> None:
    """Ours keep their message, the limits of the machine get one, and faults of the code none."""
    for error, message in {
        DataError("no such file"): "no such file",
        OSError(errno.ENOSPC, "No space left", "last.ckpt"): "last.ckpt cannot be written or read: No space left",
        PermissionError(errno.EACCES, "Permission denied"): "a file cannot be written or read: Permission denied",
        RuntimeError("DefaultCPUAllocator: can't allocate memory"): "not enough memory (Default",
        FileNotFoundError(errno.ENOENT, "No such file", "x"): None,
        ValueError("ours"): None,
    }.items():
        assert fits(user_message(error), message), error


def test_faults_of_the_code_are_not_hidden(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "build_data", None)
    with pytest.raises(TypeError, match="not callable"):
        cli("train", *TINY)
