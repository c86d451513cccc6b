"""The cells of the tables, read back by an HTML parser, against the record."""

from __future__ import annotations

from html.parser import HTMLParser

from support.lab_records import record

from oar_lightning.lab.page.tables import all_measures, gradients_table, ranking_table, truths_table


class Cells(HTMLParser):
    """The rows of all tables: cells' texts, <b> as stars around it."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.classes: list[str | None] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
            self.classes.append(dict(attrs).get("class"))
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag in ("b", "br") and self.rows:
            self.rows[-1][-1] += "|" if tag == "br" else "!"

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_the_ranking() -> None:
    found = record()
    table = Cells(ranking_table(found))
    body = {row[0]: row[1:] for row in table.rows[2:]}
    assert list(body) == ["strong", "weak control baseline", "middle", "(chance)"]
    assert table.classes[2:] == [None, "control", None, "last"]
    for name, row in zip(found.ranking, body.values(), strict=False):
        for key, cell in zip(found.headlines, row, strict=False):
            mean = found.results["measures"][key]["means"][name]
            value, _, bounds = cell.partition("|")
            assert value.strip("!").startswith(f"{mean['mean']:z.2f}")
            assert bounds == ("" if mean["low"] is None else f"{mean['low']:z.2f} to {mean['high']:z.2f}")
            best = max(found.results["measures"][key]["means"][n]["mean"] for n in ("middle", "strong"))
            assert value.startswith("!") == (mean["mean"] == best and name != "weak")
        assert row[-2] == "12,345.68"
    assert [row[-1] for row in body.values()] == ["123.4", "", "123.4", ""]
    assert {len(row) for row in table.rows[1:]} == {len(found.headlines) + 3}


def test_a_star_is_where_holm_leaves_one() -> None:
    found = record()
    key = found.headlines[0]
    for d in found.results["differences"]:
        d["p_holm"] = 0.01 if (d["measure"], d["estimator"]) == (key, "strong") else 0.5
    table = Cells(ranking_table(found))
    assert [["*" in cell for cell in row[1:]] for row in table.rows[2:5]] == [
        [True] + [False] * (len(found.headlines) + 1),
        [False] * (len(found.headlines) + 2),
        [False] * (len(found.headlines) + 2),
    ]


def test_a_measure_that_is_better_low() -> None:
    found = record()
    measure = found.results["measures"][found.headlines[0]]
    measure["better"] = "low"
    measure["means"]["strong"]["mean"], measure["means"]["middle"]["mean"] = 0.9, 0.1
    table = Cells(ranking_table(found))
    assert "(low is better)" in table.rows[1][1]
    assert [row[1][0] for row in (table.rows[2], table.rows[4])] == ["0", "!"]


def test_all_measures_are_there() -> None:
    found = record()
    measures = found.results["measures"]
    first = next(iter(measures))
    measures[f"{first}_again"] = measures[first]  # its kind is not consecutive
    source = all_measures(found)
    assert source.count("<details>") == len({key.partition(".")[0] for key in found.results["measures"]})
    titles = [cell for row in Cells(source).rows for cell in row]
    assert all(m["title"] in titles for m in found.results["measures"].values())


def test_truths_and_gradients() -> None:
    found = record()
    rows = {row[0]: row[1:] for row in Cells(truths_table(found)).rows[1:]}
    own = found.results["truths"]["monte_carlo"]["reliability"]
    assert rows["monte_carlo"][3:] == [f"{own[key]:.2f}" for key in ("size", "direction", "half_auroc")]
    assert rows["first_wrong_step"][3:] == ["exact", "", ""]
    assert gradients_table(found) == ""
    found.results["gradients"] = {
        "(unweighted)": {"bias": {"mean": None, "low": None, "high": None, "n": 0}},
        "strong": {"signal_share": {"mean": 0.25, "low": 0.125, "high": 0.5, "n": 4}},
    }
    assert Cells(gradients_table(found)).rows == [
        ["estimator", "bias", "signal share"],
        ["strong", "-", "0.25 [0.125, 0.5]"],
        ["(unweighted)", "-", "-"],
    ]
