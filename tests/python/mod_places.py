"""mod_places.py: where programs of mod_grammar.py keep what their mods read: a prelude of helpers and classes, holders of values, and axes of tensors."""

PRELUDE = '''
import contextvars, copy, dataclasses, enum, functools, math, operator, types, typing
import numpy as np
import torch
from torch import nn
from torch.nn.attention.flex_attention import and_masks, or_masks

def floats(seed, *shape, dtype=torch.float64):
    made = torch.randint(-24, 25, shape, generator=torch.Generator().manual_seed(seed))
    return (made.to(torch.float64) / 16).to(dtype)

def learned(seed, *shape):
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))

def ints(seed, *shape, dtype=torch.int64):
    return torch.randint(0, 6, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)

def flags(seed, *shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6

class Plain:
    def __init__(self, w):
        self.w = w
    def get(self):
        return self.w

class Slots:
    __slots__ = ("w",)
    def __init__(self, w):
        self.w = w

class Prop:
    def __init__(self, raw):
        self.raw = raw
    @property
    def w(self):
        return self.raw

class Base:
    w = None
class Derived(Base):
    pass

class Lazy:
    def __init__(self, w):
        self._held = {"w": w}
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._held:
            return self._held[name]
        raise AttributeError(name)

class Attributes(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__

class Callable:
    def __init__(self, w):
        self.w = w
    def __call__(self):
        return self.w

@dataclasses.dataclass
class Data:
    w: object

@dataclasses.dataclass(frozen=True)
class Frozen:
    w: object

class Pair(typing.NamedTuple):
    v: object
    w: object

class Level(enum.Enum):
    LOW = 2
    MIDDLE = 4
    HIGH = 7

class Rank(enum.IntEnum):
    LOW = 2
    MIDDLE = 4
    HIGH = 7

class Holder(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = w
    def get(self):
        return self.w

class Buffered(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.register_buffer("w", w)

def module_with(w):
    module = types.ModuleType("settings")
    module.w = w
    return module

def class_with(w):
    return type("Config", (Base,), {"w": w})

def cached(w):
    @functools.lru_cache
    def held():
        return w
    return held

def context(w):
    made = contextvars.ContextVar("w")
    made.set(w)
    return made

@functools.lru_cache(maxsize=None)
def same(x):
    return x

def attribute_of(x):
    return x.w
'''

# What holds a value: how it is made of {v}, how a mod reads it at {p}, and what changes it: {h} is the object, {n} another value,
# and "= X" puts X into the place of the object.
ANY_HOLDERS = [
    ("{v}", "{p}", ["= {n}"]),
    ("{v}", "{p}", ["= {n}"]),
    ("types.SimpleNamespace(w={v})", "{p}.w", ["{h}.w = {n}", "= types.SimpleNamespace(w={n})"]),
    ("Plain({v})", "{p}.w", ["{h}.w = {n}", "= Plain({n})"]),
    ("Plain({v})", "{p}.get()", ["{h}.w = {n}"]),
    ("Plain({v})", 'getattr({p}, "w")', ["{h}.w = {n}"]),
    ("Plain({v})", 'getattr({p}, "other", {p}.w)', ["{h}.w = {n}", "{h}.other = {n}"]),
    ("Plain({v})", "attribute_of({p})", ["{h}.w = {n}"]),
    ("Plain({v})", 'operator.attrgetter("w")({p})', ["{h}.w = {n}"]),
    ("Plain({v})", "vars({p})['w']", ["{h}.w = {n}"]),
    ("Slots({v})", "{p}.w", ["{h}.w = {n}"]),
    ("Prop({v})", "{p}.w", ["{h}.raw = {n}"]),
    ("Lazy({v})", "{p}.w", ['{h}._held["w"] = {n}']),
    ("Attributes(w={v})", "{p}.w", ["{h}.w = {n}", '{h}["w"] = {n}']),
    ("Callable({v})", "{p}()", ["{h}.w = {n}", "= Callable({n})"]),
    ("Data({v})", "{p}.w", ["{h}.w = {n}"]),
    ("Frozen({v})", "{p}.w", ["= dataclasses.replace({h}, w={n})"]),
    ("Pair(0, {v})", "{p}.w", ["= {h}._replace(w={n})"]),
    ("class_with({v})", "{p}.w", ["{h}.w = {n}"]),
    ("class_with({v})()", "{p}.w", ["{h}.w = {n}", "type({h}).w = {n}"]),
    ("types.SimpleNamespace(a=Plain({v}))", "{p}.a.w", ["{h}.a.w = {n}", "{h}.a = Plain({n})"]),
    ("{{'a': {{'w': {v}}}}}", '{p}["a"]["w"]', ['{h}["a"]["w"] = {n}']),
    ("{{'w': {v}}}", '{p}["w"]', ['{h}["w"] = {n}', '{h}.update(w={n})']),
    ("{{'w': {v}}}", '{p}.get("w", 1)', ['{h}["w"] = {n}']),
    ("[0, {v}]", "{p}[1]", ["{h}[1] = {n}", "= [3, {n}]"]),
    ("[0, {v}]", "{p}[-1]", ["{h}.append({n})"]),
    ("(0, {v})", "{p}[1]", ["= (0, {n})"]),
    ("module_with({v})", "{p}.w", ["{h}.w = {n}"]),
    ("(lambda: {v})", "{p}()", ["= (lambda: {n})"]),
    ("cached({v})", "{p}()", ["= cached({n})"]),
    ("functools.partial(same, {v})", "{p}()", ["= functools.partial(same, {n})"]),
    ("Holder({v})", "{p}.w", ["{h}.w = {n}"]),
    ("Holder({v})", "{p}.get()", ["{h}.w = {n}"]),
    ("context({v})", "{p}.get()", ["{h}.set({n})"]),
]  # fmt: skip

