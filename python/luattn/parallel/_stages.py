"""What one rank computes and exchanges for one layer: in which rounds keys travel, which of them a stage has, and its calls."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .rank_plan import Layer, Plan

RETURNING = 2  # exchanges of gradients that are on their way at once
APART = 3  # runs more, at most, where those with keys of others are cut from those without


@dataclass(frozen=True)
class Run:
    """Chunks of queries of the rank that by stages need keys of the same ones: rows first .. end - 1 of its tensors, chunks `chunks` of the whole. Without chunks
    in calls, they lie after each other there."""

    first: int
    end: int
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A run of queries with keys: chunks `chunks` of the whole, rows first .. first + length - 1 of the stage's keys. Without chunks in calls, they lie after each
    other in the whole. writes: it writes gradients of these keys, to which other calls add."""

    run: int
    first: int
    length: int
    chunks: tuple[int, ...]
    writes: bool = False


@dataclass(frozen=True)
class Round:
    """What travels at a time: chunks that come from one rank, and those that go to another. All ranks have as many rounds and stages of them, in one
    order, so that a rank sends in a round what another receives in it, and no two wait for each other."""

    source: int
    received: tuple[int, ...]
    to: int
    sent: tuple[int, ...]


@dataclass(frozen=True)
class Stage:
    """own: the keys are the rank's, as they lie. Else chunk c lies from row place[c] of a buffer of `rows` rows on, those of `rounds` and, where all
    keys are gathered, the rank's own. gaps: the buffer has rows that no chunk fills: no query sees them, and they are 0. unwritten: (first, end) of rows of
    these keys whose gradients no call writes; they begin as 0."""

    own: bool
    rounds: tuple[int, ...]
    rows: int
    place: dict[int, int]
    gaps: bool
    calls: tuple[Call, ...]  # those with the most keys first
    unwritten: tuple[tuple[int, int], ...]


def _marked(calls: Iterable[Call]) -> tuple[Call, ...]:
    """In their order: the first one with some keys writes."""
    found: list[Call] = []
    for one in calls:
        apart = all(one.first + one.length <= x.first or x.first + x.length <= one.first for x in found)
        found.append(replace(one, writes=apart))
    return tuple(found)


def _longest_first(calls: Iterable[Call | None]) -> tuple[Call, ...]:
    return _marked(sorted((x for x in calls if x is not None), key=lambda x: -x.length))


def _unwritten(calls: Sequence[Call], rows: int) -> tuple[tuple[int, int], ...]:
    """Of keys that lie in so many rows."""
    written = sorted((one.first, one.first + one.length) for one in calls if one.writes)
    ends = [0, *(end for _, end in written)]
    return tuple((end, first) for end, first in zip(ends, [*(first for first, _ in written), rows]) if end < first)


def _split_own(stages: Sequence[Stage], exchanges: int, rows: int) -> list[Stage]:
    """For backward: of the calls with the rank's own keys the shortest comes before the other stages, while keys travel, and the others after them, while
    gradients travel back; one call alone does too, since gradients in float32 take longer than keys. exchanges: in which gradients go back; where they are more
    than are on their way at once, some are added to the gradients of own keys before the last calls have come, which then only add."""
    own, *others = stages
    if not others:
        return list(stages)
    cut = len(own.calls) - (len(own.calls) > 1)
    late, early = own.calls[:cut], own.calls[cut:]
    if exchanges <= RETURNING:
        both = _marked([*early, *late])
    else:
        both = *_marked(early), *(replace(x, writes=False) for x in late)
    early, late = both[: len(early)], both[len(early) :]
    return [replace(own, calls=early, unwritten=_unwritten(both, rows)), *others, replace(own, calls=late, unwritten=())]


class Landing(NamedTuple):
    """Where what a rank sends comes to lie. place[t]: of round t, from which row on of the receiver's keys each chunk does; rows[b]: of the b-th stage with rounds, the most
    rows that the keys of any rank take."""

    place: tuple[dict[int, int], ...]
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """Of a rank. parts[i]: in how many calls run i is. round_chunks: the most that a round of any rank brings, the same on all ranks. of_rank: another rank's."""

    runs: tuple[Run, ...]
    rounds: tuple[Round, ...]
    stages: tuple[Stage, ...]
    parts: tuple[int, ...]
    own: tuple[int, ...]  # its chunks, in the order of its rows
    round_chunks: int
    together: bool  # calls have chunks
    at_once: bool  # gradients go back in one exchange
    ranks: int
    of_rank: Callable[[int], "Schedule"] = field(repr=False, compare=False)

    @functools.cached_property
    def arriving(self) -> tuple[Stage, ...]:
        """Stages with rounds, of which all ranks have equally many."""
        return tuple(stage for stage in self.stages if stage.rounds)

    @functools.cached_property
    def landing(self) -> Landing:
        others = [self.of_rank(rank).arriving for rank in range(self.ranks)]
        place: list[dict[int, int]] = [{} for _ in self.rounds]
        for b, stage in enumerate(self.arriving):
            for t in stage.rounds:
                there = others[self.rounds[t].to][b].place
                place[t] = {c: there[c] for c in self.rounds[t].sent}
        return Landing(tuple(place), tuple(max(stages[b].rows for stages in others) for b in range(len(self.arriving))))


