/* Sessions: how they are made, and what is fed to them (batch.c runs it). */
#include <string.h>

#include "attention/registry.h"
#include "base/misuse.h"
#include "base/options.h"
#include "kv/budgets.h"
#include "decode/batch.h"
#include "decode/session_ahead.h"
#include "decode/session_group.h"
#include "decode/session_once.h"
#include "ops/terms.h"

static void session_lay(struct wn_session *s, bool budgets) {
  const wn_model_config *c = &s->model->config;
  const wn_dtype dtype = s->model->dtype;
  const size_t e = wn_dtype_size(dtype);
  const int64_t B = s->B, control_heads = budgets ? c->kv_heads : 1;
  const bool threshold = s->attention.threshold.enabled, control = threshold && (s->model->control || s->marking);
  const int64_t L = c->layers, H = c->heads;
  const bool apart = !s->model->backend->memory->host;
  const struct wn_array host[] = {
      WN_ARRAY_FOR(s->history, "text", wn_session_has_history(s), WN_DIMS(B, s->capacity)),
      WN_ARRAY_SIZED(s->control, 1, "control tokens", control, WN_DIMS(B, s->capacity)),
      WN_ARRAY_SIZED(s->control_keys, 1, "keys of control tokens", control,
                     WN_DIMS(B, control_heads, s->capacity + s->piece)),
      WN_ARRAY_SIZED(s->marks, 1, "marks of control tokens", control && s->marking, WN_DIMS(B, s->capacity)),
      WN_ARRAY_FOR(s->counts, "counts", s->counting, WN_DIMS(L, B, H)),
      WN_ARRAY_SIZED(s->count_rows_read, sizeof *s->count_rows, "counts of rows", s->counting, WN_DIMS(B, H, s->piece)),
  };
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(s->state, e, "state", true, WN_DIMS(B, c->width)),
      WN_ARRAY_SIZED(s->logits, e, "logits", true, WN_DIMS(B, c->vocab_size)),
      WN_ARRAY_SIZED(s->control_keys_shown, 1, "keys of control tokens shown", apart && control,
                     WN_DIMS(B, control_heads, s->capacity + s->piece)),
      WN_ARRAY_FOR(s->count_rows, "counts of rows shown", apart && s->counting, WN_DIMS(B, H, s->piece)),
  };
  WN_ARRAYS_LAY(&s->host, host);
  WN_ARRAYS_LAY(&s->arrays, rows);
  if (apart) return;
  s->control_keys_shown = s->control_keys, s->count_rows = s->count_rows_read;
}

static wn_status session_arrays(wn_context *ctx, struct wn_session *s, bool budgets) {
  WN_TRY(wn_batch_room(ctx, s->model, s->B * s->piece + s->room->apart, 0, s->room));
  s->arrays.memory = s->model->backend->memory;
  session_lay(s, budgets);
  WN_TRY(wn_arrays_check(ctx, &s->host, "session of %lld sequences", (long long)s->B));
  WN_TRY(wn_arrays_check(ctx, &s->arrays, "session of %lld sequences", (long long)s->B));
  WN_TRY(wn_arrays_allocate(ctx, &s->host, "a session"));
  WN_TRY(wn_arrays_allocate(ctx, &s->arrays, "a session"));
  session_lay(s, budgets);
  return WN_OK;
}

static int64_t session_count_caches(const struct wn_session *s) {
  return s->first[s->model->config.layers];
}

/* What prevents a cache in a format other than float; NULL: nothing. */
static const char *session_not_stored(const struct wn_model *model, const wn_attention_config *attention,
                                      const wn_budgets *budgets, wn_cache_format format) {
  const bool rotates = budgets && budgets->cache_positions, blocks = format != WN_CACHE_HALF;
  const bool served = model->backend->attention_served.row & (blocks ? WN_TERM_BLOCKS : WN_TERM_HALF);
  const int64_t D = model->config.head_size;
  return model->dtype != WN_F32          ? "a model in F64"
         : !served                       ? model->backend->name
         : D > WN_STORED_D               ? "heads of more than 256"
         : blocks && D % WN_STORED_BLOCK ? "heads that are not a multiple of 32"
         : rotates                       ? "rotation by cache positions"
                                         : wn_attention_config_lacks(attention, WN_TRAIT_HALF);
}

