/* Whole sequences under budgets, for whole models: the goldens of the policies (PyTorch in double, token by token);
 * budgets of the sequence's length or more change no bit; packed documents are separate documents; the gradient is that
 * of the loss with the evictions held fixed; the ways of keeping activations agree; a step allocates nothing; refusals.
 */
#include "golden/golden.h"
#include "model/models.h"
#include "model/workspace.h"
#include "support.h"

#include "winnow/kv.h"
#include "reach.h"
#include "policies.h"

/* ---- goldens ---- */

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

static const wn_safetensors_entry *entry(wn_context *ctx, const char *path, const char *name, wn_safetensors **file) {
  assert_ok(ctx, wn_safetensors_open(ctx, path, file));
  const wn_safetensors_entry *e = wn_safetensors_find(*file, name);
  if (!e) fail_msg("%s has no %s", path, name);
  return e;
}

static int compared;
static void check_golden(wn_context *ctx, struct wn_model *model, const char *folder, const char *name, double limit) {
  char path[512];
  wn_safetensors *file, *text;
  snprintf(path, sizeof path, "%s/tokens.safetensors", folder);
  const wn_safetensors_entry *tokens = entry(ctx, path, "tokens", &text);
  const int64_t B = tokens->shape[0], T = tokens->shape[1], V = model->config.vocab_size;
  snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
  const wn_safetensors_entry *want = entry(ctx, path, "logits", &file);
  snprintf(path, sizeof path, "%s/%s.json", folder, name);
  wn_budgets budgets;
  budgets_init(&budgets);
  assert_ok(ctx, wn_budgets_load(ctx, path, &budgets));
  float *logits = malloc((size_t)(B * T * V) * sizeof *logits);
  int32_t *ids = malloc(tokens->bytes);
  memcpy(ids, tokens->data, tokens->bytes);
  assert_ok(ctx, wn_model_logits(ctx, model, ids, B, T, WN_OPTIONS(wn_logits_options, .budgets = &budgets), logits));
  double off = 0, size = 0;
  for (int64_t i = 0; i < B * T * V; i++) {
    double w;
    memcpy(&w, (const char *)want->data + (size_t)i * sizeof w, sizeof w);
    off += (w - (double)logits[i]) * (w - (double)logits[i]), size += w * w;
  }
  if (!(sqrt(off) <= limit * sqrt(size)))
    fail_msg("%s on %s: logits are off by %.3g of their norm", path, wn_context_backend(ctx), sqrt(off / size));
  compared++;
  free(ids);
  free(logits);
  wn_budgets_clear(&budgets);
  wn_safetensors_close(file);
  wn_safetensors_close(text);
}

static void check_goldens(const char *backend, wn_dtype dtype, double limit) {
  wn_context *ctx = context_of(backend, 2);
  for (int i = 0; i < GOLDENS; i++) {
    char folder[400];
    snprintf(folder, sizeof folder, WN_TEST_DIR "/golden/policy-%s", goldens[i].model);
    struct wn_model *loaded = NULL, *model;
    assert_ok(ctx, wn_model_load(ctx, folder, NULL, &loaded));
    model = model_in(ctx, loaded, dtype);
    for (int n = 0; n < CASES_MAX && goldens[i].cases[n]; n++)
      check_golden(ctx, model, folder, goldens[i].cases[n], limit);
    if (model != loaded) wn_model_destroy(model);
    wn_model_destroy(loaded);
  }
  wn_context_destroy(ctx);
}

static void test_goldens(void **state) {
  (void)state;
  check_goldens("ref", WN_F64, 1e-7); /* logits are stored as float */
  check_goldens("ref", WN_F32, 5e-6);
  check_goldens("cpu", WN_F32, 5e-6);
  assert_int_equal(compared, 3 * 23);
}

/* ---- one batch ---- */

enum { B = 2, T = 14 };

