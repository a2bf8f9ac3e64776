"""Entries of the bug catalogue without a run of their own: rebuilt by other tests, or not, and why."""

ELSEWHERE = [
    ("B-YU6", "kernel compiled with a default",
     "values of the configuration are part of the generated source",
     "tests/native/test_jit_instantiate.py", "test_other_values_are_another_instance"),
    ("B-YU7", "offsets of a struct move", "every member of the argument structs is where the header has it",
     "tests/native/test_npu_kernels.py", "test_arguments_have_the_layout_of_the_header"),
    ("B-YU9", "only one peer visible", "a fake HCCL overwrites its array; the fault is planted",
     "tests/native/test_runtime_close.py", "test_planted_fault_is_seen"),
    ("B-HC6", "repeat registration returns no handle",
     "a fake HCCL counts a memory or tag registered twice as broken",
     "tests/native/test_runtime_close.py", "test_window_stays_registered_and_serves_again_zeroed"),
    ("B-HC8", "unregistered after the memory was freed",
     "freeing registered memory and a wrong order are planted",
     "tests/native/test_runtime_close.py", "test_planted_fault_is_seen"),
    ("B-SH1", "free without a wait for the device", "the wait is taken out of the teardown",
     "tests/native/test_runtime_close.py", "test_planted_fault_is_seen"),
]  # fmt: skip
"""Id, symptom, how, file, test."""

NOT_REBUILT = [
    ("B-YU2", "a fixed order of sources is slow, never wrong, and the twin has no time; its other end, a "
     "forwarder that waits for one peer, is case G66"),
    ("B-YU11", "needs the task queue of torch_npu; the backend asks for the stream, which flushes it"),
    ("B-YU14", "about which interval is timed; the twin has no time"),
    ("B-YU18", "the native backends have no asynchronous events"),
    ("B-SG14", "the EP kernels move bytes and know no dtype; the drop-in takes float8_e4m3fn alone"),
    ("B-SG15", "a package built for another device"),
    ("B-OT8", "a copy of no block is legal on the twin and does nothing"),
    ("B-OT9", "FP8 is made on the host side; the subset has no register that sets saturation"),
    ("B-OT15", "there are no shared experts, nothing is divided by their number"),
    ("11.5, 7054", "padding for `fullmesh_v2`, an operator that is not used here"),
]  # fmt: skip
"""Id, reason."""

ALL_IDS = {
    *(f"B-{source}{n}" for source, most in (("YU", 18), ("SG", 15), ("OT", 18), ("HC", 8), ("SH", 1))
      for n in range(1, most + 1)),
    *(f"11.5, {number}" for number in (6710, 7054, 24443)),
}  # fmt: skip
"""Of the catalogue; fix commits that it lists without an id are not counted."""
