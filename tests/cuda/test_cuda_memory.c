/* The device's memory keeps its contract (base/memory.h): it starts as zeros, copies may overlap in either direction,
 * copies to the host have arrived once they are waited for, and an address outside every array is an error. */
#include "support.h"

#include <stdio.h>

#include "backends/cuda/cuda.h"
#include "base/memory.h"
#include "cuda/emulate_api.h"

static const struct wn_memory *const m = &wn_cuda_memory;

static void test_zeros_and_copies(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  void *a, *b, *none = ctx;
  assert_ok(ctx, m->allocate(ctx, "nothing", 0, &none));
  assert_null(none);
  for (size_t bytes = 1; bytes < 20000; bytes = bytes * 3 + 1) {
    uint8_t *host = malloc(bytes), *back = malloc(bytes);
    assert_true(host && back);
    assert_ok(ctx, m->allocate(ctx, "a", bytes, &a));
    assert_ok(ctx, m->allocate(ctx, "b", bytes, &b));
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_ok(ctx, wn_memory_read(ctx, m, back, a, bytes));
    for (size_t i = 0; i < bytes; i++) assert_int_equal(back[i], 0);
    for (size_t i = 0; i < bytes; i++) host[i] = (uint8_t)(i * 7 + 3);
    assert_ok(ctx, m->copy_in(ctx, a, host, bytes));
    assert_ok(ctx, m->copy(ctx, b, a, bytes));
    assert_ok(ctx, m->zero(ctx, a, bytes));
    assert_ok(ctx, wn_memory_read(ctx, m, back, b, bytes));
    assert_memory_equal(back, host, bytes);
    assert_ok(ctx, wn_memory_read(ctx, m, back, a, bytes));
    assert_int_equal(back[bytes - 1], 0);
    m->release(a), m->release(b);
    free(host), free(back);
  }
  m->release(NULL);
  wn_context_destroy(ctx);
}

/* By bytes and by words, over short and long distances, in both directions, in several orders of threads. */
static void test_overlaps(void **state) {
  (void)state;
  enum { BYTES = 9001 };
  static const struct {
    size_t to, from, bytes;
  } moves[] = {{0, 1, 9000},    {1, 0, 9000},       {4, 0, 8996},    {0, 4, 8996}, {0, 4096, 4900},
               {4096, 0, 4900}, {3000, 3004, 5996}, {8, 4096, 4904}, {5, 5, 100},  {7, 3, 4097}};
  static uint8_t want[BYTES], back[BYTES];
  wn_context *ctx = make_context();
  void *p;
  assert_ok(ctx, m->allocate(ctx, "moved", BYTES, &p));
  for (uint64_t seed = 0; seed < 3; seed++)
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
      wn_emulate_seed(seed);
      for (size_t n = 0; n < BYTES; n++) want[n] = (uint8_t)(n * 13 + n / 256 + i);
      assert_ok(ctx, m->copy_in(ctx, p, want, BYTES));
      memmove(want + moves[i].to, want + moves[i].from, moves[i].bytes);
      assert_ok(ctx, m->copy(ctx, (char *)p + moves[i].to, (char *)p + moves[i].from, moves[i].bytes));
      const char *error = wn_emulate_error();
      if (error) fail_msg("move %zu: %s", i, error);
      assert_ok(ctx, wn_memory_read(ctx, m, back, p, BYTES));
      assert_memory_equal(back, want, BYTES);
    }
  wn_emulate_seed(0);
  m->release(p);
  wn_context_destroy(ctx);
}

