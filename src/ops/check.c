/* Shapes, strides, required pointers and index ranges of each operation's arguments. Costs nothing beside the
 * operation: the only arrays read are the int32 ones (ids, positions, targets, doc_start). */
#include <math.h>
#include "ops/check.h"

/* What is being checked, for the messages. */
struct check {
  const struct wn_exec *exec;
  const char *op;
};

static wn_status need(struct check c, const char *field, const void *p) {
  return p ? WN_OK : wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "%s: %s is NULL", c.op, field);
}

static wn_status at_least(struct check c, const char *field, int64_t value, int64_t low) {
  if (value >= low) return WN_OK;
  return wn_fail(c.exec->ctx, WN_ERR_SHAPE, "%s: %s is %lld, expected at least %lld", c.op, field, (long long)value,
                 (long long)low);
}

/* Sizes whose product must stay an index: a*b*c*8 bytes within 2^62. */
static wn_status product(struct check c, const char *what, int64_t x, int64_t y, int64_t z) {
  int64_t n;
  if (!__builtin_mul_overflow(x, y, &n) && !__builtin_mul_overflow(n, z, &n) && n <= INT64_MAX / 16) return WN_OK;
  return wn_fail(c.exec->ctx, WN_ERR_SHAPE, "%s: %s of %lld x %lld x %lld elements does not fit in memory", c.op, what,
                 (long long)x, (long long)y, (long long)z);
}

/* A [rows, width] array with row stride ld. */
static wn_status matrix(struct check c, const char *field, const void *p, int64_t rows, int64_t width, int64_t ld) {
  WN_TRY(need(c, field, p));
  if (ld < width)
    return wn_fail(c.exec->ctx, WN_ERR_SHAPE, "%s: row stride of %s is %lld, its width %lld", c.op, field,
                   (long long)ld, (long long)width);
  return product(c, field, rows, ld, 1);
}

static wn_status indices(struct check c, const char *field, const int32_t *p, int64_t n, int64_t low, int64_t high) {
  WN_TRY(need(c, field, p));
  for (int64_t i = 0; i < n; i++)
    if (p[i] < low || p[i] >= high)
      return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "%s: %s[%lld] is %d, expected %lld to %lld", c.op, field,
                     (long long)i, p[i], (long long)low, (long long)high - 1);
  return WN_OK;
}

static wn_status number(struct check c, const char *field, double value, bool ok, const char *expected) {
  if (ok && isfinite(value)) return WN_OK;
  return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "%s: %s is %g, expected %s", c.op, field, value, expected);
}

/* The matrix [rows,K] that an operation reads: dense, or in whole blocks. */
static wn_status weights(struct check c, const char *field, const void *dense, const struct wn_packed *p, int64_t rows,
                         int64_t K) {
  if (!p) return need(c, field, dense);
  wn_context *ctx = c.exec->ctx;
  int64_t total = 0;
  if (p->count < 1 || p->count > WN_PACKED_PARTS)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: packed %s has %d parts, expected 1 to %d", c.op, field, p->count,
                   WN_PACKED_PARTS);
  for (int i = 0; i < p->count; i++) {
    const struct wn_packed_part *part = &p->part[i];
    if ((int)part->type < 0 || part->type >= WN_GGUF_TYPE_COUNT)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: part %d of packed %s has the unknown type %d", c.op, i, field,
                     (int)part->type);
    if (!part->data) return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: part %d of packed %s has no data", c.op, i, field);
    if (K % wn_gguf_block_weights(part->type))
      return wn_fail(ctx, WN_ERR_SHAPE, "%s: rows of packed %s have %lld weights, expected whole blocks of %s", c.op,
                     field, (long long)K, wn_gguf_type_name(part->type));
    if (part->rows < 1 || part->rows > rows - total)
      return wn_fail(ctx, WN_ERR_SHAPE, "%s: part %d of packed %s has %lld rows, expected %lld in all", c.op, i, field,
                     (long long)part->rows, (long long)rows);
    total += part->rows;
  }
  if (total == rows) return WN_OK;
  return wn_fail(ctx, WN_ERR_SHAPE, "%s: packed %s has %lld rows, expected %lld", c.op, field, (long long)total,
                 (long long)rows);
}

