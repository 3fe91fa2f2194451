"""mod_grammar.py: draws programs for mod_fuzz.py: Python that keeps what its mods read in many kinds of places, computes with it in
a score_mod and a mask_mod, and changes it between calls. It knows FlexAttention's documents and nothing of luattn."""

import re
from dataclasses import dataclass, field

from mod_places import (
    ANY_HOLDERS,
    AXES,
    BOOL_HOLDERS,
    BUFFER_HOLDERS,
    FLOAT_HOLDERS,
    INT_HOLDERS,
    PARAMETER_HOLDERS,
)

HELD = re.compile(r"\b(self\.a|[csx])\d+")  # what a function of the module does not see

STEPS = re.compile(r"round|ceil|trunc|floor|frac|sign|% 1.5|to\(torch.int64\)")  # functions that jump


@dataclass
class Source:
    """A value that mods read. kind: int, float, bool, or a tensor as "float:hqk". read: the expression in a mod. changes: statements."""

    kind: str
    read: str
    changes: list[str]
    dtype: str = ""
    plain: bool = True  # a number of Python, which an `if` may ask


@dataclass
class Step:
    """A call: statements of before, lengths, what q, k and v are drawn from, and statements between forward and backward."""

    before: list[str]
    q_len: int
    kv_len: int
    seed: int
    late: list[str] = field(default_factory=list)


@dataclass
class Program:
    source: str
    learned: list[str]  # expressions of the program's namespace
    steps: list[Step]
    heads_kv: int
    double: bool  # torch's default dtype is float64
    exact: bool  # nothing in it is float32
    dtype: str
    way: str  # how luattn is called


