/* A policy of the caller's own (wn_own_policy in winnow/kv.h): packs what it asks for into arrays of floats, tokens in
 * order of position, and calls it. Its scores go back to the tokens' indices. Cost: one allocation and one pass over
 * the arrays, a row and layer. */
#include <math.h>
#include <pthread.h>

#include "attention/registry.h"
#include "base/arrays.h"
#include "kv/policy.h"

enum { OWN_ROWS_MAX = 256 };
#define OWN_KNOWN ((unsigned)(WN_OWN_SELECTIONS | WN_OWN_SUMS | WN_OWN_KEYS | WN_OWN_VALUES))
_Static_assert((unsigned)WN_OWN_SELECTIONS == WN_POLICY_SELECTIONS && (unsigned)WN_OWN_SUMS == WN_POLICY_SUMS &&
                   (unsigned)WN_OWN_KEYS == WN_POLICY_KEYS && (unsigned)WN_OWN_VALUES == WN_POLICY_VALUES,
               "needs have the same bits");

const wn_own_policy *wn_policy_own_of(const wn_budgets *budgets) {
  static const wn_own_policy none = {0};
  return budgets->own ? budgets->own : &none;
}

static int64_t own_least(int64_t n, int64_t K) {
  return n < K - 1 ? n : K - 1;
}
static int64_t own_sinks(const wn_budgets *budgets, int64_t K) {
  return own_least(wn_policy_own_of(budgets)->sinks, K);
}
static int64_t own_recent(const wn_budgets *budgets, int64_t K) {
  return own_least(wn_policy_own_of(budgets)->recent, K);
}
static int64_t own_notes(const wn_budgets *budgets) {
  const wn_own_policy *own = wn_policy_own_of(budgets);
  return !(own->needs & WN_OWN_SUMS) ? 0 : own->rows > 0 ? own->rows : 1;
}
static int64_t own_rows(const wn_budgets *budgets) {
  const int64_t rows = wn_policy_own_of(budgets)->rows;
  return rows > 0 ? rows : INT64_MAX;
}

const struct wn_policy_row wn_policy_own = {
    .info = {.name = "own", .summary = "the caller's own", .per_kv_head = true},
    .sinks = own_sinks,
    .recent = own_recent,
    .notes = own_notes,
    .rows = own_rows,
};

wn_status wn_policy_check_own(wn_context *ctx, const wn_budgets *budgets, bool selective) {
  const wn_own_policy *own = budgets->own;
  if (!own || !own->score)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: policy \"own\" needs \"own\" with a function \"score\"");
  if (own->size != sizeof *own)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "budgets: \"own\" has %zu bytes, expected %zu", own->size, sizeof *own);
  if (own->needs & ~OWN_KNOWN)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "budgets: policy \"own\" needs what a key-value cache does not have (0x%x)",
                   own->needs & ~OWN_KNOWN);
  if (own->needs & WN_OWN_SELECTIONS && !selective)
    return wn_fail(ctx, WN_ERR_CONFIG, "budgets: policy \"own\" needs a model with selective attention");
  if (own->sinks < 0 || own->recent < 0 || own->rows < 0 || own->rows > OWN_ROWS_MAX)
    return wn_fail(
        ctx, WN_ERR_CONFIG,
        "budgets: policy \"own\" has %lld sinks, %lld recent tokens, sums of %lld rows; expected at least 0, "
        "and at most %d rows",
        (long long)own->sinks, (long long)own->recent, (long long)own->rows, OWN_ROWS_MAX);
  return WN_OK;
}

/* ---- packing ---- */

/* The arrays of a view, and its tokens' indices. */
struct own_call {
  wn_policy_view view;
  int32_t *index; /* [rows,n] */
  int32_t *at;
  float *keys, *values, *F, *sums;
};

/* The tokens of a group, without gaps, in order of position. */
static int64_t own_order(const struct wn_policy_held *h, int32_t *index) {
  int64_t n = 0;
  bool sorted = true;
  for (int64_t j = 0; j < h->count; j++) {
    if (h->at[j] < 0) continue;
    sorted = sorted && (n == 0 || h->at[j] > h->at[index[n - 1]]);
    index[n++] = (int32_t)j;
  }
  if (!sorted) wn_evict_sort(n, index, h->at);
  return n;
}

void wn_policy_pack_rows(const struct wn_policy_held *h, const struct wn_policy_rows *x, const int32_t *index,
                         int64_t n, float *out) {
  double some[64];
  for (int64_t head = 0; head < h->heads; head++)
    for (int64_t j = 0; j < n; j++, out += h->D)
      for (int64_t d = 0; d < h->D; d += 64) {
        const struct wn_policy_range part = {d, d + 64 < h->D ? d + 64 : h->D};
        memset(some, 0, sizeof some);
        wn_policy_add(h, x, head, index[j], 1, part, some);
        for (int64_t i = part.first; i < part.end; i++) out[i] = (float)some[i - part.first];
      }
}

/* The sums of all rows, or of the last ones in order. */
static void own_pack_sums(const struct wn_policy_held *h, int64_t rows, const int32_t *index, int64_t n, float *out) {
  for (int64_t r = 0; r < (rows > 0 ? rows : 1); r++) {
    const int64_t of = h->row - rows + r;
    for (int64_t j = 0; j < n; j++)
      out[r * n + j] = rows == 0 ? (float)wn_number(h->notes, index[j], h->dtype)
                       : of < 0  ? 0
                                 : (float)wn_number(h->notes, of % rows * h->stride + index[j], h->dtype);
  }
}

