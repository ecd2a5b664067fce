/* Evaluates one changed budget by computing only what it can change.
 *
 * For the accepted budgets it holds, for every row and layer: the residual stream at the layer's entry, keys, values,
 * the selecting queries, and every position's loss. Lowering layer l to K does not change
 *   - the layers below l, and everything before layer l's attention;
 *   - all positions before K: the first eviction comes with token K, and no later token is seen before (causality);
 *   - above layer l, all positions before the first one at which its output differs in a bit: evicting a token whose
 *   weights selection has already made 0 changes nothing.
 *   So only positions K.. of layers l.. are computed, and fewer from layer to layer, over the keys and values held for
 *   earlier positions; with budgets near the context N that is very little. F at position K is summed from the
 *   selecting queries of earlier positions. Evictions are found again from the first position on, by the same code and
 *   from the same selections as in a whole pass, which costs one head's logits. h2o and tova score by all heads'
 *   weights, so with them all positions are computed.
 *
 * Results have the same bits as a whole pass, because the same operations run on the same rows. With AVX-512 an
 * operation's sums do not depend on the number of rows of a call (from ROWS_MIN on; fewer rows use another kernel). On
 * other machines they may; a probe finds this out, and then all positions are computed. A search ends with a check.
 *
 * Cost of one evaluation, at most: (1 - K/N) (L - l)/L of a pass, and (1 - K/N) of the output projection. Memory: 4 (C
 * + 2 Hkv D + G D) bytes per position and layer, three times that if the best trial is kept so that it need not be
 * computed again when accepted. */

#include "attention/registry.h"
#include "dist/dist.h"
#include "kv/policy.h"
#include "prune/reuse.h"

/* Do some positions by themselves give the same bits as in a whole pass? Kernels of some machines sum differently for
 * different numbers of rows; there all positions are computed. */
static wn_status reuse_probe(struct wn_reuse *r) {
  const int64_t T = r->set->T, rows = r->set->rows, last = (rows - 1) / r->batch * r->batch;
  const int64_t firsts[] = {wn_reuse_first_changed(r, T), T - T / 8, T - T / 3, T / 2 + 1, T / 5 + 3};
  for (int i = 0; r->base.by_rows && i < 10; i++) {
    const int64_t first = firsts[i % 5], row0 = i < 5 ? 0 : last;
    const struct wn_reuse_task t = {.every = true,
                                    .first = first,
                                    .row0 = row0,
                                    .B = rows - row0 < r->batch ? rows - row0 : r->batch,
                                    .budgets = &r->budgets};
    double sum;
    if (first < 1 || first > wn_reuse_first_changed(r, T)) continue;
    WN_TRY(wn_reuse_run_batch(r, &t, false, NULL, &sum));
    for (int64_t b = 0; b < t.B; b++)
      if (memcmp(r->loss + b * (T - first), r->state.loss + (row0 + b) * T + first, (size_t)(T - first) * sizeof sum))
        r->base.by_rows = false;
  }
  if (!r->base.by_rows)
    wn_log(r->ctx, WN_LOG_INFO, "search: on this machine results depend on how many positions a call has: all are run");
  return WN_OK;
}

static wn_status reuse_begin(struct wn_prune_evaluator *e, const int64_t *tokens, double *loss) {
  struct wn_reuse *r = (struct wn_reuse *)e;
  for (int64_t l = 0; l < r->budgets.layers; l++) r->budgets.tokens[l] = tokens ? tokens[l] : r->set->T;
  r->best_layer = -1;
  WN_TRY(wn_reuse_run_set(r, &(struct wn_reuse_task){.fresh = true, .budgets = &r->budgets, .to = &r->state}, loss));
  /* The answer depends on the machine's kernels, not on the parameters. */
  const bool tried = r->probed;
  r->probed = true;
  return r->base.by_rows && !tried ? reuse_probe(r) : WN_OK;
}

static struct wn_reuse_task reuse_changed(const struct wn_reuse *r, int64_t layer, int64_t to) {
  const int64_t was = r->budgets.tokens[layer];
  return (struct wn_reuse_task){
      .first_layer = layer, .first = wn_reuse_first_changed(r, to < was ? to : was), .budgets = &r->budgets};
}

