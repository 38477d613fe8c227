"""Tables in 80 columns."""

import pytest

from taetpu.cli.output import print_table

ROWS = [
    {"arm": name, "runs": 1200, "pack": "3 on 8", "step": "29us-645us", "used": "5.4e-05%-0.089%", "": remark}
    for name, remark in (("baseline", ""), ("a-name-that-is-longer-than-anyone-would-write", "clock not published"))
]


@pytest.mark.parametrize("columns", [20, 60, 70, 80, 200])
def test_words_are_folded_and_numbers_are_not(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(ROWS)
    shown = capsys.readouterr().out
    for figure in ("1,200", "3 on 8", "29us-645us", "5.4e-05%-0.089%", "baseline", "published"):
        assert shown.count(figure) == (1 if figure == "published" else 2 if figure != "baseline" else 1), shown
    letters = "".join(line[: line.index("1,200") if "1,200" in line else 11].strip() for line in shown.splitlines())
    assert "a-name-that" in letters
    assert max(map(len, shown.splitlines())) <= max(80, columns)
    assert ("a-name-that-is-longer-than-anyone-would-write" in shown) == (columns == 200)


def test_column_without_values_is_omitted(capsys):
    print_table([{"arm": "a", "devices": None, "": ""}])
    assert capsys.readouterr().out.split() == ["arm", "a"]


@pytest.mark.parametrize("columns", [30, 60, 80])
def test_no_character_of_a_folded_table_is_lost(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [
        {"fact": "a much longer name", "value": f"{2**200:x}"},
        {"fact": "decoy", "value": "tables, counted on the training split and scored on others"},
    ]
    print_table(rows)
    shown = sorted("".join(capsys.readouterr().out.split()))
    assert shown == sorted("factvalue" + "".join("".join(row.values()) for row in rows).replace(" ", ""))
