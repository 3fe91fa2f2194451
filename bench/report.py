#!/usr/bin/env python3
"""report.py FILE.json: writes tables and plots of a result file of run.py. Tables take the standard library alone, plots matplotlib.

Prints the tables, and writes FILE.md and FILE_*.svg next to FILE.json (bars.py).
"""

import json
import math
import os
import sys

import bars

NAMES = {"luattn": "luattn", "cudnn": "cuDNN", "fa2": "FA2", "fa3": "FA3", "fa4": "FA4"}
NAMES |= {"luattn_flex": "luattn.flex", "dense": "luattn, dense", "flex": "FlexAttention", "flex_flash": "FlexAttention FLASH"}
PASS_NAMES = {"fwd": "forward", "bwd": "backward", "fwdbwd": "forward and backward"}
# The contenders that a wide table compares with: a column has luattn's ratio to the fastest of these.
PEERS = ("fa4", "fa3", "cudnn", "flex_flash", "flex")
# Suites whose table has a row per cell and a column per library. Other tables have a row per entry.
WIDE = ("plain", "variants", "flex", "masks", "streams", "packed")


def name_of(library):
    return NAMES.get(library, library)


def length_of(n):
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)


def measured(entry):
    return "tflops" in entry and entry.get("right", True)


def rate(entry):
    if "refused" in entry:
        return "-"
    return f"{entry['tflops']:.1f}" if measured(entry) else "wrong"


def wrong(data):
    """Lists the entries whose results are out of tolerance, as text."""
    entries = [(row, e) for row in data["rows"] for e in row["entries"] if not e.get("right", True)]
    return [
        f"{row['cell']} {row['pass']}: {e['name']}: error {e['error']}, difference {e.get('difference', '-')}"
        for row, e in entries
    ]


def line(row):
    """Formats one row as a line of text, to show progress."""
    parts = [f"{row['pass']:<6} {row['cell']:<26}"]
    for e in row["entries"]:
        ratio = f" ({1 / e['base_ratio']:.2f})" if measured(e) and "base_ratio" in e else ""
        parts.append(f"{e['name']} {rate(e)}{ratio}")
    return "  ".join(parts)


def entry_of(row, library):
    """Returns the library's entry if it was measured, otherwise None."""
    return next((e for e in row["entries"] if e["library"] == library and measured(e)), None)


def base_of(row):
    """Returns the library to whose rate all ratios of a row refer: its first."""
    return row["entries"][0]["library"]


def ratio_to(row, library):
    """Returns the base's rate over the library's, or None if either is missing."""
    e = entry_of(row, library)
    return e.get("base_ratio") if e and entry_of(row, base_of(row)) else None


def ratio_to_best(row, peers):
    """Returns the base's rate over the rate of the fastest peer."""
    peers = [e for e in (entry_of(row, x) for x in peers) if e]
    best = max(peers, key=lambda e: e["tflops"], default=None)
    return best.get("base_ratio") if best and entry_of(row, base_of(row)) else None


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def libraries_of(rows):
    found = []
    for row in rows:
        found += [e["library"] for e in row["entries"] if e["library"] not in found]
    return found


def table(header, lines):
    lines = ["| " + " | ".join(x) + " |" for x in [header, *lines]]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def wide_table(rows):
    libraries, base = libraries_of(rows), base_of(rows[0])
    ours = name_of(base)
    ratios = {f"{ours} / {name_of(x)}": [ratio_to(r, x) for r in rows] for x in libraries if x != base}
    peers = [x for x in PEERS if x in libraries]
    if len(peers) > 1:
        superlative = "better" if len(peers) == 2 else "best"
        title = f"{ours} / {superlative} of {', '.join(map(name_of, peers))}"
        ratios[title] = [ratio_to_best(r, peers) for r in rows]
    ratios = {title: values for title, values in ratios.items() if any(values)}
    lines = []
    for i, row in enumerate(rows):
        by_library = {e["library"]: e for e in row["entries"]}
        rates = [rate(by_library[x]) if x in by_library else "" for x in libraries]
        lines.append([row["cell"], *rates, *(f"{v[i]:.3f}" if v[i] else "" for v in ratios.values())])
    text = table(["cell"] + [name_of(x) for x in libraries] + list(ratios), lines)
    for title, values in ratios.items():
        values = [v for v in values if v]
        text += (
            f"\n\n{title}: geometric mean {geometric_mean(values):.3f}, lowest {min(values):.3f}, "
            f"highest {max(values):.3f} over {len(values)} cells."
        )
    return text


