/* Every tests/golden/attention-*.safetensors through the public attention call, on each backend and instruction set.
 * The files come from tools/make-goldens.py, which shares no code with the engine. */
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <winnow/attention.h>

#include <cmocka.h>

enum { Y, F, M, DQ, DK, DV, DSQ, DSK, OUTPUTS };
static const char *const output_names[OUTPUTS] = {"y", "F", "M", "dq", "dk", "dv", "dsq", "dsk"};

static int64_t count_of(const wn_safetensors_entry *e) {
  int64_t n = 1;
  for (int d = 0; d < e->ndim; d++) n *= e->shape[d];
  return n;
}

static double number_at(wn_dtype dtype, const void *data, int64_t i) {
  if (dtype == WN_F64) {
    double v;
    memcpy(&v, (const char *)data + (size_t)i * sizeof v, sizeof v);
    return v;
  }
  float v;
  memcpy(&v, (const char *)data + (size_t)i * sizeof v, sizeof v);
  return (double)v;
}

/* A tensor of the file as dtype; NULL when the file has none. */
static void *copy_as(const wn_safetensors *file, const char *name, wn_dtype dtype) {
  const wn_safetensors_entry *e = wn_safetensors_find(file, name);
  if (!e) return NULL;
  if (e->dtype == WN_I32) {
    int32_t *ids = malloc(e->bytes);
    memcpy(ids, e->data, e->bytes);
    return ids;
  }
  const int64_t n = count_of(e);
  void *out = malloc((size_t)n * wn_dtype_size(dtype));
  for (int64_t i = 0; i < n; i++) {
    if (dtype == WN_F64)
      ((double *)out)[i] = number_at(e->dtype, e->data, i);
    else
      ((float *)out)[i] = (float)number_at(e->dtype, e->data, i);
  }
  return out;
}

static double relative_error(const wn_safetensors_entry *want, wn_dtype dtype, const void *got) {
  double square = 0, total = 0;
  for (int64_t i = 0; i < count_of(want); i++) {
    const double w = number_at(want->dtype, want->data, i), d = number_at(dtype, got, i) - w;
    square += d * d;
    total += w * w;
  }
  return sqrt(square) / fmax(sqrt(total), 1e-30);
}

static void run_file(wn_context *ctx, const char *path, wn_dtype dtype, double limit) {
  wn_safetensors *file = NULL;
  if (wn_safetensors_open(ctx, path, &file) != WN_OK) fail_msg("%s", wn_context_error(ctx));
  const char *text = wn_safetensors_metadata(file, "case");
  assert_non_null(text);
  json_t *object = json_loads(text, 0, NULL);
  assert_non_null(object);
  char *attention = json_dumps(json_object_get(object, "attention"), 0);
  wn_attention_config config;
  if (wn_attention_config_parse(ctx, attention, &config) != WN_OK) fail_msg("%s", wn_context_error(ctx));
  free(attention);
  wn_attention_arrays a = {.dtype = dtype};
  a.B = json_integer_value(json_object_get(object, "B"));
  a.T = json_integer_value(json_object_get(object, "T"));
  a.H = json_integer_value(json_object_get(object, "H"));
  a.Hkv = json_integer_value(json_object_get(object, "Hkv"));
  a.D = json_integer_value(json_object_get(object, "D"));
  json_decref(object);
  void *in[7] = {copy_as(file, "q", dtype),        copy_as(file, "k", dtype),  copy_as(file, "v", dtype),
                 copy_as(file, "dy", dtype),       copy_as(file, "sq", dtype), copy_as(file, "sk", dtype),
                 copy_as(file, "doc_start", dtype)};
  a.q = in[0], a.k = in[1], a.v = in[2], a.dy = in[3], a.sq = in[4], a.sk = in[5], a.doc_start = in[6];
  void *out[OUTPUTS] = {0};
  for (int i = 0; i < OUTPUTS; i++) {
    const wn_safetensors_entry *e = wn_safetensors_find(file, output_names[i]);
    if (e) out[i] = calloc((size_t)count_of(e), wn_dtype_size(dtype));
  }
  a.y = out[Y], a.F = out[F], a.M = out[M];
  a.dq = out[DQ], a.dk = out[DK], a.dv = out[DV], a.dsq = out[DSQ], a.dsk = out[DSK];
  double loss = 0;
  const wn_safetensors_entry *want_loss = wn_safetensors_find(file, "mem_loss");
  if (want_loss) a.mem_loss = &loss;

  if (wn_attention_run(ctx, &config, &a) != WN_OK) fail_msg("%s: %s", path, wn_context_error(ctx));
  for (int i = 0; i < OUTPUTS; i++) {
    if (!out[i]) continue;
    const double error = relative_error(wn_safetensors_find(file, output_names[i]), dtype, out[i]);
    if (!(error <= limit))
      fail_msg("%s: %s of %s on %s: relative error %.3g, limit %.3g", path, output_names[i], wn_dtype_name(dtype),
               wn_context_backend(ctx), error, limit);
  }
  if (want_loss && !(fabs(loss - number_at(want_loss->dtype, want_loss->data, 0)) <= limit * fabs(loss)))
    fail_msg("%s: mem_loss %.9g, expected %.9g", path, loss, number_at(want_loss->dtype, want_loss->data, 0));

  /* The gradients alone: outputs that are NULL are not computed, the rest must not change. */
  void *dk = a.dk, *again = calloc((size_t)(a.B * a.Hkv * a.T * a.D), wn_dtype_size(dtype));
  wn_attention_arrays only = a;
  only.y = only.F = only.M = only.dq = only.dv = only.dsq = only.dsk = NULL;
  only.mem_loss = NULL;
  only.dk = again;
  if (wn_attention_run(ctx, &config, &only) != WN_OK) fail_msg("%s: %s", path, wn_context_error(ctx));
  const double change = relative_error(wn_safetensors_find(file, "dk"), dtype, again);
  if (!(change <= limit)) fail_msg("%s: dk alone: relative error %.3g, limit %.3g", path, change, limit);
  assert_non_null(dk);
  free(again);

  for (int i = 0; i < 7; i++) free(in[i]);
  for (int i = 0; i < OUTPUTS; i++) free(out[i]);
  wn_safetensors_close(file);
}

