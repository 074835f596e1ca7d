class ParameterServer:
    def __init__(self, rows, dim):
        self.table = torch.zeros(rows, dim)
        self.version = 0
        self.snap = {}                 # version -> rows touched, for the staleness check
        self.lock = threading.Lock()

    @staticmethod
    def push(rref, ids, grads):
        self = rref.local_value()
        with self.lock:
            self.version += 1
            self.snap[self.version] = (ids, self.table[ids].clone(), grads)
            self.table.index_add_(0, ids, grads, alpha=-self.lr)
        return self.version
