"""A call of flash_attn_with_kvcache: new rows of keys and values into a cache, in place, and attention over the cache."""

from typing import Any

import torch
from torch import Tensor

from . import _tensors as tensors
from . import _out, _signature, _tangents
from ._attend import attend
from ._call import Frame
from ._scale import check_scale, is_plain
from .errors import InvalidError, Unsupported

_NAME = "flash_attn_with_kvcache"


def _fail(what: str) -> InvalidError:
    return InvalidError(f"{_NAME}: {what}")


# Arguments of flash-attn 3 alone: those that change no result, and those that are refused unless they are None.
_HINTS = ("pack_gqa", "sm_margin", "scheduler_metadata")
_REFUSED = ("qv", "rotary_seqlens", "q_descale", "k_descale", "v_descale")


def check_flash_attn_3(given: dict[str, Any], lengths: Any) -> None:
    for name, x in given.items():
        if name in _HINTS or (name == "rotary_seqlens" and x is lengths):  # which are where they rotate by default
            continue
        if name not in _REFUSED:
            raise TypeError(f"{_NAME}() got an unexpected keyword argument '{name}'")
        if x is not None:
            if name == "rotary_seqlens":
                raise Unsupported(f"{_NAME}: rotary_seqlens: is another tensor than cache_seqlens, by which new rows rotate here; leave it out")
            raise Unsupported(f"{_NAME}: {name}: flash-attn 3's argument does not exist here; leave it out")


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, at: Tensor, interleaved: bool) -> Tensor:
    """x [batch, length, heads, headdim], rotated by rows `at` [batch, length] of cos and sin [positions, half a dim]."""
    half, real = cos.shape[1], torch.float64 if x.dtype == torch.float64 else torch.float32
    cos, sin = (t[at].to(real)[:, :, None] for t in (cos, sin))
    turned, rest = x[..., : 2 * half].to(real), x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


