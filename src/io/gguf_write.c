/* Writing GGUF (version 3, little-endian; https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version,
 * counts; keys with typed values; names, shapes (innermost first), types and offsets; tensors at multiples of 32 bytes.
 * Metadata is collected in its encoded form; tensors are produced one at a time. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/misuse.h"
#include "io/checksum.h"
#include "io/gguf_types.h"
#include "winnow/gguf.h"

enum { ALIGNMENT = 32 };

/* Numbers of the value types in a file. */
enum {
  TYPE_UINT8 = 0,
  TYPE_UINT32 = 4,
  TYPE_INT32 = 5,
  TYPE_FLOAT32 = 6,
  TYPE_BOOL = 7,
  TYPE_STRING = 8,
  TYPE_ARRAY = 9
};

struct wn_gguf_values {
  wn_context *ctx;
  uint8_t *data;
  size_t bytes, capacity;
  uint64_t count;
  char **keys; /* [count] */
  size_t key_capacity;
  wn_status status; /* the first failure, or WN_OK */
};

wn_status wn_gguf_values_create(wn_context *ctx, wn_gguf_values **out) {
  WN_CHECK_CALL(WN_POINTER(out));
  WN_TRY(WN_ALLOC(ctx, "GGUF metadata", 1, out));
  wn_handle_mark(*out, WN_HANDLE_GGUF_VALUES);
  (*out)->ctx = ctx;
  return WN_OK;
}

void wn_gguf_values_destroy(wn_gguf_values *v) {
  WN_CHECK_OR(, WN_HANDLE(v, GGUF_VALUES));
  for (uint64_t i = 0; i < v->count; i++) wn_free(v->keys[i]);
  wn_free(v->keys);
  wn_free(v->data);
  wn_free(v);
}

bool wn_gguf_values_has(const wn_gguf_values *v, const char *key) {
  WN_CHECK_OR(false, WN_HANDLE(v, GGUF_VALUES), WN_POINTER(key));
  for (uint64_t i = 0; i < v->count; i++)
    if (!strcmp(v->keys[i], key)) return true;
  return false;
}

/* Makes room for `more` bytes. */
static bool gguf_write_reserve(wn_gguf_values *v, size_t more) {
  size_t need;
  if (v->status != WN_OK) return false;
  if (!wn_add_size(v->bytes, more, &need) || need > (size_t)PTRDIFF_MAX / 2) {
    v->status = wn_fail(v->ctx, WN_ERR_ARGUMENT, "the metadata of a GGUF file does not fit in memory");
    return false;
  }
  v->status = WN_GROW(v->ctx, "GGUF metadata", &v->data, v->bytes, more, &v->capacity);
  return v->status == WN_OK;
}

static void gguf_write_add(wn_gguf_values *v, const void *data, size_t bytes) {
  if (!gguf_write_reserve(v, bytes)) return;
  if (bytes) memcpy(v->data + v->bytes, data, bytes);
  v->bytes += bytes;
}

static void add_u32(wn_gguf_values *v, uint32_t x) {
  gguf_write_add(v, &x, sizeof x);
}

static void add_u64(wn_gguf_values *v, uint64_t x) {
  gguf_write_add(v, &x, sizeof x);
}

static void gguf_write_begin(wn_gguf_values *v, const char *key, uint32_t type) {
  if (v->status != WN_OK) return;
  if (wn_gguf_values_has(v, key)) {
    v->status = wn_fail(v->ctx, WN_ERR_ARGUMENT, "the key \"%.200s\" would be in a GGUF file twice", key);
    return;
  }
  v->status = WN_GROW(v->ctx, "GGUF keys", &v->keys, v->count, 1, &v->key_capacity);
  if (v->status != WN_OK) return;
  char *copy = wn_strdup(v->ctx, key);
  if (!copy) {
    v->status = WN_ERR_MEMORY;
    return;
  }
  v->keys[v->count++] = copy;
  wn_gguf_values_add_string(v, key, strlen(key));
  add_u32(v, type);
}

