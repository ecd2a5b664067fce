/* Element types: sizes, and names as in safetensors. */
#include "winnow/tensor.h"

static const struct {
  const char *name;
  size_t bytes;
} dtypes[] = {
    [WN_F32] = {"F32", 4}, [WN_F64] = {"F64", 8}, [WN_BF16] = {"BF16", 2}, [WN_F16] = {"F16", 2}, [WN_I32] = {"I32", 4},
    [WN_I64] = {"I64", 8}, [WN_U8] = {"U8", 1},   [WN_I8] = {"I8", 1},     [WN_U16] = {"U16", 2}, [WN_U32] = {"U32", 4},
    [WN_I16] = {"I16", 2}, [WN_U64] = {"U64", 8}, [WN_BOOL] = {"BOOL", 1},
};

size_t wn_dtype_size(wn_dtype dtype) {
  return (unsigned)dtype < sizeof dtypes / sizeof *dtypes ? dtypes[dtype].bytes : 0;
}

const char *wn_dtype_name(wn_dtype dtype) {
  return (unsigned)dtype < sizeof dtypes / sizeof *dtypes ? dtypes[dtype].name : "unknown";
}
