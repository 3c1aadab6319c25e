"""What is read from the text of compiled programs: spelled by hand, by XLA for this machine, and by XLA for TPUs."""

import pytest

from keras_dist.planner.hlo import groups_of, parse_program

MESH = {"data": 2, "model": 4}
BY_DATA, BY_MODEL = [[0, 4], [1, 5], [2, 6], [3, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]]
GROUPS = {
    "replica_groups={{0,1,2,3},{4,5,6,7}}": BY_MODEL,
    "replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true": BY_DATA,
    "replica_groups={}, to_apply=%add": [list(range(8))],
    "replica_groups=[2,4]<=[8]": BY_MODEL,
    "replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}": BY_DATA,
    "replica_groups=[2,4]<=[2,2,2]T(1,0,2)": [[0, 1, 4, 5], [2, 3, 6, 7]],
    "replica_groups=mesh['axis_0'=2,'axis_1'=1,'axis_2'=4] {'axis_0'}": BY_DATA,
    "replica_groups=mesh['a'=2,'b'=4] {'b'}": BY_MODEL,
    "replica_groups=mesh[a=2,b=4] {a,b}": [list(range(8))],
    "replica_groups=mesh['a'=8] {'a':(2)2}": [[0, 2], [1, 3], [4, 6], [5, 7]],
    "replica_groups=mesh['a'=8] {'a':(1)2,'a':(4)2}": [[0, 1, 4, 5], [2, 3, 6, 7]],
    "replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}": [[0, 2, 4, 6], [1, 3, 5, 7]],
    "replica_groups=mesh['x'=2,'y'=2], device_ids=(0,2,1,3) {'x'}": [[0, 1], [2, 3]],
    "source_target_pairs={{0,1},{1,2},{2,2}}": [[0, 1], [1, 2]],
}


@pytest.mark.parametrize("spelled", GROUPS)
def test_groups_are_spelled_in_several_ways(spelled):
    assert groups_of("all-reduce", f", channel_id=1, {spelled}, metadata={{}}", 8).tolist() == GROUPS[spelled]


def test_another_spelling_is_not_taken_for_all_devices():
    with pytest.raises(ValueError, match="groups of all-reduce are not understood"):
        groups_of("all-reduce", "replica_groups=@somewhere", 8)


def collectives(line, operands="%x", more=""):
    """What is found in a program of one such line, whose operands are `x: f32[16]` and `y: bf16[4,2]`."""
    lines = [
        "HloModule jit_step",
        more,
        "ENTRY %main (x: f32[16], y: bf16[4,2]) -> f32[16] {",
        "  %x = f32[16]{0:T(128)} parameter(0)",
        "  %y = bf16[4,2]{1,0:T(8,128)(2,1)} parameter(1)",
        f"  ROOT %out = {line.replace('OPERANDS', operands)}",
        "}",
    ]
    found = parse_program("\n".join(lines)).collectives(MESH)
    return [(each.kind, each.axes, each.nbytes, each.turns) for each in found]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("f32[16]{0} all-reduce(OPERANDS), replica_groups=[2,4]<=[8], to_apply=%add", ("all_reduce", "model", 64)),
        ("f32[64]{0} all-gather(OPERANDS), replica_groups=[2,4]<=[8], dimensions={0}", ("all_gather", "model", 256)),
        (
            "f32[8]{0} reduce-scatter(OPERANDS), replica_groups={{0,4},{1,5},{2,6},{3,7}}",
            ("reduce_scatter", "data", 64),
        ),
        ("f32[16]{0} all-to-all(OPERANDS), replica_groups=[2,4]<=[8]", ("all_to_all", "model", 64)),
        (
            "f32[16]{0} collective-permute(OPERANDS), source_target_pairs={{0,4},{4,0}}",
            ("collective_permute", "data", 64),
        ),
        (
            "(f32[16]{0}, f32[64]{0}) all-gather-start(OPERANDS), replica_groups=[2,4]<=[8]",
            ("all_gather", "model", 256),
        ),
    ],
)
def test_bytes_are_those_of_the_larger_side(line, expected):
    kind, axis, nbytes = expected
    assert collectives(line) == [(kind, (axis,), nbytes, 1)]


