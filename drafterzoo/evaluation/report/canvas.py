"""How a report's figures are drawn: themes, one panel as SVG or PNG bytes, and the marks and names in it.

Knows matplotlib and colours; nothing of results, of which figures there are, of files or HTML. Drafters are told apart
by colour and marker together, and named where they stand wherever there is room; the colours of a theme differ for
colour-blind readers too.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from drafterzoo.errors import NotInstalledError
from drafterzoo.evaluation.names import short_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

K = TypeVar("K")
WIDTH = 4.6  # inches: one panel, still legible when a phone shows it at 320 pixels
LONGEST_NAME = 21  # characters of a drafter's name that fit beside a panel; the tables show all
LEGEND_WIDTH = 54  # characters of a legend's line, each name with four for its marker and the gap
DODGE, WIDEST_DODGE = 0.06, 0.3  # octaves between neighbours at one size, and from the first of them to the last
MARKERS = "osD^vP*Xp<>h"
TITLE_WIDTH = 46  # characters of a title's line
NOT_IN_XML = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


@attrs.frozen
class Theme:
    """Colours of a page: text and lines on a surface, one colour per drafter, one grey per part of a round.

    A hue always means a drafter.
    """

    name: str
    surface: str
    ink: str
    muted: str
    line: str
    series: tuple[str, ...]
    parts: tuple[str, ...]

    @property
    def colours(self) -> tuple[str, ...]:
        """All of them, in an order that is the same for every theme."""
        return (self.surface, self.ink, self.muted, self.line, *self.series, *self.parts)


LIGHT = Theme(
    "light", "#ffffff", "#1b1f24", "#57606a", "#d8dee4",
    ("#0b62b0", "#b84a00", "#7a1fd6", "#00451f", "#a84878", "#181890", "#906048", "#780078"),
    ("#3d4651", "#6b7580", "#c2cad2"),
)  # fmt: skip
DARK = Theme(
    "dark", "#161b22", "#e6edf3", "#9da7b3", "#30363d",
    ("#6cb2f5", "#f2925c", "#dfe84a", "#f0509a", "#a8f0c0", "#8080f5", "#f04e10", "#f0d860"),
    ("#d0d7de", "#96a0ab", "#57616c"),
)  # fmt: skip


@attrs.frozen(eq=False)
class Picture:
    """One figure. name: unique in the report, fit for a file name. alt: what it shows, with the numbers."""

    name: str
    title: str
    caption: str
    alt: str
    height: float
    draw: Callable[[Canvas], None]
    conditions: str


@attrs.frozen(eq=False)
class Canvas:
    """What a figure is drawn on: axes, the theme, and each drafter's colour and marker."""

    axes: Axes
    theme: Theme
    order: Sequence[str]

    def colour(self, name: str) -> str:
        return self.theme.series[self.order.index(name) % len(self.theme.series)]

    def brief(self, name: str) -> str:
        """The name, cut to what fits beside a panel and unlike that of any other drafter."""
        return short_names(self.order, LONGEST_NAME)[name]

    def marker(self, name: str) -> str:
        return MARKERS[self.order.index(name) % len(MARKERS)]


@attrs.frozen
class End:
    """Where a drafter's line ends, to be named there. x: its size, wherever it was moved to."""

    x: float
    y: float
    name: str
    colour: str


def check_matplotlib() -> None:
    """Raise NotInstalledError, naming the extra, where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise NotInstalledError(
            "report: figures need matplotlib, which is not installed; type: pip install 'drafterzoo[plots]'."
        ) from error


def for_page(picture: Picture, order: Sequence[str]) -> dict[str, bytes]:
    """The picture as SVG by the name of a theme: drawn once, for what differs between the themes is colours alone.

    order: all drafters of the report. The same numbers give the same bytes.
    """
    light = _drawn(picture, order, ("svg",), alone=False)["svg"]
    return {LIGHT.name: light, DARK.name: recoloured(light, LIGHT, DARK)}


def for_files(picture: Picture, order: Sequence[str]) -> dict[str, bytes]:
    """The picture as `svg` and `png`, with its title and its conditions, for use outside the page."""
    return _drawn(picture, order, ("svg", "png"), alone=True)


def recoloured(svg: bytes, one: Theme, other: Theme) -> bytes:
    """A drawing with every colour of one theme changed to the other's."""
    colours = dict(zip(map(str.encode, one.colours), map(str.encode, other.colours), strict=True))
    return re.sub(rb"#[0-9a-f]{6}(?![0-9a-f])", lambda found: colours.get(found[0], found[0]), svg)


