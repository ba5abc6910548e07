"""Generated tests: their settings, and strategies for damaged files and odd text.

In the suite the examples are few and always the same. ``make fuzz examples=20000`` draws others, for minutes.
"""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = "CAPSULE_LAB_EXAMPLES"
"""Environment variable with the number of examples of each test."""

GENERATED = settings(
    max_examples=int(os.environ.get(EXAMPLES, "25")),
    derandomize=EXAMPLES not in os.environ,
    database=None,
    deadline=None,  # the machine may be busy
    # fixtures only read
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

_NUMBERS = (0, 1, -1, 127, 128, 255, 256, 2**15, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1)
_SIZES = (1, 2, 4, 8)
_TOKENS = (
    *(
        "a",
        "0",
        "1e3",
        "null",
        "yes",
        "~",
        ".inf",
        ".nan",
        "0x1F",
        "1:20",
        "2026-11-27",
        "name",
        "rows",
        "paper",
    ),
    *(
        ": ",
        "- ",
        "\n",
        "\n  ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "? ",
        "| ",
        "> ",
        "# ",
        '"',
        "'",
        "\\",
        "\t",
        "%",
        "@",
        "`",
    ),
    *(
        "&x ",
        "*x",
        "<<: ",
        "!!int ",
        "!!timestamp ",
        "!!binary ",
        "!x ",
        "---\n",
        "...\n",
        "${",
        "${oc.env:HOME}",
        "\x00",
    ),
    *("\ufeff", "\x85", "\u2028", "é", "\U0001f600"),
)


@st.composite
def numbers(draw: Callable[..., Any]) -> bytes:
    """A number of extreme size in some number of bytes."""
    size = draw(st.sampled_from(_SIZES))
    number = draw(st.sampled_from(_NUMBERS)) % 256**size
    return number.to_bytes(size, draw(st.sampled_from(["little", "big"])))


@st.composite
def damaged(draw: Callable[..., Any], whole: bytes) -> bytes:
    """A file with some bytes replaced, inserted or left out, mostly in its head, or cut off."""
    content = whole
    for _ in range(draw(st.integers(1, 4))):
        end = draw(st.sampled_from([8, 64, 512, len(content)]))
        place = draw(st.integers(0, min(end, len(content))))
        new = draw(numbers() | st.binary(max_size=8))
        removed = draw(st.sampled_from([0, 1, len(new), 64]))
        content = content[:place] + new + content[place + removed :]
    return content[: draw(st.sampled_from([len(content), len(content) // 2, 16]))]


def texts() -> st.SearchStrategy[str]:
    """Text of YAML's and Hydra's signs in any sequence."""
    return st.lists(st.sampled_from(_TOKENS), max_size=25).map("".join) | st.text(max_size=40)


def values() -> st.SearchStrategy[Any]:
    """Plain values as in JSON, also numbers that are not finite and text that is not Unicode."""
    surrogates = st.sampled_from(
        ["\ud800", "${x}", "", "a" * 300, "\x00", "capsule_lab.CapsNet", "os.mkdir"]
    )
    plain = (
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats()
        | st.text(max_size=5)
        | surrogates
    )
    return st.recursive(
        plain,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3),
    )


@st.composite
def changed(draw: Callable[..., Any], content: Any) -> Any:
    """A nested value with one item replaced or left out."""
    if not isinstance(content, dict | list) or not content or draw(st.integers(0, 5)) == 0:
        return draw(values())
    copied = content.copy()
    key = draw(st.sampled_from(range(len(content)) if isinstance(content, list) else [*content]))
    if draw(st.integers(0, 9)) == 0:
        del copied[key]
    else:
        copied[key] = draw(changed(content[key]))
    return copied
