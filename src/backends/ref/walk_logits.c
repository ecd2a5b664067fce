/* Logits of a walk: products of a block's rows with all columns, the selections of a row, and its attention sums.
 *
 * The sums include F, relative positions, biases, score maps, masks by distance, spans and sinks. */
#include "backends/ref/walk.h"

#include <math.h>
#include <string.h>

#include "io/gguf_types.h"

static void walk_put(void *x, int64_t i, double value, wn_dtype dtype) {
  if (dtype == WN_F64)
    ((double *)x)[i] = value;
  else
    ((float *)x)[i] = (float)value;
}

int64_t wn_walk_reach(const struct wn_attention *a) {
  return a->relative.P < a->Tk || a->slots.at ? a->relative.P : a->Tk;
}

int64_t wn_walk_selecting_head(const struct wn_walk *w, int64_t s) {
  return s * (w->heads / w->choices) + w->a->sel.head;
}

/* How many heads' logits are computed: all of the group's, or the selecting ones. */
static int64_t walk_runs(const struct wn_walk *w) {
  return w->all ? w->heads : w->a->sel.bilinear ? 0 : w->choices;
}
static int64_t walk_run_head(const struct wn_walk *w, int64_t run) {
  return w->all ? run : wn_walk_selecting_head(w, run);
}

static void walk_values(const struct wn_walk *w, int64_t run, int64_t x, int64_t n, double *sums) {
  wn_score_biases(w->a, w->dtype == WN_F64, w->group * w->heads + walk_run_head(w, run), x, NULL, n, sums);
}

void wn_walk_biases(struct wn_walk *w) {
  const int64_t n = w->a->Tk;
  memset(w->bias, 0, (size_t)(walk_runs(w) * n) * sizeof *w->bias);
  for (int64_t run = 0; run < walk_runs(w); run++) walk_values(w, run, n - 1, n, w->bias + run * n);
}

/* What maps by distance add to the logits of a run's head. */
static double walk_bias(const struct wn_walk *w, int64_t run, int64_t x) {
  double sum = 0;
  if (x < w->a->Tk) return w->bias[(run + 1) * w->a->Tk - 1 - x];
  walk_values(w, run, x, 1, &sum); /* slots may be any distance apart */
  return sum;
}

/* A logit of a run's head with column c, after keyed maps: the row's own key is in column n-1. */
static double walk_keyed(const struct wn_walk *w, int64_t run, int64_t n, int64_t c, double logit) {
  const struct wn_attention *a = w->a;
  const int64_t h = w->group * w->heads + walk_run_head(w, run);
  for (const struct wn_score_map *t = a->map; t < a->map + a->maps; t++) {
    if (!t->kind->keyed_double) continue;
    const int64_t first = wn_score_number(t, w->b, h, a->H / a->Hkv);
    const double key = wn_number(t->key, first + w->key[c] * t->s_key.t, w->dtype);
    const struct wn_score_keys keys = {.n = 1,
                                       .first = w->place[n - 1] - w->place[c],
                                       .row = wn_number(t->key, first + w->key[n - 1] * t->s_key.t, w->dtype),
                                       .key = &key};
    t->kind->keyed_double(t, &keys, &logit);
  }
  return logit;
}

/* ---- products ---- */

/* exec with the walk's scratch: the operations of a walk run one after the other. */
static struct wn_exec walk_exec(const struct wn_exec *exec, const struct wn_walk *w) {
  struct wn_exec one = *exec;
  one.scratch = w->scratch, one.scratch_bytes = w->scratch_bytes;
  return one;
}

/* y [rows,columns] = x [rows,D] times the transpose of keys [columns,D]. */
static wn_status walk_product(const struct wn_exec *exec, struct wn_linear product) {
  return product.N > 0 ? wn_op_linear_forward(exec, &product) : WN_OK;
}

/* Copies keys to columns. type: how k is stored (then dtype is F32). */
static void walk_gather(struct wn_walk *w, const void *k, struct wn_stride s, int64_t head, int64_t columns,
                        wn_gguf_type type) {
  const int64_t D = w->a->D;
  for (int64_t c = 0; type && c < columns; c++)
    wn_gguf_decode(type, k, w->b * s.b + head * s.h + w->key[c] * s.t, D, (float *)w->keys + c * D);
  if (type) return;
  const size_t row = (size_t)D * wn_dtype_size(w->dtype);
  const char *base = wn_element(k, w->b * s.b + head * s.h, w->dtype);
  for (int64_t c = 0; c < columns; c++)
    memcpy((char *)w->keys + (size_t)c * row, wn_element(base, w->key[c] * s.t, w->dtype), row);
}

