/* GGUF: "GGUF", version, counts; keys with typed values; names, shapes, types and offsets of the tensors; padding;
 * data. The header is read once with a cursor that cannot pass the end of the file. Tensors must lie inside the data,
 * aligned, without overlap (holes are padding). Cost: one pass over the header and two sorts. */
#include "winnow/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/misuse.h"
#include "io/checksum.h"
#include "io/gguf_types.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "values and tensors are used as the file has them, which is little-endian"
#endif

struct wn_gguf {
  struct wn_map map; /* empty for a caller's buffer */
  char *name;
  wn_gguf_tensor *tensors;  /* [tensor_count], in file order */
  wn_gguf_tensor **by_name; /* [tensor_count] */
  wn_gguf_value *values;    /* [value_count] */
  wn_gguf_value **by_key;   /* [value_count] */
  int tensor_count, value_count;
  const uint8_t *bytes; /* the whole file, [size]; tensor data begins at `start` */
  size_t size, start;
};

/* The types of metadata values, by their number in the file. */
enum { TYPE_STRING = 8, TYPE_ARRAY = 9 };
static const struct {
  wn_gguf_kind kind;
  int width;
} value_types[] = {
    {WN_GGUF_UINT, 1}, {WN_GGUF_INT, 1},   {WN_GGUF_UINT, 2},  {WN_GGUF_INT, 2},    {WN_GGUF_UINT, 4},
    {WN_GGUF_INT, 4},  {WN_GGUF_FLOAT, 4}, {WN_GGUF_BOOL, 1},  {WN_GGUF_STRING, 0}, {WN_GGUF_STRING, 0},
    {WN_GGUF_UINT, 8}, {WN_GGUF_INT, 8},   {WN_GGUF_FLOAT, 8},
};
#define VALUE_TYPES (sizeof value_types / sizeof *value_types)

/* The unread part of the header. */
struct cursor {
  wn_context *ctx;
  const char *file;
  const uint8_t *begin, *at, *end;
};

static wn_status truncated(const struct cursor *c, const char *what) {
  return wn_fail(c->ctx, WN_ERR_FORMAT, "%s: truncated at byte %zu: %s should follow", c->file,
                 (size_t)(c->at - c->begin), what);
}

static wn_status gguf_take(struct cursor *c, const char *what, uint64_t bytes, const void **out) {
  if (bytes > (uint64_t)(c->end - c->at)) return truncated(c, what);
  *out = c->at;
  c->at += bytes;
  return WN_OK;
}

#define TAKE(c, what, out) gguf_take_number(c, what, sizeof *(out), out)
static wn_status gguf_take_number(struct cursor *c, const char *what, size_t bytes, void *out) {
  const void *p = NULL;
  WN_TRY(gguf_take(c, what, bytes, &p));
  memcpy(out, p, bytes);
  return WN_OK;
}

static wn_status take_string(struct cursor *c, const char *what, const char **out, uint64_t *bytes) {
  const void *p = NULL;
  WN_TRY(TAKE(c, what, bytes));
  WN_TRY(gguf_take(c, what, *bytes, &p));
  *out = p;
  return WN_OK;
}

/* A key or name: copied, without NUL inside. */
static wn_status take_name(struct cursor *c, const char *what, char **out) {
  const char *text = NULL;
  uint64_t bytes = 0;
  WN_TRY(take_string(c, what, &text, &bytes));
  if (bytes == 0 || bytes > WN_LIMIT_TENSOR_NAME || memchr(text, 0, (size_t)bytes))
    return wn_fail(c->ctx, WN_ERR_FORMAT,
                   "%s: %s before byte %zu has %llu bytes or a NUL; 1 to %zu without are expected", c->file, what,
                   (size_t)(c->at - c->begin), (unsigned long long)bytes, WN_LIMIT_TENSOR_NAME);
  WN_TRY(WN_ALLOC(c->ctx, what, bytes + 1, out));
  memcpy(*out, text, (size_t)bytes);
  return WN_OK;
}