wn_status wn_check_linear(const struct wn_exec *exec, const struct wn_linear *a, bool backward) {
  const struct check c = {exec, "linear"};
  WN_TRY(at_least(c, "M", a->M, 0));
  WN_TRY(at_least(c, "N", a->N, 1));
  WN_TRY(at_least(c, "K", a->K, 1));
  WN_TRY(product(c, "w", a->N, a->K, 1));
  if (!backward) {
    WN_TRY(matrix(c, "x", a->x, a->M, a->K, a->ldx));
    WN_TRY(weights(c, "w", a->w, a->packed, a->N, a->K));
    return matrix(c, "y", a->y, a->M, a->N, a->ldy);
  }
  WN_TRY(matrix(c, "dy", a->dy, a->M, a->N, a->lddy));
  if (a->dw && a->packed)
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "linear: packed weights have no gradient; train a float copy");
  if (a->dw) WN_TRY(matrix(c, "x", a->x, a->M, a->K, a->ldx));
  if (a->dx) {
    WN_TRY(weights(c, "w", a->w, a->packed, a->N, a->K));
    WN_TRY(matrix(c, "dx", a->dx, a->M, a->K, a->lddx));
  }
  return WN_OK;
}

wn_status wn_check_embedding(const struct wn_exec *exec, const struct wn_embedding *a, bool backward) {
  const struct check c = {exec, "embedding"};
  WN_TRY(at_least(c, "M", a->M, 0));
  WN_TRY(at_least(c, "C", a->C, 1));
  WN_TRY(at_least(c, "V", a->V, 1));
  if (a->M > INT32_MAX || a->V > INT32_MAX || a->P > INT32_MAX)
    return wn_fail(exec->ctx, WN_ERR_SHAPE, "embedding: M %lld, V %lld or P %lld is beyond 32-bit indices",
                   (long long)a->M, (long long)a->V, (long long)a->P);
  WN_TRY(product(c, "tok", a->V, a->C, 1));
  WN_TRY(product(c, "y", a->M, a->C, 1));
  WN_TRY(indices(c, "ids", a->ids, a->M, 0, a->V));
  const bool positions = backward ? a->dpos != NULL : a->pos != NULL;
  if (positions) {
    WN_TRY(at_least(c, "P", a->P, 1));
    WN_TRY(product(c, "pos", a->P, a->C, 1));
    WN_TRY(indices(c, "positions", a->positions, a->M, 0, a->P));
  }
  if (backward && a->packed && a->dtok)
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "embedding: packed weights have no gradient; train a float copy");
  if (backward) return need(c, "dy", a->dy);
  WN_TRY(weights(c, "tok", a->tok, a->packed, a->V, a->C));
  return need(c, "y", a->y);
}

wn_status wn_check_norm(const struct wn_exec *exec, const struct wn_norm *a, bool backward) {
  const struct check c = {exec, "norm"};
  WN_TRY(at_least(c, "rows", a->rows, 0));
  WN_TRY(at_least(c, "groups", a->groups, 1));
  WN_TRY(at_least(c, "width", a->width, 1));
  WN_TRY(product(c, "x", a->rows, a->groups, a->width));
  WN_TRY(number(c, "eps", a->eps, a->eps >= 0, "a number >= 0"));
  const int64_t all = a->groups * a->width;
  WN_TRY(need(c, "gain", a->gain));
  if (a->shift && !a->layer) return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "norm: RMSNorm takes no shift");
  if (!backward) {
    WN_TRY(matrix(c, "x", a->x, a->rows, all, a->ldx));
    if (a->add) {
      WN_TRY(matrix(c, "add", a->add, a->rows, all, a->ldadd));
      WN_TRY(matrix(c, "sum", a->sum, a->rows, all, a->ldsum));
    }
    return matrix(c, "y", a->y, a->rows, all, a->ldy);
  }
  if (a->add)
    WN_TRY(matrix(c, "sum", a->sum, a->rows, all, a->ldsum));
  else
    WN_TRY(matrix(c, "x", a->x, a->rows, all, a->ldx));
  WN_TRY(need(c, "rstd", a->rstd));
  if (a->layer) WN_TRY(need(c, "mean", a->mean));
  WN_TRY(matrix(c, "dy", a->dy, a->rows, all, a->lddy));
  if (a->dx) WN_TRY(matrix(c, "dx", a->dx, a->rows, all, a->lddx));
  if (a->dx && a->dx == a->dy && a->accumulate_dx)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "norm: dx cannot be dy and be added to");
  return WN_OK;
}

