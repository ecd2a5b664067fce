/* Arguments that the dispatch must refuse, with the status and a detail that names the operation: wrong shapes, indices
 * outside their tables, missing arrays, a dtype or operation that the backend lacks, too little scratch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <winnow/attention.h>
#include "backends/backends.h"
#include "ops/attention.h"

static wn_context *ctx;
static float room[4096]; /* serves as every array, since nothing may be computed */
static const float untouched = 1.5f;

static struct wn_exec exec_on(const struct wn_backend *backend, wn_dtype dtype) {
  return (struct wn_exec){.ctx = ctx, .backend = backend, .threads = 1, .dtype = dtype};
}
static struct wn_exec exec_ref(void) {
  return exec_on(wn_backend_ref(), WN_F32);
}

static void refused(wn_status got, wn_status want, const char *word) {
  if (got != want) fail_msg("%s instead of %s (%s)", wn_status_name(got), wn_status_name(want), wn_context_error(ctx));
  if (!strstr(wn_context_error(ctx), word)) fail_msg("\"%s\" does not name %s", wn_context_error(ctx), word);
  assert_null(strchr(wn_context_error(ctx), '\n'));
  for (size_t i = 0; i < sizeof room / sizeof *room; i++) assert_true(room[i] == untouched);
}

/* Calls the forward operation on the struct `name` with changes. */
#define REFUSE(op, status, word, ...)                                                                                  \
  do {                                                                                                                 \
    struct wn_##op a = good_##op();                                                                                    \
    __VA_ARGS__;                                                                                                       \
    refused(wn_op_##op##_forward(&(struct wn_exec){.ctx = ctx,                                                         \
                                                   .backend = wn_backend_ref(),                                        \
                                                   .threads = 1,                                                       \
                                                   .dtype = WN_F32,                                                    \
                                                   .scratch = scratch,                                                 \
                                                   .scratch_bytes = sizeof scratch},                                   \
                                 &a),                                                                                  \
            status, word);                                                                                             \
  } while (0)
#define REFUSE_BACKWARD(op, status, word, ...)                                                                         \
  do {                                                                                                                 \
    struct wn_##op a = good_##op();                                                                                    \
    __VA_ARGS__;                                                                                                       \
    refused(wn_op_##op##_backward(&(struct wn_exec){.ctx = ctx,                                                        \
                                                    .backend = wn_backend_ref(),                                       \
                                                    .threads = 1,                                                      \
                                                    .dtype = WN_F32,                                                   \
                                                    .scratch = scratch,                                                \
                                                    .scratch_bytes = sizeof scratch},                                  \
                                  &a),                                                                                 \
            status, word);                                                                                             \
  } while (0)

static _Alignas(64) char scratch[1 << 16];

static struct wn_linear good_linear(void) {
  return (struct wn_linear){.M = 2,
                            .N = 3,
                            .K = 4,
                            .x = room,
                            .ldx = 4,
                            .w = room,
                            .y = room,
                            .ldy = 3,
                            .dy = room,
                            .lddy = 3,
                            .dx = room,
                            .lddx = 4,
                            .dw = room};
}
static void test_linear(void **state) {
  (void)state;
  REFUSE(linear, WN_ERR_SHAPE, "linear: M", a.M = -1);
  REFUSE(linear, WN_ERR_SHAPE, "linear: N", a.N = 0);
  REFUSE(linear, WN_ERR_SHAPE, "linear: K", a.K = 0);
  REFUSE(linear, WN_ERR_SHAPE, "linear", a.K = INT64_MAX / 2, a.ldx = INT64_MAX);
  REFUSE(linear, WN_ERR_SHAPE, "x", a.ldx = 3);
  REFUSE(linear, WN_ERR_SHAPE, "y", a.ldy = 2);
  REFUSE(linear, WN_ERR_ARGUMENT, "w", a.w = NULL);
  REFUSE(linear, WN_ERR_ARGUMENT, "y", a.y = NULL);
  REFUSE_BACKWARD(linear, WN_ERR_ARGUMENT, "dy", a.dy = NULL);
  REFUSE_BACKWARD(linear, WN_ERR_SHAPE, "dx", a.lddx = 1);
  REFUSE_BACKWARD(linear, WN_ERR_ARGUMENT, "x", a.x = NULL);
}

