"""Invalid arguments are refused in one sentence before anything is written; unusual valid ones are accepted.

The tables map arguments of ``python -m capsule_lab.train`` to the beginning of the message. After ``…`` the text may
stand anywhere in the message. ``None``: the arguments are valid.
"""

import errno
import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab.config import build
from capsule_lab.config.arguments import own_folders, prepared
from capsule_lab.config.check import check
from capsule_lab.config.compose import compose, user_message
from capsule_lab.errors import ConfigError, DataError
from tests.helpers.commands import TINY, TINY_DATA, Cli, Trained, interpreter
from tests.helpers.data_modules import without_network
from tests.helpers.messages import one_sentence

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
PAIRS = "model=transforming_autoencoder data=mnist_pairs"
AVERAGED = "callbacks=averaged_weights callbacks.averaged_weights"
TIMED = "+callbacks.time_to_accuracy={_target_: capsule_lab.callbacks.TimeToAccuracy"
PARTS = {
    "model=cnn_baseline routing=uniform": "BaselineCNN does not route, so UniformRouting would have no effect; leave",
    "model=cnn_smallnorb loss=margin": "margin_loss expects activations, but BaselineCNN gives logits; use ",
    "loss=squared_error": "CapsNet classifies; expected loss=margin, or another with loss.classification",
    "model=transforming_autoencoder loss=margin": "TransformingAutoencoder draws the second image of a pair; expected",
    "callbacks=pairs": "callbacks=pairs is for pairs, but CapsNet classifies; use callbacks=default",
    "schedule.learning_rate=null": "module: the schedule has no entry; expected one named learning_rate",
    "module.compile=reduce-overhead module.cuda_graphs=true": "…which makes its own CUDA graphs",
    "module.cuda_graphs=true": "module.cuda_graphs is true, but training is on cpu; expected a GPU with CUDA",
    "model.channels=0": "model: CapsNet has channels 0; expected 1 or more",
    "model=em_caps_paper routing=dynamic routing.leaky=true": "model: routing.leaky is true",
    "model=em_caps_paper +class_routing.cots=paper": "model: class_routing has ",
    "data.batch_size=0": "data: batch sizes are 0 and 500; expected 1 or more",
    "trainer.num_nodes=2": "trainer.num_nodes is 2, but no variable describes the nodes; start a process on each node ",
    "trainer.val_check_interval=99999": "trainer.val_check_interval is 99999, but an epoch has 4 batches; expected at ",
    f"{AVERAGED}.decay=1.0": "…decay is 1.0; expected",
    f"{AVERAGED}.start=3hours": "…duration is '3hours'",
    f"{TIMED}, thresholds: []}}": "…thresholds is empty",
    f"{TIMED}, thresholds: [99, 101]}}": "…is 101; expected",
    "callbacks.best.monitor=val/acc": "BestCheckpoint: monitor is val/acc; ",
    "model=em_caps module=classifier model.decoder=[8]": "this EMCaps has a decoder, but ClassifierModule would not tr",
    "model=capsnet loss=spread data=multimnist data.eval_images=9": "loss: the spread loss takes one label per image, ",
    "model=cnn_multimnist loss=cross_entropy data=multimnist data.eval_images=9": "loss: softmax cross-entropy takes o",
    "model=transforming_autoencoder": "…TransformingAutoencoder expects a shift, but the data provides none; use d",
    f"{PAIRS} data.change=affine": "…expects a shift, but the data provides a matrix",
    f"{PAIRS} data.source=standin +module.cuda_graphs=true": "module: cuda_graphs is true, but this network has a s",
    f"{PAIRS} data.mixup=0.2": "data.mixup: TransformingAutoencoder does not classify; expected null",
    "data.mixup=0.4": "data.mixup: a decoder reconstructs one class, but images are mixtures of two; ",
    "data.mixup=0.4 model.decoder=null loss=spread": "…data.mixup: the spread loss takes one label per image, but the",
    "data.mixup=0.4 data=multimnist": "data: data.mixup is 0.4, and every image has 2 labels; expected null",
}


