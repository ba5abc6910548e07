"""EM capsules (Hinton, Sabour and Frosst, ICLR 2018) as in common PyTorch ports, without their mistakes.

They are the baseline for the package's speed, and an independent check of its numbers. Like the ports, they use float32
throughout, one einsum for the votes of the whole batch, M- and E-step as elementwise arithmetic over that tensor,
windows by indexing, the cost of the paper's procedure 1, biases in the primary capsules, coordinates as
``(i + 0.5) / n``, and autograd through all iterations. Unlike in many ports, a child's activation enters only the
M-step and is not cancelled, variances have a floor and no root is taken, the logarithm of an activation comes from its
logit, and the last E-step, whose result is unused, is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-7


def saturating(final: float, iterations: int) -> list[float]:
    """Return the inverse temperatures of the official code."""
    return [final * (1 - 0.95 ** (t + 1)) for t in range(iterations)]


def window_index(size: tuple[int, int], types: int, kernel: int, stride: int) -> Tensor:
    """Return the child at each place of each window, ``(positions, kernel * kernel * types)``; order (y, x, type)."""
    every = torch.arange(size[0] * size[1] * types).view(*size, types)
    rows, columns = ((n - kernel) // stride + 1 for n in size)
    windows = [
        every[stride * y : stride * y + kernel, stride * x : stride * x + kernel].flatten()
        for y in range(rows)
        for x in range(columns)
    ]
    return torch.stack(windows)


def share_over_all(scores: Tensor, child: Tensor) -> Tensor:
    """Softmax of scores (images * positions, places, parents) over all parents at all positions that see a child."""
    index, children = child.flatten(), int(child.max()) + 1
    by_image = scores.reshape(-1, len(index), scores.shape[2])
    largest = by_image.detach().amax(2)
    of_child = largest.new_full((len(largest), children), -torch.inf)
    of_child = of_child.scatter_reduce(1, index.expand_as(largest), largest, "amax")
    weights = torch.exp(by_image - of_child[:, index].unsqueeze(2))
    total = weights.new_zeros(len(weights), children).index_add(1, index, weights.sum(2))
    return (weights / total[:, index].unsqueeze(2)).view_as(scores)


def textbook_em(
    votes: Tensor,
    a: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    lambdas: Sequence[float],
    min_variance: float = 5e-4,
    child: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Apply procedure 1 to votes (rows, children, parents, 16), and return poses and activations of the parents.

    Rows are independent unless ``child``, from ``window_index``, maps the places of an image's rows to children.
    """
    rows, children, parents, dim = votes.shape
    r = a.unsqueeze(2) / parents  # (rows, children, 1)
    if child is not None:
        seen = torch.bincount(child.flatten())[child].to(a.dtype)
        r = r / seen.repeat(rows // len(child), 1).unsqueeze(2)
    r = r.expand(rows, children, parents)
    for t, inverse_temperature in enumerate(lambdas):
        mass = r.sum(1) + EPS
        mu = torch.einsum("nio,nioh->noh", r, votes) / mass.unsqueeze(2)
        squared = (votes - mu.unsqueeze(1)) ** 2
        variance = torch.einsum("nio,nioh->noh", r, squared) / mass.unsqueeze(2) + min_variance
        log_sigma = 0.5 * torch.log(variance).sum(2)
        logit = inverse_temperature * (beta_a - (dim * beta_u + log_sigma) * mass)
        if t < len(lambdas) - 1:
            log_p = -0.5 * (squared / variance.unsqueeze(1)).sum(3)
            scores = log_p + (F.logsigmoid(logit) - log_sigma).unsqueeze(1)
            shares = F.softmax(scores, dim=2) if child is None else share_over_all(scores, child)
            r = shares * a.unsqueeze(2)
    return mu, torch.sigmoid(logit)


def textbook_em_layer(
    P: Tensor,
    W: Tensor,
    a: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    lambdas: Sequence[float],
    min_variance: float = 5e-4,
    child: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Multiply poses (rows, children, 16) by transformations (children, parents, 4, 4), and apply ``textbook_em``."""
    votes = torch.einsum("nipq,ioqr->niopr", P.unflatten(2, (4, 4)), W).flatten(3)
    return textbook_em(votes, a, beta_u, beta_a, lambdas, min_variance, child)


class TextbookEMCaps(nn.Module):
    """Matrix capsules for smallNORB with spread loss.

    The parents of each position compete separately, as in most ports, which is also cheaper. The paper's is
    ``normalisation="all_parents"``.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (2, 32, 32),
        num_classes: int = 5,
        *,
        channels: int = 32,
        primary_types: int = 32,
        conv_types: Sequence[int] = (32, 32),
        conv_strides: Sequence[int] = (2, 1),
        kernel_size: int = 3,
        iterations: int = 3,
        normalisation: str = "window",
        margin: float = 0.9,
    ) -> None:
        super().__init__()
        channel, *size = image_shape
        self.num_classes = num_classes
        self.primary_types = primary_types
        self.lambdas = saturating(0.08, iterations)
        self.class_lambdas = saturating(0.005, iterations)
        self.normalisation = normalisation
        self.margin = margin

        self.conv = nn.Conv2d(channel, channels, 5, 2)
        self.primary_poses = nn.Conv2d(channels, primary_types * 16, 1)
        self.primary_activations = nn.Conv2d(channels, primary_types, 1)
        types, grid = primary_types, [(n - 5) // 2 + 1 for n in size]
        self.weights, self.beta_u, self.beta_a = (
            nn.ParameterList(),
            nn.ParameterList(),
            nn.ParameterList(),
        )
        for number, (parents, stride) in enumerate(zip(conv_types, conv_strides, strict=True)):
            self.register_buffer(
                f"child_{number}", window_index((grid[0], grid[1]), types, kernel_size, stride)
            )
            self.weights.append(
                nn.Parameter(0.1 * torch.randn(kernel_size**2 * types, parents, 4, 4))
            )
            self.beta_u.append(nn.Parameter(torch.full((parents,), 0.727)))
            self.beta_a.append(nn.Parameter(torch.full((parents,), -80.0)))
            types, grid = parents, [(n - kernel_size) // stride + 1 for n in grid]
        self.class_weight = nn.Parameter(0.01 * torch.randn(types, num_classes, 4, 4))
        self.class_beta_u = nn.Parameter(torch.full((num_classes,), 2.838))
        self.class_beta_a = nn.Parameter(torch.full((num_classes,), -2500.0))
        rows, columns = ((torch.arange(n) + 0.5) / n for n in grid)
        added = torch.zeros(grid[0], grid[1], 1, 1, 4, 4)
        added[..., 0, 3] = rows.view(-1, 1, 1, 1)
        added[..., 1, 3] = columns.view(1, -1, 1, 1)
        self.register_buffer("coordinates", added)

    def class_activations(self, images: Tensor) -> Tensor:
        x = F.relu(self.conv(images))
        batch, _, height, width = x.shape
        poses = self.primary_poses(x).view(batch, self.primary_types, 16, height, width)
        poses = poses.permute(0, 3, 4, 1, 2).reshape(batch, -1, 16)  # (batch, children, 16)
        a = torch.sigmoid(self.primary_activations(x)).permute(0, 2, 3, 1).reshape(batch, -1)
        for number, (weight, beta_u, beta_a) in enumerate(
            zip(self.weights, self.beta_u, self.beta_a, strict=True)
        ):
            child = getattr(self, f"child_{number}")
            competing = child if self.normalisation == "all_parents" else None
            windows, present = poses[:, child].flatten(0, 1), a[:, child].flatten(0, 1)
            poses, a = textbook_em_layer(
                windows, weight, present, beta_u, beta_a, self.lambdas, child=competing
            )
            poses, a = poses.reshape(batch, -1, 16), a.reshape(batch, -1)

        rows, columns = self.coordinates.shape[:2]
        grid = poses.view(batch, rows, columns, -1, 4, 4)
        votes = torch.einsum("bhwipq,ioqr->bhwiopr", grid, self.class_weight) + self.coordinates
        votes = votes.reshape(batch, -1, self.num_classes, 16)
        return textbook_em(votes, a, self.class_beta_u, self.class_beta_a, self.class_lambdas)[1]

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Compute the spread loss, summed over the wrong classes, mean over the batch."""
        a = self.class_activations(images)
        right = a.gather(1, labels[:, None])
        wrong = 1 - F.one_hot(labels, self.num_classes).to(a.dtype)
        return (wrong * F.relu(self.margin - (right - a)) ** 2).sum(dim=1).mean()
