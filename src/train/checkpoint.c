/* Training checkpoints: config.json, recipe.json, model.safetensors, tokenizer, optimizer.safetensors, state.json, and
 * with training under budgets budgets.json.
 *
 * The files belong to one step: io/folder.c saves all or none of them. state.json also has fingerprints of the
 * parameter and optimizer arrays, so that files mixed by hand are refused. */
#include "train/checkpoint.h"

#include <jansson.h>
#include <stdio.h>

#include "base/fields.h"
#include "base/file.h"
#include "base/number.h"
#include "dist/dist.h"
#include "formats/adapter.h"
#include "formats/save.h"
#include "train/recipe.h"

enum { PATH_BYTES = 4096 };

#define STATE(key, type, member, low, high, text)                                                                      \
  { key, type, offsetof(struct wn_run_state, member), low, high, NULL, text }
static const struct wn_field state_fields[] = {
    STATE("step", WN_FIELD_INT64, step, 0, 9e15, "optimizer steps done"),
    STATE("memory", WN_FIELD_INT64, streamed, 0, 9e15, "tokens of the streams so far"),
    STATE("tokens", WN_FIELD_UINT64, tokens, 0, 9e15, "tokens trained on"),
    STATE("seed", WN_FIELD_UINT64, seed, 0, 1.8446744073709552e19, "seed of parameters, data order and dropout"),
    STATE("threads", WN_FIELD_INT, threads, 1, 65536, "threads of the run"),
    STATE("processes", WN_FIELD_INT, processes, 0, 65536, "processes of the run; 0: one"),
    STATE("backend", WN_FIELD_STRING, backend, 0, 16, "backend of the run"),
    STATE("isa", WN_FIELD_STRING, isa, 0, 16, "instruction set of the run"),
    STATE("optimizer", WN_FIELD_STRING, optimizer, 0, 16, "adamw, adagrad or muon"),
    STATE("parameters", WN_FIELD_STRING, parameters, 0, 24, "fingerprint of the parameters"),
    STATE("moments", WN_FIELD_STRING, moments, 0, 24, "fingerprint of the optimizer's arrays"),
};
static const struct wn_field_group state_group = {
    .prefix = "", .fields = state_fields, .count = sizeof state_fields / sizeof state_fields[0]};

static const char *optimizer_name(wn_optimizer_kind kind) {
  return kind == WN_OPT_MUON ? "muon" : kind == WN_OPT_ADAMW ? "adamw" : "adagrad";
}

#define HASH_BEGIN UINT64_C(0xcbf29ce484222325)

/* FNV-1a over 32-bit words in four lanes: one pass at memory speed. */
static uint64_t hash_floats(uint64_t hash, const float *x, size_t count) {
  uint64_t lane[4] = {hash, hash ^ 1, hash ^ 2, hash ^ 3};
  for (size_t i = 0; i < count; i++) {
    uint32_t word;
    memcpy(&word, x + i, sizeof word);
    lane[i & 3] = (lane[i & 3] ^ word) * 0x100000001b3ULL;
  }
  for (int i = 0; i < 4; i++) hash = (hash ^ lane[i] ^ (lane[i] >> 29)) * 0x100000001b3ULL;
  return hash;
}

static uint64_t hash_array(const struct wn_param_table *table, const void *array, uint64_t hash) {
  for (int i = 0; i < table->count; i++)
    hash = hash_floats(hash, (const float *)array + table->rows[i].offset, table->rows[i].count);
  return hash;
}

static wn_status fingerprint_parameters(const wn_trainer *t, char out[24]) {
  void *params;
  WN_TRY(wn_model_params_open(t->model, &params));
  snprintf(out, 24, "%016llx", (unsigned long long)hash_array(&t->model->table, params, HASH_BEGIN));
  return wn_model_params_close(t->model, params, false);
}

/* With segment recurrence the streams' cached states belong to the checkpoint: one tensor per layer and micro-batch,
 * and with selective attention a second one with F. */