/* Runs a task with the changed budget in force. */
static wn_status reuse_run_changed(struct wn_reuse *r, int64_t layer, int64_t to, const struct wn_reuse_version *where,
                                   double *loss) {
  const int64_t was = r->budgets.tokens[layer];
  struct wn_reuse_task t = reuse_changed(r, layer, to);
  t.to = where;
  r->budgets.tokens[layer] = to;
  const wn_status status = wn_reuse_run_set(r, &t, loss);
  r->budgets.tokens[layer] = was;
  return status;
}

static wn_status reuse_part(struct wn_prune_evaluator *e, int64_t layer, int64_t to, const struct wn_prune_part *part,
                            double *loss) {
  struct wn_reuse *r = (struct wn_reuse *)e;
  const int64_t was = r->budgets.tokens[layer];
  struct wn_reuse_task t = reuse_changed(r, layer, to);
  t.row_loss = r->row_loss;
  r->budgets.tokens[layer] = to;
  const wn_status status = wn_reuse_run_part(r, &t, part);
  r->budgets.tokens[layer] = was;
  WN_TRY(status);
  return wn_prune_set_gather(r->ctx, r->set, r->batch, part, r->row_loss, 1, loss);
}

static wn_status reuse_evaluate(struct wn_prune_evaluator *e, int64_t layer, int64_t to, double *loss) {
  struct wn_reuse *r = (struct wn_reuse *)e;
  WN_TRY(reuse_run_changed(r, layer, to, r->trial.layers ? &r->trial : NULL, loss));
  if (!r->trial.layers) return WN_OK;
  if (r->best_layer >= 0 && !(*loss < r->best_loss || (*loss == r->best_loss && layer < r->best_layer))) return WN_OK;
  const struct wn_reuse_version spare = r->best;
  r->best = r->trial;
  r->trial = spare;
  r->best_layer = layer;
  r->best_to = to;
  r->best_loss = *loss;
  return WN_OK;
}

/* Copies the best trial's positions into the state. */
static void reuse_adopt(struct wn_reuse *r) {
  const int64_t T = r->set->T, L = r->model->config.layers;
  for (int64_t row = 0; row < r->set->rows; row += r->batch) {
    const int64_t B = r->set->rows - row < r->batch ? r->set->rows - row : r->batch;
    for (int64_t l = r->best_layer + 1; l <= L; l++) {
      const struct wn_reuse_held *to = &r->state.layers[l], *from = &r->best.layers[l];
      const int64_t first = r->best.first[row / r->batch * (L + 1) + l], n = T - first;
      if (n == 0) continue;
      wn_reuse_copy(r, B, (struct wn_reuse_rows){to->x, row, r->model->config.width},
                    (struct wn_reuse_rows){from->x, row, r->model->config.width}, first, n);
      if (to->k)
        wn_reuse_copy(r, B, (struct wn_reuse_rows){to->k, row, wn_reuse_kv_width(r)},
                      (struct wn_reuse_rows){from->k, row, wn_reuse_kv_width(r)}, first, n);
      if (to->v)
        wn_reuse_copy(r, B, (struct wn_reuse_rows){to->v, row, wn_reuse_kv_width(r)},
                      (struct wn_reuse_rows){from->v, row, wn_reuse_kv_width(r)}, first, n);
      if (to->sq)
        wn_reuse_copy(r, B, (struct wn_reuse_rows){to->sq, row, r->select_width},
                      (struct wn_reuse_rows){from->sq, row, r->select_width}, first, n);
      if (to->sk)
        wn_reuse_copy(r, B, (struct wn_reuse_rows){to->sk, row, r->select_width},
                      (struct wn_reuse_rows){from->sk, row, r->select_width}, first, n);
      for (int64_t b = row; b < row + B && l == L; b++)
        memcpy(r->state.loss + b * T + first, r->best.loss + b * T + first, (size_t)n * sizeof(double));
    }
  }
}

static wn_status reuse_accept(struct wn_prune_evaluator *e, int64_t layer, int64_t to, double *loss) {
  struct wn_reuse *r = (struct wn_reuse *)e;
  if (r->best_layer == layer && r->best_to == to) {
    reuse_adopt(r);
    *loss = r->best_loss;
  } else {
    WN_TRY(reuse_run_changed(r, layer, to, &r->state, loss));
  }
  r->budgets.tokens[layer] = to;
  r->best_layer = -1;
  return WN_OK;
}

