/* What a change of a recipe costs: training steps with and without it, alternating. JSON on standard output.
 *
 *   bench_paired --config FILE [--set KEY=VALUE]... --change KEY=VALUE [--change KEY=VALUE]...
 *                [--pairs N] [--threads N]
 *
 * Both models are in one process and get the same random tokens. A pair is one step of each; which one goes first
 * alternates. The result is the median over the pairs of changed / unchanged, with quartiles, for wall-clock time and
 * for processor time, which excludes other programs and the kernel's throttling of real-time processes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <winnow/winnow.h>

enum { SETS_MAX = 64, PAIRS_MAX = 1000, WARMUP = 2 };

static wn_context *ctx;

static void require(bool ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "bench_paired: %s: %s\n", what, ctx ? wn_context_error(ctx) : "");
  exit(1);
}

enum { PASSED, USED, CLOCKS };

static void now(double out[CLOCKS]) {
  const clockid_t clocks[CLOCKS] = {CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID};
  for (int c = 0; c < CLOCKS; c++) {
    struct timespec t;
    clock_gettime(clocks[c], &t);
    out[c] = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
  }
}

struct side {
  wn_recipe recipe;
  wn_model *model;
  wn_trainer *trainer;
};

static void side_init(struct side *s, const char *config, const char *const *sets, int count) {
  require(wn_recipe_load(ctx, config, sets, count, &s->recipe) == WN_OK, "recipe");
  require(wn_model_create(ctx, &s->recipe.model, s->recipe.train.seed, &s->model) == WN_OK, "model");
  require(wn_trainer_create(ctx, s->model, &s->recipe.train, &s->trainer) == WN_OK, "trainer");
}

static void step(struct side *s, const int32_t *tokens, size_t n, double seconds[CLOCKS]) {
  double begin[CLOCKS];
  now(begin);
  require(wn_trainer_step(ctx, s->trainer, tokens, tokens + n, NULL, NULL) == WN_OK, "step");
  now(seconds);
  for (int c = 0; c < CLOCKS; c++) seconds[c] -= begin[c];
}

static int ascending(const void *x, const void *y) {
  const double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}

int main(int argc, char **argv) {
  const char *config = NULL, *sets[SETS_MAX], *changes[SETS_MAX];
  int set_count = 0, change_count = 0, pairs = 15, threads = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!strcmp(argv[i], "--config")) config = argv[i + 1];
    if (!strcmp(argv[i], "--set") && set_count < SETS_MAX) sets[set_count++] = argv[i + 1];
    if (!strcmp(argv[i], "--change") && change_count < SETS_MAX) changes[change_count++] = argv[i + 1];
    if (!strcmp(argv[i], "--pairs")) pairs = atoi(argv[i + 1]);
    if (!strcmp(argv[i], "--threads")) threads = atoi(argv[i + 1]);
  }
  if (!config || !change_count || set_count + change_count > SETS_MAX || pairs < 1 || pairs > PAIRS_MAX) {
    fprintf(stderr, "usage: bench_paired --config FILE [--set KEY=VALUE]... --change KEY=VALUE... [--pairs N] "
                    "[--threads N]\n");
    return 2;
  }
  wn_context_options options = {.size = sizeof options, .threads = threads};
  require(wn_context_create(&options, &ctx) == WN_OK, "context");
  struct side plain, changed;
  side_init(&plain, config, sets, set_count);
  memcpy(sets + set_count, changes, (size_t)change_count * sizeof *changes);
  side_init(&changed, config, sets, set_count + change_count);
  const wn_recipe *r = &plain.recipe;
  const int64_t T = r->train.context ? r->train.context : r->model.context;
  const size_t n = (size_t)(r->train.batch * r->train.accumulate) * (size_t)T;
  int32_t *tokens = malloc(2 * n * sizeof *tokens);
  require(tokens != NULL, "memory");
  uint64_t state = 1;
  static double ratio[CLOCKS][PAIRS_MAX], before[CLOCKS][PAIRS_MAX], after[CLOCKS][PAIRS_MAX];
  for (int i = -WARMUP; i < pairs; i++) {
    for (size_t k = 0; k < 2 * n; k++) {
      state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
      tokens[k] = (int32_t)((state >> 33) % (uint64_t)r->model.vocab_size);
    }
    double a[CLOCKS], b[CLOCKS];
    if (i % 2 == 0) step(&plain, tokens, n, a);
    step(&changed, tokens, n, b);
    if (i % 2) step(&plain, tokens, n, a);
    for (int c = 0; i >= 0 && c < CLOCKS; c++) before[c][i] = a[c], after[c][i] = b[c], ratio[c][i] = b[c] / a[c];
  }
  printf("{\"threads\": %d, \"backend\": \"%s\", \"parameters\": %lld, \"tokens_per_step\": %zu, \"pairs\": %d",
         wn_context_threads(ctx), wn_context_backend(ctx), (long long)wn_model_parameter_count(plain.model), n, pairs);
  for (int c = 0; c < CLOCKS; c++) {
    qsort(ratio[c], (size_t)pairs, sizeof ratio[c][0], ascending);
    qsort(before[c], (size_t)pairs, sizeof before[c][0], ascending);
    qsort(after[c], (size_t)pairs, sizeof after[c][0], ascending);
    printf(",\n \"%s\": {\"unchanged_ms\": %.2f, \"changed_ms\": %.2f, \"ratio\": %.4f, \"ratio_quartiles\": [%.4f, "
           "%.4f]}",
           c == PASSED ? "time" : "processor_time", 1e3 * before[c][pairs / 2], 1e3 * after[c][pairs / 2],
           ratio[c][pairs / 2], ratio[c][pairs / 4], ratio[c][3 * pairs / 4]);
  }
  printf("}\n");
  wn_trainer_destroy(plain.trainer), wn_trainer_destroy(changed.trainer);
  wn_model_destroy(plain.model), wn_model_destroy(changed.model);
  free(tokens);
  wn_context_destroy(ctx);
  return 0;
}
