/* Safetensors files: 8 bytes of header length (little-endian), a JSON header, then the tensors' bytes without holes. A
 * file is not trusted: lengths, offsets and shapes are checked with overflow-safe arithmetic before a tensor can be
 * reached, and the tensors must cover the data exactly once. Opening takes two passes over the header, which parse one
 * entry at a time, and two sorts; the data is only mapped. There is no protection against another process that shortens
 * the file while it is mapped. */
#include "winnow/safetensors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/misuse.h"
#include "io/checksum.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensors are used as the file has them, which is little-endian"
#endif

static const char metadata_key[] = "__metadata__";

struct wn_safetensors {
  struct wn_map map; /* empty for a caller's buffer */
  char *name;
  char *names;                    /* one after the other */
  json_t *metadata;               /* or NULL */
  wn_safetensors_entry *entries;  /* [count], in the header's order */
  wn_safetensors_entry **by_name; /* [count], sorted by name */
  int count;
  const uint8_t *bytes; /* the file up to the first tensor, [head] */
  size_t head;
};

/* Bytes of a shape. False if a size is negative, or if the sizes that are not 0 overflow: other code may multiply them
 * in another order, even if the tensor has no elements. */
static bool shape_bytes(wn_dtype dtype, const int64_t *shape, int ndim, size_t *out) {
  size_t bytes = wn_dtype_size(dtype);
  bool empty = false;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] < 0) return false;
    if (shape[d] == 0)
      empty = true;
    else if (!wn_mul_size(bytes, (size_t)shape[d], &bytes))
      return false;
  }
  if (bytes > (size_t)PTRDIFF_MAX) return false;
  *out = empty ? 0 : bytes;
  return true;
}

static bool dtype_by_name(const char *name, wn_dtype *out) {
  for (int i = WN_F32; i <= WN_BOOL; i++) {
    if (strcmp(name, wn_dtype_name((wn_dtype)i)) != 0) continue;
    *out = (wn_dtype)i;
    return true;
  }
  return false;
}

static wn_status fail_tensor(wn_context *ctx, const char *file, const char *tensor, const char *problem) {
  return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor \"%.200s\": %s", file, tensor, problem);
}

static wn_status read_entry(wn_context *ctx, const char *file, const char *tensor, const json_t *value,
                            const uint8_t *data, size_t data_bytes, wn_safetensors_entry *out) {
  if (!json_is_object(value)) return fail_tensor(ctx, file, tensor, "expected an object in the header");
  const json_t *dtype = json_object_get(value, "dtype"), *shape = json_object_get(value, "shape"),
               *offsets = json_object_get(value, "data_offsets");
  *out = (wn_safetensors_entry){.name = tensor};
  if (!json_is_string(dtype)) return fail_tensor(ctx, file, tensor, "\"dtype\" is missing or not a string");
  if (!dtype_by_name(json_string_value(dtype), &out->dtype))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor \"%.200s\": dtype \"%.40s\" is not known", file, tensor,
                   json_string_value(dtype));
  if (!json_is_array(shape)) return fail_tensor(ctx, file, tensor, "\"shape\" is missing or not a list");
  size_t ndim = json_array_size(shape);
  if (ndim > WN_MAX_DIMS)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor \"%.200s\": %zu dimensions; at most %d are possible", file, tensor,
                   ndim, WN_MAX_DIMS);
  out->ndim = (int)ndim;
  for (size_t d = 0; d < ndim; d++) {
    const json_t *size = json_array_get(shape, d);
    if (!json_is_integer(size) || json_integer_value(size) < 0)
      return fail_tensor(ctx, file, tensor, "\"shape\" holds something else than whole numbers of at least 0");
    out->shape[d] = json_integer_value(size);
  }
  if (!shape_bytes(out->dtype, out->shape, out->ndim, &out->bytes))
    return fail_tensor(ctx, file, tensor, "its shape is larger than this machine can address");

  const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
  if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second))
    return fail_tensor(ctx, file, tensor, "\"data_offsets\" is missing or not a list of two whole numbers");
  json_int_t begin = json_integer_value(first), end = json_integer_value(second);
  if (begin < 0 || end < begin || (uint64_t)end > data_bytes)
    return wn_fail(ctx, WN_ERR_FORMAT,
                   "%s: tensor \"%.200s\": data_offsets [%lld, %lld] are not inside the file's %zu bytes of data", file,
                   tensor, (long long)begin, (long long)end, data_bytes);
  if ((uint64_t)(end - begin) != out->bytes)
    return wn_fail(ctx, WN_ERR_FORMAT,
                   "%s: tensor \"%.200s\": data_offsets span %lld bytes, its dtype and shape need %zu", file, tensor,
                   (long long)(end - begin), out->bytes);
  out->data = data + begin;
  return WN_OK;
}

