/* Evictions of whole sequences (DESIGN section 4): the rows of a call are walked in order, as decoding would come by
 * them, but with the attention itself left out where the score does not need it.
 *
 *   selective  the selecting head's logits of ROWS rows at a time against the keys held, as one product; then row by
 *              row: the highest F goes, and S of the row is added to the F of what is held. O(T (K + ROWS) D) a
 *              selection, for the product, O(T K) for the rest.
 *   h2o, tova  the weights of rows in blocks (weights.h), O(T (K + ROWS) D H). With a threshold, the attention of one
 *              row at a time for its weights, through the operation itself, with the evictions so far: O(T^2 D H) at
 *              most, each row beside what has gone.
 *   the rest   from positions alone.
 *
 * Logits come from the backend's product in the call's precision (ref sums in double), scores add up in double in the
 * order of the rows, whatever the backend: two programs that agree on the logits agree on what goes. A cache carries F
 * in single precision and its logits come from other products; it goes another way only where two scores are equal to
 * rounding. Scores that are equal in exact arithmetic, as F of tokens that nothing has selected, are exactly 0 in all.
 */
#include "kv/evictions.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "attention/derive.h"
#include "attention/registry.h"
#include "backends/backends.h"
#include "base/alloc.h"
#include "kv/weights.h"

enum { ROWS = 64 };

bool wn_evictions_any(const wn_budgets *budgets, int64_t layer, int64_t T) {
  if (layer >= budgets->layers) return false;
  for (int64_t g = 0; g < budgets->heads; g++)
    if (wn_budgets_of(budgets, layer, g) < T) return true;
  return budgets->tokens[layer] < T;
}

static int64_t groups_of(const wn_budgets *budgets, const struct wn_attention *a) {
  return wn_policy_groups(budgets, a->Hkv, a->sel.on ? wn_selection_groups(a) : 0);
}

static int64_t document_start(const struct wn_attention *a, int64_t b, int64_t t) {
  return a->doc_start ? a->doc_start[b * a->Tk + t] : 0;
}

/* First row behind row t's document. */
static int64_t document_end(const struct wn_attention *a, int64_t b, int64_t t) {
  const int64_t first = document_start(a, b, t);
  while (t < a->Tk && document_start(a, b, t) == first) t++;
  return t;
}

/* ---- scratch ---- */

/* What one thread works with. cap: tokens held and a block of rows, or all tokens. */
struct work {
  int64_t cap;
  int32_t *held;  /* [cap] positions, oldest first */
  double *score;  /* [cap] */
  void *keys;     /* [cap,D] of what is held; selective */
  void *logits;   /* [ROWS,cap]; selective */
  void *relative; /* [ROWS,Tk] q . p[x], where the selecting logits have it */
  double *bias;   /* [farthest+1] of the selecting head by distance, the same */
  void *y, *mass; /* [H,D], [P,Tk]; h2o, tova */
  void *f;        /* [G,Tk] F of the rows so far; h2o, tova on selective attention */
  int64_t *count; /* [P] */
  void *scratch;  /* the row's attention */
  size_t scratch_bytes;
  struct wn_weights weights; /* h2o, tova, where rows go in blocks */
};

/* One row of sequence b on its keys so far. */
static struct wn_attention row_call(const struct wn_attention *a, wn_dtype dtype, int64_t b, int64_t i) {
  const struct wn_attention weights = wn_attention_weights_only(a),
                            sequence = wn_attention_of_sequence(&weights, dtype, b);
  struct wn_attention r = wn_attention_of_rows(&sequence, dtype, i, 1);
  r.s_y = (struct wn_stride){a->H * a->D, a->H * a->D, a->D};
  r.sel.f_stride = r.slots.stride = a->Tk;
  r.sel.f_in = r.sel.f_out = NULL;
  return r;
}

/* Of one group; one of all tokens or more never evicts. */
static int64_t budget_of(const wn_budgets *budgets, int64_t layer, int64_t group, const struct wn_attention *a) {
  const int64_t K = budgets->heads > 0 ? wn_budgets_of(budgets, layer, group) : budgets->tokens[layer];
  return K < a->Tk ? K : a->Tk;
}

static bool by_weights(const wn_budgets *budgets) {
  return wn_policy_row(budgets->policy)->weights != WN_WEIGHTS_NONE;
}

