/* The whole model's gradient against finite differences, for every configuration of the table. */
#include "model/gradients.h"

static void test_gradients(void **state) {
  (void)state;
  for (int i = 0; i < MODEL_CASES; i++) check_gradients(&model_cases[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
