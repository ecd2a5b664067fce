/* winnow bench train: whole training steps on random tokens. */
#include <stdio.h>
#include <stdlib.h>
#include "bench.h"

struct bench_train {
  struct bench bench;
  const char *config;
  struct cli_list sets;
  wn_recipe recipe;
  wn_model *model;
  wn_trainer *trainer;
  int32_t *tokens;       /* [2 n] inputs and targets of a step, then [B,S] inputs of an encoder */
  size_t n, token_count; /* n: tokens per step */
  struct samples *steps;
  wn_memory_info memory;
  unsigned long long allocations; /* allocations in the last step */
  wn_train_progress progress;
};

static const struct cli_option bench_train_options[] = {
    CLI_OPTION(struct bench_train, config, "config", "FILE", "the recipe, JSON"),
    CLI_OPTION(struct bench_train, sets, "set", "KEY=VALUE", "changes one key of the recipe"),
    BENCH_OPTIONS(struct bench_train, bench)};

static const struct cli_spec bench_train_spec = {
    .command = "winnow bench train",
    .summary = "Times training steps (forward, backward, clipping, optimizer) on random tokens.",
    CLI_TABLE(bench_train_options),
    .epilog = "Recipe keys, for --config and --set: winnow train --help"};

static wn_status bench_train_open(struct bench_train *t) {
  const wn_train_config *train = &t->recipe.train;
  const wn_model_config *model = &t->recipe.model;
  const size_t rows = (size_t)(train->batch * train->accumulate);
  const int64_t S = model->encoder.layers > 0 ? t->recipe.data.input_length : 0;
  wn_status status = wn_model_create(t->bench.ctx, model, train->seed, &t->model);
  if (status == WN_OK) status = wn_trainer_create(t->bench.ctx, t->model, train, &t->trainer);
  if (status != WN_OK) return status;
  t->n = rows * (size_t)(train->context ? train->context : model->context);
  t->token_count = 2 * t->n + rows * (size_t)S;
  t->tokens = malloc(t->token_count * sizeof *t->tokens);
  if (t->tokens && S > 0) wn_trainer_set_inputs(t->trainer, t->tokens + 2 * t->n, NULL, S);
  return WN_OK;
}

static wn_status bench_train_time(struct bench_train *t) {
  uint64_t seed = 1;
  wn_status status = WN_OK;
  for (int64_t i = 0; status == WN_OK && i < t->bench.warmup + t->bench.repeats; i++) {
    bench_random_tokens(t->tokens, t->token_count, t->recipe.model.vocab_size, &seed);
    wn_memory_info_get(&t->memory);
    t->allocations = t->memory.total_allocations;
    const double start = cli_seconds();
    status = wn_trainer_step(t->bench.ctx, t->trainer, t->tokens, t->tokens + t->n, NULL, &t->progress);
    if (status == WN_OK) status = wn_context_wait(t->bench.ctx);
    const double end = cli_seconds();
    if (i >= t->bench.warmup) t->steps->seconds[t->steps->count++] = end - start;
  }
  wn_memory_info_get(&t->memory);
  t->allocations = t->memory.total_allocations - t->allocations;
  return status;
}

static int bench_train_report(const struct bench_train *t) {
  const double m = bench_median(t->steps, NULL, NULL, NULL), rate = m > 0 ? (double)t->n / m : 0;
  const double parameters = (double)wn_model_parameter_count(t->model);
  if (t->bench.common.json) {
    json_t *j = bench_header(&t->bench, "train");
    json_object_set_new(j, "model", bench_model_json(t->bench.ctx, t->model));
    json_object_set_new(j, "parameters", json_integer((json_int_t)parameters));
    json_object_set_new(j, "tokens_per_step", json_integer((json_int_t)t->n));
    json_object_set_new(j, "step", bench_samples_json(t->steps));
    json_object_set_new(j, "tokens_per_second", json_real(rate));
    json_object_set_new(j, "allocations_in_last_step", json_integer((json_int_t)t->allocations));
    json_object_set_new(j, "workspace_bytes", json_integer((json_int_t)t->progress.workspace_bytes));
    json_object_set_new(j, "memory_bytes", json_integer((json_int_t)t->progress.recurrence_bytes));
    json_object_set_new(j, "peak_bytes", json_integer((json_int_t)t->memory.peak_bytes));
    return bench_print_json(t->bench.ctx, j);
  }
  char text[64];
  printf("train, %s parameters, %zu tokens per step, %d threads, %s\n", cli_count(parameters), t->n,
         wn_context_threads(t->bench.ctx), wn_context_backend(t->bench.ctx));
  snprintf(text, sizeof text, "%.0f tok/s", rate);
  bench_print_samples("step", t->steps, text);
  printf("workspace %s, library memory %s, peak memory %s\n", cli_bytes((double)t->progress.workspace_bytes),
         cli_bytes((double)t->memory.peak_bytes), cli_bytes((double)cli_peak_resident()));
  return 0;
}

static int bench_train_run(struct bench_train *t) {
  int code = cli_recipe_load(t->bench.ctx, t->config, &t->sets, &t->recipe);
  if (!code) code = bench_need_vocabulary(bench_train_spec.command, &t->recipe, "");
  if (code) return code;
  wn_status status = bench_train_open(t);
  t->steps = calloc(1, sizeof *t->steps);
  if (status == WN_OK && (!t->tokens || !t->steps)) return cli_error("out of memory");
  if (status == WN_OK) status = bench_train_time(t);
  return status == WN_OK ? bench_train_report(t) : cli_fail(t->bench.ctx, status);
}

int bench_train(int argc, char **argv) {
  struct bench_train t = {
      .bench = {.common = CLI_COMMON_DEFAULTS, .warmup = 2, .repeats = 7, .argc = argc, .argv = argv}};
  int code = cli_parse(&bench_train_spec, argc, argv, &t, NULL);
  if (code == CLI_GO) code = cli_context_open(&t.bench.common, &t.bench.ctx);
  if (!code) code = bench_train_run(&t);
  wn_trainer_destroy(t.trainer);
  wn_model_destroy(t.model);
  free(t.tokens);
  free(t.steps);
  wn_context_destroy(t.bench.ctx);
  cli_list_clear(&t.sets);
  return code;
}