static wn_status reuse_rows(struct wn_prune_evaluator *e, double *loss) {
  const struct wn_reuse *r = (const struct wn_reuse *)e;
  const int64_t T = r->set->T;
  for (int64_t row = 0; row < r->set->rows; row++) {
    r->row_loss[row] = 0;
    for (int64_t i = row * T; i < (row + 1) * T; i++)
      if (r->set->targets[i] >= 0) r->row_loss[row] += r->state.loss[i];
  }
  return wn_prune_set_gather(r->ctx, r->set, r->batch, NULL, r->row_loss, 1, loss);
}

static void reuse_destroy(struct wn_prune_evaluator *e) {
  struct wn_reuse *r = (struct wn_reuse *)e;
  wn_arrays_clear(&r->arrays);
  wn_rotary_clear(&r->rotary);
  wn_free(r->state.layers);
  wn_free(r->trial.layers);
  wn_free(r->best.layers);
  wn_free(r->rows);
  wn_free(r->scratch);
  wn_free(r->budgets.tokens);
  wn_free(r);
}

/* ---- memory ---- */

/* Lays out the arrays of a version; v->layers is allocated. */
static void reuse_version_lay(const struct wn_reuse *r, struct wn_reuse_version *v, struct wn_arrays *arrays) {
  const wn_model_config *c = &r->model->config;
  const int64_t rows = r->set->rows, T = r->set->T, batches = (rows + r->batch - 1) / r->batch;
  const bool bilinear = c->attention.selective.bilinear;
  const struct wn_array own[] = {
      WN_ARRAY_FOR(v->first, "first positions", true, WN_DIMS(batches, c->layers + 1)),
      WN_ARRAY_SIZED(v->layers[c->layers].x, sizeof(float), "residual streams", true, WN_DIMS(rows, T, c->width)),
      WN_ARRAY_FOR(v->loss, "losses", true, WN_DIMS(rows, T)),
  };
  WN_ARRAYS_LAY(arrays, own);
  for (int64_t l = 0; l < c->layers; l++) {
    struct wn_reuse_held *h = &v->layers[l];
    const struct wn_array of_layer[] = {
        WN_ARRAY_SIZED(h->x, sizeof(float), "residual streams", true, WN_DIMS(rows, T, c->width)),
        WN_ARRAY_SIZED(h->k, sizeof(float), "keys", true, WN_DIMS(rows, T, wn_reuse_kv_width(r))),
        WN_ARRAY_SIZED(h->v, sizeof(float), "values", true, WN_DIMS(rows, T, wn_reuse_kv_width(r))),
        WN_ARRAY_SIZED(h->sq, sizeof(float), "queries", true, WN_DIMS(rows, T, r->select_width)),
        WN_ARRAY_SIZED(h->sk, sizeof(float), "selecting keys", bilinear, WN_DIMS(rows, T, r->select_width)),
    };
    WN_ARRAYS_LAY(arrays, of_layer);
  }
}

static wn_status reuse_version_layers(struct wn_reuse *r, struct wn_reuse_version *v) {
  return WN_ALLOC(r->ctx, "layers", r->model->config.layers + 1, &v->layers);
}

/* Bytes of a version, as a double so that it cannot overflow. */
static double reuse_version_bytes(const struct wn_reuse *r) {
  const wn_model_config *c = &r->model->config;
  const double columns = (double)c->width + 2.0 * (double)wn_reuse_kv_width(r) +
                         (double)r->select_width * (c->attention.selective.bilinear ? 2 : 1);
  return (double)r->set->T * ((double)c->layers * columns * 4 + 4 * (double)c->width + 8);
}

