/* Checks shapes, strides, required pointers and index ranges of each operation's arguments. The cost is negligible:
 * only int32 arrays are read (ids, positions, targets, doc_start). */
#include <math.h>
#include "ops/check.h"

wn_status wn_check_pointer(struct wn_check c, const char *field, const void *p) {
  return p ? WN_OK : wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "%s: %s is NULL", c.op, field);
}

wn_status wn_check_least(struct wn_check c, const char *field, int64_t value, int64_t low) {
  if (value >= low) return WN_OK;
  return wn_fail(c.exec->ctx, WN_ERR_SHAPE, "%s: %s is %lld, expected at least %lld", c.op, field, (long long)value,
                 (long long)low);
}

wn_status wn_check_product(struct wn_check c, const char *what, int64_t x, int64_t y, int64_t z) {
  int64_t n;
  if (!__builtin_mul_overflow(x, y, &n) && !__builtin_mul_overflow(n, z, &n) && n <= INT64_MAX / 16) return WN_OK;
  return wn_fail(c.exec->ctx, WN_ERR_SHAPE, "%s: %s of %lld x %lld x %lld elements does not fit in memory", c.op, what,
                 (long long)x, (long long)y, (long long)z);
}

/* A [rows, width] array with row stride ld. */
static wn_status check_matrix(struct wn_check c, const char *field, const void *p, int64_t rows, int64_t width,
                              int64_t ld) {
  WN_TRY(wn_check_pointer(c, field, p));
  if (ld < width)
    return wn_fail(c.exec->ctx, WN_ERR_SHAPE, "%s: row stride of %s is %lld, its width %lld", c.op, field,
                   (long long)ld, (long long)width);
  return wn_check_product(c, field, rows, ld, 1);
}

/* The type of an array: 0 means exec's; bf16 is allowed only with F32. */
static wn_status check_type(struct wn_check c, const char *field, wn_dtype type) {
  if (type == WN_F32 || (type == WN_BF16 && c.exec->dtype == WN_F32)) return WN_OK;
  return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED, "%s: %s is %s with dtype %s; BF16 with F32 alone is served", c.op,
                 field, wn_dtype_name(type), wn_dtype_name(c.exec->dtype));
}

/* If arrays are not on the host, indices were checked when they were copied from it. */
static wn_status check_indices(struct wn_check c, const char *field, const int32_t *p, int64_t n, int64_t low,
                               int64_t high) {
  WN_TRY(wn_check_pointer(c, field, p));
  for (int64_t i = 0; wn_backend_on_host(c.exec->backend) && i < n; i++)
    if (p[i] < low || p[i] >= high)
      return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "%s: %s[%lld] is %d, expected %lld to %lld", c.op, field,
                     (long long)i, p[i], (long long)low, (long long)high - 1);
  return WN_OK;
}

wn_status wn_check_number(struct wn_check c, const char *field, double value, bool ok, const char *expected) {
  if (ok && isfinite(value)) return WN_OK;
  return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "%s: %s is %g, expected %s", c.op, field, value, expected);
}

wn_status wn_check_weights(struct wn_check c, const char *field, const void *dense, const struct wn_packed *p,
                           int64_t rows, int64_t K) {
  if (!p) return wn_check_pointer(c, field, dense);
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

static wn_status check_linear_types(struct wn_check c, const struct wn_linear *a) {
  WN_TRY(check_type(c, "x_type", a->x_type));
  WN_TRY(check_type(c, "y_type", a->y_type));
  WN_TRY(check_type(c, "dy_type", a->dy_type));
  WN_TRY(check_type(c, "dx_type", a->dx_type));
  const bool bf16 = a->x_type == WN_BF16 || a->y_type == WN_BF16 || a->dy_type == WN_BF16 || a->dx_type == WN_BF16;
  if (bf16 && c.exec->precision != WN_BF16)
    return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED, "linear: arrays of BF16 need the precision BF16");
  if (c.exec->precision == WN_BF16 && (a->packed || a->rows_apart))
    return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED, "linear: the precision BF16 is not served with %s",
                   a->packed ? "packed weights" : "rows apart");
  if ((a->accumulate && a->y_type == WN_BF16) || (a->accumulate_dx && a->dx_type == WN_BF16))
    return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED, "linear: an array of BF16 cannot be added to");
  return WN_OK;
}

