/* tests/golden/policy-*: tiny models under budgets, from tools/make-policy-goldens.py (PyTorch in double, from the
 * policies' papers, token by token). Sessions are fed token by token, in chunks and at once. Compares what each layer
 * holds after each feed, and the logits, in double on ref and in float on each backend and instruction set. */
#include "golden/golden.h"
#include "isa.h"

#include <math.h>
#include "kv/evictions.h"
#include "decode/session.h"
#include "model/workspace.h"
#include "winnow/kv.h"
#include "policies.h"

static const struct {
  const char *model;
  const char *cases[10];
} goldens[] = {
    {"rope",
     {"h2o", "h2o-recent", "h2o-heads", "h2o-ragged", "tova", "tova-heads", "tova-ragged", "streaming",
      "streaming-places", "window"}},
    {"learned", {"h2o", "tova", "streaming", "streaming-narrow"}},
    {"selective", {"selective", "selective-narrow", "h2o", "tova", "streaming-places"}},
    {"groups", {"selective", "selective-ragged", "h2o-heads", "tova"}},
};
enum { GOLDENS = sizeof goldens / sizeof *goldens, CASES_MAX = 10 };

/* How a text of T tokens is fed: the first `first` tokens in pieces of `chunk`, then `step` at a time. */
static const struct feeding {
  int64_t first, chunk, step;
} feedings[] = {{1, 0, 1}, {17, 5, 1}, {11, 0, 4}, {INT64_MAX, 0, 1}, {INT64_MAX, 3, 1}};
enum { FEEDINGS = sizeof feedings / sizeof *feedings };

struct expected {
  char name[128];
  int64_t B, T, V, P;
  double *logits;      /* [B,T,V] */
  int32_t *evicted_at; /* [L,B,P,T] */
};

/* An array of a file, copied out of its map. */
static void *array(wn_context *ctx, const char *path, const char *name, int64_t shape[WN_MAX_DIMS]) {
  wn_safetensors *file = NULL;
  assert_ok(ctx, wn_safetensors_open(ctx, path, &file));
  const wn_safetensors_entry *e = wn_safetensors_find(file, name);
  if (!e) fail_msg("%s has no %s", path, name);
  memcpy(shape, e->shape, sizeof e->shape);
  void *copy = malloc(e->bytes);
  memcpy(copy, e->data, e->bytes);
  wn_safetensors_close(file);
  return copy;
}

/* Every layer must hold the expected tokens after `fed` tokens. */
static void check_held(const struct wn_session *s, const struct expected *want, int64_t fed) {
  const int64_t L = s->model->config.layers;
  for (int64_t l = 0; l < L; l++) {
    for (int64_t b = 0; b < want->B; b++)
      for (int64_t g = 0; g < want->P; g++) {
        int64_t part = s->first[l];
        while (part + 1 < s->first[l + 1] && s->parts[part + 1].kv0 <= g) part++;
        const struct wn_kv_cache *cache = &s->caches[part];
        assert_int_equal(wn_kv_cache_positions(s->ctx, cache), WN_OK);
        const int32_t *evicted_at = want->evicted_at + ((l * want->B + b) * want->P + g) * want->T;
        bool held[64] = {false};
        const int64_t first = s->parts[part].kv0;
        const int64_t row = cache->shape.groups > g - first ? g - first : 0; /* no groups if nothing is evicted */
        for (int64_t slot = 0; slot < cache->count; slot++) {
          const int64_t at =
              cache->at ? cache->at[(b * cache->shape.groups + row) * cache->shape.capacity + slot] : slot;
          if (at < 0 || at >= fed || held[at])
            fail_msg("%s: layer %d, sequence %d, group %d holds position %d after %d tokens", want->name, (int)l,
                     (int)b, (int)g, (int)at, (int)fed);
          held[at] = true;
        }
        for (int64_t t = 0; t < fed; t++)
          if (held[t] != (evicted_at[t] >= fed))
            fail_msg(
                "%s: layer %d, sequence %d, group %d: after %d tokens position %d is %s, expected to go before row %d",
                want->name, (int)l, (int)b, (int)g, (int)fed, (int)t, held[t] ? "held" : "evicted", (int)evicted_at[t]);
      }
  }
}