static int compare_names(const void *a, const void *b) {
  return strcmp((*(wn_safetensors_entry *const *)a)->name, (*(wn_safetensors_entry *const *)b)->name);
}

static int safetensors_compare_places(const void *a, const void *b) {
  const wn_safetensors_entry *x = *(wn_safetensors_entry *const *)a, *y = *(wn_safetensors_entry *const *)b;
  const char *p = x->data, *q = y->data;
  if (p != q) return p < q ? -1 : 1;
  return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Sorts the tensors by offset into `order`. They must follow each other without overlap or gap, from the first byte to
 * the last. */
static wn_status check_cover(wn_context *ctx, const struct wn_safetensors *f, wn_safetensors_entry **order,
                             const uint8_t *data, size_t data_bytes) {
  qsort(order, (size_t)f->count, sizeof *order, safetensors_compare_places);
  size_t at = 0;
  for (int i = 0; i < f->count; i++) {
    size_t begin = (size_t)((const uint8_t *)order[i]->data - data);
    if (begin != at)
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor \"%.200s\" begins at byte %zu of the data, %s", f->name,
                     order[i]->name, begin, begin < at ? "inside another tensor" : "after a hole");
    at = begin + order[i]->bytes;
  }
  if (at != data_bytes)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: the tensors end at byte %zu of the data, the file has %zu", f->name, at,
                   data_bytes);
  return WN_OK;
}

static wn_status read_metadata(wn_context *ctx, struct wn_safetensors *f, const struct wn_json_members *m) {
  const char *key;
  json_t *item;
  if (f->metadata) return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"%s\" is there twice", f->name, metadata_key);
  if (m->value_bytes == 0 || *m->value != '{')
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"%s\" is not an object", f->name, metadata_key);
  WN_TRY(wn_json_load_text(ctx, WN_JSON_METADATA, m->where, m->value, m->value_bytes, &f->metadata));
  json_object_foreach(f->metadata, key, item) {
    if (!json_is_string(item))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"%s\": the value of \"%.200s\" is not a string", f->name, metadata_key,
                     key);
  }
  return WN_OK;
}

/* One member of the header: a tensor, whose name is appended at *names, or the metadata. */
static wn_status read_member(wn_context *ctx, struct wn_safetensors *f, const struct wn_json_members *m,
                             const uint8_t *data, size_t data_bytes, char **names) {
  json_t *key, *value;
  WN_TRY(wn_json_load_text(ctx, WN_JSON_ENTRY, m->where, m->key, m->key_bytes, &key));
  const size_t length = json_string_length(key);
  if (!strcmp(json_string_value(key), metadata_key)) {
    json_decref(key);
    return read_metadata(ctx, f, m);
  }
  char *name = memcpy(*names, json_string_value(key), length + 1);
  *names += length + 1;
  json_decref(key);
  WN_TRY(wn_json_load_text(ctx, WN_JSON_ENTRY, m->where, m->value, m->value_bytes, &value));
  const wn_status status = read_entry(ctx, f->name, name, value, data, data_bytes, &f->entries[f->count]);
  json_decref(value);
  if (status == WN_OK) f->by_name[f->count] = &f->entries[f->count];
  if (status == WN_OK) f->count++;
  return status;
}