static void begin_array(wn_gguf_values *v, const char *key, uint32_t type, uint64_t count) {
  gguf_write_begin(v, key, TYPE_ARRAY);
  add_u32(v, type);
  add_u64(v, count);
}

void wn_gguf_values_add_string(wn_gguf_values *v, const char *text, size_t bytes) {
  WN_CHECK_OR(, WN_HANDLE(v, GGUF_VALUES), WN_ARRAY(text, bytes));
  add_u64(v, bytes);
  gguf_write_add(v, text, bytes);
}

void wn_gguf_values_put_uint(wn_gguf_values *v, const char *key, uint32_t value) {
  WN_CHECK_OR(, WN_HANDLE(v, GGUF_VALUES), WN_POINTER(key));
  gguf_write_begin(v, key, TYPE_UINT32);
  add_u32(v, value);
}

void wn_gguf_values_put_float(wn_gguf_values *v, const char *key, float value) {
  WN_CHECK_OR(, WN_HANDLE(v, GGUF_VALUES), WN_POINTER(key));
  gguf_write_begin(v, key, TYPE_FLOAT32);
  gguf_write_add(v, &value, sizeof value);
}

void wn_gguf_values_put_bool(wn_gguf_values *v, const char *key, bool value) {
  WN_CHECK_OR(, WN_HANDLE(v, GGUF_VALUES), WN_POINTER(key));
  const uint8_t byte = value;
  gguf_write_begin(v, key, TYPE_BOOL);
  gguf_write_add(v, &byte, 1);
}

void wn_gguf_values_put_string(wn_gguf_values *v, const char *key, const char *text, size_t bytes) {
  WN_CHECK_OR(, WN_HANDLE(v, GGUF_VALUES), WN_POINTER(key), WN_ARRAY(text, bytes));
  gguf_write_begin(v, key, TYPE_STRING);
  wn_gguf_values_add_string(v, text, bytes);
}

void wn_gguf_values_put_ints(wn_gguf_values *v, const char *key, const int32_t *items, uint64_t count) {
  WN_CHECK_OR(, WN_HANDLE(v, GGUF_VALUES), WN_POINTER(key), WN_ARRAY(items, count));
  begin_array(v, key, TYPE_INT32, count);
  gguf_write_add(v, items, (size_t)count * sizeof *items);
}

void wn_gguf_values_put_floats(wn_gguf_values *v, const char *key, const float *items, uint64_t count) {
  WN_CHECK_OR(, WN_HANDLE(v, GGUF_VALUES), WN_POINTER(key), WN_ARRAY(items, count));
  begin_array(v, key, TYPE_FLOAT32, count);
  gguf_write_add(v, items, (size_t)count * sizeof *items);
}

void wn_gguf_values_put_bytes(wn_gguf_values *v, const char *key, const uint8_t *items, uint64_t count) {
  WN_CHECK_OR(, WN_HANDLE(v, GGUF_VALUES), WN_POINTER(key), WN_ARRAY(items, count));
  begin_array(v, key, TYPE_UINT8, count);
  gguf_write_add(v, items, (size_t)count);
}

void wn_gguf_values_begin_strings(wn_gguf_values *v, const char *key, uint64_t count) {
  WN_CHECK_OR(, WN_HANDLE(v, GGUF_VALUES), WN_POINTER(key));
  begin_array(v, key, TYPE_STRING, count);
}

