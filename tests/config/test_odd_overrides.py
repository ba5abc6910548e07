"""Odd overrides: what new users typed, and what a generator makes of the signatures. Each is refused in one sentence,
before anything is written, or works.
"""

from __future__ import annotations

import functools
import math
import pickle
import random
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from capsule_lab.config import build
from capsule_lab.config.check import _targets, check
from capsule_lab.config.compose import compose, groups, user_message
from capsule_lab.config.signatures import arguments_of
from capsule_lab.errors import CapsuleLabError
from tests.helpers.commands import TINY, TINY_CNN, TINY_DATA

pytestmark = pytest.mark.usefixtures("unchecked_types", "quiet")

TINY_EM = ["model=em_caps_small", *(f"model.{key}" for key in ("channels=4", "primary_types=2", "conv_types=[2,2]"))]
KINDS = {"capsnet": TINY, "em_caps": [*TINY_EM, *TINY_DATA], "cnn": [*TINY_CNN, *TINY_DATA, "schedule=constant"]}


@pytest.fixture
def quiet() -> None:
    build.be_quiet()


@functools.cache
def composed(*overrides: str) -> DictConfig:
    return compose("train", [*overrides, "trainer.max_epochs=1", "trainer.limit_train_batches=1"])


@functools.cache
def default_data() -> Any:
    data = build.build_data(composed(*TINY))
    data.setup("fit")
    return data


def refusal(config: DictConfig, *, whole: bool = True) -> str | None:
    """The sentence by which ``train`` refuses a configuration before it creates a directory, if it does.

    Args:
        config: of ``train``.
        whole: also build all parts; without, ``check`` alone.
    """
    try:
        check(config)
        if whole:
            data = default_data()
            if config.data != composed(*TINY).data or config.seed != 0:
                data = build.build_data(config)
                with build.constructing("data"):
                    data.setup("fit")
            with torch.device("meta"):
                module = build.build_module(config, data.spec)
            build.check_together(build.build_trainer(config, Path("run")), module, data)
    except Exception as error:
        return sentence(error)
    return None


def sentence(error: Exception) -> str:
    """What the command prints."""
    message = user_message(error)
    assert message, f"no sentence: {error!r}"
    assert "\n" not in message
    return message


# --- what new users typed --------------------------------------------------------------------------------------------

