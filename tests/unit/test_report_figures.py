from __future__ import annotations

import re

import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st
from measured_rows import row
from report_rows import GB, content

from orchestrator.analysis.comparison import compare
from orchestrator.analysis.recommend import recommend
from orchestrator.report.figures.frontier import frontier
from orchestrator.report.figures.placement import NARROWEST, WIDEST, Mark, _around, _box, _meet, place
from orchestrator.report.figures.stages import heat_map, history
from orchestrator.report.figures.theme import DARK, LIGHT, coloured
from orchestrator.vocabulary import Stage


def chart(rows, target=None):
    return frontier(recommend(compare(rows), target=target)[0])


def values(figure, name):
    return [point for layer in figure.spec["layer"] if layer.get("name") == name for point in layer["data"]["values"]]


def failed(number, **changes):
    return row(["moe"], label="OOM-fwd", step_ms=None, stage=Stage.FORWARD, trial=f"t{number}", **changes)


def test_the_frontier_shows_each_candidate_once_in_the_chart_and_once_in_the_table():
    rows = [
        row(),
        row(["mlp"], peak=GB // 2, step_ms=120.0),
        failed(1),
        row(["x"], label="failed:crash", step_ms=None, peaks=()),
    ]
    figure = chart(rows)
    shown = [point["name"] for name in ("candidates", "stopped", "without_peak") for point in values(figure, name)]
    assert sorted(shown) == sorted(line.text for line in compare(rows).groups[0].lines)
    assert sorted(cells[0] for cells in figure.table.rows) == sorted(shown)


def test_failures_of_about_the_same_peak_stand_beside_each_other():
    rows = [row(), *(row([label], label="OOM-fwd", step_ms=None) for label in ("a", "b", "c"))]
    assert sorted(point["slot"] for point in values(chart(rows), "stopped")) == [0, 1, 2]


def test_the_target_line_is_at_the_limit():
    lines = [
        layer["data"]["values"][0]["peak"]
        for layer in chart([row(), row(["mlp"])], target=3 * GB).spec["layer"]
        if layer["mark"]["type"] == "rule"
    ]
    assert lines == [3.0]


def test_the_front_is_drawn_through_what_nothing_beats():
    figure = chart([row(peak=3 * GB), row(["a"], peak=2 * GB, step_ms=110.0), row(["b"], peak=3 * GB, step_ms=130.0)])
    (line,) = [layer for layer in figure.spec["layer"] if layer["mark"]["type"] == "line"]
    assert [point["name"] for point in line["data"]["values"]] == ["a", "[]"]
    assert {cells[0]: cells[-1] for cells in figure.table.rows} == {"[]": "yes", "a": "yes", "b": "no"}


def test_what_has_no_step_time_stands_in_a_strip_of_its_own():
    with_failures = chart([row(), row(["mlp"], step_ms=120.0), failed(1)])
    (marks,) = [layer for layer in with_failures.spec["layer"] if layer.get("name") == "candidates"]
    assert marks["encoding"]["x"]["scale"]["rangeMax"] == {"expr": "width - 28"}
    texts = [layer for layer in with_failures.spec["layer"] if layer["data"]["values"][0].get("text") == "no step time"]
    assert len(texts) == 2
    without = chart([row(), row(["mlp"], step_ms=120.0)])
    assert "no step time" not in str(without.spec)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(1, 40), st.booleans()), min_size=1, max_size=25)
)
def test_names_in_the_scatter_cover_neither_marks_nor_each_other(points):
    marks = [Mark(x, y, f"{number:0{long}d}", must) for number, (x, y, long, must) in enumerate(points)]
    marks = list({mark.name: mark for mark in marks}.values())
    spots = place(marks, marks, 340.0, lines=[(0.0, 0.5, 1.0, 0.5)])
    assert {mark.name for mark in marks if mark.must} <= set(spots)
    for width in (NARROWEST, WIDEST):
        free = [
            (mark, _box(mark, spots[mark.name], width, 340.0)) for mark in marks if mark.name in spots and not mark.must
        ]
        kept = [_box(mark, spots[mark.name], width, 340.0) for mark in marks if mark.name in spots and mark.must]
        for number, (_, box) in enumerate(free):
            assert box[0] >= 0
            assert box[2] <= width
            others = [other for _, other in free[:number]] + kept + [_around(one, width, 340.0) for one in marks]
            assert not any(_meet(box, other) for other in others)