def test_all_arrays_of_a_combined_exchange_count():
    line = "(f32[16]{0:T(128)}, bf16[4,2]{1,0:T(8,128)(2,1)}) all-reduce(OPERANDS), replica_groups={}, to_apply=%add"
    assert collectives(line, "%x, %y") == [("all_reduce", ("data", "model"), 64 + 16, 1)]


def test_operands_may_be_written_with_their_types():
    line = "f32[16]{0} all-reduce(OPERANDS), replica_groups=[2,4]<=[8], to_apply=%add"
    assert collectives(line, "f32[16]{0:T(128)} %x") == [("all_reduce", ("model",), 64, 1)]


def test_an_exchange_of_a_device_with_itself_is_none():
    assert collectives("f32[16]{0} all-reduce(OPERANDS), replica_groups=[8,1]<=[8], to_apply=%add") == []
    assert collectives("f32[16]{0} collective-permute(OPERANDS), source_target_pairs={{0,0}}") == []


STARTED = """
%reduced (p: f32[16]) -> f32[16] {
  %p = f32[16]{0} parameter(0)
  ROOT %all-reduce = f32[16]{0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add
}
"""


@pytest.mark.parametrize(
    "line",
    [
        "((f32[16]{0}), f32[16]{0}) async-start(OPERANDS), calls=%reduced",
        "((f32[16]{0}, token[]), f32[16]{0}) call-start(OPERANDS), to_apply=%reduced",
        "f32[16]{0} fusion(OPERANDS), kind=kCustom, calls=%reduced",
        "f32[16]{0} call(OPERANDS), to_apply=%reduced",
    ],
)
def test_what_begins_and_ends_apart_counts_once(line):
    done = "  %done = f32[16]{0} all-reduce-done(%x)"
    assert collectives(line, more=STARTED) == [("all_reduce", ("model",), 64, 1)]
    assert collectives(f"{line}\n{done}", more=STARTED) == [("all_reduce", ("model",), 64, 1)]


SCATTERED = """
%all-reduce-scatter (input: f32[16]) -> f32[2] {
  %input = f32[16]{0} parameter(0)
  %all-reduce = f32[16]{0} all-reduce(%input), replica_groups=[1,8]<=[8], to_apply=%add
  %partition-id = u32[] partition-id()
  %slice = f32[2]{0} dynamic-slice(%all-reduce, %partition-id), dynamic_slice_sizes={2}
  ROOT %bitcast = f32[2]{0} bitcast(%slice)
}
"""


def test_an_all_reduce_of_which_a_fusion_keeps_a_slice_is_a_reduce_scatter_of_that_fusion_s_layer():
    line = (
        'f32[2]{0} fusion(OPERANDS), kind=kCustom, calls=%all-reduce-scatter, metadata={op_name="jit(t)/module up/dot"}'
    )
    assert collectives(line, more=SCATTERED) == [("reduce_scatter", ("data", "model"), 64, 1)]
    kept_whole = SCATTERED.replace("bitcast(%slice)", "bitcast(%all-reduce)")
    assert collectives(line, more=kept_whole) == [("all_reduce", ("data", "model"), 64, 1)]
    text = f"{SCATTERED}ENTRY %main (x: f32[16]) -> f32[2] {{\n  %x = f32[16]{{0}} parameter(0)\n"
    (found,) = parse_program(f"{text}  ROOT %out = {line.replace('OPERANDS', '%x')}\n}}").collectives(MESH)
    assert (found.layer, found.operation) == ("up", "dot")


