/* Opens a model, whatever program wrote it.
 *
 * Nothing in a file is trusted. The configuration goes through the checks of winnow's own. Then every tensor that it
 * implies is looked up (name, shape, type) before memory for the model is allocated, so that a few lines of metadata
 * cannot ask for terabytes. Finally every tensor of the file must have been used, or be known not to be a weight. */
#include "formats/adapter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fields.h"
#include "base/file.h"
#include "base/parallel.h"
#include "io/finite.h"
#include "io/folder.h"
#include "model/config.h"
#include "model/layer.h"
#include "tensor/bf16.h"
#include "text/declared.h"

static wn_status import_read_config(wn_context *ctx, const char *dir, char where[4096], json_t **out) {
  /* A mistyped name may have been meant for a file, so the message should not speak of config.json. */
  if (*dir && !wn_path_exists(dir))
    return wn_fail(ctx, WN_ERR_IO, "cannot open %s: there is no such file or folder", dir);
  WN_TRY(wn_folder_file(ctx, where, 4096, dir, "config.json"));
  return wn_json_load_file(ctx, WN_JSON_CONFIG, where, out);
}

static bool import_is_hf(const json_t *config) {
  return json_object_get(config, "model_type") || json_object_get(config, "architectures");
}

/* ---- opening ---- */

/* Sets the family's naming. Checkpoints of base models leave out the prefix of names. */
static void import_name(struct wn_import *im) {
  im->names = im->family ? wn_family_names(im->family, im->form) : &wn_names_own;
  im->architecture = im->family ? wn_family_name(im->family, im->form) : WN_OWN_ARCHITECTURE;
  im->prefix = im->names->prefix;
  if (!*im->prefix) return;
  struct wn_param embed = {.name = "embed.weight", .ndim = 2, .shape = {im->config.vocab_size, im->config.width}};
  struct wn_name_part with[3], without[3];
  wn_names_parts(im->names, &im->config, im->prefix, &embed, with);
  wn_names_parts(im->names, &im->config, "", &embed, without);
  if (wn_tensors_find(im->tensors, with[0].name) < 0 && wn_tensors_find(im->tensors, without[0].name) >= 0)
    im->prefix = "";
}

/* A token id: a number, or the first of a list. */
static int64_t import_token_id(const json_t *value) {
  if (json_is_array(value)) value = json_array_get(value, 0);
  const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
  return id >= 0 && id <= INT32_MAX ? id : -1;
}

enum { LIST_MOST = 4096 }; /* elements of a head */

/* Adds a tensor from a list of numbers in the family's config.json. */
static wn_status import_add_list(wn_context *ctx, struct wn_import *im, const json_t *config, const char *name) {
  const json_t *scaling = json_object_get(config, "rope_scaling");
  if (!json_is_object(scaling)) scaling = json_object_get(config, "rope_parameters");
  const json_t *list = json_object_get(scaling, name);
  const size_t n = json_array_size(list);
  if (n < 1 || n > LIST_MOST)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"%s\" is missing, or no list of numbers", im->where, name);
  float values[LIST_MOST];
  for (size_t i = 0; i < n; i++) {
    values[i] = (float)json_number_value(json_array_get(list, i));
    if (!(values[i] > 0) || !isfinite(values[i]))
      return wn_fail(ctx, WN_ERR_CONFIG, "%s: \"%s\"[%zu] is no number above 0", im->where, name, i);
  }
  return wn_tensors_add(ctx, im->tensors, name, im->where, values, (int64_t)n);
}

static wn_status import_add_lists(wn_context *ctx, struct wn_import *im, const json_t *config) {
  if (im->config.rope_scaling.type != WN_ROPE_LONG) return WN_OK;
  for (int i = 0; i < im->names->count; i++)
    if (im->names->rows[i].listed) WN_TRY(import_add_list(ctx, im, config, im->names->rows[i].theirs[0] + 1));
  return WN_OK;
}

