/* kernel_facts.h: names the values of kernel_facts.def: passes, families, types and variants. Host only. */
#ifndef LUATTN_ABI_KERNEL_FACTS_H
#define LUATTN_ABI_KERNEL_FACTS_H

#include <stdint.h>

#include "luattn/compiler.h"

/* For the rows of TARGET_FACT: what follows `key`, where the fact is of an engine's key; where it is a member of plans,
 * too; where it is not, but a family's; where a kernel for another value may serve; and where none does. */
#define OF_KEY(key, ...) OF_PLAN_##key(__VA_ARGS__) OF_FAMILY_##key(__VA_ARGS__)
#define OF_PLAN(key, ...) OF_PLAN_##key(__VA_ARGS__)
#define OF_FAMILY(key, ...) OF_FAMILY_##key(__VA_ARGS__)
#define OF_CLASS(key, ...) OF_CLASS_##key(__VA_ARGS__)
#define OF_CALL(key, ...) OF_CALL_##key(__VA_ARGS__)
#define OF_PLAN_CALL(...) __VA_ARGS__
#define OF_PLAN_FAMILY(...)
#define OF_PLAN_CLASS(...) __VA_ARGS__
#define OF_PLAN_OPTION(...)
#define OF_FAMILY_CALL(...)
#define OF_FAMILY_FAMILY(...) __VA_ARGS__
#define OF_FAMILY_CLASS(...)
#define OF_FAMILY_OPTION(...)
#define OF_CLASS_CALL(...)
#define OF_CLASS_FAMILY(...)
#define OF_CLASS_CLASS(...) __VA_ARGS__
#define OF_CLASS_OPTION(...)
#define OF_CALL_CALL(...) __VA_ARGS__
#define OF_CALL_FAMILY(...) __VA_ARGS__
#define OF_CALL_CLASS(...)
#define OF_CALL_OPTION(...)

/* How many there are. */
enum {
#define KERNEL_PASS(id, text, wants) +1
  KERNEL_PASSES = 0
#include "abi/kernel_facts.def"
  ,
#define KERNEL_FAMILY(id, text) +1
  KERNEL_FAMILIES = 0
#include "abi/kernel_facts.def"
  ,
#define KERNEL_DTYPE(id, text, input, code, bits, unit) +1
  KERNEL_DTYPES = 0
#include "abi/kernel_facts.def"
};

/* "forward"; a number that is none of the enum: "?". */
static inline const char *kernel_pass_name(uint32_t pass) {
  switch (pass) {
#define KERNEL_PASS(id, text, wants) \
  case id:                           \
    return text;
#include "abi/kernel_facts.def"
  }
  return "?";
}

/* "sm90". */
static inline const char *kernel_family_name(uint32_t family) {
  switch (family) {
#define KERNEL_FAMILY(id, text) \
  case id:                      \
    return text;
#include "abi/kernel_facts.def"
  }
  return "?";
}

/* The gradients that a caller of the pass may choose from; 0: none. */
static inline unsigned kernel_pass_wants(uint32_t pass) {
  switch (pass) {
#define KERNEL_PASS(id, text, wants) \
  case id:                           \
    return wants;
#include "abi/kernel_facts.def"
  }
  return 0;
}

/* What a luattn_dtype is, or as the last one for a number that is none. */
typedef struct kernel_dtype_facts {
  const char *text; /* "bf16" */
  luattn_input_dtype input;
  DLDataType dl;
  double unit;
} kernel_dtype_facts;
static inline const kernel_dtype_facts *kernel_dtype(uint32_t dtype) {
  static const kernel_dtype_facts of[] = {
#define KERNEL_DTYPE(id, text, input, code, bits, unit) {text, input, {code, bits, 1}, unit},
#include "abi/kernel_facts.def"
      {"?", LUATTN_INPUT_F32, {kDLFloat, 32, 1}, 0x1p-24}};
  return &of[dtype < KERNEL_DTYPES ? dtype : KERNEL_DTYPES];
}

/* "bf16". */
static inline const char *kernel_dtype_name(uint32_t dtype) { return kernel_dtype(dtype)->text; }

/* Returns KERNEL_DTYPES where tensors of this type are of none. */
static inline uint32_t kernel_dtype_of(DLDataType type) {
  uint32_t i = 0;
  for (; i < KERNEL_DTYPES; ++i) {
    const DLDataType dl = kernel_dtype(i)->dl;
    if (type.code == dl.code && type.bits == dl.bits && type.lanes == 1) break;
  }
  return i;
}

#endif
