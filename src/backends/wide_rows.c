/* Attention on bf16 rows, or on stored keys, computed in exec->dtype; see wide_rows.h. */
#include "backends/wide_rows.h"

#include "base/arrays.h"
#include "base/parallel.h"
#include "io/gguf_types.h"
#include "ops/attention.h"
#include "tensor/bf16.h"

/* The rows in the type of the computation: [B,T,heads,D], contiguous. */
struct wide_rows {
  void *q, *k, *v, *y;
  void *dy, *dq, *dk, *dv;
};

static void wide_rows_lay(const struct wn_attention *a, wn_dtype dtype, bool backward, struct wn_arrays *l,
                          struct wide_rows *w) {
  const size_t size = wn_dtype_size(dtype);
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(w->q, size, "q", true, WN_DIMS(a->B, a->Tq, a->H, a->D)),
      WN_ARRAY_SIZED(w->k, size, "k", true, WN_DIMS(a->B, a->Tk, a->Hkv, a->D)),
      WN_ARRAY_SIZED(w->v, size, "v", true, WN_DIMS(a->B, a->Tk, a->Hkv, a->D)),
      WN_ARRAY_SIZED(w->y, size, "y", true, WN_DIMS(a->B, a->Tq, a->H, a->D)),
      WN_ARRAY_SIZED(w->dy, size, "dy", backward, WN_DIMS(a->B, a->Tq, a->H, a->D)),
      WN_ARRAY_SIZED(w->dq, size, "dq", backward && a->dq, WN_DIMS(a->B, a->Tq, a->H, a->D)),
      WN_ARRAY_SIZED(w->dk, size, "dk", backward && a->dk, WN_DIMS(a->B, a->Tk, a->Hkv, a->D)),
      WN_ARRAY_SIZED(w->dv, size, "dv", backward && a->dv, WN_DIMS(a->B, a->Tk, a->Hkv, a->D)),
  };
  WN_ARRAYS_LAY(l, rows);
}

/* Copies rows from..T-1 of [B,T,heads,D] between strided bf16 and contiguous numbers. */
struct wide_copy {
  const struct wn_exec *exec;
  int64_t B, from, T, heads, D;
  void *narrow;
  struct wn_stride s;
  void *wide;
};

/* Head h of row n in bf16; *at: its place among the numbers. */
static uint16_t *wide_row(const struct wide_copy *c, int64_t n, int64_t h, int64_t *at) {
  const int64_t rows = c->T - c->from, b = n / rows, t = c->from + n % rows;
  *at = ((b * c->T + t) * c->heads + h) * c->D;
  return (uint16_t *)c->narrow + b * c->s.b + t * c->s.t + h * c->s.h;
}

static void wide_load_row(void *copy, int64_t n) {
  const struct wide_copy *c = copy;
  int64_t at;
  for (int64_t h = 0; h < c->heads; h++) {
    const uint16_t *row = wide_row(c, n, h, &at);
    for (int64_t d = 0; c->exec->dtype == WN_F64 && d < c->D; d++)
      ((double *)c->wide)[at + d] = (double)wn_bf16_value(row[d]);
    for (int64_t d = 0; c->exec->dtype != WN_F64 && d < c->D; d++) ((float *)c->wide)[at + d] = wn_bf16_value(row[d]);
  }
}

static void wide_store_row(void *copy, int64_t n) {
  const struct wide_copy *c = copy;
  int64_t at;
  for (int64_t h = 0; h < c->heads; h++) {
    uint16_t *row = wide_row(c, n, h, &at);
    for (int64_t d = 0; c->exec->dtype == WN_F64 && d < c->D; d++)
      row[d] = wn_bf16_round((float)((const double *)c->wide)[at + d]);
    for (int64_t d = 0; c->exec->dtype != WN_F64 && d < c->D; d++)
      row[d] = wn_bf16_round(((const float *)c->wide)[at + d]);
  }
}

static void wide_copy(struct wide_copy c, void (*row)(void *, int64_t), const void *narrow, struct wn_stride s,
                      void *wide) {
  c.narrow = (void *)(uintptr_t)narrow, c.s = s, c.wide = wide;
  if (narrow) wn_parallel_for(c.exec->threads, c.B * (c.T - c.from), row, &c);
}

/* The same call with the copied rows. */
static struct wn_attention wide_call(const struct wn_attention *a, wn_dtype dtype, const struct wide_rows *w) {
  struct wn_attention wide = *a;
  wide.row_type = dtype;
  wide.s_q = wide.s_y = (struct wn_stride){a->Tq * a->H * a->D, a->H * a->D, a->D};
  wide.s_k = wide.s_v = (struct wn_stride){a->Tk * a->Hkv * a->D, a->Hkv * a->D, a->D};
  wide.q = w->q, wide.k = w->k, wide.v = w->v, wide.y = w->y;
  wide.dy = w->dy, wide.dq = w->dq, wide.dk = w->dk, wide.dv = w->dv;
  return wide;
}