/* The header is never parsed as a whole: first its members are counted, then read one at a time. */
static wn_status read_members(wn_context *ctx, struct wn_safetensors *f, const char *text, size_t bytes,
                              const uint8_t *data, size_t data_bytes) {
  char where[4200];
  snprintf(where, sizeof where, "%.4096s: header", f->name);
  const struct wn_json_members all = {.where = where, .text = text, .bytes = bytes};
  struct wn_json_members m = all;
  size_t count = 0, name_bytes = 1; /* at most `bytes` members: no overflow below */
  bool more = true;
  for (;;) {
    WN_TRY(wn_json_next(ctx, &m, &more));
    if (!more) break;
    count++;
    name_bytes += m.key_bytes; /* the two quotes leave room for the NUL */
  }
  WN_TRY(WN_ALLOC(ctx, "safetensors entries", count, &f->entries));
  WN_TRY(WN_ALLOC(ctx, "safetensors index", count, &f->by_name));
  WN_TRY(WN_ALLOC(ctx, "safetensors names", name_bytes, &f->names));
  char *names = f->names;
  for (m = all;;) {
    WN_TRY(wn_json_next(ctx, &m, &more));
    if (!more) return WN_OK;
    snprintf(where, sizeof where, "%.4096s: header from byte %zu", f->name, (size_t)(m.key - text));
    WN_TRY(read_member(ctx, f, &m, data, data_bytes, &names));
  }
}

static wn_status safetensors_read_header(wn_context *ctx, struct wn_safetensors *f, const uint8_t *bytes, size_t size) {
  if (size < 8)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: not a safetensors file: %zu bytes long, the header's length alone takes 8",
                   f->name, size);
  uint64_t header_bytes;
  memcpy(&header_bytes, bytes, sizeof header_bytes);
  if (header_bytes > size - 8)
    return wn_fail(ctx, WN_ERR_FORMAT,
                   "%s: not a safetensors file, or truncated: its header should have %llu bytes, only %zu follow",
                   f->name, (unsigned long long)header_bytes, size - 8);
  if (header_bytes < 2 || header_bytes > WN_LIMIT_SAFETENSORS_HEADER)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: not a safetensors file: its header has %llu bytes; 2 to %llu are possible",
                   f->name, (unsigned long long)header_bytes, (unsigned long long)WN_LIMIT_SAFETENSORS_HEADER);
  if (bytes[8] != '{')
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: not a safetensors file: its header does not begin with '{'", f->name);
  const uint8_t *data = bytes + 8 + header_bytes;
  f->bytes = bytes;
  f->head = 8 + (size_t)header_bytes;
  const size_t data_bytes = size - 8 - (size_t)header_bytes;
  WN_TRY(read_members(ctx, f, (const char *)bytes + 8, (size_t)header_bytes, data, data_bytes));
  if (f->count > 0) WN_TRY(check_cover(ctx, f, f->by_name, data, data_bytes));
  if (f->count == 0 && data_bytes > 0)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: no tensor in the header, %zu bytes of data", f->name, data_bytes);
  if (f->count > 0) qsort(f->by_name, (size_t)f->count, sizeof *f->by_name, compare_names);
  for (int i = 1; i < f->count; i++)
    if (!strcmp(f->by_name[i - 1]->name, f->by_name[i]->name))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor \"%.200s\" is there twice", f->name, f->by_name[i]->name);
  return WN_OK;
}

static wn_status safetensors_open_bytes(wn_context *ctx, const char *name, struct wn_map *map, const void *data,
                                        size_t bytes, wn_safetensors **out) {
  struct wn_safetensors *f;
  wn_status status = WN_ALLOC(ctx, name, 1, &f);
  if (status != WN_OK) {
    wn_map_close(map);
    return status;
  }
  wn_handle_mark(f, WN_HANDLE_SAFETENSORS);
  f->map = *map;
  f->name = wn_strdup(ctx, name);
  status = f->name ? safetensors_read_header(ctx, f, data, bytes) : WN_ERR_MEMORY;
  if (status != WN_OK) {
    wn_safetensors_close(f);
    return status;
  }
  *out = f;
  return WN_OK;
}