static void check_logits(const struct wn_session *s, const struct expected *want, int64_t fed, double limit) {
  double square = 0, total = 0;
  for (int64_t b = 0; b < want->B; b++)
    for (int64_t v = 0; v < want->V; v++) {
      const double w = want->logits[(b * want->T + fed - 1) * want->V + v];
      const size_t n = (size_t)(b * want->V + v);
      const double got =
          s->model->dtype == WN_F64 ? ((double *)reach(s->logits))[n] : (double)((float *)reach(s->logits))[n];
      square += (got - w) * (got - w), total += w * w;
    }
  if (!(sqrt(square) <= limit * sqrt(total)))
    fail_msg("%s: logits after %d tokens: relative error %.3g, limit %.3g", want->name, (int)fed, sqrt(square / total),
             limit);
}

static void feed_all(wn_context *ctx, wn_session *s, const struct expected *want, const int32_t *tokens,
                     const struct feeding *how, double limit) {
  int32_t piece[256];
  float *logits = malloc((size_t)(want->B * want->V) * sizeof *logits);
  wn_session_reset(s);
  for (int64_t fed = 0; fed < want->T;) {
    int64_t n = fed ? how->step : how->first;
    if (n > want->T - fed) n = want->T - fed;
    for (int64_t b = 0; b < want->B; b++) memcpy(piece + b * n, tokens + b * want->T + fed, (size_t)n * sizeof *tokens);
    assert_ok(ctx, wn_session_feed(ctx, s, piece, n, how->chunk, logits));
    fed += n;
    assert_int_equal(wn_session_position(s), fed);
    check_held(s, want, fed);
    check_logits(s, want, fed, limit);
  }
  free(logits);
}

/* The same texts as a batch: evictions and logits for all rows at once. */
static void check_batch(wn_context *ctx, struct wn_model *model, const struct expected *want, const int32_t *tokens,
                        const wn_budgets *budgets, double limit) {
  const int64_t L = model->config.layers, n = want->B * want->T;
  float *logits = malloc((size_t)(n * want->V) * sizeof *logits);
  assert_ok(ctx, wn_model_logits(ctx, model, tokens, want->B, want->T,
                                 WN_OPTIONS(wn_logits_options, .budgets = budgets), logits));
  double square = 0, total = 0;
  for (int64_t i = 0; i < n * want->V; i++) {
    const double w = want->logits[i], d = (double)logits[i] - w;
    square += d * d, total += w * w;
  }
  if (!(sqrt(square) <= fmax(limit, 1e-7) * sqrt(total))) /* stored as float */
    fail_msg("%s: logits of a batch: relative error %.3g, limit %.3g", want->name, sqrt(square / total), limit);
  free(logits);
  if (budgets->cache_positions) return; /* no keep rule: a key's position differs from row to row */

  wn_workspace *ws = NULL;
  const struct wn_workspace_options options = {.activation_dtype = model->dtype, .budgets = budgets};
  assert_ok(ctx, wn_workspace_create(ctx, model, want->B, want->T, &options, &ws));
  const struct wn_batch batch = {.B = want->B, .T = want->T, .tokens = tokens, .targets = tokens};
  const struct wn_step step = {.loss_scale = 1, .budgets = budgets};
  struct wn_step_result result;
  assert_ok(ctx, wn_model_step(model, ws, &batch, &step, &result));
  assert_int_equal(ws->evicting, want->P);
  const int64_t rows = want->B * want->P;
  for (int64_t l = 0; l < L; l++)
    for (int64_t i = 0; wn_evictions_any(budgets, l, want->T) && i < rows * want->T; i++) {
      const int32_t found = ((int32_t *)reach(ws->evicted_at))[l * rows * want->T + i],
                    evicted_at = want->evicted_at[l * rows * want->T + i];
      if (found != (evicted_at == want->T ? WN_EVICTED_NEVER : evicted_at))
        fail_msg("%s: a batch: layer %d, group %d of %d, position %d goes before row %d, expected %d", want->name,
                 (int)l, (int)(i / want->T), (int)rows, (int)(i % want->T), (int)found, (int)evicted_at);
    }
  wn_workspace_destroy(ws);
}

