"""Time, memory and profiles of layers and training steps, and lower bounds of their time on a machine.

``python -m benchmarks`` runs on any device, each case in a separate process; ``benchmarks.gpu`` is for a GPU that is
available for minutes only; ``benchmarks.host`` measures what a training step costs besides its network. Cases are
compared with the textbook form: the same layer or network as common PyTorch ports implement it. The benchmarks are not
installed with the package.
"""