static int64_t recurrence_layers(const wn_trainer *t) {
  return t->model->config.recurrence > 0 ? t->accumulate * t->model->config.layers : 0;
}
static int64_t recurrence_tensors(const wn_trainer *t) {
  return t->model->config.attention.selective.enabled ? 2 * recurrence_layers(t) : recurrence_layers(t);
}
/* Tensor i of these. */
static void *recurrence_tensor(const wn_trainer *t, int64_t i, const char **name, int64_t *set, int64_t *layer,
                               int64_t shape[3]) {
  const int64_t n = recurrence_layers(t), L = t->model->config.layers;
  *name = i < n ? "memory" : "selections";
  *set = i % n / L;
  *layer = i % n % L;
  return i < n ? wn_workspace_recurrence_at(t->ws, *set, *layer, shape)
               : wn_workspace_recurrence_selections_at(t->ws, *set, *layer, shape);
}

/* For the fingerprint of the optimizer's file: all tensors of floats, in order. */
static uint64_t hash_entry(const wn_safetensors_entry *e, const void *data, uint64_t hash) {
  return e->dtype == WN_F32 ? hash_floats(hash, data, e->bytes / sizeof(float)) : hash;
}

bool wn_checkpoint_exists(const char *dir) {
  return wn_folder_has(dir, "state.json");
}

/* The tensors of optimizer.safetensors: "m.<name>" and "v.<name>" for each tensor of the optimizer's moments; for each
 * projection with low-rank updates "<map>.lora_a", ".lora_b" and the original ".base"; for segment recurrence
 * "memory.A.L" and "selections.A.L" (micro-batch A, layer L), and "memory.counts" [A,L], how many of their last rows
 * hold tokens. */
struct moments {
  wn_trainer *t;
  wn_safetensors_entry *entries; /* data NULL: a moment, of which each process has some pieces */
  char (*names)[112];
  int *moment; /* [count] 2 * row + which; -1: none */
  int *owner;  /* [count] for other tensors: the process that has it */
  int count;
  uint64_t hash;   /* of everything written so far */
  int32_t *counts; /* [A,L] or NULL */
};

/* Tensor `kind` of a projection with low-rank updates: 0: A, 1: B, 2: the original. */
static void lora_entry(const struct wn_lora *lora, int i, int kind, char *name, size_t bytes,
                       wn_safetensors_entry *out) {
  static const char *const names[] = {"lora_a", "lora_b", "base"};
  const struct wn_lora_map *m = &lora->maps[i];
  const int64_t rows = kind == 0 ? lora->rank : m->rows, columns = kind == 1 ? lora->rank : m->columns;
  snprintf(name, bytes, "%s.%s", m->name, names[kind]);
  *out = (wn_safetensors_entry){.name = name,
                                .dtype = WN_F32,
                                .ndim = 2,
                                .shape = {rows, columns},
                                .data = kind == 0   ? m->a
                                        : kind == 1 ? m->b
                                                    : m->base,
                                .bytes = (size_t)(rows * columns) * sizeof(float)};
}

/* Makes the updates readable on the host while they are written: *out is `lora` with other addresses. */
static wn_status lora_open(wn_context *ctx, const struct wn_lora *lora, struct wn_lora *out) {
  const struct wn_memory *memory = lora->model->backend->memory;
  *out = *lora;
  if (memory->host) return WN_OK;
  WN_TRY(WN_ALLOC(ctx, "low-rank maps", lora->count, &out->maps));
  for (int i = 0; i < lora->count; i++) {
    const struct wn_lora_map *m = &lora->maps[i];
    out->maps[i] = *m;
    out->maps[i].a = out->maps[i].b = out->maps[i].base = NULL;
    WN_TRY(wn_memory_open(ctx, memory, "low-rank A", m->a, (size_t)(lora->rank * m->columns) * sizeof(float),
                          &out->maps[i].a));
    WN_TRY(wn_memory_open(ctx, memory, "low-rank B", m->b, (size_t)(lora->rank * m->rows) * sizeof(float),
                          &out->maps[i].b));
  }
  return WN_OK;
}

static void lora_close(const struct wn_lora *lora, struct wn_lora *opened) {
  if (opened->maps == lora->maps || !opened->maps) return;
  for (int i = 0; i < lora->count; i++) {
    wn_free(opened->maps[i].a);
    wn_free(opened->maps[i].b);
  }
  wn_free(opened->maps);
}

