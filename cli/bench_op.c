/* winnow bench op: attention, forward and backward, on random arrays in the backend's memory. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <winnow/attention.h>
#include "bench.h"

struct bench_op {
  struct bench bench;
  wn_attention_arrays arrays;
  wn_attention_config config;
  bool selective, forward_only;
  const char *attention;
  float *data[12]; /* q, k, v, dy, y, dq, dk, dv, sq, sk, dsq, dsk */
  double mem_loss;
  struct samples *forward, *backward; /* one block */
  wn_memory_info memory;
};

static const struct cli_option bench_op_options[] = {
    CLI_OPTION(struct bench_op, arrays.B, "B", "N", "batch", .min = 1, .max = 4096),
    CLI_OPTION(struct bench_op, arrays.T, "T", "N", "tokens", .min = 1, .max = 1 << 20),
    CLI_OPTION(struct bench_op, arrays.H, "H", "N", "heads", .min = 1, .max = 1024),
    CLI_OPTION(struct bench_op, arrays.Hkv, "Hkv", "N", "key-value heads; 0: H", .max = 1024),
    CLI_OPTION(struct bench_op, arrays.D, "D", "N", "head size", .min = 1, .max = 1024),
    CLI_OPTION(struct bench_op, selective, "selective", NULL, "selective attention, the paper's choices"),
    CLI_OPTION(struct bench_op, attention, "attention", "JSON",
               "an attention object instead, of terms that need no array but q, k and v; without dropout"),
    CLI_OPTION(struct bench_op, forward_only, "forward-only", NULL, "no backward"),
    BENCH_OPTIONS(struct bench_op, bench)};

static const struct cli_spec bench_op_spec = {
    .command = "winnow bench op",
    .summary = "Times one operation: attention, forward and backward. Rates count the products of causal attention:\n"
               "4*B*H*D*T*(T+1)/2 operations forward, 10*B*H*D*T*(T+1)/2 backward.",
    CLI_TABLE(bench_op_options),
    .positional = "attention",
    .positional_min = 1,
    .positional_max = 1};

static int bench_op_check(struct bench_op *o, int code, struct cli_list *names) {
  wn_attention_arrays *a = &o->arrays;
  if (code == CLI_GO && strcmp(names->items[0], "attention"))
    code = cli_usage_error(bench_op_spec.command, "unknown operation \"%s\"; known: attention", names->items[0]);
  cli_list_clear(names);
  if (code == CLI_GO && o->selective && o->attention)
    code = cli_usage_error(bench_op_spec.command, "--selective and --attention exclude each other");
  if (code == CLI_GO && a->Hkv == 0) a->Hkv = a->H;
  if (code == CLI_GO && a->H % a->Hkv) code = cli_usage_error(bench_op_spec.command, "--Hkv must divide --H");
  return code;
}

/* Allocates the arrays and fills those that are read with random numbers. False: out of memory. */
static bool bench_op_arrays(struct bench_op *o) {
  wn_attention_arrays *a = &o->arrays;
  const size_t qn = (size_t)a->B * (size_t)a->H * (size_t)a->T * (size_t)a->D;
  const size_t kn = qn / (size_t)a->H * (size_t)a->Hkv;
  const bool mem = o->config.selective.enabled && o->config.selective.mem.enabled;
  const bool bilinear = o->config.selective.enabled && o->config.selective.bilinear;
  const size_t sn = bilinear ? qn / (size_t)a->H : 1;
  const size_t sizes[12] = {qn, kn, kn, qn, qn, qn, kn, kn, sn, sn, sn, sn};
  bool have = true;
  float **data = o->data;
  for (int i = 0; i < 12; i++) {
    data[i] = i < 4              ? bench_random_floats(sizes[i], (uint64_t)i + 1)
              : i == 8 || i == 9 ? bench_random_floats(sizes[i], (uint64_t)i)
                                 : calloc(sizes[i], sizeof(float));
    have = have && data[i];
  }
  a->q = data[0], a->k = data[1], a->v = data[2], a->y = data[4];
  if (mem) a->mem_loss = &o->mem_loss;
  if (bilinear) a->sq = data[8], a->sk = data[9];
  if (!o->forward_only) {
    a->dy = data[3], a->dq = data[5], a->dk = data[6], a->dv = data[7];
    if (bilinear) a->dsq = data[10], a->dsk = data[11];
  }
  o->forward = calloc(2, sizeof *o->forward);
  o->backward = o->forward ? o->forward + 1 : NULL;
  return have && o->forward;
}

