/* Messages between devices keep the contract of wn_dist_device: two and four processes, each with an emulated device,
 * exchange arrays in groups, in several orders of the streams' work. On a GPU one process joins alone. tests/dist/run
 * trains whole models over them. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/cuda/cuda.h"
#include "base/memory.h"
#include "cuda/emulate_api.h"
#include "dist/device.h"

enum { MOST = 4, GROUPS = 100 };

static const struct wn_memory *const m = &wn_cuda_memory;
static const struct wn_dist_device *const nccl = &wn_cuda_nccl;
static const size_t lengths[] = {0, 1, 3, 4097, 300001};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static uint8_t byte_of(int from, int to, int turn, size_t i) {
  return (uint8_t)(i * 7 + i / 251 + (size_t)(from * 31 + to * 57 + turn * 101) + 1);
}

static void expect(bool holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "process %d: %s\n", (int)getpid(), what);
  _exit(1);
}

static void expect_ok(wn_context *ctx, wn_status status) {
  expect(status == WN_OK, wn_context_error(ctx));
}

static void wait_for(wn_context *ctx, int request) {
  for (bool done = false; !done;) expect_ok(ctx, nccl->test(ctx, request, &done));
}

/* A group: every length to and from every other process. The arrays are filled by work that has not run when the group
 * is posted, and zeroed once it is done. */
static void exchange(wn_context *ctx, int rank, int size, int turn) {
  static uint8_t host[300001];
  uint8_t *out[MOST][LENGTHS], *in[MOST][LENGTHS];
  int request = -1;
  for (int other = 0; other < size; other++)
    for (int k = 0; k < LENGTHS && other != rank; k++) {
      expect_ok(ctx, m->allocate(ctx, "out", lengths[k], (void **)&out[other][k]));
      expect_ok(ctx, m->allocate(ctx, "in", lengths[k], (void **)&in[other][k]));
      for (size_t i = 0; i < lengths[k]; i++) host[i] = byte_of(rank, other, turn + k, i);
      expect_ok(ctx, m->copy_in(ctx, out[other][k], host, lengths[k]));
      expect_ok(ctx, nccl->post(ctx, out[other][k], lengths[k], other, true, &request));
      expect_ok(ctx, nccl->post(ctx, in[other][k], lengths[k], other, false, &request));
    }
  if (size > 1) wait_for(ctx, request);
  for (int other = 0; other < size; other++)
    for (int k = 0; k < LENGTHS && other != rank; k++) {
      expect_ok(ctx, m->zero(ctx, out[other][k], lengths[k]));
      expect_ok(ctx, wn_memory_read(ctx, m, host, in[other][k], lengths[k]));
      for (size_t i = 0; i < lengths[k]; i++)
        expect(host[i] == byte_of(other, rank, turn + k, i), "another byte than was sent");
      m->release(out[other][k]), m->release(in[other][k]);
    }
}

/* More groups in flight than there are events, waited for from the first. Each sends on what the one before brought. */
static void many_groups(wn_context *ctx, int rank, int size) {
  uint8_t *a, back[GROUPS + 1];
  int requests[GROUPS];
  if (size == 1) return;
  expect_ok(ctx, m->allocate(ctx, "a ring", GROUPS + 1, (void **)&a));
  const uint8_t first = (uint8_t)(rank + 1);
  expect_ok(ctx, m->copy_in(ctx, a, &first, 1));
  for (int i = 0; i < GROUPS; i++) {
    bool done;
    expect_ok(ctx, nccl->post(ctx, a + i, 1, (rank + 1) % size, true, &requests[i]));
    expect_ok(ctx, nccl->post(ctx, a + i + 1, 1, (rank + size - 1) % size, false, &requests[i]));
    expect_ok(ctx, nccl->test(ctx, requests[i], &done));
  }
  for (int i = 0; i < GROUPS; i++) wait_for(ctx, requests[i]);
  expect_ok(ctx, wn_memory_read(ctx, m, back, a, sizeof back));
  for (int i = 0; i <= GROUPS; i++)
    expect(back[i] == (rank + size - i % size) % size + 1, "a group ran before the one that brought its bytes");
  m->release(a);
}