void wn_gguf_values_copy(wn_gguf_values *v, const wn_gguf_value *value) {
  WN_CHECK_OR(, WN_HANDLE(v, GGUF_VALUES), WN_POINTER(value));
  static const uint32_t unsigned_types[] = {0, 0, 2, 0, 4, 0, 0, 0, 10}, signed_types[] = {0, 1, 3, 0, 5, 0, 0, 0, 11};
  const int w = value->width;
  uint32_t type = TYPE_STRING;
  if (!strcmp(value->key, WN_CHECKSUM_KEY)) return; /* it belongs to the other file */
  if (value->kind == WN_GGUF_UINT) type = unsigned_types[w];
  if (value->kind == WN_GGUF_INT) type = signed_types[w];
  if (value->kind == WN_GGUF_FLOAT) type = w == 8 ? 12 : TYPE_FLOAT32;
  if (value->kind == WN_GGUF_BOOL) type = TYPE_BOOL;
  if (value->is_array)
    begin_array(v, value->key, type, value->count);
  else
    gguf_write_begin(v, value->key, type);
  if (value->kind != WN_GGUF_STRING) {
    gguf_write_add(v, value->place, (size_t)value->count * (size_t)w);
    return;
  }
  for (uint64_t i = 0; i < value->count; i++) {
    const char *text = "";
    size_t bytes = 0;
    wn_gguf_value_string(value, i, &text, &bytes);
    wn_gguf_values_add_string(v, text, bytes);
  }
}

/* ---- the file ---- */

static wn_status tensor_bytes(wn_context *ctx, const char *path, const wn_gguf_tensor *t, size_t *out) {
  bool fits =
      t->name && t->ndim >= 1 && t->ndim <= WN_GGUF_MAX_DIMS && (int)t->type >= 0 && t->type < WN_GGUF_TYPE_COUNT;
  size_t bytes = fits ? wn_gguf_block_bytes(t->type) : 0;
  for (int d = 0; fits && d < t->ndim; d++) {
    const int64_t block = d == t->ndim - 1 ? wn_gguf_block_weights(t->type) : 1;
    fits = t->shape[d] >= 1 && t->shape[d] % block == 0 && wn_mul_size(bytes, (size_t)(t->shape[d] / block), &bytes);
  }
  *out = bytes;
  if (fits) return WN_OK;
  return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: tensor \"%.200s\" has an impossible type or shape", path,
                 t->name ? t->name : "");
}

/* Adds the last key: a text with blank checksums, one per tensor and one for the header. *at: where the text begins. */
static void gguf_write_sums(wn_gguf_values *h, int count, size_t *at) {
  const size_t bytes = wn_checksum_text_bytes(1 + count);
  wn_gguf_values_add_string(h, WN_CHECKSUM_KEY, strlen(WN_CHECKSUM_KEY));
  add_u32(h, TYPE_STRING);
  add_u64(h, bytes);
  *at = h->bytes;
  if (!gguf_write_reserve(h, bytes + 1)) return;
  wn_checksum_text_blank((char *)h->data + h->bytes, 1 + count);
  h->bytes += bytes;
}

/* Everything before the first tensor, padded. *sums: where the text of the checksums begins. */
static wn_status gguf_write_header(wn_context *ctx, const char *path, const wn_gguf_values *v,
                                   const wn_gguf_tensor *tensors, int count, wn_gguf_values *h, size_t *sums) {
  static const uint8_t zeros[ALIGNMENT];
  if (wn_gguf_values_has(v, WN_CHECKSUM_KEY))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: the key " WN_CHECKSUM_KEY " is written by itself", path);
  gguf_write_add(h, "GGUF", 4);
  add_u32(h, 3);
  add_u64(h, (uint64_t)count);
  add_u64(h, v->count + 1);
  gguf_write_add(h, v->data, v->bytes);
  gguf_write_sums(h, count, sums);
  uint64_t offset = 0;
  wn_status status = WN_OK;
  for (int i = 0; i < count && status == WN_OK; i++) {
    const wn_gguf_tensor *t = &tensors[i];
    size_t bytes;
    status = tensor_bytes(ctx, path, t, &bytes);
    if (status != WN_OK) break;
    wn_gguf_values_add_string(h, t->name, strlen(t->name));
    add_u32(h, (uint32_t)t->ndim);
    for (int d = t->ndim - 1; d >= 0; d--) add_u64(h, (uint64_t)t->shape[d]);
    add_u32(h, wn_gguf_type_number(t->type));
    add_u64(h, offset);
    if (!wn_add_size(bytes, ALIGNMENT - 1, &bytes) || offset > INT64_MAX - bytes)
      status = wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: the tensors together are too large", path);
    offset += bytes / ALIGNMENT * ALIGNMENT;
  }
  gguf_write_add(h, zeros, (ALIGNMENT - h->bytes % ALIGNMENT) % ALIGNMENT);
  return status == WN_OK ? h->status : status;
}

