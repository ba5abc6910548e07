"""The documentation names only what exists: links, files, functions, tests, options, commands, layers.

Documented shell commands are composed in ``tests/test_cli.py``.
"""

from __future__ import annotations

import ast
import difflib
import functools
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import capsule_lab
from capsule_lab.config.functions import function_options

ROOT = Path(__file__).parents[1]
CURRENT = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "results" / "README.md", *(ROOT / "docs").rglob("*.md")]
PAGES = [*sorted(CURRENT), ROOT / "CHANGELOG.md"]  # the changelog names what is no longer there, too
TOP = sorted(path.name for path in ROOT.iterdir() if not path.name.startswith((".", "_")) and path.name != "runs")
FENCED = re.compile(r"^```[^\n]*\n.*?^```$", re.MULTILINE | re.DOTALL)
PITFALL_FIELDS = ("Mistake", "Effect", "Right", "Threads", "Tests")


def id_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """The text of a page with its fenced blocks blanked, so that line numbers stay."""
    return FENCED.sub(lambda block: "\n" * block[0].count("\n"), page.read_text())


def in_backticks(page: Path) -> Iterator[tuple[int, str]]:
    """Line number and content of everything in single backticks."""
    for number, line in enumerate(prose(page).splitlines(), start=1):
        for content in re.findall(r"`([^`]+)`", line):
            yield number, content


def closest(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.3)
    return f"; closest: {found[0]}" if found else ""


@functools.cache
def names_in(path: Path) -> list[str]:
    """Functions, classes, methods (as ``Class.method``) and constants that a Python file defines."""
    found = []

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.extend(prefix + target.id for target in targets if isinstance(target, ast.Name))

    visit(ast.parse(path.read_text()).body, "")
    return found


