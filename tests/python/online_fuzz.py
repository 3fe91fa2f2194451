"""online_fuzz.py: random online functions, their outputs and gradients on the CPU in float64 beside a reference of 64 bits of mantissa.

  LUATTN_LIBRARY=build/release/engine/libluattn.so build/venv/bin/python tests/python/online_fuzz.py [--count 2000] [--seed 1] [--show]

Functions have conditions on sums, sums of sums and maxima, rows of 1 to 4096 scores, and scalars over 60 orders of magnitude. A number is wrong
where it is further from the reference than 1e-9 of the sum of the magnitudes of what is added up in it, unless the reference moves as far where
each of its operations is rounded as in float64. Prints how many functions are right, wrong, and refused by which message; exits with 1 where one is wrong."""

import argparse
import collections
import os
import random
import re
import sys

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/python")
REAL = np.longdouble
LEAST, MOST = REAL(1e-290), REAL(1e290)  # beyond that, float64 has another range than the reference
CLOSE = 1e-9
MOVES = 64  # sums of luattn's are in another order, and 8 draws are few


class OutOfRange(Exception):
    """Numbers that float64 does not have."""


class AtKink(Exception):
    """Two numbers of one maximum or minimum are equal: its slope is a convention, and another one where a number of the spec is one of them."""


# --- the reference: values with their derivatives, signed and in magnitude ---