/* Saves only the updates, for users of the original model. */
static wn_status save_adapter(wn_context *ctx, const char *dir, const struct wn_lora *lora) {
  char path[PATH_BYTES], scale[32], rank[32];
  wn_safetensors_entry *entries;
  char(*names)[104] = NULL;
  WN_TRY(wn_path_join(ctx, path, sizeof path, dir, "adapter.safetensors"));
  const int count = 2 * lora->count;
  wn_status status = WN_ALLOC(ctx, "list of updates", count, &entries);
  if (status == WN_OK) status = WN_ALLOC(ctx, "names of updates", count, &names);
  if (status == WN_OK) {
    for (int i = 0; i < count; i++) lora_entry(lora, i / 2, i % 2, names[i], sizeof names[i], &entries[i]);
    snprintf(rank, sizeof rank, "%lld", (long long)lora->rank);
    wn_print(scale, sizeof scale, "%.17g", lora->scale * (double)lora->rank);
    const char *metadata[] = {"format", "winnow", "rank", rank, "alpha", scale, NULL};
    status = wn_safetensors_write(ctx, path, entries, count, metadata);
  }
  wn_free(entries);
  wn_free(names);
  return status;
}

/* Saves them in the format of Hugging Face's peft. */
static wn_status save_peft(wn_context *ctx, const char *dir, const struct wn_lora *lora, const char *base) {
  const struct wn_model *model = lora->model;
  struct wn_adapter_update *all;
  WN_TRY(WN_ALLOC(ctx, "list of updates", lora->count, &all));
  for (int i = 0; i < lora->count; i++) {
    const struct wn_lora_map *m = &lora->maps[i];
    all[i] = (struct wn_adapter_update){.row = model->table.rows[m->row].name,
                                        .first = m->first,
                                        .rows = m->rows,
                                        .columns = m->columns,
                                        .a = m->a,
                                        .b = m->b};
  }
  const struct wn_adapter_updates updates = {
      .all = all, .count = lora->count, .rank = lora->rank, .alpha = lora->scale * (double)lora->rank, .base = base};
  const wn_status status = wn_adapter_write(ctx, dir, &model->config, &updates);
  wn_free(all);
  return status;
}

/* The process that computes micro-step a. */
static int rank_of_micro_step(const wn_trainer *t, int64_t a) {
  const int64_t part = a / (t->accumulate / t->shards.parts);
  for (int r = 0; r < t->shards.size; r++) {
    int64_t first, count;
    wn_dist_branch(t->shards.parts, r, t->shards.size, &first, &count);
    if (part >= first && part < first + count) return r;
  }
  return 0;
}

static wn_status moments_list(wn_context *ctx, wn_trainer *t, struct moments *out) {
  const struct wn_optimizer *opt = &t->opt;
  const int maps = t->learns.lora.count;
  int moments = 0;
  for (int i = 0; i < 2 * opt->count; i++) moments += wn_optimizer_has_moment(opt, i % opt->count, i / opt->count);
  memset(out, 0, sizeof *out);
  out->t = t;
  out->hash = HASH_BEGIN;
  out->count = moments + 3 * maps + (int)recurrence_tensors(t) + (recurrence_tensors(t) > 0);
  WN_TRY(WN_ALLOC(ctx, "optimizer entries", out->count, &out->entries));
  WN_TRY(WN_ALLOC(ctx, "optimizer names", out->count, &out->names));
  WN_TRY(WN_ALLOC(ctx, "optimizer entries", 2 * (size_t)out->count, &out->moment));
  out->owner = out->moment + out->count;
  for (int i = 0; i < out->count; i++) out->moment[i] = -1;
  for (int a = 0, k = 0; a < 2; a++) {
    for (int i = 0; i < opt->count; i++) {
      const struct wn_optimizer_row *row = &opt->rows[i];
      if (!wn_optimizer_has_moment(opt, i, a)) continue;
      out->moment[k] = 2 * i + a;
      snprintf(out->names[k], sizeof out->names[k], "%c.%s", a == 0 ? 'm' : 'v', row->name);
      wn_safetensors_entry *e = &out->entries[k];
      *e = (wn_safetensors_entry){
          .name = out->names[k], .dtype = WN_F32, .ndim = row->ndim, .bytes = row->count * sizeof(float)};
      for (int d = 0; d < row->ndim; d++) e->shape[d] = row->shape[d];
      k++;
    }
  }
  for (int i = 0; i < maps; i++)
    for (int kind = 0; kind < 3; kind++) {
      const int k = moments + 3 * i + kind;
      lora_entry(&t->learns.lora, i, kind, out->names[k], sizeof out->names[k], &out->entries[k]);
    }
  for (int64_t i = 0; i < recurrence_tensors(t); i++) {
    const int64_t k = (int64_t)moments + 3 * maps + i;
    int64_t shape[3], set, layer;
    const char *name;
    const void *at = recurrence_tensor(t, i, &name, &set, &layer, shape);
    snprintf(out->names[k], sizeof out->names[k], "%s.%lld.%lld", name, (long long)set, (long long)layer);
    wn_safetensors_entry *e = &out->entries[k];
    *e = (wn_safetensors_entry){.name = out->names[k],
                                .dtype = WN_F32,
                                .ndim = 3,
                                .data = at,
                                .bytes = (size_t)(shape[0] * shape[1] * shape[2]) * sizeof(float)};
    for (int d = 0; d < 3; d++) e->shape[d] = shape[d];
    out->owner[k] = rank_of_micro_step(t, set);
  }
  const int64_t n = recurrence_layers(t), L = t->model->config.layers;
  if (n == 0) return WN_OK;
  WN_TRY(WN_ALLOC(ctx, "counts of the memory", n, &out->counts));
  for (int64_t i = 0; i < n; i++) { /* only the process that computes the micro-step knows them */
    double held =
        rank_of_micro_step(t, i / L) == t->shards.rank ? (double)wn_workspace_recurrence_count(t->ws, i / L, i % L) : 0;
    WN_TRY(wn_dist_merge(ctx, &held, 1));
    out->counts[i] = (int32_t)held;
  }
  out->entries[out->count - 1] = (wn_safetensors_entry){.name = "memory.counts",
                                                        .dtype = WN_I32,
                                                        .ndim = 2,
                                                        .shape = {n / L, L},
                                                        .data = out->counts,
                                                        .bytes = (size_t)n * sizeof *out->counts};
  return WN_OK;
}

