"""hard_specs.py: generates specs of the shapes that are hard to estimate, from a seed and a number: MLPs, long lists and tables, selects,
integers of 64 bits, conditions, many inputs. Sizes are drawn on a logarithmic scale, from small to far too large."""

import random

from random_specs import LEARNED, STEPS, constant, step


def size(r, least, most):
    """A number whose logarithm is uniform."""
    return int(least * (most / least) ** r.random())


def lua_bool(r, p=0.5):
    return str(r.random() < p).lower()


def score(body, inputs="", **fields):
    """A spec with this score_mod."""
    more = "".join(f",\n  {name} = {value}" for name, value in fields.items() if value)
    return (f"return attention {{\n  scalars = {{ a = 0.9, b0 = 0.1 }},\n  inputs = {{ {inputs} }},\n"
            f"  score_mod = function(x, b, h, q_idx, kv_idx)\n    {body}\n    return x\n  end{more}\n}}\n")


def some_mask(r):
    return r.choice(["causal()", "sliding_window(256, 0)", None])


def activation(r):
    return r.choice(["relu", "relu", "gelu", "silu", "tanh", "sigmoid", "softplus"])


def mlp_of_heads(r):
    """A hidden layer over what an input holds for all heads (DAPE)."""
    heads, hidden, act = size(r, 2, 16), size(r, 2, 64), activation(r)
    learned = lua_bool(r, 0.7)
    axes = r.choice(["'b', {n}, 'q', 'kv'", "{n}, 'q', 'kv'", "{n}, 'd'"]).format(n=heads)
    at = {"'b'": "{b, i, q_idx, kv_idx}", "'q'": "{i, q_idx, kv_idx}", "'d'": "{i, q_idx - kv_idx + q_len}"}
    read = next(v for k, v in at.items() if k in axes and (k != "'q'" or "'b'" not in axes))
    inputs = (f"t = {{ axes = {{ {axes} }}, grad = {lua_bool(r, 0.3)} }}, w1 = {{ axes = {{ {hidden}, {heads + 1} }}, grad = {learned} }}, "
              f"w2 = {{ axes = {{ {hidden}, 'h' }}, grad = {learned} }}")
    body = (f"local v = {{}}\n    for i = 0, {heads - 1} do v[i] = t[{read}] end\n    local base = x\n"
            f"    for j = 0, {hidden - 1} do\n      local z = w1[{{j, {heads}}}] * base\n"
            f"      for i = 0, {heads - 1} do z = z + w1[{{j, i}}] * v[i] end\n      x = x + w2[{{j, h}}] * {act}(z)\n    end")
    return score(body, inputs, block_mask=some_mask(r))


def mlp_of_distance(r):
    hidden, layers = size(r, 2, 200), r.randint(1, 2)
    learned, act = lua_bool(r, 0.7), activation(r)
    if layers == 2:
        hidden = min(hidden, 14)
    inputs = (f"w1 = {{ axes = {{ {hidden} }}, grad = {learned} }}, b1 = {{ axes = {{ {hidden} }}, grad = {learned} }}, "
              f"w2 = {{ axes = {{ {hidden}, 'h' }}, grad = {learned} }}, w3 = {{ axes = {{ {hidden}, {hidden} }}, grad = {learned} }}")
    of = r.choice(["log(abs(q_idx - kv_idx) + 1.5)", "(q_idx - kv_idx) / (q_idx + 1.0)", "x * 0.1 + (q_idx - kv_idx) * 0.001"])
    body = f"local d = {of}\n    local v = {{}}\n    for i = 0, {hidden - 1} do v[i] = {act}(w1[i] * d + b1[i]) end\n    "
    if layers == 1:
        body += f"for i = 0, {hidden - 1} do x = x + v[i] * w2[{{i, h}}] end"
    else:
        body += (f"for j = 0, {hidden - 1} do\n      local z = 0\n      for i = 0, {hidden - 1} do z = z + v[i] * w3[{{j, i}}] end\n"
                 f"      x = x + {act}(z) * w2[{{j, h}}]\n    end")
    return score(body, inputs, block_mask=some_mask(r))


