/* Copying a session's state. One call serves to fork (one text continued in several ways), to keep a snapshot and to
 * roll back. */
#include <string.h>

#include "base/misuse.h"
#include "decode/session_once.h"

bool wn_session_same_threshold(const wn_attention_config *a, const wn_attention_config *b) {
  return a->threshold.enabled == b->threshold.enabled &&
         (!a->threshold.enabled || a->threshold.tau == b->threshold.tau);
}

static bool copy_shapes_agree(const struct wn_kv_shape *a, const struct wn_kv_shape *b) {
  return a->Hkv == b->Hkv && a->D == b->D && a->dtype == b->dtype && a->selections == b->selections &&
         a->bilinear == b->bilinear && a->groups == b->groups && a->first_group == b->first_group &&
         a->notes == b->notes && a->k_type == b->k_type && a->v_type == b->v_type;
}

bool wn_session_part_agrees(const struct wn_session *s, int64_t i, const struct wn_session_part *part,
                            const struct wn_kv_shape *shape) {
  const struct wn_session_part *own = &s->parts[i];
  return own->kind == part->kind && own->layer == part->layer && own->kv0 == part->kv0 &&
         copy_shapes_agree(&s->caches[i].shape, shape) &&
         (part->kind == WN_LAYER_WHOLE || wn_session_follows(s, i) || s->caches[i].shape.capacity == shape->capacity);
}

/* Where sequence b of a copy comes from: rows[b], or b / each if rows is NULL. */
struct copy {
  const int64_t *rows;
  int64_t each;
};

static int64_t copy_source(const struct copy *copy, int64_t b) {
  return copy->rows ? copy->rows[b] : b / copy->each;
}

static wn_status copy_check_rows(wn_context *ctx, const struct wn_session *to, const struct wn_session *from,
                                 const int64_t *rows) {
  if (!rows && to->B % from->B != 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: %lld sequences cannot be copied to %lld, expected a multiple",
                   (long long)from->B, (long long)to->B);
  for (int64_t b = 0; rows && b < to->B; b++)
    if (rows[b] < 0 || rows[b] >= from->B)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "session: rows[%lld] is %lld, expected 0 to %lld", (long long)b,
                     (long long)rows[b], (long long)from->B - 1);
  return WN_OK;
}

/* Do the two have the same budgets? Capacities say so only where caches do not grow. */
static bool copy_budgets_agree(const struct wn_budgets *a, const struct wn_budgets *b) {
  if (a->layers != b->layers || a->heads != b->heads || !wn_budgets_same_options(a, b)) return false;
  for (int64_t l = 0; a->when != WN_WHEN_ALWAYS && l < a->layers; l++)
    for (int64_t h = 0; h < (a->heads > 0 ? a->heads : 1); h++)
      if (wn_budgets_of(a, l, h) != wn_budgets_of(b, l, h)) return false;
  return true;
}

/* Have the two other budgets, but may `to` take over what `from` has read? */
static bool copy_shares(const struct wn_session *to, const struct wn_session *from) {
  return to->B == 1 && !copy_budgets_agree(&to->budgets, &from->budgets) &&
         wn_session_shares_reading(from, &to->budgets);
}

/* What the two were created with that differs; NULL: nothing. */
static const char *copy_difference(const struct wn_session *to, const struct wn_session *from) {
  const int64_t L = from->model->config.layers;
  if (to->model != from->model) return "models";
  if (!wn_session_same_threshold(&to->attention, &from->attention)) return "thresholds (tau)";
  if (to->cache != from->cache) return "cache formats";
  if (!to->marks != !from->marks || !to->control != !from->control) return "control_marks";
  if (!to->history != !from->history) return "capacities: one alone is longer than longrope's original context";
  if (wn_session_dynamic_rows(to) != wn_session_dynamic_rows(from))
    return "capacities, on which the angles of the rope scaling \"dynamic\" depend";
  if (copy_shares(to, from)) return NULL;
  if (!copy_budgets_agree(&to->budgets, &from->budgets)) return "budgets (tokens, policy or options)";
  if (to->first[L] != from->first[L]) return "budgets of key-value heads";
  for (int64_t i = 0; i < from->first[L]; i++)
    if (!wn_session_part_agrees(to, i, &from->parts[i], &from->caches[i].shape))
      return "budgets, or capacities of which one is shorter than a budget or window";
  return NULL;
}

static wn_status copy_check(wn_context *ctx, const struct wn_session *to, const struct wn_session *from) {
  if (from->broken) return wn_fail(ctx, WN_ERR_ARGUMENT, "session: the last feed of the one to copy failed");
  const char *differs = copy_difference(to, from);
  if (differs) return wn_fail(ctx, WN_ERR_ARGUMENT, "session: the two were created with different %s", differs);
  if (from->position > to->capacity)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: %lld tokens cannot be copied to a session of %lld",
                   (long long)from->position, (long long)to->capacity);
  return WN_OK;
}

