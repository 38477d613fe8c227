"""`taetpu chips`: its table, its slices, and its JSON with sources."""

import json


def test_table_fits_a_terminal_and_marks_unknown_prices(taetpu):
    done = taetpu("chips")
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.out.splitlines())) <= 80
    row, *_ = [line.split() for line in done.out.splitlines() if line.startswith("tpu7x")]
    assert row[:8] == ["tpu7x", "2307", "192", "GiB", "7380", "no", "rate", "no"]


def test_hosts_have_their_size_and_the_runtime_that_boots_them(taetpu):
    lines = [line.split() for line in taetpu("chips").out.splitlines()]
    assert ["v5e", "8", "224", "384", "GB", "v2-alpha-tpuv5-lite"] in lines
    assert ["v3,", "of", "several", "4", "48", "340", "GB", "tpu-ubuntu2204-base"] in lines
    assert ["v2", "4", "unknown", "unknown", "tpu-ubuntu2204-base"] in lines
    assert ["tpu7x", "1", "56", "240", "GB", "none"] in lines


def test_slice_is_printed_in_full(taetpu):
    lines = dict(line.rsplit(maxsplit=1) for line in taetpu("chips", "v5e-8").out.splitlines())
    shown = ("name", "topology", "hosts", "host vCPUs", "host memory GB", "USD per hour")
    assert {key: lines[key] for key in shown} == {
        "name": "v5litepod-8",
        "topology": "v5e:2x4",
        "hosts": "1",
        "host vCPUs": "224",
        "host memory GB": "384",
        "USD per hour": "9.60",
    }


def test_json_has_null_for_no_rate_and_a_source_for_each_figure(taetpu):
    found = taetpu("chips", "tpu7x-8", "--json").json()
    assert (found["devices"], found["usd_per_hour"], found["runtime"]) == (8, None, None)
    assert found["chip"]["sources"]["bf16_flops"]["url"].startswith("https://")
    assert found["chip"]["host_sizes"]["4"] == {"vcpus": found["host_vcpus"], "memory_gb": found["host_memory_gb"]}
    assert found["chip"]["sources"]["host_sizes"]["url"].startswith("https://docs.cloud.google.com/")
    everything = taetpu("chips", "--json").json()
    assert {chip["name"] for chip in everything["chips"]} >= {"v2", "v5e", "tpu7x"}
    assert json.loads(json.dumps(everything)) == everything
