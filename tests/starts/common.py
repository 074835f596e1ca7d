"""Each program here reads [name, value] pairs as JSON and prints, for each, how the real framework takes it."""

import json
import sys
import traceback


def answer(start):
    out = sys.stdout
    sys.stdout = sys.stderr
    for name, value in json.load(sys.stdin):
        try:
            start(name, value)
            said = "started"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        print("answer", json.dumps([name, said]), file=out, flush=True)
