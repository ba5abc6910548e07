"""Writes docs/claims.md, and its short form in README.md, from docs/claims.yaml and results/: ``make claims``.

``read`` reads the claims, ``effects`` the differences that decide them, ``plans`` what was planned, ``verdicts``
judges, ``needs`` says what would decide a claim, ``page`` and ``figure`` show it.
"""
