/* The tolerance rule for attention: the error of a float backend against the double reference is at most twice that of
 * a naive computation in float (three times in the gradients of the keys' numbers, two sums that cancel), plus a few
 * units in the last place of the largest value. The naive error is the largest of several: one computation on the
 * inputs, others on inputs whose last bit was changed at random. A single one may be right by luck where the case is
 * ill-conditioned (gradients that cancel; selections without ReLU, whose F reaches 100), and a fused backend rounds
 * elsewhere (lse) than a naive sum of attention weights.
 *
 * Rows in bf16: the reference computes in double from the stored numbers. The naive computation rounds attention
 * weights and logit gradients to bf16 where they go into a product, and results where they are stored. The limit is
 * again twice its error. Float arrays into which no rounded operand goes (lse, F, M) keep the limit for float. */
#ifndef WN_TESTS_ATTENTION_LAW_H
#define WN_TESTS_ATTENTION_LAW_H

#include "mechanisms.h"
#include "worst.h"

#include "ops/naive.h"

#define ULPS 8
/* Computations on changed inputs: in float; where keys have numbers, whose gradients are differences of sums; in bf16,
 * with other roundings. */
enum { SHAKEN = 2, SHAKEN_KEYED = 4, SHAKEN_BF16 = 4 };

struct expectation {
  struct mech_setup s;
  struct mech_bench want;
  double naive[MECH_ARRAYS_MAX]; /* error of the naive computation, by array */
};
static double largest_error(const struct mech_bench *got, const struct mech_bench *want, int which, double *largest,
                            int64_t *at) {
  const void *wanted = want->a[which].data, *have = got->a[which].data;
  const enum mech_kind as_wanted = mech_kind_of(want, which), as_have = mech_kind_of(got, which);
  double error = 0, size = 0;
  for (int64_t i = 0, n = want->a[which].count; i < n; i++) {
    const double w = mech_load(wanted, as_wanted, i), g = mech_load(have, as_have, i);
    const double of = fabs(w);
    if (g == w) { /* also both -inf, for a row that sees nothing */
      if (of > size && isfinite(w)) size = of;
      continue;
    }
    const double d = fabs(g - w);
    if (worse(d, error)) error = d, *at = i;
    if (of > size) size = of;
  }
  *largest = size;
  return error;
}

/* A fused backward pass computes attention weights as exp(A - lse) from a rounded lse, so they are off by half a unit
 * of |lse|. */
static double lse_units(const struct mech_bench *want) {
  const int lse = mech_find(want, "lse");
  double largest = 0;
  for (int64_t i = 0; i < want->a[lse].count; i++)
    if (isfinite(mech_get(want, lse, i))) largest = fmax(largest, fabs(mech_get(want, lse, i)));
  return largest / 2;
}

/* Gradients that are sums over rows, or have a row's sum in them, as those of the keys' numbers. A fused backward pass
 * computes a row's sum of W dW as dy.y from the rounded y, so a row's G sums to a rounding error of |dy||y| instead of
 * 0. In the naive computation the two cancel. Over rows these errors add up at random, by the root of their number. For
 * rows in bf16 the rounding is that of y to bf16. */
static double row_sums(const struct mech_bench *want) {
  const int y = mech_find(want, "y"), dy = mech_find(want, "dy");
  const int64_t width = want->s.D;
  double largest = 0;
  for (int64_t i = 0; i + width <= want->a[y].count; i += width) { /* pieces of a row's length will do */
    double sum = 0;
    for (int64_t d = 0; d < width; d++) sum += fabs(mech_get(want, y, i + d) * mech_get(want, dy, i + d));
    largest = fmax(largest, sum);
  }
  return (want->s.bf16 ? 0x1p-7 : (double)FLT_EPSILON) * sqrt((double)(want->s.B * want->s.H * want->s.Tq)) * largest;
}

static void law_compare(const struct mech_place *p, const struct mech_bench *got, const struct expectation *e) {
  for (int i = 0; i < got->n; i++) {
    if (got->a[i].role != MECH_GRADIENT && got->a[i].role != MECH_OUTPUT) continue;
    double largest = 0;
    int64_t at = 0;
    const double error = largest_error(got, &e->want, i, &largest, &at);
    const double units = ULPS + (got->a[i].role == MECH_GRADIENT ? lse_units(&e->want) : 0);
    const bool keyed = mech_is_keyed(got->a[i].name + 1); /* of a key's number, which is its row's too: two sums */
    double limit = got->a[i].whole ? 0 : (keyed ? 3 : 2) * e->naive[i] + units * (double)FLT_EPSILON * largest;
    if (got->a[i].adds || keyed) limit += row_sums(&e->want);
    if (!(error <= limit))
      fail_msg("%s: %s on %s %s, %d threads, element %lld: %.9g, expected %.9g; error %.3g, limit %.3g (naive %.3g)",
               mech_name(got), got->a[i].name, p->backend->name, wn_isa_name(p->ctx->isa), p->threads, (long long)at,
               mech_get(got, i, at), mech_get(&e->want, i, at), error, limit, e->naive[i]);
  }
}

static bool law_same_bits(const struct mech_bench *x, const struct mech_bench *y) {
  for (int i = 0; i < x->n; i++)
    if (memcmp(x->a[i].data, y->a[i].data, (size_t)x->a[i].count * mech_size(x, i))) return false;
  return true;
}

/* Moves each input by a unit in the last place towards 0, or leaves it. */
static void shake(struct mech_bench *m, uint64_t salt) {
  for (int i = 0; i < m->n; i++) {
    if ((m->a[i].role != MECH_INPUT && m->a[i].role != MECH_FIXED) || mech_half(m, i)) continue;
    float *x = m->a[i].data;
    for (int64_t k = 0; k < m->a[i].count; k++)
      if (mech_uniform(salt, (uint64_t)i, (uint64_t)k) < 0.5) x[k] = nextafterf(x[k], 0);
  }
}

static void law_expect(struct mech_place *reference, const struct mech_setup *s, struct expectation *e) {
  const bool bf16 = s->bf16;
  e->s = *s;
  if (s->c->config.selective.head >= e->s.H) e->s.H = e->s.Hkv = s->c->config.selective.head + 1;
  mech_settle(reference, &e->s);
  mech_make(&e->want, &e->s, WN_F64);
  mech_both(reference, &e->want);
  struct mech_place plain = {.ctx = reference->ctx, .backend = wn_backend_naive(), .threads = 1};
  const int shaken = bf16 ? SHAKEN_BF16 : wn_score_keyed(&e->want.op) > 0 ? SHAKEN_KEYED : SHAKEN;
  for (int run = 0; run <= shaken; run++) {
    struct mech_bench naive;
    mech_make(&naive, &e->s, WN_F32);
    if (run > 0) shake(&naive, (uint64_t)run);
    wn_naive_shake(1 + 0.19f * (float)run);
    mech_both(&plain, &naive);
    for (int i = 0; i < naive.n; i++) {
      double largest = 0;
      int64_t at = 0;
      e->naive[i] = fmax(e->naive[i], largest_error(&naive, &e->want, i, &largest, &at));
    }
    mech_clear(&naive);
  }
}

#endif
