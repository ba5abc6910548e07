"""Tables of papers: what to train, how far it is, and what came out beside what was published."""

from capsule_lab.tables.cells import Cell, distinct, expand, verify
from capsule_lab.tables.table import Table, TableError, chosen, read, sweeps_dir

__all__ = ["Cell", "Table", "TableError", "chosen", "distinct", "expand", "read", "sweeps_dir", "verify"]
