/* Writes a model in another format (docs/real-models.md). The source stays mapped. The target's tensors are made one
 * after the other from the source's rows: copied if both have the same type, else converted through floats.
 *
 * Rotary pairs: with "halves" row d of a head is element d / (R/2) of pair d % (R/2); with "adjacent" it is element d %
 * 2 of pair d / 2. If source and target differ, the rows of q and k (and the weights of QK-norm) are reordered. Cost:
 * each weight is read and written once. */
#include "formats/export.h"

#include <stdio.h>
#include <sys/stat.h>

#include "base/fields.h"
#include "base/file.h"
#include "base/misuse.h"
#include "base/options.h"
#include "base/text.h"
#include "model/config.h"
#include "model/run.h"
#include "text/declared.h"
#include "text/tokenizer.h"

enum { PATH_BYTES = 4096 };

/* A tensor of the target. */
struct piece {
  struct wn_param row; /* the row of winnow's table */
  struct wn_name_part part;
  wn_gguf_type type;
  int ndim;
  int64_t shape[3]; /* in the target */
};

struct job {
  wn_context *ctx;
  struct wn_export *e;
  struct piece *pieces; /* [count] */
  int count;
  bool gguf;
};

/* ---- rows ---- */

/* The row of the source that becomes row r of the target. */
static int64_t export_source_row(const struct wn_export *e, const struct wn_param *row, int64_t r) {
  const bool same = e->config.position != WN_POS_ROPE || e->config.rope_pairs == e->from->config.rope_pairs;
  return same ? r : wn_names_other_row(&e->config, row, r);
}

/* Which part of the source holds row r (in the source's order), and which row of the part it is. */
static int export_part_of(const struct wn_import_row *s, int64_t r, int64_t *local) {
  int k = 0;
  while (k < s->count - 1 && r >= s->parts[k].first + s->parts[k].rows) k++;
  *local = r - s->parts[k].first + s->parts[k].expert * s->parts[k].rows;
  return k;
}

/* Reads a row as floats. A row of a vector is one element, which may lie anywhere in a block. */
static wn_status export_read_row(wn_context *ctx, const struct wn_import_row *s, int64_t r, float *out /* [K] */) {
  int64_t local;
  const int k = export_part_of(s, r, &local);
  if (s->parts[k].transposed) {
    for (int64_t i = 0; i < s->K; i++)
      WN_TRY(wn_tensor_read(ctx, s->tensor[k], i * s->parts[k].rows + local, 1, out + i));
  } else {
    WN_TRY(wn_tensor_read(ctx, s->tensor[k], local * s->K, s->K, out));
  }
  if (s->parts[k].plus != 0)
    for (int64_t i = 0; i < s->K; i++) out[i] += s->parts[k].plus;
  return WN_OK;
}

/* Copies the tensor's rows, if all of them have the target's type. False: they do not. */
static bool export_copy_rows(const struct job *job, const struct piece *p, const struct wn_import_row *s,
                             uint8_t *out) {
  for (int k = 0; k < s->count; k++)
    if (s->tensor[k]->t.type != p->type || s->parts[k].transposed || s->parts[k].plus != p->part.plus) return false;
  if (p->part.transposed || s->K % wn_gguf_block_weights(p->type) != 0) return false;
  const size_t bytes = (size_t)(s->K / wn_gguf_block_weights(p->type)) * wn_gguf_block_bytes(p->type);
  for (int64_t r = 0; r < p->part.rows; r++) {
    int64_t local;
    const int k = export_part_of(s, export_source_row(job->e, &p->row, p->part.first + r), &local);
    memcpy(out + (size_t)r * bytes, (const uint8_t *)s->tensor[k]->t.data + (size_t)local * bytes, bytes);
  }
  return true;
}

static void export_transpose(const float *from, int64_t rows, int64_t columns, float *to) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++) to[c * rows + r] = from[r * columns + c];
}

