"""Routing algorithms, one per file and paper, each as a pure function followed by a thin module."""

# The package exports the names in ``__all__`` of each of its modules. For editors, tests/test_type_checking_lists.py
# names the line that a new module adds here.
# ruff: noqa: F403, F405

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers, which do not run the loop below
    from capsule_lab.routing.attention_over_children import *
    from capsule_lab.routing.base import *
    from capsule_lab.routing.dynamic import *
    from capsule_lab.routing.em import *
    from capsule_lab.routing.em_normalised import *
    from capsule_lab.routing.heinsen import *
    from capsule_lab.routing.inverted_attention import *
    from capsule_lab.routing.random_couplings import *
    from capsule_lab.routing.scaled_distance import *
    from capsule_lab.routing.self_attention import *
    from capsule_lab.routing.self_routing import *
    from capsule_lab.routing.uniform import *
    from capsule_lab.routing.variational_bayes import *
else:
    __all__ = []
    _files = {file.name for file in pkgutil.iter_modules(__path__)}
    for _file in ["base", *sorted(_files - {"base"})]:
        _module = importlib.import_module(f"{__name__}.{_file}")
        for _name in getattr(_module, "__all__", ()):
            globals()[_name] = getattr(_module, _name)
            __all__.append(_name)
