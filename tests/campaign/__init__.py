"""Faults on purpose, seeded: processes are killed, files damaged, disks filled, and results compared bit for bit.

``python -m tests.campaign minutes=30`` deals the time out to all kinds of faults and prints how many were survived. A
fault is survived if the command ends in success or one sentence, and the next one, without the fault, gives the
results of a run that nothing happened to.
"""
