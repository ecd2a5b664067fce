/* Every tests/golden/attention-*.safetensors through the public attention function, on each backend and instruction
 * set. The files come from tools/make-goldens.py, which shares no code with the engine. */
#include "isa.h"
#include "support.h"
#include "policies.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <winnow/attention.h>
#include <winnow/kv.h>
#include <winnow/safetensors.h>

enum { FILES = 54 };

static int lacking; /* cases with a term that the backend lacks */

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
  if (dtype == WN_I32) {
    int32_t v;
    memcpy(&v, (const char *)data + (size_t)i * sizeof v, sizeof v);
    return v;
  }
  float v;
  memcpy(&v, (const char *)data + (size_t)i * sizeof v, sizeof v);
  return (double)v;
}

/* A tensor of the file converted to dtype; NULL if the file has none. */
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
  return sqrt(square) / fmax(sqrt(total), 0.1); /* a single key's gradient, 0, is rounding noise of sums near 1 */
}

/* A case's arrays: inputs with their gradients, and results. */
struct tensor {
  char name[16];
  wn_dtype dtype;
  const wn_safetensors_entry *want; /* NULL: an input, not compared */
  void *data;
};
enum { TENSORS_MAX = 64 };
struct tensors {
  struct tensor t[TENSORS_MAX];
  int n;
};

static void point(wn_attention_arrays *a, size_t offset, void *data) {
  memcpy((char *)a + offset, &data, sizeof data);
}

static void add_input(struct tensors *all, const wn_safetensors *file, const char *name, wn_attention_arrays *a,
                      size_t offset) {
  struct tensor *t = &all->t[all->n++];
  snprintf(t->name, sizeof t->name, "%s", name);
  t->dtype = a->dtype, t->want = NULL, t->data = copy_as(file, name, a->dtype);
  point(a, offset, t->data);
}

static void add_result(struct tensors *all, const wn_safetensors *file, const char *prefix, const char *name,
                       wn_dtype dtype, wn_attention_arrays *a, size_t offset) {
  struct tensor *t = &all->t[all->n];
  snprintf(t->name, sizeof t->name, "%s%s", prefix, name);
  t->want = wn_safetensors_find(file, t->name);
  if (!t->want) return; /* some files lack F */
  all->n++;
  t->dtype = dtype;
  t->data = calloc((size_t)count_of(t->want), sizeof(double));
  point(a, offset, t->data);
}

/* threshold.control: a list of positions in a file, an array of flags in a call. */
static uint8_t *take_control(json_t *attention, int64_t B, int64_t T) {
  json_t *threshold = json_object_get(attention, "threshold"), *list = json_object_get(threshold, "control");
  if (!list) return NULL;
  uint8_t *control = calloc((size_t)(B * T), 1);
  for (size_t i = 0; i < json_array_size(list); i++)
    for (int64_t b = 0; b < B; b++) control[b * T + json_integer_value(json_array_get(list, i))] = 1;
  json_object_del(threshold, "control");
  return control;
}

static void compare(const wn_context *ctx, const char *path, const struct tensor *t, wn_dtype dtype, double limit) {
  const double error = relative_error(t->want, t->dtype, t->data);
  if (!(error <= (t->dtype == WN_I32 ? 0 : limit)))
    fail_msg("%s: %s of %s on %s: relative error %.3g, limit %.3g", path, t->name, wn_dtype_name(dtype),
             wn_context_backend(ctx), error, limit);
}

/* The call's evictions under the budget, which must equal the file's. The caller frees them. */
static int32_t *evictions(wn_context *ctx, const char *path, const wn_safetensors *file,
                          const wn_attention_config *config, wn_attention_arrays *a, int64_t budget) {
  wn_budgets budgets;
  budgets_init(&budgets);
  budgets.layers = 1, budgets.tokens = &budget;
  const wn_safetensors_entry *want = wn_safetensors_find(file, "evicted_at");
  a->evicted_groups = wn_attention_eviction_groups(config, a, &budgets);
  const int64_t n = a->B * a->evicted_groups * a->T;
  if (!want || count_of(want) != n) fail_msg("%s: evicted_at is missing, or of another shape", path);
  int32_t *evicted_at = malloc((size_t)n * sizeof *evicted_at);
  if (wn_attention_evictions(ctx, config, a, &budgets, evicted_at) != WN_OK) fail_msg("%s", wn_context_error(ctx));
  for (int64_t i = 0; i < n; i++)
    if (number_at(WN_I32, want->data, i) != (evicted_at[i] < a->T ? evicted_at[i] : a->T + 1))
      fail_msg("%s: key %lld goes before row %d, expected %g", path, (long long)i, evicted_at[i],
               number_at(WN_I32, want->data, i));
  a->evicted_at = evicted_at;
  return evicted_at;
}