static wn_cache_format session_format(const struct wn_model *model, const wn_attention_config *attention,
                                      const wn_budgets *budgets, wn_cache_format format) {
  if (format != WN_CACHE_AUTO) return format;
  const bool half = wn_model_is_packed(model) && !session_not_stored(model, attention, budgets, WN_CACHE_HALF);
  return half ? WN_CACHE_HALF : WN_CACHE_FLOAT;
}

wn_cache_format wn_cache_format_resolve(const wn_context *ctx, const wn_model *model, const wn_budgets *budgets,
                                        wn_cache_format format) {
  WN_CHECK_OR(0, WN_HANDLE(model, MODEL), WN_ENUM(format, WN_CACHE_COUNT));
  (void)ctx;
  return session_format(model, &model->config.attention, budgets, format);
}

/* The model's attention with the session's own threshold. */
static wn_status session_choose_attention(wn_context *ctx, const struct wn_model *model, double tau,
                                          wn_attention_config *out) {
  wn_model_config config = model->config;
  *out = config.attention;
  if (tau == 0) return WN_OK;
  if (tau != WN_TAU_NONE && !(tau > 0 && tau <= 1))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: tau is %g, expected a number above 0 up to 1, 0 or WN_TAU_NONE",
                   tau);
  config.attention.threshold.enabled = tau != WN_TAU_NONE;
  if (config.attention.threshold.enabled) config.attention.threshold.tau = tau;
  WN_TRY(wn_model_config_resolve(ctx, &config));
  *out = config.attention;
  return WN_OK;
}

wn_status wn_session_check_options(wn_context *ctx, const struct wn_model *model, const wn_session_options *options,
                                   wn_attention_config *attention) {
  const wn_budgets *budgets = options->budgets && options->budgets->layers > 0 ? options->budgets : NULL;
  if ((unsigned)options->cache >= WN_CACHE_COUNT)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: cache format %d is unknown", (int)options->cache);
  if (budgets) WN_TRY(wn_budgets_check(ctx, budgets, &model->config));
  if (budgets && budgets->when == WN_WHEN_EVERY) WN_TRY(wn_session_check_ragged(ctx, budgets, options->sequences));
  WN_TRY(session_choose_attention(ctx, model, options->tau, attention));
  /* dropout is for training only: no call of a session has it */
  const char *term = wn_attention_config_unserved(attention, model->backend->attention_served.row | WN_TERM_DROPOUT);
  if (term)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "session: backend %s does not serve the term \"%s\"", model->backend->name,
                   term);
  if ((options->counts || options->control_marks) && !attention->threshold.enabled)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                   "session: %s without a threshold (attention.threshold, or the session's tau)",
                   options->counts ? "tokens are counted by a threshold; there are no counts"
                                   : "control tokens are those that a threshold keeps; there are none");
  const char *input = wn_attention_input_not_cached(attention);
  if (input)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "session: a key-value cache does not keep the input \"%s\"", input);
  const wn_cache_format format = session_format(model, attention, budgets, options->cache);
  const char *why = format != WN_CACHE_FLOAT ? session_not_stored(model, attention, budgets, format) : NULL;
  if (!why) return WN_OK;
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "a cache in %s cannot be combined with %s", wn_cache_format_name(format),
                 why);
}

static wn_status session_plan(wn_context *ctx, const struct wn_model *model, const wn_session_options *o, bool whole,
                              int64_t tokens, size_t *bytes) {
  const wn_budgets *budgets = o->budgets && o->budgets->layers > 0 ? o->budgets : NULL;
  struct wn_session s = {.ctx = ctx, .model = model, .B = o->sequences, .capacity = o->capacity, .whole = whole};
  WN_TRY(wn_session_check_options(ctx, model, o, &s.attention));
  s.cache = session_format(model, &s.attention, budgets, o->cache);
  if (budgets) s.budgets = *budgets; /* borrowed */
  const wn_status status = wn_session_caches_plan(ctx, &s, tokens, bytes);
  wn_free(s.parts);
  wn_free(s.first);
  wn_free(s.reach);
  return status;
}

wn_status wn_session_plan_bytes(wn_context *ctx, const struct wn_model *model, const wn_session_options *options,
                                int64_t tokens, size_t *bytes) {
  return session_plan(ctx, model, options, false, tokens, bytes);
}