static void moments_clear(struct moments *list) {
  wn_free(list->entries);
  wn_free(list->names);
  wn_free(list->moment);
  wn_free(list->counts);
}

/* Collects the whole of entry i on rank 0, which writes it; the others send their pieces. */
static wn_status moments_collect(struct moments *list, int i, void *out) {
  const wn_trainer *t = list->t;
  const wn_safetensors_entry *e = &list->entries[i];
  wn_context *ctx = t->model->ctx;
  if (list->moment[i] >= 0) return wn_optimizer_moment_collect(&t->opt, list->moment[i] / 2, list->moment[i] % 2, out);
  if (list->owner[i] == t->shards.rank) {
    const struct wn_memory *memory = e->data == list->counts ? &wn_host_memory : t->model->backend->memory;
    return t->shards.rank == 0 ? wn_memory_read(ctx, memory, out, e->data, e->bytes)
                               : wn_dist_send_array(ctx, memory, e->data, e->bytes, 0);
  }
  return t->shards.rank == 0 ? wn_dist_receive_whole(ctx, out, e->bytes, list->owner[i]) : WN_OK;
}

static wn_status moments_produce(void *user, int i, void *out, size_t bytes) {
  struct moments *list = user;
  (void)bytes;
  WN_TRY(moments_collect(list, i, out));
  list->hash = hash_entry(&list->entries[i], out, list->hash);
  return WN_OK;
}

/* On the other processes: sends what rank 0 collects, in the same order. */
static wn_status send_moments(wn_context *ctx, wn_trainer *t) {
  struct moments list;
  wn_status status = moments_list(ctx, t, &list);
  for (int i = 0; i < list.count && status == WN_OK; i++) status = moments_collect(&list, i, NULL);
  moments_clear(&list);
  return status;
}

