"""HostMemory: stands in for the memory of GPUs that all ranks of a group see, by files that processes share."""

import ctypes
import os
import time
import weakref

import torch
import torch.distributed as dist


class HostMemory:
    """What GPUs see of each other, in files that processes share. late: copies are made when the rank waits for any, else at once."""

    def __init__(self, folder, group, late):
        self.folder, self.group, self.late = folder, group, late
        self.waiting, self.left = [], True
        self.size, self.kept, self.words = 0, weakref.WeakKeyDictionary(), self.shared(f"words{late}", 4096, torch.int32)

    def shared(self, name, size, dtype):
        return [torch.from_file(os.path.join(self.folder, f"{name}_{rank}"), shared=True, size=size, dtype=dtype) for rank in range(self.group.size())]

    def enter(self, size, channels):
        assert self.group.size() * channels <= 4096
        if size > self.size:
            self.kept.clear()
            self.size, self.tensors = size, self.shared(f"{size}{self.late}", size, torch.uint8)
        if not self.left:
            self.waiting.clear()  # which read what is gone
        dist.barrier(self.group)
        self.of(self.group.rank()).fill_(255)
        if not self.left:
            self.words[self.group.rank()].zero_()
        self.left = False
        dist.barrier(self.group)

    def leave(self):
        assert not self.words[self.group.rank()].any(), "what came has not been waited for"
        self.left = True

    def of(self, rank):
        return self.tensors[rank]

    def send(self, parcels):
        def run():
            for rank, channel, copies in parcels:
                for to, of, size in copies:
                    ctypes.memmove(to, of, size)
                word = self.words[rank][channel * self.group.size() + self.group.rank() :]
                assert word[0] == 0
                word[0] = 1

        self.waiting.append(run)
        if not self.late:
            self.copy()
        return run

    def copy(self):
        while self.waiting:
            self.waiting.pop(0)()

    def sent(self, started):
        self.copy()

    def receive(self, rank, channel):
        self.copy()
        word = self.words[self.group.rank()][channel * self.group.size() + rank :]
        while word[0] == 0:
            time.sleep(1e-4)
        word[0] = 0