static wn_status read_strings(struct cursor *c, wn_gguf_value *v) {
  /* Each element takes at least 8 bytes, which limits what is allocated. */
  if (v->count > (uint64_t)(c->end - c->at) / 8) return truncated(c, v->key);
  uint64_t *offsets;
  WN_TRY(WN_ALLOC(c->ctx, "places of strings", v->count, &offsets));
  v->offsets = offsets;
  v->place = c->at;
  for (uint64_t i = 0; i < v->count; i++) {
    const char *text;
    uint64_t bytes;
    offsets[i] = (uint64_t)(c->at - (const uint8_t *)v->place);
    WN_TRY(take_string(c, v->key, &text, &bytes));
  }
  return WN_OK;
}

static wn_status read_value(struct cursor *c, wn_gguf_value *v) {
  char *key = NULL;
  WN_TRY(take_name(c, "a key", &key));
  v->key = key;
  uint32_t type;
  WN_TRY(TAKE(c, key, &type));
  v->count = 1;
  v->is_array = type == TYPE_ARRAY;
  if (v->is_array) {
    WN_TRY(TAKE(c, key, &type));
    WN_TRY(TAKE(c, key, &v->count));
  }
  if (type >= VALUE_TYPES || type == TYPE_ARRAY)
    return wn_fail(c->ctx, WN_ERR_FORMAT, "%s: the value of \"%.200s\" has type %u, which is not known%s", c->file, key,
                   type, type == TYPE_ARRAY ? " inside an array" : "");
  v->kind = value_types[type].kind;
  v->width = value_types[type].width;
  if (v->kind == WN_GGUF_STRING) return read_strings(c, v);
  size_t bytes;
  if (v->count > SIZE_MAX || !wn_mul_size((size_t)v->count, (size_t)v->width, &bytes)) return truncated(c, key);
  return gguf_take(c, key, bytes, &v->place);
}

static wn_status gguf_read_tensor(struct cursor *c, wn_gguf_tensor *t, uint64_t *offset) {
  char *name = NULL;
  uint32_t ndim, number;
  WN_TRY(take_name(c, "a tensor's name", &name));
  t->name = name;
  WN_TRY(TAKE(c, name, &ndim));
  if (ndim < 1 || ndim > WN_GGUF_MAX_DIMS)
    return wn_fail(c->ctx, WN_ERR_FORMAT, "%s: tensor \"%.200s\": %u dimensions; expected 1 to %d", c->file, name, ndim,
                   WN_GGUF_MAX_DIMS);
  t->ndim = (int)ndim;
  for (int d = t->ndim - 1; d >= 0; d--) {
    uint64_t size;
    WN_TRY(TAKE(c, name, &size));
    if (size < 1 || size > INT64_MAX)
      return wn_fail(c->ctx, WN_ERR_FORMAT, "%s: tensor \"%.200s\": dimension %d is %llu", c->file, name, d,
                     (unsigned long long)size);
    t->shape[d] = (int64_t)size;
  }
  WN_TRY(TAKE(c, name, &number));
  if (!wn_gguf_type_find(number, &t->type))
    return wn_fail(
        c->ctx, WN_ERR_UNSUPPORTED,
        "%s: tensor \"%.200s\" has type %u; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K "
        "are read",
        c->file, name, number);
  const int64_t weights = wn_gguf_block_weights(t->type);
  if (t->shape[t->ndim - 1] % weights != 0)
    return wn_fail(c->ctx, WN_ERR_FORMAT, "%s: tensor \"%.200s\": rows of %lld are not whole blocks of %lld (%s)",
                   c->file, name, (long long)t->shape[t->ndim - 1], (long long)weights, wn_gguf_type_name(t->type));
  size_t bytes = wn_gguf_block_bytes(t->type);
  bool fits = true;
  for (int d = 0; d < t->ndim && fits; d++)
    fits = wn_mul_size(bytes, (size_t)(d == t->ndim - 1 ? t->shape[d] / weights : t->shape[d]), &bytes);
  if (!fits) return wn_fail(c->ctx, WN_ERR_FORMAT, "%s: tensor \"%.200s\" is larger than can be", c->file, name);
  t->bytes = bytes;
  return TAKE(c, name, offset);
}