static const int32_t ids[4] = {0, 1, 2, 0};
static struct wn_embedding good_embedding(void) {
  return (struct wn_embedding){.M = 4,
                               .C = 2,
                               .V = 3,
                               .P = 3,
                               .ids = ids,
                               .positions = ids,
                               .tok = room,
                               .pos = room,
                               .y = room,
                               .dy = room,
                               .dtok = room,
                               .dpos = room};
}
static void test_embedding(void **state) {
  (void)state;
  static const int32_t high[4] = {0, 1, 3, 0}, low[4] = {0, -1, 0, 0};
  REFUSE(embedding, WN_ERR_ARGUMENT, "ids[2] is 3", a.ids = high);
  REFUSE(embedding, WN_ERR_ARGUMENT, "ids[1] is -1", a.ids = low);
  REFUSE(embedding, WN_ERR_ARGUMENT, "positions[2]", a.positions = high);
  REFUSE(embedding, WN_ERR_ARGUMENT, "positions", a.positions = NULL);
  REFUSE(embedding, WN_ERR_SHAPE, "V", a.V = 0);
  REFUSE_BACKWARD(embedding, WN_ERR_ARGUMENT, "ids[2]", a.ids = high);
  REFUSE_BACKWARD(embedding, WN_ERR_ARGUMENT, "dy", a.dy = NULL);
}

static struct wn_norm good_norm(void) {
  return (struct wn_norm){.rows = 2,
                          .groups = 1,
                          .width = 4,
                          .eps = 1e-6,
                          .x = room,
                          .ldx = 4,
                          .gain = room,
                          .y = room,
                          .ldy = 4,
                          .rstd = room,
                          .dy = room,
                          .lddy = 4,
                          .dx = room,
                          .lddx = 4};
}
static void test_norm(void **state) {
  (void)state;
  REFUSE(norm, WN_ERR_SHAPE, "width", a.width = 0);
  REFUSE(norm, WN_ERR_SHAPE, "x", a.groups = 2);
  REFUSE(norm, WN_ERR_ARGUMENT, "eps", a.eps = -1);
  REFUSE(norm, WN_ERR_ARGUMENT, "eps", a.eps = NAN);
  REFUSE(norm, WN_ERR_ARGUMENT, "shift", a.shift = room);
  REFUSE(norm, WN_ERR_ARGUMENT, "sum", a.add = room, a.ldadd = 4);
  REFUSE_BACKWARD(norm, WN_ERR_ARGUMENT, "rstd", a.rstd = NULL);
  REFUSE_BACKWARD(norm, WN_ERR_ARGUMENT, "mean", a.layer = true);
  REFUSE_BACKWARD(norm, WN_ERR_ARGUMENT, "dx", a.dx = (void *)a.dy, a.accumulate_dx = true);
}

static struct wn_rope good_rope(void) {
  return (struct wn_rope){
      .rows = 4, .heads = 2, .D = 4, .x = room, .ldx = 8, .positions = ids, .cos_sin = room, .P = 3};
}
static void test_rope(void **state) {
  (void)state;
  REFUSE(rope, WN_ERR_SHAPE, "D", a.D = 3);
  REFUSE(rope, WN_ERR_SHAPE, "elements turn", a.R = 6);
  REFUSE(rope, WN_ERR_SHAPE, "elements turn", a.R = 3);
  REFUSE(rope, WN_ERR_ARGUMENT, "positions[2]", a.P = 2);
  REFUSE(rope, WN_ERR_ARGUMENT, "theta", a.cos_sin = NULL, a.theta = 0);
  REFUSE(rope, WN_ERR_SHAPE, "x", a.ldx = 7);
}