TYPED: list[tuple[str, str | None]] = [
    ("module.cuda_graphs=true", "module.cuda_graphs is true, and training is on cpu; expected a GPU with CUDA, or"),
    ("module.compile=fast", "module.compile is fast; expected true or false or 'reduce-overhead', 'max-autotune' or"),
    ("module.compile=reduce-overhead", None),
    ("schedule.learning_rate.initial=-0.001", "initial is -0.001; expected more than 0"),
    ("schedule.learning_rate.initial=nan", "schedule.learning_rate.initial is nan; expected a finite number"),
    ("schedule.learning_rate.initial=0", "initial is 0; expected more than 0"),
    ("schedule.learning_rate.floor=-1", "floor is -1; expected 0 to 0.001"),
    ("schedule.learning_rate.rate=-1", "rate is -1; expected more than 0"),
    ("logger=null", None),
    ("logger=none", None),
    ("logger=[csv,tensorboard]", None),
    ("callbacks=null", None),
    ("experiment=null", None),
    ("debug=none", None),
    ("data=null", "data=null leaves out what is needed; expected data= one of affnist"),
    ("trainer=null", "trainer=null leaves out what is needed"),
    ("routing=null", "CapsNet routes, but routing is none"),
    ("train=null", "train is null; expected options such as train.resume=true"),
    ("callbacks.best=3", "callbacks.best is 3; expected null, or options that have a _target_"),
    ("loss.classification=3", "loss.classification is 3; expected null, or options that have a _target_"),
    ("trainer.max_steps=0", "trainer.max_steps is 0; expected 1 or more, or -1 for none"),
    ("trainer.max_steps=-7", "trainer.max_steps is -7; expected 1 or more, or -1 for none"),
    (f"trainer.max_steps={10**30}", f"trainer.max_steps is {10**30}; expected at most 2147483647"),
    (f"trainer.accumulate_grad_batches={10**30}", f"is {10**30}; expected at most 2147483647"),
    ("trainer.max_time=5", "trainer.max_time is 5; expected days:hours:minutes:seconds"),
    ("trainer.max_time=00:00:01:00", None),
    ("trainer.max_time={minute: 1}", "trainer.max_time is {'minute': 1}; expected days:hours:minutes:seconds"),
    ("trainer.max_time={minutes: 1}", None),
    ("trainer.accumulate_grad_batches=0", "trainer.accumulate_grad_batches is 0; expected 1 or more"),
    ("trainer.check_val_every_n_epoch=0", "trainer.check_val_every_n_epoch is 0; expected 1 or more"),
    ("trainer.val_check_interval=99999", "trainer.val_check_interval is 99999, and an epoch has 4 batches"),
    ("trainer.val_check_interval=2", None),
    ("+trainer.overfit_batches=2", "trainer.overfit_batches is 2, which cannot be used here; debug=overfit trains"),
    ("callbacks.best.monitor=val/acc", "BestCheckpoint: monitor is val/acc; "),
    ("callbacks.best.monitor=val/coupling_entropy", None),
    ("callbacks.best.monitor=val/margin", None),
    ("callbacks.reconstructions.images=0", "images is 0; expected 1 or more"),
    ("callbacks.reconstructions.images=-3", "images is -3; expected 1 or more"),
    ("callbacks.last.every_minutes=-1", "every_minutes is -1; expected 0 or more"),
    ("model.decoder=[-5]", "CapsNet has decoder -5; expected 1 or more"),
    ("model.decoder=[0]", "CapsNet has decoder 0; expected 1 or more"),
    ("model.decoder=512", "model.decoder is 512; expected a list of whole numbers or null"),
    ("model.decoder=none", "model.decoder is none; expected a list of whole numbers or null"),
    ("trainer.accelerator=tpu", "trainer: "),
    ("trainer.num_nodes=2", "trainer.num_nodes is 2, and nothing says which these are"),
    ("seed=99999999999999999999999", "seed is 99999999999999999999999; expected a whole number, at most 4294967295"),
    ("seed=", "seed is an empty text; expected a whole number"),
    ("train.resume=maybe", "train.resume is maybe; expected true or false"),
    ("train.directory=3", "train.directory is 3; expected text or null"),
    ("class_routing=3", "class_routing is 3; expected {key: value} or null"),
    ("data.shift=100", "data.shift is 100; expected fewer than the 28 pixels of the images"),
    ("loss.reconstruction.weight=-5", "weight is -5; expected 0 or more"),
    ("loss.classification.present=0.1", "absent is 0.1 and present is 0.1; expected absent to be the smaller"),
    ("loss.classification.absent_weight=-1", "absent_weight is -1; expected 0 or more"),
    ("optimizer.betas=[0.9]", "optimizer.betas is [0.9]; expected a list of 2 numbers"),
    ("module.seed=-1", "seed is -1; expected 0 or more"),
]


@pytest.mark.filterwarnings("ignore")
def test_what_new_users_typed() -> None:
    wrong = []
    for word, expected in TYPED:
        parsed = OverridesParser.create().parse_override(word)
        try:
            if parsed.key_or_group in groups():
                config = compose("train", [*TINY, word])
            else:
                config = changed(TINY, parsed.key_or_group, parsed.value())
        except Exception as error:
            message: str | None = sentence(error)
        else:
            message = refusal(config)
        if (message is None) is not (expected is None) or (expected and expected not in (message or "")):
            wrong.append(f"{word}: {message or 'accepted'}; expected {expected or 'to be accepted'}")
    assert wrong == []


# --- what a generator makes of the signatures ------------------------------------------------------------------------

WRONG_TYPE: dict[Any, Sequence[Any]] = {
    int: ("many", 1.5, True, [1], {"a": 1}),
    float: ("much", True, [0.5], {"a": 1}),
    bool: ("maybe", 3, [True]),
    str: (3, ["a"], {"a": 1}),
    list: ("many", 3, ["a"], [1.5], {"a": 1}),
    Literal: ("no such word", 3, ["a"]),
}
ODD_SIZE: dict[Any, Sequence[Any]] = {
    int: (-(10**9), -1, 0, 10**30),
    float: (-1e30, -1.0, 0.0, 1e30, math.nan, math.inf, -math.inf),
    list: ([], [0], [-5], [10**30]),
    str: ("", "no such word", "ü [b] {x", "../.."),
}
VERY_LARGE = ("routing.iterations", "schedule.learning_rate")
"""What may be as large as one likes: the one takes as long, the other is noticed in training."""


