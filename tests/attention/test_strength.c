/* The strength of selection. F is linear in it, so a power of two scales F exactly. With a bilinear form it is the same
 * as scaling the selecting queries, gradients included. At 0 outputs are those of dense attention, to the bit on the
 * same backend; gradients differ in the order of sums. The cases of test_attention_gradients compare its own gradient
 * with finite differences; here it is tested with several sequences, teams of threads and keys from an earlier piece.
 */
#include "isa.h"
#include "mechanisms.h"

enum { T = 150 };

static struct mech_place place;

static struct mech_case parsed(const char *text) {
  struct mech_case c = {.number = 3};
  mech_merge(&c, "{}", text);
  return c;
}

static void set_all(struct mech_bench *m, const char *name, double value) {
  const int which = mech_find(m, name);
  if (which < 0) fail_msg("%s: no array %s", mech_name(m), name);
  for (int64_t i = 0; i < m->a[which].count; i++) mech_set(m, which, i, value);
}

static void begin(struct mech_bench *m, const struct mech_case *c, wn_dtype dtype, int64_t B, int64_t H, int64_t Hkv) {
  const struct mech_setup s = {.c = c, .B = B, .Tq = T, .Tk = T, .H = H, .Hkv = Hkv, .D = 16, .seed = 5};
  mech_make(m, &s, dtype);
  for (int i = 0; i < m->n; i++)
    if (m->a[i].role == MECH_GRADIENT && m->a[i].adds) set_all(m, m->a[i].name, 0);
}

/* The elements that the call writes equal those of `other` times `factor`. */
static void same(const char *what, const struct mech_bench *m, const struct mech_bench *other, const char *name,
                 double factor) {
  const int x = mech_find(m, name), y = mech_find(other, name);
  assert_true(x >= 0 && y >= 0);
  for (int64_t i = 0; i < m->a[x].count; i++)
    if (mech_counts(m, x, i) && mech_get(m, x, i) != factor * mech_get(other, y, i))
      fail_msg("%s on %s: %s[%lld] is %.9g, expected %.9g", what, place.backend->name, name, (long long)i,
               mech_get(m, x, i), factor * mech_get(other, y, i));
}

static void check_scales_F(wn_dtype dtype) {
  static const char *const texts[][2] = {
      {"{\"selective\":{}}", "{\"selective\":{\"strength\":\"learned\"}}"},
      {"{\"selective\":{\"per_kv_head\":true,\"relu\":false,\"shift\":false}}",
       "{\"selective\":{\"per_kv_head\":true,\"relu\":false,\"shift\":false,\"strength\":\"scheduled\"}}"}};
  for (int i = 0; i < 2; i++) {
    const struct mech_case fixed = parsed(texts[i][0]), learned = parsed(texts[i][1]);
    struct mech_bench a, b;
    begin(&a, &fixed, dtype, 2, 4, 2);
    begin(&b, &learned, dtype, 2, 4, 2);
    set_all(&b, "strength", 0.5);
    assert_true(mech_call(&place, &a, &a.op, false) && mech_call(&place, &b, &b.op, false));
    same("half the strength", &b, &a, "F", 0.5);
    same("half the strength", &b, &a, "f_out", 0.5);
    set_all(&b, "strength", 1);
    assert_true(mech_both(&place, &a) && mech_both(&place, &b));
    for (int k = 0; k < a.n; k++)
      if (a.a[k].role == MECH_OUTPUT || a.a[k].role == MECH_GRADIENT) same("strength 1", &b, &a, a.a[k].name, 1);
    mech_clear(&a);
    mech_clear(&b);
  }
}

/* relu(g scale q.k) = g relu(scale q.k), and the gradient of the queries is g times that of the scaled ones. */
static void check_scaled_queries(wn_dtype dtype) {
  const struct mech_case plain = parsed("{\"selective\":{\"bilinear\":true,\"mem\":{}}}"),
                         learned = parsed("{\"selective\":{\"bilinear\":true,\"strength\":\"learned\",\"mem\":{}}}");
  struct mech_bench a, b;
  begin(&a, &plain, dtype, 2, 4, 2);
  begin(&b, &learned, dtype, 2, 4, 2);
  const int sq = mech_find(&a, "sq");
  double expected = 0;
  for (int64_t i = 0; i < a.a[sq].count; i++) mech_set(&a, sq, i, 0.25 * mech_get(&a, sq, i));
  set_all(&b, "strength", 0.25);
  assert_true(mech_both(&place, &a) && mech_both(&place, &b));
  static const char *const equal[] = {"y", "lse", "F", "M", "f_out", "dq", "dk", "dv", "dsk"};
  for (size_t i = 0; i < sizeof equal / sizeof *equal; i++) same("scaled queries", &b, &a, equal[i], 1);
  same("scaled queries", &b, &a, "dsq", 0.25);
  /* By Euler's theorem g dg is the sum of sq . dsq, since the output depends on g and sq only through g sq. */
  const int dsq = mech_find(&b, "dsq");
  for (int64_t i = 0; i < b.a[dsq].count; i++)
    if (mech_counts(&b, dsq, i)) expected += mech_get(&b, sq, i) * mech_get(&b, dsq, i);
  const double got = 0.25 * mech_get(&b, mech_find(&b, "dstrength"), 0);
  if (!(fabs(got - expected) <= (dtype == WN_F64 ? 1e-10 : 2e-4) * fmax(1, fabs(expected))))
    fail_msg("g dg on %s is %.9g, expected %.9g", place.backend->name, got, expected);
  mech_clear(&a);
  mech_clear(&b);
}

