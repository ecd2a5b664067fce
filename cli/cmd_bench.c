/* winnow bench: times operations, training steps and decoding. Each figure is the median of repeats after a warm-up,
 * printed with its spread; --json adds machine, build, command line and every sample. */
#include "cmd.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <time.h>
#include <winnow/attention.h>
#include <winnow/train.h>
#include "args.h"
#include "budgets.h"
#include "recipe.h"
#include "ui.h"

enum { MAX_SAMPLES = 10000 };

struct samples {
  double seconds[MAX_SAMPLES];
  int count;
};

struct bench {
  struct cli_common common;
  wn_context *ctx;
  int64_t warmup, repeats;
  int argc;
  char **argv;
};
/* clang-format off */
#define BENCH_OPTIONS(b)                                                                                         \
  {.name = "warmup", .type = CLI_INT, .out = &(b)->warmup, .metavar = "N", .help = "runs before timing", .max = 1000}, \
  {.name = "repeats", .type = CLI_INT, .out = &(b)->repeats, .metavar = "N", .help = "timed runs", .min = 1, .max = MAX_SAMPLES}, \
  CLI_COMMON_OPTIONS(&(b)->common)
/* clang-format on */

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Median; min, max and spread (interquartile range over median) where asked for. */
static double median(const struct samples *s, double *min, double *max, double *spread) {
  if (s->count == 0) return 0;
  double *sorted = malloc((size_t)s->count * sizeof *sorted);
  if (!sorted) return 0;
  memcpy(sorted, s->seconds, (size_t)s->count * sizeof *sorted);
  qsort(sorted, (size_t)s->count, sizeof *sorted, compare);
  int n = s->count;
  double m = n % 2 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
  if (min) *min = sorted[0];
  if (max) *max = sorted[n - 1];
  if (spread) *spread = m > 0 ? (sorted[(3 * (n - 1) + 2) / 4] - sorted[(n - 1) / 4]) / m : 0;
  free(sorted);
  return m;
}

static json_t *samples_json(const struct samples *s) {
  double min = 0, max = 0, spread = 0, m = median(s, &min, &max, &spread);
  json_t *array = json_array();
  for (int i = 0; i < s->count; i++) json_array_append_new(array, json_real(s->seconds[i]));
  return json_pack("{s:f, s:f, s:f, s:f, s:i, s:o}", "median", m, "min", min, "max", max, "spread_iqr_over_median",
                   spread, "repeats", s->count, "seconds", array);
}

static void print_samples(const char *what, const struct samples *s, const char *rate) {
  double min = 0, max = 0, spread = 0, m = median(s, &min, &max, &spread);
  printf("%-12s %10.3f ms  (min %.3f, max %.3f, spread %.1f%%, %d repeats)  %s\n", what, 1e3 * m, 1e3 * min, 1e3 * max,
         100 * spread, s->count, rate);
}

/* What every result says about where it comes from. */
static json_t *header(const struct bench *b, const char *what) {
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
  for (int i = 0; i < b->argc; i++) json_array_append_new(command, json_string(b->argv[i]));
  for (int i = 0; info.libraries && info.libraries[i]; i++)
    json_array_append_new(libraries, json_string(info.libraries[i]));
  return json_pack("{s:s, s:s, s:o, s:s, s:s, s:s, s:s, s:s, s:i, s:s, s:{s:s, s:i, s:I, s:s, s:s}, s:o}", "bench",
                   what, "date", date, "arguments", command, "version", info.version, "commit", info.commit, "compiler",
                   info.compiler, "build_type", info.build_type, "isa", info.isa, "threads", wn_context_threads(b->ctx),
                   "backend", wn_context_backend(b->ctx), "machine", "cpu", info.cpu_name, "cpus", get_nprocs(),
                   "memory_bytes", (json_int_t)((double)memory.totalram * memory.mem_unit), "system", os.sysname,
                   "release", os.release, "libraries", libraries);
}