wn_status wn_check_linear(const struct wn_exec *exec, const struct wn_linear *a, bool backward) {
  const struct wn_check c = {exec, "linear"};
  WN_TRY(check_linear_types(c, a));
  WN_TRY(wn_check_least(c, "M", a->M, 0));
  WN_TRY(wn_check_least(c, "N", a->N, 1));
  WN_TRY(wn_check_least(c, "K", a->K, 1));
  WN_TRY(wn_check_product(c, "w", a->N, a->K, 1));
  if (!backward) {
    WN_TRY(check_matrix(c, "x", a->x, a->M, a->K, a->ldx));
    WN_TRY(wn_check_weights(c, "w", a->w, a->packed, a->N, a->K));
    return check_matrix(c, "y", a->y, a->M, a->N, a->ldy);
  }
  WN_TRY(check_matrix(c, "dy", a->dy, a->M, a->N, a->lddy));
  if (a->dw && a->packed)
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "linear: packed weights have no gradient; train a float copy");
  if (a->dw && a->dw_fresh && a->M == 0) return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "linear: a fresh dw of no rows");
  if (a->dw) WN_TRY(check_matrix(c, "x", a->x, a->M, a->K, a->ldx));
  if (a->dx) {
    WN_TRY(wn_check_weights(c, "w", a->w, a->packed, a->N, a->K));
    WN_TRY(check_matrix(c, "dx", a->dx, a->M, a->K, a->lddx));
  }
  return WN_OK;
}

wn_status wn_check_embedding(const struct wn_exec *exec, const struct wn_embedding *a, bool backward) {
  const struct wn_check c = {exec, "embedding"};
  WN_TRY(wn_check_least(c, "M", a->M, 0));
  WN_TRY(wn_check_least(c, "C", a->C, 1));
  WN_TRY(wn_check_least(c, "V", a->V, 1));
  if (a->M > INT32_MAX || a->V > INT32_MAX || a->P > INT32_MAX)
    return wn_fail(exec->ctx, WN_ERR_SHAPE, "embedding: M %lld, V %lld or P %lld is beyond 32-bit indices",
                   (long long)a->M, (long long)a->V, (long long)a->P);
  WN_TRY(wn_check_product(c, "tok", a->V, a->C, 1));
  WN_TRY(wn_check_product(c, "y", a->M, a->C, 1));
  WN_TRY(check_indices(c, "ids", a->ids, a->M, 0, a->V));
  WN_TRY(wn_check_number(c, "scale", a->scale, a->scale >= 0, "a number >= 0"));
  const bool positions = backward ? a->dpos != NULL : a->pos != NULL;
  if (positions) {
    WN_TRY(wn_check_least(c, "P", a->P, 1));
    WN_TRY(wn_check_product(c, "pos", a->P, a->C, 1));
    WN_TRY(check_indices(c, "positions", a->positions, a->M, 0, a->P));
  }
  if (backward && a->packed && a->dtok)
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "embedding: packed weights have no gradient; train a float copy");
  if (backward) return wn_check_pointer(c, "dy", a->dy);
  WN_TRY(wn_check_weights(c, "tok", a->tok, a->packed, a->V, a->C));
  return wn_check_pointer(c, "y", a->y);
}

