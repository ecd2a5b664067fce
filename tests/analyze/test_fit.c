/* Fits agree with those of numpy and statsmodels (tools/make-fit-goldens.py); bad input is refused. */
#include "support.h"

#include <jansson.h>
#include <math.h>
#include "winnow/analyze.h"

static double number_of(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_number(value)) fail_msg("the golden has no %s", key);
  return json_number_value(value);
}

static void near(const char *set, const char *curve, const char *key, double found, double expected, double slack) {
  if (!(fabs(found - expected) <= slack * fmax(1, fabs(expected))))
    fail_msg("%s, %s: %s is %.17g, expected %.17g", set, curve, key, found, expected);
}

static void test_goldens(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  json_error_t error;
  json_t *sets = json_load_file(WN_TEST_DIR "/golden/fits.json", 0, &error);
  assert_true(json_array_size(sets) == 4);
  for (size_t s = 0; s < json_array_size(sets); s++) {
    const json_t *set = json_array_get(sets, s), *xs = json_object_get(set, "x"), *ys = json_object_get(set, "y");
    const char *name = json_string_value(json_object_get(set, "name"));
    double x[64], y[64];
    const size_t n = json_array_size(xs);
    assert_true(n >= 3 && n <= 64);
    for (size_t i = 0; i < n; i++) {
      x[i] = json_number_value(json_array_get(xs, i));
      y[i] = json_number_value(json_array_get(ys, i));
    }
    for (int k = 0; k < WN_FIT_COUNT; k++) {
      const json_t *golden = json_array_get(json_object_get(set, "fits"), (size_t)k);
      const char *curve = json_string_value(json_object_get(golden, "curve"));
      wn_fit fit;
      assert_string_equal(curve, wn_fit_name((wn_fit_kind)k));
      assert_ok(ctx, wn_fit_curve(ctx, (wn_fit_kind)k, x, y, (int64_t)n, &fit));
      /* Far from the origin the two columns agree to one part in 10^5, so their difference has fewer digits. */
      const double slack = x[0] > 1e5 ? 1e-6 : 1e-9;
      near(name, curve, "intercept", fit.intercept, number_of(golden, "intercept"), slack);
      near(name, curve, "slope", fit.slope, number_of(golden, "slope"), slack);
      near(name, curve, "r2", fit.r2, number_of(golden, "r2"), slack);
      near(name, curve, "adjusted_r2", fit.adjusted_r2, number_of(golden, "adjusted_r2"), slack);
      near(name, curve, "aic", fit.aic, number_of(golden, "aic"), slack);
      near(name, curve, "mse", fit.mse, number_of(golden, "mse"), slack);
      assert_true(fit.n == (int64_t)n);
    }
  }
  json_decref(sets);
  wn_context_destroy(ctx);
}

static void test_curve(void **state) {
  (void)state;
  wn_fit fit = {.intercept = 2, .slope = 3};
  assert_true(wn_fit_at(WN_FIT_SQRT, &fit, 16) == 14 && wn_fit_at(WN_FIT_LINEAR, &fit, 16) == 50);
  assert_true(fabs(wn_fit_at(WN_FIT_LOG, &fit, 16) - (2 + 3 * log(17))) < 1e-12);
}

/* Every length needs the same number of tokens: there is no variance, so nothing is explained. */
static void test_constant(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  double x[40], y[40];
  for (int i = 0; i < 40; i++) x[i] = i + 1;
  for (int n = 3; n <= 40; n++)
    for (int k = 0; k < WN_FIT_COUNT; k++) {
      for (int i = 0; i < n; i++) y[i] = n % 2 ? 1 : 7.3;
      wn_fit fit;
      assert_ok(ctx, wn_fit_curve(ctx, (wn_fit_kind)k, x, y, n, &fit));
      if (!(fit.r2 == 0 && fabs(fit.slope) < 1e-9 && fabs(fit.intercept - y[0]) < 1e-9 && fit.mse < 1e-20))
        fail_msg("%s of %d points: r2 %g, slope %g, intercept %g", wn_fit_name((wn_fit_kind)k), n, fit.r2, fit.slope,
                 fit.intercept);
    }
  wn_context_destroy(ctx);
}

static void test_refused(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  const double x[] = {1, 2, 3}, same[] = {2, 2, 2}, negative[] = {1, 2, -3}, odd[] = {1, NAN, 3};
  wn_fit fit;
  assert_refused(ctx, wn_fit_curve(ctx, WN_FIT_SQRT, x, x, 2, &fit), WN_ERR_ARGUMENT, "at least 3");
  assert_refused(ctx, wn_fit_curve(ctx, WN_FIT_SQRT, same, x, 3, &fit), WN_ERR_ARGUMENT, "equal");
  assert_refused(ctx, wn_fit_curve(ctx, WN_FIT_LOG, negative, x, 3, &fit), WN_ERR_ARGUMENT, "point 2");
  assert_refused(ctx, wn_fit_curve(ctx, WN_FIT_LINEAR, x, odd, 3, &fit), WN_ERR_ARGUMENT, "point 1");
  assert_refused(ctx, wn_fit_curve(ctx, (wn_fit_kind)7, x, x, 3, &fit), WN_ERR_ARGUMENT, "kind 7");
  const double large[] = {1e300, -1e300, 1e300}, squares[] = {1e160, 2e160, 1e160};
  assert_refused(ctx, wn_fit_curve(ctx, WN_FIT_LINEAR, x, large, 3, &fit), WN_ERR_ARGUMENT, "too large");
  assert_refused(ctx, wn_fit_curve(ctx, WN_FIT_LINEAR, x, squares, 3, &fit), WN_ERR_ARGUMENT, "too large");
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_goldens), cmocka_unit_test(test_curve),
                                     cmocka_unit_test(test_constant), cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
