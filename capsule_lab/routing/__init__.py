"""Routing algorithms: one file, one algorithm, one paper. Pure function on top, thin module below."""

from capsule_lab.routing.base import AbstractRouting, Normalisation, Normaliser, RoutingFactory
from capsule_lab.routing.dynamic import DynamicRouting, dynamic_routing
from capsule_lab.routing.em import EMRouting, em_routing
from capsule_lab.routing.uniform import UniformRouting, uniform_routing

__all__ = [
    "AbstractRouting",
    "DynamicRouting",
    "EMRouting",
    "Normalisation",
    "Normaliser",
    "RoutingFactory",
    "UniformRouting",
    "dynamic_routing",
    "em_routing",
    "uniform_routing",
]