wn_status wn_safetensors_open(wn_context *ctx, const char *path, wn_safetensors **out) {
  WN_CHECK_CALL(WN_POINTER(path), WN_POINTER(out));
  *out = NULL;
  struct wn_map map;
  WN_TRY(wn_map_open(ctx, path, &map));
  return safetensors_open_bytes(ctx, path, &map, map.data, map.bytes, out);
}

wn_status wn_safetensors_open_memory(wn_context *ctx, const char *name, const void *data, size_t bytes,
                                     wn_safetensors **out) {
  WN_CHECK_CALL(WN_POINTER(name), WN_ARRAY(data, bytes), WN_POINTER(out));
  *out = NULL;
  struct wn_map none = {0};
  return safetensors_open_bytes(ctx, name, &none, data, bytes, out);
}

void wn_safetensors_close(wn_safetensors *file) {
  WN_CHECK_OR(, WN_HANDLE(file, SAFETENSORS));
  json_decref(file->metadata);
  wn_free(file->names);
  wn_free(file->entries);
  wn_free(file->by_name);
  wn_free(file->name);
  wn_map_close(&file->map);
  wn_free(file);
}

int wn_safetensors_count(const wn_safetensors *file) {
  WN_CHECK_OR(0, WN_HANDLE(file, SAFETENSORS));
  return file->count;
}

const wn_safetensors_entry *wn_safetensors_at(const wn_safetensors *file, int i) {
  WN_CHECK_OR(NULL, WN_HANDLE(file, SAFETENSORS));
  return i >= 0 && i < file->count ? &file->entries[i] : NULL;
}

const wn_safetensors_entry *wn_safetensors_find(const wn_safetensors *file, const char *name) {
  WN_CHECK_OR(NULL, WN_HANDLE(file, SAFETENSORS), WN_POINTER(name));
  if (file->count == 0) return NULL;
  const wn_safetensors_entry wanted = {.name = name}, *key = &wanted;
  wn_safetensors_entry **found =
      bsearch(&key, file->by_name, (size_t)file->count, sizeof *file->by_name, compare_names);
  return found ? *found : NULL;
}

const char *wn_safetensors_metadata(const wn_safetensors *file, const char *key) {
  WN_CHECK_OR(NULL, WN_HANDLE(file, SAFETENSORS), WN_POINTER(key));
  return json_string_value(json_object_get(file->metadata, key));
}

/* ---- checksums ---- */

/* Finds the text of the checksums, or NULL. A damaged key or value is an error, not a file without checksums. */
static wn_status safetensors_find_sums(wn_context *ctx, const struct wn_safetensors *f, const char **out) {
  const char *key;
  json_t *item;
  *out = NULL;
  json_object_foreach((json_t *)(uintptr_t)f->metadata, key, item) {
    const bool ours = strcmp(key, WN_CHECKSUM_KEY) == 0;
    if (!ours && !wn_checksum_text_is(json_string_value(item), json_string_length(item))) continue;
    if (!ours) return wn_checksum_damaged(ctx, f->name, "its checksums stand under another key");
    *out = json_string_value(item);
  }
  return WN_OK;
}

