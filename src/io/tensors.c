/* One sorted list of the tensors of a GGUF file or the parts of one, of a safetensors file, or the shards of an index.
 * An index may name only files of its own folder. Every tensor that it names must be in the shard that it gives, and
 * every tensor of a shard must be named. Parts of a GGUF file lie beside the first, must agree on how many they are,
 * and hold as many tensors as they say. Cost: a sort. */
#include "io/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "io/checksum.h"
#include "io/folder.h"
#include "io/gguf_types.h"

#define INDEX_NAME "model.safetensors.index.json"
enum { PATH_BYTES = 4096, MAX_SHARDS = WN_LIMIT_SHARDS };

struct shard {
  char *name, *path;
  wn_safetensors *file; /* or */
  wn_gguf *gguf;
};

/* A vector added by wn_tensors_add. */
struct added {
  struct added *next;
  char *name, *file;
  float values[];
};

struct wn_tensors {
  struct added *added;
  struct shard *shards;  /* [shard_count] */
  char *name;            /* the folder, or the first GGUF file */
  struct wn_tensor *all; /* [count], sorted */
  int shard_count, count;
};

static int tensors_compare(const void *a, const void *b) {
  return strcmp(((const struct wn_tensor *)a)->t.name, ((const struct wn_tensor *)b)->t.name);
}

static wn_status tensors_allocate(wn_context *ctx, const char *name, struct wn_tensors **out) {
  *out = NULL;
  WN_TRY(WN_ALLOC(ctx, "tensors of a model", 1, out));
  (*out)->name = wn_strdup(ctx, name);
  return (*out)->name ? WN_OK : WN_ERR_MEMORY;
}

static wn_status tensors_finish(wn_status status, struct wn_tensors *t, struct wn_tensors **out) {
  if (status == WN_OK) {
    *out = t;
  } else {
    wn_tensors_close(t);
    *out = NULL;
  }
  return status;
}

/* ---- safetensors ---- */

static bool weights_type(wn_dtype dtype, wn_gguf_type *out) {
  switch (dtype) {
  case WN_F32:
    *out = WN_GGUF_F32;
    return true;
  case WN_F16:
    *out = WN_GGUF_F16;
    return true;
  case WN_BF16:
    *out = WN_GGUF_BF16;
    return true;
  default:
    return false;
  }
}

static void add_entry(struct wn_tensors *t, const struct shard *s, const wn_safetensors_entry *e) {
  struct wn_tensor *to = &t->all[t->count++];
  *to = (struct wn_tensor){.dtype = wn_dtype_name(e->dtype), .file = s->path};
  to->t.name = e->name;
  to->t.data = e->data;
  to->t.bytes = e->bytes;
  to->t.ndim = e->ndim;
  bool whole = e->ndim >= 1 && e->ndim <= WN_GGUF_MAX_DIMS;
  for (int d = 0; whole && d < e->ndim; d++) {
    to->t.shape[d] = e->shape[d];
    whole = e->shape[d] >= 1;
  }
  to->is_weights = whole && weights_type(e->dtype, &to->t.type);
}

static void add_gguf_entry(struct wn_tensors *t, const struct shard *s, const wn_gguf_tensor *g) {
  t->all[t->count++] =
      (struct wn_tensor){.t = *g, .is_weights = true, .dtype = wn_gguf_type_name(g->type), .file = s->path};
}

static wn_status list_shards(wn_context *ctx, struct wn_tensors *t) {
  int total = 0;
  for (int s = 0; s < t->shard_count; s++) {
    const struct shard *from = &t->shards[s];
    const int count = from->gguf ? wn_gguf_tensor_count(from->gguf) : wn_safetensors_count(from->file);
    if (count > INT32_MAX - total) return wn_fail(ctx, WN_ERR_FORMAT, "%s: too many tensors", t->name);
    total += count;
  }
  WN_TRY(WN_ALLOC(ctx, "list of tensors", total, &t->all));
  for (const struct shard *s = t->shards; s < t->shards + t->shard_count; s++) {
    for (int i = 0; s->gguf && i < wn_gguf_tensor_count(s->gguf); i++)
      add_gguf_entry(t, s, wn_gguf_tensor_at(s->gguf, i));
    for (int i = 0; s->file && i < wn_safetensors_count(s->file); i++) add_entry(t, s, wn_safetensors_at(s->file, i));
  }
  if (total) qsort(t->all, (size_t)total, sizeof *t->all, tensors_compare);
  for (int i = 1; i < total; i++)
    if (!strcmp(t->all[i - 1].t.name, t->all[i].t.name))
      return wn_fail(ctx, WN_ERR_FORMAT, "tensor \"%.200s\" is in %s and in %s", t->all[i].t.name, t->all[i - 1].file,
                     t->all[i].file);
  return WN_OK;
}

