/* A batch of an evaluation (reuse.h): the layers from the first that changes, and in each the positions from the first
 * that changes. */
#include <math.h>
#include <string.h>

#include "prune/reuse.h"

enum { ROWS_MIN = 16 }; /* the fewest rows of a product */

/* Copies a layer's entry, keys, values and queries to where results are kept. */
static void reuse_keep(const struct wn_reuse *r, const struct wn_reuse_task *t, int64_t l,
                       const struct wn_layer_acts *a, const struct wn_reuse_held *h) {
  const int64_t C = r->model->config.width, T = r->set->T, n = T - t->first, W = wn_reuse_kv_width(r);
  const struct wn_reuse_held *to = &t->to->layers[l];
  t->to->first[t->row0 / r->batch * (r->model->config.layers + 1) + l] = t->first;
  for (int64_t b = 0; b < t->B; b++)
    memcpy(to->x + ((t->row0 + b) * T + t->first) * C, (const float *)a->x + b * n * C,
           (size_t)(n * C) * sizeof(float));
  wn_reuse_copy(r, t->B, (struct wn_reuse_rows){to->k, t->row0, W}, (struct wn_reuse_rows){h->k, 0, W}, t->first, n);
  wn_reuse_copy(r, t->B, (struct wn_reuse_rows){to->v, t->row0, W}, (struct wn_reuse_rows){h->v, 0, W}, t->first, n);
  if (to->sq)
    wn_reuse_copy(r, t->B, (struct wn_reuse_rows){to->sq, t->row0, r->select_width},
                  (struct wn_reuse_rows){h->sq, 0, r->select_width}, t->first, n);
  if (to->sk)
    wn_reuse_copy(r, t->B, (struct wn_reuse_rows){to->sk, t->row0, r->select_width},
                  (struct wn_reuse_rows){h->sk, 0, r->select_width}, t->first, n);
}

/* Copies the stream at the end; the caller keeps the losses. */
static void reuse_keep_end(const struct wn_reuse *r, const struct wn_reuse_task *t) {
  const int64_t L = r->model->config.layers, C = r->model->config.width, T = r->set->T, n = T - t->first;
  t->to->first[t->row0 / r->batch * (L + 1) + L] = t->first;
  for (int64_t b = 0; b < t->B; b++)
    memcpy(t->to->layers[L].x + ((t->row0 + b) * T + t->first) * C, (const float *)r->x_out + b * n * C,
           (size_t)(n * C) * sizeof(float));
}

/* Computes the losses of the run's positions, r->loss [B,n]. The last chunk overlaps the one before it instead of being
 * small. */
static wn_status reuse_losses(struct wn_run *run, struct wn_reuse *r, const struct wn_reuse_task *t) {
  const wn_model_config *c = &r->model->config;
  const int64_t T = r->set->T, n = T - t->first, M = t->B * n;
  WN_TRY(wn_run_norm(run, M, wn_run_final_norm(run, r->rstd, r->mean), r->x_out, NULL, NULL, r->n_out));
  int32_t *targets = r->positions; /* positions are no longer needed: targets take their place */
  for (int64_t b = 0; b < t->B && !run->measuring; b++)
    memcpy(targets + b * n, r->set->targets + (t->row0 + b) * T + t->first, (size_t)n * sizeof *targets);
  for (int64_t at = 0; at < M; at += r->chunk) {
    const int64_t rows = M < r->chunk || (t->first == 0 && M - at < r->chunk) ? M - at : r->chunk;
    const int64_t first = at + rows <= M ? at : M - rows;
    WN_TRY(wn_run_output(run, wn_element(r->n_out, first * c->width, WN_F32), rows, r->logits));
    const struct wn_cross_entropy loss = {.M = rows,
                                          .V = c->vocab_size,
                                          .logits = r->logits,
                                          .ld = c->vocab_size,
                                          .targets = targets + first,
                                          .loss = r->loss + first,
                                          .hit = r->hit};
    WN_TRY(wn_run_cross_entropy_forward(run, &loss));
  }
  return WN_OK;
}

