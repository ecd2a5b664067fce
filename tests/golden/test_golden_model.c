/* tests/golden/model-*: tiny models from tools/make-goldens.py (PyTorch, its own equations), loaded as checkpoints:
 * logits, loss and every gradient, in double on ref and in float on each backend and instruction set. */
#include "golden/golden.h"
#include "isa.h"

#include <math.h>

static const char *const models[] = {"selective", "gpt2", "packed", "padded"};
enum { MODELS = sizeof models / sizeof *models };

static const wn_safetensors_entry *find(const wn_safetensors *file, const char *name) {
  const wn_safetensors_entry *e = wn_safetensors_find(file, name);
  if (!e) fail_msg("expected.safetensors has no %s", name);
  return e;
}

/* Copies data out of the file's map, where it may be unaligned. */
static void *copy_of(const wn_safetensors_entry *e) {
  void *p = malloc(e->bytes);
  memcpy(p, e->data, e->bytes);
  return p;
}

static double number(wn_dtype dtype, const void *data, size_t i) {
  return dtype == WN_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

static void close_to(const char *model, const char *what, wn_dtype got_type, const void *got, wn_dtype want_type,
                     const void *want, size_t n, double limit) {
  double square = 0, total = 0;
  for (size_t i = 0; i < n; i++) {
    const double w = number(want_type, want, i), d = number(got_type, got, i) - w;
    square += d * d, total += w * w;
  }
  if (!(sqrt(square) <= limit * sqrt(total)))
    fail_msg("model %s: %s: relative error %.3g, limit %.3g", model, what, sqrt(square / total), limit);
}

static void check_model(wn_context *ctx, const char *name, wn_dtype dtype, double limit) {
  char path[4096];
  struct wn_model *loaded = NULL;
  snprintf(path, sizeof path, "%s/golden/model-%s", WN_TEST_DIR, name);
  assert_ok(ctx, wn_model_load(ctx, path, NULL, &loaded));
  snprintf(path, sizeof path, "%s/golden/model-%s/expected.safetensors", WN_TEST_DIR, name);
  wn_safetensors *file = NULL;
  assert_ok(ctx, wn_safetensors_open(ctx, path, &file));
  const wn_safetensors_entry *e = find(file, "tokens");
  const int64_t B = e->shape[0], T = e->shape[1];
  int32_t *tokens = copy_of(e), *targets = copy_of(find(file, "targets")), *starts = NULL;
  if (wn_safetensors_find(file, "doc_start")) starts = copy_of(find(file, "doc_start"));

  if (dtype == WN_F32) {
    e = find(file, "logits");
    const size_t n = e->bytes / sizeof(double);
    float *logits = malloc(n * sizeof *logits);
    double *want = copy_of(e);
    assert_ok(ctx,
              wn_model_logits(ctx, loaded, tokens, B, T, WN_OPTIONS(wn_logits_options, .doc_start = starts), logits));
    close_to(name, "logits", WN_F32, logits, WN_F64, want, n, limit);
    free(logits);
    free(want);
  }

  struct wn_model *model = model_in(ctx, loaded, dtype);
  const size_t each = wn_dtype_size(dtype);
  char *grads = calloc(model->table.total, each);
  wn_workspace *ws = NULL;
  const struct wn_workspace_options options = {.backward = true};
  assert_ok(ctx, wn_workspace_create(ctx, model, B, T, &options, &ws));
  const struct wn_batch batch = {.B = B, .T = T, .tokens = tokens, .targets = targets, .doc_start = starts};
  const struct wn_step step = {.grads = grads, .loss_scale = 1, .mem_scale = 1, .span_scale = 1};
  struct wn_step_result result;
  assert_ok(ctx, wn_model_step(model, ws, &batch, &step, &result));
  double *loss = copy_of(find(file, "loss"));
  close_to(name, "loss", WN_F64, &result.loss_sum, WN_F64, &loss[0], 1, limit);
  if (!(fabs(result.mem_loss - loss[1]) <= limit * fabs(loss[1])))
    fail_msg("model %s: L_mem %.9g, expected %.9g", name, result.mem_loss, loss[1]);
  free(loss);
  for (int i = 0; i < model->table.count; i++) {
    const struct wn_param *row = &model->table.rows[i];
    e = find(file, row->name);
    assert_int_equal(e->bytes, row->count * sizeof(float));
    float *want = copy_of(e);
    /* The expected gradients are stored as float, with an error of half a unit in the last place. */
    close_to(name, row->name, dtype, grads + row->offset * each, WN_F32, want, row->count, fmax(limit, 1e-7));
    free(want);
  }
  wn_workspace_destroy(ws);
  free(grads);
  free(tokens);
  free(targets);
  free(starts);
  if (model != loaded) wn_model_destroy(model);
  wn_model_destroy(loaded);
  wn_safetensors_close(file);
}

static void check_all(const char *backend, const char *isa, int threads, wn_dtype dtype, double limit) {
  wn_context *ctx = NULL;
  if (!context_with_isa(backend, isa, threads, &ctx)) skip();
  for (int i = 0; i < MODELS; i++) check_model(ctx, models[i], dtype, limit);
  wn_context_destroy(ctx);
}

static void test_ref_double(void **state) {
  (void)state;
  check_all("ref", NULL, 2, WN_F64, 1e-12);
}
static void test_ref_float(void **state) {
  (void)state;
  check_all("ref", NULL, 1, WN_F32, 5e-6);
}
static void test_cpu_avx2(void **state) {
  (void)state;
  check_all("cpu", ISA_OF_EIGHT, 2, WN_F32, 5e-6);
}
static void test_cpu_avx512(void **state) {
  (void)state;
  check_all("cpu", "avx512", 2, WN_F32, 5e-6);
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