wn_status wn_check_rope(const struct wn_exec *exec, const struct wn_rope *a, bool backward) {
  const struct check c = {exec, "rope"};
  (void)backward;
  WN_TRY(at_least(c, "rows", a->rows, 0));
  WN_TRY(at_least(c, "heads", a->heads, 1));
  WN_TRY(at_least(c, "D", a->D, 2));
  const int64_t R = a->R ? a->R : a->D;
  if (R % 2 || R < 2 || R > a->D)
    return wn_fail(exec->ctx, WN_ERR_SHAPE, "rope: %lld of D %lld elements turn, expected an even number up to D",
                   (long long)R, (long long)a->D);
  WN_TRY(product(c, "x", a->rows, a->heads, a->D));
  WN_TRY(matrix(c, "x", a->x, a->rows, a->heads * a->D, a->ldx));
  if (!a->cos_sin && !a->frequencies) WN_TRY(number(c, "theta", a->theta, a->theta > 0, "a number > 0"));
  return indices(c, "positions", a->positions, a->rows, 0, a->cos_sin ? a->P : INT32_MAX);
}

wn_status wn_check_act(const struct wn_exec *exec, const struct wn_act *a, bool backward) {
  const struct check c = {exec, "act"};
  if (a->kind != WN_ACT_SWIGLU && a->kind != WN_ACT_GELU && a->kind != WN_ACT_RELU && a->kind != WN_ACT_GELU_ERF)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "act: unknown kind %d", (int)a->kind);
  WN_TRY(at_least(c, "M", a->M, 0));
  WN_TRY(at_least(c, "F", a->F, 1));
  WN_TRY(product(c, "x", a->M, a->F, 2));
  WN_TRY(need(c, "x", a->x));
  if (!backward) return need(c, "y", a->y);
  WN_TRY(need(c, "dy", a->dy));
  return need(c, "dx", a->dx);
}

wn_status wn_check_dropout(const struct wn_exec *exec, const struct wn_dropout *a, bool backward) {
  const struct check c = {exec, "dropout"};
  (void)backward;
  WN_TRY(at_least(c, "n", a->n, 0));
  WN_TRY(number(c, "p", a->p, a->p >= 0 && a->p < 1, "0 <= p < 1"));
  return need(c, "x", a->x);
}

wn_status wn_check_add(const struct wn_exec *exec, const struct wn_add *a, bool backward) {
  const struct check c = {exec, "add"};
  (void)backward;
  WN_TRY(at_least(c, "n", a->n, 0));
  WN_TRY(need(c, "x", a->x));
  WN_TRY(need(c, "z", a->z));
  return need(c, "y", a->y);
}

wn_status wn_check_cross_entropy(const struct wn_exec *exec, const struct wn_cross_entropy *a, bool backward) {
  const struct check c = {exec, "cross_entropy"};
  (void)backward;
  WN_TRY(at_least(c, "M", a->M, 0));
  WN_TRY(at_least(c, "V", a->V, 1));
  WN_TRY(matrix(c, "logits", a->logits, a->M, a->V, a->ld));
  WN_TRY(need(c, "loss", a->loss));
  WN_TRY(number(c, "scale", a->scale, true, "a finite number"));
  return indices(c, "targets", a->targets, a->M, -1, a->V);
}