/* The first position that a budget of `to` can change, with enough rows for the products. */
int64_t wn_reuse_first_changed(const struct wn_reuse *r, int64_t to) {
  const int64_t T = r->set->T, last = r->set->rows % r->batch ? r->set->rows % r->batch : r->batch;
  int64_t rows = (ROWS_MIN + last - 1) / last;
  if (rows < 2) rows = 2;
  if (!r->base.by_rows || rows >= T) return 0;
  return to < T - rows ? to : T - rows;
}

/* Lays out arrays and positions for the task's rows. */
static wn_status reuse_lay_out(struct wn_reuse *r, const struct wn_reuse_task *t, struct wn_run *run,
                               struct wn_layer_acts *a) {
  const int64_t n = r->set->T - t->first;
  struct wn_layer_blocks blocks = r->blocks;
  run->B = t->B;
  run->T = n;
  for (int64_t i = 0; i < t->B * n; i++) r->positions[i] = (int32_t)(t->first + i % n);
  if (wn_layer_acts_plan(&r->model->config, wn_layer_types_of(WN_F32), t->B, n, 0, &blocks, a)) return WN_OK;
  return wn_fail(r->ctx, WN_ERR_ARGUMENT, "search: activations do not fit in memory");
}

/* Computes the residual stream at the entry of layer l (L: at the end) in r->x_out [B,n,C]. Returns the first position
 * where it differs from what is held, T if there is none. */
static int64_t reuse_add_and_compare(struct wn_reuse *r, const struct wn_reuse_task *t, int64_t l, const float *mid,
                                     const float *branch) {
  const int64_t T = r->set->T, C = r->model->config.width, n = T - t->first;
  int64_t first = T;
  for (int64_t b = 0; b < t->B; b++)
    for (int64_t i = 0; i < n; i++) {
      const int64_t at = (b * n + i) * C;
      float *sum = (float *)r->x_out + at;
      for (int64_t j = 0; j < C; j++) sum[j] = mid[at + j] + branch[at + j];
      const float *held = r->state.layers[l].x + ((t->row0 + b) * T + t->first + i) * C;
      if (t->first + i < first && memcmp(sum, held, (size_t)C * sizeof *sum)) first = t->first + i;
    }
  return first;
}

/* Between layers: drops positions before the first that has changed; the rest of r->x_out is copied to `to` (which may
 * be r->x_out). False: nothing has changed. */
static bool reuse_narrow(struct wn_reuse *r, struct wn_reuse_task *t, int64_t first, float *to) {
  const int64_t T = r->set->T, C = r->model->config.width, n = T - t->first, most = wn_reuse_first_changed(r, T);
  if (first == T) return false;
  if (!r->base.by_rows) first = t->first;
  if (first > most) first = most;
  if (first < t->first) first = t->first;
  for (int64_t b = 0; b < t->B; b++)
    memmove(to + b * (T - first) * C, (const float *)r->x_out + (b * n + first - t->first) * C,
            (size_t)((T - first) * C) * sizeof *to);
  t->first = first;
  return true;
}

/* Runs the layers. *changed: r->x_out, the stream at the end before the final norm, differs from what is held. */
static wn_status reuse_run_layers(struct wn_reuse *r, struct wn_reuse_task *t, struct wn_run *run, bool *changed) {
  const wn_model_config *c = &r->model->config;
  const int64_t L = c->layers, C = c->width, T = r->set->T;
  struct wn_layer_acts a;
  const void *mid = NULL, *branch = NULL;
  *changed = true;
  WN_TRY(reuse_lay_out(r, t, run, &a));
  run->tokens = r->set->tokens + t->row0 * T;
  if (t->fresh) /* what the embedding's norm stores is not needed later */
    WN_TRY(wn_run_embed(run, a.n2, a.rstd2, a.mean2, a.x));
  for (int64_t b = 0; b < t->B && !t->fresh && !run->measuring; b++)
    memcpy((float *)a.x + b * run->T * C, r->state.layers[t->first_layer].x + ((t->row0 + b) * T + t->first) * C,
           (size_t)(run->T * C) * sizeof(float));
  for (int64_t l = t->first_layer; l < L; l++) {
    struct wn_reuse_held h;
    if (l > t->first_layer && !t->fresh && !t->every && !run->measuring) {
      const int64_t first = reuse_add_and_compare(r, t, l, mid, branch);
      float *x = r->x_out;
      if (!(*changed = reuse_narrow(r, t, first, x))) return WN_OK;
      WN_TRY(reuse_lay_out(r, t, run, &a));
      memcpy(a.x, x, (size_t)(t->B * run->T * C) * sizeof *x);
      mid = branch = NULL;
    }
    WN_TRY(wn_layer_before(run, l, &a, mid, branch));
    WN_TRY(wn_inputs_sum(run, &a));
    WN_TRY(wn_reuse_attend(run, r, t, l, &a, &h));
    if (t->to && (t->fresh || l > t->first_layer)) reuse_keep(r, t, l, &a, &h);
    WN_TRY(wn_layer_after(run, l, &a, &r->temp, true));
    mid = wn_layer_stream(run, &a);
    branch = r->temp.branch;
  }
  if (run->measuring) return WN_OK;
  const int64_t first = reuse_add_and_compare(r, t, L, mid, branch);
  if (!t->fresh && !t->every) *changed = reuse_narrow(r, t, first, r->x_out);
  run->T = T - t->first;
  return WN_OK;
}

