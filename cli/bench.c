/* What the subcommands of winnow bench share (bench.h). */
#include "bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <time.h>

static int bench_order(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double bench_median(const struct samples *s, double *min, double *max, double *spread) {
  if (s->count == 0) return 0;
  double *sorted = malloc((size_t)s->count * sizeof *sorted);
  if (!sorted) return 0;
  memcpy(sorted, s->seconds, (size_t)s->count * sizeof *sorted);
  qsort(sorted, (size_t)s->count, sizeof *sorted, bench_order);
  int n = s->count;
  double m = n % 2 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
  if (min) *min = sorted[0];
  if (max) *max = sorted[n - 1];
  if (spread) *spread = m > 0 ? (sorted[(3 * (n - 1) + 2) / 4] - sorted[(n - 1) / 4]) / m : 0;
  free(sorted);
  return m;
}

json_t *bench_samples_json(const struct samples *s) {
  double min = 0, max = 0, spread = 0, m = bench_median(s, &min, &max, &spread);
  json_t *array = json_array();
  for (int i = 0; i < s->count; i++) json_array_append_new(array, json_real(s->seconds[i]));
  return json_pack("{s:f, s:f, s:f, s:f, s:i, s:o}", "median", m, "min", min, "max", max, "spread_iqr_over_median",
                   spread, "repeats", s->count, "seconds", array);
}

void bench_print_samples(const char *what, const struct samples *s, const char *rate) {
  double min = 0, max = 0, spread = 0, m = bench_median(s, &min, &max, &spread);
  printf("%-12s %10.3f ms  (min %.3f, max %.3f, spread %.1f%%, %d repeats)  %s\n", what, 1e3 * m, 1e3 * min, 1e3 * max,
         100 * spread, s->count, rate);
}

json_t *bench_header(const struct bench *b, const char *what) {
  wn_build_info info;
  if (wn_build_info_get(b->ctx, &info) != WN_OK) return NULL;
  struct utsname os = {0};
  struct sysinfo memory = {0};
  uname(&os);
  sysinfo(&memory);
  char date[32] = "";
  time_t now = time(NULL);
  struct tm utc;
  if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  json_t *command = json_array(), *libraries = json_array();
  for (int i = 0; i < b->argc; i++) json_array_append_new(command, cli_text(b->argv[i]));
  for (int i = 0; info.libraries && info.libraries[i]; i++)
    json_array_append_new(libraries, json_string(info.libraries[i]));
  return json_pack("{s:s, s:s, s:o, s:s, s:s, s:s, s:s, s:s, s:i, s:s, s:{s:s, s:i, s:I, s:s, s:s}, s:o}", "bench",
                   what, "date", date, "arguments", command, "version", info.version, "commit", info.commit, "compiler",
                   info.compiler, "build_type", info.build_type, "isa", info.isa, "threads", wn_context_threads(b->ctx),
                   "backend", wn_context_backend(b->ctx), "machine", "cpu", info.cpu_name, "cpus", get_nprocs(),
                   "memory_bytes", (json_int_t)((double)memory.totalram * memory.mem_unit), "system", os.sysname,
                   "release", os.release, "libraries", libraries);
}

/* splitmix64: inputs only need to be well spread and reproducible. */
static uint64_t bench_random(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

float *bench_random_floats(size_t n, uint64_t seed) {
  float *x = malloc((n ? n : 1) * sizeof *x);
  for (size_t i = 0; x && i < n; i++) {
    double u = ((double)(bench_random(&seed) >> 11) + 0.5) * 0x1p-53, v = (double)(bench_random(&seed) >> 11) * 0x1p-53;
    x[i] = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
  }
  return x;
}

void bench_random_tokens(int32_t *out, size_t n, int64_t V, uint64_t *seed) {
  for (size_t i = 0; i < n; i++) out[i] = (int32_t)(bench_random(seed) % (uint64_t)V);
}

int bench_print_json(wn_context *ctx, json_t *j) {
  unsigned long long live, peak;
  if (wn_context_memory(ctx, &live, &peak) == WN_OK)
    json_object_set_new(j, "backend_peak_bytes", json_integer((json_int_t)peak));
  json_object_set_new(j, "peak_resident_bytes", json_integer((json_int_t)cli_peak_resident()));
  return cli_print_json(j);
}

json_t *bench_model_json(wn_context *ctx, const wn_model *model) {
  char *text = NULL;
  if (wn_model_config_json(ctx, wn_model_config_get(model), &text) != WN_OK) return json_null();
  json_t *j = json_loads(text, 0, NULL);
  wn_text_free(text);
  return j ? j : json_null();
}

int bench_need_vocabulary(const char *command, const wn_recipe *recipe, const char *or_else) {
  if (recipe->model.vocab_size > 0) return 0;
  return cli_usage_error(command, "the vocabulary has no size: give --set model.vocab_size=N%s", or_else);
}