static wn_status write_next(wn_context *ctx, struct wn_folder *f, const wn_recipe *recipe, const wn_tokenizer *tok,
                            wn_trainer *t) {
  const char *next = f->next;
  char path[PATH_BYTES], step[32];
  WN_TRY(wn_model_write(ctx, t->model, tok, f));

  struct moments list;
  snprintf(step, sizeof step, "%lld", (long long)t->step);
  const char *metadata[] = {"format", "winnow", "optimizer", optimizer_name(t->opt.kind), "step", step, NULL};
  wn_status status = moments_list(ctx, t, &list);
  if (status == WN_OK) status = wn_path_join(ctx, path, sizeof path, next, "optimizer.safetensors");
  if (status == WN_OK)
    status = wn_safetensors_write_made(ctx, path, list.entries, list.count, metadata, moments_produce, &list);
  const uint64_t moments = list.hash;
  moments_clear(&list);
  if (status != WN_OK) return status;

  if (t->learns.has_lora) {
    struct wn_lora lora;
    status = lora_open(ctx, &t->learns.lora, &lora);
    if (status == WN_OK) status = save_adapter(ctx, next, &lora);
    if (status == WN_OK) status = save_peft(ctx, next, &lora, recipe->train.init);
    lora_close(&t->learns.lora, &lora);
    WN_TRY(status);
  }
  char *text = NULL;
  WN_TRY(wn_recipe_json(ctx, recipe, &text));
  status = wn_path_join(ctx, path, sizeof path, next, "recipe.json");
  if (status == WN_OK) status = wn_file_write(ctx, path, text, strlen(text));
  wn_text_free(text);
  if (status != WN_OK) return status;

  const wn_budgets *budgets = wn_trainer_budgets(t);
  if (budgets) {
    WN_TRY(wn_path_join(ctx, path, sizeof path, next, "budgets.json"));
    WN_TRY(wn_budgets_save(ctx, budgets, path));
  } else if (t->target.layers > 0 || t->had_budgets) {
    WN_TRY(wn_folder_drop(ctx, f, "budgets.json"));
  }

  struct wn_run_state state = {.step = t->step,
                               .tokens = t->tokens,
                               .seed = t->config.seed,
                               .threads = ctx->threads,
                               .processes = t->shards.size};
  state.streamed = wn_workspace_recurrence_seen(t->ws, 0);
  snprintf(state.backend, sizeof state.backend, "%s", ctx->backend);
  snprintf(state.isa, sizeof state.isa, "%s", wn_isa_name(ctx->isa));
  snprintf(state.optimizer, sizeof state.optimizer, "%s", optimizer_name(t->opt.kind));
  WN_TRY(fingerprint_parameters(t, state.parameters));
  snprintf(state.moments, sizeof state.moments, "%016llx", (unsigned long long)moments);
  json_t *json = NULL;
  WN_TRY(wn_fields_write(ctx, &state_group, 1, &state, &json));
  status = wn_path_join(ctx, path, sizeof path, next, "state.json");
  if (status == WN_OK) status = wn_json_save_file(ctx, path, json);
  json_decref(json);
  return status;
}

wn_status wn_checkpoint_save(wn_context *ctx, const char *dir, const wn_recipe *recipe, const wn_tokenizer *tok,
                             wn_trainer *t) {
  if (t->model->dtype != WN_F32)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "checkpoints hold float32 parameters, this model is %s",
                   wn_dtype_name(t->model->dtype));
  struct wn_folder f;
  bool committed = false;
  if (t->shards.rank != 0) return send_moments(ctx, t);
  WN_TRY(wn_folder_begin(ctx, dir, &f));
  wn_status status = write_next(ctx, &f, recipe, tok, t);
  if (status == WN_OK) status = wn_folder_commit(ctx, &f, &committed);
  wn_folder_abort(&f);
  if (status == WN_OK || committed) return status;
  return wn_fail_prefix(ctx, status, "saving step %lld (the previous checkpoint is kept)", (long long)t->step);
}

/* The recipe of the checkpoint's training; *out is NULL if the folder has none. */
static wn_status read_recipe(wn_context *ctx, const char *dir, json_t **out) {
  char path[PATH_BYTES];
  *out = NULL;
  WN_TRY(wn_path_join(ctx, path, sizeof path, dir, "recipe.json"));
  if (!wn_path_exists(path)) return WN_OK; /* resumed with another recipe */
  return wn_json_load_file(ctx, WN_JSON_CONFIG, path, out);
}

/* A value of the recipe's "train" object. */
static const json_t *trained_with(const json_t *recipe, const char *group, const char *key) {
  const json_t *train = json_object_get(recipe, "train");
  return json_object_get(*group ? json_object_get(train, group) : train, key);
}

/* Did the checkpoint's training have budgets? If training goes on without them, their budgets.json must go. A
 * budgets.json that a search has saved beside a run without budgets stays. */
static bool had_budgets(const json_t *recipe) {
  return json_string_length(trained_with(recipe, "prune", "budgets")) > 0;
}

/* Checks that the same parameters learn as before: others have no state in the file, and the model's projections
 * contain low-rank updates with the old scale. Keys that an older recipe lacks are not compared. */
