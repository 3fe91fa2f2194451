# Every template that is embedded into the library and handed to NVRTC. A file that is not listed here is not found at run time.
set(LUATTN_TEMPLATES
  base.cuh
  contract.cuh
  params.h
  rows.cuh
  aux.cuh
  bwd_simt.cu
  bwd_simt.cuh
  entries_bwd.cuh
  entries_fwd.cuh
  fwd_simt.cu
  fwd_simt.cuh
  simt.cuh
  tensors.cuh
  tiles.cuh
)
