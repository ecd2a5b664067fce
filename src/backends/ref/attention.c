/* Attention row by row, after the equations of ops/attention.h.
 *
 * Forward: each (sequence, head) walks its query rows in order with its own carry c[j] = sum of S over earlier rows
 * (the selecting head's logits are formed again for every head: 2D operations more a pair, and no waiting).
 * Backward: each sequence walks its rows from last to first. F at a row comes from checkpoints of the carry every
 * ROWS rows, replayed inside the block, so that F is bit for bit forward's; dF's reversed column sum is the other
 * carry. A row's weights are formed again by the same function as in forward. Nothing of size T x T is kept: the
 * scratch is G (T*T/ROWS + ROWS*T) doubles a thread. */
#ifndef REAL
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include "backends/ref/ref.h"
#include "base/rng.h"
#include "ops/attention.h"

#define ROWS 32

/* The selecting head of the group that head h belongs to. */
static int64_t selecting_head(const struct wn_attention *a, int64_t group) {
  return group * (a->H / wn_selection_groups(a)) + a->sel.head;
}

/* The weights of one row, sinks first, then keys; their gradients; and room to sort them. */
static size_t row_doubles(const struct wn_attention *a) {
  return 5 * (size_t)(a->sinks.n + a->Tk);
}

static size_t forward_doubles(const struct wn_attention *a) {
  return row_doubles(a) + 2 * (size_t)a->Tk + (size_t)a->D;
}

/* What all sequences add to: dp, dsink_k, dsink_v, dz, dgate, dbias. */
static size_t shared_doubles(const struct wn_attention *a) {
  return (size_t)(a->relative.P * a->D + 2 * a->Hkv * a->sinks.n * a->D + (2 + a->bias.n) * a->H +
                  wn_selection_groups(a));
}

static size_t backward_doubles(const struct wn_attention *a) {
  const size_t T = (size_t)a->Tk, D = (size_t)a->D, G = (size_t)wn_selection_groups(a);
  const size_t blocks = ((size_t)a->Tq + ROWS - 1) / ROWS;
  return G * (blocks * T + 2 * ROWS * T) /* carries; F and base of one block */
         + 2 * T * (size_t)a->Hkv * D    /* dk, dv */
         + G * T * D + (size_t)a->H * D  /* dsk; dq of one row */
         + G * D + 2 * D                 /* dsq of one row; y and dy of one head's row */
         + 2 * G * T                     /* dF and dS of one row */
         + row_doubles(a) + shared_doubles(a);
}

static int workers(const struct wn_exec *exec, int64_t tasks) {
  return tasks < exec->threads ? (int)tasks : exec->threads;
}

size_t wn_ref_attention_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward) {
  if (backward) return (size_t)workers(exec, a->B) * backward_doubles(a) * sizeof(double);
  const int64_t last = a->B * wn_selection_groups(a) * a->Tk, mass = a->slots.mass ? a->B * a->H * a->Tk : 0;
  return ((size_t)workers(exec, a->B * a->H) * forward_doubles(a) + (size_t)(last + mass)) * sizeof(double);
}

/* May row position i select key j, in a document that starts at `first`? at: the keys' positions, or NULL. */
static bool may_select(const struct wn_attention *a, int64_t i, int64_t j, int64_t first, const int32_t *at) {
  if (j < first || j > i) return false;
  if (a->sel.protect_self && j == i) return false;
  if (a->sel.protect_first && (at ? at[j] == 0 : j == first)) return false;
  return true;
}

/* How far key j lies before the row whose own key is in slot `own`. */
static int64_t distance(const int32_t *at, int64_t own, int64_t j) {
  return at ? (int64_t)at[own] - at[j] : own - j;
}

/* Is x = floor((m/density)^2) for some m >= 1? */
static bool is_square_distance(int64_t x, double density) {
  if (x < 0) return false;
  const int64_t near = (int64_t)(density * sqrt((double)x));
  for (int64_t m = near > 1 ? near - 1 : 1; m <= near + 2; m++) {
    const double ratio = (double)m / density;
    if ((int64_t)(ratio * ratio) == x) return true;
  }
  return false;
}

/* The keep rules: does a row see the key x tokens before it? */
static bool sees(const struct wn_attention *a, int64_t x) {
  if (a->window > 0 && x >= a->window) return false;
  if (a->strided > 0 && x >= a->strided && x % a->strided != 0) return false;
  if (a->root.on && x >= a->root.buffer && !is_square_distance(x - a->root.buffer + 1, a->root.density)) return false;
  return !(a->span.on && a->span.exclude_self && x == 0);
}

/* Has the key been evicted from key-value head g before the row at `position`? */
static bool is_gone(const struct wn_attention *a, int64_t b, int64_t g, int64_t j, int64_t position) {
  return a->slots.gone && position >= a->slots.gone[wn_slot_row(a, b, g) + j];
}

/* The position of row r, and the last key that it may see. */
static int64_t position_of(const struct wn_attention *a, int64_t r) {
  return a->open ? r : r + a->Tk - a->Tq;
}
static int64_t last_key(const struct wn_attention *a, int64_t b, int64_t position) {
  return !a->open ? position : (a->key_count ? a->key_count[b] : a->Tk) - 1;
}

