/* host_device.h: what makes functions out of one text for C11 and for CUDA C++20. */
#ifndef LUATTN_ABI_HOST_DEVICE_H
#define LUATTN_ABI_HOST_DEVICE_H

#if defined(__CUDACC__)
#define ABI_FN static __host__ __device__ constexpr
#elif defined(__cplusplus)
#define ABI_FN static constexpr
#else
#define ABI_FN static inline
#endif

#endif