def kind_of(annotation: Any) -> list[Any]:
    """The keys of ``WRONG_TYPE`` that an annotation is made of; ``[]`` for other types."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return [Literal]
    if origin in (list, tuple, Sequence):
        return [list]
    if inside and origin is not typing.get_origin(Callable[..., Any]) and origin is not dict:
        return [kind for each in inside if each is not type(None) for kind in kind_of(each)]
    return [annotation] if annotation in (int, float, bool, str) else []


def cases(config: DictConfig) -> Iterator[tuple[str, Any, str]]:
    """Key, value and what is odd about it, for every option of every ``_target_`` whose values are plain."""
    for path, node in _targets(config):
        arguments = arguments_of(get_object(node["_target_"])) or {}
        own = [str(key) for key in node if not str(key).startswith("_") and not OmegaConf.is_interpolation(node, key)]
        for name in own:
            kinds = kind_of(arguments[name].annotation) if name in arguments else []
            yield f"{path}.{name}x", 1, "spelling"
            yield f"{path}.{name.upper()}", 1, "spelling"
            if len(kinds) == 1:
                yield from ((f"{path}.{name}", value, "type") for value in WRONG_TYPE[kinds[0]])
            for kind in dict.fromkeys(kinds):
                yield from ((f"{path}.{name}", value, "size") for value in ODD_SIZE.get(kind, ()))
    for key, values in {
        "seed": ("a", -1, 1.5, True, None, 10**30, [1]),
        "train.resume": ("maybe", 3, None, [True]),
        "train.test": ("first", 3, None, True),
        "train.directory": (3, True, ["a"]),
        "train.resum": (1,),
        "ckpt": (3, True, ["a"]),
        "class_routing": (3, "em", [1]),
    }.items():
        yield from ((key, value, "type") for value in values)


@functools.cache
def pickled(*overrides: str) -> bytes:
    config = composed(*overrides).copy()
    OmegaConf.set_struct(config, False)
    return pickle.dumps(config)


def changed(overrides: Sequence[str], key: str, value: Any) -> DictConfig:
    """A copy, by pickle as it is six times faster than ``copy.deepcopy``, with one value changed."""
    config: DictConfig = pickle.loads(pickled(*overrides))
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    node[name] = value
    return config


def all_cases(kind: str) -> list[tuple[str, Any, str]]:
    return [case for case in cases(composed(*KINDS[kind])) if "plugins" not in case[0]]


def accepted_though_wrong(kind: str, key: str, value: Any, odd: str, *, whole: bool) -> bool:
    message = refusal(changed(KINDS[kind], key, value), whole=whole)
    return message is None and odd != "size"


def test_there_are_enough_cases() -> None:
    found = {kind: all_cases(kind) for kind in KINDS}
    assert all(len(each) >= 200 for each in found.values()), {kind: len(each) for kind, each in found.items()}


@pytest.mark.filterwarnings("ignore")
def test_a_value_of_another_type_or_name_is_refused() -> None:
    """A seeded sample of all that is wrong, by ``check`` alone, and of the odd sizes by building everything."""
    draw = random.Random(0)
    found = all_cases("capsnet")
    wrong = [case for case in found if case[2] != "size"]
    for key, value, odd in draw.sample(wrong, 150):
        assert not accepted_though_wrong("capsnet", key, value, odd, whole=False), f"{key}={value} is accepted"
    for key, value, _ in draw.sample([case for case in found if case[2] == "size"], 30):
        refusal(changed(TINY, key, value))  # in a sentence or not at all


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_every_case_is_refused_or_trains(kind: str, tmp_path: Path) -> None:
    """A value that is accepted trains for one step, validates and tests, with finite results."""
    from capsule_lab.train import train

    failed = []
    for number, (key, value, odd) in enumerate(all_cases(kind)):
        config = changed(KINDS[kind], key, value)
        try:
            message = refusal(config)
            if message is None and odd != "size":
                failed.append(f"{key}={value!r} is accepted")
            if message is None and not (value in (10**30, 1e30) and key.startswith(VERY_LARGE)):
                result = train(config, tmp_path / str(number))
                assert all(map(math.isfinite, {**result["val"], **result["test"]}.values())), result
        except CapsuleLabError as error:  # of training itself, such as a loss that is not finite
            failed += [f"{key}={value!r}: {error}"] if "\n" in str(error) else []
        except Exception as error:
            failed.append(f"{key}={value!r}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
    assert not failed, "\n".join(failed)
