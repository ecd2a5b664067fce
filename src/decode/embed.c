/* States and embeddings: rows of the residual stream go through the final norm, ROWS at a time, and are written out or
 * summed. No logits are computed: a text costs only its layers. */
#include "decode/embed.h"

#include <math.h>
#include <string.h>

#include "base/arrays.h"
#include "base/misuse.h"
#include "base/options.h"
#include "decode/session.h"

enum { ROWS = 64 };

/* Arrays for ROWS rows of a pass. */
struct embed_rows {
  struct wn_arrays arrays, host; /* the backend's memory, and the host's */
  void *x_out, *n_out;           /* [ROWS,C] */
  void *read;                    /* n_out on the host */
  void *rstd, *mean;             /* [ROWS] */
};

/* Where states go: into `states` [B,stride,C] from row `at` on, or into `sums`. */
struct embed_target {
  float *states;
  int64_t stride, at;
  wn_pooling pooling;
  double *sums; /* [B,C] */
};

static void embed_lay(const struct wn_session *s, struct embed_rows *x) {
  const int64_t C = s->model->config.width;
  const size_t e = wn_dtype_size(s->model->dtype);
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(x->x_out, e, "x_out", true, WN_DIMS(ROWS, C)),
      WN_ARRAY_SIZED(x->n_out, e, "n_out", true, WN_DIMS(ROWS, C)),
      WN_ARRAY_SIZED(x->rstd, e, "rstd", true, WN_DIMS(ROWS)),
      WN_ARRAY_SIZED(x->mean, e, "mean", s->model->config.norm == WN_NORM_LAYER, WN_DIMS(ROWS)),
  };
  const struct wn_array read =
      WN_ARRAY_SIZED(x->read, e, "states read", !s->model->backend->memory->host, WN_DIMS(ROWS, C));
  WN_ARRAYS_LAY(&x->arrays, rows);
  wn_arrays_lay(&x->host, &read, 1);
  if (s->model->backend->memory->host) x->read = x->n_out;
}

static wn_status embed_norm(struct wn_run *run, struct embed_rows *x, int64_t rows, const void *mid,
                            const void *branch) {
  return wn_run_norm(run, rows, wn_run_final_norm(run, x->rstd, x->mean), mid, branch, x->x_out, x->n_out);
}

static double embed_number(const void *x, int64_t i, wn_dtype dtype) {
  return dtype == WN_F32 ? (double)((const float *)x)[i] : ((const double *)x)[i];
}

/* Writes or sums the state of token t of T, which is row `row` of x->read. */
static void embed_hand_out(const struct wn_session *s, const struct embed_rows *x, int64_t row, int64_t b, int64_t t,
                           bool last, const struct embed_target *to) {
  const int64_t C = s->model->config.width;
  for (int64_t i = 0; i < C; i++) {
    const double value = embed_number(x->read, row * C + i, s->model->dtype);
    if (to->states) to->states[(b * to->stride + to->at + t) * C + i] = (float)value;
    if (to->sums && to->pooling == WN_POOLING_MEAN) to->sums[b * C + i] += value;
    if (to->sums && to->pooling == WN_POOLING_LAST && last) to->sums[b * C + i] = value;
  }
}

/* Feeds T tokens, at most a piece. */
static wn_status embed_feed(struct wn_session *s, const int32_t *tokens, int64_t stride, int64_t T,
                            struct embed_rows *x, const struct embed_target *to) {
  const int64_t C = s->model->config.width;
  const wn_dtype dtype = s->model->dtype;
  struct wn_session_rows rows;
  struct wn_run run;
  WN_TRY(wn_session_feed_piece(s, tokens, stride, T, &rows));
  wn_session_begin(&run, s, 1);
  for (int64_t b = 0; b < s->B; b++) {
    for (int64_t t = 0, n; t < T; t += n) {
      const int64_t first = (b * T + t) * C;
      n = T - t < ROWS ? T - t : ROWS;
      WN_TRY(embed_norm(&run, x, n, wn_element(rows.mid, first, dtype), wn_element(rows.branch, first, dtype)));
      WN_TRY(wn_session_read(s->model, x->read, x->n_out, (size_t)(n * C) * wn_dtype_size(dtype)));
      for (int64_t i = 0; i < n; i++) embed_hand_out(s, x, i, b, t + i, t + i == T - 1, to);
    }
  }
  return WN_OK;
}