def fold(x, shape):
    """Sums x over what an argument of this shape was repeated along."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    return x.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1 and x.shape[i] != 1), keepdims=True)


class Value:
    """A number, and of each argument what a change of it does. ways: (argument, pull), where pull(adjoint, of) applies `of` to coefficients."""

    rounds = None  # draws which way each is rounded

    def __init__(self, v, ways=()):
        self.v, self.ways = np.asarray(v, REAL), ways
        if ways and Value.rounds is not None:
            self.v = self.v * (1 + REAL(2.0**-53) * Value.rounds.choice([-1, 1], self.v.shape))
        size = np.abs(self.v)
        if not np.isfinite(self.v).all() or (size > MOST).any() or ((size > 0) & (size < LEAST)).any():
            raise OutOfRange

    def way(self, coefficient, size=None):
        """size: the magnitudes of what is added up in the coefficient, where that is a sum."""
        shape, sizes = self.v.shape, coefficient if size is None else size
        return self, lambda adjoint, of: fold(adjoint * of(np.asarray(sizes if of is np.abs else coefficient, REAL)), shape)

    def __add__(self, y):
        return Value(self.v + y.v, (self.way(1), y.way(1)))

    def __sub__(self, y):
        return Value(self.v - y.v, (self.way(1), y.way(-1)))

    def __mul__(self, y):
        return Value(self.v * y.v, (self.way(y.v), y.way(self.v)))

    def __truediv__(self, y):
        with np.errstate(all="ignore"):
            return Value(self.v / y.v, (self.way(1 / y.v), y.way(-self.v / y.v**2)))


def of_one(f, slope, size=None):
    def apply(x):
        with np.errstate(all="ignore"):
            return Value(f(x.v), (x.way(slope(x.v), None if size is None else size(x.v)),))

    return apply


def logistic(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


exp = of_one(np.exp, np.exp)
log = of_one(np.log, lambda x: 1 / x)
sqrt = of_one(np.sqrt, lambda x: 0.5 / np.sqrt(x))
tanh = of_one(np.tanh, lambda x: 1 - np.tanh(x) ** 2, lambda x: 1 + np.tanh(x) ** 2)
sigmoid = of_one(logistic, lambda x: logistic(x) * logistic(-x), lambda x: logistic(x) * (1 + logistic(x)))
softplus = of_one(lambda x: np.logaddexp(x, REAL(0)), logistic)
absolute = of_one(np.abs, np.sign)
relu = of_one(lambda x: np.maximum(x, 0), lambda x: (x > 0) * REAL(1))


def select(condition, x, y):
    c = condition * REAL(1)
    return Value(np.where(condition, x.v, y.v), (x.way(c), y.way(1 - c)))


def extremum(x, y, sign):
    share = (np.sign((x.v - y.v) * sign) + 1) / 2
    if x is not y and (share == 0.5).any():
        raise AtKink
    return Value(np.where(share >= REAL(0.5), x.v, y.v), (x.way(share), y.way(1 - share)))


def row_sum(x):
    return Value(x.v.sum(-1, keepdims=True), ((x, lambda adjoint, of: adjoint * np.ones_like(x.v)),))


def row_max(x):
    top = x.v.max(-1, keepdims=True)
    at = (x.v == top) / (x.v == top).sum(-1, keepdims=True).astype(REAL)
    return Value(top, ((x, lambda adjoint, of: adjoint * at),))


def product(x, y):
    return Value(x.v @ y.v, ((x, lambda a, of: a @ of(y.v).T), (y, lambda a, of: of(x.v).T @ a)))


def transposed(x):
    return Value(x.v.T, ((x, lambda adjoint, of: adjoint.T),))


def adjoints(outputs, leaves, of):
    """Of each leaf, the sum over (value, adjoint) of outputs; of = np.abs: with magnitudes."""
    order, seen = [], set()

    def visit(x):  # recursion is as deep as an expression
        if id(x) not in seen:
            seen.add(id(x))
            for argument, _ in x.ways:
                visit(argument)
            order.append(x)

    for x, _ in outputs:
        visit(x)
    total = {id(x): np.zeros(x.v.shape, REAL) for x in order}
    for x, adjoint in outputs:
        total[id(x)] = total[id(x)] + of(adjoint)
    for x in reversed(order):
        if not np.isfinite(total[id(x)]).all() or (np.abs(total[id(x)]) > MOST).any():
            raise OutOfRange
        for argument, pull in x.ways:
            with np.errstate(all="ignore"):
                total[id(argument)] = total[id(argument)] + pull(total[id(x)], of)
    return [total.get(id(x), np.zeros(x.v.shape, REAL)) for x in leaves]


# --- random functions ---


class Expression:
    """A number: its text in Lua, and its value of a dict of values."""

    def __init__(self, text, value):
        self.text, self.value = text, value


def number(x):
    return Expression(f"({x!r})", lambda e: Value(x))


def name(text, key):
    return Expression(text, lambda e: e[key])


ONE, TWO = Value(1), Value(2)
FORMS = [
    ("sigmoid({x})", lambda a, b: sigmoid(a)),
    ("tanh({x})", lambda a, b: tanh(a)),
    ("exp(-abs({x}))", lambda a, b: exp(Value(0) - absolute(a))),
    ("({x} + {y})", lambda a, b: a + b),
    ("({x} * {y})", lambda a, b: a * b),
    ("({x} - {y})", lambda a, b: a - b),
    ("({x} / (1 + abs({y})))", lambda a, b: a / (ONE + absolute(b))),
    ("max({x}, {y})", lambda a, b: extremum(a, b, 1)),
    ("min({x}, {y})", lambda a, b: extremum(a, b, -1)),
    ("where({x} < {y}, {x}, 2 * {y})", lambda a, b: select(a.v < b.v, a, TWO * b)),
    ("softplus({x})", lambda a, b: softplus(a)),
    ("log(1 + abs({x}))", lambda a, b: log(ONE + absolute(a))),
    ("relu({x})", lambda a, b: relu(a)),
    ("sqrt(1 + {x} * {x})", lambda a, b: sqrt(ONE + a * a)),
]


def grow(r, leaves, depth):
    """A random expression of leaves, which has a value everywhere."""
    if depth == 0 or r.random() < 0.15:
        return r.choice(leaves)
    x, y = grow(r, leaves, depth - 1), grow(r, leaves, depth - 1)
    text, value = r.choice(FORMS)
    return Expression(text.format(x=x.text, y=y.text), lambda e: value(x.value(e), y.value(e)))


def limit(r):
    return number(r.choice([0.5, 1.0, 2.0, 5.0, 20.0, 100.0, -3.0, 1e-25, 10 ** r.uniform(-30, 30)]))


SECOND = {  # a second sum of a softmax: how a step scales it, its term, and that in the reference
    "p * p": ("f * f", lambda p, s, m: p * p),
    "p * sigmoid(s)": ("f", lambda p, s, m: p * sigmoid(s)),
    "p * s": ("f", lambda p, s, m: p * s),
    "sigmoid(s)": ("1", lambda p, s, m: sigmoid(s)),
    "where(s < x, p, 2 * p)": ("f", None),
}


def softmax_like(r):
    """exp(s - m) / l times a factor of the row."""
    term = r.choice(list(SECOND))
    scale, value = SECOND[term]
    lse = Expression("(log(r.l) + r.m)", lambda e: log(e["l"]) + e["m"])
    ratio = Expression("(r.k / r.l)", lambda e: e["k"] / e["l"])
    leaves = [lse, name("x", "x"), limit(r)] + ([ratio, name("r.l", "l")] if r.random() < 0.5 else [])
    factor = grow(r, leaves, r.randrange(0, 4))

    def run(s, x):
        m = row_max(s)
        p = exp(s - m)
        k = value(p, s, m) if value else select(s.v < x.v, p, TWO * p)
        e = {"m": m, "l": row_sum(p), "k": row_sum(k), "x": x}
        return p * factor.value(e) / e["l"], log(e["l"]) + m

    step = f"""local m = max(r.m, reduce_max(s))
      local f, p = exp(r.m - m), exp(s - m)
      return p, {{ m = m, l = r.l * f + reduce_sum(p), k = r.k * {scale} + reduce_sum({term}) }}, f"""
    return "m = -1e37, l = 0, k = 0", step, f"return o * {factor.text} / r.l, {{ lse = {lse.text} }}", run


def by_sums(r):
    """A weight of a score times a factor of two sums."""
    s, x = name("s", "s"), name("x", "x")
    weight = grow(r, [s, s, x, number(2.0)], r.randrange(1, 3))
    first = r.choice([weight, Expression(f"abs({weight.text})", lambda e: absolute(weight.value(e)))])
    second = grow(r, [s, s, x], 1)
    factor = grow(r, [name("r.l", "l"), name("r.l", "l"), name("r.k", "k"), x, limit(r)], r.randrange(1, 4))

    def run(scores, x):
        e = {"s": scores, "x": x}
        every = scores * Value(0)
        e["l"], e["k"] = (row_sum(t.value(e) + every) for t in (first, second))
        return (weight.value(e) + every) * factor.value(e), log(ONE + absolute(e["l"]))

    step = f"return {weight.text}, {{ l = r.l + reduce_sum({first.text}), k = r.k + reduce_sum({second.text}) }}, 1"
    return "l = 0, k = 0", step, f"return o * {factor.text}, {{ lse = log(1 + abs(r.l)) }}", run


def by_largest(r):
    """Scores over their largest magnitude, and a factor of that, of the sum of their squares and of the sum of magnitudes over it."""
    factor = grow(r, [name("r.m", "m"), name("r.l", "l"), name("r.k", "k"), name("x", "x"), limit(r)], r.randrange(1, 4))
    weight = r.choice(
        [
            ("s / m", "f", lambda s, m: s / m),
            ("relu(s) / m", "f", lambda s, m: relu(s) / m),
            ("s * abs(s) / (m * m)", "f * f", lambda s, m: s * absolute(s) / (m * m)),
        ]
    )

    def run(s, x):
        m = extremum(row_max(absolute(s)), Value(1e-3), 1)
        u = s / m
        e = {"m": m, "l": row_sum(u * u), "k": row_sum(absolute(u)), "x": x}
        return weight[2](s, m) * factor.value(e), log(ONE + e["l"])

    step = f"""local m = max(r.m, reduce_max(abs(s)))
      local f, u = r.m / m, s / m
      return {weight[0]}, {{ m = m, l = r.l * (f * f) + reduce_sum(u * u), k = r.k * f + reduce_sum(abs(u)) }}, {weight[1]}"""
    return "m = 1e-3, l = 0, k = 0", step, f"return o * {factor.text}, {{ lse = log(1 + r.l) }}", run


KINDS = (softmax_like, by_sums, by_largest)


class Case:
    def __init__(self, seed):
        r = random.Random(seed)
        draws = np.random.default_rng(seed)
        init, step, epilogue, self.run = KINDS[seed % len(KINDS)](r)
        self.x = r.choice([1.0, 0.3, -2.0, 0.0, 10 ** r.uniform(-30, 30), -(10 ** r.uniform(-30, 30))])
        default = r.choice([self.x, 1.0])
        self.source = f"""return attention {{ scalars = {{ x = {default!r} }}, online_func = {{
    online_rowscales = {{ {init} }}, final_rowscales = {{ "lse" }},
    online_fwd = function(s, r)
      {step}
    end,
    online_fwd_epilogue = function(o, r) {epilogue} end }} }}"""
        self.keys = r.choice([1, 2, 3, 8, 40, 400, 1000, 4096])
        size = r.choice([0.3, 1, 2])
        self.q, self.k, self.v = (size * draws.standard_normal((n, 4)) for n in (3, self.keys, self.keys))
        self.dout, self.dlse = draws.standard_normal((3, 4)), draws.standard_normal((3, 1))

    def reference(self, rounds=None):
        """{what: (value, the sum of magnitudes)}; rounds: with roundings, drawn by this generator."""
        Value.rounds = rounds
        q, k, v, x = Value(self.q), Value(self.k), Value(self.v), Value(self.x)
        s = product(q, transposed(k)) * Value(0.5)
        p, lse = self.run(s, x)
        o = product(p, v)
        outputs = [(o, np.asarray(self.dout, REAL)), (lse, np.asarray(self.dlse, REAL))]
        values, sizes = (adjoints(outputs, (q, k, v, x), of) for of in (lambda c: c, np.abs))
        result = {"o": (o.v, np.abs(p.v) @ np.abs(v.v)), "lse": (lse.v, 1 + np.abs(lse.v))}
        return result | dict(zip(("dq", "dk", "dv", "dx"), zip(values, sizes)))

    def computed(self):
        import torch

        import luattn

        q, k, v = (torch.tensor(t)[None, None].requires_grad_() for t in (self.q, self.k, self.v))
        x = torch.tensor(self.x, dtype=torch.float64).requires_grad_()
        o, lse = luattn.attention(self.source)(q, k, v, x=x, return_lse=True)
        loss = (o[0, 0] * torch.tensor(self.dout)).sum() + (lse[0, 0] * torch.tensor(self.dlse[:, 0])).sum()
        grads = torch.autograd.grad(loss, (q, k, v, x), allow_unused=True)
        numbers = [o[0, 0], lse[0, 0, :, None], *(None if g is None else g.reshape(g.shape[-2:]) for g in grads)]
        return {w: 0 if n is None else n.detach().numpy() for w, n in zip(("o", "lse", "dq", "dk", "dv", "dx"), numbers)}

    def wrong(self):
        """What is wrong; '' if nothing is."""
        want = self.reference()
        got = self.computed()
        for what, (value, size) in want.items():
            error = np.abs(got[what] - value)
            far = ~(error <= CLOSE * size + 1e-290)
            if not far.any():
                continue
            for draw in range(8):
                other = self.reference(np.random.default_rng(draw))[what][0]
                far &= ~(error <= MOVES * np.abs(other - value))
            if far.any():
                at = np.argmax(far)
                return f"{what}: {np.ravel(got[what] + 0 * value)[at]!r}, not {np.ravel(value)[at]!r} (of {np.ravel(size)[at]!r})"
        return ""


def reason(message):
    """A refusal without names and numbers."""
    message = re.sub(r"^.*?online_func '[^']*': ", "", message)
    message = re.split(r" \(|; ", message)[0]
    return re.sub(r"'[^']*'|-?\d[\d.e+-]*", "..", message)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1, help="of the first function")
    parser.add_argument("--show", action="store_true", help="print each refusal with its function")
    given = parser.parse_args()
    import luattn

    counts, refusals = collections.Counter(), collections.Counter()
    for seed in range(given.seed, given.seed + given.count):
        case = Case(seed)
        try:
            wrong = case.wrong()
            counts["wrong" if wrong else "right"] += 1
            if wrong:
                print(f"seed {seed}, {case.keys} keys, x = {case.x!r}: {wrong}\n{case.source}", flush=True)
        except OutOfRange:
            counts["without a value in float64"] += 1
        except AtKink:
            counts["at a kink"] += 1
        except luattn.Error as error:
            counts["refused"] += 1
            refusals[reason(str(error))] += 1
            if given.show:
                print(f"seed {seed}: {error}\n{case.source}", flush=True)
    print(", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    for what, n in refusals.most_common():
        print(f"  {n} {what}")
    return counts["wrong"] > 0


if __name__ == "__main__":
    sys.exit(main())
