/* The backend guard itself: it refuses arrays that are not its own by name, its arrays cannot be touched, its copies
 * out arrive when they are waited for, and its operations give what ref's give. */
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
  assert_true(y[5] != 3 * x[4]); /* not there yet */
  const uint64_t mark = memory->record(ctx);
  assert_int_equal(memory->zero(ctx, at, sizeof x), WN_OK); /* after the copy */
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

/* A program's wait and its count. */
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
                                     cmocka_unit_test(test_waits), cmocka_unit_test(test_touching)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