static wn_status session_check_group(wn_context *ctx, const struct wn_model *model,
                                     const struct wn_session_group *group) {
  WN_CHECK_ARGUMENTS(ctx, WN_HANDLE_AS("options' group", group, SESSION_GROUP));
  if (group->model == model) return WN_OK;
  return wn_fail(ctx, WN_ERR_ARGUMENT, "session: the options' group is of another model");
}

/* How many positions tokens may be rotated by: those of the text; or, if every layer rotates by cache positions, those
 * of the largest cache and a block of rows, however long the text grows. */
static int64_t session_turned_rows(const struct wn_session *s) {
  for (int64_t i = 0; i < session_count_caches(s); i++)
    if (s->parts[i].kind != WN_LAYER_BUDGET || !s->budgets.cache_positions) return s->capacity;
  return s->largest + WN_SESSION_BLOCK;
}

int64_t wn_session_dynamic_rows(const struct wn_session *s) {
  if (s->model->config.rope_scaling.type != WN_ROPE_DYNAMIC) return 0;
  return s->rotary.rows ? s->rotary.rows : s->model->rotary.rows;
}

/* A text that is read again with other angles would be compressed at another place. */
static wn_status session_check_history(wn_context *ctx, const struct wn_session *s, const wn_budgets *budgets) {
  if (!budgets || budgets->layers == 0 || budgets->when == WN_WHEN_ALWAYS || !s->history) return WN_OK;
  return wn_fail(ctx, WN_ERR_UNSUPPORTED,
                 "session: \"when\" is \"%s\", and with longrope a text that grows beyond the original context is read "
                 "again: expected a capacity of at most that context, or \"always\"",
                 wn_when_name(budgets->when));
}

static wn_status session_create(wn_context *ctx, wn_model *model, const wn_session_options *options, bool whole,
                                wn_session **out) {
  const wn_model_config *c = &model->config;
  wn_session_options own = {0};
  *out = NULL;
  if (options) WN_TRY(WN_OPTIONS_READ(ctx, wn_session_options, options, &own));
  options = &own;
  const wn_budgets *budgets = options->budgets;
  const int64_t B = options->sequences == 0 ? 1 : options->sequences;
  int64_t capacity = options->capacity;
  if (capacity == 0) capacity = c->context + c->recurrence;
  if (B < 1 || B > INT32_MAX || capacity < 1 || capacity > INT32_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session of %lld sequences and %lld tokens: both must be 1 to 2147483647",
                   (long long)B, (long long)capacity);
  if (c->position == WN_POS_LEARNED && capacity > c->context)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session of %lld tokens: the model has learned positions for %lld",
                   (long long)capacity, (long long)c->context);
  if (options->group) WN_TRY(session_check_group(ctx, model, options->group));
  wn_attention_config attention;
  WN_TRY(wn_session_check_options(ctx, model, options, &attention));
  WN_TRY(wn_alloc_reserve(ctx));
  struct wn_session *s;
  WN_TRY(WN_ALLOC(ctx, "session", 1, &s));
  wn_handle_mark(s, WN_HANDLE_SESSION);
  s->ctx = ctx;
  s->model = model;
  wn_model_keep(model);
  s->B = B;
  s->capacity = capacity;
  s->piece = capacity < WN_SESSION_PIECE ? capacity : WN_SESSION_PIECE;
  wn_status status;
  s->attention = attention;
  s->whole = whole;
  s->marking = options->control_marks;
  s->counting = options->counts;
  s->cache = session_format(model, &attention, budgets && budgets->layers > 0 ? budgets : NULL, options->cache);
  s->rounds = s->cache == WN_CACHE_HALF && ctx->exact_rows == 0 && wn_model_rounds(model);
  s->room = options->group ? &options->group->room : &s->own_room;
  WN_TRY_GOTO(session_arrays(ctx, s, budgets && budgets->layers > 0), fail);
  WN_TRY_GOTO(session_check_history(ctx, s, budgets), fail);
  if (budgets && budgets->layers > 0) WN_TRY_GOTO(wn_budgets_copy(ctx, budgets, &s->budgets), fail);
  s->budgets.pins = &s->pins;
  WN_TRY_GOTO(wn_session_caches_init(ctx, s), fail);
  const int64_t turned = session_turned_rows(s);
  if (turned > model->rotary.rows) WN_TRY_GOTO(wn_rotary_create(model, "session", turned, &s->rotary), fail);
  WN_TRY_GOTO(wn_session_once_create(ctx, s), fail);
  size_t step, piece;
  WN_TRY_GOTO(wn_session_measure(s, &step, &piece), fail);
  WN_TRY_GOTO(model->backend->memory->allocate(ctx, "scratch of a session", step, &s->scratch), fail);
  WN_TRY_GOTO(wn_room_fit_scratch(ctx, model, step > piece ? step : piece, s->room), fail);
  WN_TRY_GOTO(wn_alloc_reserve(ctx), fail); /* the reserve must still be there after all of this */
  s->scratch_bytes = step;
  *out = s;
  return WN_OK;