wn_status wn_walk_products(const struct wn_exec *exec, struct wn_walk *w, int64_t row0, int64_t rows) {
  const struct wn_attention *a = w->a;
  const struct wn_exec one = walk_exec(exec, w);
  const int64_t columns = w->n + rows, cap = a->Tk, ratio = a->H / a->Hkv, reach = wn_walk_reach(a);
  const int64_t far = w->place[columns - 1] - w->place[0] + 1, distances = far < reach ? far : reach, R = WN_WALK_ROWS;
  struct wn_linear p = {.M = rows, .K = a->D};
  for (int64_t run = 0, gathered = -1; run < walk_runs(w); run++) {
    const int64_t head = w->group * w->heads + walk_run_head(w, run), kv = head / ratio;
    if (kv != gathered) walk_gather(w, a->k, a->s_k, gathered = kv, columns, a->k_type);
    p.x = wn_element(a->q, w->b * a->s_q.b + row0 * a->s_q.t + head * a->s_q.h, w->dtype), p.ldx = a->s_q.t;
    p.N = columns, p.w = w->keys, p.y = wn_element(w->logits, run * R * cap, w->dtype), p.ldy = cap;
    WN_TRY(walk_product(&one, p));
    if (w->relative) {
      p.N = distances, p.w = a->relative.p, p.y = wn_element(w->relative, run * R * reach, w->dtype), p.ldy = reach;
      WN_TRY(walk_product(&one, p));
    }
    if (w->sink_logits) {
      const int64_t n = a->sinks.n;
      p.N = n, p.w = wn_element(a->sinks.k, kv * n * a->D, w->dtype);
      p.y = wn_element(w->sink_logits, run * R * n, w->dtype), p.ldy = n;
      WN_TRY(walk_product(&one, p));
    }
  }
  for (int64_t s = 0; a->sel.bilinear && s < w->choices; s++) {
    const int64_t choice = w->group * w->choices + s;
    walk_gather(w, a->sel.sk, a->sel.s_sk, choice, columns, WN_GGUF_F32);
    p.x = wn_element(a->sel.sq, w->b * a->sel.s_sq.b + row0 * a->sel.s_sq.t + choice * a->sel.s_sq.h, w->dtype);
    p.ldx = a->sel.s_sq.t;
    p.N = columns, p.w = w->keys, p.y = wn_element(w->selecting, s * R * cap, w->dtype), p.ldy = cap;
    WN_TRY(walk_product(&one, p));
  }
  return WN_OK;
}

/* ---- selections ---- */

/* Adds the row's S to F of n columns. The logits are q.k only, or include terms by distance. */
static void walk_add_selections(const struct wn_attention *a, const struct wn_walk *w, double strength,
                                const void *logits, int64_t n, double *F) {
  const double floor = a->sel.relu ? 0 : -INFINITY, scale = a->scale;
  if (w->dtype == WN_F64) {
    const double *x = logits;
    for (int64_t c = 0; c < n; c++) F[c] += strength * (scale * x[c] > floor ? scale * x[c] : floor);
  } else {
    const float *x = logits;
#pragma omp simd
    for (int64_t c = 0; c < n; c++) {
      const double S = scale * (double)x[c];
      F[c] += strength * (S > floor ? S : floor);
    }
  }
}

static void walk_add_distant_selections(const struct wn_walk *w, int64_t s, int64_t r, double strength,
                                        const void *logits, int64_t columns, int64_t n, double *F) {
  const struct wn_attention *a = w->a;
  const int64_t reach = wn_walk_reach(a), run = w->all ? wn_walk_selecting_head(w, s) : s;
  const struct wn_score_map *curve = wn_score_curve(a);
  const double floor = a->sel.relu ? 0 : -INFINITY;
  for (int64_t c = 0; c < columns; c++) {
    const int64_t x = w->place[n - 1] - w->place[c];
    double base = wn_number(logits, c, w->dtype);
    if (w->relative && x < reach) base += wn_number(w->relative, (run * WN_WALK_ROWS + r) * reach + x, w->dtype);
    base *= a->scale;
    if (w->bias) base += walk_bias(w, run, x);
    base = walk_keyed(w, run, n, c, base);
    if (curve) curve->kind->forward_double(curve, &base, 1);
    F[c] += strength * fmax(base, floor);
  }
}