static double span_mask(const struct wn_attention *a, double z, int64_t x) {
  const double m = (a->span.ramp + a->span.limit * z - (double)x) / a->span.ramp;
  return m < 0 ? 0 : m > 1 ? 1 : m;
}

/* What dropout makes of the weight of key j: 0 or 1/(1-p). */
static double kept_factor(const struct wn_attention *a, int64_t b, int64_t h, int64_t r, int64_t j) {
  if (!(a->dropout.p > 0)) return 1;
  const uint64_t n = (uint64_t)(((b * a->H + h) * a->Tq + r) * a->Tk + j);
  uint32_t word[4];
  wn_philox(a->dropout.seed, a->dropout.stream, n / 4, word);
  return (double)word[n % 4] >= a->dropout.p * 4294967296.0 ? 1 / (1 - a->dropout.p) : 0;
}

static int64_t document_start(const struct wn_attention *a, int64_t b, int64_t position) {
  return a->doc_start ? a->doc_start[b * a->Tk + position] : 0;
}

struct ranked {
  double weight;
  int32_t key, position;
};
static int heavier_first(const void *x, const void *y) {
  const struct ranked *p = x, *q = y;
  if (p->weight != q->weight) return p->weight > q->weight ? -1 : 1;
  return p->position < q->position ? -1 : 1;
}

/* The keep rule of the threshold on weights that sum to 1; what is dropped becomes 0. Returns the content keys kept. */
static int32_t apply_threshold(const struct wn_attention *a, int64_t b, int64_t g, int64_t first, int64_t last,
                               double *weight, struct ranked *order) {
  const int32_t *at = wn_slot_positions(a, b, g);
  const uint8_t *control = wn_control_keys(a, b, g);
  int64_t n = 0;
  double content = 0, before = 0;
  for (int64_t j = first; j <= last; j++) {
    if (control && control[j]) continue;
    order[n++] = (struct ranked){weight[j], (int32_t)j, at ? at[j] : (int32_t)j};
    content += weight[j];
  }
  qsort(order, (size_t)n, sizeof *order, heavier_first);
  int32_t kept = 0;
  for (int64_t i = 0; i < n; i++) {
    if (before < a->threshold.tau * content && order[i].weight > 0)
      kept++;
    else
      weight[order[i].key] = 0;
    before += order[i].weight;
  }
  return kept;
}

static int larger_first(const void *x, const void *y) {
  const double p = *(const double *)x, q = *(const double *)y;
  return p != q ? (p > q ? -1 : 1) : 0;
}

/* How many content keys each share of their weight takes: count[look.n]. */
static void count_needed(const struct wn_attention *a, int64_t b, int64_t first, int64_t last, const double *weight,
                         double *order, int32_t *count) {
  const uint8_t *control = a->look.control ? a->look.control + b * a->Tk : NULL;
  int64_t n = 0, kept = 0;
  double content = 0, before = 0;
  for (int64_t j = first; j <= last; j++) {
    if ((control && control[j]) || !(weight[j] > 0)) continue;
    content += order[n++] = weight[j];
  }
  qsort(order, (size_t)n, sizeof *order, larger_first);
  for (int64_t t = 0; t < a->look.n; t++) {
    while (kept < n && (a->look.tau[t] >= 1 || before < a->look.tau[t] * content)) before += order[kept++];
    count[t] = (int32_t)kept;
  }
}

_Static_assert(sizeof(struct ranked) <= 3 * sizeof(double), "the row's scratch is counted in doubles");

#define REAL_FILE "backends/ref/attention.c"
#include "backends/ref/twice.h"
WN_REF_SLOT(attention_forward, struct wn_attention)
WN_REF_SLOT(attention_backward, struct wn_attention)
#else

static double NAME(dot)(const REAL *x, const REAL *y, int64_t D) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < D; d++) sum += (double)x[d] * (double)y[d];
  return sum;
}

static const REAL *NAME(q_at)(const struct wn_attention *a, int64_t b, int64_t r, int64_t h) {
  return (const REAL *)a->q + b * a->s_q.b + r * a->s_q.t + h * a->s_q.h;
}
static const REAL *NAME(k_at)(const struct wn_attention *a, int64_t b, int64_t j, int64_t g) {
  return (const REAL *)a->k + b * a->s_k.b + j * a->s_k.t + g * a->s_k.h;
}
static const REAL *NAME(v_at)(const struct wn_attention *a, int64_t b, int64_t j, int64_t g) {
  return (const REAL *)a->v + b * a->s_v.b + j * a->s_v.t + g * a->s_v.h;
}