static wn_status import_open_folder(wn_context *ctx, const char *path, struct wn_import *im) {
  json_t *config;
  WN_TRY(import_read_config(ctx, path, im->where, &config));
  wn_status status;
  if (import_is_hf(config)) {
    im->form = WN_FORM_HF;
    status = wn_import_hf_config(ctx, im->where, config, &im->family, &im->config);
    im->bos = import_token_id(json_object_get(config, "bos_token_id"));
    im->eos = import_token_id(json_object_get(config, "eos_token_id"));
  } else {
    im->form = WN_FORM_WINNOW;
    status = wn_model_config_load(ctx, im->where, &im->config);
  }
  if (status == WN_OK) status = wn_declared_read(ctx, path, &im->declared);
  wn_declared_limit(&im->declared, im->config.vocab_size);
  if (status == WN_OK) status = wn_tensors_open_folder(ctx, path, &im->tensors);
  if (status == WN_OK) {
    import_name(im);
    status = import_add_lists(ctx, im, config);
  }
  json_decref(config);
  return status;
}

static wn_status import_open_gguf(wn_context *ctx, struct wn_import *im) {
  im->form = WN_FORM_GGUF;
  WN_TRY(wn_import_gguf_config(ctx, im->where, im->tensors, &im->family, &im->config));
  import_name(im);
  const wn_gguf *file = wn_tensors_gguf(im->tensors);
  if (!wn_gguf_value_int(wn_gguf_value_find(file, "tokenizer.ggml.bos_token_id"), 0, &im->bos)) im->bos = -1;
  if (!wn_gguf_value_int(wn_gguf_value_find(file, "tokenizer.ggml.eos_token_id"), 0, &im->eos)) im->eos = -1;
  WN_TRY(wn_declared_read_gguf(ctx, im->where, file, &im->declared));
  wn_declared_limit(&im->declared, im->config.vocab_size);
  return WN_OK;
}

static void import_init(struct wn_import *im) {
  memset(im, 0, sizeof *im);
  im->architecture = im->prefix = "";
  im->bos = im->eos = -1;
}

/* Opens configuration and tensors of one generation, even if another process saves into the folder meanwhile. */
static wn_status import_open_generation(wn_context *ctx, const char *path, struct wn_import *im) {
  struct wn_folder_reading reading = {.dir = path};
  while (wn_folder_reading_begin(&reading)) {
    import_init(im);
    const wn_status status = import_open_folder(ctx, path, im);
    if (wn_folder_reading_end(&reading)) return status;
    wn_import_clear(im);
  }
  return wn_fail(ctx, WN_ERR_IO, "%s: another process keeps replacing the model", path);
}

wn_status wn_import_open(wn_context *ctx, const char *path, struct wn_import *im) {
  import_init(im);
  if (wn_path_is_dir(path) || !wn_path_exists(path)) return import_open_generation(ctx, path, im);
  if (strlen(path) >= sizeof im->where) return wn_fail(ctx, WN_ERR_ARGUMENT, "%.100s...: the path is too long", path);
  snprintf(im->where, sizeof im->where, "%s", path);
  WN_TRY(wn_tensors_open_gguf(ctx, path, &im->tensors));
  return import_open_gguf(ctx, im);
}

wn_status wn_import_open_gguf_memory(wn_context *ctx, const char *name, const void *data, size_t bytes,
                                     struct wn_import *im) {
  import_init(im);
  snprintf(im->where, sizeof im->where, "%s", name);
  WN_TRY(wn_tensors_open_gguf_memory(ctx, name, data, bytes, &im->tensors));
  return import_open_gguf(ctx, im);
}

void wn_import_clear(struct wn_import *im) {
  wn_declared_clear(&im->declared);
  wn_tensors_close(im->tensors);
  im->tensors = NULL;
}

