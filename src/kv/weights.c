/* Evictions by weights, rows in blocks: weights.h says how.
 *
 * Logits and weights are in the call's precision, scores add up in double in the order of the rows. Decoding takes its
 * weights from the attention operation; the two choose alike but where scores are equal to rounding. */
#include "kv/weights.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/terms.h"
#include "io/gguf_types.h"

enum { ROWS = 64 };

void *wn_room_take(struct wn_room *l, int64_t count, size_t each) {
  void *p = l->base ? l->base + l->used : NULL;
  l->used += ((size_t)count * each + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN;
  return p;
}

static void put(void *x, int64_t i, double value, wn_dtype dtype) {
  if (dtype == WN_F64)
    ((double *)x)[i] = value;
  else
    ((float *)x)[i] = (float)value;
}

void wn_weights_bias(const struct wn_attention *a, wn_dtype dtype, int64_t h, double *out) {
  for (int64_t x = 0; x <= a->bias.farthest; x++)
    out[x] = wn_number(
        a->bias.table,
        wn_position_bucket(x, a->bias.n, a->bias.farthest, false) * wn_bias_stride(a) + wn_model_head(a, h), dtype);
}

int64_t wn_weights_highest(const double *score, int64_t n) {
  double top = score[0];
  int64_t i = 0;
#pragma omp simd reduction(max : top)
  for (int64_t j = 0; j < n; j++) top = score[j] > top ? score[j] : top;
  while (!(score[i] >= top) && i < n - 1) i++;
  return i;
}

bool wn_weights_walks(const struct wn_attention *a, int64_t P) {
  /* One F for all heads belongs to tokens that all of them hold. */
  return !wn_call_lacks(a, WN_WEIGHTS_SERVED) && (!a->sel.on || P == 1 || wn_selection_groups(a) == P);
}

static int64_t reach_of(const struct wn_attention *a) {
  return a->relative.P < a->Tk || a->slots.at ? a->relative.P : a->Tk;
}

void wn_weights_lay(struct wn_weights *w, const struct wn_attention *a, wn_dtype dtype, int64_t P, struct wn_room *l) {
  const int64_t n = a->Tk, ratio = a->H / a->Hkv, G = a->sel.on ? wn_selection_groups(a) : 0;
  const size_t each = wn_dtype_size(dtype);
  *w = (struct wn_weights){.a = a, .dtype = dtype, .kv_heads = a->Hkv / P};
  w->heads = w->kv_heads * ratio;
  w->choices = G > 1 ? G / P : G;
  w->held = wn_room_take(l, n, sizeof *w->held);
  w->place = wn_room_take(l, n, sizeof *w->place);
  w->score = wn_room_take(l, n, sizeof *w->score);
  w->F = wn_room_take(l, w->choices * n, sizeof *w->F);
  w->keys = wn_room_take(l, n * a->D, each);
  w->logits = wn_room_take(l, w->heads * ROWS * n, each);
  w->selecting = wn_room_take(l, a->sel.bilinear ? w->choices * ROWS * n : 0, each);
  w->relative = wn_room_take(l, a->relative.P > 0 ? w->heads * ROWS * reach_of(a) : 0, each);
  w->sinks = wn_room_take(l, w->heads * ROWS * a->sinks.n, each);
  w->bias = wn_room_take(l, a->bias.n > 0 ? w->heads * (a->bias.farthest + 1) : 0, sizeof *w->bias);
  w->add = wn_room_take(l, n, each);
  w->extra = wn_room_take(l, n, each);
  w->span = wn_room_take(l, n, each);
  w->e = wn_room_take(l, n, each);
  w->mass = wn_room_take(l, n, each);
}

void wn_weights_begin(struct wn_weights *w, const wn_budgets *budgets, int64_t K, int64_t b, int64_t group) {
  const struct wn_attention *a = w->a;
  w->budgets = budgets;
  w->K = K;
  w->b = b;
  w->group = group;
  w->n = 0;
  for (int64_t h = 0; a->bias.n > 0 && h < w->heads; h++)
    wn_weights_bias(a, w->dtype, group * w->heads + h, w->bias + h * (a->bias.farthest + 1));
}

/* ---- products ---- */

/* y [rows,columns] = x [rows,D] times keys [columns,D]. */
static wn_status product(const struct wn_exec *exec, const struct wn_weights *w, int64_t rows, int64_t columns,
                         const void *x, int64_t ldx, const void *keys, void *y, int64_t ldy) {
  if (columns == 0) return WN_OK;
  return wn_op_linear_forward(
      exec,
      &(struct wn_linear){.M = rows, .N = columns, .K = w->a->D, .x = x, .ldx = ldx, .w = keys, .y = y, .ldy = ldy});
}

/* half: k holds half floats (and dtype is F32). */
static void gather(struct wn_weights *w, const void *k, struct wn_stride s, int64_t head, int64_t columns, bool half) {
  const int64_t D = w->a->D;
  const uint16_t *halves = (const uint16_t *)k + w->b * s.b + head * s.h;
  for (int64_t c = 0; half && c < columns; c++)
    wn_gguf_decode(WN_GGUF_F16, halves + w->held[c] * s.t, D, (float *)w->keys + c * D);
  if (half) return;
  const size_t row = (size_t)w->a->D * wn_dtype_size(w->dtype);
  const char *base = wn_element(k, w->b * s.b + head * s.h, w->dtype);
  for (int64_t c = 0; c < columns; c++)
    memcpy((char *)w->keys + (size_t)c * row, wn_element(base, w->held[c] * s.t, w->dtype), row);
}

static wn_status products(const struct wn_exec *exec, struct wn_weights *w, int64_t row0, int64_t rows) {
  const struct wn_attention *a = w->a;
  const int64_t columns = w->n + rows, cap = a->Tk, ratio = a->H / a->Hkv, reach = reach_of(a);
  const int64_t far = w->place[columns - 1] - w->place[0] + 1, distances = far < reach ? far : reach;
  for (int64_t g = 0; g < w->kv_heads; g++) {
    const int64_t kv = w->group * w->kv_heads + g;
    gather(w, a->k, a->s_k, kv, columns, a->half);
    for (int64_t h = g * ratio; h < (g + 1) * ratio; h++) {
      const void *q =
          wn_element(a->q, w->b * a->s_q.b + row0 * a->s_q.t + (w->group * w->heads + h) * a->s_q.h, w->dtype);
      WN_TRY(
          product(exec, w, rows, columns, q, a->s_q.t, w->keys, wn_element(w->logits, h * ROWS * cap, w->dtype), cap));
      if (a->relative.P > 0)
        WN_TRY(product(exec, w, rows, distances, q, a->s_q.t, a->relative.p,
                       wn_element(w->relative, h * ROWS * reach, w->dtype), reach));
      if (a->sinks.n > 0)
        WN_TRY(product(exec, w, rows, a->sinks.n, q, a->s_q.t, wn_element(a->sinks.k, kv * a->sinks.n * a->D, w->dtype),
                       wn_element(w->sinks, h * ROWS * a->sinks.n, w->dtype), a->sinks.n));
    }
  }
  for (int64_t s = 0; a->sel.bilinear && s < w->choices; s++) {
    const int64_t choice = w->group * w->choices + s;
    gather(w, a->sel.sk, a->sel.s_sk, choice, columns, false);
    WN_TRY(
        product(exec, w, rows, columns,
                wn_element(a->sel.sq, w->b * a->sel.s_sq.b + row0 * a->sel.s_sq.t + choice * a->sel.s_sq.h, w->dtype),
                a->sel.s_sq.t, w->keys, wn_element(w->selecting, s * ROWS * cap, w->dtype), cap));
  }
  return WN_OK;
}

/* ---- one row ---- */

/* exp of x <= 0 to 2 ulp; 0 below what a weight can be beside the largest. */
static inline __attribute__((always_inline)) float exp_float(float x) {
  const float round = 12582912.0f, low = -87.0f, at = x > low ? x : low;
  const float k = at * 1.44269504f + round - round;
  const float r = at - k * 0.693359375f + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  union {
    uint32_t bits;
    float value;
  } power = {.bits = (uint32_t)((int32_t)k + 127) << 23};
  return x > low ? p * power.value : 0.0f;
}

/* mass[c] += the softmax of scale*logits[c] + add[c] + extra[c], times span[c]; the last two may be NULL. Sinks take
 * their part of the sum. */
struct head {
  int64_t n, sinks;
  double scale;
  const void *logits, *add, *extra, *span, *sink;
  void *e, *mass;
};
#define WEIGH(NAME, REAL, EXP)                                                                                         \
  static void NAME(const struct head *x) {                                                                             \
    const REAL *logits = x->logits, *add = x->add, *extra = x->extra, *sink = x->sink, *span = x->span;                \
    const REAL scale = (REAL)x->scale;                                                                                 \
    REAL *restrict e = x->e, *restrict mass = x->mass, top = -INFINITY, sum = 0;                                       \
    const int64_t n = x->n;                                                                                            \
    for (int64_t c = 0; extra && c < n; c++) e[c] = scale * logits[c] + add[c] + extra[c];                             \
    for (int64_t c = 0; !extra && c < n; c++) e[c] = scale * logits[c] + add[c];                                       \
    WEIGH_SIMD(max, top)                                                                                               \
    for (int64_t c = 0; c < n; c++) top = e[c] > top ? e[c] : top;                                                     \
    for (int64_t s = 0; s < x->sinks; s++) top = scale * sink[s] > top ? scale * sink[s] : top;                        \
    if (top == (REAL)-INFINITY) return;                                                                                \
    for (int64_t s = 0; s < x->sinks; s++) sum += EXP(scale * sink[s] - top);                                          \
    for (int64_t c = 0; c < n; c++) e[c] = EXP(e[c] - top);                                                            \
    for (int64_t c = 0; span && c < n; c++) e[c] *= span[c];                                                           \
    WEIGH_SIMD(+, sum)                                                                                                 \
    for (int64_t c = 0; c < n; c++) sum += e[c];                                                                       \
    const REAL factor = sum > 0 ? 1 / sum : 0;                                                                         \
    for (int64_t c = 0; c < n; c++) mass[c] += e[c] * factor;                                                          \
  }
#define WEIGH_PRAGMA(text) _Pragma(#text)
#define WEIGH_SIMD(operation, what) WEIGH_PRAGMA(omp simd reduction(operation : what))
WEIGH(weigh_float, float, exp_float)
WEIGH(weigh_double, double, exp)
#ifdef __x86_64__
#pragma GCC push_options
#pragma GCC target("avx2")
WEIGH(weigh_float_avx2, float, exp_float)
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,prefer-vector-width=512")
WEIGH(weigh_float_avx512, float, exp_float)
#pragma GCC pop_options
#endif

static void weigh(const struct wn_exec *exec, const struct head *x) {
  if (exec->dtype == WN_F64) {
    weigh_double(x);
    return;
  }
#ifdef __x86_64__
  if (exec->ctx && exec->ctx->isa == WN_ISA_AVX512 && strcmp(exec->backend->name, "cpu") == 0) {
    weigh_float_avx512(x);
    return;
  }
  if (exec->ctx && exec->ctx->isa == WN_ISA_AVX2 && strcmp(exec->backend->name, "cpu") == 0) {
    weigh_float_avx2(x);
    return;
  }
#endif
  weigh_float(x);
}

/* add [n] of selection s (-1: there is none): -inf for what has gone or is masked, else -F. */
static void add_row(const struct wn_weights *w, int64_t s, int64_t n, int64_t position) {
  const struct wn_attention *a = w->a;
  const bool rules = a->window > 0 || a->strided > 0 || a->root.on || (a->span.on && a->span.exclude_self);
  const double *F = w->F + s * a->Tk, *score = w->score;
  if (w->dtype == WN_F64) {
    double *add = w->add;
    for (int64_t c = 0; c < n; c++) add[c] = score[c] == -INFINITY ? -INFINITY : s < 0 ? 0 : -F[c];
  } else {
    float *add = w->add;
    for (int64_t c = 0; s < 0 && c < n; c++) add[c] = score[c] == -INFINITY ? -INFINITY : 0;
    for (int64_t c = 0; s >= 0 && c < n; c++) add[c] = score[c] == -INFINITY ? -INFINITY : (float)-F[c];
  }
  for (int64_t c = 0; rules && c < n; c++)
    if (!wn_distance_seen(a, position - w->place[c])) put(w->add, c, -INFINITY, w->dtype);
}

/* What head h's logits get beside the product; false: nothing. */
static bool extra_row(const struct wn_weights *w, int64_t h, int64_t r, int64_t n, int64_t position) {
  const struct wn_attention *a = w->a;
  const int64_t reach = reach_of(a), farthest = a->bias.farthest;
  if (a->relative.P == 0 && a->bias.n == 0) return false;
  for (int64_t c = 0; c < n; c++) {
    const int64_t x = position - w->place[c];
    double sum = 0;
    if (x < reach && a->relative.P > 0) sum = a->scale * wn_number(w->relative, (h * ROWS + r) * reach + x, w->dtype);
    if (a->bias.n > 0) sum += w->bias[h * (farthest + 1) + (x < farthest ? x : farthest)];
    put(w->extra, c, sum, w->dtype);
  }
  return true;
}

static void span_row(const struct wn_weights *w, int64_t h, int64_t row, int64_t n, int64_t position) {
  const struct wn_attention *a = w->a;
  const int64_t head = w->group * w->heads + h;
  const double z = wn_number(
      a->span.z, head * a->span.s_z.h + (a->span.dynamic ? w->b * a->span.s_z.b + row * a->span.s_z.t : 0), w->dtype);
  for (int64_t c = 0; c < n; c++) {
    const double m = (a->span.ramp + a->span.limit * z - (double)(position - w->place[c])) / a->span.ramp;
    put(w->span, c, m < 0 ? 0 : m > 1 ? 1 : m, w->dtype);
    if (m <= 0) put(w->extra, c, -INFINITY, w->dtype); /* not seen: nothing to measure others by */
  }
}

/* F of selection s += S of a row. */
static void add_selections(struct wn_weights *w, int64_t s, int64_t r, int64_t n, int64_t position) {
  const struct wn_attention *a = w->a;
  const int64_t cap = a->Tk, ratio = w->heads / w->choices, h = s * ratio + a->sel.head;
  const void *logits = a->sel.bilinear ? wn_element(w->selecting, (s * ROWS + r) * cap, w->dtype)
                                       : wn_element(w->logits, (h * ROWS + r) * cap, w->dtype);
  const bool extra = !a->sel.bilinear && extra_row(w, h, r, n, position);
  const double floor = a->sel.relu ? 0 : -INFINITY;
  const double strength = a->sel.strength ? wn_number(a->sel.strength, w->group * w->choices + s, w->dtype) : 1;
  double *F = w->F + s * cap;
  const double of_first = F[0], scale = a->scale;
  const int64_t columns = a->sel.protect_self ? n - 1 : n;
  for (int64_t c = 0; extra && c < columns; c++) {
    const double S = scale * wn_number(logits, c, w->dtype) + wn_number(w->extra, c, w->dtype);
    F[c] += strength * (S > floor ? S : floor);
  }
  for (int64_t c = 0; !extra && w->dtype == WN_F64 && c < columns; c++) {
    const double S = scale * ((const double *)logits)[c];
    F[c] += strength * (S > floor ? S : floor);
  }
  for (int64_t c = 0; !extra && w->dtype == WN_F32 && c < columns; c++) {
    const double S = scale * (double)((const float *)logits)[c];
    F[c] += strength * (S > floor ? S : floor);
  }
  if (a->sel.protect_first && w->place[0] == w->first) F[0] = of_first;
}

/* mass [n]: weights of the row, summed over the group's heads. */
static void weigh_row(const struct wn_exec *exec, struct wn_weights *w, int64_t row, int64_t r, int64_t n,
                      int64_t position) {
  const struct wn_attention *a = w->a;
  const int64_t cap = a->Tk, share = w->choices > 0 ? w->heads / w->choices : w->heads;
  memset(w->mass, 0, (size_t)n * wn_dtype_size(w->dtype));
  for (int64_t h = 0; h < w->heads; h++) {
    bool extra = extra_row(w, h, r, n, position);
    if (a->span.on) {
      if (!extra) memset(w->extra, 0, (size_t)n * wn_dtype_size(w->dtype));
      extra = true;
      span_row(w, h, row, n, position);
    }
    if (h % share == 0) add_row(w, w->choices > 0 ? h / share : -1, n, position);
    weigh(exec, &(struct head){.n = n,
                               .sinks = a->sinks.n,
                               .scale = a->scale,
                               .logits = wn_element(w->logits, (h * ROWS + r) * cap, w->dtype),
                               .add = w->add,
                               .extra = extra ? w->extra : NULL,
                               .span = a->span.on ? w->span : NULL,
                               .sink = wn_element(w->sinks, (h * ROWS + r) * a->sinks.n, w->dtype),
                               .e = w->e,
                               .mass = w->mass});
  }
}

/* What the policy keeps, behind a row. */
static void take_note(struct wn_weights *w, int64_t n, bool sums) {
  double *score = w->score;
  const double before = sums ? 1 : 0;
  if (w->dtype == WN_F64) {
    const double *mass = w->mass;
    for (int64_t c = 0; c < n; c++) score[c] = score[c] == -INFINITY ? -INFINITY : before * score[c] - mass[c];
  } else {
    const float *mass = w->mass;
    for (int64_t c = 0; c < n; c++) score[c] = score[c] == -INFINITY ? -INFINITY : before * score[c] - (double)mass[c];
  }
}

/* What is left of the n columns moves together. */
static int64_t close_ranks(struct wn_weights *w, int64_t n) {
  int64_t kept = 0;
  for (int64_t c = 0; c < n; c++) {
    if (w->score[c] == -INFINITY) continue;
    w->held[kept] = w->held[c];
    w->place[kept] = w->place[c];
    w->score[kept] = w->score[c];
    for (int64_t s = 0; s < w->choices; s++) w->F[s * w->a->Tk + kept] = w->F[s * w->a->Tk + c];
    kept++;
  }
  return kept;
}

static wn_status block(const struct wn_exec *exec, struct wn_weights *w, int64_t row0, int64_t rows, int64_t end,
                       int32_t *gone) {
  const struct wn_attention *a = w->a;
  const bool sums = wn_policy_row(w->budgets->policy)->weights == WN_WEIGHTS_SUM;
  const int64_t own = a->Tk - a->Tq, recent = wn_policy_recent(w->budgets, w->K);
  const int32_t *slots = wn_slot_positions(a, w->b, w->group);
  int64_t alive = w->n;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t c = w->n + r;
    w->held[c] = (int32_t)(own + row0 + r);
    w->place[c] = slots ? slots[w->held[c]] : w->held[c];
    w->score[c] = 0;
    for (int64_t s = 0; s < w->choices; s++) w->F[s * a->Tk + c] = 0;
  }
  WN_TRY(products(exec, w, row0, rows));
  for (int64_t r = 0; r < rows; r++) {
    const int64_t n = w->n + r + 1, position = w->place[n - 1];
    if (alive == w->K) {
      int64_t open = n - 1; /* candidates: the oldest columns */
      while (sums && open > 1 && w->place[open - 1] > position - recent) open--;
      int64_t which = wn_weights_highest(w->score, open);
      while (w->score[which] == -INFINITY) which++; /* all of them are recent: the oldest */
      gone[w->held[which]] = (int32_t)position;
      w->score[which] = -INFINITY;
      alive--;
    }
    alive++;
    /* Its weights decide nothing: a last row's, or, where only the last count, those before the budget is full. */
    const bool idle = row0 + r == end || (!sums && alive < w->K);
    for (int64_t s = 0; !a->sel.shift && s < w->choices; s++) add_selections(w, s, r, n, position);
    if (!idle) {
      weigh_row(exec, w, row0 + r, r, n, position);
      take_note(w, n, sums);
    }
    for (int64_t s = 0; a->sel.shift && s < w->choices; s++) add_selections(w, s, r, n, position);
  }
  w->n = close_ranks(w, w->n + rows);
  return WN_OK;
}