static int compare_tensors(const void *a, const void *b) {
  return strcmp((*(wn_gguf_tensor *const *)a)->name, (*(wn_gguf_tensor *const *)b)->name);
}

static int compare_values(const void *a, const void *b) {
  return strcmp((*(wn_gguf_value *const *)a)->key, (*(wn_gguf_value *const *)b)->key);
}

static int gguf_compare_places(const void *a, const void *b) {
  const char *p = (*(wn_gguf_tensor *const *)a)->data, *q = (*(wn_gguf_tensor *const *)b)->data;
  return p < q ? -1 : p > q;
}

static wn_status read_values(struct cursor *c, struct wn_gguf *f, uint64_t count) {
  WN_TRY(WN_ALLOC(c->ctx, "GGUF values", count, &f->values));
  WN_TRY(WN_ALLOC(c->ctx, "GGUF keys", count, &f->by_key));
  while ((uint64_t)f->value_count < count) {
    wn_gguf_value *v = &f->values[f->value_count];
    f->by_key[f->value_count++] = v; /* counted before it is read, so that an error frees what it owns */
    WN_TRY(read_value(c, v));
  }
  if (count) qsort(f->by_key, (size_t)count, sizeof *f->by_key, compare_values);
  for (uint64_t i = 1; i < count; i++)
    if (strcmp(f->by_key[i - 1]->key, f->by_key[i]->key) == 0)
      return wn_fail(c->ctx, WN_ERR_FORMAT, "%s: key \"%.200s\" is there twice", c->file, f->by_key[i]->key);
  return WN_OK;
}

static wn_status alignment(struct cursor *c, const struct wn_gguf *f, uint64_t *out) {
  int64_t given = 32;
  const wn_gguf_value *v = wn_gguf_value_find(f, "general.alignment");
  if (v && (v->is_array || !wn_gguf_value_int(v, 0, &given) || given < 1 || given > 1 << 20 || (given & (given - 1))))
    return wn_fail(c->ctx, WN_ERR_FORMAT, "%s: general.alignment is %lld; a power of two to 1048576 is expected",
                   c->file, (long long)given);
  *out = (uint64_t)given;
  return WN_OK;
}

static wn_status read_tensors(struct cursor *c, struct wn_gguf *f, uint64_t count, uint64_t *offsets) {
  WN_TRY(WN_ALLOC(c->ctx, "GGUF tensors", count, &f->tensors));
  WN_TRY(WN_ALLOC(c->ctx, "GGUF names", count, &f->by_name));
  while ((uint64_t)f->tensor_count < count) {
    const int i = f->tensor_count++;
    f->by_name[i] = &f->tensors[i];
    WN_TRY(gguf_read_tensor(c, &f->tensors[i], &offsets[i]));
  }
  uint64_t align = 32;
  WN_TRY(alignment(c, f, &align));
  const uint64_t header = (uint64_t)(c->at - c->begin), size = (uint64_t)(c->end - c->begin);
  const uint64_t start = (header + align - 1) / align * align;
  f->bytes = c->begin;
  f->size = (size_t)size;
  f->start = (size_t)(start < size ? start : size);
  for (uint64_t i = 0; i < count; i++) {
    wn_gguf_tensor *t = &f->tensors[i];
    if (offsets[i] % align != 0 || start > size || offsets[i] > size - start || t->bytes > size - start - offsets[i])
      return wn_fail(
          c->ctx, WN_ERR_FORMAT,
          "%s: tensor \"%.200s\": offset %llu and %zu bytes are not inside the file's %llu bytes of data, or not "
          "a multiple of %llu",
          c->file, t->name, (unsigned long long)offsets[i], t->bytes,
          (unsigned long long)(start > size ? 0 : size - start), (unsigned long long)align);
    t->data = c->begin + start + offsets[i];
  }
  if (count) qsort(f->by_name, (size_t)count, sizeof *f->by_name, gguf_compare_places);
  for (uint64_t i = 1; i < count; i++)
    if ((const uint8_t *)f->by_name[i - 1]->data + f->by_name[i - 1]->bytes > (const uint8_t *)f->by_name[i]->data)
      return wn_fail(c->ctx, WN_ERR_FORMAT, "%s: tensors \"%.200s\" and \"%.200s\" overlap", c->file,
                     f->by_name[i - 1]->name, f->by_name[i]->name);
  if (count) qsort(f->by_name, (size_t)count, sizeof *f->by_name, compare_tensors);
  for (uint64_t i = 1; i < count; i++)
    if (strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) == 0)
      return wn_fail(c->ctx, WN_ERR_FORMAT, "%s: tensor \"%.200s\" is there twice", c->file, f->by_name[i]->name);
  return WN_OK;
}

