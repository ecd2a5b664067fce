/* Steps of many sessions together (winnow/session_group.h), compared with the same sessions one after the other:
 * tokens/s for 1 to 64 sessions with CONTEXT tokens each. JSON on standard output.
 *
 *   bench_together MODEL CONTEXT THREADS SECONDS [BUDGETS [POLICY]]
 *
 * The two alternate for SECONDS at each number of sessions; the median round counts. With one thread times are
 * processor time, on which other programs have less effect; otherwise wall-clock time. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <winnow/context.h>
#include <winnow/kv.h>
#include <winnow/model.h>
#include <winnow/session_group.h>

enum { MOST = 64, ROUNDS = 400, ROUNDS_LEAST = 3 };

static wn_context *ctx;
static clockid_t measured = CLOCK_MONOTONIC;

static void check(wn_status status) {
  if (status == WN_OK) return;
  fprintf(stderr, "bench_together: %s\n", wn_context_error(ctx));
  exit(1);
}

static double now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}
static double median(double *times, int n) {
  qsort(times, (size_t)n, sizeof *times, compare);
  return times[n / 2];
}

/* One token for each session. Returns the round's time. */
static double round_together(wn_session_group *group, wn_session_row *rows, int n) {
  const double start = now(measured);
  check(wn_session_group_feed(ctx, group, rows, n));
  return now(measured) - start;
}
static double round_apart(const wn_session_row *rows, int n) {
  const double start = now(measured);
  for (int i = 0; i < n; i++) check(wn_session_feed(ctx, rows[i].session, &rows[i].token, 1, 0, rows[i].logits));
  return now(measured) - start;
}

int main(int argc, char **argv) {
  if (argc < 5 || argc > 7 || atoll(argv[2]) < 1 || atoi(argv[3]) < 1) {
    fprintf(stderr, "usage: bench_together MODEL CONTEXT THREADS SECONDS [BUDGETS [POLICY]]\n");
    return 2;
  }
  static wn_session *sessions[MOST];
  static wn_session_row rows[MOST];
  static double times[2][ROUNDS];
  const int64_t context = atoll(argv[2]);
  const double seconds = atof(argv[4]);
  wn_model *model;
  wn_session_group *group;
  wn_session *start;
  wn_budgets budgets;
  check(wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = atoi(argv[3])}, &ctx));
  if (atoi(argv[3]) == 1) measured = CLOCK_PROCESS_CPUTIME_ID;
  check(wn_model_load(ctx, argv[1], NULL, &model));
  wn_budgets_init(&budgets, NULL);
  if (argc > 6 && wn_policy_find(NULL, argv[6], &budgets.policy) != WN_OK) return 2;
  if (argc > 5) check(wn_budgets_parse(ctx, wn_model_config_get(model), argv[5], &budgets));
  const int64_t V = wn_model_config_get(model)->vocab_size;
  float *logits = malloc((size_t)(MOST * V) * sizeof *logits);
  int32_t *prompt = malloc((size_t)context * sizeof *prompt);
  if (!logits || !prompt) return 1;
  for (int64_t i = 0; i < context; i++) prompt[i] = (int32_t)(i * 7919 % V);
  const wn_session_options options = {.size = sizeof options,
                                      .sequences = 1,
                                      .capacity = context + 2 * ROUNDS,
                                      .budgets = argc > 5 ? &budgets : NULL,
                                      .cache = WN_CACHE_AUTO};
  check(wn_session_group_create(ctx, model, MOST, &group));
  check(wn_session_create(ctx, model, &options, &start));
  check(wn_session_feed(ctx, start, prompt, context, 0, NULL));
  for (int i = 0; i < MOST; i++) check(wn_session_create(ctx, model, &options, &sessions[i]));
  for (int n = 1; n <= MOST; n *= 2) {
    int rounds = 0;
    for (int i = 0; i < n; i++) {
      check(wn_session_copy(ctx, sessions[i], start, NULL));
      rows[i] = (wn_session_row){.session = sessions[i], .token = (int32_t)(i * 31 % V), .logits = logits + i * V};
    }
    for (const double end = now(CLOCK_MONOTONIC) + seconds;
         rounds < ROUNDS && (rounds < ROUNDS_LEAST || now(CLOCK_MONOTONIC) < end); rounds++) {
      times[0][rounds] = round_together(group, rows, n);
      times[1][rounds] = round_apart(rows, n);
    }
    const double together = median(times[0], rounds), apart = median(times[1], rounds);
    printf(
        "%s{\"sessions\": %d, \"together\": %.1f, \"apart\": %.1f, \"ratio\": %.2f, \"step_ms\": %.2f, \"rounds\": %d}",
        n > 1 ? ",\n " : "[", n, n / together, n / apart, apart / together, 1e3 * together, rounds);
    fflush(stdout);
  }
  printf("]\n");
  for (int i = 0; i < MOST; i++) wn_session_destroy(sessions[i]);
  wn_session_destroy(start);
  wn_session_group_destroy(group);
  wn_budgets_clear(&budgets);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
  free(logits);
  free(prompt);
  return 0;
}