static void lay(const struct wn_exec *exec, const wn_budgets *budgets, const struct wn_attention *a, struct wn_room *l,
                struct work *w) {
  const int64_t T = a->Tk, P = groups_of(budgets, a), G = wn_selection_groups(a);
  const size_t each = wn_dtype_size(exec->dtype);
  memset(w, 0, sizeof *w);
  if (by_weights(budgets) && wn_weights_walks(a, P)) {
    wn_weights_lay(&w->weights, a, exec->dtype, P, l);
    return;
  }
  w->cap = T + ROWS;
  w->held = wn_room_take(l, (by_weights(budgets) ? P : 1) * w->cap, sizeof *w->held);
  w->score = wn_room_take(l, (by_weights(budgets) ? P : 1) * w->cap, sizeof *w->score);
  if (budgets->policy == WN_POLICY_SELECTIVE) {
    w->keys = wn_room_take(l, w->cap * a->D, each);
    w->logits = wn_room_take(l, ROWS * w->cap, each);
    if (a->relative.P > 0 && !a->sel.bilinear) w->relative = wn_room_take(l, ROWS * T, each);
    if (a->bias.n > 0 && !a->sel.bilinear) w->bias = wn_room_take(l, a->bias.farthest + 1, sizeof *w->bias);
  }
  if (!by_weights(budgets)) return;
  w->count = wn_room_take(l, P, sizeof *w->count);
  w->y = wn_room_take(l, a->H * a->D, each);
  w->mass = wn_room_take(l, P * T, each);
  if (a->sel.on) w->f = wn_room_take(l, G * T, each);
  struct wn_exec one = *exec;
  one.threads = 1;
  struct wn_attention r = row_call(a, exec->dtype, 0, T - 1);
  r.slots.groups = P;
  r.slots.mass = w; /* that there is one counts */
  w->scratch_bytes = wn_op_attention_scratch(&one, &r, false);
  w->scratch = wn_room_take(l, (int64_t)w->scratch_bytes, 1);
}

size_t wn_evictions_scratch(const struct wn_exec *exec, const wn_budgets *budgets, const struct wn_attention *a) {
  struct wn_room l = {0};
  struct work w;
  if (budgets->policy == WN_POLICY_STREAMING || budgets->policy == WN_POLICY_WINDOW) return 0;
  lay(exec, budgets, a, &l, &w);
  return (size_t)exec->threads * l.used;
}

/* ---- from positions ---- */

static void by_age(const wn_budgets *budgets, int64_t K, const struct wn_attention *a, int32_t *gone) {
  const int64_t sinks = wn_policy_sinks(budgets, K);
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t t = 0, first = 0, behind = 0; t < a->Tk; t++) {
      if (t == behind) first = t, behind = document_end(a, b, t);
      const int64_t end = t + K - sinks;
      gone[b * a->Tk + t] = t - first < sinks || end >= behind ? WN_GONE_NEVER : (int32_t)end;
    }
}

static void drop(struct work *w, int64_t n, int64_t which) {
  memmove(w->held + which, w->held + which + 1, (size_t)(n - which - 1) * sizeof *w->held);
  memmove(w->score + which, w->score + which + 1, (size_t)(n - which - 1) * sizeof *w->score);
}

static void by_lot(const wn_budgets *budgets, int64_t layer, const struct wn_attention *a, int64_t b, int64_t group,
                   struct work *w, int32_t *gone) {
  const int64_t K = budget_of(budgets, layer, group, a);
  for (int64_t t = 0, n = 0; t < a->Tk; t++) {
    const int64_t first = document_start(a, b, t);
    if (t == first) n = 0;
    if (n == K) {
      const int64_t which = wn_weights_highest(w->score, n);
      gone[w->held[which]] = (int32_t)t;
      drop(w, n--, which);
    }
    w->held[n] = (int32_t)t;
    w->score[n++] = wn_policy_lot(budgets, layer, group, t - first);
  }
}

/* ---- selective ---- */

/* The queries and keys that select. */
struct selecting {
  const void *q, *k; /* of the sequence's first token */
  int64_t q_step, k_step;
};
static struct selecting selecting(const struct wn_attention *a, wn_dtype dtype, int64_t b, int64_t group) {
  const int64_t head = group * (a->H / wn_selection_groups(a)) + a->sel.head;
  if (a->sel.bilinear)
    return (struct selecting){wn_element(a->sel.sq, b * a->sel.s_sq.b + group * a->sel.s_sq.h, dtype),
                              wn_element(a->sel.sk, b * a->sel.s_sk.b + group * a->sel.s_sk.h, dtype), a->sel.s_sq.t,
                              a->sel.s_sk.t};
  return (struct selecting){wn_element(a->q, b * a->s_q.b + head * a->s_q.h, dtype),
                            wn_element(a->k, b * a->s_k.b + head / (a->H / a->Hkv) * a->s_k.h, dtype), a->s_q.t,
                            a->s_k.t};
}