static wn_status export_make_through_floats(const struct job *job, const struct piece *p, const struct wn_import_row *s,
                                            void *out) {
  const int64_t rows = p->part.rows, K = s->K;
  size_t weights;
  if (!wn_mul_size((size_t)rows, (size_t)K * 2, &weights))
    return wn_fail(job->ctx, WN_ERR_MEMORY, "tensor %s does not fit in memory", p->part.name);
  float *x;
  WN_TRY(WN_ALLOC(job->ctx, p->part.name, p->part.transposed ? weights : weights / 2, &x));
  wn_status status = WN_OK;
  for (int64_t r = 0; r < rows && status == WN_OK; r++)
    status = export_read_row(job->ctx, s, export_source_row(job->e, &p->row, p->part.first + r), x + r * K);
  if (status != WN_OK) {
    wn_free(x);
    return status;
  }
  if (p->part.plus != 0)
    for (int64_t i = 0; i < rows * K; i++) x[i] -= p->part.plus;
  if (p->part.transposed) export_transpose(x, rows, K, x + rows * K);
  status = wn_gguf_encode(job->ctx, p->type, p->part.transposed ? x + rows * K : x, rows * K, out);
  if (status != WN_OK) status = wn_fail_prefix(job->ctx, status, "%s: tensor %s", job->e->from->where, p->part.name);
  wn_free(x);
  return status;
}

/* Makes a tensor in which all experts' rows are stacked; the piece is that of the first expert. */
static wn_status export_produce_stack(const struct job *job, const struct piece *p, void *out, size_t bytes) {
  struct piece one = *p;
  struct wn_import_row s;
  const char *mark = strstr(p->row.name, ".experts.");
  const size_t n = mark ? (size_t)(mark - p->row.name) : 0, each = bytes / (size_t)p->part.experts;
  const char *rest = mark ? strchr(mark + strlen(".experts."), '.') : NULL;
  for (int64_t e = 0; rest && e < p->part.experts; e++) {
    uint8_t *to = (uint8_t *)out + (size_t)e * each;
    snprintf(one.row.name, sizeof one.row.name, "%.*s.experts.%lld%s", (int)n, p->row.name, (long long)e, rest);
    one.part.expert = e;
    wn_import_row(job->e->from, &one.row, &s);
    if (!export_copy_rows(job, &one, &s, to)) WN_TRY(export_make_through_floats(job, &one, &s, to));
  }
  return WN_OK;
}

/* Makes tensor i of the target. */
static wn_status export_produce(void *user, int i, void *out, size_t bytes) {
  const struct job *job = user;
  const struct piece *p = &job->pieces[i];
  struct wn_import_row s;
  if (wn_context_cancelled(job->ctx))
    return wn_fail(job->ctx, WN_ERR_CANCELLED, "stopped before tensor %d of %d", i + 1, job->count);
  if (p->part.experts > 0) return export_produce_stack(job, p, out, bytes);
  wn_import_row(job->e->from, &p->row, &s);
  if (s.count == 0) { /* rope.factors, where the source expresses it by configuration keys */
    for (int64_t k = 0; k < p->part.rows; k++) {
      const float factor = (float)wn_rotary_divisor(&job->e->from->config, k);
      memcpy((uint8_t *)out + (size_t)k * sizeof factor, &factor, sizeof factor);
    }
    return WN_OK;
  }
  return export_copy_rows(job, p, &s, out) ? WN_OK : export_make_through_floats(job, p, &s, out);
}

/* ---- types ---- */

/* Is it a matrix that may be rounded? A router stays exact. */
static bool export_is_matrix(const struct wn_param *row) {
  return row->ndim == 2 && strcmp(row->name, "pos.weight") != 0 && !wn_ends_with(row->name, "router.weight");
}

