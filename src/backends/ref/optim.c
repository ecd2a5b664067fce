/* AdamW (Loshchilov & Hutter 2019) and Adagrad (Duchi et al. 2011) on one tensor; the equations are in ops.h. */
#ifndef REAL
#include "backends/ref/ref.h"
#define REAL_FILE "backends/ref/optim.c"
#include "backends/ref/twice.h"
WN_REF_ROWS(adamw_forward, struct wn_adamw, a->n, 1)
WN_REF_ROWS(adagrad_forward, struct wn_adagrad, a->n, 1)
#else

static void NAME(adamw_forward)(const struct wn_adamw *a, int64_t from, int64_t to) {
  REAL *p = a->p, *m = a->m, *v = a->v; /* [n] */
  const REAL *g = a->g;                 /* [n] */
  const double c1 = 1.0 - pow(a->beta1, (double)a->step), c2 = 1.0 - pow(a->beta2, (double)a->step);
  for (int64_t i = from; i < to; i++) {
    const double d = (double)g[i] * a->grad_scale;
    const double m1 = a->beta1 * (double)m[i] + (1.0 - a->beta1) * d;
    const double v1 = a->beta2 * (double)v[i] + (1.0 - a->beta2) * d * d;
    m[i] = (REAL)m1;
    v[i] = (REAL)v1;
    p[i] = (REAL)((double)p[i] - a->lr * (m1 / c1 / (sqrt(v1 / c2) + a->eps) + a->weight_decay * (double)p[i]));
  }
}

static void NAME(adagrad_forward)(const struct wn_adagrad *a, int64_t from, int64_t to) {
  REAL *p = a->p, *v = a->v; /* [n] */
  const REAL *g = a->g;      /* [n] */
  for (int64_t i = from; i < to; i++) {
    const double d = (double)g[i] * a->grad_scale;
    const double v1 = (double)v[i] + d * d;
    v[i] = (REAL)v1;
    p[i] = (REAL)((double)p[i] - a->lr * (d / (sqrt(v1) + a->eps) + a->weight_decay * (double)p[i]));
  }
}
#endif