/* scale * q . (k + p[x]) + bias, mapped */
static double NAME(logit)(const struct wn_attention *a, int64_t h, const REAL *q, const REAL *k, int64_t x) {
  double sum = NAME(dot)(q, k, a->D);
  if (a->relative.P > 0 && x < a->relative.P) sum += NAME(dot)(q, (const REAL *)a->relative.p + x * a->D, a->D);
  sum *= a->scale;
  if (a->bias.n > 0)
    sum += (double)((const REAL *)
                        a->bias.table)[wn_position_bucket(x, a->bias.n, a->bias.farthest, a->open) * wn_bias_stride(a) +
                                       wn_model_head(a, h)];
  return wn_score_one(a->map, a->maps, wn_model_head(a, h), x, sum);
}

/* What maps do to the gradient of a logit that they made y. */
static double NAME(slope)(const struct wn_attention *a, int64_t h, int64_t x, double y) {
  return a->maps > 0 ? wn_score_slope(a->map, a->maps, wn_model_head(a, h), x, y) : 1;
}

/* Where the gradient of a logit of head h at distance x goes beside q, k and p. */
static void NAME(bias_gradient)(const struct wn_attention *a, int64_t h, int64_t x, double G, double *dbias) {
  if (a->bias.n > 0) dbias[wn_position_bucket(x, a->bias.n, a->bias.farthest, a->open) * a->H + h] += G;
}

static double NAME(ratio)(const struct wn_attention *a, int64_t b, int64_t h, int64_t r) {
  const REAL *z = a->span.z;
  return (double)(a->span.dynamic ? z[b * a->span.s_z.b + r * a->span.s_z.t + h * a->span.s_z.h]
                                  : z[h * a->span.s_z.h]);
}

/* base[j] for j in first..position: the logits that row r of sequence b selects with, in selection group `group`. */
static void NAME(base_row)(const struct wn_attention *a, int64_t b, int64_t group, int64_t r, int64_t first,
                           double *base) {
  const int64_t position = r + a->Tk - a->Tq, h = selecting_head(a, group), g = h / (a->H / a->Hkv);
  const REAL *q = a->sel.bilinear
                      ? (const REAL *)a->sel.sq + b * a->sel.s_sq.b + r * a->sel.s_sq.t + group * a->sel.s_sq.h
                      : NAME(q_at)(a, b, r, h);
  const REAL *sk = a->sel.bilinear ? (const REAL *)a->sel.sk + b * a->sel.s_sk.b + group * a->sel.s_sk.h : NULL;
  const int32_t *at = wn_slot_positions(a, b, g);
  for (int64_t j = first; j <= position; j++)
    base[j] = sk ? a->scale * NAME(dot)(q, sk + j * a->sel.s_sk.t, a->D)
                 : NAME(logit)(a, h, q, NAME(k_at)(a, b, j, g), distance(at, position, j));
}

static double NAME(strength)(const struct wn_attention *a, int64_t group) {
  return a->sel.strength ? (double)((const REAL *)a->sel.strength)[group] : 1;
}

/* base becomes F of the row (entries first..position; the rest of `carry` is F there too); carry takes the row in. */
static void NAME(select_row)(const struct wn_attention *a, int64_t group, int64_t position, int64_t first,
                             const int32_t *at, double *base, double *carry) {
  const double strength = NAME(strength)(a, group);
  for (int64_t j = first; j <= position; j++) {
    double s = 0;
    if (may_select(a, position, j, first, at)) s = a->sel.relu && !(base[j] > 0) ? 0 : strength * base[j];
    const double before = carry[j];
    carry[j] = before + s;
    base[j] = a->sel.shift ? before : carry[j];
  }
}

/* The weights of one row: sinks at weight[0..n), key j at weight[n+j], before dropout; 0 for what is not seen. They
 * sum to 1, or are all 0 where nothing is seen. F: [Tk] or NULL. order: scratch of 3 (n + Tk). Returns the log of the
 * sum of exponentials, over what a threshold keeps. needed: [look.n] or NULL. */
static double NAME(weights)(const struct wn_attention *a, int64_t b, int64_t h, int64_t r, const double *F,
                            double *weight, double *order, int32_t *count, int32_t *needed) {
  const int64_t position = position_of(a, r), first = document_start(a, b, position), g = h / (a->H / a->Hkv);
  const int64_t n = a->sinks.n, last = last_key(a, b, position);
  const REAL *q = NAME(q_at)(a, b, r, h), *sink = a->sinks.k;
  const double z = a->span.on ? NAME(ratio)(a, b, h, r) : 0;
  const int32_t *at = wn_slot_positions(a, b, g);
  double *key = weight + n, top = -INFINITY, total = 0;
  for (int64_t s = 0; s < n; s++) {
    weight[s] = a->scale * NAME(dot)(q, sink + (g * n + s) * a->D, a->D);
    if (weight[s] > top) top = weight[s];
  }
  for (int64_t j = first; j <= last; j++) {
    const int64_t x = distance(at, position, j);
    const double m = a->span.on ? span_mask(a, z, x) : 1;
    key[j] = -INFINITY;
    if (!(m > 0) || !sees(a, x) || is_gone(a, b, g, j, at ? at[position] : position)) continue;
    key[j] = NAME(logit)(a, h, q, NAME(k_at)(a, b, j, g), x) - (F ? F[j] : 0.0) + (m < 1 ? log(m) : 0.0);
    if (key[j] > top) top = key[j];
  }
  const double shift = top > -INFINITY ? top : 0;
  for (int64_t s = 0; s < n; s++) total += weight[s] = exp(weight[s] - shift);
  for (int64_t j = first; j <= last; j++) total += key[j] = exp(key[j] - shift);
  if (needed) count_needed(a, b, first, last, key, order, needed);
  if (a->threshold.on && total > 0) {
    for (int64_t j = first; j <= last; j++) key[j] /= total;
    for (int64_t s = 0; s < n; s++) weight[s] /= total;
    const int32_t kept = apply_threshold(a, b, g, first, last, key, (struct ranked *)order);
    if (count) *count = kept;
    double left = 0;
    for (int64_t s = 0; s < n; s++) left += weight[s];
    for (int64_t j = first; j <= last; j++) left += key[j];
    for (int64_t s = 0; s < n; s++) weight[s] /= left;
    for (int64_t j = first; j <= last; j++) key[j] /= left;
    return shift + log(total * left);
  }
  if (count) *count = 0;
  if (!(total > 0)) return -INFINITY;
  for (int64_t s = 0; s < n; s++) weight[s] /= total;
  for (int64_t j = first; j <= last; j++) key[j] /= total;
  return shift + log(total);
}

