/* Checks the arguments of attention: which terms the backend serves and which exclude each other (ops/terms.h), then
 * shapes, strides, required pointers and ranges. The cost is negligible: only positions, documents and counts are
 * read. */
#include <math.h>
#include "ops/check.h"
#include "ops/terms.h"

static wn_status check_strided(struct wn_check c, const char *field, const void *p, struct wn_stride s, int64_t B,
                               int64_t T, int64_t heads, int64_t D) {
  WN_TRY(wn_check_pointer(c, field, p));
  /* The stride of a dimension of size 1 is never used. */
  const bool ok = (B == 1 || s.b >= D) && (T == 1 || s.t >= D) && (heads == 1 || s.h >= D);
  if (!ok)
    return wn_fail(c.exec->ctx, WN_ERR_SHAPE, "%s: strides of %s are b %lld, t %lld, h %lld, expected at least D %lld",
                   c.op, field, (long long)s.b, (long long)s.t, (long long)s.h, (long long)D);
  if (B > 1) WN_TRY(wn_check_product(c, field, B, s.b, 1));
  if (T > 1) WN_TRY(wn_check_product(c, field, T, s.t, 1));
  return heads > 1 ? wn_check_product(c, field, heads, s.h, 1) : WN_OK;
}

static wn_status check_selective(struct wn_check c, const struct wn_attention *a) {
  const int64_t G = wn_selection_groups(a);
  if (G != 1 && G != a->Hkv)
    return wn_fail(c.exec->ctx, WN_ERR_SHAPE,
                   "attention: %lld selections per layer, expected 1 or one for each of %lld heads", (long long)G,
                   (long long)a->Hkv);
  if (a->sel.head < 0 || a->sel.head >= a->H / G)
    return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "attention: selective head is %d, expected 0 to %lld", a->sel.head,
                   (long long)(a->H / G) - 1);
  if (a->sel.bilinear) {
    WN_TRY(check_strided(c, "sq", a->sel.sq, a->sel.s_sq, a->B, a->Tq, G, a->D));
    WN_TRY(check_strided(c, "sk", a->sel.sk, a->sel.s_sk, a->B, a->Tk, G, a->D));
  }
  if (wn_selection_stride(a) < a->Tk)
    return wn_fail(c.exec->ctx, WN_ERR_SHAPE, "attention: f_stride is %lld, Tk %lld", (long long)a->sel.f_stride,
                   (long long)a->Tk);
  if (a->sel.F) WN_TRY(wn_check_product(c, "F", a->B * G, a->Tq, a->Tk));
  WN_TRY(wn_check_number(c, "dead_share", a->sel.dead_share, a->sel.dead_share >= 0 && a->sel.dead_share < 1,
                         "a share in [0,1)"));
  if (!a->sel.mem) return WN_OK;
  return wn_check_number(c, "mem_tau", a->sel.mem_tau, a->sel.mem_tau > 0, "a number > 0");
}

