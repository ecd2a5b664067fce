/* What every transport must do, tested through the interface of src/dist. Started alone, the context has no other
 * processes ("none"). tests/dist/run starts the same program under mpirun. After the context has left the group, the
 * tests run again, alone. With an argument, the last process fails while the others wait for it. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support.h"
#include "base/clock.h"
#include "base/context.h"
#include "base/error.h"
#include "dist/group.h"

static wn_context *ctx;
static int rank, size, started; /* started: number of processes at the start, also after leaving */

/* A number for every index, of many magnitudes, made from bits: -0 and NaN occur as well. */
static uint64_t hash_of(uint64_t x) {
  x = (x + 1) * UINT64_C(0x9E3779B97F4A7C15);
  x = (x ^ x >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
  return x ^ x >> 32;
}

static double number_of(size_t i) {
  const uint64_t h = hash_of(i);
  if (i % 101 == 7) return INFINITY;
  if (i % 101 == 8) return 0x1p-1074;
  return ldexp((double)(h >> 11), (int)(h % 600) - 300) * (h & 1024 ? -1 : 1);
}

static void expect_bits(const void *got, const void *wanted, size_t bytes) {
  if (memcmp(got, wanted, bytes)) fail_msg("process %d of %d: other bits among %zu bytes", rank, size, bytes);
}

static uint8_t *bytes_new(size_t bytes) { /* one more, as a guard behind the end */
  uint8_t *p = malloc(bytes + 1);
  assert_non_null(p);
  p[bytes] = 0xA5;
  return p;
}

static void bytes_fill(uint8_t *p, size_t bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)hash_of(seed * 1000003 + i);
}

static void expect_bytes(const uint8_t *p, size_t bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes; i++)
    if (p[i] != (uint8_t)hash_of(seed * 1000003 + i))
      fail_msg("process %d of %d: byte %zu of %zu of message %llu", rank, size, i, bytes, (unsigned long long)seed);
  assert_int_equal(p[bytes], 0xA5);
}

static const size_t lengths[] = {0, 1, 3, 8, 4097, 65536, 3000001};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

/* --- who takes part --- */

static void test_ranks(void **state) {
  double here[64] = {0};
  (void)state;
  assert_int_equal(wn_dist_rank(ctx), rank);
  assert_int_equal(wn_dist_size(ctx), size);
  assert_true(rank >= 0 && rank < size && size <= 64);
  here[rank] = 1;
  assert_ok(ctx, wn_dist_merge(ctx, here, (size_t)size));
  for (int r = 0; r < size; r++) assert_true(here[r] == 1); /* each rank once */
  assert_int_equal(wn_dist_rank(NULL), 0);
  assert_int_equal(wn_dist_size(NULL), 1);
}

static void test_joining_again(void **state) {
  wn_context *other;
  (void)state;
  if (size > 1) assert_ok(ctx, wn_dist_join(ctx, NULL, NULL)); /* has joined already */
  assert_int_equal(wn_dist_rank(ctx), rank);
  assert_int_equal(wn_dist_size(ctx), size);
  assert_ok(ctx, wn_context_create(NULL, &other));
  assert_int_equal(wn_dist_join(other, NULL, NULL), started > 1 ? WN_ERR_ARGUMENT : WN_OK); /* once a process */
  assert_int_equal(wn_dist_rank(other), 0);
  assert_int_equal(wn_dist_size(other), 1);
  wn_dist_leave(other, WN_OK); /* it never joined */
  wn_context_destroy(other);
}

/* --- collective calls --- */

