"""Pictures by matplotlib, which is loaded when one is drawn: weights as a heat map, and a mask as a PNG."""

import io
from typing import TYPE_CHECKING, Any

from ._arguments import is_tensor, take, what
from .errors import InvalidError, Unsupported

if TYPE_CHECKING:
    from .mask import Mask


def _figure(place: str, size: tuple[float, float]) -> Any:
    """A figure that no window shows, and a notebook does, with pyplot or without."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported(f"{place}: needs matplotlib; pip install matplotlib, or for a mask save a .svg, which needs nothing") from None

    class Shown(Figure):  # type: ignore[misc]
        def _repr_png_(self) -> bytes:
            drawn = io.BytesIO()
            self.savefig(drawn, format="png", dpi=80)
            return drawn.getvalue()

    return Shown(figsize=size, layout="constrained")


def _label(axes: Any, title: str) -> None:
    axes.set(xlabel="kv_idx", ylabel="q_idx", title=title)
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()


def plot_weights(weights: Any, *, batch: int = 0, head: int | None = None, ax: Any = None, title: str | None = None) -> Any:
    """A heat map of what Attention.weights returns, for one batch entry: of one head, or None: of each head beside the others. Returns the figure of
    matplotlib, which a notebook shows, and whose savefig("NAME.png") writes it. ax: axes of yours, for one head. What dropout drops is drawn as 0."""
    place = "plot_weights"
    weights = take(place, "weights", "data", weights)
    if len(weights.shape) != 4:
        raise InvalidError(f"{place}: weights: has {len(weights.shape)} dimensions, expected 4: batch, heads, queries and keys, as Attention.weights returns them")
    for name, x, most in (("batch", batch, weights.shape[0]), ("head", head or 0, weights.shape[1])):
        if not 0 <= take(place, name, "integer", x) < most:
            raise InvalidError(f"{place}: {name}: is {what(x)}, and weights have {most}: give 0 to {most - 1}")
    heads = range(weights.shape[1]) if head is None else [head]
    if ax is not None and not hasattr(ax, "imshow"):
        raise InvalidError(f"{place}: ax: is {what(ax)}, expected axes of matplotlib, as matplotlib.pyplot.subplots gives them")
    if ax is not None and len(heads) > 1:
        raise InvalidError(f"{place}: ax: is for one head, and weights have {len(heads)}: pass head=")
    if ax is None:
        columns = min(4, len(heads))
        rows = -(-len(heads) // columns)
        figure = _figure(place, (3.2 * columns + 0.8, 3.2 * rows + 0.4))
        places = figure.subplots(rows, columns, squeeze=False).flat
    else:
        figure, places = ax.figure, iter([ax])
    drawn = [weights[batch, h] for h in heads]
    values = [(x.detach().cpu().double().numpy() if is_tensor(x) else x).clip(min=0) for x in drawn]
    most = max((float(x.max()) for x in values if x.size), default=1.0) or 1.0
    used, image = [], None
    for h, value, axes in zip(heads, values, places):
        image = axes.imshow(value, cmap="cividis", vmin=0, vmax=most, interpolation="nearest", aspect="auto")
        _label(axes, title if title is not None and len(heads) == 1 else f"head {h}")
        used.append(axes)
    for axes in places:
        axes.set_axis_off()
    if title is not None and len(heads) > 1:
        figure.suptitle(title)
    figure.colorbar(image, ax=used, label="weight")
    return figure


def save_png(mask: "Mask", path: str) -> None:
    """The picture of a mask: white, orange and blue tiles, as luattn_mask_svg draws them."""
    figure = _figure(f"{mask.name}: save: '{path}'", (6, 6.6))
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    from .mask import COLORS, EMPTY, FULL, PARTIAL

    axes = figure.subplots()
    tile_m, tile_n = mask.tile if isinstance(mask.tile, tuple) else (mask.tile, mask.tile)
    across, down = (len(mask.rows[0]) if mask.rows else 0) * tile_n, len(mask.rows) * tile_m
    axes.imshow(mask.rows, cmap=ListedColormap(COLORS), vmin=0, vmax=2, interpolation="nearest", extent=(0, across, down, 0))
    axes.set(xlim=(0, mask.kv_len), ylim=(mask.q_len, 0))
    _label(axes, f"{mask.name}, {mask.q_len} x {mask.kv_len}, tiles of {tile_m} x {tile_n}")
    every = max(1, sum(map(len, mask.rows)))
    named = ((FULL, "full"), (PARTIAL, "partial"), (EMPTY, "empty"))
    handles = [Patch(facecolor=COLORS[x], edgecolor="#808080", label=f"{word}: {mask.count(x)}, {mask.count(x) / every:.1%}") for x, word in named]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)
