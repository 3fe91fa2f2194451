"""HostMemory: stands in for the memory of GPUs that all ranks of a group see, by files that processes share."""

import ctypes
import os
import time
import weakref

import torch
import torch.distributed as dist

from luattn.parallel._peer_memory import GRADIENTS, WORDS, Memory


class HostMemory(Memory):
    """late: copies are made when the rank waits for any that others send after them, else at once; after a pass that raised, those that are left come when
    other ranks have long come to the barrier of the next one. rows_stay: what is copied outlives a pass that raises; else words alone come then."""

    all = weakref.WeakSet()

    def __init__(self, folder, group, late, rows_stay=False):
        super().__init__()
        self.folder, self.group, self.late, self.rows_stay = folder, group, late, rows_stay
        self.rank, self.ranks = group.rank(), group.size()
        self.waiting, self.size = [], 0
        self.words = self._shared(f"words{late}", WORDS * self.ranks, torch.int32)
        self.all.add(self)

    def _shared(self, name, size, dtype):
        return [torch.from_file(os.path.join(self.folder, f"{name}_{rank}"), shared=True, size=size, dtype=dtype) for rank in range(self.ranks)]

    def _follow(self, raised):
        self._copy_left()

    def _copy_left(self):
        """Of a pass that raised."""
        if self.waiting:
            time.sleep(0.03 * (self.ranks - self.rank))
            self._copy(len(self.waiting), self.rows_stay)

    def _hold(self, size):
        if size > self.size:
            self.kept.clear()
            self.size, self.tensors = size, self._shared(f"{size}{self.late}", size, torch.uint8)
        self.of(self.rank).fill_(255)  # what came before is read by nobody

    def _barrier(self):
        for other in self.all:
            other._copy_left()  # for which ranks may wait before they come here
        dist.barrier(self.group)

    def _clear(self, words):
        self.words[self.rank].view(2, -1)[words].zero_()

    def leave(self):
        assert not self.words[self.rank].any(), "what came has not been waited for, in this pass or in one that raised"
        super().leave()

    def of(self, rank):
        return self.tensors[rank]

    def _word(self, of, sender, kind):
        return self.words[of].view(2, 2, self.ranks)[self._set, kind, sender : sender + 1]

    def send(self, parcels):
        for parcel in parcels:
            self.waiting.append((parcel, self._word(parcel.rank, self.rank, parcel.kind)))
        started = self.waiting[-1]
        if not self.late:
            self._copy(len(self.waiting))
        return started

    def _copy(self, count, rows=True):
        """The first ones that wait, in their order."""
        for _ in range(count):
            parcel, word = self.waiting.pop(0)
            for to, of, size in parcel.copies if rows else ():
                ctypes.memmove(to, of, size)
            assert word[0] == 0, f"a word of rank {parcel.rank} has been set before"
            word[0] = 1

    def sent(self, started):
        self._copy(next((i + 1 for i, one in enumerate(self.waiting) if one is started), 0))

    def receive(self, rank, kind):
        # Others wait for keys before they send gradients.
        self._copy(max((i + 1 for i, (parcel, _) in enumerate(self.waiting) if kind == GRADIENTS or parcel.kind == kind), default=0))
        word, end = self._word(self.rank, rank, kind), time.monotonic() + 60
        while word[0] == 0:
            assert time.monotonic() < end, f"rank {self.rank} waits for rank {rank}"
            time.sleep(1e-4)
        word[0] = 0