wn_status wn_wide_rows_run(const struct wn_exec *exec, const struct wn_attention *a, bool backward,
                           wn_attention_slot *slot) {
  if (a->row_type != WN_BF16) return slot(exec, a);
  struct wn_arrays l = {.base = exec->scratch};
  struct wide_rows w = {0};
  wide_rows_lay(a, exec->dtype, backward, &l, &w);
  const struct wn_attention wide = wide_call(a, exec->dtype, &w);
  const struct wn_exec inner = wn_exec_behind(exec, l.bytes);
  const struct wide_copy rows = {.exec = exec, .B = a->B, .T = a->Tq, .heads = a->H, .D = a->D},
                         keys = {.exec = exec, .B = a->B, .T = a->Tk, .heads = a->Hkv, .D = a->D};
  wide_copy(rows, wide_load_row, a->q, a->s_q, w.q);
  wide_copy(keys, wide_load_row, a->k, a->s_k, w.k);
  wide_copy(keys, wide_load_row, a->v, a->s_v, w.v);
  if (!backward) {
    WN_TRY(slot(&inner, &wide));
    wide_copy(rows, wide_store_row, a->y, a->s_y, w.y);
    return WN_OK;
  }
  wide_copy(rows, wide_load_row, a->y, a->s_y, w.y);
  wide_copy(rows, wide_load_row, a->dy, a->s_y, w.dy);
  WN_TRY(slot(&inner, &wide));
  const struct wide_copy changed = {
      .exec = exec, .B = a->B, .from = a->dk_from, .T = a->Tk, .heads = a->Hkv, .D = a->D};
  wide_copy(rows, wide_store_row, a->dq, a->s_q, w.dq);
  wide_copy(changed, wide_store_row, a->dk, a->s_k, w.dk);
  wide_copy(changed, wide_store_row, a->dv, a->s_v, w.dv);
  return WN_OK;
}

size_t wn_wide_rows_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward,
                            wn_attention_scratch_slot *scratch) {
  if (a->row_type != WN_BF16) return scratch(exec, a, backward);
  struct wn_arrays l = {0};
  struct wide_rows w = {0};
  wide_rows_lay(a, exec->dtype, backward, &l, &w);
  const struct wn_attention wide = wide_call(a, exec->dtype, &w);
  return wn_arrays_bytes(&l) + scratch(exec, &wide, backward);
}

/* The floats of stored keys and values: [B,Hkv,Tk,D]. */
static void wide_keys_lay(const struct wn_attention *a, struct wn_arrays *l, float **k, float **v) {
  const struct wn_array rows[] = {WN_ARRAY_FOR(*k, "k", true, WN_DIMS(a->B, a->Hkv, a->Tk, a->D)),
                                  WN_ARRAY_FOR(*v, "v", true, WN_DIMS(a->B, a->Hkv, a->Tk, a->D))};
  WN_ARRAYS_LAY(l, rows);
}

static void wide_keys_load(const struct wn_attention *a, wn_gguf_type type, const void *x, struct wn_stride s,
                           float *to) {
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t h = 0; h < a->Hkv; h++)
      for (int64_t t = 0; t < a->Tk; t++, to += a->D) wn_gguf_decode(type, x, b * s.b + h * s.h + t * s.t, a->D, to);
}

static struct wn_attention wide_keys_call(const struct wn_attention *a, const float *k, const float *v) {
  struct wn_attention wide = *a;
  wide.k_type = wide.v_type = WN_GGUF_F32;
  wide.k = k, wide.v = v;
  wide.s_k = wide.s_v = (struct wn_stride){a->Hkv * a->Tk * a->D, a->D, a->Tk * a->D};
  return wide;
}

wn_status wn_wide_keys_run(const struct wn_exec *exec, const struct wn_attention *a, wn_attention_slot *slot) {
  struct wn_arrays l = {.base = exec->scratch};
  float *k, *v;
  wide_keys_lay(a, &l, &k, &v);
  wide_keys_load(a, a->k_type, a->k, a->s_k, k);
  wide_keys_load(a, a->v_type, a->v, a->s_v, v);
  const struct wn_attention wide = wide_keys_call(a, k, v);
  const struct wn_exec inner = wn_exec_behind(exec, l.bytes);
  return slot(&inner, &wide);
}

size_t wn_wide_keys_scratch(const struct wn_exec *exec, const struct wn_attention *a, bool backward,
                            wn_attention_scratch_slot *scratch) {
  struct wn_arrays l = {0};
  float *k, *v;
  wide_keys_lay(a, &l, &k, &v);
  const struct wn_attention wide = wide_keys_call(a, k, v);
  return wn_arrays_bytes(&l) + scratch(exec, &wide, backward);
}
