"""Invalid arguments are refused in one sentence before anything is written; unusual valid ones are accepted.

The tables in ``messages.yaml`` map arguments of ``capsule-lab train`` to the beginning of the message. After
``…`` the text may stand anywhere in the message. ``null``: the arguments are valid. The last table, ``others``, is of
other commands, where RUN is a finished run.
"""

import errno
from pathlib import Path

import pytest

from capsule_lab.commands import compose
from capsule_lab.config import build
from capsule_lab.config.messages import user_message
from capsule_lab.errors import ConfigError, DataError
from capsule_lab.lit.lightning_internals import MisconfigurationException
from tests.helpers.commands import TINY, Cli, Trained, python
from tests.helpers.data_modules import without_network
from tests.helpers.messages import TABLES, message_for, one_sentence
from tests.helpers.tiers import whole_but


def fits(message: str | None, expected: str | None) -> bool:
    if message is None or expected is None:
        return message is expected
    if expected.startswith("…"):
        return expected[1:] in message
    return message.startswith(expected)


OF_TRAIN = ["words", "options", "keys", "values", "parts"]


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("table", whole_but(OF_TRAIN, "words", "options", "keys", "values"))
def test_invalid_argument_is_refused_in_one_sentence(tmp_path: Path, table: str) -> None:
    build.quiet_lightning_logs()
    wrong = {}
    for words, expected in TABLES[table].items():
        message = message_for(words, tmp_path / "run")
        if not fits(message, expected):
            wrong[words] = message
    assert wrong == {}
    assert list(tmp_path.iterdir()) == []


def test_compose_and_train_raise_the_same_messages(tmp_path: Path) -> None:
    from capsule_lab.commands.train import train

    for override, expected in (
        ("seed=-1", TABLES["values"]["seed=-1"]),
        ("modle=capsnet", TABLES["keys"]["modle=capsnet"]),
    ):
        with pytest.raises(ConfigError) as caught:
            compose("train", [override])
        assert fits(str(caught.value), expected)
    config = compose("train", ["data.batch_size=abc"])
    with pytest.raises(ConfigError, match="expected a whole number"):
        train(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.whole
def test_every_command_refuses_in_one_line_and_writes_nothing(
    cli: Cli, tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_network(monkeypatch)
    file = tmp_path / "file"
    file.write_text("in the way")
    before = sorted(trained.directory.rglob("*"))
    wrong = {}
    for words, expected in TABLES["others"].items():
        command, *given = words.replace("RUN", str(trained.directory)).split()
        if command == "train":
            given = [*TINY, *given]
        message = one_sentence(cli(command, *given))
        if not fits(message, expected):
            wrong[words] = message
    assert wrong == {}
    assert sorted(trained.directory.rglob("*")) == before
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


@pytest.mark.whole
@pytest.mark.parametrize("wrong", ["trainer.max_epoch=3", "data.batch_size=0"])
def test_traceback_is_shown_only_with_hydra_full_error(
    cli: Cli, tmp_path: Path, wrong: str
) -> None:
    one_sentence(cli("train", wrong))
    ended = python("-m", "capsule_lab", "train", wrong, cwd=tmp_path, HYDRA_FULL_ERROR="1")
    assert "Traceback" in ended.err
    assert list(tmp_path.iterdir()) == []


NO_SPACE = OSError(errno.ENOSPC, "No space left", "last.ckpt")


NO_PERMISSION = PermissionError(errno.EACCES, "Permission denied")


NO_MEMORY = RuntimeError("DefaultCPUAllocator: can't allocate memory")


OF_LIGHTNING = ModuleNotFoundError("`psutil` is not installed")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DataError("no such file"), "no such file"),
        (NO_SPACE, "last.ckpt cannot be written or read: No space left"),
        (NO_PERMISSION, "a file cannot be written or read: Permission denied"),
        (NO_MEMORY, "not enough memory (Default"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x"), None),
        (MisconfigurationException("SWA needs\n an integer"), "SWA needs an integer"),
        (OF_LIGHTNING, "`psutil` is not installed"),
        (ModuleNotFoundError("No module named 'x'", name="x"), None),
        (ValueError("ours"), None),
    ],
    ids=repr,
)
def test_user_message_covers_errors_of_the_machine_but_not_of_the_code(
    error: Exception, message: str | None
) -> None:
    """Own errors keep their message; errors of disk and memory get one; bugs get none."""
    assert fits(user_message(error), message)


def test_bugs_keep_their_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "build_data", None)
    with pytest.raises(TypeError, match="not callable"):
        cli("train", *TINY)