INT_HOLDERS = [
    ("{v}", "same({p})", ["= {n}"]),
    ("np.int64({v})", "{p}", ["= np.int64({n})"]),
    ("np.array([1, {v}])", "{p}[1]", ["{h}[1] = {n}", "= np.array([2, {n}])"]),
    ("np.array([1, {v}])", "int({p}[1])", ["{h}[1] = {n}"]),
    ("torch.tensor({v})", "{p}", ["{h}.fill_({n})", "= torch.tensor({n})"]),
    ("torch.tensor({v}, dtype=torch.int32)", "{p}", ["{h}.fill_({n})", "= torch.tensor({n}, dtype=torch.int32)"]),
    ("torch.tensor({v})", "{p}.item()", ["{h}.fill_({n})", "= torch.tensor({n})"]),
    ("torch.tensor({v})", "int({p})", ["{h}.fill_({n})"]),
    ("torch.tensor([1, {v}])", "{p}[1]", ["{h}[1] = {n}"]),
    ("torch.tensor([1, {v}])", "{p}.tolist()[1]", ["{h}[1] = {n}"]),
    ("torch.tensor([1, {v}])", "int({p}[-1])", ["{h}[-1] = {n}"]),
    ("torch.tensor([1, {v}])", "{p}.max()", ["{h}[1] = {n}"]),
    ("list(range({v}))", "len({p})", ["= list(range({n}))", "{h}.append(0)"]),
    ("[1, {v}]", "max({p})", ["{h}[1] = {n}"]),
    ("[1, {v}]", "sum({p})", ["{h}[1] = {n}"]),
    ("{{'a': 1, 'b': {v}}}", "sum({p}.values())", ['{h}["b"] = {n}']),
    ("torch.zeros({v})", "{p}.shape[0]", ["= torch.zeros({n})"]),
    ("torch.zeros({v}, 2)", "{p}.size(0)", ["= torch.zeros({n}, 2)"]),
    ("torch.zeros({v})", "len({p})", ["= torch.zeros({n})"]),
    ("Level.LOW", "{p}.value", ["= Level.MIDDLE", "= Level.HIGH"]),
    ("Rank.LOW", "{p}", ["= Rank.MIDDLE", "= Rank.HIGH"]),
    ("'x' * {v}", "len({p})", ["= 'x' * {n}"]),
    ("'{v}'", "int({p})", ["= '{n}'"]),
    ("slice(0, {v})", "{p}.stop", ["= slice(0, {n})"]),
    ("range({v})", "len({p})", ["= range({n})"]),
    ("nn.Linear(1, {v})", "{p}.out_features", ["= nn.Linear(1, {n})"]),
    ("nn.ModuleList([nn.Identity() for _ in range({v})])", "len({p})", ["{h}.append(nn.Identity())"]),
]  # fmt: skip

FLOAT_HOLDERS = [
    ("np.float64({v})", "{p}", ["= np.float64({n})"]),
    ("np.float32({v})", "{p}", ["= np.float32({n})"]),
    ("np.array([1.0, {v}])", "float({p}[1])", ["{h}[1] = {n}"]),
    ("torch.tensor({v}, dtype=torch.float64)", "{p}", ["{h}.fill_({n})", "{h}.mul_(0.5)", "= torch.tensor({n}, dtype=torch.float64)"]),
    ("torch.tensor({v}, dtype=torch.float64)", "{p}.item()", ["{h}.fill_({n})"]),
    ("torch.tensor({v}, dtype=torch.float64)", "float({p})", ["{h}.fill_({n})"]),
    ("torch.tensor([0.5, {v}], dtype=torch.float64)", "{p}[1].item()", ["{h}[1] = {n}"]),
    ("{v}", "math.sqrt({p})", ["= {n}"]),
    ("{v}", "(2 ** {p})", ["= {n}"]),
    ("{v}", "math.log({p} + 1)", ["= {n}"]),
    ("'{v}'", "float({p})", ["= '{n}'"]),
]  # fmt: skip