wn_status wn_check_norm(const struct wn_exec *exec, const struct wn_norm *a, bool backward) {
  const struct wn_check c = {exec, "norm"};
  WN_TRY(check_type(c, "x_type", a->x_type));
  WN_TRY(check_type(c, "y_type", a->y_type));
  WN_TRY(check_type(c, "dy_type", a->dy_type));
  WN_TRY(check_type(c, "dx_type", a->dx_type));
  if (a->x_type == WN_BF16 && (a->add || (!backward && a->y_type != WN_BF16)))
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "norm: x of BF16 takes no add, and its y is BF16");
  if (a->accumulate_dx && a->dx_type == WN_BF16)
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "norm: dx of BF16 cannot be added to");
  WN_TRY(wn_check_least(c, "rows", a->rows, 0));
  WN_TRY(wn_check_least(c, "groups", a->groups, 1));
  WN_TRY(wn_check_least(c, "width", a->width, 1));
  WN_TRY(wn_check_product(c, "x", a->rows, a->groups, a->width));
  WN_TRY(wn_check_number(c, "eps", a->eps, a->eps >= 0, "a number >= 0"));
  const int64_t all = a->groups * a->width;
  WN_TRY(wn_check_pointer(c, "gain", a->gain));
  if (a->shift && !a->layer) return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "norm: RMSNorm takes no shift");
  if (!backward) {
    WN_TRY(check_matrix(c, "x", a->x, a->rows, all, a->ldx));
    if (a->add) {
      WN_TRY(check_matrix(c, "add", a->add, a->rows, all, a->ldadd));
      WN_TRY(check_matrix(c, "sum", a->sum, a->rows, all, a->ldsum));
    }
    return check_matrix(c, "y", a->y, a->rows, all, a->ldy);
  }
  if (a->add)
    WN_TRY(check_matrix(c, "sum", a->sum, a->rows, all, a->ldsum));
  else
    WN_TRY(check_matrix(c, "x", a->x, a->rows, all, a->ldx));
  WN_TRY(wn_check_pointer(c, "rstd", a->rstd));
  if (a->layer) WN_TRY(wn_check_pointer(c, "mean", a->mean));
  WN_TRY(check_matrix(c, "dy", a->dy, a->rows, all, a->lddy));
  if (a->dx) WN_TRY(check_matrix(c, "dx", a->dx, a->rows, all, a->lddx));
  if (a->dx && a->dx == a->dy && a->accumulate_dx)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "norm: dx cannot be dy and be added to");
  return WN_OK;
}

wn_status wn_check_rope(const struct wn_exec *exec, const struct wn_rope *a, bool backward) {
  const struct wn_check c = {exec, "rope"};
  WN_TRY(check_type(c, "type", a->type));
  (void)backward;
  WN_TRY(wn_check_least(c, "rows", a->rows, 0));
  WN_TRY(wn_check_least(c, "heads", a->heads, 1));
  WN_TRY(wn_check_least(c, "D", a->D, 2));
  const int64_t R = a->R ? a->R : a->D;
  if (R % 2 || R < 2 || R > a->D)
    return wn_fail(exec->ctx, WN_ERR_SHAPE, "rope: %lld of D %lld elements turn, expected an even number up to D",
                   (long long)R, (long long)a->D);
  WN_TRY(wn_check_product(c, "x", a->rows, a->heads, a->D));
  WN_TRY(check_matrix(c, "x", a->x, a->rows, a->heads * a->D, a->ldx));
  if (!a->cos_sin && !a->frequencies) WN_TRY(wn_check_number(c, "theta", a->theta, a->theta > 0, "a number > 0"));
  return check_indices(c, "positions", a->positions, a->rows, 0, a->cos_sin ? a->P : INT32_MAX);
}

wn_status wn_check_act(const struct wn_exec *exec, const struct wn_act *a, bool backward) {
  const struct wn_check c = {exec, "act"};
  WN_TRY(check_type(c, "type", a->type));
  if ((int)a->kind < 0 || a->kind >= WN_ACT_KINDS)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "act: unknown kind %d", (int)a->kind);
  WN_TRY(wn_check_least(c, "M", a->M, 0));
  WN_TRY(wn_check_least(c, "F", a->F, 1));
  WN_TRY(wn_check_product(c, "x", a->M, a->F, 2));
  WN_TRY(wn_check_pointer(c, "x", a->x));
  if (!backward) return wn_check_pointer(c, "y", a->y);
  WN_TRY(wn_check_pointer(c, "dy", a->dy));
  return wn_check_pointer(c, "dx", a->dx);
}

wn_status wn_check_silu(const struct wn_exec *exec, const struct wn_silu *a, bool backward) {
  const struct wn_check c = {exec, "silu"};
  WN_TRY(wn_check_least(c, "n", a->n, 0));
  WN_TRY(wn_check_pointer(c, "x", a->x));
  if (!backward) return wn_check_pointer(c, "y", a->y);
  WN_TRY(wn_check_pointer(c, "dy", a->dy));
  return wn_check_pointer(c, "dx", a->dx);
}

wn_status wn_check_softcap(const struct wn_exec *exec, const struct wn_softcap *a, bool backward) {
  const struct wn_check c = {exec, "softcap"};
  (void)backward;
  WN_TRY(wn_check_least(c, "n", a->n, 0));
  WN_TRY(wn_check_number(c, "cap", a->cap, a->cap > 0, "a number above 0"));
  return wn_check_pointer(c, "x", a->x);
}