/* The type that all matrices of the source have; F32 if they differ or are in blocks. */
static wn_gguf_type export_common_type(const struct wn_import *im) {
  const int64_t slots = wn_param_slot_count(&im->config);
  wn_gguf_type type = WN_GGUF_F32;
  bool first = true;
  for (int64_t p = 0; p < slots; p++) {
    struct wn_param row;
    struct wn_import_row s;
    if (wn_param_slot(NULL, &im->config, p, &row) != WN_OK || !export_is_matrix(&row)) continue;
    wn_import_row(im, &row, &s);
    for (int k = 0; k < s.count; k++) {
      if (!first && s.tensor[k]->t.type != type) return WN_GGUF_F32;
      type = s.tensor[k]->t.type;
      first = false;
    }
  }
  return type == WN_GGUF_F16 || type == WN_GGUF_BF16 ? type : WN_GGUF_F32;
}

/* The source's type of these rows, if they all have one type that the target can hold. */
static wn_gguf_type export_own_type(const struct job *job, const struct wn_param *row,
                                    const struct wn_name_part *part) {
  struct wn_import_row s;
  wn_import_row(job->e->from, row, &s);
  if (s.count == 0 || part->transposed) return WN_GGUF_F32;
  int64_t local;
  const wn_gguf_type type = s.tensor[export_part_of(&s, part->first, &local)]->t.type;
  for (int k = 0; k < s.count; k++) {
    const bool touches =
        s.parts[k].first < part->first + part->rows && part->first < s.parts[k].first + s.parts[k].rows;
    if (touches && (s.tensor[k]->t.type != type || s.parts[k].transposed)) return WN_GGUF_F32;
  }
  return type;
}

/* The type itself if rows of K are whole blocks of it; else the type that llama.cpp uses instead. */
static wn_gguf_type export_fitting_type(wn_gguf_type type, int64_t K) {
  static const wn_gguf_type in_place[WN_GGUF_TYPE_COUNT] = {
      [WN_GGUF_Q4_K] = WN_GGUF_Q5_0, [WN_GGUF_Q5_K] = WN_GGUF_Q5_1, [WN_GGUF_Q6_K] = WN_GGUF_Q8_0};
  if (K % wn_gguf_block_weights(type) != 0 && in_place[type] != WN_GGUF_F32) type = in_place[type];
  return K % wn_gguf_block_weights(type) == 0 ? type : WN_GGUF_F16;
}

/* Does a mixture give this layer more bits? It does in the first and the last eighth, and in every third layer
 * between. */
static bool export_layer_has_more(const char *name, int64_t layers) {
  long long l = 0;
  if (sscanf(name, "layers.%lld.", &l) != 1) return false;
  return l < layers / 8 || l >= 7 * layers / 8 || (l - layers / 8) % 3 == 2;
}

/* llama.cpp's mixtures Q4_K_M and Q5_K_M: Q6_K for the output projection, and in some layers for the value projection
 * and the feed-forward's second projection. A fused projection of q, k and v gets a type between. */
static wn_gguf_type export_mixed_type(const struct job *job, const struct wn_param *row,
                                      const struct wn_name_part *part) {
  const wn_model_config *c = &job->e->config;
  const wn_gguf_type type = job->e->options.type;
  const int64_t before_v = (c->heads + c->kv_heads) * c->head_size;
  const bool more = export_layer_has_more(row->name, c->layers);
  if (!strcmp(row->name, "output.weight") || (c->tied && !strcmp(row->name, "embed.weight"))) return WN_GGUF_Q6_K;
  if (wn_ends_with(row->name, "attn.qkv.weight") && part->rows == row->shape[0])
    return type == WN_GGUF_Q4_K ? WN_GGUF_Q5_K : WN_GGUF_Q6_K;
  if (wn_ends_with(row->name, "attn.qkv.weight") && part->first == before_v) return more ? WN_GGUF_Q6_K : type;
  const bool expert = strstr(row->name, ".experts.") || strstr(row->name, ".shared.");
  if (wn_ends_with(row->name, "ffn.out.weight") || (expert && wn_ends_with(row->name, ".out.weight")))
    return more ? WN_GGUF_Q6_K : type;
  return type;
}

