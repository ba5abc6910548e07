"""Messages of commands that were refused."""

from tests.helpers.commands import Ended


def one_sentence(ended: Ended, status: int = 2) -> str:
    """The message of a command that was refused: one line on stderr, no traceback, a status other than 0."""
    assert ended.status == status, ended.err
    program, _, message = ended.err.partition(": ")
    assert program == "capsule_lab"
    assert message.count("\n") == 1
    assert message.endswith("\n")
    assert "Traceback" not in ended.out
    return message.strip()