void wn_import_row(const struct wn_import *im, const struct wn_param *row, struct wn_import_row *out) {
  out->count = wn_names_parts(im->names, &im->config, im->prefix, row, out->parts);
  out->K = 1;
  for (int d = 1; d < row->ndim; d++) out->K *= row->shape[d];
  for (int k = 0; k < out->count; k++) {
    const int at = wn_tensors_find(im->tensors, out->parts[k].name);
    if (at < 0) {
      out->count = 0;
      return;
    }
    out->tensor[k] = wn_tensors_at(im->tensors, at);
  }
}

/* ---- checking ---- */

static void import_shape_text(char *out, size_t bytes, int ndim, const int64_t *shape) {
  size_t at = 0;
  at += (size_t)snprintf(out, bytes, "[");
  for (int i = 0; i < ndim && at < bytes; i++)
    at += (size_t)snprintf(out + at, bytes - at, "%s%lld", i ? "," : "", (long long)shape[i]);
  if (at < bytes) snprintf(out + at, bytes - at, "]");
}

/* Checks that tensor i of the file is this part of the row. */
static wn_status import_check_part(wn_context *ctx, const struct wn_import *im, const struct wn_param *row,
                                   const struct wn_name_part *part, int i) {
  int64_t shape[3] = {part->rows, 0, 0};
  int ndim = row->ndim;
  for (int d = 1; d < row->ndim; d++) shape[d] = row->shape[d];
  if (part->transposed) shape[0] = row->shape[1], shape[1] = part->rows;
  if (part->experts > 0) shape[0] = part->experts, shape[1] = part->rows, shape[2] = row->shape[1], ndim = 3;
  char expected[128], found[256];
  import_shape_text(expected, sizeof expected, ndim, shape);
  if (i < 0)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor %s is missing; expected with shape %s",
                   wn_tensors_where(im->tensors), part->name, expected);
  const struct wn_tensor *t = wn_tensors_at(im->tensors, i);
  if (!t->is_weights)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor %s is of dtype %s, expected F32, F16 or BF16 and no empty shape",
                   t->file, part->name, t->dtype);
  const bool vector = ndim == 1 && t->t.ndim == 2 && t->t.shape[0] == 1; /* a matrix of one row */
  bool same = t->t.ndim == ndim || vector;
  for (int d = 0; same && d < ndim; d++) same = t->t.shape[d + vector] == shape[d];
  import_shape_text(found, sizeof found, t->t.ndim, t->t.shape);
  if (!same)
    return wn_fail(ctx, WN_ERR_SHAPE, "%s: tensor %s has shape %s, expected %s by %s", t->file, part->name, found,
                   expected, im->form == WN_FORM_GGUF ? "the metadata" : "config.json");
  return WN_OK;
}

/* If the output is tied but in the file nevertheless, it must equal the embedding. */
static wn_status import_check_tied(wn_context *ctx, const struct wn_import *im, uint8_t *used) {
  struct wn_param row = {.name = "output.weight", .ndim = 2, .shape = {im->config.vocab_size, im->config.width}};
  struct wn_name_part output[3], embed[3];
  if (!im->config.tied || im->names == &wn_names_own) return WN_OK;
  wn_names_parts(im->names, &im->config, im->prefix, &row, output);
  const int at = wn_tensors_find(im->tensors, output[0].name);
  if (at < 0) return WN_OK;
  snprintf(row.name, sizeof row.name, "embed.weight");
  wn_names_parts(im->names, &im->config, im->prefix, &row, embed);
  const struct wn_tensor *a = wn_tensors_at(im->tensors, at),
                         *b = wn_tensors_at(im->tensors, wn_tensors_find(im->tensors, embed[0].name));
  if (a->t.type != b->t.type || a->t.bytes != b->t.bytes || memcmp(a->t.data, b->t.data, a->t.bytes) != 0)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor %s is not the embedding, though the configuration says it is tied",
                   im->where, output[0].name);
  used[at] = 1;
  return WN_OK;
}