def anchors_of(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# --- links and files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_relative_links_exist(page: Path) -> None:
    wrong = []
    for number, line in enumerate(prose(page).splitlines(), start=1):
        for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", line):
            target, _, anchor = link.partition("#")
            file = (page.parent / target).resolve() if target else page
            if not file.exists():
                wrong.append(f"{id_of(page)}:{number}: no file {link}")
            elif anchor and anchor not in anchors_of(file):
                wrong.append(
                    f"{id_of(page)}:{number}: {link} has no such heading{closest(anchor, [*anchors_of(file)])}"
                )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", CURRENT, ids=id_of)
def test_named_paths_and_functions_exist(page: Path) -> None:
    """`folder/file.py`, `folder/*.yaml` and `folder/file.py::name`, from the root of the repository."""
    wrong = []
    for number, content in in_backticks(page):
        path, *names = content.split("::")
        if "/" not in path or path.split("/")[0] not in TOP or re.search(r"[<>…{} ]", path):
            continue
        found = sorted(ROOT.glob(path.rstrip("/")))
        if not found:
            folder = (ROOT / path).parent
            beside = [id_of(each) for each in (folder.iterdir() if folder.is_dir() else [])]
            wrong.append(f"{id_of(page)}:{number}: no path {path}{closest(path, beside)}")
            continue
        wrong += [
            f"{id_of(page)}:{number}: no {name} in {path}{closest(name, names_in(found[0]))}"
            for name in names
            if name not in names_in(found[0])
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", CURRENT, ids=id_of)
def test_named_modules_exist(page: Path) -> None:
    """`capsule_lab.x.y` can be imported."""
    wrong = []
    for number, content in in_backticks(page):
        if re.fullmatch(r"capsule_lab(\.\w+)+", content):
            try:
                pkgutil.resolve_name(content)
            except (ImportError, AttributeError) as error:
                wrong.append(f"{id_of(page)}:{number}: {content}: {error}")
    assert not wrong, "\n".join(wrong)


# --- options of the configuration ------------------------------------------------------------------------------------


def options_of(group: str, folder: Path = ROOT / "conf") -> set[str]:
    folder /= group
    files = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")}
    return files | {*function_options(folder)}


def keys_of(group: str) -> set[str]:
    """The keys of all options of a group, those of ``# @package _global_`` below the name of the group."""
    found = set()
    for option in options_of(group):
        content = yaml.safe_load((ROOT / "conf" / group / f"{option}.yaml").read_text()) or {}
        found |= set(content.get(group) or content)
    return found


GROUPS = sorted(path.name for path in (ROOT / "conf").iterdir() if path.is_dir() and path.name != "hydra")


@pytest.mark.parametrize("page", CURRENT, ids=id_of)
def test_named_options_exist(page: Path) -> None:
    """`group=option` is a file of `conf/group`, or of a template."""
    wrong = []
    folders = [ROOT / "conf", *(ROOT / "tests" / "templates").glob("*/conf")]
    for number, content in in_backticks(page):
        for group, option in re.findall(r"(?<![\w.+])(\w+)=([\w/]+)(?![\w/.*<…])", content):
            existing = {name for folder in folders for name in options_of(group, folder)}
            if group in GROUPS and option not in existing | {"none", "null"}:
                known = [f"{group}={each}" for each in options_of(group)]
                wrong.append(f"{id_of(page)}:{number}: {group}={option}{closest(f'{group}={option}', known)}")
    assert not wrong, "\n".join(wrong)


SWITCHES = ROOT / "docs" / "switches.md"


@pytest.mark.parametrize("group", ["routing", "loss", "schedule", "optimizer", "data", "model"])
def test_every_option_is_listed_in_switches(group: str) -> None:
    listed = {content for _, content in in_backticks(SWITCHES)}
    known = {f"{group}={option}" for option in options_of(group) if not option.startswith("_")}
    assert known - listed == set(), f"add these to {id_of(SWITCHES)}"


def test_every_key_of_a_routing_is_in_switches() -> None:
    named = set(re.findall(r"`routing\.(\w+)", SWITCHES.read_text()))
    known = {key for key in keys_of("routing") if not key.startswith("_")} - {"defaults", "routing"}
    assert known - named == set(), f"{id_of(SWITCHES)} lacks these keys of conf/routing"
    assert named - known == set(), f"{id_of(SWITCHES)} names keys that conf/routing does not have"


# --- architecture ----------------------------------------------------------------------------------------------------


def test_drawing_of_the_layers_is_what_the_linter_enforces() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    (drawing,) = re.findall(
        r"^## Layers\n.*?^```text\n(.*?)^```", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE | re.DOTALL
    )

    def row(layer: str) -> list[str]:
        return sorted(name.strip().removeprefix("capsule_lab.") for name in layer.split("|"))

    drawn = [row(re.split(r"\s{2,}", line.strip())[0]) for line in drawing.splitlines()]
    enforced = [row(layer) for layer in layers]
    wrong = difflib.ndiff(*([" | ".join(each) for each in rows] for rows in (enforced, drawn)))
    assert drawn == enforced, "\n".join(["- pyproject.toml, + docs/architecture.md", *wrong])


def test_every_package_is_described() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = [path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "capsule_lab").rglob("__init__.py")]
    assert [package for package in packages if package != "capsule_lab" and f"`{package}/`" not in text] == []


# --- pitfalls --------------------------------------------------------------------------------------------------------


def pitfalls() -> dict[str, str]:
    text = (ROOT / "docs" / "pitfalls.md").read_text()
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    return {section.splitlines()[0]: re.split(r"^## ", section, flags=re.MULTILINE)[0] for section in sections}


PITFALLS = pitfalls()


def test_pitfalls_are_found() -> None:
    assert len(PITFALLS) >= 20


@pytest.mark.parametrize("title", PITFALLS)
def test_pitfall_has_an_effect_a_remedy_threads_and_tests(title: str) -> None:
    fields = dict(re.findall(r"^- \*\*(\w+)\*\*: (.*?)(?=^- \*\*|\Z)", PITFALLS[title], re.MULTILINE | re.DOTALL))
    assert tuple(fields) == PITFALL_FIELDS
    threads = re.findall(r"\]\(https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+\)", fields["Threads"])
    assert threads or "no thread found" in fields["Threads"], "link a thread, or say that none was found"
    assert re.search(r"`tests/[\w/]+\.py::\w+`", fields["Tests"]), "name the test that holds it"


# --- README, CHANGELOG, citation -------------------------------------------------------------------------------------


def test_readme_is_short() -> None:
    """In words that a reader sees."""
    text = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(text.split()) <= 1200


def test_readme_lists_every_command_as_its_configuration_describes_it() -> None:
    text = (ROOT / "README.md").read_text()
    (table,) = re.findall(r"^## Commands\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE))
    files = [path for path in (ROOT / "conf").glob("*.yaml") if not path.stem.startswith("_")]
    assert listed == {path.stem: path.read_text().splitlines()[0].lstrip("# ") for path in files}


def test_readme_counts_the_pitfalls() -> None:
    assert re.findall(r"lists (\d+) mistakes", (ROOT / "README.md").read_text()) == [str(len(PITFALLS))]


def test_contributing_quotes_the_templates() -> None:
    files = [path for path in (ROOT / "tests" / "templates").rglob("*") if path.suffix in (".py", ".yaml")]
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert [id_of(path) for path in files if path.read_text().strip() not in text] == []


def test_readme_shows_one_picture_and_one_table_of_results() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(re.findall(r"^!\[", text, re.MULTILINE)) == 1
    assert text.count("| test error |") == 1


def test_every_page_of_docs_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#\s]+\.md)", index.read_text())}
    missing = {id_of(page) for page in (ROOT / "docs").rglob("*.md") if page != index and page not in linked}
    assert missing == set()


def test_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == capsule_lab.__version__
    released = re.findall(r"^## \[(\d[^\]]*)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == (capsule_lab.__version__, str(citation["date-released"]))


def test_glossary_of_files_has_only_new_names_that_exist() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    rows = re.findall(r"^\| `([^`|]+)` \| `([^`|]+)` \|$", text, re.MULTILINE)
    paths = [(old, new) for old, new in rows if new.split("/")[0] in TOP and "/" in new]
    assert len(paths) >= 40
    assert [new for _, new in paths if not (ROOT / new).exists()] == []
    assert [old for old, new in paths if (ROOT / old).exists() and not (ROOT / old).is_dir()] == []