static wn_gguf_type export_type_of(const struct job *job, const struct wn_param *row, const struct wn_name_part *part,
                                   wn_gguf_type all) {
  const wn_convert_options *o = &job->e->options;
  if (o->to == WN_CONVERT_HF) return o->typed ? o->type : all;
  if (!export_is_matrix(row)) return WN_GGUF_F32;
  if (o->to == WN_CONVERT_WINNOW) return o->typed ? o->type : WN_GGUF_F32;
  if (!o->typed) return export_own_type(job, row, part);
  return export_fitting_type(o->mixed ? export_mixed_type(job, row, part) : o->type, row->shape[1]);
}

static wn_status export_check_type(wn_context *ctx, const wn_convert_options *o) {
  const bool gguf = o->to == WN_CONVERT_GGUF || o->to == WN_CONVERT_WINNOW_GGUF;
  if (!o->typed && !o->mixed) return WN_OK;
  WN_CHECK_CALL(WN_ENUM(o->type, WN_GGUF_TYPE_COUNT));
  if (o->mixed && (!o->typed || (o->type != WN_GGUF_Q4_K && o->type != WN_GGUF_Q5_K)))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "a mixture is of type Q4_K or Q5_K, not %s",
                   o->typed ? wn_gguf_type_name(o->type) : "the source's");
  if (!gguf && wn_gguf_block_weights(o->type) > 1)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "type %s needs GGUF: safetensors has no blocks",
                   wn_gguf_type_name(o->type));
  return WN_OK;
}

/* ---- the list of tensors ---- */

static wn_status export_list_pieces(struct job *job) {
  const struct wn_export *e = job->e;
  const int64_t slots = wn_param_slot_count(&e->config);
  const wn_gguf_type all = export_common_type(e->from);
  for (int pass = 0; pass < 2; pass++) {
    int count = 0;
    for (int64_t p = 0; p < slots; p++) {
      struct wn_param row;
      struct wn_name_part parts[3];
      WN_TRY(wn_param_slot(job->ctx, &e->config, p, &row));
      if (!row.ndim) continue;
      const int n = wn_names_parts(e->names, &e->config, e->names->prefix, &row, parts);
      if (n == 0)
        return wn_fail(job->ctx, WN_ERR_UNSUPPORTED, "%s: %s has no tensor for %s", e->from->where, e->names->title,
                       row.name);
      for (int k = 0; k < n; k++) {
        if (parts[k].experts > 0 && parts[k].expert > 0) continue; /* the first expert's piece has all experts */
        if (parts[k].listed || !pass) {
          count += !parts[k].listed;
          continue;
        }
        struct piece *to = &job->pieces[count++];
        *to = (struct piece){.row = row, .part = parts[k], .ndim = row.ndim};
        memcpy(to->shape, row.shape, sizeof to->shape);
        to->shape[0] = parts[k].rows;
        if (parts[k].transposed) to->shape[0] = row.shape[1], to->shape[1] = parts[k].rows;
        if (parts[k].one_row) to->ndim = 2, to->shape[0] = 1, to->shape[1] = parts[k].rows;
        if (parts[k].experts > 0) {
          to->ndim = 3;
          to->shape[0] = parts[k].experts, to->shape[1] = parts[k].rows, to->shape[2] = row.shape[1];
        }
        to->type = export_type_of(job, &row, &parts[k], all);
      }
    }
    if (pass) break;
    WN_TRY(WN_ALLOC(job->ctx, "list of tensors", count, &job->pieces));
    job->count = count;
  }
  return WN_OK;
}

/* ---- files ---- */

