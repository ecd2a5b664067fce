/* Evaluation of one changed budget at the cost of what it can change (DESIGN section 4).
 *
 * Held for the accepted budgets, for every row and layer: the residual stream at the layer's entry, keys, values, the
 * queries that select, and every position's loss. Lowering layer l to K leaves untouched
 *   - the layers below l, and everything before layer l's attention;
 *   - all positions before K: the first eviction comes with token K, and no later token is seen before (causality);
 *   - above layer l, all positions before the first one where its output is not what it was, to the bit: evicting what
 *     has been selected away so far that its weights are 0 changes nothing at all.
 * So positions K.. of layers l.. are run, and fewer from layer to layer, over the keys and values held for what is
 * before; with budgets near the context N that is next to nothing. F at position K is what the selecting queries of the
 * positions before it have summed; evictions are found again from the first position on, by the same code and from the
 * same selections as in a whole pass, which costs one head's logits. h2o and tova score by all heads' weights: there
 * all positions are run.
 *
 * Results are those of a whole pass to the bit, because the same operations run on the same rows. With AVX-512 their
 * sums do not depend on how many rows a call has (from ROWS_MIN on; below, a product takes another kernel). Elsewhere
 * they may, so it is tried (probe), and where it does, all positions are run. A search ends with a check.
 *
 * Cost of one evaluation, at most: (1 - K/N) (L - l)/L of a pass, and (1 - K/N) of the output projection. Bytes a
 * position and layer: 4 (C + 2 Hkv D + G D), three times that where the best trial is kept to be accepted without being
 * run again.
 */
#include <math.h>
#include <string.h>

#include "attention/derive.h"
#include "kv/evictions.h"
#include "kv/policy.h"
#include "model/layer.h"
#include "model/workspace.h"
#include "prune/evaluator.h"

enum {
  ROWS_MIN = 16, /* of a product */
  TILE = 64      /* rows of a tile in which the attention's sums are formed */
};

/* One layer's arrays for all rows of the set: [rows,T,width] each. */
struct held {
  float *x, *k, *v;
  float *sq, *sk; /* selecting queries; bilinear keys; or NULL */
};
struct version {
  struct held *layers; /* [L+1]; of the last, the end, x alone */
  double *loss;        /* [rows,T] */
  int64_t *first;      /* [batches,L+1] of a trial: the first position that is in its arrays (L: and in loss) */
};

struct reuse {
  struct wn_prune_evaluator base;
  wn_context *ctx;
  struct wn_model *model;
  const struct wn_prune_set *set;
  wn_budgets budgets; /* tokens: the accepted ones */
  int64_t batch;
  int64_t select_heads, select_width; /* G, G*D; 0 without selection */
  struct version state, trial, best;  /* trial.layers NULL: trials are not kept */
  int64_t best_layer, best_to;        /* -1: none */
  double best_loss;
  bool probed;
  struct wn_arrays arrays;
  /* A batch at work. */
  struct wn_layer_blocks blocks;
  struct wn_layer_temp temp;
  int32_t *positions, *gone; /* [batch,T], [batch,P,T] */
  float *k, *v, *sq, *sk;    /* [batch,T,...] rows before the first changed from state, the others new */
  float *f;                  /* [batch,G,T] */
  float *q, *y, *z;          /* [batch,T,H*D] twice, [batch,T,H]: rows from a tile's first on */
  void *x_out, *n_out, *rstd, *mean, *logits;
  double *loss; /* [batch*T] */
  uint8_t *hit;
  int64_t chunk;
  void *scratch;
  size_t scratch_bytes;
};

/* What is being run. */
struct task {
  int64_t first_layer, first; /* the first layer, and position, that change */
  bool fresh;                 /* from the embedding on: nothing is held yet */
  bool every;                 /* all the way, changed or not */
  int64_t row0, B;
  const wn_budgets *budgets;
  const struct version *to; /* where results go; NULL: nowhere */
};

static int64_t kv_width(const struct reuse *r) {
  return r->model->config.kv_heads * r->model->config.head_size;
}

/* Copies `count` positions of each of the batch's rows between arrays [rows,T,width]. */
static void copy_positions(const struct reuse *r, const struct task *t, float *to, int64_t to_row, const float *from,
                           int64_t from_row, int64_t first, int64_t count, int64_t width) {
  const int64_t T = r->set->T;
  for (int64_t b = 0; b < t->B; b++)
    memcpy(to + ((to_row + b) * T + first) * width, from + ((from_row + b) * T + first) * width,
           (size_t)(count * width) * sizeof *to);
}

