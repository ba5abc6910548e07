"""The procedure of a training run: build everything, train, test, and write the result."""

from __future__ import annotations

import logging
import math
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from capsule_lab import runs
from capsule_lab.config import presets
from capsule_lab.config.composition import to_container
from capsule_lab.errors import InterruptError, PauseError
from capsule_lab.system import protocol
from capsule_lab.system.environment import command_line
from capsule_lab.system.signals import interruptible

log = logging.getLogger(__name__)

_WHEN_INTERRUPTED = "training is complete; the same command with train.resume=true tests again"


class Training:
    """The parts of a run. They are built before the run directory, so that a mistake leaves no files behind."""

    def __init__(
        self, config: DictConfig, directory: Path, overrides: Sequence[str], start_time: float
    ) -> None:
        from capsule_lab import callbacks
        from capsule_lab.config import build
        from capsule_lab.system import environment

        self.config = config
        self.directory = directory
        self.overrides = [*overrides]
        runs.directories.check_links(directory)
        environment.commit()  # of the code imported now: the files may change during training
        build.quiet_lightning_logs()
        self._build_module()
        deadline = self._deadline(start_time)
        self._load_data()
        self._build_trainer(deadline)
        self.timer = callbacks.TimeToAccuracy.of(self.trainer)
        if self.timer:
            self.timer.since = start_time

    def _build_module(self) -> None:
        """Build the DataModule, whose specification a network needs, and the LightningModule."""
        import lightning as L

        from capsule_lab.config import build
        from capsule_lab.runs import memory

        self.data = build.build_data(self.config)
        if runs.trust.refuses_pickles(self.config.get("trust")):
            runs.check_has_no_pickles(self.data)
        L.seed_everything(self.config.seed, workers=True, verbose=False)
        memory.check_weights(self.config, self.data.spec)
        self.module = build.build_module(self.config, self.data.spec)
        self.initial: runs.initial_weights.InitialWeights | None = None
        continues = runs.checkpoints.find_to_resume(self.config, self.directory) is not None
        if self.config.train.start_from and not continues:
            self.initial = runs.initial_weights.load(self.config, self.module.network)
        with build.constructing("train.freeze"):
            self.module.freeze_modules(self.config.train.freeze or ())

    def _deadline(self, start_time: float) -> float:
        """Return when training pauses, in seconds of ``time.monotonic``: at its own limit, or that of its sweep."""
        from capsule_lab.config import build

        left_of_sweep = float(os.environ.get(protocol.DEADLINE, math.inf)) - time.time()
        own_deadline = start_time + build.time_limit(self.config.trainer)
        deadline = min(own_deadline, time.monotonic() + left_of_sweep)
        is_own = own_deadline == deadline < math.inf
        # not at the end of a sweep's budget, after which its next command continues
        self.tests_at_limit = self.config.train.test == "last" and is_own
        return deadline

    def _load_data(self) -> None:
        """Load the images, which may be downloaded or rendered for minutes: mistakes are found before."""
        from capsule_lab.config import build

        build.check_accelerator(self.config.trainer)
        with build.constructing("data"):
            self.data.setup("fit")
            self.data.advise_training()

    def _build_trainer(self, deadline: float) -> None:
        """Build the Trainer, and check that it can train this module on these data and save it."""
        from capsule_lab import callbacks
        from capsule_lab.config import build, check_objects
        from capsule_lab.runs import memory

        data = self.data
        self.checkpoint = runs.checkpoints.checkpoint_to_resume(
            self.config, self.directory, data.provenance
        )
        self.class_counts = data.class_counts().tolist()
        self.embed = callbacks.EmbedConfig(
            self.config,
            data.provenance,
            data.spec,
            data.input_form,
            self.class_counts,
            self.initial and self.initial.record,
        )
        self.trainer = build.build_trainer(
            self.config.trainer,
            self.directory,
            callbacks=[*build.build_callbacks(self.config.get("callbacks")), self.embed],
            loggers=build.build_loggers(self.config.get("logger"), self.directory),
        )
        check_objects.check_together(self.trainer, self.module, data)
        packages = runs.trust.packages_of(to_container(self.config))
        check_objects.try_own_parts(self.trainer, self.module, data, packages)
        last = self.directory / "checkpoints" / "last.ckpt"
        runs.check_will_open(self.embed.record(self.trainer), self.module.network, last)
        memory.log_need(self.config, self.module, data.spec, self.trainer)
        if deadline < math.inf:
            callbacks.pause_at(self.trainer, deadline, completes_test=self.tests_at_limit)

    def run(self) -> dict[str, Any]:
        """Train, test, and write ``metrics.json``; see ``train``."""
        from capsule_lab import callbacks

        runs.directories.create_directory(self.directory, self.config, self.overrides)
        with (
            runs.results.recording_failure(self.directory),
            runs.files.logging_to(self.directory / "train.log") as write_to_log,
        ):
            log.info("%s on %s", type(self.module.network).__name__, self.data.provenance["name"])
            log.info(
                "writing to %s%s",
                self.directory,
                f", continuing {self.checkpoint}" if self.checkpoint else "",
            )
            log.info("overrides of the defaults: %s", shlex.join(self.overrides) or "none")
            for difference in presets.differences_of_overrides(self.overrides):
                write_to_log(difference)
            for line in self.initial.lines if self.initial else ():
                log.info("%s", line)
            self.log_batch()
            callbacks.log_run_facts(
                self.trainer.loggers, self.config, self.data.provenance, self.overrides
            )
            failed = True
            try:
                record = self.train_and_test()
                failed = False
            finally:
                self.close_loggers(failed=failed)
            return record

    def train_and_test(self) -> dict[str, Any]:
        """Train, test, and write the result, or what a paused run has reached; return it."""
        try:
            result = self.fit()
            with interruptible(_WHEN_INTERRUPTED):
                result |= self.time_to_accuracy() | self.test()
                return self.record(result) if self.trainer.is_global_zero else {}
        except PauseError:
            return self.pause(self.test_at_limit())

    def close_loggers(self, *, failed: bool) -> None:
        """Close the loggers; an error or a signal is only a warning, because everything else is written."""
        from capsule_lab import callbacks

        try:
            with interruptible():
                callbacks.close_loggers(self.trainer.loggers, failed=failed)
        except (Exception, InterruptError) as error:  # of a server, for example
            log.warning(
                "the loggers could not be closed (%s): their dashboards may be incomplete, which affects no result",
                runs.results.describe_error(error),
            )

    def log_batch(self) -> None:
        """Log how many images a step has, if several processes share it."""
        processes, accumulated = self.trainer.world_size, self.trainer.accumulate_grad_batches
        if processes > 1:
            log.info(
                "a step has %d images: %d processes, data.batch_size=%d, trainer.accumulate_grad_batches=%d",
                *(
                    processes * self.data.batch_size * accumulated,
                    processes,
                    self.data.batch_size,
                    accumulated,
                ),
            )

    def fit(self) -> dict[str, Any]:
        """Train; return ``training_result``."""
        from capsule_lab.lit import lightning_internals

        self.trainer.fit(
            self.module, datamodule=self.data, ckpt_path=self.checkpoint, weights_only=True
        )
        return self.training_result(
            lightning_internals.stop_reason(self.trainer, self.module.total_steps)
        )

    def training_result(self, stopped_by: str) -> dict[str, Any]:
        """Return why training ended, the last validation, which must be finite, and the best one, and the time."""
        from capsule_lab import callbacks
        from capsule_lab.lit import lightning_internals

        embed = self.embed
        runs.results.check_finite(embed.val, f"the last validation, at step {embed.val_step},")
        path = runs.checkpoints.checkpoint_to_test("best", self.directory)
        best = runs.checkpoints.read(path) if path and path.stem == "best" else None
        at_equal_error = callbacks.AtEqualError.of(self.trainer)
        passes = lightning_internals.passes(self.trainer)
        return {
            "stopped_by": stopped_by,
            "val": embed.val,
            "val_step": embed.val_step,
            "best": best and {"step": best["global_step"], "val": best["capsule_lab"]["val"]},
            "training_seconds": round(embed.seconds, 1),
            "training_cpu_seconds": round(embed.cpu_seconds, 1)
            if self.trainer.world_size == 1
            else None,
            "epochs": round(passes, 4),
            **({"at_equal_error": at_equal_error.results()} if at_equal_error else {}),
        }

    def time_to_accuracy(self) -> dict[str, Any]:
        """Return the record of ``TimeToAccuracy``, with the test error at each threshold."""
        from capsule_lab import callbacks

        if self.timer is None:
            return {}
        results, errors = self.timer.results(), {}
        for threshold in self.timer.thresholds:
            weights, step = (
                callbacks.weights_reached(self.directory, threshold),
                results[f"{threshold}/step"],
            )
            can_be_tested = (
                step is not None and weights.is_file() and self.config.train.test != "none"
            )
            if can_be_tested and step not in errors:
                with self._without_loggers():
                    errors[step] = self._test_weights(weights)["error"]
            results[f"{threshold}/test_error"] = errors.get(step)
        return {"time_to_accuracy": results}

    def test(self) -> dict[str, Any]:
        """Test the weights that ``train.test`` names; return the metrics, and which weights were tested."""
        weights = runs.checkpoints.checkpoint_to_test(self.config.train.test, self.directory)
        if weights is None:
            return {"test": {}, "weights_tested": None, "tested_step": None}
        step = runs.checkpoints.read(weights)["global_step"]
        tested = {
            "test": self._test_weights(weights),
            "classes": self.module.class_results("test", self.class_counts),
            "weights_tested": weights.stem,
            "tested_step": step,
        }
        predictions = self.module.test_predictions()
        if predictions:
            tested["predictions"] = runs.predictions.write(
                self.directory, runs.predictions.FILE, predictions
            )
        return tested

    def test_at_limit(self) -> dict[str, Any]:
        """Test the weights of a paused run with ``train.test=last``; return the result, empty without a test."""
        weights = runs.checkpoints.checkpoint_to_test("last", self.directory)
        if not self.tests_at_limit or weights is None:
            return {}
        result = self.training_result("trainer.max_time")
        with self._without_loggers():
            test = self._test_weights(
                weights, "training is saved; the same command with train.resume=true continues"
            )
        return {
            **result,
            "test": test,
            "classes": self.module.class_results("test", self.class_counts),
            "weights_tested": weights.stem,
            "tested_step": self.trainer.global_step,
        }

    @contextmanager
    def _without_loggers(self) -> Iterator[None]:
        """Keep the metrics of this block from the loggers, which receive only the test of the finished run."""
        loggers, self.trainer.loggers = self.trainer.loggers, []
        try:
            yield
        finally:
            self.trainer.loggers = loggers

    def _test_weights(
        self, weights: Path, when_interrupted: str = _WHEN_INTERRUPTED
    ) -> dict[str, float]:
        with interruptible(when_interrupted):
            self.trainer.test(
                self.module,
                datamodule=self.data,
                ckpt_path=weights,
                weights_only=True,
                verbose=False,
            )
        results: dict[str, float] = self.module.test_results()
        runs.results.check_finite(results, f"the test of {weights}")
        return results

    def record(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``metrics.json``: the result, and everything needed to judge and to repeat it."""
        record = {"status": "finished", **self.facts(result)}
        runs.files.write_record(self.directory / runs.results.RESULT, record)
        return record

    def facts(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result, and everything needed to judge and to repeat it."""
        from capsule_lab.system import environment

        trainer = self.trainer
        return {
            "name": self.config.get("name"),
            "overrides": self.overrides,
            **result,
            "image_counts": runs.results.image_counts(self.module, self.data),
            "provenance": self.data.provenance,
            **self.facts_of_start(),
            "parameters": sum(p.numel() for p in self.module.network.parameters()),
            "steps": trainer.global_step,
            "planned_steps": self.module.total_steps,
            "seed": self.config.seed,
            "config_hash": runs.directories.config_hash(self.config),
            **environment.of_this_process(),
            **environment.facts_of_trainer(trainer),
            **{name: _joined(values) for name, values in self.embed.trained_with.items()},
            "curves": runs.files.sha256(self.directory / "metrics.csv"),
        }

    def facts_of_start(self) -> dict[str, Any]:
        """Return the record of the initial weights and the number of frozen parameters, if there are any."""
        facts: dict[str, Any] = {}
        if self.embed.start_from is not None:
            facts["start_from"] = self.embed.start_from
        if self.module.frozen:
            facts["frozen_parameters"] = sum(each.numel() for each in self.module.frozen)
        return facts

    def pause(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Write the progress, and the result of a test, to the run directory and log it; return both.

        On later ranks, return an empty dict.
        """
        if not self.trainer.is_global_zero:
            return {}
        steps, planned = self.trainer.global_step, self.module.total_steps
        tested = self.facts(result) if result else {}
        runs.results.write_pause(self.directory, steps, planned, tested)
        resume_command = command_line("train.resume=true")
        log.info(
            "PAUSED at step %d of %d because the time is over; to continue: %s",
            steps,
            planned,
            resume_command,
        )
        status = {"status": runs.results.PAUSED, "steps": steps, "planned_steps": planned}
        return {**tested, **status, "new_steps": steps - self.embed.steps_before}


def _joined(values: Sequence[str | None]) -> str | None:
    """Return the values of a run that continued elsewhere as one text, or the only value."""
    return values[0] if len(values) == 1 else "; ".join(map(str, values))