/* Checks all terms except selection. */
static wn_status check_terms(struct wn_check c, const struct wn_attention *a, int64_t far) {
  WN_TRY(wn_check_least(c, "window", a->window, 0));
  WN_TRY(wn_check_least(c, "strided", a->strided, 0));
  if (a->root.on) {
    WN_TRY(wn_check_least(c, "sqrt.buffer", a->root.buffer, 1));
    WN_TRY(wn_check_number(c, "sqrt.density", a->root.density, a->root.density > 0, "a number > 0"));
  }
  double seen = (double)far + 1; /* only distances below this may be seen */
  if (a->window > 0 && (double)a->window < seen) seen = (double)a->window;
  if (a->span.on) {
    WN_TRY(wn_check_pointer(c, "span.z", a->span.z));
    WN_TRY(wn_check_number(c, "span.limit", a->span.limit, a->span.limit >= 0, "a number >= 0"));
    WN_TRY(wn_check_number(c, "span.ramp", a->span.ramp, a->span.ramp > 0, "a number > 0"));
    if (a->span.limit + a->span.ramp < seen) seen = ceil(a->span.limit + a->span.ramp);
  }
  WN_TRY(wn_check_least(c, "relative.P", a->relative.P, 0));
  if (a->relative.P > 0) {
    WN_TRY(wn_check_pointer(c, "relative.p", a->relative.p));
    WN_TRY(wn_check_product(c, "relative.p", a->relative.P, a->D, 1));
    if ((double)a->relative.P < seen)
      return wn_fail(c.exec->ctx, WN_ERR_SHAPE, "attention: %lld relative positions, but %.0f distances are seen",
                     (long long)a->relative.P, seen);
  }
  for (int64_t i = 0; i < a->maps; i++) {
    const struct wn_score_map *map = &a->map[i];
    if (map->kind->keyed_double) {
      if (map->gates != 1 && map->gates != a->H / a->Hkv)
        return wn_fail(c.exec->ctx, WN_ERR_SHAPE,
                       "attention: %s have %lld numbers, expected 1 or one for each of %lld heads", map->kind->name,
                       (long long)map->gates, (long long)(a->H / a->Hkv));
      WN_TRY(wn_check_least(c, "map.s_gate", map->s_gate, 1));
      WN_TRY(wn_check_product(c, "map.key", map->gates, map->s_gate, 1));
      WN_TRY(check_strided(c, "map.key", map->key, map->s_key, a->B, a->Tk, a->Hkv, 1));
    }
    if (!map->kind->slope) continue;
    WN_TRY(wn_check_least(c, "map.n", map->n, 1));
    WN_TRY(wn_check_pointer(c, "map.theta", map->theta));
    WN_TRY(wn_check_least(c, "map.stride", map->stride, wn_model_head(a, a->H - 1) + 1));
    WN_TRY(wn_check_product(c, "map.theta", map->n, map->stride, 1));
  }
  WN_TRY(wn_check_least(c, "sinks.n", a->sinks.n, 0));
  if (a->sinks.n > 0) {
    WN_TRY(wn_check_pointer(c, "sinks.k", a->sinks.k));
    WN_TRY(wn_check_pointer(c, "sinks.v", a->sinks.v));
    WN_TRY(wn_check_product(c, "sinks.k", a->Hkv, a->sinks.n, a->D));
  }
  if (a->threshold.on)
    WN_TRY(wn_check_number(c, "threshold.tau", a->threshold.tau, a->threshold.tau > 0 && a->threshold.tau <= 1,
                           "a number in (0,1]"));
  WN_TRY(wn_check_least(c, "look.n", a->look.n, 0));
  if (a->look.n > 0) {
    WN_TRY(wn_check_pointer(c, "look.tau", a->look.tau));
    WN_TRY(wn_check_pointer(c, "look.count", a->look.count));
    WN_TRY(wn_check_product(c, "look.count", a->B * a->H, a->Tq, a->look.n));
  }
  for (int64_t i = 0; i < a->look.n; i++)
    WN_TRY(
        wn_check_number(c, "look.tau", a->look.tau[i],
                        a->look.tau[i] > 0 && a->look.tau[i] <= 1 && (i == 0 || a->look.tau[i] >= a->look.tau[i - 1]),
                        "ascending numbers in (0,1]"));
  if (a->gate.on)
    WN_TRY(check_strided(c, "gate.g", a->gate.g, a->gate.s_g, a->B, a->Tq, a->H, a->gate.elementwise ? a->D : 1));
  return wn_check_number(c, "dropout.p", a->dropout.p, a->dropout.p >= 0 && a->dropout.p < 1, "a number in [0,1)");
}

/* One group's positions: the rows' own must be in order, all others older. *far: the largest distance of a row and a
 * key. */
static wn_status check_positions(struct wn_check c, const struct wn_attention *a, const int32_t *at, int64_t *far) {
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

static wn_status check_slots(struct wn_check c, const struct wn_attention *a, int64_t *far) {
  const int64_t P = wn_slot_groups(a);
  *far = a->Tk - 1;
  if (a->slots.stride > 0 && a->slots.stride < a->Tk)
    return wn_fail(c.exec->ctx, WN_ERR_SHAPE, "attention: slots.stride is %lld, Tk %lld", (long long)a->slots.stride,
                   (long long)a->Tk);
  if (a->slots.stride > 0) WN_TRY(wn_check_product(c, "slots", a->B, P, a->slots.stride));
  if (!a->slots.at) return WN_OK;
  if (a->doc_start)
    return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "attention: slots.at and doc_start exclude each other");
  if (a->sel.on && P > 1 && wn_selection_groups(a) != P)
    return wn_fail(c.exec->ctx, WN_ERR_SHAPE,
                   "attention: slots of each key-value head need a selection of each key-value head");
  *far = 0;
  if (!wn_backend_on_host(c.exec->backend))
    return WN_OK; /* positions were checked when they were copied from the host */
  for (int64_t n = 0; n < a->B * P; n++) WN_TRY(check_positions(c, a, a->slots.at + n * wn_slot_stride(a), far));
  return WN_OK;
}