wn_status wn_check_scale(const struct wn_exec *exec, const struct wn_scale *a, bool backward) {
  const struct wn_check c = {exec, "scale"};
  (void)backward;
  WN_TRY(wn_check_least(c, "n", a->n, 0));
  WN_TRY(wn_check_number(c, "factor", a->factor, isfinite(a->factor), "a finite number"));
  return wn_check_pointer(c, "x", a->x);
}

wn_status wn_check_dropout(const struct wn_exec *exec, const struct wn_dropout *a, bool backward) {
  const struct wn_check c = {exec, "dropout"};
  WN_TRY(check_type(c, "type", a->type));
  (void)backward;
  WN_TRY(wn_check_least(c, "n", a->n, 0));
  WN_TRY(wn_check_number(c, "p", a->p, a->p >= 0 && a->p < 1, "0 <= p < 1"));
  return wn_check_pointer(c, "x", a->x);
}

wn_status wn_check_noise(const struct wn_exec *exec, const struct wn_noise *a, bool backward) {
  const struct wn_check c = {exec, "noise"};
  (void)backward;
  WN_TRY(wn_check_least(c, "n", a->n, 0));
  return wn_check_pointer(c, "x", a->x);
}

wn_status wn_check_add(const struct wn_exec *exec, const struct wn_add *a, bool backward) {
  const struct wn_check c = {exec, "add"};
  (void)backward;
  WN_TRY(wn_check_least(c, "n", a->n, 0));
  WN_TRY(wn_check_pointer(c, "x", a->x));
  WN_TRY(wn_check_pointer(c, "z", a->z));
  return wn_check_pointer(c, "y", a->y);
}

wn_status wn_check_mix(const struct wn_exec *exec, const struct wn_mix *a, bool backward) {
  const struct wn_check c = {exec, "mix"};
  (void)backward;
  WN_TRY(wn_check_least(c, "n", a->n, 0));
  WN_TRY(wn_check_number(c, "f", a->f, true, "a finite number"));
  WN_TRY(wn_check_number(c, "h", a->h, true, "a finite number"));
  WN_TRY(wn_check_pointer(c, "x", a->x));
  return wn_check_pointer(c, "y", a->y);
}

wn_status wn_check_clamp(const struct wn_exec *exec, const struct wn_clamp *a, bool backward) {
  const struct wn_check c = {exec, "clamp"};
  (void)backward;
  WN_TRY(wn_check_least(c, "n", a->n, 0));
  if (!(a->low <= a->high))
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "clamp: from %g to %g, expected two numbers in order", a->low, a->high);
  return wn_check_pointer(c, "x", a->x);
}

wn_status wn_check_convert(const struct wn_exec *exec, const struct wn_convert *a, bool backward) {
  const struct wn_check c = {exec, "convert"};
  (void)backward;
  WN_TRY(wn_check_least(c, "n", a->n, 0));
  WN_TRY(check_type(c, "x_type", a->x_type));
  WN_TRY(check_type(c, "y_type", a->y_type));
  if (a->x_type == a->y_type)
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "convert: from %s to %s; F32 to BF16 and back are served",
                   wn_dtype_name(a->x_type), wn_dtype_name(a->y_type));
  WN_TRY(wn_check_pointer(c, "x", a->x));
  return wn_check_pointer(c, "y", a->y);
}

wn_status wn_check_gather(const struct wn_exec *exec, const struct wn_gather *a, bool backward) {
  const struct wn_check c = {exec, "gather"};
  const int64_t P = a->groups > 0 ? a->groups : 1;
  (void)backward;
  WN_TRY(wn_check_least(c, "B", a->B, 0));
  WN_TRY(wn_check_least(c, "H", a->H, 0));
  WN_TRY(wn_check_least(c, "T", a->T, 0));
  WN_TRY(wn_check_least(c, "D", a->D, 1));
  if (a->H % P != 0)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "gather: %lld heads in %lld groups, expected a multiple",
                   (long long)a->H, (long long)P);
  if (a->x_type && a->x_type != a->y_type)
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "gather: from %s to another type", wn_gguf_type_name(a->x_type));
  if (a->y_type && a->y_type != WN_GGUF_F16 && !wn_stored_blocks(a->y_type))
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "gather: to %s", wn_gguf_type_name(a->y_type));
  if (a->y_type && exec->dtype != WN_F32)
    return wn_fail(exec->ctx, WN_ERR_UNSUPPORTED, "gather: %s with dtype %s", wn_gguf_type_name(a->y_type),
                   wn_dtype_name(exec->dtype));
  const int64_t each = wn_gguf_block_weights(a->y_type);
  if ((a->D | a->s_y.b | a->s_y.t | a->s_y.h) % each)
    return wn_fail(exec->ctx, WN_ERR_SHAPE, "gather: rows of %lld, expected whole blocks of %lld", (long long)a->D,
                   (long long)each);
  return wn_check_pointer(c, "y", a->y);
}

