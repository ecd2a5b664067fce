/* winnow: GGUF files (versions 2 and 3, little-endian), the format of llama.cpp: metadata, tokenizer and tensors, many
 * of them quantised in blocks. Opening maps the file read-only and checks everything but the tensors' values: strings,
 * counts, types, shapes and offsets, with overflow-safe arithmetic; only names are copied. */
#ifndef WINNOW_GGUF_H
#define WINNOW_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

WN_STABLE_BEGIN

/* How a tensor's rows are stored. Quantised types have blocks of 32 (_0, _1) or 256 (_K) weights of a row; gguf_types.c
 * describes their content. */
typedef enum wn_gguf_type {
  WN_GGUF_F32,
  WN_GGUF_F16,
  WN_GGUF_BF16,
  WN_GGUF_Q8_0,
  WN_GGUF_Q4_0,
  WN_GGUF_Q4_1,
  WN_GGUF_Q5_0,
  WN_GGUF_Q5_1,
  WN_GGUF_Q4_K,
  WN_GGUF_Q5_K,
  WN_GGUF_Q6_K
} wn_gguf_type;
#define WN_GGUF_TYPE_COUNT 11
const char *wn_gguf_type_name(wn_gguf_type type); /* "Q4_K" */
int64_t wn_gguf_block_weights(wn_gguf_type type); /* weights per block: 1, 32 or 256 */
size_t wn_gguf_block_bytes(wn_gguf_type type);

/* The largest number of dimensions of a tensor. */
#define WN_GGUF_MAX_DIMS 4
typedef struct wn_gguf_tensor {
  const char *name;
  wn_gguf_type type;
  int ndim;
  int64_t shape[WN_GGUF_MAX_DIMS]; /* outermost first, as everywhere in winnow (the file has them innermost first) */
  const void *data;                /* rows of the last dimension in whole blocks; valid while the file is open */
  size_t bytes;
} wn_gguf_tensor;

/* A GGUF file, mapped read-only; every length, offset and count in it is checked on opening. */
typedef struct wn_gguf wn_gguf;
wn_status wn_gguf_open(wn_context *ctx, const char *path, wn_gguf **out);
/* The same on a caller's buffer, borrowed until close; error details name the file `name`. */
wn_status wn_gguf_open_memory(wn_context *ctx, const char *name, const void *data, size_t bytes, wn_gguf **out);
void wn_gguf_close(wn_gguf *file); /* NULL is allowed */

/* Tensors, in file order. */
int wn_gguf_tensor_count(const wn_gguf *file);
const wn_gguf_tensor *wn_gguf_tensor_at(const wn_gguf *file, int i); /* in file order; NULL past the last */
const wn_gguf_tensor *wn_gguf_tensor_find(const wn_gguf *file, const char *name); /* NULL when absent */

/* Metadata. */
typedef enum wn_gguf_kind { WN_GGUF_UINT, WN_GGUF_INT, WN_GGUF_FLOAT, WN_GGUF_BOOL, WN_GGUF_STRING } wn_gguf_kind;
typedef struct wn_gguf_value {
  const char *key;
  wn_gguf_kind kind; /* of the value, or of the elements */
  bool is_array;
  uint64_t count;          /* 1, or the array's length */
  const void *place;       /* private */
  const uint64_t *offsets; /* private */
  int width;               /* private */
} wn_gguf_value;
int wn_gguf_value_count(const wn_gguf *file);
const wn_gguf_value *wn_gguf_value_at(const wn_gguf *file, int i);
const wn_gguf_value *wn_gguf_value_find(const wn_gguf *file, const char *key); /* NULL when absent */
/* Reads element i < count of a value; the kind must match (bool reads as uint), else the result is false and *out
 * unchanged. A uint can be read as an int where it fits, and vice versa. */
