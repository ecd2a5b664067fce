/* Muon: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"
 * (kellerjordan.github.io/posts/muon), for a matrix P of r rows (outputs) and c columns (inputs):
 *
 *   m = beta m + (1 - beta) g                g after clipping
 *   u = beta m + (1 - beta) g                with Nesterov's momentum, else u = m
 *   X = u / (|u| + 1e-7)                     Frobenius norm: singular values in [0,1]
 *   X = a X + (b A + c A A) X, A = X X^T     Newton-Schulz, `steps` times; a 3.4445, b -4.7750, c 2.0315
 *   P = P - lr (sqrt(max(1, r / c)) X + decay P)
 *
 * The iteration moves every singular value to between 0.7 and 1.2, so X is nearly the orthogonal factor U V^T of u. The
 * coefficients are chosen for the fastest growth of small singular values; the iteration does not converge. For a tall
 * matrix A is X^T X and stands on the right, so that its size is the smaller of r and c. The backend computes the
 * products. Cost of a matrix: steps times 2 s (2 r c + s^2) operations with s = min(r, c), in the model's precision
 * (the authors use bfloat16). */
#include "train/muon.h"

static const double MUON_A = 3.4445, MUON_B = -4.7750, MUON_C = 2.0315;

/* A [s,s] = X X^T of a wide X [s,n]. */
static struct wn_linear muon_square(int64_t s, int64_t n, const void *x, void *a) {
  return (struct wn_linear){.M = s, .N = s, .K = n, .x = x, .ldx = n, .w = x, .y = a, .ldy = s};
}
/* A [s,s] += X^T X of a tall X [n,s], computed as the gradient of a weight. */
static struct wn_linear muon_square_tall(int64_t s, int64_t n, const void *x, void *a) {
  return (struct wn_linear){.M = n, .N = s, .K = s, .x = x, .ldx = s, .dy = x, .lddy = s, .dw = a};
}
/* Y [s,n] += B X of a symmetric B [s,s], computed as the gradient of an input. */
static struct wn_linear muon_left(int64_t s, int64_t n, const void *b, const void *x, void *y) {
  return (struct wn_linear){
      .M = s, .N = s, .K = n, .w = x, .dy = b, .lddy = s, .dx = y, .lddx = n, .accumulate_dx = true};
}
/* Y [n,s] += X B. */
static struct wn_linear muon_right(int64_t s, int64_t n, const void *b, const void *x, void *y) {
  return (struct wn_linear){.M = n, .N = s, .K = s, .x = x, .ldx = s, .w = b, .y = y, .ldy = s, .accumulate = true};
}

void wn_muon_count(struct wn_muon *muon, const struct wn_exec *exec, int64_t rows, int64_t columns) {
  const int64_t s = rows < columns ? rows : columns, n = rows < columns ? columns : rows;
  if (s * n > muon->most) muon->most = s * n;
  if (s * s > muon->least) muon->least = s * s;
  const struct wn_linear wide = muon_square(s, n, NULL, NULL), again = muon_square(s, s, NULL, NULL),
                         tall = muon_square_tall(s, n, NULL, NULL), left = muon_left(s, n, NULL, NULL, NULL),
                         right = muon_right(s, n, NULL, NULL, NULL);
  const size_t need[] = {
      wn_op_linear_scratch(exec, &wide, false),  wn_op_linear_scratch(exec, &again, false),
      wn_op_linear_scratch(exec, &tall, true),   wn_op_linear_scratch(exec, &left, true),
      wn_op_linear_scratch(exec, &right, false), wn_op_sumsq_scratch(exec, &(struct wn_sumsq){.n = s * n}, false)};
  for (size_t i = 0; i < sizeof need / sizeof *need; i++)
    if (need[i] > muon->scratch) muon->scratch = need[i];
}

/* y = f x + h y, element by element. */
static wn_status muon_mix(const struct wn_exec *exec, int64_t n, double f, const void *x, double h, void *y) {
  return wn_op_mix_forward(exec, &(struct wn_mix){.n = n, .f = f, .h = h, .x = x, .y = y});
}

/* Orthogonalises x [r,c]; the result is in one of the two arrays, which *out says. */
static wn_status muon_orthogonalise(const struct wn_exec *exec, const struct wn_muon *muon, int64_t steps, int64_t r,
                                    int64_t c, void **out) {
  const bool tall = r > c;
  const int64_t s = tall ? c : r, n = tall ? r : c;
  void *x = muon->x, *y = muon->y;
  const struct wn_sumsq norm = {.n = r * c, .x = x, .out = muon->sum};
  const struct wn_mix unit = {.n = r * c, .f = 1, .sumsq = muon->sum, .x = x, .y = x};
  WN_TRY(wn_op_sumsq_forward(exec, &norm));
  WN_TRY(wn_op_mix_forward(exec, &unit));
  for (int64_t k = 0; k < steps; k++) {
    if (tall) {
      WN_TRY(exec->backend->memory->zero(exec->ctx, muon->a, (size_t)(s * s) * wn_dtype_size(exec->dtype)));
      const struct wn_linear square = muon_square_tall(s, n, x, muon->a);
      WN_TRY(wn_op_linear_backward(exec, &square));
    } else {
      const struct wn_linear square = muon_square(s, n, x, muon->a);
      WN_TRY(wn_op_linear_forward(exec, &square));
    }
    const struct wn_linear again = muon_square(s, s, muon->a, muon->b); /* A is symmetric: A A^T is A A */
    WN_TRY(wn_op_linear_forward(exec, &again));
    WN_TRY(muon_mix(exec, s * s, MUON_B, muon->a, MUON_C, muon->b));
    WN_TRY(muon_mix(exec, r * c, MUON_A, x, 0, y));
    if (tall) {
      const struct wn_linear product = muon_right(s, n, muon->b, x, y);
      WN_TRY(wn_op_linear_forward(exec, &product));
    } else {
      const struct wn_linear product = muon_left(s, n, muon->b, x, y);
      WN_TRY(wn_op_linear_backward(exec, &product));
    }
    void *next = y;
    y = x, x = next;
  }
  *out = x;
  return WN_OK;
}

wn_status wn_muon_step(const struct wn_exec *exec, const struct wn_muon *muon, const wn_train_config *config,
                       const struct wn_muon_matrix *of) {
  const int64_t n = of->rows * of->columns;
  const double beta = config->muon.momentum;
  void *x;
  WN_TRY(muon_mix(exec, n, (1 - beta) * of->scale, of->g, beta, of->m));
  if (config->muon.nesterov) {
    WN_TRY(muon_mix(exec, n, (1 - beta) * of->scale, of->g, 0, muon->x));
    WN_TRY(muon_mix(exec, n, beta, of->m, 1, muon->x));
  } else {
    WN_TRY(muon_mix(exec, n, 1, of->m, 0, muon->x));
  }
  WN_TRY(muon_orthogonalise(exec, muon, config->muon.steps, of->rows, of->columns, &x));
  const double tall = of->rows > of->columns ? sqrt((double)of->rows / (double)of->columns) : 1;
  return muon_mix(exec, n, -of->lr * tall, x, 1 - of->lr * of->decay, of->p);
}