static int run_process(int rank, int size, int *pipes) {
  wn_context *ctx = make_context();
  char version[WN_DIST_TEXT], place[WN_DIST_TEXT];
  unsigned char id[WN_DIST_ID];
  wn_cuda_choose(rank);
  expect_ok(ctx, wn_cuda_begin(ctx));
  const wn_status opened = nccl->open(ctx, version, place);
  if (opened == WN_ERR_UNSUPPORTED && !wn_emulated()) return 0; /* a GPU without NCCL */
  expect_ok(ctx, opened);
  expect(!strncmp(version, "NCCL 2.", 7), version);
  if (rank == 0) expect_ok(ctx, nccl->name(ctx, id));
  for (int r = 1; rank == 0 && r < size; r++)
    expect(write(pipes[2 * r + 1], id, sizeof id) == sizeof id, "the id is told");
  if (rank > 0) expect(read(pipes[2 * rank], id, sizeof id) == sizeof id, "the id is heard");
  expect_ok(ctx, nccl->join(ctx, id, rank, size));
  for (uint64_t seed = 0; seed < 4; seed++) {
    wn_emulate_seed(seed);
    for (int turn = 0; turn < 3; turn++) exchange(ctx, rank, size, turn);
    many_groups(ctx, rank, size);
  }
  const char *error = wn_emulate_error();
  expect(!error, error);
  nccl->end();
  return 0;
}

static void run_processes(int size) {
  int pipes[2 * MOST], failed = 0;
  pid_t children[MOST];
  setenv("WINNOW_EMULATED", "13000,9,4", 1);
  for (int r = 0; r < size; r++) assert_int_equal(pipe(pipes + 2 * r), 0);
  for (int r = 0; r < size; r++) {
    children[r] = fork();
    assert_true(children[r] >= 0);
    if (children[r] == 0) _exit(run_process(r, size, pipes));
  }
  for (int r = 0; r < size; r++) {
    int status;
    assert_int_equal(waitpid(children[r], &status, 0), children[r]);
    failed += status != 0;
    close(pipes[2 * r]), close(pipes[2 * r + 1]);
  }
  assert_int_equal(failed, 0);
}

static void test_alone(void **state) {
  (void)state;
  run_processes(1);
}

static void test_several(void **state) {
  (void)state;
  if (!wn_emulated()) skip(); /* each needs a GPU of its own */
  run_processes(2);
  run_processes(4);
}

/* What does not fit is said in a line. */
static void test_refusals(void **state) {
  (void)state;
  if (!wn_emulated()) skip();
  wn_context *ctx = make_context();
  char version[WN_DIST_TEXT], place[WN_DIST_TEXT];
  setenv("WINNOW_EMULATED_NCCL", "0", 1);
  assert_int_equal(nccl->open(ctx, version, place), WN_ERR_UNSUPPORTED);
  assert_string_equal(wn_context_error(ctx), "several GPUs need NCCL, and there is no libnccl.so.2");
  setenv("WINNOW_EMULATED_NCCL", "2804", 1);
  assert_int_equal(nccl->open(ctx, version, place), WN_ERR_UNSUPPORTED);
  assert_string_equal(wn_context_error(ctx), "several GPUs need NCCL 2.9 or later, the installed one's code is 2804");
  unsetenv("WINNOW_EMULATED_NCCL");
  wn_cuda_choose(4);
  assert_int_equal(wn_cuda_begin(ctx), WN_ERR_UNSUPPORTED);
  assert_string_equal(wn_context_error(ctx), "process 4 of this machine, counted from 0, finds 4 devices");
  wn_cuda_choose(0);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_alone),
      cmocka_unit_test(test_several),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
