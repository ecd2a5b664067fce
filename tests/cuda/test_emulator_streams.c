/* The emulation's streams (emulate_queue.cc): a missing wait shows in some order, whether the work runs directly or as
 * a captured graph, and work that the host does not wait for is not done. Attention in concurrent chunks can be
 * captured. */
#include "support.h"

#include "cuda/emulate_api.h"
#include "cuda/emulator_streams.h"

#define SEEDS 8
static const struct stream_waits all = {.second = true, .program = true},
                                 by_third = {.second = true, .program = true, .third = true, .middle = true};

static int values_wrong(struct stream_waits waits) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    wn_emulate_seed(seed);
    wrong += !(streams_value(waits) == 50);
    assert_null(wn_emulate_error());
  }
  return wrong;
}
static void test_waits(void **state) {
  (void)state;
  struct stream_waits no_second = all, no_program = all, no_middle = by_third, no_third = by_third;
  no_second.second = false, no_program.program = false, no_middle.middle = false, no_third.program = false;
  assert_int_equal(values_wrong(all), 0);
  assert_int_equal(values_wrong(by_third), 0);
  assert_true(values_wrong(no_second) > 0);
  assert_true(values_wrong(no_program) > 0);
  assert_true(values_wrong(no_middle) > 0);
  assert_true(values_wrong(no_third) > 0);
}

static void test_order_of_asking(void **state) {
  (void)state;
  wn_emulate_seed(0); /* everything except what the host does not wait for */
  assert_true(streams_value((struct stream_waits){.second = false, .program = true}) == 50);
}

static void test_events(void **state) {
  (void)state;
  int wrong = 0;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    wn_emulate_seed(seed);
    assert_true(streams_events(false) == 2);
    wrong += !(streams_events(true) == 2);
  }
  assert_null(wn_emulate_error());
  assert_true(wrong > 0);
}

static void test_captured(void **state) {
  (void)state;
  int error;
  struct stream_waits no_program = all;
  no_program.program = false;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    wn_emulate_seed(seed);
    assert_true(streams_captured(all, &error) == 50 && error == 0);
    assert_true(streams_captured(by_third, &error) == 50 && error == 0);
    assert_null(wn_emulate_error());
  }
  (void)streams_captured(no_program, &error);
  assert_int_not_equal(error, 0);
  const char *said = wn_emulate_error();
  assert_true(said && strstr(said, "cudaStreamEndCapture before the stream waits"));
}

static void test_stray(void **state) {
  (void)state;
  streams_fault();
  const char *said = wn_emulate_error();
  assert_true(said && strstr(said, "another stream"));
}

static void test_attention(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed < 3; seed++) {
    wn_emulate_seed(seed);
    assert_int_equal(attention_together(), 0);
    const char *said = wn_emulate_error();
    if (said) fail_msg("%s", said);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_attention), cmocka_unit_test(test_waits),    cmocka_unit_test(test_order_of_asking),
      cmocka_unit_test(test_events),    cmocka_unit_test(test_captured), cmocka_unit_test(test_stray),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
