"""Writes docs/claims.md, and its short form in README.md, from docs/claims.yaml and results/: ``make claims``.

``read`` reads the claims, ``effects`` the differences that decide them, ``plans`` what was planned, ``verdicts``
judges, ``published`` has the paper's effect, ``needs`` says what would decide a claim. ``measured`` has costs, which
get no verdict. ``page``, ``figure`` (made of the shapes in ``drawing``) and ``readme`` show it with common ``texts``.
``claim`` is ``make claim``: ``recompute`` reads run directories from an archive, ``retrain`` trains with new seeds.
"""