/* Within a step work may be delayed, but it happens in the order of the calls, and what is read has arrived. */
static void test_steps(void **state) {
  (void)state;
  enum { BYTES = 4096 };
  static uint8_t big[BYTES], back[BYTES], want[BYTES];
  wn_context *ctx = make_context();
  void *a, *b, *late = NULL;
  assert_ok(ctx, m->allocate(ctx, "a", BYTES, &a));
  assert_ok(ctx, m->allocate(ctx, "b", BYTES, &b));
  for (int round = 0; round < 4; round++) {
    for (int i = 0; i < BYTES; i++) big[i] = (uint8_t)(i * 11 + round), want[i] = 0;
    m->step_begin(ctx);
    m->step_begin(ctx);            /* steps nest */
    for (int i = 0; i < 24; i++) { /* small copies, each over the previous one's end; enough for a graph */
      uint8_t small[9];
      memset(small, i + round, sizeof small);
      memset(want + 5 * i + round, i + round, sizeof small);
      assert_ok(ctx, m->copy_in(ctx, (uint8_t *)a + 5 * i + round, small, sizeof small));
      memset(small, 77, sizeof small); /* may be reused */
    }
    assert_ok(ctx, m->step_end(ctx));
    assert_ok(ctx, m->copy(ctx, b, a, BYTES));                        /* disjoint, whole vectors */
    assert_ok(ctx, m->copy(ctx, (uint8_t *)b + 1, (uint8_t *)b, 99)); /* overlapping */
    memmove(want + 1, want, 99);
    assert_ok(ctx, m->copy(ctx, (uint8_t *)b + 1001, (uint8_t *)b + 3, 50)); /* disjoint, bytes */
    memcpy(want + 1001, want + 3, 50);
    if (round % 2) {
      assert_ok(ctx, m->copy_in(ctx, (uint8_t *)a + 700, big, 3000)); /* too large for a kernel argument */
      assert_ok(ctx, m->allocate(ctx, "late", 64, &late));
      assert_ok(ctx, m->zero(ctx, a, 10));
      m->release(late);
    }
    assert_ok(ctx, wn_memory_read(ctx, m, back, b, BYTES)); /* does not end the step, but waits for all work */
    assert_memory_equal(back, want, BYTES);
    assert_ok(ctx, m->zero(ctx, b, BYTES));
    assert_ok(ctx, m->step_end(ctx));
    assert_ok(ctx, wn_memory_read(ctx, m, back, a, BYTES));
    if (round % 2) assert_true(back[0] == 0 && back[9] == 0);
    if (round % 2) assert_memory_equal(back + 700, big, 3000);
    assert_ok(ctx, wn_memory_read(ctx, m, back, b, BYTES));
    assert_true(back[0] == 0 && back[200] == 0);
    assert_ok(ctx, m->zero(ctx, a, BYTES));
    const char *error = wn_emulate_error();
    if (error) fail_msg("%s", error);
  }
  m->release(a), m->release(b);
  wn_context_destroy(ctx);
}

static void test_copies_arrive_when_waited_for(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  void *p;
  int32_t in = 77, out = 5;
  assert_ok(ctx, m->allocate(ctx, "p", sizeof in, &p));
  assert_ok(ctx, m->copy_in(ctx, p, &in, sizeof in));
  in = 1; /* may be reused */
  assert_ok(ctx, m->copy_out(ctx, &out, p, sizeof out));
  const uint64_t mark = m->record(ctx);
  if (wn_emulated()) assert_int_not_equal(out, 77); /* a real device may be this fast */
  assert_ok(ctx, m->zero(ctx, p, sizeof in));       /* ordered after the copy */
  assert_ok(ctx, m->wait(ctx, mark));
  assert_int_equal(out, 77);
  m->release(p);
  wn_context_destroy(ctx);
}

/* More than the ring of pinned memory holds, in both directions, with copies that nobody has waited for: their data are
 * moved out of the ring and still arrive. */