static wn_status export_write_safetensors(struct job *job, const char *dir) {
  static const char *const metadata[] = {"format", "pt", "producer", "winnow", NULL};
  char path[PATH_BYTES];
  WN_TRY(wn_path_join(job->ctx, path, sizeof path, dir, "model.safetensors"));
  wn_safetensors_entry *entries;
  WN_TRY(WN_ALLOC(job->ctx, "list of tensors", job->count, &entries));
  for (int i = 0; i < job->count; i++) {
    const struct piece *p = &job->pieces[i];
    wn_safetensors_entry *to = &entries[i];
    *to = (wn_safetensors_entry){.name = p->part.name, .ndim = p->ndim};
    to->dtype = p->type == WN_GGUF_F16 ? WN_F16 : p->type == WN_GGUF_BF16 ? WN_BF16 : WN_F32;
    to->bytes = wn_dtype_size(to->dtype);
    for (int d = 0; d < p->ndim; d++) to->shape[d] = p->shape[d], to->bytes *= (size_t)p->shape[d];
  }
  const wn_status status =
      wn_safetensors_write_made(job->ctx, path, entries, job->count, metadata, export_produce, job);
  wn_free(entries);
  return status;
}

/* llama.cpp's general.file_type: the number for "mostly this type". */
static int64_t export_file_type(const struct job *job) {
  size_t weights[WN_GGUF_TYPE_COUNT] = {0};
  int most = WN_GGUF_F32;
  for (int i = 0; i < job->count; i++) {
    size_t n = 1;
    for (int d = 0; d < job->pieces[i].ndim; d++) n *= (size_t)job->pieces[i].shape[d];
    weights[job->pieces[i].type] += n;
  }
  for (int t = 0; t < WN_GGUF_TYPE_COUNT; t++)
    if (weights[t] > weights[most]) most = t;
  static const int numbers[WN_GGUF_TYPE_COUNT] = {
      [WN_GGUF_F32] = 0,   [WN_GGUF_F16] = 1,   [WN_GGUF_BF16] = 32, [WN_GGUF_Q8_0] = 7,
      [WN_GGUF_Q4_0] = 2,  [WN_GGUF_Q4_1] = 3,  [WN_GGUF_Q5_0] = 8,  [WN_GGUF_Q5_1] = 9,
      [WN_GGUF_Q4_K] = 15, [WN_GGUF_Q5_K] = 17, [WN_GGUF_Q6_K] = 18};
  return numbers[most];
}

static bool export_is_tokenizers(const char *key) {
  return !strncmp(key, "tokenizer.", strlen("tokenizer."));
}

/* Copies the source's general and tokenizer keys, except those that are written anew. */
static void export_copy_values(const struct wn_export *e, wn_gguf_values *values) {
  const wn_gguf *file = wn_tensors_gguf(e->from->tensors);
  for (int i = 0; i < wn_gguf_value_count(file); i++) {
    const wn_gguf_value *v = wn_gguf_value_at(file, i);
    const bool own = export_is_tokenizers(v->key) || !strcmp(v->key, "winnow.tokenizer.model") ||
                     !strncmp(v->key, "winnow.generation.", strlen("winnow.generation.")) ||
                     !strncmp(v->key, "general.", strlen("general."));
    if (own && strcmp(v->key, "general.alignment") != 0 && !wn_gguf_values_has(values, v->key))
      wn_gguf_values_copy(values, v);
  }
}

static const char *export_base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static wn_status export_gguf_values(struct job *job, const char *from, wn_gguf_values *values,
                                    wn_convert_result *result) {
  const struct wn_export *e = job->e;
  wn_gguf_values_put_string(values, "general.architecture", e->architecture, strlen(e->architecture));
  wn_gguf_values_put_uint(values, "general.file_type", (uint32_t)export_file_type(job));
  wn_gguf_values_put_uint(values, "general.quantization_version", 2);
  WN_TRY(wn_export_gguf_values(job->ctx, e, values));
  if (e->from->form == WN_FORM_GGUF) {
    export_copy_values(e, values);
    if (wn_gguf_values_has(values, "tokenizer.ggml.model")) result->tokenizer = "copied";
    return WN_OK;
  }
  wn_gguf_values_put_string(values, "general.type", "model", 5);
  const char *name = export_base_name(from);
  wn_gguf_values_put_string(values, "general.name", name, strlen(name));
  wn_tokenizer *tok;
  if (wn_tokenizer_file_of(from)) {
    WN_TRY(wn_tokenizer_load(job->ctx, from, &tok));
    const wn_status status = wn_tokenizer_gguf(job->ctx, tok, e->config.vocab_size, values);
    wn_tokenizer_destroy(tok);
    WN_TRY(status);
    result->tokenizer = "written";
  } else {
    wn_gguf_values_put_string(values, "tokenizer.ggml.model", "none", 4);
  }
  wn_declared_put(&e->from->declared, e->config.context, values);
  return WN_OK;
}