static wn_status check_decay(struct check c, double lr, double eps, double weight_decay, double grad_scale) {
  WN_TRY(number(c, "lr", lr, true, "a finite number"));
  WN_TRY(number(c, "eps", eps, eps >= 0, "a number >= 0"));
  WN_TRY(number(c, "weight_decay", weight_decay, true, "a finite number"));
  return number(c, "grad_scale", grad_scale, true, "a finite number");
}

wn_status wn_check_adamw(const struct wn_exec *exec, const struct wn_adamw *a, bool backward) {
  const struct check c = {exec, "adamw"};
  (void)backward;
  WN_TRY(at_least(c, "n", a->n, 0));
  WN_TRY(at_least(c, "step", a->step, 1));
  WN_TRY(need(c, "p", a->p));
  WN_TRY(need(c, "g", a->g));
  WN_TRY(need(c, "m", a->m));
  WN_TRY(need(c, "v", a->v));
  WN_TRY(number(c, "beta1", a->beta1, a->beta1 >= 0 && a->beta1 < 1, "0 <= beta1 < 1"));
  WN_TRY(number(c, "beta2", a->beta2, a->beta2 >= 0 && a->beta2 < 1, "0 <= beta2 < 1"));
  return check_decay(c, a->lr, a->eps, a->weight_decay, a->grad_scale);
}

wn_status wn_check_adagrad(const struct wn_exec *exec, const struct wn_adagrad *a, bool backward) {
  const struct check c = {exec, "adagrad"};
  (void)backward;
  WN_TRY(at_least(c, "n", a->n, 0));
  WN_TRY(need(c, "p", a->p));
  WN_TRY(need(c, "g", a->g));
  WN_TRY(need(c, "v", a->v));
  return check_decay(c, a->lr, a->eps, a->weight_decay, a->grad_scale);
}

wn_status wn_check_sumsq(const struct wn_exec *exec, const struct wn_sumsq *a, bool backward) {
  const struct check c = {exec, "sumsq"};
  (void)backward;
  WN_TRY(at_least(c, "n", a->n, 0));
  WN_TRY(need(c, "x", a->x));
  return need(c, "out", a->out);
}

static wn_status strided(struct check c, const char *field, const void *p, struct wn_stride s, int64_t B, int64_t T,
                         int64_t heads, int64_t D) {
  WN_TRY(need(c, field, p));
  /* A stride of a dimension of one element is never used. */
  const bool ok = (B == 1 || s.b >= D) && (T == 1 || s.t >= D) && (heads == 1 || s.h >= D);
  if (!ok)
    return wn_fail(c.exec->ctx, WN_ERR_SHAPE, "%s: strides of %s are b %lld, t %lld, h %lld, expected at least D %lld",
                   c.op, field, (long long)s.b, (long long)s.t, (long long)s.h, (long long)D);
  if (B > 1) WN_TRY(product(c, field, B, s.b, 1));
  if (T > 1) WN_TRY(product(c, field, T, s.t, 1));
  return heads > 1 ? product(c, field, heads, s.h, 1) : WN_OK;
}

static wn_status check_selective(struct check c, const struct wn_attention *a, bool backward) {
  const int64_t G = wn_selection_groups(a);
  if (G != 1 && G != a->Hkv)
    return wn_fail(c.exec->ctx, WN_ERR_SHAPE,
                   "attention: %lld selections a layer, expected 1 or one for each of %lld heads", (long long)G,
                   (long long)a->Hkv);
  if (a->sel.head < 0 || a->sel.head >= a->H / G)
    return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "attention: selective head is %d, expected 0 to %lld", a->sel.head,
                   (long long)(a->H / G) - 1);
  if (a->sel.bilinear) {
    WN_TRY(strided(c, "sq", a->sel.sq, a->sel.s_sq, a->B, a->Tq, G, a->D));
    WN_TRY(strided(c, "sk", a->sel.sk, a->sel.s_sk, a->B, a->Tk, G, a->D));
  }
  if (wn_selection_stride(a) < a->Tk)
    return wn_fail(c.exec->ctx, WN_ERR_SHAPE, "attention: f_stride is %lld, Tk %lld", (long long)a->sel.f_stride,
                   (long long)a->Tk);
  if (a->sel.F) WN_TRY(product(c, "F", a->B * G, a->Tq, a->Tk));
  WN_TRY(
      number(c, "negligible", a->sel.negligible, a->sel.negligible >= 0 && a->sel.negligible < 1, "a share in [0,1)"));
  if (!a->sel.mem) return WN_OK;
  WN_TRY(number(c, "mem_tau", a->sel.mem_tau, a->sel.mem_tau > 0, "a number > 0"));
  WN_TRY(number(c, "mem_coef", a->sel.mem_coef, true, "a finite number"));
  return backward ? need(c, "M", a->sel.M) : WN_OK;
}

