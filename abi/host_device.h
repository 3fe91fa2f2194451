/* host_device.h: macros for code that is both C11 and CUDA C++20: function and assertion. */
#ifndef LUATTN_ABI_HOST_DEVICE_H
#define LUATTN_ABI_HOST_DEVICE_H

#if defined(__CUDACC__)
#define ABI_FN static __host__ __device__ constexpr
#elif defined(__cplusplus)
#define ABI_FN static constexpr
#else
#define ABI_FN static inline
#endif

#ifdef __cplusplus
#define ABI_ASSERT static_assert
#else
#define ABI_ASSERT _Static_assert
#endif

#endif
