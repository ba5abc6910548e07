"""Faults on purpose, seeded: processes of runs and sweeps are killed and signalled, and results compared bit for bit.

``python -m tests.campaign minutes=30`` deals the time out to all kinds of faults and prints how many were survived. A
fault is survived if the command ends in success or one message, and the next one, without the fault, gives the
results of a run that nothing happened to.
"""