def order_of(rank: int, world_size: int, node: int) -> list[tuple[int, int]]:
    """The rounds: from whom this rank receives, and to whom it sends. Ranks of its node come first."""
    if world_size % node or node >= world_size:
        return [((rank + t) % world_size, (rank - t) % world_size) for t in range(1, world_size)]
    nodes, at, local = world_size // node, rank // node, rank % node
    steps = [(i, j) for i in range(nodes) for j in range(node) if i or j]
    return [((at + i) % nodes * node + (local + j) % node, (at - i) % nodes * node + (local - j) % node) for i, j in steps]


def _needed(layer: Layer, chunks: Sequence[int]) -> list[int]:
    """Chunks of keys that these chunks of queries need."""
    rows = [layer.needs[c] for c in chunks]
    return [j for j in range(len(layer.needs)) if any(row[j] for row in rows)]


def _bits(row: bytes) -> int:
    """Bit j of a number: whether byte j is not 0."""
    return int("".join("1" if x else "0" for x in reversed(row)), 2)


def _chunks_of(bits: int) -> tuple[int, ...]:
    return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)


def ranges_of(chunks: Sequence[int]) -> list[tuple[int, int]]:
    """(first, end) of numbers that follow each other."""
    found: list[tuple[int, int]] = []
    for c in chunks:
        if found and found[-1][1] == c:
            found[-1] = found[-1][0], c + 1
        else:
            found.append((c, c + 1))
    return found


