"""Routing algorithms: one file, one algorithm, one paper. Pure function on top, thin module below."""

from capsule_lab.routing.base import (
    AbstractRouting,
    LayerInfo,
    Normalisation,
    Normaliser,
    RoutingFactory,
    build_routing,
)
from capsule_lab.routing.dynamic import DynamicRouting, dynamic_routing
from capsule_lab.routing.em import EMRouting, em_routing
from capsule_lab.routing.em_normalised import NormalisedEMRouting, em_evidence
from capsule_lab.routing.uniform import UniformRouting, uniform_routing

__all__ = [
    "AbstractRouting",
    "DynamicRouting",
    "EMRouting",
    "LayerInfo",
    "Normalisation",
    "NormalisedEMRouting",
    "Normaliser",
    "RoutingFactory",
    "UniformRouting",
    "build_routing",
    "dynamic_routing",
    "em_evidence",
    "em_routing",
    "uniform_routing",
]