static void check_case(wn_context *ctx, struct wn_model *model, const char *folder, const char *name,
                       const int32_t *tokens, double limit) {
  char path[4096];
  int64_t shape[WN_MAX_DIMS];
  struct expected want;
  snprintf(want.name, sizeof want.name, "%s/%s, %s", strrchr(folder, '/') + 1, name, wn_dtype_name(model->dtype));
  snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
  want.logits = array(ctx, path, "logits", shape);
  want.B = shape[0], want.T = shape[1], want.V = shape[2];
  want.evicted_at = array(ctx, path, "evicted_at", shape);
  want.P = shape[2];
  assert_int_equal(shape[0], model->config.layers);
  assert_true(want.T <= 64 && want.B * want.T <= 256);
  wn_budgets budgets;
  budgets_init(&budgets);
  snprintf(path, sizeof path, "%s/%s.json", folder, name);
  assert_ok(ctx, wn_budgets_load(ctx, path, &budgets));
  wn_session *s = NULL;
  assert_ok(ctx, wn_session_create(
                     ctx, model,
                     WN_OPTIONS(wn_session_options, .sequences = want.B, .capacity = want.T, .budgets = &budgets), &s));
  for (int i = 0; i < FEEDINGS; i++) feed_all(ctx, s, &want, tokens, &feedings[i], limit);
  check_batch(ctx, model, &want, tokens, &budgets, limit);
  wn_session_destroy(s);
  wn_budgets_clear(&budgets);
  free(want.logits);
  free(want.evicted_at);
}

static void check_all(const char *backend, const char *isa, int threads, wn_dtype dtype, double limit) {
  wn_context *ctx = NULL;
  if (!context_with_isa(backend, isa, threads, &ctx)) skip();
  for (int i = 0; i < GOLDENS; i++) {
    char folder[2048], path[4096];
    int64_t shape[WN_MAX_DIMS];
    struct wn_model *loaded = NULL, *model;
    snprintf(folder, sizeof folder, "%s/golden/policy-%s", WN_TEST_DIR, goldens[i].model);
    assert_ok(ctx, wn_model_load(ctx, folder, NULL, &loaded));
    model = model_in(ctx, loaded, dtype);
    snprintf(path, sizeof path, "%s/tokens.safetensors", folder);
    int32_t *tokens = array(ctx, path, "tokens", shape);
    for (int n = 0; n < CASES_MAX && goldens[i].cases[n]; n++)
      check_case(ctx, model, folder, goldens[i].cases[n], tokens, limit);
    free(tokens);
    if (model != loaded) wn_model_destroy(model);
    wn_model_destroy(loaded);
  }
  wn_context_destroy(ctx);
}

static void test_ref_double(void **state) {
  (void)state;
  check_all("ref", NULL, 2, WN_F64, 1e-12);
}
static void test_ref_float(void **state) {
  (void)state;
  check_all("ref", NULL, 1, WN_F32, 2e-5);
}
static void test_cpu_avx2(void **state) {
  (void)state;
  check_all("cpu", ISA_OF_EIGHT, 2, WN_F32, 2e-5);
}
static void test_cpu_avx512(void **state) {
  (void)state;
  check_all("cpu", "avx512", 2, WN_F32, 2e-5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ref_double),
      cmocka_unit_test(test_ref_float),
      cmocka_unit_test(test_cpu_avx2),
      cmocka_unit_test(test_cpu_avx512),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
