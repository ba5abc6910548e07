"""Ask a trained network a question: ``python -m capsule_lab.analyse ckpt=runs/… what=…``."""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from rich.text import Text

from capsule_lab import runs
from capsule_lab.command import command
from capsule_lab.config.compose import to_container
from capsule_lab.errors import RunError, printable
from capsule_lab.evaluate import check_outputs, open_checked
from capsule_lab.figures import keep_figures

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from capsule_lab.analysis.subject import Answer, Change, Subject
    from capsule_lab.networks import AbstractNetwork
    from capsule_lab.types import Batch

_UNTRAINED = "untrained/"
_OF_PAIRS = ("poses", "few_labels")
"""Questions that can be asked of networks that do not classify."""
_SPLITS = {"val": "validation", "test": "test"}
_ROUNDING = 1e-4  # ours: of float32
_BACKGROUND = 16  # ours: of 255 grey levels; outermost pixels above it are no black background


class Outcome(NamedTuple):
    """What a question gives.

    Attributes:
        result: for a record.
        rows: for a CSV file; often none.
        path: of the record.
        run: whose network was asked.
        figures: draws them, by name.
    """

    result: dict[str, Any]
    rows: list[dict[str, object]]
    path: Path
    run: runs.Run
    figures: Callable[[], Iterator[tuple[str, Figure]]]


@command("analyse")
def main(config: DictConfig) -> dict[str, Any]:
    """Ask ``config.ckpt``, print the numbers, and write them beside the checkpoint, with figures."""
    outcome = analyse(config)
    console = Console(highlight=False)
    console.print(table(outcome.result))
    runs.files.write_record(outcome.path, outcome.result)
    console.print(f"written to {outcome.path}", soft_wrap=True, markup=False)
    if outcome.rows:
        import pandas as pd

        rows = outcome.path.with_suffix(".csv")
        runs.files.write_text(rows, pd.DataFrame(outcome.rows).to_csv(index=False))
        console.print(f"written to {rows}", soft_wrap=True, markup=False)
    for path in keep_figures(outcome.run, outcome.figures(), config.get("logger"), pdf=True):
        console.print(f"drawn in {path}", soft_wrap=True, markup=False)
    return outcome.result


def analyse(config: DictConfig) -> Outcome:
    """What a question finds of a run's network, and of the same network before training. Writes nothing.

    Args:
        config: of ``conf/analyse.yaml``.

    Raises:
        ConfigError: if ``ckpt`` is missing, for an unknown option, or a network that the question is not for.
        DataError, RunError: see ``runs.open`` and ``Run.data_with``; also for a network whose output is not finite.
    """
    import torch
    from hydra.utils import instantiate

    from capsule_lab.config import build
    from capsule_lab.system import environment

    run = open_checked(config)
    if _name(config) not in _OF_PAIRS:
        run.check_classifies(f"analyse what={_name(config)}")
    options = to_container(config).get("data") or {}
    data = run.data_with({**options, **run.number_of_images(config.images, options)})
    device = build.build_trainer(OmegaConf.create({"trainer": config.trainer}), None).strategy.root_device
    question = instantiate(config.what)
    began = time.monotonic()
    with build.constructing(f"what={_name(config)}"), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        trained = _subject(run, run.network, data, config.split, device)
        check_outputs(run, _outputs(trained))
        answers = {"trained": question(trained)}
        if config.untrained:
            untrained = _untrained(run, trained, config.seed)
            answers["untrained"] = question(_subject(run, untrained, data, config.split, device))
    result = {
        "analyse": _numbers(answers),
        "checkpoint": str(run.checkpoint),
        "options": to_container(config)["what"],
        "split": config.split,
        "images": len(trained.labels),
        "images_sha256": _digest(trained.batches),
        "provenance": data.provenance,
        "data": run.data_config(options),
        "seconds": round(time.monotonic() - began, 2),
        "hardware": environment.hardware(device, 1),
        "precision": "32-true",
        **environment.of_this_process(),
    }
    path = result_file(run, config, result)
    rows = [{"weights": weights, **row} for weights, answer in answers.items() for row in answer.rows]

    def figures() -> Iterator[tuple[str, Figure]]:
        from capsule_lab.analysis.plotting import add_heading

        source = runs.results.short_name(run.provenance)
        for weights, answer in answers.items():
            for name, figure in answer.draw().items():
                of = f"step {run.step}" if weights == "trained" else "untrained"
                asked = f"asked with {len(trained.labels)} {_SPLITS[config.split]} images of {source}"
                add_heading(figure, f"{run.directory.name}, {of}, {asked}")
                yield f"{path.stem}_{name}{'' if weights == 'trained' else '_untrained'}", figure

    return Outcome(result, rows, path, run, figures)


def _outputs(subject: Subject) -> Iterator[torch.Tensor]:
    """What the network says of all images: ranks of classes, or poses and presences if it does not classify."""
    from capsule_lab.networks import AbstractPairNetwork

    network: Any = subject.network
    if isinstance(network, AbstractPairNetwork):
        for batch in subject.batches:
            yield from network.recognise(batch.images)
    else:
        yield subject.outputs().ranking


def _untrained(run: runs.Run, subject: Subject, seed: int) -> AbstractNetwork:
    """The run's network with new weights, and statistics of batch normalisation as of these images."""
    import torch

    from capsule_lab.analysis.subject import set_running_statistics
    from capsule_lab.config import build

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: AbstractNetwork = build.build_module(run.config, run.spec).network
    images = [batch.images for batch in subject.batches]
    set_running_statistics(network.to(images[0].device), images)
    return network