static wn_status make_room(wn_context *ctx, struct wn_tensors *t, int64_t shards) {
  return WN_ALLOC(ctx, "shards", shards, &t->shards);
}

static wn_status add_shard(wn_context *ctx, struct wn_tensors *t, const char *name, const char *path,
                           struct shard **out) {
  struct shard *s = *out = &t->shards[t->shard_count++];
  s->name = wn_strdup(ctx, name);
  s->path = wn_strdup(ctx, path);
  return s->name && s->path ? WN_OK : WN_ERR_MEMORY;
}

static wn_status open_shard(wn_context *ctx, struct wn_tensors *t, const char *dir, const char *name) {
  char path[PATH_BYTES];
  struct shard *s;
  WN_TRY(wn_folder_file(ctx, path, sizeof path, dir, name));
  WN_TRY(add_shard(ctx, t, name, path, &s));
  return wn_safetensors_open(ctx, path, &s->file);
}

static int find_shard(const struct wn_tensors *t, const char *name) {
  for (int s = 0; s < t->shard_count; s++)
    if (!strcmp(t->shards[s].name, name)) return s;
  return -1;
}

/* "model-00001-of-00002.safetensors": a name without a folder, so that it cannot point outside of the folder. */
static bool is_plain(const char *name) {
  const size_t n = strlen(name), end = strlen(".safetensors");
  return n > end && n < 256 && name[0] != '.' && !strchr(name, '/') && !strcmp(name + n - end, ".safetensors");
}

static wn_status read_index(wn_context *ctx, const char *dir, const char *path, const json_t *index,
                            struct wn_tensors *t) {
  const json_t *map = json_object_get(index, "weight_map");
  const char *tensor;
  json_t *value;
  if (!json_is_object(map) || json_object_size(map) == 0)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"weight_map\" is missing, empty or not an object", path);
  json_object_foreach((json_t *)(uintptr_t)map, tensor, value) {
    const char *name = json_string_value(value);
    if (!name || !is_plain(name))
      return wn_fail(ctx, WN_ERR_FORMAT,
                     "%s: the shard of \"%.200s\" is %s%.200s; the name of a .safetensors file in the same folder is "
                     "expected",
                     path, tensor, name ? "" : "no string", name ? name : "");
    if (find_shard(t, name) >= 0) continue;
    if (t->shard_count == MAX_SHARDS)
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: more than %d shards", path, (int)MAX_SHARDS);
    WN_TRY(open_shard(ctx, t, dir, name));
  }
  json_object_foreach((json_t *)(uintptr_t)map, tensor, value) {
    const struct shard *s = &t->shards[find_shard(t, json_string_value(value))];
    if (!wn_safetensors_find(s->file, tensor))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor \"%.200s\" should be in %s, which does not have it", path, tensor,
                     s->name);
  }
  for (int s = 0; s < t->shard_count; s++) {
    for (int i = 0; i < wn_safetensors_count(t->shards[s].file); i++) {
      const char *name = wn_safetensors_at(t->shards[s].file, i)->name;
      const char *where = json_string_value(json_object_get(map, name));
      if (!where || strcmp(where, t->shards[s].name) != 0)
        return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor \"%.200s\" of %s is not in the index", path, name,
                       t->shards[s].name);
    }
  }
  return WN_OK;
}

