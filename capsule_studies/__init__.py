"""Attacks and analyses of trained networks, with the measures that only these use.

No other package of capsule_lab imports this one. An attack is a function in ``attacks`` with the decorator
``kind.attack``; an analysis (a "question") is a function in ``questions`` with the decorator ``subject.question``. The
decorator registers it as an option: the function's name is the option's name, its keyword-only arguments are the keys.
"""
