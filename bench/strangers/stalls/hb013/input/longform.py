# excerpt, lines 80-95
    def __getitem__(self, idx):
        doc_id, off = self._locate(idx)
        if doc_id not in self._cache:
            with open(self.paths[doc_id]) as f:
                f.seek(off)
                rec = json.loads(f.readline())
            # keep tokens so that neighbours need not be read again
            self._cache[doc_id] = [self.tok.piece(i) for i in rec["ids"]]
        toks = self._cache[doc_id]
        self._hits[doc_id] = self._hits.get(doc_id, 0) + 1
        self._order.append((doc_id, off, len(toks)))
        return self._window(toks, off)
