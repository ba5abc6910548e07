"""Tables of papers: what to train, how far it is, and what came out beside what was published."""
