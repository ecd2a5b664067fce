/* A snapshot has a cache of its own for each cache of the session, just large enough for the tokens held. Taking a
 * snapshot and going back to it cost one copy of these tokens. The last token's logits are not kept: after going back
 * feed at least one token. */
#include "decode/snapshot.h"

#include <string.h>

#include "base/alloc.h"
#include "decode/session.h"

struct snapshot_part {
  struct wn_session_part part;
  struct wn_kv_shape shape; /* shape of the session's cache */
  struct wn_kv_cache cache; /* its capacity is the tokens held */
};

struct wn_snapshot {
  const struct wn_model *model;
  int64_t B, position, n; /* n: parts */
  wn_cache_format cache;
  bool rolls_back;
  int64_t dynamic_rows; /* wn_session_dynamic_rows of the session */
  wn_attention_config attention;
  wn_budgets budgets; /* only the options, no tokens */
  int64_t budget_layers;
  struct wn_pins pins;
  struct snapshot_part *parts; /* [n] */
  uint8_t *control;            /* [B,position] or NULL */
  int32_t *history;            /* [B,position] or NULL */
  bool stretched;              /* with a history: as in the session */
};

static int64_t snapshot_count_parts(const wn_session *s) {
  return s->first[s->model->config.layers];
}

bool wn_snapshot_rolls_back(const wn_session *s) {
  for (int64_t i = 0; i < snapshot_count_parts(s); i++)
    if (s->parts[i].kind != WN_LAYER_WHOLE || s->caches[i].f) return false;
  return true;
}

/* How many tokens of cache i are copied, and the shape of the copy. */
static int64_t snapshot_shape(const wn_session *s, int64_t i, int64_t position, struct wn_kv_shape *out) {
  const int64_t held = s->caches[i].count, count = position < held ? position : held;
  *out = s->caches[i].shape;
  out->capacity = count;
  return count;
}

size_t wn_snapshot_need(const wn_session *s, int64_t position) {
  const int64_t n = snapshot_count_parts(s);
  size_t need = sizeof(struct wn_snapshot) + (size_t)n * sizeof(struct snapshot_part);
  if (s->control) need += (size_t)(s->B * position);
  if (s->history) need += (size_t)(s->B * position) * sizeof *s->history;
  for (int64_t i = 0; i < n; i++) {
    struct wn_kv_shape shape;
    size_t bytes;
    snapshot_shape(s, i, position, &shape);
    if (wn_kv_shape_bytes(&shape, &bytes, NULL))
      need += bytes; /* cannot overflow: it is no larger than the session's */
  }
  return need;
}

wn_status wn_snapshot_take(wn_context *ctx, const wn_session *s, int64_t position, struct wn_snapshot **out) {
  const int64_t n = snapshot_count_parts(s);
  wn_status status;
  *out = NULL;
  if (s->compressed)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "snapshot: the session was compressed: no text alone says what it holds");
  if (s->broken || position < 1 || position > s->position || (position < s->position && !wn_snapshot_rolls_back(s)) ||
      s->inputs.S > 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "snapshot: the session does not know its state after %lld tokens",
                   (long long)position);
  struct wn_snapshot *x;
  WN_TRY(WN_ALLOC(ctx, "a snapshot", 1, &x));
  x->model = s->model;
  x->B = s->B;
  x->position = position;
  x->cache = s->cache;
  x->dynamic_rows = wn_session_dynamic_rows(s);
  x->rolls_back = wn_snapshot_rolls_back(s);
  x->attention = s->attention;
  x->budgets = s->budgets;
  x->budgets.tokens = x->budgets.head_tokens = NULL;
  x->budgets.pins = NULL;
  x->pins = s->pins;
  x->budget_layers = s->budgets.layers;
  WN_TRY_GOTO(WN_ALLOC(ctx, "a snapshot", n, &x->parts), fail);
  for (x->n = 0; x->n < n; x->n++) {
    struct snapshot_part *part = &x->parts[x->n];
    struct wn_kv_shape shape;
    const int64_t count = snapshot_shape(s, x->n, position, &shape);
    part->part = s->parts[x->n];
    part->shape = s->caches[x->n].shape;
    WN_TRY_GOTO(wn_kv_cache_init(ctx, &shape, &part->cache), fail);
    status = wn_kv_cache_copy(ctx, &s->caches[x->n], count, NULL, &part->cache);
    if (status == WN_OK) continue;
    wn_kv_cache_clear(&part->cache); /* it is not in the list yet */
    goto fail;
  }
  if (s->control) {
    WN_TRY_GOTO(WN_ALLOC(ctx, "a snapshot", s->B * position, &x->control), fail);
    for (int64_t b = 0; b < s->B; b++)
      memcpy(x->control + b * position, s->control + b * s->capacity, (size_t)position);
  }
  if (s->history) {
    WN_TRY_GOTO(WN_ALLOC(ctx, "a snapshot", s->B * position, &x->history), fail);
    x->stretched = s->stretched;
    for (int64_t b = 0; b < s->B; b++)
      memcpy(x->history + b * position, s->history + b * s->capacity, (size_t)position * sizeof *s->history);
  }
  *out = x;
  return WN_OK;