static wn_status import_check_tensors(wn_context *ctx, const struct wn_import *im, uint8_t *used) {
  const int64_t slots = wn_param_slot_count(&im->config);
  for (int64_t p = 0; p < slots; p++) {
    struct wn_param row;
    struct wn_name_part parts[3];
    WN_TRY(wn_param_slot(ctx, &im->config, p, &row));
    if (!row.ndim) continue;
    const int count = wn_names_parts(im->names, &im->config, im->prefix, &row, parts);
    if (count == 0)
      return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: %s has no tensor for %s", im->where, im->names->title, row.name);
    for (int k = 0; k < count; k++) {
      const int at = wn_tensors_find(im->tensors, parts[k].name);
      WN_TRY(import_check_part(ctx, im, &row, &parts[k], at));
      used[at] = 1;
    }
  }
  WN_TRY(import_check_tied(ctx, im, used));
  for (int i = 0; i < wn_tensors_count(im->tensors); i++) {
    const struct wn_tensor *t = wn_tensors_at(im->tensors, i);
    if (!used[i] && !wn_names_ignore(im->names, t->t.name))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor %s is not part of the model that %s describes", t->file, t->t.name,
                     im->form == WN_FORM_GGUF ? "the metadata" : "config.json");
  }
  return WN_OK;
}

wn_status wn_import_check(wn_context *ctx, const struct wn_import *im) {
  void *used;
  WN_TRY(wn_alloc(ctx, "marks of tensors", (size_t)wn_tensors_count(im->tensors) + 1, &used));
  const wn_status status = import_check_tensors(ctx, im, used);
  wn_free(used);
  return status;
}

wn_status wn_import_check_values(wn_context *ctx, const struct wn_import *im) {
  for (int i = 0; i < wn_tensors_count(im->tensors); i++) {
    const struct wn_tensor *t = wn_tensors_at(im->tensors, i);
    const int64_t at = t->is_weights ? wn_finite_scan(t->t.type, t->t.data, t->t.bytes) : -1;
    wn_loading_add(ctx, t->t.bytes);
    if (at < 0) continue;
    return wn_fail(ctx, WN_ERR_FORMAT,
                   "%s: tensor %s holds values that are not finite (NaN or infinity): the first %s weight %lld",
                   t->file, t->t.name, wn_gguf_block_weights(t->t.type) > 1 ? "are of the block at" : "is",
                   (long long)at);
  }
  return WN_OK;
}

/* ---- making the model ---- */

static wn_status import_copy_part(wn_context *ctx, const struct wn_import *im, const struct wn_param *row,
                                  const struct wn_name_part *part, float *to, float *line) {
  const struct wn_tensor *t = wn_tensors_at(im->tensors, wn_tensors_find(im->tensors, part->name));
  const int64_t K = row->ndim > 1 ? row->shape[1] * (row->ndim > 2 ? row->shape[2] : 1) : 1, n = part->rows * K;
  to += part->first * K;
  if (part->transposed) {
    for (int64_t k = 0; k < K; k++) {
      WN_TRY(wn_tensor_read(ctx, t, k * part->rows, part->rows, line));
      for (int64_t r = 0; r < part->rows; r++) to[r * K + k] = line[r];
    }
  } else {
    WN_TRY(wn_tensor_read(ctx, t, part->expert * n, n, to));
  }
  bool finite = true;
  for (int64_t i = 0; part->plus != 0 && i < n; i++) to[i] += part->plus;
  for (int64_t i = 0; i < n; i++) finite &= isfinite(to[i]) != 0;
  if (im->unchecked) return WN_OK;
  if (!finite)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor %s holds values that are not finite", t->file, part->name);
  for (int64_t i = 0; row->range == WN_RANGE_RATIO && i < n; i++) /* a span: it decides how far a head sees */
    if (!((double)to[i] >= 0 && (double)to[i] <= 1))
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor %s holds %g; expected values from 0 to 1", t->file, part->name,
                     (double)to[i]);
  return WN_OK;
}