def selects(r):
    n = size(r, 4, 700)
    how = r.randint(0, 4)
    inputs = f"t = {{ axes = {{ {max(n, 2)} }}, grad = {lua_bool(r, 0.3)} }}, u = {{ axes = {{ 'h', {max(n, 2)} }} }}"
    body = {
        0: f"for i = 1, {n} do x = where(x > i * 0.01, x * 0.99, x + 0.01) end",
        1: f"local n = 0\n    for i = 0, {n - 1} do n = n + where(q_idx - kv_idx >= 3 * i, u[{{h, i}}], 0) end\n    x = x + n",
        2: f"local y = 0.0\n    for i = {n - 1}, 0, -1 do y = where(q_idx - kv_idx < 2 * i, t[i], y) end\n    x = x + y",
        3: f"for i = 0, {n - 1} do x = where(x > t[i], max(x, u[{{h, i}}]), min(x, t[i] + 1)) end",
        4: f"local y = x\n    for i = 1, {n} do y = where((q_idx + i) % 7 > kv_idx % {r.randint(2, 9)}, y + x * 0.01, y * 0.99) end\n    x = y",
    }[how]
    return score(body, inputs, block_mask=some_mask(r))


def lines_of_positions(r):
    """Sums of what inputs hold for a query and for a key."""
    n = size(r, 4, 250)
    g = lua_bool(r, 0.5)
    axes_q, axes_k = r.choice([("'q', {n}", "'kv', {n}"), ("'h', 'q', {n}", "'h', 'kv', {n}"), ("'b', 'h', 'q', {n}", "'b', 'hkv', 'kv', {n}")])
    if "'b'" in axes_q:
        at_q, at_k = "{b, h, q_idx, i}", "{b, h // (heads // heads_kv), kv_idx, i}"
    elif "'h'" in axes_q:
        at_q, at_k = "{h, q_idx, i}", "{h, kv_idx, i}"
    else:
        at_q, at_k = "{q_idx, i}", "{kv_idx, i}"
    inputs = f"t = {{ axes = {{ {axes_q.format(n=n)} }}, grad = {g} }}, u = {{ axes = {{ {axes_k.format(n=n)} }}, grad = {g} }}"
    body = r.choice([
        f"for i = 0, {n - 1} do x = x + t[{at_q}] * u[{at_k}] end",
        f"for i = 0, {n - 1} do x = x + abs(t[{at_q}] - u[{at_k}]) end",
        f"for i = 0, {n - 1} do x = x - 0.1 * exp(-abs(t[{at_q}] * x)) end",
        f"local y = 0\n    for i = 0, {n - 1} do y = y + sin(t[{at_q}] - u[{at_k}]) end\n    x = x + y",
        f"local y = 0\n    for i = 0, {n - 1} do y = max(y, u[{at_k}] * x) end\n    x = x + y"])
    return score(body, inputs, block_mask=some_mask(r))


def integers(r):
    """Hashes and remainders, of 32 and of 64 bits."""
    n = size(r, 2, 400)
    wide = r.random() < 0.5
    inputs = f"id = {{ axes = {{ 'q' }}, dtype = '{'i64' if wide else 'i32'}' }}, ik = {{ axes = {{ 'kv' }}, dtype = '{'i64' if wide else 'i32'}' }}"
    start = r.choice(["local n = id[q_idx] - ik[kv_idx]", "local n = q_idx * 3 + kv_idx", "local n = id[q_idx] ~ ik[kv_idx]"])
    one = r.choice([
        "n = (n * {c} + kv_idx) & 0xFFFF", "n = (n + {c}) % 1021", "n = (n ~ (n << 3)) & 0xFFFFF", "n = n // 3 + {c}",
        "n = (n * 5 + q_idx) % {c}", "n = max(n % {c}, kv_idx // {c})"])
    lines = "\n    ".join(one.format(c=r.randint(3, 997)) for _ in range(n))
    return score(f"{start}\n    {lines}\n    x = x + 0.001 * (n % 64)", inputs, block_mask=some_mask(r))


