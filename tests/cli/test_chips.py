"""`taetpu chips`: the table fits a terminal, a price that is not known is no number, and JSON has the sources."""

import json


def test_the_table_fits_a_terminal_and_an_unknown_price_is_no_rate(taetpu):
    done = taetpu("chips")
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.out.splitlines())) <= 80
    (row,) = [line.split() for line in done.out.splitlines() if line.startswith("tpu7x")]
    assert row[:8] == ["tpu7x", "2307", "192", "GiB", "7380", "no", "rate", "no"]


def test_a_slice_is_told_in_full(taetpu):
    lines = dict(line.rsplit(maxsplit=1) for line in taetpu("chips", "v5e-8").out.splitlines())
    assert {key: lines[key] for key in ("name", "topology", "hosts", "USD per hour")} == {
        "name": "v5litepod-8",
        "topology": "v5e:2x4",
        "hosts": "1",
        "USD per hour": "9.60",
    }


def test_json_has_null_for_no_rate_and_a_source_for_each_figure(taetpu):
    found = taetpu("chips", "tpu7x-8", "--json").json()
    assert (found["devices"], found["usd_per_hour"], found["runtime"]) == (8, None, None)
    assert found["chip"]["sources"]["bf16_flops"]["url"].startswith("https://")
    everything = taetpu("chips", "--json").json()
    assert {chip["name"] for chip in everything["chips"]} >= {"v2", "v5e", "tpu7x"}
    assert json.loads(json.dumps(everything)) == everything


def test_the_remedy_for_a_wrong_name_mentions_all(taetpu):
    done = taetpu("chips", "v3-4")
    assert done.code == 2
    assert "v3-8, v3-32, v3-64; `all` shows every chip" in done.err


def test_all_is_a_name_for_every_chip(taetpu):
    assert taetpu("chips", "All").out == taetpu("chips").out