def test_groups_along_a_part_of_an_axis_say_which_devices_they_are():
    text = """ENTRY %main (x: f32[16]) -> f32[16] {
  %x = f32[16]{0} parameter(0)
  ROOT %y = f32[16]{0} all-reduce(%x), replica_groups={{0,2},{1,3},{4,6},{5,7}}
}"""
    (part,) = parse_program(text).collectives({"data": 4, "model": 2})
    assert (part.axes, part.places) == (("data",), (0, 2))
    (whole,) = parse_program(text).collectives({"a": 2, "b": 2, "c": 2})
    assert (whole.axes, whole.places) == (("b",), ())


SENT = """ENTRY %main (x: f32[16]) -> f32[16] {{
  %x = f32[16]{{0}} parameter(0)
  %token = token[] after-all()
  %recv = (f32[16]{{0}}, u32[], token[]) recv(%token), frontend_attributes={{_xla_megascale_transfer_type="{kind}"}}
  %send = (f32[16]{{0}}, u32[], token[]) send(%x, %token), frontend_attributes={{_xla_megascale_transfer_type="{kind}"}}
  %send-done = token[] send-done(%send)
  ROOT %y = f32[16]{{0}} copy(%x)
}}"""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ALL_REDUCE", ("all_reduce", 64, (0, 4))),
        ("ALL_GATHER", ("all_gather", 128, (0, 4))),
        ("ONE_TO_ONE", ("collective_permute", 64, ())),
    ],
)
def test_what_slices_exchange_is_sent_by_the_run_time(kind, expected):
    mesh, slices = {"data": 4, "model": 2}, [0, 0, 0, 0, 1, 1, 1, 1]
    (found,) = parse_program(SENT.format(kind=kind)).collectives(mesh, slices)
    assert (found.kind, found.nbytes, found.places) == expected
    assert found.axes == ("data",)
    assert parse_program(SENT.format(kind=kind)).collectives(mesh, [0] * 8) == ()


def loop(condition, body="  %next = s32[] add(%counter, %one)", first="constant(0)", known=""):
    """A loop around an all-reduce, whose state is `(counter, x, limit)`."""
    return f"""
%fused_compare (a: s32[], b: s32[]) -> pred[] {{
  %a = s32[]{{:T(128)}} parameter(0)
  %b = s32[]{{:T(128)}} parameter(1)
  ROOT %lt = pred[]{{:T(512)}} compare(%a, %b), direction=LT
}}
%condition (state: (s32[], f32[16], s32[])) -> pred[] {{
  %state = (s32[], f32[16], s32[]) parameter(0)
  %counter = s32[]{{:T(128)}} get-tuple-element(%state), index=0
  %limit = s32[]{{:T(128)}} get-tuple-element(%state), index=2
  %seven = s32[]{{:T(128)}} constant(7)
{condition}
}}
%body (state: (s32[], f32[16], s32[])) -> (s32[], f32[16], s32[]) {{
  %state = (s32[], f32[16], s32[]) parameter(0)
  %counter = s32[] get-tuple-element(%state), index=0
  %x = f32[16]{{0}} get-tuple-element(%state), index=1
  %limit = s32[] get-tuple-element(%state), index=2
  %one = s32[] constant(1)
  %two = s32[] constant(2)
{body}
  %reduced = f32[16]{{0}} all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %out = (s32[], f32[16], s32[]) tuple(%next, %reduced, %limit)
}}
ENTRY %main (x: f32[16]) -> f32[16] {{
  %x = f32[16]{{0}} parameter(0)
  %first = s32[] {first}
  %copied = s32[] copy(%first)
  %limit = s32[] constant(5)
  %start = (s32[], f32[16], s32[]) tuple(%copied, %x, %limit)
  %while = (s32[], f32[16], s32[]) while(%start), condition=%condition, body=%body{known}
  ROOT %out = f32[16]{{0}} get-tuple-element(%while), index=1
}}"""


