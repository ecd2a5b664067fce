/* The backend guard itself. It refuses foreign arrays by name, its arrays cannot be touched, its asynchronous copies
 * arrive when they are waited for, and its operations give ref's results. Also the tools of measurement: waits, counts,
 * and plans whose arrays stay on the device. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/backends.h"
#include "base/context.h"
#include "winnow/attention.h"
#include "winnow/measure.h"

enum { N = 1000 };

static wn_context *guard_context(void) {
  wn_context *ctx;
  assert_int_equal(
      wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .backend = "guard"}, &ctx), WN_OK);
  assert_string_equal(wn_context_backend(ctx), "guard");
  return ctx;
}

static struct wn_exec exec_of(wn_context *ctx) {
  struct wn_exec exec = {.ctx = ctx, .threads = 1, .dtype = WN_F32};
  assert_int_equal(wn_backend_of(ctx, &exec.backend), WN_OK);
  return exec;
}

static void test_operations(void **state) {
  (void)state;
  wn_context *ctx = guard_context();
  const struct wn_exec exec = exec_of(ctx);
  const struct wn_memory *memory = exec.backend->memory;
  float x[N], y[N];
  void *at;
  for (int i = 0; i < N; i++) x[i] = (float)i - 300, y[i] = 7;
  assert_int_equal(memory->allocate(ctx, "an array", sizeof x, &at), WN_OK);
  assert_int_equal(memory->copy_in(ctx, at, x, sizeof x), WN_OK);
  assert_int_equal(wn_op_scale_forward(&exec, &(struct wn_scale){.n = N, .factor = 3, .x = at}), WN_OK);
  assert_int_equal(memory->zero(ctx, (float *)at + 1, sizeof(float)), WN_OK);
  assert_int_equal(memory->copy(ctx, (float *)at + 4, (float *)at + 3, 2 * sizeof(float)), WN_OK);
  assert_int_equal(memory->copy_out(ctx, y, at, sizeof y), WN_OK);
  assert_true(y[5] != 3 * x[4]); /* the copy has not finished */
  const uint64_t mark = memory->record(ctx);
  assert_int_equal(memory->zero(ctx, at, sizeof x), WN_OK); /* ordered after the copy */
  assert_int_equal(memory->wait(ctx, mark), WN_OK);
  for (int i = 0; i < N; i++) {
    const int from = i == 4 || i == 5 ? i - 1 : i;
    assert_true(y[i] == (i == 1 ? 0 : 3 * x[from]));
  }
  memory->release(at);
  wn_context_destroy(ctx);
}

static void test_refuses(void **state) {
  (void)state;
  wn_context *ctx = guard_context();
  const struct wn_exec exec = exec_of(ctx);
  const struct wn_memory *memory = exec.backend->memory;
  float x[N] = {0};
  void *at;
  assert_int_equal(memory->allocate(ctx, "an array", sizeof x, &at), WN_OK);
  assert_int_equal(wn_op_add_forward(&exec, &(struct wn_add){.n = N, .x = at, .z = x, .y = at}), WN_ERR_ARGUMENT);
  assert_string_equal(wn_context_error(ctx), "add: z is no array of backend guard");
  assert_int_equal(memory->copy_in(ctx, at, x, sizeof x + 1), WN_ERR_ARGUMENT);
  assert_int_equal(memory->zero(ctx, x, sizeof x), WN_ERR_ARGUMENT);
  memory->release(at);
  assert_int_equal(memory->zero(ctx, at, sizeof x), WN_ERR_ARGUMENT);
  wn_context_destroy(ctx);
}

/* A program's own waits, and the counter of waits. */
static void test_waits(void **state) {
  (void)state;
  wn_context *ctx = guard_context();
  const struct wn_memory *memory = exec_of(ctx).backend->memory;
  unsigned long long live[3], peak[3];
  void *at;
  int32_t in = 77, out = 5;
  assert_int_equal(wn_context_memory(ctx, &live[0], &peak[0]), WN_OK);
  assert_int_equal(memory->allocate(ctx, "an array", 100000, &at), WN_OK);
  assert_int_equal(wn_context_memory(ctx, &live[1], &peak[1]), WN_OK);
  assert_int_equal(live[1] - live[0], 100000);
  assert_true(peak[1] >= live[1]);
  assert_int_equal(memory->copy_in(ctx, at, &in, sizeof in), WN_OK);
  assert_int_equal(memory->copy_out(ctx, &out, at, sizeof out), WN_OK);
  assert_int_not_equal(out, 77);
  assert_int_equal(wn_context_wait(ctx), WN_OK);
  assert_int_equal(out, 77);
  memory->release(at);
  assert_int_equal(wn_context_memory(ctx, &live[2], &peak[2]), WN_OK);
  assert_int_equal(live[2], live[0]);
  assert_true(peak[2] >= live[1]);
  wn_context_destroy(ctx);
}

