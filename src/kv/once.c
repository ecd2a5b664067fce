/* The list of methods, their options, and the choice of the tokens that stay. */
#include "kv/once.h"

#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/error.h"

#define ONCE_ROW(name) &wn_once_##name,
static const struct wn_once_method *const once_methods[] = {WN_ONCE_METHODS(ONCE_ROW)};

int wn_once_count(void) {
  return (int)(sizeof once_methods / sizeof *once_methods);
}

const struct wn_once_method *wn_once_at(int i) {
  return i >= 0 && i < wn_once_count() ? once_methods[i] : NULL;
}

const struct wn_once_method *wn_once_find(const char *name) {
  for (int i = 0; i < wn_once_count(); i++)
    if (strcmp(once_methods[i]->name, name) == 0) return once_methods[i];
  return NULL;
}

void wn_once_options_init(struct wn_once_options *options) {
  *options = (struct wn_once_options){
      .snapkv = {.rows = 32, .neighbours = 2, .pool = WN_POOL_MEAN},
      .lagkv = {.sinks = 4, .lag = 128},
      .expected = {.future = 512, .sinks = 4, .covariance = true, .values = true},
      .leverage = {.sketch = 48},
      .compactor = {.sinks = 8, .recent = 4, .chunk = 256, .padded = true, .blend = -1},
      .rkv = {.rows = 8, .neighbours = 3, .importance = 0.1, .similar = 0.5},
      .kvzip = {.sinks = 4, .chunk = 2048},
      .critical = {.first = 0.5, .epsilon = 1e-4},
      .ada = {.safe = 0.2},
      .pyramid = {.beta = 20},
  };
}

/* What the view lacks of the needs; NULL: nothing. */
static const char *once_missing(const struct wn_once_view *v, unsigned needs) {
  const struct {
    unsigned need;
    bool there;
    const char *name;
  } parts[] = {
      {WN_ONCE_KEYS | WN_ONCE_PLAIN, v->k != NULL, "keys"},
      {WN_ONCE_VALUES, v->v != NULL, "values"},
      {WN_ONCE_WINDOW, v->q && v->w > 0, "queries of the last rows"},
      {WN_ONCE_QUERIES, v->mean && v->covariance, "mean and covariance of queries"},
      {WN_ONCE_SUMS, v->sums != NULL, "attention sums"},
      {WN_ONCE_CHUNKS, v->chunks != NULL, "attention within chunks"},
      {WN_ONCE_OUTPUT, v->wo != NULL, "the output projection"},
      {WN_ONCE_REPEAT, v->largest != NULL, "the attention of a repetition"},
  };
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if ((needs & parts[i].need) && !parts[i].there) return parts[i].name;
  return NULL;
}

wn_status wn_once_score(wn_context *ctx, const struct wn_once_method *method, const struct wn_once_view *view,
                        double *scores) {
  const char *missing = once_missing(view, method->needs);
  if (missing) return wn_fail(ctx, WN_ERR_ARGUMENT, "method %s: needs %s, which are not given", method->name, missing);
  WN_TRY(method->score(ctx, view, scores));
  for (int64_t i = 0; i < view->Hkv * view->n; i++)
    if (isnan(scores[i]))
      return wn_fail(ctx, WN_ERR_DIVERGED, "method %s: layer %lld, token %lld: expected a score, found NaN",
                     method->name, (long long)view->layer, (long long)view->at[i % view->n]);
  return WN_OK;
}

struct once_entry {
  double score;
  int64_t index;
};

/* Lowest scores first, of equal ones the newest. */
static int once_compare(const void *a, const void *b) {
  const struct once_entry *x = a, *y = b;
  if (x->score != y->score) return x->score < y->score ? -1 : 1;
  return x->index > y->index ? -1 : x->index < y->index;
}

static int once_ascending(const void *a, const void *b) {
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return x < y ? -1 : x > y;
}

wn_status wn_once_best(wn_context *ctx, const double *scores, int64_t n, int64_t kept, int32_t *out) {
  void *memory;
  WN_TRY(wn_alloc(ctx, "scores in order", (size_t)n * sizeof(struct once_entry), &memory));
  struct once_entry *entries = memory;
  for (int64_t j = 0; j < n; j++) entries[j] = (struct once_entry){scores[j], j};
  if (n > 0) qsort(entries, (size_t)n, sizeof *entries, once_compare);
  for (int64_t i = 0; i < kept; i++) out[i] = (int32_t)entries[i].index;
  if (kept > 0) qsort(out, (size_t)kept, sizeof *out, once_ascending);
  wn_free(memory);
  return WN_OK;
}