wn_status wn_weights_rows(const struct wn_exec *exec, struct wn_weights *w, int64_t row0, int64_t rows, int64_t last,
                          int32_t *gone) {
  for (int64_t at = row0, n; at < row0 + rows; at += n) {
    n = row0 + rows - at < ROWS ? row0 + rows - at : ROWS;
    WN_TRY(block(exec, w, at, n, last, gone));
  }
  return WN_OK;
}

/* ---- behind a cache ---- */

size_t wn_weights_piece_scratch(const struct wn_exec *exec, const struct wn_attention *a) {
  struct wn_room l = {0};
  struct wn_weights w;
  wn_weights_lay(&w, a, exec->dtype, wn_slot_groups(a), &l);
  return l.used * (size_t)exec->threads;
}

static wn_status piece(const struct wn_exec *exec, struct wn_weights *w, void *weights, int32_t *gone) {
  const struct wn_attention *a = w->a;
  const int64_t older = a->Tk - a->Tq, G = a->sel.on ? wn_selection_groups(a) : 0;
  const int32_t *slots = wn_slot_positions(a, w->b, w->group);
  w->first = 0;
  w->n = older;
  for (int64_t j = 0; j < a->Tk; j++) gone[j] = INT32_MAX;
  for (int64_t j = 0; j < older; j++) {
    w->held[j] = (int32_t)j;
    w->place[j] = slots ? slots[j] : (int32_t)j;
    w->score[j] = -wn_number(weights, j, w->dtype);
    for (int64_t s = 0; s < w->choices; s++) {
      const int64_t row = w->b * G + w->group * w->choices + s;
      w->F[s * a->Tk + j] = a->sel.f_in ? wn_number(a->sel.f_in, row * wn_selection_stride(a) + j, w->dtype) : 0;
    }
  }
  WN_TRY(wn_weights_rows(exec, w, 0, a->Tq, -1, gone));
  for (int64_t c = 0; c < w->n; c++) put(weights, w->held[c], -w->score[c], w->dtype);
  return WN_OK;
}

