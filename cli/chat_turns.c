/* The turns of a conversation, and the tokens that the session reads of them. */
#include "chat.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The capacity of a text without limit. Arrays of this length are small compared with a cache; a conversation that
 * reaches it starts again with its last turns. */
#define ENDLESS ((int64_t)1 << 24)

/* Encodes the tokens before a turn's answer. opening: the conversation begins with this turn. */
static int turns_encode(const struct chat *c, const char *message, bool opening, struct cli_ids *out) {
  const wn_chat_message messages[2] = {{WN_CHAT_SYSTEM, c->dialogue.system ? c->dialogue.system : ""},
                                       {WN_CHAT_USER, message}};
  const int first = opening && c->dialogue.system ? 0 : 1;
  int32_t *ids = NULL;
  size_t n = 0;
  const wn_status status =
      wn_chat_encode(c->ctx, c->in.tok, c->dialogue.chat, messages + first, 2 - first, opening, &ids, &n);
  if (status != WN_OK) return cli_error("the message: %s", wn_context_error(c->ctx));
  out->count = 0;
  const int code = cli_ids_add(out, ids, n);
  wn_tokens_free(ids);
  return code;
}

static void turns_clear(struct chat_turn *t) {
  free(t->message);
  free(t->text);
  free(t->prompt.data);
  free(t->answer.data);
}

/* Refuses a message that is too long by itself, before any turn is forgotten for it. */
static int turns_check_length(const struct chat *c, const char *message, size_t count) {
  struct cli_ids alone = {0};
  if ((int64_t)(c->ids.count + count) < c->capacity) return 0;
  int code = turns_encode(c, message, true, &alone);
  if (!code && (int64_t)alone.count >= c->capacity)
    code = cli_error("the message has %zu tokens: more than the context of %" PRId64 " (--context)", alone.count,
                     c->capacity);
  free(alone.data);
  return code;
}

int chat_add_turn(struct chat *c, const char *message) {
  struct chat_turn turn = {.message = strdup(message)};
  if (!turn.message) return cli_error("out of memory");
  int code = CLI_GROW(&c->turns, c->turn_count, 1, &c->turn_room);
  if (!code) code = turns_encode(c, message, c->turn_count == c->first, &turn.prompt);
  if (!code) code = turns_check_length(c, message, turn.prompt.count);
  if (!code) code = cli_ids_add(&c->ids, turn.prompt.data, turn.prompt.count);
  if (code)
    turns_clear(&turn);
  else
    c->turns[c->turn_count++] = turn;
  return code;
}

int chat_rebuild(struct chat *c) {
  wn_session_reset(c->session);
  c->before_holds = false;
  c->ids.count = 0;
  for (size_t i = c->first; i < c->turn_count; i++) {
    struct chat_turn *t = &c->turns[i];
    if (turns_encode(c, t->message, i == c->first, &t->prompt) ||
        cli_ids_add(&c->ids, t->prompt.data, t->prompt.count) || cli_ids_add(&c->ids, t->answer.data, t->answer.count))
      return 1;
  }
  return 0;
}

/* How many of the first turn's tokens are there whatever its message: the system message's. */
static int turns_system(const struct chat *c, int64_t *count) {
  const struct chat_turn *turn = &c->turns[c->first];
  struct cli_ids other = {0};
  const int code = turns_encode(c, *turn->message == 'a' ? "b" : "a", true, &other);
  size_t n = 0;
  while (!code && n < other.count && n < turn->prompt.count && other.data[n] == turn->prompt.data[n]) n++;
  free(other.data);
  *count = (int64_t)n;
  return code;
}

int chat_pin(struct chat *c) {
  int64_t at = 0, system = 0;
  wn_status status = WN_OK;
  if (!strcmp(c->r->pin, "system") && c->dialogue.system && turns_system(c, &system)) return 1;
  if (system > 0) status = wn_session_pin(c->ctx, c->session, 0, system);
  for (size_t i = c->first; i < c->turn_count && status == WN_OK; i++) {
    const struct chat_turn *turn = &c->turns[i];
    const int64_t n = (int64_t)(turn->prompt.count + turn->answer.count);
    if (turn->pinned) status = wn_session_pin(c->ctx, c->session, at, n);
    at += n;
  }
  return status == WN_OK ? 0 : cli_error("pinned turns: %s", wn_context_error(c->ctx));
}

/* Frees half of the capacity at once, so that the rest is seldom read again. */
int chat_make_room(struct chat *c, int64_t more) {
  const size_t before = c->first;
  const int64_t most = c->capacity < c->r->context ? c->capacity : c->r->context;
  int64_t tokens = 0;
  while ((int64_t)c->ids.count + more > c->capacity && c->first + 1 < c->turn_count) {
    int64_t left = (int64_t)c->ids.count;
    do {
      const struct chat_turn *t = &c->turns[c->first++];
      const int64_t gone = (int64_t)(t->prompt.count + t->answer.count);
      left -= gone, tokens += gone;
    } while (c->first + 1 < c->turn_count && (left > most / 2 || left + more > c->capacity));
    if (chat_rebuild(c)) return 1;
  }
  if (c->first > before)
    cli_note(&c->r->common,
             "winnow: the context of %" PRId64 " tokens is full: the oldest %zu message%s and %s (%" PRId64
             " tokens) are forgotten, the rest is read again",
             c->capacity, c->first - before, c->first - before == 1 ? "" : "s",
             c->first - before == 1 ? "its answer" : "their answers", tokens);
  return 0;
}

void chat_discard(struct chat *c) {
  for (size_t i = 0; i < c->turn_count; i++) turns_clear(&c->turns[i]);
  free(c->turns);
  free(c->system);
  c->turns = NULL;
  c->turn_count = c->turn_room = 0;
  c->system = NULL;
}

void chat_forget(struct chat *c) {
  wn_session_reset(c->session);
  for (size_t i = 0; i < c->turn_count; i++) turns_clear(&c->turns[i]);
  c->turn_count = c->first = c->ids.count = 0;
  c->before_holds = false;
  c->drawn = 0;
}

void chat_set_system(struct chat *c, char *text) {
  free(c->system);
  c->system = text;
  c->dialogue.system = text && (text[0] || c->dialogue.owned) ? text : NULL; /* as cli_dialogue_choose does */
}

/* True if every layer evicts and rotates tokens by their cache positions. */
static bool turns_have_no_end(const wn_budgets *b) {
  for (int64_t l = 0; l < b->layers; l++)
    if (b->tokens[l] >= ENDLESS) return false;
  return b->layers > 0 && b->cache_positions;
}

int chat_open_session(struct chat *c) {
  wn_session *session = NULL;
  const bool endless = turns_have_no_end(&c->in.budgets);
  const int64_t capacity = endless ? ENDLESS : c->r->context;
  const int code = cli_session_open(c->ctx, &c->in, capacity, &session);
  if (code) return code;
  wn_session_destroy(c->session);
  wn_session_destroy(c->before);
  c->session = session;
  c->before = NULL;
  c->before_holds = false;
  c->capacity = capacity;
  c->endless = endless;
  return chat_rebuild(c);
}

void chat_close(struct chat *c) {
  chat_discard(c);
  free(c->ids.data);
  json_decref(c->log);
  wn_session_destroy(c->session);
  wn_session_destroy(c->before);
  wn_constraint_destroy(c->constraint);
  cli_dialogue_clear(&c->dialogue);
  cli_loaded_clear(&c->in);
  for (int i = 0; i < c->own.count; i++) free((void *)c->own.items[i]);
  cli_list_clear(&c->own);
}
