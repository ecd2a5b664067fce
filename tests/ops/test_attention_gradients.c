/* The backward pass of attention in the double reference against central differences of its forward pass: every
 * mechanism alone and every pair, for whole sequences and rows after cached keys, with documents, control tokens,
 * evictions and dropout; encoder rows that select. Checks every gradient: of q, k, v and of the mechanisms' arrays. */
#include "mechanisms.h"
#include "own_term.h"

static struct mech_place place;

static double loss_of(const struct mech_bench *m) {
  const int y = mech_find(m, "y"), dy = mech_find(m, "dy"), M = mech_find(m, "M"), dM = mech_find(m, "dM");
  double loss = 0;
  for (int64_t i = 0; i < m->a[y].count; i++)
    if (mech_counts(m, y, i)) loss += mech_get(m, y, i) * mech_get(m, dy, i);
  for (int64_t i = 0; M >= 0 && i < m->a[M].count; i++) loss += mech_get(m, M, i) * mech_get(m, dM, i);
  return loss;
}

/* Element i's coefficient in the direction: random if only is negative, else nonzero for that element alone. */
static double direction(int which, int64_t only, int64_t i) {
  if (only >= 0) return i == only;
  return wn_random_normal(99, WN_STREAM_TEST, (uint64_t)which, (uint64_t)i);
}

static double loss_moved(struct mech_bench *m, int grad, int64_t only, double step) {
  struct mech_array *x = &m->a[m->a[grad].input];
  double *data = x->data, *kept = malloc((size_t)x->count * sizeof *kept);
  memcpy(kept, data, (size_t)x->count * sizeof *kept);
  for (int64_t i = 0; i < x->count; i++)
    if (mech_counts(m, grad, i)) data[i] += step * direction(grad, only, i);
  mech_call(&place, m, &m->op, false);
  memcpy(data, kept, (size_t)x->count * sizeof *kept);
  free(kept);
  return loss_of(m);
}

/* ReLU, clamps and thresholds have kinks. A smaller step avoids them, but does not make a wrong gradient right. */
static void check_direction(struct mech_bench *m, const struct mech_bench *before, int grad, int64_t only) {
  static const double steps[] = {1e-5, 1e-6, 1e-7, 1e-8};
  double got = 0, size = 0, want = 0;
  for (int64_t i = 0; i < m->a[grad].count; i++) {
    if (!mech_counts(m, grad, i)) continue;
    const double d = mech_get(m, grad, i) - (m->a[grad].adds ? mech_get(before, grad, i) : 0);
    got += d * direction(grad, only, i);
    size += d * d;
  }
  for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
    const double h = steps[s], up = loss_moved(m, grad, only, h), down = loss_moved(m, grad, only, -h);
    want = (up - down) / (2 * h);
    if (fabs(got - want) <= 1e-6 * (fabs(want) + sqrt(size)) + 1e-14 / h * (1 + fabs(up))) return;
  }
  fail_msg("%s: %s (element %lld): %.12g, differences give %.12g", mech_name(m), m->a[grad].name, (long long)only, got,
           want);
}

static void check_setup(const struct mech_setup *s, int elements) {
  struct mech_bench m, before;
  mech_make(&m, s, WN_F64);
  mech_make(&before, s, WN_F64);
  mech_both(&place, &m);
  for (int g = 0; g < m.n; g++) {
    const struct mech_array *a = &m.a[g];
    for (int64_t i = 0; a->role != MECH_FIXED && i < a->count; i++) {
      if (a->role == MECH_INPUT || !mech_counts(&m, g, i))
        assert_true(mech_get(&m, g, i) == mech_get(&before, g, i)); /* nothing else is written */
      else if (a->role == MECH_GRADIENT && !isfinite(mech_get(&m, g, i)))
        fail_msg("%s: %s[%lld] is %g", mech_name(&m), a->name, (long long)i, mech_get(&m, g, i));
    }
    if (a->role != MECH_GRADIENT) continue;
    check_direction(&m, &before, g, -1);
    for (int k = 0; k < elements; k++) {
      int64_t only;
      for (uint64_t tries = 0;; tries++) {
        only = (int64_t)wn_random_below(s->seed, WN_STREAM_TEST, (uint64_t)(g * 10 + k), tries, (uint64_t)a->count);
        if (mech_counts(&m, g, only)) break;
      }
      check_direction(&m, &before, g, only);
    }
  }
  mech_clear(&m);
  mech_clear(&before);
}

/* The variants for every case. Pairs take two of them each, in turn. */
static struct mech_setup variant(const struct mech_case *c, int which, uint64_t seed) {
  struct mech_setup s = {.c = c, .B = 1, .Tq = 19, .Tk = 19, .H = 4, .Hkv = 2, .D = 5, .seed = seed};
  if (which == 1) s.documents = s.control = true, s.dropout = 0.3;
  if (which == 2) s.Tq = 8, s.Tk = 21, s.dk_from = 13, s.f_in = true, s.heads_first = true;
  if (which == 3) s.Tq = 8, s.Tk = 21, s.dk_from = 5, s.f_in = s.documents = true, s.dropout = 0.2, s.B = 2, s.H = 2;
  if (which == 3) s.control = true;
  s.evicts = (int)((seed + (uint64_t)which) % 3);
  return s;
}

static void test_alone(void **state) {
  (void)state;
  for (int i = 0; i < mech_alone; i++)
    for (int v = 0; v < 4; v++) {
      const struct mech_setup s = variant(&mech_cases[i], v, (uint64_t)i);
      check_setup(&s, 2);
    }
}

static void test_pairs(void **state) {
  (void)state;
  assert_true(mech_count > 200);
  for (int i = mech_alone; i < mech_count; i++)
    for (int v = i % 2; v < 4; v += 2) {
      const struct mech_setup s = variant(&mech_cases[i], v, (uint64_t)i);
      check_setup(&s, 1);
    }
}

