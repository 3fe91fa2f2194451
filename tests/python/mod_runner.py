"""mod_runner.py: runs programs of mod_grammar.py twice, with luattn.flex and with plain torch in float64, and says how they differ.
The reference evaluates mods eagerly, by vmap over all indices, with the values of now."""

import linecache
import re
import signal
import sys
import types
import warnings

from mod_places import PRELUDE
from with_torch import torch  # exits without torch, so first

import luattn
import torch.utils.checkpoint
from luattn import flex
from torch.nn.attention import flex_attention as theirs
from torch.overrides import TorchFunctionMode

HEADS, HEAD_DIM, BATCH = 2, 8, 2
_number = [0]
_said = {}  # what PyTorch says of the first call that is refused for a reason
_prelude = compile(PRELUDE, "<prelude of mod_fuzz>", "exec")
linecache.cache["<prelude of mod_fuzz>"] = (len(PRELUDE), None, PRELUDE.splitlines(True), "<prelude of mod_fuzz>")


class Invalid(Exception):
    """The program is none: it fails in plain torch."""


class Difference(Exception):
    """kind: stale, wrong, lost, foreign, hang."""

    def __init__(self, kind, text, step):
        super().__init__(text)
        self.kind, self.step = kind, step


def module_of(source):
    """A module with the text, so that inspect finds it."""
    _number[0] += 1
    name = f"mod_program_{_number[0]}"
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(_prelude, module.__dict__)
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), module.__dict__)
    return module


def forget(module):
    sys.modules.pop(module.__name__, None)
    linecache.cache.pop(f"<{module.__name__}>", None)


# --- the reference


class Indexed(TorchFunctionMode):
    """x[i, 2] by tensors of one element, which vmap takes for numbers otherwise."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            tensors = [isinstance(i, torch.Tensor) for i in index]
            if any(tensors) and all(t or type(i) is int for t, i in zip(tensors, index)):
                return torch.ops.aten.index(args[0], [i if t else torch.tensor(i) for t, i in zip(tensors, index)])
        return func(*args, **(kwargs or {}))


def _wide(mod, of_score):
    dims = [(None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)]
    for d in dims:
        mod = torch.vmap(mod, in_dims=(0, *d) if of_score else d)
    return mod


def plain_block_mask(mask_mod, *_, **__):
    return mask_mod


def plain_attention(q, k, v, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_lse=False):
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    score = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    index = [torch.arange(n) for n in score.shape]
    with Indexed():
        if score_mod is not None:
            score = _wide(score_mod, True)(score, *index)
        if block_mask is not None:
            keep = _wide(block_mask, False)(*index)
            if keep.dtype is not torch.bool:
                raise Invalid("the mask is not boolean")
            score = torch.where(keep, score, -torch.inf)
    if not score.is_floating_point():
        raise Invalid("the score is not real")
    score = score.double()
    if score.isnan().any() or (score == torch.inf).any() or score.abs().nan_to_num(0, 0, 0).max() > 1e4:
        raise Invalid("the score is too large")
    some = (score > -torch.inf).any(-1, keepdim=True)
    p = torch.where(some, torch.where(some, score, 0.0).softmax(-1), 0.0)
    o = p @ v
    if not return_lse:
        return o
    return o, torch.where(some[..., 0], torch.logsumexp(torch.where(some, score, 0.0), -1), -torch.inf)


# --- a life


def _results(made):
    return [t for t in (made if isinstance(made, tuple) else (made,))]


def _gradients(results, leaves):
    total = 0.0
    for r in results:
        r = torch.where(torch.isfinite(r), r, 0.0)
        weights = torch.linspace(0.3, 1.7, r.numel(), dtype=r.dtype).reshape(r.shape)
        total = total + (r * weights * torch.cos(torch.arange(r.numel(), dtype=r.dtype)).reshape(r.shape)).sum()
    return torch.autograd.grad(total, leaves, allow_unused=True)


def _error(got, want, least=1e-3):
    """Relative to the largest, or to `least`, where sums cancel; infinities have to be the same."""
    got, want = got.detach().double(), want.detach().double()
    if got.shape != want.shape:
        return float("inf")
    same = got == want
    if not same.all() and not torch.isfinite(got[~same]).all():
        return float("inf")
    finite = torch.isfinite(want)
    largest = float(want[finite].abs().max()) if finite.any() else 0.0
    return float((got - want)[~same].abs().max()) / max(largest, least) if not same.all() else 0.0


def _leaves(module, program, step):
    g = torch.Generator().manual_seed(step.seed)
    made = [
        torch.randn(BATCH, heads, n, HEAD_DIM, generator=g, dtype=torch.float64).to(getattr(torch, program.dtype)).requires_grad_()
        for heads, n in ((HEADS, step.q_len), (program.heads_kv, step.kv_len), (program.heads_kv, step.kv_len))
    ]
    learned = [eval(x, module.__dict__) for x in program.learned]
    unique = []
    for t in learned:
        if t.requires_grad and all(t is not u for u in unique):
            unique.append(t)
    return made, unique


def _run(statement, module, grads):
    if statement == "OPTIMIZER":
        learned, gradients = grads
        for t, g in zip(learned, gradients):
            t.grad = None if g is None else g.clone()
        if learned:
            torch.optim.SGD(learned, lr=0.5).step()
        for t in learned:
            t.grad = None
    else:
        try:
            exec(compile(statement, "<change>", "exec"), module.__dict__)
        except RuntimeError as e:
            if "leaf Variable" not in str(e) and "not allowed" not in str(e):
                raise


def reason_of(e):
    """The message without places and numbers, to count refusals."""
    text = re.sub(r"<[^>]*>|mod_program_\d+", "F", (str(e).strip().splitlines() or [""])[0])
    text = re.sub(r"\b(self\.)?(a|c|g|s|x)\d+\b|\d+", "N", text)
    return f"{type(e).__name__}: {text[:150]}"


def _refused_by_torch(module, qkv, learned):
    """What PyTorch's own flex_attention says of the same call: None if it takes it. It has no gradients on the CPU."""
    try:
        for t in learned:
            t.requires_grad_(False)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module.call(theirs.flex_attention, theirs.create_block_mask, *(t.detach() for t in qkv))
        return None
    except Exception as e:
        return reason_of(e)
    finally:
        for t in learned:
            t.requires_grad_()


