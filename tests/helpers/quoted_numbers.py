"""Numbers in documents, recomputed from the records in ``results/``.

A comment lists numbers of the text above it, as far as the comment before::

    <!-- numbers
    let rows = csv("routing_algorithms_runs.csv", row="equal couplings")
    12.66 ± 0.56 :: mean_std(rows["value"])
    0.25, 0.44 :: "published"
    -->

On the left is text that stands above the comment; on the right is an expression for the numbers of that text, in their
order. They are rounded once, to the decimals of the text. A string on the right names the source of numbers without a
record.
"""

import functools
import io
import json
import re
import tarfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from scipy import stats

from capsule_lab.statistics import holm, interval_over_images

RESULTS = Path(__file__).parents[2] / "results"
NUMBER = re.compile(
    r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-\d+)?(?!\w|\.\d)|(?<![\w.])\d+\.\d+(?=x\b)"
)
"""``-0.03``, ``1,581``, ``4e-6``; no digit of ``4x4`` or ``bf16``."""
START = "<!-- numbers"
"""The first line of a comment."""

_MEASURED = re.compile(r"(?<![\w.-])-?\d+(?:,\d{3})*(?:\.\d+| %|e-\d+)(?!\w)")
_BLOCK = re.compile(rf"^{START}\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
_NO_PROSE = re.compile(
    r"^```.*?^```$|<!--.*?-->|`[^`\n]*`|\]\([^)\n]*\)|[Ss]ection \d[\d.]*", re.MULTILINE | re.DOTALL
)


class Quoted(NamedTuple):
    """One line of a comment: text with numbers, and the expression that gives them."""

    text: str
    source: str


@dataclass(frozen=True)
class Part:
    """Prose above a comment, on one line and without code, and the numbers that the comment lists.

    Attributes:
        prose: text between two comments; after the last comment there is prose without listed numbers.
        quoted: texts with numbers.
        names: named expressions, ``let rows = csv(…)``.
    """

    prose: str
    quoted: list[Quoted] = field(default_factory=list)
    names: list[tuple[str, str]] = field(default_factory=list)


def parts_of(document: str) -> Iterator[Part]:
    """The document from comment to comment."""
    start = 0
    for block in _BLOCK.finditer(document):
        part = Part(_prose(document[start : block.start()]))
        for line in filter(str.strip, block[1].splitlines()):
            if line.startswith("let "):
                name, _, source = line.removeprefix("let ").partition(" = ")
                part.names.append((name, source))
            else:
                text, _, source = line.partition(" :: ")
                part.quoted.append(Quoted(_one_line(text), source))
        yield part
        start = block.end()
    yield Part(_prose(document[start:]))


def missing_texts(document: str) -> list[str]:
    """Texts in comments that the document does not contain above them."""
    missing = []
    for part in parts_of(document):
        texts = [quoted.text for quoted in part.quoted]
        missing += [text for text in texts if not re.search(_whole(text), part.prose)]
    return missing


def mismatches(document: str) -> list[str]:
    """A sentence for each text whose numbers are not those of the records."""
    wrong = []
    for part in parts_of(document):
        names = dict(_NAMES)
        for name, source in part.names:
            names[name] = eval(source, names)  # the documents are ours
        sentences = [_mismatch(quoted, names) for quoted in part.quoted]
        wrong += filter(None, sentences)
    return wrong


def _mismatch(quoted: Quoted, names: dict[str, Any]) -> str:
    """A sentence if the numbers of the text are not those of its expression, else nothing."""
    text, source = quoted
    try:
        values = eval(source, names)  # the documents are ours
    # whatever a wrong expression raises, the other numbers are worth checking
    except Exception as error:
        return f"{text!r} has an expression that fails, {type(error).__name__}: {error}"
    if isinstance(values, str):
        return "" if values else f"{text!r} has neither a record nor a reason"
    numbers = [*_flat(values)]
    written = NUMBER.findall(text)
    right = [as_written(number, like) for number, like in zip(numbers, written, strict=False)]
    if right == written and len(numbers) == len(written):
        return ""
    recorded = ", ".join(f"{number:.7g}" for number in numbers)
    return f"{text!r} should be {recorded} by {source}"


def without_source(document: str) -> list[str]:
    """Numbers with a decimal point or in percent that no comment lists, with the words before them."""
    found = []
    for part in parts_of(document):
        prose = part.prose
        longest_first = sorted(part.quoted, key=lambda quoted: -len(quoted.text))
        for quoted in longest_first:
            prose = re.sub(_whole(quoted.text), " ", prose)
        for match in _MEASURED.finditer(prose):
            words_before = max(match.start() - 40, 0)
            found.append(prose[words_before : match.end()])
    return found


def as_written(number: float, like: str) -> str:
    """``number`` rounded to the decimals of ``like``, with its separators.

    >>> as_written(1580.6, "1,234"), as_written(-0.004, "0.00"), as_written(3.9e-06, "1e-3")
    ('1,581', '0.00', '4e-6')
    """
    if "e-" in like:
        mantissa = like.partition("e")[0]
        decimals = len(mantissa.partition(".")[2])
        return f"{number:.{decimals}e}".replace("e-0", "e-")
    decimals = len(like.partition(".")[2])
    separator = "," if "," in like or abs(number) < 1000 else ""
    text = f"{number:{separator}.{decimals}f}"
    is_zero = float(text.replace(",", "")) == 0
    return text.removeprefix("-") if is_zero else text


def _prose(text: str) -> str:
    return _one_line(_NO_PROSE.sub(" ", text))


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("**", "").replace("*", "")).strip()


