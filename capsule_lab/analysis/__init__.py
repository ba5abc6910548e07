"""Questions to a trained network, one file each, and how their answers are drawn: ``plotting`` and ``curves``.

=================  =====================================================================
reconstructions    what does a class capsule decode to? (Sabour 2017, figure 3)
perturbation       what does each component of a pose stand for? (figure 4)
segmentation       which pixels belong to which of two digits? (figure 5)
plotting           pictures in rows and columns, under captions
curves             curves over the steps of a run, from its ``metrics.csv``
=================  =====================================================================
"""
