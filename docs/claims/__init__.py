"""Writes docs/claims.md, and its short form in README.md, from docs/claims.yaml and results/: ``make claims``.

``read`` reads the claims, ``effects`` the differences that decide them, ``plans`` what was planned, ``verdicts`` corrects
and judges, ``page`` and ``figure`` show it.
"""