#define AT(field) offsetof(wn_attention_arrays, field)
static void run_file(wn_context *ctx, const char *path, wn_dtype dtype, double limit) {
  wn_safetensors *file = NULL;
  if (wn_safetensors_open(ctx, path, &file) != WN_OK) fail_msg("%s", wn_context_error(ctx));
  const char *text = wn_safetensors_metadata(file, "case");
  assert_non_null(text);
  json_t *object = json_loads(text, 0, NULL);
  assert_non_null(object);
  wn_attention_arrays a = {.dtype = dtype};
  a.B = json_integer_value(json_object_get(object, "B"));
  a.T = json_integer_value(json_object_get(object, "T"));
  a.H = json_integer_value(json_object_get(object, "H"));
  a.Hkv = json_integer_value(json_object_get(object, "Hkv"));
  a.D = json_integer_value(json_object_get(object, "D"));
  uint8_t *control = take_control(json_object_get(object, "attention"), a.B, a.T);
  a.control = control;
  char *attention = json_dumps(json_object_get(object, "attention"), 0);
  int64_t budget = json_integer_value(json_object_get(object, "budget"));
  wn_attention_config config;
  if (wn_attention_config_parse(ctx, attention, &config) != WN_OK) fail_msg("%s", wn_context_error(ctx));
  free(attention);
  json_decref(object);

  static struct tensors all;
  all.n = 0;
  static const char *const given[] = {"q", "k", "v"};
  static const size_t places[][2] = {{AT(q), AT(dq)}, {AT(k), AT(dk)}, {AT(v), AT(dv)}};
  for (int i = 0; i < 3; i++) {
    add_input(&all, file, given[i], &a, places[i][0]);
    add_result(&all, file, "d", given[i], dtype, &a, places[i][1]);
  }
  add_input(&all, file, "dy", &a, AT(dy));
  add_input(&all, file, "doc_start", &a, AT(doc_start));
  add_input(&all, file, "key_count", &a, AT(key_count));
  add_result(&all, file, "", "y", dtype, &a, AT(y));
  wn_attention_slot slots[WN_ATTENTION_SLOTS_MAX];
  const int count = wn_attention_slots(&config, &a, slots);
  for (int i = 0; i < count; i++) {
    if (slots[i].is_input) {
      if (!wn_safetensors_find(file, slots[i].name)) fail_msg("%s: %s is missing", path, slots[i].name);
      add_input(&all, file, slots[i].name, &a, slots[i].offset);
      add_result(&all, file, "d", slots[i].name, dtype, &a, slots[i].gradient);
    } else {
      add_result(&all, file, "", slots[i].name, slots[i].dtype, &a, slots[i].offset);
    }
  }

  int32_t *evicted_at = budget ? evictions(ctx, path, file, &config, &a, budget) : NULL;
  const wn_status status = wn_attention_run(ctx, &config, &a);
  if (status == WN_ERR_UNSUPPORTED && CPU_MAY_LACK_TERMS && strstr(wn_context_error(ctx), "does not serve the term")) {
    lacking++;
  } else if (status != WN_OK) {
    fail_msg("%s: %s", path, wn_context_error(ctx));
  } else {
    for (int i = 0; i < all.n; i++)
      if (all.t[i].want) compare(ctx, path, &all.t[i], dtype, limit);
    /* One gradient alone: outputs that are NULL are not computed, and the others are the same. */
    wn_attention_arrays only = {.B = a.B, .T = a.T, .H = a.H, .Hkv = a.Hkv, .D = a.D, .dtype = dtype};
    only.q = a.q, only.k = a.k, only.v = a.v, only.dy = a.dy, only.doc_start = a.doc_start, only.control = a.control;
    only.key_count = a.key_count;
    only.evicted_at = a.evicted_at, only.evicted_groups = a.evicted_groups;
    for (int i = 0; i < count; i++)
      if (slots[i].is_input) memcpy((char *)&only + slots[i].offset, (char *)&a + slots[i].offset, sizeof(void *));
    struct tensor dk = {.name = "dk", .dtype = dtype, .want = wn_safetensors_find(file, "dk")};
    only.dk = dk.data = calloc((size_t)count_of(dk.want), sizeof(double));
    if (wn_attention_run(ctx, &config, &only) != WN_OK) fail_msg("%s: %s", path, wn_context_error(ctx));
    compare(ctx, path, &dk, dtype, limit);
    free(dk.data);
  }
  for (int i = 0; i < all.n; i++) free(all.t[i].data);
  free(control);
  free(evicted_at);
  wn_safetensors_close(file);
}

static int run_all(const char *backend, const char *isa, int threads, wn_dtype dtype, double limit) {
  wn_context *ctx = NULL;
  if (!context_with_isa(backend, isa, threads, &ctx)) return -1;
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
  if (lacking) print_message("%d files left out: backend %s lacks their terms\n", lacking, backend);
  lacking = 0;
  wn_context_destroy(ctx);
  return files;
}

static void test_ref_double(void **state) {
  (void)state;
  assert_int_equal(run_all("ref", NULL, 2, WN_F64, 1e-12), FILES);
}

static void test_ref_float(void **state) {
  (void)state;
  assert_int_equal(run_all("ref", NULL, 1, WN_F32, 5e-6), FILES);
}

static void test_cpu_avx2(void **state) {
  (void)state;
  const int files = run_all("cpu", ISA_OF_EIGHT, 2, WN_F32, 5e-6);
  if (files < 0) skip();
  assert_int_equal(files, FILES);
}

static void test_cpu_avx512(void **state) {
  (void)state;
  const int files = run_all("cpu", "avx512", 2, WN_F32, 5e-6);
  if (files < 0) skip();
  assert_int_equal(files, FILES);
}

static void test_cpu_plain(void **state) {
  (void)state;
  assert_int_equal(run_all("cpu", "ref", 1, WN_F32, 5e-6), FILES);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ref_double), cmocka_unit_test(test_ref_float),  cmocka_unit_test(test_cpu_plain),
      cmocka_unit_test(test_cpu_avx2),   cmocka_unit_test(test_cpu_avx512),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
