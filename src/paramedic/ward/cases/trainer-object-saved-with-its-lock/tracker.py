import threading


class Tracker:
    """Collects scalars from the training and the logging thread."""

    def __init__(self):
        self.lock = threading.Lock()
        self.scalars = {}

    def put(self, name, value):
        with self.lock:
            self.scalars.setdefault(name, []).append(value)

    def last(self, name):
        with self.lock:
            return self.scalars[name][-1]