/* Puts the run's new positions, [B,n] with stride s and `width` values each, after those of `to` [B,T,width]. */
static void place_new(const struct reuse *r, const struct task *t, const float *from, struct wn_stride s, int64_t width,
                      float *to) {
  const int64_t T = r->set->T;
  for (int64_t b = 0; b < t->B; b++)
    for (int64_t i = t->first; i < T; i++)
      memcpy(to + (b * T + i) * width, from + b * s.b + (i - t->first) * s.t, (size_t)width * sizeof *to);
}

static struct wn_stride whole(const struct reuse *r, int64_t width, int64_t D) {
  return (struct wn_stride){r->set->T * width, width, D};
}

/* The layer's whole keys, values and selecting queries: into r->k ..., with the new positions of `op`. Where the layer
 * is the first that changes they are all there already. */
static void gather(struct reuse *r, const struct task *t, int64_t l, const struct wn_attention *op, struct held *out) {
  const struct held *h = &r->state.layers[l];
  const wn_model_config *c = &r->model->config;
  const int64_t D = c->head_size, W = kv_width(r), before = t->first;
  if (!t->fresh && l == t->first_layer) {
    *out = *h;
    const int64_t at = t->row0 * r->set->T;
    out->k += at * W, out->v += at * W;
    if (h->sq) out->sq += at * r->select_width;
    if (h->sk) out->sk += at * r->select_width;
    return;
  }
  *out = (struct held){NULL, r->k, r->v, r->sq, r->sk};
  copy_positions(r, t, r->k, 0, h->k, t->row0, 0, before, W);
  copy_positions(r, t, r->v, 0, h->v, t->row0, 0, before, W);
  place_new(r, t, op->k, op->s_k, W, r->k);
  place_new(r, t, op->v, op->s_v, W, r->v);
  if (!h->sq) return;
  copy_positions(r, t, r->sq, 0, h->sq, t->row0, 0, before, r->select_width);
  if (h->sk) {
    copy_positions(r, t, r->sk, 0, h->sk, t->row0, 0, before, r->select_width);
    place_new(r, t, op->sel.sq, op->sel.s_sq, r->select_width, r->sq);
    place_new(r, t, op->sel.sk, op->sel.s_sk, r->select_width, r->sk);
    return;
  }
  const int64_t apart = c->heads / r->select_heads, T = r->set->T;
  for (int64_t b = 0; b < t->B; b++)
    for (int64_t i = before; i < T; i++)
      for (int64_t g = 0; g < r->select_heads; g++)
        memcpy(r->sq + ((b * T + i) * r->select_heads + g) * D,
               (const float *)op->q + b * op->s_q.b + (i - before) * op->s_q.t + (g * apart + op->sel.head) * op->s_q.h,
               (size_t)D * sizeof(float));
}

/* The layer's selection alone over positions 0 .. T-1: a call of one head for each selection. */
static struct wn_attention selection_call(const struct reuse *r, const struct held *h, const struct wn_attention *op,
                                          int64_t T) {
  const int64_t D = op->D, G = r->select_heads;
  struct wn_attention s = wn_attention_selection_only(op, WN_F32);
  s.Tq = s.Tk = T;
  s.q = h->sq, s.s_q = whole(r, r->select_width, D);
  s.k = h->k, s.v = h->v, s.s_k = s.s_v = whole(r, kv_width(r), D);
  if (G == 1 && op->Hkv > 1 && !op->sel.bilinear) /* the selecting head's own keys */
    s.k = h->k + op->sel.head / (op->H / op->Hkv) * D;
  if (op->sel.bilinear) {
    s.sel.sq = h->sq, s.sel.sk = h->sk;
    s.sel.s_sq = s.sel.s_sk = whole(r, r->select_width, D);
  }
  s.y = r->y, s.s_y = whole(r, r->select_width, D);
  return s;
}

/* The call with its rows from the start of a tile on: sums over rows begin with tiles, so that only then all bits are
 * those of a whole pass. Of the rows before the first changed one the selecting queries are known; nothing else of
 * them matters, and what comes out for them is dropped. */
