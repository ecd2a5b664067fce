/* One reading of a context for sessions of several budgets. Under "prompt" and "hold" a session keeps everything until
 * its context ends, so what it holds by then depends on its budgets only by its policy's notes, by how caches divide
 * the heads, and by what its method collects. A session reads for others whose notes are its own: it collects for their
 * methods too, and each of them takes over keys, values, notes and collections before it is compressed. Cost: the
 * copy. */
#include "decode/session_once.h"
#include "io/stored.h"

/* Does every head keep everything until the context ends, whatever the rest of the text? */
static bool share_keeps_all(const struct wn_session *s, const wn_budgets *b) {
  const wn_model_config *c = &s->model->config;
  if (b->layers != c->layers || (b->when != WN_WHEN_PROMPT && b->when != WN_WHEN_HOLD)) return false;
  if (b->share > 0 || b->allot == WN_ALLOT_TAU || b->allot == WN_ALLOT_PYRAMID) return true;
  for (int64_t l = 0; l < c->layers; l++)
    for (int64_t g = 0; g < c->kv_heads; g++)
      if (wn_budgets_of(b, l, g) >= s->capacity) return false;
  return true;
}

bool wn_session_shares_reading(const struct wn_session *s, const wn_budgets *other) {
  const wn_budgets *own = &s->budgets;
  const int64_t notes = wn_policy_notes(own);
  if (s->B > 1 || s->compressed || s->history || s->control || s->counting) return false;
  if (s->caches->shape.selections || s->caches->shape.keyed) return false;
  if (own->policy == WN_POLICY_OWN || other->policy == WN_POLICY_OWN) return false;
  if (!share_keeps_all(s, own) || !share_keeps_all(s, other) || wn_policy_notes(other) != notes) return false;
  return !notes || (own->policy == other->policy && own->per_kv_head == other->per_kv_head);
}

wn_status wn_session_read_for(wn_context *ctx, struct wn_session *s, const wn_budgets *other) {
  return wn_session_once_join(ctx, s, other);
}

/* The part of layer l that has key-value head g. */
static int64_t share_part(const struct wn_session *s, int64_t l, int64_t g) {
  int64_t i = s->first[l];
  while (g >= s->parts[i].kv0 + s->parts[i].kv_heads) i++;
  return i;
}

/* Copies n tokens of row `x` of an array [rows,capacity] of `bytes` a token to row `h`. */
static wn_status share_row(wn_context *ctx, const struct wn_kv_cache *to, void *a, int64_t h,
                           const struct wn_kv_cache *of, const void *b, int64_t x, size_t bytes) {
  const struct wn_memory *memory = wn_kv_memory(&to->shape);
  return memory->copy(ctx, (char *)a + (size_t)(h * to->shape.capacity) * bytes,
                      (const char *)b + (size_t)(x * of->shape.capacity) * bytes, (size_t)of->count * bytes);
}

/* Takes over head g of the layer, and its group's notes. */
static wn_status share_head(wn_context *ctx, struct wn_session *s, const struct wn_session *from, int64_t l,
                            int64_t g) {
  const int64_t i = share_part(s, l, g), j = share_part(from, l, g);
  const struct wn_kv_cache *to = &s->caches[i], *of = &from->caches[j];
  const struct wn_kv_shape *shape = &to->shape;
  const int64_t h = g - s->parts[i].kv0, x = g - from->parts[j].kv0;
  WN_TRY(share_row(ctx, to, to->k, h, of, of->k, x, wn_stored_bytes(shape->k_type, shape->dtype, shape->D)));
  WN_TRY(share_row(ctx, to, to->v, h, of, of->v, x, wn_stored_bytes(shape->v_type, shape->dtype, shape->D)));
  if (!to->notes || (shape->groups == 1 && h > 0)) return WN_OK;
  const int64_t p = shape->groups > 1 ? h : 0, q = of->shape.groups > 1 ? x : 0, notes = shape->notes;
  for (int64_t r = 0; r < notes; r++)
    WN_TRY(share_row(ctx, to, to->notes, p * notes + r, of, of->notes, q * notes + r, wn_dtype_size(shape->dtype)));
  return WN_OK;
}

wn_status wn_session_take_reading(wn_context *ctx, struct wn_session *s, const struct wn_session *from) {
  const int64_t n = from->position;
  WN_TRY(wn_session_make_room(s, n, NULL));
  for (int64_t l = 0; l < s->model->config.layers; l++) {
    for (int64_t g = 0; g < s->model->config.kv_heads; g++) WN_TRY(share_head(ctx, s, from, l, g));
    for (int64_t i = s->first[l]; i < s->first[l + 1]; i++) {
      struct wn_kv_cache *to = &s->caches[i];
      for (int64_t p = 0; p < to->shape.groups; p++)
        for (int64_t t = 0; t < n; t++) to->at[p * to->shape.capacity + t] = (int32_t)t;
      to->count = to->seen = n;
      to->sorted = to->at_known = true;
      to->at_is_shown = to->at_entered = false;
    }
  }
  return WN_OK;
}
