/* The planner of arrays: it counts exactly what it places, and names an array that does not fit, also where a size
 * overflows. */
#include "support.h"

#include "base/arrays.h"

struct things {
  double *numbers; /* [3,5] */
  char *bytes;     /* [n] */
  int32_t *absent, *empty;
  float *deep; /* [2,3,4,5] */
};

static void things_lay(struct things *t, int64_t n, struct wn_arrays *arrays) {
  const struct wn_array rows[] = {
      {"numbers", true, WN_DIMS(3, 5), sizeof *t->numbers, &t->numbers},
      {"bytes", true, WN_DIMS(n), 1, &t->bytes},
      {"absent", false, WN_DIMS(INT64_MAX, INT64_MAX), sizeof *t->absent, &t->absent},
      {"empty", true, WN_DIMS(INT64_MAX, 0, INT64_MAX), sizeof *t->empty, &t->empty},
      {"deep", true, WN_DIMS(2, 3, 4, 5), sizeof *t->deep, &t->deep},
  };
  WN_ARRAYS_LAY(arrays, rows);
}

static void check_things(const struct things *t, int64_t n, const char *base, size_t bytes) {
  assert_null(t->absent);
  assert_null(t->empty);
  const struct {
    const void *at;
    size_t bytes;
  } placed[] = {{t->numbers, 15 * sizeof(double)}, {t->bytes, (size_t)n}, {t->deep, 120 * sizeof(float)}};
  const char *end = base;
  for (int i = 0; i < 3; i++) {
    assert_int_equal((uintptr_t)placed[i].at % WN_ALIGN, 0);
    assert_ptr_equal(placed[i].at, end); /* back to back, except for padding */
    end = (const char *)placed[i].at + (placed[i].bytes + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN;
  }
  assert_ptr_equal(end, base + bytes);
}

static void counted_then_placed(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  for (int64_t n = 1; n <= 2 * WN_ALIGN + 1; n++) {
    struct wn_arrays arrays = {0};
    struct things t;
    memset(&t, 0xFF, sizeof t);
    things_lay(&t, n, &arrays);
    assert_true(!t.numbers && !t.bytes && !t.absent && !t.empty && !t.deep);
    const size_t bytes = arrays.bytes;
    wn_memory_info before, after;
    wn_memory_info_get(&before);
    assert_ok(ctx, wn_arrays_allocate(ctx, &arrays, "things"));
    wn_memory_info_get(&after);
    assert_int_equal(after.live_bytes - before.live_bytes, bytes);
    assert_int_equal(after.live_allocations - before.live_allocations, 1);
    things_lay(&t, n, &arrays);
    assert_int_equal(arrays.bytes, bytes);
    check_things(&t, n, arrays.base, bytes);
    wn_arrays_clear(&arrays);
    assert_null(arrays.base);
    assert_int_equal(arrays.bytes, 0);
    wn_memory_info_get(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
  }
  wn_context_destroy(ctx);
}

static void copies_in_memory_of_the_callers(void **state) {
  (void)state;
  enum { COPIES = 3 };
  wn_context *ctx = make_context();
  struct wn_arrays counted = {0};
  struct things t[COPIES];
  void *memory;
  things_lay(&t[0], 70, &counted);
  assert_ok(ctx, wn_alloc(ctx, "scratch", COPIES * counted.bytes, &memory));
  for (int64_t i = 0; i < COPIES; i++) {
    struct wn_arrays mine = wn_arrays_copy(&counted, memory, i);
    things_lay(&t[i], 70, &mine);
    assert_int_equal(mine.bytes, counted.bytes);
    check_things(&t[i], 70, (char *)memory + (size_t)i * counted.bytes, counted.bytes);
    memset(t[i].deep, (int)i + 1, 120 * sizeof(float));
    memset(t[i].bytes, (int)i + 1, 70);
  }
  for (int64_t i = 0; i < COPIES; i++) {
    assert_int_equal(t[i].bytes[69], i + 1);
    assert_int_equal(((const char *)t[i].deep)[0], i + 1);
  }
  wn_free(memory);
  wn_context_destroy(ctx);
}

static void a_table_in_one_call(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  struct wn_arrays arrays;
  float *a;
  int32_t *b;
  const struct wn_array rows[] = {{"a", true, WN_DIMS(7), sizeof *a, &a}, {"b", true, WN_DIMS(9), sizeof *b, &b}};
  assert_ok(ctx, WN_ARRAYS_CREATE(ctx, &arrays, "two", rows));
  assert_ptr_equal(a, arrays.base);
  assert_ptr_equal(b, arrays.base + WN_ALIGN);
  assert_int_equal(arrays.bytes, 2 * WN_ALIGN);
  for (int i = 0; i < 9; i++) assert_int_equal(b[i], 0);
  wn_arrays_clear(&arrays);
  const struct wn_array none[] = {{"a", false, WN_DIMS(7), sizeof *a, &a}};
  assert_ok(ctx, WN_ARRAYS_CREATE(ctx, &arrays, "none", none));
  assert_null(a);
  assert_null(arrays.base);
  wn_arrays_clear(&arrays);
  wn_context_destroy(ctx);
}

/* Each entry overflows in its own way. The first one is named, and nothing after it is placed. */
static void what_does_not_fit_is_named(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  char *x, *y, *small;
  const struct wn_array large[] = {
      {"product", true, WN_DIMS((int64_t)1 << 40, (int64_t)1 << 40), 1, &x},
      {"element", true, WN_DIMS(INT64_MAX), 4, &x},
      {"negative", true, WN_DIMS(2, -1), 1, &x},
      {"two negatives", true, WN_DIMS(-1, -1), 1, &x},
      {"padding", true, WN_DIMS(INT64_MAX), 2, &x},
      {"wraps to little", true, WN_DIMS((int64_t)1 << 32, (int64_t)1 << 31, 2), 1, &x},
      {"a quarter", true, WN_DIMS((int64_t)(SIZE_MAX / 4 + 1)), 1, &x},
  };
  for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
    const struct wn_array rows[] = {{"small", true, WN_DIMS(64), 1, &small}, large[i], {"y", true, WN_DIMS(1), 1, &y}};
    char expected[96];
    struct wn_arrays arrays = {0};
    WN_ARRAYS_LAY(&arrays, rows);
    assert_string_equal(arrays.failed, large[i].name);
    assert_int_equal(arrays.bytes, 64);
    snprintf(expected, sizeof expected, "batch of 3: array %s does not fit in memory", large[i].name);
    assert_refused(ctx, wn_arrays_check(ctx, &arrays, "batch of %d", 3), WN_ERR_ARGUMENT, expected);
    assert_refused(ctx, wn_arrays_allocate(ctx, &arrays, "a batch"), WN_ERR_MEMORY, large[i].name);
    assert_null(arrays.base);
    struct wn_arrays created;
    assert_refused(ctx, WN_ARRAYS_CREATE(ctx, &created, "a batch", rows), WN_ERR_MEMORY, "a batch needs more");
    assert_null(created.base);
    assert_null(y);
  }
  const int64_t eighth = (int64_t)(SIZE_MAX / 8);
  const struct wn_array sum[] = {{"first", true, WN_DIMS(eighth), 1, &x},
                                 {"second", true, WN_DIMS(eighth), 1, &x},
                                 {"third", true, WN_DIMS(1), 1, &y}};
  struct wn_arrays arrays = {0};
  WN_ARRAYS_LAY(&arrays, sum);
  assert_string_equal(arrays.failed, "second");
  assert_ok(ctx, wn_arrays_check(ctx, &(struct wn_arrays){0}, "nothing"));
  wn_context_destroy(ctx);
}

/* Groups of arrays that are repeated among others: copies do not overlap, and a group that does not fit once does not
 * fit several times. */
static void copies_among_others(void **state) {
  (void)state;
  _Alignas(WN_ALIGN) static char memory[64 + 3 * 128 + 64];
  char *before, *own, *after, *copies;
  const struct wn_array first[] = {{"before", true, WN_DIMS(5), 1, &before}},
                        last[] = {{"after", true, WN_DIMS(5), 1, &after}};
  const struct wn_array each[] = {{"own", true, WN_DIMS(100), 1, &own}};
  struct wn_arrays one = {0}, all = {0}, placed = {.base = memory};
  WN_ARRAYS_LAY(&one, each);
  for (int pass = 0; pass < 2; pass++) {
    struct wn_arrays *to = pass ? &placed : &all;
    WN_ARRAYS_LAY(to, first);
    copies = wn_arrays_lay_copies(to, &one, 3);
    WN_ARRAYS_LAY(to, last);
    assert_int_equal(wn_arrays_bytes(to), sizeof memory);
    if (!pass) assert_null(copies);
  }
  assert_ptr_equal(copies, memory + 64);
  assert_ptr_equal(after, memory + sizeof memory - 64);
  for (int i = 0; i < 3; i++) {
    struct wn_arrays copy = wn_arrays_copy(&one, copies, i);
    WN_ARRAYS_LAY(&copy, each);
    assert_ptr_equal(own, copies + 128 * i);
  }
  const struct wn_array huge[] = {{"huge", true, WN_DIMS(INT64_MAX), 8, &own}};
  struct wn_arrays lacks = {0}, sum = {0};
  WN_ARRAYS_LAY(&lacks, huge);
  assert_null(wn_arrays_lay_copies(&sum, &lacks, 2));
  assert_string_equal(sum.failed, "huge");
  assert_true(wn_arrays_bytes(&sum) >= (size_t)1 << 60);
  sum = (struct wn_arrays){0};
  wn_arrays_lay_copies(&sum, &one, INT64_MAX / 4);
  assert_non_null(sum.failed);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counted_then_placed), cmocka_unit_test(copies_in_memory_of_the_callers),
      cmocka_unit_test(a_table_in_one_call), cmocka_unit_test(what_does_not_fit_is_named),
      cmocka_unit_test(copies_among_others),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
