/* Drawing an answer. If the context is full in the middle of an answer, the oldest turns are forgotten and it
 * continues. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "chat.h"
#include "signals.h"

struct drawing {
  const struct chat *chat;
  FILE *copy;
  bool shown; /* on a terminal */
};

static bool answer_on_piece(void *user, const wn_generate_piece *piece) {
  const struct drawing *a = user;
  fwrite(piece->text, 1, piece->bytes, a->copy);
  if (a->chat->r->common.json) return true;
  const bool put = a->shown ? chat_put_safely(piece->text, piece->bytes)
                            : fwrite(piece->text, 1, piece->bytes, stdout) == piece->bytes;
  return put && !fflush(stdout);
}

/* Keeps the session's state, for /regen on a terminal and for text that --stop cuts off. Without memory for it the
 * conversation is read again when needed. */
static void answer_keep_state(struct chat *c) {
  if (!c->terminal && c->r->stop.count == 0) return;
  const wn_session_options options = {.size = sizeof options,
                                      .sequences = 1,
                                      .capacity = c->capacity,
                                      .budgets = &c->in.budgets,
                                      .cache = c->in.budgets.cache};
  if (!c->before && wn_session_create(c->ctx, c->in.model, &options, &c->before) != WN_OK) c->before = NULL;
  c->before_holds = c->before && wn_session_copy(c->ctx, c->before, c->session, NULL) == WN_OK;
}

/* Draws at most `most` tokens of the last turn's answer, and adds them to it. */
static wn_status answer_draw(struct chat *c, int64_t most, struct drawing *a, wn_generate_result *result) {
  struct chat_turn *turn = &c->turns[c->turn_count - 1];
  const int64_t seen = wn_session_position(c->session);
  int32_t *drawn = malloc((size_t)most * sizeof *drawn);
  wn_generate_options o;
  if (!drawn) return WN_ERR_MEMORY;
  wn_generate_options_init(&o, sizeof o);
  o.prompt = c->ids.data + seen;
  o.prompt_count = (int64_t)c->ids.count - seen;
  o.draft_text = c->ids.data, o.draft_text_count = (int64_t)c->ids.count;
  o.tok = c->in.tok;
  o.text_before = turn->answer.data;
  o.text_before_count = (int64_t)turn->answer.count;
  o.first_step = c->drawn;
  o.max_tokens = most;
  o.drawn = drawn;
  o.stop_strings = c->r->stop.items;
  o.stop_string_count = c->r->stop.count;
  o.constraint = c->constraint;
  o.piece = answer_on_piece;
  o.user = a;
  cli_sampling_apply(&c->r->sampling, c->in.draft, &o);
  wn_status status = wn_session_generate(c->ctx, c->session, &o, result);
  c->drawn += result->steps;
  c->tokens += result->tokens;
  c->fed += result->prompt_tokens;
  c->feed_seconds += result->prompt_seconds;
  c->draw_seconds += result->token_seconds;
  if (cli_ids_add(&c->ids, drawn, (size_t)result->tokens) || cli_ids_add(&turn->answer, drawn, (size_t)result->tokens))
    status = WN_ERR_MEMORY;
  free(drawn);
  return status == WN_OK && ferror(stdout) ? WN_ERR_IO : status;
}

/* Writes an answer in parts, as long as forgetting turns makes room. */
static wn_status answer_write(struct chat *c, struct drawing *a, struct chat_result *out) {
  wn_generate_result result;
  for (;;) {
    const int64_t room = c->capacity - (int64_t)c->ids.count, left = c->r->tokens - out->tokens;
    const wn_status status = answer_draw(c, left < room ? left : room, a, &result);
    out->end = result.end;
    out->tokens += result.tokens;
    out->seconds += result.token_seconds;
    if (status != WN_OK || result.end != WN_GENERATE_LENGTH || room >= left) return status;
    out->end = WN_GENERATE_CONTEXT;
    if (c->constraint) return WN_OK; /* a constraint starts again with every call, so an answer cannot continue */
    if (chat_make_room(c, c->capacity / 4) || chat_pin(c)) return WN_ERR_MEMORY;
    if ((int64_t)c->ids.count >= c->capacity) return WN_OK; /* the last turn alone fills the context */
  }
}

/* Takes the session back to where the last turn began. */
static void answer_rewind(struct chat *c) {
  if (!c->before_holds || wn_session_copy(c->ctx, c->session, c->before, NULL) != WN_OK) wn_session_reset(c->session);
}

/* Text that --stop has cut off is not part of the conversation: encodes the rest as the answer's tokens. */
static int answer_cut(struct chat *c) {
  struct chat_turn *turn = &c->turns[c->turn_count - 1];
  const size_t begin = c->ids.count - turn->answer.count;
  size_t n, same = 0;
  int32_t *ids;
  if (wn_tokenizer_encode(c->ctx, c->in.tok, turn->text, strlen(turn->text), false, false, &ids, &n) != WN_OK)
    return cli_error("the answer: %s", wn_context_error(c->ctx));
  while (same < n && same < turn->answer.count && ids[same] == turn->answer.data[same]) same++;
  c->ids.count = begin + same;
  turn->answer.count = same;
  const int code = cli_ids_add(&c->ids, ids + same, n - same) || cli_ids_add(&turn->answer, ids + same, n - same);
  wn_tokens_free(ids);
  if (wn_session_position(c->session) > (int64_t)(begin + same)) answer_rewind(c);
  return code;
}

int chat_answer(struct chat *c, struct chat_result *out) {
  struct chat_turn *turn = &c->turns[c->turn_count - 1];
  struct drawing a = {.chat = c, .shown = isatty(STDOUT_FILENO)};
  size_t bytes = 0;
  const int64_t wanted = c->constraint ? c->capacity / 2 : c->capacity / 4;
  *out = (struct chat_result){0};
  if (chat_make_room(c, c->r->tokens < wanted ? c->r->tokens : wanted > 0 ? wanted : 1)) return 1;
  if ((int64_t)c->ids.count >= c->capacity) return cli_error("the message fills the context (--context)");
  if (chat_pin(c)) return 1;
  free(turn->text);
  turn->text = NULL;
  if (!(a.copy = open_memstream(&turn->text, &bytes))) return cli_error("out of memory");
  answer_keep_state(c);
  wn_context_resume(c->ctx); /* withdraws a Ctrl-C after the last answer */
  cli_signals_begin_answer(c->ctx, c->terminal);
  const wn_status status = answer_write(c, &a, out);
  const bool ended = cli_signals_end_answer(), stopped = wn_context_cancelled(c->ctx);
  wn_context_resume(c->ctx);
  c->answers++;
  if (fclose(a.copy) || !turn->text) return cli_error("out of memory");
  if (status != WN_OK) return status == WN_ERR_IO && ferror(stdout) ? 1 : cli_fail(c->ctx, status);
  if (out->end == WN_GENERATE_STOP && answer_cut(c)) return 1;
  return ended || (stopped && !c->terminal) ? CLI_INTERRUPTED : 0;
}

bool chat_take_back(struct chat *c) {
  if (c->turn_count == 0 || c->turn_count == c->first) return false;
  struct chat_turn *last = &c->turns[c->turn_count - 1];
  c->ids.count -= last->answer.count;
  last->answer.count = 0;
  answer_rewind(c);
  return true;
}
