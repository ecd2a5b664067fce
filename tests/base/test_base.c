/* The rest of src/base: counted memory, sizes, error messages, the context, texts that grow. */
#include "support.h"

#include "base/alloc.h"
#include "base/context.h"
#include "base/error.h"
#include "base/text.h"
#include "winnow/version.h"

static void memory_is_counted_aligned_and_zero(void **state) {
  (void)state;
  static const size_t sizes[] = {1, 63, 64, 65, 4096, ((size_t)1 << 20) - 1, (size_t)1 << 20, ((size_t)9 << 20) + 3};
  wn_context *ctx = make_context();
  wn_memory_info before, during, after;
  wn_memory_info_get(&before);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    void *p = NULL;
    assert_ok(ctx, wn_alloc(ctx, "block", sizes[i], &p));
    assert_int_equal((uintptr_t)p % WN_ALIGN, 0);
    wn_memory_info_get(&during);
    assert_int_equal(during.live_bytes - before.live_bytes, sizes[i]);
    assert_int_equal(during.live_allocations - before.live_allocations, 1);
    assert_true(during.peak_bytes >= during.live_bytes);
    const unsigned char *b = p;
    for (size_t k = 0; k < sizes[i]; k += 97) assert_int_equal(b[k], 0);
    assert_int_equal(b[sizes[i] - 1], 0);
    memset(p, 0xAB, sizes[i]);
    wn_free(p);
  }
  wn_memory_info_get(&after);
  assert_int_equal(after.live_bytes, before.live_bytes);
  assert_int_equal(after.total_allocations - before.total_allocations, sizeof sizes / sizeof *sizes);
  wn_memory_peak_reset();
  wn_memory_info_get(&after);
  assert_int_equal(after.peak_bytes, after.live_bytes);
  void *p = ctx;
  assert_ok(ctx, wn_alloc(ctx, "nothing", 0, &p));
  assert_null(p);
  wn_free(NULL);
  assert_refused(ctx, wn_alloc(ctx, "moon", SIZE_MAX, &p), WN_ERR_MEMORY,
                 "out of memory: moon needs 18446744073709551615");
  assert_refused(ctx, wn_alloc(ctx, "moon", (size_t)PTRDIFF_MAX, &p), WN_ERR_MEMORY, "moon");
  assert_null(p);
  wn_context_destroy(ctx);
}

static void sizes_without_overflow(void **state) {
  (void)state;
  size_t n;
  assert_false(wn_mul_size(SIZE_MAX / 2, 3, &n));
  assert_false(wn_add_size(SIZE_MAX, 1, &n));
  assert_true(wn_mul_size(SIZE_MAX / 2, 2, &n) && n == SIZE_MAX - 1);
}

static void sentences_are_one_clean_line(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  assert_string_equal(wn_context_error(ctx), "");
  assert_int_equal(wn_fail(ctx, WN_ERR_IO, "two\nlines\tand \x1b[31m %d", 5), WN_ERR_IO);
  assert_string_equal(wn_context_error(ctx), "two lines and \\x1b[31m 5");
  wn_fail(ctx, WN_ERR_IO, "a\xC2\x9B\xC2\xA9z\xC2");
  assert_string_equal(wn_context_error(ctx), "a\\xc2\\x9b\xC2\xA9z\\xc2");
  wn_fail(ctx, WN_ERR_IO, "two\nlines\tand \x1b[31m %d", 5);
  assert_int_equal(wn_fail_prefix(ctx, WN_ERR_FORMAT, "file %s", "x"), WN_ERR_FORMAT);
  assert_string_equal(wn_context_error(ctx), "file x: two lines and \\x1b[31m 5");
  wn_fail(ctx, WN_ERR_IO, "again: %s", wn_context_error(ctx)); /* with its own text as an argument */
  assert_string_equal(wn_context_error(ctx), "again: file x: two lines and \\x1b[31m 5");
  char long_text[3000];
  for (size_t i = 0; i + 2 < sizeof long_text; i += 2) memcpy(long_text + i, "\xC3\xA9", 2);
  long_text[sizeof long_text - 2] = 0;
  for (int shift = 0; shift < 2; shift++) {
    wn_fail(ctx, WN_ERR_IO, "%s%s", shift ? "x" : "", long_text);
    size_t n = strlen(wn_context_error(ctx));
    assert_true(n > 1000 && n < 1024);
    assert_int_equal((unsigned char)wn_context_error(ctx)[n - 1], 0xA9); /* cut between characters, not inside one */
    wn_fail_prefix(ctx, WN_ERR_IO, "%s", long_text);
    assert_true(strlen(wn_context_error(ctx)) < 1024);
  }
  assert_int_equal(wn_fail(NULL, WN_ERR_IO, "nobody listens"), WN_ERR_IO);
  assert_string_equal(wn_context_error(NULL), "");
  wn_context_destroy(ctx);
  for (int i = 0; i <= WN_ERR_CANCELLED; i++) assert_non_null(strstr(wn_status_name((wn_status)i), "WN_"));
  assert_string_equal(wn_status_name((wn_status)1234), "WN_ERR_UNKNOWN");
}

