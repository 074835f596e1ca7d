"""What goes wrong in a way the user can mend: one clear sentence, no traceback."""

from __future__ import annotations


class ParamedicError(Exception):
    """Usage or input error: printed on stderr, exit code 2."""
