from tests.helpers.commands import Ended


def one_sentence(ended: Ended, status: int = 2) -> str:
    """The error message of a failed command; checks its status, one line on stderr, and no traceback."""
    assert ended.status == status, ended.err
    program, _, message = ended.err.partition(": ")
    assert program == "capsule_lab"
    assert message.count("\n") == 1
    assert message.endswith("\n")
    assert "Traceback" not in ended.out
    return message.strip()
