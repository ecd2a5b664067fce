/* tests/golden/muon.safetensors: 20 training steps with Muon by tools/make-muon-golden.py (PyTorch in double, its own
 * equations), on the models and batches of model-gpt2 and model-packed. Compares the losses of the steps and the final
 * parameters, in double on ref and in float on each backend and instruction set. */
#include "golden/golden.h"
#include "isa.h"

#include <math.h>
#include "winnow/train.h"

static void *copy_of(const wn_safetensors *file, const char *name, wn_safetensors_entry *out) {
  const wn_safetensors_entry *e = wn_safetensors_find(file, name);
  if (!e) return NULL;
  void *p = malloc(e->bytes);
  memcpy(p, e->data, e->bytes);
  if (out) *out = *e;
  return p;
}

static double setting(const wn_safetensors *file, const char *key) {
  const char *text = wn_safetensors_metadata(file, key);
  if (!text) fail_msg("muon.safetensors has no \"%s\"", key);
  return strtod(text, NULL);
}

static wn_train_config settings(const wn_safetensors *file, const char *name) {
  wn_recipe r;
  char key[64];
  wn_recipe_init(&r);
  snprintf(key, sizeof key, "%s/nesterov", name);
  const char *nesterov = wn_safetensors_metadata(file, key);
  assert_non_null(nesterov);
  wn_train_config c = r.train;
  c.optimizer = WN_OPT_MUON;
  c.schedule = WN_SCHED_CONSTANT;
  c.warmup = 0;
  c.batch = 2;
  c.steps = (int64_t)setting(file, "steps");
  c.lr = setting(file, "lr");
  c.muon.lr = setting(file, "muon_lr");
  c.muon.momentum = setting(file, "momentum");
  c.muon.steps = (int64_t)setting(file, "ns_steps");
  c.muon.nesterov = !strcmp(nesterov, "true");
  c.weight_decay = setting(file, "weight_decay");
  c.clip = setting(file, "clip");
  c.beta1 = setting(file, "beta1");
  c.beta2 = setting(file, "beta2");
  c.eps = setting(file, "eps");
  return c;
}

static void check_parameters(const struct wn_model *model, const wn_safetensors *want, const char *name, double limit) {
  for (int i = 0; i < model->table.count; i++) {
    const struct wn_param *row = &model->table.rows[i];
    char key[160];
    snprintf(key, sizeof key, "%s/%s", name, row->name);
    float *end = copy_of(want, key, NULL);
    if (!end) fail_msg("muon.safetensors has no %s", key);
    double square = 0, total = 0;
    for (size_t k = 0; k < row->count; k++) {
      const double w = (double)end[k];
      const double p = model->dtype == WN_F64 ? ((const double *)reach(model->params))[row->offset + k]
                                              : (double)((const float *)reach(model->params))[row->offset + k];
      square += (p - w) * (p - w), total += w * w;
    }
    if (!(sqrt(square) <= limit * sqrt(total)))
      fail_msg("%s: relative error %.3g, limit %.3g", key, sqrt(square / total), limit);
    free(end);
  }
}

static void check_model(wn_context *ctx, const wn_safetensors *want, const char *name, wn_dtype dtype, double limit) {
  char path[4096];
  struct wn_model *loaded = NULL, *model;
  snprintf(path, sizeof path, "%s/golden/model-%s", WN_TEST_DIR, name);
  assert_ok(ctx, wn_model_load(ctx, path, NULL, &loaded));
  snprintf(path, sizeof path, "%s/golden/model-%s/expected.safetensors", WN_TEST_DIR, name);
  wn_safetensors *file = NULL;
  wn_safetensors_entry shape = {0};
  assert_ok(ctx, wn_safetensors_open(ctx, path, &file));
  int32_t *tokens = copy_of(file, "tokens", &shape), *targets = copy_of(file, "targets", NULL);
  int32_t *starts = copy_of(file, "doc_start", NULL);
  model = model_in(ctx, loaded, dtype);
  wn_train_config config = settings(want, name);
  config.context = shape.shape[1];
  snprintf(path, sizeof path, "%s/loss", name);
  double *losses = copy_of(want, path, NULL);
  assert_non_null(losses);
  wn_trainer *trainer;
  assert_ok(ctx, wn_trainer_create(ctx, model, &config, &trainer));
  for (int64_t s = 0; s < config.steps; s++) {
    wn_train_progress progress;
    assert_ok(ctx, wn_trainer_step(ctx, trainer, tokens, targets, starts, &progress));
    if (!(fabs(progress.loss - losses[s]) <= limit * losses[s]))
      fail_msg("%s: step %lld has the loss %.9g, expected %.9g", name, (long long)s + 1, progress.loss, losses[s]);
  }
  check_parameters(model, want, name, limit);
  wn_trainer_destroy(trainer);
  if (model != loaded) wn_model_destroy(model);
  wn_model_destroy(loaded);
  wn_safetensors_close(file);
  free(tokens);
  free(targets);
  free(starts);
  free(losses);
}

static void check_all(const char *backend, const char *isa, int threads, wn_dtype dtype, double limit) {
  wn_context *ctx = NULL;
  if (!context_with_isa(backend, isa, threads, &ctx)) skip();
  wn_safetensors *want = NULL;
  assert_ok(ctx, wn_safetensors_open(ctx, WN_TEST_DIR "/golden/muon.safetensors", &want));
  check_model(ctx, want, "gpt2", dtype, limit);
  check_model(ctx, want, "packed", dtype, limit);
  wn_safetensors_close(want);
  wn_context_destroy(ctx);
}

static void test_ref_double(void **state) {
  (void)state;
  check_all("ref", NULL, 2, WN_F64, 1e-7); /* the parameters are stored in float */
}
static void test_ref_float(void **state) {
  (void)state;
  check_all("ref", NULL, 1, WN_F32, 1e-5);
}
static void test_cpu_avx2(void **state) {
  (void)state;
  check_all("cpu", ISA_OF_EIGHT, 1, WN_F32, 1e-5);
}
static void test_cpu_avx512(void **state) {
  (void)state;
  check_all("cpu", "avx512", 2, WN_F32, 1e-5);
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