static void own_pack(const struct wn_policy_held *held, int64_t r, int64_t rows_of_sums, struct own_call *c) {
  const struct wn_policy_held *h = &held[r];
  const int64_t n = c->view.count, wide = h->heads * n * h->D, sums = rows_of_sums > 0 ? rows_of_sums : 1;
  const int32_t *index = c->index + r * n;
  for (int64_t j = 0; j < n; j++) c->at[r * n + j] = h->at[index[j]];
  if (c->keys) wn_policy_pack_rows(h, &h->k, index, n, c->keys + r * wide);
  if (c->values) wn_policy_pack_rows(h, &h->v, index, n, c->values + r * wide);
  if (c->sums) own_pack_sums(h, rows_of_sums, index, n, c->sums + r * sums * n);
  for (int64_t j = 0; c->F && j < n; j++) c->F[r * n + j] = (float)wn_number(h->F, index[j], h->dtype);
}

static wn_status own_arrays(wn_context *ctx, const struct wn_policy_held *h, int64_t rows, struct wn_arrays *arrays,
                            struct own_call *c) {
  const wn_own_policy *own = h->budgets->own;
  const int64_t n = c->view.count, sums = own->rows > 0 ? own->rows : 1;
  const struct wn_array of[] = {
      WN_ARRAY_FOR(c->view.scores, "scores", true, WN_DIMS(rows, n)),
      WN_ARRAY_FOR(c->index, "indices", true, WN_DIMS(rows, n)),
      WN_ARRAY_FOR(c->at, "positions", true, WN_DIMS(rows, n)),
      WN_ARRAY_FOR(c->keys, "keys", own->needs & WN_OWN_KEYS, WN_DIMS(rows, h->heads, n, h->D)),
      WN_ARRAY_FOR(c->values, "values", own->needs & WN_OWN_VALUES, WN_DIMS(rows, h->heads, n, h->D)),
      WN_ARRAY_FOR(c->F, "selections", own->needs & WN_OWN_SELECTIONS, WN_DIMS(rows, n)),
      WN_ARRAY_FOR(c->sums, "attention sums", own->needs & WN_OWN_SUMS, WN_DIMS(rows, sums, n)),
  };
  return WN_ARRAYS_CREATE(ctx, arrays, "what a policy asks for", of);
}

/* ---- the call ---- */

static wn_status own_call(wn_context *ctx, const struct wn_policy_held *held, int64_t rows, struct own_call *c,
                          double *scores) {
  const wn_own_policy *own = held->budgets->own;
  const int64_t n = c->view.count;
  for (int64_t r = 0; r < rows; r++) {
    own_order(&held[r], c->index + r * n);
    own_pack(held, r, own->rows, c);
  }
  memset(c->view.scores, 0, (size_t)(rows * n) * sizeof *c->view.scores);
  c->view.positions = c->at, c->view.keys = c->keys, c->view.values = c->values;
  c->view.selections = c->F, c->view.sums = c->sums;
  if (!own->score(own->user, &c->view))
    return wn_fail(ctx, WN_ERR_CANCELLED, "policy \"own\": its function failed in layer %lld at position %lld",
                   (long long)held->layer, (long long)held->row);
  memset(scores, 0, (size_t)(rows * held->count) * sizeof *scores);
  for (int64_t i = 0; i < rows * n; i++) {
    if (isnan(c->view.scores[i]))
      return wn_fail(ctx, WN_ERR_ARGUMENT, "policy \"own\": its score of position %d in layer %lld is not a number",
                     c->at[i], (long long)held->layer);
    scores[i / n * held->count + c->index[i]] = c->view.scores[i];
  }
  return WN_OK;
}

static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER; /* the program's function serves one thread at a time */

wn_status wn_policy_ask_layer(wn_context *ctx, const struct wn_policy_held *held, int64_t sequences, int64_t groups,
                              double *scores) {
  struct own_call c = {.view = {.layer = held->layer,
                                .group = held->group,
                                .sequences = sequences,
                                .groups = groups,
                                .heads = held->heads,
                                .head_size = held->D,
                                .position = held->row,
                                .budget = held->budget}};
  const int64_t rows = sequences * groups;
  struct wn_arrays arrays = {0};
  wn_status status;
  for (int64_t j = 0; j < held->count; j++) c.view.count += held->at[j] >= 0;
  WN_TRY(own_arrays(ctx, held, rows, &arrays, &c));
  pthread_mutex_lock(&own_lock);
  status = own_call(ctx, held, rows, &c, scores);
  pthread_mutex_unlock(&own_lock);
  wn_arrays_clear(&arrays);
  return status;
}

static void own_scores(struct wn_evict_ask *ask, const struct wn_policy_held *held, double *scores) {
  if (ask->status == WN_OK) ask->status = wn_policy_ask_layer(ask->ctx, held, 1, 1, scores);
}

struct wn_evict_ask wn_policy_ask(wn_context *ctx) {
  return (struct wn_evict_ask){.scores = own_scores, .ctx = ctx};
}