static wn_status open_index(wn_context *ctx, const char *dir, struct wn_tensors *t) {
  char path[PATH_BYTES];
  json_t *index;
  WN_TRY(make_room(ctx, t, MAX_SHARDS));
  WN_TRY(wn_folder_file(ctx, path, sizeof path, dir, INDEX_NAME));
  WN_TRY(wn_json_load_file(ctx, WN_JSON_TABLE, path, &index));
  const wn_status status = read_index(ctx, dir, path, index, t);
  json_decref(index);
  return status;
}

static wn_status open_single(wn_context *ctx, const char *dir, const char *name, struct wn_tensors *t) {
  WN_TRY(make_room(ctx, t, 1));
  return open_shard(ctx, t, dir, name);
}

wn_status wn_tensors_open_file(wn_context *ctx, const char *dir, const char *name, struct wn_tensors **out) {
  struct wn_tensors *t;
  wn_status status = tensors_allocate(ctx, dir, &t);
  if (status == WN_OK) status = open_single(ctx, dir, name, t);
  if (status == WN_OK) status = list_shards(ctx, t);
  return tensors_finish(status, t, out);
}

wn_status wn_tensors_open_folder(wn_context *ctx, const char *dir, struct wn_tensors **out) {
  struct wn_tensors *t;
  wn_status status = tensors_allocate(ctx, dir, &t);
  const bool sharded = !wn_folder_has(dir, "model.safetensors") && wn_folder_has(dir, INDEX_NAME);
  if (status == WN_OK) status = sharded ? open_index(ctx, dir, t) : open_single(ctx, dir, "model.safetensors", t);
  if (status == WN_OK) status = list_shards(ctx, t);
  return tensors_finish(status, t, out);
}

/* ---- GGUF ---- */

/* llama.cpp splits large models: NAME-00001-of-00003.gguf has the metadata, and each part some of the tensors. A part
 * says which it is (split.no, from 0), of how many (split.count), and how many tensors all have (split.tensors.count).
 */
struct split {
  int64_t no, count, tensors; /* count 1: a whole model */
};

static wn_status split_key(wn_context *ctx, const char *path, const wn_gguf *file, const char *key, int64_t most,
                           int64_t *out) {
  const wn_gguf_value *v = wn_gguf_value_find(file, key);
  if (v && !v->is_array && wn_gguf_value_int(v, 0, out) && *out >= 0 && *out <= most) return WN_OK;
  return wn_fail(ctx, WN_ERR_FORMAT, "%s: part of a split model: \"%s\" is missing, or no whole number from 0 to %lld",
                 path, key, (long long)most);
}

static wn_status split_read(wn_context *ctx, const char *path, const wn_gguf *file, struct split *out) {
  *out = (struct split){.count = 1};
  if (!wn_gguf_value_find(file, "split.count")) return WN_OK;
  WN_TRY(split_key(ctx, path, file, "split.count", MAX_SHARDS, &out->count));
  if (out->count < 2) {
    out->count = 1;
    return WN_OK;
  }
  WN_TRY(split_key(ctx, path, file, "split.no", out->count - 1, &out->no));
  return split_key(ctx, path, file, "split.tensors.count", INT32_MAX, &out->tensors);
}

/* The end of a part's name. */
static size_t split_suffix(char out[64], int64_t no, int64_t count) {
  return (size_t)snprintf(out, 64, "-%05lld-of-%05lld.gguf", (long long)no + 1, (long long)count);
}

/* Opens part `no`, which must say the same of the whole as the first one does. */
static wn_status open_part(wn_context *ctx, struct wn_tensors *t, const char *path, int64_t no,
                           const struct split *all) {
  struct shard *s;
  struct split own;
  if (!wn_path_exists(path))
    return wn_fail(ctx, WN_ERR_IO, "%s: part %lld of %lld of the model is missing", path, (long long)no + 1,
                   (long long)all->count);
  WN_TRY(add_shard(ctx, t, path, path, &s));
  WN_TRY(wn_gguf_open(ctx, path, &s->gguf));
  WN_TRY(split_read(ctx, path, s->gguf, &own));
  if (own.count == all->count && own.no == no && own.tensors == all->tensors) return WN_OK;
  return wn_fail(ctx, WN_ERR_FORMAT,
                 "%s: it is part %lld of %lld with %lld tensors in all; %s needs part %lld of %lld with %lld", path,
                 (long long)own.no + 1, (long long)own.count, (long long)own.tensors, t->name, (long long)no + 1,
                 (long long)all->count, (long long)all->tensors);
}

