/* The emulation's graphs (emulate_graph.cc): what is captured or added runs when the graph is launched, not earlier,
 * with the arguments given then; a missing dependency shows; what graphs cannot contain is an error that names the
 * call. */
#include "support.h"

#include "cuda/emulate_api.h"
#include "cuda/emulator_graphs.h"

static void test_launches(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 4; seed++) {
    struct graph_values x;
    wn_emulate_seed(seed);
    const wn_emulated_calls before = wn_emulate_calls();
    graph_run(true, &x);
    const wn_emulated_calls after = wn_emulate_calls();
    const char *error = wn_emulate_error();
    if (error) fail_msg("%s", error);
    assert_true(x.built == 1 && x.launched == 4 && x.changed == 21);
    assert_true(x.captured == 21 && x.child == 42 && x.zeros == 0);
    assert_int_equal(after.graphs - before.graphs, 3);
    assert_int_equal(after.nodes - before.nodes, 1);
    assert_int_equal(after.kernels - before.kernels, 2); /* the two that set the arrays */
  }
}

static void test_dependencies(void **state) {
  (void)state;
  int wrong = 0;
  for (uint64_t seed = 0; seed < 8; seed++) {
    struct graph_values x;
    wn_emulate_seed(seed);
    graph_run(false, &x);
    assert_null(wn_emulate_error());
    wrong += x.launched != 4;
  }
  assert_true(wrong > 0);
}

static void test_faults(void **state) {
  (void)state;
  wn_emulate_seed(0);
  for (int fault = 0; fault < GRAPH_FAULTS; fault++) {
    struct graph_values x;
    bool invalid;
    const int status = graph_fault((enum graph_fault)fault, &invalid);
    const char *error = wn_emulate_error(), *call = graph_fault_call((enum graph_fault)fault);
    if (!error || !strstr(error, call)) fail_msg("\"%s\" lacks \"%s\"", error ? error : "no error", call);
    assert_int_not_equal(status, 0);
    assert_true(invalid == (fault <= GRAPH_FAULT_TWICE));
    graph_run(true, &x); /* later launches are unaffected */
    assert_null(wn_emulate_error());
    assert_true(x.child == 42);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_launches),
      cmocka_unit_test(test_dependencies),
      cmocka_unit_test(test_faults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
