"""One case handed to other simulators, and their results beside ours.

`case` holds the case; `ns3ub`, `htsim`, `chakra` and `simgrid` write it in another simulator's format and
read that simulator's results; `compare` puts these beside ours. No code of any of them is in here: formats
are facts, and each module says where it has them from and how sure that is.
"""