@functools.cache
def default_data() -> Any:
    data = build.build_data(compose("train", TINY))
    data.setup("fit")
    return data


def message_for(words: str, folder: Path) -> str | None:
    """The message of ``train`` for these arguments before it creates a directory; ``None`` if they are valid."""
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
def test_invalid_argument_is_refused_in_one_sentence(tmp_path: Path, table: dict[str, str | None]) -> None:
    build.quiet_lightning_logs()
    messages = {words: message_for(words, tmp_path / "run") for words in table}
    assert {words: message for words, message in messages.items() if not fits(message, table[words])} == {}
    assert list(tmp_path.iterdir()) == []


def test_compose_and_train_raise_the_same_messages(tmp_path: Path) -> None:
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
    "figures run=RUN held_out=0": "held_out is 0; expected a whole number, 1 or more",
    "figures run=RUN sheet_classes=3": "sheet_classes is 3; expected a list of whole numbers or null",
    "figures run=RUN logger=tensorbord": "…did you mean tensorboard?",
    "sweep": "table is missing; expected table=<name>, one of ",
    "report": "table is missing; expected table=<name>, one of ",
    "report table=smok": "table=smok does not exist; did you mean smoke?",
    "sweep table=smoke rows=[dynamc]": "rows: dynamc is not in smoke; did you mean dynamic?",
    "sweep table=smoke trainer.max_epoch=1": "row dynamic: trainer.max_epoch does not exist; did you mean",
    "report table=smoke seed=1": "every run has seed=1; leave it out, seeds=[…] sets the seeds of a table",
    "report table=smoke columns=[x]": "columns is ['x'], but smoke has one without a name; leave columns= out",
    "sweep table=smoke budget=soon": "budget is soon; expected hours, minutes and seconds, such as 9m, 90s or 1h30m",
    "sweep table=smoke budget=9m launcher=slurm": "budget=9m works only with launcher=basic and launcher=gpus; with la",
    "sweep table=smoke launcher=gpu": "launcher=gpu does not exist; did you mean gpus? Options: ",
    "sweep table=smoke dry_run=maybe": "dry_run is maybe; expected true or false",
    "sweep table=smoke model=em_caps dry_run=true": "row dynamic: model.class_dim does not exist; ",
    "analyse what=[votes,tree]": "what=[votes,tree] has several options; expected one, or -m what=votes,tree to run ea",
    "analyse": "ckpt is missing; expected ckpt=",
    "analyse ckpt=RUN what=dreams": "what=dreams does not exist; Options: ",
    "analyse ckpt=RUN images=0": "images is 0; expected a whole number, 1 or more",
    "analyse ckpt=RUN split=train": "split is 'train'; expected 'test' or 'val'",
    "analyse ckpt=RUN what=scramble what.tiles=1": "what=scramble: tiles is 1; expected 2 to 28",
    "analyse ckpt=RUN what=votes what.longest=far": "what.longest is far; expected a number or null",
    "analyse ckpt=RUN what=votes what.shortest=0": "what.shortest does not exist",
    "analyse ckpt=RUN what=poses": "what=poses: CapsNet takes no change of images; expected model=transforming_autoenc",
    "analyse ckpt=RUN data=multimnist data.source=standin": "…labels_per_image",
    "analyse ckpt=RUN +data.source=real": "…MNIST is not in data/MNIST/raw",
    "attack": "ckpt is missing; expected ckpt=",
    "attack ckpt=RUN epsilons=[-0.1] attack=fgsm": "attack=fgsm: epsilons contains -0.1; expected 0 to 1 for attack=fg",
    "attack ckpt=RUN epsilons=[many]": "epsilons is ['many']; expected a list of numbers or null",
    "attack ckpt=RUN epsilons=[0.1,0.1]": "epsilons is [0.1, 0.1]; expected different numbers",
    "attack ckpt=RUN images=0": "images is 0; expected a whole number, 1 or more",
    "attack ckpt=RUN check_images=null": "check_images is null; expected a whole number, 1 or more",
    "attack ckpt=RUN objective=training couplings=equal": "objective=training works only with the attacked network; ex",
    "attack ckpt=RUN data=multimnist data.source=standin": "…labels_per_image",
    "attack ckpt=RUN attack=corruption epsilons=[1.5]": "…1.5",
    "attack ckpt=RUN space=pixels": "space is 'pixels'; expected 'input' or 'grey_levels'",
    "attack ckpt=RUN targeted=maybe": "targeted is maybe; expected true or false",
    "attack ckpt=RUN attack=pgd epsilons=[0.1,1e30]": "attack=pgd: epsilons contains 1e+30; expected 0 to 1 for attack",
    "attack ckpt=RUN trainer.max_epochs=5": "trainer.max_epochs is 5, but only training uses it; leave it out",
    "attack ckpt=RUN attack=pgd attack.norm=l1": "attack.norm is 'l1'; expected 'linf' or 'l2'",
    "attack ckpt=RUN attack=deepfool": "attack=deepfool does not exist; Options: bim, corruption, fgsm",
    "attack ckpt=RUN targeted=true objective=training": "objective=training works only with labels, not targets; expec",
    "attack ckpt=RUN +data.source=real": "…MNIST is not in data/MNIST/raw",
    "dataset": "name is missing; expected name= one of affnist, ",
    "dataset name=toynrb": "name=toynrb does not exist; did you mean toynorb? Options: ",
    "dataset name=null": "name=None does not exist; ",
    "dataset name=toynorb size=4": "size is 4; expected 8 to 256 pixels, such as 48 or 96",
    "dataset name=toynorb size=48.0": "size is 48.0; expected a whole number, 1 or more",
    "dataset name=toynorb workers=0": "workers is 0; expected a whole number, 1 or more, or null",
    "dataset name=toynorb sheet=maybe": "sheet is maybe; expected true or false",
    "dataset name=toynorb directory=file": "cannot write to file/toynorb/48x48 (Not a directory); expected a writable ",
    "dataset name=toynorb sizes=48": "sizes does not exist; did you mean size?",
    "dataset name=mnist source=reel": "data.source is 'reel'; expected 'auto', 'real' or 'standin'",
    "dataset name=mnist source=real": "MNIST is not in data/MNIST/raw",
    "train train.directory=file/run": "cannot write to ",
}