static void check_zero_is_dense(wn_dtype dtype) {
  const struct mech_case dense = parsed("{}"), none = parsed("{\"selective\":{\"strength\":\"learned\"}}");
  struct mech_bench a, b;
  begin(&a, &dense, dtype, 2, 4, 2);
  begin(&b, &none, dtype, 2, 4, 2);
  set_all(&b, "strength", 0);
  assert_true(mech_both(&place, &a) && mech_both(&place, &b));
  same("strength 0", &b, &a, "y", 1);
  same("strength 0", &b, &a, "lse", 1);
  static const char *const sums[] = {"dq", "dk", "dv"}; /* the selecting head's share is added last */
  for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
    const int x = mech_find(&b, sums[i]), y = mech_find(&a, sums[i]);
    for (int64_t n = 0; n < b.a[x].count; n++)
      if (mech_counts(&b, x, n) && !(fabs(mech_get(&b, x, n) - mech_get(&a, y, n)) <=
                                     (dtype == WN_F64 ? 0 : 1e-5 * fmax(1, fabs(mech_get(&a, y, n))))))
        fail_msg("strength 0: %s[%lld] is %.9g, expected %.9g", sums[i], (long long)n, mech_get(&b, x, n),
                 mech_get(&a, y, n));
  }
  assert_true(fabs(mech_get(&b, mech_find(&b, "dstrength"), 0)) > 1e-3); /* so training can move it from 0 */
  /* One row, as in decoding. */
  struct wn_attention x = a.op, y = b.op;
  x.Tq = y.Tq = 1;
  assert_true(mech_call(&place, &a, &x, false) && mech_call(&place, &b, &y, false));
  same("strength 0, one row", &b, &a, "y", 1);
  mech_clear(&a);
  mech_clear(&b);
}

/* One sequence, two threads: a team shares it, and each part adds its share to the gradient. */
static void check_team(wn_dtype dtype) {
  const struct mech_case c = parsed("{\"selective\":{\"strength\":\"learned\",\"mem\":{}}}");
  double alone = 0;
  for (int threads = 1; threads <= 2; threads++) {
    const struct mech_setup s = {
        .c = &c, .B = 1, .Tq = 300, .Tk = 330, .H = 4, .Hkv = 2, .D = 16, .seed = 5, .f_in = true};
    struct mech_bench m;
    mech_make(&m, &s, dtype);
    set_all(&m, "dstrength", 100); /* the call adds to it */
    place.threads = threads;
    assert_true(mech_both(&place, &m));
    const double got = mech_get(&m, mech_find(&m, "dstrength"), 0);
    assert_true(fabs(got - 100) > 1e-3);
    if (threads == 1) alone = got;
    if (!(fabs(got - alone) <= 1e-4 * fabs(alone - 100))) fail_msg("two threads give %.9g, one %.9g", got, alone);
    mech_clear(&m);
  }
  place.threads = 1;
}

static void run(const char *backend, const char *isa, wn_dtype dtype) {
  if (!mech_open(&place, backend, isa)) skip();
  check_scales_F(dtype);
  check_scaled_queries(dtype);
  check_zero_is_dense(dtype);
  check_team(dtype);
  mech_close(&place);
}

static void test_ref(void **state) {
  (void)state;
  run("ref", NULL, WN_F64);
}
static void test_avx2(void **state) {
  (void)state;
  run("cpu", ISA_OF_EIGHT, WN_F32);
}
static void test_avx512(void **state) {
  (void)state;
  run("cpu", "avx512", WN_F32);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ref), cmocka_unit_test(test_avx2),
                                     cmocka_unit_test(test_avx512)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