static struct wn_act good_act(void) {
  return (struct wn_act){.kind = WN_ACT_GELU, .M = 2, .F = 3, .x = room, .y = room};
}
static struct wn_softcap good_softcap(void) {
  return (struct wn_softcap){.n = 4, .cap = 2, .x = room};
}
static struct wn_scale good_scale(void) {
  return (struct wn_scale){.n = 4, .factor = 2, .x = room};
}
static struct wn_noise good_noise(void) {
  return (struct wn_noise){.n = 4, .x = room};
}
static struct wn_dropout good_dropout(void) {
  return (struct wn_dropout){.n = 4, .p = 0.5, .x = room};
}
static struct wn_add good_add(void) {
  return (struct wn_add){.n = 4, .x = room, .z = room, .y = room};
}
static struct wn_adamw good_adamw(void) {
  return (struct wn_adamw){.n = 4, .p = room, .g = room, .m = room, .v = room, .beta1 = 0.9, .beta2 = 0.9, .step = 1};
}
static struct wn_adagrad good_adagrad(void) {
  return (struct wn_adagrad){.n = 4, .p = room, .g = room, .v = room};
}
static void test_elementwise(void **state) {
  (void)state;
  REFUSE(act, WN_ERR_ARGUMENT, "kind", a.kind = (enum wn_act_kind)17);
  REFUSE(act, WN_ERR_SHAPE, "F", a.F = -3);
  REFUSE_BACKWARD(act, WN_ERR_ARGUMENT, "dy", (void)0);
  REFUSE(softcap, WN_ERR_ARGUMENT, "cap is 0", a.cap = 0);
  REFUSE(softcap, WN_ERR_ARGUMENT, "cap is", a.cap = NAN);
  REFUSE(softcap, WN_ERR_ARGUMENT, "x", a.x = NULL);
  REFUSE(scale, WN_ERR_ARGUMENT, "factor is", a.factor = NAN);
  REFUSE(scale, WN_ERR_SHAPE, "n", a.n = -1);
  REFUSE(scale, WN_ERR_ARGUMENT, "x", a.x = NULL);
  REFUSE(embedding, WN_ERR_ARGUMENT, "scale is -1", a.scale = -1);
  REFUSE(noise, WN_ERR_SHAPE, "n", a.n = -1);
  REFUSE(noise, WN_ERR_ARGUMENT, "x", a.x = NULL);
  REFUSE(dropout, WN_ERR_ARGUMENT, "p is 1", a.p = 1);
  REFUSE(dropout, WN_ERR_ARGUMENT, "p is", a.p = NAN);
  REFUSE(add, WN_ERR_ARGUMENT, "z", a.z = NULL);
  REFUSE(adamw, WN_ERR_SHAPE, "step", a.step = 0);
  REFUSE(adamw, WN_ERR_ARGUMENT, "beta2", a.beta2 = 1);
  REFUSE(adamw, WN_ERR_ARGUMENT, "lr", a.lr = INFINITY);
  REFUSE(adagrad, WN_ERR_ARGUMENT, "grad_scale", a.grad_scale = NAN);
}

static double losses[4];
static struct wn_cross_entropy good_cross_entropy(void) {
  return (struct wn_cross_entropy){.M = 4, .V = 3, .logits = room, .ld = 3, .targets = ids, .scale = 1, .loss = losses};
}
static void test_cross_entropy(void **state) {
  (void)state;
  static const int32_t high[4] = {0, 3, 0, 0}, low[4] = {0, -2, 0, 0};
  REFUSE(cross_entropy, WN_ERR_ARGUMENT, "targets[1] is 3", a.targets = high);
  REFUSE(cross_entropy, WN_ERR_ARGUMENT, "targets[1] is -2", a.targets = low);
  REFUSE(cross_entropy, WN_ERR_ARGUMENT, "cap is -1", a.cap = -1);
  REFUSE(cross_entropy, WN_ERR_SHAPE, "logits", a.ld = 2);
  REFUSE(cross_entropy, WN_ERR_ARGUMENT, "loss", a.loss = NULL);
}

static struct wn_attention_sums good_attention_sums(void) {
  return (struct wn_attention_sums){.R = 2,
                                    .N = 2,
                                    .S = 1,
                                    .scale = 1,
                                    .logits = room,
                                    .ld = 2,
                                    .share = 2,
                                    .add = room,
                                    .sink = room,
                                    .ld_sink = 1,
                                    .sums = room};
}
static void test_attention_sums(void **state) {
  (void)state;
  REFUSE(attention_sums, WN_ERR_SHAPE, "N", a.N = 0);
  REFUSE(attention_sums, WN_ERR_SHAPE, "share", a.share = 0);
  REFUSE(attention_sums, WN_ERR_SHAPE, "logits", a.ld = 1);
  REFUSE(attention_sums, WN_ERR_ARGUMENT, "logits", a.logits = NULL);
  REFUSE(attention_sums, WN_ERR_ARGUMENT, "add", a.add = NULL);
  REFUSE(attention_sums, WN_ERR_SHAPE, "sink", a.ld_sink = 0);
  REFUSE(attention_sums, WN_ERR_ARGUMENT, "scale", a.scale = NAN);
  REFUSE(attention_sums, WN_ERR_ARGUMENT, "sums", a.sums = NULL);
}

