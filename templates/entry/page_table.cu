// entry/page_table.cu: page tables of listed pages, without a spec (gen/compile/merge_code.c).
#include "around/before/page_table.cuh"

extern "C" __global__ void __launch_bounds__(page_table_threads)
    luattn_page_table(const __grid_constant__ LuattnPageLists p) {
  page_table(p);
}