static wn_status export_write_gguf(struct job *job, const char *from, const char *out, wn_convert_result *result) {
  wn_gguf_values *values;
  wn_gguf_tensor *tensors = NULL;
  WN_TRY(wn_gguf_values_create(job->ctx, &values));
  wn_status status = export_gguf_values(job, from, values, result);
  if (status == WN_OK) status = WN_ALLOC(job->ctx, "list of tensors", job->count, &tensors);
  for (int i = 0; i < job->count && status == WN_OK; i++) {
    const struct piece *p = &job->pieces[i];
    tensors[i] = (wn_gguf_tensor){.name = p->part.name, .type = p->type, .ndim = p->ndim};
    memcpy(tensors[i].shape, p->shape, sizeof p->shape);
  }
  if (status == WN_OK) status = wn_gguf_write(job->ctx, out, values, tensors, job->count, export_produce, job);
  wn_free(tensors);
  wn_gguf_values_destroy(values);
  return status;
}

/* ---- the tokenizer of a folder ---- */

static wn_status export_copy_file(wn_context *ctx, const char *from, const char *to, const char *name) {
  char a[PATH_BYTES], b[PATH_BYTES], *text;
  size_t bytes;
  WN_TRY(wn_folder_file(ctx, a, sizeof a, from, name));
  WN_TRY(wn_path_join(ctx, b, sizeof b, to, name));
  WN_TRY(wn_file_read(ctx, a, (size_t)1 << 30, &text, &bytes));
  const wn_status status = wn_file_write(ctx, b, text, bytes);
  wn_free(text);
  return status;
}

/* Must the source's tokenizer be written? False: its files are copied. */
static bool export_writes_tokenizer(const struct wn_export *e, const char *from) {
  if (e->from->form == WN_FORM_GGUF) {
    const wn_gguf_value *model = wn_gguf_value_find(wn_tensors_gguf(e->from->tensors), "tokenizer.ggml.model");
    const char *name;
    size_t bytes;
    return wn_gguf_value_string(model, 0, &name, &bytes) && !(bytes == 4 && !memcmp(name, "none", 4));
  }
  return e->from->form == WN_FORM_WINNOW && e->options.to == WN_CONVERT_HF && wn_tokenizer_file_of(from);
}

/* Writes generation_config.json: what the source declares; with a tokenizer also the token that begins a text, and all
 * that end one. */
static wn_status export_generation(const struct wn_export *e, const wn_tokenizer *tok, struct wn_folder *f) {
  char path[PATH_BYTES];
  wn_declared all = e->from->declared;
  const int32_t V = tok ? wn_tokenizer_vocab_size(tok) : 0;
  if (!tok && !wn_declared_any(&all)) return WN_OK;
  WN_TRY(wn_path_join(e->ctx, path, sizeof path, f->next, WN_DECLARED_FILE));
  int32_t *ends;
  WN_TRY(WN_ALLOC(e->ctx, "end tokens", (size_t)V + (size_t)all.end_count, &ends));
  if (all.end_count) memcpy(ends, all.ends, (size_t)all.end_count * sizeof *ends);
  for (int32_t id = 0; id < V; id++)
    if (wn_tokenizer_is_end(tok, id) && !wn_declared_is_end(&e->from->declared, id)) ends[all.end_count++] = id;
  all.ends = ends;
  const wn_status status = wn_declared_write(e->ctx, &all, tok ? wn_tokenizer_bos(tok) : e->bos, path);
  wn_free(ends);
  return status;
}