/* The terms beside selection. */
static wn_status check_terms(struct check c, const struct wn_attention *a, int64_t far) {
  WN_TRY(at_least(c, "window", a->window, 0));
  WN_TRY(at_least(c, "strided", a->strided, 0));
  if (a->root.on) {
    WN_TRY(at_least(c, "sqrt.buffer", a->root.buffer, 1));
    WN_TRY(number(c, "sqrt.density", a->root.density, a->root.density > 0, "a number > 0"));
  }
  double seen = (double)far + 1; /* distances below this may be seen */
  if (a->window > 0 && (double)a->window < seen) seen = (double)a->window;
  if (a->span.on) {
    WN_TRY(need(c, "span.z", a->span.z));
    WN_TRY(number(c, "span.limit", a->span.limit, a->span.limit >= 0, "a number >= 0"));
    WN_TRY(number(c, "span.ramp", a->span.ramp, a->span.ramp > 0, "a number > 0"));
    if (a->span.limit + a->span.ramp < seen) seen = ceil(a->span.limit + a->span.ramp);
  }
  WN_TRY(at_least(c, "relative.P", a->relative.P, 0));
  if (a->relative.P > 0) {
    WN_TRY(need(c, "relative.p", a->relative.p));
    WN_TRY(product(c, "relative.p", a->relative.P, a->D, 1));
    if ((double)a->relative.P < seen)
      return wn_fail(c.exec->ctx, WN_ERR_SHAPE, "attention: %lld relative positions, but %.0f distances are seen",
                     (long long)a->relative.P, seen);
  }
  WN_TRY(at_least(c, "bias.n", a->bias.n, 0));
  if (a->bias.n > 0) {
    WN_TRY(at_least(c, "bias.n", a->bias.n, a->open ? 4 : 2));
    WN_TRY(at_least(c, "bias.farthest", a->bias.farthest, a->bias.n / (a->open ? 4 : 2) + 1));
    WN_TRY(need(c, "bias.table", a->bias.table));
    WN_TRY(at_least(c, "bias.stride", wn_bias_stride(a), wn_model_head(a, a->H - 1) + 1));
    WN_TRY(product(c, "bias.table", a->bias.n, wn_bias_stride(a), 1));
  }
  WN_TRY(at_least(c, "sinks.n", a->sinks.n, 0));
  if (a->sinks.n > 0) {
    WN_TRY(need(c, "sinks.k", a->sinks.k));
    WN_TRY(need(c, "sinks.v", a->sinks.v));
    WN_TRY(product(c, "sinks.k", a->Hkv, a->sinks.n, a->D));
  }
  if (a->threshold.on)
    WN_TRY(number(c, "threshold.tau", a->threshold.tau, a->threshold.tau > 0 && a->threshold.tau <= 1,
                  "a number in (0,1]"));
  WN_TRY(at_least(c, "look.n", a->look.n, 0));
  if (a->look.n > 0) {
    WN_TRY(need(c, "look.tau", a->look.tau));
    WN_TRY(need(c, "look.count", a->look.count));
    WN_TRY(product(c, "look.count", a->B * a->H, a->Tq, a->look.n));
  }
  for (int64_t i = 0; i < a->look.n; i++)
    WN_TRY(number(c, "look.tau", a->look.tau[i],
                  a->look.tau[i] > 0 && a->look.tau[i] <= 1 && (i == 0 || a->look.tau[i] >= a->look.tau[i - 1]),
                  "ascending numbers in (0,1]"));
  return number(c, "dropout.p", a->dropout.p, a->dropout.p >= 0 && a->dropout.p < 1, "a number in [0,1)");
}

