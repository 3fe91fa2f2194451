"""parallel_memory_test.py: ranks decide alike whether rows travel by memory that all GPUs see, where one of them fails to have it: on the CPU, with torch's
symmetric memory replaced. Exits with 77 without torch."""

import datetime
import os
import tempfile
import time
import unittest
import warnings
from unittest import mock

from with_torch import torch  # exits without torch, so first

import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

import luattn
from luattn.parallel import _peer_copies, _peer_memory
from luattn.parallel._exchange import Exchange
from luattn.parallel._peer_copies import PeerExchange, exchanges_of

GPU = torch.device("cuda", 0)
BEGIN = _peer_memory.PeerMemory.__init__


class Handle:
    def __init__(self, words=10):
        self.words = words  # of a rank for signals

    def barrier(self, channel, timeout_ms):
        pass

    def get_buffer(self, rank, sizes, dtype):
        return torch.empty(sizes, dtype=dtype)

    def get_signal_pad(self, rank, dtype):
        return torch.zeros(self.words, dtype=dtype)


class Machine:
    """What ranks have of torch, in which rank 1 alone fails at a place."""

    def __init__(self, place):
        self.place, self.calls, self.words = place, [], 10

    def _at(self, place):
        self.calls.append(place)
        if place == self.place and dist.get_rank() == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    def begin(self, memory, group, device):
        self._at("begin")
        BEGIN(memory, group, torch.device("cpu"))

    def empty(self, size, dtype, device):
        self._at("empty")
        return torch.empty(size, dtype=dtype)

    def rendezvous(self, tensor, group):
        self._at("alone")
        if self.place == "alone":  # as torch's waits for all, in the store
            dist.distributed_c10d._get_process_group_store(group).wait(["rank 1"])
        dist.barrier(group)  # as it waits for all
        self._at("rendezvous")
        return Handle(self.words)


def ask(group, told=("auto", "auto")):
    """Whether by copies, why, and what was warned of."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        both, why = exchanges_of(group, 128, GPU, told, ("peer", "peer"))
    assert all(type(x) in (Exchange, PeerExchange) for x in both)
    return type(both[0]) is PeerExchange, why, [str(x.message) for x in seen]


def refusal(f):
    try:
        f()
    except luattn.Unsupported as e:
        return str(e)
    raise AssertionError("nothing was refused")


def check_first_call(machine, group, calls):
    """All take the group, of which they warn, and do not try again."""
    for _ in range(2):
        by_copies, why, warned = ask(group)
        assert not by_copies and why == "torch's symmetric memory fails on rank 1: CUDA out of memory.", why
        assert len(warned) == 1 and f"rows travel by the group, where the plan has copies between GPUs, since {why}" in warned[0], warned
        assert machine.calls == calls, machine.calls
    message = refusal(lambda: ask(group, ("peer", "auto")))
    assert f'transport: is "peer", and {why}; give "auto" or "group"' in message, message


def check_alone(machine, group):
    """Rank 1 fails before the others know; they wait for it in the store, for less than the group's 60 s."""
    begin = time.monotonic()
    by_copies, why, warned = ask(group)
    assert not by_copies and why == "torch's symmetric memory fails on rank 1, for which rank 0 waited 2 s: CUDA out of memory.", why
    assert len(warned) == 1 and 'make the plan with transport="group"' in warned[0], warned
    assert time.monotonic() - begin < 30
    assert dist.distributed_c10d._get_process_group_store(group).timeout == datetime.timedelta(seconds=60)


def check_later_call(machine, group):
    """An error on all ranks, whose memory stays what it was."""
    assert ask(group) == (True, "as the plan has it", [])
    memory = _peer_copies._MEMORIES[group]
    before = memory._bytes, memory.of(0).data_ptr(), memory.of(1).data_ptr()
    user = Handle()
    memory.kept[user] = {}
    for place in ("empty", "rendezvous"):
        machine.place = place
        message = refusal(lambda: memory.enter(2**24))
        assert f"takes {2**24} bytes that all GPUs see, and torch's symmetric memory fails on rank 1: CUDA out of memory.; give transport=\"group\"" in message, message
        assert before == (memory._bytes, memory.of(0).data_ptr(), memory.of(1).data_ptr()) and memory.kept
    machine.place = None
    memory.enter(2**24)
    assert memory._bytes == 2**24 == memory.of(0).numel() and not memory.kept


def check_channels(machine, group):
    """Each of 2 ranks has half of the words, one of them for the barrier, and copies take 4."""
    assert ask(group)[0]
    machine.words, other = 8, dist.new_group(timeout=datetime.timedelta(seconds=60))
    by_copies, why, warned = ask(other)
    assert not by_copies and why == "symmetric memory has signals for 3 channels, where 2 ranks of one host need 4" and len(warned) == 1, (why, warned)
    assert why in refusal(lambda: ask(other, ("auto", "peer")))


def with_machine(place, check, *more):
    machine, group = Machine(place), dist.new_group(timeout=datetime.timedelta(seconds=60))
    with (
        mock.patch.object(_peer_memory, "MEETING", datetime.timedelta(seconds=2)),
        mock.patch.object(_peer_copies, "_why_not", lambda device: ""),
        mock.patch.object(_peer_copies, "_sees_all", lambda device: True),
        mock.patch.object(_peer_memory.PeerMemory, "__init__", lambda *given: machine.begin(*given)),
        mock.patch.object(symmetric, "empty", machine.empty, create=True),
        mock.patch.object(symmetric, "rendezvous", machine.rendezvous, create=True),
        mock.patch.multiple(torch.cuda, Stream=mock.DEFAULT, Event=mock.DEFAULT, synchronize=mock.DEFAULT, current_stream=mock.DEFAULT),
    ):
        check(machine, group, *more)


def work(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
    with_machine("begin", check_first_call, ["begin"])
    with_machine("empty", check_first_call, ["begin", "empty"])
    with_machine("rendezvous", check_first_call, ["begin", "empty", "alone", "rendezvous"])
    with_machine("alone", check_alone)
    with_machine(None, check_later_call)
    with_machine(None, check_channels)
    dist.destroy_process_group()


class Memory(unittest.TestCase):
    def test_a_rank_that_fails_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(work, (os.path.join(folder, "store"),), nprocs=2)


if __name__ == "__main__":
    unittest.main()