fail:
  wn_snapshot_destroy(x);
  return status;
}

void wn_snapshot_destroy(struct wn_snapshot *x) {
  if (!x) return;
  for (int64_t i = 0; i < x->n; i++) wn_kv_cache_clear(&x->parts[i].cache);
  wn_free(x->parts);
  wn_free(x->control);
  wn_free(x->history);
  wn_free(x);
}

/* Are the same positions pinned of the snapshot's? */
static bool snapshot_same_pins(const struct wn_snapshot *x, const struct wn_pins *pins) {
  if (x->budget_layers == 0 || (pins->count == 0 && x->pins.count == 0)) return true;
  for (int64_t at = 0; at < x->position; at++)
    if (wn_pins_have(&x->pins, at) != wn_pins_have(pins, at)) return false;
  return true;
}

bool wn_snapshot_suits(const struct wn_snapshot *x, const wn_session *s) {
  bool suits = s->model == x->model && wn_session_same_threshold(&s->attention, &x->attention) && s->B == x->B &&
               s->cache == x->cache && s->budgets.layers == x->budget_layers &&
               wn_budgets_same_options(&s->budgets, &x->budgets) && snapshot_count_parts(s) == x->n &&
               !x->history == !s->history && x->dynamic_rows == wn_session_dynamic_rows(s) &&
               !x->control == !s->control && snapshot_same_pins(x, &s->pins);
  for (int64_t i = 0; suits && i < x->n; i++)
    suits = wn_session_part_agrees(s, i, &x->parts[i].part, &x->parts[i].shape);
  return suits;
}

wn_status wn_snapshot_restore(const struct wn_snapshot *x, int64_t position, wn_session *s) {
  const struct wn_pins pins = s->pins;
  wn_session_reset(s);
  s->pins = pins;
  for (int64_t i = 0; i < x->n; i++) {
    const int64_t all = x->parts[i].cache.count, held = position < all ? position : all;
    if (wn_session_grows(s, i) && held > s->caches[i].shape.capacity)
      WN_TRY(wn_session_set_capacity(s, i, wn_session_room(s, held)));
    WN_TRY(wn_kv_cache_copy(s->ctx, &x->parts[i].cache, held, NULL, &s->caches[i]));
  }
  for (int64_t b = 0; x->control && b < x->B; b++)
    memcpy(s->control + b * s->capacity, x->control + b * x->position, (size_t)position);
  for (int64_t b = 0; s->marks && x->control && b < x->B; b++) /* positions that are read again have their old marks */
    memcpy(s->marks + b * s->capacity, x->control + b * x->position, (size_t)position);
  for (int64_t b = 0; x->history && b < x->B; b++)
    memcpy(s->history + b * s->capacity, x->history + b * x->position, (size_t)position * sizeof *s->history);
  s->stretched = x->stretched;
  s->position = position;
  s->cut = true;
  return WN_OK;
}
