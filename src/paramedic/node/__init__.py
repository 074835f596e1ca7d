"""What runs in the user's own Python on a node, before training: it looks and says, in under a second.

Standard library only, any Python from 3.8 on, torch is never imported. `look.py` is the list of all that is looked at.
"""
