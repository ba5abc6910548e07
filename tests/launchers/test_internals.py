"""What is used of Hydra, submitit and its plugin beyond their documentation is still there, and does what we think."""

from __future__ import annotations

from operator import attrgetter

import hydra.core.override_parser.overrides_parser
import hydra.core.plugins
import hydra.core.singleton
import hydra.core.utils
import hydra_plugins.hydra_submitit_launcher.submitit_launcher as plugin
import pytest
import submitit
import submitit.core.utils
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from capsule_lab.errors import RunError
from capsule_lab.launchers import hydra_internals as internals
from capsule_lab.launchers.job_results import portable
from capsule_lab.launchers.submitit_internals import has_result, output_log


@pytest.mark.parametrize(
    "name",
    [
        "core.override_parser.overrides_parser.OverridesParser.create",
        "core.plugins.Plugins.instance",
        "core.plugins.Plugins.instantiate_launcher",
        "core.singleton.Singleton.get_state",
        "core.singleton.Singleton.set_state",
        "core.utils.filter_overrides",
        "core.utils.run_job",
        "core.utils.setup_globals",
        "core.utils.JobReturn._return_value",
    ],
)
def test_hydra_has(name: str) -> None:
    attrgetter(name)(hydra)


@pytest.mark.parametrize(
    "name",
    ["AutoExecutor", "JobEnvironment", "core.utils.UncompletedJobError", "core.utils.FailedJobError"],
)
def test_submitit_has(name: str) -> None:
    assert callable(attrgetter(name)(submitit))


def test_plugin_of_submitit_has_its_executor_and_common_options() -> None:
    assert plugin.SlurmLauncher._EXECUTOR == "slurm"
    assert {"timeout_min", "cpus_per_task", "tasks_per_node", "name"} <= vars(plugin.BaseQueueConf()).keys()
    assert callable(plugin.SlurmLauncher.__call__)


def test_files_of_a_job_are_where_submitit_writes_them(tmp_path) -> None:
    paths = submitit.core.utils.JobPaths(tmp_path, "5_2")
    job = type("Job", (), {"paths": paths})
    assert output_log(job) == str(tmp_path / "5_2_0_log.out")
    assert not has_result(job)
    paths.result_pickle.touch()
    assert has_result(job)


def test_error_of_a_failed_job_is_not_raised() -> None:
    error = RunError("no disk")
    assert internals.error_of(internals.failed(["a=1"], error)) is error
    done = internals.JobReturn(overrides=["a=1"], status=hydra.core.utils.JobStatus.COMPLETED, _return_value=5)
    assert internals.error_of(done) is None


def test_error_that_cannot_be_pickled_becomes_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    class LocalError(Exception):
        """No other process knows it."""

    error = internals.error_of(portable(internals.failed(["a=1"], LocalError("no disk")), ["a=1"]))
    assert (type(error), str(error)) == (RunError, "LocalError: no disk")
    assert "LocalError: no disk" in capsys.readouterr().err, "with its traceback"


def test_state_of_hydra_reaches_another_process() -> None:
    before = HydraConfig.instance().cfg
    state = internals.process_state()
    HydraConfig.instance().cfg = OmegaConf.create({"hydra": {"job": {"name": "another"}}})
    internals.restore_process(state)
    assert HydraConfig.instance().cfg == before


def test_keys_of_overrides() -> None:
    overrides = ["a.b=1", "+a.c={d: 2}", "++e=3", "~f.g", "model=x", "data@other=y"]
    assert internals.override_keys(overrides) == ["a.b", "a.c", "e", "f.g", "model", "data@other"]


def test_overrides_are_shown_without_those_for_hydra() -> None:
    assert internals.shown(["a=1", "hydra.launcher.jobs=2", "b=[1,2]"]) == "a=1 b=[1,2]"
