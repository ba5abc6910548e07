"""The CapsNet of Sabour, Frosst and Hinton (NeurIPS 2017) as in common PyTorch ports, without their mistakes.

It is the baseline for the package's speed, and an independent check of its numbers. Like the ports, it uses float32
throughout, votes as one broadcast matrix product of a five-dimensional weight, routing as elementwise multiply-and-sum
over the whole vote tensor, and gradients through all three iterations. Unlike many ports, it takes the components of a
primary capsule from one position and the softmax over the parents, includes the official code's 1/32 and biases, and
sums the reconstruction error.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-8


def squash(s: Tensor) -> Tensor:
    squared = (s**2).sum(dim=-1, keepdim=True)
    return squared / (1 + squared) * s / torch.sqrt(squared + EPS)


def truncated_normal_(weight: Tensor, std: float) -> None:
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


class TextbookCapsNet(nn.Module):
    """CapsNet for MNIST with margin and reconstruction loss; 8,215,728 parameters at the default sizes."""

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (1, 28, 28),
        num_classes: int = 10,
        *,
        channels: int = 256,
        kernel_size: int = 9,
        primary_types: int = 32,
        primary_dim: int = 8,
        class_dim: int = 16,
        hidden: tuple[int, int] = (512, 1024),
        iterations: int = 3,
    ) -> None:
        super().__init__()
        channel, height, width = image_shape
        rows, columns = ((n - 2 * (kernel_size - 1) - 1) // 2 + 1 for n in (height, width))
        children = primary_types * rows * columns
        self.num_classes = num_classes
        self.primary_types = primary_types
        self.primary_dim = primary_dim
        self.iterations = iterations

        self.conv = nn.Conv2d(channel, channels, kernel_size)
        self.primary = nn.Conv2d(
            channels, primary_types * primary_dim, kernel_size, stride=2, bias=False
        )
        self.primary_bias = nn.Parameter(torch.full((primary_types * primary_dim,), 0.1))
        self.weight = nn.Parameter(torch.empty(1, children, num_classes, class_dim, primary_dim))
        self.bias = nn.Parameter(torch.full((1, 1, num_classes, class_dim), 0.1))
        self.decoder = nn.Sequential(
            nn.Linear(num_classes * class_dim, hidden[0]),
            nn.ReLU(inplace=True),
            nn.Linear(hidden[0], hidden[1]),
            nn.ReLU(inplace=True),
            nn.Linear(hidden[1], channel * height * width),
            nn.Sigmoid(),
        )

        truncated_normal_(self.conv.weight, 0.05)
        nn.init.constant_(self.conv.bias, 0.1)
        truncated_normal_(self.primary.weight, 0.1)
        truncated_normal_(self.weight, 0.1)
        for layer in self.decoder:
            if isinstance(layer, nn.Linear):
                truncated_normal_(layer.weight, 0.1)
                nn.init.constant_(layer.bias, 0.1)

    def primary_capsules(self, images: Tensor) -> Tensor:
        x = F.relu(self.conv(images))
        x = self.primary(x) / self.primary_types + self.primary_bias.view(1, -1, 1, 1)
        batch, _, rows, columns = x.shape
        x = x.view(batch, self.primary_types, self.primary_dim, rows, columns)
        x = x.permute(0, 1, 3, 4, 2).reshape(batch, -1, self.primary_dim)
        return squash(x)  # (batch, children, 8)

    def digit_capsules(self, u: Tensor) -> Tensor:
        u_hat = torch.matmul(self.weight, u[:, :, None, :, None])
        u_hat = u_hat.squeeze(-1)  # (batch, children, parents, 16)
        b = torch.zeros(*u_hat.shape[:3], 1, dtype=u_hat.dtype, device=u_hat.device)
        for iteration in range(self.iterations):
            c = F.softmax(b, dim=2)
            s = (c * u_hat).sum(dim=1, keepdim=True) + self.bias
            v = squash(s)  # (batch, 1, parents, 16)
            if iteration < self.iterations - 1:
                b = b + (u_hat * v).sum(dim=-1, keepdim=True)
        return v.squeeze(1)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss: margin + 0.0005 * summed squared error of the reconstruction, mean over the batch."""
        digits = self.digit_capsules(self.primary_capsules(images))
        lengths = torch.sqrt((digits**2).sum(dim=-1) + EPS)
        target = F.one_hot(labels, self.num_classes).to(lengths.dtype)

        left = F.relu(0.9 - lengths) ** 2
        right = F.relu(lengths - 0.1) ** 2
        margin = (target * left + 0.5 * (1.0 - target) * right).sum(dim=1).mean()

        masked = (digits * target[:, :, None]).flatten(1)
        reconstruction = self.decoder(masked)
        error = ((reconstruction - images.flatten(1)) ** 2).sum(dim=1).mean()
        return margin + 0.0005 * error