struct bench {
  wn_context *ctx;
  struct wn_model *model;
  wn_workspace *ws;
  struct tokens x;
  wn_budgets budgets;
  int64_t tokens[2];
  struct wn_step step;
};

static void bench_open(struct bench *p, const struct model_case *k, const char *backend, wn_dtype dtype, int i,
                       const struct wn_workspace_options *options) {
  *p = (struct bench){.step = model_case_step()};
  p->ctx = context_of(backend, 1 + i % 2);
  const wn_model_config c = model_case_config(k);
  p->model = model_of(p->ctx, &c, dtype);
  tokens_of(&p->x, B, T, c.vocab_size, k->packed);
  budgets_init(&p->budgets);
  static const wn_policy others[] = {WN_POLICY_WINDOW, WN_POLICY_STREAMING, WN_POLICY_RANDOM};
  p->budgets.policy = c.attention.selective.enabled ? WN_POLICY_SELECTIVE : others[i % 3];
  p->budgets.per_kv_head = p->budgets.policy == WN_POLICY_RANDOM && i % 2;
  p->budgets.sinks = 1;
  p->budgets.layers = 2;
  p->budgets.tokens = p->tokens;
  p->tokens[0] = 3 + i % 3, p->tokens[1] = 6 - i % 4;
  struct wn_workspace_options with = *options;
  with.budgets = &p->budgets;
  OK(p->ctx, wn_workspace_create(p->ctx, p->model, B, T, &with, &p->ws));
  p->step.budgets = &p->budgets;
}
static void bench_close(struct bench *p) {
  wn_workspace_destroy(p->ws);
  wn_model_destroy(p->model);
  wn_context_destroy(p->ctx);
}

static double objective(struct bench *p, void *grads) {
  struct wn_step_result r;
  struct wn_step step = p->step;
  step.grads = grads;
  OK(p->ctx, wn_model_step(p->model, p->ws, &p->x.batch, &step, &r));
  assert_true(r.counted > 0);
  return model_case_objective(&step, &r);
}

static const struct wn_workspace_options keep_all = {.backward = true, .activation_dtype = WN_F32};

/* Evictions are discontinuous. If a probe changes one that a smaller probe does not, its difference is not the
 * gradient's. *same: no eviction changed. */
static double difference(struct bench *p, double *at, const double *direction, size_t n, double h, bool *same) {
  const size_t bytes = (size_t)(2 * p->ws->evicting * B * T) * sizeof(int32_t);
  int32_t *up_evicted_at = malloc(bytes);
  for (size_t i = 0; i < n; i++) at[i] += h * direction[i];
  const double up = objective(p, NULL);
  memcpy(up_evicted_at, reach(p->ws->evicted_at), bytes);
  for (size_t i = 0; i < n; i++) at[i] -= 2 * h * direction[i];
  const double down = objective(p, NULL);
  *same = !memcmp(up_evicted_at, reach(p->ws->evicted_at), bytes);
  for (size_t i = 0; i < n; i++) at[i] += h * direction[i];
  free(up_evicted_at);
  return (up - down) / (2 * h);
}