static wn_status import_copy_tensors(wn_context *ctx, const struct wn_import *im, struct wn_model *model) {
  int64_t widest = 1;
  for (int t = 0; t < model->table.count; t++)
    if (model->table.rows[t].ndim > 1 && model->table.rows[t].shape[0] > widest) widest = model->table.rows[t].shape[0];
  void *line, *params = NULL;
  WN_TRY(wn_alloc(ctx, "a row of a transposed tensor", (size_t)widest * sizeof(float), &line));
  wn_status status = wn_model_params_open(model, &params);
  for (int t = 0; status == WN_OK && t < model->table.count; t++) {
    const struct wn_param *row = &model->table.rows[t];
    struct wn_name_part parts[3];
    if (row->packed.count) continue;
    const int count = wn_names_parts(im->names, &im->config, im->prefix, row, parts);
    for (int k = 0; k < count && status == WN_OK; k++)
      status = import_copy_part(ctx, im, row, &parts[k], (float *)params + row->offset, line);
    wn_loading_add(ctx, row->count * sizeof(float));
  }
  wn_free(line);
  const wn_status closed = wn_model_params_close(model, params, status == WN_OK);
  return status == WN_OK ? closed : status;
}

/* Decides whether a matrix is packed: if at least one of its parts has fewer bits than a float. round: other matrices
 * are packed too, to be rounded later; until then their parts point to the floats. */
static void import_pack_row(const struct wn_import *im, const struct wn_param *row, bool round, struct wn_packed *out) {
  struct wn_name_part parts[3];
  bool smaller = false;
  out->count = 0;
  if (row->ndim != 2 || !row->packs) return;
  if (im->adapter && wn_adapter_changes(im->adapter, row->name)) return;
  const int count = wn_names_parts(im->names, &im->config, im->prefix, row, parts);
  for (int k = 0; k < count; k++) {
    const struct wn_tensor *t = wn_tensors_at(im->tensors, wn_tensors_find(im->tensors, parts[k].name));
    if (parts[k].transposed || parts[k].plus != 0) return;
    smaller |= t->t.type != WN_GGUF_F32;
    const size_t before = (size_t)(parts[k].expert * parts[k].rows) * wn_packed_row_bytes(t->t.type, row->shape[1]);
    out->part[k] =
        (struct wn_packed_part){.type = t->t.type, .rows = parts[k].rows, .data = (const char *)t->t.data + before};
  }
  if (smaller || (round && row->packs)) out->count = count;
}

enum { ROUND_AT_ONCE = 1024 };
struct import_round {
  const char *from; /* in a file: not aligned */
  uint16_t *to;
};
static void import_round_range(void *args, int64_t first, int64_t end) {
  const struct import_round *a = args;
  float x[ROUND_AT_ONCE];
  for (int64_t i = first; i < end; i += ROUND_AT_ONCE) {
    const int64_t count = end - i < ROUND_AT_ONCE ? end - i : ROUND_AT_ONCE;
    memcpy(x, a->from + (size_t)i * sizeof *x, (size_t)count * sizeof *x);
    wn_bf16_from_f32(1, count, x, a->to + i);
  }
}

/* Rounds float32 parts to bfloat16 in `to`, to which the parts then point; to NULL: only returns the bytes. */
static size_t import_round_row(wn_context *ctx, const struct wn_param *row, struct wn_packed *p, uint16_t *to) {
  size_t all = 0;
  for (int k = 0; k < p->count; k++) {
    struct wn_packed_part *part = &p->part[k];
    const int64_t n = part->rows * row->shape[1];
    if (part->type != WN_GGUF_F32) continue;
    all += (size_t)n * sizeof *to;
    if (!to) continue;
    const struct import_round a = {part->data, to};
    wn_parallel_blocks(ctx->threads, n, ROUND_AT_ONCE, import_round_range, &a);
    wn_map_release(a.from, (size_t)n * sizeof(float));
    part->type = WN_GGUF_BF16, part->data = to;
    to += n;
  }
  return all;
}

