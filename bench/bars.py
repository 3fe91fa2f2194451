"""bars.py: bar plots of TFLOP/s by matplotlib, for report.py. A plot has no background and mid-grey text, so that it is readable on light and dark
pages, and the same bytes for the same numbers and matplotlib."""

import io
import math

GREY, WIDTH, PANEL_HEIGHT = "#707983", 9.6, 1.96  # sizes in inches
COLOURS = {"luattn": "#e4572e", "cudnn": "#6b9e3f", "fa3": "#5b6fd6", "fa2": "#98a2b3", "flex": "#2a9d8f", "fa4": "#d4a017", "flex_flash": "#1f5f8b"}
OTHER_COLOURS = ("#b5651d", "#8e6fb0", "#4f8fb5")  # other builds of luattn
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "luattn", "font.family": "sans-serif", "font.size": 8, "text.color": GREY, "axes.edgecolor": GREY,
    "axes.labelcolor": GREY, "xtick.color": GREY, "ytick.color": GREY,
}  # fmt: skip


def colours_of(libraries):
    others = [x for x in libraries if x not in COLOURS]
    return {**COLOURS, **{x: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, x in enumerate(others)}}


def panel(axes, title, groups, colours):
    """Bars of each group, (label, note, {library: rate or None}), side by side; a dash where there is no rate."""
    for i, (_, _, values) in enumerate(groups):
        slot = min(0.86 / len(values), 0.3)
        for j, (library, value) in enumerate(values.items()):
            at, is_ours = i + slot * (j - (len(values) - 1) / 2), library == "luattn"
            if value is not None:
                axes.bar(at, value, 0.9 * slot, color=colours[library], gid=f"bar {library} {i}")
            label, colour = "-" if value is None else f"{value:.0f}", colours[library] if is_ours else GREY
            axes.annotate(label, (at, value or 0), (0, 2), textcoords="offset points", ha="center", fontsize=7, color=colour, weight="bold" if is_ours else "normal")
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_xticks(range(len(groups)), [label for label, _, _ in groups])
    for i, (_, note, _) in enumerate(groups):
        axes.annotate(note, (i, 0), (0, -20), textcoords="offset points", xycoords=("data", "axes fraction"), ha="center", va="top", weight="bold", color=colours["luattn"])
    axes.set_title(title, loc="left", fontsize=10, weight="bold")
    axes.tick_params(length=0)
    axes.grid(axis="y", color=GREY, alpha=0.22)
    axes.set_axisbelow(True)
    axes.spines[["top", "left", "right"]].set_visible(False)


def figure(title, panels, columns, name_of):
    """A figure of panels (title, groups) in a grid, with one scale and one legend."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    values = [values for _, groups in panels for _, _, values in groups]
    libraries = list(dict.fromkeys(x for v in values for x in v))
    colours = colours_of(libraries)
    highest = 200 * math.ceil(max((r for v in values for r in v.values() if r), default=1) * 1.1 / 200)
    rows = math.ceil(len(panels) / columns)
    made = Figure(figsize=(WIDTH, 0.7 + PANEL_HEIGHT * rows), layout="constrained")
    places = made.subplots(rows, columns, squeeze=False, sharey=True)
    for axes, (name, groups) in zip(places.flat, panels):
        panel(axes, name, groups, colours)
        axes.set_ylim(0, highest)
    for axes in places.flat[len(panels) :]:
        axes.set_axis_off()
    handles = [Patch(color=colours[x], label=name_of(x)) for x in libraries]
    made.legend(
        handles=handles, loc="outside upper left", ncols=len(handles), frameon=False, fontsize=9, title=title, alignment="left",
        title_fontproperties={"size": 12, "weight": "bold"},
    )  # fmt: skip
    return made


def svg(title, panels, columns, name_of):
    """The figure as the text of an SVG. Errors: ImportError (no matplotlib)."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        out = io.StringIO()
        figure(title, panels, columns, name_of).savefig(out, format="svg", transparent=True, metadata={"Date": None, "Title": title})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