static struct wn_attention good_attention(void) {
  const struct wn_stride s = {.b = 16, .t = 8, .h = 4}, g = {.b = 8, .t = 4, .h = 4};
  return (struct wn_attention){.B = 2,
                               .Tq = 2,
                               .Tk = 2,
                               .H = 2,
                               .Hkv = 1,
                               .D = 4,
                               .scale = 0.5,
                               .q = room,
                               .s_q = s,
                               .k = room,
                               .v = room,
                               .s_k = g,
                               .s_v = g,
                               .y = room,
                               .s_y = s,
                               .lse = room,
                               .dy = room,
                               .dq = room,
                               .dk = room,
                               .dv = room};
}
static void test_attention(void **state) {
  (void)state;
  static const int32_t future[4] = {0, 2, 0, 0}, before[4] = {0, 0, -1, 0};
  REFUSE(attention, WN_ERR_SHAPE, "Tk", a.Tk = 1);
  REFUSE(attention, WN_ERR_SHAPE, "Tq", a.Tq = 0);
  REFUSE(attention, WN_ERR_SHAPE, "B", a.B = 0);
  REFUSE(attention, WN_ERR_SHAPE, "Hkv", a.Hkv = 0);
  REFUSE(attention, WN_ERR_SHAPE, "multiple", a.H = 3, a.Hkv = 2);
  REFUSE(attention, WN_ERR_SHAPE, "D", a.D = 0);
  REFUSE(attention, WN_ERR_SHAPE, "strides of q", a.s_q.t = 3);
  REFUSE(attention, WN_ERR_ARGUMENT, "k", a.k = NULL);
  REFUSE(attention, WN_ERR_ARGUMENT, "y", a.y = NULL);
  REFUSE(attention, WN_ERR_ARGUMENT, "scale", a.scale = NAN);
  REFUSE(attention, WN_ERR_ARGUMENT, "doc_start[0,1] is 2", a.doc_start = future);
  REFUSE(attention, WN_ERR_ARGUMENT, "doc_start[1,0] is -1", a.doc_start = before);
  REFUSE(attention, WN_ERR_ARGUMENT, "head is 2", a.sel.on = true, a.sel.head = 2);
  REFUSE(attention, WN_ERR_ARGUMENT, "head is -1", a.sel.on = true, a.sel.head = -1);
  REFUSE(attention, WN_ERR_ARGUMENT, "sq", a.sel.on = a.sel.bilinear = true);
  REFUSE(attention, WN_ERR_ARGUMENT, "mem_tau", a.sel.on = a.sel.mem = true);
  REFUSE(attention, WN_ERR_ARGUMENT, "dead_share", a.sel.on = true, a.sel.dead_share = 1);
  REFUSE_BACKWARD(attention, WN_ERR_ARGUMENT, "dy", a.dy = NULL);
  REFUSE_BACKWARD(attention, WN_ERR_ARGUMENT, "lse", a.lse = NULL);
  REFUSE_BACKWARD(attention, WN_ERR_ARGUMENT, "dk_from is 9", a.dk_from = 9);
  REFUSE(attention, WN_ERR_SHAPE, "window is -1", a.window = -1);
  REFUSE(attention, WN_ERR_SHAPE, "strided is -1", a.strided = -1);
  REFUSE(attention, WN_ERR_SHAPE, "sqrt.buffer", a.root.on = true);
  REFUSE(attention, WN_ERR_ARGUMENT, "sqrt.density", a.root.on = true, a.root.buffer = 1);
  REFUSE(attention, WN_ERR_ARGUMENT, "span.z", a.span.on = true);
  REFUSE(attention, WN_ERR_ARGUMENT, "span.ramp", a.span.on = true, a.span.z = room);
  REFUSE(attention, WN_ERR_ARGUMENT, "relative.p", a.relative.P = 4);
  REFUSE(attention, WN_ERR_SHAPE, "1 relative positions", a.relative.P = 1, a.relative.p = room);
  REFUSE(attention, WN_ERR_ARGUMENT, "sinks.k", a.sinks.n = 1);
  REFUSE(attention, WN_ERR_ARGUMENT, "threshold.tau", a.threshold.on = true);
  REFUSE(attention, WN_ERR_ARGUMENT, "dropout.p", a.dropout.p = 1);
  REFUSE(attention, WN_ERR_SHAPE, "selections", a.sel.on = true, a.sel.groups = 3);
}

