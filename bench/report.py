#!/usr/bin/env python3
"""report.py FILE.json: writes tables and plots of a result file of run.py. Standard library only.

Prints the tables, and writes FILE.md and FILE_*.svg next to FILE.json. A plot has no background and mid-grey
text, so that it is readable on light and dark pages.
"""

import html
import json
import math
import os
import sys

NAMES = {"luattn": "luattn", "cudnn": "cuDNN", "fa2": "FA2", "fa3": "FA3", "fa4": "FA4"}
NAMES |= {"luattn_flex": "luattn.flex", "dense": "luattn, dense", "flex": "FlexAttention", "flex_flash": "FlexAttention FLASH"}
PASS_NAMES = {"fwd": "forward", "bwd": "backward", "fwdbwd": "forward and backward"}
COLOURS = {"luattn": "#e4572e", "cudnn": "#6b9e3f", "fa3": "#5b6fd6", "fa2": "#98a2b3", "flex": "#2a9d8f"}
COLOURS |= {"fa4": "#d4a017", "flex_flash": "#1f5f8b"}
# The contenders that a wide table compares with: a column has luattn's ratio to the fastest of these.
PEERS = ("fa4", "fa3", "cudnn", "flex_flash", "flex")
OTHER_COLOURS = ("#b5651d", "#8e6fb0", "#4f8fb5")  # other builds of luattn
# Suites whose table has a row per cell and a column per library. Other tables have a row per entry.
WIDE = ("plain", "variants", "flex", "masks", "packed")


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

GREY, WIDTH, PANEL_HEIGHT = "#707983", 960, 196
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


def text_at(x, y, words, size=11, anchor="middle", weight="normal", colour=GREY):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{colour}">{html.escape(words)}</text>'
    )


def rect_at(x, y, width, height, colour, more="", tip=""):
    return (
        f'<rect {more}x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5" '
        f'fill="{colour}"><title>{html.escape(tip)}</title></rect>'
    )


def colours_of(libraries):
    others = [x for x in libraries if x not in COLOURS]
    return {**COLOURS, **{x: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, x in enumerate(others)}}


def bars(centre, slot, floor, scale, label, values, colours):
    """Draws the bars of one group, centred at x = centre, with their base at y = floor."""
    out = []
    for j, (library, value) in enumerate(values.items()):
        x = centre + slot * (j - (len(values) - 1) / 2)
        if value is None:
            out.append(text_at(x, floor - 4, "-", 9.5))
            continue
        top, width = floor - scale * value, 0.9 * slot
        tip = f"{label}: {name_of(library)} {value:.0f} TFLOP/s"
        out.append(rect_at(x - width / 2, top, width, floor - top, colours[library], 'class="bar" ', tip))
        style = dict(weight="600", colour=colours[library]) if library == "luattn" else {}
        out.append(text_at(x, top - 3, f"{value:.0f}", 9.5, **style))
    return out


def panel(x, y, width, title, groups, colours, highest):
    """Draws one panel. groups: (label, note, {library: rate or None})."""
    out = [text_at(x, y, title, 13, "start", "600")]
    height = PANEL_HEIGHT - 76
    floor, scale = y + 24 + height, height / highest
    for tick in range(0, highest + 1, 200):
        at, opacity = floor - scale * tick, 0.22 if tick else 0.8
        line = f'x1="{x:.1f}" x2="{x + width:.1f}" y1="{at:.1f}" y2="{at:.1f}"'
        out.append(f'<line {line} stroke="{GREY}" stroke-opacity="{opacity}"/>')
        out.append(text_at(x - 5, at + 3.5, str(tick), 9.5, "end"))
    step = width / len(groups)
    for i, (label, note, values) in enumerate(groups):
        centre, slot = x + step * (i + 0.5), min(step * 0.86 / len(values), 40)
        out += bars(centre, slot, floor, scale, label, values, colours)
        out.append(text_at(centre, floor + 15, label))
        if note:
            out.append(text_at(centre, floor + 29, note, weight="600", colour=colours["luattn"]))
    return out


def figure(title, panels, columns):
    """Returns an SVG of panels (title, groups) in a grid, with one scale and one legend."""
    values = [values for _, groups in panels for _, _, values in groups]
    libraries = list(dict.fromkeys(x for v in values for x in v))
    colours = colours_of(libraries)
    highest = 200 * math.ceil(max((r for v in values for r in v.values() if r), default=1) * 1.06 / 200)
    left, right, gap = 36, 16, 44
    height = 66 + PANEL_HEIGHT * math.ceil(len(panels) / columns)
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONT}">']
    out += [f"<title>{html.escape(title)}</title>", text_at(left, 24, title, 15, "start", "600")]
    x = left
    for library in libraries:
        name = name_of(library)
        out += [rect_at(x, 35, 11, 11, colours[library]), text_at(x + 16, 45, name, 12, "start")]
        x += 7 * len(name) + 38
    width = (WIDTH - left - right - gap * (columns - 1)) / columns
    for i, (name, groups) in enumerate(panels):
        x, y = left + (width + gap) * (i % columns), 76 + PANEL_HEIGHT * (i // columns)
        out += panel(x, y, width, name, groups, colours, highest)
    return "\n".join(out + ["</svg>"]) + "\n"


def rates_of(row, libraries):
    found = {x: entry_of(row, x) for x in libraries}
    return {x: e["tflops"] if e else None for x, e in found.items()}


def plot_of_plain(data, pass_, rows):
    libraries, panels = libraries_of(rows), {}
    for row in sorted(rows, key=lambda r: (r["mask"] == "causal", r["D"], r["S"])):
        groups = panels.setdefault(f"{row['mask']}, D {row['D']}", [])
        groups.append((length_of(row["S"]), "", rates_of(row, libraries)))
    title = f"Plain attention, {PASS_NAMES[pass_]}: TFLOP/s by length ({data['device']}, bf16)"
    return figure(title, list(panels.items()), len({row["D"] for row in rows}))


def plot_of_variants(data, pass_, rows):
    panels = {}
    for row in rows:
        ratio = ratio_to(row, "flex")
        rates = rates_of(row, [e["library"] for e in row["entries"]])
        groups = panels.setdefault(row["shape"], [])
        groups.append((row["variant"], f"{ratio:.2f}x" if ratio else "", rates))
    title = f"Variants, {PASS_NAMES[pass_]}: TFLOP/s, and times FlexAttention ({data['device']}, bf16, D 128)"
    return figure(title, list(panels.items()), 1)


def plots(data):
    """Returns the plots as a dict from name to SVG text."""
    kinds = {"plain": plot_of_plain, "variants": plot_of_variants}
    groups = [g for g in groups_of(data) if g[0] in kinds]
    return {f"{suite}_{pass_}": kinds[suite](data, pass_, rows) for suite, pass_, rows in groups}


def write(data, stem):
    """Writes STEM.json, STEM.md and STEM_SUITE_PASS.svg."""
    files = {".json": json.dumps(data, indent=1) + "\n", ".md": markdown(data)}
    files.update((f"_{name}.svg", text) for name, text in plots(data).items())
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
