"""Can the network distinguish an image from its negative? (Peer 2021)"""

from __future__ import annotations

from capsule_studies.images import percent
from capsule_studies.names import prefixed
from capsule_studies.subject import Answer, Subject, error_percent, question


@question()
def sign(subject: Subject) -> Answer:
    """Evaluate the network on ``-x`` in place of ``x``, and on the photographic negative.

    Routing without a bias cannot distinguish votes from their negatives; whether the whole network can depends on the
    layers before, which are asymmetric because of ReLUs and biases. ``same_predictions`` is the percentage of images
    with the same predicted class.

    Args:
        subject: any network. The photographic negative exchanges the extremes of all images: it is exact for pixels
            in [0, 1], and shifted by a constant for images that are standardised one by one.
    """
    clean = subject.outputs()
    numbers = {"error": error_percent(clean, subject.labels)}
    images = subject.images
    black, white = float(images.min()), float(images.max())
    changed = {
        "negated": -images,
        "photographic_negative": white + black - images,
    }
    predicted = clean.ranking.argmax(1)
    for name, negative in changed.items():
        output = subject.outputs(subject.with_images(negative))
        same = output.ranking.argmax(1) == predicted
        changes = (output.scores - clean.scores).abs()
        measured = {
            "error": error_percent(output, subject.labels),
            "same_predictions": percent(same),
            "mean_change_of_scores": float(changes.mean()),
        }
        numbers |= prefixed(name, measured)
    return Answer(numbers)
