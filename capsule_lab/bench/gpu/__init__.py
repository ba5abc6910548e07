"""Parts of ``python -m capsule_lab.gpu``, which proves and measures everything on a GPU."""