bool wn_gguf_value_int(const wn_gguf_value *value, uint64_t i, int64_t *out);
bool wn_gguf_value_float(const wn_gguf_value *value, uint64_t i, double *out);
/* An array of one-byte numbers, pointing into the file. */
bool wn_gguf_value_bytes(const wn_gguf_value *value, const void **out, size_t *bytes);
/* Not NUL-terminated; may hold any bytes. Valid while the file is open. */
bool wn_gguf_value_string(const wn_gguf_value *value, uint64_t i, const char **out, size_t *bytes);

/* Converts rows first..first+rows-1 of the tensor, viewed as [rows, last dimension], to floats: out [rows, last
 * dimension]. */
wn_status wn_gguf_dequantize(wn_context *ctx, const wn_gguf_tensor *tensor, int64_t first, int64_t rows, float *out);

WN_API_END
WN_EXPERIMENTAL_BEGIN

/* Compares header and tensors with the checksums that winnow writes under the key winnow.checksums. *has and errors as
 * in wn_safetensors_verify. */
wn_status wn_gguf_verify(wn_context *ctx, const wn_gguf *file, bool *has);

/* ---- writing ---- */

/* Metadata to be written, in order. A failure is kept and reported by wn_gguf_write. */
typedef struct wn_gguf_values wn_gguf_values;
wn_status wn_gguf_values_create(wn_context *ctx, wn_gguf_values **out);
void wn_gguf_values_destroy(wn_gguf_values *values); /* NULL is allowed */
bool wn_gguf_values_has(const wn_gguf_values *values, const char *key);
void wn_gguf_values_put_uint(wn_gguf_values *values, const char *key, uint32_t value);
void wn_gguf_values_put_float(wn_gguf_values *values, const char *key, float value);
void wn_gguf_values_put_bool(wn_gguf_values *values, const char *key, bool value);
void wn_gguf_values_put_string(wn_gguf_values *values, const char *key, const char *text, size_t bytes);
void wn_gguf_values_put_ints(wn_gguf_values *values, const char *key, const int32_t *items, uint64_t count);
void wn_gguf_values_put_floats(wn_gguf_values *values, const char *key, const float *items, uint64_t count);
void wn_gguf_values_put_bytes(wn_gguf_values *values, const char *key, const uint8_t *items, uint64_t count);
/* Begins a list of `count` strings, which are added one at a time. */
void wn_gguf_values_begin_strings(wn_gguf_values *values, const char *key, uint64_t count);
void wn_gguf_values_add_string(wn_gguf_values *values, const char *text, size_t bytes);
/* Copies a value of another file unchanged. A value that holds checksums is skipped, since the new file gets its
 * own. */
void wn_gguf_values_copy(wn_gguf_values *values, const wn_gguf_value *value);

/* Writes a file of version 3: tensors [count] with name, type, ndim and shape; produce fills the `bytes` of tensor i,
 * one tensor at a time, in order. The file appears under its name when it is complete. */
typedef wn_status (*wn_gguf_produce_fn)(void *user, int i, void *out, size_t bytes);
wn_status wn_gguf_write(wn_context *ctx, const char *path, const wn_gguf_values *values, const wn_gguf_tensor *tensors,
                        int count, wn_gguf_produce_fn produce, void *user);

/* Can wn_gguf_encode write this type? True for every type that can be read. */
bool wn_gguf_can_encode(wn_gguf_type type);
/* Converts floats to a storage type: out [n / block] blocks, n a multiple of the block. F16, BF16 and Q8_0 are rounded
 * to nearest; the scales of the others (Q4_0 to Q6_K) are searched for, so that the weighted sum of squared errors is
 * small (gguf_fit.c). Blocks are shared among the context's threads; the result depends neither on their number nor on
 * the CPU. WN_ERR_ARGUMENT for a number whose scale F16 cannot hold. */
wn_status wn_gguf_encode(wn_context *ctx, wn_gguf_type type, const float *x, int64_t n, void *out);

WN_API_END
#endif