static void reuse_batch_lay(struct wn_reuse *r, struct wn_arrays *arrays) {
  const wn_model_config *c = &r->model->config;
  const int64_t T = r->set->T, B = r->batch, M = B * T, W = wn_reuse_kv_width(r), G = r->select_heads,
                GD = r->select_width;
  const int64_t P = wn_policy_groups(&r->budgets, c->kv_heads, G);
  const bool bilinear = c->attention.selective.bilinear, layer = c->norm == WN_NORM_LAYER;
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(r->blocks.large, 1, "activations", true, WN_DIMS((int64_t)r->blocks.large_bytes)),
      WN_ARRAY_SIZED(r->blocks.derived, 1, "derived activations", true, WN_DIMS((int64_t)r->blocks.derived_bytes)),
      WN_ARRAY_SIZED(r->blocks.exact, 1, "exact activations", true, WN_DIMS((int64_t)r->blocks.exact_bytes)),
      WN_ARRAY_FOR(r->positions, "positions", true, WN_DIMS(M)),
      WN_ARRAY_FOR(r->evicted_at, "evictions", true, WN_DIMS(M, P)),
      WN_ARRAY_FOR(r->k, "keys", true, WN_DIMS(M, W)),
      WN_ARRAY_FOR(r->v, "values", true, WN_DIMS(M, W)),
      WN_ARRAY_FOR(r->sq, "queries", true, WN_DIMS(M, GD)),
      WN_ARRAY_FOR(r->sk, "selecting keys", bilinear, WN_DIMS(M, GD)),
      WN_ARRAY_FOR(r->f, "F", true, WN_DIMS(M, G)),
      WN_ARRAY_FOR(r->y, "selection's outputs", true, WN_DIMS(M, GD)),
      WN_ARRAY_SIZED(r->x_out, sizeof(float), "x_out", true, WN_DIMS(M, c->width)),
      WN_ARRAY_SIZED(r->n_out, sizeof(float), "n_out", true, WN_DIMS(M, c->width)),
      WN_ARRAY_SIZED(r->rstd, sizeof(float), "rstd", true, WN_DIMS(M)),
      WN_ARRAY_SIZED(r->mean, sizeof(float), "mean", layer, WN_DIMS(M)),
      WN_ARRAY_SIZED(r->logits, sizeof(float), "logits", true, WN_DIMS(r->chunk, c->vocab_size)),
      WN_ARRAY_FOR(r->loss, "loss", true, WN_DIMS(M)),
      WN_ARRAY_FOR(r->row_loss, "losses of rows", true, WN_DIMS(r->set->rows)),
      WN_ARRAY_SIZED(r->hit, 1, "hit", true, WN_DIMS(M)),
  };
  WN_ARRAYS_LAY(arrays, rows);
  wn_layer_temp_lay(c, wn_layer_types_of(WN_F32), B, T, false, false, arrays, &r->temp);
}

static wn_status reuse_size_batch(struct wn_reuse *r) {
  const int64_t M = r->batch * r->set->T;
  struct wn_layer_acts acts;
  if (M > INT32_MAX ||
      !wn_layer_acts_plan(&r->model->config, wn_layer_types_of(WN_F32), r->batch, r->set->T, false, &r->blocks, &acts))
    return wn_fail(r->ctx, WN_ERR_ARGUMENT, "search: a batch of %lld rows of %lld tokens is too large",
                   (long long)r->batch, (long long)r->set->T);
  r->chunk = wn_logits_rows(M, r->model->config.vocab_size);
  return WN_OK;
}

/* Finds the largest scratch (a backend may need more for fewer rows) and the size of the arrays for attention's
 * rows. */
static wn_status reuse_measure(struct wn_reuse *r) {
  const int64_t T = r->set->T;
  size_t most = 0;
  for (int64_t n = 2;; n = 2 * n < T ? 2 * n : T) {
    size_t need = 0;
    if (n > T) n = T;
    const struct wn_reuse_task t = {.first = r->base.by_rows ? T - n : 0, .B = r->batch, .budgets = &r->budgets};
    WN_TRY(wn_reuse_run_batch(r, &t, true, &need, NULL));
    if (need > most) most = need;
    if (n == T) break;
  }
  WN_TRY(wn_alloc(r->ctx, "attention rows of a search", r->rows_bytes, &r->rows));
  WN_TRY(wn_alloc(r->ctx, "scratch of a search", most, &r->scratch));
  r->scratch_bytes = most;
  return WN_OK;
}

static void reuse_lay(struct wn_reuse *r) {
  struct wn_reuse_version *versions[] = {&r->state, &r->trial, &r->best};
  reuse_batch_lay(r, &r->arrays);
  for (int i = 0; i < 3; i++)
    if (versions[i]->layers) reuse_version_lay(r, versions[i], &r->arrays);
}