def test_sizes_below_a_gigabyte_are_in_megabytes():
    figure = chart([row(peak=5_000_000)])
    assert values(figure, "candidates")[0]["peak"] == 5.0
    assert "peak allocated (MB)" in [column.header for column in figure.table.columns]


def test_memory_of_every_rank_and_stage_is_in_the_heat_map_in_the_order_of_a_run():
    shown = content([row()]).sections[0].shown[0]
    figure = heat_map("h", "title", list(reversed(shown.cells)))
    assert [column.header for column in figure.table.columns] == [
        "rank", "model_build (GB)", "forward (GB)", "optimizer_step (GB)",
    ]  # fmt: skip
    assert [cells[0] for cells in figure.table.rows] == ["0", "1"]
    assert len(figure.spec["data"]["values"]) == 6


def test_the_history_has_a_point_an_iteration_and_stage():
    shown = content([row()]).sections[0].shown[0]
    figure = history("h", "title", shown.history)
    assert [cells[0] for cells in figure.table.rows] == ["1", "2", "3"]
    assert len(figure.spec["data"]["values"]) == 3


def test_between_two_iterations_no_half_has_a_number():
    shown = content([row()]).sections[0].shown[0]
    drawn = history("h", "title", shown.history[:2]).svg(dark=False)
    assert re.findall(r">([\d.]+)</text>", drawn[: drawn.index(">iteration<")])[-2:] == ["1", "2"]


@pytest.mark.parametrize("dark", [False, True])
def test_pictures_have_real_colours(dark):
    figure = chart([row(), row(["mlp"], peak=GB // 2, step_ms=120.0), failed(1)], target=2 * GB)
    drawn = figure.svg(dark=dark)
    assert "var(" not in drawn
    assert (DARK if dark else LIGHT)["target"] in drawn


def test_texts_that_look_like_colours_stay_texts():
    assert coloured({"values": ["var(--ink)"], "color": "var(--ink)"}, LIGHT) == {
        "values": ["var(--ink)"],
        "color": LIGHT["ink"],
    }


def test_every_chart_compiles():
    made = content([row(), row(["mlp"], peak=GB // 2, step_ms=120.0), failed(1)])
    section = made.sections[0]
    shown = section.shown[0]
    figures = [section.frontier, heat_map("h", "t", shown.cells), history("i", "t", shown.history)]
    for figure in figures:
        assert vl_convert.vegalite_to_vega(figure.vega_lite())["marks"]


def test_a_notebook_gets_a_picture_and_the_chart():
    bundle = chart([row()])._repr_mimebundle_()
    assert bundle["image/svg+xml"].startswith("<svg")
    assert bundle["application/vnd.vegalite.v5+json"]["layer"]


def test_each_step_time_has_its_noise_band_in_the_scatter_and_the_axis_holds_it():
    figure = chart([row(), row(["mlp"], step_ms=120.0, step_scatter_ms=9.0)])
    (point,) = values(figure, "noise")
    (band,) = [layer for layer in figure.spec["layer"] if layer.get("name") == "noise"]
    low, high = band["encoding"]["x"]["scale"]["domain"]
    assert point["name"] == "mlp"
    assert low < point["low"] < 120.0 < point["high"] < high
    assert point["high"] - 120.0 == pytest.approx(120.0 - point["low"])
    assert "not from 0" in band["encoding"]["y"]["title"]