/* F of the n held += S of a row. The logits are the product alone; relative: the row's q . p[x], bias: by x; or NULL.
 */
static void add_row(const struct wn_attention *a, wn_dtype dtype, double strength, const void *logits,
                    const void *relative, const double *bias, const int32_t *held, int64_t position, int64_t n,
                    double *F) {
  const double floor = a->sel.relu ? 0 : -INFINITY, scale = a->scale;
  if (relative || bias) {
    for (int64_t s = 0; s < n; s++) {
      const int64_t x = position - held[s];
      double base = wn_number(logits, s, dtype);
      if (relative && x < a->relative.P) base += wn_number(relative, x, dtype);
      base *= scale;
      if (bias) base += bias[x < a->bias.farthest ? x : a->bias.farthest];
      F[s] += strength * fmax(base, floor);
    }
  } else if (dtype == WN_F64) {
    const double *x = logits;
    for (int64_t s = 0; s < n; s++) F[s] += strength * (scale * x[s] > floor ? scale * x[s] : floor);
  } else {
    const float *x = logits;
#pragma omp simd
    for (int64_t s = 0; s < n; s++) {
      const double S = scale * (double)x[s];
      F[s] += strength * (S > floor ? S : floor);
    }
  }
}

/* One document, rows first..end-1. F of what has gone is -inf until the block's end. */
static wn_status by_selections(const struct wn_exec *exec, int64_t K, const struct wn_attention *a, int64_t b,
                               int64_t group, int64_t first, int64_t end, struct work *w, int32_t *gone) {
  const struct selecting s = selecting(a, exec->dtype, b, group);
  const size_t row = (size_t)a->D * wn_dtype_size(exec->dtype);
  char *keys = w->keys;
  int64_t n = 0; /* held at the block's first row */
  const double strength = a->sel.strength ? wn_number(a->sel.strength, group, exec->dtype) : 1;
  if (end - first <= K) return WN_OK;
  if (w->bias) wn_weights_bias(a, exec->dtype, group * (a->H / wn_selection_groups(a)) + a->sel.head, w->bias);
  for (int64_t start = first, rows; start < end; start += rows) {
    rows = end - start < ROWS ? end - start : ROWS;
    for (int64_t r = 0; r < rows; r++) {
      memcpy(keys + (size_t)(n + r) * row, wn_element(s.k, (start + r) * s.k_step, exec->dtype), row);
      w->held[n + r] = (int32_t)(start + r);
      w->score[n + r] = 0;
    }
    WN_TRY(wn_op_linear_forward(exec, &(struct wn_linear){.M = rows,
                                                          .N = n + rows,
                                                          .K = a->D,
                                                          .x = wn_element(s.q, start * s.q_step, exec->dtype),
                                                          .ldx = s.q_step,
                                                          .w = keys,
                                                          .y = w->logits,
                                                          .ldy = w->cap}));
    if (w->relative) {
      const int64_t reach = start + rows - first, count = reach < a->relative.P ? reach : a->relative.P;
      WN_TRY(wn_op_linear_forward(exec, &(struct wn_linear){.M = rows,
                                                            .N = count,
                                                            .K = a->D,
                                                            .x = wn_element(s.q, start * s.q_step, exec->dtype),
                                                            .ldx = s.q_step,
                                                            .w = a->relative.p,
                                                            .y = w->relative,
                                                            .ldy = a->Tk}));
    }
    int64_t held = n; /* those alive */
    for (int64_t r = 0; r < rows; r++) {
      const int64_t i = start + r, last = n + r; /* the row's own slot */
      const bool has_first = w->held[0] == first && w->score[0] != -INFINITY;
      if (held == K) {
        const int64_t from = has_first && held > 1 ? 1 : 0,
                      which = from + wn_weights_highest(w->score + from, last - from);
        gone[w->held[which]] = (int32_t)i;
        w->score[which] = -INFINITY;
        held--;
      }
      held++;
      const double of_first = w->score[0];
      add_row(a, exec->dtype, strength, wn_element(w->logits, r * w->cap, exec->dtype),
              w->relative ? wn_element(w->relative, r * a->Tk, exec->dtype) : NULL, w->bias, w->held, i,
              a->sel.protect_self ? last : last + 1, w->score);
      if (a->sel.protect_first && w->held[0] == first) w->score[0] = of_first;
    }
    int64_t kept = 0; /* close the ranks */
    for (int64_t slot = 0; slot < n + rows; slot++) {
      if (w->score[slot] == -INFINITY) continue;
      if (kept < slot) {
        memcpy(keys + (size_t)kept * row, keys + (size_t)slot * row, row);
        w->held[kept] = w->held[slot];
        w->score[kept] = w->score[slot];
      }
      kept++;
    }
    n = kept;
  }
  return WN_OK;
}