/* Refuses terms that another part of the call excludes, and terms that the backend does not serve. */
static wn_status check_served(struct wn_check c, const struct wn_attention *a, bool backward) {
  const struct wn_backend *backend = c.exec->backend;
  const struct wn_attention_served *served = &backend->attention_served;
  WN_TRY(wn_check_least(c, "maps", a->maps, 0));
  if (a->maps > WN_SCORE_MAPS_MAX)
    return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "attention: %lld score maps, at most %d are taken", (long long)a->maps,
                   WN_SCORE_MAPS_MAX);
  for (int64_t i = 0; i < a->maps; i++) {
    const struct wn_score_kind *kind = a->map[i].kind;
    WN_TRY(wn_check_pointer(c, "map.kind", kind));
    if (kind->values && i > 0 && !a->map[i - 1].kind->values)
      return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED, "attention: the term \"%s\" must come before \"%s\"", kind->name,
                     a->map[i - 1].kind->name);
    if ((kind->forward_double || kind->scales) && i < a->maps - 1)
      return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED, "attention: the term \"%s\" must come after \"%s\"", kind->name,
                     a->map[i + 1].kind->name);
  }
  const char *term = wn_call_lacks(a, backward                               ? served->backward
                                      : a->Tq == 1 && !wn_attention_looks(a) ? served->row
                                                                             : served->forward);
  if (!term) return WN_OK;
  return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED, "attention: backend %s does not serve the term \"%s\"%s",
                 backend->name, term, backward ? " in backward" : "");
}

static wn_status check_open(struct wn_check c, const struct wn_attention *a) {
  const char *term = wn_call_lacks_traits(a, WN_TRAIT_OPEN);
  if (term)
    return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT,
                   "attention: open rows (an encoder's, another sequence's keys) do not serve the term \"%s\"", term);
  if (a->sel.on && a->Tq != a->Tk)
    return wn_fail(c.exec->ctx, WN_ERR_SHAPE,
                   "attention: %lld open rows select among %lld keys, expected the rows' own (selection between two "
                   "sequences is not defined)",
                   (long long)a->Tq, (long long)a->Tk);
  if (a->sel.on && (a->sel.f_in || a->sel.f_out))
    return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "attention: f_in and f_out are for rows with causality");
  if (a->sel.on && a->sel.mem)
    return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED,
                   "attention: L_mem is for rows with causality, whose keys are cached");
  const bool host = wn_backend_on_host(c.exec->backend);
  for (int64_t b = 0; host && a->key_count && b < a->B; b++)
    if (a->key_count[b] < 0 || a->key_count[b] > a->Tk)
      return wn_fail(c.exec->ctx, WN_ERR_ARGUMENT, "attention: key_count[%lld] is %d, expected 0 to %lld", (long long)b,
                     a->key_count[b], (long long)a->Tk);
  return WN_OK;
}

static wn_status check_stored(struct wn_check c, const struct wn_attention *a) {
  const char *term = wn_call_lacks_traits(a, WN_TRAIT_HALF), *type = wn_gguf_type_name(a->k_type);
  const bool blocks = wn_stored_blocks(a->k_type);
  if (term)
    return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED, "attention: keys in %s do not serve the term \"%s\"", type, term);
  if (blocks ? !wn_stored_blocks(a->v_type) : a->k_type != WN_GGUF_F16 || a->v_type != WN_GGUF_F16)
    return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED, "attention: keys in %s with values in %s", type,
                   wn_gguf_type_name(a->v_type));
  const int64_t each = wn_gguf_block_weights(a->k_type);
  const struct wn_stride s = a->s_k, z = a->s_v;
  const bool whole = (a->D | s.b | s.t | s.h | z.b | z.t | z.h) % each == 0;
  if (whole && a->D <= WN_STORED_D && c.exec->dtype == WN_F32) return WN_OK;
  return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED,
                 "attention: keys in %s need F32 and heads of at most %d, rows of whole blocks of %lld", type,
                 WN_STORED_D, (long long)each);
}