def doubles(r):
    """Inputs of type f64, which are subtracted and compared in float64."""
    n = size(r, 1, 60)
    inputs = "at = { axes = { 'q' }, dtype = 'f64' }, ak = { axes = { 'kv' }, dtype = 'f64' }"
    body = r.choice([
        f"local d = at[q_idx] - ak[kv_idx]\n    for i = 1, {n} do x = where(d > i * 0.5, x * 0.9, x + exp(-d * d)) end",
        f"for i = 1, {n} do x = x + 0.1 * exp(-abs(at[q_idx] - ak[kv_idx] - i)) end",
        f"for i = 1, {n} do x = x - 0.1 * log1p(abs((at[q_idx] - ak[kv_idx]) * i)) end"])
    return score(body, inputs, block_mask=some_mask(r))


def masks(r):
    """Masks of many terms."""
    n = size(r, 2, 120)
    inputs = f"t = {{ axes = {{ {n} }}, dtype = 'i32' }}, u = {{ axes = {{ 'q', {n} }}, dtype = 'i32' }}, f = {{ axes = {{ 'kv' }}, dtype = 'bool' }}, id = {{ axes = {{ 'b', 'kv' }}, dtype = 'i64' }}"
    body = r.choice([
        f"local n = 0\n    for i = 0, {n - 1} do n = n + where(kv_idx >= t[i], 1, 0) - where(q_idx >= t[i], 1, 0) end\n    return eq(n, 0)",
        f"local keep = false\n    for i = 0, {n - 1} do keep = keep or eq(u[{{q_idx, i}}], kv_idx // 64) end\n    return keep" if n <= 11 else
        f"local n = 0\n    for i = 0, {n - 1} do n = n + where(eq(u[{{q_idx, i}}], kv_idx // 64), 1, 0) end\n    return n > 0",
        f"local n = 0\n    for i = 1, {n} do n = n + where((q_idx * i + kv_idx) % (2 * i + 1) > i, 1, 0) end\n    return n > {n // 3}",
        f"local n = 0\n    for i = 1, {n} do n = n + where(f[kv_idx] and (q_idx ~ kv_idx) % (i + 2) > 0, 1, 0) end\n    return n > 1",
        f"local n = 0\n    for i = 1, {n} do n = n + where((id[{{b, kv_idx}}] >> i) & 1 > 0, 1, 0) end\n    return n > q_idx % 7" if n < 60 else
        f"local n = 0\n    for i = 0, {n - 1} do n = n + where(abs(q_idx - t[i]) + abs(kv_idx - t[i]) < 32, 1, 0) end\n    return n > 0 or kv_idx <= q_idx",
        f"local n = 0\n    for i = 0, {n - 1} do n = n + where(sin(q_idx * 0.1 * i) > cos(kv_idx * 0.01), 1, 0) end\n    return n > 2"])
    mask = f"function(b, h, q_idx, kv_idx)\n    {body}\n  end"
    more = step(r, STEPS[r.choice(sorted(STEPS))].replace("slope[h]", "a"), 0) if r.random() < 0.4 else ""
    return score(more, inputs, block_mask=mask)


def masks_combined(r):
    parts = ["causal()", "sliding_window(100, 20)", "document('dq', 'dk')", "prefix_lm(77)", "dilated_window(64, 3)", "global_sliding(128, 16)",
             "mask_not(sliding_window(8, 8))", "block_diffusion(16, 512)", "sliding_window_bottom_right(64, 0)"]

    def some(depth):
        if depth == 0 or r.random() < 0.2:
            return r.choice(parts)
        return f"{r.choice(['mask_and', 'mask_or'])}({', '.join(some(depth - 1) for _ in range(r.randint(2, 4)))})"
    return score("", "dq = { axes = { 'b', 'q' }, dtype = 'i32' }, dk = { axes = { 'b', 'kv' }, dtype = 'i32' }", block_mask=some(r.randint(1, 3)))