/* ---- from weights ---- */

static wn_status by_mass(const struct wn_exec *exec, const wn_budgets *budgets, int64_t layer,
                         const struct wn_attention *a, int64_t b, struct work *w, int32_t *gone) {
  const int64_t T = a->Tk, P = groups_of(budgets, a);
  const bool sums = wn_policy_row(budgets->policy)->weights == WN_WEIGHTS_SUM;
  int64_t least = INT64_MAX;
  for (int64_t g = 0; g < P; g++)
    least = least < budget_of(budgets, layer, g, a) ? least : budget_of(budgets, layer, g, a);
  struct wn_exec one = *exec;
  one.scratch = w->scratch;
  one.scratch_bytes = w->scratch_bytes;
  for (int64_t i = 0, end = 0; i < T; i++) {
    const int64_t first = document_start(a, b, i);
    if (i == end) end = document_end(a, b, i);
    if (i == first && end - first <= least) { /* a document that keeps all */
      i = end - 1;
      continue;
    }
    struct wn_attention r = row_call(a, exec->dtype, b, i);
    r.y = w->y;
    r.slots.groups = P;
    r.slots.gone = gone;
    r.slots.mass = w->mass;
    if (a->sel.on && i == first) memset(w->f, 0, (size_t)(wn_selection_groups(a) * T) * wn_dtype_size(exec->dtype));
    r.sel.f_in = r.sel.f_out = w->f;
    for (int64_t g = 0; g < P; g++) {
      struct work of = {.held = w->held + g * w->cap, .score = w->score + g * w->cap};
      const int64_t K = budget_of(budgets, layer, g, a), recent = wn_policy_recent(budgets, K);
      if (i == first) w->count[g] = 0;
      if (w->count[g] == K) {
        int64_t open = w->count[g]; /* candidates: the oldest `open` */
        while (sums && open > 1 && of.held[open - 1] > i - recent) open--;
        const int64_t which = wn_weights_highest(of.score, open);
        gone[g * T + of.held[which]] = (int32_t)i;
        drop(&of, w->count[g]--, which);
      }
      of.held[w->count[g]] = (int32_t)i;
      of.score[w->count[g]++] = 0;
    }
    if (i == end - 1) continue; /* its weights decide nothing */
    WN_TRY(wn_op_attention_forward(&one, &r));
    for (int64_t g = 0; g < P; g++)
      for (int64_t s = 0; s < w->count[g]; s++) {
        double *score = &w->score[g * w->cap + s];
        const double given = wn_number(w->mass, g * T + w->held[g * w->cap + s], exec->dtype);
        *score = (sums ? *score : 0) - given;
      }
  }
  return WN_OK;
}

/* ---- */

static wn_status by_blocks(const struct wn_exec *exec, const wn_budgets *budgets, int64_t K, int64_t b, int64_t group,
                           struct wn_weights *w, int32_t *gone) {
  wn_weights_begin(w, budgets, K, b, group);
  for (int64_t first = 0, end; first < w->a->Tk; first = end) {
    end = document_end(w->a, b, first);
    if (end - first <= K) continue;
    w->first = first;
    w->n = 0;
    WN_TRY(wn_weights_rows(exec, w, first, end - first, end - 1, gone));
  }
  return WN_OK;
}

static wn_status walk(const struct wn_exec *exec, const wn_budgets *budgets, int64_t layer,
                      const struct wn_attention *a, int64_t b, int64_t group, struct work *w, int32_t *gone) {
  const int64_t K = budget_of(budgets, layer, group, a);
  if (w->weights.a) return by_blocks(exec, budgets, K, b, group, &w->weights, gone);
  if (by_weights(budgets)) return by_mass(exec, budgets, layer, a, b, w, gone);
  if (budgets->policy == WN_POLICY_RANDOM) {
    by_lot(budgets, layer, a, b, group, w, gone);
    return WN_OK;
  }
  for (int64_t first = 0, end; first < a->Tk; first = end) {
    end = document_end(a, b, first);
    WN_TRY(by_selections(exec, K, a, b, group, first, end, w, gone));
  }
  return WN_OK;
}

/* The terms that a policy's own walk knows; the others look at positions, or ask the operation. */
static uint32_t evictions_serve(const wn_budgets *budgets) {
  return budgets->policy == WN_POLICY_SELECTIVE ? WN_TERMS_OWN : WN_TERMS_ALL;
}