/* One batch; *sum: over its counted positions, those before the first changed ones from state. */
wn_status wn_reuse_run_batch(struct wn_reuse *r, const struct wn_reuse_task *whole, bool measuring, size_t *need,
                             double *sum) {
  const int64_t T = r->set->T, L = r->model->config.layers;
  struct wn_reuse_task t = *whole;
  struct wn_run run;
  bool changed;
  wn_run_init(&run, r->model, t.B, T - t.first);
  run.measuring = measuring;
  run.exec.scratch = r->scratch;
  run.exec.scratch_bytes = r->scratch_bytes;
  run.positions = r->positions;
  if (r->rotary.rows > 0) run.rotary = &r->rotary;
  int64_t *valid = t.to ? t.to->first + t.row0 / r->batch * (L + 1) : NULL;
  for (int64_t l = 0; valid && l <= L; l++) valid[l] = T;
  WN_TRY(reuse_run_layers(r, &t, &run, &changed));
  if (!changed) t.first = T;
  if (changed) WN_TRY(reuse_losses(&run, r, &t));
  if (measuring) {
    *need = run.need;
    return WN_OK;
  }
  const int64_t n = T - t.first;
  if (valid && changed) reuse_keep_end(r, &t);
  *sum = 0;
  for (int64_t b = 0; b < t.B; b++) {
    const int64_t row = (t.row0 + b) * T;
    double of_row = 0;
    for (int64_t i = 0; i < T; i++) {
      const double loss = i < t.first ? r->state.loss[row + i] : r->loss[b * n + i - t.first];
      if (t.to && i >= t.first) t.to->loss[row + i] = loss;
      if (r->set->targets[row + i] >= 0) *sum += loss, of_row += loss;
    }
    if (t.row_loss) t.row_loss[t.row0 + b] = of_row;
  }
  return WN_OK;
}

struct reuse_run {
  struct wn_reuse *r;
  const struct wn_reuse_task *task;
};

static wn_status reuse_run_rows(void *user, int64_t row0, int64_t B, double *sum) {
  const struct reuse_run *run = user;
  struct wn_reuse_task t = *run->task;
  t.row0 = row0;
  t.B = B;
  return wn_reuse_run_batch(run->r, &t, false, NULL, sum);
}

wn_status wn_reuse_run_part(struct wn_reuse *r, const struct wn_reuse_task *t, const struct wn_prune_part *part) {
  double sum;
  return wn_prune_set_run(r->ctx, r->set, r->batch, part, reuse_run_rows, &(struct reuse_run){r, t}, &sum);
}

wn_status wn_reuse_run_set(struct wn_reuse *r, const struct wn_reuse_task *t, double *loss) {
  WN_TRY(wn_prune_set_mean(r->ctx, r->set, r->batch, reuse_run_rows, &(struct reuse_run){r, t}, loss));
  return isfinite(*loss) ? WN_OK
                         : wn_fail(r->ctx, WN_ERR_DIVERGED, "search: the loss of layer %lld's evaluation is %g",
                                   (long long)t->first_layer, wn_told(*loss));
}