static wn_status embed_rows_init(wn_context *ctx, const struct wn_session *s, struct embed_rows *x) {
  *x = (struct embed_rows){.arrays = {.memory = s->model->backend->memory}};
  embed_lay(s, x);
  WN_TRY(wn_arrays_allocate(ctx, &x->arrays, "states"));
  const wn_status status = wn_arrays_allocate(ctx, &x->host, "states");
  if (status == WN_OK)
    embed_lay(s, x);
  else
    wn_arrays_clear(&x->arrays);
  return status;
}

static void embed_rows_clear(struct embed_rows *x) {
  wn_arrays_clear(&x->arrays);
  wn_arrays_clear(&x->host);
}

/* *now: how many of T tokens are fed at once. */
static wn_status embed_piece_at(struct wn_session *s, int64_t T, int64_t *now) {
  const int64_t room = wn_session_place_after(s->position) - s->position;
  *now = T < room ? T : room;
  return wn_session_make_room(s, *now, now);
}

wn_status wn_session_states(wn_context *ctx, wn_session *s, const int32_t *tokens, int64_t T, float *states) {
  WN_CHECK_WORK(WN_HANDLE_AS("session", s, SESSION), WN_POINTER(tokens), WN_POINTER(states));
  struct embed_rows x;
  wn_status status = WN_OK;
  WN_TRY(wn_session_check_tokens(ctx, s, tokens, T, 0));
  WN_TRY(wn_session_stretch(s, T));
  WN_TRY(embed_rows_init(ctx, s, &x));
  for (int64_t done = 0, now = 0; done < T && status == WN_OK; done += now) {
    const struct embed_target to = {.states = states, .stride = T, .at = done};
    status = embed_piece_at(s, T - done, &now);
    if (status == WN_OK) status = embed_feed(s, tokens + done, T, now, &x, &to);
  }
  embed_rows_clear(&x);
  return status;
}

wn_status wn_embed_piece(wn_context *ctx, wn_session *s, const int32_t *tokens, int64_t stride, int64_t T,
                         wn_pooling pooling, double *sums, int64_t *now) {
  struct embed_rows x;
  *now = T < s->piece ? T : s->piece;
  WN_TRY(wn_session_check_tokens(ctx, s, tokens, *now, 0));
  WN_TRY(wn_session_stretch(s, T));
  WN_TRY(embed_piece_at(s, T, now));
  WN_TRY(embed_rows_init(ctx, s, &x));
  const wn_status status =
      embed_feed(s, tokens, stride, *now, &x, &(struct embed_target){.pooling = pooling, .sums = sums});
  embed_rows_clear(&x);
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
  void *memory;
  if (options) WN_TRY(WN_OPTIONS_READ(ctx, wn_embed_options, options, &o));
  if ((unsigned)o.pooling >= WN_POOLING_COUNT)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "embed: pooling %d is unknown", (int)o.pooling);
  WN_TRY(wn_session_check_tokens(ctx, s, tokens, T, 0));
  WN_TRY(wn_alloc(ctx, "sums of states", (size_t)(s->B * C) * sizeof(double), &memory));
  double *sums = memory;
  wn_status status = WN_OK;
  for (int64_t done = 0, now = 0; done < T && status == WN_OK; done += now)
    status = wn_embed_piece(ctx, s, tokens + done, T, T - done, o.pooling, sums, &now);
  for (int64_t b = 0; b < s->B && status == WN_OK; b++)
    if (!wn_embed_finish(sums + b * C, C, T, o.pooling, o.raw, embeddings + b * C))
      status = wn_fail(ctx, WN_ERR_DIVERGED, "embed: the states are zero or not finite");
  wn_free(memory);
  return status;
}
