"""Summaries of traces: made by hand for accelerators, in the format of JAX's profiler, and recorded on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.profiler import ProfileData, StepTraceAnnotation
from jax.sharding import Mesh, PartitionSpec

from taetpu.train.trace import WINDOW, covered_time, summarize_trace, trace_file


def space(**planes):
    """Return a trace from `{plane: {line: [(event, begin, end), ...]}}`, in nanoseconds."""
    names = list(dict.fromkeys(e[0] for lines in planes.values() for events in lines.values() for e in events))
    texts = []
    for plane, lines in planes.items():
        metadata = "".join(
            f"event_metadata {{ key: {i} value {{ id: {i} name: {name!r} }} }} " for i, name in enumerate(names, 1)
        )
        body = ""
        for number, (line, events) in enumerate(lines.items(), 1):
            marks = "".join(
                f"events {{ metadata_id: {names.index(name) + 1} offset_ps: {begin * 1000} "
                f"duration_ps: {(end - begin) * 1000} }} "
                for name, begin, end in events
            )
            body += f'lines {{ id: {number} name: "{line}" timestamp_ns: 0 {marks} }} '
        texts.append(f'planes {{ name: "{plane}" {body} {metadata} }}')
    return ProfileData.from_serialized_xspace(ProfileData.text_proto_to_serialized_xspace("\n".join(texts)))


def test_tpu_summary_separates_compute_transfers_and_idle_time():
    ops = [
        ("%while.1 = (f32[]) while(...)", 100, 900),  # contains the others
        ("%fusion.7 = f32[8,8]{1,0} fusion(...)", 100, 300),
        ("%psum.2 = (f32[8]{0:T(256)}, f32[]) all-reduce(%fusion.7, ...)", 300, 400),
        ("%fusion.7 = f32[8,8]{1,0} fusion(...)", 500, 700),
        ("%fusion.8 = f32[8] fusion(f32[8] %all-reduce.1)", 700, 800),
        ("%fusion.9 = f32[8] fusion(...)", 1500, 1600),  # an evaluation, after the window
    ]
    beside = [("%copy-start.3 = ... copy-start(...)", 200, 600), ("%all-gather-start.4 = ...", 700, 900)]
    trace = space(**{
        "/host:CPU": {"python": [(WINDOW, 0, 1000)]},
        "/device:TPU:0": {"Steps": [("1", 0, 1000)], "XLA Ops": ops, "Async XLA Ops": beside},
    })  # fmt: skip
    found = summarize_trace(trace)
    assert (found["devices"], found["seconds"]) == (1, pytest.approx(1e-6))
    assert found["compute"] == pytest.approx(0.5)
    assert found["transfer"] == pytest.approx(0.1 + 0.1)  # the part of the all-gather that no compute hides
    assert found["idle"] == pytest.approx(0.3)
    first = found["costly"][0]
    assert (first["name"], first["times"], first["share"]) == ("fusion.7", 2, pytest.approx(0.4))
    assert {op["name"] for op in found["costly"]} == {"fusion.7", "fusion.8", "psum.2", "all-gather-start.4"}


def test_gpu_streams_may_overlap_and_devices_are_averaged():
    def streams(kernel_ends):
        return {
            "Stream #7(Compute)": [("loop_fusion_3", 100, kernel_ends)],
            "Stream #9(MemcpyH2D)": [("MemcpyH2D", 0, 200)],
            "Stream #11(MemcpyD2H)": [("MemcpyD2H", 900, 1000)],
            "Stream #13(Compute)": [("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 400, 700)],
        }

    host = {"python": [(WINDOW, 0, 1000)]}
    trace = space(**{"/host:CPU": host, "/device:GPU:0": streams(500), "/device:GPU:1": streams(300)})
    found = summarize_trace(trace)
    assert found["devices"] == 2
    assert found["compute"] == pytest.approx((0.4 + 0.2) / 2)
    assert found["transfer"] == pytest.approx(((100 + 200 + 100) + (100 + 300 + 100)) / 2000)
    assert found["compute"] + found["transfer"] + found["idle"] == pytest.approx(1)


def test_trace_without_annotated_steps_is_refused():
    with pytest.raises(ValueError, match="no steps"):
        summarize_trace(space(**{"/host:CPU": {"python": [("other", 0, 10)]}}))


@pytest.mark.slow
def test_summary_of_a_recorded_cpu_trace_counts_every_iteration(tmp_path):
    mesh = Mesh(np.array(jax.devices()), ("run",))

    def together(x):
        x = jax.lax.fori_loop(0, 7, lambda _, x: jnp.tanh(x @ x), x)
        return jax.lax.psum(x, "run")

    spec = PartitionSpec("run")
    fn = jax.jit(jax.shard_map(together, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    x = jnp.ones((2 * 128, 128)) / 128
    jax.block_until_ready(fn(x))
    with jax.profiler.trace(tmp_path):
        jax.block_until_ready(fn(x))  # not annotated, so not in the summary
        for step in range(3):
            with StepTraceAnnotation(WINDOW, step_num=step):
                jax.block_until_ready(fn(x))
    found = summarize_trace(ProfileData.from_file(str(trace_file(tmp_path))))
    assert found["devices"] == len(jax.devices())
    assert any(op["times"] == 3 * 7 * len(jax.devices()) for op in found["costly"])
    assert 0 < found["compute"] < 1
    assert found["transfer"] > 0
    assert found["compute"] + found["transfer"] + found["idle"] == pytest.approx(1)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=12))
def test_overlapping_spans_count_once(given_spans):
    spans = [(begin, begin + length) for begin, length in given_spans]
    assert covered_time(spans) == len({moment for begin, end in spans for moment in range(begin, end)})