fail:
  wn_session_destroy(s);
  return status;
}

wn_status wn_session_create(wn_context *ctx, wn_model *model, const wn_session_options *options, wn_session **out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(out));
  return session_create(ctx, model, options, false, out);
}

static wn_session_options session_whole(int64_t capacity, wn_cache_format cache) {
  return (wn_session_options){.size = sizeof(wn_session_options), .sequences = 1, .capacity = capacity, .cache = cache};
}

wn_status wn_session_create_whole(wn_context *ctx, wn_model *model, int64_t capacity, wn_cache_format cache,
                                  wn_session **out) {
  const wn_session_options options = session_whole(capacity, cache);
  return session_create(ctx, model, &options, true, out);
}

wn_status wn_session_plan_whole(wn_context *ctx, const wn_model *model, int64_t capacity, size_t *bytes) {
  const wn_session_options options = session_whole(capacity, WN_CACHE_AUTO);
  return session_plan(ctx, model, &options, true, capacity, bytes);
}

void wn_session_destroy(wn_session *s) {
  WN_CHECK_OR(, WN_HANDLE(s, SESSION));
  wn_session_ahead_close(s);
  wn_session_once_destroy(s);
  wn_session_caches_clear(s);
  wn_session_inputs_clear(s);
  wn_rotary_clear(&s->rotary);
  s->model->backend->memory->release(s->scratch);
  wn_room_clear(&s->own_room);
  wn_arrays_clear(&s->arrays);
  wn_arrays_clear(&s->host);
  wn_model_release(s->model);
  wn_free(s);
}

int64_t wn_session_position(const wn_session *s) {
  WN_CHECK_OR(0, WN_HANDLE(s, SESSION));
  return s->position;
}

wn_status wn_session_feed(wn_context *ctx, wn_session *s, const int32_t *tokens, int64_t T, int64_t chunk,
                          float *logits) {
  WN_CHECK_WORK(WN_HANDLE_AS("session", s, SESSION), WN_POINTER(tokens));
  WN_TRY(wn_session_check_tokens(ctx, s, tokens, T, chunk));
  struct wn_feed f = {.session = s, .tokens = tokens, .stride = T, .logits = logits && T == 1};
  WN_TRY(wn_session_stretch(s, T));
  WN_TRY(wn_session_make_room(s, T, NULL));
  WN_TRY(wn_batch_feed(ctx, &f, T, chunk > 0 ? chunk : s->piece));
  if (!logits) return WN_OK;
  WN_TRY(wn_session_last_logits(s));
  return wn_session_copy_logits(s->model, s->logits, s->B, logits);
}

wn_status wn_session_read_context(wn_context *ctx, wn_session *s, const int32_t *tokens, int64_t T, float *logits) {
  WN_CHECK_WORK(WN_HANDLE_AS("session", s, SESSION), WN_POINTER(tokens));
  if (!wn_session_reads_by_layer(s)) {
    WN_TRY(wn_session_feed(ctx, s, tokens, T, 0, logits));
    return wn_session_compress(ctx, s);
  }
  struct wn_reading r = {
      .feed = {.session = s, .tokens = tokens, .stride = T, .T = T, .logits = logits != NULL, .out = logits}};
  wn_status status = wn_reading_begin(ctx, &r);
  while (status == WN_OK && r.x) status = wn_reading_layer(&r);
  return status;
}