static wn_status attend_from(struct wn_run *run, struct reuse *r, const struct task *t, int64_t from,
                             const struct wn_attention *op, const struct held *h) {
  const int64_t T = r->set->T, D = op->D, HD = op->H * D, n = T - t->first, rows = T - from, skip = t->first - from;
  const bool chosen = r->select_heads > 0 && !op->sel.bilinear;
  const int64_t apart = chosen ? op->H / r->select_heads : 0;
  struct wn_attention a = *op;
  a.Tq = rows;
  a.q = r->q, a.y = r->y;
  a.s_q = a.s_y = (struct wn_stride){rows * HD, HD, D};
  if (op->sel.bilinear) a.sel.sq = h->sq + from * r->select_width, a.sel.s_sq = whole(r, r->select_width, D);
  if (op->span.on && op->span.dynamic) a.span.z = r->z, a.span.s_z = (struct wn_stride){rows * op->H, op->H, 1};
  for (int64_t b = 0; b < t->B && !run->measuring; b++) {
    float *q = r->q + b * rows * HD;
    memset(q, 0, (size_t)(skip * HD) * sizeof *q);
    for (int64_t i = 0; chosen && i < skip; i++)
      for (int64_t g = 0; g < r->select_heads; g++)
        memcpy(q + i * HD + (g * apart + op->sel.head) * D, h->sq + ((b * T + from + i) * r->select_heads + g) * D,
               (size_t)D * sizeof *q);
    for (int64_t i = 0; i < n; i++)
      memcpy(q + (skip + i) * HD, (const float *)op->q + b * op->s_q.b + i * op->s_q.t, (size_t)HD * sizeof *q);
    if (a.span.z != r->z) continue;
    memset(r->z + b * rows * op->H, 0, (size_t)(skip * op->H) * sizeof *r->z);
    memcpy(r->z + (b * rows + skip) * op->H, (const float *)op->span.z + b * op->span.s_z.b,
           (size_t)(n * op->H) * sizeof *r->z);
  }
  WN_TRY(wn_run_attention_forward(run, &a));
  for (int64_t b = 0; b < t->B && !run->measuring; b++)
    memcpy((float *)op->y + b * n * HD, r->y + (b * rows + skip) * HD, (size_t)(n * HD) * sizeof *r->y);
  return WN_OK;
}

/* Attention of the new positions over all. */
static wn_status attend(struct wn_run *run, struct reuse *r, const struct task *t, int64_t l, struct wn_layer_acts *a,
                        struct held *h) {
  const int64_t T = r->set->T, D = r->model->config.head_size;
  struct wn_attention op;
  wn_layer_attention(run, l, a, &op);
  op = wn_attention_forward_only(&op);
  if (run->measuring)
    *h = (struct held){NULL, r->k, r->v, r->sq, r->sk};
  else
    gather(r, t, l, &op, h);
  op.k = h->k, op.v = h->v;
  op.s_k = op.s_v = whole(r, kv_width(r), D);
  if (h->sk) op.sel.sk = h->sk, op.sel.s_sk = whole(r, r->select_width, D);
  op.Tk = T;
  if (run->measuring || wn_evictions_any(t->budgets, l, T)) {
    struct wn_attention all = op;
    if (t->first > 0 && wn_policy_row(t->budgets->policy)->needs & WN_POLICY_SELECTIONS)
      all = selection_call(r, h, &op, T);
    all.Tq = T; /* policies that are run from a later position on have no use for the queries */
    if (run->measuring) {
      const size_t need = wn_evictions_scratch(&run->exec, t->budgets, &all);
      if (need > run->need) run->need = need;
    } else {
      WN_TRY(wn_evictions_find(&run->exec, t->budgets, l, &all, r->gone));
    }
    op.slots.groups = wn_policy_groups(t->budgets, op.Hkv, r->select_heads);
    op.slots.gone = r->gone;
  }
  const int64_t from = t->first / TILE * TILE;
  if (r->select_heads > 0 && from > 0) { /* F at the first row */
    struct wn_attention before = selection_call(r, h, &op, from);
    if (!run->measuring) memset(r->f, 0, (size_t)(t->B * r->select_heads * T) * sizeof *r->f);
    before.sel.f_out = r->f;
    before.sel.f_stride = T;
    WN_TRY(wn_run_attention_forward(run, &before));
    op.sel.f_in = r->f;
    op.sel.f_stride = T;
  }
  if (from == t->first) return wn_run_attention_forward(run, &op);
  return attend_from(run, r, t, from, &op, h);
}

/* A new layer's entry, keys, values and queries to where results go. */
static void keep(const struct reuse *r, const struct task *t, int64_t l, const struct wn_layer_acts *a,
                 const struct held *h) {
  const int64_t C = r->model->config.width, T = r->set->T, n = T - t->first, W = kv_width(r);
  const struct held *to = &t->to->layers[l];
  t->to->first[t->row0 / r->batch * (r->model->config.layers + 1) + l] = t->first;
  for (int64_t b = 0; b < t->B; b++)
    memcpy(to->x + ((t->row0 + b) * T + t->first) * C, (const float *)a->x + b * n * C,
           (size_t)(n * C) * sizeof(float));
  copy_positions(r, t, to->k, t->row0, h->k, 0, t->first, n, W);
  copy_positions(r, t, to->v, t->row0, h->v, 0, t->first, n, W);
  if (to->sq) copy_positions(r, t, to->sq, t->row0, h->sq, 0, t->first, n, r->select_width);
  if (to->sk) copy_positions(r, t, to->sk, t->row0, h->sk, 0, t->first, n, r->select_width);
}