static wn_status same_learning(wn_context *ctx, const char *dir, const json_t *recipe, const wn_train_config *c) {
  const char *tune = json_string_value(trained_with(recipe, "", "tune"));
  if (tune && strcmp(tune, wn_tune_names[c->tune]))
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: the checkpoint's train.tune is \"%s\", the recipe's \"%s\"", dir, tune,
                   wn_tune_names[c->tune]);
  const json_t *alpha = trained_with(recipe, "lora", "alpha");
  if (c->tune != WN_TUNE_LORA) return WN_OK;
  if (json_is_number(alpha) && json_number_value(alpha) != c->lora.alpha)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: the checkpoint's train.lora.alpha is %.15g, the recipe's %.15g", dir,
                   json_number_value(alpha), c->lora.alpha);
  return WN_OK;
}

wn_status wn_checkpoint_state(wn_context *ctx, const char *dir, struct wn_run_state *out) {
  char path[PATH_BYTES];
  json_t *json = NULL;
  memset(out, 0, sizeof *out);
  WN_TRY(wn_path_join(ctx, path, sizeof path, dir, "state.json"));
  WN_TRY(wn_json_load_file(ctx, WN_JSON_CONFIG, path, &json));
  wn_status status = wn_fields_read(ctx, path, json, &state_group, 1, out);
  json_decref(json);
  return status;
}

/* Makes the layers' rooms as large as in the file, because their sizes do not follow from the spans alone. */
static wn_status reserve_memory(wn_context *ctx, const char *path, const wn_safetensors *file, wn_trainer *t) {
  for (int64_t l = 0; recurrence_layers(t) > 0 && l < t->model->config.layers; l++) {
    char name[48];
    snprintf(name, sizeof name, "memory.0.%lld", (long long)l);
    const wn_safetensors_entry *e = wn_safetensors_find(file, name);
    if (!e || e->ndim != 3) return wn_fail(ctx, WN_ERR_FORMAT, "%s: tensor \"%s\" is missing", path, name);
    const int64_t rows = e->shape[1] - t->context;
    if (e->shape[0] != t->batch || rows < 0 || rows > t->model->config.recurrence)
      return wn_fail(ctx, WN_ERR_SHAPE,
                     "%s: tensor \"%s\" holds %lld rows of %lld tokens, expected %lld of %lld to %lld", path, name,
                     (long long)e->shape[0], (long long)e->shape[1], (long long)t->batch, (long long)t->context,
                     (long long)(t->context + t->model->config.recurrence));
    WN_TRY(wn_workspace_recurrence_reserve(t->ws, l, rows));
  }
  return WN_OK;
}

/* Restores how many tokens each layer holds, after checking the file's counts against the rooms. */
static wn_status restore_memory(wn_context *ctx, const char *path, const struct moments *list, int64_t seen,
                                wn_trainer *t) {
  const int64_t L = t->model->config.layers;
  for (int64_t i = 0; i < recurrence_layers(t); i++) {
    int64_t shape[3];
    wn_workspace_recurrence_at(t->ws, i / L, i % L, shape);
    if (list->counts[i] < 0 || list->counts[i] > shape[1] - t->context || list->counts[i] > seen)
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: \"memory.counts\" has %d tokens for layer %lld, which has room for %lld",
                     path, list->counts[i], (long long)(i % L), (long long)(shape[1] - t->context));
  }
  for (int64_t a = 0; a < t->accumulate && list->counts; a++)
    wn_workspace_recurrence_restore(t->ws, a, seen, list->counts + a * L);
  return WN_OK;
}

