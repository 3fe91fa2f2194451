"""builds.py: the package luattn (python/luattn), loaded once for each build of libluattn.so, and its calls bound to tensors.

A program has one libluattn.so, and so has the package. A benchmark compares builds in one process: each gets the package's
modules under a name of their own, without the ops of torch, which only one of them could register. A bound call is the
package's own: a luattn_args that is filled once (Frame), and one C call for each launch."""

import functools
import importlib
import os
import sys
import types

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SKIP_NEVER = 2  # the value in luattn_skip
FAMILIES = ("simt", "sm80", "sm90")  # in luattn_family's order


@functools.cache
def package_of(path):
    """Loads the package for the library at `path`. Returns a function from a module's name, such as "_call", to the module."""
    name = f"luattn_{len([x for x in sys.modules if x.startswith('luattn_') and '.' not in x])}"
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [os.path.join(ROOT, "python", "luattn")]
    named = os.environ.get("LUATTN_LIBRARY")
    os.environ["LUATTN_LIBRARY"] = os.path.abspath(path)
    try:
        importlib.import_module(f"{name}._library")
    finally:
        del os.environ["LUATTN_LIBRARY"]
        if named is not None:
            os.environ["LUATTN_LIBRARY"] = named
    return lambda module: importlib.import_module(f"{name}.{module}")


class Luattn:
    """A build on the GPU."""

    def __init__(self, path, family=None, deterministic=False, offsets=None, large_scores=False, bits=False):
        """family: of FAMILIES, for every kernel; None: the plan chooses. offsets: with kernels that take
        tensors as parts of a whole (luattn/batch.h), at offset 0, from "numbers" or "arrays". large_scores:
        luattn_args.large_scores. bits: masks from data are evaluated once, before the launches that are timed."""
        self.options = path, family, offsets, large_scores, bits
        self.offsets, self.large_scores, self.bits = offsets, large_scores, bits
        self.package = package_of(path)
        of_family = 0 if family is None else 1 + FAMILIES.index(family)
        self.engine = self.package("engine").engine_of(0, deterministic, of_family)

    @functools.cache
    def deterministic(self):
        """The same library with an engine whose backward gives the same bits in every run."""
        path, family, *rest = self.options
        return Luattn(path, family, True, *rest)

    def spec(self, name, text):
        return self.package("_spec").spec_of(text, name)

    def num_saved(self, spec):
        return spec.num_saved_large_scores if self.large_scores else spec.num_saved

    def parts(self, q):
        """What makes tensors parts of a whole, as Frame.set_batch takes it; empty without offsets."""
        if self.offsets == "numbers":  # without any offset or total, a batch selects plain kernels
            return {"whole": (0, 0, 0, 0, 0, q.shape[1], 0)}
        if self.offsets == "arrays":
            import torch

            zeros = self.package("_tensors").memory(q, 4 * q.shape[0]).zero_().view(torch.int32)
            return {"q_offset": zeros, "kv_offset": zeros}
        return {}

    def prepare_tiles(self, frame, q):
        """Makes the table of packed tiles, or the list of a decode kernel's blocks, outside of the launches that are timed, as for
        all layers of a model. Returns its memory and what makes it again; None where there is none, as in an older library."""
        if not hasattr(self.package("_library").lib, "luattn_batch_prepare_tiles"):
            return None, None
        tensors = self.package("_tensors")
        kernel, size = frame.tiles_size(self.engine)
        table = tensors.memory(q, size)
        if size == 0:
            return None, None

        def prepare():
            frame.prepare_tiles(kernel, table.data_ptr(), size, tensors.place(q)[1])

        prepare()
        return table, prepare

    def evaluate(self, frame, q):
        """Makes the tile bits of a mask from data. Returns what holds them; None where ranges decide the mask."""
        tensors = self.package("_tensors")
        kernel, size = frame.mask_size(self.engine)
        if size == 0:
            return None
        bits = self.package("batch").Bits(tensors.memory(q, size))
        handle, at, place = bits.handle, bits.memory.data_ptr(), tensors.place
        bits.again = lambda: frame.prepare_mask(handle, kernel, at, size, place(q)[1])
        bits.again()
        frame.use_batch(handle)
        return bits

    def bind(self, spec, backward=False, inputs=None, every_tile=False, batch=None, options=None, holds_tiles=None, **tensors):
        """Returns a function without arguments that launches one pass on torch's current stream; its attribute `plan` returns
        the kernel's plan as text, `evaluate` makes the bits of its mask again, and `prepare` the batch's table or list (None
        without them). inputs: name -> (tensor, where its gradient goes or None). batch: what Frame.set_batch takes, in
        place of `offsets`. options: other numbers
        of luattn_args. holds_tiles: whether the batch holds a table of tiles or a list of blocks; None: of packed
        sequences. tensors: by their names there."""
        frame, of_torch = self.package("_call").Frame(spec, backward), self.package("_tensors")
        names, fill, q = self.package("_capi").TENSORS, of_torch.fill, tensors["q"]
        given = [(inputs or {})[one.name] for one in spec.inputs]
        batch = self.parts(q) if batch is None else batch
        frame.set(fill, [tensors.get(name) for name in names])
        frame.set_inputs(fill, [t for t, _ in given], [grad for _, grad in given])
        frame.set_numbers(0.0, list(spec.scalars.values()))
        frame.set_options(skip=SKIP_NEVER if every_tile else 0, large_scores=int(self.large_scores), **(options or {}))
        if batch:
            frame.set_batch(fill, batch)
        holds_tiles = "cu_seqlens_q" in batch if holds_tiles is None else holds_tiles
        table, prepare = self.prepare_tiles(frame, q) if holds_tiles else (None, None)
        bits = self.evaluate(frame, q) if self.bits else None
        engine, run, place = self.engine, frame.run, of_torch.place
        size = frame.workspace_size(engine)
        workspace = of_torch.memory(q, size)
        frame.set_workspace(workspace.data_ptr(), size)

        def launch(keep=(tensors, given, batch, table, bits, workspace)):
            run(engine, place(q)[1])

        launch.plan = lambda: frame.plan(engine)
        launch.evaluate, launch.prepare = bits and bits.again, prepare
        return launch

    def append(self, spec, q, k, v, batch, new_k, new_v):
        """Returns a function without arguments that writes new rows to the caches k and v on torch's current stream. batch: what
        Frame.set_batch takes, of a call of spec with q."""
        frame, of_torch = self.package("_call").Frame(spec, False), self.package("_tensors")
        frame.set(of_torch.fill, (q, k, v, None, None, None))
        frame.set_inputs(of_torch.fill, [])
        frame.set_batch(of_torch.fill, batch)
        engine, place = self.engine, of_torch.place

        def launch(keep=(q, k, v, batch)):
            frame.append(engine, of_torch.fill, new_k, new_v, place(q)[1])

        return launch