def _drawn(picture: Picture, order: Sequence[str], kinds: Sequence[str], *, alone: bool) -> dict[str, bytes]:
    """Bytes by kind of file. Where everything stands takes most of the time, and is found out once for all kinds."""
    import matplotlib
    from matplotlib.figure import Figure

    drawn = {}
    with matplotlib.rc_context(_settings(LIGHT, picture.name)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # a box stands for it; tables have the name
        height = picture.height + (0.65 if alone else 0)
        figure: Figure = Figure(figsize=(WIDTH, height), facecolor=LIGHT.surface, layout="constrained")
        axes = figure.add_subplot()
        axes.tick_params(length=0)
        picture.draw(Canvas(axes, LIGHT, order))
        if alone:
            figure.suptitle(fill(picture.title, TITLE_WIDTH), x=0.01, ha="left", fontsize=11.5, weight="bold")
            figure.supxlabel(fill(picture.conditions, 96), x=0.01, ha="left", fontsize=6.5, color=LIGHT.muted)
        for kind in kinds:
            content = io.BytesIO()
            metadata = {"Date": None} if kind == "svg" else {"Software": None}
            figure.savefig(content, format=kind, dpi=200, metadata=metadata)
            drawn[kind] = NOT_IN_XML.sub(b"?", content.getvalue()) if kind == "svg" else content.getvalue()
            figure.set_layout_engine("none")  # leaves everything where it is
    return drawn


def _settings(theme: Theme, name: str) -> Any:
    return {
        "svg.hashsalt": name,  # names inside the file must not change from run to run
        "svg.fonttype": "path",
        "text.parse_math": False,  # a name may hold dollar signs
        "font.size": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": theme.line,
        "axes.labelcolor": theme.muted,
        "axes.facecolor": theme.surface,
        "text.color": theme.ink,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "grid.color": theme.line,
        "grid.linewidth": 0.8,
        "axes.axisbelow": True,
    }


def whisker(canvas: Canvas, name: str, ratio: Mapping[str, Any], place: float) -> None:
    """A value with its 95 % interval, on one row of a panel."""
    axes, colour = canvas.axes, canvas.colour(name)
    if ratio["low"] is not None:
        axes.plot([ratio["low"], ratio["high"]], [place, place], color=colour, linewidth=2.4, alpha=0.55)
    axes.plot([ratio["value"]], [place], color=colour, marker=canvas.marker(name), markersize=7)


def dodged(lines: Mapping[K, Sequence[tuple[int, Any]]]) -> dict[K, list[float]]:
    """Where each point of each line stands on an axis of powers of 2: those at one size beside each other.

    Else a bar would hide another's. lines: (size, anything) of their points.
    """
    at: dict[int, list[K]] = {}
    for key, points in lines.items():
        for size, _ in points:
            at.setdefault(size, []).append(key)

    def place(key: K, size: int) -> float:
        here = at[size]
        step = min(DODGE, WIDEST_DODGE / max(len(here) - 1, 1))
        return float(size * 2 ** (step * (here.index(key) - (len(here) - 1) / 2)))

    return {key: [place(key, size) for size, _ in points] for key, points in lines.items()}


def line(
    canvas: Canvas, name: str, points: Sequence[tuple[int, Mapping[str, Any]]], x: Sequence[float], style: str = "-"
) -> End:
    """A drafter's values over sizes, with a bar for each interval.

    points: (size, ratio with value, low, high); x: where each of them stands (`dodged`).
    """
    y, colour = [ratio["value"] for _, ratio in points], canvas.colour(name)
    canvas.axes.plot(x, y, style, color=colour, marker=canvas.marker(name), markersize=6, linewidth=1.8)
    for place, (_, ratio) in zip(x, points, strict=True):
        if ratio["low"] is not None:
            bar = [ratio["low"], ratio["high"]]
            canvas.axes.plot([place, place], bar, color=colour, linewidth=1.2, alpha=0.55)
    return End(points[-1][0], y[-1], name, colour)


def reference(axes: Axes, theme: Theme, value: float, horizontal: bool = False) -> None:
    """The line of plain decoding."""
    draw = axes.axhline if horizontal else axes.axvline
    draw(value, color=theme.muted, linewidth=1, linestyle=(0, (2, 2)), zorder=1)


def edge(axes: Axes) -> Any:
    """Coordinates for text beside a panel: x in the panel's width, y in data."""
    return axes.get_yaxis_transform()


def beside(canvas: Canvas, place: float, text: str, **style: Any) -> None:
    """Words to the left of a row of a panel."""
    style = {"va": "center", "ha": "right", **style}
    canvas.axes.text(-0.015, place, text, transform=edge(canvas.axes), **style)


def key(canvas: Canvas, entries: Sequence[tuple[str, str, str]]) -> None:
    """Coloured names above the panel, for where names cannot stand beside what they name."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, marker=marker, linestyle="", markersize=7) for _, colour, marker in entries]
    longest = 4 + max(len(name) for name, _, _ in entries)
    legend = canvas.axes.legend(
        handles, [name for name, _, _ in entries], loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2,
        ncols=min(len(entries), max(1, LEGEND_WIDTH // longest)), frameon=False, handletextpad=0.2, columnspacing=1.2,
        fontsize=9,
    )  # fmt: skip
    for text, (_, colour, _) in zip(legend.get_texts(), entries, strict=True):
        text.set_color(canvas.theme.ink if colour == canvas.theme.parts[-1] else colour)


def name_ends(canvas: Canvas, ends: Sequence[End]) -> None:
    """Name each drafter once: its longest line at the right edge, or where it ends when none reaches the edge."""
    axes = canvas.axes
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    gap = 0.068 * (high - low)
    last = max((end.x for end in ends), default=0)
    at_edge = sorted((end for end in ends if end.x == last), key=lambda end: end.y)
    for end, place in zip(at_edge, _apart([end.y for end in at_edge], gap, high), strict=True):
        axes.text(1.02, place, canvas.brief(end.name), transform=edge(axes), va="center", color=end.colour, fontsize=9)
    named = {end.name for end in at_edge}
    others = {end.name: end for end in sorted(ends, key=lambda end: end.x) if end.name not in named}
    for x in sorted({end.x for end in others.values()}):
        here = sorted((end for end in others.values() if end.x == x), key=lambda end: end.y)
        for end, place in zip(here, _apart([end.y for end in here], gap, high), strict=True):
            axes.annotate(
                canvas.brief(end.name),
                (x, place),
                (8, 0),
                textcoords="offset points",
                va="center",
                color=end.colour,
                fontsize=9,
            )


def _apart(heights: Sequence[float], gap: float, top: float) -> list[float]:
    """Ascending heights, moved as little as it takes to lie a gap apart and not above the top."""
    places: list[float] = []
    for height in heights:
        places.append(max(height, places[-1] + gap) if places else height)
    ceiling = top
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - gap
    return places