/* Rows that select in both directions: finite differences see the sum over all other rows. */
static void test_open(void **state) {
  (void)state;
  mech_list_open();
  for (int i = 0; i < mech_count; i++)
    for (int v = 0; v < 3; v++) {
      struct mech_setup s = {.c = &mech_cases[i], .B = 1, .Tq = 13, .Tk = 13, .H = 4, .Hkv = 2, .D = 5};
      s.seed = (uint64_t)(i * 3 + v);
      if (v == 1) s.B = 4, s.padded = true, s.dropout = 0.2;
      if (v == 2) s.Tq = s.Tk = 2, s.H = s.Hkv = 3, s.heads_first = true;
      check_setup(&s, 2);
    }
}

/* At the ends of a span's ramp the gradient of z is the derivative from above, and from below at the limit. */
static void test_edges(void **state) {
  (void)state;
  static const double steps[] = {1e-6, 1e-7, 1e-8};
  int64_t apart = 0;
  mech_list_edges();
  for (int i = 0; i < mech_count; i++)
    for (int v = 0; v < 4; v++) {
      struct mech_setup s = variant(&mech_cases[i], v, (uint64_t)i);
      struct mech_bench m, before;
      s.edges = true;
      if (s.c->config.span.exclude_self) s.evicts = 0; /* a row that sees nothing else jumps, and has no gradient */
      mech_make(&m, &s, WN_F64);
      mech_make(&before, &s, WN_F64);
      mech_both(&place, &m);
      const double here = loss_of(&m);
      const int g = mech_find(&m, s.c->config.span.dynamic ? "dzt" : "dz");
      assert_true(g >= 0);
      for (int64_t n = 0; n < m.a[g].count; n++) {
        if (!mech_counts(&m, g, n)) continue;
        const double sign = mech_get(&m, m.a[g].input, n) < 1 ? 1 : -1;
        const double got = mech_get(&m, g, n) - (m.a[g].adds ? mech_get(&before, g, n) : 0);
        double want = 0;
        bool agrees = false;
        for (size_t k = 0; k < sizeof steps / sizeof *steps && !agrees; k++) {
          const double h = steps[k], one = loss_moved(&m, g, n, sign * h), two = loss_moved(&m, g, n, 2 * sign * h);
          want = sign * (4 * one - two - 3 * here) / (2 * h);
          agrees = fabs(got - want) <= 1e-6 * (1 + fabs(want)) + 1e-14 / h * (1 + fabs(here));
        }
        if (!agrees)
          fail_msg("%s: %s[%lld], z = %g: %.12g, differences on one side give %.12g", mech_name(&m), m.a[g].name,
                   (long long)n, mech_get(&m, m.a[g].input, n), got, want);
        const double other = -sign * (loss_moved(&m, g, n, -sign * 1e-6) - here) / 1e-6;
        apart += fabs(want - other) > 1e-3 * (1 + fabs(want));
      }
      mech_clear(&m);
      mech_clear(&before);
    }
  assert_true(apart > 100); /* most of these are kinks */
}

/* A key at the ramp's end has no attention weight, whatever its logit: a row's gradient of z is cut, and one without a
 * gradient of y has none. Here logits are so far apart that exponentials overflow. */
static void test_steep(void **state) {
  (void)state;
  struct mech_place cpu;
  double largest[2] = {0, 0};
  assert_true(mech_open(&cpu, "cpu", NULL));
  mech_list_edges();
  for (int i = 0; i < mech_count; i++)
    for (int n = 0; n < 2; n++) {
      const struct mech_setup s = {.c = &mech_cases[i],
                                   .B = 1,
                                   .Tq = 21,
                                   .Tk = 21,
                                   .H = 4,
                                   .Hkv = 2,
                                   .D = 5,
                                   .edges = true,
                                   .seed = (uint64_t)i};
      struct mech_bench m;
      mech_make(&m, &s, n ? WN_F32 : WN_F64);
      const int q = mech_find(&m, "q"), dy = mech_find(&m, "dy");
      for (int64_t e = 0; e < m.a[q].count; e++) mech_set(&m, q, e, 3000 * mech_get(&m, q, e));
      for (int64_t e = 0; e < m.a[dy].count; e++)
        if (e / m.a[dy].t_stride % 2 == 0) mech_set(&m, dy, e, 0);
      const bool ran = mech_both(n ? &cpu : &place, &m);
      const int g = mech_find(&m, s.c->config.span.dynamic ? "dzt" : "dz");
      for (int64_t e = 0; ran && e < m.a[g].count; e++) {
        if (!mech_counts(&m, g, e)) continue;
        const double dz = mech_get(&m, g, e);
        if (!isfinite(dz) || fabs(dz) > (double)(s.B * s.Tq) * 0x1.0001p40)
          fail_msg("%s, %s: %s[%lld] is %g", mech_name(&m), n ? "cpu" : "ref", m.a[g].name, (long long)e, dz);
        largest[n] = fmax(largest[n], fabs(dz));
      }
      mech_clear(&m);
    }
  for (int n = 0; n < 2; n++) assert_true(largest[n] >= 0x1p40);
  mech_close(&cpu);
}

static int setup(void **state) {
  (void)state;
  wn_mechanism_of_test = &own_term;
  mech_list(true);
  return mech_open(&place, "ref", NULL) ? 0 : -1;
}
static int teardown(void **state) {
  (void)state;
  mech_close(&place);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_alone), cmocka_unit_test(test_pairs),
                                     cmocka_unit_test(test_open), cmocka_unit_test(test_edges),
                                     cmocka_unit_test(test_steep)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