/* The header's checksum covers its exact bytes. */
wn_status wn_safetensors_check(wn_context *ctx, const wn_safetensors *f, bool data, bool *has) {
  static const char written[] = "\"" WN_CHECKSUM_KEY "\":\"";
  struct wn_checksums c = {.file = f->name, .header = f->bytes, .header_bytes = f->head, .count = f->count};
  struct wn_checksum_part *parts = NULL;
  if (has) *has = false;
  WN_TRY(safetensors_find_sums(ctx, f, &c.text));
  if (has) *has = c.text != NULL;
  if (!c.text) return WN_OK;
  c.text_bytes = strlen(c.text);
  const uint8_t *at = memmem(f->bytes, f->head, written, sizeof written - 1);
  if (at) c.at = (size_t)(at - f->bytes) + sizeof written - 1;
  if (data) WN_TRY(WN_ALLOC(ctx, "parts of a file", f->count, &parts));
  for (int i = 0; data && i < f->count; i++) {
    const wn_safetensors_entry *e = &f->entries[i];
    parts[i] = (struct wn_checksum_part){.name = e->name, .data = e->data, .bytes = e->bytes};
  }
  if (data) wn_checksum_sort(parts, f->count);
  const wn_status status = wn_checksum_check(ctx, &c, parts);
  wn_free(parts);
  return status;
}

wn_status wn_safetensors_verify(wn_context *ctx, const wn_safetensors *file, bool *has) {
  WN_CHECK_CALL(WN_HANDLE(file, SAFETENSORS));
  if (!file) return wn_fail(ctx, WN_ERR_ARGUMENT, "wn_safetensors_verify needs a file");
  return wn_safetensors_check(ctx, file, true, has);
}

/* ---- writing ---- */

static wn_status check_entry(wn_context *ctx, const char *path, const wn_safetensors_entry *e, bool made) {
  if (!e->name) return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: a tensor has no name", path);
  if (strcmp(e->name, metadata_key) == 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: no tensor can be named \"%s\"", path, e->name);
  size_t bytes;
  if (wn_dtype_size(e->dtype) == 0 || e->ndim < 0 || e->ndim > WN_MAX_DIMS ||
      !shape_bytes(e->dtype, e->shape, e->ndim, &bytes))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: tensor \"%.200s\" has an impossible dtype or shape", path,
                   e->name);
  if (bytes != e->bytes || (bytes && !e->data && !made))
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "cannot write %s: tensor \"%.200s\" has %zu bytes, its dtype and shape need %zu", path, e->name,
                   e->data || made ? e->bytes : 0, bytes);
  return WN_OK;
}

/* Takes over the caller's reference to value. False if memory runs out, a text is not UTF-8, or the key exists. */
static bool safetensors_put(json_t *object, const char *key, json_t *value) {
  if (value && !json_object_get(object, key)) return json_object_set_new(object, key, value) == 0;
  json_decref(value);
  return false;
}

static json_t *entry_json(const wn_safetensors_entry *e, size_t begin) {
  json_t *shape = json_array();
  for (int d = 0; d < e->ndim; d++) {
    if (json_array_append_new(shape, json_integer(e->shape[d])) == 0) continue;
    json_decref(shape);
    return NULL;
  }
  return json_pack("{s:s, s:o, s:[I,I]}", "dtype", wn_dtype_name(e->dtype), "shape", shape, "data_offsets",
                   (json_int_t)begin, (json_int_t)(begin + e->bytes));
}

/* Tensors with larger elements come first in the data; the header keeps the given order. As the header is padded to 8
 * bytes, every tensor is then aligned to its element size, which readers that map the data rely on. */
static wn_status safetensors_plan(wn_context *ctx, const char *path, const wn_safetensors_entry *entries, int count,
                                  size_t *begins /* [count] */) {
  size_t at = 0;
  for (size_t size = 8; size >= 1; size /= 2) {
    for (int i = 0; i < count; i++) {
      if (wn_dtype_size(entries[i].dtype) != size) continue;
      begins[i] = at;
      if (!wn_add_size(at, entries[i].bytes, &at) || at > (size_t)PTRDIFF_MAX)
        return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: the tensors together are too large", path);
    }
  }
  return WN_OK;
}

