"""Analyse a trained network: ``capsule-lab analyse ckpt=runs/… what=…``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from rich.table import Table
from rich.text import Text

from capsule_lab import runs
from capsule_lab.commands.declare import command
from capsule_lab.commands.evaluate import check_outputs
from capsule_lab.config.declaration import Count, FinishedRun, Group, Measurement
from capsule_lab.config.overrides import as_argument
from capsule_lab.errors import printable
from capsule_studies.meanings import meanings_of
from capsule_studies.names import name_of
from capsule_studies.study import (
    StudyInput,
    StudyOptions,
    StudyOutput,
    StudyResult,
    check_study,
    run_study,
    show_and_keep,
)

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from capsule_lab.networks import AbstractNetwork
    from capsule_studies.images import StudyImages
    from capsule_studies.subject import Subject

_PREFIXES = {"trained": "", "untrained": "untrained/"}
_SPLITS = {"val": "validation", "test": "test"}


class AnalyseOptions(StudyOptions):
    """Options of ``analyse``."""

    split: Literal["test", "val"] = "val"
    """The test set, or the validation images."""
    images: Count | None = 200
    """A stratified sample of the split; null: all."""
    untrained: bool = True
    """Also analyse the network before training, as a control."""
    what: Group


class AnalyseResult(runs.results.Evaluation):
    """The fields of a record that reports read."""

    analyse: runs.results.Quantities = Field({})


def _what_to_ask(run: FinishedRun) -> list[str]:
    """Return the arguments of the first question to a trained network."""
    metrics = run.result["test"] or run.result["val"]
    if not run.has_weights or "label_error" in metrics:  # of several labels for each image
        return []
    question = "couplings" if run.routes else "transforms"
    if metrics and "error" not in metrics:  # of image pairs
        question = "poses"
    return [as_argument("ckpt", run.directory), f"what={question}"]


@command(
    "analyse",
    AnalyseOptions,
    check=check_study,
    first="ckpt",
    measures=Measurement(AnalyseResult, metrics=("analyse",), devices=("accelerator",)),
    proposes=_what_to_ask,
)
def main(options: AnalyseOptions) -> dict[str, Any]:
    """Analyse ``ckpt``, print the numbers, and write them with figures to the run."""
    outcome = analyse(options)
    tables = [table(outcome.result), explanation(outcome.result)]
    show_and_keep(outcome, tables, options.logger, pdf=True)
    return outcome.result


def analyse(options: AnalyseOptions) -> StudyOutput:
    """Answer a question about a run's network, and about the same network before training; see ``study.run_study``."""
    return run_study(options, "what", "analyses", _find, uses_seed=options.untrained)


def _find(setting: StudyInput[AnalyseOptions]) -> StudyResult:
    from capsule_studies.images import StudyImages
    from capsule_studies.open_subject import open_subject

    options, run = setting.options, setting.run
    images = StudyImages(setting.data, options.split, setting.device)
    trained = open_subject(run, run.network, images)
    check_outputs(run, _outputs(trained))
    answers = {"trained": setting.function(trained)}
    if options.untrained:
        network = _untrained(run, images, setting.seed)
        answers["untrained"] = setting.function(open_subject(run, network, images))

    def figures(result: Mapping[str, Any], stem: str) -> Iterator[tuple[str, Figure]]:
        from capsule_lab.analysis.plotting import add_heading

        source = runs.results.short_name(run.provenance)
        data = f"{result['images']} {_SPLITS[options.split]} images of {source}"
        endings = {"trained": (f"step {run.step}", ""), "untrained": ("untrained", "_untrained")}
        for weights, answer in answers.items():
            state, ending = endings[weights]
            for name, figure in answer.draw().items():
                add_heading(figure, f"{run.directory.name}, {state}, {data}")
                yield f"{stem}_{name}{ending}", figure

    rows = []
    numbers = {}
    for weights, answer in answers.items():
        for row in answer.rows:
            rows.append({"weights": weights, **row})
        for name, value in answer.numbers.items():
            numbers[_PREFIXES[weights] + name] = value if math.isfinite(value) else None
    return StudyResult({"analyse": numbers}, trained.batches, figures, rows)


def _outputs(subject: Subject) -> Iterator[torch.Tensor]:
    """Yield the network's outputs for all images: class scores, or poses and presences if it does not classify."""
    from capsule_lab.networks import AbstractPairNetwork

    network: Any = subject.network
    if isinstance(network, AbstractPairNetwork):
        for batch in subject.batches:
            yield from network.recognise(batch.images)
    else:
        yield subject.outputs().ranking


def _untrained(run: runs.Run, images: StudyImages, seed: int) -> AbstractNetwork:
    """Build the run's network with new weights; its batch normalisation has the statistics of these images."""
    import torch
    from torch.optim.swa_utils import update_bn

    from capsule_lab.config import build

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: AbstractNetwork = build.build_module(run.config, run.spec).network
    update_bn([batch.images for batch in images.seen], network.to(images.device))
    return network


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def table(result: Mapping[str, Any]) -> Table:
    """Return a table of the numbers of the trained network and, if there is one, of the untrained network."""
    title = f"{name_of(result['options'])} of {result['checkpoint']}: {result['images']} images"
    numbers_table = Table(title=Text(printable(title)), title_justify="left")
    numbers_table.add_column("")
    numbers = result["analyse"]
    prefixes = []
    for name, prefix in _PREFIXES.items():
        if any(key.startswith(prefix) for key in numbers):
            numbers_table.add_column(name, justify="right")
            prefixes.append(prefix)
    for key in numbers:
        if key.startswith(_PREFIXES["untrained"]):
            continue
        values = [numbers.get(prefix + key) for prefix in prefixes]
        numbers_table.add_row(key, *map(_cell, values))
    if None in numbers.values():
        numbers_table.caption = (
            "empty: not defined for this network or these images (docs/guides/looking_inside.md)"
        )
        numbers_table.caption_justify = "left"
    return numbers_table


def explanation(result: Mapping[str, Any]) -> Table:
    """Return a sentence for each kind of number in the table: what it measures, and which values say what."""
    title = "What the numbers say (docs/guides/looking_inside.md has the definitions):"
    sentences = Table.grid(padding=(0, 2))
    sentences.title = Text(title)
    sentences.title_justify = "left"
    sentences.add_column(no_wrap=True)
    sentences.add_column()
    question = name_of(result["options"])
    for name, sentence in meanings_of(question, result["analyse"]).items():
        sentences.add_row(name, sentence)
    return sentences


if __name__ == "__main__":
    main()
