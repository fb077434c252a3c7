"""Snippets of what XLA prints for GPUs, TPUs and CPUs."""

import pytest

from rac_jax.compile import hlo

# ruff: noqa: E501  # lines as XLA prints them

GPU = """\
HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (p: f32[1024]) -> f32[1024] {
  %p = f32[1024]{0} parameter(0)
  %all-reduce-start = f32[1024]{0} all-reduce-start(%p), channel_id=1, replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_0'}, to_apply=%add
  %all-reduce-done = f32[1024]{0} all-reduce-done(%all-reduce-start)
  %all-gather-start = (bf16[2,32]{1,0}, bf16[16,32]{1,0}) all-gather-start(%q), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  %all-gather-done = bf16[16,32]{1,0} all-gather-done(%all-gather-start)
  %all-to-all-start = ((f32[8,2,31]{2,1,0}), f32[8,2,31]{2,1,0}) all-to-all-start(%r), replica_groups={{0,1,2,3,4,5,6,7}}
  %reduce-scatter = f32[128]{0} reduce-scatter(%p), replica_groups=[1,8]<=[8], dimensions={0}, to_apply=%add
  ROOT %copy = f32[1024]{0} copy(%all-reduce-done)
}
"""

TPU = """\
HloModule jit_step

%body (t: (s32[], f32[256])) -> (s32[], f32[256]) {
  %t = (s32[], f32[256]{0}) parameter(0)
  %x = f32[256]{0} get-tuple-element(%t), index=1
  %all-reduce.1 = (f32[256]{0:T(256)}, bf16[64,2]{1,0:T(8,128)(2,1)S(1)}, /*index=2*/f32[]{:T(128)}) all-reduce(%x, %y, %z), replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %r = (s32[], f32[256]{0}) tuple(%i, %x)
}

ENTRY %main.1 (p: f32[256]) -> f32[256] {
  %p = f32[256]{0:T(256)} parameter(0)
  %fusion = f32[256]{0:T(256)S(1)} fusion(%p), kind=kLoop, calls=%fused
  %while = (s32[], f32[256]{0}) while(%tuple), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %copy = f32[256]{0} copy(%fusion)
}
"""


def test_collectives_by_kind_with_their_bytes():
    found = hlo.collectives(GPU)
    assert {kind: (moved.count, moved.payload) for kind, moved in found.items()} == {
        "all-reduce": (1, 4096),
        "all-gather": (1, 16 * 32 * 2),
        "all-to-all": (1, 8 * 2 * 31 * 4),
        "reduce-scatter": (1, 4096),  # what is scattered, not what is left of it
    }
    assert found["all-reduce"].sent == pytest.approx(2 * 7 / 8 * 4096)  # a ring goes around twice
    assert found["all-gather"].sent == pytest.approx(7 / 8 * 1024)


def test_a_collective_in_a_loop_counts_in_every_turn_and_a_tuple_as_one():
    moved = hlo.collectives(TPU)["all-reduce"]
    assert (moved.count, moved.payload) == (5, 5 * (1024 + 256 + 4))
    assert moved.sent == pytest.approx(2 * 1 / 2 * moved.payload)  # groups of two


def test_bytes_of_memory_without_what_stays_on_the_chip():
    # fusion reads p (1024) and writes on chip; in 5 turns all-reduce reads x and writes 1024 + 4; copy writes 1024
    assert hlo.traffic(TPU) == 1024 + 5 * (1024 + 1024 + 4) + 1024


def test_sizes_of_shapes():
    assert hlo.size("bf16[2,3]{1,0}") == 12
    assert hlo.size("(f32[], s8[5], pred[7])") == 4 + 5 + 7
    assert hlo.size("f32[8]{0:T(128)S(1)}") == 0


def test_copies_into_on_chip_memory_read_their_source_once():
    text = """\
ENTRY %main (p: f32[256,4]) -> f32[256,4] {
  %p = f32[256,4]{1,0} parameter(0)
  %copy-start = (f32[256,4]{1,0:T(8,128)S(1)}, f32[256,4]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%p)
  %copy-done = f32[256,4]{1,0:T(8,128)S(1)} copy-done(%copy-start)
  %slice-start = ((f32[256,4]{1,0:T(8,128)}), f32[64,4]{1,0:T(8,128)S(1)}, s32[]{:S(2)}) slice-start(%p), slice={[0:64], [0:4]}
  %slice-done = f32[64,4]{1,0:T(8,128)S(1)} slice-done(%slice-start)
}
"""
    assert hlo.traffic(text) == (4096 + 4) + 1024  # what is copied, with the 4 bytes of its handle, and the slice