/* splitmix64: inputs only need to be spread out and the same each time. */
static uint64_t next_random(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* n standard normal floats, malloc'd. */
static float *random_floats(size_t n, uint64_t seed) {
  float *x = malloc((n ? n : 1) * sizeof *x);
  for (size_t i = 0; x && i < n; i++) {
    double u = ((double)(next_random(&seed) >> 11) + 0.5) * 0x1p-53, v = (double)(next_random(&seed) >> 11) * 0x1p-53;
    x[i] = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
  }
  return x;
}

static void random_tokens(int32_t *out, size_t n, int64_t V, uint64_t *seed) {
  for (size_t i = 0; i < n; i++) out[i] = (int32_t)(next_random(seed) % (uint64_t)V);
}

/* ---- op attention ---- */

static int bench_op(int argc, char **argv) {
  struct bench b = {.common = CLI_COMMON_DEFAULTS, .warmup = 2, .repeats = 7, .argc = argc, .argv = argv};
  wn_attention_arrays a = {.B = 1, .T = 2048, .H = 8, .Hkv = 0, .D = 64, .dtype = WN_F32};
  bool selective = false, forward_only = false;
  const char *attention = NULL;
  struct cli_list names = {0};
  const struct cli_option options[] = {
      {.name = "B", .type = CLI_INT, .out = &a.B, .metavar = "N", .help = "batch", .min = 1, .max = 4096},
      {.name = "T", .type = CLI_INT, .out = &a.T, .metavar = "N", .help = "tokens", .min = 1, .max = 1 << 20},
      {.name = "H", .type = CLI_INT, .out = &a.H, .metavar = "N", .help = "heads", .min = 1, .max = 1024},
      {.name = "Hkv", .type = CLI_INT, .out = &a.Hkv, .metavar = "N", .help = "key-value heads; 0: H", .max = 1024},
      {.name = "D", .type = CLI_INT, .out = &a.D, .metavar = "N", .help = "head size", .min = 1, .max = 1024},
      {.name = "selective", .type = CLI_FLAG, .out = &selective, .help = "selective attention, the paper's choices"},
      {.name = "attention",
       .type = CLI_STRING,
       .out = &attention,
       .metavar = "JSON",
       .help = "any attention object instead"},
      {.name = "forward-only", .type = CLI_FLAG, .out = &forward_only, .help = "no backward"},
      BENCH_OPTIONS(&b)};
  const struct cli_spec spec = {
      .command = "winnow bench op",
      .summary = "Times one operation: attention, forward and backward. Rates count the products of causal attention:\n"
                 "4*B*H*D*T*(T+1)/2 operations forward, 10*B*H*D*T*(T+1)/2 backward.",
      .options = options,
      .option_count = CLI_COUNT(options),
      .positional = "attention",
      .positional_min = 1,
      .positional_max = 1};
  int code = cli_parse(&spec, argc, argv, &names);
  if (code == CLI_GO && strcmp(names.items[0], "attention"))
    code = cli_usage_error(spec.command, "unknown operation \"%s\"; known: attention", names.items[0]);
  cli_list_clear(&names);
  if (code == CLI_GO && selective && attention)
    code = cli_usage_error(spec.command, "--selective and --attention exclude each other");
  if (code == CLI_GO && a.Hkv == 0) a.Hkv = a.H;
  if (code == CLI_GO && a.H % a.Hkv) code = cli_usage_error(spec.command, "--Hkv must divide --H");
  if (code == CLI_GO) code = cli_context_open(&b.common, &b.ctx);
  if (code) return code;
  wn_attention_config config;
  wn_attention_config_init(&config);
  wn_status status = WN_OK;
  if (attention) status = wn_attention_config_parse(b.ctx, attention, &config);
  if (selective) config.selective.enabled = true;
  size_t qn = (size_t)a.B * (size_t)a.H * (size_t)a.T * (size_t)a.D, kn = qn / (size_t)a.H * (size_t)a.Hkv,
         sn = qn / (size_t)a.H;
  bool bilinear = config.selective.enabled && config.selective.bilinear;
  bool mem = config.selective.enabled && config.selective.mem.enabled;
  float *data[12] = {random_floats(qn, 1), random_floats(kn, 2), random_floats(kn, 3), random_floats(qn, 4)};
  double mem_loss = 0;
  size_t sizes[12] = {
      0, 0, 0, 0, qn, qn, kn, kn, bilinear ? sn : 1, bilinear ? sn : 1, bilinear ? sn : 1, bilinear ? sn : 1};
  bool have = data[0] && data[1] && data[2] && data[3];
  for (int i = 4; i < 12; i++) {
    data[i] = i == 8 || i == 9 ? random_floats(sizes[i], (uint64_t)i) : calloc(sizes[i], sizeof(float));
    have = have && data[i];
  }
  a.q = data[0], a.k = data[1], a.v = data[2], a.y = data[4];
  if (mem) a.mem_loss = &mem_loss;
  if (bilinear) a.sq = data[8], a.sk = data[9];
  if (!forward_only) {
    a.dy = data[3], a.dq = data[5], a.dk = data[6], a.dv = data[7];
    if (bilinear) a.dsq = data[10], a.dsk = data[11];
  }
  struct samples *forward = calloc(2, sizeof *forward), *backward = forward ? forward + 1 : NULL;
  wn_attention_plan *plan = NULL;
  wn_memory_info memory = {0};
  if (!have || !forward) {
    code = cli_error("out of memory for the arrays of B %" PRId64 " H %" PRId64 " T %" PRId64 " D %" PRId64, a.B, a.H,
                     a.T, a.D);
  } else {
    wn_memory_peak_reset();
    if (status == WN_OK) status = wn_attention_plan_create(b.ctx, &config, &a, &plan);
    for (int64_t i = 0; status == WN_OK && i < b.warmup + b.repeats; i++) {
      double t0 = cli_seconds();
      status = wn_attention_plan_forward(plan);
      double t1 = cli_seconds();
      if (status == WN_OK && !forward_only) status = wn_attention_plan_backward(plan);
      double t2 = cli_seconds();
      if (i < b.warmup) continue;
      forward->seconds[forward->count++] = t1 - t0;
      if (!forward_only) backward->seconds[backward->count++] = t2 - t1;
    }
    wn_memory_info_get(&memory);
    if (status != WN_OK) code = cli_fail(b.ctx, status);
  }
  if (!code) {
    double pairs = 0.5 * (double)a.T * (double)(a.T + 1) * (double)a.B * (double)a.H * (double)a.D;
    double fm = median(forward, NULL, NULL, NULL), bm = median(backward, NULL, NULL, NULL);
    double fr = fm > 0 ? 4e-9 * pairs / fm : 0, br = bm > 0 ? 10e-9 * pairs / bm : 0;
    if (b.common.json) {
      json_t *j = header(&b, "op attention");
      json_object_set_new(j, "shape",
                          json_pack("{s:I, s:I, s:I, s:I, s:I}", "B", (json_int_t)a.B, "T", (json_int_t)a.T, "H",
                                    (json_int_t)a.H, "Hkv", (json_int_t)a.Hkv, "D", (json_int_t)a.D));
      json_object_set_new(j, "selective", json_boolean(config.selective.enabled));
      json_object_set_new(j, "forward", samples_json(forward));
      json_object_set_new(j, "forward_gflops", json_real(fr));
      if (!forward_only) {
        json_object_set_new(j, "backward", samples_json(backward));
        json_object_set_new(j, "backward_gflops", json_real(br));
      }
      json_object_set_new(j, "scratch_bytes", json_integer((json_int_t)memory.peak_bytes));
      json_object_set_new(j, "peak_resident_bytes", json_integer((json_int_t)cli_peak_resident()));
      code = cli_print_json(j);
    } else {
      char rate[64];
      printf("attention %s, B %" PRId64 " H %" PRId64 " Hkv %" PRId64 " T %" PRId64 " D %" PRId64 ", %d threads, %s\n",
             config.selective.enabled ? "selective" : "dense", a.B, a.H, a.Hkv, a.T, a.D, wn_context_threads(b.ctx),
             wn_context_backend(b.ctx));
      snprintf(rate, sizeof rate, "%.1f GFLOP/s", fr);
      print_samples("forward", forward, rate);
      snprintf(rate, sizeof rate, "%.1f GFLOP/s", br);
      if (!forward_only) print_samples("backward", backward, rate);
      printf("scratch %s, peak memory %s\n", cli_bytes((double)memory.peak_bytes),
             cli_bytes((double)cli_peak_resident()));
    }
  }
  wn_attention_plan_destroy(plan);
  for (int i = 0; i < 12; i++) free(data[i]);
  free(forward);
  wn_context_destroy(b.ctx);
  return code;
}

/* ---- train ---- */

static json_t *model_json(wn_context *ctx, const wn_model *model) {
  char *text = NULL;
  if (wn_model_config_json(ctx, wn_model_config_get(model), &text) != WN_OK) return json_null();
  json_t *j = json_loads(text, 0, NULL);
  wn_text_free(text);
  return j ? j : json_null();
}

/* A recipe on token files leaves the vocabulary to the data, which are not looked at here. */
static int need_vocabulary(const char *command, const wn_recipe *recipe, const char *or_else) {
  if (recipe->model.vocab_size > 0) return 0;
  return cli_usage_error(command, "the vocabulary has no size: give --set model.vocab_size=N%s", or_else);
}

static int bench_train(int argc, char **argv) {
  struct bench b = {.common = CLI_COMMON_DEFAULTS, .warmup = 2, .repeats = 7, .argc = argc, .argv = argv};
  const char *config = NULL;
  struct cli_list sets = {0};
  const struct cli_option options[] = {
      {.name = "config", .type = CLI_STRING, .out = &config, .metavar = "FILE", .help = "the recipe, JSON"},
      {.name = "set", .type = CLI_LIST, .out = &sets, .metavar = "KEY=VALUE", .help = "changes one key of the recipe"},
      BENCH_OPTIONS(&b)};
  const struct cli_spec spec = {.command = "winnow bench train",
                                .summary =
                                    "Times training steps (forward, backward, clipping, optimizer) on random tokens.",
                                .options = options,
                                .option_count = CLI_COUNT(options),
                                .epilog = "Recipe keys, for --config and --set: winnow train --help"};
  int code = cli_parse(&spec, argc, argv, NULL);
  if (code == CLI_GO) code = cli_context_open(&b.common, &b.ctx);
  if (code) {
    cli_list_clear(&sets);
    return code;
  }
  wn_recipe recipe;
  wn_model *model = NULL;
  wn_trainer *trainer = NULL;
  struct samples *steps = calloc(1, sizeof *steps);
  int32_t *tokens = NULL;
  wn_memory_info memory = {0};
  unsigned long long allocations = 0;
  wn_train_progress progress = {0};
  code = steps ? cli_recipe_load(b.ctx, config, &sets, &recipe) : cli_error("out of memory");
  if (!code) code = need_vocabulary(spec.command, &recipe, "");
  size_t n = 0;
  if (!code) {
    int64_t T = recipe.train.context ? recipe.train.context : recipe.model.context;
    n = (size_t)(recipe.train.batch * recipe.train.accumulate) * (size_t)T;
    wn_status status = wn_model_create(b.ctx, &recipe.model, recipe.train.seed, &model);
    if (status == WN_OK) status = wn_trainer_create(b.ctx, model, &recipe.train, &trainer);
    const int64_t S = recipe.model.encoder.layers > 0 ? recipe.data.input_length : 0;
    const size_t all = 2 * n + (size_t)(recipe.train.batch * recipe.train.accumulate) * (size_t)S;
    tokens = malloc(all * sizeof *tokens);
    if (tokens && S > 0 && status == WN_OK) wn_trainer_set_inputs(trainer, tokens + 2 * n, NULL, S);
    if (!tokens && status == WN_OK) code = cli_error("out of memory");
    uint64_t seed = 1;
    for (int64_t i = 0; !code && status == WN_OK && i < b.warmup + b.repeats; i++) {
      random_tokens(tokens, all, recipe.model.vocab_size, &seed);
      wn_memory_info_get(&memory);
      allocations = memory.total_allocations;
      double start = cli_seconds();
      status = wn_trainer_step(b.ctx, trainer, tokens, tokens + n, NULL, &progress);
      double end = cli_seconds();
      if (i >= b.warmup) steps->seconds[steps->count++] = end - start;
    }
    wn_memory_info_get(&memory);
    allocations = memory.total_allocations - allocations;
    if (!code && status != WN_OK) code = cli_fail(b.ctx, status);
  }
  if (!code) {
    double m = median(steps, NULL, NULL, NULL), rate = m > 0 ? (double)n / m : 0;
    double parameters = (double)wn_model_parameter_count(model);
    if (b.common.json) {
      json_t *j = header(&b, "train");
      json_object_set_new(j, "model", model_json(b.ctx, model));
      json_object_set_new(j, "parameters", json_integer((json_int_t)parameters));
      json_object_set_new(j, "tokens_per_step", json_integer((json_int_t)n));
      json_object_set_new(j, "step", samples_json(steps));
      json_object_set_new(j, "tokens_per_second", json_real(rate));
      json_object_set_new(j, "allocations_in_last_step", json_integer((json_int_t)allocations));
      json_object_set_new(j, "workspace_bytes", json_integer((json_int_t)progress.workspace_bytes));
      json_object_set_new(j, "memory_bytes", json_integer((json_int_t)progress.memory_bytes));
      json_object_set_new(j, "peak_bytes", json_integer((json_int_t)memory.peak_bytes));
      json_object_set_new(j, "peak_resident_bytes", json_integer((json_int_t)cli_peak_resident()));
      code = cli_print_json(j);
    } else {
      char text[64];
      printf("train, %s parameters, %zu tokens a step, %d threads, %s\n", cli_count(parameters), n,
             wn_context_threads(b.ctx), wn_context_backend(b.ctx));
      snprintf(text, sizeof text, "%.0f tok/s", rate);
      print_samples("step", steps, text);
      printf("workspace %s, library memory %s, peak memory %s\n", cli_bytes((double)progress.workspace_bytes),
             cli_bytes((double)memory.peak_bytes), cli_bytes((double)cli_peak_resident()));
    }
  }
  wn_trainer_destroy(trainer);
  wn_model_destroy(model);
  free(tokens);
  free(steps);
  wn_context_destroy(b.ctx);
  cli_list_clear(&sets);
  return code;
}

/* ---- decode ---- */

/* Of an encoder-decoder: inputs as long as it reads, part of the prompt's time. */
static wn_status encode(wn_context *ctx, wn_session *session, const wn_model_config *config, int64_t batch,
                        uint64_t *seed) {
  const size_t n = (size_t)(batch * config->encoder.context);
  int32_t *inputs = malloc(n * sizeof *inputs);
  if (!inputs) return WN_ERR_MEMORY;
  random_tokens(inputs, n, config->vocab_size, seed);
  const wn_status status = wn_session_encode(ctx, session, inputs, NULL, config->encoder.context);
  free(inputs);
  return status;
}

static int decode_at(struct bench *b, wn_model *model, const wn_budgets *budgets, int64_t batch, int64_t length,
                     json_t *results) {
  const wn_model_config *config = wn_model_config_get(model);
  int64_t V = config->vocab_size;
  size_t n = (size_t)(batch * length);
  int32_t *prompt = malloc(n * sizeof *prompt), *next = malloc((size_t)batch * sizeof *next);
  float *logits = malloc((size_t)(batch * V) * sizeof *logits);
  struct samples *steps = calloc(1, sizeof *steps);
  wn_session *session = NULL;
  double prefill = 0;
  wn_memory_info before = {0}, after = {0};
  int code = prompt && next && logits && steps ? 0 : cli_error("out of memory");
  if (!code) {
    uint64_t seed = 1;
    random_tokens(prompt, n, V, &seed);
    int64_t total = b->warmup + b->repeats;
    const wn_session_options options = {.size = sizeof options,
                                        .sequences = batch,
                                        .capacity = length + total,
                                        .budgets = budgets,
                                        .cache = budgets->cache};
    wn_status status = wn_session_create_with(b->ctx, model, &options, &session);
    double start = cli_seconds();
    if (status == WN_OK && config->encoder.layers > 0) status = encode(b->ctx, session, config, batch, &seed);
    if (status == WN_OK) status = wn_session_feed(b->ctx, session, prompt, length, 0, logits);
    prefill = cli_seconds() - start;
    wn_memory_info_get(&before);
    for (int64_t i = 0; status == WN_OK && i < total; i++) {
      random_tokens(next, (size_t)batch, V, &seed);
      start = cli_seconds();
      status = wn_session_feed(b->ctx, session, next, 1, 0, logits);
      if (i >= b->warmup) steps->seconds[steps->count++] = cli_seconds() - start;
    }
    wn_memory_info_get(&after);
    if (status != WN_OK) code = cli_fail(b->ctx, status);
  }
  if (!code) {
    double m = median(steps, NULL, NULL, NULL), rate = m > 0 ? (double)batch / m : 0;
    const uint64_t allocations = after.total_allocations - before.total_allocations;
    double prefill_rate = prefill > 0 ? (double)n / prefill : 0;
    if (b->common.json) {
      json_array_append_new(results, json_pack("{s:I, s:f, s:f, s:f, s:I, s:I, s:o}", "context", (json_int_t)length,
                                               "tokens_per_second", rate, "prefill_seconds", prefill,
                                               "prefill_tokens_per_second", prefill_rate, "kv_bytes",
                                               (json_int_t)wn_session_kv_bytes(session), "allocations",
                                               (json_int_t)allocations, "step", samples_json(steps)));
    } else {
      char what[32], text[96];
      snprintf(what, sizeof what, "at %" PRId64, length);
      snprintf(text, sizeof text, "%.1f tok/s, prefill %.0f tok/s, cache %s", rate, prefill_rate,
               cli_bytes((double)wn_session_kv_bytes(session)));
      print_samples(what, steps, text);
    }
  }
  wn_session_destroy(session);
  free(prompt);
  free(next);
  free(logits);
  free(steps);
  return code;
}

static int bench_decode(int argc, char **argv) {
  struct bench b = {.common = CLI_COMMON_DEFAULTS, .warmup = 4, .repeats = 32, .argc = argc, .argv = argv};
  const char *config = NULL, *checkpoint = NULL, *contexts = "64,256,448";
  struct cli_list sets = {0};
  int64_t batch = 1;
  struct cli_budgets given = CLI_BUDGETS_DEFAULTS;
  wn_budgets budgets = {0};
  const struct cli_option options[] = {
      {.name = "model",
       .type = CLI_STRING,
       .out = &checkpoint,
       .metavar = "DIR",
       .help = "a checkpoint instead of a recipe (or as an argument)"},
      {.name = "config",
       .type = CLI_STRING,
       .out = &config,
       .metavar = "FILE",
       .help = "the recipe of a model with random parameters"},
      {.name = "set", .type = CLI_LIST, .out = &sets, .metavar = "KEY=VALUE", .help = "changes one key of the recipe"},
      {.name = "contexts",
       .type = CLI_STRING,
       .out = &contexts,
       .metavar = "N,N,...",
       .help = "tokens in the cache before timing"},
      {.name = "batch",
       .type = CLI_INT,
       .out = &batch,
       .metavar = "N",
       .help = "sequences in step",
       .min = 1,
       .max = 4096},
      CLI_BUDGETS_OPTIONS(&given),
      CLI_CACHE_OPTION(&given),
      BENCH_OPTIONS(&b)};
  const struct cli_spec spec = {.command = "winnow bench decode",
                                .summary = "Times token-by-token decoding behind prompts of several lengths.",
                                .options = options,
                                .option_count = CLI_COUNT(options),
                                .positional = "[DIR]",
                                .positional_max = 1,
                                .epilog = "Recipe keys, for --config and --set: winnow train --help"};
  struct cli_list dirs = {0};
  int code = cli_parse(&spec, argc, argv, &dirs);
  code = cli_model_argument(&spec, code, false, &dirs, &checkpoint);
  if (code == CLI_GO && checkpoint && (config || sets.count))
    code = cli_usage_error(spec.command, "--model excludes --config and --set");
  if (code == CLI_GO) code = cli_budgets_check(spec.command, &given);
  if (code == CLI_GO) code = cli_context_open(&b.common, &b.ctx);
  if (code) {
    cli_list_clear(&sets);
    return code;
  }
  wn_model *model = NULL;
  wn_status status = WN_OK;
  if (checkpoint) {
    status = wn_model_load(b.ctx, checkpoint, &model);
  } else {
    wn_recipe recipe;
    code = cli_recipe_load(b.ctx, config, &sets, &recipe);
    if (!code) code = need_vocabulary(spec.command, &recipe, ", or --model DIR");
    if (!code) status = wn_model_create(b.ctx, &recipe.model, recipe.train.seed, &model);
  }
  if (!code && status != WN_OK) code = cli_fail(b.ctx, status);
  if (!code) code = cli_budgets_load(b.ctx, &given, model, &budgets);
  json_t *results = json_array();
  if (!code && !b.common.json)
    printf("decode, %s parameters, batch %" PRId64 ", %d threads, %s\n",
           cli_count((double)wn_model_parameter_count(model)), batch, wn_context_threads(b.ctx),
           wn_context_backend(b.ctx));
  for (const char *p = contexts; !code && p && *p;) {
    char *end = NULL;
    long long length = strtoll(p, &end, 10);
    if (end == p || length < 1 || length > 1 << 24 || (*end && *end != ','))
      code = cli_usage_error(spec.command, "--contexts: \"%s\" is not a list of lengths", contexts);
    else
      code = decode_at(&b, model, &budgets, batch, length, results);
    p = *end ? end + 1 : NULL;
  }
  if (!code && b.common.json) {
    json_t *j = header(&b, "decode");
    json_object_set_new(j, "model", model_json(b.ctx, model));
    json_object_set_new(j, "parameters", json_integer((json_int_t)wn_model_parameter_count(model)));
    json_object_set_new(j, "batch", json_integer(batch));
    json_object_set_new(j, "cache", json_string(wn_cache_format_name(budgets.cache)));
    if (budgets.layers > 0) {
      json_object_set_new(j, "policy", json_string(wn_policy_name(budgets.policy)));
      json_object_set_new(j, "budget_tokens", json_integer(wn_budgets_total(&budgets)));
    }
    json_object_set_new(j, "results", json_incref(results));
    json_object_set_new(j, "peak_resident_bytes", json_integer((json_int_t)cli_peak_resident()));
    code = cli_print_json(j);
  }
  json_decref(results);
  wn_budgets_clear(&budgets);
  wn_model_destroy(model);
  wn_context_destroy(b.ctx);
  cli_list_clear(&sets);
  return code;
}

int cmd_bench(int argc, char **argv) {
  const struct cli_command commands[] = {
      {"op", "one operation, forward and backward", bench_op},
      {"train", "training steps of a recipe", bench_train},
      {"decode", "decoding at several context lengths", bench_decode},
  };
  return cli_dispatch("winnow bench", "Medians of repeated runs, with their spread.", commands, CLI_COUNT(commands),
                      argc, argv);
}