static wn_status header_text(wn_context *ctx, const char *path, const wn_safetensors_entry *entries, int count,
                             const size_t *begins, const char *const *metadata, char **out) {
  json_t *header = json_object();
  wn_status status = WN_OK;
  void *sums = NULL; /* of the header and of every tensor; filled in at the end */
  if (header) {
    json_t *object = json_object();
    status = wn_alloc(ctx, "checksums", wn_checksum_text_bytes(1 + count) + 1, &sums);
    if (status == WN_OK) wn_checksum_text_blank(sums, 1 + count);
    if (status == WN_OK && !safetensors_put(object, WN_CHECKSUM_KEY, json_string(sums)))
      status = wn_fail(ctx, WN_ERR_MEMORY, "out of memory: the header of %s", path);
    wn_free(sums);
    for (int i = 0; status == WN_OK && metadata && metadata[i]; i += 2)
      if (!metadata[i + 1] || !safetensors_put(object, metadata[i], json_string(metadata[i + 1])))
        status = wn_fail(ctx, WN_ERR_ARGUMENT,
                         "cannot write %s: metadata \"%.200s\" is there twice, has no value or is not UTF-8", path,
                         metadata[i]);
    if (!safetensors_put(header, metadata_key, object) && status == WN_OK)
      status = wn_fail(ctx, WN_ERR_MEMORY, "out of memory: the header of %s", path);
  }
  for (int i = 0; header && i < count && status == WN_OK; i++) {
    json_t *entry = entry_json(&entries[i], begins[i]);
    if (!entry)
      status = wn_fail(ctx, WN_ERR_MEMORY, "out of memory: the header of %s", path);
    else if (!safetensors_put(header, entries[i].name, entry))
      status =
          wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: tensor name \"%.200s\" is there twice or is not UTF-8 text",
                  path, entries[i].name);
  }
  *out = header && status == WN_OK ? json_dumps(header, JSON_COMPACT) : NULL;
  json_decref(header);
  if (status == WN_OK && !*out) status = wn_fail(ctx, WN_ERR_MEMORY, "out of memory: the header of %s", path);
  return status;
}

/* Names and metadata that this library would refuse to read are not written (limits.h). */
static wn_status header_check(wn_context *ctx, const char *path, const char *header) {
  struct wn_json_members m = {.where = "header", .text = header, .bytes = strlen(header)};
  json_t *read;
  if (m.bytes > WN_LIMIT_SAFETENSORS_HEADER - 8)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: its header would be longer than can be read back", path);
  for (bool more = true, metadata = true;; metadata = false) { /* the metadata is the first member */
    wn_status status = wn_json_next(ctx, &m, &more);
    if (status == WN_OK && !more) return WN_OK;
    if (status == WN_OK)
      status = metadata ? wn_json_load_text(ctx, WN_JSON_METADATA, metadata_key, m.value, m.value_bytes, &read)
                        : wn_json_load_text(ctx, WN_JSON_ENTRY, "a tensor's name", m.key, m.key_bytes, &read);
    if (status != WN_OK)
      return wn_fail_prefix(ctx, WN_ERR_ARGUMENT, "cannot write %s: it could not be read back", path);
    json_decref(read);
  }
}

/* What produces the data of a tensor; NULL: the entries hold it. */
struct maker {
  wn_safetensors_produce_fn produce;
  void *user;
};

static wn_status write_entry(wn_context *ctx, struct wn_writer *w, const wn_safetensors_entry *e, int i,
                             const struct maker *maker, uint64_t *sum) {
  if (!maker) {
    *sum = wn_checksum(e->data, e->bytes);
    return wn_writer_write(ctx, w, e->data, e->bytes);
  }
  void *data;
  WN_TRY(wn_alloc(ctx, e->name, e->bytes, &data));
  wn_status status = maker->produce(maker->user, i, data, e->bytes);
  *sum = wn_checksum(data, e->bytes);
  if (status == WN_OK) status = wn_writer_write(ctx, w, data, e->bytes);
  wn_free(data);
  return status;
}

/* The header's length and text (with the checksums known so far), padded to a multiple of 8 bytes: [*bytes],
 * wn_alloc'd. */