static wn_status reuse_arrays(struct wn_reuse *r, const struct wn_prune_reuse *options) {
  struct wn_arrays counted = {0};
  WN_TRY(reuse_size_batch(r));
  reuse_batch_lay(r, &counted);
  WN_TRY(wn_arrays_check(r->ctx, &counted, "search"));
  const double each = reuse_version_bytes(r), batch = (double)counted.bytes, may = (double)options->memory;
  const double need = batch + each * (double)r->set->rows;
  if (need > may) {
    const double fit = (may - batch) / each;
    return wn_fail(r->ctx, WN_ERR_MEMORY,
                   "the %s of %lld rows needs %.1f MB (%.2f MB a row and %.1f MB for all), of the %.1f MB that may "
                   "be taken: at most %lld rows fit",
                   options->what, (long long)r->set->rows, need / 1e6, each / 1e6, batch / 1e6, may / 1e6,
                   (long long)(fit > 0 ? fit : 0));
  }
  WN_TRY(reuse_version_layers(r, &r->state));
  /* Either all processes keep trials or none does: accepting a kept trial involves no communication. */
  double lacks = !options->trials || batch + 3 * each * (double)r->set->rows > may;
  if (r->set->shared) WN_TRY(wn_dist_merge(r->ctx, &lacks, 1));
  if (lacks == 0) {
    WN_TRY(reuse_version_layers(r, &r->trial));
    WN_TRY(reuse_version_layers(r, &r->best));
  }
  reuse_lay(r);
  WN_TRY(wn_arrays_allocate(r->ctx, &r->arrays, options->what));
  reuse_lay(r);
  return WN_OK;
}

wn_status wn_prune_reuse_create(wn_context *ctx, struct wn_model *model, const struct wn_prune_reuse *options,
                                struct wn_prune_evaluator **out) {
  const struct wn_prune_set *set = options->set;
  const wn_model_config *c = &model->config;
  *out = NULL;
  WN_TRY(wn_model_need_host(ctx, model, "a search that keeps activations"));
  if (model->dtype != WN_F32) return wn_fail(ctx, WN_ERR_UNSUPPORTED, "search: only models of float32");
  struct wn_reuse *r;
  WN_TRY(WN_ALLOC(ctx, "evaluator", 1, &r));
  r->base = (struct wn_prune_evaluator){.name = "reuse",
                                        .begin = reuse_begin,
                                        .evaluate = reuse_evaluate,
                                        .accept = reuse_accept,
                                        .rows = reuse_rows,
                                        .part = reuse_part,
                                        .destroy = reuse_destroy};
  r->ctx = ctx;
  r->model = model;
  r->set = set;
  r->batch = options->batch < set->all_rows ? options->batch : set->all_rows;
  r->budgets = *options->budgets;
  r->budgets.layers = c->layers;
  r->budgets.heads = 0;
  r->budgets.tokens = r->budgets.head_tokens = NULL;
  r->best_layer = -1;
  r->select_heads = wn_attention_selections(&c->attention, c->kv_heads);
  r->select_width = r->select_heads * c->head_size;
  const bool pieces = r->select_heads == 0 || model->backend->whole_selections;
  /* Without evictions these masks take a path that sums distant keys differently. */
  const bool sparse = c->attention.root.enabled || c->attention.strided > 0;
  /* The numbers of keys are not kept: all positions are computed. */
  struct wn_score_map maps[WN_SCORE_MAPS_MAX];
  r->base.by_rows = pieces && !sparse && wn_attention_keyed(&c->attention, c->heads, c->kv_heads, maps) == 0 &&
                    !(wn_policy_needs(&r->budgets) & WN_POLICY_SUMS);
  wn_status status;
  WN_TRY_GOTO(WN_ALLOC(ctx, "budgets", c->layers, &r->budgets.tokens), fail);
  for (int64_t l = 0; l < c->layers; l++) r->budgets.tokens[l] = set->T;
  if (set->T > model->rotary.rows) WN_TRY_GOTO(wn_rotary_create(model, "search", set->T, &r->rotary), fail);
  WN_TRY_GOTO(reuse_arrays(r, options), fail);
  WN_TRY_GOTO(reuse_measure(r), fail);
  r->base.bytes = r->arrays.bytes + r->rows_bytes + r->scratch_bytes;
  *out = &r->base;
  return WN_OK;
fail:
  reuse_destroy(&r->base);
  return status;
}