void wn_walk_select(struct wn_walk *w, int64_t s, int64_t r, int64_t n) {
  const struct wn_attention *a = w->a;
  const int64_t cap = a->Tk, run = w->all ? wn_walk_selecting_head(w, s) : s, columns = a->sel.protect_self ? n - 1 : n;
  const void *logits = a->sel.bilinear ? wn_element(w->selecting, (s * WN_WALK_ROWS + r) * cap, w->dtype)
                                       : wn_element(w->logits, (run * WN_WALK_ROWS + r) * cap, w->dtype);
  const double strength = a->sel.strength ? wn_number(a->sel.strength, w->group * w->choices + s, w->dtype) : 1;
  double *F = w->F + s * cap;
  const double of_first = F[0];
  if (!a->sel.bilinear && (w->relative || w->bias || wn_score_keyed(a) > 0))
    walk_add_distant_selections(w, s, r, strength, logits, columns, n, F);
  else
    walk_add_selections(a, w, strength, logits, columns, F);
  if (a->sel.protect_first && w->place[0] == w->first) F[0] = of_first;
}

/* ---- sums of products ---- */

/* add [n] for each choice, or one if there is none: -inf for evicted and masked keys, else -F. */
static void walk_add_rows(const struct wn_walk *w, int64_t n, int64_t position) {
  const struct wn_attention *a = w->a;
  const bool rules = a->window > 0 || a->strided > 0 || a->root.on || (a->span.on && a->span.exclude_self);
  const int32_t *at = w->at;
  for (int64_t s = 0; s == 0 || s < w->choices; s++) {
    const double *F = w->choices > 0 ? w->F + s * a->Tk : NULL;
    void *row = wn_element(w->add, s * n, w->dtype);
    if (w->dtype == WN_F64) {
      double *add = row;
      for (int64_t c = 0; c < n; c++) add[c] = at[c] < 0 ? -INFINITY : F ? -F[c] : 0;
    } else {
      float *add = row;
      for (int64_t c = 0; !F && c < n; c++) add[c] = at[c] < 0 ? -INFINITY : 0;
      for (int64_t c = 0; F && c < n; c++) add[c] = at[c] < 0 ? -INFINITY : (float)-F[c];
    }
    for (int64_t c = 0; rules && c < n; c++)
      if (!wn_distance_seen(a, position - w->place[c])) walk_put(row, c, -INFINITY, w->dtype);
  }
}

/* extra [n] for head h: the terms by distance; if maps need them (wn_walk_maps_whole), the whole logits. */
static void walk_extra_row(const struct wn_walk *w, int64_t h, int64_t r, int64_t n, int64_t position) {
  const struct wn_attention *a = w->a;
  const struct wn_score_map *curve = wn_score_curve(a);
  const bool whole = wn_walk_maps_whole(a);
  const int64_t reach = wn_walk_reach(a);
  const void *logits = wn_element(w->logits, (h * WN_WALK_ROWS + r) * a->Tk, w->dtype);
  void *row = wn_element(w->extra, h * n, w->dtype);
  for (int64_t c = 0; c < n; c++) {
    const int64_t x = position - w->place[c];
    double sum = 0;
    if (x < reach && a->relative.P > 0)
      sum = a->scale * wn_number(w->relative, (h * WN_WALK_ROWS + r) * reach + x, w->dtype);
    if (w->bias) sum += walk_bias(w, h, x);
    if (whole) sum = walk_keyed(w, h, n, c, sum + a->scale * wn_number(logits, c, w->dtype));
    walk_put(row, c, sum, w->dtype);
  }
  if (curve && w->dtype == WN_F64)
    curve->kind->forward_double(curve, row, n);
  else if (curve)
    curve->kind->forward_float[w->isa](curve, row, n);
}

