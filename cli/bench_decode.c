/* winnow bench decode: token by token after prompts of several lengths. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "bench.h"
#include "budgets.h"

enum { LENGTHS_MAX = 64 };

struct bench_decode {
  struct bench bench;
  const char *config, *checkpoint, *weights, *contexts;
  struct cli_list sets;
  int64_t batch;
  struct cli_budgets budgets;
  wn_budgets held; /* the budgets for this model */
  wn_model *model;
  wn_tokenizer *tok; /* NULL: no method asks in words */
  json_t *results;
};

/* Measurements at one length. */
struct decoding {
  int64_t length;
  int32_t *prompt, *next; /* [B,length], [B] */
  float *logits;          /* [B,V] */
  struct samples *steps;
  wn_session *session;
  double prefill; /* seconds */
  wn_memory_info before, after;
};

static const struct cli_option bench_decode_options[] = {
    CLI_OPTION(struct bench_decode, checkpoint, "model", "DIR", "a checkpoint instead of a recipe (or as an argument)"),
    CLI_OPTION(struct bench_decode, config, "config", "FILE", "the recipe of a model with random parameters"),
    CLI_OPTION(struct bench_decode, sets, "set", "KEY=VALUE", "changes one key of the recipe"),
    CLI_OPTION(struct bench_decode, contexts, "contexts", "N,N,...", "tokens in the cache before timing"),
    CLI_OPTION(struct bench_decode, batch, "batch", "N", "sequences decoded together", .min = 1, .max = 4096),
    CLI_BUDGETS_OPTIONS(struct bench_decode, budgets),
    CLI_CACHE_OPTION(struct bench_decode, budgets),
    CLI_WEIGHTS_OPTION(struct bench_decode, weights),
    BENCH_OPTIONS(struct bench_decode, bench)};

static const struct cli_spec bench_decode_spec = {.command = "winnow bench decode",
                                                  .summary =
                                                      "Times token-by-token decoding after prompts of several lengths.",
                                                  CLI_TABLE(bench_decode_options),
                                                  CLI_OPTIONAL("[DIR]"),
                                                  .epilog = "Recipe keys, for --config and --set: winnow train --help"};

/* For an encoder-decoder: encodes inputs of full length; this counts as part of the prompt's time. */
static wn_status bench_encode(wn_context *ctx, wn_session *session, const wn_model_config *config, int64_t batch,
                              uint64_t *seed) {
  const size_t n = (size_t)(batch * config->encoder.context);
  int32_t *inputs = malloc(n * sizeof *inputs);
  if (!inputs) return WN_ERR_MEMORY;
  bench_random_tokens(inputs, n, config->vocab_size, seed);
  const wn_status status = wn_session_encode(ctx, session, inputs, NULL, config->encoder.context);
  free(inputs);
  return status;
}

static wn_status bench_decode_time(const struct bench_decode *d, struct decoding *x) {
  const wn_model_config *config = wn_model_config_get(d->model);
  wn_context *ctx = d->bench.ctx;
  uint64_t seed = 1;
  const int64_t total = d->bench.warmup + d->bench.repeats;
  const wn_session_options options = {.size = sizeof options,
                                      .sequences = d->batch,
                                      .capacity = x->length + total,
                                      .budgets = &d->held,
                                      .cache = d->held.cache};
  bench_random_tokens(x->prompt, (size_t)(d->batch * x->length), config->vocab_size, &seed);
  wn_status status = wn_session_create(ctx, d->model, &options, &x->session);
  if (status == WN_OK && d->tok) status = wn_session_repeat_with(ctx, x->session, d->tok, NULL);
  double start = cli_seconds();
  if (status == WN_OK && config->encoder.layers > 0) status = bench_encode(ctx, x->session, config, d->batch, &seed);
  if (status == WN_OK) status = wn_session_read_context(ctx, x->session, x->prompt, x->length, x->logits);
  if (status == WN_OK) status = wn_context_wait(ctx);
  x->prefill = cli_seconds() - start;
  wn_memory_info_get(&x->before);
  for (int64_t i = 0; status == WN_OK && i < total; i++) {
    bench_random_tokens(x->next, (size_t)d->batch, config->vocab_size, &seed);
    start = cli_seconds();
    status = wn_session_feed(ctx, x->session, x->next, 1, 0, x->logits);
    if (status == WN_OK) status = wn_context_wait(ctx);
    if (i >= d->bench.warmup) x->steps->seconds[x->steps->count++] = cli_seconds() - start;
  }
  wn_memory_info_get(&x->after);
  return status;
}

static void bench_decode_report(const struct bench_decode *d, const struct decoding *x) {
  const double m = bench_median(x->steps, NULL, NULL, NULL), rate = m > 0 ? (double)d->batch / m : 0;
  const double prefill_rate = x->prefill > 0 ? (double)(d->batch * x->length) / x->prefill : 0;
  const size_t bytes = wn_session_kv_bytes(x->session);
  char what[32], text[96];
  if (d->bench.common.json) {
    const uint64_t allocations = x->after.total_allocations - x->before.total_allocations;
    json_array_append_new(d->results,
                          json_pack("{s:I, s:f, s:f, s:f, s:I, s:I, s:o}", "context", (json_int_t)x->length,
                                    "tokens_per_second", rate, "prefill_seconds", x->prefill,
                                    "prefill_tokens_per_second", prefill_rate, "kv_bytes", (json_int_t)bytes,
                                    "allocations", (json_int_t)allocations, "step", bench_samples_json(x->steps)));
    return;
  }
  snprintf(what, sizeof what, "at %" PRId64, x->length);
  snprintf(text, sizeof text, "%.1f tok/s, prefill %.0f tok/s, cache %s", rate, prefill_rate, cli_bytes((double)bytes));
  bench_print_samples(what, x->steps, text);
}