static wn_status bench_op_time(struct bench_op *o) {
  wn_attention_plan *plan = NULL;
  wn_memory_peak_reset();
  wn_status status = wn_attention_plan_create(o->bench.ctx, &o->config, &o->arrays, &plan);
  if (status == WN_OK) status = wn_attention_plan_put(plan);
  if (status == WN_OK) status = wn_context_wait(o->bench.ctx);
  for (int64_t i = 0; status == WN_OK && i < o->bench.warmup + o->bench.repeats; i++) {
    const double t0 = cli_seconds();
    status = wn_attention_plan_forward(plan);
    if (status == WN_OK) status = wn_context_wait(o->bench.ctx);
    const double t1 = cli_seconds();
    if (status == WN_OK && !o->forward_only) status = wn_attention_plan_backward(plan);
    if (status == WN_OK) status = wn_context_wait(o->bench.ctx);
    const double t2 = cli_seconds();
    if (i < o->bench.warmup) continue;
    o->forward->seconds[o->forward->count++] = t1 - t0;
    if (!o->forward_only) o->backward->seconds[o->backward->count++] = t2 - t1;
  }
  wn_memory_info_get(&o->memory);
  wn_attention_plan_destroy(plan);
  return status;
}

static int bench_op_json(const struct bench_op *o, double forward, double backward) {
  const wn_attention_arrays *a = &o->arrays;
  json_t *j = bench_header(&o->bench, "op attention");
  json_object_set_new(j, "shape",
                      json_pack("{s:I, s:I, s:I, s:I, s:I}", "B", (json_int_t)a->B, "T", (json_int_t)a->T, "H",
                                (json_int_t)a->H, "Hkv", (json_int_t)a->Hkv, "D", (json_int_t)a->D));
  json_object_set_new(j, "selective", json_boolean(o->config.selective.enabled));
  json_object_set_new(j, "forward", bench_samples_json(o->forward));
  json_object_set_new(j, "forward_gflops", json_real(forward));
  if (!o->forward_only) {
    json_object_set_new(j, "backward", bench_samples_json(o->backward));
    json_object_set_new(j, "backward_gflops", json_real(backward));
  }
  json_object_set_new(j, "scratch_bytes", json_integer((json_int_t)o->memory.peak_bytes));
  return bench_print_json(o->bench.ctx, j);
}

static int bench_op_report(const struct bench_op *o) {
  const wn_attention_arrays *a = &o->arrays;
  const double pairs = 0.5 * (double)a->T * (double)(a->T + 1) * (double)a->B * (double)a->H * (double)a->D;
  const double fm = bench_median(o->forward, NULL, NULL, NULL), bm = bench_median(o->backward, NULL, NULL, NULL);
  const double fr = fm > 0 ? 4e-9 * pairs / fm : 0, br = bm > 0 ? 10e-9 * pairs / bm : 0;
  char rate[64];
  if (o->bench.common.json) return bench_op_json(o, fr, br);
  printf("attention %s, B %" PRId64 " H %" PRId64 " Hkv %" PRId64 " T %" PRId64 " D %" PRId64 ", %d threads, %s\n",
         o->config.selective.enabled ? "selective" : "dense", a->B, a->H, a->Hkv, a->T, a->D,
         wn_context_threads(o->bench.ctx), wn_context_backend(o->bench.ctx));
  snprintf(rate, sizeof rate, "%.1f GFLOP/s", fr);
  bench_print_samples("forward", o->forward, rate);
  snprintf(rate, sizeof rate, "%.1f GFLOP/s", br);
  if (!o->forward_only) bench_print_samples("backward", o->backward, rate);
  printf("scratch %s, peak memory %s\n", cli_bytes((double)o->memory.peak_bytes),
         cli_bytes((double)cli_peak_resident()));
  return 0;
}

static int bench_op_run(struct bench_op *o) {
  const wn_attention_arrays *a = &o->arrays;
  wn_status status = WN_OK;
  wn_attention_config_init(&o->config);
  if (o->attention) status = wn_attention_config_parse(o->bench.ctx, o->attention, &o->config);
  if (o->selective) o->config.selective.enabled = true;
  if (status == WN_OK && !bench_op_arrays(o))
    return cli_error("out of memory for the arrays of B %" PRId64 " H %" PRId64 " T %" PRId64 " D %" PRId64, a->B, a->H,
                     a->T, a->D);
  if (status == WN_OK) status = bench_op_time(o);
  return status == WN_OK ? bench_op_report(o) : cli_fail(o->bench.ctx, status);
}

int bench_op(int argc, char **argv) {
  struct bench_op o = {.bench = {.common = CLI_COMMON_DEFAULTS, .warmup = 2, .repeats = 7, .argc = argc, .argv = argv},
                       .arrays = {.B = 1, .T = 2048, .H = 8, .Hkv = 0, .D = 64, .dtype = WN_F32}};
  struct cli_list names = {0};
  int code = bench_op_check(&o, cli_parse(&bench_op_spec, argc, argv, &o, &names), &names);
  if (code == CLI_GO) code = cli_context_open(&o.bench.common, &o.bench.ctx);
  if (!code) code = bench_op_run(&o);
  for (int i = 0; i < 12; i++) free(o.data[i]);
  free(o.forward);
  wn_context_destroy(o.bench.ctx);
  return code;
}