static wn_status write_tensor(wn_context *ctx, struct wn_writer *w, const wn_gguf_tensor *t, int i,
                              wn_gguf_produce_fn produce, void *user, uint64_t *sum) {
  size_t bytes;
  void *data;
  WN_TRY(tensor_bytes(ctx, w->path, t, &bytes));
  const size_t padded =
      (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; /* cannot overflow: its offset is in the header */
  WN_TRY(wn_alloc(ctx, t->name, padded, &data));
  wn_status status = produce(user, i, data, bytes);
  *sum = wn_checksum(data, padded);
  if (status == WN_OK) status = wn_writer_write(ctx, w, data, padded);
  wn_free(data);
  return status;
}

static int by_name(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static wn_status gguf_write_check_names(wn_context *ctx, const char *path, const wn_gguf_tensor *tensors, int count) {
  const char **names;
  WN_TRY(WN_ALLOC(ctx, "names of tensors", count + 1, &names));
  wn_status status = WN_OK;
  for (int i = 0; i < count; i++) names[i] = tensors[i].name;
  qsort(names, (size_t)count, sizeof *names, by_name);
  for (int i = 1; i < count && status == WN_OK; i++)
    if (!strcmp(names[i - 1], names[i]))
      status = wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: tensor \"%.200s\" is there twice", path, names[i]);
  wn_free(names);
  return status;
}

wn_status wn_gguf_write(wn_context *ctx, const char *path, const wn_gguf_values *values, const wn_gguf_tensor *tensors,
                        int count, wn_gguf_produce_fn produce, void *user) {
  WN_CHECK_CALL(WN_POINTER(path), WN_HANDLE(values, GGUF_VALUES), WN_ARRAY(tensors, count), WN_ARRAY(produce, count));
  for (int i = 0; i < count; i++)
    WN_CHECK_CALL(WN_POINTER(tensors[i].name), WN_ENUM(tensors[i].type, WN_GGUF_TYPE_COUNT));
  if (values->status != WN_OK) return wn_fail_prefix(ctx, values->status, "cannot write %s", path);
  WN_TRY(gguf_write_check_names(ctx, path, tensors, count));
  struct wn_writer w = {0};
  wn_gguf_values *header;
  size_t sums = 0;
  WN_TRY(wn_gguf_values_create(ctx, &header));
  wn_status status = gguf_write_header(ctx, path, values, tensors, count, header, &sums);
  if (status == WN_OK) status = wn_writer_open(ctx, path, &w);
  if (status == WN_OK) status = wn_writer_write(ctx, &w, header->data, header->bytes);
  for (int i = 0; i < count && status == WN_OK; i++) {
    uint64_t sum;
    status = write_tensor(ctx, &w, &tensors[i], i, produce, user, &sum);
    if (status == WN_OK) wn_checksum_text_put((char *)header->data + sums, 1 + i, sum);
  }
  if (status == WN_OK) {
    wn_checksum_text_put((char *)header->data + sums, 0, wn_checksum_header(header->data, header->bytes, sums));
    status = wn_writer_rewrite(ctx, &w, header->data, header->bytes);
  }
  if (status == WN_OK) status = wn_writer_commit(ctx, &w);
  if (status != WN_OK) wn_writer_abort(&w);
  wn_gguf_values_destroy(header);
  return status;
}
