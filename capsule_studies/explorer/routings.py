"""Routings as the engine computes them: their kind, options and parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from capsule_lab.errors import RunError
from capsule_lab.routing import (
    AbstractRouting,
    AttentionOverChildren,
    DynamicRouting,
    EMRouting,
    InvertedAttention,
    NormalisedEMRouting,
    RandomCouplings,
    ScaledDistanceAgreement,
    SelfAttentionRouting,
    SelfRouting,
    UniformRouting,
)
from capsule_lab.routing.em_costs import inverse_temperatures

SUPPORTED = (
    "a CapsNet, an EfficientCapsNet, an EMCaps or a SelfRoutingNet without convolutional capsules, and beside it a "
    "CNN; each in its usual options"
)
DENSE = (
    "routing=dynamic, uniform, random_couplings, self_routing, self_attention, scaled_distance, "
    "attention_over_children or inverted_attention"
)
EM = "routing=em_normalised, em or em_paper in an EMCaps; a CapsNet is shown also with routing=uniform"
SQUASHES = ("squash", "exponential", "half", "none")
"""Names of ``functional.SQUASHES`` that the engine has."""

Add = Callable[[Tensor | None], int | None]
"""Appends a tensor to the block of weights and returns its number."""


def check(supported: bool, option: str) -> None:
    """Check an option that the engine has no operation for."""
    if not supported:
        raise unsupported(option)


def unsupported(what: str, expected: str = SUPPORTED) -> RunError:
    """Return the error for a layer or option that the engine does not have."""
    return RunError(f"the explorer has no {what}; expected {expected}")


def dense_routing(routing: AbstractRouting, add: Add) -> dict[str, Any]:
    """Return the routing of a layer in which every parent sees every child."""
    if isinstance(routing, SelfAttentionRouting):
        return {"kind": "self_attention", "prior": add(routing.prior)}
    if isinstance(routing, SelfRouting):
        weight, bias = add(routing.weight), add(routing.bias)
        return {"kind": "self_routing", "weight": weight, "bias": bias}
    if isinstance(routing, ScaledDistanceAgreement):
        return {"kind": "scaled_distance", **routing.options, "bias": add(routing.bias)}
    if isinstance(routing, AttentionOverChildren):
        return {
            "kind": "attention_over_children",
            "attention": add(routing.attention),
            "weight": add(routing.weight),
            "bias": add(routing.bias),
        }
    if isinstance(routing, InvertedAttention):
        return _inverted_attention(routing, add)
    if isinstance(routing, DynamicRouting | UniformRouting):
        return _dynamic(routing, add)
    raise unsupported(type(routing).__name__, DENSE)


def _dynamic(routing: DynamicRouting | UniformRouting, add: Add) -> dict[str, Any]:
    """Return dynamic routing; equal and random couplings are its first iteration."""
    options = routing.options
    squash = options.get("squash", "squash")
    check(squash in SQUASHES, f"routing.squash={squash}")
    gain = None
    if isinstance(routing, DynamicRouting):
        prior = routing.built_prior
    else:
        is_random = isinstance(routing, RandomCouplings)
        prior = routing.require_parameter("log_couplings") if is_random else None
        gain = routing.gain
    return {
        "kind": "dynamic",
        "iterations": options.get("iterations", 1),
        "replace": options.get("update") == "replace",
        "leaky": routing.leaky,
        "squash": squash,
        "prior": add(prior),
        "gain": add(gain),
        "bias": add(routing.bias),
    }


def _inverted_attention(routing: InvertedAttention, add: Add) -> dict[str, Any]:
    head = routing.head
    return {
        "kind": "inverted_attention",
        "iterations": routing.options["iterations"],
        "scale": add(routing.scale),
        "shift": add(routing.shift),
        "headWeight": add(None if head is None else head.weight),
        "headBias": add(None if head is None else head.bias),
    }


def em_routing(routing: AbstractRouting, add: Add) -> dict[str, Any]:
    """Return EM routing, with normalised evidence or as published."""
    options = routing.options
    if isinstance(routing, NormalisedEMRouting):
        check(not routing.learned_prior, "routing.learned_prior=true")
        described = _normalised(routing, add)
    elif isinstance(routing, EMRouting):
        described = _published(routing, add)
    else:
        raise unsupported(f"{type(routing).__name__} between matrix capsules", EM)
    return {
        **described,
        "competition": routing.normalisation,
        "iterations": options["iterations"],
        "minVariance": options["min_variance"],
        "massEps": options["mass_eps"],
    }


def _normalised(routing: NormalisedEMRouting, add: Add) -> dict[str, Any]:
    evidence_factor, evidence_term = affine(routing.evidence_norm)
    pose_factor, pose_term = affine(routing.pose_norm)
    return {
        "kind": "normalised",
        "temperature": routing.options["temperature"],
        "evidenceFactor": add(evidence_factor),
        "evidenceTerm": add(evidence_term),
        "poseFactor": add(pose_factor),
        "poseTerm": add(pose_term),
    }


def _published(routing: EMRouting, add: Add) -> dict[str, Any]:
    """Return EM routing by description length; the engine has no other activation and no damping."""
    options = routing.options
    cost, activation, damping = (options[name] for name in ("cost", "activation", "damping"))
    check(cost != "standardised", f"routing.cost={cost}")
    check(activation == "description_length", f"routing.activation={activation}")
    check(damping == 0, f"routing.damping={damping}")
    schedule = options["temperature_schedule"]
    final = options["inverse_temperature"]
    lambdas = inverse_temperatures(options["iterations"], final, schedule)
    return {
        "kind": "published",
        "cost": cost,
        "inverseTemperatures": [float(each) for each in lambdas],
        "equalOverTypes": options["initial"] == "types",
        "betaU": add(routing.beta_u),
        "betaA": add(routing.beta_a),
    }


def affine(norm: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return batch normalisation in eval mode as a factor and a term for each feature."""
    if norm is None:
        return None, None
    factor = norm.weight * (norm.running_var + norm.eps).rsqrt()
    return factor, norm.bias - norm.running_mean * factor