def conditions(r):
    """Nested branches, each arm with work of its own."""
    depth, n = r.randint(1, 6), size(r, 1, 40)
    kinds = r.sample(sorted(k for k in STEPS if k != "head"), 3)

    def tree(d):
        if d == 0:
            return "\n".join(step(r, STEPS[r.choice(kinds)], i) for i in range(n))
        test = r.choice(["q_idx - kv_idx > {n}", "x > {c}", "q_idx % {n} > kv_idx % 3", "h > {n}", "kv_idx > {n}"]).format(n=r.randint(1, 40), c=constant(r))
        return f"if {test} then\n{tree(d - 1)}\nelse\n{tree(d - 1)}\nend"
    return score(tree(depth), "", block_mask=some_mask(r))


def many_inputs(r):
    """Twelve inputs of all shapes, read in a loop with other functions."""
    shapes = [("'h'", "h"), ("'q', 'kv'", "{q_idx, kv_idx}"), ("'h', 'kv'", "{h, kv_idx}"), ("'b', 'q'", "{b, q_idx}"), ("'kv'", "kv_idx"),
              ("'b', 'h', 'q', 'kv'", "{b, h, q_idx, kv_idx}"), ("'h', 'd'", "{h, q_idx - kv_idx + q_len}"), ("32", "(q_idx + kv_idx) % 32"), ("", "")]
    count = r.randint(2, 12)
    chosen = [r.choice(shapes) for _ in range(count)]
    inputs = ", ".join(f"i{k} = {{ axes = {{ {axes} }}, grad = {lua_bool(r)} }}" for k, (axes, _) in enumerate(chosen))
    reads = [f"i{k}[{at}]" if at else f"i{k}" for k, (_, at) in enumerate(chosen)]
    forms = ["x = x + {a} * {b}", "x = x * (1 + 0.1 * {a}) + {b}", "x = x + 0.1 * tanh({a} * x + {b})", "x = x + relu({a} - {b})", "x = x - 0.1 * sin({a}) * cos({b})",
             "x = where({a} > x, x + {b}, x * 0.9)", "x = x + exp(-abs({a})) * {b}"]
    lines = [r.choice(forms).format(a=r.choice(reads), b=r.choice(reads)) for _ in range(size(r, 2, 60))]
    return score("\n    ".join(lines), inputs, block_mask=some_mask(r))


def head_sums(r):
    """Sums over numbers of a head, of a batch entry and of both."""
    n = size(r, 4, 300)
    axes, at = r.choice([("'h', {n}", "{h, i}"), ("'b', {n}", "{b, i}"), ("'b', 'h', {n}", "{b, h, i}"), ("{n}", "i")])
    inputs = f"w = {{ axes = {{ {axes.format(n=n)} }}, grad = {lua_bool(r, 0.6)} }}, v = {{ axes = {{ {axes.format(n=n)} }} }}"
    body = r.choice([
        f"for i = 0, {n - 1} do x = x + w[{at}] * cos((q_idx - kv_idx) * v[{at}]) end",
        f"for i = 0, {n - 1} do x = x + w[{at}] * exp(-abs(q_idx - kv_idx) * v[{at}]) end",
        f"for i = 0, {n - 1} do x = x * 0.99 + w[{at}] * x * x * v[{at}] end",
        f"for i = 0, {n - 1} do x = x + w[{at}] * max(v[{at}] - abs(x), 0) end",
        f"for i = 0, {n - 1} do x = x - 0.1 * floor(x * (w[{at}] * v[{at}])) end",
        f"for i = 0, {n - 1} do x = x + w[{at}] * where(q_idx - kv_idx > i, v[{at}], 0) end"])
    return score(body, inputs, block_mask=some_mask(r))


def mods(r):
    """Long mods of q, k and v, some of which mix channels."""
    fields = {}
    for name in r.sample(["query_mod", "key_mod", "value_mod"], r.randint(1, 3)):
        n = size(r, 1, 200)
        kind = r.choice(["fma", "tanh", "exp", "gelu", "sin", "minmax", "pow", "where", "softplus"])
        lines = [step(r, STEPS[kind], i) for i in range(n)]
        mix = r.choice(["", "x = x + w[{h, d}]", "x = x * c[{pos, d // 2}] + x0[d ~ 1] * c[{pos, d // 2}]", "x = x + x0[(d + head_dim // 2) % head_dim] * sin(pos * 0.01 * d)"])
        fields[name] = f"function(x, b, h, pos, d) local x0 = x; {' '.join(lines)} {mix} return x end"
    inputs = f"w = {{ axes = {{ 'w', 'd' }}, grad = {lua_bool(r)} }}, c = {{ axes = {{ 'p', 'd2' }}, grad = {lua_bool(r, 0.3)} }}"
    return score("", inputs, block_mask=some_mask(r), **fields)


