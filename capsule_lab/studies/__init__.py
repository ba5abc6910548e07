"""Attacks on trained networks and questions to them, with the measures that only these use.

Nothing of capsule_lab outside of this package imports it. An attack is a function in ``attacks`` with the decorator
``kind.attack``; a question is a function in ``questions`` with the decorator ``subject.question``. Both are found by
it: the function's name is the option, its keyword-only arguments are the keys.
"""
