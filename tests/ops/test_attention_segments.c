/* The cpu backend with rows after many cached keys, as in training with recurrence: narrow and wide spans, relative
 * positions, learned sinks and dropout together, against the reference; and the same bits with any number of threads.
 */
#include "isa.h"
#include "mechanisms.h"

static const char *const terms[] = {
    "{\"span\":{\"limit\":400,\"ramp\":32,\"exclude_self\":true},\"relative\":{\"length\":600},\"window\":401}",
    "{\"span\":{\"limit\":60,\"ramp\":7},\"relative\":{\"length\":600},\"sinks\":3}",
    "{\"span\":{\"limit\":200,\"ramp\":100,\"dynamic\":true},\"relative\":{\"length\":600}}",
    "{\"relative\":{\"length\":200},\"window\":130,\"sinks\":70}",
    "{\"span\":{\"limit\":90,\"ramp\":0.5},\"relative\":{\"length\":600},\"selective\":true}",
};
/* Queries start in different places inside a tile and inside a group of 16 rows. */
static const int64_t shapes[][2] = {{64, 384}, {70, 150}, {33, 290}, {130, 331}};
enum { TERMS = sizeof terms / sizeof *terms, SHAPES = sizeof shapes / sizeof *shapes };

static struct mech_case parsed[TERMS];

static struct mech_setup setup_of(int t, int s) {
  return (struct mech_setup){.c = &parsed[t],
                             .B = 3,
                             .Tq = shapes[s][0],
                             .Tk = shapes[s][1],
                             .dk_from = shapes[s][1] - shapes[s][0],
                             .H = 4,
                             .Hkv = 4,
                             .D = s == 1 ? 20 : 16,
                             .dropout = s % 2 ? 0.3 : 0,
                             .seed = (uint64_t)(10 * t + s)};
}

/* The norm of the difference relative to the reference's norm. */
static void near(const struct mech_bench *got, const struct mech_bench *want, const char *where) {
  for (int i = 0; i < got->n; i++) {
    if (got->a[i].role != MECH_GRADIENT && got->a[i].role != MECH_OUTPUT) continue;
    double difference = 0, norm = 0;
    for (int64_t k = 0; k < got->a[i].count; k++) {
      const double w = mech_get(want, i, k), d = mech_get(got, i, k) - w;
      if (w == mech_get(got, i, k)) continue; /* also -inf */
      difference += d * d;
      norm += w * w;
    }
    if (!(sqrt(difference) <= 1e-5 * sqrt(norm)))
      fail_msg("%s on %s: %s is off by %.3g of its norm %.3g", mech_name(got), where, got->a[i].name,
               sqrt(difference / fmax(norm, 1e-30)), sqrt(norm));
  }
}

static void check(const char *isa) {
  struct mech_place reference, p;
  if (!mech_open(&p, "cpu", isa)) skip();
  assert_true(mech_open(&reference, "ref", NULL));
  for (int t = 0; t < TERMS; t++)
    for (int s = 0; s < SHAPES; s++) {
      const struct mech_setup setup = setup_of(t, s);
      struct mech_bench want, one, more;
      mech_make(&want, &setup, WN_F64);
      mech_make(&one, &setup, WN_F32);
      p.threads = 1;
      assert_true(mech_both(&reference, &want));
      assert_true(mech_both(&p, &one));
      near(&one, &want, isa);
      for (p.threads = 2; p.threads <= 3; p.threads++) {
        mech_make(&more, &setup, WN_F32);
        assert_true(mech_both(&p, &more));
        near(&more, &want, isa);
        /* 12 groups of heads with a thread each. Selection connects them, and threads then share a sequence. */
        for (int i = 0; i < one.n && !setup.c->config.selective.enabled; i++)
          if (memcmp(one.a[i].data, more.a[i].data,
                     (size_t)one.a[i].count * (one.a[i].whole ? sizeof(int32_t) : sizeof(float))))
            fail_msg("%s on %s: %s with %d threads is not what it is with one", mech_name(&one), isa, one.a[i].name,
                     p.threads);
        mech_clear(&more);
      }
      mech_clear(&one);
      mech_clear(&want);
    }
  mech_close(&reference);
  mech_close(&p);
}

static void test_avx2(void **state) {
  (void)state;
  check(ISA_OF_EIGHT);
}
static void test_avx512(void **state) {
  (void)state;
  check("avx512");
}

static int setup(void **state) {
  (void)state;
  for (int i = 0; i < TERMS; i++) mech_merge(&parsed[i], "{}", terms[i]);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_avx2),
      cmocka_unit_test(test_avx512),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
