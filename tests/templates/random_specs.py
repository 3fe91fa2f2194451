"""random_specs.py: generates random attention specs, from ordinary to far too large, from a seed and a
number."""

import random

# The steps of a chain on x. {c} is a constant that differs between steps, {i} the step's index.
STEPS = {
    "add": "x = x + {c}",
    "fma": "x = x * {c} + x * x * 0.01",
    "div": "x = {c} / (1.5 + abs(x))",
    "minmax": "x = max(min(x, {c} + 2), -x * 0.5)",
    "exp": "x = exp(-abs(x) * {c})",
    "log": "x = log(abs(x) + {c})",
    "log1p": "x = log1p(abs(x) * {c})",
    "sqrt": "x = sqrt(abs(x) + {c})",
    "tanh": "x = tanh(x * {c})",
    "sigmoid": "x = sigmoid(x + {c}) * 2",
    "softplus": "x = softplus(x - {c})",
    "gelu": "x = gelu(x * {c})",
    "silu": "x = silu(x + {c})",
    "erf": "x = erf(x * {c})",
    "sin": "x = sin(x * {c})",
    "cos": "x = cos(x + {c})",
    "pow": "x = pow(abs(x) + 0.5, {c})",
    "floor": "x = x - 0.1 * floor(x * {c})",
    "mod": "x = (x * 3) % {c}",
    "where": "x = where(x > {c}, x * 0.5, x + 0.25)",
    "distance": "x = x + {c} * abs(q_idx - kv_idx)",
    "wave": "x = x + 0.1 * sin(q_idx * {c}) * cos(kv_idx * {c})",
    "rest": "x = x + 0.01 * ((q_idx + 3 * kv_idx) % {n})",
    "scalar": "x = x * a + b0",
    "head": "x = x + slope[h] * {c}",
}
LEARNED = {
    "relu": "x = x + relu(x * {c} - w[{i}])",
    "table": "x = x + w[{i}] * cos({c} * (q_idx - kv_idx))",
    "bias": "x = x + w[{i}] * {c} * kv_idx",
    "hinge": "x = x + w[{i}] * max(x - {c}, 0)",
}
MASKS = ["causal()", "causal_bottom_right()", "sliding_window(256, 0)", "sliding_window(128, 128)", "prefix_lm(64)", None, None]
ONLINE = ["online_softmax", "softmax_one", "sigmoid_attention", "relu_attention", None, None, None, None]


def constant(r):
    return f"{r.uniform(0.3, 1.7):.3f}"


def step(r, text, i):
    return text.format(c=constant(r), n=r.randint(2, 63), i=i)


def score_mod(r):
    """Returns the lines of a score_mod, and the number of elements of w that the lines read."""
    kinds = r.sample(sorted(STEPS), r.randint(1, 5))
    count = int(2 ** r.uniform(1, 10.5)) if r.random() < 0.9 else 0
    lines = [step(r, STEPS[r.choice(kinds)], i) for i in range(count)]
    learned = int(2 ** r.uniform(0, 6)) if r.random() < 0.35 else 0
    learned = min(learned, 60)
    kind = r.choice(sorted(LEARNED))
    for i in range(learned):
        lines.insert(r.randint(0, len(lines)), step(r, LEARNED[kind], i))
    if r.random() < 0.2:
        half = len(lines) // 2
        lines = ["if q_idx - kv_idx > 7 then", *lines[:half], "else", *lines[half:], "end"]
    return lines, learned


def mask(r):
    if r.random() < 0.6:
        return r.choice(MASKS)
    terms = [f"(q_idx * {r.randint(1, 9)} + kv_idx) % {r.randint(2, 40)} > 0" for _ in range(r.randint(1, 6))]
    return f"function(b, h, q_idx, kv_idx) return {' and '.join(['kv_idx <= q_idx', *terms])} end"


def mod(r):
    lines = [step(r, STEPS[r.choice(["fma", "tanh", "exp", "gelu", "sin", "minmax"])], i) for i in range(int(2 ** r.uniform(0, 6)))]
    return f"function(x, b, h, i, d) {' '.join(lines)} return x end"


def spec(seed, number):
    """Returns the text of one spec."""
    r = random.Random(f"{seed} {number}")
    lines, learned = score_mod(r)
    grad = str(r.random() < 0.5).lower()
    fields = [f"name = 'random_{number}'", "scalars = { a = 0.9, b0 = 0.1 }",
              f"inputs = {{ slope = {{ axes = {{'h'}}, grad = {grad} }}" +
              (f", w = {{ axes = {{ {learned} }}, grad = true }} }}" if learned else " }")]
    if lines:
        body = "\n    ".join(lines)
        fields.append(f"score_mod = function(x, b, h, q_idx, kv_idx)\n    {body}\n    return x\n  end")
    for name, value in (("block_mask", mask(r)), ("online_func", r.choice(ONLINE))):
        if value:
            fields.append(f"{name} = {value}")
    for name in ("query_mod", "key_mod", "value_mod"):
        if r.random() < 0.08:
            fields.append(f"{name} = {mod(r)}")
    return "return attention {\n  " + ",\n  ".join(fields) + ",\n}\n"
