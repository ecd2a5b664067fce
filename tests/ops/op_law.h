/* The tolerance rule for the operation cases (op_cases.h): the error against the double reference is at most twice that
 * of a naive float computation that rounds what it stores as the tested one does, plus a few units in the last place of
 * the largest value. All backends' programs run and compare cases through this header. */
#ifndef TESTS_OPS_OP_LAW_H
#define TESTS_OPS_OP_LAW_H

#include <float.h>
#include "ops/op_cases.h"
#include "worst.h"

/* Rounding of the stored result: naive and fast computations both have it, but maybe on different elements. */
#define LAW_ULPS 4

static inline double law_limit(double naive_error, double largest) {
  return 2 * naive_error + LAW_ULPS * (double)FLT_EPSILON * largest;
}

/* Runs forward and backward. */
static inline void law_run(struct bench *b, wn_context *ctx, const struct wn_backend *backend, int threads) {
  const struct wn_exec e = {.ctx = ctx, .backend = backend, .threads = threads, .dtype = b->dtype};
  if (op_rows[b->c->op].call(b, e, false) != WN_OK || op_rows[b->c->op].call(b, e, true) != WN_OK)
    fail_msg("%s on %s: %s", case_name(b->c), backend->name, wn_context_error(ctx));
}

/* The largest error in array `which`, its place, and the largest expected value. `rounded`: compares with the expected
 * values rounded to bf16. */
static inline double law_error(const struct bench *got, const struct bench *want, int which, bool rounded,
                               double *largest, int64_t *at) {
  double error = 0;
  *largest = 0, *at = 0;
  for (int64_t i = 0; i < elements(&want->a[which]); i++) {
    double value = array_get(got, which, i);
    const double w = array_get(want, which, i);
    if (rounded) value = (double)wn_bf16_value(wn_bf16_round((float)value));
    const double d = fabs(value - w);
    if (worse(d, error)) error = d, *at = i;
    *largest = fmax(*largest, fabs(w));
  }
  return error;
}

/* Compares all results of a case. Arrays that the case does not use are compared as well: they must be untouched. */
static inline void law_compare(const struct bench *got, const struct bench *want, const struct bench *naive,
                               const char *who) {
  for (int i = 0; i < want->count; i++) {
    const struct array *a = &want->a[i];
    if (a->role != OUT && a->role != GRAD && a->role != STATE) continue;
    double largest = 0;
    int64_t at = 0;
    const double allowed = law_error(naive, want, i, got->a[i].bf16, &largest, &at);
    const double error = law_error(got, want, i, false, &largest, &at), limit = law_limit(allowed, largest);
    if (!(error <= limit))
      fail_msg("%s: %s of %s%s, element %lld: %.9g, expected %.9g; error %.3g, limit %.3g (naive %.3g)",
               case_name(want->c), a->name, who, got->a[i].bf16 ? ", bf16" : "", (long long)at, array_get(got, i, at),
               array_get(want, i, at), error, limit, allowed);
  }
}

static inline bool law_same_bits(const struct bench *x, const struct bench *y, int which) {
  const struct array *a = &x->a[which];
  return !memcmp(a->data, y->a[which].data,
                 (size_t)elements(a) * (a->wide   ? sizeof(double)
                                        : a->bf16 ? 2
                                                  : wn_dtype_size(x->dtype)));
}

/* The arrays that a case can store as bf16: bit i for array i. */
static inline unsigned law_bf16_arrays(const struct op_case *c) {
  struct bench b = {.c = c};
  unsigned set = 0;
  op_rows[c->op].declare(&b);
  for (int i = 0; i < b.count; i++) set |= b.a[i].mixes ? 1u << i : 0;
  bench_clear(&b);
  return set;
}
/* Whether the operation supports bf16 for this set of arrays, out of `all`. */
static inline bool law_serves(const struct op_case *c, unsigned set, unsigned all) {
  const bool x = set >> N_X & 1, y = set >> N_Y & 1, dy = set >> N_DY & 1, dx = set >> N_DX & 1;
  if ((set & ~all) != 0) return false;
  if (c->op == LINEAR) return true;
  if (c->op == NORM && c->n[2] == 1) return false; /* dx would be rounding noise only */
  if (c->op == NORM) return set != 0 && (!x || y) && (!(c->flags & ALIAS) || dy == dx);
  return (c->op == ACT || c->op == ROPE || c->op == DROPOUT) && set == all;
}

#endif