BY_CONSTANT = "  ROOT %lt = pred[] compare(%counter, %seven), direction=LT"
BY_STATE = "  ROOT %lt = pred[] compare(%counter, %limit), direction=LT"
FUSED = "  ROOT %lt = pred[] fusion(%counter, %seven), kind=kLoop, calls=%fused_compare"


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        (loop(BY_CONSTANT), 7),
        (loop(BY_STATE), 5),  # which no turn changes
        (loop(FUSED), 7),
        (loop(BY_CONSTANT, first="constant(3)"), 4),
        (loop(BY_CONSTANT, body="  %next = s32[] add(%counter, %two)"), 4),
        (loop(BY_CONSTANT, first="constant(9)"), 0),
        (loop(BY_CONSTANT, known=', backend_config={"known_trip_count":{"n":"11"}}'), 11),
        (loop(BY_CONSTANT, body="  %next = s32[] multiply(%counter, %two)"), 0),
        (loop(BY_CONSTANT, first="parameter(1)"), 0),
        (loop("  ROOT %gt = pred[] compare(%counter, %seven), direction=GT"), 0),
    ],
)
def test_turns_of_loops(text, turns):
    (found,) = parse_program(text).collectives(MESH)
    assert (found.axes, found.nbytes, found.turns) == (("model",), 64, turns)


def test_layers_are_those_of_the_innermost_scope_and_of_combined_ones_none():
    def found(name):
        text = f"""ENTRY %main (x: f32[16]) -> f32[16] {{
  %x = f32[16]{{0}} parameter(0)
  ROOT %y = f32[16]{{0}} all-reduce(%x), replica_groups=[2,4]<=[8], metadata={{op_name="{name}" stack_frame_id=1}}
}}"""
        (each,) = parse_program(text).collectives(MESH)
        return each.layer, each.operation

    assert found("jit(train)/transpose(jvp(module blocks|0))/module blocks|0|up/dot_general") == (
        "blocks/0/up",
        "dot_general",
    )
    assert found("jit(train)/dot_general") == ("", "dot_general")
    assert found("jit(t)/(jvp(module up)/dot_general:jvp(module down)/reduce_sum)") == ("", "")


def flops(line):
    text = f"""ENTRY %main (x: f32[4,16,8], y: f32[4,8,32]) -> f32[] {{
  %x = bf16[4,16,8]{{2,1,0}} parameter(0)
  %y = bf16[4,8,32]{{2,1,0}} parameter(1)
  ROOT %out = {line}
}}"""
    return parse_program(text).flops()


@pytest.mark.parametrize(
    "line",
    [
        "f32[4,16,32]{2,1,0} dot(%x, %y), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}",
        "f32[4,16,32]{2,1,0} convolution(%x, %y), window={size=4 stride=3 pad=0_0 lhs_dilate=4}, "
        "dim_labels=0bf_0io->0bf",
        '(f32[4,16,32]{2,1,0}, s8[99]{0}) custom-call(%x, %y), custom_call_target="__cublas$gemm", '
        'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"]}}}',
    ],
)
def test_flops_of_a_batch_of_products_as_each_machine_writes_it(line):
    assert flops(line) == 2 * 4 * 16 * 8 * 32


def test_a_fusion_touches_what_it_takes_and_not_all_that_it_takes_it_from():
    text = """
%taken (stack: f32[48,16], at: s32[], x: f32[1,16]) -> f32[1,16] {
  %stack = f32[48,16]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %x = f32[1,16]{1,0} parameter(2)
  %zero = s32[] constant(0)
  %slice = f32[1,16]{1,0} dynamic-slice(%stack, %at, %zero), dynamic_slice_sizes={1,16}
  ROOT %sum = f32[1,16]{1,0} add(%slice, %x)
}
%put (stack: f32[48,16], at: s32[], x: f32[1,16]) -> f32[48,16] {
  %stack = f32[48,16]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %x = f32[1,16]{1,0} parameter(2)
  %zero = s32[] constant(0)
  ROOT %all = f32[48,16]{1,0} dynamic-update-slice(%stack, %x, %at, %zero)
}
ENTRY %main (stack: f32[48,16], at: s32[], x: f32[1,16]) -> f32[48,16] {
  %stack = f32[48,16]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %x = f32[1,16]{1,0} parameter(2)
  %row = f32[1,16]{1,0} fusion(%stack, %at, %x), kind=kLoop, calls=%taken
  ROOT %out = f32[48,16]{1,0} fusion(%stack, %at, %row), kind=kLoop, calls=%put
}"""
    assert parse_program(text).nbytes_accessed() == (64 + 4 + 64 + 64) + (4 + 64 + 64)