wn_status wn_check_sigmoid(const struct wn_exec *exec, const struct wn_sigmoid *a, bool backward) {
  const struct wn_check c = {exec, "sigmoid"};
  WN_TRY(wn_check_least(c, "n", a->n, 0));
  WN_TRY(wn_check_pointer(c, "x", a->x));
  WN_TRY(wn_check_number(c, "floor", a->floor, a->floor >= 0 && a->floor < 1, "a number from 0 to below 1"));
  if (a->kind == WN_SIGMOID_SUMS) {
    WN_TRY(wn_check_least(c, "T", a->T, 1));
    WN_TRY(wn_check_least(c, "W", a->W, 1));
    if (a->n % (a->T * a->W))
      return wn_fail(exec->ctx, WN_ERR_SHAPE, "sigmoid: n is %lld, no multiple of %lld tokens of %lld", (long long)a->n,
                     (long long)a->T, (long long)a->W);
  }
  return backward ? wn_check_pointer(c, "dx", a->dx) : WN_OK;
}

wn_status wn_check_loss_sums(const struct wn_exec *exec, const struct wn_loss_sums *a, bool backward) {
  const struct wn_check c = {exec, "loss_sums"};
  (void)backward;
  WN_TRY(wn_check_least(c, "M", a->M, 0));
  WN_TRY(wn_check_pointer(c, "loss", a->loss));
  WN_TRY(wn_check_pointer(c, "hit", a->hit));
  WN_TRY(wn_check_pointer(c, "targets", a->targets));
  return wn_check_pointer(c, "sums", a->sums);
}

wn_status wn_check_span_sum(const struct wn_exec *exec, const struct wn_span_sum *a, bool backward) {
  const struct wn_check c = {exec, "span_sum"};
  WN_TRY(wn_check_least(c, "rows", a->rows, 0));
  WN_TRY(wn_check_least(c, "heads", a->heads, 1));
  if (a->row_count) WN_TRY(wn_check_least(c, "T", a->T, 1));
  WN_TRY(wn_check_number(c, "tokens", a->tokens, a->tokens > 0, "a number above 0"));
  if (backward) {
    WN_TRY(wn_check_number(c, "scale", a->scale, true, "a finite number"));
    return wn_check_pointer(c, "dz", a->dz);
  }
  WN_TRY(wn_check_pointer(c, "z", a->z));
  return wn_check_pointer(c, "sum", a->sum);
}

wn_status wn_check_memory_loss(const struct wn_exec *exec, const struct wn_memory_loss *a, bool backward) {
  const struct wn_check c = {exec, "memory_loss"};
  WN_TRY(wn_check_least(c, "B", a->B, 0));
  WN_TRY(wn_check_least(c, "G", a->G, 1));
  WN_TRY(wn_check_least(c, "T", a->T, 1));
  WN_TRY(wn_check_product(c, "M", a->B, a->G, a->T));
  WN_TRY(wn_check_pointer(c, "M", a->M));
  if (backward) return wn_check_number(c, "scale", a->scale, true, "a finite number");
  return wn_check_pointer(c, "sum", a->sum);
}

wn_status wn_check_gate_share(const struct wn_exec *exec, const struct wn_gate_share *a, bool backward) {
  const struct wn_check c = {exec, "gate_share"};
  WN_TRY(wn_check_least(c, "B", a->B, 0));
  WN_TRY(wn_check_least(c, "T", a->T, 1));
  WN_TRY(wn_check_least(c, "heads", a->heads, 1));
  WN_TRY(wn_check_product(c, "c", a->B, a->T, a->heads));
  WN_TRY(wn_check_pointer(c, "c", a->c));
  if (!backward) return wn_check_pointer(c, "sum", a->sum);
  WN_TRY(wn_check_number(c, "scale", a->scale, true, "a finite number"));
  WN_TRY(wn_check_number(c, "most", a->most, true, "a finite number"));
  if (a->sums) WN_TRY(wn_check_least(c, "layers", a->layers, 1));
  return wn_check_pointer(c, "dc", a->dc);
}

