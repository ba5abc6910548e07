"""Routing algorithms: one file, one algorithm, one paper. Pure function on top, thin module below."""

from capsule_lab.routing.attention_over_children import AttentionOverChildren, attention_over_children
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
from capsule_lab.routing.inverted_attention import InvertedAttention, inverted_attention
from capsule_lab.routing.random_couplings import RandomCouplings
from capsule_lab.routing.scaled_distance import ScaledDistanceAgreement, scaled_distance_agreement
from capsule_lab.routing.self_attention import SelfAttentionRouting, self_attention_routing
from capsule_lab.routing.self_routing import SelfRouting, self_routing
from capsule_lab.routing.uniform import UniformRouting, uniform_routing
from capsule_lab.routing.variational_bayes import VariationalBayesRouting, variational_bayes_routing

__all__ = [
    "AbstractRouting",
    "AttentionOverChildren",
    "DynamicRouting",
    "EMRouting",
    "HeinsenRouting",
    "InvertedAttention",
    "LayerInfo",
    "Normalisation",
    "NormalisedEMRouting",
    "Normaliser",
    "RandomCouplings",
    "RoutingFactory",
    "ScaledDistanceAgreement",
    "SelfAttentionRouting",
    "SelfRouting",
    "UniformRouting",
    "VariationalBayesRouting",
    "attention_over_children",
    "build_routing",
    "dynamic_routing",
    "em_evidence",
    "em_routing",
    "heinsen_routing",
    "inverted_attention",
    "scaled_distance_agreement",
    "self_attention_routing",
    "self_routing",
    "uniform_routing",
    "variational_bayes_routing",
]
