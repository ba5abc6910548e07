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
from capsule_lab.config.compose import compose, options_of, user_message
from capsule_lab.errors import ConfigError, DataError
from tests.helpers.commands import TINY, TINY_DATA, Ended, Trained, interpreter
from tests.helpers.messages import one_sentence

Cli = Callable[..., Ended]

WORDS = {
    "capsnet": "capsnet is no key=value; did you mean model=capsnet?",
    "nonsense": "nonsense is no key=value; --help shows the keys",
    "seed": "seed is no key=value; ",
    "=3": "=3 has no key; expected key=value",
    "--epochs 5": "--epochs is no option; expected key=value without dashes: trainer.max_epochs=5",
    "--lr=0.1": "--lr is no option; expected key=value without dashes: schedule.learning_rate.initial=0.1",
    "--multirn seed=1": "--multirn is no option; did you mean --multirun?",
    "--model capsnet": "--model is no option; expected key=value without dashes: model=capsnet",
    "--config-dir nowhere": "there is no folder nowhere; expected one that holds such as ",
    "hydra.run.dir=x": "hydra.run.dir=x would only make an empty folder; expected train.directory=",
    "train.test=[": "train.test=[ cannot be read as key=value; expected quotes around ",
    "model=capsnet,cnn_baseline": "Ambiguous value for argument 'model=capsnet,cnn_baseline'",
    "+routing=dynamic": "routing appears more than once",
    "++trainer=default": "…'++trainer=default'",
    "+seed=7": "Could not append to config. An item is already at 'seed'",
    "~trainer.foo": "Could not delete from config. 'trainer.foo' does not exist.",
}
OPTIONS = {
    "model=capsnot": "model=capsnot does not exist; did you mean capsnet? Options: capsnet, ",
    "model=3": "model=3 does not exist; Options: capsnet, ",
    "data=mnits": "data=mnits does not exist; did you mean mnist? Options: affnist, ",
    "data=CIFAR10": "data=CIFAR10 does not exist; did you mean cifar10? ",
    "experiment=svhn": "experiment=svhn does not exist; did you mean hahn2019/svhn? ",
    "experiment=sabour2017/nope": "experiment=sabour2017/nope does not exist",
    "+debug=fast": "debug=fast does not exist; Options: ",
    "logger=[csv,foo]": "logger=foo does not exist; Options: csv, ",
    "debug=[smoke,overfit]": "debug=[smoke,overfit] names several; debug= takes one, -m debug=smoke,overfit runs each",
    "data=null": "data=null leaves out what is needed; expected data= one of affnist, cifar10, ",
    "trainer=none": "trainer=none leaves out what is needed; expected trainer= one of default",
    "routing=null": "CapsNet routes, but routing is none; expected routing= one of ",
    "logger=null": None,
    "logger=[csv,tensorboard]": None,
    "callbacks=none": None,
    "experiment=null debug=none": None,
    "~data": "data is missing; expected data= one of affnist, ",
    "~loss": "loss is missing; expected loss= one of cross_entropy, ",
    "~schedule": "schedule is missing; expected schedule= one of constant, ",
    "~optimizer": "optimizer is missing; expected optimizer= one of adam",
    "~model": "model is missing; expected model= one of capsnet, ",
    "~module": "module is missing; expected module= one of capsnet, classifier",
    "~trainer": "trainer is missing; expected trainer= one of default",
}
KEYS = {
    "modle=capsnet": "modle does not exist; did you mean model? Options: callbacks, ckpt, ",
    "sede=3": "sede does not exist; did you mean seed? ",
    "lr=1": "lr does not exist; did you mean schedule.learning_rate.initial? ",
    "schedule=constant lr=1": "lr does not exist; did you mean schedule.learning_rate.value? ",
    "optimizer.lr=1": "optimizer.lr does not exist; did you mean schedule.learning_rate.initial? ",
    "+optimizer.lr=1": "optimizer.lr is 1; expected schedule.learning_rate.initial=…",
    "epochs=5": "epochs does not exist; did you mean trainer.max_epochs? ",
    "+batch_size=5": "batch_size does not exist; did you mean data.batch_size?",
    "model.routing.iterations=1": "model.routing.iterations does not exist; did you mean routing.iterations? ",
    "dataset=mnist": "dataset does not exist; did you mean data? ",
    "trainer.max_epoch=3": "trainer.max_epoch does not exist; did you mean trainer.max_epochs? ",
    "trainer.fast_dev_run=1": "…(+trainer.fast_dev_run=… adds it)",
    "trainer/max_epochs=3": "trainer/max_epochs does not exist",
    "routing=uniform routing.iterations=2": "routing.iterations does not exist; ",
    "routing.iterations.more=2": "routing.iterations.more does not exist; did you mean routing.iterations? ",
    "callbacks.best.monitr=x": "callbacks.best.monitr does not exist; did you mean callbacks.best.monitor? ",
    "+callbacks.best.monitr=x": "callbacks.best.monitr does not exist; did you mean callbacks.best.monitor? ",
    "+train.tset=last": "train.tset does not exist; did you mean train.test? ",
    "+trian.test=last": "trian does not exist; did you mean train",
    "+callbacks.mine={_target_: capsule_lab.callbacks.AtomicCheckpointIO, speed: 3}": "callbacks.mine.speed does not",
    "model._target_=capsule_lab.networks.CapNet": "model._target_ is capsule_lab.networks.CapNet, which cannot be",
    "module._target_=lightning.LightningModule": "module.loss does not exist; lightning.LightningModule takes no",
    "hydra.foo=1": "hydra.foo is no option of Hydra; python -m capsule_lab.train --cfg hydra lists them",
    "seed=${nowhere}": "…nowhere",
}
VALUES = {
    "seed=-1": "seed is -1; expected a whole number, 0 to 4294967295",
    "seed=abc": "seed is abc; expected a whole number, 0 to ",
    "seed=": "seed is an empty text; expected a whole number",
    f"seed={10**30}": f"seed is {10**30}; expected a whole number, 0 to 4294967295",
    "train.resume=maybe": "train.resume is maybe; expected true or false",
    "train.test=bset": "train.test is 'bset'; expected 'best', 'last' or 'none'",
    "train.directory=3": "train.directory is 3; expected text or null",
    "train=null": "train is null; expected options such as train.resume=true",
    "class_routing=3": "class_routing is 3; expected {key: value} or null",
    "callbacks.best=3": "callbacks.best is 3; expected null, or options that have a _target_",
    "callbacks=stop_at_error": "callbacks.stop_at_error.stopping_threshold is missing; expected callbacks.stop",
    "data.batch_size=1.5": "data.batch_size is 1.5; expected a whole number",
    "data.batch_size=true": "data.batch_size is True; expected a whole number",
    "data.eval_batch_size=null": "data.eval_batch_size is null; expected a whole number",
    "data.directory=3": "data.directory is 3; expected text or null",
    "data.source=genuine": "data.source is 'genuine'; expected 'auto', 'real' or 'standin'",
    "model.hidden=[32,8]": "model.hidden is [32, 8]; expected a list of lists of whole numbers",
    "model.decoder=512": "model.decoder is 512; expected a list of whole numbers or null",
    "optimizer.betas=[0.9]": "optimizer.betas is [0.9]; expected a list of 2 numbers",
    "schedule.learning_rate.initial=nan": "schedule.learning_rate.initial is nan; expected a finite number",
    "module.compile=fast": "module.compile is fast; expected true or false or 'reduce-overhead', 'max-autotune' or",
    "module.compile=reduce-overhead": None,
    "trainer.max_epochs=-1": "the run has no end: set trainer.max_epochs or trainer.max_steps",
    "trainer.max_steps=0": "trainer.max_steps is 0; expected 1 or more, or -1 for none",
    "trainer.max_steps=null": "trainer.max_steps is null; expected a whole number",
    "trainer.accumulate_grad_batches=0": "trainer.accumulate_grad_batches is 0; expected 1 or more",
    "trainer.max_time=5": "trainer.max_time is 5; expected days:hours:minutes:seconds",
    "trainer.max_time={minutes: 1}": None,
    "trainer.precision=64-true": "trainer.precision is 64-true; expected one of auto, 32-true, bf16-mixed",
    "trainer.strategy=ddp_spawn": "trainer.strategy is ddp_spawn, which copies this process; expected auto or",
    "trainer.limit_train_batches=0.0": "trainer.limit_train_batches is 0.0; expected 1 or more batches, or a share",
    "trainer.val_check_interval=0": "trainer.val_check_interval is 0; expected 1 or more batches, or a share",
    "+trainer.overfit_batches=2": "trainer.overfit_batches is 2, which cannot be used here; debug=overfit trains",
}
PARTS = {
    "routing=none": "CapsNet routes, but routing is none",
    "model=cnn_baseline routing=uniform": "BaselineCNN does not route, so UniformRouting would change nothing: leave",
    "model=cnn_baseline routing=none schedule=constant": None,
    "model=cnn_smallnorb loss=margin": "margin_loss expects activations; BaselineCNN gives logits: loss=cross_entropy",
    "model=cnn_small loss=cross_entropy_logits": None,
    "loss=squared_error": "CapsNet classifies; expected loss=margin, or another with loss.classification",
    "model=transforming_autoencoder loss=margin": "TransformingAutoencoder draws the second image of a pair; expected",
    "callbacks=pairs": "callbacks=pairs is of pairs, and CapsNet classifies; expected callbacks=default",
    "schedule=hinton2018 loss=spread schedule.margin=null": None,
    "schedule.learning_rate=null": "module: the schedule has no entry; expected one named learning_rate",
    "schedule.learning_rate=3": "module: schedule.learning_rate is 3; expected a schedule, such as Constant",
    "schedule=constant schedule.learning_rate.value=-1": "module: schedule.learning_rate is -1 at the start",
    "schedule.learning_rate.initial=0": "…initial is 0; expected more than 0",
    "schedule.learning_rate.floor=-1": "…floor is -1; expected 0 to 0.001",
    "schedule.learning_rate.every=often": "…duration is 'often'; expected such as '2000 steps'",
    "loss.reconstruction.weight=-5": "…weight is -5; expected 0 or more",
    "loss.classification.present=0.1": "…absent is 0.1 and present is 0.1; expected absent to be the smaller",
    "loss.classification.reduction=mean": "…reduction is 'mean'; expected 'paper' or 'official'",
    "+module.l2=-1": "module: l2 is -1; expected 0 or more",
    "module.cuda_graphs=true": "module.cuda_graphs is true, and training is on cpu; expected a GPU with CUDA, or",
    "model.channels=0": "model: CapsNet has channels 0; expected 1 or more",
    "model.kernel_size=100": "…images are 28x28; CapsNet needs at least 199x199",
    "routing.iterations=0": "…routing iterations is 0; expected 1",
    "data.batch_size=0": "data: batch sizes are 0 and 500; expected 1 or more",
    "data.shift=100": "data.shift is 100; expected fewer than the 28 pixels of the images",
    "data.validation_share=2": "…data.validation_share is 2, 2876 of 1438 images",
    "data.train_images=100000": "…data.train_images is 100000; expected 1 to 1198",
    "optimizer.betas=[2,2]": "…beta",
    "trainer.accelerator=tpu": "trainer: ",
    "trainer.limit_train_batches=-1": "trainer: ",
    "trainer.num_nodes=2": "trainer.num_nodes is 2, and nothing says which these are",
    "trainer.val_check_interval=99999": "trainer.val_check_interval is 99999, and an epoch has 4 batches",
    "trainer.val_check_interval=2": None,
    "logger.csv._target_=builtins.int": "logger.csv: ",
    "callbacks.last.every_minutes=-1": "…every_minutes is -1; expected 0 or more",
    "callbacks.best.monitor=val/acc": "BestCheckpoint: monitor is val/acc; ",
    "callbacks.best.monitor=val/coupling_entropy": None,
    "callbacks.best.monitor=val/margin": None,
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

    for override, message in {**VALUES, "modle=capsnet": KEYS["modle=capsnet"]}.items():
        if message and override.startswith(("seed=-", "train.resume", "modle")):
            with pytest.raises(ConfigError) as caught:
                compose("train", [override])
            assert str(caught.value).startswith(message)
    with pytest.raises(ConfigError, match="expected a whole number"):
        train(compose("train", ["data.batch_size=abc"]), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


OTHERS = {  # of other commands; RUN is a finished run
    "evaluate": "ckpt is missing; expected ckpt=<",
    "evaluate runs/x": "runs/x is no key=value; did you mean ckpt=runs/x?",
    "evaluate ckpt=nowhere": "no checkpoint at nowhere; expected a .ckpt file or the directory of a run",
    "evaluate ckpt=": "ckpt is an empty text; expected a .ckpt file or the directory of a run",
    "evaluate ckpt=[a,b]": "ckpt is ['a', 'b']; expected a .ckpt file or the directory of a run",
    "evaluate ckpt=RUN split=train": "split is 'train'; expected 'test' or 'val'",
    "evaluate ckpt=RUN seed=-1": "seed is -1; expected a whole number, 0 to 4294967295, or null",
    "evaluate ckpt=RUN data.batch_size=7": "data.batch_size does not exist; did you mean +data.batch_size, which",
    "evaluate ckpt=RUN data=mnits": "data=mnits does not exist; did you mean mnist?",
    "evaluate ckpt=RUN slpit=test": "slpit does not exist; did you mean split?",
    "evaluate ckpt=RUN +trainer.acelerator=cpu": "trainer.acelerator does not exist",
    "evaluate trainer=none": "trainer=none leaves out what is needed; expected trainer= one of default",
    "figures": "run is missing; expected run=<",
    "figures runs/x": "runs/x is no key=value; did you mean run=runs/x?",
    "figures run=RUN image=3": "image does not exist; did you mean images?",
    "figures run=RUN images=0": "images is 0; expected a whole number, 1 or more",
    "report smoke": "smoke is no key=value; did you mean table=smoke?",
    "report tabel=smoke": "tabel does not exist; did you mean table=smoke?",
    "report table=smoke columns=[x]": "columns is ['x'], and smoke has one ",
    "sweep table=smoke dry_run=maybe": "dry_run is maybe; expected true or false",
    "sweep table=smoke model=em_caps dry_run=true": "row dynamic: model.class_dim does not exist; ",
    "list last=true": "last is True; expected a whole number, 1 or more",
    "analyse what=[votes,tree]": "what=[votes,tree] names several; what= takes one, -m what=votes,tree runs each",
    "train model.channels=0": "model: CapsNet has channels 0; expected 1 or more",
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


def test_process_refuses_and_shows_the_traceback_if_told(tmp_path: Path) -> None:
    misspelt = ("-m", "capsule_lab.train", "trainer.max_epoch=3")
    ended = interpreter(*misspelt, cwd=tmp_path)
    assert one_sentence(ended).startswith("trainer.max_epoch does not exist; did you mean trainer.max_epochs?")
    assert ended.out == ""
    assert "Traceback" in interpreter(*misspelt, cwd=tmp_path, HYDRA_FULL_ERROR="1").err
    assert list(tmp_path.iterdir()) == []


def test_every_option_is_listed_beside_one_that_is_not() -> None:
    for group in ("model", "routing", "data", "loss", "logger", "experiment", "debug"):
        with pytest.raises(ConfigError) as caught:
            compose("train", [f"+{group}=nope" if group == "debug" else f"{group}=nope"])
        assert [option for option in options_of(group) if option not in str(caught.value)] == []


def test_errors_that_are_no_mistakes_of_a_configuration() -> None:
    """Ours keep their message, the limits of the machine get one, and faults of the code none."""
    for error, message in {
        DataError("no such file"): "no such file",
        OSError(errno.ENOSPC, "No space left", "last.ckpt"): "last.ckpt cannot be written or read: No space left",
        PermissionError(errno.EACCES, "Permission denied"): "a file cannot be written or read: Permission denied",
        MemoryError("Unable to allocate 3 GiB"): "not enough memory (Unable to allocate 3 GiB); try a smaller network",
        RuntimeError("DefaultCPUAllocator: can't allocate memory"): "not enough memory (Default",
        FileNotFoundError(errno.ENOENT, "No such file", "x"): None,
        ZeroDivisionError("ours"): None,
        ValueError("ours"): None,
    }.items():
        assert fits(user_message(error), message), error


@pytest.mark.parametrize("error", [ZeroDivisionError("bug"), KeyError("bug")], ids=repr)
def test_faults_of_the_code_are_not_hidden(cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(build, "build_data", fail)
    with pytest.raises(type(error), match="bug"):
        cli("train", *TINY)