static void test_ring(void **state) {
  (void)state;
  enum { COPIES = 40 };
  const size_t large = ((size_t)37 << 20) + 13;
  wn_context *ctx = make_context();
  uint8_t *host = malloc(large), *back = malloc(large), *parts[COPIES];
  size_t bytes[COPIES];
  void *p;
  assert_true(host && back);
  for (size_t i = 0; i < large; i++) host[i] = (uint8_t)(i * 31 + (i >> 11));
  assert_ok(ctx, m->allocate(ctx, "p", large, &p));
  assert_ok(ctx, m->copy_in(ctx, p, host, large));
  assert_ok(ctx, wn_memory_read(ctx, m, back, p, large));
  assert_memory_equal(back, host, large);
  uint64_t mark = 0;
  for (int i = 0; i < COPIES; i++) { /* 1 byte to some MiB; the first byte changes each time */
    bytes[i] = 1 + ((size_t)i * 7919 * 263) % ((size_t)3 << 20);
    parts[i] = malloc(bytes[i]);
    assert_non_null(parts[i]);
    const uint8_t first = (uint8_t)i;
    assert_ok(ctx, m->copy_in(ctx, p, &first, 1));
    assert_ok(ctx, m->copy_out(ctx, parts[i], p, bytes[i]));
    mark = m->record(ctx);
  }
  assert_ok(ctx, m->wait(ctx, mark));
  for (int i = 0; i < COPIES; i++) {
    assert_int_equal(parts[i][0], i);
    assert_memory_equal(parts[i] + 1, host + 1, bytes[i] - 1);
    free(parts[i]);
  }
  const char *error = wn_emulate_error();
  if (error) fail_msg("%s", error);
  m->release(p);
  free(host), free(back);
  wn_context_destroy(ctx);
}

/* A mark stays valid after later marks have reused its event. Nothing is allocated. */
static void test_marks(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  void *p;
  int32_t in = 5, out = 0, later = 0;
  assert_ok(ctx, m->allocate(ctx, "p", sizeof in, &p));
  const uint64_t made = wn_emulate_allocations();
  assert_ok(ctx, m->copy_in(ctx, p, &in, sizeof in));
  assert_ok(ctx, m->copy_out(ctx, &out, p, sizeof out));
  const uint64_t mark = m->record(ctx);
  in = 6;
  assert_ok(ctx, m->copy_in(ctx, p, &in, sizeof in));
  for (int i = 0; i < 1000; i++) assert_true(m->record(ctx) > mark);
  assert_ok(ctx, m->copy_out(ctx, &later, p, sizeof later));
  assert_ok(ctx, m->wait(ctx, mark));
  assert_int_equal(out, 5);
  assert_ok(ctx, m->wait(ctx, m->record(ctx)));
  assert_int_equal(later, 6);
  assert_ok(ctx, m->wait(ctx, mark)); /* a second time */
  assert_int_equal(wn_emulate_allocations(), made);
  m->release(p);
  wn_context_destroy(ctx);
}

static void test_errors(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  void *p, *huge = ctx;
  char host[64] = {0};
  assert_ok(ctx, m->allocate(ctx, "p", 64, &p));
  assert_int_equal(m->allocate(ctx, "the cache", (size_t)1 << 60, &huge), WN_ERR_MEMORY);
  assert_null(huge);
  assert_non_null(
      strstr(wn_context_error(ctx), "out of memory on cuda: the cache needs 1152921504606846976 bytes, and "));
  assert_non_null(strstr(wn_context_error(ctx), " of the device's "));
  if (!wn_emulated()) { /* a device does not check, or ends the program's use of it */
    m->release(p);
    wn_context_destroy(ctx);
    return;
  }
  assert_int_equal(m->copy_in(ctx, host, host, 64), WN_ERR_IO);
  assert_string_equal(wn_context_error(ctx), "a copy in of 64 bytes on cuda: invalid argument");
  assert_int_equal(m->copy_out(ctx, host, p, 65), WN_ERR_IO);
  assert_int_equal(m->copy(ctx, p, host, 64), WN_ERR_IO);
  assert_int_equal(m->zero(ctx, (char *)p + 32, 33), WN_ERR_IO);
  m->release(p);
  assert_int_equal(m->copy_in(ctx, p, host, 1), WN_ERR_IO); /* freed memory */
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_zeros_and_copies),
      cmocka_unit_test(test_overlaps),
      cmocka_unit_test(test_steps),
      cmocka_unit_test(test_copies_arrive_when_waited_for),
      cmocka_unit_test(test_ring),
      cmocka_unit_test(test_marks),
      cmocka_unit_test(test_errors),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