static wn_status export_write_tokenizer(struct wn_export *e, const char *from, struct wn_folder *f) {
  wn_context *ctx = e->ctx;
  wn_tokenizer *tok;
  WN_TRY(wn_tokenizer_load(ctx, from, &tok));
  const bool hf = e->options.to == WN_CONVERT_HF;
  wn_status status = hf ? wn_tokenizer_write_hf(ctx, tok, f) : wn_tokenizer_write(ctx, tok, f);
  if (status != WN_OK) status = wn_fail_prefix(ctx, status, "%s", from);
  if (status == WN_OK) status = export_generation(e, hf ? tok : NULL, f);
  if (e->from->form == WN_FORM_WINNOW) e->bos = wn_tokenizer_bos(tok), e->eos = wn_tokenizer_eos(tok);
  wn_tokenizer_destroy(tok);
  return status;
}

static wn_status export_folder_tokenizer(struct wn_export *e, const char *from, struct wn_folder *f,
                                         wn_convert_result *result) {
  static const char *const files[] = {"tokenizer.json",          "tokenizer.model",     "tokenizer_config.json",
                                      "special_tokens_map.json", "vocab.json",          "merges.txt",
                                      "added_tokens.json",       "chat_template.jinja", WN_DECLARED_FILE};
  /* Files of the old model's tokenizer would be taken for this model's. */
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) WN_TRY(wn_folder_drop(e->ctx, f, files[i]));
  if (export_writes_tokenizer(e, from)) {
    result->tokenizer = "written";
    return export_write_tokenizer(e, from, f);
  }
  if (!wn_folder_has(from, WN_DECLARED_FILE)) WN_TRY(export_generation(e, NULL, f));
  if (e->from->form == WN_FORM_GGUF) return WN_OK;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    if (!wn_folder_has(from, files[i])) continue;
    WN_TRY(export_copy_file(e->ctx, from, f->next, files[i]));
    if (strcmp(files[i], WN_DECLARED_FILE) != 0) result->tokenizer = "copied";
  }
  return WN_OK;
}

/* ---- the Python code for a model that belongs to no family ---- */

extern const char wn_configuration_winnow_py[], wn_modeling_winnow_py[];

static wn_status export_code(struct job *job, struct wn_folder *f) {
  static const struct {
    const char *name, *text;
  } files[] = {{"configuration_winnow.py", wn_configuration_winnow_py}, {"modeling_winnow.py", wn_modeling_winnow_py}};
  const bool own = job->e->options.to == WN_CONVERT_HF && job->e->family == wn_export_own_family();
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    char path[PATH_BYTES];
    WN_TRY(wn_folder_drop(job->ctx, f, files[i].name));
    WN_TRY(wn_path_join(job->ctx, path, sizeof path, f->next, files[i].name));
    if (own) WN_TRY(wn_file_write(job->ctx, path, files[i].text, strlen(files[i].text)));
  }
  return WN_OK;
}

static wn_status export_write_files(struct job *job, const char *from, struct wn_folder *f, wn_convert_result *result) {
  wn_context *ctx = job->ctx;
  char path[PATH_BYTES];
  WN_TRY(export_write_safetensors(job, f->next));
  WN_TRY(wn_folder_drop(ctx, f, "model.safetensors.index.json"));
  WN_TRY(export_folder_tokenizer(job->e, from, f, result));
  WN_TRY(export_code(job, f));
  WN_TRY(wn_path_join(ctx, path, sizeof path, f->next, "config.json"));
  if (job->e->options.to == WN_CONVERT_WINNOW) return wn_model_config_save(ctx, path, &job->e->config);
  json_t *config;
  const wn_gguf_type type = job->count > 0 ? job->pieces[0].type : WN_GGUF_F32;
  WN_TRY(wn_export_hf_config(ctx, job->e,
                             type == WN_GGUF_F16    ? "float16"
                             : type == WN_GGUF_BF16 ? "bfloat16"
                                                    : "float32",
                             &config));
  const wn_status status = wn_json_save_file(ctx, path, config);
  json_decref(config);
  return status;
}