/* y[D] = sum over what the row sees of weight * value, after dropout. */
static void NAME(mix)(const struct wn_attention *a, int64_t b, int64_t h, int64_t r, const double *weight, double *y) {
  const int64_t position = position_of(a, r), first = document_start(a, b, position), g = h / (a->H / a->Hkv);
  const int64_t n = a->sinks.n, D = a->D, last = last_key(a, b, position);
  const REAL *sink = a->sinks.v;
  for (int64_t d = 0; d < D; d++) y[d] = 0;
  for (int64_t s = 0; s < n; s++)
    for (int64_t d = 0; d < D; d++) y[d] += weight[s] * (double)sink[(g * n + s) * D + d];
  for (int64_t j = first; j <= last; j++) {
    if (weight[n + j] == 0) continue;
    const double w = weight[n + j] * kept_factor(a, b, h, r, j);
    const REAL *v = NAME(v_at)(a, b, j, g);
    for (int64_t d = 0; d < D; d++) y[d] += w * (double)v[d];
  }
}

/* The row's weights to whoever looks. as: scratch of Tk. */
static void NAME(show_row)(const struct wn_attention *a, int64_t b, int64_t h, int64_t r, const double *weight,
                           double *as) {
  const int64_t position = position_of(a, r), first = document_start(a, b, position);
  float *w = (float *)as;
  for (int64_t j = 0; j <= position; j++) w[j] = j < first ? 0 : (float)weight[a->sinks.n + j];
  a->look.rows(a->look.user,
               &(struct wn_attention_view){a, b, h, r, 1, position + 1, position + 1, w, omp_get_thread_num()});
}

/* One head of one sequence. row, carry: [Tk]; acc: [D]; weight: [row_doubles]; mass: [Tk] or NULL. */
static void NAME(forward_head)(const struct wn_attention *a, int64_t b, int64_t h, double *row, double *carry,
                               double *acc, double *weight, double *mass) {
  const int64_t D = a->D, G = wn_selection_groups(a), group = h / (a->H / G);
  const bool leads = h % (a->H / G) == 0; /* the group's F and M are written once */
  const REAL *f_in = a->sel.on ? a->sel.f_in : NULL;
  const int32_t *places = wn_slot_positions(a, b, selecting_head(a, group) / (a->H / a->Hkv));
  for (int64_t j = 0; mass && j < a->Tk; j++) mass[j] = 0;
  for (int64_t j = 0; j < a->Tk; j++)
    carry[j] = f_in ? (double)f_in[(b * G + group) * wn_selection_stride(a) + j] : 0.0;
  for (int64_t r = 0; r < a->Tq; r++) {
    const int64_t position = position_of(a, r), first = document_start(a, b, position), n = (b * a->H + h) * a->Tq + r;
    REAL *y = (REAL *)a->y + b * a->s_y.b + r * a->s_y.t + h * a->s_y.h;
    if (a->sel.on) {
      /* F may be asked for at every j, where the row leaves the carry as it was. */
      const int64_t at = (b * G + group) * a->Tq + r;
      REAL *F = leads && a->sel.F ? (REAL *)a->sel.F + at * a->Tk : NULL;
      NAME(base_row)(a, b, group, r, first, row);
      NAME(select_row)(a, group, position, first, places, row, carry);
      if (F)
        for (int64_t j = 0; j < a->Tk; j++) F[j] = (REAL)(j >= first && j <= position ? row[j] : carry[j]);
      if (leads && a->sel.mem && a->sel.M) {
        double kept = (double)(position + 1 - first);
        for (int64_t j = first; j <= position; j++) kept -= fmin(row[j], a->sel.mem_tau) / a->sel.mem_tau;
        ((REAL *)a->sel.M)[at] = (REAL)kept;
      }
    }
    const double lse = NAME(weights)(a, b, h, r, a->sel.on ? row : NULL, weight, weight + 2 * (a->sinks.n + a->Tk),
                                     a->threshold.on && a->threshold.count ? a->threshold.count + n : NULL,
                                     a->look.n > 0 ? a->look.count + n * a->look.n : NULL);
    if (a->look.rows) NAME(show_row)(a, b, h, r, weight, weight + 2 * (a->sinks.n + a->Tk));
    for (int64_t j = first; mass && j <= position; j++) mass[j] += weight[a->sinks.n + j];
    NAME(mix)(a, b, h, r, weight, acc);
    if (a->exclusive.on) {
      const REAL *v = NAME(v_at)(a, b, position, h / (a->H / a->Hkv));
      const double gate = a->exclusive.gate ? (double)((const REAL *)a->exclusive.gate)[h] : 1;
      double along = 0, size = 0; /* summed alike: where y is v the quotient is 1 and the output 0, exactly */
      for (int64_t d = 0; d < D; d++) along += acc[d] * (double)v[d], size += (double)v[d] * (double)v[d];
      size = fmax(size, 1e-30);
      if (a->exclusive.dot) ((REAL *)a->exclusive.dot)[n] = (REAL)along;
      for (int64_t d = 0; d < D; d++) acc[d] -= gate * along / size * (double)v[d];
    }
    for (int64_t d = 0; d < D; d++) y[d] = (REAL)acc[d];
    if (a->lse) ((REAL *)a->lse)[n] = (REAL)lse;
  }
}