static wn_status check_row_type(struct wn_check c, const struct wn_attention *a) {
  if (a->row_type == WN_F32 || a->row_type == c.exec->dtype || a->row_type == WN_BF16) return WN_OK;
  return wn_fail(c.exec->ctx, WN_ERR_UNSUPPORTED, "attention: row_type is %s, expected %s or BF16",
                 wn_dtype_name(a->row_type), wn_dtype_name(c.exec->dtype));
}

wn_status wn_check_attention(const struct wn_exec *exec, const struct wn_attention *a, bool backward) {
  const struct wn_check c = {exec, "attention"};
  WN_TRY(wn_check_least(c, "B", a->B, 1));
  WN_TRY(wn_check_least(c, "Tq", a->Tq, 1));
  WN_TRY(wn_check_least(c, "Tk", a->Tk, a->open ? 1 : a->Tq));
  WN_TRY(wn_check_least(c, "H", a->H, 1));
  WN_TRY(wn_check_least(c, "Hkv", a->Hkv, 1));
  WN_TRY(wn_check_least(c, "D", a->D, 1));
  if (a->H % a->Hkv)
    return wn_fail(exec->ctx, WN_ERR_SHAPE, "attention: %lld heads are not a multiple of %lld key-value heads",
                   (long long)a->H, (long long)a->Hkv);
  if (wn_slot_groups(a) != 1 && wn_slot_groups(a) != a->Hkv)
    return wn_fail(exec->ctx, WN_ERR_SHAPE, "attention: slots of %lld groups, expected 1 or one for each of %lld heads",
                   (long long)wn_slot_groups(a), (long long)a->Hkv);
  WN_TRY(check_row_type(c, a));
  WN_TRY(check_served(c, a, backward));
  if (a->k_type || a->v_type) WN_TRY(check_stored(c, a));
  if (a->open) WN_TRY(check_open(c, a));
  if (!a->open && a->key_count) return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "attention: key_count is for open rows");
  if (a->Tk > INT32_MAX)
    return wn_fail(exec->ctx, WN_ERR_SHAPE, "attention: Tk is %lld, beyond 32-bit positions", (long long)a->Tk);
  WN_TRY(wn_check_product(c, "q", a->B * a->H, a->Tk > a->Tq ? a->Tk : a->Tq, a->D));
  WN_TRY(wn_check_least(c, "head0", a->head0, 0));
  WN_TRY(wn_check_least(c, "head_step", a->head_step, 0));
  WN_TRY(wn_check_product(c, "head0", a->head0, 1, 1));
  WN_TRY(wn_check_product(c, "head_step", a->H, a->head_step, 1));
  WN_TRY(wn_check_number(c, "scale", a->scale, true, "a finite number"));
  WN_TRY(check_strided(c, "q", a->q, a->s_q, a->B, a->Tq, a->H, a->D));
  WN_TRY(check_strided(c, "k", a->k, a->s_k, a->B, a->Tk, a->Hkv, a->D));
  WN_TRY(check_strided(c, "v", a->v, a->s_v, a->B, a->Tk, a->Hkv, a->D));
  WN_TRY(check_strided(c, "y", a->y, a->s_y, a->B, a->Tq, a->H, a->D));
  if (a->doc_start && wn_backend_on_host(exec->backend)) {
    for (int64_t b = 0; b < a->B; b++)
      for (int64_t t = 0; t < a->Tk; t++)
        if (a->doc_start[b * a->Tk + t] < 0 || a->doc_start[b * a->Tk + t] > t)
          return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "attention: doc_start[%lld,%lld] is %d, expected 0 to %lld",
                         (long long)b, (long long)t, a->doc_start[b * a->Tk + t], (long long)t);
  }
  int64_t far;
  WN_TRY(check_slots(c, a, &far));
  if (a->sel.on) WN_TRY(check_selective(c, a));
  WN_TRY(check_terms(c, a, far));
  if (!backward) return WN_OK;
  if (a->dk_from < 0 || a->dk_from > a->Tk)
    return wn_fail(exec->ctx, WN_ERR_ARGUMENT, "attention: dk_from is %lld, expected 0 to %lld", (long long)a->dk_from,
                   (long long)a->Tk);
  WN_TRY(wn_check_pointer(c, "lse", a->lse));
  return wn_check_pointer(c, "dy", a->dy);
}