class CacheCall:
    """The caches of a call, and which of their rows each batch entry has."""

    def __init__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        lengths: int | Tensor | None,
        entries: Tensor | None,
        leftpad: Tensor | None,
        table: Tensor | None,
        packed: tuple[Tensor, int | None] | None,
        packed_new: Tensor | None = None,
    ) -> None:
        for name, t in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
            if packed is not None and name == "q":
                if t.dim() != 3:
                    raise _fail(f"q: has {t.dim()} axes, expected 3 beside cu_seqlens_q: (total_q, nheads, headdim)")
            elif t.dim() != 4:
                raise _fail(f"{name}: has {t.dim()} axes, expected 4: (batch_size, seqlen, nheads, headdim)")
        if k_cache.shape[:3] != v_cache.shape[:3]:
            raise _fail(f"v_cache: is {tuple(v_cache.shape)}, and k_cache {tuple(k_cache.shape)}: all but headdim are the same")
        if q.shape[-1] != k_cache.shape[3]:
            raise _fail(f"q: has headdim {q.shape[-1]}, and k_cache {k_cache.shape[3]}: they are the same")
        self.batch, self.device, self.packed = q.shape[0], q.device, packed
        if packed is not None:
            self._check_array("cu_seqlens_q", packed[0], 1, None)
            self.batch = len(packed[0]) - 1
            if packed[1] is None and packed[0].is_cuda:
                raise _fail("max_seqlen_q: is missing: the host does not read cu_seqlens_q on a GPU")
        self.caches, self.entries, self.leftpad, self.table = (k_cache, v_cache), entries, leftpad, table
        if isinstance(lengths, int):
            lengths = torch.full((self.batch,), lengths, dtype=torch.int32, device=self.device)
        elif lengths is not None and lengths.dim() == 0 and not torch.compiler.is_compiling():  # of a GPU, not read back
            lengths = lengths.to(torch.int32).expand(self.batch).contiguous()
        self.lengths = lengths  # of what the cache has, before new rows; None: all of it
        self.packed_new = packed_new
        for name, array, axes, count in (
            ("cache_seqlens", lengths, 1, self.batch), ("cache_batch_idx", entries, 1, self.batch),
            ("cache_leftpad", leftpad, 1, self.batch), ("cu_seqlens_k_new", packed_new, 1, self.batch + 1),
            ("block_table", table, 2, self.batch if entries is None else None),
        ):  # fmt: skip
            if array is not None:
                self._check_array(name, array, axes, count)
        if table is None and k_cache.shape[1] == 0:
            raise _fail(f"k_cache: is {tuple(k_cache.shape)}, a cache of 0 rows; give one of at least 1 row, and in cache_seqlens how many are in use")
        self.most = k_cache.shape[1] * (1 if table is None else table.shape[-1])
        if table is not None and entries is not None:
            self.table, self.entries = table.index_select(0, entries.long()), None
        elif table is None and entries is None and k_cache.shape[0] < self.batch:
            raise _fail(f"k_cache: has {k_cache.shape[0]} batch entries, and q {self.batch}; give cache_batch_idx")
        self._check_lengths(0)

    @property
    def longest(self) -> int:
        return self.most

    def _check_array(self, name: str, array: Tensor, axes: int, count: int | None) -> None:
        if not isinstance(array, Tensor):
            number = ", or a number" if name == "cache_seqlens" else ""
            raise _fail(f"{name}: is a {type(array).__name__}, expected a torch.int32 tensor{number}")
        if array.dtype != torch.int32 or array.dim() != axes or (count is not None and array.shape[0] != count):
            shape = "(batch_size + 1)" if count == self.batch + 1 else "(batch_size)" if axes == 1 else "(batch_size, blocks)"
            raise _fail(f"{name}: is {array.dtype} {tuple(array.shape)}, expected torch.int32 {shape} for {self.batch} batch entries")
        if array.device != self.device:
            raise _fail(f"{name}: is on {array.device}, and q on {self.device}: move one of them")

    def _check_lengths(self, new: int | Tensor) -> None:
        """What the host can read. On a GPU, a row that does not fit stops PyTorch's indexing, as it does everywhere; in a graph of
        torch.compile, the ops check on the CPU."""
        if self.lengths is None or self.device.type != "cpu" or self.batch == 0 or torch.compiler.is_compiling():
            return
        least, most = int(self.lengths.min()), int((self.lengths + new).max())
        if least < 0 or most > self.most:
            value, added = (least, "") if least < 0 else (most, f" with {new} new rows" if isinstance(new, int) and new else "")
            raise _fail(f"cache_seqlens: has {value}{added}, expected 0 to {self.most}, what the cache has room for")

    def check_numbers(self, num_splits: int, chunk: int, cos: Tensor | None, sin: Tensor | None) -> None:
        for name, number in (("num_splits", num_splits), ("attention_chunk", chunk)):
            if number < 0:
                raise _fail(f"{name}: is {number!r}, expected a number of at least 0")
        self.num_splits = num_splits
        if (cos is None) != (sin is None):
            raise _fail(f"rotary_{'cos' if cos is None else 'sin'}: is missing, and the other one is there; give both")
        if cos is None or sin is None:
            return
        dim = self.caches[0].shape[3]
        if cos.dim() != 2 or cos.shape != sin.shape or 2 * cos.shape[1] > dim:
            raise _fail(
                f"rotary_cos, rotary_sin: are {tuple(cos.shape)} and {tuple(sin.shape)}, expected (positions, rotary_dim / 2) of both, "
                f"and a rotary_dim up to headdim, {dim}"
            )
        if cos.shape[0] < self.most:
            raise _fail(f"rotary_cos: has {cos.shape[0]} positions, expected {self.most} or more, as the cache has")

    def append(self, q: Tensor, k: Tensor | None, v: Tensor | None) -> None:
        """Writes k and v into the caches, k rotated."""
        if (k is None) != (v is None):
            raise _fail(f"{'k' if k is None else 'v'}: is missing, and the other one is there; give both")
        if k is None or v is None:
            if self.packed_new is not None:
                raise _fail("cu_seqlens_k_new: goes with k and v, and they are missing; leave it out")
            return
        if self.lengths is None:
            raise _fail("cache_seqlens: is missing: it says where k and v go")
        packed = self.packed_new is not None
        for name, t, cache in (("k", k, self.caches[0]), ("v", v, self.caches[1])):
            rows = (k.shape[0],) if packed else (self.batch, k.shape[1] if k.dim() == 4 else 0)
            want = (*rows, *cache.shape[2:])
            if t.shape != want or t.dtype != cache.dtype:
                raise _fail(f"{name}: is {t.dtype} {tuple(t.shape)}, expected {cache.dtype} {want}, as the cache's rows are")
        new = k.shape[1] if self.packed_new is None else self.packed_new.diff()
        self._check_lengths(new)
        self.before = self.lengths
        self.write(q, k, v)
        self.lengths = self.lengths + new

    def write(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Writes k and v behind self.lengths: by luattn_append, which rotates k, where kernels read the caches as they lie."""
        assert self.lengths is not None
        k_cache, v_cache = (t.transpose(1, 2) for t in self._in_use())
        if all(t.shape[-1] % 8 == 0 or t.element_size() > 2 for t in self.caches):
            rows, like, given = (k, v), q, self._given()
            if self.packed_new is not None:
                like, given = k, {**given, "cu_seqlens_q": self.packed_new}
            else:
                like = k.transpose(1, 2) if self.packed is not None else q.transpose(1, 2)
                rows = k.transpose(1, 2), v.transpose(1, 2)
            if torch.compiler.is_compiling():
                torch.ops.luattn.append(self.spec.line, like, k_cache, v_cache, self.inputs, *rows, **given)
                return
            if tensors.append(self.spec, like, k_cache, v_cache, self.inputs, given, *rows):
                return
        if k.numel() == 0:
            return
        row, entry, at = self._positions(k)
        k, v = (k, v) if row is None else (k[row], v[row])
        if self.turns is not None:
            k = _rotated(k[None], *self.turns, at[None], self.interleaved)[0] if k.dim() == 3 else _rotated(k, *self.turns, at, self.interleaved)
        for cache, t in zip(self.caches, (k, v)):
            places = self._places(entry, at)
            cache.index_put_(places, t if self.packed_new is None else torch.where(self.packed_new[-1] > 0, t, cache[places]))

    def _positions(self, k: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """The rows of k to write (None: all), and of each one its batch entry and its position there: [batch, rows], or packed [rows]. Packed
        rows behind the last entry's are in none: instead of them that entry's last row is written again, or, where there is none,
        a row of the cache."""
        assert self.lengths is not None
        if self.packed_new is None:
            i = torch.arange(k.shape[1], device=self.device)
            return None, torch.arange(self.batch, device=self.device)[:, None].expand(-1, len(i)), self.lengths.long()[:, None] + i
        first = self.packed_new.long()
        i = torch.arange(k.shape[0], device=self.device).minimum((first[-1] - 1).clamp(min=0))
        entry = torch.bucketize(i, first[1:], right=True).clamp(max=self.batch - 1)
        return i, entry, torch.where(first[-1] > 0, self.lengths.long()[entry] + i - first[entry], 0)

    def _in_use(self) -> tuple[Tensor, Tensor]:
        k, v = self.caches
        return (k, v) if self._pages() is not None else (k[: self.batch], v[: self.batch])

    def _pages(self) -> Tensor | None:
        return self.table if self.entries is None else self.entries[:, None]  # an entry is a page

    def _given(self) -> dict[str, Any]:
        """What luattn's ops are told of the caches."""
        used = torch.full((self.batch,), self.most, dtype=torch.int32, device=self.device) if self.lengths is None else self.lengths
        table = self._pages()
        given: dict[str, Any] = {"seqused_k": used.contiguous()} | ({} if table is None else {"block_table": table.contiguous()})
        return given if self.turns is None else given | {"keys_modified": True}

    def _places(self, entry: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Indices of the first two axes of a cache, of positions of batch entries."""
        if self.table is not None:
            size = self.caches[0].shape[1]
            return self.table.long()[entry, at // size], at % size
        return entry if self.entries is None else self.entries.long()[entry], at

    def set_turns(self, cos: Tensor | None, sin: Tensor | None, interleaved: bool, spread: bool, has_rows: bool) -> None:
        """The rotary embedding of q and of new rows. spread: q's rows by their positions, else all by the first new one."""
        self.turns, self.interleaved, self.spread = None, interleaved, spread
        if cos is None or sin is None or cos.shape[1] == 0:
            return
        if not has_rows:
            raise _fail("rotary_cos: goes with k and v alone, as in flash-attn; rotate q before the call")
        self.turns = cos, sin

    def set_scores(self, scale: Any, window: tuple[int, int], softcap: float, slopes: Tensor | None, chunk: int = 0, sinks: Tensor | None = None) -> None:
        """What q and new keys become, and what scores and masks are: of attend, and of the kernel that writes rows too."""
        from .flash_attn import _spec

        if slopes is not None and slopes.dim() not in (1, 2):
            raise _fail(f"alibi_slopes: has {slopes.dim()} axes, expected (nheads) or (batch_size, nheads)")
        if isinstance(scale, Tensor) and scale.numel() != 1:
            raise _fail(f"softmax_scale: has shape {tuple(scale.shape)}, expected one element, or a number")
        self.scale = scale if scale is None or isinstance(scale, Tensor) else check_scale(_NAME, scale, "softmax_scale")
        rotary = None if self.turns is None else (2 * self.turns[0].shape[1], self.interleaved, self.spread)
        self.spec = _spec(*window, softcap, 0 if slopes is None else slopes.dim(), 0.0, self.leftpad is not None, rotary, chunk, sinks is not None)
        named = {"alibi_slopes": slopes, "leftpad": self.leftpad, "sinks": sinks}
        if self.turns is not None:
            named |= {"rotary_cos": self.turns[0], "rotary_sin": self.turns[1], "first_new": self.lengths}
        self.inputs: list[Any] = [named[one.name] for one in self.spec.inputs]

    def attend(self, q: Tensor, new: tuple[Tensor | None, Tensor | None], known: "KnownCall | None", out: Tensor | None) -> tuple[Tensor, Any]:
        """o [batch, length, heads, headdim] and lse [batch, heads, length]; packed [total, heads, headdim] and [heads, total]. new: rows that were
        written. known: where others of this signature find how it was computed. out: where o goes."""
        dim, dim_v, given = q.shape[-1], self.caches[1].shape[3], self._given()
        if self.num_splits:
            given["num_splits"] = self.num_splits
        k, v = (t.transpose(1, 2) for t in self._in_use())
        if self.packed is None:
            q = q.transpose(1, 2)
        else:
            given |= {"cu_seqlens_q": self.packed[0], "max_seqlen_q": self.packed[1]}
        if q.element_size() == 2:  # as flash-attn does: kernels read 16 bytes at once
            q, k, v = (torch.nn.functional.pad(t, (0, -t.shape[-1] % 8)) if t.shape[-1] % 8 else t for t in (q, k, v))
        scale = max(dim, 1) ** -0.5 if self.scale is None else self.scale
        direct = out if out is None or q.shape[-1] == dim and v.shape[-1] == dim_v else None
        to = direct if direct is None or self.packed is not None else direct.transpose(1, 2)
        o, lse = attend(self.spec, q, k, v, self.inputs, [], scale, given, out=to)
        results = (o if self.packed is not None else o.transpose(1, 2))[..., :dim_v], lse
        if out is not None:
            results = out if direct is not None else out.copy_(results[0]), lse
        if known is not None and known.key is not None and (out is None or direct is not None) and (self.scale is None or is_plain(self.scale)):

            def fill(frame: Frame) -> None:
                tensors.fill_forward(frame, (q, k, v), (o, lse, None), self.inputs, (), float(scale), given)
                if new[0] is not None:
                    rows = {name: t if t is None else t.transpose(1, 2) for name, t in zip(("new_k", "new_v"), new)}
                    frame.set_rows(tensors.fill, {**rows, "seqused_k before": self.before, "block_table before": self.table})

            known.remember(self.spec, fill, (results[0] if out is None else None, lse, None), given, self.lengths)
        return results


class KnownCall:
    """How calls of one signature are found, and what is known of it."""

    table: dict[Any, Any] = {}

    def __init__(self, named: dict[str, Tensor], numbers: tuple[Any, ...]) -> None:
        """named: the tensors, by their names in a frame."""
        self.named = named
        self.key, self.known = _signature.find(self.table, named, numbers)

    def run(self, k: Tensor | None) -> Any:
        """o and lse; None: they are to be had the general way. k: new rows."""
        if self.known is None:
            return None
        if k is not None:
            self.named["seqused_k after"] = self.named["seqused_k"] + k.shape[1]
        made = self.known.run(self.known.spec, self.named)
        if made is not None:
            written = ("k", "v", "o") if k is not None else ("o",)
            tensors.mark_written(*(self.named[name] for name in written if name in self.named))
        return made and (self.named.get("o", made[0]), made[1])

    def remember(self, spec: Any, fill: Any, made: Any, given: Any, lengths: Tensor | None) -> None:
        sources = {}
        if "new_k" in self.named:
            assert lengths is not None
            self.named["seqused_k after"] = lengths
            sources = {"seqused_k": "seqused_k after", "block_table before": "block_table"}
            sources |= dict.fromkeys(("seqused_k before", "input first_new"), "seqused_k")
        _signature.remember(self.table, self.key, spec, False, self.named, fill, made, given, sources=sources)


_NUMBERS, _INTEGERS, _NONE = frozenset((float, int, bool, type(None))), frozenset((int,)), frozenset((type(None),))


def known_call(given: Any) -> KnownCall | None:
    """Of arguments as the user gives them: what take() of _arguments.py would refuse has another type or value than what it let through. None: such
    calls take more than one launch, or make tensors of their own."""
    if torch.compiler.is_compiling() or not isinstance(given.q, Tensor) or not isinstance(given.cache_seqlens, Tensor):
        return None
    others = given.cache_batch_idx, given.cu_seqlens_k_new, given.page_table, None if given.k is None else given.cu_seqlens_q
    numbers = (
        given.softmax_scale, given.causal, given.softcap, given.rotary_interleaved, given.num_splits, given.max_seqlen_q, given.attention_chunk,
    )  # fmt: skip
    are_numbers = type(given.window_size) is tuple and _INTEGERS.issuperset(map(type, given.window_size)) and _NUMBERS.issuperset(map(type, numbers))
    if not are_numbers or not _NONE.issuperset(map(type, others)) or (given.k is None) != (given.v is None):
        return None
    named = {
        "q": given.q, "k": given.k_cache, "v": given.v_cache, "new_k": given.k, "new_v": given.v, "seqused_k": given.cache_seqlens,
        "block_table": given.block_table, "cu_seqlens_q": given.cu_seqlens_q, "input rotary_cos": given.rotary_cos, "input rotary_sin": given.rotary_sin,
        "input leftpad": given.cache_leftpad, "input alibi_slopes": given.alibi_slopes, "input sinks": given.sinks, "o": given.out,
    }  # fmt: skip
    return KnownCall({name: t for name, t in named.items() if t is not None}, (*numbers, given.window_size, *map(type, numbers)))


def run(given: Any, known: KnownCall | None) -> tuple[Tensor, Any]:
    """o and lse, of arguments that are of the right kinds."""
    from .flash_attn import _cap, _window

    _tangents.refuse_in(_NAME, tuple(given))  # new rows are written to caches without them
    instead = "flash_attn_func and flash_attn_varlen_func have gradients; put a mapped dimension into the batch yourself"
    _tangents.refuse_levels(_NAME, given, instead, needs_memory=given.k is not None)
    if given.page_table is not None and given.block_table is not None:
        raise _fail("page_table: is block_table's other name, and both are given")
    table = given.block_table if given.page_table is None else given.page_table
    packed = None if given.cu_seqlens_q is None else (given.cu_seqlens_q, given.max_seqlen_q)
    call = CacheCall(
        given.q, given.k_cache, given.v_cache, given.cache_seqlens, given.cache_batch_idx, given.cache_leftpad, table, packed, given.cu_seqlens_k_new
    )
    with torch.no_grad():
        window = _window(_NAME, given.window_size, given.causal, call.longest)
        call.check_numbers(given.num_splits, given.attention_chunk, given.rotary_cos, given.rotary_sin)
        spread = given.causal or window != (-1, -1) or given.attention_chunk > 0
        call.set_turns(given.rotary_cos, given.rotary_sin, given.rotary_interleaved, spread, given.k is not None or given.v is not None)
        call.set_scores(given.softmax_scale, window, _cap(_NAME, given.softcap), given.alibi_slopes, given.attention_chunk, given.sinks)
        if given.out is not None:  # before anything is written
            _out.check(_NAME, given.out, given.q, given.v_cache, given.q.dtype)
            if not torch.compiler.is_compiling():
                _out.check_apart(_NAME, given.out, {x: getattr(given, x) for x in ("q", "k_cache", "v_cache", "k", "v")})
        call.append(given.q, given.k, given.v)
        return call.attend(given.q, (given.k, given.v), known, given.out)