wn_status wn_weights_piece(const struct wn_exec *exec, const wn_budgets *budgets, int64_t K,
                           const struct wn_attention *a, void *weights, int32_t *gone) {
  const int64_t P = wn_slot_groups(a), tasks = a->B * P;
  struct wn_room size = {0};
  struct wn_weights unused;
  wn_weights_lay(&unused, a, exec->dtype, P, &size);
  if (exec->scratch_bytes < size.used * (size_t)exec->threads)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "evictions: scratch of %zu bytes, expected %zu", exec->scratch_bytes,
                   size.used * (size_t)exec->threads);
  wn_status status = WN_OK;
#pragma omp parallel num_threads(tasks < exec->threads ? (int)tasks : exec->threads)
  {
    struct wn_exec one = *exec;
    struct wn_room mine = {.base = (char *)exec->scratch + (size_t)omp_get_thread_num() * size.used};
    struct wn_weights w;
    wn_weights_lay(&w, a, exec->dtype, P, &mine);
    one.threads = 1;
    one.scratch = NULL, one.scratch_bytes = 0;
#pragma omp for schedule(dynamic, 1)
    for (int64_t n = 0; n < tasks; n++) {
      const int64_t at_row = n * wn_slot_stride(a);
      wn_weights_begin(&w, budgets, K, n / P, n % P);
      const wn_status here = piece(&one, &w, wn_element(weights, at_row, exec->dtype), gone + at_row);
      if (here != WN_OK) {
#pragma omp critical
        status = here;
      }
    }
  }
  return status;
}
