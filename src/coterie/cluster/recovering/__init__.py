"""A cluster that has lost a majority of its voters for good goes on as another one, from the best store that is left.

mark.py        what the store of the new cluster keeps of that
candidate.py   what one store says of its cluster
choosing.py    which of the stores is the best, whether nothing that was confirmed can be missing, and what forbids it
beginning.py   the state that makes a store the beginning of a new cluster
"""
