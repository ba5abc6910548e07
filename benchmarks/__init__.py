"""How long layers and training steps take, how much memory, where the time goes, and what a machine allows at best.

``python -m benchmarks`` runs on any device, each case in a process of its own; ``benchmarks.gpu`` is for a GPU
that is lent for minutes. Cases are compared with the textbook form: the same layer or network as common PyTorch ports
write it. Nothing of this is installed with the package.
"""
