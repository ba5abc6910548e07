"""What every run may use to look into a network: traces of its routing, figures and curves.

===============  =====================================================================
trace            everything that routing did with a batch of images
equal_couplings  a network whose children share themselves out equally
reconstructions  what does a class capsule decode to? (Sabour 2017, figure 3)
perturbation     what does each component of a pose stand for? (figure 4)
segmentation     which pixels belong to which of two digits? (figure 5)
learning         why does a network not learn?
plotting         pictures in rows and columns, under captions
curves           curves over the steps of a run, from its ``metrics.csv``
===============  =====================================================================
"""