class Grammar:
    def __init__(self, rng):
        self.rng = rng
        self.form = rng.choice(["plain", "closure", "fresh", "fresh", "module", "module", "object", "kept"])
        self.style = rng.choice({"module": ["method", "inner", "lambda"], "object": ["method", "callable"]}.get(self.form, [""]))
        self.sources: list[Source] = []
        self.global_lines: list[str] = []
        self.held: dict[str, list[tuple[str, str]]] = {"cell": [], "state": [], "self": [], "default": [], "partial": []}
        self.learned: list[str] = []
        self.count = 0

    # --- where values come from

    def place(self):
        """A place: how a mod reads it, how the program does, and a statement that assigns."""
        places = {
            "plain": ["global"],
            "closure": ["cell", "cell", "cell", "global"],
            "fresh": ["state", "state", "state", "default", "partial", "global"],
            "module": ["self", "self", "self", "state" if self.style == "inner" else "self", "global"],
            "object": ["self", "self", "global"],
            "kept": ["default", "partial", "global"],
        }
        self.count += 1
        where, i = self.rng.choice(places[self.form]), self.count
        if self.form == "kept" and where != "global":  # the mod is made once: its defaults stay
            return where, f"x{i}", f"state.x{i}", None
        return {
            "global": ("global", f"g{i}", f"g{i}", f"g{i} = {{}}"),
            "cell": ("cell", f"c{i}", f"built.get_c{i}()", f"built.set_c{i}({{}})"),
            "state": ("state", f"s{i}", f"state.s{i}", f"state.s{i} = {{}}"),
            "self": ("self", f"self.a{i}", f"net.a{i}", f"net.a{i} = {{}}"),
            "default": ("default", f"x{i}", f"state.x{i}", f"state.x{i} = {{}}"),
            "partial": ("partial", f"x{i}", f"state.x{i}", f"state.x{i} = {{}}"),
        }[where]  # fmt: skip

    def put(self, kind, holder, values, learned=False, extra=()):
        """Puts a value into a holder at a place. values: how to draw one as Python."""
        where, read, handle, assign = self.place()
        init, how, changes = holder
        first = values()
        made = init.format(v=first)
        if where == "global":
            self.global_lines.append(f"{read} = {made}")
        else:
            self.held[where].append((read.removeprefix("self."), made))
        lines = []
        for change in [*changes, *extra]:
            new = values()
            text = change.format(h=handle, n=new, v=first, p=how.format(p=handle))
            if text.startswith("= "):
                if assign is None:
                    continue
                text = assign.format(text[2:])
            lines.append(text)
        is_number = any(x in how for x in ("item", "int(", "float(", "bool(", "tolist", "shape", "len(", "size("))
        source = Source(kind, how.format(p=read), lines, "int16" if "int16" in first else "", ":" not in kind and ("torch.tensor(" not in init or is_number))
        if learned:
            self.learned.append(handle if "view_as" in how or "* 1.5" in how else how.format(p=handle))
        self.sources.append(source)
        return source

    def scalar(self, kind):
        rng = self.rng
        if kind == "int":
            return self.put(kind, rng.choice(ANY_HOLDERS + INT_HOLDERS + INT_HOLDERS), lambda: str(rng.randint(1, 9)))
        if kind == "float":
            return self.put(kind, rng.choice(ANY_HOLDERS + FLOAT_HOLDERS), lambda: str(rng.randint(2, 40) / 16))
        return self.put(kind, rng.choice(ANY_HOLDERS + BOOL_HOLDERS), lambda: rng.choice(["True", "False"]))

    def tensor(self, kind):
        rng = self.rng
        axes = rng.choice(list(AXES))
        if kind != "float" and axes in ("e", "2", "d"):
            axes = "m"
        if kind == "bool" and axes in ("1", "z"):
            axes = "k"
        learned = kind == "float" and rng.random() < 0.6
        dtype = ""
        if kind == "int":
            dtype = rng.choice(["", "", ", dtype=torch.int32", ", dtype=torch.int16"])
        if kind == "float" and not learned and rng.random() < 0.15:
            dtype = ", dtype=torch.float32"
        maker = {"int": "ints", "bool": "flags", "float": "learned" if learned else "floats"}[kind]
        size = rng.randint(3, 7)
        changes_shape = "{size}" in AXES[axes][0] and rng.random() < 0.5

        def value():
            n = rng.randint(3, 7) if changes_shape else size
            shape = AXES[axes][0].format(size=n)
            return f"{maker}({', '.join(x for x in (str(rng.randint(0, 999)), shape) if x)}{dtype})"

        made_anew = ("(lambda",)  # inside of the mod
        places = [p for p in ANY_HOLDERS if not p[0].startswith(made_anew)] + (PARAMETER_HOLDERS * 2 if learned else BUFFER_HOLDERS * 2)
        at = "{p}"
        in_place = {
            "int": [f"with torch.no_grad(): {at}.add_(1).remainder_(6)", f"{at}.copy_({at}.flip(0))" if axes else f"{at}.fill_(3)"],
            "bool": [f"{at}.logical_not_()", f"{at}.fill_(True)"],
            "float": [f"with torch.no_grad(): {at}.mul_(-0.5)", f"with torch.no_grad(): {at}.add_(0.25)"]
            + ([f"{at}.requires_grad_(not {at}.requires_grad)"] if learned else []),
        }[kind]  # fmt: skip
        while True:
            holder = rng.choice(places)
            if not any(word in holder[1] for word in ("clone", "contiguous", "from_numpy", "view_as", "* 1.5")):
                extra = in_place
                break
            if "numpy" in holder[1] and (learned or not axes):
                continue
            extra = [x.replace("{p}", "{h}") for x in in_place] if "numpy" not in holder[1] else []
            break
        return self.put(f"{kind}:{axes}", holder, value, learned, extra)

    def read(self, source, depth):
        """What a mod computes with: text, whether it is a tensor, and the axes that it varies along."""
        if ":" not in source.kind:
            return source.read, not source.plain, set()
        axes = AXES[source.kind.split(":")[1]]
        index, deps = ("0", set())
        if "{i}" in axes[1]:
            index, _, deps = self.integer(max(0, depth - 1))
        text = axes[1].format(p=source.read, i=index)
        if "int16" in source.dtype:
            text = f"({text}).long()"
        return text, True, deps | set(axes[2]) - {"*"}

    def of(self, kind):
        """A source of a kind, with or without axes: one that there is, or a new one."""
        rng = self.rng
        known = [s for s in self.sources if s.kind.partition(":")[0] == kind]
        if known and (rng.random() < 0.5 or len(self.sources) > 5):
            return rng.choice(known)
        if len(self.sources) > 7:
            return None
        return self.tensor(kind) if rng.random() < 0.5 else self.scalar(kind)

    # --- what is computed: each of integer, real, boolean gives (text, is a tensor, axes)

    def integer(self, depth):
        rng = self.rng
        roll = rng.random()
        if depth <= 0 or roll < 0.25:
            if rng.random() < 0.65:
                name = rng.choice(["q_idx", "kv_idx", "q_idx", "kv_idx", "h", "b"])
                return name, True, set({"q_idx": "q", "kv_idx": "k"}.get(name, name))
            source = self.of("int")
            if source is None:
                return "(q_idx - kv_idx)", True, {"q", "k"}
            return self.read(source, depth)
        x, t, d = self.integer(depth - 1)
        if roll < 0.6:
            y, u, e = self.integer(depth - 1)
            op = rng.choice(["+", "-", "-", "*"])
            return f"({x} {op} {y})", t or u, d | e
        if not t:
            x, t, d = f"(kv_idx + {x})", True, d | {"k"}
        n = str(rng.randint(2, 6))
        if rng.random() < 0.3:
            source = self.scalar("int") if len(self.sources) < 6 else None
            n = f"({source.read})" if source else n
        plain = n.isdigit()
        form = rng.choice(
            [f"({x} // {n})", f"({x} % {n})", f"torch.abs({x})", f"({x}).abs()", f"torch.remainder({x}, {n})"]
            + ([f"torch.clamp({x}, -{n}, {n})", f"({x}).clamp(min=-{n})", f"({x} & {n})", f"({x} ^ {n})", f"({x} >> 1)",
                f"torch.div({x}, {n}, rounding_mode='floor')", f"torch.fmod({x}, {n})", f"torch.bitwise_and({x}, {n})",
                f"torch.bitwise_xor({x}, {n})", f"torch.bitwise_or({x}, {n})", f"torch.bitwise_left_shift({x}, 1)", f"torch.bitwise_right_shift({x}, 1)", f"torch.sign({x})",
                f"(~({x}))", f"torch.bitwise_not({x})", f"torch.square({x})", f"({x}).remainder({n})", f"({x}).clamp(0, {n})", f"({x}).int()", f"({x}).to(torch.int32)", f"torch.sub({x}, {n}, alpha=2)",
                f"torch.add({x}, {n})", f"({x} ** 2)", f"({x}).floor_divide({n})", f"torch.mul({x}, {n})", f"torch.neg({x})", f"({n} - {x})", f"torch.ones_like({x}) * {n}", f"(({x} / {n}).floor()).long()",
                f"torch.floor_divide({x}, {n})", f"({x} | {n})", f"(-{x})", f"({x} << 1)", f"torch.div({x}, {n}, rounding_mode='trunc')"]
               if plain else [])
            + ["where", "minimum", "maximum", "bool"]
        )  # fmt: skip
        if form == "where":
            c, _, f = self.boolean(depth - 2)
            return f"torch.where({c}, {x}, {n})", True, d | f
        if form in ("minimum", "maximum"):
            y, u, e = self.integer(depth - 2)
            return (f"torch.{form}({x}, {y})" if u else x), True, d | e if u else d
        if form == "bool":
            c, _, f = self.boolean(depth - 2)
            return f"({x} + ({c}).{rng.choice(['int()', 'long()', 'to(torch.int64)'])})", True, d | f
        return form, True, d

    def real(self, depth, score=None):
        rng = self.rng
        roll = rng.random()
        if depth <= 0 or roll < 0.2:
            if score and rng.random() < 0.5:
                return score, True, set("bhqk")
            source = self.of("float")
            if source is None:
                return "0.75", False, set()
            return self.read(source, depth)
        if roll < 0.35:
            x, t, d = self.integer(depth - 1)
            x, t, d = (x, t, d) if t else (f"(q_idx + {x})", True, d | {"q"})
            return rng.choice([f"({x} * 0.125)", f"({x}).double()", f"({x} / 8)", f"({x}).to(torch.float64)"]), True, d
        x, t, d = self.real(depth - 1, score)
        if roll < 0.6:
            y, u, e = self.real(depth - 1, score)
            return f"({x} {rng.choice(['+', '-', '*', '+'])} {y})", t or u, d | e
        if not t:
            x, t, d = f"({x} + h * 0.5)", True, d | {"h"}
        form = rng.choice(
            [f"torch.tanh({x})", f"({x}).tanh()", f"torch.sigmoid({x})", f"torch.exp(-torch.abs({x}))", f"torch.log(torch.abs({x}) + 1.5)",
             f"({x}).abs()", f"torch.clamp({x}, -1.5, 1.25)", f"({x}).clamp(max=1.75)", f"torch.sqrt(torch.abs({x}) + 0.5)", f"torch.sin({x})",
             f"torch.cos({x})", f"({x} / 1.5)", f"(-{x})", f"(1.5 - {x})", f"torch.square(torch.tanh({x}))", f"(torch.tanh({x}) ** 2)", f"torch.relu({x})",
             f"nn.functional.softplus({x})", f"nn.functional.silu({x})", f"torch.add({x}, 0.5, alpha=2)", f"torch.mul({x}, 0.75)", f"({x}).sub(0.5)", f"(1 / (1 + {x} * {x}))",
             f"torch.rsqrt({x} * {x} + 1)", f"torch.log1p(torch.abs({x}))", f"torch.expm1(-torch.abs({x}))", f"({x}).pow(2).tanh()", f"torch.exp2(-torch.abs({x}))",
             f"torch.erf({x})", f"nn.functional.gelu({x})", f"nn.functional.leaky_relu({x}, 0.25)", f"nn.functional.elu({x})", f"torch.atan({x})",
             f"nn.functional.hardtanh({x})", f"torch.sign({x})", f"torch.round({x} * 3)", f"torch.ceil({x})", f"torch.trunc({x})", f"torch.floor({x} * 2)",
             f"({x} % 1.5)", f"({x}).to(torch.int64)", f"(2 ** torch.tanh({x}))", f"torch.pow(2.0, torch.tanh({x}))", f"torch.logaddexp({x}, -{x})", f"torch.hypot({x}, {x} + 1)",
             f"torch.atan2({x}, 1.5 + {x} * {x})", f"torch.nan_to_num({x})", f"torch.special.expit({x})", f"nn.functional.logsigmoid({x})", f"torch.mul({x}, {x}).tanh()",
             f"torch.reciprocal(1.5 + {x}.abs())", f"torch.zeros_like({x})", f"torch.full_like({x}, 0.5) * {x}", f"torch.subtract({x}, 0.25)", f"torch.true_divide({x}, 3)",
             f"torch.tan(torch.tanh({x}))", f"torch.sinh(torch.tanh({x}))", f"torch.cosh(torch.tanh({x}))", f"torch.frac({x} * 1.7)", f"({x}).clamp_min(-0.5)", f"torch.asinh({x})",
             f"torch.addcmul({x}, {x}, {x}, value=0.01)", f"torch.lerp({x}, -{x}, 0.25)", f"({x}).float().double()", f"torch.log2({x}.abs() + 1.5)", f"torch.log10({x}.abs() + 1.5)",
             f"nn.functional.relu6({x})", f"nn.functional.mish({x})", f"nn.functional.softsign({x})", f"torch.floor_divide({x}, 0.5)", f"torch.copysign({x}, {x} - 0.5)",
             f"({x} + ({x}.floor() - {x}).detach())" if t and rng.random() < 0.4 else f"({x}).neg()"]
            + ["where", "minimum", "maximum", "masked_fill", "detach", "lerp"]
        )  # fmt: skip
        if form in ("where", "masked_fill"):
            c, _, f = self.boolean(depth - 2, score)
            y, _, e = self.real(depth - 2, score)
            if form == "masked_fill":
                return (f"({x}).masked_fill({c}, -0.5)", True, d | f)
            return f"torch.where({c}, {x}, {y})", True, d | e | f
        if form in ("minimum", "maximum"):
            y, u, e = self.real(depth - 2, score)
            return (f"torch.{form}({x}, {y})" if u else x), True, d | e if u else d
        if form == "detach":
            y, u, e = self.real(depth - 2, score)
            return (f"({x} + ({y}).detach())" if u else x), True, d | e if u else d
        if form == "lerp":
            return f"torch.where({x} > 0, {x}, 0.0)", True, d
        return form, True, d

    def boolean(self, depth, score=None):
        rng = self.rng
        roll = rng.random()
        if depth > 0 and roll < 0.4:
            x, _, d = self.boolean(depth - 1, score)
            if rng.random() < 0.2:
                return rng.choice([f"(~({x}))", f"torch.logical_not({x})"]), True, d
            y, _, e = self.boolean(depth - 1, score)
            form = rng.choice(["({} & {})", "({} | {})", "({} ^ {})", "torch.logical_and({}, {})", "torch.logical_or({}, {})", "({} & {})", "({} | {})"])
            return form.format(x, y), True, d | e
        if roll < 0.55:
            source = self.of("bool")
            if source is not None:
                x, t, d = self.read(source, depth)
                return (x, True, d) if t else (f"((q_idx >= 0) & {x})", True, d | {"q"})
        if roll < 0.75 and (score or rng.random() < 0.4):
            x, t, d = self.real(depth - 1, score)
            x, t, d = (x, t, d) if t else (f"(kv_idx * {x})", True, d | {"k"})
            source = self.of("float") if rng.random() < 0.5 else None
            y, _, e = self.read(source, depth) if source else (str(rng.randint(-8, 8) / 8), False, set())
            return f"({x} {rng.choice(['<', '<=', '>', '>='])} {y})", True, d | e
        x, t, d = self.integer(depth)
        x, t, d = (x, t, d) if t else (f"(q_idx - kv_idx + {x})", True, d | {"q", "k"})
        y, _, e = self.integer(depth - 1)
        if rng.random() < 0.2:
            form = rng.choice(["torch.eq({}, {})", "torch.ne({}, {})", "torch.lt({}, {})", "({}).le({})", "({}).gt({})", "torch.ge({}, {})", "torch.logical_xor({} > 2, {} >= q_idx)", "(({} - {}).bool())",
                               "(({} - {}) % 3 == 1)", "torch.isin({}, torch.arange(4) + 0 * {})" if rng.random() < 0.05 else "({}).eq({})"])  # fmt: skip
            return form.format(x, y), True, d | e | ({"q"} if "q_idx" in form else set())
        return f"({x} {rng.choice(['<', '<=', '>', '>=', '>=', '==', '!='])} {y})", True, d | e

    # --- statements of a mod

    def body(self, score):
        """Lines of a mod, the last one returns."""
        rng = self.rng
        lines, value = [], "score" if score else "keep"
        draw = (lambda d: self.real(d, "score")) if score else (lambda d: self.boolean(d))
        if not score:
            start = rng.choice(["q_idx >= kv_idx", "(q_idx + b + h) != (kv_idx + 17)", "q_idx + 3 > kv_idx"])
            text, _, deps = self.boolean(2)
            lines.append(f"keep = ({start}) {rng.choice(['&', '|', '&'])} {text}" if rng.random() < 0.8 else f"keep = {text} | (q_idx == kv_idx)")
            deps = deps | ({"q", "k", "b", "h"} if "b + h" in lines[0] else {"q", "k"})
        else:
            deps = set("bhqk")
        for _ in range(rng.randint(0, 3)):
            lines += self.statement(value, deps, draw, score)
        text, tensor, more = draw(2)
        last = {
            True: [f"score + {text}", f"score * 0.5 - {text}", f"torch.where(q_idx == kv_idx, score, score + {text})", f"{text} + score"],
            False: [f"keep & {text}" if tensor else "keep", f"keep | {text}" if tensor else "keep", "keep", f"{text} & keep" if tensor else "keep"],
        }[score]  # fmt: skip
        lines.append(f"return {rng.choice(last)}")
        return lines

    def statement(self, value, deps, draw, score):
        rng = self.rng
        form = rng.choice(["assign", "in_place", "if", "loop", "helper", "inner", "ifexp", "no_grad", "fill", "sum", "method"])
        text, tensor, more = draw(2)
        op = rng.choice(["+", "-"]) if score else rng.choice(["&", "|"])
        if not tensor and not score:
            return []
        if form == "assign":
            return [f"{value} = {value} {op} {text}"]
        if form == "in_place" and more <= deps:
            if score:
                return rng.choice([[f"{value} {op}= {text}"], [f"{value} = {value} * 1.0", f"{value}.add_({text})"], [f"{value} = {value} + 0.0", f"{value} *= {text}"]])
            return [f"{value} {op}= {text}"]
        if form in ("if", "ifexp"):
            source = self.of(rng.choice(["bool", "int"]))
            if source is None or not source.plain:
                return [f"{value} = {value} {op} {text}"]
            test = source.read if source.kind == "bool" else f"{source.read} > 4"
            if form == "ifexp":
                return [f"{value} = {value} {op} {text} if {test} else {value}"]
            other, t, _ = draw(1)
            return [f"if {test}:", f"    {value} = {value} {op} {text}"] + ([ "else:", f"    {value} = {value} {op} {other}"] if t or score else [])  # fmt: skip
        if form == "loop":
            offset = rng.choice(["(1, 3)", "range(2)", "[2, 5]"])
            step = f"((q_idx - kv_idx) * w * 0.125)" if score else "(q_idx - kv_idx == w)"
            return [f"for w in {offset}:", f"    {value} = {value} {op} {step}"]
        if form == "inner":
            return ["def inner(q_idx, kv_idx):", f"    return {text.replace('score', 'first')}" if "score" in text else f"    return {text}",
                    f"{value} = {value} {op} inner(q_idx, kv_idx)"] if "score" not in text else [f"{value} = {value} {op} (lambda score: {text})({value})"]  # fmt: skip
        if form == "no_grad" and score:
            return ["with torch.no_grad():", f"    extra = {text}", f"{value} = {value} + extra"]
        if form == "sum" and score:
            return [f"{value} = {value} + sum([n * {text} for n in (0.5, 0.25)])"]
        if form == "fill" and score:
            c, _, e = self.boolean(1)
            return [f"{value} = {value}.masked_fill({c}, -float('inf'))"] if rng.random() < 0.5 else [f"{value} = torch.where({c}, {value}, -float('inf'))"]
        if form == "helper" and not HELD.search(text):
            self.count += 1
            self.global_lines += [f"def helper{self.count}(score, b, h, q_idx, kv_idx):" , f"    return {text}"]
            first = "score" if score else "None"
            return [f"{value} = {value} {op} helper{self.count}({first}, b, h, q_idx, kv_idx)"]
        if form == "method" and score:
            return [f"left, right = {value}, {text}", f"{value} = left {op} right"]
        return [f"{value} = {value} {op} {text}"]

    # --- the program round the mods

    def function(self, name, arguments, lines, indent, me=False):
        """Text of a mod. Places that are arguments of it become parameters: with a value, or by functools.partial."""
        text = "\n".join(lines)
        used = lambda where: [x for x, _ in self.held[where] if re.search(rf"\b{x}\b", text)]  # noqa: E731
        parameters = ["self"] * me + [arguments] + [f"{x}=state.{x}" for x in used("default")]
        partial = used("partial")
        if partial:
            parameters += ["*", *partial]
        made = [f"def {name}({', '.join(parameters)}):", *("    " + line for line in lines)]
        if partial:
            made.append(f"{name} = functools.partial({name}, {', '.join(f'{x}=state.{x}' for x in partial)})")
        return ["    " * indent + line for line in made]

    def mods(self, indent, me=False):
        lines = []
        if self.score_lines:
            lines += self.function("score_mod", "score, b, h, q_idx, kv_idx", self.score_lines, indent, me)
        if self.mask_lines:
            lines += self.function("mask_mod", "b, h, q_idx, kv_idx", self.mask_lines, indent, me)
        return lines

    def attend(self, prefix, indent):
        """The call of flex_attention with mods behind a prefix."""
        mask = f"{prefix}mask_mod"
        score = f"{prefix}score_mod"
        if self.style == "lambda":
            mask = f"lambda b, h, q_idx, kv_idx: {mask}(b, h, q_idx, kv_idx)"
            score = f"lambda score, b, h, q_idx, kv_idx: {score}(score, b, h, q_idx, kv_idx)"
        if self.combined:
            mask = f"{self.combined}({mask}, causal)"
        lines = []
        if self.mask_lines:
            lines = [f"mask = create_block_mask({mask}, {self.batch_heads}, q.shape[2], k.shape[2], device='cpu')"]
            if self.memo:
                lines = ["name = (create_block_mask, q.shape[2], k.shape[2])", "if name not in masks:",
                         "    masks[name]" + lines[0].removeprefix("mask"), "mask = masks[name]"]  # fmt: skip
        lines.append(
            "return flex_attention(q, k, v"
            + (f", score_mod={score}" if self.score_lines else "")
            + (", block_mask=mask" if self.mask_lines else "")
            + "".join(f", {k}={v}" for k, v in self.options.items())
            + ")"
        )
        return ["    " * indent + line for line in lines]

    def program(self):
        rng = self.rng
        which = rng.random()
        self.score_lines = self.body(True) if which < 0.75 else []
        self.mask_lines = self.body(False) if which > 0.4 else []
        heads_kv = rng.choice([2, 2, 1])
        self.options = {"enable_gqa": True} if heads_kv == 1 else {}
        if rng.random() < 0.15:
            self.options["scale"] = rng.choice([0.25, 1.0, 0.5])
        if rng.random() < 0.2:
            self.options["return_lse"] = True
        self.batch_heads = rng.choice(["2, 2", "2, 2", "None, None"])
        self.combined = rng.choice(["and_masks", "or_masks"]) if rng.random() < 0.2 else None
        self.memo = rng.random() < 0.3 and self.form in ("plain", "closure", "kept")
        head = "def call(flex_attention, create_block_mask, q, k, v):"
        start = [f"{x} = {v}" for x, v in self.held["self"]]
        state = ", ".join(f"{x}={v}" for where in ("state", "default", "partial") for x, v in self.held[where])
        lines = [*self.global_lines, f"state = types.SimpleNamespace({state})"]
        if self.combined:
            lines += ["def causal(b, h, q_idx, kv_idx):", "    return q_idx >= kv_idx"]
        if self.memo:
            lines.append("masks = {}")
        rebuild = []
        if self.form == "plain" or self.form == "kept":
            lines += [*self.mods(0), head, *self.attend("", 1)]
        elif self.form == "closure":
            names = [x for x, _ in self.held["cell"]]
            lines.append("def build():")
            lines += [f"    {x} = {v}" for x, v in self.held["cell"]] + self.mods(1)
            for x in names:
                lines += [f"    def get_{x}():", f"        return {x}", f"    def set_{x}(value):", f"        nonlocal {x}", f"        {x} = value"]
            returned = [f"{a}_{x}" for x in names for a in ("get", "set")] + ["score_mod"] * bool(self.score_lines) + ["mask_mod"] * bool(self.mask_lines)
            lines += [f"    return types.SimpleNamespace({', '.join(f'{x}={x}' for x in returned)})", "built = build()", head, *self.attend("built.", 1)]
            if not self.memo:
                lines += ["other = build()"]
                rebuild = ["built = build()", "built, other = other, built"]
        elif self.form == "fresh":
            lines += [head, *(f"    {x} = state.{x}" for x, _ in self.held["state"]), *self.mods(1), *self.attend("", 1)]
        elif self.form == "module":
            lines += ["class Net(nn.Module):", "    def __init__(self):", "        super().__init__()", *(f"        self.{x}" for x in start)]
            forward = "    def forward(self, flex_attention, create_block_mask, q, k, v):"
            if self.style == "inner":
                lines += [forward, *(f"        {x} = state.{x}" for x, _ in self.held["state"]), *self.mods(2), *self.attend("", 2)]
            else:
                lines += [*self.mods(1, me=True), forward, *self.attend("self.", 2)]
            lines += ["net = Net()", head, "    return net(flex_attention, create_block_mask, q, k, v)"]
            lines.append("other = Net()")
            rebuild = ["net, other = other, net", "net, other = other, net", "net = copy.deepcopy(net)", "net.eval()", "net.train()", "net.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in net.state_dict().items()})"]
        else:
            lines += ["class Mods:", "    def __init__(self):", *(f"        self.{x}" for x in start or ["unused = 0"]), *self.mods(1, me=True)]
            if self.style == "callable":
                lines += ["class Score(Mods):", "    def __call__(self, score, b, h, q_idx, kv_idx):", "        return self.score_mod(score, b, h, q_idx, kv_idx)"] if self.score_lines else []
                lines += ["class Mask(Mods):", "    def __call__(self, b, h, q_idx, kv_idx):", "        return self.mask_mod(b, h, q_idx, kv_idx)"] if self.mask_lines else []
                both = bool(self.score_lines) and bool(self.mask_lines)
                lines += ["net = " + ("Score()" if self.score_lines else "Mask()")]
                called = [x.replace("score_mod=net.score_mod", "score_mod=net").replace("(net.mask_mod,", "(" + ("net.mask_mod" if both else "net") + ",") for x in self.attend("net.", 1)]
                lines += [head, *called]
            else:
                lines += ["net = Mods()", head, *self.attend("net.", 1)]
            lines.append("other = type(net)()")
            rebuild = ["net = copy.copy(net)", "net = copy.deepcopy(net)", "net, other = other, net"]
        text, steps = "\n".join(lines) + "\n", self.life(rebuild)
        double = rng.random() < 0.6
        dtype = "float32" if rng.random() < 0.08 else "float64"
        if STEPS.search(text):  # where float32 may fall on another side of a step
            double, dtype = True, "float64"
            text = text.replace("float32", "float64").replace(".float()", "")
            for step in steps:
                step.before, step.late = ([x.replace("float32", "float64") for x in part] for part in (step.before, step.late))
        exact = double and dtype == "float64" and "float32" not in text and ".float()" not in text
        return Program(text, self.learned, steps, heads_kv, double, exact, dtype, rng.choice(["plain"] * 8 + ["checkpoint", "no_grad first"]))

    def life(self, rebuild):
        """Calls with changes between them."""
        rng = self.rng
        changes = [c for s in self.sources for c in s.changes]
        used = "\n".join(self.score_lines + self.mask_lines + self.global_lines)
        changes = [c for s in self.sources if s.read in used for c in s.changes] or changes
        q_len, kv_len, seed = rng.randint(3, 20), rng.randint(3, 20), rng.randint(0, 99)
        decode = rng.random() < 0.12
        steps = []
        for i in range(rng.randint(5, 9) if decode else rng.randint(2, 5)):
            before = []
            if i:
                before = [rng.choice(changes) for _ in range(rng.choice([1, 1, 1, 2, 0]))] if changes else []
                if self.learned and rng.random() < 0.4:
                    before.append("OPTIMIZER")
                if rebuild and rng.random() < 0.2:
                    before.append(rng.choice(rebuild))
            if decode:
                q_len, kv_len = 1, min(i + 4, 20)
            elif rng.random() < 0.15:
                q_len, kv_len, seed = rng.randint(3, 20), rng.randint(3, 20), seed + 1
            late = [rng.choice(changes)] if changes and rng.random() < 0.15 else []
            steps.append(Step(before, q_len, kv_len, seed, [x for x in late if "with" not in x and "_(" not in x and "np." not in used]))
        return steps


def draw(rng):
    return Grammar(rng).program()