static wn_status export_write_folder(struct job *job, const char *from, const char *out, wn_convert_result *result) {
  struct wn_folder f;
  WN_TRY(wn_folder_begin(job->ctx, out, &f));
  wn_status status = export_write_files(job, from, &f, result);
  if (status == WN_OK) status = wn_folder_commit(job->ctx, &f, NULL);
  wn_folder_abort(&f);
  return status;
}

/* ---- all of it ---- */

static wn_status export_check_target(wn_context *ctx, const char *from, const char *out, const wn_convert_options *o) {
  struct stat a, b;
  const bool gguf = o->to == WN_CONVERT_GGUF || o->to == WN_CONVERT_WINNOW_GGUF;
  if (stat(from, &a) == 0 && stat(out, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: source and target are the same", out);
  if (gguf && wn_path_is_dir(out)) return wn_fail(ctx, WN_ERR_ARGUMENT, "%s is a folder; a file is written", out);
  if (!gguf && wn_path_exists(out) && !wn_path_is_dir(out))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s is a file; a folder is written", out);
  const bool there =
      gguf ? wn_path_exists(out) : wn_folder_has(out, "config.json") || wn_folder_has(out, "model.safetensors");
  if (there && !o->overwrite)
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "%s already holds a model; it is replaced only where that is asked for (overwrite)", out);
  return WN_OK;
}

static wn_status export_run(struct job *job, const char *from, const char *out, wn_convert_result *result) {
  char path[PATH_BYTES];
  struct stat st;
  WN_TRY(export_list_pieces(job));
  WN_TRY(job->gguf ? export_write_gguf(job, from, out, result) : export_write_folder(job, from, out, result));
  snprintf(result->architecture, sizeof result->architecture, "%s", job->e->architecture);
  result->tensors = job->count;
  if (job->gguf)
    snprintf(path, sizeof path, "%s", out);
  else
    WN_TRY(wn_path_join(job->ctx, path, sizeof path, out, "model.safetensors"));
  if (stat(path, &st) == 0) result->bytes = (uint64_t)st.st_size;
  return WN_OK;
}

wn_status wn_model_convert(wn_context *ctx, const char *from, const char *out, const wn_convert_options *options,
                           wn_convert_result *result) {
  WN_CHECK_WORK(WN_POINTER(from), WN_POINTER(out));
  struct wn_import im;
  struct wn_export e;
  wn_convert_result local, *r = result ? result : &local;
  wn_convert_options own = {0};
  *r = (wn_convert_result){.tokenizer = "none"};
  WN_TRY(WN_OPTIONS_READ(ctx, wn_convert_options, options, &own));
  options = &own;
  WN_TRY(export_check_type(ctx, options));
  WN_TRY(export_check_target(ctx, from, out, options));
  wn_status status = wn_import_open(ctx, from, &im);
  if (status == WN_OK && options->check_tensors != WN_CHECK_NO) status = wn_tensors_check(ctx, im.tensors, true);
  if (status == WN_OK) status = wn_import_check(ctx, &im);
  if (status == WN_OK && options->check_tensors != WN_CHECK_NO) status = wn_import_check_values(ctx, &im);
  if (status == WN_OK) status = wn_export_plan(ctx, &im, options, &e);
  if (status == WN_OK) {
    struct job job = {.ctx = ctx, .e = &e};
    job.gguf = options->to == WN_CONVERT_GGUF || options->to == WN_CONVERT_WINNOW_GGUF;
    status = export_run(&job, from, out, r);
    wn_free(job.pieces);
  }
  wn_import_clear(&im);
  return status;
}