static wn_status NAME(attention_forward)(const struct wn_exec *exec, const struct wn_attention *a) {
  const int team = workers(exec, a->B * a->H);
  const size_t each = forward_doubles(a);
  const int64_t G = wn_selection_groups(a);
  double *scratch = exec->scratch, *last = scratch + (size_t)team * each; /* last: [B,G,Tk], f_out */
  double *mass = a->slots.mass ? last + a->B * G * a->Tk : NULL;          /* [B,H,Tk] */
#pragma omp parallel for num_threads(team) schedule(static)
  for (int64_t task = 0; task < a->B * a->H; task++) {
    const int64_t b = task / a->H, h = task % a->H;
    double *row = scratch + (size_t)omp_get_thread_num() * each, *carry = row + a->Tk, *acc = carry + a->Tk;
    NAME(forward_head)(a, b, h, row, carry, acc, acc + a->D, mass ? mass + task * a->Tk : NULL);
    if (h % (a->H / G) == 0) memcpy(last + (b * G + h / (a->H / G)) * a->Tk, carry, (size_t)a->Tk * sizeof *last);
  }
  /* After all heads have read f_in, which f_out may be. */
  if (a->sel.on && a->sel.f_out)
    for (int64_t n = 0; n < a->B * G; n++)
      for (int64_t j = 0; j < a->Tk; j++)
        ((REAL *)a->sel.f_out)[n * wn_selection_stride(a) + j] = (REAL)last[n * a->Tk + j];
  const int64_t share = a->H / wn_slot_groups(a);
  for (int64_t n = 0; mass && n < a->B * wn_slot_groups(a); n++)
    for (int64_t j = 0; j < a->Tk; j++) {
      double sum = 0;
      for (int64_t h = n * share; h < (n + 1) * share; h++) sum += mass[h * a->Tk + j];
      ((REAL *)a->slots.mass)[n * wn_slot_stride(a) + j] = (REAL)sum;
    }
  return WN_OK;
}

/* What one thread adds up over its sequences, and the pieces of its scratch. */
struct NAME(sums) {
  double *dk, *dv, *dsk;          /* [Tk,Hkv,D], [Tk,G,D] of one sequence */
  double *dq, *dsq;               /* [H,D], [G,D] of one row */
  double *dp, *dsink_k, *dsink_v; /* [P,D], [Hkv,n,D] */
  double *dz, *dgate;             /* [H] */
  double *dbias;                  /* [n,H] */
  double *dstrength;              /* [G] */
  double *weight, *dweight, *y, *dy;
};