def test_every_command_refuses_in_one_line_and_writes_nothing(
    cli: Cli, tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_network(monkeypatch)
    (tmp_path / "file").write_text("in the way")
    before = sorted(trained.directory.rglob("*"))
    wrong = {}
    for words, expected in OTHERS.items():
        command, *given = words.replace("RUN", str(trained.directory)).split()
        message = one_sentence(cli(command, *(TINY if command == "train" else []), *given))
        if not fits(message, expected):
            wrong[words] = message
    assert wrong == {}
    assert sorted(trained.directory.rglob("*")) == before
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "file"]


@pytest.mark.whole
def test_traceback_is_shown_only_with_hydra_full_error(tmp_path: Path) -> None:
    misspelt = ("-m", "capsule_lab.train", "trainer.max_epoch=3")
    one_sentence(interpreter(*misspelt, cwd=tmp_path))
    assert "Traceback" in interpreter(*misspelt, cwd=tmp_path, HYDRA_FULL_ERROR="1").err
    assert list(tmp_path.iterdir()) == []


def test_user_message_covers_errors_of_the_machine_but_not_of_the_code() -> None:
    """Own errors keep their message; errors of disk and memory get one; bugs get none."""
    for error, message in {
        DataError("no such file"): "no such file",
        OSError(errno.ENOSPC, "No space left", "last.ckpt"): "last.ckpt cannot be written or read: No space left",
        PermissionError(errno.EACCES, "Permission denied"): "a file cannot be written or read: Permission denied",
        RuntimeError("DefaultCPUAllocator: can't allocate memory"): "not enough memory (Default",
        FileNotFoundError(errno.ENOENT, "No such file", "x"): None,
        ValueError("ours"): None,
    }.items():
        assert fits(user_message(error), message), error


def test_bugs_keep_their_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "build_data", None)
    with pytest.raises(TypeError, match="not callable"):
        cli("train", *TINY)
