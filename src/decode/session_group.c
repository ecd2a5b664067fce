/* A step of several sessions together, one token each: a batch in the group's room. */
#include "decode/session_group.h"

#include "base/misuse.h"

wn_status wn_session_group_create(wn_context *ctx, wn_model *model, int64_t most, wn_session_group **out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(out));
  wn_status status;
  *out = NULL;
  if (most < 1 || most > INT32_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session group of %lld sessions: expected 1 to 2147483647", (long long)most);
  if (model->encoder)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "session group: sessions of an encoder-decoder take no steps together");
  WN_TRY(wn_alloc_reserve(ctx));
  struct wn_session_group *g;
  WN_TRY(WN_ALLOC(ctx, "session group", 1, &g));
  wn_handle_mark(g, WN_HANDLE_SESSION_GROUP);
  g->ctx = ctx;
  g->model = model;
  wn_model_keep(model);
  g->most = most;
  const struct wn_array of[] = {
      WN_ARRAY_FOR(g->feeds, "feeds", true, WN_DIMS(most)),
      WN_ARRAY_FOR(g->order, "order", true, WN_DIMS(most)),
  };
  WN_TRY_GOTO(WN_ARRAYS_CREATE(ctx, &g->arrays, "a group of sessions", of), fail);
  WN_TRY_GOTO(wn_batch_room(ctx, model, most, most, &g->room), fail);
  *out = g;
  return WN_OK;
fail:
  wn_session_group_destroy(g);
  return status;
}

void wn_session_group_destroy(wn_session_group *g) {
  WN_CHECK_OR(, WN_HANDLE_AS("group", g, SESSION_GROUP));
  wn_room_clear(&g->room);
  wn_arrays_clear(&g->arrays);
  wn_model_release(g->model);
  wn_free(g);
}

static wn_status group_prepare(wn_context *ctx, struct wn_session_group *g, const wn_session_row *rows, int64_t n) {
  if (n < 1 || n > g->most)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session group: %lld sessions, expected 1 to %lld", (long long)n,
                   (long long)g->most);
  for (int64_t i = 0; i < n; i++)
    g->feeds[i] = (struct wn_feed){.session = rows[i].session,
                                   .tokens = &rows[i].token,
                                   .T = 1,
                                   .logits = rows[i].logits != NULL,
                                   .out = rows[i].logits};
  WN_TRY(wn_batch_check(ctx, g->model, g->feeds, n));
  for (int64_t i = 0; i < n; i++) WN_TRY(wn_session_stretch(rows[i].session, 1));
  return WN_OK;
}

wn_status wn_session_group_feed(wn_context *ctx, wn_session_group *g, wn_session_row *rows, int64_t n) {
  WN_CHECK_WORK(WN_HANDLE_AS("group", g, SESSION_GROUP), WN_ARRAY(rows, n));
  const wn_status refused = group_prepare(ctx, g, rows, n);
  const wn_status status = refused == WN_OK ? wn_batch_run(ctx, &g->room, g->feeds, n) : refused;
  for (int64_t i = 0; i < n; i++) rows[i].status = refused == WN_OK ? g->feeds[i].status : refused;
  return status;
}
