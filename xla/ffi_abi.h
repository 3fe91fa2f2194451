/* ffi_abi.h: the part of XLA's FFI that the handlers use, as it lies in memory. Declares it so that a build needs no header of jaxlib:
 * jaxlib has no source distribution that pip could fetch, its wheel has over 80 MB, and releases rename these structs (0.10, 0.11) where
 * their bytes stay. XLA grows them at their ends alone, compares the version that a handler states, and supports it for at least a year.
 * tests/python/jax_abi_test.py compares every member with the xla/ffi/api/c_api.h of the jaxlib that is installed. */
#ifndef LUATTN_XLA_FFI_ABI_H
#define LUATTN_XLA_FFI_ABI_H

#include <stddef.h>
#include <stdint.h>

/* The version that these declarations are of. */
enum { XLA_API_MAJOR = 0, XLA_API_MINOR = 3 };

enum { XLA_EXTENSION_METADATA = 1 };
enum { XLA_STAGE_EXECUTE = 3 };
enum { XLA_BUFFER = 1 };                                               /* types of arguments and results */
enum { XLA_ATTR_ARRAY = 1, XLA_ATTR_SCALAR = 3, XLA_ATTR_STRING = 4 }; /* of attributes */

/* XLA_FFI_Error_Code. */
enum {
  XLA_INVALID_ARGUMENT = 3,
  XLA_RESOURCE_EXHAUSTED = 8,
  XLA_FAILED_PRECONDITION = 9,
  XLA_UNIMPLEMENTED = 12,
  XLA_INTERNAL = 13
};

/* XLA_FFI_DataType. */
enum {
  XLA_PRED = 1,
  XLA_S16 = 3,
  XLA_S32 = 4,
  XLA_S64 = 5,
  XLA_U8 = 6,
  XLA_U32 = 8,
  XLA_F16 = 10,
  XLA_F32 = 11,
  XLA_F64 = 12,
  XLA_BF16 = 16
};

typedef struct xla_error xla_error;
typedef struct xla_context xla_context;

typedef struct xla_extension {
  size_t struct_size;
  int type;
  struct xla_extension *next;
} xla_extension;

typedef struct xla_version {
  size_t struct_size;
  xla_extension *extension;
  int major, minor;
} xla_version;

typedef struct xla_buffer {
  size_t struct_size;
  xla_extension *extension;
  int dtype;
  void *data;
  int64_t rank;
  int64_t *dims;
} xla_buffer;

/* A text that does not end with a 0. */
typedef struct xla_span {
  const char *text;
  size_t size;
} xla_span;

typedef struct xla_scalar {
  int dtype;
  const void *value;
} xla_scalar;

typedef struct xla_array {
  int dtype;
  size_t size;
  const void *data;
} xla_array;

/* Arguments, and results. */
typedef struct xla_buffers {
  size_t struct_size;
  xla_extension *extension;
  int64_t size;
  const int *types;
  xla_buffer **buffers;
} xla_buffers;

typedef struct xla_attributes {
  size_t struct_size;
  xla_extension *extension;
  int64_t size;
  const int *types;
  xla_span **names;
  void **values;
} xla_attributes;

typedef struct xla_metadata {
  size_t struct_size;
  xla_version version;
  uint32_t traits;
} xla_metadata;

typedef struct xla_metadata_extension {
  xla_extension base;
  xla_metadata *metadata;
} xla_metadata_extension;

typedef struct xla_error_args {
  size_t struct_size;
  xla_extension *extension;
  const char *message;
  int code;
} xla_error_args;

typedef struct xla_stream_args {
  size_t struct_size;
  xla_extension *extension;
  xla_context *context;
  void *stream; /* out */
} xla_stream_args;

typedef struct xla_allocate_args {
  size_t struct_size;
  xla_extension *extension;
  xla_context *context;
  size_t size, alignment;
  void *data; /* out */
} xla_allocate_args;

typedef struct xla_free_args {
  size_t struct_size;
  xla_extension *extension;
  xla_context *context;
  size_t size;
  void *data;
} xla_free_args;

typedef struct xla_ordinal_args {
  size_t struct_size;
  xla_extension *extension;
  xla_context *context;
  int32_t ordinal; /* out */
} xla_ordinal_args;

/* XLA's functions, in its order; those without a type are not called. */
typedef struct xla_api {
  size_t struct_size;
  xla_extension *extension;
  xla_version version;
  const void *internal;
  xla_error *(*error_create)(xla_error_args *args);
  void (*error_get)(void);
  void (*error_destroy)(void);
  void (*handler_register)(void);
  xla_error *(*stream_get)(xla_stream_args *args);
  void (*between[4])(void); /* types, contexts, states */
  xla_error *(*memory_allocate)(xla_allocate_args *args);
  xla_error *(*memory_free)(xla_free_args *args);
  void (*after[6])(void); /* threads, futures, runs */
  xla_error *(*ordinal_get)(xla_ordinal_args *args);
} xla_api;

/* The size that XLA expects of a struct with this last member. */
#define XLA_SIZE(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

typedef struct xla_frame {
  size_t struct_size;
  xla_extension *extension;
  const xla_api *api;
  xla_context *context;
  int stage;
  xla_buffers args, results;
  xla_attributes attributes;
} xla_frame;

#endif