static void test_merge(void **state) {
  static const size_t counts[] = {0, 1, 3, 101, WN_DIST_ROOM - 1, WN_DIST_ROOM, WN_DIST_ROOM + 1, 100003};
  (void)state;
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
    const size_t n = counts[c];
    double *x = calloc(n + 1, sizeof *x), *wanted = calloc(n + 1, sizeof *x);
    assert_true(x && wanted);
    for (size_t i = 0; i < n; i++) {
      wanted[i] = number_of(i);
      x[i] = i % (size_t)size == (size_t)rank ? wanted[i] : 0;
    }
    x[n] = wanted[n] = 12345; /* the guard */
    assert_ok(ctx, wn_dist_merge(ctx, x, n));
    expect_bits(x, wanted, (n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = 1;
    assert_ok(ctx, wn_dist_merge(ctx, x, n));
    for (size_t i = 0; i < n; i++) assert_true(x[i] == size);
    free(x);
    free(wanted);
  }
}

static void test_broadcast(void **state) {
  (void)state;
  for (int from = 0; from < size; from++)
    for (int c = 0; c < LENGTHS; c++) {
      const uint64_t seed = (uint64_t)(from * LENGTHS + c);
      uint8_t *data = bytes_new(lengths[c]);
      bytes_fill(data, lengths[c], rank == from ? seed : 999);
      assert_ok(ctx, wn_dist_broadcast(ctx, data, lengths[c], from));
      expect_bytes(data, lengths[c], seed);
      free(data);
    }
}

/* More data than a message holds, and two calls in a row do not mix. */
static void test_whole(void **state) {
  const size_t bytes = (size_t)WN_DIST_MESSAGE + 4097;
  const int last = size - 1;
  (void)state;
  if (size == 1 || (rank != 0 && rank != last)) return;
  uint8_t *data = bytes_new(bytes), *more = bytes_new(5);
  if (rank == last) {
    bytes_fill(data, bytes, 41), bytes_fill(more, 5, 42);
    assert_ok(ctx, wn_dist_send_whole(ctx, data, bytes, 0));
    assert_ok(ctx, wn_dist_send_whole(ctx, data, 0, 0));
    assert_ok(ctx, wn_dist_send_whole(ctx, more, 5, 0));
  } else {
    assert_ok(ctx, wn_dist_receive_whole(ctx, data, bytes, last));
    expect_bytes(data, bytes, 41);
    assert_ok(ctx, wn_dist_receive_whole(ctx, data, 0, last));
    assert_ok(ctx, wn_dist_receive_whole(ctx, more, 5, last));
    expect_bytes(more, 5, 42);
  }
  free(data);
  free(more);
}

/* Nobody leaves a barrier before the last one has arrived. All processes of a machine share the clock. */
static void test_barrier(void **state) {
  (void)state;
  for (int last = 0; last < size; last++) {
    double came[64] = {0};
    if (rank == last) usleep(50000);
    came[rank] = wn_seconds_now();
    assert_ok(ctx, wn_dist_barrier(ctx));
    const double through = wn_seconds_now();
    assert_ok(ctx, wn_dist_merge(ctx, came, (size_t)size));
    for (int r = 0; r < size; r++) assert_true(came[r] <= through);
  }
}

static void test_same(void **state) {
  char long_value[600], numbers[32];
  (void)state;
  memset(long_value, 'x', sizeof long_value - 1);
  long_value[sizeof long_value - 1] = 0;
  assert_ok(ctx, wn_dist_same(ctx, "value", ""));
  assert_ok(ctx, wn_dist_same(ctx, "value", long_value));
  assert_ok(ctx, wn_dist_alike(ctx));
  snprintf(numbers, sizeof numbers, "%d", rank == size - 1 ? 7 : 3);
  const wn_status status = wn_dist_same(ctx, "number of heads", numbers);
  if (size == 1 || rank < size - 1) {
    assert_ok(ctx, status);
  } else {
    assert_int_equal(status, WN_ERR_CONFIG);
    assert_non_null(strstr(wn_context_error(ctx), "number of heads: process 0 has 3, process"));
    assert_non_null(strstr(wn_context_error(ctx), "has 7"));
  }
  const int threads = ctx->threads;
  if (rank == size - 1) ctx->threads++;
  assert_int_equal(wn_dist_alike(ctx), size > 1 && rank == size - 1 ? WN_ERR_CONFIG : WN_OK);
  ctx->threads = threads;
}

/* --- messages --- */

/* All to all, every length, with everything posted before anything is waited for. Messages arrive in the order of
 * posting. */
static void test_messages(void **state) {
  enum { TURNS = 3 };
  const int others = size - 1, count = others * LENGTHS * TURNS;
  uint8_t **out = calloc((size_t)count + 1, sizeof *out), **in = calloc((size_t)count + 1, sizeof *in);
  int *requests = calloc(2 * (size_t)count + 1, sizeof *requests), n = 0;
  (void)state;
  assert_true(out && in && requests);
  for (int k = 0; k < count; k++) {
    const int other = (rank + 1 + k % others) % size, kind = k / others;
    const size_t bytes = lengths[kind % LENGTHS];
    out[k] = bytes_new(bytes);
    in[k] = bytes_new(bytes);
    bytes_fill(out[k], bytes, (uint64_t)(kind * 64 + rank));
    bytes_fill(in[k], bytes, 999);
    assert_ok(ctx, wn_dist_send(ctx, &wn_host_memory, out[k], bytes, other, &requests[n++]));
    assert_ok(ctx, wn_dist_receive(ctx, &wn_host_memory, in[k], bytes, other, &requests[n++]));
    assert_true(requests[n - 1] >= 0 && requests[n - 2] >= 0);
  }
  assert_ok(ctx, wn_dist_wait(ctx, requests, (size_t)n));
  for (int i = 0; i < n; i++) assert_int_equal(requests[i], -1);
  for (int k = 0; k < count; k++) {
    const int other = (rank + 1 + k % others) % size, kind = k / others;
    expect_bytes(in[k], lengths[kind % LENGTHS], (uint64_t)(kind * 64 + other));
    expect_bytes(out[k], lengths[kind % LENGTHS], (uint64_t)(kind * 64 + rank));
    free(in[k]);
    free(out[k]);
  }
  free(requests);
  free(out);
  free(in);
}

/* Makes progress without waiting for messages that have not been sent. */
static void test_advance(void **state) {
  int got = 0, sent = 41, go = 1, request, requests[3] = {-1, -1, -1};
  (void)state;
  assert_ok(ctx, wn_dist_advance(ctx, requests, 0));
  assert_ok(ctx, wn_dist_advance(ctx, requests, 3));
  assert_ok(ctx, wn_dist_wait(ctx, requests, 3));
  if (rank > 1 || size == 1) return;
  if (rank == 1) {
    assert_ok(ctx, wn_dist_receive(ctx, &wn_host_memory, &got, sizeof got, 0, &requests[1]));
    for (int i = 0; i < 1000; i++) assert_ok(ctx, wn_dist_advance(ctx, requests, 3));
    assert_true(requests[1] >= 0);
    assert_ok(ctx, wn_dist_send(ctx, &wn_host_memory, &go, sizeof go, 0, &request));
    assert_ok(ctx, wn_dist_wait(ctx, &request, 1));
  } else {
    assert_ok(ctx, wn_dist_receive(ctx, &wn_host_memory, &go, sizeof go, 1, &request));
    assert_ok(ctx, wn_dist_wait(ctx, &request, 1));
    assert_ok(ctx, wn_dist_send(ctx, &wn_host_memory, &sent, sizeof sent, 1, &requests[1]));
  }
  for (int turns = 0; requests[1] >= 0 && turns < 100000000; turns++) assert_ok(ctx, wn_dist_advance(ctx, requests, 3));
  assert_int_equal(requests[1], -1);
  assert_int_equal(got, rank == 1 ? 41 : 0);
}

static void test_wrong_process(void **state) {
  const int wrong[] = {-1, size, rank};
  int x = 0, request;
  (void)state;
  for (int i = 0; i < 3; i++) {
    request = 5;
    assert_int_equal(wn_dist_send(ctx, &wn_host_memory, &x, sizeof x, wrong[i], &request), WN_ERR_ARGUMENT);
    assert_int_equal(request, -1);
    request = 5;
    assert_int_equal(wn_dist_receive(ctx, &wn_host_memory, &x, sizeof x, wrong[i], &request), WN_ERR_ARGUMENT);
    assert_int_equal(request, -1);
  }
  assert_ok(ctx, wn_dist_barrier(ctx)); /* nothing was posted */
}

/* --- the tree of sums --- */

static bool tree_has(int64_t at, int64_t n, int64_t first, int64_t count) {
  if (at == first && n == count) return true;
  if (n < 2) return false;
  const int64_t left = wn_dist_left(n);
  return tree_has(at, left, first, count) || tree_has(at + left, n - left, first, count);
}

static void test_branches(void **state) {
  (void)state;
  for (int64_t n = 2; n < 200; n++) {
    const int64_t left = wn_dist_left(n);
    assert_true((left & (left - 1)) == 0 && left < n && 2 * left >= n);
  }
  for (int64_t leaves = 1; leaves < 70; leaves++)
    for (int processes = 1; processes <= leaves && processes < 18; processes++) {
      int64_t at = 0, first, count;
      for (int r = 0; r < processes; r++) {
        wn_dist_branch(leaves, r, processes, &first, &count);
        assert_true(first == at && count > 0);
        assert_true(tree_has(0, leaves, first, count));
        at += count;
      }
      assert_true(at == leaves);
    }
}

static float leaf_of(int64_t i) {
  return (float)ldexp((double)(hash_of((uint64_t)i) >> 40), (int)(hash_of((uint64_t)i) % 20)) - 0x1p30f;
}

static float tree_sum(int64_t first, int64_t n) {
  const int64_t left = n > 1 ? wn_dist_left(n) : 0;
  return n == 1 ? leaf_of(first) : tree_sum(first, left) + tree_sum(first + left, n - left);
}

/* Adds up the processes' branches of the same tree. */
static float tree_join(int64_t leaves, int64_t n, const float *sums, int *r) {
  int64_t first, count;
  wn_dist_branch(leaves, *r, size, &first, &count);
  if (count == n) return sums[(*r)++];
  const float a = tree_join(leaves, wn_dist_left(n), sums, r), b = tree_join(leaves, n - wn_dist_left(n), sums, r);
  return a + b;
}

static void test_sum_in_the_tree(void **state) {
  bool matters = false;
  (void)state;
  for (int64_t leaves = size; leaves < 40; leaves++) {
    const float whole = tree_sum(0, leaves);
    float sums[64], joined, in_order = 0;
    int64_t first, count;
    int request, r = 0;
    wn_dist_branch(leaves, rank, size, &first, &count);
    sums[rank] = tree_sum(first, count);
    if (rank > 0) {
      assert_ok(ctx, wn_dist_send(ctx, &wn_host_memory, &sums[rank], sizeof *sums, 0, &request));
      assert_ok(ctx, wn_dist_wait(ctx, &request, 1));
    }
    for (int other = 1; rank == 0 && other < size; other++) {
      assert_ok(ctx, wn_dist_receive(ctx, &wn_host_memory, &sums[other], sizeof *sums, other, &request));
      assert_ok(ctx, wn_dist_wait(ctx, &request, 1));
    }
    if (rank == 0) joined = tree_join(leaves, leaves, sums, &r);
    assert_ok(ctx, wn_dist_broadcast(ctx, &joined, sizeof joined, 0));
    expect_bits(&joined, &whole, sizeof whole);
    for (int64_t i = 0; i < leaves; i++) in_order += leaf_of(i);
    matters = matters || in_order != whole;
  }
  assert_true(matters);
}

/* --- a process that fails --- */

static atomic_int told;

static void on_lost(void *user, const char *line, bool speaks) {
  (void)user;
  (void)line;
  (void)speaks;
  atomic_fetch_add(&told, 1);
}

static int run_failure(void) {
  int never, request;
  if (rank == size - 1) {
    usleep(200000); /* the others are waiting by now */
    wn_fail(ctx, WN_ERR_IO, "out of order");
    wn_dist_leave(ctx, WN_ERR_IO);
    return 1;
  }
  wn_status status = wn_dist_receive(ctx, &wn_host_memory, &never, sizeof never, size - 1, &request);
  if (status == WN_OK) status = wn_dist_wait(ctx, &request, 1);
  usleep(100000);
  char line[1200]; /* one write: several processes print */
  const int n = snprintf(line, sizeof line, "wait ended, told %s: %s\n", atomic_load(&told) == 1 ? "once" : "otherwise",
                         status == WN_ERR_IO ? wn_context_error(ctx) : "without an error");
  if (write(1, line, (size_t)n) != n) return 1;
  sleep(1); /* the launcher kills everybody once the first has ended */
  _exit(1);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ranks),    cmocka_unit_test(test_joining_again),
      cmocka_unit_test(test_merge),    cmocka_unit_test(test_broadcast),
      cmocka_unit_test(test_whole),    cmocka_unit_test(test_barrier),
      cmocka_unit_test(test_same),     cmocka_unit_test(test_messages),
      cmocka_unit_test(test_advance),  cmocka_unit_test(test_wrong_process),
      cmocka_unit_test(test_branches), cmocka_unit_test(test_sum_in_the_tree),
  };
  (void)argv;
  if (wn_context_create(NULL, &ctx) != WN_OK) return 1;
  if (wn_dist_join(ctx, on_lost, NULL) != WN_OK) {
    fprintf(stderr, "%s\n", wn_context_error(ctx));
    return 1;
  }
  rank = wn_dist_rank(ctx);
  size = started = wn_dist_size(ctx);
  if (argc > 1) return run_failure();
  int failed = cmocka_run_group_tests_name("joined", tests, NULL, NULL);
  wn_dist_leave(ctx, failed ? WN_ERR_IO : WN_OK);
  rank = 0;
  size = 1;
  if (!failed && started > 1) failed = cmocka_run_group_tests_name("left", tests, NULL, NULL);
  wn_context_destroy(ctx);
  return failed != 0 || atomic_load(&told) > 0;
}
