"""Files and machines → facts and events. `files.collect` makes one Run of all that `diagnose` is given."""
