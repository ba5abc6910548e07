"""The stand-in for smallNORB: rendered toys in its format, with its elevations, azimuths and lightings.

smallNORB (LeCun, Huang and Bottou 2004) shows 50 toys of five categories, in stereo, from 9 elevations and 18
azimuths under 6 lightings; the training and the test toys are different ones. So does this set, where the real
one cannot be had: 97,200 images of toys that ``make_toy`` builds out of rounded primitives, each category in seven
kinds. It is no substitute for results: a number found here is a number of this set.

Each image depends on its factors, its size and the seed alone, to the bit, on any machine that computes float32 as
IEEE 754 says: a subset equals that part of the whole, in any batches and processes.

Grey levels are the set's own (mean about 0.745, standard deviation 0.145): do not normalise by smallNORB's.

From bottom to top: ``tracing`` what rays hit and how bright it is, compiled; ``shapes`` parts of toys, ``animals`` …
``cars`` what toys look like, ``toys`` which there are, ``camera`` views and lamps, ``rendering`` images, ``files`` the
data set; ``catalogue`` draws all toys on one sheet.
"""

from capsule_lab.data.standins.toynorb.files import (
    STANDIN_NAME,
    VERSION,
    is_as_rendered,
    labels_and_info,
    render_files,
)
from capsule_lab.data.standins.toynorb.rendering import AZIMUTHS, ELEVATIONS, LIGHTINGS, SIZES, render
from capsule_lab.data.standins.toynorb.toys import CATEGORIES, INSTANCES, TEST_INSTANCES, TRAIN_INSTANCES, kind_of

__all__ = [
    "AZIMUTHS",
    "CATEGORIES",
    "ELEVATIONS",
    "INSTANCES",
    "LIGHTINGS",
    "SIZES",
    "STANDIN_NAME",
    "TEST_INSTANCES",
    "TRAIN_INSTANCES",
    "VERSION",
    "is_as_rendered",
    "kind_of",
    "labels_and_info",
    "render",
    "render_files",
]
