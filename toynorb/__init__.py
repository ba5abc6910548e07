"""The stand-in for smallNORB: rendered toys in its format, with its elevations, azimuths and lightings.

smallNORB (LeCun, Huang and Bottou 2004) shows 50 toys of five categories, in stereo, from 9 elevations and 18
azimuths under 6 lightings; training and test sets contain different toys. This set has the same structure, for use
where the real one is not available: 97,200 images of toys that ``make_toy`` builds from rounded primitives, with seven
kinds per category. It does not replace the real set: results on it are results for this set only.

Each image depends only on its factors, its size and the seed, and is bit-identical on any machine with IEEE 754
float32: a subset equals the same part of the full set, in any batches and processes.

Grey levels (mean about 0.745, standard deviation 0.145) differ from smallNORB's: do not normalise with the latter.

Modules from bottom to top: ``tracing`` (compiled ray tracing and shading), ``shapes`` (parts of toys), ``animals`` …
``cars`` (appearance of toys), ``toys`` (list of toys), ``camera`` (views and lamps), ``rendering`` (images);
``catalogue`` draws all toys on one sheet. ``capsule_lab.data.standins.toynorb_files`` writes the data set.
"""

from toynorb.rendering import AZIMUTHS, ELEVATIONS, LIGHTINGS, SIZES, render
from toynorb.toys import CATEGORIES, INSTANCES, TEST_INSTANCES, TRAIN_INSTANCES, kind_of

__all__ = [
    "AZIMUTHS",
    "CATEGORIES",
    "ELEVATIONS",
    "INSTANCES",
    "LIGHTINGS",
    "SIZES",
    "TEST_INSTANCES",
    "TRAIN_INSTANCES",
    "kind_of",
    "render",
]