wn_status wn_check_cross_entropy(const struct wn_exec *exec, const struct wn_cross_entropy *a, bool backward) {
  const struct wn_check c = {exec, "cross_entropy"};
  (void)backward;
  WN_TRY(wn_check_least(c, "M", a->M, 0));
  WN_TRY(wn_check_least(c, "V", a->V, 1));
  WN_TRY(check_matrix(c, "logits", a->logits, a->M, a->V, a->ld));
  WN_TRY(wn_check_pointer(c, "loss", a->loss));
  WN_TRY(wn_check_number(c, "scale", a->scale, true, "a finite number"));
  WN_TRY(wn_check_number(c, "cap", a->cap, a->cap >= 0, "a number >= 0"));
  return check_indices(c, "targets", a->targets, a->M, -1, a->V);
}

wn_status wn_check_attention_sums(const struct wn_exec *exec, const struct wn_attention_sums *a, bool backward) {
  const struct wn_check c = {exec, "attention_sums"};
  (void)backward;
  WN_TRY(wn_check_least(c, "R", a->R, 0));
  WN_TRY(wn_check_least(c, "N", a->N, 1));
  WN_TRY(wn_check_least(c, "S", a->S, 0));
  WN_TRY(wn_check_least(c, "share", a->share, 1));
  WN_TRY(wn_check_number(c, "scale", a->scale, true, "a finite number"));
  WN_TRY(check_matrix(c, "logits", a->logits, a->R, a->N, a->ld));
  WN_TRY(wn_check_pointer(c, "add", a->add));
  if (a->S > 0) WN_TRY(check_matrix(c, "sink", a->sink, a->R, a->S, a->ld_sink));
  return wn_check_pointer(c, "sums", a->sums);
}

static wn_status check_decay(struct wn_check c, double lr, double eps, double weight_decay, double grad_scale) {
  WN_TRY(wn_check_number(c, "lr", lr, true, "a finite number"));
  WN_TRY(wn_check_number(c, "eps", eps, eps >= 0, "a number >= 0"));
  WN_TRY(wn_check_number(c, "weight_decay", weight_decay, true, "a finite number"));
  return wn_check_number(c, "grad_scale", grad_scale, true, "a finite number");
}

wn_status wn_check_adamw(const struct wn_exec *exec, const struct wn_adamw *a, bool backward) {
  const struct wn_check c = {exec, "adamw"};
  (void)backward;
  WN_TRY(wn_check_least(c, "n", a->n, 0));
  WN_TRY(wn_check_least(c, "step", a->step, 1));
  WN_TRY(wn_check_pointer(c, "p", a->p));
  WN_TRY(wn_check_pointer(c, "g", a->g));
  WN_TRY(wn_check_pointer(c, "m", a->m));
  WN_TRY(wn_check_pointer(c, "v", a->v));
  WN_TRY(wn_check_number(c, "beta1", a->beta1, a->beta1 >= 0 && a->beta1 < 1, "0 <= beta1 < 1"));
  WN_TRY(wn_check_number(c, "beta2", a->beta2, a->beta2 >= 0 && a->beta2 < 1, "0 <= beta2 < 1"));
  return check_decay(c, a->lr, a->eps, a->weight_decay, a->grad_scale);
}

wn_status wn_check_adagrad(const struct wn_exec *exec, const struct wn_adagrad *a, bool backward) {
  const struct wn_check c = {exec, "adagrad"};
  (void)backward;
  WN_TRY(wn_check_least(c, "n", a->n, 0));
  WN_TRY(wn_check_pointer(c, "p", a->p));
  WN_TRY(wn_check_pointer(c, "g", a->g));
  WN_TRY(wn_check_pointer(c, "v", a->v));
  return check_decay(c, a->lr, a->eps, a->weight_decay, a->grad_scale);
}

wn_status wn_check_sumsq(const struct wn_exec *exec, const struct wn_sumsq *a, bool backward) {
  const struct wn_check c = {exec, "sumsq"};
  (void)backward;
  WN_TRY(wn_check_least(c, "n", a->n, 0));
  WN_TRY(wn_check_pointer(c, "x", a->x));
  return wn_check_pointer(c, "out", a->out);
}