static void test_gradients(void **state) {
  (void)state;
  int turned = 0, probes = 0, evicted = 0;
  for (int i = 0; i < MODEL_CASES; i++) {
    const struct model_case *k = &model_cases[i];
    struct bench p;
    bench_open(&p, k, "ref", WN_F64, i, &keep_all);
    double *grads = calloc(p.model->table.total, sizeof *grads);
    objective(&p, grads);
    for (int64_t n = 0; n < 2 * p.ws->evicting * B * T; n++) evicted += ((int32_t *)reach(p.ws->evicted_at))[n] < T;
    for (int t = i % 3; t < p.model->table.count; t += 3) { /* test_model_gradients covers every tensor */
      const struct wn_param *row = &p.model->table.rows[t];
      double *at = (double *)reach(p.model->params) + row->offset, *g = grads + row->offset, expected = 0, size = 0;
      double *direction = calloc(row->count, sizeof *direction);
      for (size_t n = 0; n < row->count; n++) {
        direction[n] = wn_random_normal(9, WN_STREAM_TEST, (uint64_t)t, n);
        expected += direction[n] * g[n], size += g[n] * g[n];
      }
      bool same, good = false;
      double found = 0;
      for (double h = 2e-6; h > 1e-8 && !good; h /= 8) { /* a smaller step avoids kinks such as ReLU's */
        found = difference(&p, at, direction, row->count, h, &same);
        good = !same || fabs(found - expected) < 2e-6 * sqrt(size) + 1e-14 / h;
      }
      if (!good)
        fail_msg("%s: %s: %.12g by differences, %.12g by backward (norm %g)", k->name, row->name, found, expected,
                 sqrt(size));
      turned += !same, probes++;
      free(direction);
    }
    free(grads);
    bench_close(&p);
  }
  assert_true(turned < probes / 10 && evicted > 300);
}

/* Keeping all activations, recomputing layers, and keeping them in half precision: the loss has the same bits, and with
 * recomputation the gradients do too. */
static void test_keeping(void **state) {
  (void)state;
  static const struct wn_workspace_options ways[] = {
      {.backward = true, .activation_dtype = WN_F32},
      {.backward = true, .recompute = true, .activation_dtype = WN_F32},
      {.backward = true, .activation_dtype = WN_BF16},
  };
  for (int i = 0; i < MODEL_CASES; i++) {
    float *grads[3];
    double loss[3];
    size_t n = 0;
    for (int w = 0; w < 3; w++) {
      struct bench p;
      bench_open(&p, &model_cases[i], "cpu", WN_F32, i, &ways[w]);
      n = p.model->table.total;
      grads[w] = calloc(n, sizeof *grads[w]);
      loss[w] = objective(&p, grads[w]);
      bench_close(&p);
    }
    assert_true(loss[0] == loss[1] && loss[0] == loss[2]);
    if (memcmp(grads[0], grads[1], n * sizeof(float)) != 0) fail_msg("%s: layers run again", model_cases[i].name);
    double off = 0, size = 0;
    for (size_t e = 0; e < n; e++) {
      off += (double)(grads[0][e] - grads[2][e]) * (double)(grads[0][e] - grads[2][e]);
      size += (double)grads[0][e] * (double)grads[0][e];
    }
    if (!(sqrt(off) < 0.03 * sqrt(size))) fail_msg("%s: bf16: off by %g", model_cases[i].name, sqrt(off / size));
    for (int w = 0; w < 3; w++) free(grads[w]);
  }
}

static void test_wide_budgets(void **state) {
  (void)state;
  for (int i = 0; i < MODEL_CASES; i++) {
    struct bench p;
    bench_open(&p, &model_cases[i], "cpu", WN_F32, i, &keep_all);
    const size_t n = p.model->table.total;
    float *with = calloc(n, sizeof *with), *without = calloc(n, sizeof *without);
    p.tokens[0] = T, p.tokens[1] = INT64_MAX;
    const double loss = objective(&p, with);
    p.step.budgets = NULL;
    assert_true(loss == objective(&p, without));
    if (memcmp(with, without, n * sizeof *with) != 0) fail_msg("%s: gradients differ", model_cases[i].name);
    free(with);
    free(without);
    bench_close(&p);
  }
}

