"""Capsule networks: reproduce, ablate, extend.

Public names, importable without Lightning or Hydra::

    capsule_lab.routing     dynamic_routing, DynamicRouting, em_routing, EMRouting, uniform_routing, UniformRouting
    capsule_lab.layers      PrimaryCapsules, LinearPrimaryCapsules, ConvCapsules, ClassCapsules, DenseCapsules, Decoder
    capsule_lab.networks    CapsNet, EMCaps, BaselineCNN, SmallCNN
    capsule_lab.losses      margin_loss, spread_loss, cross_entropy_loss, reconstruction_loss, l2_loss
    capsule_lab.schedules   Constant, Linear, Staircase, SigmoidRamp, Exponential
    capsule_lab.functional  squash, length, dense_votes

and with Lightning and Hydra::

    capsule_lab.data        MNISTDataModule, SmallNORBDataModule
    capsule_lab.runs        open
"""

__version__ = "0.1.0"
