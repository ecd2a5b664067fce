/* winnow: element types of arrays and files. */
#ifndef WINNOW_TENSOR_H
#define WINNOW_TENSOR_H

#include <stddef.h>
#include "winnow/context.h"

WN_STABLE_BEGIN

/* The types of tensors. */
typedef enum wn_dtype {
  WN_F32,
  WN_F64,
  WN_BF16,
  WN_F16,
  WN_I32,
  WN_I64,
  WN_U8,
  WN_I8,
  WN_U16,
  WN_U32,
  WN_I16,
  WN_U64,
  WN_BOOL
} wn_dtype;
size_t wn_dtype_size(wn_dtype dtype);      /* bytes per element */
const char *wn_dtype_name(wn_dtype dtype); /* "F32", as safetensors spells it */

WN_API_END

#endif
