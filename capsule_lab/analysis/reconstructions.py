"""What does a CapsNet see? Inputs over what its class capsule decodes to (Sabour 2017, figure 3)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from torch import Tensor

from capsule_lab.networks import CapsNet


@torch.no_grad()
def reconstruction_sheet(
    network: CapsNet,
    images: Float[Tensor, "batch channel height width"],
    labels: Int64[Tensor, " batch"],
) -> Figure:
    """Two rows: the images, and the reconstructions from the predicted class's capsule.

    Each column is captioned with label and prediction; wrong predictions are red.

    Args:
        network: with a decoder.
        images: in [0, 1], as the network takes them.
        labels: their classes.
    """
    output = network(images)
    predictions = output.scores.argmax(1)
    decoded = network.reconstruct(output, predictions)
    columns = len(images)
    figure = Figure(figsize=(0.8 * columns, 2.1), layout="constrained")  # inches
    axes = figure.subplots(2, columns, squeeze=False)
    for column in range(columns):
        for row, source in enumerate((images, decoded)):
            picture = source[column].float().cpu().permute(1, 2, 0).numpy()
            shown = picture if picture.shape[2] == 3 else picture[..., 0]  # 3: colour; of a stereo pair, the left
            axes[row, column].imshow(shown, cmap="gray_r", vmin=0, vmax=1)
            axes[row, column].set(xticks=[], yticks=[])
        label, prediction = int(labels[column]), int(predictions[column])
        axes[0, column].set_title(f"{label} → {prediction}", color="black" if label == prediction else "red", size=9)
    axes[0, 0].set_ylabel("input")
    axes[1, 0].set_ylabel("output")
    return figure
