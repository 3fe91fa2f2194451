/* host_device.h: macros for code that is both C11 and CUDA C++20: function and assertion, and a limit that both sides have. */
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

#define LUATTN_MAX_HEAD_DIM 256 /* the most channels of a row of q, k and v in a kernel */

/* What a macro stands for, as a string. */
#define ABI_TEXT(macro) ABI_TEXT_OF(macro)
#define ABI_TEXT_OF(text) #text

#endif
