/* What counting meaningful attention adds to a prefill: the same passes over the same text, with and without,
 * alternating.
 *
 *   bench_counting MODEL TEXT CONTEXT [REPEATS [THREADS]]
 *   bench_counting random TEXT CONTEXT ...      a model of 30 layers of SmolLM2-135M's shape with random weights
 *
 * A pass runs the model's layers on one sequence of CONTEXT tokens, without the output projection, as when a prompt is
 * read. Prints one JSON object with the medians of wall-clock time and of processor time (over all threads), and the
 * medians of the pairs' ratios of each. It counts for 11 shares, 0.5 to 1. If other programs run, use one thread and
 * processor time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops/attention.h"
#include "base/clock.h"
#include "model/workspace.h"
#include "winnow/tokenizer.h"

enum { TAUS = 11 };
static double taus[TAUS];
static int32_t *count;

static void on_attention(void *user, const struct wn_run *run, int64_t l, struct wn_attention *a) {
  (void)run, (void)l;
  if (!*(const bool *)user) return;
  a->look.n = TAUS, a->look.tau = taus, a->look.count = count;
}

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double processor_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static wn_context *ctx;
static void need(wn_status status) {
  if (status == WN_OK) return;
  fprintf(stderr, "bench_counting: %s\n", wn_context_error(ctx));
  exit(1);
}

static struct wn_model *random_model(int64_t context) {
  wn_model_config c;
  wn_model *model;
  wn_model_config_init(&c);
  c.vocab_size = 49152, c.context = context, c.layers = 30, c.width = 576, c.heads = 9, c.kv_heads = 3;
  c.ffn_width = 1536, c.position = WN_POS_ROPE, c.tied = true;
  need(wn_model_create(ctx, &c, 1, &model));
  return model;
}

int main(int argc, char **argv) {
  if (argc < 4) return fprintf(stderr, "usage: bench_counting MODEL|random TEXT CONTEXT [REPEATS [THREADS]]\n"), 2;
  const int64_t T = atoll(argv[3]);
  const int repeats = argc > 4 ? atoi(argv[4]) : 5;
  const wn_context_options options = {.size = sizeof options, .threads = argc > 5 ? atoi(argv[5]) : 0};
  need(wn_context_create(&options, &ctx));
  const bool random = !strcmp(argv[1], "random");
  wn_model *model;
  wn_tokenizer *tok;
  if (random)
    model = random_model(T);
  else
    need(wn_model_load(ctx, argv[1], NULL, &model));
  need(wn_tokenizer_load(ctx, random ? "bytes" : argv[1], &tok));
  FILE *f = fopen(argv[2], "rb");
  char *text = malloc(16 << 20);
  if (!f || !text || T < 1 || repeats < 1) return fprintf(stderr, "bench_counting: %s cannot be read\n", argv[2]), 1;
  const size_t bytes = fread(text, 1, 16 << 20, f);
  int32_t *ids;
  size_t n;
  need(wn_tokenizer_encode(ctx, tok, text, bytes, false, false, &ids, &n));
  if (n < (size_t)T) return fprintf(stderr, "bench_counting: the text has %zu tokens\n", n), 1;
  count = malloc((size_t)(T * model->config.heads * TAUS) * sizeof *count);
  /* [wall-clock, processor][without, with counting, ratio] of each repeat */
  double *seconds[2][3];
  for (int i = 0; i < 6; i++)
    if (!(seconds[i / 3][i % 3] = malloc((size_t)repeats * sizeof(double)))) return 1;
  if (!count) return 1;
  for (int i = 0; i < TAUS; i++) taus[i] = 0.5 + 0.05 * i;
  taus[TAUS - 1] = 1;
  bool counts = true;
  const struct wn_layer_observer observer = {.attention = on_attention, .user = &counts};
  const struct wn_workspace_options workspace = {.activation_dtype = WN_F32, .observer = &observer};
  wn_workspace *ws;
  need(wn_workspace_create(ctx, model, 1, T, &workspace, &ws));
  for (int i = -1; i < repeats; i++) /* the first pair warms up */
    for (int k = 0; k < 2; k++) {
      struct wn_run run;
      counts = k ^ (i & 1); /* the order within a pair alternates */
      need(wn_run_batch(&run, model, ws, &(struct wn_batch){.B = 1, .T = T, .tokens = ids}, NULL));
      run.observer = &observer;
      const double start = wn_seconds_now(), processor = processor_seconds();
      need(wn_run_stack(&run, ws));
      if (i < 0) continue;
      seconds[0][counts][i] = wn_seconds_now() - start;
      seconds[1][counts][i] = processor_seconds() - processor;
    }
  for (int c = 0; c < 2; c++) {
    for (int i = 0; i < repeats; i++) seconds[c][2][i] = seconds[c][1][i] / seconds[c][0][i];
    for (int k = 0; k < 3; k++) qsort(seconds[c][k], (size_t)repeats, sizeof(double), by_size);
  }
  const int mid = repeats / 2;
  printf("{\"model\": \"%s\", \"context\": %lld, \"threads\": %d, \"repeats\": %d, \"prefill_seconds\": %.4f, "
         "\"counting_seconds\": %.4f, \"ratio\": %.4f, \"prefill_processor_seconds\": %.4f, "
         "\"counting_processor_seconds\": %.4f, \"processor_ratio\": %.4f, \"processor_ratio_range\": [%.4f, %.4f]}\n",
         strrchr(argv[1], '/') ? strrchr(argv[1], '/') + 1 : argv[1], (long long)T, wn_context_threads(ctx), repeats,
         seconds[0][0][mid], seconds[0][1][mid], seconds[0][2][mid], seconds[1][0][mid], seconds[1][1][mid],
         seconds[1][2][mid], seconds[1][2][0], seconds[1][2][repeats - 1]);
  wn_workspace_destroy(ws);
  wn_tokens_free(ids);
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
  return 0;
}