static void test_exec(void **state) {
  (void)state;
  const struct wn_linear a = good_linear();
  struct wn_exec e = exec_ref();
  e.threads = 0;
  refused(wn_op_linear_forward(&e, &a), WN_ERR_ARGUMENT, "threads");
  e = exec_on(wn_backend_ref(), WN_BF16);
  refused(wn_op_linear_forward(&e, &a), WN_ERR_UNSUPPORTED, "BF16");
  e = exec_on(wn_backend_cpu(WN_ISA_REF), WN_F64);
  refused(wn_op_linear_forward(&e, &a), WN_ERR_UNSUPPORTED, "F64");
  /* An operation that a backend lacks is refused by name. No other backend computes it instead. */
  struct wn_backend lacking = *wn_backend_ref();
  lacking.name = "lacking";
  lacking.linear_forward = NULL;
  e = exec_on(&lacking, WN_F32);
  refused(wn_op_linear_forward(&e, &a), WN_ERR_UNSUPPORTED, "linear");
  refused(wn_op_linear_forward(&e, &a), WN_ERR_UNSUPPORTED, "lacking");
  e = exec_ref();
  refused(wn_op_linear_forward(&e, NULL), WN_ERR_ARGUMENT, "linear");
  /* Scratch: missing, too small, not aligned. */
  const struct wn_attention t = good_attention();
  e = exec_ref();
  refused(wn_op_attention_forward(&e, &t), WN_ERR_ARGUMENT, "scratch");
  e.scratch = scratch, e.scratch_bytes = wn_op_attention_scratch(&e, &t, false) - 1;
  refused(wn_op_attention_forward(&e, &t), WN_ERR_ARGUMENT, "scratch");
  e.scratch = scratch + 8, e.scratch_bytes = sizeof scratch - 8;
  refused(wn_op_attention_forward(&e, &t), WN_ERR_ARGUMENT, "scratch");
}

/* Checks of the public function itself. */
static void test_public_attention(void **state) {
  (void)state;
  wn_attention_config config;
  wn_attention_config_init(&config);
  const wn_attention_arrays good = {
      .B = 1, .T = 2, .H = 2, .Hkv = 1, .D = 4, .dtype = WN_F32, .q = room, .k = room, .v = room, .y = room};
  wn_attention_arrays a = good;
  a.B = INT64_MAX / 2, a.T = 4;
  refused(wn_attention_run(ctx, &config, &a), WN_ERR_SHAPE, "attention");
  a = good, a.Hkv = 0;
  refused(wn_attention_run(ctx, &config, &a), WN_ERR_SHAPE, "Hkv 0");
  a = good, a.H = 3, a.Hkv = 2;
  refused(wn_attention_run(ctx, &config, &a), WN_ERR_SHAPE, "multiple");
  a = good, a.dtype = WN_I32;
  refused(wn_attention_run(ctx, &config, &a), WN_ERR_ARGUMENT, "I32");
  a = good, a.q = NULL;
  refused(wn_attention_run(ctx, &config, &a), WN_ERR_ARGUMENT, "q");
  a = good, a.F = room;
  refused(wn_attention_run(ctx, &config, &a), WN_ERR_ARGUMENT, "selective");
  a = good, a.M = room;
  refused(wn_attention_run(ctx, &config, &a), WN_ERR_ARGUMENT, "M is asked for without selective");
  a = good, a.dq = room;
  refused(wn_attention_run(ctx, &config, &a), WN_ERR_ARGUMENT, "dy");
  config.selective.enabled = true;
  config.selective.head = 2;
  refused(wn_attention_run(ctx, &config, &good), WN_ERR_CONFIG, "head");
  config.selective.head = 0;
  config.selective.bilinear = true;
  refused(wn_attention_run(ctx, &config, &good), WN_ERR_ARGUMENT, "sq");
  wn_attention_plan *plan = NULL;
  wn_attention_config_init(&config);
  float y[16];
  a = good, a.y = y;
  assert_int_equal(wn_attention_plan_create(ctx, &config, &a, &plan), WN_OK);
  refused(wn_attention_plan_backward(plan), WN_ERR_ARGUMENT, "without dy");
  wn_attention_plan_destroy(plan);
  float gradient[16];
  a.dy = room, a.dq = gradient;
  assert_int_equal(wn_attention_plan_create(ctx, &config, &a, &plan), WN_OK);
  refused(wn_attention_plan_backward(plan), WN_ERR_ARGUMENT, "before a forward");
  assert_int_equal(wn_attention_plan_forward(plan), WN_OK);
  assert_int_equal(wn_attention_plan_backward(plan), WN_OK);
  wn_attention_plan_destroy(plan);
}

static int setup(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof room / sizeof *room; i++) room[i] = untouched;
  return wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .backend = "ref", .threads = 1},
                           &ctx) == WN_OK
             ? 0
             : -1;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_linear),         cmocka_unit_test(test_embedding),
      cmocka_unit_test(test_norm),           cmocka_unit_test(test_rope),
      cmocka_unit_test(test_elementwise),    cmocka_unit_test(test_cross_entropy),
      cmocka_unit_test(test_attention_sums), cmocka_unit_test(test_attention),
      cmocka_unit_test(test_exec),           cmocka_unit_test(test_public_attention),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