static int bench_decode_at(const struct bench_decode *d, int64_t length) {
  const int64_t V = wn_model_config_get(d->model)->vocab_size;
  struct decoding x = {.length = length};
  int code = 0;
  x.prompt = malloc((size_t)(d->batch * length) * sizeof *x.prompt);
  x.next = malloc((size_t)d->batch * sizeof *x.next);
  x.logits = malloc((size_t)(d->batch * V) * sizeof *x.logits);
  x.steps = calloc(1, sizeof *x.steps);
  if (!x.prompt || !x.next || !x.logits || !x.steps) code = cli_error("out of memory");
  const wn_status status = code ? WN_OK : bench_decode_time(d, &x);
  if (status != WN_OK) code = cli_fail(d->bench.ctx, status);
  if (!code) bench_decode_report(d, &x);
  wn_session_destroy(x.session);
  free(x.prompt);
  free(x.next);
  free(x.logits);
  free(x.steps);
  return code;
}

static int bench_decode_load(struct bench_decode *d) {
  wn_context *ctx = d->bench.ctx;
  wn_status status = WN_OK;
  int code = 0;
  if (d->checkpoint) {
    status = cli_model_load(ctx, d->checkpoint, NULL, d->weights, NULL, &d->model);
  } else {
    wn_recipe recipe;
    code = cli_recipe_load(ctx, d->config, &d->sets, &recipe);
    if (!code) code = bench_need_vocabulary(bench_decode_spec.command, &recipe, ", or --model DIR");
    if (!code) status = wn_model_create(ctx, &recipe.model, recipe.train.seed, &d->model);
  }
  if (!code && status != WN_OK) code = cli_fail(ctx, status);
  if (!code) code = cli_budgets_load(ctx, &d->budgets, d->model, &d->held);
  return code ? code : cli_tokenizer_to_repeat(ctx, &d->held, d->checkpoint, d->model, &d->tok);
}

static int bench_decode_json(const struct bench_decode *d) {
  json_t *j = bench_header(&d->bench, "decode");
  json_object_set_new(j, "model", bench_model_json(d->bench.ctx, d->model));
  json_object_set_new(j, "parameters", json_integer((json_int_t)wn_model_parameter_count(d->model)));
  json_object_set_new(j, "batch", json_integer(d->batch));
  json_object_set_new(j, "cache", json_string(wn_cache_format_name(d->held.cache)));
  if (d->held.layers > 0) {
    json_object_set_new(j, "policy", json_string(wn_policy_name(d->held.policy)));
    json_object_set_new(j, "budget_tokens", json_integer(wn_budgets_total(&d->held)));
  }
  json_object_set_new(j, "results", json_incref(d->results));
  return bench_print_json(d->bench.ctx, j);
}

static int bench_decode_run(struct bench_decode *d) {
  int64_t lengths[LENGTHS_MAX];
  int count, code = cli_number_list(bench_decode_spec.command, "contexts", d->contexts, "lengths", 1 << 24, lengths,
                                    LENGTHS_MAX, &count);
  if (code == CLI_GO) code = bench_decode_load(d);
  if (!code && !d->bench.common.json)
    printf("decode, %s parameters, batch %" PRId64 ", %d threads, %s\n",
           cli_count((double)wn_model_parameter_count(d->model)), d->batch, wn_context_threads(d->bench.ctx),
           wn_context_backend(d->bench.ctx));
  for (int i = 0; i < count && !code; i++) code = bench_decode_at(d, lengths[i]);
  return !code && d->bench.common.json ? bench_decode_json(d) : code;
}

int bench_decode(int argc, char **argv) {
  struct bench_decode d = {
      .bench = {.common = CLI_COMMON_DEFAULTS, .warmup = 4, .repeats = 32, .argc = argc, .argv = argv},
      .contexts = "64,256,448",
      .batch = 1,
      .budgets = CLI_BUDGETS_DEFAULTS,
      .results = json_array()};
  int code = cli_parse_model(&bench_decode_spec, argc, argv, &d, false, &d.checkpoint);
  if (code == CLI_GO && d.checkpoint && (d.config || d.sets.count))
    code = cli_usage_error(bench_decode_spec.command, "--model excludes --config and --set");
  if (code == CLI_GO && d.weights && !d.checkpoint)
    code = cli_usage_error(bench_decode_spec.command, "--weights is for a --model");
  if (code == CLI_GO) code = cli_budgets_check(bench_decode_spec.command, &d.budgets);
  if (code == CLI_GO) code = cli_context_open(&d.bench.common, &d.bench.ctx);
  if (!code) code = bench_decode_run(&d);
  json_decref(d.results);
  wn_budgets_clear(&d.held);
  wn_tokenizer_destroy(d.tok);
  wn_model_destroy(d.model);
  wn_context_destroy(d.bench.ctx);
  cli_list_clear(&d.sets);
  return code;
}