def long_table(rows):
    header = ["cell", "", "TFLOP/s", "of the first", "of the first, on the work of the kept tiles", "plan"]
    lines = []
    for row in rows:
        base = row["entries"][0]
        for e in row["entries"]:
            ratio = of_tiles = ""
            if e is base:
                ratio = "1"
            elif "base_ratio" in e and measured(e) and measured(base):
                ratio = f"{1 / e['base_ratio']:.3f}"
                if "tile_work" in e and "tile_work" in base:
                    of_tiles = f"{e['tile_work'] / base['tile_work'] / e['base_ratio']:.3f}"
            lines.append([row["cell"], e["name"], rate(e), ratio, of_tiles, e.get("plan", "")])
    return table(header, lines)


def groups_of(data):
    """Returns (suite, pass, rows) for each group, in the order of measurement."""
    groups = {}
    for row in data["rows"]:
        groups.setdefault((row["suite"], row["pass"]), []).append(row)
    return [(suite, pass_, rows) for (suite, pass_), rows in groups.items()]


def refusals(data):
    entries = [(row, e) for row in data["rows"] for e in row["entries"] if "refused" in e]
    return [f"{row['cell']} {row['pass']}: {e['name']}: {e['refused']}" for row, e in entries]


def absences(data):
    """Returns a line on the contenders that are not installed, with the reasons; no line if all are."""
    absent = data.get("absent", {})
    return [f"Not there: {'; '.join(f'{name_of(x)}: {why}' for x, why in absent.items())}."] if absent else []


def markdown(data):
    cudnn = f", cuDNN {data['cudnn']}" if "cudnn" in data else ""
    packages = "".join(f", {name} {version}" for name, version in data.get("packages", {}).items())
    versions = f"{data['device']}, torch {data['torch']}{cudnn}{packages}"
    order = f", each in a random order (seed {data['seed']})" if "seed" in data else ""
    method = f"medians of {data['rounds']} interleaved rounds{order}; ratios are medians of each round's"
    method += "; launches replayed from CUDA graphs" if data.get("graphs") else ""
    text = [f"{versions}. TFLOP/s, {method}. `{data['command']}`", *absences(data)]
    for suite, pass_, rows in groups_of(data):
        text += [f"## {suite}, {PASS_NAMES[pass_]}", wide_table(rows) if suite in WIDE else long_table(rows)]
    notes = {
        "Refused": refusals(data),
        "Outside tolerance": wrong(data),
        "Left out, the time was over": data["skipped"],
    }
    for title, items in notes.items():
        if items:
            text += [f"{title}:", "\n".join(f"- {x}" for x in items)]
    return "\n\n".join(text) + "\n"


# ---- Plots


def rates_of(row, libraries):
    found = {x: entry_of(row, x) for x in libraries}
    return {x: e["tflops"] if e else None for x, e in found.items()}


def plot_of_plain(data, pass_, rows):
    libraries, panels = libraries_of(rows), {}
    for row in sorted(rows, key=lambda r: (r["mask"] == "causal", r["D"], r["S"])):
        groups = panels.setdefault(f"{row['mask']}, D {row['D']}", [])
        groups.append((length_of(row["S"]), "", rates_of(row, libraries)))
    title = f"Plain attention, {PASS_NAMES[pass_]}: TFLOP/s by length ({data['device']}, bf16)"
    return title, list(panels.items()), len({row["D"] for row in rows})


def plot_of_variants(data, pass_, rows):
    panels = {}
    for row in rows:
        ratio = ratio_to(row, "flex")
        rates = rates_of(row, [e["library"] for e in row["entries"]])
        groups = panels.setdefault(row["shape"], [])
        groups.append((row["variant"], f"{ratio:.2f}x" if ratio else "", rates))
    title = f"Variants, {PASS_NAMES[pass_]}: TFLOP/s, and times FlexAttention ({data['device']}, bf16, D 128)"
    return title, list(panels.items()), 1


def plots(data):
    """Returns the plots as a dict from name to what bars.figure draws: a title, panels, columns."""
    kinds = {"plain": plot_of_plain, "variants": plot_of_variants}
    groups = [g for g in groups_of(data) if g[0] in kinds]
    return {f"{suite}_{pass_}": kinds[suite](data, pass_, rows) for suite, pass_, rows in groups}


def pictures(data):
    """Returns the plots as a dict from name to SVG text; without matplotlib none, and a line that says so."""
    try:
        return {name: bars.svg(*plot, name_of) for name, plot in plots(data).items()}
    except ImportError as e:
        print(f"no plots: {e}; pip install matplotlib, and run bench/report.py on the file", file=sys.stderr)
        return {}


def write(data, stem):
    """Writes STEM.json, STEM.md and STEM_SUITE_PASS.svg."""
    files = {".json": json.dumps(data, indent=1) + "\n", ".md": markdown(data)}
    files.update((f"_{name}.svg", text) for name, text in pictures(data).items())
    for end, text in files.items():
        with open(stem + end, "w") as f:
            f.write(text)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    with open(sys.argv[1]) as f:
        data = json.load(f)
    print(markdown(data), end="")
    write(data, os.path.splitext(sys.argv[1])[0])


if __name__ == "__main__":
    main()