/* Logits of packed documents equal those of each document alone. */
static void test_documents(void **state) {
  (void)state;
  int documents = 0, by_place = 0;
  for (int i = 0; i < 2 * MODEL_CASES; i++) {
    const struct model_case *k = &model_cases[i / 2];
    if (!k->packed) continue;
    struct bench p;
    bench_open(&p, k, "ref", WN_F32, i / 2, &keep_all);
    p.tokens[0] = 2, p.tokens[1] = 3;
    if (i % 2) { /* a second time with cache positions */
      p.budgets.policy = WN_POLICY_STREAMING, p.budgets.per_kv_head = false, p.budgets.cache_positions = true;
      if (wn_budgets_check(p.ctx, &p.budgets, &p.model->config) != WN_OK) {
        bench_close(&p);
        continue;
      }
      by_place++;
    }
    const int64_t V = p.model->config.vocab_size;
    float packed[B * T * 13], alone[T * 13];
    assert_int_equal(V, 13);
    OK(p.ctx,
       wn_model_logits(p.ctx, p.model, p.x.batch.tokens, B, T,
                       WN_OPTIONS(wn_logits_options, .doc_start = p.x.batch.doc_start, .budgets = &p.budgets), packed));
    for (int64_t b = 0; b < B; b++)
      for (int64_t first = 0, end; first < T; first = end) {
        for (end = first + 1; end < T && p.x.batch.doc_start[b * T + end] == first;) end++;
        OK(p.ctx, wn_model_logits(p.ctx, p.model, p.x.batch.tokens + b * T + first, 1, end - first,
                                  WN_OPTIONS(wn_logits_options, .budgets = &p.budgets), alone));
        for (int64_t n = 0; n < (end - first) * V; n++)
          if (!(fabsf(alone[n] - packed[(b * T + first) * V + n]) < 1e-5f))
            fail_msg("%s: document at %lld: %g, packed %g", k->name, (long long)first, (double)alone[n],
                     (double)packed[(b * T + first) * V + n]);
        documents += end - first > 3;
      }
    bench_close(&p);
  }
  assert_true(documents > 3 && by_place > 1);
}

static void test_no_allocation(void **state) {
  (void)state;
  struct bench p;
  bench_open(&p, &model_cases[5], "cpu", WN_F32, 1, &keep_all);
  float *grads = calloc(p.model->table.total, sizeof *grads);
  objective(&p, grads);
  wn_memory_info before, after;
  wn_memory_info_get(&before);
  for (int n = 0; n < 3; n++) {
    p.tokens[0] = 1 + n * 4; /* budgets may change between steps */
    objective(&p, grads);
  }
  wn_memory_info_get(&after);
  assert_int_equal(before.total_allocations, after.total_allocations);
  free(grads);
  bench_close(&p);
}

static void test_refused(void **state) {
  (void)state;
  struct bench p;
  struct wn_step_result r;
  bench_open(&p, &model_cases[5], "ref", WN_F32, 0, &keep_all);
  p.budgets.layers = 1;
  assert_refused(p.ctx, wn_model_step(p.model, p.ws, &p.x.batch, &p.step, &r), WN_ERR_CONFIG, "1 layers");
  p.budgets.layers = 2, p.budgets.policy = WN_POLICY_WINDOW;
  assert_refused(p.ctx, wn_model_step(p.model, p.ws, &p.x.batch, &p.step, &r), WN_ERR_ARGUMENT, "window");
  wn_workspace *plain;
  OK(p.ctx, wn_workspace_create(p.ctx, p.model, B, T, &keep_all, &plain));
  assert_refused(p.ctx, wn_model_step(p.model, plain, &p.x.batch, &p.step, &r), WN_ERR_ARGUMENT, "made for none");
  wn_workspace_destroy(plain);
  float logits[B * T * 13];
  p.tokens[1] = 0;
  assert_refused(p.ctx,
                 wn_model_logits(p.ctx, p.model, p.x.batch.tokens, B, T,
                                 WN_OPTIONS(wn_logits_options, .budgets = &p.budgets), logits),
                 WN_ERR_CONFIG, "layer 1");
  bench_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_goldens),      cmocka_unit_test(test_gradients), cmocka_unit_test(test_keeping),
      cmocka_unit_test(test_wide_budgets), cmocka_unit_test(test_documents), cmocka_unit_test(test_no_allocation),
      cmocka_unit_test(test_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