/* dF of row r gets this head's share -G, dq (of one head), dk, dv and the mechanisms' arrays theirs. */
static void NAME(backward_head)(const struct wn_attention *a, int64_t b, int64_t h, int64_t r, const double *F,
                                double *dF, const struct NAME(sums) * s) {
  const int64_t g = h / (a->H / a->Hkv), D = a->D, n = a->sinks.n;
  const int64_t position = position_of(a, r), first = document_start(a, b, position), last = last_key(a, b, position);
  const REAL *q = NAME(q_at)(a, b, r, h);
  const REAL *given = (const REAL *)a->dy + b * a->s_y.b + r * a->s_y.t + h * a->s_y.h;
  const double z = a->span.on ? NAME(ratio)(a, b, h, r) : 0;
  double *dq = s->dq + h * D, *dy = s->dy, mean = 0, dz = 0;
  NAME(weights)(a, b, h, r, F, s->weight, s->weight + 2 * (n + a->Tk), NULL, NULL);
  for (int64_t d = 0; d < D; d++) dy[d] = (double)given[d];
  if (a->exclusive.on) {
    const REAL *v = NAME(v_at)(a, b, position, g);
    const double norm = NAME(dot)(v, v, D), size = fmax(norm, 1e-30);
    const double gate = a->exclusive.gate ? (double)((const REAL *)a->exclusive.gate)[h] : 1;
    double along = 0, d_along = 0, *dv = s->dv + (position * a->Hkv + g) * D;
    NAME(mix)(a, b, h, r, s->weight, s->y);
    for (int64_t d = 0; d < D; d++) {
      along += s->y[d] * (double)v[d];
      d_along += (double)given[d] * (double)v[d];
    }
    for (int64_t d = 0; d < D; d++) {
      dy[d] -= gate * d_along / size * (double)v[d];
      dv[d] -= gate * (d_along * s->y[d] + along * (double)given[d]) / size;
      if (norm > 1e-30) dv[d] += 2 * gate * along * d_along / (size * size) * (double)v[d];
    }
    s->dgate[h] -= along * d_along / size;
  }
  const REAL *sink_k = a->sinks.k, *sink_v = a->sinks.v;
  for (int64_t i = 0; i < n; i++) {
    s->dweight[i] = 0;
    for (int64_t d = 0; d < D; d++) s->dweight[i] += dy[d] * (double)sink_v[(g * n + i) * D + d];
    mean += s->weight[i] * s->dweight[i];
  }
  for (int64_t j = first; j <= last; j++) {
    const double w = s->weight[n + j];
    if (w == 0) continue;
    const double factor = kept_factor(a, b, h, r, j);
    const REAL *v = NAME(v_at)(a, b, j, g);
    double dw = 0, *dv = s->dv + (j * a->Hkv + g) * D;
    for (int64_t d = 0; d < D; d++) {
      dw += dy[d] * (double)v[d];
      dv[d] += w * factor * dy[d];
    }
    s->dweight[n + j] = dw * factor;
    mean += w * s->dweight[n + j];
  }
  for (int64_t i = 0; i < n; i++) {
    const double G = a->scale * s->weight[i] * (s->dweight[i] - mean);
    for (int64_t d = 0; d < D; d++) {
      const int64_t at = (g * n + i) * D + d;
      dq[d] += G * (double)sink_k[at];
      s->dsink_k[at] += G * (double)q[d];
      s->dsink_v[at] += s->weight[i] * dy[d];
    }
  }
  for (int64_t j = first; j <= last; j++) {
    const double w = s->weight[n + j];
    if (w == 0) continue;
    const int64_t x = position - j;
    const double dA = w * (s->dweight[n + j] - mean);
    const REAL *k = NAME(k_at)(a, b, j, g);
    const bool relative = a->relative.P > 0 && x < a->relative.P;
    const REAL *p = relative ? (const REAL *)a->relative.p + x * D : NULL;
    if (dF) dF[j] -= dA;
    const double G = dA * NAME(slope)(a, h, x, a->maps > 0 ? NAME(logit)(a, h, q, k, x) : 0);
    NAME(bias_gradient)(a, h, x, G, s->dbias);
    for (int64_t d = 0; d < D; d++) {
      dq[d] += a->scale * G * ((double)k[d] + (p ? (double)p[d] : 0.0));
      s->dk[(j * a->Hkv + g) * D + d] += a->scale * G * (double)q[d];
      if (p) s->dp[x * D + d] += a->scale * G * (double)q[d];
    }
    if (a->span.on) {
      const double m = span_mask(a, z, x);
      if (m < 1) dz += dA / m * a->span.limit / a->span.ramp; /* m > 0: the key is seen */
    }
  }
  if (a->span.on && a->span.dynamic && a->span.dz)
    ((REAL *)a->span.dz)[b * a->span.s_z.b + r * a->span.s_z.t + h * a->span.s_z.h] = (REAL)dz;
  if (a->span.on && !a->span.dynamic) s->dz[h] += dz;
}

