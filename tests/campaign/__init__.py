"""Random, seeded faults: processes of runs and sweeps are killed or signalled, and results are compared bit for bit.

``python -m tests.campaign minutes=30`` divides the time among all kinds of faults and prints how many were survived. A
fault is survived if the command ends in success or with one message, and if the same command without the fault then
gives the results of an undisturbed run.
"""