static int run_all(const char *backend, const char *isa, int threads, wn_dtype dtype, double limit) {
  if (isa)
    setenv("WINNOW_ISA", isa, 1);
  else
    unsetenv("WINNOW_ISA");
  wn_context *ctx = NULL;
  const wn_status status = wn_context_create(&(wn_context_options){.backend = backend, .threads = threads}, &ctx);
  if (status == WN_ERR_UNSUPPORTED && isa) { /* this machine lacks the instruction set */
    wn_context_destroy(ctx);
    return -1;
  }
  if (status != WN_OK) fail_msg("%s", wn_context_error(ctx));
  DIR *folder = opendir(WN_TEST_DIR "/golden");
  assert_non_null(folder);
  int files = 0;
  for (struct dirent *e; (e = readdir(folder));) {
    const size_t n = strlen(e->d_name), tail = strlen(".safetensors");
    if (strncmp(e->d_name, "attention-", 10) || n < tail || strcmp(e->d_name + n - tail, ".safetensors")) continue;
    char path[4096];
    snprintf(path, sizeof path, "%s/golden/%s", WN_TEST_DIR, e->d_name);
    run_file(ctx, path, dtype, limit);
    files++;
  }
  closedir(folder);
  wn_context_destroy(ctx);
  unsetenv("WINNOW_ISA");
  return files;
}

static void test_ref_double(void **state) {
  (void)state;
  assert_int_equal(run_all("ref", NULL, 2, WN_F64, 1e-12), 16);
}

static void test_ref_float(void **state) {
  (void)state;
  assert_int_equal(run_all("ref", NULL, 1, WN_F32, 5e-6), 16);
}

static void test_cpu_avx2(void **state) {
  (void)state;
  const int files = run_all("cpu", "avx2", 2, WN_F32, 5e-6);
  if (files < 0) skip();
  assert_int_equal(files, 16);
}

static void test_cpu_avx512(void **state) {
  (void)state;
  const int files = run_all("cpu", "avx512", 2, WN_F32, 5e-6);
  if (files < 0) skip();
  assert_int_equal(files, 16);
}

static void test_cpu_plain(void **state) {
  (void)state;
  assert_int_equal(run_all("cpu", "ref", 1, WN_F32, 5e-6), 16);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ref_double), cmocka_unit_test(test_ref_float),  cmocka_unit_test(test_cpu_plain),
      cmocka_unit_test(test_cpu_avx2),   cmocka_unit_test(test_cpu_avx512),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
