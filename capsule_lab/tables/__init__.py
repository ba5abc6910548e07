"""Tables of papers: read from ``sweeps/``, expanded into cells, run by a launcher, and summarised.

``reader`` and ``schema`` read a file, ``expand`` builds its ``cells``, ``scheduler`` passes them to a Hydra launcher,
``summary`` and ``formats`` show the results. ``evaluations`` are cells that evaluate the weights of other cells.
"""