/* The gradient of row r's selections, dS[j] = the sum of dF below it, goes to what the row selected with. */
static void NAME(backward_select)(const struct wn_attention *a, int64_t b, int64_t group, int64_t r, const double *base,
                                  const double *dS, const struct NAME(sums) * s) {
  const int64_t D = a->D, position = r + a->Tk - a->Tq, first = document_start(a, b, position),
                G = wn_selection_groups(a);
  const int64_t h = selecting_head(a, group), g = h / (a->H / a->Hkv);
  const bool own = a->sel.bilinear;
  const double strength = NAME(strength)(a, group);
  const REAL *q = own ? (const REAL *)a->sel.sq + b * a->sel.s_sq.b + r * a->sel.s_sq.t + group * a->sel.s_sq.h
                      : NAME(q_at)(a, b, r, h);
  double *to_q = own ? s->dsq + group * D : s->dq + h * D;
  for (int64_t j = first; j <= position; j++) {
    if (!may_select(a, position, j, first, NULL) || (a->sel.relu && !(base[j] > 0))) continue;
    const int64_t x = position - j;
    const double dL = strength * dS[j] * (own ? 1 : NAME(slope)(a, h, x, base[j]));
    s->dstrength[group] += dS[j] * base[j];
    const REAL *k = own ? (const REAL *)a->sel.sk + b * a->sel.s_sk.b + j * a->sel.s_sk.t + group * a->sel.s_sk.h
                        : NAME(k_at)(a, b, j, g);
    const bool relative = !own && a->relative.P > 0 && x < a->relative.P;
    const REAL *p = relative ? (const REAL *)a->relative.p + x * D : NULL;
    if (!own) NAME(bias_gradient)(a, h, x, dL, s->dbias);
    double *to_k = own ? s->dsk + (j * G + group) * D : s->dk + (j * a->Hkv + g) * D;
    for (int64_t d = 0; d < D; d++) {
      to_q[d] += a->scale * dL * ((double)k[d] + (p ? (double)p[d] : 0.0));
      to_k[d] += a->scale * dL * (double)q[d];
      if (p) s->dp[x * D + d] += a->scale * dL * (double)q[d];
    }
  }
}

/* The row whose M is largest, the only one that L_mem's gradient reaches; -1: none. */
static int64_t NAME(longest_row)(const struct wn_attention *a, int64_t b, int64_t group) {
  if (!a->sel.on || !a->sel.mem || a->sel.mem_coef == 0) return -1;
  const REAL *M = (const REAL *)a->sel.M + (b * wn_selection_groups(a) + group) * a->Tq;
  int64_t longest = 0;
  for (int64_t r = 1; r < a->Tq; r++)
    if (M[r] > M[longest]) longest = r;
  return longest;
}

static void NAME(store)(void *to, struct wn_stride stride, int64_t b, int64_t from, int64_t T, int64_t heads, int64_t D,
                        const double *x) {
  if (!to) return;
  for (int64_t t = from; t < T; t++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t d = 0; d < D; d++)
        ((REAL *)to)[b * stride.b + t * stride.t + h * stride.h + d] = (REAL)x[(t * heads + h) * D + d];
}

static void NAME(backward_sequence)(const struct wn_attention *a, int64_t b, double *scratch,
                                    const struct NAME(sums) * shared) {
  const int64_t T = a->Tk, D = a->D, H = a->H, Hkv = a->Hkv, G = wn_selection_groups(a),
                blocks = (a->Tq + ROWS - 1) / ROWS;
  const bool on = a->sel.on;
  struct NAME(sums) s = *shared;
  double *carries = scratch;            /* [G,blocks,T] the carry at each block's first row */
  double *F = carries + G * blocks * T; /* [G,ROWS,T] of the block at hand */
  double *base = F + G * ROWS * T;      /* [G,ROWS,T] */
  s.dk = base + G * ROWS * T;
  s.dv = s.dk + T * Hkv * D;
  s.dsk = s.dv + T * Hkv * D;
  s.dq = s.dsk + G * T * D;
  s.dsq = s.dq + H * D;
  s.y = s.dsq + G * D;
  s.dy = s.y + D;
  double *dF = s.dy + D, *dS = dF + G * T; /* [G,T] */
  s.weight = dS + G * T;
  s.dweight = s.weight + a->sinks.n + T;
  memset(s.dk, 0, (size_t)(2 * T * Hkv * D + G * T * D) * sizeof *s.dk);
  memset(dS, 0, (size_t)(G * T) * sizeof *dS);

  for (int64_t group = 0; on && group < G; group++) {
    double *carry = dF + group * T; /* free until the rows begin */
    const REAL *f_in = a->sel.f_in ? (const REAL *)a->sel.f_in + (b * G + group) * wn_selection_stride(a) : NULL;
    for (int64_t j = 0; j < T; j++) carry[j] = f_in ? (double)f_in[j] : 0.0;
    for (int64_t r = 0; r < a->Tq; r++) {
      const int64_t position = r + T - a->Tq, first = document_start(a, b, position);
      if (r % ROWS == 0) memcpy(carries + (group * blocks + r / ROWS) * T, carry, (size_t)T * sizeof *carry);
      NAME(base_row)(a, b, group, r, first, base);
      NAME(select_row)(a, group, position, first, NULL, base, carry);
    }
  }
  for (int64_t block = blocks - 1; block >= 0; block--) {
    const int64_t start = block * ROWS, end = start + ROWS < a->Tq ? start + ROWS : a->Tq;
    for (int64_t group = 0; on && group < G; group++) {
      for (int64_t r = start; r < end; r++) {
        const int64_t position = r + T - a->Tq, first = document_start(a, b, position);
        double *row = base + (group * ROWS + r - start) * T, *to = F + (group * ROWS + r - start) * T;
        NAME(base_row)(a, b, group, r, first, row);
        memcpy(to + first, row + first, (size_t)(position + 1 - first) * sizeof *to);
        NAME(select_row)(a, group, position, first, NULL, to, carries + (group * blocks + block) * T);
      }
    }
    for (int64_t r = end - 1; r >= start; r--) {
      const int64_t position = position_of(a, r), first = document_start(a, b, position);
      memset(s.dq, 0, (size_t)(H * D + G * D) * sizeof *s.dq); /* and dsq */
      memset(dF, 0, (size_t)(G * T) * sizeof *dF);
      for (int64_t h = 0; h < H; h++) {
        const int64_t group = h / (H / G);
        NAME(backward_head)(a, b, h, r, on ? F + (group * ROWS + r - start) * T : NULL, on ? dF + group * T : NULL, &s);
      }
      for (int64_t group = 0; on && group < G; group++) {
        const double *row = F + (group * ROWS + r - start) * T;
        double *down = dS + group * T, *here = dF + group * T;
        if (r == NAME(longest_row)(a, b, group))
          for (int64_t j = first; j <= position; j++)
            if (row[j] < a->sel.mem_tau) here[j] -= a->sel.mem_coef / a->sel.mem_tau;
        if (!a->sel.shift)
          for (int64_t j = first; j <= position; j++) down[j] += here[j];
        NAME(backward_select)(a, b, group, r, base + (group * ROWS + r - start) * T, down, &s);
        if (a->sel.shift)
          for (int64_t j = first; j <= position; j++) down[j] += here[j];
      }
      if (on && a->sel.bilinear && a->dsq)
        for (int64_t n = 0; n < G * D; n++)
          ((REAL *)a->dsq)[b * a->sel.s_sq.b + r * a->sel.s_sq.t + n / D * a->sel.s_sq.h + n % D] = (REAL)s.dsq[n];
      if (a->dq)
        for (int64_t n = 0; n < H * D; n++)
          ((REAL *)a->dq)[b * a->s_q.b + r * a->s_q.t + n / D * a->s_q.h + n % D] = (REAL)s.dq[n];
    }
  }
  NAME(store)(a->dk, a->s_k, b, a->dk_from, T, Hkv, D, s.dk);
  NAME(store)(a->dv, a->s_v, b, a->dk_from, T, Hkv, D, s.dv);
  if (on && a->sel.bilinear) NAME(store)(a->dsk, a->sel.s_sk, b, a->dk_from, T, G, D, s.dsk);
}