def _timeout(*_):
    raise TimeoutError("mod_fuzz: no end")


def live(program, seconds=60):
    """Runs a program. Returns refusals: (reason, what torch says or None). Raises Difference, or Invalid."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if program.double else torch.float32)
    signal.signal(signal.SIGALRM, _timeout)
    module = None
    try:
        try:
            module = module_of(program.source)
        except Exception as e:
            raise Invalid(f"{type(e).__name__}: {e}") from None
        return _steps(program, module, seconds)
    finally:
        signal.alarm(0)
        torch.set_default_dtype(default)
        if module is not None:
            forget(module)


def _steps(program, module, seconds):
    refusals, earlier, grads = [], [], ([], [])
    for number, step in enumerate(program.steps):
        qkv, learned, wants, want_grads = _wanted(program, module, step, grads)
        grads = (learned, want_grads[3:])
        signal.alarm(seconds)
        try:
            got_grads = _luattn(program, module, step, number, (*qkv, *learned), wants, earlier, grads)
        except TimeoutError:
            raise Difference("hang", f"no end after {seconds} s", number) from None
        except Difference:
            raise
        except Exception as e:
            signal.alarm(0)
            reason = reason_of(e)
            said = _said.get(reason, "")
            if said == "":  # asking takes seconds
                said = _said[reason] = _refused_by_torch(module, qkv, learned)
            if not isinstance(e, luattn.Error):
                if said is None:
                    raise Difference("foreign", reason, number) from e
                reason = f"FOREIGN {reason}"
            refusals.append((reason, said, str(e)))
            continue
        finally:
            signal.alarm(0)
        if got_grads is not None:
            _compare_gradients(program, number, got_grads, want_grads)
    return refusals


def _wanted(program, module, step, grads):
    """q, k and v, learned tensors, and what plain torch makes of them, once the changes of a step are done."""
    try:
        for statement in step.before:
            _run(statement, module, grads)
        qkv, learned = _leaves(module, program, step)
        wants = _results(module.call(plain_attention, plain_block_mask, *qkv))
        want_grads = _gradients(wants, (*qkv, *learned))
    except Invalid:
        raise
    except Exception as e:
        raise Invalid(f"{type(e).__name__}: {e}") from None
    if any(g is not None and not torch.isfinite(g).all() for g in want_grads):
        raise Invalid("a gradient is not finite")
    return qkv, learned, wants, want_grads


def _luattn(program, module, step, number, leaves, wants, earlier, grads):
    """Gradients of a call with luattn, or None where autograd objects to a change in place."""
    arguments = (flex.flex_attention, flex.create_block_mask, *leaves[:3])
    if program.way == "no_grad first":
        with torch.no_grad():
            module.call(*arguments)
    if program.way == "checkpoint":
        got = _results(torch.utils.checkpoint.checkpoint(module.call, *arguments, use_reentrant=False))
    else:
        got = _results(module.call(*arguments))
    tolerance = 1e-9 if program.exact else 3e-5
    for name, a, b in zip(("o", "lse"), got, wants):
        e, like = _error(a, b), (step.seed, a.shape, name)
        if not e <= tolerance:
            old = [i for i, x, other in earlier if other == like and _error(a, x) <= tolerance]
            text = f"{name} differs by {e:.1e}" + (f": it is that of call {old[-1]}" if old else "")
            raise Difference("stale" if old else "wrong", text, number)
        earlier.append((number, b.detach(), like))
    for statement in step.late if program.way != "checkpoint" else ():  # which runs the call again
        _run(statement, module, grads)
    try:
        return _gradients(got, leaves)
    except RuntimeError as e:
        if step.late and "inplace operation" in str(e):
            return None
        raise


def _compare_gradients(program, number, got, want):
    tolerance, least = (1e-8, 1e-3) if program.exact else (3e-4, 1.0)
    for name, a, b in zip(("q", "k", "v", *["a learned tensor"] * len(got)), got, want):
        if a is None:
            if b is not None and b.abs().max() > 0:
                raise Difference("lost", f"no gradient of {name}", number)
            continue
        e = _error(a, torch.zeros_like(a) if b is None else b, least)
        if not e <= tolerance:
            raise Difference("wrong", f"gradient of {name} differs by {e:.1e}", number)