/* Copies rows of `bytes` bytes in the backend's memory, one for each sequence of the copy. NULL arrays are allowed. */
static wn_status copy_rows(const struct wn_session *s, void *to, const void *from, size_t bytes,
                           const struct copy *copy) {
  const struct wn_memory *memory = s->model->backend->memory;
  for (int64_t b = 0; to && b < s->B; b++)
    WN_TRY(memory->copy(s->ctx, (char *)to + (size_t)b * bytes,
                        (const char *)from + (size_t)copy_source(copy, b) * bytes, bytes));
  return WN_OK;
}

static wn_status copy_inputs(wn_context *ctx, struct wn_session *to, const struct wn_session *from,
                             const struct copy *copy) {
  const int64_t L = from->model->config.layers;
  const struct wn_session_inputs *in = &from->inputs;
  void *memory;
  wn_session_inputs_clear(to);
  if (in->S == 0) return WN_OK;
  size_t all, row = in->bytes / (size_t)from->B, bytes;
  if (!wn_mul_size(row, (size_t)to->B, &bytes) || !wn_mul_size(bytes, (size_t)L, &all))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: keys of %lld inputs do not fit in memory", (long long)in->S);
  WN_TRY(from->model->backend->memory->allocate(ctx, "keys of the inputs", all, &memory));
  to->inputs = (struct wn_session_inputs){.S = in->S, .kv = memory, .bytes = bytes};
  for (int64_t l = 0; l < L; l++)
    WN_TRY(copy_rows(to, to->inputs.kv + (size_t)l * bytes, in->kv + (size_t)l * in->bytes, row, copy));
  if (!in->count) return WN_OK;
  int32_t *count;
  WN_TRY(WN_ALLOC(ctx, "input counts", to->B, &count));
  for (int64_t b = 0; b < to->B; b++) count[b] = in->count[copy_source(copy, b)];
  const wn_status status = wn_session_inputs_count(ctx, to, count);
  wn_free(count);
  return status;
}

static wn_status session_copy(wn_context *ctx, struct wn_session *to, const struct wn_session *from,
                              const struct copy *copy) {
  WN_TRY(copy_check_rows(ctx, to, from, copy->rows));
  WN_TRY(copy_check(ctx, to, from));
  const wn_model_config *c = &from->model->config;
  const size_t e = wn_dtype_size(from->model->dtype), C = (size_t)c->width * e, V = (size_t)c->vocab_size * e;
  wn_session_reset(to);
  wn_status status = copy_inputs(ctx, to, from, copy);
  if (status != WN_OK) {
    wn_session_inputs_clear(to);
    return status;
  }
  to->broken = true; /* until the copy is complete */
  const bool shares = copy_shares(to, from);
  if (shares) WN_TRY(wn_session_take_reading(ctx, to, from));
  if (!shares) WN_TRY(wn_session_follow_capacities(to, from));
  for (int64_t b = 0; b < to->B; b++) WN_TRY(wn_session_once_copy(ctx, to, b, from, copy_source(copy, b)));
  for (int64_t i = 0; !shares && i < from->first[c->layers]; i++)
    WN_TRY(wn_kv_cache_copy(ctx, &from->caches[i], from->caches[i].count, copy->rows, &to->caches[i]));
  for (int64_t b = 0; to->control && b < to->B; b++)
    memcpy(to->control + b * to->capacity, from->control + copy_source(copy, b) * from->capacity,
           (size_t)from->position);
  for (int64_t b = 0; to->marks && b < to->B; b++)
    memcpy(to->marks + b * to->capacity, from->marks + copy_source(copy, b) * from->capacity,
           (size_t)(to->capacity < from->capacity ? to->capacity : from->capacity));
  for (int64_t i = 0; to->counts && from->counted && i < c->layers * to->B; i++) {
    const int64_t row = i / to->B * from->B + copy_source(copy, i % to->B);
    memcpy(to->counts + i * c->heads, from->counts + row * c->heads, (size_t)c->heads * sizeof *to->counts);
  }
  for (int64_t b = 0; to->history && b < to->B; b++)
    memcpy(to->history + b * to->capacity, from->history + copy_source(copy, b) * from->capacity,
           (size_t)from->position * sizeof *to->history);
  to->stretched = from->stretched;
  if (!shares) to->pins = from->pins;
  WN_TRY(copy_rows(to, to->state, from->state, C, copy));
  if (from->logits_known) WN_TRY(copy_rows(to, to->logits, from->logits, V, copy));
  to->logits_known = from->logits_known;
  to->position = from->position;
  to->cut = from->cut;
  to->counted = to->counts && from->counted;
  to->broken = false;
  return WN_OK;
}

wn_status wn_session_copy(wn_context *ctx, wn_session *to, const wn_session *from, const int64_t *rows) {
  WN_CHECK_WORK(WN_HANDLE(to, SESSION), WN_HANDLE(from, SESSION));
  if (to == from && rows) return wn_fail(ctx, WN_ERR_ARGUMENT, "session: its sequences cannot be copied within itself");
  return to == from ? WN_OK : session_copy(ctx, to, from, &(struct copy){rows, to->B / from->B});
}