def online(r):
    """Online functions of many row scalars."""
    n, steps = r.randint(1, 6), size(r, 1, 40)
    kind = r.choice(["tanh", "exp", "sigmoid", "gelu", "minmax", "fma"])
    chain = "\n    ".join(step(r, STEPS[kind], i).replace("x", "w") .replace("minw", "min").replace("mawimum", "max").replace("maw", "max").replace("ewp", "exp") for i in range(steps))
    states = ", ".join(f"l{i} = 0" for i in range(n))
    sums = ", ".join(f"l{i} = rowscales.l{i} + reduce_sum({'w * ' * 1}{0.5 + i / 4})" for i in range(n))
    total = " + ".join(f"rowscales.l{i}" for i in range(n))
    func = (f"{{ online_rowscales = {{ {states} }}, final_rowscales = {{ 'lse' }},\n"
            f"  online_fwd = function(scores, rowscales)\n    local w = exp(min(scores, 10))\n    {chain}\n    return w, {{ {sums} }}, 1 end,\n"
            f"  online_fwd_epilogue = function(o, rowscales) return o / (1 + abs({total})), {{ lse = log(1 + abs({total})) }} end }}")
    return score("", "", block_mask=some_mask(r), online_func=func)


def draws(r):
    n = size(r, 1, 12)
    body = "\n    ".join(f"x = x + 0.1 * random(b, h, {r.choice(['q_idx', '0', 'q_idx // 16'])}, kv_idx + {i} * kv_len)" for i in range(n))
    return score(body, "", block_mask=some_mask(r))


def mixed_chain(r):
    """All steps at once, with learned numbers and tables between them, and a hook of another kind."""
    n, learned = size(r, 4, 500), size(r, 1, 60)
    kinds = r.sample(sorted(STEPS), r.randint(3, 12))
    lines = [step(r, STEPS[r.choice(kinds)], i) for i in range(n)]
    for i in range(learned):
        lines.insert(r.randint(0, len(lines)), step(r, LEARNED[r.choice(sorted(LEARNED))], i))
    inputs = f"slope = {{ axes = {{'h'}}, grad = {lua_bool(r)} }}, w = {{ axes = {{ {learned} }}, grad = {lua_bool(r, 0.7)} }}"
    return score("\n    ".join(lines), inputs, block_mask=some_mask(r), online_func=r.choice([None, None, "online_softmax", "softmax_one", "sigmoid_attention"]))


def scalars(r):
    n, lines = r.randint(2, 32), size(r, 2, 100)
    names = [f"s{i}" for i in range(n)]
    forms = ["x = x * {a} + {b}", "x = x + {a} * tanh(x * {b})", "x = x + 0.1 * sin(q_idx * {a}) * {b}", "x = x - {a} * abs(q_idx - kv_idx) * {b}", "x = x + relu(x * {a} - {b})"]
    body = "\n    ".join(r.choice(forms).format(a=r.choice(names), b=r.choice(names)) for _ in range(lines))
    text = score(body, "", block_mask=some_mask(r))
    return text.replace("a = 0.9, b0 = 0.1", ", ".join(f"{s} = 0.{i + 11}" for i, s in enumerate(names)))


KINDS = [mlp_of_heads, mlp_of_distance, selects, lines_of_positions, integers, doubles, masks, masks_combined, conditions, many_inputs, head_sums,
         mods, online, draws, mixed_chain, scalars]


def spec(seed, number):
    """Returns the text of one spec."""
    r = random.Random(f"hard {seed} {number}")
    return KINDS[number % len(KINDS)](r)
