"""Links, files, functions, tests, options, commands and layers that the documentation names exist.

Documented shell commands are composed in ``tests/test_cli.py``.
"""

import ast
import difflib
import functools
import pkgutil
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import yaml

import capsule_lab
from capsule_lab import routing
from capsule_lab.commands import names
from capsule_lab.config.folders import file_of, groups, head, options_of, shipped_folders
from docs import site_parts
from tests.helpers import switches
from tests.helpers.extensions import needs_studies

ROOT = Path(__file__).parents[1]
RESULTS = sorted((ROOT / "results").rglob("*.md"))
DOCS = sorted((ROOT / "docs").rglob("*.md"))
CURRENT = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *RESULTS, *DOCS]
PAGES = [*sorted(CURRENT), ROOT / "CHANGELOG.md"]  # the changelog also names what was removed
OF_USERS = {"data", "runs"}
TOP = {path.name for path in ROOT.iterdir() if path.name[0] not in "._"} - OF_USERS
"""What paths in the documentation begin with."""
FENCED = re.compile(r"^```[^\n]*\n.*?^```$", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"(?<![\w.+])(\w+)=([\w/]+)(?![\w/.*<…])")
PITFALL_FIELDS = ("Mistake", "Effect", "Right", "Threads", "Tests")


def id_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """The text of a page with blank lines in place of fenced blocks, which keeps line numbers."""
    return FENCED.sub(lambda block: "\n" * block[0].count("\n"), page.read_text())


def in_backticks(page: Path) -> Iterator[tuple[int, str]]:
    """Line number and content of everything in single backticks."""
    for number, line in enumerate(prose(page).splitlines(), start=1):
        for content in re.findall(r"`([^`]+)`", line):
            yield number, content


def closest(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.3)
    return f"; closest: {matches[0]}" if matches else ""