/* The stream at the end. The losses are the caller's to keep. */
static void keep_end(const struct reuse *r, const struct task *t) {
  const int64_t L = r->model->config.layers, C = r->model->config.width, T = r->set->T, n = T - t->first;
  t->to->first[t->row0 / r->batch * (L + 1) + L] = t->first;
  for (int64_t b = 0; b < t->B; b++)
    memcpy(t->to->layers[L].x + ((t->row0 + b) * T + t->first) * C, (const float *)r->x_out + b * n * C,
           (size_t)(n * C) * sizeof(float));
}

/* Losses of the run's positions: r->loss [B,n]. Chunks overlap rather than being thin. */
static wn_status losses(struct wn_run *run, struct reuse *r, const struct task *t) {
  const wn_model_config *c = &r->model->config;
  const int64_t T = r->set->T, n = T - t->first, M = t->B * n;
  WN_TRY(wn_run_norm(run, M, wn_run_final_norm(run, r->rstd, r->mean), r->x_out, NULL, NULL, r->n_out));
  int32_t *targets = r->positions; /* done with: the targets take their place */
  for (int64_t b = 0; b < t->B && !run->measuring; b++)
    memcpy(targets + b * n, r->set->targets + (t->row0 + b) * T + t->first, (size_t)n * sizeof *targets);
  for (int64_t at = 0; at < M; at += r->chunk) {
    const int64_t rows = M < r->chunk || (t->first == 0 && M - at < r->chunk) ? M - at : r->chunk;
    const int64_t first = at + rows <= M ? at : M - rows;
    WN_TRY(wn_run_output(run, wn_at(r->n_out, first * c->width, WN_F32), rows, r->logits));
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
static int64_t first_changed(const struct reuse *r, int64_t to) {
  const int64_t T = r->set->T, last = r->set->rows % r->batch ? r->set->rows % r->batch : r->batch;
  int64_t rows = (ROWS_MIN + last - 1) / last;
  if (rows < 2) rows = 2;
  if (!r->base.by_rows || rows >= T) return 0;
  return to < T - rows ? to : T - rows;
}

/* Arrays and positions for the task's rows. */
static wn_status lay_out(struct reuse *r, const struct task *t, struct wn_run *run, struct wn_layer_acts *a) {
  const int64_t n = r->set->T - t->first;
  struct wn_layer_blocks blocks = r->blocks;
  run->B = t->B;
  run->T = n;
  for (int64_t i = 0; i < t->B * n; i++) r->positions[i] = (int32_t)(t->first + i % n);
  if (wn_layer_acts_plan(&r->model->config, WN_F32, t->B, n, 0, &blocks, a)) return WN_OK;
  return wn_fail(r->ctx, WN_ERR_ARGUMENT, "search: activations do not fit in memory");
}

/* The residual stream at the entry of layer l (L: at the end) into r->x_out [B,n,C]; the first position where it is
 * not what is held, T where there is none. */
static int64_t add_and_compare(struct reuse *r, const struct task *t, int64_t l, const float *mid,
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

/* Between layers: positions before the first that has changed are finished. What is left of r->x_out goes to `to`
 * (which may be it). False: nothing has changed. */
static bool narrow(struct reuse *r, struct task *t, int64_t first, float *to) {
  const int64_t T = r->set->T, C = r->model->config.width, n = T - t->first, most = first_changed(r, T);
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

/* The layers; *changed: r->x_out (L's entry, not yet normed) is not all what is held. */
static wn_status run_layers(struct reuse *r, struct task *t, struct wn_run *run, bool *changed) {
  const wn_model_config *c = &r->model->config;
  const int64_t L = c->layers, C = c->width, T = r->set->T;
  struct wn_layer_acts a;
  const void *mid = NULL, *branch = NULL;
  *changed = true;
  WN_TRY(lay_out(r, t, run, &a));
  if (t->fresh) /* what the embedding's norm keeps is not needed later */
    WN_TRY(wn_run_embed(run, r->set->tokens + t->row0 * T, a.n2, a.rstd2, a.mean2, a.x));
  for (int64_t b = 0; b < t->B && !t->fresh && !run->measuring; b++)
    memcpy((float *)a.x + b * run->T * C, r->state.layers[t->first_layer].x + ((t->row0 + b) * T + t->first) * C,
           (size_t)(run->T * C) * sizeof(float));
  for (int64_t l = t->first_layer; l < L; l++) {
    struct held h;
    if (l > t->first_layer && !t->fresh && !t->every && !run->measuring) {
      const int64_t first = add_and_compare(r, t, l, mid, branch);
      float *x = r->x_out;
      if (!(*changed = narrow(r, t, first, x))) return WN_OK;
      WN_TRY(lay_out(r, t, run, &a));
      memcpy(a.x, x, (size_t)(t->B * run->T * C) * sizeof *x);
      mid = branch = NULL;
    }
    WN_TRY(wn_layer_before(run, l, &a, mid, branch));
    WN_TRY(attend(run, r, t, l, &a, &h));
    if (t->to && (t->fresh || l > t->first_layer)) keep(r, t, l, &a, &h);
    WN_TRY(wn_layer_after(run, l, &a, &r->temp, true));
    mid = wn_layer_stream(run, &a);
    branch = r->temp.branch;
  }
  if (run->measuring) return WN_OK;
  const int64_t first = add_and_compare(r, t, L, mid, branch);
  if (!t->fresh && !t->every) *changed = narrow(r, t, first, r->x_out);
  run->T = T - t->first;
  return WN_OK;
}

/* One batch; *sum: over its counted positions, those before the first changed ones from state. */
static wn_status run_batch(struct reuse *r, const struct task *whole, bool measuring, size_t *need, double *sum) {
  const int64_t T = r->set->T, L = r->model->config.layers;
  struct task t = *whole;
  struct wn_run run;
  bool changed;
  wn_run_init(&run, r->model, t.B, T - t.first);
  run.measuring = measuring;
  run.exec.scratch = r->scratch;
  run.exec.scratch_bytes = r->scratch_bytes;
  run.positions = r->positions;
  int64_t *valid = t.to ? t.to->first + t.row0 / r->batch * (L + 1) : NULL;
  for (int64_t l = 0; valid && l <= L; l++) valid[l] = T;
  WN_TRY(run_layers(r, &t, &run, &changed));
  if (!changed) t.first = T;
  if (changed) WN_TRY(losses(&run, r, &t));
  if (measuring) {
    *need = run.need;
    return WN_OK;
  }
  const int64_t n = T - t.first;
  if (valid && changed) keep_end(r, &t);
  *sum = 0;
  for (int64_t b = 0; b < t.B; b++) {
    const int64_t row = (t.row0 + b) * T;
    for (int64_t i = 0; i < T; i++) {
      const double loss = i < t.first ? r->state.loss[row + i] : r->loss[b * n + i - t.first];
      if (t.to && i >= t.first) t.to->loss[row + i] = loss;
      if (r->set->targets[row + i] >= 0) *sum += loss;
    }
  }
  return WN_OK;
}

static wn_status run_set(struct reuse *r, struct task *t, double *loss) {
  double all = 0, sum;
  for (t->row0 = 0; t->row0 < r->set->rows; t->row0 += t->B) {
    t->B = r->set->rows - t->row0 < r->batch ? r->set->rows - t->row0 : r->batch;
    if (wn_context_cancelled(r->ctx)) return wn_fail(r->ctx, WN_ERR_CANCELLED, "search: stopped in an evaluation");
    WN_TRY(run_batch(r, t, false, NULL, &sum));
    all += sum;
  }
  *loss = all / (double)r->set->counted;
  return isfinite(*loss) ? WN_OK
                         : wn_fail(r->ctx, WN_ERR_DIVERGED, "search: the loss of layer %lld's evaluation is %g",
                                   (long long)t->first_layer, *loss);
}

/* ---- the evaluator ---- */

/* Do some positions alone give the bits that they gave in the whole? Kernels of some machines sum up differently for
 * different numbers of rows; there all positions are run. */
static wn_status probe(struct reuse *r) {
  const int64_t T = r->set->T, rows = r->set->rows, last = (rows - 1) / r->batch * r->batch;
  const int64_t firsts[] = {first_changed(r, T), T - T / 8, T - T / 3, T / 2 + 1, T / 5 + 3};
  for (int i = 0; r->base.by_rows && i < 10; i++) {
    const int64_t first = firsts[i % 5], row0 = i < 5 ? 0 : last;
    const struct task t = {.every = true,
                           .first = first,
                           .row0 = row0,
                           .B = rows - row0 < r->batch ? rows - row0 : r->batch,
                           .budgets = &r->budgets};
    double sum;
    if (first < 1 || first > first_changed(r, T)) continue;
    WN_TRY(run_batch(r, &t, false, NULL, &sum));
    for (int64_t b = 0; b < t.B; b++)
      if (memcmp(r->loss + b * (T - first), r->state.loss + (row0 + b) * T + first, (size_t)(T - first) * sizeof sum))
        r->base.by_rows = false;
  }
  if (!r->base.by_rows)
    wn_log(r->ctx, WN_LOG_INFO, "search: on this machine results depend on how many positions a call has: all are run");
  return WN_OK;
}

static wn_status begin(struct wn_prune_evaluator *e, const int64_t *tokens, double *loss) {
  struct reuse *r = (struct reuse *)e;
  for (int64_t l = 0; l < r->budgets.layers; l++) r->budgets.tokens[l] = tokens ? tokens[l] : r->set->T;
  r->best_layer = -1;
  WN_TRY(run_set(r, &(struct task){.fresh = true, .budgets = &r->budgets, .to = &r->state}, loss));
  /* The machine's kernels are what they were, whatever the parameters. */
  const bool tried = r->probed;
  r->probed = true;
  return r->base.by_rows && !tried ? probe(r) : WN_OK;
}

/* With the changed budget in force for the time of the call. */
static wn_status run_changed(struct reuse *r, int64_t layer, int64_t to, const struct version *where, double *loss) {
  const int64_t was = r->budgets.tokens[layer];
  struct task t = {
      .first_layer = layer, .first = first_changed(r, to < was ? to : was), .budgets = &r->budgets, .to = where};
  r->budgets.tokens[layer] = to;
  const wn_status status = run_set(r, &t, loss);
  r->budgets.tokens[layer] = was;
  return status;
}

static wn_status evaluate(struct wn_prune_evaluator *e, int64_t layer, int64_t to, double *loss) {
  struct reuse *r = (struct reuse *)e;
  WN_TRY(run_changed(r, layer, to, r->trial.layers ? &r->trial : NULL, loss));
  if (!r->trial.layers) return WN_OK;
  if (r->best_layer >= 0 && !(*loss < r->best_loss || (*loss == r->best_loss && layer < r->best_layer))) return WN_OK;
  const struct version spare = r->best;
  r->best = r->trial;
  r->trial = spare;
  r->best_layer = layer;
  r->best_to = to;
  r->best_loss = *loss;
  return WN_OK;
}

/* The best trial's positions over those of the state. */
static void adopt(struct reuse *r) {
  const int64_t T = r->set->T, L = r->model->config.layers;
  for (int64_t row = 0; row < r->set->rows; row += r->batch) {
    const int64_t B = r->set->rows - row < r->batch ? r->set->rows - row : r->batch;
    const struct task t = {.B = B};
    for (int64_t l = r->best_layer + 1; l <= L; l++) {
      const struct held *to = &r->state.layers[l], *from = &r->best.layers[l];
      const int64_t first = r->best.first[row / r->batch * (L + 1) + l], n = T - first;
      if (n == 0) continue;
      copy_positions(r, &t, to->x, row, from->x, row, first, n, r->model->config.width);
      if (to->k) copy_positions(r, &t, to->k, row, from->k, row, first, n, kv_width(r));
      if (to->v) copy_positions(r, &t, to->v, row, from->v, row, first, n, kv_width(r));
      if (to->sq) copy_positions(r, &t, to->sq, row, from->sq, row, first, n, r->select_width);
      if (to->sk) copy_positions(r, &t, to->sk, row, from->sk, row, first, n, r->select_width);
      for (int64_t b = row; b < row + B && l == L; b++)
        memcpy(r->state.loss + b * T + first, r->best.loss + b * T + first, (size_t)n * sizeof(double));
    }
  }
}

static wn_status accept(struct wn_prune_evaluator *e, int64_t layer, int64_t to, double *loss) {
  struct reuse *r = (struct reuse *)e;
  if (r->best_layer == layer && r->best_to == to) {
    adopt(r);
    *loss = r->best_loss;
  } else {
    WN_TRY(run_changed(r, layer, to, &r->state, loss));
  }
  r->budgets.tokens[layer] = to;
  r->best_layer = -1;
  return WN_OK;
}

static void destroy(struct wn_prune_evaluator *e) {
  struct reuse *r = (struct reuse *)e;
  wn_arrays_clear(&r->arrays);
  wn_free(r->state.layers);
  wn_free(r->trial.layers);
  wn_free(r->best.layers);
  wn_free(r->scratch);
  wn_free(r->budgets.tokens);
  wn_free(r);
}

/* ---- memory ---- */

/* v->layers exists. */
static void version_lay(const struct reuse *r, struct version *v, struct wn_arrays *arrays) {
  const wn_model_config *c = &r->model->config;
  const int64_t rows = r->set->rows, T = r->set->T, batches = (rows + r->batch - 1) / r->batch;
  const bool bilinear = c->attention.selective.bilinear;
  const struct wn_array own[] = {
      {"first positions", true, WN_DIMS(batches, c->layers + 1), sizeof *v->first, &v->first},
      {"residual streams", true, WN_DIMS(rows, T, c->width), sizeof(float), &v->layers[c->layers].x},
      {"losses", true, WN_DIMS(rows, T), sizeof *v->loss, &v->loss},
  };
  WN_ARRAYS_LAY(arrays, own);
  for (int64_t l = 0; l < c->layers; l++) {
    struct held *h = &v->layers[l];
    const struct wn_array of_layer[] = {
        {"residual streams", true, WN_DIMS(rows, T, c->width), sizeof(float), &h->x},
        {"keys", true, WN_DIMS(rows, T, kv_width(r)), sizeof(float), &h->k},
        {"values", true, WN_DIMS(rows, T, kv_width(r)), sizeof(float), &h->v},
        {"queries", true, WN_DIMS(rows, T, r->select_width), sizeof(float), &h->sq},
        {"selecting keys", bilinear, WN_DIMS(rows, T, r->select_width), sizeof(float), &h->sk},
    };
    WN_ARRAYS_LAY(arrays, of_layer);
  }
}

static wn_status version_layers(struct reuse *r, struct version *v) {
  void *memory;
  WN_TRY(wn_alloc(r->ctx, "layers", (size_t)(r->model->config.layers + 1) * sizeof *v->layers, &memory));
  v->layers = memory;
  return WN_OK;
}

/* Bytes of a version, as a number that cannot overflow. */
static double version_bytes(const struct reuse *r) {
  const wn_model_config *c = &r->model->config;
  const double columns = (double)c->width + 2.0 * (double)kv_width(r) +
                         (double)r->select_width * (c->attention.selective.bilinear ? 2 : 1);
  return (double)r->set->T * ((double)c->layers * columns * 4 + 4 * (double)c->width + 8);
}

static void batch_lay(struct reuse *r, struct wn_arrays *arrays) {
  const wn_model_config *c = &r->model->config;
  const int64_t T = r->set->T, B = r->batch, M = B * T, W = kv_width(r), G = r->select_heads, GD = r->select_width;
  const int64_t P = wn_policy_groups(&r->budgets, c->kv_heads, G), H = c->heads, D = c->head_size;
  const bool bilinear = c->attention.selective.bilinear, layer = c->norm == WN_NORM_LAYER;
  const struct wn_array rows[] = {
      {"activations", true, WN_DIMS((int64_t)r->blocks.large_bytes), 1, &r->blocks.large},
      {"derived activations", true, WN_DIMS((int64_t)r->blocks.derived_bytes), 1, &r->blocks.derived},
      {"exact activations", true, WN_DIMS((int64_t)r->blocks.exact_bytes), 1, &r->blocks.exact},
      {"positions", true, WN_DIMS(M), sizeof *r->positions, &r->positions},
      {"evictions", true, WN_DIMS(M, P), sizeof *r->gone, &r->gone},
      {"keys", true, WN_DIMS(M, W), sizeof *r->k, &r->k},
      {"values", true, WN_DIMS(M, W), sizeof *r->v, &r->v},
      {"queries", true, WN_DIMS(M, GD), sizeof *r->sq, &r->sq},
      {"selecting keys", bilinear, WN_DIMS(M, GD), sizeof *r->sk, &r->sk},
      {"F", true, WN_DIMS(M, G), sizeof *r->f, &r->f},
      {"attention's queries", true, WN_DIMS(M, H, D), sizeof *r->q, &r->q},
      {"attention's outputs", true, WN_DIMS(M, H, D), sizeof *r->y, &r->y},
      {"spans", true, WN_DIMS(M, H), sizeof *r->z, &r->z},
      {"x_out", true, WN_DIMS(M, c->width), sizeof(float), &r->x_out},
      {"n_out", true, WN_DIMS(M, c->width), sizeof(float), &r->n_out},
      {"rstd", true, WN_DIMS(M), sizeof(float), &r->rstd},
      {"mean", layer, WN_DIMS(M), sizeof(float), &r->mean},
      {"logits", true, WN_DIMS(r->chunk, c->vocab_size), sizeof(float), &r->logits},
      {"loss", true, WN_DIMS(M), sizeof *r->loss, &r->loss},
      {"hit", true, WN_DIMS(M), 1, &r->hit},
  };
  WN_ARRAYS_LAY(arrays, rows);
  wn_layer_temp_lay(c, WN_F32, B, T, false, false, arrays, &r->temp);
}

static wn_status size_batch(struct reuse *r) {
  const int64_t M = r->batch * r->set->T;
  struct wn_layer_acts acts;
  if (M > INT32_MAX || !wn_layer_acts_plan(&r->model->config, WN_F32, r->batch, r->set->T, false, &r->blocks, &acts))
    return wn_fail(r->ctx, WN_ERR_ARGUMENT, "search: a batch of %lld rows of %lld tokens is too large",
                   (long long)r->batch, (long long)r->set->T);
  r->chunk = wn_logits_rows(M, r->model->config.vocab_size);
  return WN_OK;
}

/* The largest scratch: a backend may treat few rows otherwise than many. */
static wn_status measure(struct reuse *r) {
  const int64_t T = r->set->T;
  size_t most = 0;
  for (int64_t n = 2;; n = 2 * n < T ? 2 * n : T) {
    size_t need = 0;
    if (n > T) n = T;
    const struct task t = {.first = r->base.by_rows ? T - n : 0, .B = r->batch, .budgets = &r->budgets};
    WN_TRY(run_batch(r, &t, true, &need, NULL));
    if (need > most) most = need;
    if (n == T) break;
  }
  WN_TRY(wn_alloc(r->ctx, "scratch of a search", most, &r->scratch));
  r->scratch_bytes = most;
  return WN_OK;
}

static void reuse_lay(struct reuse *r) {
  struct version *versions[] = {&r->state, &r->trial, &r->best};
  batch_lay(r, &r->arrays);
  for (int i = 0; i < 3; i++)
    if (versions[i]->layers) version_lay(r, versions[i], &r->arrays);
}

static wn_status reuse_arrays(struct reuse *r, const char *what, bool trials, uint64_t memory) {
  struct wn_arrays counted = {0};
  WN_TRY(size_batch(r));
  batch_lay(r, &counted);
  WN_TRY(wn_arrays_check(r->ctx, &counted, "search"));
  const double each = version_bytes(r), batch = (double)counted.bytes, may = (double)memory;
  const double need = batch + each * (double)r->set->rows;
  if (need > may) {
    const double fit = (may - batch) / each;
    return wn_fail(r->ctx, WN_ERR_MEMORY,
                   "the %s of %lld rows needs %.1f MB (%.2f MB a row and %.1f MB for all), of the %.1f MB that may "
                   "be taken: at most %lld rows fit",
                   what, (long long)r->set->rows, need / 1e6, each / 1e6, batch / 1e6, may / 1e6,
                   (long long)(fit > 0 ? fit : 0));
  }
  WN_TRY(version_layers(r, &r->state));
  if (trials && batch + 3 * each * (double)r->set->rows <= may) {
    WN_TRY(version_layers(r, &r->trial));
    WN_TRY(version_layers(r, &r->best));
  }
  reuse_lay(r);
  WN_TRY(wn_arrays_allocate(r->ctx, &r->arrays, what));
  reuse_lay(r);
  return WN_OK;
}

wn_status wn_prune_reuse_create(wn_context *ctx, struct wn_model *model, const char *what,
                                const struct wn_prune_set *set, int64_t batch, const wn_budgets *budgets, bool trials,
                                uint64_t memory, struct wn_prune_evaluator **out) {
  const wn_model_config *c = &model->config;
  *out = NULL;
  if (model->dtype != WN_F32) return wn_fail(ctx, WN_ERR_UNSUPPORTED, "search: only models of float32");
  void *p;
  WN_TRY(wn_alloc(ctx, "evaluator", sizeof(struct reuse), &p));
  struct reuse *r = p;
  r->base = (struct wn_prune_evaluator){
      .name = "reuse", .begin = begin, .evaluate = evaluate, .accept = accept, .destroy = destroy};
  r->ctx = ctx;
  r->model = model;
  r->set = set;
  r->batch = batch < set->rows ? batch : set->rows;
  r->budgets = *budgets;
  r->budgets.layers = c->layers;
  r->budgets.heads = 0;
  r->budgets.tokens = r->budgets.head_tokens = NULL;
  r->best_layer = -1;
  r->select_heads = wn_attention_selections(&c->attention, c->kv_heads);
  r->select_width = r->select_heads * c->head_size;
  /* The reference backend rounds F between calls and not within one: in pieces it is not the same to the bit. */
  const bool pieces = r->select_heads == 0 || (strcmp(ctx->backend, "ref") != 0 && ctx->isa != WN_ISA_REF);
  /* Far keys alone are summed up on a path that evictions do not take, from the first position on. */
  const bool sparse = c->attention.root.enabled || c->attention.strided > 0;
  r->base.by_rows = pieces && !sparse && !(wn_policy_row(budgets->policy)->needs & WN_POLICY_SUMS);
  wn_status status;
  WN_TRY_GOTO(wn_alloc(ctx, "budgets", (size_t)c->layers * sizeof *r->budgets.tokens, &p), fail);
  r->budgets.tokens = p;
  for (int64_t l = 0; l < c->layers; l++) r->budgets.tokens[l] = set->T;
  WN_TRY_GOTO(reuse_arrays(r, what, trials, memory), fail);
  WN_TRY_GOTO(measure(r), fail);
  r->base.bytes = r->arrays.bytes + r->scratch_bytes;
  *out = &r->base;
  return WN_OK;
fail:
  destroy(&r->base);
  return status;
}