def test_kernels_are_counted_by_name_and_their_metadata_ends_no_computation():
    kernel = """  %splash_mha_fwd.1 = f32[16]{0} custom-call(%x), custom_call_target="tpu_custom_call",\
 frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 512}"
}}, backend_config={}
"""
    cudnn = '  %c.2 = f32[4,4]{1,0} custom-call(%x, %y), custom_call_target="__cudnn$fmhaSoftmax", CONFIG\n'
    cudnn = cudnn.replace("CONFIG", 'backend_config={"lhs_contracting_dimensions":["1"]}')
    lines = [
        "HloModule jit_step",
        "%body (b: (s32[], f32[16])) -> (s32[], f32[16]) {",
        "  %b = (s32[], f32[16]) parameter(0)",
        "  %x = f32[16]{0} get-tuple-element(%b), index=1",
        kernel + "  %d = f32[16]{0} dot(%x, %x), lhs_contracting_dims={}",
        "  ROOT %t = (s32[], f32[16]) tuple(%b, %d)",
        "}",
        "ENTRY %main (x: f32[16], y: bf16[4,2]) -> f32[16] {",
        "  %x = f32[16]{0} parameter(0)",
        "  %y = bf16[4,2]{1,0} parameter(1)",
        cudnn + "  %w = (s32[], f32[16]) while(%x), condition=%none, body=%body, KNOWN",
        "  ROOT %out = f32[16]{0} get-tuple-element(%w), index=1",
        "}",
    ]
    known = 'backend_config={"known_trip_count":{"n":"3"}}'
    program = parse_program("\n".join(lines).replace("KNOWN", known))
    assert program.kernels() == {"fmhaSoftmax": 1, "splash_mha_fwd": 3}
    assert program.flops() == 3 * 2 * 16


@pytest.mark.parametrize(("channel", "chain"), [(12, ""), (11, ', frontend_attributes={chain_id="0"}')])
def test_an_asynchronous_collective_in_three_fusions_counts_once(channel, chain):
    """As libtpu 0.0.42 writes it: the gather is in start, overlapping step and end; a second gather is apart.

    All collectives of `shard_map`s have one channel.
    """
    gather = (
        "all-gather({}), channel_id={}, replica_groups={{{{0,1}}}}, dimensions={{0}}, "
        'metadata={{op_name="jit(train)/sharding_constraint"}}'
    )
    text = f"""
%start (w: bf16[8,16]) -> (bf16[8,16], bf16[16,16], u32[]) {{
  %w = bf16[8,16]{{1,0}} parameter(0)
  %g.1 = bf16[16,16]{{1,0}} {gather.format("%w", 11)}{chain}
  ROOT %s = (bf16[8,16]{{1,0}}, bf16[16,16]{{1,0}}, u32[]) custom-call(%g.1), custom_call_target="AsyncCollectiveStart"
}}
%between (w: bf16[8,16], out: bf16[16,16]) -> (bf16[8,16], bf16[16,16]) {{
  %w = bf16[8,16]{{1,0}} parameter(0)
  %out = bf16[16,16]{{1,0}} parameter(1)
  %g.2 = bf16[16,16]{{1,0}} {gather.format("%w", 11)}{chain}
  ROOT %t = (bf16[8,16]{{1,0}}, bf16[16,16]{{1,0}}) tuple(%w, %g.2)
}}
%end (w: bf16[8,16], out: bf16[16,16]) -> bf16[16,16] {{
  %w = bf16[8,16]{{1,0}} parameter(0)
  %out = bf16[16,16]{{1,0}} parameter(1)
  %g.3 = bf16[16,16]{{1,0}} {gather.format("%w", 11)}{chain}
  ROOT %d = bf16[16,16]{{1,0}} custom-call(%w, %out, %g.3), custom_call_target="AsyncCollectiveDone"
}}
ENTRY %main (w: bf16[8,16]) -> (bf16[16,16], bf16[16,16]) {{
  %w = bf16[8,16]{{1,0}} parameter(0)
  %a = (bf16[8,16]{{1,0}}, bf16[16,16]{{1,0}}, u32[]) fusion(%w), kind=kCustom, calls=%start
  %x = bf16[8,16]{{1,0}} get-tuple-element(%a), index=0
  %y = bf16[16,16]{{1,0}} get-tuple-element(%a), index=1
  %b = (bf16[8,16]{{1,0}}, bf16[16,16]{{1,0}}) fusion(%x, %y), kind=kOutput, calls=%between
  %c = bf16[16,16]{{1,0}} fusion(%x, %y), kind=kCustom, calls=%end
  %plain = bf16[16,16]{{1,0}} {gather.format("%w", channel)}
  ROOT %r = (bf16[16,16]{{1,0}}, bf16[16,16]{{1,0}}) tuple(%c, %plain)
}}"""
    found = parse_program(text).collectives({"data": 2})
    assert [(each.kind, each.nbytes) for each in found] == [("all_gather", 512)] * 2