/* Opens the parts after the first, which lie beside it. */
static wn_status open_parts(wn_context *ctx, struct wn_tensors *t, const struct split *all) {
  char path[PATH_BYTES], suffix[64];
  const size_t n = strlen(t->name), end = split_suffix(suffix, 0, all->count);
  int64_t tensors = wn_gguf_tensor_count(t->shards[0].gguf);
  if (all->no != 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: part %lld of %lld of a model; expected the first, whose name ends in %s",
                   t->name, (long long)all->no + 1, (long long)all->count, suffix);
  if (n <= end || n >= sizeof path || strcmp(t->name + n - end, suffix) != 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "%s: part 1 of %lld of a model; its name must end in %s, so that the others are found", t->name,
                   (long long)all->count, suffix);
  for (int64_t no = 1; no < all->count; no++) {
    split_suffix(suffix, no, all->count);
    snprintf(path, sizeof path, "%.*s%s", (int)(n - end), t->name, suffix);
    WN_TRY(open_part(ctx, t, path, no, all));
    tensors += wn_gguf_tensor_count(t->shards[no].gguf);
  }
  if (tensors == all->tensors) return WN_OK;
  return wn_fail(ctx, WN_ERR_FORMAT, "%s: the %lld parts hold %lld tensors; \"split.tensors.count\" is %lld", t->name,
                 (long long)all->count, (long long)tensors, (long long)all->tensors);
}

/* Takes over the first file, and opens the others. alone: they cannot lie beside it. */
static wn_status open_gguf(wn_context *ctx, struct wn_tensors *t, wn_gguf *first, bool alone) {
  struct split all;
  struct shard *s;
  wn_status status = split_read(ctx, t->name, first, &all);
  if (status == WN_OK && alone && all.count > 1)
    status = wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: part %lld of %lld of a model; parts are read from files", t->name,
                     (long long)all.no + 1, (long long)all.count);
  if (status == WN_OK) status = make_room(ctx, t, all.count);
  if (status == WN_OK) status = add_shard(ctx, t, t->name, t->name, &s);
  if (status != WN_OK) {
    wn_gguf_close(first);
    return status;
  }
  s->gguf = first;
  if (all.count > 1) WN_TRY(open_parts(ctx, t, &all));
  return list_shards(ctx, t);
}

wn_status wn_tensors_open_gguf(wn_context *ctx, const char *path, struct wn_tensors **out) {
  struct wn_tensors *t;
  wn_gguf *first;
  wn_status status = tensors_allocate(ctx, path, &t);
  if (status == WN_OK) status = wn_gguf_open(ctx, path, &first);
  if (status == WN_OK) status = open_gguf(ctx, t, first, false);
  return tensors_finish(status, t, out);
}

wn_status wn_tensors_open_gguf_memory(wn_context *ctx, const char *name, const void *data, size_t bytes,
                                      struct wn_tensors **out) {
  struct wn_tensors *t;
  wn_gguf *first;
  wn_status status = tensors_allocate(ctx, name, &t);
  if (status == WN_OK) status = wn_gguf_open_memory(ctx, name, data, bytes, &first);
  if (status == WN_OK) status = open_gguf(ctx, t, first, true);
  return tensors_finish(status, t, out);
}

/* ---- all kinds ---- */

wn_status wn_tensors_check(wn_context *ctx, const struct wn_tensors *t, bool data) {
  for (const struct shard *s = t->shards; s < t->shards + t->shard_count; s++)
    WN_TRY(s->gguf ? wn_gguf_check(ctx, s->gguf, data, NULL) : wn_safetensors_check(ctx, s->file, data, NULL));
  return WN_OK;
}

static void added_destroy(struct added *a) {
  if (!a) return;
  wn_free(a->name);
  wn_free(a->file);
  wn_free(a);
}