static void walk_span_row(const struct wn_walk *w, int64_t h, int64_t row, int64_t n, int64_t position) {
  const struct wn_attention *a = w->a;
  const int64_t head = w->group * w->heads + h;
  const double z = wn_number(
      a->span.z, head * a->span.s_z.h + (a->span.dynamic ? w->b * a->span.s_z.b + row * a->span.s_z.t : 0), w->dtype);
  for (int64_t c = 0; c < n; c++) {
    const double m = (a->span.ramp + a->span.limit * z - (double)(position - w->place[c])) / a->span.ramp;
    walk_put(w->span, h * n + c, m < 0 ? 0 : m > 1 ? 1 : m, w->dtype);
    if (m <= 0) walk_put(w->extra, h * n + c, -INFINITY, w->dtype); /* not visible: no reference for the others */
  }
}

static wn_status walk_sum_products(const struct wn_exec *exec, struct wn_walk *w, int64_t row, int64_t r, int64_t n) {
  const struct wn_attention *a = w->a;
  const int64_t cap = a->Tk, R = WN_WALK_ROWS, position = w->place[n - 1];
  const struct wn_exec one = walk_exec(exec, w);
  memset(w->row_sums, 0, (size_t)n * wn_dtype_size(w->dtype));
  walk_add_rows(w, n, position);
  for (int64_t h = 0; w->extra && h < w->heads; h++) {
    walk_extra_row(w, h, r, n, position);
    if (a->span.on) walk_span_row(w, h, row, n, position);
  }
  WN_TRY(wn_op_attention_sums_forward(
      &one, &(struct wn_attention_sums){.R = w->heads,
                                        .N = n,
                                        .S = a->sinks.n,
                                        .scale = a->scale,
                                        .logits = w->zero ? w->zero : wn_element(w->logits, r * cap, w->dtype),
                                        .ld = w->zero ? cap : R * cap,
                                        .share = w->choices > 0 ? w->heads / w->choices : w->heads,
                                        .add = w->add,
                                        .extra = w->extra,
                                        .factor = w->span,
                                        .sink = wn_element(w->sink_logits, r * a->sinks.n, w->dtype),
                                        .ld_sink = R * a->sinks.n,
                                        .sums = w->row_sums}));
  for (int64_t c = 0; c < n; c++) w->row_notes[c] = wn_number(w->row_sums, c, w->dtype);
  return WN_OK;
}

/* ---- sums of a row ---- */

static size_t walk_sums_scratch(const struct wn_exec *one, const struct wn_walk *w) {
  if (!w->sums) return 0;
  if (w->operation) return w->op->own->attend_scratch(one, w->op);
  return wn_op_attention_sums_scratch(one, &(struct wn_attention_sums){.R = w->heads, .N = w->a->Tk}, false);
}
static size_t walk_products_scratch(const struct wn_exec *one, const struct wn_walk *w) {
  const struct wn_attention *a = w->a;
  const int64_t reach = wn_walk_reach(a), keys = a->Tk > reach ? a->Tk : reach;
  const struct wn_linear most = {.M = WN_WALK_ROWS, .N = keys > a->sinks.n ? keys : a->sinks.n, .K = a->D};
  return wn_op_linear_scratch(one, &most, false);
}
size_t wn_walk_scratch(const struct wn_exec *exec, const struct wn_walk *w, bool products) {
  struct wn_exec one = *exec;
  one.threads = 1;
  const size_t sums = walk_sums_scratch(&one, w), of_products = products ? walk_products_scratch(&one, w) : 0;
  return sums > of_products ? sums : of_products;
}

static wn_status walk_sum_own(const struct wn_exec *exec, struct wn_walk *w, int64_t row, int64_t n,
                              const int32_t *evicted_at) {
  const struct wn_evictions_row r = {
      .b = w->b, .group = w->group, .row = row, .evicted_at = evicted_at, .y = w->y, .f = w->f, .weights = w->weights};
  const struct wn_exec one = walk_exec(exec, w);
  WN_TRY(w->op->own->attend(&one, w->op, &r));
  for (int64_t c = 0; c < n; c++) w->row_notes[c] = wn_number(w->weights, w->key[c], w->dtype);
  return WN_OK;
}

wn_status wn_walk_sums(const struct wn_exec *exec, struct wn_walk *w, int64_t row, int64_t r, int64_t n,
                       const int32_t *evicted_at) {
  if (w->operation) return walk_sum_own(exec, w, row, n, evicted_at);
  return walk_sum_products(exec, w, row, r, n);
}
