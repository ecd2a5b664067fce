/* AdamW (Loshchilov & Hutter 2019) and Adagrad (Duchi et al. 2011) on one tensor; the equations are in ops.h. */
#ifndef REAL
#include "backends/ref/ref.h"
#define REAL_FILE "backends/ref/optim.c"
#include "backends/ref/twice.h"
WN_REF_SLOT(adamw_forward, struct wn_adamw)
WN_REF_SLOT(adagrad_forward, struct wn_adagrad)
#else

static wn_status NAME(adamw_forward)(const struct wn_exec *exec, const struct wn_adamw *a) {
  REAL *p = a->p, *m = a->m, *v = a->v; /* [n] */
  const REAL *g = a->g;                 /* [n] */
  const double c1 = 1.0 - pow(a->beta1, (double)a->step), c2 = 1.0 - pow(a->beta2, (double)a->step);
#pragma omp parallel for num_threads(exec->threads) schedule(static)
  for (int64_t i = 0; i < a->n; i++) {
    const double d = (double)g[i] * a->grad_scale;
    const double m1 = a->beta1 * (double)m[i] + (1.0 - a->beta1) * d;
    const double v1 = a->beta2 * (double)v[i] + (1.0 - a->beta2) * d * d;
    m[i] = (REAL)m1;
    v[i] = (REAL)v1;
    p[i] = (REAL)((double)p[i] - a->lr * (m1 / c1 / (sqrt(v1 / c2) + a->eps) + a->weight_decay * (double)p[i]));
  }
  return WN_OK;
}

static wn_status NAME(adagrad_forward)(const struct wn_exec *exec, const struct wn_adagrad *a) {
  REAL *p = a->p, *v = a->v; /* [n] */
  const REAL *g = a->g;      /* [n] */
#pragma omp parallel for num_threads(exec->threads) schedule(static)
  for (int64_t i = 0; i < a->n; i++) {
    const double d = (double)g[i] * a->grad_scale;
    const double v1 = (double)v[i] + d * d;
    v[i] = (REAL)v1;
    p[i] = (REAL)((double)p[i] - a->lr * (d / (sqrt(v1) + a->eps) + a->weight_decay * (double)p[i]));
  }
  return WN_OK;
}
#endif