/* One group's positions: the rows' own in order, all others older. The most that a row and a key lie apart. */
static wn_status check_positions(struct check c, const struct wn_attention *a, const int32_t *at, int64_t *far) {
  const int64_t own = a->Tk - a->Tq;
  for (int64_t j = 0; j < a->Tk; j++) {
    const bool ok = at[j] >= 0 && (j < own ? at[j] < at[own] : j == own || at[j] > at[j - 1]);
    if (!ok)
      return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "attention: slots.at[%lld] is %d, %s", (long long)j, at[j],
                     j < own ? "expected a position before the first row's" : "expected the rows' positions in order");
    if (at[a->Tk - 1] - at[j] > *far) *far = at[a->Tk - 1] - at[j];
  }
  return WN_OK;
}

static wn_status check_slots(struct check c, const struct wn_attention *a, bool backward, int64_t *far) {
  const int64_t P = wn_slot_groups(a);
  *far = a->Tk - 1;
  if (P != 1 && P != a->Hkv)
    return wn_fail(c.exec->ctx, WN_ERR_SHAPE,
                   "attention: slots of %lld groups, expected 1 or one for each of %lld heads", (long long)P,
                   (long long)a->Hkv);
  if (a->slots.stride > 0 && a->slots.stride < a->Tk)
    return wn_fail(c.exec->ctx, WN_ERR_SHAPE, "attention: slots.stride is %lld, Tk %lld", (long long)a->slots.stride,
                   (long long)a->Tk);
  if (a->slots.stride > 0) WN_TRY(product(c, "slots", a->B, P, a->slots.stride));
  if (backward && (a->head0 > 0 || a->head_step > 1))
    return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED, "attention: some of a model's heads have no backward");
  if (backward && (a->slots.at || a->slots.mass))
    return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED, "attention: slots.%s has no backward", a->slots.at ? "at" : "mass");
  if (!a->slots.at) return WN_OK;
  if (a->doc_start)
    return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "attention: slots.at and doc_start exclude each other");
  if (a->sel.on && P > 1 && wn_selection_groups(a) != P)
    return wn_fail(c.exec->ctx, WN_ERR_SHAPE,
                   "attention: slots of each key-value head need a selection of each key-value head");
  *far = 0;
  for (int64_t n = 0; n < a->B * P; n++) WN_TRY(check_positions(c, a, a->slots.at + n * wn_slot_stride(a), far));
  return WN_OK;
}

/* Rows without causality: what they do not go with. */
static wn_status check_open(struct check c, const struct wn_attention *a) {
  const char *term = a->sel.on                                       ? "selections"
                     : a->window > 0 || a->strided > 0 || a->root.on ? "masks by distance"
                     : a->span.on                                    ? "spans"
                     : a->relative.P > 0                             ? "relative positions"
                     : a->sinks.n > 0                                ? "sinks"
                     : a->threshold.on                               ? "threshold"
                     : a->exclusive.on                               ? "exclusive outputs"
                     : a->doc_start                                  ? "documents"
                     : a->slots.gone || a->slots.at || a->slots.mass ? "eviction"
                     : wn_attention_looks(a)                         ? "look at weights"
                     : a->dk_from != 0                               ? "keys held constant"
                                                                     : NULL;
  if (term)
    return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT,
                   "attention: open rows (an encoder's, another sequence's keys) take no %s", term);
  for (int64_t b = 0; a->key_count && b < a->B; b++)
    if (a->key_count[b] < 0 || a->key_count[b] > a->Tk)
      return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "attention: key_count[%lld] is %d, expected 0 to %lld", (long long)b,
                     a->key_count[b], (long long)a->Tk);
  return WN_OK;
}