class _Maker:
    """together: a call's rows, and keys, may be several chunks that do not lie after each other in the whole."""

    def __init__(self, plan: Plan, layer: Layer, rank: int, together: bool) -> None:
        self.plan, self.layer, self.rank, self.together = plan, layer, rank, together
        self.own = plan.chunks(rank)
        self.places = {c: i * plan.chunk_rows for i, c in enumerate(self.own)}
        self._set_runs(self._parts_of(self.own))
        self.round_chunks = 0

    def _parts_of(self, chunks: Sequence[int]) -> list[Sequence[int]]:
        """Chunks, in order, as calls may have them."""
        if self.together:
            return [chunks] if chunks else []
        return [range(first, end) for first, end in ranges_of(chunks)]

    def _set_runs(self, runs: list[Sequence[int]]) -> None:
        self.of_run = runs
        self.needs = [_needed(self.layer, chunks) for chunks in runs]

    def split(self, stages: Sequence[dict[int, int]]) -> None:
        """Cuts runs of queries where they need keys of other stages, whose chunks these are: rows that have one part are not merged."""
        sets = [sum(1 << c for c in chunks) for chunks in stages]
        found: list[Sequence[int]] = []
        for chunks in self.of_run:
            of_chunk = [[bool(_bits(self.layer.needs[c]) & one) for one in sets] for c in chunks]
            cuts = [0, *(i for i in range(1, len(chunks)) if of_chunk[i] != of_chunk[i - 1]), len(chunks)]
            found += [chunks[first:end] for first, end in zip(cuts, cuts[1:])]
        self._set_runs(found)

    def rounds(self) -> list[Round]:
        """Those in which anything travels, between whatever ranks."""
        plan, found = self.plan, []
        owned, needed = [0] * plan.world_size, [0] * plan.world_size  # sets of chunks, as bits
        for c, rank in enumerate(plan.rank_of):
            owned[rank] |= 1 << c
            needed[rank] |= _bits(self.layer.needs[c])
        orders = [order_of(rank, plan.world_size, plan.node) for rank in range(plan.world_size)]
        for t, (source, to) in enumerate(orders[self.rank]):
            most = max((needed[rank] & owned[orders[rank][t][0]]).bit_count() for rank in range(plan.world_size))
            self.round_chunks = max(self.round_chunks, most)
            if most:
                received, sent = needed[self.rank] & owned[source], needed[to] & owned[self.rank]
                found.append(Round(source, _chunks_of(received), to, _chunks_of(sent)))
        return found

    def _rows(self, chunk: int) -> int:
        """Of a chunk, those that are no padding. Chunks with padding are the last ones of the whole, and of what a rank has of it."""
        return max(min(self.plan.chunk_rows, self.plan.q_len - chunk * self.plan.chunk_rows), 0)

    def runs(self) -> list[Run]:
        """Cut to the rows that are no padding."""
        found = []
        for chunks in self.of_run:
            at = self.places[chunks[0]]
            found.append(Run(at, at + sum(map(self._rows, chunks)), tuple(c for c in chunks if self._rows(c))))
        return found

    def _call(self, run: int, chunks: Sequence[int], place: int) -> Call | None:
        """Of chunks of keys, which lie from row `place` of the stage's keys on."""
        length = sum(map(self._rows, chunks))
        return Call(run, place, length, tuple(c for c in chunks if self._rows(c))) if length > 0 else None

    def _keys_of(self, needs: Sequence[int], place: dict[int, int]) -> list[Sequence[int]]:
        """Chunks of a stage's keys that a run needs, of each call; together with those that lie between them in the stage's."""
        own = [c for c in needs if c in place]
        return self._parts_of([c for c in sorted(place) if own and own[0] <= c <= own[-1]] if self.together else own)

    def calls(self, place: dict[int, int]) -> tuple[Call, ...]:
        """One for each run and each part of the keys of this stage that it needs."""
        made = (self._call(i, chunks, place[chunks[0]]) for i, needs in enumerate(self.needs) for chunks in self._keys_of(needs, place))
        return _longest_first(made)

    def stages(self, rounds: Sequence[Round]) -> list[Stage]:
        """The rank's own keys, then those of 1, 1, 2, 4, .. rounds."""
        places = [{c: self.places[c] for c in _needed(self.layer, self.own) if c in self.places}]
        taken: list[tuple[int, ...]] = [()]
        left, size = list(range(len(rounds))), 1
        while left:
            taken.append(tuple(left[:size]))
            left = left[size:]
            places.append({c: i * self.plan.chunk_rows for i, c in enumerate(sorted(c for t in taken[-1] for c in rounds[t].received))})
            size = size * 2 if len(taken) > 2 else size
        self.split(places)
        made = []
        for i, place in enumerate(places):
            calls, rows = self.calls(place), len(place if i else self.own) * self.plan.chunk_rows
            made.append(Stage(i == 0, taken[i], rows if i else 0, place, False, calls, _unwritten(calls, rows)))
        return made

    def gathered(self, rounds: Sequence[Round], apart: bool) -> list[Stage]:
        """One call for each run. Runs whose keys lie after each other among the rank's own take them there; then come those with keys of others, which lie in
        spans of such runs, or together in one of the needed keys alone. apart: runs are cut where they need keys of others, so that the first ones hide copies."""
        if apart:
            self._cut_apart()
        local = [bool(needs) and self._are_own(needs) for needs in self.needs]
        spans = [() if x or not needs else needs if self.together else range(needs[0], needs[-1] + 1) for x, needs in zip(local, self.needs)]
        keys, size = set(_needed(self.layer, self.own)), self.plan.chunk_rows
        hull = sorted({c for span in spans for c in span})
        place = {c: i * size for i, c in enumerate(hull) if c in keys}
        found = ([c for c in hull if span[0] <= c <= span[-1]] if span else [] for span in spans)
        calls = _longest_first(self._call(i, chunks, place[chunks[0]]) for i, chunks in enumerate(found) if chunks)
        rows = len(hull) * size
        others = Stage(not calls, tuple(range(len(rounds))), rows, place, len(place) < len(hull), calls, _unwritten(calls, rows if calls else len(self.own) * size))
        mine = _longest_first(self._call(i, range(needs[0], needs[-1] + 1), self.places[needs[0]]) for i, needs in enumerate(self.needs) if local[i])
        if not mine:
            return [others]
        own = Stage(True, (), 0, self.places, False, mine, _unwritten(mine, len(self.own) * size))
        return [own, others] if rounds or calls else [own]

    def _are_own(self, needs: Sequence[int]) -> bool:
        """Whether keys from the first to the last of these lie after each other in the rank's own."""
        first, size = self.places.get(needs[0]), self.plan.chunk_rows
        return first is not None and all(self.places.get(c) == first + i * size for i, c in enumerate(range(needs[0], needs[-1] + 1)))

    def _cut_apart(self) -> None:
        """Unless that makes many more runs, each of which is a launch."""
        before, owned = self.of_run, sum(1 << c for c in self.own)
        found: list[Sequence[int]] = []
        for chunks in before:
            other = [bool(_bits(self.layer.needs[c]) & ~owned) for c in chunks]
            cuts = [0, *(i for i in range(1, len(chunks)) if other[i] != other[i - 1]), len(chunks)]
            found += [chunks[first:end] for first, end in zip(cuts, cuts[1:])]
        if len(found) <= len(before) + APART:
            self._set_runs(found)


def schedule_of(plan: Plan, layer: Layer, rank: int, gathered: bool, backward: bool, together: bool, apart: bool = False) -> Schedule:
    """together: calls have chunks (luattn_batch_options.q_chunks). apart: copies run beside launches, so that gathered rows that need none come first."""
    maker = _Maker(plan, layer, rank, together)
    rounds = maker.rounds()
    stages = maker.gathered(rounds, apart) if gathered else maker.stages(rounds)
    if backward:
        stages = _split_own(stages, min(len(rounds), 1) if gathered else len(rounds), len(maker.own) * plan.chunk_rows)
    runs = maker.runs()
    parts = [0] * len(runs)
    for stage in stages:
        for one in stage.calls:
            parts[one.run] += 1
    others = functools.partial(schedule_of, plan, layer, gathered=gathered, backward=backward, together=together, apart=apart)
    return Schedule(tuple(runs), tuple(rounds), tuple(stages), tuple(parts), tuple(maker.own), maker.round_chunks, together, gathered, plan.world_size, others)