BOOL_HOLDERS = [
    ("np.bool_({v})", "bool({p})", ["= np.bool_({n})"]),
    ("'yes' if {v} else 'no'", '({p} == "yes")', ["= 'yes' if {n} else 'no'"]),
    ("3 if {v} else None", "({p} is not None)", ["= 3 if {n} else None"]),
    ("{{3}} if {v} else set()", "(3 in {p})", ["= {{3}} if {n} else set()", "{h}.add(3)", "{h}.discard(3)"]),
    ("['a'] if {v} else []", "bool({p})", ["{h}.append('b')", "{h}.clear()"]),
    ("Plain(1) if {v} else Data(1)", "isinstance({p}, Plain)", ["= Plain(1) if {n} else Data(1)"]),
    ("types.SimpleNamespace(**({{'a': 1}} if {v} else {{}}))", 'hasattr({p}, "a")', ["{h}.a = 2", "{h}.__dict__.clear()"]),
    ("torch.tensor({v})", "bool({p})", ["{h}.fill_({n})"]),
    ("nn.Identity().train({v})", "{p}.training", ["{h}.train({n})"]),
]  # fmt: skip

# Tensors have besides what holds them: a change in place.
PARAMETER_HOLDERS = [
    ("nn.ParameterList([{v}])", "{p}[0]", ["{h}[0] = {n}"]),
    ("nn.ParameterList([learned(1, 2), {v}])", "{p}[1]", ["{h}[1] = {n}"]),
    ("nn.ParameterDict({{'t': {v}}})", '{p}["t"]', ['{h}["t"] = {n}']),
    ("nn.ParameterDict({{'t': {v}}})", "{p}.t", ['{h}["t"] = {n}']),
    ("nn.ModuleList([nn.Identity(), Holder({v})])", "{p}[1].w", ["{h}[1].w = {n}", "{h}[1] = Holder({n})"]),
    ("nn.ModuleDict({{'a': Holder({v})}})", '{p}["a"].w', ['{h}["a"].w = {n}']),
    ("nn.Sequential(nn.Identity(), Holder({v}))", "{p}[1].w", ["{h}[1].w = {n}"]),
    ("[{v}, learned(1, 2)]", "{p}[0]", ["{h}[0] = {n}"]),
    ("{v}", "{p}.view_as({p})", ["= {n}"]),
    ("{v}", "({p} * 1.5)", ["= {n}"]),
]  # fmt: skip
BUFFER_HOLDERS = [
    ("Buffered({v})", "{p}.w", ["{h}.w = {n}"]),
    ("Buffered({v})", 'getattr({p}, "w")', ["{h}.w = {n}"]),
    ("Buffered({v})", '{p}.get_buffer("w")', ["{h}.w = {n}"]),
    ("{v}", "{p}.clone()", ["= {n}"]),
    ("{v}", "{p}.contiguous()", ["= {n}"]),
    ("{v}.numpy()", "torch.from_numpy({p})", ["= {n}.numpy()"]),
]  # fmt: skip

# Axes of a tensor: its shape, and an index that a mod may take, where {p} is the tensor and {i} any integer.
AXES = {
    "": ("", "{p}", ""),
    "b": ("2", "{p}[b]", "b"),
    "h": ("2", "{p}[h]", "h"),
    "q": ("24", "{p}[q_idx]", "q"),
    "k": ("24", "{p}[kv_idx]", "k"),
    "r": ("48", "{p}[q_idx - kv_idx + 24]", "qk"),
    "R": ("48", "{p}[torch.clamp(q_idx - kv_idx, -7, 7) + 7]", "qk"),
    "bk": ("2, 24", "{p}[b, kv_idx]", "bk"),
    "bq": ("2, 24", "{p}[b][q_idx]", "bq"),
    "hr": ("2, 48", "{p}[h, q_idx - kv_idx + 24]", "hqk"),
    "qk": ("24, 24", "{p}[q_idx, kv_idx]", "qk"),
    "hqk": ("2, 24, 24", "{p}[h, q_idx, kv_idx]", "hqk"),
    "bhqk": ("2, 2, 24, 24", "{p}[b, h, q_idx, kv_idx]", "bhqk"),
    "m": ("{size}", "{p}[({i}) % {p}.shape[0]]", "*"),
    "M": ("{size}", "{p}[({i}) % len({p})]", "*"),
    "1": ("{size}", "{p}[1]", ""),
    "z": ("{size}", "{p}[-1]", ""),
    "B": ("24", "{p}[kv_idx // 2]", "k"),
    "g": ("4, 24", "{p}[({i}) % 4, kv_idx]", "*k"),
    "e": ("2, 2", "{p}[h].sum()", "h"),
    "2": ("24, 3", "{p}[q_idx].mean(-1)", "q"),
    "d": ("24, 3", "torch.dot({p}[q_idx], {p}[kv_idx])", "qk"),
}
