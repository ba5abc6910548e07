"""Everything that is proved and measured on a GPU, in parts that run alone: ``python -m capsule_lab.gpu``.

``parts`` lists them, ``part_process`` runs one in a process of its own, ``report`` keeps what they have found, ``page``
shows it; every other file is a part.
"""