wn_status wn_evictions_find(const struct wn_exec *exec, const wn_budgets *budgets, int64_t layer,
                            const struct wn_attention *a, int32_t *gone) {
  wn_context *ctx = exec->ctx;
  const int64_t P = groups_of(budgets, a), T = a->Tk;
  if (layer < 0 || layer >= budgets->layers || budgets->tokens[layer] < 1)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "evictions: no budget for layer %lld", (long long)layer);
  if (budgets->heads > 0 && (budgets->heads != a->Hkv || P != a->Hkv))
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "evictions: budgets of %lld key-value heads, expected %lld which the policy decides for each",
                   (long long)budgets->heads, (long long)a->Hkv);
  if (a->Tq != T)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "evictions: %lld rows of %lld keys, expected whole sequences",
                   (long long)a->Tq, (long long)T);
  const char *term = wn_call_lacks(a, evictions_serve(budgets));
  if (term)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "evictions: policy \"%s\" does not serve the term \"%s\"",
                   wn_policy_names[budgets->policy], term);
  if (budgets->policy == WN_POLICY_SELECTIVE && !a->sel.on)
    return wn_fail(ctx, WN_ERR_CONFIG, "policy \"selective\" needs selective attention, which layer %lld has not",
                   (long long)layer);
  if (budgets->policy == WN_POLICY_STREAMING && budgets->cache_positions)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                   "cache_positions moves tokens from row to row: a forward pass of a model has it, but no keep rule");
  if (exec->scratch_bytes < wn_evictions_scratch(exec, budgets, a))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "evictions: scratch of %zu bytes, expected %zu", exec->scratch_bytes,
                   wn_evictions_scratch(exec, budgets, a));
  if (budgets->policy == WN_POLICY_STREAMING || budgets->policy == WN_POLICY_WINDOW) {
    by_age(budgets, budget_of(budgets, layer, 0, a), a, gone);
    return WN_OK;
  }
  for (int64_t n = 0; n < a->B * P * T; n++) gone[n] = WN_GONE_NEVER;
  const int64_t each = by_weights(budgets) && !wn_weights_walks(a, P) ? 1 : P, tasks = a->B * each;
  struct wn_room size = {0};
  struct work unused;
  lay(exec, budgets, a, &size, &unused);
  wn_status status = WN_OK;
#pragma omp parallel num_threads(tasks < exec->threads ? (int)tasks : exec->threads)
  {
    struct wn_exec one = *exec;
    struct wn_room mine = {.base = (char *)exec->scratch + (size_t)omp_get_thread_num() * size.used};
    struct work w;
    lay(exec, budgets, a, &mine, &w);
    one.threads = 1;
    one.scratch = NULL, one.scratch_bytes = 0;
#pragma omp for schedule(dynamic, 1)
    for (int64_t n = 0; n < tasks; n++) {
      const int64_t b = n / each, group = n % each;
      const wn_status here = walk(&one, budgets, layer, a, b, group, &w, gone + (b * P + group) * T);
      if (here != WN_OK) {
#pragma omp critical
        status = here;
      }
    }
  }
  return status;
}

int64_t wn_attention_eviction_groups(const wn_attention_config *config, const wn_attention_arrays *arrays,
                                     const wn_budgets *budgets) {
  return wn_policy_groups(budgets, arrays->Hkv, wn_attention_selections(config, arrays->Hkv));
}

wn_status wn_attention_evictions(wn_context *ctx, const wn_attention_config *config, const wn_attention_arrays *arrays,
                                 const wn_budgets *budgets, int32_t *gone) {
  if (!ctx || !config || !arrays || !budgets || !gone)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "evictions: no config, arrays, budgets or place for the result");
  if (!wn_policy_row(budgets->policy))
    return wn_fail(ctx, WN_ERR_CONFIG, "evictions: unknown policy %d", (int)budgets->policy);
  struct wn_attention op;
  WN_TRY(wn_attention_call(ctx, config, arrays, &op));
  struct wn_exec exec = {.ctx = ctx, .threads = ctx->threads, .dtype = arrays->dtype};
  WN_TRY(wn_backend_of(ctx, &exec.backend));
  exec.scratch_bytes = wn_evictions_scratch(&exec, budgets, &op);
  if (exec.scratch_bytes > 0) WN_TRY(wn_alloc(ctx, "scratch of evictions", exec.scratch_bytes, &exec.scratch));
  op.slots.gone = NULL;
  const wn_status status = wn_evictions_find(&exec, budgets, 0, &op, gone);
  wn_free(exec.scratch);
  return status;
}
