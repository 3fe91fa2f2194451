// arch/early_launch.cuh: a kernel that is launched while the one before it runs (programmatic dependent
// launch), and waits for it itself. From sm_90 on; before, and where the launch does not ask for it, these do
// nothing.
#pragma once
#include "arch/types.cuh"

// The next kernel's blocks may start once all blocks of this grid have come here, or have ended.
LUATTN_FN void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Waits until the kernel before has ended. Then all that it wrote is visible.
LUATTN_FN void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