static void NAME(add)(void *to, const double *x, int64_t n) {
  if (!to) return;
  for (int64_t i = 0; i < n; i++) ((REAL *)to)[i] = (REAL)((double)((REAL *)to)[i] + x[i]);
}

static struct NAME(sums) NAME(shared_at)(const struct wn_attention *a, double *at) {
  const int64_t P = a->relative.P * a->D, S = a->Hkv * a->sinks.n * a->D;
  return (struct NAME(sums)){.dp = at,
                             .dsink_k = at + P,
                             .dsink_v = at + P + S,
                             .dz = at + P + 2 * S,
                             .dgate = at + P + 2 * S + a->H,
                             .dbias = at + P + 2 * S + 2 * a->H,
                             .dstrength = at + P + 2 * S + (2 + a->bias.n) * a->H};
}

static wn_status NAME(attention_backward)(const struct wn_exec *exec, const struct wn_attention *a) {
  const int team = workers(exec, a->B);
  const size_t each = backward_doubles(a), shared = shared_doubles(a);
  double *scratch = exec->scratch;
  for (int t = 0; t < team; t++) memset(scratch + (size_t)t * each, 0, shared * sizeof *scratch);
#pragma omp parallel for num_threads(team) schedule(static)
  for (int64_t b = 0; b < a->B; b++) {
    double *mine = scratch + (size_t)omp_get_thread_num() * each;
    const struct NAME(sums) sums = NAME(shared_at)(a, mine);
    NAME(backward_sequence)(a, b, mine + shared, &sums);
  }
  for (int t = 1; t < team; t++)
    for (size_t i = 0; i < shared; i++) scratch[i] += scratch[(size_t)t * each + i];
  const struct NAME(sums) sums = NAME(shared_at)(a, scratch);
  if (a->relative.P > 0) NAME(add)(a->relative.dp, sums.dp, a->relative.P * a->D);
  if (a->bias.n > 0) NAME(add)(a->bias.dtable, sums.dbias, a->bias.n * a->H);
  if (a->sel.on) NAME(add)(a->sel.dstrength, sums.dstrength, wn_selection_groups(a));
  if (a->sinks.n > 0) {
    NAME(add)(a->sinks.dk, sums.dsink_k, a->Hkv * a->sinks.n * a->D);
    NAME(add)(a->sinks.dv, sums.dsink_v, a->Hkv * a->sinks.n * a->D);
  }
  for (int64_t h = 0; h < a->H; h++) {
    if (a->span.on && !a->span.dynamic && a->span.dz) ((REAL *)a->span.dz)[h * a->span.s_z.h] += (REAL)sums.dz[h];
    if (a->exclusive.on && a->exclusive.gate && a->exclusive.dgate)
      ((REAL *)a->exclusive.dgate)[h] += (REAL)sums.dgate[h];
  }
  return WN_OK;
}
#endif
