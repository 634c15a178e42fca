"""How good is the routing? The tracker's real deciding modules, in simulated time, on worlds made to be hard.

``worlds`` says which nodes there are and what befalls them, ``traffic`` who asks what and when,
``simulator`` runs one policy through both, ``baselines`` and ``oracles`` are what policies are compared
with, ``figures`` turns runs into numbers and ``runs`` spreads them over the cores.
"""