def _subject(run: runs.Run, network: AbstractNetwork, data: Any, split: str, device: torch.device) -> Subject:
    """A network and the images of a split, with what can be done to them before preprocessing.

    Raises:
        RunError: for images with several labels, or seen through several crops; or if there are none.
    """
    import torch

    from capsule_lab.analysis.subject import Subject
    from capsule_lab.runs.open_run import stored_batches
    from capsule_lab.types import Batch

    stored = []
    for name, batch in stored_batches(data, split):
        factors = None if batch.factors is None else batch.factors.to(device)
        parts = batch.images.to(device), batch.labels.to(device), batch.key.to(device)
        stored.append((name, Batch(*parts, factors)))
    if not stored:
        raise RunError(f"there are no images in split={split} of this data; expected split=test, or other data")
    if stored[0][1].labels.ndim != 1:
        raise RunError(f"images of {type(data).__name__} have several labels; expected data with one, to be analysed")
    seen = [data.unpaired_batch(batch, name) for name, batch in stored]
    if seen[0].images.ndim != 4:
        raise RunError("images are seen through several crops; expected data.test_crops=1, to be analysed")

    def changed(change: Change, strength: float) -> list[Batch]:
        found = []
        for name, batch in stored:
            images = change(batch.images.float(), strength)
            found.append(data.unpaired_batch(batch._replace(images=images), name))
        return found

    for (name, batch), as_it_is in zip(stored, seen, strict=True):
        again = data.unpaired_batch(batch._replace(images=batch.images.float()), name).images
        if not torch.allclose(again, as_it_is.images, atol=_ROUNDING):
            raise RunError(
                f"images of {type(data).__name__} are preprocessed otherwise where they are floating-point numbers; "
                "expected a transformation that takes grey levels of 0 to 255 as either"
            )

    edges = torch.cat([batch.images[:, :, 0].flatten() for _, batch in stored]).float()
    fill = "border" if float(edges.mean()) > _BACKGROUND else "black"
    return Subject(
        network=network.float().eval().to(device),
        batches=seen,
        changed=changed,
        changes=_changes(fill),
        training=functools.partial(_training_images, data, device),
        factors=data.spec.factors,
        classes=data.spec.classes,
        num_classes=run.spec.num_classes,
    )


def _training_images(data: Any, device: torch.device, images: int) -> list[Batch]:
    """So many images of training, in the order of its first epoch, as those of validation are seen."""
    from capsule_lab.runs.open_run import stored_batches
    from capsule_lab.types import Batch

    found: list[Batch] = []
    for _, batch in stored_batches(data, "train"):
        left = images - sum(len(each.labels) for each in found)
        if left <= 0:
            break
        factors = None if batch.factors is None else batch.factors[:left].to(device)
        pictures, labels, key = (each[:left].to(device) for each in (batch.images, batch.labels, batch.key))
        found.append(data.unpaired_batch(Batch(pictures, labels, key, factors), "val"))
    return found


def _changes(fill: str) -> Mapping[str, Change]:
    """By name; ``fill`` is what comes in at the edges."""
    from capsule_lab.attacks import affine
    from capsule_lab.attacks.spaces import GREY_LEVELS

    functions = {
        "rotation": affine.rotation, "translation": affine.translation, "scaling": affine.scaling, "shear": affine.shear
    }  # fmt: skip

    def change(function: Callable[..., torch.Tensor], images: torch.Tensor, strength: float) -> torch.Tensor:
        return function(None, images, strength, fill=fill, box=GREY_LEVELS)

    return {name: functools.partial(change, function) for name, function in functions.items()}


def _numbers(answers: Mapping[str, Answer]) -> dict[str, float | None]:
    """Of the trained network by name, of the other one with ``untrained/`` before it; ``None`` for no number."""
    prefixes = {"trained": "", "untrained": _UNTRAINED}
    return {
        f"{prefixes[weights]}{name}": value if math.isfinite(value) else None
        for weights, answer in answers.items()
        for name, value in answer.numbers.items()
    }


def _digest(batches: Any) -> str:
    found = hashlib.sha256()
    for batch in batches:
        found.update(batch.images.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def _name(config: DictConfig) -> str:
    return str(config.what["_target_"]).rpartition(".")[2]


def table(result: Mapping[str, Any]) -> Table:
    """Every number of the trained network and, beside it, of the untrained one, for a terminal."""
    name = result["options"]["_target_"].rpartition(".")[2]
    title = f"{name} of {result['checkpoint']}: {result['images']} images"
    shown = Table(title=Text(printable(title)), title_justify="left")
    shown.add_column("")
    shown.add_column("trained", justify="right")
    numbers = result["analyse"]
    both = any(key.startswith(_UNTRAINED) for key in numbers)
    if both:
        shown.add_column("untrained", justify="right")
    for key, value in numbers.items():
        if key.startswith(_UNTRAINED):
            continue
        found = [value, numbers.get(f"{_UNTRAINED}{key}")] if both else [value]
        shown.add_row(key, *("" if each is None else f"{each:.4g}" for each in found))
    if None in numbers.values():
        shown.caption = "empty: not defined for this network or these images (docs/guides/looking_inside.md)"
        shown.caption_justify = "left"
    return shown


def result_file(run: runs.Run, config: DictConfig, result: Mapping[str, Any]) -> Path:
    """Where a record belongs: ``analyses/<checkpoint>-<split>-<question>-<source>-<hash of its options>.json``."""
    options = {key: value for key, value in to_container(config).items() if key not in ("ckpt", "trainer", "trust")}
    fingerprint = hashlib.sha256(repr(sorted(options.items(), key=str)).encode()).hexdigest()[:8]
    parts = [run.checkpoint.stem, config.split, _name(config), result["provenance"]["source"], fingerprint]
    return run.directory / "analyses" / f"{'-'.join(parts)}.json"


if __name__ == "__main__":
    main()