def _whole(text: str) -> str:
    """A pattern for ``text`` that does not begin or end inside another number."""
    return rf"(?<![\w.,-]){re.escape(text)}(?!\w|[.,]\d)"


def _flat(values: Any) -> Iterator[float]:
    if isinstance(values, Sequence | pd.Series):
        for value in values:
            yield from _flat(value)
    else:
        yield float(values)


# --- what expressions may call ----------------------------------------------------------------------------------------


@functools.cache
def _frame(name: str) -> pd.DataFrame:
    return pd.read_csv(RESULTS / name)


def csv(file: str, /, **where: Any) -> pd.DataFrame:
    """Rows of a CSV file whose columns have these values, or texts that begin with them; an error if there are none."""
    frame = _frame(file)
    for column, value in where.items():
        matches = frame[column] == value
        if isinstance(value, str) and not matches.any():
            matches = frame[column].astype(str).str.startswith(value)
        frame = frame[matches]
    if frame.empty:
        raise ValueError(f"{file} has no row of {where}")
    return frame


def one(file: str, wanted: str, /, **where: Any) -> Any:
    """The only value of a column in such rows of a CSV file."""
    values = csv(file, **where)[wanted].dropna().unique()
    if len(values) != 1:
        raise ValueError(f"{file} has {len(values)} values of {wanted} where {where}; expected one")
    return values[0]


def record(name: str, path: str) -> Any:
    """A value of a JSON file, ``test/error``; ``archive.tar.gz:run/metrics.json`` is a file in an archive."""
    value = _json(name)
    for key in path.split("/"):
        value = value[int(key) if isinstance(value, list) else key]
    return value


@functools.cache
def _json(name: str) -> Any:
    archive, _, member = name.rpartition(":")
    if not archive:
        return json.loads((RESULTS / name).read_text())
    with tarfile.open(RESULTS / archive) as file:
        return json.load(io.TextIOWrapper(file.extractfile(member)))  # type: ignore[arg-type]


def report(table: str, column: str, *names: str) -> list[tuple[float, float]]:
    """Mean and deviation of rows of a table, as its report has them, on real data or on a stand-in."""
    found = []
    for name in names:
        row = csv(f"{table}.csv", column=column, name=name)
        mean = one_of(row["ours"].item(), row["standin"].item())
        deviation = one_of(row["ours_std"].item(), row["standin_std"].item())
        found.append((mean, deviation))
    return found


def one_of(*values: float) -> float:
    """The value that is not missing."""
    (value,) = (number for number in values if not pd.isna(number))
    return value


def mean_std(values: pd.Series) -> tuple[float, float]:
    """Mean and sample deviation."""
    return values.mean(), values.std()


def welch(first: pd.Series, second: pd.Series) -> float:
    """p of Welch's t-test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy's, of rows without a deviation
        return float(stats.ttest_ind(first, second, equal_var=False).pvalue)


def paired(first: pd.Series, second: pd.Series) -> float:
    """p of the t-test of pairs, which stand in the same order."""
    return float(stats.ttest_rel(first, second).pvalue)


def paired_interval(first: pd.Series, second: pd.Series) -> tuple[float, float]:
    """95 % interval of the mean difference of pairs, which stand in the same order."""
    bounds = stats.ttest_rel(first, second).confidence_interval()
    return bounds.low, bounds.high


def fisher(first: float, second: float, images: int) -> float:
    """p of Fisher's exact test that two shares in percent, each of so many images, are the same."""
    counts = []
    for share in (first, second):
        count = round(share * images / 100)
        counts.append([count, images - count])
    return float(stats.fisher_exact(counts).pvalue)


def interval(first: pd.Series, second: pd.Series) -> tuple[float, float]:
    """95 % interval of the difference of two means, Welch."""
    bounds = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    return bounds.low, bounds.high


def contrast(
    first: pd.Series, second: pd.Series, third: pd.Series, fourth: pd.Series
) -> tuple[float, float, float]:
    """The difference (first - second) - (third - fourth) of four means, and its 95 % interval, Welch."""
    groups = [first, second, third, fourth]
    variances = [group.var() / len(group) for group in groups]
    total = sum(variances)
    df = total**2 / sum(
        variance**2 / (len(group) - 1) for variance, group in zip(variances, groups, strict=True)
    )
    difference = (first.mean() - second.mean()) - (third.mean() - fourth.mean())
    half = stats.t.ppf(0.975, df) * total**0.5
    return difference, difference - half, difference + half


_OF_RUNS = [mean_std, welch, paired, paired_interval, interval, contrast, fisher, holm]
_STATISTICS = [*_OF_RUNS, interval_over_images]
_BUILT_IN = [enumerate, float, len, map, max, min, sorted, sum, zip]
_NAMES: dict[str, Any] = {"__builtins__": {}}
for _function in [csv, one, record, report, *_STATISTICS, *_BUILT_IN]:
    _NAMES[_function.__name__] = _function