static wn_status safetensors_frame(wn_context *ctx, const char *text, char **out, size_t *bytes) {
  const size_t used = strlen(text);
  const uint64_t padded = (used + 7) / 8 * 8;
  WN_TRY(WN_ALLOC(ctx, "safetensors header", 8 + (size_t)padded, out));
  *bytes = 8 + (size_t)padded;
  memcpy(*out, &padded, 8);
  memset(*out + 8, ' ', (size_t)padded);
  memcpy(*out + 8, text, used);
  return WN_OK;
}

/* The header is written first with blank checksums and overwritten when they are known. */
static wn_status write_all(wn_context *ctx, struct wn_writer *w, const char *text, const wn_safetensors_entry *entries,
                           int count, const struct maker *maker) {
  static const char written[] = "\"" WN_CHECKSUM_KEY "\":\"";
  char *header;
  size_t bytes;
  WN_TRY(safetensors_frame(ctx, text, &header, &bytes));
  char *sums = memmem(header + 8, bytes - 8, written, sizeof written - 1);
  int place = 0;
  wn_status status = sums ? wn_writer_write(ctx, w, header, bytes)
                          : wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: no place for its checksums", w->path);
  if (sums) sums += sizeof written - 1;
  for (size_t size = 8; size >= 1; size /= 2)
    for (int i = 0; status == WN_OK && i < count; i++) {
      uint64_t sum;
      if (wn_dtype_size(entries[i].dtype) != size) continue;
      status = write_entry(ctx, w, &entries[i], i, maker, &sum);
      if (status == WN_OK) wn_checksum_text_put(sums, ++place, sum);
    }
  if (status == WN_OK) {
    wn_checksum_text_put(sums, 0, wn_checksum_header(header, bytes, (size_t)(sums - header)));
    status = wn_writer_rewrite(ctx, w, header, bytes);
  }
  wn_free(header);
  return status == WN_OK ? wn_writer_commit(ctx, w) : status;
}

static wn_status safetensors_write_file(wn_context *ctx, const char *path, const wn_safetensors_entry *entries,
                                        int count, const char *const *metadata, const struct maker *maker) {
  if (!path || count < 0 || (count > 0 && !entries))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "writing safetensors needs a path and entries");
  for (int i = 0; i < count; i++) WN_TRY(check_entry(ctx, path, &entries[i], maker != NULL));
  void *begins;
  WN_TRY(wn_alloc(ctx, "safetensors header", (size_t)count * sizeof(size_t), &begins));
  char *header = NULL;
  wn_status status = safetensors_plan(ctx, path, entries, count, begins);
  if (status == WN_OK) status = header_text(ctx, path, entries, count, begins, metadata, &header);
  wn_free(begins);
  if (status == WN_OK) status = header_check(ctx, path, header);
  if (status != WN_OK) {
    free(header);
    return status;
  }
  struct wn_writer w;
  status = wn_writer_open(ctx, path, &w);
  if (status == WN_OK) {
    status = write_all(ctx, &w, header, entries, count, maker);
    if (status != WN_OK) wn_writer_abort(&w);
  }
  free(header);
  return status;
}

wn_status wn_safetensors_write(wn_context *ctx, const char *path, const wn_safetensors_entry *entries, int count,
                               const char *const *metadata) {
  WN_CHECK_CALL(WN_POINTER(path), WN_ARRAY(entries, count));
  return safetensors_write_file(ctx, path, entries, count, metadata, NULL);
}

wn_status wn_safetensors_write_made(wn_context *ctx, const char *path, const wn_safetensors_entry *entries, int count,
                                    const char *const *metadata, wn_safetensors_produce_fn produce, void *user) {
  WN_CHECK_CALL(WN_POINTER(path), WN_ARRAY(entries, count), WN_ARRAY(produce, count));
  const struct maker maker = {produce, user};
  return safetensors_write_file(ctx, path, entries, count, metadata, &maker);
}