/* Adds a tensor to the sorted list; its name and file are those of `owner`, which the tensors own from then on. */
static wn_status tensors_insert(wn_context *ctx, struct wn_tensors *t, struct added *owner, struct wn_tensor tensor) {
  const bool named = owner->name && owner->file;
  const wn_status status = named ? WN_RESIZE(ctx, "list of tensors", &t->all, t->count, t->count + 1) : WN_ERR_MEMORY;
  if (status != WN_OK) {
    added_destroy(owner);
    return status;
  }
  owner->next = t->added;
  t->added = owner;
  tensor.t.name = owner->name;
  tensor.file = owner->file;
  t->all[t->count++] = tensor;
  qsort(t->all, (size_t)t->count, sizeof *t->all, tensors_compare);
  return WN_OK;
}

wn_status wn_tensors_add(wn_context *ctx, struct wn_tensors *t, const char *name, const char *file, const float *values,
                         int64_t count) {
  void *memory;
  if (wn_tensors_find(t, name) >= 0)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"%s\" is there, and a tensor of that name too", file, name);
  WN_TRY(wn_alloc(ctx, name, sizeof(struct added) + (size_t)count * sizeof *values, &memory));
  struct added *a = memory;
  memcpy(a->values, values, (size_t)count * sizeof *values);
  a->name = wn_strdup(ctx, name);
  a->file = wn_strdup(ctx, file);
  return tensors_insert(ctx, t, a,
                        (struct wn_tensor){.t = {.type = WN_GGUF_F32,
                                                 .ndim = 1,
                                                 .shape = {count},
                                                 .data = a->values,
                                                 .bytes = (size_t)count * sizeof *values},
                                           .is_weights = count > 0,
                                           .dtype = wn_dtype_name(WN_F32)});
}

wn_status wn_tensors_add_name(wn_context *ctx, struct wn_tensors *t, const char *name, int as) {
  struct added *a;
  WN_TRY(WN_ALLOC(ctx, name, 1, &a));
  a->name = wn_strdup(ctx, name);
  a->file = wn_strdup(ctx, t->all[as].file);
  return tensors_insert(ctx, t, a, t->all[as]);
}

void wn_tensors_close(struct wn_tensors *t) {
  if (!t) return;
  for (struct added *a = t->added, *next; a; a = next) {
    next = a->next;
    added_destroy(a);
  }
  for (int s = 0; s < t->shard_count; s++) {
    wn_safetensors_close(t->shards[s].file);
    wn_gguf_close(t->shards[s].gguf);
    wn_free(t->shards[s].name);
    wn_free(t->shards[s].path);
  }
  wn_free(t->shards);
  wn_free(t->all);
  wn_free(t->name);
  wn_free(t);
}

const char *wn_tensors_where(const struct wn_tensors *t) {
  return t->shard_count == 1 ? t->shards[0].path : t->name;
}

int wn_tensors_count(const struct wn_tensors *t) {
  return t->count;
}

const struct wn_tensor *wn_tensors_at(const struct wn_tensors *t, int i) {
  return &t->all[i];
}

int wn_tensors_find(const struct wn_tensors *t, const char *name) {
  const struct wn_tensor wanted = {.t = {.name = name}};
  if (t->count == 0) return -1;
  const struct wn_tensor *found = bsearch(&wanted, t->all, (size_t)t->count, sizeof *t->all, tensors_compare);
  return found ? (int)(found - t->all) : -1;
}

wn_status wn_tensor_read(wn_context *ctx, const struct wn_tensor *t, int64_t first, int64_t count, float *out) {
  const size_t block = wn_gguf_block_bytes(t->t.type);
  const int64_t all = t->is_weights ? (int64_t)(t->t.bytes / block) * wn_gguf_block_weights(t->t.type) : 0;
  if (first < 0 || count < 0 || first > all || count > all - first)
    return wn_fail(ctx, WN_ERR_SHAPE, "%s: tensor %s has %lld weights, %lld from the %lldth are wanted", t->file,
                   t->t.name, (long long)all, (long long)count, (long long)first);
  wn_gguf_decode(t->t.type, t->t.data, first, count, out);
  return WN_OK;
}

const wn_gguf *wn_tensors_gguf(const struct wn_tensors *t) {
  return t->shard_count ? t->shards[0].gguf : NULL;
}
