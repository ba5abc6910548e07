"""Tables of papers: read from ``sweeps/``, expanded into cells, run by a launcher, and summarised.

``reader`` and ``schema`` read a file, ``expand`` makes its ``cells``, ``scheduler`` gives them to a launcher of Hydra,
``summary`` and ``formats`` show their results. ``evaluations`` are cells that evaluate the weights of other cells.
"""
