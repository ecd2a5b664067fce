/* Steps of a server's kind: sessions of one sequence that draw a token each, together (wn_generation_step_together).
 * Nothing but tokens comes back to the host. The model stays for the next question. */
#include "decode.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <winnow/generate.h>
#include <winnow/kv.h>
#include <winnow/measure.h>
#include <winnow/model.h>

enum { SESSIONS = 64, STEPS = 256, FIRST = 6 /* steps that nobody times: tokens before, graphs */ };

static char *loaded;
static wn_model *model;

struct decode {
  const char *path, *budgets, *policy;
  int sessions, context, steps;
  wn_budgets held;
  wn_session_group *group;
  wn_session *start, *each[SESSIONS];
  wn_generation_turn turns[SESSIONS];
  double seconds[STEPS];
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *x, const void *y) {
  const double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}

void decode_clear(void) {
  wn_model_destroy(model);
  free(loaded);
  model = NULL, loaded = NULL;
}

static wn_status load(wn_context *ctx, const struct decode *d, json_t *out) {
  if (loaded && !strcmp(loaded, d->path)) return WN_OK;
  decode_clear();
  const double begin = now();
  const wn_status status = wn_model_load(ctx, d->path, NULL, &model);
  if (status != WN_OK) return status;
  loaded = strdup(d->path);
  json_object_set_new(out, "load_seconds", json_real(now() - begin));
  return WN_OK;
}

/* One session reads the prompt, the others get its cache. */
static wn_status prepare(wn_context *ctx, struct decode *d, json_t *out) {
  const int64_t V = wn_model_config_get(model)->vocab_size;
  wn_status status = wn_session_group_create(ctx, model, d->sessions, &d->group);
  wn_session_options options = {.size = sizeof options,
                                .sequences = 1,
                                .capacity = d->context + FIRST + d->steps + 2,
                                .budgets = d->held.layers > 0 ? &d->held : NULL,
                                .cache = WN_CACHE_AUTO};
  if (status == WN_OK) status = wn_session_create(ctx, model, &options, &d->start);
  options.group = d->group;
  for (int i = 0; i < d->sessions && status == WN_OK; i++)
    status = wn_session_create(ctx, model, &options, &d->each[i]);
  int32_t *prompt = calloc((size_t)d->context, sizeof *prompt);
  for (int i = 0; prompt && i < d->context; i++) prompt[i] = (int32_t)((int64_t)i * 7919 % V);
  for (int round = 0; round < 2 && prompt && status == WN_OK; round++) { /* the second is timed */
    wn_session_reset(d->start);
    const double begin = now();
    status = wn_session_feed(ctx, d->start, prompt, d->context, 0, NULL);
    if (status == WN_OK) status = wn_context_wait(ctx);
    json_object_set_new(out, "prompt_seconds", json_real(now() - begin));
  }
  free(prompt);
  for (int i = 0; i < d->sessions && status == WN_OK; i++) status = wn_session_copy(ctx, d->each[i], d->start, NULL);
  json_object_set_new(out, "cache_bytes", json_integer(d->start ? (json_int_t)wn_session_kv_bytes(d->start) : 0));
  return status;
}

static wn_status steps(wn_context *ctx, struct decode *d) {
  int32_t first[SESSIONS];
  wn_status status = WN_OK;
  for (int i = 0; i < d->sessions && status == WN_OK; i++) {
    wn_generate_options o;
    wn_generate_options_init(&o, sizeof o);
    first[i] = i;
    o.prompt = &first[i], o.prompt_count = 1, o.max_tokens = FIRST + d->steps;
    o.sampling.seed = (uint64_t)i;
    status = wn_generation_create(ctx, d->each[i], &o, &d->turns[i].generation);
  }
  for (int s = 0; s < FIRST + d->steps && status == WN_OK; s++) {
    const double begin = now();
    status = wn_generation_step_together(ctx, d->group, d->turns, d->sessions, d->sessions);
    if (s >= FIRST) d->seconds[s - FIRST] = now() - begin;
  }
  return status;
}

wn_status decode_answer(wn_context *ctx, json_t *question, json_t *out) {
  struct decode d = {.budgets = "", .policy = "streaming", .sessions = 1, .context = 512, .steps = 32};
  const char *what;
  if (json_unpack(question, "{s:s, s:s, s?i, s?i, s?i, s?s, s?s}", "do", &what, "model", &d.path, "sessions",
                  &d.sessions, "context", &d.context, "steps", &d.steps, "budgets", &d.budgets, "policy",
                  &d.policy) != 0 ||
      d.sessions < 1 || d.sessions > SESSIONS || d.context < 1 || d.steps < 1 || d.steps > STEPS) {
    json_object_set_new(out, "error_line", json_string("the question is not understood"));
    return WN_OK;
  }
  wn_status status = load(ctx, &d, out);
  wn_budgets_init(&d.held, NULL);
  if (status == WN_OK && *d.budgets && wn_policy_find(NULL, d.policy, &d.held.policy) != WN_OK) {
    json_object_set_new(out, "error_line", json_string("no such policy"));
    return WN_OK;
  }
  if (status == WN_OK && *d.budgets) status = wn_budgets_parse(ctx, wn_model_config_get(model), d.budgets, &d.held);
  if (status == WN_OK) status = prepare(ctx, &d, out);
  if (status == WN_OK) status = steps(ctx, &d);
  if (status == WN_OK) {
    qsort(d.seconds, (size_t)d.steps, sizeof *d.seconds, ascending);
    const double median = d.seconds[d.steps / 2];
    json_object_set_new(out, "seconds", json_real(median));
    json_object_set_new(out, "spread", json_real((d.seconds[3 * d.steps / 4] - d.seconds[d.steps / 4]) / median));
    json_object_set_new(out, "repeats", json_integer(d.steps));
  }
  for (int i = 0; i < d.sessions; i++) {
    wn_generation_destroy(d.turns[i].generation);
    wn_session_destroy(d.each[i]);
  }
  wn_session_destroy(d.start);
  wn_session_group_destroy(d.group);
  wn_budgets_clear(&d.held);
  return status;
}
