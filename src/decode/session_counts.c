/* Meaningful attention while generating (Fernandez, Unsal, sections 4.3 and 5.4): how many content tokens the threshold
 * keeps for a session's last row, by layer and head; and control tokens by position, for tokens whose ids do not tell
 * them from content. Attention counts the keys as it chooses them, so a count costs only a copy. */
#include "base/error.h"
#include "base/misuse.h"
#include "decode/session.h"

#include <string.h>

wn_status wn_session_attention_forward(struct wn_run *run, struct wn_session *s, int64_t part,
                                       const struct wn_attention *op) {
  if (!s->counts) return wn_run_attention_forward(run, op);
  const int64_t l = s->parts[part].layer, H = s->model->config.heads, first = op->head0;
  struct wn_attention counting = *op;
  /* Parts of a layer may run in parallel: each writes to the place of its own heads. */
  counting.threshold.count = s->count_rows + s->B * first * s->piece;
  int32_t *rows = s->count_rows_read + s->B * first * s->piece;
  WN_TRY(wn_run_attention_forward(run, &counting));
  if (!run->measuring)
    WN_TRY(wn_session_read(s->model, rows, counting.threshold.count, (size_t)(op->B * op->H * op->Tq) * sizeof *rows));
  for (int64_t b = 0; b < op->B && !run->measuring; b++)
    for (int64_t h = 0; h < op->H; h++)
      s->counts[(l * s->B + b) * H + first + h] = rows[(b * op->H + h) * op->Tq + op->Tq - 1];
  return WN_OK;
}

wn_status wn_session_mark_control(wn_context *ctx, wn_session *s, int64_t sequence, int64_t first, int64_t count) {
  WN_CHECK_CALL(WN_HANDLE_AS("session", s, SESSION));
  if (!s->marks)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: control tokens are marked in a session made with control_marks");
  if (sequence < 0 || sequence >= s->B || first < s->position || count < 0 || count > s->capacity - first)
    return wn_fail(
        ctx, WN_ERR_ARGUMENT,
        "session: control tokens %lld to %lld of sequence %lld; expected sequences 0 to %lld and tokens that "
        "are still to come, %lld to %lld",
        (long long)first, (long long)first + count - 1, (long long)sequence, (long long)s->B - 1,
        (long long)s->position, (long long)s->capacity - 1);
  memset(s->marks + sequence * s->capacity + first, 1, (size_t)count);
  return WN_OK;
}

wn_status wn_session_counts(wn_context *ctx, const wn_session *s, int64_t sequence, int32_t *counts, int64_t *context,
                            int64_t *content) {
  WN_CHECK_CALL(WN_HANDLE_AS("session", s, SESSION));
  if (!s->counts || !s->counted || sequence < 0 || sequence >= s->B)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: counts of sequence %lld: %s", (long long)sequence,
                   !s->counts         ? "the session was made without counts"
                   : s->position == 0 ? "nothing has been fed"
                   : !s->counted      ? "nothing has been fed since it took over a state without them"
                                      : "there is no such sequence");
  const int64_t L = s->model->config.layers, H = s->model->config.heads;
  int64_t control = 0;
  for (int64_t i = 0; s->control && i < s->position; i++) control += s->control[sequence * s->capacity + i];
  if (context) *context = s->position;
  if (content) *content = s->position - control;
  for (int64_t l = 0; l < L && counts; l++)
    memcpy(counts + l * H, s->counts + (l * s->B + sequence) * H, (size_t)H * sizeof *counts);
  return WN_OK;
}