static wn_status read_moments(wn_context *ctx, const char *path, int64_t seen, wn_trainer *t, char found[24]) {
  wn_safetensors *file = NULL;
  struct moments list = {0};
  WN_TRY(wn_safetensors_open(ctx, path, &file));
  wn_status status;
  WN_TRY_GOTO(wn_safetensors_verify(ctx, file, NULL), done);
  WN_TRY_GOTO(reserve_memory(ctx, path, file, t), done);
  WN_TRY_GOTO(moments_list(ctx, t, &list), done);
  if (wn_safetensors_count(file) != list.count) {
    status = wn_fail(ctx, WN_ERR_FORMAT, "%s: %d tensors, this model and optimizer have %d", path,
                     wn_safetensors_count(file), list.count);
    goto done;
  }
  for (int i = 0; i < list.count; i++) {
    const wn_safetensors_entry *want = &list.entries[i], *have = wn_safetensors_find(file, want->name);
    bool same = have && have->dtype == want->dtype && have->ndim == want->ndim && have->bytes == want->bytes;
    for (int d = 0; same && d < want->ndim; d++) same = have->shape[d] == want->shape[d];
    if (!same) {
      status = wn_fail(ctx, have ? WN_ERR_SHAPE : WN_ERR_FORMAT, "%s: tensor \"%s\" %s", path, want->name,
                       have ? "has another type or shape than the model's" : "is missing");
      goto done;
    }
    const struct wn_memory *memory =
        want->data == list.counts ? &wn_host_memory : t->model->backend->memory; /* the memory that the data goes to */
    list.hash = hash_entry(want, have->data, list.hash);
    if (list.moment[i] >= 0)
      WN_TRY_GOTO(wn_optimizer_moment_restore(&t->opt, list.moment[i] / 2, list.moment[i] % 2, have->data), done);
    else
      WN_TRY_GOTO(memory->copy_in(ctx, (void *)(uintptr_t)want->data, have->data, want->bytes), done);
  }
  snprintf(found, 24, "%016llx", (unsigned long long)list.hash);
  status = restore_memory(ctx, path, &list, seen, t);
done:
  moments_clear(&list);
  wn_safetensors_close(file);
  return status;
}

/* The file has other tensors than those that learn here: names the key that differs. */
static wn_status other_learning(wn_context *ctx, wn_status status, const json_t *recipe, const wn_train_config *c) {
  const char *freeze = json_string_value(trained_with(recipe, "", "freeze"));
  const json_t *rank = trained_with(recipe, "lora", "rank");
  if (c->tune == WN_TUNE_LORA && json_is_integer(rank) && json_integer_value(rank) != c->lora.rank)
    return wn_fail_prefix(ctx, status, "train.lora.rank is %lld, the checkpoint's %lld", (long long)c->lora.rank,
                          (long long)json_integer_value(rank));
  if (freeze && strcmp(freeze, c->freeze))
    return wn_fail_prefix(ctx, status, "train.freeze is \"%s\", the checkpoint's \"%s\"", c->freeze, freeze);
  return status;
}

/* recipe: the one of the checkpoint's training, or NULL. */
static wn_status checkpoint_load_with(wn_context *ctx, const char *dir, const json_t *recipe, wn_trainer *t,
                                      struct wn_run_state *out) {
  char path[PATH_BYTES], found[24];
  WN_TRY(wn_checkpoint_state(ctx, dir, out));
  if (strcmp(out->optimizer, optimizer_name(t->opt.kind)))
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: the checkpoint's optimizer is \"%s\", the recipe's \"%s\"", dir,
                   out->optimizer, optimizer_name(t->opt.kind));
  if (out->seed != t->config.seed)
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: the checkpoint's seed is %llu, the recipe's train.seed %llu", dir,
                   (unsigned long long)out->seed, (unsigned long long)t->config.seed);
  WN_TRY(same_learning(ctx, dir, recipe, &t->config));
  WN_TRY(fingerprint_parameters(t, found));
  if (strcmp(found, out->parameters))
    return wn_fail(ctx, WN_ERR_FORMAT,
                   "%s: model.safetensors is not that of step %lld (fingerprint %s, state.json has %s)", dir,
                   (long long)out->step, found, out->parameters);
  WN_TRY(wn_path_join(ctx, path, sizeof path, dir, "optimizer.safetensors"));
  const wn_status status = read_moments(ctx, path, out->streamed, t, found);
  if (status == WN_ERR_FORMAT || status == WN_ERR_SHAPE) return other_learning(ctx, status, recipe, &t->config);
  WN_TRY(status);
  if (strcmp(found, out->moments))
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: not that of step %lld (fingerprint %s, state.json has %s)", path,
                   (long long)out->step, found, out->moments);
  t->step = out->step;
  t->tokens = out->tokens;
  t->had_budgets = had_budgets(recipe);
  return WN_OK;
}

wn_status wn_checkpoint_load(wn_context *ctx, const char *dir, wn_trainer *t, struct wn_run_state *out) {
  json_t *recipe;
  WN_TRY(read_recipe(ctx, dir, &recipe));
  const wn_status status = checkpoint_load_with(ctx, dir, recipe, t, out);
  json_decref(recipe);
  return status;
}
