"""mod_fuzz.py [--seed N] [--count N] [--one N] [--shrink N]: random programs with FlexAttention mods, on luattn.flex and in plain torch.

A result is torch's, or luattn refuses with an error. What is stale or wrong is shrunk and printed; refusals are counted by reason, and those
of what PyTorch's own flex_attention takes are marked. Exits with 1 if anything was stale or wrong."""

import argparse
import ast
import collections
import copy
import logging
import random
import sys
import time
import warnings

from mod_grammar import draw
from mod_runner import Difference, Invalid, live


def kind_of(program, refusal=False):
    """What is wrong with a program: None, or a kind (and for refusals the reason)."""
    try:
        refusals = live(program)
        return next((f"refused {reason}" for reason, theirs, _ in refusals if theirs is None), None) if refusal else None
    except Invalid:
        return "invalid"
    except Difference as e:
        return f"{e.kind} {e}" if e.kind == "foreign" else e.kind


# --- shrinking: any smaller program that fails in the same way


def _without_statements(tree):
    """Trees with one statement less, or with the body of a compound statement in its place."""
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            held = getattr(node, name, None)
            if not isinstance(held, list):
                continue
            for i in range(len(held) - 1, -1, -1):
                if isinstance(held[i], ast.Return) and len(held) == 1:
                    continue
                inner = held[i].body if isinstance(held[i], (ast.If, ast.For, ast.With)) else []
                for instead in ([], inner) if inner else ([],):
                    kept = held[:]
                    held[i : i + 1] = instead
                    if held:
                        yield
                    held[:] = kept


def _simpler_expressions(tree):
    """Trees with an expression replaced by a part of it."""
    for node in ast.walk(tree):
        for name, value in list(ast.iter_fields(node)):
            for place, old in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(old, (ast.BinOp, ast.Call, ast.Compare, ast.UnaryOp, ast.IfExp, ast.Subscript, ast.BoolOp)):
                    continue
                parts = [x for x in ast.iter_child_nodes(old) if isinstance(x, ast.expr)]
                if isinstance(old, ast.Call):
                    parts = [*old.args, *([old.func.value] if isinstance(old.func, ast.Attribute) else [])]
                for part in parts:
                    if place is None:
                        setattr(node, name, part)
                    else:
                        value[place] = part
                    yield
                    if place is None:
                        setattr(node, name, old)
                    else:
                        value[place] = old


def _candidates(program):
    for i in range(len(program.steps) - 1, -1, -1):
        if len(program.steps) > 1:
            smaller = copy.deepcopy(program)
            del smaller.steps[i]
            yield smaller
    for i, step in enumerate(program.steps):
        for name in ("before", "late"):
            for j in range(len(getattr(step, name))):
                smaller = copy.deepcopy(program)
                del getattr(smaller.steps[i], name)[j]
                yield smaller
    for i in range(len(program.learned)):
        smaller = copy.deepcopy(program)
        del smaller.learned[i]
        yield smaller
    for change in (_without_statements, _simpler_expressions):
        tree = ast.parse(program.source)
        for _ in change(tree):
            smaller = copy.deepcopy(program)
            try:
                smaller.source = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
            except Exception:
                continue
            yield smaller


def shrink(program, kind, seconds, refusal=False):
    end = time.monotonic() + seconds
    again = True
    while again and time.monotonic() < end:
        again = False
        for smaller in _candidates(program):
            if time.monotonic() > end:
                break
            if kind_of(smaller, refusal) == kind:
                program, again = smaller, True
                break
    return program


def text_of(program):
    lines = [program.source.rstrip()]
    for i, step in enumerate(program.steps):
        late = f", then before backward {'; '.join(step.late)}" if step.late else ""
        lines.append(f"# call {i}: {'; '.join(step.before) or 'nothing changed'}; {step.q_len} queries, {step.kv_len} keys, seed {step.seed}{late}")
    lines.append(
        f"# {program.dtype}, torch's default {'float64' if program.double else 'float32'}, {program.heads_kv} heads of keys, learned: {', '.join(program.learned) or 'nothing'}, {program.way}"
    )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--one", type=int, help="run this program alone, and print it")
    parser.add_argument("--shrink", type=float, default=20, help="seconds for each failure")
    parser.add_argument("--shown", type=int, default=1, help="how many failures of a kind are shrunk and printed")
    parser.add_argument("--refusals", action="store_true", help="shrink refusals of what torch takes, too")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # what PyTorch refuses, it logs
    failed, counts = run(options)
    print(", ".join(f"{n} {name}" for name, n in counts.items()))
    sys.exit(bool(failed))


def run(options):
    counts, refused, failed, shown = collections.Counter(), {}, [], collections.Counter()
    start = time.monotonic()
    for i in [options.one] if options.one is not None else range(options.count):
        program = draw(random.Random(f"{options.seed} {i}"))
        if i % 100 == 0 and options.one is None:
            print(f"{i}: {dict(counts)}, {time.monotonic() - start:.0f} s", flush=True)
        if options.one is not None:
            print(text_of(program), flush=True)
        try:
            refusals = live(program)
        except Invalid as e:
            counts["invalid"] += 1
            if options.one is not None:
                print(f"invalid: {e}")
            continue
        except Difference as e:
            name = f"{e.kind}: {e}" if e.kind == "foreign" else e.kind
            counts[name] += 1
            failed.append(i)
            print(f"--- program {i}: {e.kind} at call {e.step}: {e}", flush=True)
            if shown[name] < options.shown:
                shown[name] += 1
                kind = f"{e.kind} {e}" if e.kind == "foreign" else e.kind
                print(text_of(shrink(program, kind, options.shrink)), flush=True)
            continue
        counts["right" if not refusals else "refused"] += 1
        for reason, theirs, full in {r[0]: r for r in refusals}.values():
            entry = refused.setdefault((reason, theirs is None), [0, i, full, theirs])
            entry[0] += 1
            if options.refusals and theirs is None and entry[0] == 1:
                print(f"--- program {i}: refused, and taken by torch: {full}", flush=True)
                print(text_of(shrink(program, f"refused {reason}", options.shrink, True)), flush=True)
    for (reason, taken), (n, i, full, theirs) in sorted(refused.items(), key=lambda x: -x[1][0]):
        print(f"{n:4d} refused{', torch takes it' if taken else ''} (program {i}): {full.splitlines()[0][:220]}" + (f"\n       torch: {theirs}" if theirs else ""))
    print(f"{time.monotonic() - start:.0f} s")
    return failed, counts


if __name__ == "__main__":
    main()
