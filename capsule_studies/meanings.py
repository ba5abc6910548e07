"""One sentence for each number that ``analyse`` prints: what it measures, and which values say what.

The definitions are in the docstrings of the questions and in docs/guides/looking_inside.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

_ERROR = "percentage of images with a wrong class"

MEANINGS: dict[str, dict[str, str]] = {
    "attributes": {
        "explained_by_components": "share of an attribute that its best component explains; 1: they are the same",
        "explained_by_rotated": "control: the same after random rotations of the pose; no component is special",
        "axis_gain": "difference of the two; 0: the components are no better than any other directions",
        "explained_by_pose": "share of an attribute that all components together predict; 0 or less: nothing",
    },
    "coding": {
        "place_slope": "columns by which the most active capsule moves per pixel; place coding: one over the stride",
        "rate_share": "share of the shift that the pose of that capsule follows: 1 is rate coding, 0 none",
        "domain": "pixels over which a capsule keeps half of its activation; wider means less place coding",
        "at_limit": "share of domains as wide as was measured; above 0, domain is a lower bound",
    },
    "couplings": {
        "entropy": "how evenly a child is shared among the parents: 1 equally, 0 it has one parent",
        "weighted_entropy": "the same, with children weighted by activation",
        "t_score": "1 minus the entropy: 1 is a tree, 0 no routing",
        "static_share": "share of the couplings' variation over parents that is the same for all images; 1: constant",
        "routing_std": "standard deviation of a coupling over images; 0: routing ignores the image",
        "class_information": "bits about the label in a child's strongest parent; compare with shuffled labels",
        "class_information_of_shuffled_labels": "the same by chance",
        "starved_share": "share of parents that receive almost no couplings",
        "trees_per_class": "number of different trees for the images of a class; 1: all are the same",
        "entropy_of_trees": "the same in bits; 0: all are the same",
        "images_per_class": "images of a class, the largest number of trees that can be found",
        "argmax_changes": "share of children whose strongest parent changes; empty if couplings were equal before",
        "logit_change": "by how much this iteration changes the logits of the couplings",
        "d_score": "how much activations vary over images; near 0, capsules ignore the image",
        "dead_share": "share of capsules that no image activates",
        "distance_from_orthogonal": "distance of the transformations from scaled rotations; 0: they are rotations",
        "gradient_norm": "norm of the gradient of the layer's weights on the first batch; compare it between layers",
        "error": _ERROR,
        "error_with_equal_couplings": "the same if every child is shared equally, without routing",
        "routing_gain": "difference of the two errors, in points: what routing contributes; 0: nothing",
    },
    "crowding": {
        "presence": "mean activation of the capsules of the labels",
        "present": "percentage of labels whose capsule has an activation above 0.5",
        "found": "percentage of images whose labels rank highest",
        "one_part": "percentage of reconstructions that are one of the objects and not a blend of both",
        "again/two_classes_*": "percentage of pairs of two classes of which the second pass finds the other class",
        "again/same_class_*": "percentage of pairs of one class of which the second pass finds the class again",
        "again/single_*": "percentage of single objects with any class in the second pass, which is wrong",
    },
    "decoder": {
        "squared_error": "mean squared error of a pixel that is decoded from the pose",
        "class_mean_squared_error": "the same for the mean image of the class, which needs no pose",
        "explained": "share of the latter that the pose removes: 1 it knows the image, 0 only the class",
    },
    "few_labels": {
        "log_likelihood": "how well the mixture describes a training image; comparable for the same features only",
        "dimensions": "length of the vectors that the mixture describes",
        "asked/error": "error in percent if one chosen image for each component is labelled",
        "drawn/error": "error in percent if the labelled images are drawn at random",
        "drawn_*_per_class/error": "error in percent if as many labelled images of each class are drawn",
        "nearest/error": "control: error in percent of the nearest labelled image, without the network",
        "probe/error": "error in percent of a regression on all labels: what the features allow",
        "deviation": "standard deviation of that error over draws",
    },
    "poses": {
        "reconstruction": "squared error of the drawn images; compare with copying and mean_image",
        "copying": "the same if the first image is the prediction",
        "mean_image": "the same if the mean of all second images is the prediction",
        "shift_r2": "how well the change of poses predicts the shift: 1 exactly, 0 not at all",
        "slope_right": "pixels that a pose moves to the right per pixel of the image; 1: poses follow the image",
        "slope_down": "the same for down",
        "slope_error": "distance of the slopes from the identity; 0: poses follow the image",
        "slope_capsules": "capsules that are present often enough to count in the slopes",
        "matrix_error": "distance of the changed pose from the pose of the changed image; 0: poses follow the image",
        "matrix_error_unchanged": "the same if poses stayed as they are",
        "presence_change": "change of the presences between both images, in standard deviations; 0: invariant",
        "dead_capsules": "percentage of capsules that are never present or draw almost nothing",
    },
    "probe": {
        "azimuth_r2": "how well the pose predicts the azimuth: 1 exactly, 0 not at all; compare with pixels/",
        "elevation_r2": "the same for the elevation",
        "lighting_r2": "the same for the lighting",
        "azimuth_degrees": "median error of the azimuth; 90 is chance; compare with pixels/",
        "azimuth_degrees_aligned": "the same relative to the toy's other views, as toys have no common front",
        "novel_azimuth_degrees": "the same for azimuths that the probe was not fitted to",
        "novel_azimuth_degrees_aligned": "the same relative to the toy's other views",
    },
    "replaced_couplings": {
        "own/error": "percentage of wrong classes with the network's own couplings",
        "mean/error": "with their mean over images; as low as own: couplings need not depend on the image",
        "exchanged/error": "with the mean couplings of the next parent; as low as own: their order does not matter",
        "same_class/error": "with those of another image of the same class",
        "other_class/error": "with those of an image of another class; as low as own: they do not carry the class",
        "equal/error": "with equal couplings, without routing; as low as own: routing contributes nothing",
        "error_reestimated": "the same with statistics of batch normalisation for the replaced couplings",
        "kept_by_mean": "share of the gain by routing that mean couplings keep; 1: all, empty: there is no gain",
        "kept_by_mean_reestimated": "the same with statistics of batch normalisation for the replaced couplings",
        "distance_of_own_from_mean": "how far couplings of an image are from their mean; 0: constant, at most 1",
        "distance_of_mean_from_equal": "how far mean couplings are from equal ones; 0: equal, at most 1",
    },
    "scramble": {
        "error": _ERROR,
        "confidence": "mean probability of the predicted class, in percent",
        "without_pair": "images without two tiles that differ, which do not count in two_tiles",
        "too_far_for_blur": "images that no blur changes as much as two_tiles does, which do not count there",
        "images": "images that count",
        "kept": "percentage of changed images with the right class; high: the position of parts matters little",
        "auc": "does confidence tell changed from intact images: 1 always, 0.5 never; compare with blur/ or noise/",
        "distance": "mean Euclidean distance of the changed images from the intact ones",
    },
    "sign": {
        "error": _ERROR,
        "same_predictions": "percentage of images with the same class as before; 100: the sign is not noticed",
        "mean_change_of_scores": "mean change of the scores; 0: the sign is not noticed",
    },
    "transforms": {
        "error": f"{_ERROR}; of a change: at its largest strength",
        "presence_change": "does the presence depend on the change: 0 no, as claimed of capsules; 1 on nothing else",
        "monotony": "does the pose turn further with a stronger change: 1 always, 0 independently of it",
        "linear_share": "share of the pose's change that is proportional to the strength, in one direction per class",
        "explained": "share of the poses' change that one affine map for all classes predicts: 1 all, 0 or less none",
        "explained_by_shift": "the same for a change that is equal for all poses",
        "pixels_explained": "control: the same for principal components of pixels",
        "map_error": "error of predicting the changed pose by one linear map, without changes that all share",
        "identity_error": "the same if the pose stayed as it is",
        "equivariance_gain": "identity_error minus map_error; above 0: the map helps; compare with pixels_gain",
        "pixels_gain": "control: the same for principal components of pixels",
        "group_law": "distance of two steps from one of twice the size; 0: maps form a group, 1: as far as no map",
        "inverse": "distance of a step and its reverse from no step; 0: they cancel, 1: as far as no map",
    },
    "tree": {
        "mass_in_tree": "share of the class capsule's couplings on branches of the tree; 1: it is a tree",
        "branches": "number of branches of the tree",
        "silenced_children": "number of strongest branches that are silenced",
        "drop_of_tree": "points by which the class loses probability without them; compare with the two controls",
        "drop_of_votes": "control: without as many children with the longest votes, which ignores routing",
        "drop_of_random": "control: without random other children of the same total activation",
        "alike_within": "similarity of the trees of two images of a class; they often have the same root",
        "alike_between": "similarity of the trees of two classes",
        "follows_shift": "does the tree move with the image: 1 as far, 0 not at all",
    },
    "votes": {
        "mean_distance": "mean distance of the votes for the label from their pose",
        "tightness": "above 1: votes for the label agree more than those for others; does not apply to dynamic routing",
        "rank": "rank of the label by the agreement of its votes, from 1; does not apply to dynamic routing",
        "auc": "0.5: votes agree about the class, not about the image; 1: they agree about the image",
        "cosine": "agreement of votes and pose: 1 the same direction, 0 unrelated",
        "moved_together": "share of the votes' movement that all have in common when the image moves; 1: all of it",
    },
}
"""By question, the sentence for each name of a number, without its prefix; ``*`` stands for any text."""


def meanings_of(question: str, names: Iterable[str]) -> dict[str, str]:
    """Return the sentences for these numbers of a question, by the names in ``MEANINGS``, in their order there."""
    shown = [f"/{name}" for name in names]
    sentences = MEANINGS.get(question, {})
    return {
        pattern: sentence
        for pattern, sentence in sentences.items()
        if any(fnmatchcase(name, f"*/{pattern}") for name in shown)
    }