static wn_status import_round(wn_context *ctx, const struct wn_param_table *table, struct wn_packed *packed,
                              void **out) {
  size_t all = 0;
  for (int i = 0; i < table->count; i++) all += import_round_row(ctx, &table->rows[i], &packed[i], NULL);
  WN_TRY(wn_alloc(ctx, "weights in bfloat16", all, out));
  uint16_t *to = *out;
  for (int i = 0; i < table->count && to; i++)
    to += import_round_row(ctx, &table->rows[i], &packed[i], to) / sizeof *to;
  return WN_OK;
}

static wn_status import_allocate_packed(wn_context *ctx, const struct wn_import *im, wn_weights weights,
                                        struct wn_model **out) {
  struct wn_param_table table;
  void *rounded = NULL;
  const bool round = weights == WN_WEIGHTS_BFLOAT16;
  WN_TRY(wn_param_table_create(ctx, &im->config, &table));
  struct wn_packed *packed;
  wn_status status = WN_ALLOC(ctx, "packed weights", table.count, &packed);
  for (int i = 0; status == WN_OK && i < table.count; i++) import_pack_row(im, &table.rows[i], round, &packed[i]);
  if (status == WN_OK && round) status = import_round(ctx, &table, packed, &rounded);
  if (status == WN_OK) status = wn_model_allocate_packed(ctx, &im->config, packed, out);
  if (status == WN_OK && (*out)->backend->memory->host)
    (*out)->rounded = rounded;
  else
    wn_free(rounded);
  wn_free(packed);
  wn_param_table_clear(&table);
  return status;
}

static void import_close_source(void *source) {
  wn_tensors_close(source);
}

/* Gives the output rows of its own, which are the embedding's so far. */
static wn_status import_untie(wn_context *ctx, struct wn_import *im) {
  struct wn_param row = {.name = "output.weight", .ndim = 2, .shape = {im->config.vocab_size, im->config.width}};
  struct wn_name_part output[3], embed[3];
  im->config.tied = false;
  if (wn_names_parts(im->names, &im->config, im->prefix, &row, output) == 0)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s: %s has no tensor for %s", im->where, im->names->title, row.name);
  snprintf(row.name, sizeof row.name, "embed.weight");
  wn_names_parts(im->names, &im->config, im->prefix, &row, embed);
  if (wn_tensors_find(im->tensors, output[0].name) >= 0) return WN_OK; /* equal to it: import_check_tied */
  return wn_tensors_add_name(ctx, im->tensors, output[0].name, wn_tensors_find(im->tensors, embed[0].name));
}

wn_status wn_import_model(wn_context *ctx, struct wn_import *im, bool as_float, wn_weights weights,
                          struct wn_model **out) {
  struct wn_model *model = NULL;
  *out = NULL;
  if (im->adapter && wn_adapter_unties(im->adapter)) WN_TRY(import_untie(ctx, im));
  wn_status status =
      as_float ? wn_model_allocate(ctx, &im->config, WN_F32, &model) : import_allocate_packed(ctx, im, weights, &model);
  if (status == WN_OK) status = import_copy_tensors(ctx, im, model);
  if (status == WN_OK && im->adapter) status = wn_adapter_merge(ctx, im->adapter, model);
  const bool factors = im->config.rope_factors || im->config.rope_scaling.type == WN_ROPE_LONG;
  if (status == WN_OK && factors) status = wn_model_rotary_refresh(model);
  if (status != WN_OK) {
    wn_model_destroy(model);
    return status;
  }
  const bool packed = wn_model_is_packed(model);
  if (packed && model->backend->memory->host) { /* on another backend the model has copies */
    model->source = im->tensors;
    model->source_close = import_close_source;
    im->tensors = NULL;
  }
  if (packed && weights != WN_WEIGHTS_FILE) wn_model_make_strips(ctx, model);
  *out = model;
  return WN_OK;
}