@functools.cache
def names_in(path: Path) -> list[str]:
    """Functions, classes, methods (as ``Class.method``) and constants that a Python file defines."""
    names = []

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.append(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        names.append(prefix + target.id)

    visit(ast.parse(path.read_text()).body, "")
    return names


def anchors_of(page: Path) -> set[str]:
    """GitHub's anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page).lower(), re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", heading) for heading in headings]
    return {each.replace(" ", "-") for each in words}


def wrong_links(page: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(prose(page).splitlines(), start=1):
        for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", line):
            target, _, anchor = link.partition("#")
            file = (page.parent / target).resolve() if target else page
            if not file.exists():
                yield number, f"no file {link}"
                continue
            known = anchors_of(file) if anchor else set()
            if anchor and anchor not in known:
                yield number, f"{link} has no such heading{closest(anchor, known)}"


def wrong_paths(page: Path) -> Iterator[tuple[int, str]]:
    """`folder/file.py`, `folder/*.yaml` and `folder/file.py::name`, from the root of the repository."""
    for number, content in in_backticks(page):
        path, *names = content.split("::")
        top, slash, _ = path.partition("/")
        if not slash or top not in TOP or re.search(r"[<>…{} ]", path):
            continue
        files = sorted(ROOT.glob(path.rstrip("/")))
        if not files:
            others = [id_of(other) for other in (ROOT / path).parent.glob("*")]
            yield number, f"no path {path}{closest(path, others)}"
            continue
        known = names_in(files[0]) if names else []
        for name in names:
            if name not in known:
                yield number, f"no {name} in {path}{closest(name, known)}"


def wrong_modules(page: Path) -> Iterator[tuple[int, str]]:
    """`capsule_lab.x.y` can be imported."""
    for number, content in in_backticks(page):
        if not re.fullmatch(r"capsule_lab(\.\w+)+", content):
            continue
        try:
            pkgutil.resolve_name(content)
        except (ImportError, AttributeError) as error:
            yield number, f"{content}: {error}"


def wrong_options(page: Path) -> Iterator[tuple[int, str]]:
    """`group=option` is an option of `conf/group`, or of a template."""
    templates = {path.stem for path in (ROOT / "tests" / "templates").glob("*/conf/*/*.yaml")}
    for number, content in in_backticks(page):
        for group, option in OPTION.findall(content):
            if group not in groups():
                continue
            known = options_of(group)
            if option not in {*known, *templates, "none", "null"}:
                yield number, f"{group}={option}{closest(option, known)}"


@pytest.mark.parametrize("wrong", [wrong_links, wrong_paths, wrong_modules, wrong_options])
def test_names_in_pages_exist(wrong: Callable[[Path], Iterator[tuple[int, str]]]) -> None:
    problems = []
    for page in PAGES if wrong is wrong_links else CURRENT:
        for number, text in wrong(page):
            problems.append(f"{id_of(page)}:{number}: {text}")
    assert not problems, "\n".join(problems)


def test_tables_of_switches_are_those_of_the_comments() -> None:
    text = switches.PAGE.read_text()
    expected = switches.updated(text)
    assert text == expected, "python -m tests.helpers.switches makes docs/switches.md anew"
    for group in ("routing", "loss", "schedule", "optimizer", "data", "model"):
        assert f"<!-- options of {group} -->" in text


DRAWING = re.compile(r"^## Layers\n.*?^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_drawn_layers_are_those_of_the_linter() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    page = (ROOT / "docs" / "architecture.md").read_text()
    (drawing,) = DRAWING.findall(page)

    def row(layer: str) -> str:
        names = [name.strip().removeprefix("capsule_lab.") for name in layer.split("|")]
        return " | ".join(sorted(names))

    drawn = []
    for line in drawing.splitlines():
        layer, *_ = re.split(r"\s{2,}", line.strip())
        drawn.append(row(layer))
    enforced = [row(layer) for layer in layers]
    wrong = difflib.ndiff(enforced, drawn)
    message = "\n".join(["- pyproject.toml, + docs/architecture.md", *wrong])
    assert drawn == enforced, message


def test_every_package_is_described_in_the_architecture_page() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = {id_of(path.parent) for path in (ROOT / "capsule_lab").rglob("__init__.py")}
    for package in packages - {"capsule_lab"}:
        assert f"`{package}/`" in text


def pitfalls() -> dict[str, str]:
    text = (ROOT / "docs" / "pitfalls.md").read_text()
    found = {}
    for section in text.split("\n### ")[1:]:
        title, _, body = section.partition("\n")
        found[title] = body.partition("\n## ")[0]
    return found


PITFALLS = pitfalls()
FIELD = re.compile(r"^- \*\*(\w+)\*\*: (.*?)(?=^- \*\*|\Z)", re.MULTILINE | re.DOTALL)
THREAD = re.compile(r"\]\(https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+\)")


def test_every_pitfall_has_all_fields() -> None:
    assert len(PITFALLS) >= 20
    for title, section in PITFALLS.items():
        fields = dict(FIELD.findall(section))
        assert tuple(fields) == PITFALL_FIELDS, title
        threads = fields["Threads"]
        answered = THREAD.search(threads) or "no thread found" in threads
        assert answered, f"{title}: link a thread, or say that none was found"
        named = re.search(r"`tests/[\w/]+\.py::\w+`", fields["Tests"])
        assert named, f"{title}: name the test that holds it"


def test_readme_has_at_most_940_words_beside_its_table_of_commands() -> None:
    """Comments do not count; the table has a row for each command."""
    text = (ROOT / "README.md").read_text()
    shown = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    beside = re.sub(r"^\| `\w+` \|.*$", "", shown, flags=re.MULTILINE)
    assert len(beside.split()) <= 940


@needs_studies
def test_readme_lists_every_command_as_its_configuration_describes_it() -> None:
    text = (ROOT / "README.md").read_text()
    (table,) = re.findall(r"^## Commands\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE)
    expected = {}
    for name in names():
        first, *_ = head(file_of(name))
        expected[name] = first
    assert dict(rows) == expected


def test_no_command_names_a_run_that_only_its_author_has() -> None:
    """A hash of a configuration is known only to who has trained it; ``last`` and ready weights work for everybody."""
    texts = {}
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS):
        texts[page] = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    for folder in (*shipped_folders(), ROOT / "sweeps"):
        for file in folder.rglob("*.yaml"):
            texts[file] = file.read_text()
    for package in ("capsule_lab", "capsule_studies"):
        for module in (ROOT / package).rglob("*.py"):
            if "tests" not in module.parts:
                texts[module] = module.read_text()
    found = []
    for path, text in texts.items():
        for named in re.findall(r"runs/[\w-]+-[0-9a-f]{8}\b", text):
            found.append(f"{id_of(path)}: {named}")
    assert found == []


def test_readme_states_the_number_of_pitfalls() -> None:
    text = (ROOT / "README.md").read_text()
    (number,) = re.findall(r"lists (\d+) mistakes", text)
    assert int(number) == len(PITFALLS)


def test_pages_quote_the_templates() -> None:
    pages = (ROOT / "CONTRIBUTING.md", ROOT / "docs" / "guides" / "own_routing.md")
    text = "".join(page.read_text() for page in pages)
    for file in (ROOT / "tests" / "templates").rglob("*"):
        if file.suffix in (".py", ".yaml"):
            assert file.read_text().strip() in text, id_of(file)


@pytest.mark.parametrize(
    ("name", "pages"), [("docs/index.md", DOCS), ("results/README.md", RESULTS)]
)
def test_index_links_every_page(name: str, pages: list[Path]) -> None:
    index = ROOT / name
    links = re.findall(r"\]\(([^)#\s]+\.md)", index.read_text())
    linked = {(index.parent / link).resolve() for link in links}
    for page in pages:
        assert page in {index, *linked}, id_of(page)


def test_index_calls_every_page_by_its_title() -> None:
    """Otherwise a page has one name in the text and another one in the sidebar."""
    folder = ROOT / "docs"
    index = (folder / "index.md").read_text()
    rows = re.findall(r"^\| \[(.+?)\]\((.+?\.md)\) \|", index, re.MULTILINE)
    assert len(rows) > 40
    for name, link in rows:
        page = (folder / link).read_text()
        title = re.search(r"^# (.+)$", page, re.MULTILINE)
        assert title is not None, link
        assert title[1] == name, link


def test_site_has_every_page_that_its_pages_link() -> None:
    settings = ast.parse((ROOT / "docs" / "conf.py").read_text())
    values = {}
    for statement in settings.body:
        if isinstance(statement, ast.Assign):
            target, *_ = statement.targets
            values[ast.unparse(target)] = statement.value
    on_site: set[Path] = set()
    for pattern in ast.literal_eval(values["include_patterns"]):
        paths = ROOT.glob(pattern.replace("**.", "**/*."))
        on_site |= {path.resolve() for path in paths}
    missing = []
    for page in sorted(on_site):
        if page.suffix != ".md":
            continue
        for link in re.findall(r"\]\((?!https?:)([^)#\s]+\.md)", prose(page)):
            linked = page.parent / link
            if linked.resolve() not in on_site:
                missing.append(f"{id_of(page)}: {link}")
    assert missing == []


def test_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == capsule_lab.__version__
    settings = (ROOT / "capsule_studies" / "pyproject.toml").read_text()
    studies = tomllib.loads(settings)["project"]
    assert studies["version"] == capsule_lab.__version__
    assert f"capsule-lab[report]=={capsule_lab.__version__}" in studies["dependencies"]
    heading = r"^## \[(\d[^\]]*)\] - (\d{4}-\d\d-\d\d)$"
    changes = (ROOT / "CHANGELOG.md").read_text()
    version, date = re.findall(heading, changes, re.MULTILINE)[0]
    assert version == capsule_lab.__version__
    assert date == str(citation["date-released"])


@pytest.mark.whole  # composes a configuration for each routing
def test_page_of_routings_begins_with_a_table_of_all() -> None:
    path = ROOT / "docs" / "api" / "routing.md"
    source = [path.read_text()]
    site_parts.add_to_page(None, "docs/api/routing", source)
    title, table, *_ = source[0].split("\n\n")
    assert title == "# Routing"
    _, _, *rows = table.splitlines()
    listed = []
    for row in rows:
        options, code, paper = row.strip("| ").split(" | ")
        listed += re.findall(r"`(\w+)`", options)
        for name in re.findall(r"routing\.(\w+)`", code):
            assert hasattr(routing, name), row
        (page,) = re.findall(r"\]\((.*?)\)", paper)
        assert (path.parent / page).is_file(), row
    assert sorted(listed) == [option for option in options_of("routing") if option != "none"]