static wn_status read_file(wn_context *ctx, struct wn_gguf *f, const uint8_t *data, size_t bytes) {
  struct cursor c = {.ctx = ctx, .file = f->name, .begin = data, .at = data, .end = data + bytes};
  if (bytes < 4 || memcmp(data, "GGUF", 4) != 0)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: not a GGUF file: it does not begin with \"GGUF\"", f->name);
  c.at += 4;
  uint32_t version;
  uint64_t tensors, values;
  WN_TRY(TAKE(&c, "the version", &version));
  if (version != 2 && version != 3)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: GGUF version %u%s; versions 2 and 3 are read", f->name, version,
                   version == 0x02000000 || version == 0x03000000 ? " (a big-endian file)" : "");
  WN_TRY(TAKE(&c, "the number of tensors", &tensors));
  WN_TRY(TAKE(&c, "the number of keys", &values));
  /* A tensor takes at least 24 bytes of header, a key 13: larger counts are refused before anything is allocated. */
  const uint64_t left = (uint64_t)(c.end - c.at);
  if (tensors > left / 24 || values > left / 13)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: %llu tensors and %llu keys do not fit in %zu bytes", f->name,
                   (unsigned long long)tensors, (unsigned long long)values, bytes);
  if (tensors > WN_LIMIT_GGUF_TENSORS || values > WN_LIMIT_GGUF_KEYS)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: %llu tensors and %llu keys; at most %zu and %zu are read", f->name,
                   (unsigned long long)tensors, (unsigned long long)values, WN_LIMIT_GGUF_TENSORS, WN_LIMIT_GGUF_KEYS);
  WN_TRY(read_values(&c, f, values));
  uint64_t *offsets;
  WN_TRY(WN_ALLOC(ctx, "GGUF offsets", tensors, &offsets));
  const wn_status status = read_tensors(&c, f, tensors, offsets);
  wn_free(offsets);
  return status;
}

static wn_status gguf_open_bytes(wn_context *ctx, const char *name, struct wn_map *map, const void *data, size_t bytes,
                                 wn_gguf **out) {
  struct wn_gguf *f;
  wn_status status = WN_ALLOC(ctx, name, 1, &f);
  if (status != WN_OK) {
    wn_map_close(map);
    return status;
  }
  wn_handle_mark(f, WN_HANDLE_GGUF);
  f->map = *map;
  f->name = wn_strdup(ctx, name);
  status = f->name ? read_file(ctx, f, data, bytes) : WN_ERR_MEMORY;
  if (status != WN_OK) {
    wn_gguf_close(f);
    return status;
  }
  *out = f;
  return WN_OK;
}

wn_status wn_gguf_open(wn_context *ctx, const char *path, wn_gguf **out) {
  WN_CHECK_CALL(WN_POINTER(path), WN_POINTER(out));
  *out = NULL;
  struct wn_map map;
  WN_TRY(wn_map_open(ctx, path, &map));
  return gguf_open_bytes(ctx, path, &map, map.data, map.bytes, out);
}