NESTED = """
%inner (stack: f32[1024,8,128], at: s32[]) -> f32[8,128] {
  %stack = f32[1024,8,128]{2,1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,8,128]{2,1,0} dynamic-slice(%stack, %at, %zero, %zero), dynamic_slice_sizes={1,8,128}
  ROOT %flat = f32[8,128]{1,0} bitcast(%slice)
}
%outer (stack: f32[1024,8,128], at: s32[], x: f32[8,128]) -> (f32[8,128], f32[1024,8,128]) {
  %stack = f32[1024,8,128]{2,1,0} parameter(0)
  %at = s32[] parameter(1)
  %x = f32[8,128]{1,0} parameter(2)
  %row = f32[8,128]{1,0} fusion(%stack, %at), kind=kLoop, calls=%inner
  %sum = f32[8,128]{1,0} add(%row, %x)
  ROOT %t = (f32[8,128]{1,0}, f32[1024,8,128]{2,1,0}) tuple(%sum, %stack)
}
ENTRY %main (stack: f32[1024,8,128], at: s32[], x: f32[8,128]) -> (f32[8,128], f32[1024,8,128]) {
  %stack = f32[1024,8,128]{2,1,0} parameter(0)
  %at = s32[] parameter(1)
  %x = f32[8,128]{1,0} parameter(2)
  ROOT %f = (f32[8,128]{1,0}, f32[1024,8,128]{2,1,0}) fusion(%stack, %at, %x), kind=kOutput, calls=%outer
}"""


def test_a_fusion_in_a_fusion_reads_a_slice_and_a_stack_that_passes_is_not_written():
    row = 8 * 128 * 4
    assert parse_program(NESTED).nbytes_accessed() == row + 4 + row + row


def test_arrays_in_vector_memory_are_no_traffic_and_others_have_the_padding_of_their_tiles():
    line = "copy-start(%x)"
    kinds = "(f32[64,32]{1,0:T(8,128)}, f32[64,32]{1,0:T(8,128)S(1)}, u32[]{:S(2)})"
    text = f"""
ENTRY %main (x: f32[64,32]) -> f32[64,32] {{
  %x = f32[64,32]{{1,0:T(8,128)S(1)}} parameter(0)
  %start = {kinds} {line}
  %done = f32[64,32]{{1,0:T(8,128)}} copy-done(%start)
  %vector = f32[64,32]{{1,0:T(8,128)S(1)}} multiply(%x, %x)
  ROOT %sum = f32[64,32]{{1,0:T(8,128)S(1)}} add(%vector, %done)
}}"""
    padded = 64 * 128 * 4
    assert parse_program(text).nbytes_accessed() == padded + padded  # written by the copy, read by the sum