static wn_status check_half(struct check c, const struct wn_attention *a, bool backward) {
  if (!a->half) return WN_OK;
  if (backward || a->open || a->strided > 0 || a->root.on || a->threshold.on || a->exclusive.on || a->D > WN_HALF_D ||
      c.exec->dtype != WN_F32)
    return wn_fail(
        c.exec->ctx, WN_ERR_UNSUPPORTED,
        "attention: keys in half floats go with causal forward calls in F32 alone, heads of at most 256, and "
        "neither strides, the square-root mask, a threshold nor exclusive attention");
  return WN_OK;
}

wn_status wn_check_attention(const struct wn_exec *exec, const struct wn_attention *a, bool backward) {
  const struct check c = {exec, "attention"};
  WN_TRY(at_least(c, "B", a->B, 1));
  WN_TRY(at_least(c, "Tq", a->Tq, 1));
  WN_TRY(at_least(c, "Tk", a->Tk, a->open ? 1 : a->Tq));
  WN_TRY(at_least(c, "H", a->H, 1));
  WN_TRY(at_least(c, "Hkv", a->Hkv, 1));
  WN_TRY(at_least(c, "D", a->D, 1));
  if (a->H % a->Hkv)
    return wn_fail(exec->ctx, WN_ERR_SHAPE, "attention: %lld heads are not a multiple of %lld key-value heads",
                   (long long)a->H, (long long)a->Hkv);
  WN_TRY(check_half(c, a, backward));
  if (a->open) WN_TRY(check_open(c, a));
  if (!a->open && a->key_count) return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "attention: key_count is for open rows");
  if (a->Tk > INT32_MAX)
    return wn_fail(exec->ctx, WN_ERR_SHAPE, "attention: Tk is %lld, beyond 32-bit positions", (long long)a->Tk);
  WN_TRY(product(c, "q", a->B * a->H, a->Tk > a->Tq ? a->Tk : a->Tq, a->D));
  WN_TRY(at_least(c, "head0", a->head0, 0));
  WN_TRY(at_least(c, "head_step", a->head_step, 0));
  WN_TRY(product(c, "head_step", a->H, a->head_step, 1));
  WN_TRY(at_least(c, "head0", a->head0, 0));
  WN_TRY(at_least(c, "head_step", a->head_step, 0));
  WN_TRY(product(c, "head0", a->head0, 1, 1));
  WN_TRY(product(c, "head_step", a->H, a->head_step, 1));
  WN_TRY(number(c, "scale", a->scale, true, "a finite number"));
  WN_TRY(strided(c, "q", a->q, a->s_q, a->B, a->Tq, a->H, a->D));
  WN_TRY(strided(c, "k", a->k, a->s_k, a->B, a->Tk, a->Hkv, a->D));
  WN_TRY(strided(c, "v", a->v, a->s_v, a->B, a->Tk, a->Hkv, a->D));
  WN_TRY(strided(c, "y", a->y, a->s_y, a->B, a->Tq, a->H, a->D));
  if (a->doc_start) {
    for (int64_t b = 0; b < a->B; b++)
      for (int64_t t = 0; t < a->Tk; t++)
        if (a->doc_start[b * a->Tk + t] < 0 || a->doc_start[b * a->Tk + t] > t)
          return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "attention: doc_start[%lld,%lld] is %d, expected 0 to %lld",
                         (long long)b, (long long)t, a->doc_start[b * a->Tk + t], (long long)t);
  }
  int64_t far;
  WN_TRY(check_slots(c, a, backward, &far));
  if (a->sel.on) WN_TRY(check_selective(c, a, backward));
  WN_TRY(check_terms(c, a, far));
  if (!backward) return WN_OK;
  if (a->dk_from < 0 || a->dk_from > a->Tk)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "attention: dk_from is %lld, expected 0 to %lld", (long long)a->dk_from,
                   (long long)a->Tk);
  WN_TRY(need(c, "lse", a->lse));
  return need(c, "dy", a->dy);
}
