"""Questions to a trained network, one file each, and how their answers are drawn: ``plotting`` and ``curves``.

========================  =====================================================================
reconstructions           what does a class capsule decode to? (Sabour 2017, figure 3)
perturbation              what does each component of a pose stand for? (figure 4)
segmentation              which pixels belong to which of two digits? (figure 5)
calibration               can the confidence of a network be believed? (Guo et al. 2017)
reconstruction_detection  does an image look like what it is taken for? (Frosst et al. 2018)
plotting                  pictures in rows and columns, under captions
curves                    curves over the steps of a run, from its ``metrics.csv``
========================  =====================================================================
"""
