import pkgutil
import tomllib

import capsule_studies
from tests.helpers.commands import ROOT


def test_every_module_has_a_layer() -> None:
    """The contract in pyproject.toml does not check a module that it does not name."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contracts = {contract["name"]: contract for contract in settings["contracts"]}
    named = []
    for layer in contracts["Imports of studies only point down"]["layers"]:
        named += layer.split(" | ")
    named += ["capsule_studies.claims", "capsule_studies.tests"]  # of other contracts
    found = pkgutil.iter_modules(capsule_studies.__path__)
    modules = [f"capsule_studies.{module.name}" for module in found]
    assert sorted(named) == sorted(modules)