/* A plan's arrays stay on the device: runs copy nothing back, and do not add to parameter gradients, until the results
 * are taken. The results equal ref's. After that, runs copy again. */
static void test_plans(void **state) {
  enum { T = 9, H = 2, D = 4, COUNT = H * T * D };
  static const char text[] = "{\"selective\": {\"mem\": {}}, \"span\": {\"init\": 0.5, \"limit\": 8, \"ramp\": 4}}";
  static float q[COUNT], k[COUNT], v[COUNT], dy[COUNT], z[H], y[2][COUNT], dq[2][COUNT], dz[2][H];
  static const int32_t rows[1] = {T - 2};
  double mem[2] = {-1, -1};
  wn_context *ctx[2] = {NULL, guard_context()};
  wn_attention_plan *plan[2];
  wn_attention_config config;
  (void)state;
  assert_int_equal(
      wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .backend = "ref"}, &ctx[0]), WN_OK);
  assert_int_equal(wn_attention_config_parse(ctx[0], text, &config), WN_OK);
  for (int i = 0; i < COUNT; i++)
    q[i] = (float)(i % 7) - 3, k[i] = (float)(i % 5) - 2, v[i] = (float)(i % 11) - 5, dy[i] = (float)(i % 3) - 1;
  for (int i = 0; i < H; i++) z[i] = 0.5F;
  for (int i = 0; i < 2; i++) {
    const wn_attention_arrays a = {.B = 1,
                                   .T = T,
                                   .H = H,
                                   .Hkv = H,
                                   .D = D,
                                   .dtype = WN_F32,
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .z = z,
                                   .row_count = rows,
                                   .y = y[i],
                                   .mem_loss = &mem[i],
                                   .dy = dy,
                                   .dq = dq[i],
                                   .dz = dz[i]};
    assert_int_equal(wn_attention_plan_create(ctx[i], &config, &a, &plan[i]), WN_OK);
  }
  assert_int_equal(wn_attention_plan_forward(plan[0]), WN_OK);
  assert_int_equal(wn_attention_plan_backward(plan[0]), WN_OK);
  assert_true(mem[0] > 0 && dz[0][0] != 0);
  assert_int_equal(wn_attention_plan_take(plan[1]), WN_ERR_ARGUMENT);
  assert_string_equal(wn_context_error(ctx[1]), "attention: arrays are taken that were not put");
  assert_int_equal(wn_attention_plan_put(plan[1]), WN_OK);
  for (int i = 0; i < COUNT; i++) q[i] += 1; /* must have no effect */
  for (int i = 0; i < 2; i++) {
    assert_int_equal(wn_attention_plan_forward(plan[1]), WN_OK);
    assert_int_equal(wn_attention_plan_backward(plan[1]), WN_OK);
  }
  assert_int_equal(wn_context_wait(ctx[1]), WN_OK);
  for (int i = 0; i < COUNT; i++) assert_true(y[1][i] == 0 && dq[1][i] == 0);
  assert_true(mem[1] == -1);
  assert_int_equal(wn_attention_plan_take(plan[1]), WN_OK);
  assert_memory_equal(y[1], y[0], sizeof y[0]);
  assert_memory_equal(dq[1], dq[0], sizeof dq[0]);
  assert_memory_equal(dz[1], dz[0], sizeof dz[0]);
  assert_true(mem[1] == mem[0]);
  for (int i = 0; i < 2; i++) { /* with the changed q */
    assert_int_equal(wn_attention_plan_forward(plan[i]), WN_OK);
    assert_int_equal(wn_attention_plan_backward(plan[i]), WN_OK);
  }
  assert_memory_equal(y[1], y[0], sizeof y[0]);
  assert_memory_equal(dz[1], dz[0], sizeof dz[0]);
  assert_true(mem[1] == mem[0]);
  for (int i = 0; i < 2; i++) {
    wn_attention_plan_destroy(plan[i]);
    wn_context_destroy(ctx[i]);
  }
}

static void test_touching(void **state) {
  (void)state;
  wn_context *ctx = guard_context();
  const struct wn_exec exec = exec_of(ctx);
  void *at;
  int status;
  assert_int_equal(exec.backend->memory->allocate(ctx, "an array", N, &at), WN_OK);
  for (int writes = 0; writes < 2; writes++) {
    const pid_t child = fork();
    if (child == 0) {
      signal(SIGSEGV, SIG_DFL);
      if (writes) *(volatile char *)at = 1;
      _exit(writes ? 0 : *(volatile char *)at);
    }
    assert_true(waitpid(child, &status, 0) == child);
    assert_true(WIFSIGNALED(status));
  }
  exec.backend->memory->release(at);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_operations), cmocka_unit_test(test_refuses),
                                     cmocka_unit_test(test_waits), cmocka_unit_test(test_plans),
                                     cmocka_unit_test(test_touching)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
