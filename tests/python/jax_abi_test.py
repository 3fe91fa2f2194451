"""jax_abi_test.py: xla/ffi_abi.h says of XLA's structs what the header of the jaxlib that is installed says. Exits with 77 without JAX."""

import os
import re
import subprocess
import tempfile
import unittest

from with_jax import ROOT, jax  # exits without JAX, so first

# Ours: XLA's, and the names of members that differ.
STRUCTS = {
    "xla_version": ("XLA_FFI_Api_Version", {"extension": "extension_start", "major": "major_version", "minor": "minor_version"}),
    "xla_buffer": ("XLA_FFI_Buffer", {}),
    "xla_span": ("XLA_FFI_ByteSpan", {"text": "ptr", "size": "len"}),
    "xla_scalar": ("XLA_FFI_Scalar", {}),
    "xla_array": ("XLA_FFI_Array", {}),
    "xla_buffers": ("XLA_FFI_Args", {"buffers": "args"}),
    "xla_buffers ": ("XLA_FFI_Rets", {"buffers": "rets"}),
    "xla_attributes": ("XLA_FFI_Attrs", {"values": "attrs"}),
    "xla_metadata": ("XLA_FFI_Metadata", {"version": "api_version"}),
    "xla_metadata_extension": ("XLA_FFI_Metadata_Extension", {"base": "extension_base"}),
    "xla_error_args": ("XLA_FFI_Error_Create_Args", {"code": "errc"}),
    "xla_stream_args": ("XLA_FFI_Stream_Get_Args", {"context": "ctx"}),
    "xla_allocate_args": ("XLA_FFI_DeviceMemory_Allocate_Args", {"context": "ctx"}),
    "xla_free_args": ("XLA_FFI_DeviceMemory_Free_Args", {"context": "ctx"}),
    "xla_ordinal_args": ("XLA_FFI_DeviceOrdinal_Get_Args", {"context": "ctx", "ordinal": "device_ordinal"}),
    "xla_frame": ("XLA_FFI_CallFrame", {"context": "ctx", "results": "rets", "attributes": "attrs"}),
    "xla_api": ("XLA_FFI_Api", {
        "version": "api_version", "error_create": "XLA_FFI_Error_Create", "stream_get": "XLA_FFI_Stream_Get",
        "memory_allocate": "XLA_FFI_DeviceMemory_Allocate", "memory_free": "XLA_FFI_DeviceMemory_Free", "ordinal_get": "XLA_FFI_DeviceOrdinal_Get",
    }),
}  # fmt: skip
NOT_CALLED = ("internal", "error_get", "error_destroy", "handler_register", "between", "after")
VALUES = {
    "XLA_API_MAJOR": "XLA_FFI_API_MAJOR", "XLA_EXTENSION_METADATA": "XLA_FFI_Extension_Metadata", "XLA_STAGE_EXECUTE": "XLA_FFI_ExecutionStage_EXECUTE",
    "XLA_BUFFER": "XLA_FFI_ArgType_BUFFER", "XLA_ATTR_ARRAY": "XLA_FFI_AttrType_ARRAY", "XLA_ATTR_SCALAR": "XLA_FFI_AttrType_SCALAR",
    "XLA_ATTR_STRING": "XLA_FFI_AttrType_STRING",
    **{f"XLA_{x}": f"XLA_FFI_Error_Code_{x}" for x in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "UNIMPLEMENTED", "INTERNAL")},
    **{f"XLA_{x}": f"XLA_FFI_DataType_{x}" for x in ("PRED", "S16", "S32", "S64", "U8", "U32", "F16", "F32", "F64", "BF16")},
}  # fmt: skip


class Abi(unittest.TestCase):
    def test_header(self):
        with open(f"{ROOT}/xla/ffi_abi.h", encoding="utf-8") as file:
            ours = file.read()
        lines = ['#include "xla/ffi/api/c_api.h"', f'#include "{ROOT}/xla/ffi_abi.h"']
        checked = 0
        for name, (theirs, renamed) in STRUCTS.items():
            body = re.search(rf"typedef struct {name.strip()} {{(.*?)}} {name.strip()};", ours, re.S)[1]
            members = re.findall(r"(?:\(\*(\w+)\)\(|\b(\w+)(?:\[\d+\])?(?:, (\w+))?;)", re.sub(r"/\*.*?\*/", "", body))
            for member in [x for found in members for x in found if x and x not in NOT_CALLED]:
                of = renamed.get(member, "extension_start" if member == "extension" else member)
                lines.append(f"_Static_assert(offsetof({name.strip()}, {member}) == offsetof({theirs}, {of}), \"{name}.{member}\");")
                lines.append(f"_Static_assert(sizeof((({name.strip()} *)0)->{member}) <= sizeof((({theirs} *)0)->{of}), \"size of {name}.{member}\");")
                checked += 1
        self.assertGreater(checked, 60)
        lines += [f'_Static_assert((int){a} == (int){b}, "{a}");' for a, b in VALUES.items()]
        lines.append('_Static_assert(XLA_API_MINOR <= XLA_FFI_API_MINOR, "this jaxlib is earlier than ffi_abi.h");')
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "abi.c")
            with open(path, "w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
            run = subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-fsyntax-only", "-I", jax.ffi.include_dir(), path], capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stderr)

    def test_exports(self):
        library = os.path.join(os.path.dirname(os.path.realpath(os.environ["LUATTN_LIBRARY"])), "libluattn_jax.so")
        lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout.splitlines()
        handlers = [f"luattn_jax_{name}_{platform}" for name in ("backward", "forward") for platform in ("cpu", "cuda")]
        self.assertEqual(sorted(line.split()[-1] for line in lines), [*handlers, "luattn_jax_start"])


if __name__ == "__main__":
    unittest.main()
