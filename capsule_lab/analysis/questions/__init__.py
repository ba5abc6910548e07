"""Questions to a network, one file each, for ``python -m capsule_lab.analyse what=…``.

===========  =================================================================================
couplings    do children decide, does it depend on the image, does routing matter? (Peer 2018)
tree         is there a parse tree, and does it carry the class? (Sabour 2017)
votes        do votes for the right class agree? (Hinton 2018, figure 2)
probe        does a pose know the viewpoint? (Hinton 2018)
coding       does place or pose tell where a thing is, by layer? (Sabour 2017, section 1)
decoder      what does a pose tell of an image beside its class? (Sabour 2017, figure 4)
transforms   what do turning, moving, scaling and shearing do to a pose? (Sabour 2017)
sign         can the network tell an image from its negative? (Peer 2021)
crowding     what does a capsule do with two of its kind, and does attending again find the second?
scramble     does it matter where the parts of an image are?
poses        do poses of a transforming auto-encoder move with the image? (Hinton 2011)
few_labels   how well do some 25 labels name clusters of what it sees? (a talk of Hinton's)
===========  =================================================================================

A question is a function of a ``Subject``, and gives an ``Answer``.
"""

from capsule_lab.analysis.questions.coding import coding
from capsule_lab.analysis.questions.couplings import couplings
from capsule_lab.analysis.questions.crowding import crowding
from capsule_lab.analysis.questions.decoder import decoder
from capsule_lab.analysis.questions.few_labels import few_labels
from capsule_lab.analysis.questions.poses import poses
from capsule_lab.analysis.questions.probe import probe
from capsule_lab.analysis.questions.scramble import scramble
from capsule_lab.analysis.questions.sign import sign
from capsule_lab.analysis.questions.transforms import transforms
from capsule_lab.analysis.questions.tree import tree
from capsule_lab.analysis.questions.votes import votes

__all__ = [
    "coding",
    "couplings",
    "crowding",
    "decoder",
    "few_labels",
    "poses",
    "probe",
    "scramble",
    "sign",
    "transforms",
    "tree",
    "votes",
]