wn_status wn_gguf_open_memory(wn_context *ctx, const char *name, const void *data, size_t bytes, wn_gguf **out) {
  WN_CHECK_CALL(WN_POINTER(name), WN_ARRAY(data, bytes), WN_POINTER(out));
  *out = NULL;
  struct wn_map none = {0};
  return gguf_open_bytes(ctx, name, &none, data, bytes, out);
}

void wn_gguf_close(wn_gguf *f) {
  WN_CHECK_OR(, WN_HANDLE(f, GGUF));
  for (int i = 0; i < f->tensor_count; i++) wn_free((void *)(uintptr_t)f->tensors[i].name);
  for (int i = 0; i < f->value_count; i++) {
    wn_free((void *)(uintptr_t)f->values[i].key);
    wn_free((void *)(uintptr_t)f->values[i].offsets);
  }
  wn_free(f->tensors);
  wn_free(f->by_name);
  wn_free(f->values);
  wn_free(f->by_key);
  wn_free(f->name);
  wn_map_close(&f->map);
  wn_free(f);
}

/* ---- checksums ---- */

/* Finds the value with the checksums, or NULL. A damaged key is an error, not a file without checksums. */
static wn_status gguf_find_sums(wn_context *ctx, const struct wn_gguf *f, const char **text, size_t *bytes) {
  *text = NULL;
  for (int i = 0; i < f->value_count; i++) {
    const wn_gguf_value *v = &f->values[i];
    const bool ours = strcmp(v->key, WN_CHECKSUM_KEY) == 0, is_text = !v->is_array && v->kind == WN_GGUF_STRING;
    const char *value = NULL;
    size_t length = 0;
    if (is_text) wn_gguf_value_string(v, 0, &value, &length);
    if (!ours && (!is_text || !wn_checksum_text_is(value, length))) continue;
    if (!ours) return wn_checksum_damaged(ctx, f->name, "its checksums stand under another key");
    if (!is_text) return wn_checksum_damaged(ctx, f->name, "\"" WN_CHECKSUM_KEY "\" is no text");
    *text = value;
    *bytes = length;
  }
  return WN_OK;
}

/* Each tensor with the padding after it. */
static wn_status gguf_parts(wn_context *ctx, const struct wn_gguf *f, struct wn_checksum_part **out) {
  const int count = f->tensor_count;
  WN_TRY(WN_ALLOC(ctx, "parts of a file", count, out));
  struct wn_checksum_part *parts = *out;
  for (int i = 0; i < count; i++)
    parts[i] =
        (struct wn_checksum_part){.name = f->tensors[i].name, .data = f->tensors[i].data, .bytes = f->tensors[i].bytes};
  wn_checksum_sort(parts, count);
  for (int i = 0; i < count; i++)
    parts[i].bytes = (size_t)((i + 1 < count ? parts[i + 1].data : f->bytes + f->size) - parts[i].data);
  return WN_OK;
}

wn_status wn_gguf_check(wn_context *ctx, const wn_gguf *f, bool data, bool *has) {
  struct wn_checksums c = {.file = f->name, .header = f->bytes, .header_bytes = f->start, .count = f->tensor_count};
  struct wn_checksum_part *parts = NULL;
  if (has) *has = false;
  WN_TRY(gguf_find_sums(ctx, f, &c.text, &c.text_bytes));
  if (has) *has = c.text != NULL;
  if (!c.text) return WN_OK;
  c.at = (size_t)((const uint8_t *)c.text - f->bytes);
  if (data) WN_TRY(gguf_parts(ctx, f, &parts));
  const wn_status status = wn_checksum_check(ctx, &c, parts);
  wn_free(parts);
  return status;
}

wn_status wn_gguf_verify(wn_context *ctx, const wn_gguf *file, bool *has) {
  WN_CHECK_CALL(WN_HANDLE(file, GGUF));
  if (!file) return wn_fail(ctx, WN_ERR_ARGUMENT, "wn_gguf_verify needs a file");
  return wn_gguf_check(ctx, file, true, has);
}

int wn_gguf_tensor_count(const wn_gguf *file) {
  WN_CHECK_OR(0, WN_HANDLE(file, GGUF));
  return file->tensor_count;
}

