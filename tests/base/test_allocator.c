/* A program's own allocator: all of the library's memory comes from it and goes back, results are the same, and it may
 * have nothing to give. */
#include "model/models.h"
#include "support.h"

#include <stdatomic.h>

static _Atomic int64_t blocks, bytes_held;
static _Atomic bool dry;

static void *take(void *user, size_t bytes) {
  assert_ptr_equal(user, &blocks);
  void *p = dry ? NULL : malloc(bytes);
  if (!p) return NULL;
  memset(p, 0xa5, bytes); /* the library must not count on zeros */
  blocks++;
  bytes_held += (int64_t)bytes;
  return p;
}

static void give(void *user, void *memory, size_t bytes) {
  assert_ptr_equal(user, &blocks);
  blocks--;
  bytes_held -= (int64_t)bytes;
  free(memory);
}

static const wn_allocator own = {.size = sizeof own, .allocate = take, .release = give, .user = &blocks};
enum { V = 13 };

static void logits_of(float logits[V]) {
  wn_context *ctx = context_of("cpu", 2);
  wn_model_config c = model_case_config(&model_cases[1]);
  c.vocab_size = 13, c.width = 512, c.ffn_width = 2000; /* blocks of more than a mebibyte as well */
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  wn_session *s;
  OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 16), &s));
  OK(ctx, wn_session_feed(ctx, s, (const int32_t[]){1, 5, 9}, 3, 0, logits));
  if (blocks > 0) {
    assert_int_equal(wn_allocator_set(NULL), WN_ERR_ARGUMENT); /* memory is held */
    wn_session *none;
    dry = true;
    assert_refused(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 16), &none),
                   WN_ERR_MEMORY, "out of memory");
    dry = false;
  }
  wn_session_destroy(s);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_allocator(void **state) {
  (void)state;
  float expected[V], found[V];
  wn_memory_info info;
  logits_of(expected);
  wn_allocator half = own;
  half.release = NULL;
  assert_int_equal(wn_allocator_set(&half), WN_ERR_ARGUMENT);
  assert_int_equal(wn_allocator_set(&own), WN_OK);
  logits_of(found);
  assert_memory_equal(found, expected, sizeof found);
  wn_memory_info_get(&info);
  assert_true(info.total_allocations > 10 && info.live_allocations == 0 && blocks == 0 && bytes_held == 0);
  assert_int_equal(wn_allocator_set(NULL), WN_OK);
  logits_of(found);
  assert_int_equal(blocks, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_allocator)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
