/* States and embeddings: the states of a text's rows are written out or summed. No logits are computed: a text costs
 * only its layers. */
#include "decode/embed.h"

#include <math.h>
#include <string.h>

#include "base/misuse.h"
#include "base/options.h"
#include "decode/batch.h"

/* Where states go: into `states` [B,T,C], T the feed's stride, or into `sums`. */
struct embed_target {
  float *states;
  wn_pooling pooling;
  double *sums; /* [B,C] */
};

/* Writes or sums the states of a feed, whose `user` says where. */
static wn_status embed_take(void *user, const struct wn_feed *f, const void *states) {
  const struct embed_target *to = user;
  const struct wn_model *m = f->session->model;
  const int64_t C = m->config.width, B = f->session->B;
  void *opened;
  WN_TRY(wn_memory_open(m->ctx, m->backend->memory, "states", states, (size_t)(B * f->T * C) * wn_dtype_size(m->dtype),
                        &opened));
  for (int64_t b = 0; b < B; b++)
    for (int64_t t = 0; t < f->T; t++)
      for (int64_t i = 0; i < C; i++) {
        const double value = wn_number(opened, (b * f->T + t) * C + i, m->dtype);
        if (to->states) to->states[(b * f->stride + f->done + t) * C + i] = (float)value;
        if (to->sums && to->pooling == WN_POOLING_MEAN) to->sums[b * C + i] += value;
        if (to->sums && to->pooling == WN_POOLING_LAST && t == f->T - 1) to->sums[b * C + i] = value;
      }
  return wn_memory_close(m->ctx, m->backend->memory, NULL, 0, opened, false);
}

wn_status wn_session_states(wn_context *ctx, wn_session *s, const int32_t *tokens, int64_t T, float *states) {
  WN_CHECK_WORK(WN_HANDLE_AS("session", s, SESSION), WN_POINTER(tokens), WN_POINTER(states));
  struct embed_target to = {.states = states};
  struct wn_feed f = {.session = s, .tokens = tokens, .stride = T, .take = embed_take, .user = &to};
  WN_TRY(wn_session_check_tokens(ctx, s, tokens, T, 0));
  WN_TRY(wn_session_stretch(s, T));
  return wn_batch_feed(ctx, &f, T, 0);
}

wn_status wn_embed_piece(wn_context *ctx, wn_session *s, const int32_t *tokens, int64_t T, wn_pooling pooling,
                         double *sums, int64_t *now) {
  struct embed_target to = {.pooling = pooling, .sums = sums};
  const int64_t room = wn_session_place_after(s->position) - s->position;
  struct wn_feed f = {.session = s, .tokens = tokens, .T = T < room ? T : room, .take = embed_take, .user = &to};
  WN_TRY(wn_session_check_tokens(ctx, s, tokens, f.T, 0));
  WN_TRY(wn_session_stretch(s, T));
  const wn_status status = wn_batch_run(ctx, s->room, &f, 1);
  *now = f.T;
  return status;
}

const char *wn_pooling_name(wn_pooling pooling) {
  static const char *const names[WN_POOLING_COUNT] = {"mean", "last"};
  return (unsigned)pooling < WN_POOLING_COUNT ? names[pooling] : "unknown";
}

bool wn_embed_finish(const double *sums, int64_t C, int64_t T, wn_pooling pooling, bool raw, float *out) {
  double square = 0, factor = pooling == WN_POOLING_MEAN ? 1 / (double)T : 1;
  for (int64_t i = 0; i < C; i++) square += sums[i] * sums[i];
  if (!isfinite(square) || (!raw && square == 0)) return false;
  if (!raw) factor = 1 / sqrt(square);
  for (int64_t i = 0; i < C; i++) out[i] = (float)(factor * sums[i]);
  return true;
}

wn_status wn_session_embed(wn_context *ctx, wn_session *s, const int32_t *tokens, int64_t T,
                           const wn_embed_options *options, float *embeddings) {
  WN_CHECK_WORK(WN_HANDLE_AS("session", s, SESSION), WN_POINTER(tokens), WN_POINTER(embeddings));
  wn_embed_options o = {.size = sizeof o};
  const int64_t C = s->model->config.width;
  double *sums;
  if (options) WN_TRY(WN_OPTIONS_READ(ctx, wn_embed_options, options, &o));
  if ((unsigned)o.pooling >= WN_POOLING_COUNT)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "embed: pooling %d is unknown", (int)o.pooling);
  WN_TRY(wn_session_check_tokens(ctx, s, tokens, T, 0));
  WN_TRY(WN_ALLOC(ctx, "sums of states", s->B * C, &sums));
  struct embed_target to = {.pooling = o.pooling, .sums = sums};
  struct wn_feed f = {.session = s, .tokens = tokens, .stride = T, .take = embed_take, .user = &to};
  wn_status status = wn_session_stretch(s, T);
  if (status == WN_OK) status = wn_batch_feed(ctx, &f, T, 0);
  for (int64_t b = 0; b < s->B && status == WN_OK; b++)
    if (!wn_embed_finish(sums + b * C, C, T, o.pooling, o.raw, embeddings + b * C))
      status = wn_fail(ctx, WN_ERR_DIVERGED, "embed: the states are zero or not finite");
  wn_free(sums);
  return status;
}