const wn_gguf_tensor *wn_gguf_tensor_at(const wn_gguf *file, int i) {
  WN_CHECK_OR(NULL, WN_HANDLE(file, GGUF));
  return i >= 0 && i < file->tensor_count ? &file->tensors[i] : NULL;
}

const wn_gguf_tensor *wn_gguf_tensor_find(const wn_gguf *file, const char *name) {
  WN_CHECK_OR(NULL, WN_HANDLE(file, GGUF), WN_POINTER(name));
  if (file->tensor_count == 0) return NULL;
  const wn_gguf_tensor wanted = {.name = name}, *key = &wanted;
  wn_gguf_tensor **found =
      bsearch(&key, file->by_name, (size_t)file->tensor_count, sizeof *file->by_name, compare_tensors);
  return found ? *found : NULL;
}

int wn_gguf_value_count(const wn_gguf *file) {
  WN_CHECK_OR(0, WN_HANDLE(file, GGUF));
  return file->value_count;
}

const wn_gguf_value *wn_gguf_value_at(const wn_gguf *file, int i) {
  WN_CHECK_OR(NULL, WN_HANDLE(file, GGUF));
  return i >= 0 && i < file->value_count ? &file->values[i] : NULL;
}

const wn_gguf_value *wn_gguf_value_find(const wn_gguf *file, const char *key) {
  WN_CHECK_OR(NULL, WN_HANDLE(file, GGUF), WN_POINTER(key));
  if (file->value_count == 0) return NULL;
  const wn_gguf_value wanted = {.key = key}, *at = &wanted;
  wn_gguf_value **found = bsearch(&at, file->by_key, (size_t)file->value_count, sizeof *file->by_key, compare_values);
  return found ? *found : NULL;
}

bool wn_gguf_value_int(const wn_gguf_value *v, uint64_t i, int64_t *out) {
  WN_CHECK_OR(false, WN_POINTER(v), WN_POINTER(out));
  if (i >= v->count || v->kind == WN_GGUF_STRING || v->kind == WN_GGUF_FLOAT) return false;
  uint64_t bits = 0;
  memcpy(&bits, (const uint8_t *)v->place + i * (uint64_t)v->width, (size_t)v->width);
  if (v->kind == WN_GGUF_INT) {
    const int shift = 64 - 8 * v->width;
    *out = (int64_t)(bits << shift) >> shift;
    return true;
  }
  if (bits > INT64_MAX) return false;
  *out = (int64_t)bits;
  return true;
}

bool wn_gguf_value_float(const wn_gguf_value *v, uint64_t i, double *out) {
  WN_CHECK_OR(false, WN_POINTER(v), WN_POINTER(out));
  if (i >= v->count || v->kind != WN_GGUF_FLOAT) return false;
  const uint8_t *p = (const uint8_t *)v->place + i * (uint64_t)v->width;
  float small;
  if (v->width == sizeof *out) {
    memcpy(out, p, sizeof *out);
  } else {
    memcpy(&small, p, sizeof small);
    *out = (double)small;
  }
  return true;
}

bool wn_gguf_value_string(const wn_gguf_value *v, uint64_t i, const char **out, size_t *bytes) {
  WN_CHECK_OR(false, WN_POINTER(v), WN_POINTER(out), WN_POINTER(bytes));
  if (i >= v->count || v->kind != WN_GGUF_STRING) return false;
  const uint8_t *p = (const uint8_t *)v->place + v->offsets[i];
  uint64_t length;
  memcpy(&length, p, sizeof length);
  *out = (const char *)p + sizeof length;
  *bytes = (size_t)length;
  return true;
}

bool wn_gguf_value_bytes(const wn_gguf_value *v, const void **out, size_t *bytes) {
  WN_CHECK_OR(false, WN_POINTER(v), WN_POINTER(out), WN_POINTER(bytes));
  if (!v->is_array || v->width != 1 || v->kind == WN_GGUF_BOOL) return false;
  *out = v->place;
  *bytes = (size_t)v->count;
  return true;
}
