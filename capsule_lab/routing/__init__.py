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
from capsule_lab.routing.heinsen import HeinsenRouting, heinsen_routing
from capsule_lab.routing.self_attention import SelfAttentionRouting, self_attention_routing
from capsule_lab.routing.self_routing import SelfRouting, self_routing
from capsule_lab.routing.uniform import UniformRouting, uniform_routing
from capsule_lab.routing.variational_bayes import VariationalBayesRouting, variational_bayes_routing

__all__ = [
    "AbstractRouting",
    "DynamicRouting",
    "EMRouting",
    "HeinsenRouting",
    "LayerInfo",
    "Normalisation",
    "NormalisedEMRouting",
    "Normaliser",
    "RoutingFactory",
    "SelfAttentionRouting",
    "SelfRouting",
    "UniformRouting",
    "VariationalBayesRouting",
    "build_routing",
    "dynamic_routing",
    "em_evidence",
    "em_routing",
    "heinsen_routing",
    "self_attention_routing",
    "self_routing",
    "uniform_routing",
    "variational_bayes_routing",
]