static int lines_seen;
static void count_line(void *user, wn_log_level level, const char *line) {
  assert_ptr_equal(user, &lines_seen);
  assert_int_equal(level, WN_LOG_WARNING);
  assert_null(strchr(line, '\n'));
  lines_seen++;
}

static void contexts_check_their_options(void **state) {
  (void)state;
  wn_context *ctx = NULL;
  wn_context_options options = {.size = sizeof options, .threads = -1};
  assert_int_equal(wn_context_create(&options, &ctx), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "threads is -1"));
  wn_context_destroy(ctx);
  options = (wn_context_options){.size = sizeof(wn_context_options), .backend = "abacus"};
  assert_int_equal(wn_context_create(&options, &ctx), WN_ERR_UNSUPPORTED);
  assert_non_null(strstr(wn_context_error(ctx), "abacus"));
  wn_context_destroy(ctx);
  options = (wn_context_options){
      .size = sizeof(wn_context_options), .threads = 3, .backend = "ref", .log = count_line, .log_user = &lines_seen};
  assert_int_equal(wn_context_create(&options, &ctx), WN_OK);
  assert_int_equal(wn_context_threads(ctx), 3);
  assert_string_equal(wn_context_backend(ctx), "ref");
  wn_log(ctx, WN_LOG_WARNING, "one\nline");
  assert_int_equal(lines_seen, 1);
  assert_false(wn_context_cancelled(ctx));
  wn_context_cancel(ctx);
  assert_true(wn_context_cancelled(ctx));
  wn_context_destroy(ctx);

  assert_int_equal(setenv("WINNOW_ISA", "mmx", 1), 0);
  assert_int_equal(wn_context_create(NULL, &ctx), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "mmx"));
  wn_context_destroy(ctx);
  assert_int_equal(setenv("WINNOW_ISA", "ref", 1), 0);
  assert_int_equal(wn_context_create(NULL, &ctx), WN_OK);
  assert_int_equal(ctx->isa, WN_ISA_REF);
  assert_true(ctx->threads >= 1);
  wn_context_destroy(ctx);
  unsetenv("WINNOW_ISA");
}

static void texts_grow(void **state) {
  (void)state;
  struct wn_text text = {0};
  for (int i = 0; i < 1000; i++) wn_text_add(&text, "%d,", i);
  assert_false(text.failed);
  assert_int_equal(text.bytes, 10 * 2 + 90 * 3 + 900 * 4);
  assert_int_equal(strlen(text.data), text.bytes);
  wn_free(text.data);
}

/* The header's version numbers, as numbers and as text. */
static void the_version_is_the_headers(void **state) {
  (void)state;
  char expected[64];
  snprintf(expected, sizeof expected, "%d.%d.%d", WN_VERSION_MAJOR, WN_VERSION_MINOR, WN_VERSION_PATCH);
  assert_string_equal(wn_version(), expected);
  assert_int_equal(wn_version_number(), WN_VERSION_MAJOR * 10000 + WN_VERSION_MINOR * 100 + WN_VERSION_PATCH);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_version_is_the_headers),   cmocka_unit_test(memory_is_counted_aligned_and_zero),
      cmocka_unit_test(sizes_without_overflow),       cmocka_unit_test(sentences_are_one_clean_line),
      cmocka_unit_test(contexts_check_their_options), cmocka_unit_test(texts_grow),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
